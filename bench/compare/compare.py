#!/usr/bin/env python3
"""Measure Quire's server and its peers on the same work, turn about, in one run.

  compare.py --model M.gguf --quire build/quire [--ours-kernels avx2,avx512]
             [--peers llama.cpp,llama.cpp-native,openvino] [--scenarios solo,users8,users32,prefix8]
             [--rounds 3] [--json out.json]

Each round starts one contender after the other, never two at once, each round with another one first,
and runs load.py's closed loop on it. Figures are medians of the rounds; a ratio above 1 says that Quire
is ahead. Timings of one machine mean nothing elsewhere: quote the ratios.

Contenders: quire (the kernels that --kernels auto takes), quire-NAME (--kernels NAME), llama.cpp (its
server from the wheel xllamacpp: AVX2 only), llama.cpp-native (--llama-server FILE), openvino (GenAI's
continuous batching, in process, without HTTP). make-peers installs all of them.

What others take of the processors while a contender is measured is recorded too ("others_cores",
"steal_cores"): more than a tenth of a core means that the figures are worth little.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request

import results

HERE = pathlib.Path(__file__).resolve().parent
NOISE_CORES = 0.1


def shape(users, requests, max_tokens, words, prefix_words=0):
    return {"concurrency": users, "requests": requests, "max_tokens": max_tokens, "words": words,
            "prefix_words": prefix_words}


SCENARIOS = {
    "solo": shape(1, 4, 64, 128),
    "long": shape(1, 2, 16, 1500),
    "users8": shape(8, 24, 64, 128),
    "users32": shape(32, 64, 64, 128),
    "prefix8": shape(8, 32, 16, 24, 800),
    # How it grows: smaller work, so that 128 users can be waited for.
    **{"scale%d" % users: shape(users, max(4, min(2 * users, 32), users), 48, 64) for users in
       (1, 2, 4, 8, 16, 32, 64, 128)},
}


# ---- The machine ----

def processor_times():
    """(busy, stolen) seconds of all cores since boot."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = [int(f) for f in open("/proc/stat").readline().split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq) / tick, steal / tick


def process_cpu_s(pid):
    fields = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_rss_mib(pid):
    with open("/proc/%d/status" % pid) as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def first_line_of(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return next((line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()), None)


def describe_machine():
    first = open("/proc/cpuinfo").read().split("\n\n")[0].splitlines()
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
    sets = [s for s in ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8")
            if s in info.get("flags", "").split()]
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    huge = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {"cpu": info.get("model name", platform.machine()), "family": info.get("cpu family"),
            "cpu_model": info.get("model"), "cores": len(os.sched_getaffinity(0)), "sets": sets,
            "cache": info.get("cache size"), "memory_gib": round(memory / (1 << 20), 1),
            "huge_pages": huge.read_text().strip() if huge.exists() else None, "kernel": platform.release()}


# ---- Contenders ----

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_ready(port, process, path, seconds=180):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit("a server ended with %s before it was ready" % process.returncode)
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.005)
    raise SystemExit("a server was not ready in %d s" % seconds)


def work_options(work):
    return [part for key, value in work.items() for part in ("--" + key.replace("_", "-"), str(value))]


def end(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_load(port, work):
    done = subprocess.run([sys.executable, HERE / "load.py", "--port", str(port), *work_options(work)],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def no_probe(_port):
    return {}


def engine_seconds(port):
    """What Quire's engine thread was at so far, from /metrics."""
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10) as answer:
        text = answer.read().decode()
    return {name: float(seconds) for name, seconds in
            re.findall(r'^quire_engine_seconds_total\{.*phase="(\w+)"\} (\S+)$', text, re.M)}


def scheduler_percent(before, after):
    """The scheduler's own share of the engine thread's work: nothing of the model in it."""
    spent = {name: after[name] - before[name] for name in after if name != "idle"}
    total = sum(spent.values())
    return {"scheduler_percent": round(100 * (spent["planning"] + spent["committing"]) / total, 3)} if total else {}


def run_server(command, port, ready_path, work, probe=no_probe):
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_ready(port, process, ready_path)
        ready = time.monotonic() - start
        warm = run_load(port, {**shape(1, 1, 4, 128), "seed": 777_777})
        if warm["errors"]:
            raise SystemExit("the first request failed: %s" % warm["first_error"])
        probed = probe(port)
        cpu, (busy, stolen), began = process_cpu_s(process.pid), processor_times(), time.monotonic()
        figures = run_load(port, work)
        wall = time.monotonic() - began
        cpu = process_cpu_s(process.pid) - cpu
        busy, stolen = (after - before for after, before in zip(processor_times(), (busy, stolen)))
        others = max(0.0, busy - cpu - figures["client_cpu_s"]) / wall
        return {**figures, "server_cpu_s": round(cpu, 3), "others_cores": round(others, 3),
                "steal_cores": round(stolen / wall, 3), "ready_s": round(ready, 3),
                "peak_rss_mib": peak_rss_mib(process.pid),
                **(scheduler_percent(probed, probe(port)) if probed else {})}
    finally:
        end(process)


def context_of(work):
    """Tokens of KV that all users need together, with room: words are one to two tokens."""
    each = work["max_tokens"] + work["words"] + work["prefix_words"] + 128
    return max(work["concurrency"] * each * 3 // 2, 2048)


class Quire:
    def __init__(self, args, kernels):
        self.args, self.kernels = args, kernels
        self.name = "quire" if kernels == "auto" else "quire-" + kernels

    def version(self):
        return first_line_of([self.args.quire, "--version"])

    def run(self, work):
        port = free_port()
        command = [self.args.quire, "serve", "-m", self.args.model, "--port", str(port), "--threads",
                   str(self.args.threads), "--memory", self.args.memory, "--kernels", self.kernels,
                   *shlex.split(self.args.ours_options)]
        return run_server(command, port, "/ready", work, engine_seconds)


class LlamaWheel:
    name = "llama.cpp"

    def __init__(self, args):
        self.args = args

    def version(self):
        return first_line_of([self.args.llama_python, "-c",
                              "import importlib.metadata as m; print('xllamacpp', m.version('xllamacpp'))"])

    def run(self, work):
        port = free_port()
        command = [self.args.llama_python, HERE / "peer_llamacpp.py", self.args.model, "--port", str(port), "--threads",
                   str(self.args.threads), "--parallel", str(work["concurrency"]), "--context", str(context_of(work))]
        return run_server(command, port, "/health", work)      # 503 while loading


class LlamaNative:
    name = "llama.cpp-native"

    def __init__(self, args):
        self.args = args

    def version(self):
        return first_line_of([self.args.llama_server, "--version"])

    def run(self, work):
        port, threads = free_port(), str(self.args.threads)
        command = [self.args.llama_server, "-m", self.args.model, "--host", "127.0.0.1", "--port", str(port),
                   "-t", threads, "-tb", threads, "-np", str(work["concurrency"]), "-c", str(context_of(work)),
                   "--no-context-shift"]
        return run_server(command, port, "/health", work)


class Openvino:
    name = "openvino"

    def __init__(self, args):
        self.args = args

    def version(self):
        return first_line_of([self.args.openvino_python, "-c", "import importlib.metadata as m; "
                              "print('openvino-genai', m.version('openvino-genai'))"])

    def run(self, work):
        (busy, stolen), began = processor_times(), time.monotonic()
        child = os.times()
        done = subprocess.run([self.args.openvino_python, HERE / "peer_openvino.py", self.args.model, "--threads",
                               str(self.args.threads), *work_options(work)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit("openvino failed: " + done.stderr[-500:])
        wall, after = time.monotonic() - began, os.times()
        own = after.children_user + after.children_system - child.children_user - child.children_system
        now_busy, now_stolen = processor_times()
        return {**json.loads(done.stdout.strip().splitlines()[-1]),
                "others_cores": round(max(0.0, now_busy - busy - own) / wall, 3),
                "steal_cores": round((now_stolen - stolen) / wall, 3)}


PEERS = {peer.name: peer for peer in (LlamaWheel, LlamaNative, Openvino)}


# ---- The run ----

def check(figures, work, contender):
    wanted = work["requests"] * work["max_tokens"]
    if figures["out_tokens"] != wanted or figures["errors"]:
        raise SystemExit("%s: %d tokens instead of %d, %d errors: %s" % (
            contender, figures["out_tokens"], wanted, figures["errors"], figures.get("first_error")))


def print_scenario(runs, scenario):
    middle = {c: m for (s, c), m in results.medians(runs).items() if s == scenario}
    print("== %s" % scenario)
    for name, m in middle.items():
        noise = m.get("others_cores", 0) + m.get("steal_cores", 0)
        print("  %-16s %7.1f tok/s  first token %7.3f s  gap p50 %7.1f p99 %8.1f ms  %5d MiB  ready %5.2f s%s" % (
            name, m["all_tok_s"], m["ttft_p50_s"], m["itl_p50_ms"], m["itl_p99_ms"], m["peak_rss_mib"], m["ready_s"],
            "  NOT QUIET: others took %.2f cores" % noise if noise > NOISE_CORES else ""))
    if len({m["prompt_tokens"] for m in middle.values()}) > 1:
        print("  WARNING: prompts have different lengths: %s" % {n: m["prompt_tokens"] for n, m in middle.items()})
    for s, ours, peer in results.pairs_of(runs):
        if s == scenario:
            found = results.ratios(runs, scenario, ours, peer)
            print("  %s / %s: %s" % (ours, peer, ", ".join(
                "%s ×%.2f (%.2f–%.2f)" % (name, *ratio) for name, ratio in found.items())))
    sys.stdout.flush()


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--quire", default="build/quire", help="our binary (build/quire)")
    p.add_argument("--ours-kernels", default="auto", help="comma list of auto, avx2, avx512, scalar (auto)")
    p.add_argument("--ours-options", default="", help="more options of `quire serve`, as one string")
    p.add_argument("--memory", default="2GiB", help="our --memory (2GiB)")
    p.add_argument("--peers", default="llama.cpp", help="comma list of llama.cpp, llama.cpp-native, openvino")
    p.add_argument("--llama-python", default=sys.executable, help="python that has xllamacpp")
    p.add_argument("--llama-server", help="llama.cpp's own binary, built for this machine")
    p.add_argument("--openvino-python", default=sys.executable, help="python that has openvino-genai")
    p.add_argument("--scenarios", default="solo,users8,users32,prefix8")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json", help="write every run there, after each")
    args = p.parse_args()
    args.quire = os.path.abspath(args.quire)
    unknown = set(args.scenarios.split(",")) - set(SCENARIOS) | set(filter(None, args.peers.split(","))) - set(PEERS)
    if unknown:
        p.error("unknown: %s; scenarios are %s, peers %s" % (sorted(unknown), ", ".join(SCENARIOS), ", ".join(PEERS)))
    if "llama.cpp-native" in args.peers.split(",") and not args.llama_server:
        p.error("llama.cpp-native needs --llama-server")
    return args


def main():
    args = parse()
    contenders = [Quire(args, kernels) for kernels in args.ours_kernels.split(",")]
    contenders += [PEERS[name](args) for name in args.peers.split(",") if name]
    out = {"model": os.path.basename(args.model), "date": datetime.date.today().isoformat(),
           "machine": describe_machine(), "threads": args.threads, "rounds": args.rounds,
           "versions": {c.name: c.version() for c in contenders}, "runs": []}
    for scenario in args.scenarios.split(","):
        for turn in range(args.rounds):
            for i in range(len(contenders)):
                contender = contenders[(turn + i) % len(contenders)]
                figures = contender.run(SCENARIOS[scenario])
                check(figures, SCENARIOS[scenario], contender.name)
                out["runs"].append({"scenario": scenario, "contender": contender.name, "round": turn,
                                    "figures": figures})
                if args.json:
                    pathlib.Path(args.json).write_text(json.dumps(out, indent=1) + "\n")
        print_scenario(out["runs"], scenario)


if __name__ == "__main__":
    main()
