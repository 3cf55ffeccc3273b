"""Our logits against the numpy reference, position by position.

Made-up models of every family and format run always. The real model runs when QUIRE_TEST_MODEL names
a GGUF file (SmolLM2). The tool is the one in QUIRE_BUILD, or QUIRE_LOGITS_TOOL.

The OpenBLAS backend computes with the same dequantised weights in f32, so it must agree closely: it
shows that the structure is right. The quantised backend rounds activations to 13 bits in blocks of
32 and keys and values to f16; what that costs is measured as KL divergence per position, and no
position may cost more than 0.01 nats. (With 8 bits, as others compute, the mean was 0.005 and the
worst 0.09, and texts parted where the best two logits were 0.2 apart.)
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import make_models  # noqa: E402
from reference import Reference  # noqa: E402

BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", "build"))
TOOL = os.environ.get("QUIRE_LOGITS_TOOL", str(BUILD / "tests/engine/model/logits_tool"))
MODEL = os.environ.get("QUIRE_TEST_MODEL", "")

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small machine that",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nList three colours."
    "<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4, 5, 6, 7,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "#include <stdio.h>\n\nint main(void)\n{\n    printf(",
    "In 1492, Columbus sailed across the Atlantic Ocean and reached",
    "Water boils at 100 degrees Celsius because",
    "Dear Sir or Madam,\n\nI am writing to",
    "La capitale de la France est Paris. La capitale de l'Espagne est",
    "SELECT name, age FROM people WHERE age >",
    '{"name": "Alice", "age": 30, "city":',
    "A quire is a gathering of sheets folded together, and a book is sewn from many quires. The printer"
    " counts the sheets, the binder keeps the order, and the reader turns the pages one after another.",
    "Photosynthesis is the process by which plants",
    "Q: If I have 3 apples and buy 4 more, how many do I have?\nA:",
    "The mitochondria is the powerhouse of the",
    "To be, or not to be, that is the",
    "Machine learning is a field of study in artificial intelligence concerned with the development of"
    " statistical algorithms that can learn from data and generalise to unseen data, and thus",
]


def run_tool(path, prompts, *arguments):
    """Logits of each prompt, one array per prompt; with "--last", N of its N last positions."""
    text = "".join(" ".join(map(str, tokens)) + "\n" for tokens in prompts)
    done = subprocess.run([TOOL, str(path), *map(str, arguments)], input=text.encode(),
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    last = arguments[arguments.index("--last") + 1] if "--last" in arguments else None
    counts = [min(len(tokens), last or len(tokens)) for tokens in prompts]
    flat = np.frombuffer(done.stdout, "<f4").reshape(sum(counts), -1)
    return np.split(flat, np.cumsum(counts)[:-1])


def log_softmax(logits):
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergence(wanted, got):
    """KL(wanted ‖ got) of each position, in nats."""
    p, q = log_softmax(wanted), log_softmax(got)
    return (np.exp(p) * (p - q)).sum(axis=1)


def assert_same_choice(wanted, got, margin):
    """The same best token, or one whose reference logit is within `margin` of the best."""
    rows = np.arange(len(wanted))
    behind = wanted.max(axis=1) - wanted[rows, got.argmax(axis=1)]
    assert behind.max() <= margin, f"position {behind.argmax()}: {behind.max():.3f} behind the best"


def made_up_prompts(vocabulary, seed):
    rng = np.random.default_rng(seed)
    return [list(map(int, rng.integers(0, vocabulary, n))) for n in (1, 2, 17, 70)]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return make_models.make(tmp_path_factory.mktemp("models"))


NAMES = [model.name for model in make_models.MODELS]
CONTEXT = 1024  # above the made-up longrope model's original 512


@pytest.mark.parametrize("name", NAMES)
def test_openblas_is_the_reference(models, name):
    reference = Reference(models[name], CONTEXT)
    prompts = made_up_prompts(500, 1)
    results = run_tool(models[name], prompts, "--backend", "openblas", "--context", CONTEXT,
                       "--chunk", 9, "--page-size", 8, "--threads", 2)
    for tokens, got in zip(prompts, results):
        wanted = reference.logits(tokens)
        assert np.abs(wanted - got).max() <= 1e-3 * max(1.0, np.abs(wanted).max())
        assert divergence(wanted, got).max() <= 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_quantized_is_close(models, name):
    reference = Reference(models[name], CONTEXT)
    prompts = made_up_prompts(500, 2)
    results = run_tool(models[name], prompts, "--context", CONTEXT, "--chunk", 33, "--threads", 2)
    kl = np.concatenate([divergence(reference.logits(tokens), got)
                         for tokens, got in zip(prompts, results)])
    assert kl.max() <= 0.01


# ---- The real model ----


@pytest.fixture(scope="session")
def real():
    if not MODEL:
        pytest.skip("QUIRE_TEST_MODEL is not set")
    return Reference(MODEL)


@pytest.fixture(scope="session")
def encoder(real):
    """Hugging Face's tokenizer over the file's vocabulary."""
    from tokenizers import Regex, Tokenizer, models as kinds, pre_tokenizers

    texts = real.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in real.value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(kinds.BPE(vocab={t: i for i, t in enumerate(texts)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    types = real.value("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([text for text, kind in zip(texts, types) if kind == 3])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="session")
def wanted(real, encoder):
    prompts = [encoder(text) for text in PROMPTS]
    return prompts, [real.logits(tokens) for tokens in prompts]


def test_real_openblas(wanted):
    prompts, expected = wanted
    for reference, got in zip(expected, run_tool(MODEL, prompts, "--backend", "openblas",
                                                 "--threads", 2)):
        assert divergence(reference, got).max() <= 1e-6
        assert_same_choice(reference, got, 1e-3)


def test_real_quantized(wanted):
    prompts, expected = wanted
    kl = np.concatenate([divergence(reference, got) for reference, got in
                         zip(expected, run_tool(MODEL, prompts, "--threads", 2))])
    print(f"KL over {len(kl)} positions: mean {kl.mean():.5f}, 99th percentile "
          f"{np.quantile(kl, 0.99):.4f}, worst {kl.max():.4f}")
    assert kl.max() <= 0.01


def greedy(prompts, count, *arguments):
    text = "".join(" ".join(map(str, tokens)) + "\n" for tokens in prompts)
    done = subprocess.run([TOOL, MODEL, "--greedy", str(count), "--threads", "2", *arguments],
                          input=text.encode(), capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return [list(map(int, line.split())) for line in done.stdout.decode().splitlines()]


def gaps_where_texts_part(real, prompts, texts):
    """How far the reference's best logit is ahead where a text first leaves its choice."""
    gaps = []
    for tokens, text in zip(prompts, texts):
        rows = real.logits(tokens + text)[len(tokens) - 1 : -1]
        parted = np.flatnonzero(rows.argmax(axis=1) != np.array(text))
        if len(parted) > 0:
            row = rows[parted[0]]
            gaps.append(float(row.max() - row[text[parted[0]]]))
    print(f"{len(prompts) - len(gaps)} of {len(prompts)} texts agree, the others part at gaps of "
          f"{sorted(round(gap, 3) for gap in gaps)}")
    return gaps


def test_real_greedy_texts_openblas(real, wanted):
    """The float backend's texts are the reference's but for ties."""
    prompts, _ = wanted
    gaps = gaps_where_texts_part(real, prompts, greedy(prompts, 16, "--backend", "openblas"))
    assert max(gaps, default=0.0) <= 0.1


def test_real_greedy_texts(real, wanted):
    """Texts agree with the reference's, or part where its two best logits are close together."""
    prompts, _ = wanted
    gaps = gaps_where_texts_part(real, prompts, greedy(prompts, 32))
    assert max(gaps, default=0.0) <= 0.1


# ---- Gemma 3 (QUIRE_TEST_GEMMA): windows, two RoPE bases, K-quants, as a real file has them ----

GEMMA = os.environ.get("QUIRE_TEST_GEMMA", "")
WORDS = "The ▁capital ▁of ▁France ▁is ▁Paris . ▁The ▁capital ▁of ▁Germany ▁is ▁Berlin . ▁The ▁capital"


@pytest.mark.skipif(not GEMMA, reason="QUIRE_TEST_GEMMA is not set")
def test_real_gemma():
    reference = Reference(GEMMA)
    ids = {text: i for i, text in enumerate(reference.value("tokenizer.ggml.tokens"))}
    sentence = [ids[word] for word in WORDS.split()]
    tokens = [2] + sentence * 36  # beyond the window of 512
    last = 2 * len(sentence)
    expected = reference.logits(tokens, last)
    assert ids["▁Berlin"] in expected.argmax(axis=1)
    (exact,) = run_tool(GEMMA, [tokens], "--backend", "openblas", "--threads", 2, "--last", last)
    assert divergence(expected, exact).max() <= 1e-6
    (got,) = run_tool(GEMMA, [tokens], "--threads", 2, "--last", last)
    assert divergence(expected, got).max() <= 0.01
