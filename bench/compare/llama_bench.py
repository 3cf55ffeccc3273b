#!/usr/bin/env python3
"""What llama.cpp's own tools print, in the terms of `quire bench`: for the table of engines alone.

  llama_bench.py --tools FOLDER --json out.json MODEL.gguf…

llama-bench's pp512, and llama-batched-bench's generating of 32 tokens behind 128 for 1 … 32 sequences.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

BATCHES = (1, 2, 4, 8, 16, 32)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s failed: %s" % (command[0], done.stderr.strip()[-500:]))
    return done.stdout


def measure(tools, model, threads):
    prefill = json.loads(run(tools / "llama-bench", "-m", model, "-t", threads, "-p", 512, "-n", 0, "-r", 3,
                             "-o", "json"))
    out = {"prefill 512": round(prefill[0]["avg_ts"], 2)}
    lines = run(tools / "llama-batched-bench", "-m", model, "-t", threads, "-tb", threads, "-c", 32 * 192, "-b", 2048,
                "-ub", 512, "-npp", 128, "-ntg", 32, "-npl", ",".join(map(str, BATCHES)), "--output-format", "jsonl")
    for line in lines.splitlines():
        if line.startswith("{"):
            result = json.loads(line)
            out["decode × %d" % result["pl"]] = round(result["speed_tg"], 2)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", metavar="MODEL.gguf")
    p.add_argument("--tools", type=pathlib.Path, required=True, help="folder of llama-bench and llama-batched-bench")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--json", type=pathlib.Path, required=True)
    args = p.parse_args()
    found = {}
    for model in args.models:
        found[os.path.basename(model)] = measure(args.tools, model, args.threads)
        print(os.path.basename(model), found[os.path.basename(model)], flush=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
