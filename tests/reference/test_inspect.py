"""`quire inspect` against the gguf package's reader, on made-up models and the real one; and what files
that are cut, hostile or of another kind get: exit code 1 and one line, or text that is safe to print.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import gguf
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import make_models  # noqa: E402

BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", "build"))
BINARY = os.environ.get("QUIRE_BINARY", str(BUILD / "quire"))
MODEL = os.environ.get("QUIRE_TEST_MODEL", "")


def inspect(path, *options):
    return subprocess.run([BINARY, "inspect", *options, path], capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    names = [model.name for model in make_models.MODELS][:3] + ["gemma3", "gemma2"]
    return list(make_models.make(tmp_path_factory.mktemp("models"), names).values())


def paths(made):
    return [str(path) for path in made] + ([MODEL] if MODEL else [])


def test_json_is_what_the_file_says(made):
    for path in paths(made):
        done = inspect(path, "--json")
        assert done.returncode == 0, done.stderr.decode()
        ours, theirs = json.loads(done.stdout), gguf.GGUFReader(path)
        assert ours["file_bytes"] == os.path.getsize(path)
        assert [(t["name"], t["type"], t["shape"], t["bytes"]) for t in ours["tensors"]] == [
            (t.name, t.tensor_type.name, [int(d) for d in t.shape], t.n_bytes) for t in theirs.tensors]
        assert ours["total"]["bytes"] == sum(t.n_bytes for t in theirs.tensors)
        assert ours["total"]["values"] == sum(t.n_elements for t in theirs.tensors)
        keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
        assert list(ours["metadata"]) == keys
        for key in keys:
            value, expected = ours["metadata"][key], theirs.fields[key].contents()
            if isinstance(expected, list):
                assert value["count"] == len(expected)
                assert value.get("values", expected) == pytest.approx(expected) if not isinstance(
                    expected[0], str) else value.get("values", expected) == expected
            else:
                assert value == (pytest.approx(expected) if isinstance(expected, float) else expected)
        model, memory = ours["model"], ours["memory"]
        layer = 2 * 2 * model["kv_heads"] * model["head_dim"]
        token = model["layers"] * layer
        period = {"gemma2": 2, "gemma3": 6}.get(model["architecture"])
        full = model["layers"] // period if period else model["layers"]
        assert memory["kv_token_bytes"] == token
        assert memory["kv_growing_token_bytes"] == full * layer
        assert memory["kv_window_token_bytes"] == token - full * layer
        window = ours["metadata"]["%s.attention.sliding_window" % model["architecture"]] if period else 0
        assert memory["kv_window_tokens"] == window
        if not period:
            assert memory["kv_page_bytes"] == 16 * token
            assert memory["kv_context_bytes"] == model["context"] * token
        else:  # each layer that sees all for every token, the others for the window, in whole pages
            pages = (window + 14) // 16 + 1
            assert memory["kv_page_bytes"] % (16 * layer) == 0
            assert memory["kv_context_bytes"] == model["context"] * full * layer + \
                pages * 16 * (token - full * layer)
        assert ours["tokenizer"]["tokens"] == len(theirs.fields["tokenizer.ggml.tokens"].data)


def test_text_names_everything(made):
    for path in paths(made):
        done = inspect(path)
        text = done.stdout.decode()
        assert done.returncode == 0 and not done.stderr
        reader = gguf.GGUFReader(path)
        for tensor in reader.tensors:
            assert "  %s " % tensor.name in text
        for key in reader.fields:
            assert key.startswith("GGUF.") or "\n  %s = " % key in text
        assert "keys and values of one token" in text and "of a page of 16 tokens" in text


def test_corrupt_files_are_refused_in_one_line(made, tmp_path):
    whole = made[0].read_bytes()
    for length in [0, 1, 3, 4, 7, 8, 23, 24, 100, 5000, len(whole) // 2, len(whole) - 1]:
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:length])
        start = time.monotonic()
        done = inspect(path)
        assert time.monotonic() - start < 5  # a second on an idle machine
        assert done.returncode == 1 and not done.stdout
        assert done.stderr.startswith(b"quire: ") and done.stderr.count(b"\n") == 1
    for path in (tmp_path, tmp_path / "absent.gguf", "/dev/null"):
        done = inspect(path)
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1


def test_nothing_of_the_file_reaches_the_terminal_raw(tmp_path):
    path = tmp_path / "hostile.gguf"
    writer = gguf.GGUFWriter(path, "nonsense")
    writer.add_string("evil\x1b[2J\nkey", "value\x1b]0;title\x07\r\n\u009b31m")
    writer.add_string("quote\"\\", "a\"b\\c\u0000d")
    writer.add_array("list", ["\x1b[1m", "fine"])
    writer.add_float32("number", float("inf"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    text = inspect(path).stdout.decode()
    assert not [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert "cannot serve it" in text
    done = inspect(path, "--json")
    assert done.returncode == 0
    metadata = json.loads(done.stdout)["metadata"]
    assert metadata["evil\x1b[2J\nkey"] == "value\x1b]0;title\x07\r\n\u009b31m"
    assert metadata["quote\"\\"] == "a\"b\\c\u0000d"
    assert metadata["list"] == {"count": 2, "values": ["\x1b[1m", "fine"]}
    assert metadata["number"] is None
