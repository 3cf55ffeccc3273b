"""`quire plan` says beforehand what `quire serve` then does, byte for byte; and what textbooks say."""

import json
import shlex
import xml.etree.ElementTree

import pytest

import harness
from harness import run_quire

MIB, GIB = 2**20, 2**30


def plan(*arguments, code=None, measure=False):
    done = run_quire("plan", "--json", *([] if measure else ["--no-measure"]), *arguments, timeout=60)
    assert done.returncode in ((0, 1) if code is None else (code,)), done
    assert done.stderr == b"", done
    answer = json.loads(done.stdout)
    assert answer["fits"] == (done.returncode == 0) == answer["answer"].startswith("yes: ")
    return answer


def numbers(layers, kv_heads, head_dim, *more):
    return ["--layers", layers, "--kv-heads", kv_heads, "--head-dim", head_dim, *more]


# what a server then has


def accounts(server):
    metrics = server.metrics()
    names = [s.labels["account"] for s in metrics.samples if s.name == "quire_memory_limit_bytes"]
    return {name: metrics("quire_memory_limit_bytes", account=name) for name in names}


@pytest.mark.parametrize("options", [
    ["--memory", "200MiB"],
    ["--memory", "300MiB", "--context", "2048"],
    ["--memory", "512MiB", "--page-size", "32", "--max-seqs", "500", "--threads", "1"],
    ["--memory", "1GiB", "--max-batch-tokens", "64", "--max-connections", "100", "--max-queue", "7"],
    ["--memory", "4GiB", "--max-seqs", "8"],
    ["--memory", "512MiB", "--constraints", "off"],
    ["--memory", "200MiB", "--swap-dir", "/tmp", "--swap-bytes", "1GiB"],
], ids=" ".join)
def test_a_server_has_what_was_planned(options):
    threads = [] if "--threads" in options else ["--threads", "2"]
    planned = plan("-m", harness.MODEL, *options, *threads)
    with harness.started(*options) as server:
        assert accounts(server) == planned["accounts"]
        assert server.metrics().pages_total == planned["pool"]["pages"]
        assert server.max_model_len() == planned["pool"]["context"]
        assert server.metrics()("quire_memory_budget_bytes") == planned["memory_bytes"]
        assert f"steps of up to {planned['pool']['max_batch_tokens']} tokens" in server.log


def test_what_a_swap_file_adds():
    options = ["-m", harness.MODEL, "--memory", "512MiB", "--context", "2048", "--threads", "2"]
    without = plan(*options)
    assert without["swap"] is None
    swap = plan(*options, "--swap-dir", "/not/here", "--swap-bytes", "1GiB")
    pages = GIB // swap["kv"]["page_bytes"]
    assert swap["swap"] == {"pages": pages, "users": pages // (2048 // 16), "memory_bytes": swap["swap"]["memory_bytes"]}
    assert swap["users_fit"] == without["users_fit"]  # it holds nobody who runs
    more = swap["accounts"]["scratch"] - without["accounts"]["scratch"]
    assert 24 * pages < swap["swap"]["memory_bytes"] < 24 * pages + 2**14
    assert abs(more - swap["swap"]["memory_bytes"]) < 2**12  # fewer pages in the pool need smaller tables
    assert shlex.split(swap["start"])[-6:-2] == ["--swap-dir", "/not/here", "--swap-bytes", str(GIB)]
    text = run_quire("plan", "--no-measure", *options, "--swap-dir", "a b").stdout.decode()
    assert f"swap: {4 * GIB // swap['kv']['page_bytes']} pages of preempted sequences, room for " in text
    assert "--swap-dir 'a b' --threads 2" in text and "--swap-bytes" not in text
    done = run_quire("plan", "--no-measure", *options, "--swap-dir", "/tmp", "--swap-bytes", "1KiB")
    assert done.returncode == 1 and b"--swap-bytes is less than one page" in done.stderr and not done.stdout


@pytest.mark.sanitizer
def test_a_server_of_a_model_with_windows_has_what_was_planned():
    model = harness.made_up_models() / "gemma3.gguf"
    options = ["--memory", "100MiB", "--context", "200", "--page-size", "8"]
    planned = plan("-m", model, *options, "--threads", "2", "--users", 100)
    whole, window = planned["windows"]
    assert window["this"] and window["page_bytes"] < whole["page_bytes"] and window["user_bytes"] < whole["user_bytes"]
    with harness.started(*options, model=model) as server:
        assert accounts(server) == planned["accounts"]
        pages = server.request("GET", "/debug/memory").json["pages"]
        assert (pages["total"], pages["bytes"]) == (planned["pool"]["pages"], planned["kv"]["page_bytes"])


@pytest.mark.sanitizer
def test_what_is_refused_at_start_is_refused_in_the_plan():
    least = plan("-m", harness.MODEL, "--memory", "100MiB", "--context", "64", "--users", "1", code=1)["least_memory_bytes"]
    assert 100 * MIB < least < 300 * MIB and least % MIB == 0
    assert plan("-m", harness.MODEL, "--memory", least, "--context", "64", "--users", "1", code=0)
    with harness.started("--memory", str(least), "--context", "64") as server:
        assert server.max_model_len() == 64
    done = run_quire("serve", "-m", harness.MODEL, "--port", 0, "--memory", least - MIB, "--context", "64", "--threads", 2,
                     timeout=harness.patience(10))
    assert done.returncode == 1 and b"too small" in done.stderr


def test_the_command_that_is_printed_starts_that_server():
    planned = plan("-m", harness.MODEL, "--memory", "1000MiB", "--context", "1000", "--users", "20", "--threads", "2", code=0)
    words = shlex.split(planned["start"])
    assert words[:2] == ["quire", "serve"] and words[2] == "-m" and words[3] == harness.MODEL
    with harness.started(*words[4:]) as server:
        assert accounts(server) == planned["accounts"]


def together(server, count, tokens):
    """So many full sequences in one request, so that they grow side by side. How often one gave up
    its pages, and the most that ran at once."""
    prompts = [[10 + (i * 7 + j) % 80 for j in range(tokens // 2)] for i in range(count)]
    server.complete({"prompt": prompts, "max_tokens": tokens // 2, "ignore_eos": True})
    metrics = server.metrics()
    return metrics.preemptions, metrics("quire_step_sequences_max")


def test_as_many_users_as_were_planned_run_together():
    """With as many pages as were planned, and not with four fewer. (Prompts are computed one after the
    other: the first ends two steps of 16 tokens before the last, so two or three are never missed.)"""
    users, context = 3, 1024
    ask = ["-m", harness.tiny(), "--context", str(context), "--threads", "2", "--users", str(users), "--memory"]
    planned = plan(*ask, "100MiB")
    page, need = planned["kv"]["page_bytes"], planned["kv_bytes"]
    assert need == users * context // 16 * page
    # The budget at which the last page comes, to the byte.
    below, memory = planned["least_memory_bytes"] - MIB, planned["least_memory_bytes"]
    while memory - below > 1:
        middle = (below + memory) // 2
        below, memory = (below, middle) if plan(*ask, middle)["fits"] else (middle, memory)
    assert plan(*ask, memory, code=0)["pool"]["pages"] == users * context // 16
    with harness.started("--context", str(context), "--memory", str(memory), model=harness.tiny()) as server:
        assert together(server, users, context) == (0, users)
    with harness.started("--context", str(context), "--memory", str(memory - 4 * page), model=harness.tiny()) as server:
        assert server.metrics().pages_total == users * context // 16 - 4
        assert together(server, users, context)[0] > 0


# figures of textbooks


@pytest.mark.sanitizer
def test_textbook_figures():
    llama = numbers(80, 8, 128, "--heads", 64)
    at_4k = plan(*llama, "--context", 4096, "--users", 1, "--memory", "64GiB", code=0)
    assert at_4k["kv"]["token_bytes"] == 327_680                    # 0.3125 MiB
    assert at_4k["kv_bytes"] == pytest.approx(1.3e9, rel=0.05)
    at_128k = plan(*llama, "--context", 131_072, "--users", 1, "--memory", "64GiB", code=0)
    assert at_128k["kv_bytes"] == 40 * GIB == pytest.approx(43e9, rel=0.01)
    assert plan(*llama, "--context", 131_072, "--users", 1, "--memory", "40GiB", code=1)["missing_bytes"] > 0
    mha = plan(*numbers(32, 32, 128), "--kv-type", "bf16", "--context", 8192, "--users", 1, "--memory", "8GiB", code=0)
    assert mha["kv"]["token_bytes"] == 2**19 and mha["kv_bytes"] == 4 * GIB
    gqa = plan(*numbers(32, 8, 128, "--heads", 32), "--kv-type", "bf16", "--context", 8192, "--users", 1, "--memory", "8GiB", code=0)
    assert gqa["kv_bytes"] * 4 == mha["kv_bytes"]
    assert [row["user_bytes"] for row in gqa["head_counts"]] == [4 * GIB, GIB, GIB // 2, GIB // 8]


def test_types_and_their_capacity():
    rows = plan(*numbers(32, 8, 128), "--context", 8192, "--memory", "24GiB")["kv_types"]
    bits = {row["name"]: row["user_bytes"] * 8 // (2 * 32 * 8 * 128 * 8192 // 100) for row in rows}
    assert bits == {"f32": 3200, "f16": 1600, "bf16": 1600, "q8_0": 850, "q4_0": 450}     # hundredths of a bit
    users = [row["users"] for row in rows]
    assert users == sorted(users) and users[0] < users[1] == users[2] < users[3] < users[4]
    asked = plan(*numbers(32, 8, 128), "--context", 8192, "--memory", "24GiB", "--kv-type", "q4_0")
    assert asked["users"] == users[4] and asked["kv"]["type"] == "q4_0" and asked["start"] is None


def test_sliding_windows():
    """Gemma 3's: five layers of six see 512 tokens."""
    gemma = numbers(18, 1, 256, "--heads", 4, "--window", 512, "--window-layers", 15, "--context", 32_768, "--memory", "2GiB")
    whole, window = plan(*gemma)["windows"]
    assert whole["user_bytes"] == 32_768 * 18 * 1024
    assert window["user_bytes"] == (2048 + 5 * 33) * 16 * 3 * 1024
    assert window["users"] > 4 * whole["users"]


# what it says


def documented():
    """Each `quire plan` command of docs/memory.md with the lines that follow it there."""
    blocks, lines = [], None
    for line in (harness.ROOT / "docs/memory.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("    $ quire plan "):
            lines = []
            blocks.append((shlex.split(line)[3:], lines))
        elif lines is not None and line.startswith("    "):
            lines.append(line[4:])
        elif line:
            lines = None
    return blocks


@pytest.mark.parametrize("command, lines", documented(), ids=lambda v: " ".join(v)[:60] if "--context" in v else "")
def test_the_page_about_memory_says_what_the_program_says(command, lines):
    """What a token, a page and a user take, and the sentence as far as it is about them. What else a server
    holds changes now and then; there the page is an example."""
    said = run_quire("plan", "--no-measure", *[harness.MODEL if word.endswith(".gguf") else word for word in command],
                     timeout=60).stdout.decode().splitlines()
    checked = 0
    for line in lines:
        if line.startswith("| "):
            assert any(other.startswith(line.rsplit("|", 2)[0]) for other in said), line
        elif line.startswith(("yes: ", "no: ")):
            assert any(other.startswith(line.split(" beside ")[0] + " beside ") for other in said), line
        else:
            continue
        checked += 1
    assert checked, "nothing of it is shown"


def test_answers_in_one_sentence():
    ask = ["--heads", 32, "--weights", "4.6GiB", "--context", 8192, "--memory", "24GiB", "--users"]
    yes = run_quire("plan", "--no-measure", *numbers(32, 8, 128), *ask, 16)
    assert yes.returncode == 0 and yes.stderr == b""
    assert "\nyes: 16 users at 8,192 tokens need 16.0 GiB of KV beside 4.6 GiB of weights and " in yes.stdout.decode()
    assert " GiB are left\n" in yes.stdout.decode() and "memory budget\n" in yes.stdout.decode()
    no = run_quire("plan", "--no-measure", *numbers(32, 8, 128), *ask, 40)
    assert no.returncode == 1 and no.stderr == b""
    assert "\nno: 40 users at 8,192 tokens need 40.0 GiB" in no.stdout.decode()
    assert "what fits: 18 users at 8,192 tokens, or 40 users at " in no.stdout.decode()


def test_longer_than_the_model_was_trained_for():
    done = run_quire("plan", "--no-measure", "-m", harness.MODEL, "--context", 100_000, "--memory", "1GiB")
    assert done.returncode == 0 and b"trained for 8,192" in done.stdout and b"at 8,192 tokens" in done.stdout


def test_times():
    planned = plan("-m", harness.tiny(), "--memory", "1GiB", "--context", 2048, "--users", 8, measure=True)
    times = planned["times"]
    assert 1e8 < times["read_bytes_per_second"] < 1e13
    assert 0 < times["token_seconds"] < times["step_seconds"]
    short, whole = times["prompts"]
    assert short["tokens"] == 512 and whole["tokens"] == 2048 and 0 < short["seconds"] < whole["seconds"]
    text = run_quire("plan", "-m", harness.tiny(), "--memory", "1GiB", "--context", 2048, "--users", 8).stdout.decode()
    for line in ("a token of one user alone", "a token for each of 8 users", "a prompt of 512 tokens", "a prompt of 2,048 tokens"):
        assert line in text
    assert "without --weights no times" in run_quire("plan", *numbers(2, 2, 64), "--context", 64).stdout.decode()


@pytest.mark.long
def test_times_are_about_those_of_the_bench():
    """Both by the CPU time that they were given. What products and attention leave out, and waiting
    for each other, is at most as much again."""
    planned = plan("-m", harness.MODEL, "--memory", "2GiB", "--context", 320, "--users", 8, "--threads", 2, measure=True)
    bench = json.loads(run_quire("bench", "-m", harness.MODEL, "--json", "--threads", 2, "--batch-max", 8, timeout=300).stdout)
    rates = {(r["what"], r["batch"]): 2 * r["tokens_per_cpu_second"] for r in bench["results"]}
    times = planned["times"]
    assert 0.5 < times["token_seconds"] * rates["decode", 1] < 1.3
    assert 0.5 < times["step_seconds"] / 8 * rates["decode", 8] < 1.3
    prompt = times["prompts"][0]
    assert 0.5 < prompt["seconds"] / prompt["tokens"] * rates["prefill", 1] < 1.3


@pytest.mark.sanitizer
def test_drawing(tmp_path):
    path = tmp_path / "plan.svg"
    ask = [*numbers(32, 8, 128, "--heads", 32), "--weights", "4.6GiB", "--context", 8192, "--memory", "24GiB", "--svg", path]
    for users in (16, 40):
        plan(*ask, "--users", users)
        root = xml.etree.ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "budget 24.0 GiB" in texts and "KV pages of the users" in texts and "weights" in texts
        assert " ".join(texts).count(f"{users} users at 8,192 tokens") == 1
        bars = [float(r.get("width")) for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "64"]
        assert sum(bars) == pytest.approx(852, abs=1), "the parts are the whole"
    done = run_quire("plan", "--no-measure", *ask[:-1], tmp_path / "nowhere" / "plan.svg")
    assert done.returncode == 1 and b"--svg" in done.stderr and b"No such file" in done.stderr and done.stdout == b""


def test_a_hostile_name_in_every_form(tmp_path):
    data = bytearray(open(harness.tiny(), "rb").read())
    key = b"general.name"
    at = data.index(key) + len(key) + 4
    length = int.from_bytes(data[at:at + 8], "little")
    name = (b"<\"&\x1b[2J" + b"x" * length)[:length]
    data[at + 8:at + 8 + length] = name
    path = tmp_path / "it's a model.gguf"
    path.write_bytes(data)
    planned = plan("-m", path, "--memory", "1GiB", "--svg", tmp_path / "a.svg")
    assert planned["model"]["name"].startswith("<\"&\x1b[2J")
    assert shlex.split(planned["start"])[3] == str(path)
    text = run_quire("plan", "-m", path, "--memory", "1GiB", "--no-measure").stdout
    assert b"\x1b" not in text
    assert xml.etree.ElementTree.parse(tmp_path / "a.svg").getroot() is not None


# wrong questions


@pytest.mark.sanitizer
@pytest.mark.parametrize("arguments, hint", [
    ([], "which model"),
    (["--layers", 32], "--kv-heads"),
    (["--layers", 32, "--kv-heads", 8], "--head-dim"),
    (["--heads", 32], "--layers"),
    (numbers(32, 8, 128), "--context"),
    (numbers(32, 8, 100, "--context", 64), "--head-dim"),
    (numbers(32, 8, 128, "--context", 64, "--heads", 12), "--heads"),
    (numbers(32, 8, 128, "--context", 64, "--window", 12), "--window-layers"),
    (numbers(32, 8, 128, "--context", 64, "--window", 12, "--window-layers", 33), "--window-layers"),
    (numbers(0, 8, 128, "--context", 64), "--layers"),
    (["-m", "x.gguf", "--layers", 32], "--layers"),
    (["-m", "x.gguf", "--weights", "1GiB"], "--weights"),
    (["-m", "x.gguf", "--users", 0], "--users"),
    (["-m", "x.gguf", "--users", 20, "--max-seqs", 10], "--max-seqs 10"),
    (["-m", "x.gguf", "--kv-type", "q5_0"], "q8_0"),
    (["-m", "x.gguf", "--kv-type", "q8_0", "--backend", "openblas"], "--backend openblas"),
    (["-m", "x.gguf", "--memory", "much"], "--memory"),
    (["-m", "x.gguf", "--page-size", 17], "--page-size"),
    (["-m", "x.gguf", "--port", 80], "quire serve"),
    (["x.gguf", "y.gguf"], "y.gguf"),
])
def test_wrong_options(arguments, hint):
    done = run_quire("plan", *arguments, timeout=harness.patience(5))
    assert done.returncode == 2 and done.stdout == b"", done
    assert len(done.stderr.strip().splitlines()) == 1 and hint in done.stderr.decode(), done.stderr


def test_failures_say_why():
    done = run_quire("plan", "--no-measure", *numbers(32, 8, 80), "--context", 64, "--kv-type", "q8_0")
    assert done.returncode == 1 and b"--kv-type" in done.stderr and b"blocks of 32" in done.stderr and done.stdout == b""
    done = run_quire("plan", "-m", "/nonexistent.gguf")
    assert done.returncode == 1 and b"No such file" in done.stderr and done.stdout == b""


def test_numbers_win_over_a_model_in_the_environment():
    done = run_quire("plan", "--no-measure", *numbers(32, 8, 128), "--context", 64, environment={"QUIRE_MODEL": "x.gguf"})
    assert b"A synthetic model" in done.stdout
