#!/usr/bin/env python3
"""Turn the JSON of compare.py, roofline and `quire bench` into the tables and drawings of docs/performance.md.

  report.py FOLDER [--page docs/performance.md] [--drawings docs/performance]

FOLDER holds what run-all wrote. In the page everything between `<!-- begin NAME -->` and `<!-- end NAME -->`
is replaced; a part without a result stays as it is, and a name that nothing fills is an error. Without
--page the tables are printed.
"""
import argparse
import json
import os
import pathlib
import re
import sys

import plots
import results

# scale1 … scale128 of compare.py, and which figure is drawn how: file, title, unit, logarithmic
DRAWINGS = [
    ("throughput.svg", "all_tok_s", "Throughput against concurrency", "prompt and answer tokens per second", False),
    ("first-token.svg", "ttft_p50_s", "Time to the first token against concurrency", "seconds, median", True),
    ("token-gap.svg", "itl_p99_ms", "Longest gaps between tokens against concurrency", "milliseconds, 99th percentile",
     True),
]


def read(folder, name):
    path = folder / (name + ".json")
    return json.loads(path.read_text()) if path.exists() else None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def figure(value, places):
    return "–" if value is None else "%.*f" % (places, value)


# ---- compare.py ----

def compare_table(found):
    """A row for each scenario and contender."""
    rows = []
    for (scenario, contender), m in results.medians(found["runs"]).items():
        rows.append([scenario, contender] + [figure(m[name], places) for name, places in (
            ("all_tok_s", 1), ("ttft_p50_s", 3), ("ttft_p95_s", 3), ("itl_p50_ms", 1), ("itl_p99_ms", 1),
            ("peak_rss_mib", 0), ("ready_s", 2))])
    return table(["scenario", "who", "tokens/s", "first token p50, s", "p95, s", "gap p50, ms", "p99, ms", "peak MiB",
                  "start, s"], rows)


def ratio_table(found):
    rows = []
    for scenario, ours, peer in results.pairs_of(found["runs"]):
        ratios = results.ratios(found["runs"], scenario, ours, peer)
        rows.append([scenario, "%s / %s" % (ours, peer)]
                    + ["%.2f (%.2f–%.2f)" % ratios[name] for name in results.RATIOS])
    return table(["scenario", "who / whom", *("%s ×" % name for name in results.RATIOS)], rows)


def target_rows(found):
    """Issue 5's table, from one file's runs: our kernels of the peer's instruction sets."""
    rows = []
    for model, scenario, peer, name, must, aim in results.TARGETS:
        if not found["model"].startswith(model):
            continue
        for s, ours, whom in results.pairs_of(found["runs"]):
            if s == scenario and whom.split("-")[0] == peer:
                value = results.ratios(found["runs"], scenario, ours, whom)[name][0]
                met = "aim" if aim and value >= aim else "must" if value >= must else "**missed**"
                rows.append([model, scenario, "%s / %s" % (ours, whom), name, "%.2f" % value, "%g" % must,
                             "–" if aim is None else "%g" % aim, met])
    return rows


def noise_note(found):
    noisy = sum(r["figures"].get("others_cores", 0) + r["figures"].get("steal_cores", 0) > 0.1 for r in found["runs"])
    if not noisy:
        return ""
    return "\n\nIn %d of %d runs others took more than a tenth of a core." % (noisy, len(found["runs"]))


def machine_table(found):
    m = found["machine"]
    rows = [["processor", "%s, family %s model %s, %d cores, %s" % (
        m["cpu"], m["family"], m["cpu_model"], m["cores"], " ".join(m["sets"]))],
            ["memory", "%s GiB; transparent huge pages: %s" % (m["memory_gib"], m["huge_pages"])],
            ["kernel", m["kernel"]], ["date", found["date"]], ["threads", str(found["threads"])]]
    rows += [[name, version or "–"] for name, version in found["versions"].items()]
    return table(["", ""], rows).replace("|---|---:|", "|---|---|")


# ---- Growth ----

def growth(found):
    """{figure: {contender: [(users, value)]}} of the scale… runs."""
    out = {}
    for (scenario, contender), m in results.medians(found["runs"]).items():
        users = int(scenario.removeprefix("scale"))
        for name, value in m.items():
            out.setdefault(name, {}).setdefault(contender, []).append((users, value))
    return out


def growth_table(found):
    lines = growth(found)
    users = [x for x, _ in next(iter(lines["all_tok_s"].values()))]
    head = ["who", "figure", *map(str, users)]
    rows = [[contender, title, *(figure(value, places) for _, value in lines[name][contender])]
            for contender in lines["all_tok_s"]
            for name, title, places in (("all_tok_s", "tokens/s", 0), ("ttft_p50_s", "first token p50, s", 2),
                                        ("itl_p99_ms", "gap p99, ms", 0), ("peak_rss_mib", "peak MiB", 0),
                                        ("scheduler_percent", "scheduler's share, %", 2))
            if contender in lines.get(name, ())]
    return table(head, rows)


# ---- Roofline and bench ----

def roofline_table(found):
    rows = []
    for model in found["models"]:
        name = "%s, %s" % (model["model"].removesuffix(".gguf"), model["kernels"])
        for line in model["lines"]:
            rows.append([name, line["what"], figure(line["tokens_per_second"], 1),
                         figure(line["limit_tokens_per_second"], 1), "%.0f %%" % line["percent"],
                         "≥ %d %%" % line["target_percent"]])
        rows.append([name, "start to ready", "%.2f s" % model["start_s"], "", "", "≤ %g s" % model["start_target_s"]])
    return table(["model, kernels", "what", "tokens/s", "the limit", "of it", "target"], rows)


def depth_table(found):
    rows = [["%s, %s" % (model["model"].removesuffix(".gguf"), model["kernels"]), str(line["depth"]),
             figure(line["tokens_per_second"], 1), figure(line["megabytes"], 1), "%.0f %%" % line["percent"]]
            for model in found["models"] for line in model["lines"]]
    return table(["model, kernels", "tokens before", "tokens/s", "MB a token", "of bandwidth"], rows)


def limits_table(found):
    model = found["models"][0]
    alone, both, threads = found["alone"], model["limits"], model["threads"]
    rows = [["bytes read, GB/s", figure(alone["read"], 1), figure(both["read"], 1)]]
    rows += [["%s, Gop/s" % name, figure(alone["units"][name], 0), figure(value, 0)] for name, value in
             both["units"].items()]
    rows += [["%s in the first-level cache, GFLOP/s" % name, figure(alone["formats"][name], 0), figure(value, 0)]
             for name, value in both["formats"].items()]
    return table(["limit (%s kernels)" % model["kernels"], "1 thread", "%d threads" % threads], rows)


def profile_table(found):
    """Of each model: ms of a step, and the share of its time, part by part."""
    out = []
    for model in found["models"]:
        chosen = [r for r in model["bench"]["results"] if r["what"] == "prefill" or r["batch"] in (1, 8, 32)]
        totals = [sum(p["work_ms"] + p["wait_ms"] for p in r["profile"]) for r in chosen]

        def row(name, values):
            return [name] + ["%.2f (%.0f %%)" % (v, 100 * v / t) for v, t in zip(values, totals)]

        rows = [row(part["part"], [r["profile"][i]["work_ms"] for r in chosen])
                for i, part in enumerate(chosen[0]["profile"])]
        rows.append(row("waiting for other threads", [sum(p["wait_ms"] for p in r["profile"]) for r in chosen]))
        head = ["%s, ms of a step" % model["model"].removesuffix(".gguf")]
        out.append(table(head + ["%s %d" % (r["what"], r["tokens"] if r["what"] == "prefill" else r["batch"])
                                 for r in chosen], rows))
    return "\n\n".join(out)


def engine_table(found, peers):
    """Tokens per second of the engines alone: ours, and what the peers' own tools print."""
    rows = []
    for model in found["models"]:
        name = model["model"].removesuffix(".gguf")
        for r in model["bench"]["results"]:
            what = "prefill %d" % r["tokens"] if r["what"] == "prefill" else "decode × %d" % r["batch"]
            peer = (peers or {}).get(model["model"], {}).get(what)
            rows.append([name, what, figure(r["tokens_per_second"], 1), figure(peer, 1),
                         "%.2f" % (r["tokens_per_second"] / peer) if peer else "–"])
    return table(["model", "what", "quire bench", "llama-bench", "×"], rows)


def embedding_table(found):
    rows = [[name, str(r["list"]), *(figure(r["texts_per_second"][who], 0) for who in ("quire", "llama.cpp", "onnx")),
             "%.2f" % r["ratio"]["llama.cpp"], "%.2f" % r["ratio"]["onnx"],
             "%.5f" % r["cosine"]["quire"], "%.5f" % r["cosine"]["llama.cpp"]] for name, r in found.items()]
    return table(["a text", "texts of a list", "quire Q8_0, texts/s", "llama.cpp Q8_0", "ONNX Runtime f32",
                  "× llama.cpp", "× ONNX Runtime", "cosine to f32, quire", "llama.cpp"], rows)


# ---- The page ----

def sections(folder):
    """{name: text} for every part that there are results for."""
    out, targets = {}, []
    for name in ("smollm2", "smollm2-native", "gemma", "gemma-native", "qwen", "qwen-native"):
        found = read(folder, name)
        if found:
            out[name] = compare_table(found) + "\n\n" + ratio_table(found) + noise_note(found)
            out.setdefault("machine", machine_table(found))
            targets += target_rows(found)
    if targets:
        out["targets"] = table(["model", "scenario", "who / whom", "figure", "×", "must", "aim", "reached"], targets)
    scale = read(folder, "scaling")
    if scale:
        out["scaling"] = growth_table(scale) + noise_note(scale)
    found = read(folder, "embeddings")
    if found:
        out["embeddings"] = embedding_table(found)
    found = read(folder, "depth")
    if found:
        out["depth"] = depth_table(found)
    found = read(folder, "roofline")
    if found:
        both = {"models": found["models"] + (read(folder, "roofline-avx2") or {"models": []})["models"]}
        out.update(roofline=roofline_table(both), limits=limits_table(found), profile=profile_table(found),
                   engine=engine_table(found, read(folder, "llama-bench")))
    return out


def draw(scale, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, key, title, unit, log in DRAWINGS:
        svg = plots.line_chart("%s, %s" % (title, scale["model"].removesuffix(".gguf")), "users at the same time", unit,
                               growth(scale)[key], log)
        (folder / name).write_text(svg)


def draw_embeddings(found, folder):
    series = {who: [(r["tokens"], r["texts_per_second"][who] * r["tokens"]) for r in found.values()]
              for who in ("quire", "llama.cpp", "onnx")}
    svg = plots.line_chart("Embeddings: all-MiniLM-L6-v2, tokens a second", "tokens of a text", "tokens/s", series)
    (folder / "embeddings.svg").write_text(svg)


def fill(page, parts):
    text = page.read_text()
    there = re.findall(r"<!-- begin ([\w-]+) -->", text)
    for name in parts:
        if name not in there:
            sys.exit("%s has no place for '%s'" % (page, name))
        text = re.sub(r"(<!-- begin %s -->\n).*?(<!-- end %s -->)" % (name, name),
                      lambda m: m.group(1) + parts[name] + "\n" + m.group(2), text, flags=re.S)
    page.write_text(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--page", type=pathlib.Path)
    p.add_argument("--drawings", type=pathlib.Path)
    args = p.parse_args()
    parts = sections(args.folder)
    scale = read(args.folder, "scaling")
    if args.drawings and scale:
        draw(scale, args.drawings)
        if args.page:
            parts["drawings"] = "\n\n".join(
                "![%s](%s)" % (title, os.path.relpath(args.drawings / name, args.page.parent))
                for name, _, title, _, _ in DRAWINGS)
    embeddings = read(args.folder, "embeddings")
    if args.drawings and embeddings:
        draw_embeddings(embeddings, args.drawings)
    if args.page:
        fill(args.page, parts)
    else:
        print("\n\n".join("## %s\n\n%s" % part for part in parts.items()))


if __name__ == "__main__":
    main()
