"""Models whose layers see a window only: answers are the same bytes with and without the cache, in
other chunks and pages, among others and preempted; and what a long sequence holds is counted.

On the made-up Gemma 3 always (its window has 24 tokens); on the real one, whose path is
QUIRE_TEST_GEMMA, with the long tests.
"""

import os

import pytest

import harness

GEMMA = os.environ.get("QUIRE_TEST_GEMMA", "")
with_gemma = pytest.mark.skipif(not GEMMA, reason="QUIRE_TEST_GEMMA is not set")


def made_up_gemma():
    return str(harness.made_up_models() / "gemma3.gguf")


def ids(seed, count):
    """A prompt of so many tokens, none of them a control token of either model."""
    return [270 + (seed * 31 + i * 61 + i * i * 7) % 240 for i in range(count)]


def choices(answer):
    return answer["choices"], {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def bodies(length, max_tokens):
    """Prompts around `length`, of which some begin alike; drawn and greedy, alone and three at once."""
    common = {"max_tokens": max_tokens, "logprobs": 5, "ignore_eos": True}
    base = ids(1, length)
    return [
        {"prompt": base, "temperature": 0, **common},
        {"prompt": base, "temperature": 0.8, "seed": 5, "n": 3, **common},
        {"prompt": base[:length // 2] + ids(2, 9), "temperature": 0.8, "seed": 6, **common},
        {"prompt": base[:-3] + ids(3, 40), "temperature": 0, **common},
        {"prompt": ids(4, length // 3), "temperature": 0.8, "seed": 7, **common, "cache_prompt": False},
    ]


def check(model, asked, options, environment=None):
    """Each alone without a cache; then with it, twice, and all together, in differently set up servers."""
    with harness.started("--no-prefix-cache", model=model) as plain:
        expected = [choices(plain.complete(body)) for body in asked]
        longest = max(len(body["prompt"]) for body in asked)
    for option in options:
        with harness.started(*option.split(), model=model, environment=environment) as server:
            assert [choices(server.complete(body)) for body in asked] == expected, option
            again = [server.complete(body) for body in asked]
            assert [choices(answer) for answer in again] == expected, option
            # All but the last page's tokens were there, whatever has left the windows since.
            assert cached(again[0]) >= len(asked[0]["prompt"]) - 64 - 1
            assert cached(again[4]) == 0
            assert [choices(answer) for answer in server.together(asked)] == expected, option
            server.wait_idle()
            assert longest < server.max_model_len()


@pytest.mark.sanitizer
def test_a_made_up_model():
    check(made_up_gemma(), bodies(190, 40),
          ["", "--max-batch-tokens 7 --page-size 8", "--max-batch-tokens 64 --page-size 64 --threads 1"],
          {"QUIRE_TEST_CHECK_EVERY_STEP": "1"})


@pytest.mark.sanitizer
@pytest.mark.parametrize("every", [1, 5])
def test_preempted_in_the_midst_of_windows(every):
    check(made_up_gemma(), bodies(100, 30), ["--max-batch-tokens 64"],
          {"QUIRE_TEST_CHECK_EVERY_STEP": "1", "QUIRE_TEST_PREEMPT_EVERY": str(every)})


def held_while_answering(server, prompt, tokens):
    """Pages held after `tokens` tokens of the answer, when there were at most 300 more. On a busy machine the
    answer may have ended before the metrics were asked for: then again."""
    for _ in range(5):
        server.wait_idle()
        stream = server.stream({"prompt": prompt, "max_tokens": tokens + 300, "temperature": 0, "ignore_eos": True,
                                "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        chunks = stream.chunks()
        for _ in range(tokens):
            next(chunks, None)      # one may have several tokens
        metrics = server.metrics()
        stream.hang_up()
        server.wait_idle()
        if metrics.running == 1:
            return metrics.pages_total - metrics.pages_free
    raise AssertionError("five times the answer had ended before it was looked at")


def test_a_made_up_model_holds_its_windows_only():
    """Seven layers, one sees all: a group that grows and six of at most three pages (24 tokens in pages
    of 16), instead of seven that grow."""
    with harness.started("--page-size", 16, model=made_up_gemma()) as server:
        held = held_while_answering(server, ids(1, 600), 40)
        assert (600 + 20) // 16 + 6 * 2 <= held <= (600 + 340) // 16 + 1 + 6 * 3


# ---- Gemma 3 270M: 18 layers in six groups of three, five of them with a window of 512 ----

@pytest.mark.long
@with_gemma
def test_gemma_gives_the_same_bytes():
    """Prompts of three windows."""
    check(GEMMA, bodies(1500, 12), ["", "--max-batch-tokens 100 --page-size 8", "--threads 1 --page-size 64"])


@pytest.mark.long
@with_gemma
def test_gemma_holds_its_windows_only():
    """4,096 tokens. Six groups kept whole would hold 1,536 pages of 48 KiB: 72 MiB; these hold 20."""
    with harness.started("--memory", "600MiB", model=GEMMA) as server:
        held = held_while_answering(server, ids(1, 4096), 20)
        assert 4096 // 16 + 5 * 32 <= held <= (4096 + 320) // 16 + 1 + 5 * 33
        assert held < 1536 / 3
