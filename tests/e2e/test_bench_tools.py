"""The tools of bench/: that they count right and say when they cannot, on made-up models and made-up results.

How fast anything is, is not tested: a busy machine would fail it.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import harness

COMPARE = harness.ROOT / "bench/compare"
sys.path.insert(0, str(COMPARE))
import compare   # noqa: E402
import load      # noqa: E402
import plots     # noqa: E402
import report    # noqa: E402
import results   # noqa: E402


def roofline_module():
    loader = importlib.machinery.SourceFileLoader("roofline", str(harness.ROOT / "bench/roofline"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("roofline", loader))
    loader.exec_module(module)
    return module


def run(*command, code=0):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done
    return done


# bench_kernels


def test_limits_of_the_machine():
    out = run(harness.BUILD / "bench/bench_kernels", "--limits", "--json", "--threads", 2, "--samples", 2,
              "--format", "Q4_1").stdout
    figures = [json.loads(line) for line in out.splitlines()]
    assert [f["what"] for f in figures][0] == "read" and figures[-1]["what"] == "format"
    assert figures[-1]["format"] == "Q4_1" and figures[-1]["rows"] >= 4
    assert all(f["threads"] == 2 for f in figures)
    assert all(f[next(k for k in f if k.endswith("_s"))] > 0 for f in figures)


def test_products_are_printed_both_ways():
    arguments = [harness.BUILD / "bench/bench_kernels", "--format", "Q8_0", "--threads", 1, "--samples", 1, "--quick"]
    lines = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]
    products = [f for f in lines if f["what"] == "product"]
    assert [p["rows"] for p in products] == [1, 2, 4, 8, 32, 128]
    for p in products:    # both follow from one time: 2·n·k·rows operations, 34 bytes for each 32 weights
        seconds = 2e-9 * p["n"] * p["k"] * p["rows"] / p["gflop_s"]
        assert p["gb_s"] * 1e9 * seconds == pytest.approx(p["n"] * p["k"] * 34 / 32, rel=0.05)
    text = run(*arguments).stdout
    assert "limits, 1 thread(s): read" in text and "Q8_0" in text.splitlines()[-1]


def test_kernels_refuses_what_it_does_not_know():
    assert "usage" in run(harness.BUILD / "bench/bench_kernels", "--nonsense", code=1).stderr
    assert "scalar" in run(harness.BUILD / "bench/bench_kernels", "--kernels", "sse9", code=1).stderr


# load.py and compare.py


def load_figures(server, *options):
    return json.loads(run(sys.executable, COMPARE / "load.py", "--port", server.port, *options).stdout)


@pytest.mark.sanitizer
def test_load_counts_what_was_served():
    with harness.started(model=harness.tiny()) as server:
        out = load_figures(server, "--concurrency", 3, "--requests", 7, "--max-tokens", 9, "--words", 5)
        assert out["errors"] == 0 and out["requests"] == 7 and out["out_tokens"] == 63
        assert 0 < out["ttft_p50_s"] <= out["ttft_p95_s"] < out["wall_s"]
        assert out["itl_p50_ms"] <= out["itl_p99_ms"] <= out["itl_max_ms"]
        tokens, rounding_s = out["prompt_tokens"] + 63, 0.0006
        assert tokens / (out["wall_s"] + rounding_s) <= out["all_tok_s"] * 1.001
        assert out["all_tok_s"] <= 1.001 * tokens / max(out["wall_s"] - rounding_s, 1e-3)


def test_load_counts_errors_and_does_not_hide_them():
    with harness.started("--context", 64, model=harness.tiny()) as server:
        out = load_figures(server, "--concurrency", 2, "--requests", 4, "--max-tokens", 8, "--words", 500)
        assert out["errors"] == 4 and out["requests"] == 0 and "status 400" in out["first_error"]


def test_prompts_are_the_same_for_everyone():
    assert load.words(3, 6) == load.words(3, 6) != load.words(4, 6)
    assert len(load.words(3, 6).split()) == 6


def test_compare_on_a_made_up_model(tmp_path):
    out = tmp_path / "out.json"
    done = run(sys.executable, COMPARE / "compare.py", "--model", harness.tiny(), "--quire", harness.BINARY,
               "--ours-kernels", "scalar,auto", "--peers", "", "--scenarios", "scale1", "--rounds", 2, "--memory",
               "256MiB", "--json", out)
    found = json.loads(out.read_text())
    # turn about, each round with another one first
    assert [(r["contender"], r["round"]) for r in found["runs"]] == [
        ("quire-scalar", 0), ("quire", 0), ("quire", 1), ("quire-scalar", 1)]
    for r in found["runs"]:
        assert r["figures"]["out_tokens"] == 4 * 48 and r["figures"]["errors"] == 0
        assert 0 < r["figures"]["ready_s"] < 60 and r["figures"]["peak_rss_mib"] > 5
        assert 0 < r["figures"]["scheduler_percent"] < 100
        assert r["figures"]["others_cores"] >= 0 and r["figures"]["server_cpu_s"] >= 0
    assert found["versions"]["quire"].startswith("quire ") and found["machine"]["cores"] >= 1
    assert "== scale1" in done.stdout and str(pathlib.Path.home()) not in out.read_text()


def test_compare_refuses_what_it_does_not_know():
    base = [sys.executable, COMPARE / "compare.py", "--model", "m.gguf"]
    assert "users9" in run(*base, "--scenarios", "users9", code=2).stderr
    assert "vllm" in run(*base, "--peers", "vllm", code=2).stderr
    assert "--llama-server" in run(*base, "--peers", "llama.cpp-native", code=2).stderr


def test_a_server_that_falls_short_ends_the_run():
    work = compare.SCENARIOS["solo"]
    good = {"out_tokens": 4 * 64, "errors": 0}
    compare.check(good, work, "quire")
    for bad in ({**good, "out_tokens": 255}, {**good, "errors": 1}):
        with pytest.raises(SystemExit):
            compare.check(bad, work, "quire")


def test_what_llamas_tools_print_is_read(tmp_path):
    """Stand-ins that print as llama-bench -o json and llama-batched-bench --output-format jsonl do."""
    (tmp_path / "llama-bench").write_text("#!/bin/sh\necho '[{\"n_prompt\": 512, \"avg_ts\": 181.234}]'\n")
    (tmp_path / "llama-batched-bench").write_text(
        "#!/bin/sh\necho warming\n" + "".join("echo '{\"pl\": %d, \"speed_tg\": %d.5}'\n" % (n, 10 * n) for n in (1, 32)))
    for name in "llama-bench", "llama-batched-bench":
        (tmp_path / name).chmod(0o755)
    command = [sys.executable, COMPARE / "llama_bench.py", "a/m.gguf", "--tools", tmp_path, "--json", tmp_path / "out.json"]
    run(*command)
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "m.gguf": {"prefill 512": 181.23, "decode × 1": 10.5, "decode × 32": 320.5}}
    (tmp_path / "llama-bench").write_text("#!/bin/sh\necho no model >&2; exit 3\n")
    assert "no model" in run(*command, code=1).stderr


# results.py, report.py, plots.py


def made_up_run(scenario, contender, turn, factor):
    figures = {"all_tok_s": 100 * factor, "out_tok_s": 50 * factor, "ttft_p50_s": 1 / factor, "ttft_p95_s": 2 / factor,
               "itl_p50_ms": 10 / factor, "itl_p99_ms": 100 / factor, "itl_max_ms": 200 / factor,
               "peak_rss_mib": 500 / factor, "ready_s": 1, "prompt_tokens": 7, "out_tokens": 8, "errors": 0,
               "others_cores": 0.0, "steal_cores": 0.0}
    return {"scenario": scenario, "contender": contender, "round": turn, "figures": figures}


def made_up_results(scenarios, factors, model="SmolLM2-135M-Instruct.Q4_1.gguf"):
    """factors: {contender: [of each round]}"""
    runs = [made_up_run(s, name, turn, factor) for s in scenarios for name, each in factors.items()
            for turn, factor in enumerate(each)]
    return {"model": model, "date": "2026-01-02", "threads": 2, "rounds": 3, "versions": dict.fromkeys(factors, "1"),
            "machine": {"cpu": "made up", "family": "1", "cpu_model": "2", "cores": 2, "sets": ["avx2"], "cache": "1",
                        "memory_gib": 1, "huge_pages": None, "kernel": "0"}, "runs": runs}


def test_ratios_are_of_medians_and_of_rounds():
    found = made_up_results(["solo"], {"quire": [4, 6, 5], "openvino": [1, 2, 4]})
    ratios = results.ratios(found["runs"], "solo", "quire", "openvino")
    assert set(ratios) == set(results.RATIOS)
    for middle, least, greatest in ratios.values():     # medians 5 and 2; rounds 4/1, 6/2, 5/4
        assert (middle, least, greatest) == pytest.approx((2.5, 1.25, 4))
    assert results.ratios(found["runs"], "solo", "quire", "llama.cpp") is None


def test_who_is_held_against_whom():
    names = {n: [1] for n in ("quire-avx2", "quire", "llama.cpp", "llama.cpp-native", "openvino")}
    assert results.pairs_of(made_up_results(["solo"], names)["runs"]) == [
        ("solo", "quire-avx2", "llama.cpp"), ("solo", "quire", "llama.cpp-native"), ("solo", "quire", "openvino")]
    del names["quire-avx2"]      # a machine without AVX-512 has one set
    assert ("solo", "quire", "llama.cpp") in results.pairs_of(made_up_results(["solo"], names)["runs"])


def test_targets_are_judged():
    found = made_up_results(["solo", "users8"], {"quire": [7, 7, 7], "llama.cpp": [3, 3, 3], "openvino": [1, 1, 1]})
    judged = {(row[1], row[2], row[3]): row[-1] for row in report.target_rows(found)}
    assert judged == {("solo", "quire / llama.cpp", "throughput"): "must",       # 2.33: must 2.2, aim 2.8
                      ("solo", "quire / llama.cpp", "first token"): "**missed**",
                      ("solo", "quire / openvino", "throughput"): "aim",
                      ("users8", "quire / llama.cpp", "throughput"): "**missed**",
                      ("users8", "quire / llama.cpp", "first token"): "**missed**",
                      ("users8", "quire / openvino", "throughput"): "aim"}


def test_the_page_has_a_place_for_everything(tmp_path):
    for name in ("smollm2", "smollm2-native", "gemma", "gemma-native", "qwen", "qwen-native"):
        (tmp_path / (name + ".json")).write_text(json.dumps(
            made_up_results(["solo"], {"quire": [2, 2, 2], "llama.cpp": [1, 1, 1]})))
    (tmp_path / "scaling.json").write_text(json.dumps(
        made_up_results(["scale1", "scale8", "scale128"], {"quire": [2], "openvino": [1]})))
    (tmp_path / "roofline.json").write_text(json.dumps(made_up_roofline()))
    (tmp_path / "roofline-avx2.json").write_text(json.dumps(made_up_roofline("avx2")))
    (tmp_path / "depth.json").write_text(json.dumps({"models": [{"model": "m.gguf", "kernels": "avx2", "lines": [
        {"depth": 128, "tokens_per_second": 9.0, "megabytes": 12.3, "percent": 81.4}]}]}))
    (tmp_path / "llama-bench.json").write_text(json.dumps({"m.gguf": {"prefill 512": 50.0}}))
    page = tmp_path / "page.md"
    page.write_text((harness.ROOT / "docs/performance.md").read_text())
    run(sys.executable, COMPARE / "report.py", tmp_path, "--page", page, "--drawings", tmp_path / "drawn")
    text = page.read_text()
    for part in re.findall(r"<!-- begin [\w-]+ -->\n(.*?)<!-- end", text, re.S):
        assert part.startswith(("|", "!")), part
    assert "| m | prefill 512 | 100.0 | 50.0 | 2.00 |" in text
    assert "| m, avx512 | decode 1 |" in text and "| m, avx2 | decode 1 |" in text
    assert "| m, avx2 | 128 | 9.0 | 12.3 | 81 % |" in text
    for drawing in re.findall(r"\]\((drawn/[\w-]+\.svg)\)", text):
        xml.etree.ElementTree.parse(tmp_path / drawing)
    before = text
    run(sys.executable, COMPARE / "report.py", tmp_path, "--page", page, "--drawings", tmp_path / "drawn")
    assert page.read_text() == before
    page.write_text("no place")
    assert "no place for" in run(sys.executable, COMPARE / "report.py", tmp_path, "--page", page, code=1).stderr


@pytest.mark.parametrize("log", [False, True])
def test_a_drawing_shows_every_point(log):
    series = {"quire": [(1, 100.0), (8, 400.0), (128, 900.0)], "a <b> & c": [(1, 50.0), (128, 60.0)]}
    tree = xml.etree.ElementTree.fromstring(plots.line_chart("t", "x", "y", series, log))
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in tree.findall(".//{*}circle")]
    assert len(circles) == 5
    assert circles[0][0] < circles[1][0] < circles[2][0] and circles[0][1] > circles[1][1] > circles[2][1]
    assert circles[0][0] == circles[3][0] and circles[2][0] == circles[4][0]
    assert all(plots.LEFT <= x <= plots.WIDTH - plots.RIGHT and plots.TOP <= y <= plots.HEIGHT - plots.BOTTOM
               for x, y in circles)
    assert {t.text for t in tree.findall(".//{*}text")} >= {"quire", "a <b> & c", "1", "8", "128"}


# roofline


def made_up_roofline(kernels="avx512"):
    limits = {"read": 10.0, "units": {"fma256": 100.0}, "formats": {"Q4_1": 100.0}}
    profile = [{"part": "attention", "work_ms": 1.0, "wait_ms": 0.5}]
    found = [{"what": "prefill", "batch": 1, "tokens": 512, "tokens_per_second": 100.0, "profile": profile},
             {"what": "decode", "batch": 1, "tokens": 32, "tokens_per_second": 10.0, "profile": profile}]
    line = {"what": "decode 1", "tokens_per_second": 8, "limit_tokens_per_second": 10, "percent": 80,
            "target_percent": 80}
    return {"alone": limits, "models": [{"model": "m.gguf", "name": "m", "kernels": kernels, "threads": 2,
                                         "limits": limits, "lines": [line], "start_s": 0.1, "start_target_s": 0.5,
                                         "bench": {"results": found}}]}


def test_decoding_is_held_against_the_bandwidth_around_it(monkeypatch):
    """Five runs, each between two bandwidths: the median of the ratios, with its own figures."""
    module = roofline_module()
    reads = iter([10, 10, 20, 20, 40, 40, 10, 30, 8, 8])    # GB/s before and after
    rates = iter([5.0, 8.0, 30.0, 9.0, 8.0])                # of 10, 20, 40, 20, 8 at best
    monkeypatch.setattr(module, "measure_limits", lambda *_: {"read": next(reads)})
    monkeypatch.setattr(module, "run_bench", lambda *_: {"kernels": "avx2", "results": [
        {"what": "decode", "batch": 1, "tokens_per_second": next(rates)}]})
    args = argparse.Namespace(threads=2, cpu_time=False)
    work = {"bytes": 1e9, "kv_token_bytes": 0}
    assert module.decode_alone(args, "m.gguf", work, 128) == {
        "tokens_per_second": 5.0, "limit_tokens_per_second": 10.0, "percent": 50.0, "kernels": "avx2"}
    assert next(reads, None) is None


@pytest.mark.parametrize("tied", [True, False])
def test_what_a_token_costs(monkeypatch, tied):
    """Against sums done by hand, for two layers of a model with one more tensor when untied."""
    module = roofline_module()
    shapes = {"token_embd.weight": [64, 1000], "output_norm.weight": [64]}
    for layer in ("blk.0.", "blk.1."):
        shapes |= {layer + "attn_q.weight": [64, 64], layer + "attn_k.weight": [64, 32],
                   layer + "attn_norm.weight": [64], layer + "attn_output.weight": [64, 64], layer + "ffn_down.weight": [128, 64]}
    if not tied:
        shapes["output.weight"] = [64, 1000]
    tensors = [{"name": n, "shape": s, "type": "F32" if len(s) == 1 else "Q8_0", "bytes": 1000 + i}
               for i, (n, s) in enumerate(shapes.items())]
    described = {"tensors": tensors, "model": {"layers": 2, "name": "m"}, "memory": {"kv_token_bytes": 256}}
    monkeypatch.setattr(module, "run", lambda *command: json.dumps(described))
    work = module.work_of(pathlib.Path("b"), "m.gguf")
    everything = sum(t["bytes"] for t in tensors)
    assert work["bytes"] == everything - (0 if tied else 1000)      # the table alone is read by the row
    layer = 2 * (64 * 64 + 64 * 32 + 64 * 64 + 128 * 64)
    last = 2 * (64 * 64 + 128 * 64)                                 # output and feed-forward
    assert work["layers"] == {"Q8_0": 2 * layer} and work["last"] == {"Q8_0": last}
    assert work["head"] == {"Q8_0": 2 * 64 * 1000}
    assert module.bytes_behind(work, 128) == work["bytes"] + 256 * (128 + 16)
    ideal = module.ideal_seconds(work, {"read": 2.0, "formats": {"Q8_0": 4.0}})
    assert ideal["prefill 512"] == pytest.approx((512 * 2 * layer - 511 * last + 2 * 64000) / 4e9)
    assert ideal["decode 32"] == pytest.approx(32 * (2 * layer + 2 * 64000) / 4e9)


def test_roofline_of_a_real_file_adds_up():
    """SmolLM2: 0.21 GFLOP a row without the head, 0.27 with it; 96 MB a token (PERFORMANCE of the yardstick)."""
    work = roofline_module().work_of(harness.BUILD, harness.MODEL)
    layers, head = sum(work["layers"].values()), sum(work["head"].values())
    assert layers == pytest.approx(0.21e9, rel=0.02) and layers + head == pytest.approx(0.27e9, rel=0.02)
    assert work["bytes"] == pytest.approx(96.6e6, rel=0.01)


def test_start_is_measured():
    seconds = roofline_module().start_seconds(harness.BUILD, str(harness.tiny()), "auto", 1)
    assert 0 < seconds < 30
