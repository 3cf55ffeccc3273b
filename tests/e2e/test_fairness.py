"""Who comes first, and what becomes of those who wait too long: keys, priorities, timeouts, the watchdog.

The scripted server makes steps slow and equal, so that what is measured is order and tokens, not speed.
"""

import concurrent.futures
import copy
import json
import re
import time

import pytest

import harness
from harness import CHAT, COMPLETIONS

BUSY = {"prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}


def as_key(server, key):
    """The same server, asked with another key."""
    other = copy.copy(server)
    other.key, other.headers, other.streams = key, {**server.headers, "Authorization": f"Bearer {key}"}, []
    return other


def key_file(folder, *keys):
    path = folder / "keys"
    path.write_text("".join(f"{key}\n" for key in keys))
    path.chmod(0o600)
    return path


def script(folder, text):
    path = folder / "script.txt"
    path.write_text(text)
    return {"QUIRE_TEST_SCRIPT": str(path), "QUIRE_TEST_CHECK_EVERY_STEP": "1"}


def long_prompt(seed, count=400):
    return [7 + (seed * 31 + i * 7) % 400 for i in range(count)]


# keys


@pytest.mark.sanitizer
def test_fifty_long_prompts_of_one_key_do_not_delay_another(tmp_path):
    """In tokens: what the server does for the first key between the arrival of the second one's short
    prompt and its answer. Fifty prompts are 20,000 tokens; as the same key it waits for most of them."""
    options = ["--api-key-file", key_file(tmp_path, "first", "second"), "--max-batch-tokens", 64]
    with harness.started(*options, program=harness.SCRIPTED, model=harness.tiny(), key="first",
                         environment=script(tmp_path, "row_delay_us\t250\n")) as first:
        second = as_key(first, "second")
        short = {"prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        taken = {}
        for name, server in (("other key", second), ("same key", first)):
            with concurrent.futures.ThreadPoolExecutor(50) as pool:
                answers = [pool.submit(first.complete, {"prompt": long_prompt(i), "max_tokens": 1, "cache_prompt": False})
                           for i in range(50)]
                harness.wait_until(lambda: first.metrics().waiting >= 40, what="forty waiting")
                before = first.metrics()("quire_key_tokens_total", key="1")
                server.complete(short)
                taken[name] = first.metrics()("quire_key_tokens_total", key="1") - before
                left = first.metrics().waiting
                for answer in answers:
                    answer.result()
            if name == "other key":
                assert left >= 30, "it was answered while most of them still waited"
        print(f"tokens computed for 50 long prompts before a short one was answered: {taken}")
        # A step under way, the one with its prompt and the ones with its tokens; the metrics come later still.
        assert taken["other key"] <= 10 * 64
        assert taken["same key"] >= 8000
        assert first.metrics()("quire_key_tokens_total", key="2") == 3 + 1


def test_keys_share_while_both_have_work(tmp_path):
    options = ["--api-key-file", key_file(tmp_path, "first", "second"), "--max-batch-tokens", 64]
    with harness.started(*options, program=harness.SCRIPTED, model=harness.tiny(), key="first",
                         environment=script(tmp_path, "row_delay_us\t250\n")) as first:
        second = as_key(first, "second")

        def body(i):
            return {"prompt": long_prompt(i), "max_tokens": 1, "cache_prompt": False}

        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            answers = [pool.submit(first.complete, body(i)) for i in range(30)]
            harness.wait_until(lambda: first.metrics().waiting >= 20, what="waiting")
            start = first.metrics()
            answers += [pool.submit(second.complete, body(100 + i)) for i in range(10)]
            harness.wait_until(lambda: first.metrics()("quire_key_tokens_total", key="2") >= 2000, what="half of them")
            end = first.metrics()
            got = [end("quire_key_tokens_total", key=k) - start("quire_key_tokens_total", key=k) for k in "12"]
            # The second one's prompts may have come in a little later than `start` was read.
            assert got[0] <= got[1] * 1.5 + 1000, got
            for answer in answers:
                answer.result()


def test_one_key_leaves_room_in_the_queue(tmp_path):
    options = ["--api-key-file", key_file(tmp_path, "first", "second"), "--max-seqs", 1, "--max-queue", 8]
    with harness.started(*options, model=harness.tiny(), key="first") as first:
        busy = first.stream(BUSY)
        next(busy.events())
        held = [first.stream(BUSY) for _ in range(4)]
        harness.wait_until(lambda: first.metrics().waiting == 4, what="four waiting")
        refused = first.post(BUSY)
        assert refused.status == 429 and "API key" in refused.error["message"]
        second = as_key(first, "second")
        other = second.stream({**BUSY, "max_tokens": 2})
        harness.wait_until(lambda: first.metrics().waiting == 5, what="the other key's waits too")
        for stream in (busy, *held):
            stream.hang_up()
        assert list(other.chunks())


@pytest.mark.sanitizer
def test_the_cache_is_each_keys_own_unless_it_is_global(tmp_path):
    prompt = {"prompt": long_prompt(1, 100), "max_tokens": 1}
    for scope, expected in (("key", 0), ("global", 96)):
        options = ["--api-key-file", key_file(tmp_path, "first", "second"), "--cache-scope", scope]
        with harness.started(*options, model=harness.tiny(), key="first") as first:
            def cached(server, **fields):
                return server.complete({**prompt, **fields})["usage"]["prompt_tokens_details"]["cached_tokens"]

            assert cached(first) == 0
            assert cached(first) == 96
            assert cached(as_key(first, "second")) == expected
            assert cached(first, cache_salt="mine") == 0, "a salt is kept apart in any scope"
            assert cached(first, cache_salt="mine") == 96


@pytest.mark.sanitizer
def test_the_operator_empties_the_cache(tmp_path):
    with harness.started("--api-key-file", key_file(tmp_path, "first"), model=harness.tiny(), key="first") as server:
        prompt = {"prompt": long_prompt(1, 100), "max_tokens": 1}

        def cached():
            return server.complete(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert (cached(), cached()) == (0, 96)
        assert server.metrics()("quire_kv_pages_cached") >= 6
        for body in (None, b"{}", b"whatever it is"):
            assert server.request("POST", "/v1/cache/reset", body).status == 200
            assert (cached(), cached()) == (0, 96)
        assert server.metrics()("quire_cache_resets_total") == 3
        assert server.request("POST", "/v1/cache/reset", headers={}).status == 401
        assert server.request("GET", "/v1/cache/reset").status == 405
        page = {"Authorization": "Bearer first", "Origin": "https://evil.example"}
        assert server.request("POST", "/v1/cache/reset", headers=page).status == 415, "no page of a browser may"
        # While something runs, what it holds stays.
        stream = server.stream({**prompt, "max_tokens": 1500, "ignore_eos": True})
        events = stream.events()
        next(events)
        assert server.request("POST", "/v1/cache/reset").json == {"status": "ok"}
        next(events)
        assert cached() == 96
        assert "cache_reset" in server.log and "are kept" in server.log


@pytest.mark.sanitizer
def test_another_key_does_not_empty_the_cache(tmp_path):
    """Neither with a cache for each key nor with one for all."""
    keys = tmp_path / "keys"
    keys.write_text("root operator\nalice\nbob\n")
    for scope in ("key", "global"):
        with harness.started("--api-key-file", keys, "--cache-scope", scope, model=harness.tiny(), key="alice") as server:
            def reset(key):
                return server.request("POST", "/v1/cache/reset", headers={"Authorization": f"Bearer {key}"})

            def cached():
                body = {"prompt": long_prompt(1, 100), "max_tokens": 1}
                return server.complete(body)["usage"]["prompt_tokens_details"]["cached_tokens"]

            assert (cached(), cached()) == (0, 96)
            for key in ("alice", "bob"):
                refused = reset(key)
                assert refused.status == 403 and refused.error["code"] == "operator_only"
            assert cached() == 96 and server.metrics()("quire_cache_resets_total") == 0
            assert reset("root").status == 200
            assert cached() == 0


# priorities


def finished_in_order(server, bodies):
    """The names of the bodies in the order in which they end, while one slot is held. The server's log says it:
    on a busy machine this process' threads may learn of the ends in another order."""
    busy = server.stream(BUSY)
    next(busy.events())
    ids = {}
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        def ask(name, body):
            answer = server.complete({**BUSY, "max_tokens": 400, **body})   # longer than this thread may have to wait
            ids[name] = answer["id"].split("-")[1]
            return answer

        waiting = []
        for i, (name, body) in enumerate(bodies):
            waiting.append(pool.submit(ask, name, body))
            harness.wait_until(lambda: server.metrics().waiting == i + 1, what="waiting")
        busy.hang_up()
        for future in waiting:
            future.result()
    harness.wait_until(lambda: all("id=" + i in server.log for i in ids.values()), what="the log")
    return sorted(ids, key=lambda name: server.log.index("id=" + ids[name]))


def test_lower_priorities_go_first(tiny_narrow):
    assert finished_in_order(tiny_narrow, [
        ("five", {"priority": 5}), ("none", {}), ("minus", {"priority": -3}), ("zero", {"priority": 0})
    ]) == ["minus", "none", "zero", "five"]


@pytest.fixture
def tiny_narrow():
    return harness.shared("--max-seqs", "1", "--max-queue", "8", model=harness.tiny())


# timeouts


@pytest.mark.sanitizer
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_request_that_waits_too_long_is_told_so(slow, stream, path):
    with slow.unharmed():
        busy = slow.stream({**BUSY, "max_tokens": 500})
        next(busy.events())
        start = time.monotonic()
        body = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
        late = slow.post({**body, "timeout": 0.5, "stream": stream}, path)
        took = time.monotonic() - start
        assert late.status == 503 and late.error["code"] == "timeout" and late.error["param"] == "timeout"
        assert int(late.headers["Retry-After"]) >= 1
        assert 0.5 <= took < harness.patience(5), "at its time, not at the end of what runs"
        assert slow.metrics()("vllm:request_success_total", finished_reason="timeout") >= 1
        busy.hang_up()


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """One place, steps of 40 ms."""
    environment = script(tmp_path_factory.mktemp("slow"), "delay_us\t40000\n")
    with harness.started("--max-seqs", "1", program=harness.SCRIPTED, model=harness.tiny(), environment=environment) as server:
        yield server


def test_an_answer_that_takes_too_long_ends_as_it_is(slow):
    body = {"prompt": [9, 8, 7], "max_tokens": 1000, "temperature": 0, "ignore_eos": True}
    whole = slow.complete({**body, "max_tokens": 60})["choices"][0]["text"]
    with slow.unharmed():
        answer = slow.complete({**body, "timeout": 1})
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "length" and choice["stop_reason"] == "timeout"
        assert 1 <= answer["usage"]["completion_tokens"] <= 30
        assert whole.startswith(choice["text"].rstrip("\ufffd")) and choice["text"]
        last = [c for c in slow.stream({**body, "timeout": 1}).chunks() if c["choices"]][-1]["choices"][0]
        assert last["finish_reason"] == "length" and last["stop_reason"] == "timeout"
        with slow.client() as client:
            answer = client.completions.create(model="default", prompt=[9, 8, 7], max_tokens=1000,
                                               temperature=0, extra_body={"timeout": 1, "ignore_eos": True})
            assert answer.choices[0].finish_reason == "length"
    assert re.search(r"finish=timeout", slow.log)


def test_late_in_a_stream_that_was_kept_alive(slow):
    """After 5 s the headers are out with a comment; then it can only be an event."""
    busy = slow.stream({**BUSY, "max_tokens": 500})
    next(busy.events())
    events = list(slow.stream({"prompt": "x", "timeout": 6}).events())
    assert len(events) == 1 and json.loads(events[0])["error"]["code"] == "timeout"
    busy.hang_up()


def test_the_servers_own_timeout(tmp_path):
    environment = script(tmp_path, "delay_us\t40000\n")
    with harness.started("--timeout", "1", program=harness.SCRIPTED, model=harness.tiny(), environment=environment) as server:
        body = {"prompt": [9, 8, 7], "max_tokens": 40, "ignore_eos": True}
        assert server.complete(body)["choices"][0]["stop_reason"] == "timeout"
        assert "stop_reason" not in server.complete({**body, "timeout": 100})["choices"][0], "a request may ask for more"


# the queue


def test_the_queue_is_bounded_in_tokens():
    with harness.started("--max-seqs", "1", "--max-queue-tokens", "500", model=harness.tiny()) as server:
        busy = server.stream(BUSY)
        next(busy.events())
        streams = [server.stream({"prompt": long_prompt(i, 200), "max_tokens": 1}) for i in range(2)]
        harness.wait_until(lambda: server.metrics()("quire_queue_tokens") == 400, what="two waiting")
        refused = server.post({"prompt": long_prompt(3, 101), "max_tokens": 1})
        assert refused.status == 429 and refused.error["code"] == "queue_full" and int(refused.headers["Retry-After"]) >= 1
        assert "400 prompt tokens" in refused.error["message"]
        streams.append(server.stream({"prompt": long_prompt(4, 100), "max_tokens": 1}))
        harness.wait_until(lambda: server.metrics()("quire_queue_tokens") == 500, what="three waiting")
        busy.hang_up()
        for stream in streams:
            assert list(stream.chunks())
        # Alone, any prompt may come.
        server.complete({"prompt": long_prompt(5, 900), "max_tokens": 1})


# the watchdog


@pytest.mark.sanitizer
def test_the_watchdog_says_why(tmp_path):
    """A step that hangs for three seconds; a second is too long here."""
    environment = script(tmp_path, "delay_us\t3000000\n")
    options = ["--watchdog-seconds", "1"]
    with harness.started(*options, program=harness.SCRIPTED, model=harness.tiny(), environment=environment) as server:
        stream = server.stream({"prompt": [5, 6, 7], "max_tokens": 1})
        stalled, _ = harness.wait_until(lambda: (answer := server.get("/ready")).status == 503 and answer, what="stalled")
        assert stalled.json["status"] == "stalled"
        assert re.match(r"no progress for \d+\.\d s: the engine computes a step of 3 rows of 1 sequences; ", stalled.json["reason"])
        metrics = server.metrics()
        assert metrics("quire_watchdog_stalled") == 1 and metrics("quire_ready") == 0
        assert server.get("/health").status == 200, "it lives"
        assert list(stream.chunks())
        harness.wait_until(lambda: server.get("/ready").status == 200, what="ready again")
        metrics = server.metrics()
        assert metrics("quire_watchdog_stalled") == 0 and metrics("quire_watchdog_stalls_total") >= 1
        assert re.search(r"watchdog.*no progress.*computes a step of 3 rows", server.log)
        assert "works again" in server.log


# best_of


def test_best_of(tmp_path):
    server = harness.shared(model=harness.tiny())
    body = {"prompt": "Once", "max_tokens": 12, "temperature": 1, "seed": 5, "logprobs": 0}
    with server.unharmed():
        every = server.complete({**body, "n": 6})
        best = server.complete({**body, "n": 2, "best_of": 6})

        def mean(choice):
            logprobs = choice["logprobs"]["token_logprobs"]
            return sum(logprobs) / len(logprobs)

        expected = sorted(every["choices"], key=mean, reverse=True)[:2]
        assert [c["text"] for c in best["choices"]] == [c["text"] for c in expected]
        assert [c["index"] for c in best["choices"]] == [0, 1]
        assert best["usage"] == every["usage"], "all that was made is counted"
        with server.client() as client:
            answer = client.completions.create(model="default", prompt="Once", max_tokens=12, temperature=1, seed=5, best_of=6)
            assert [c.text for c in answer.choices] == [expected[0]["text"]] and answer.choices[0].logprobs is None
        for fields in ({"stream": True}, {"best_of": 1, "n": 2}):
            refused = server.post({**body, "best_of": 3, **fields})
            assert refused.status == 400 and refused.error["param"] == "best_of"


def test_best_of_shares_the_prompts_pages():
    server = harness.small_pool()
    with server.unharmed():
        before = server.metrics()
        server.complete({"prompt": long_prompt(2, 160), "best_of": 8, "n": 1, "max_tokens": 2, "temperature": 1})
        rows = server.metrics()("quire_rows_computed_total") - before("quire_rows_computed_total")
        assert rows <= 160 + 8, "the prompt is computed once"
