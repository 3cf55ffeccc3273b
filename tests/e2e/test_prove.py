"""The commands that look at the computing itself: prove, perplexity, bench.

What they print is compared with what was computed another way: counts with their formula, perplexity
with the numpy reference and with the logits of logits_tool, the text cut into tokens by Hugging Face's
tokenizers. That prove can fail is shown on the reference backend, which does not promise equal bits.
"""

import json
import math
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models as kinds, pre_tokenizers

import harness
from harness import run_quire

sys.path.insert(0, str(harness.ROOT / "tests/reference"))
import make_models  # noqa: E402
from reference import Reference  # noqa: E402

WAYS = ("naive", "cached", "batched")


def run_json(*arguments, code=0, timeout=120):
    done = run_quire(*arguments, "--json", "--log-level", "error", timeout=timeout)
    assert done.returncode == code, done
    return json.loads(done.stdout, parse_constant=pytest.fail)


def prove(model, tokens, *options, code=0):
    """The printed figures, checked for what holds always; the ways by name."""
    out = run_json("prove", "-m", model, "--tokens", tokens, *options, code=code)
    ways = {way["way"]: way for way in out["ways"]}
    assert tuple(ways) == WAYS and out["tokens"] == tokens
    assert ways["naive"]["projections"] == tokens * (tokens + 1) // 2
    assert ways["cached"]["projections"] == ways["batched"]["projections"] == tokens
    for way in ways.values():
        assert len(way["seconds_at"]) == tokens and min(way["seconds_at"]) >= 0
        printed = 1e-6 / way["seconds"]  # seconds have six places: rough when they are few
        assert way["seconds"] == pytest.approx(sum(way["seconds_at"]), rel=1e-2, abs=1e-5 * tokens)
        together = out["batch"] if way["way"] == "batched" else 1
        assert way["tokens_per_second"] == pytest.approx(
            tokens * together / way["seconds"], rel=1e-3 + printed)
    return out, ways


@pytest.mark.parametrize("tokens, naive", [(5, 15), (40, 820)])
def test_prove_on_the_real_model(tokens, naive):
    out, ways = prove(harness.MODEL, tokens)
    assert ways["naive"]["projections"] == naive
    assert out["differing_bits"] == 0 and out["largest_difference"] == 0
    # Keys and values of 30 layers, 3 heads of 64, 16 bits, in whole pages of 16 tokens.
    page = 2 * 30 * 3 * 64 * 2 * 16
    assert ways["naive"]["kv_bytes"] == 0
    assert ways["cached"]["kv_bytes"] == page * math.ceil(tokens / 16)
    assert ways["batched"]["kv_bytes"] == out["batch"] * ways["cached"]["kv_bytes"]


@pytest.mark.sanitizer
@pytest.mark.parametrize("tokens, options", [
    (1, []),
    (70, ["--kernels", "scalar", "--threads", 1, "--batch", 1]),
    (150, ["--threads", 3, "--page-size", 8, "--batch", 17]),
    (600, ["--page-size", 64]),  # longer than a chunk
])
def test_prove_on_a_made_up_model(tokens, options):
    out, _ = prove(harness.tiny(), tokens, *options)
    assert out["differing_bits"] == 0 and out["largest_difference"] == 0


def test_the_comparison_can_fail():
    """OpenBLAS adds in another order for another number of rows: prove must see it, and say so."""
    out, _ = prove(harness.tiny(), 12, "--backend", "openblas", code=1)
    assert out["differing_bits"] > 100 and 0 < out["largest_difference"] < 1e-3


def test_prove_prints_a_table():
    done = run_quire("prove", "-m", harness.MODEL, "--tokens", 5, "--batch", 3)
    assert done.returncode == 0, done
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in done.stdout.decode().splitlines() if line.startswith("|")]
    assert [row[:2] for row in rows[2:]] == [
        ["naive", "15"], ["cached", "5"], ["batched, 3 sequences", "5 each"]]
    assert b"three ways: 0 (0 of 491520 differ in a bit)" in done.stdout


def test_prove_draws(tmp_path):
    path = tmp_path / "prove.svg"
    arguments = ["prove", "-m", harness.tiny(), "--tokens", 20, "--log-level", "error", "--plot"]
    done = run_quire(*arguments, path)
    if shutil.which("gnuplot"):
        assert done.returncode == 0, done
        drawing = path.read_text()
        assert drawing.rstrip().endswith("</svg>") and "milliseconds" in drawing and "cached" in drawing
        done = run_quire(*arguments, tmp_path / "no folder" / "x.svg")
        assert done.returncode == 1 and done.stdout == b"" and b"No such file" in done.stderr
    else:
        assert done.returncode == 1 and b"gnuplot-nox" in done.stderr and not path.exists()
    done = run_quire(*arguments, tmp_path / "prove.gif")
    assert done.returncode == 1 and done.stdout == b"" and b".svg" in done.stderr
    assert not (tmp_path / "prove.gif").exists()


@pytest.mark.sanitizer
@pytest.mark.parametrize("arguments, cause", [
    (["prove", "--tokens", 2049], b"2049"),  # the model was trained for 2048
    (["prove", "--memory", "1MiB"], b"MiB"),
    (["bench", "--prompt-tokens", 4096], b"4096"),
    (["perplexity", "/nonexistent.txt"], b"No such file"),
    (["perplexity", "/dev/null"], b"two windows"),
])
def test_what_cannot_be_done_is_refused(arguments, cause):
    done = run_quire(*arguments, "-m", harness.tiny(), "--log-level", "error")
    assert done.returncode == 1 and done.stdout == b"", done
    assert cause in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


# perplexity


def encode(reference, text):
    """Token ids by Hugging Face's tokenizer over the file's vocabulary (pre-tokenizer smollm)."""
    texts = reference.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in reference.value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(kinds.BPE(vocab={t: i for i, t in enumerate(texts)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer.encode(text, add_special_tokens=False).ids


def windows_of(tokens, window, bos=None):
    """(what is run, what is scored from its second half) of each whole window."""
    for start in range(0, len(tokens) - window + 1, window):
        piece = tokens[start : start + window]
        run = [bos, *piece[1:]] if bos is not None else piece
        yield run, [(at, piece[at + 1]) for at in range(window // 2, window - 1)]


def perplexity_of(logits_of, tokens, window, bos=None):
    losses = []
    for run, scored in windows_of(tokens, window, bos):
        logits = logits_of(run).astype(np.float64)
        for at, target in scored:
            row = logits[at] - logits[at].max()
            losses.append(np.log(np.exp(row).sum()) - row[target])
    mean, error = np.mean(losses), np.std(losses, ddof=1) / math.sqrt(len(losses))
    return math.exp(mean), math.exp(mean) * error, len(losses)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(make_models.CORPUS + " 1234 sheets, then 5.")
    return path


def tool_logits(model):
    tool = harness.BUILD / "tests/engine/model/logits_tool"

    def logits(tokens):
        done = subprocess.run([tool, model], input=" ".join(map(str, tokens)).encode() + b"\n",
                              capture_output=True, timeout=60, check=True)
        return np.frombuffer(done.stdout, "<f4").reshape(len(tokens), -1)

    return logits


@pytest.mark.parametrize("window", [32, 61])
def test_perplexity_is_what_numpy_computes(text, window):
    """The reference backend against numpy in f32; the quantised one against its own logits."""
    model = harness.tiny()
    reference = Reference(model)
    tokens = encode(reference, text.read_text())
    arguments = ("perplexity", "-m", model, "--window", window, text)
    wanted, error, count = perplexity_of(reference.logits, tokens, window)
    out = run_json(*arguments, "--backend", "openblas")
    assert out["scored_tokens"] == count == len(tokens) // window * (window - 1 - window // 2)
    assert out["window"] == window and set(out) == {"perplexity", "error", "scored_tokens", "window"}
    assert out["perplexity"] == pytest.approx(wanted, rel=1e-3)
    assert out["error"] == pytest.approx(error, rel=1e-2)
    ours, error, _ = perplexity_of(tool_logits(model), tokens, window)
    out = run_json(*arguments)
    assert out["perplexity"] == pytest.approx(ours, rel=1e-6)
    assert out["error"] == pytest.approx(error, rel=1e-5)
    assert out["perplexity"] == pytest.approx(wanted, rel=0.05)


def test_the_first_windows_only(text):
    tokens = encode(Reference(harness.tiny()), text.read_text())
    wanted, _, count = perplexity_of(tool_logits(harness.tiny()), tokens[:96], 48)
    out = run_json("perplexity", "-m", harness.tiny(), "--window", 48, "--windows", 2, text)
    assert out["scored_tokens"] == count == 46 and out["perplexity"] == pytest.approx(wanted, rel=1e-6)


def test_a_window_begins_with_bos_where_the_model_wants_one(tmp_path, text):
    """The same file with add_bos_token true: BOS comes before the text, and first in each window."""
    data = bytearray(pathlib.Path(harness.tiny()).read_bytes())
    name = b"tokenizer.ggml.add_bos_token"
    at = data.index(name) + len(name)
    assert struct.unpack_from("<I?", data, at) == (7, False)
    data[at + 4] = 1
    model = tmp_path / "bos.gguf"
    model.write_bytes(data)
    reference = Reference(model)
    bos = reference.value("tokenizer.ggml.bos_token_id")
    tokens = [bos, *encode(reference, text.read_text())]
    wanted, _, _ = perplexity_of(tool_logits(model), tokens, 40, bos)
    without, _, _ = perplexity_of(tool_logits(model), tokens, 40)
    assert abs(without / wanted - 1) > 1e-5, "the test sees a BOS"
    out = run_json("perplexity", "-m", model, "--window", 40, text)
    assert out["perplexity"] == pytest.approx(wanted, rel=1e-6)


def test_kl_is_that_of_the_logits(text):
    model = harness.tiny()
    reference = Reference(model)
    tokens = encode(reference, text.read_text())
    ours, kls, same = tool_logits(model), [], 0
    for run, scored in windows_of(tokens, 64):
        p, q = (logits.astype(np.float64) for logits in (reference.logits(run), ours(run)))
        p, q = (x - x.max(axis=1, keepdims=True) for x in (p, q))
        p, q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (p, q))
        rows = [at for at, _ in scored]
        kls += list((np.exp(p) * (p - q)).sum(axis=1)[rows])
        same += int((p.argmax(axis=1) == q.argmax(axis=1))[rows].sum())
    out = run_json("perplexity", "-m", model, "--window", 64, "--kl", text)
    assert out["kl_mean"] == pytest.approx(np.mean(kls), rel=0.02)
    assert out["kl_largest"] == pytest.approx(np.max(kls), rel=0.02, abs=2e-6)
    assert out["same_best"] == pytest.approx(same / len(kls), abs=2 / len(kls))


def test_the_arithmetic_is_close_to_floats_on_the_real_model():
    text = harness.ROOT / "README.md"
    out = run_json("perplexity", "-m", harness.MODEL, "--window", 256, "--windows", 2, "--kl", text, timeout=300)
    assert out["scored_tokens"] == 2 * 127 and 1 < out["perplexity"] < 300
    assert 0 < out["kl_mean"] <= 0.01 and out["same_best"] >= 0.9
    done = run_quire("perplexity", "-m", harness.MODEL, "--window", 64, "--windows", 1, text)
    assert done.returncode == 0 and done.stdout.startswith(b"perplexity ") and b"31 tokens" in done.stdout


# bench


PARTS = ["embedding, angles", "norms, quantizing", "q k v, rope, store", "attention", "output", "gate, up", "down",
         "output head"]


@pytest.mark.sanitizer
@pytest.mark.parametrize("prompt", [40, 300])    # a step cut by outputs, and one cut by rows
def test_bench_prints_what_it_measured(prompt):
    out = run_json("bench", "-m", harness.tiny(), "--prompt-tokens", prompt, "--answer-tokens", 6,
                   "--batch-max", 6, "--depth", 20, "--threads", 2, "--profile")
    assert out["model"] == "llama" and out["threads"] == 2 and out["kernels"] and out["depth"] == 20
    assert [(r["what"], r["batch"], r["tokens"]) for r in out["results"]] == [
        ("prefill", 1, prompt), ("decode", 1, 6), ("decode", 2, 6), ("decode", 4, 6), ("decode", 6, 6)]
    for result in out["results"]:
        assert 0 < result["worst"] <= result["tokens_per_second"] <= result["best"]
        assert result["tokens_per_cpu_second"] > 0
        assert [part["part"] for part in result["profile"]] == PARTS
        assert all(part["work_ms"] > 0 and part["wait_ms"] >= 0 for part in result["profile"])
        # The parts lie within the time measured, and are nearly all of it: little else happens.
        steps = 1 if result["what"] == "prefill" else result["tokens"]
        slowest = 1e3 * result["tokens"] * result["batch"] / result["worst"] / steps
        assert sum(part["work_ms"] + part["wait_ms"] for part in result["profile"]) <= slowest * 1.01 + 0.01


def test_bench_prints_a_table():
    done = run_quire("bench", "-m", harness.tiny(), "--prompt-tokens", 16, "--answer-tokens", 2, "--batch-max", 2)
    assert done.returncode == 0, done
    rows = [line for line in done.stdout.decode().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3 and rows[2].startswith("| prefill 16 | 1 |") and rows[4].startswith("| decode 2 | 2 |")


def test_bench_prints_where_the_time_goes():
    done = run_quire("bench", "-m", harness.tiny(), "--prompt-tokens", 16, "--answer-tokens", 2, "--batch-max", 2,
                     "--threads", 1, "--profile")
    assert done.returncode == 0, done
    rows = [line.split("|")[1:-1] for line in done.stdout.decode().splitlines() if line.startswith("|")][5:]
    assert [row[0].strip() for row in rows] == ["part", "---", *PARTS, "waiting for other threads"]
    for column in range(1, 4):
        shares = [int(re.search(r"\((\d+) %\)", row[column]).group(1)) for row in rows[2:]]
        assert 80 <= sum(shares) <= 105    # each is rounded
        assert shares[-1] <= 2             # alone nobody waits


def test_bench_without_a_profile_says_so():
    done = run_quire("bench", "-m", harness.tiny(), "--prompt-tokens", 4, "--answer-tokens", 1, "--batch-max", 1,
                     "--profile", "--backend", "openblas")
    assert done.returncode == 0 and b"does not measure its parts" in done.stdout
