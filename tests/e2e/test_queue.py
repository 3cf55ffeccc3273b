"""Full queues, prompts that can never fit, and the context's edge: told at once and with the numbers."""

import json

import openai
import pytest

import harness
from harness import CHAT

BUSY = {"prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def narrow():
    """One runs, two wait, more are refused."""
    return harness.shared("--max-seqs", "1", "--max-queue", "2")


@pytest.mark.sanitizer
def test_a_full_queue_says_when_to_come_back(narrow):
    with narrow.unharmed():
        streams = [narrow.stream(BUSY)]
        next(streams[0].events())
        streams += [narrow.stream(BUSY) for _ in range(2)]
        harness.wait_until(lambda: narrow.metrics().waiting == 2, what="two waiting")
        for body, path in ((BUSY, harness.COMPLETIONS), ({**BUSY, "stream": True}, harness.COMPLETIONS),
                           ({"messages": [{"role": "user", "content": "x"}]}, CHAT)):
            refused = narrow.post(body, path)
            assert refused.status == 429 and int(refused.headers["Retry-After"]) >= 1
            assert refused.error["type"] == "rate_limit_error" or refused.error["code"], refused.error
        with narrow.client() as client, pytest.raises(openai.RateLimitError):
            client.completions.create(model="default", prompt="x", max_tokens=1)
        assert narrow.get("/health").status == narrow.get("/ready").status == 200
        metrics = narrow.metrics()
        assert (metrics.running, metrics.waiting) == (1, 2), "a refused request leaves nothing behind"
        for stream in streams:
            stream.hang_up()


def test_a_request_is_taken_whole_or_not_at_all(narrow):
    """Three prompts do not fit where two may wait and one runs: none of them is begun."""
    with narrow.unharmed():
        stream = narrow.stream(BUSY)
        next(stream.events())
        refused = narrow.post({"prompt": ["a", "b", "c"], "max_tokens": 2})
        assert refused.status == 429
        assert narrow.metrics().waiting == 0
        taken = narrow.stream({"prompt": ["a", "b"], "max_tokens": 2})
        harness.wait_until(lambda: narrow.metrics().waiting == 2, what="both waiting")
        stream.hang_up()
        assert [c["finish_reason"] for c in _last_chunks(taken)] == ["length"] * 2


def _last_chunks(stream):
    return [c["choices"][0] for c in stream.chunks() if c["choices"] and c["choices"][0]["finish_reason"]]


def test_those_who_waited_are_served_in_order(narrow):
    with narrow.unharmed():
        first = narrow.stream(BUSY)
        next(first.events())
        second = narrow.stream({**BUSY, "max_tokens": 30})
        harness.wait_until(lambda: narrow.metrics().waiting == 1)
        third = narrow.stream({**BUSY, "max_tokens": 3})
        harness.wait_until(lambda: narrow.metrics().waiting == 2)
        first.hang_up()
        third_first = json.loads(next(third.events()))
        assert third_first["choices"][0]["text"] is not None
        # The third has a token: with one place the second was done before. All of it is there at once.
        assert len([c for c in second.chunks() if c["choices"]]) > 1
        list(third.events())


CONTEXT = 256
FINISH = {CONTEXT - 2: 2, CONTEXT - 1: 1}


@pytest.mark.sanitizer
@pytest.mark.parametrize("length", [CONTEXT - 2, CONTEXT - 1, CONTEXT, CONTEXT + 1, 40 * CONTEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_the_edge_of_the_context(length, stream):
    """B30: what fits is answered up to the edge, never shifted or cut; what does not is refused."""
    server = harness.shared("--context", CONTEXT, model=harness.tiny())
    assert server.max_model_len() == CONTEXT
    body = {"prompt": [7 + i % 100 for i in range(length)], "max_tokens": 50, "temperature": 0, "ignore_eos": True}
    with server.unharmed():
        answer = server.post({**body, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})})
        if length < CONTEXT:
            assert answer.status == 200
            chunk = json.loads(answer.body.decode().split("data: ")[-2]) if stream else answer.json
            assert chunk["usage"]["prompt_tokens"] == length
            assert chunk["usage"]["completion_tokens"] == FINISH[length]
            if not stream:
                assert chunk["choices"][0]["finish_reason"] == "length"
        else:
            assert answer.status == 400
            assert answer.error["code"] == "context_length_exceeded" and answer.error["param"] == "prompt"
            assert str(CONTEXT) in answer.error["message"] and str(length) in answer.error["message"]


def test_prompt_and_answer_at_the_edge():
    """prompt + max_tokens: exactly the context is as asked, one more is cut to it."""
    server = harness.shared("--context", CONTEXT, model=harness.tiny())
    for more, expected in ((-1, 55), (0, 56), (1, 56), (1000, 56)):
        answer = server.complete({"prompt": [9] * 200, "max_tokens": 56 + more, "ignore_eos": True})
        assert answer["usage"]["completion_tokens"] == expected
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.sanitizer
def test_what_can_never_fit_the_pool_is_refused_and_the_rest_runs():
    """B64: a pool smaller than the model's context is the context; the longest that fits runs to its end."""
    server = harness.small_pool()
    limit = server.max_model_len()
    assert limit < 2048 and limit <= server.metrics().pages_total * 16
    with server.unharmed():
        streams = [server.stream({"prompt": [11 + i] * (limit // 2), "max_tokens": limit, "ignore_eos": True,
                                  "stream_options": {"include_usage": True}}) for i in range(3)]
        refused = server.post({"prompt": [9] * limit, "max_tokens": 1})
        assert refused.status == 400 and refused.error["code"] == "context_length_exceeded"
        assert str(limit) in refused.error["message"]
        longest = server.complete({"prompt": [9] * (limit - 1), "max_tokens": 5, "ignore_eos": True})
        assert longest["usage"]["completion_tokens"] == 1
        for stream in streams:
            chunks = list(stream.chunks())
            assert chunks[-1]["usage"]["total_tokens"] == limit
            assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_a_long_prompt_does_not_stop_the_others(server):
    """A long prompt is computed in pieces; between them a stream goes on."""
    with server.unharmed():
        stream = server.stream(BUSY)
        events = stream.events()
        next(events)
        long = server.stream({"prompt": harness.words(5, 1500), "max_tokens": 1, "cache_prompt": False})
        harness.wait_until(lambda: server.metrics().running == 2, what="both running")
        before = server.metrics()("quire_rows_computed_total")
        for _ in range(2):
            next(events)
        assert server.metrics()("quire_rows_computed_total") < before + 1300, "it was not computed in one go"
        list(long.chunks())
        next(events)
