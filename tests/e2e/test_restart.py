"""--cache-dir: computed prompts outlive the process. What is found after a restart gives the bytes that
computing gives; nothing is found by whom it does not belong to; and whatever is wrong with the file, the
server starts, serves, and says so in one line.
"""

import os
import re
import shutil
import signal
import stat
import time

import gguf
import pytest

import harness

LONG = {"prompt": harness.words(7, 150), "max_tokens": 12, "temperature": 0, "logprobs": 3, "ignore_eos": True}
ROUTE_RESET = "/v1/cache/reset"


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def at_most(answer, page=16):
    """Tokens of the prompt that can be found: the last one is always computed."""
    return (answer["usage"]["prompt_tokens"] - 1) // page * page


def lines(server, text="cache_dir"):
    return [line for line in server.log.splitlines() if text in line and ("warn" in line or "error" in line)]


def life(folder, *options, **more):
    return harness.started("--cache-dir", folder, *options, **{"model": harness.tiny(), **more})


def fill(folder, *options, body=LONG, **more):
    """One life, in which a prompt is computed. Its answer."""
    with life(folder, *options, **more) as server:
        answer = server.complete(body)
        assert cached(answer) == 0
        assert server.stop() == 0
    return answer


@pytest.mark.sanitizer
@pytest.mark.parametrize("name, kv_type", [("llama-q4_1", "f16"), ("llama-q4_1", "q8_0"), ("gemma3", "f16")])
def test_a_prompt_is_found_after_a_restart(tmp_path, name, kv_type):
    model = harness.made_up_models() / f"{name}.gguf"
    options = ("--kv-type", kv_type)
    cold = fill(tmp_path / "cache", *options, model=model)
    with life(tmp_path / "cache", *options, model=model) as server:
        metrics = server.metrics()      # before anything is computed: later, idle times write new pages
        assert metrics("quire_cache_dir_loads_total") == metrics("quire_cache_dir_pages") > 0
        warm = server.complete(LONG)
        assert warm["choices"] == cold["choices"]
        assert cached(warm) == at_most(warm) > 100
        longer = server.complete({**LONG, "prompt": LONG["prompt"] + " and so on", "max_tokens": 40})
        assert cached(longer) >= cached(warm)
        metrics = server.metrics()
        assert metrics("quire_cache_dir_hits_total") >= 2 * cached(warm)
        assert metrics("quire_cache_dir_errors_total") == 0
        assert not lines(server)
    path = tmp_path / "cache" / "quire.pages"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with life(tmp_path / "cache", *options, model=model) as server:     # of what was found, too
        again = server.complete({**LONG, "prompt": LONG["prompt"] + " and so on", "max_tokens": 40})
        assert again["choices"] == longer["choices"] and cached(again) == at_most(again)


@pytest.mark.sanitizer
def test_idle_time_is_enough(tmp_path):
    """Killed without a word, the server has already written what it could: it was idle before."""
    with life(tmp_path) as server:
        cold = server.complete(LONG)
        wanted = cold["usage"]["total_tokens"] // 16
        harness.wait_until(lambda: server.metrics()("quire_cache_dir_writes_total") >= wanted, 20, "writing")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with life(tmp_path) as server:
        warm = server.complete(LONG)
        assert warm["choices"] == cold["choices"] and cached(warm) == at_most(warm)


@pytest.mark.sanitizer
def test_killed_while_it_writes(tmp_path):
    bodies = [{**LONG, "prompt": harness.words(50 + i, 120), "max_tokens": 4} for i in range(8)]
    expected = [harness.shared(model=harness.tiny()).complete(body)["choices"] for body in bodies]
    found = 0
    for round in range(4):
        with life(tmp_path) as server:
            answers = server.together(bodies)
            assert [answer["choices"] for answer in answers] == expected
            found = sum(cached(answer) for answer in answers)
            time.sleep(0.1 + 0.005 * round)     # about when writing begins
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            assert not lines(server, "ignored and begun")
    with life(tmp_path) as server:
        assert [server.complete(body)["choices"] for body in bodies] == expected
    print(f"{found} tokens found before the last kill")


@pytest.mark.sanitizer
@pytest.mark.parametrize("options, model, why", [
    ((), "llama-q8_0", "another model's"),
    (("--kv-type", "bf16"), "llama-q4_1", "of another type"),
    (("--page-size", 32), "llama-q4_1", "another size"),
])
def test_a_foreign_file_is_ignored_with_one_line(tmp_path, options, model, why):
    model = harness.made_up_models() / f"{model}.gguf"
    fill(tmp_path)
    alone = harness.shared(*options, model=model).complete(LONG)
    with life(tmp_path, *options, model=model) as server:
        answer = server.complete(LONG)
        assert cached(answer) == 0 and answer["choices"] == alone["choices"]
        (line,) = lines(server)
        assert why in line and "ignored" in line
    with life(tmp_path, *options, model=model) as server:       # and is one of ours from now on
        assert cached(server.complete(LONG)) > 0


def test_another_rotation_is_another_model(tmp_path):
    """Phi-3's longrope has other angles above its original context, so other keys."""
    model = harness.made_up_models() / "phi3-longrope.gguf"
    body = {**LONG, "prompt": LONG["prompt"][:len(LONG["prompt"]) // 3]}
    fill(tmp_path, "--context", 512, model=model, body=body)
    alone = harness.shared("--context", 1024, model=model).complete(body)
    with life(tmp_path, "--context", 1024, model=model) as server:
        answer = server.complete(body)
        assert cached(answer) == 0 and answer["choices"] == alone["choices"]
        assert len(lines(server)) == 1
    with life(tmp_path, "--context", 2048, model=model) as server:
        assert cached(server.complete(body)) > 0


def test_pages_from_before_there_were_keys_are_not_found(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice\n")
    fill(tmp_path / "cache")
    with life(tmp_path / "cache", "--api-key-file", keys, key="alice") as server:
        assert cached(server.complete(LONG)) == 0
        (line,) = lines(server)
        assert "another --cache-scope, or of a server with other keys" in line


def test_a_model_is_known_by_its_content(tmp_path):
    """Another byte anywhere is another model, also when size and time of last change stay; a copy under another name,
    written at another time, is the same."""
    model = shutil.copy(harness.tiny(), tmp_path / "model.gguf")
    before = os.stat(model)
    cold = fill(tmp_path / "cache", model=model)
    copy = shutil.copyfile(model, tmp_path / "copy.gguf")
    with life(tmp_path / "cache", model=copy) as server:
        warm = server.complete(LONG)
        assert warm["choices"] == cold["choices"] and cached(warm) == at_most(warm)
        assert warm["system_fingerprint"] == cold["system_fingerprint"]
    with open(model, "r+b") as file:
        tensor = max(gguf.GGUFReader(model).tensors, key=lambda tensor: tensor.n_bytes)
        file.seek(tensor.data_offset + tensor.n_bytes * 5 // 7)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(model)
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with life(tmp_path / "cache", model=model) as server:
        answer = server.complete(LONG)
        assert cached(answer) == 0 and "another model's" in lines(server)[0]
        assert answer["system_fingerprint"] != cold["system_fingerprint"]


def test_the_fingerprint_is_of_what_computes():
    """Of the model's content, the arithmetic and the build: neither of the name nor of the threads."""
    def fingerprint(*options, **more):
        server = harness.shared(*options, **{"model": harness.tiny(), **more})
        return server.complete({**LONG, "max_tokens": 1})["system_fingerprint"]

    plain = fingerprint()
    assert re.fullmatch("fp_[0-9a-f]{12}", plain)
    assert fingerprint("--served-model-name", "alias", "--threads", 1, "--page-size", 32) == plain
    others = [fingerprint("--kv-type", "bf16"), fingerprint(model=harness.made_up_models() / "llama-q8_0.gguf")]
    if not harness.sanitized():
        others.append(fingerprint("--backend", "openblas"))
    assert len({plain, *others}) == 1 + len(others)


@pytest.mark.sanitizer
@pytest.mark.parametrize("damage", ["header", "page", "cut", "empty", "text"])
def test_a_damaged_file_is_ignored_with_one_line(tmp_path, damage):
    cold = fill(tmp_path)
    path = tmp_path / "quire.pages"
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[12] ^= 1
    elif damage == "page":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        content = content[:len(content) // 2 + 77]
    else:
        content = b"" if damage == "empty" else b"no pages at all\n" * 1000
    path.write_bytes(content)
    with life(tmp_path) as server:
        answer = server.complete(LONG)
        assert answer["choices"] == cold["choices"]
        assert cached(answer) < at_most(answer)
        assert (cached(answer) > 0) == (damage in ("page", "cut"))
        assert len(lines(server)) == (damage not in ("empty", "cut")), server.log
        if damage == "page":
            assert server.metrics()("quire_cache_dir_errors_total") == 1
    with life(tmp_path) as server:
        answer = server.complete(LONG)
        assert cached(answer) == at_most(answer) and answer["choices"] == cold["choices"]


@pytest.mark.sanitizer
def test_another_key_finds_nothing(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice\nbob\n")
    options = ("--api-key-file", keys)
    salted = {**LONG, "cache_salt": "mine"}
    fill(tmp_path / "cache", *options, key="alice")
    with life(tmp_path / "cache", *options, key="bob") as server:
        assert cached(server.complete(LONG)) == 0
        server.headers["Authorization"] = "Bearer alice"
        assert cached(server.complete(salted)) == 0
        assert cached(server.complete(LONG)) > 0
    keys.write_text("carol\nbob\nalice\n")                       # whatever the order in the file
    with life(tmp_path / "cache", *options, key="carol") as server:
        assert cached(server.complete(LONG)) == 0
        server.headers["Authorization"] = "Bearer alice"
        assert cached(server.complete(LONG)) > 0
        assert cached(server.complete(salted)) > 0
        assert cached(server.complete({**LONG, "cache_salt": "yours"})) == 0


@pytest.mark.sanitizer
def test_the_cap_is_held(tmp_path):
    """Those used last are kept; heads of prefixes before their ends."""
    first = {**LONG, "prompt": harness.words(1, 100)}
    last = {**LONG, "prompt": harness.words(2, 100)}
    with life(tmp_path / "all") as server:
        server.complete(LONG)
        pages = server.complete(LONG)["usage"]["total_tokens"] // 16
    page = (tmp_path / "all" / "quire.pages").stat().st_size // pages
    cap = 4096 + 12 * page
    with life(tmp_path / "cache", "--cache-dir-bytes", cap) as server:
        for body in (first, last):
            server.complete(body)
    assert (tmp_path / "cache" / "quire.pages").stat().st_size <= cap
    with life(tmp_path / "cache", "--cache-dir-bytes", cap) as server:
        assert cached(server.complete(last)) > 0
        assert cached(server.complete(first)) == 0
        server.stop()
        assert (tmp_path / "cache" / "quire.pages").stat().st_size <= cap
    with life(tmp_path / "small", "--cache-dir-bytes", 4096) as server:
        server.complete(first)
        (line,) = lines(server)
        assert "do not hold one page" in line


@pytest.mark.sanitizer
def test_a_second_server_goes_without(tmp_path):
    with life(tmp_path) as first, life(tmp_path) as second:
        (line,) = lines(second)
        assert "another server has" in line
        cold = first.complete(LONG)
        assert second.complete(LONG)["choices"] == cold["choices"]
        assert second.stop() == 0
        assert first.stop() == 0
    with life(tmp_path) as server:
        assert cached(server.complete(LONG)) > 0


@pytest.mark.sanitizer
def test_a_directory_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with life(tmp_path / "file" / "cache") as server:
        server.complete(LONG)
        (line,) = lines(server)
        assert "is not used" in line
        assert server.metrics()("quire_cache_dir_errors_total") == 1


@pytest.mark.sanitizer
def test_a_full_disk(tmp_path):
    """Here a limit to a file's length: it is said once, the server serves on and ends well; what was
    written is found."""
    program = tmp_path / "limited"
    program.write_text(f'#!/bin/sh\nulimit -f 160\nexec "{harness.BINARY}" "$@"\n')       # 80 KiB
    program.chmod(0o755)
    bodies = [{**LONG, "prompt": harness.words(i, 150)} for i in range(3)]
    with life(tmp_path / "cache", "--log-level", "warn", program=program) as server:
        expected = [server.complete(body)["choices"] for body in bodies]
        harness.wait_until(lambda: server.metrics()("quire_cache_dir_errors_total") >= 1, 20, "a write that fails")
        assert [server.complete(body)["choices"] for body in bodies] == expected
        assert server.stop() == 0
        (line,) = lines(server)
        assert "File too large" in line
    with life(tmp_path / "cache") as server:
        answers = [server.complete(body) for body in bodies]
        assert [answer["choices"] for answer in answers] == expected
        assert sum(map(cached, answers)) > 0


@pytest.mark.sanitizer
def test_a_reset_is_for_good(tmp_path):
    with life(tmp_path) as server:
        server.complete(LONG)
        harness.wait_until(lambda: server.metrics()("quire_cache_dir_pages") > 0, 20, "writing")
        assert server.request("POST", ROUTE_RESET).status == 200
        harness.wait_until(lambda: server.metrics()("quire_cache_dir_pages") == 0, 20, "forgetting")
    with life(tmp_path) as server:
        assert cached(server.complete(LONG)) == 0


def test_options_that_contradict():
    for options, what in ((("--cache-dir", "x", "--no-prefix-cache"), b"contradict"),
                          (("--cache-dir-bytes", "1GiB"), b"needs --cache-dir")):
        ended = harness.run_quire("serve", "-m", harness.tiny(), *options)
        assert ended.returncode == 2 and what in ended.stderr, ended.stderr


def first_token(server, body):
    start = time.monotonic()
    stream = server.stream(body)
    text, took = "", None
    for chunk in stream.chunks():
        took = took or time.monotonic() - start
        text += "".join(choice["text"] for choice in chunk["choices"])
    return took, text


def test_the_first_token_after_a_restart(tmp_path):
    """Printed, since the machine's time may not be ours alone; docs/memory.md has figures."""
    prompt = [1 + i * 7919 % 30000 for i in range(4000 if harness.FULL else 700)]
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    with harness.started("--memory", "1GiB", "--cache-dir", tmp_path) as server:
        cold, text = first_token(server, body)
        assert server.stop() == 0
    with harness.started("--memory", "1GiB", "--cache-dir", tmp_path) as server:
        warm, again = first_token(server, body)
        assert again == text
        hits = server.metrics()("quire_cache_dir_hits_total")
        assert hits == (len(prompt) - 1) // 16 * 16
    print(f"first token of {len(prompt)}: {cold:.3f} s cold, {warm:.3f} s after a restart, {cold / warm:.1f} times")
