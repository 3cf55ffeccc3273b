#!/usr/bin/env python3
"""Embeddings a second: Quire, llama.cpp's server with the same GGUF, and ONNX Runtime with the same weights as f32.

  compare.py --model Q8_0.gguf --f32 F32.gguf --quire build/quire [--rounds 5] [--seconds 4] [--threads 2]

Needs numpy, gguf, tokenizers, onnx, onnxruntime and xllamacpp in one environment. The three take turns in one run,
each for a few seconds at a time, so that what else the machine does falls on all alike: compare the ratios, not the
numbers with those of another run. Both servers are asked over HTTP, in lists, on two connections. ONNX Runtime is
called in this process, with its tokens made beforehand and texts of equal length in a batch, so it pays for
neither HTTP nor tokenizing nor padding.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np
import onnx_model

HERE = pathlib.Path(__file__).resolve().parent
LOADS = [("16 tokens", 14, 32), ("64 tokens", 62, 16), ("256 tokens", 254, 4)]    # words, texts of a list
WORDS = ("the a of and to in is was for on that with he it at by from his an were are which this first new one "
         "water time people world city school history work part year music system state music river house").split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def post(port, texts):
    body = json.dumps({"input": texts, "encoding_format": "float", "model": "default"}).encode()
    request = urllib.request.Request("http://127.0.0.1:%d/v1/embeddings" % port, body,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return [d["embedding"] for d in sorted(json.load(answer)["data"], key=lambda d: d["index"])]


def wait(port, texts, seconds=60):
    until = time.monotonic() + seconds
    while True:
        try:
            return post(port, texts)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def peer(a, port):
    start = ("import sys,signal,xllamacpp as x\np=x.CommonParams()\np.model.path=sys.argv[1]\np.port=int(sys.argv[2])\n"
             "p.hostnames=['127.0.0.1']\np.embedding=True\np.n_ctx=512*16\np.n_batch=2048\np.n_ubatch=2048\np.n_parallel=16\n"
             "p.cpuparams.n_threads=p.cpuparams_batch.n_threads=int(sys.argv[3])\ns=x.Server(p)\nsignal.pause()")
    return [sys.executable, "-c", start, a.model, str(port), str(a.threads)]


def make_texts(words, count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, words)) for _ in range(count)]


def run_server(port, lists, seconds):
    """Texts a second, on two connections."""
    until = time.monotonic() + seconds

    def ask(first):
        done = 0
        while time.monotonic() < until:
            done += len(post(port, lists[(first + done) % len(lists)]))
        return done
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = sum(pool.map(ask, (0, 1)))
    return done / (time.monotonic() - start)


def run_onnx(session, lists, seconds):
    start, done = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        ids = lists[done % len(lists)]
        session.run(None, {"ids": ids, "mask": np.ones_like(ids)})
        done += len(ids)
    return done / (time.monotonic() - start)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--f32", required=True)
    p.add_argument("--quire", required=True)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    import onnxruntime
    import tokenizers
    import gguf
    fields = gguf.GGUFReader(a.f32).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    vocab = {(t if k == 3 else t[1:] if t.startswith("\u2581") else "##" + t): i
             for i, (t, k) in enumerate(zip(tokens, types, strict=True))}
    tokenizer = tokenizers.BertWordPieceTokenizer(vocab)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = a.threads
    ports = {"quire": free_port(), "llama.cpp": free_port()}
    with tempfile.TemporaryDirectory() as folder:
        onnx_model.save(onnx_model.build(a.f32), folder + "/model.onnx")
        session = onnxruntime.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])
    commands = {"quire": [a.quire, "serve", "-m", a.model, "--port", str(ports["quire"]), "--threads", str(a.threads)],
                "llama.cpp": peer(a, ports["llama.cpp"])}
    servers = [subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                env={k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")})
               for c in commands.values()]
    results = {}
    try:
        for port in ports.values():
            wait(port, ["a"])
        for name, words, count in LOADS:
            lists = [make_texts(words, count, seed) for seed in range(16)]
            ids = [np.array([e.ids for e in tokenizer.encode_batch(texts)], np.int64) for texts in lists]
            theirs = session.run(None, {"ids": ids[0], "mask": np.ones_like(ids[0])})[0]
            theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
            agrees = {who: min(float(np.dot(x, y)) for x, y in zip(post(port, lists[0]), theirs, strict=True))
                      for who, port in ports.items()}
            rates = {"quire": [], "llama.cpp": [], "onnx": []}
            for _ in range(a.rounds):
                for who in ("quire", "llama.cpp"):
                    rates[who].append(run_server(ports[who], lists, a.seconds))
                rates["onnx"].append(run_onnx(session, ids, a.seconds))
            ratio = {who: statistics.median(q / o for q, o in zip(rates["quire"], rates[who], strict=True))
                     for who in ("llama.cpp", "onnx")}
            results[name] = {"texts_per_second": {k: statistics.median(v) for k, v in rates.items()}, "ratio": ratio,
                             "list": count, "tokens": words + 2, "cosine": agrees}
            print("| %s, %d a list | %.0f | %.0f | %.0f | %.2f | %.2f |  cosine to f32: %.5f, %.5f" % (
                name, count, *(statistics.median(v) for v in rates.values()), ratio["llama.cpp"], ratio["onnx"],
                agrees["quire"], agrees["llama.cpp"]), flush=True)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    if a.json:
        a.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
