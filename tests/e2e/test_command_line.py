"""The program's commands, their exit codes (0 done, 1 failed, 2 wrongly asked), and files that lie.

What a broken model file may do: exit code 1 and one line naming the cause, within a second, in little
memory, never a signal.
"""

import json
import os
import pathlib
import re
import resource
import struct
import subprocess
import time

import gguf
import pytest

import harness
from harness import run_quire


def lines(output):
    return output.decode("utf-8").strip().splitlines()


# exit code 2: a sentence with a hint, before anything is done


@pytest.mark.sanitizer
@pytest.mark.parametrize("arguments, hint", [
    (["bogus"], "--help"),
    (["serve"], "-m"),
    (["run", "-m", "x.gguf"], "prompt"),
    (["inspect"], "quire inspect"),
    (["serve", "-m", "x.gguf", "--bogus"], "--help"),
    (["serve", "-m", "x.gguf", "--max-seq", "4"], "--max-seqs"),
    (["serve", "-m", "x.gguf", "--ctx-size", "4"], "--context"),
    (["serve", "-m", "x.gguf", "--n-gpu-layers", "4"], "CPU"),
    (["serve", "-m", "x.gguf", "--port", "65536"], "65535"),
    (["serve", "-m", "x.gguf", "--port"], "--port"),
    (["serve", "-m", "x.gguf", "--memory", "lots"], "512MiB"),
    (["serve", "-m", "x.gguf", "--memory", "-1"], "512MiB"),
    (["serve", "-m", "x.gguf", "--page-size", "17"], "8, 16, 32, 64"),
    (["serve", "-m", "x.gguf", "--threads", "0"], "1"),
    (["serve", "-m", "x.gguf", "--threads", "1e3"], "1024"),
    (["serve", "-m", "x.gguf", "--context", "0"], "1"),
    (["serve", "-m", "x.gguf", "--kernels", "mmx"], "auto, scalar, avx2"),
    (["serve", "-m", "x.gguf", "--kv-type", "q5_1"], "f32, f16, bf16, q8_0, q4_0"),
    (["serve", "-m", "x.gguf", "--kv-type", ""], "empty"),
    (["serve", "-m", "x.gguf", "--cache-type-k", "q8_0"], "--kv-type"),
    (["run", "-m", "x.gguf", "--kv-type", "q8_0", "--backend", "openblas", "hello"], "f32"),
    (["serve", "-m", "x.gguf", "--backend", "cuda"], "openblas"),
    (["serve", "-m", "x.gguf", "--log-format", "xml"], "json"),
    (["serve", "-m", "x.gguf", "--log-level", "loud"], "debug"),
    (["serve", "-m", "x.gguf", "--temperature", "1"], "quire run"),
    (["run", "-m", "x.gguf", "--port", "1", "hello"], "quire serve"),
    (["run", "-m", "x.gguf", "hello", "world"], "quotes"),
    (["run", "-m", "x.gguf", "--temperature", "nan", "hello"], "100"),
])
def test_wrong_options(arguments, hint):
    done = run_quire(*arguments, timeout=5)
    assert done.returncode == 2 and done.stdout == b"", done
    assert len(lines(done.stderr)) == 1 and hint in done.stderr.decode(), done.stderr


@pytest.mark.parametrize("name, value, hint", [
    ("QUIRE_MEMORY", "lots", "QUIRE_MEMORY"),
    ("QUIRE_PAGE_SIZE", "17", "8, 16, 32, 64"),
    ("QUIRE_KV_TYPE", "fp8", "q8_0"),
    ("QUIRE_PORT", "http", "QUIRE_PORT"),
])
def test_wrong_options_in_the_environment(name, value, hint):
    done = run_quire("serve", "-m", "x.gguf", environment={name: value}, timeout=5)
    assert done.returncode == 2 and hint in done.stderr.decode()


def test_options_from_the_environment():
    environment = {"QUIRE_SERVED_MODEL_NAME": "from-the-environment", "QUIRE_CONTEXT": "512", "QUIRE_MEMROY": "1GiB"}
    with harness.started("--context", "256", model=harness.tiny(), environment=environment) as server:
        models = server.get("/v1/models").json["data"]
        assert [m["id"] for m in models] == ["from-the-environment"]
        assert models[0]["max_model_len"] == 256, "the command line wins"
        assert "QUIRE_MEMROY" in server.log, "a misspelled variable is pointed out"


def test_help_and_version():
    for arguments in (["--help"], ["help"], ["serve", "--help"], ["run", "--help"], ["inspect", "--help"], []):
        done = run_quire(*arguments)
        assert done.returncode == 0 and b"quire" in done.stdout and done.stderr == b""
    text = run_quire("serve", "--help").stdout.decode()
    for option in ("--model", "--host", "--port", "--threads", "--memory", "--context", "--page-size",
                   "--max-batch-tokens", "--max-seqs", "--max-queue", "--served-model-name", "--api-key-file",
                   "--kernels", "--backend", "--drain-seconds", "--log-format", "--log-level"):
        assert option in text
    assert all(len(line) <= 100 for line in text.splitlines())
    version = run_quire("--version")
    assert version.returncode == 0 and version.stdout.startswith(b"quire 0.")


def test_output_that_cannot_be_written_is_a_failure():
    with open("/dev/full", "w") as full:
        assert subprocess.run([harness.BINARY, "--version"], stdout=full).returncode == 1


# run and inspect


@pytest.mark.sanitizer
def test_run_prints_what_the_server_answers(server):
    done = run_quire("run", "-m", harness.MODEL, "-n", 12, harness.PROBE["prompt"])
    assert done.returncode == 0
    said = done.stdout.decode().removeprefix(harness.PROBE["prompt"]).removesuffix("\n")
    assert said == server.text(harness.PROBE["prompt"], max_tokens=12, temperature=0)


def test_run_with_a_seed_and_with_chat(server):
    done = run_quire("run", "-m", harness.MODEL, "-n", 8, "--temperature", 0.8, "--seed", 42, "Once upon a time")
    assert done.stdout.decode().removesuffix("\n") == server.text("Once upon a time", max_tokens=8, temperature=0.8, seed=42)
    done = run_quire("run", "-m", harness.MODEL, "-n", 20, "--chat", "Hi")
    chat = server.chat("Hi", max_tokens=20, temperature=0)
    assert done.stdout.decode().removesuffix("\n") == chat["choices"][0]["message"]["content"]


def test_run_chat_with_a_template_that_reads_parts(tmp_path):
    """A string as content it would not print; the server and run find out the same way."""
    path = tmp_path / "parts.jinja"
    path.write_text("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}")
    plain = run_quire("run", "-m", harness.MODEL, "-n", 8, harness.PROBE["prompt"])
    chat = run_quire("run", "-m", harness.MODEL, "-n", 8, "--chat", "--chat-template", path, harness.PROBE["prompt"])
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout == plain.stdout and len(plain.stdout) > 10


def test_inspect_agrees_with_another_reader():
    reader = gguf.GGUFReader(harness.MODEL)
    done = run_quire("inspect", harness.MODEL)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    for tensor in reader.tensors:
        assert tensor.name in text
    assert "llama" in text and "Q4_1" in text and "Q8_0" in text
    done = run_quire("inspect", "--json", harness.MODEL)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    tensors = {t["name"]: t for t in data["tensors"]}
    assert set(tensors) == {t.name for t in reader.tensors}
    for tensor in reader.tensors:
        assert tensors[tensor.name]["type"] == tensor.tensor_type.name
    # Keys and values: 30 layers, 3 heads of 64, both; in blocks of 32 with a scale of 16 bits.
    values = 30 * 3 * 64 * 2
    assert data["memory"]["kv_token_bytes"] == values * 2
    assert data["memory"]["kv_token_bytes_of"] == {
        "f32": values * 4, "f16": values * 2, "bf16": values * 2, "q8_0": values // 32 * 34, "q4_0": values // 32 * 18}
    assert re.search(r"of one token, --kv-type q8_0 +12.0 KiB", text)


# exit code 1: files that are not what they say


def header(version=3, tensors=0, keys=0):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value):
    return struct.pack("<Q", len(value)) + value


BROKEN = {
    "empty": b"",
    "not GGUF at all": b"#!/bin/sh\nexit 0\n" * 100,
    "another magic": b"GGJT" + bytes(100),
    "big endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "version 1": header(version=1),
    "version 4": header(version=4),
    "2^31 tensors": header(tensors=2**31),
    "2^63 tensors": header(tensors=2**63),
    "2^64-1 keys": header(keys=2**64 - 1),
    "a key of 2^63 bytes": header(keys=1) + struct.pack("<Q", 2**63) + b"x",
    "an array of 2^63": header(keys=1) + text(b"a") + struct.pack("<IIQ", 9, 4, 2**63),
    "an array of arrays": header(keys=1) + text(b"a") + struct.pack("<IIQ", 9, 9, 1000) + struct.pack("<IQ", 9, 1000) * 50,
    "an unknown type": header(keys=1) + text(b"a") + struct.pack("<II", 99, 1),
    "an empty key": header(keys=1) + text(b"") + struct.pack("<II", 4, 1),
}


def broken(path):
    """Every command that reads a model must refuse the file well."""
    for arguments in (["serve", "-m", path, "--port", 0, "--log-level", "error"], ["run", "-m", path, "--log-level", "error", "x"],
                      ["inspect", path]):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        done = run_quire(*arguments, timeout=10)
        took = time.monotonic() - start
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime
        assert done.returncode == 1, (arguments[0], done)
        assert all(line.startswith("listening on ") for line in lines(done.stdout)), done
        assert len(lines(done.stderr)) == 1, done
        assert took < harness.patience(1) or cpu < harness.patience(0.5), took
    return lines(done.stderr)[0]


@pytest.mark.sanitizer
@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_broken_files(tmp_path, data):
    """B73, B74"""
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    assert len(broken(path)) > 20


@pytest.mark.sanitizer
def test_a_model_cut_at_many_places(tmp_path):
    whole = pathlib.Path(harness.tiny()).read_bytes()
    path = tmp_path / "cut.gguf"
    for at in (0, 3, 4, 8, 24, 25, 100, 1000, 5000, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at])
        assert broken(path)




@pytest.mark.parametrize("name, value, cause", [
    ("llama.block_count", 0, "block_count"),
    ("llama.block_count", 10**9, "block_count"),
    ("llama.block_count", 4, "blk.3"),
    ("llama.attention.head_count", 0, "head_count"),
    ("llama.attention.head_count", 5, "head_count"),
    ("llama.attention.head_count_kv", 7, "head_count"),
    ("llama.attention.head_count_kv", 0, "head_count_kv"),
    ("llama.embedding_length", 97, "embedding length"),
    ("llama.embedding_length", 2**32 - 32, "embedding_length"),
    ("llama.embedding_length", 192, "token_embd"),
    ("llama.feed_forward_length", 0, "feed_forward_length"),
    ("llama.context_length", 0, "context_length"),
    ("llama.rope.dimension_count", 33, "rope"),
    ("tokenizer.ggml.eos_token_id", 512, "eos"),
    ("tokenizer.ggml.bos_token_id", 2**32 - 2, "bos"),
])
def test_metadata_that_does_not_fit(tmp_path, name, value, cause):
    """B76: the message names the key or the tensor that is missing."""
    data = bytearray(pathlib.Path(harness.tiny()).read_bytes())
    at = data.index(text(name.encode())) + 8 + len(name)
    assert struct.unpack_from("<I", data, at)[0] == 4, "uint32"
    struct.pack_into("<I", data, at + 4, value)
    path = tmp_path / "changed.gguf"
    path.write_bytes(data)
    for arguments in (["serve", "-m", path, "--port", 0, "--log-level", "error"], ["run", "-m", path, "--log-level", "error", "x"]):
        done = run_quire(*arguments, timeout=10)
        assert done.returncode == 1 and len(lines(done.stderr)) == 1, done
        assert cause in done.stderr.decode(), done.stderr


@pytest.mark.parametrize("old, new", [
    (b"llama", b"lorem"),    # general.architecture and every key
    (b"smollm", b"smollX"),  # the pre-tokenizer
    (b"gpt2", b"gptX"),      # the tokenizer
])
def test_what_is_unknown_is_refused_by_name(tmp_path, old, new):
    data = pathlib.Path(harness.tiny()).read_bytes()
    path = tmp_path / "unknown.gguf"
    path.write_bytes(data.replace(text(old), text(new), 1))
    done = run_quire("run", "-m", path, "--log-level", "error", "x", timeout=10)
    assert done.returncode == 1 and new in done.stderr and len(lines(done.stderr)) == 1


def test_a_tensor_of_an_unknown_type_is_refused_by_name(tmp_path):
    data = bytearray(pathlib.Path(harness.tiny()).read_bytes())
    name = text(b"blk.1.attn_q.weight")
    at = data.index(name) + len(name)
    dimensions, = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at + 4 + 8 * dimensions, 77)
    path = tmp_path / "unknown.gguf"
    path.write_bytes(data)
    done = run_quire("run", "-m", path, "--log-level", "error", "x", timeout=10)
    assert done.returncode == 1 and b"blk.1.attn_q.weight" in done.stderr


@pytest.mark.parametrize("kind, said", [
    ("adapter", b"an adapter"), ("imatrix", b"an importance matrix"), ("vocabulary", b"a vocabulary"),
])
def test_a_file_that_goes_with_a_model_says_what_it_is(tmp_path, kind, said):
    path = tmp_path / f"{kind}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if kind == "vocabulary":
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b"])
    else:
        writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = run_quire("run", "-m", path, "--log-level", "error", "x", timeout=10)
    assert done.returncode == 1 and said in done.stderr and len(lines(done.stderr)) == 1, done.stderr


@pytest.mark.parametrize("name", [b"caf\xe9", b"two\nlines", b"\x1b[2J", b"bell\x07", b"next\xc2\x85", b"", b"a" * 256])
def test_a_served_name_that_cannot_be_sent_back(name):
    done = run_quire("serve", "-m", harness.tiny(), "--port", "0", "--served-model-name", name, "--log-level", "error", timeout=10)
    assert done.returncode in (1, 2) and b"--served-model-name" in done.stderr, done.stderr


def test_a_file_whose_name_cannot_be_sent_back(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.gguf"
    os.symlink(harness.tiny(), path)
    done = run_quire("serve", "-m", path, "--port", "0", "--log-level", "error", timeout=10)
    assert done.returncode == 1 and b"--served-model-name" in done.stderr
    assert run_quire("run", "-m", path, "--log-level", "error", "-n", "1", "x", timeout=10).returncode == 0


def test_a_file_with_nothing_in_it(tmp_path):
    """It is a GGUF file, so it can be inspected; but it is no model."""
    path = tmp_path / "nothing.gguf"
    path.write_bytes(header())
    assert run_quire("inspect", path).returncode == 0
    done = run_quire("run", "-m", path, "--log-level", "error", "x", timeout=10)
    assert done.returncode == 1 and b"general.architecture" in done.stderr and len(lines(done.stderr)) == 1


@pytest.mark.parametrize("path, cause", [("/nonexistent/model.gguf", "No such file"), ("/dev", "dev"),
                                         ("/dev/null", "null"), ("/dev/zero", "zero")])
def test_what_is_no_file(path, cause):
    assert cause in broken(path)


def test_too_little_memory_is_told_with_the_numbers():
    done = run_quire("serve", "-m", harness.MODEL, "--port", 0, "--memory", "100MiB", "--log-level", "error", timeout=10)
    assert done.returncode == 1 and len(lines(done.stderr)) == 1
    assert b"100.0 MiB" in done.stderr and b"needs at least" in done.stderr


@pytest.mark.sanitizer
@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("command", [["serve", "--port", 0], ["run", "hello"], ["prove"], ["bench"]])
def test_heads_that_do_not_suit_the_kv_type_are_told(command, kv_type):
    model = harness.made_up_models() / "llama-f16.gguf"    # its heads have 24 dimensions
    done = run_quire(*command, "-m", model, "--kv-type", kv_type, "--log-level", "error", timeout=10)
    assert done.returncode == 1 and len(lines(done.stderr)) == 1, done
    for hint in (kv_type, "24", "32", "f16"):
        assert hint in done.stderr.decode(), done.stderr


def test_a_port_in_use_is_told():
    with harness.started(model=harness.tiny()) as server:
        done = run_quire("serve", "-m", harness.tiny(), "--port", server.port, timeout=10)
        assert done.returncode == 1 and str(server.port) in done.stderr.decode()
        assert server.get("/health").status == 200


def test_healthcheck():
    with harness.started(model=harness.tiny()) as server:
        assert run_quire("healthcheck", "--port", server.port).returncode == 0
        port = server.port
    done = run_quire("healthcheck", "--port", port)
    assert done.returncode == 1 and done.stderr


def test_logs_as_json(tiny):
    with harness.started("--log-format", "json", model=harness.tiny(), ready=False) as server:
        harness.wait_until(lambda: server.get("/ready").status == 200)
        server.complete(harness.PROBE)
        server.stop()
        # Both streams go to one file here: standard output says the port, the rest is the log.
        told = f"listening on 127.0.0.1:{server.port}"
        assert told in server.log.splitlines()
        entries = [json.loads(line) for line in server.log.splitlines() if line != told]
        assert all({"time", "level", "event"} <= set(e) or {"ts", "level"} <= set(e) for e in entries), entries[0]
        assert harness.PROBE["prompt"] not in pathlib.Path(server.log_file.name).read_text(), "prompts are not logged"


def test_the_model_file_may_be_replaced_while_it_is_served(tmp_path):
    """Weights are held in memory: a file that shrinks or goes away harms nobody."""
    path = tmp_path / "model.gguf"
    path.write_bytes(pathlib.Path(harness.tiny()).read_bytes())
    with harness.started(model=path) as server:
        expected = server.complete(harness.PROBE)["choices"]
        os.truncate(path, 100)
        assert server.complete(harness.PROBE)["choices"] == expected
        path.unlink()
        assert server.complete({**harness.PROBE, "cache_prompt": False})["choices"] == expected
