"""One arithmetic: the same request gives the same bytes, whatever else is going on in whichever server.

The reference is each request alone on a server with the defaults. Then it is asked again: among 31
others, in servers that chunk, thread and page differently, that run other kernels, that find the
prompt in the cache or have none, and that preempt. Text, log-probabilities, finish reasons and usage
must be equal to the last digit.
"""

import functools

import pytest

import harness


def choices(answer):
    return answer["choices"], {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}


def requests(long_words, max_tokens):
    """Greedy and drawn, short and longer than a chunk, with all that changes the draw."""
    greedy = {"temperature": 0, "logprobs": 5, "max_tokens": max_tokens, "ignore_eos": True}
    drawn = {**greedy, "temperature": 0.8, "seed": 42}
    long = harness.words(1, long_words)
    return [
        {"prompt": "The capital of France is", **greedy},
        {"prompt": "The capital of France is", **drawn},
        {"prompt": long, **greedy},
        {"prompt": long, **drawn, "seed": 2**40 + 1},
        {"prompt": long + " and then", **drawn, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
        {"prompt": "x", **drawn, "n": 4, "presence_penalty": 1, "frequency_penalty": 0.5},
        {"prompt": harness.words(2, long_words // 3), **drawn, "repetition_penalty": 1.3},
        {"prompt": ["One", "Two", "Three"], **drawn},
        {"prompt": [5] * 33, **greedy},
        {"prompt": harness.words(3, 9), **drawn, "cache_prompt": False},
    ]


def others(count, max_tokens):
    """Company: prompts of many lengths that nobody looks at."""
    return [{"prompt": harness.words(100 + i, 1 + i * 7 % 60), "max_tokens": 1 + i * 5 % max_tokens,
             "temperature": i % 3 * 0.5, "seed": i} for i in range(count)]


def check_same(server, bodies, expected, company):
    """All of `bodies` at once, with so many others that there are 32 in all."""
    answers = server.together(bodies + others(company, 24))[:len(bodies)]
    for body, answer, alone in zip(bodies, answers, expected):
        assert choices(answer) == alone, body


SMOLLM = requests(long_words=90, max_tokens=16)
MADE_UP = requests(long_words=180, max_tokens=40)


@functools.cache
def alone(model):
    server = harness.shared(model=model) if model else harness.shared()
    return [choices(server.complete(body)) for body in (MADE_UP if model else SMOLLM)]


@pytest.mark.sanitizer
def test_requests_of_the_reference_differ(tiny):
    """The comparison would be worth nothing if all answers were alike."""
    texts = [c["text"] for answer, _ in alone(harness.tiny()) for c in answer]
    assert len(set(texts)) == len(texts) == 15


@pytest.mark.sanitizer
def test_among_31_others_on_a_made_up_model(tiny):
    check_same(tiny, MADE_UP, alone(harness.tiny()), 32 - len(MADE_UP))


def test_among_31_others(server):
    alone(None)
    before = server.metrics()
    check_same(server, SMOLLM, alone(None), 32 - len(SMOLLM))
    after = server.metrics()
    steps = after("quire_steps_total") - before("quire_steps_total")
    tokens = after("vllm:generation_tokens_total") - before("vllm:generation_tokens_total")
    assert tokens > steps, "they were really computed together"    # on a busy machine not all are at the same time


# Pairs of options: each value of each meets each value of the others at least once.
OPTIONS = [
    ("--threads 1 --max-batch-tokens 1 --page-size 8", 12),
    ("--threads 2 --max-batch-tokens 1 --page-size 64 --no-prefix-cache", 0),
    ("--threads 3 --max-batch-tokens 7 --page-size 16", 22),
    ("--threads 1 --max-batch-tokens 7 --page-size 32 --no-prefix-cache", 22),
    ("--threads 2 --max-batch-tokens 64 --page-size 8 --kernels avx2", 22),
    ("--threads 3 --max-batch-tokens 64 --page-size 64 --kernels scalar", 22),
    ("--threads 1 --max-batch-tokens 512 --page-size 64 --kernels avx512", 22),
    ("--threads 3 --max-batch-tokens 512 --page-size 32 --no-prefix-cache --kernels scalar", 22),
    ("--threads 2 --max-batch-tokens 7 --page-size 32 --max-seqs 2 --kernels avx512", 22),
    ("--threads 3 --max-batch-tokens 1 --page-size 16 --max-seqs 1 --kernels avx2", 0),
]


def has_kernels(options):
    """Can this machine run them? What it cannot run is refused at start, which another test shows."""
    wanted = options.partition("--kernels ")[2].split(" ")[0]
    flags = open("/proc/cpuinfo").read().split("flags")[-1].split()
    return {"avx2": "avx2" in flags, "avxvnni": "avx_vnni" in flags, "avx512": "avx512_vnni" in flags}.get(wanted, True)


@pytest.mark.parametrize("options, company", OPTIONS)
def test_options_on_a_made_up_model(options, company):
    if not has_kernels(options):
        pytest.skip("this machine has no such instructions")
    with harness.started(*options.split(), model=harness.tiny()) as server:
        check_same(server, MADE_UP, alone(harness.tiny()), company)
        check_same(server, MADE_UP[::-1], alone(harness.tiny())[::-1], 0)


@pytest.mark.parametrize("options", [
    "--threads 1 --max-batch-tokens 7 --page-size 8 --kernels avx2",
    "--threads 3 --max-batch-tokens 64 --page-size 64 --no-prefix-cache",
    "--threads 2 --max-seqs 3 --page-size 32 --kernels avx512",
])
def test_options(options):
    if not has_kernels(options):
        pytest.skip("this machine has no such instructions")
    with harness.started(*options.split()) as server:
        check_same(server, SMOLLM[:6], alone(None)[:6], 8)


@pytest.mark.sanitizer
@pytest.mark.parametrize("kv_type", ["f32", "bf16", "q8_0", "q4_0"])
def test_kv_types_on_a_made_up_model(kv_type):
    """Another type has other answers than f16, but the same ones everywhere."""
    bodies = MADE_UP[1:5]
    with harness.started("--kv-type", kv_type, model=harness.tiny()) as server:
        expected = [choices(server.complete(body)) for body in bodies]
        check_same(server, bodies, expected, 12)
        labels = [s.labels for s in server.metrics().samples if s.name == "quire_build_info"]
        assert labels[0]["kv_type"] == kv_type and f"in {kv_type}," in server.log
    assert all(a != b for a, b in zip(expected, alone(harness.tiny())[1:5]))
    options = "--threads 3 --max-batch-tokens 7 --page-size 64 --kernels scalar --kv-type"
    environment = {"QUIRE_TEST_PREEMPT_EVERY": "5", "QUIRE_TEST_CHECK_EVERY_STEP": "1"}
    with harness.started(*options.split(), kv_type, model=harness.tiny(), environment=environment) as server:
        check_same(server, bodies, expected, 3)
        assert server.metrics().preemptions > 0


def test_scalar_kernels_agree():
    """The specification itself is slow: a short prompt, few tokens."""
    body = {**SMOLLM[1], "max_tokens": 3}
    expected = choices(harness.shared().complete(body))
    with harness.started("--kernels", "scalar") as server:
        assert choices(server.complete(body)) == expected


def test_cached_prompts_change_nothing(server):
    """The second time most of the prompt comes from the cache; the third time it may not."""
    body = {"prompt": harness.words(77, 120), "max_tokens": 12, "temperature": 0.8, "seed": 3, "logprobs": 5}
    fresh = server.complete(body)
    cached = server.complete(body)
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    found = cached["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 64 <= found < fresh["usage"]["prompt_tokens"]
    assert choices(cached) == choices(fresh)
    again = server.complete({**body, "cache_prompt": False})
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert choices(again) == choices(fresh)
    longer = server.complete({**body, "prompt": body["prompt"] + " more"})
    assert longer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    with harness.started("--no-prefix-cache") as other:
        assert choices(other.complete(body)) == choices(fresh)
        assert choices(other.complete({**body, "prompt": body["prompt"] + " more"})) == choices(longer)


@pytest.mark.sanitizer
def test_preempted_answers_are_the_same():
    """A pool for a few of them: others are preempted and end with the same bytes. B66, B67"""
    reference = harness.shared(model=harness.tiny())
    bodies = [{"prompt": harness.words(i, 60), "max_tokens": 220, "temperature": i % 2 * 0.8, "seed": i,
               "logprobs": 2, "ignore_eos": True, "stop": ["never said by chance"]} for i in range(16)]
    expected = [choices(reference.complete(body)) for body in bodies]
    server = harness.small_pool()
    with server.unharmed():
        before = server.metrics()
        answers = server.together(bodies)
        after = server.metrics()
        assert [choices(a) for a in answers] == expected
        assert after.preemptions > before.preemptions, "the pool was too large for this test"
        assert after.preemptions - before.preemptions <= 3 * len(bodies)


@pytest.mark.parametrize("every", [1, 5])
def test_preempted_at_every_step(every):
    """A hook for tests takes the pages of one sequence away at every n-th step, wherever it is."""
    environment = {"QUIRE_TEST_PREEMPT_EVERY": str(every), "QUIRE_TEST_CHECK_EVERY_STEP": "1"}
    with harness.started("--max-batch-tokens", 64, model=harness.tiny(), environment=environment) as server:
        check_same(server, MADE_UP, alone(harness.tiny()), 6)
        assert server.metrics().preemptions >= 10 / every


def test_preempted_streams_are_the_same():
    reference = harness.shared(model=harness.tiny())
    bodies = [{"prompt": harness.words(50 + i, 60), "max_tokens": 220, "temperature": 0.8, "seed": i,
               "ignore_eos": True} for i in range(8)]
    expected = [reference.complete(body)["choices"][0]["text"] for body in bodies]
    server = harness.small_pool()
    before = server.metrics().preemptions
    streams = [server.stream(body) for body in bodies]
    texts = ["".join(c["choices"][0]["text"] for c in stream.chunks()) for stream in streams]
    assert texts == expected
    assert server.metrics().preemptions > before


def test_a_restart_changes_nothing(tiny):
    with harness.started(model=harness.tiny()) as server:
        assert [choices(server.complete(body)) for body in MADE_UP] == alone(harness.tiny())


@pytest.mark.long
def test_every_option_with_every_other():
    """The full product, on a made-up model."""
    for threads in (1, 2, 3):
        for batch in (1, 7, 64, 512):
            for page in (8, 16, 32, 64):
                for kernels in ("scalar", "avx2", "avxvnni", "avx512"):
                    for cache in ("", "--no-prefix-cache"):
                        options = (f"--threads {threads} --max-batch-tokens {batch} --page-size {page} "
                                   f"{cache} --kernels {kernels}")
                        if has_kernels(options):
                            with harness.started(*options.split(), model=harness.tiny()) as server:
                                check_same(server, MADE_UP, alone(harness.tiny()), 22)
