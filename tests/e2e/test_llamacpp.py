"""Greedy answers beside llama.cpp's on the same file: the same tokens, or parting where it is close.

llama.cpp quantises activations in other groups and sums in another order, so its logits differ a little.
Where the answers part, its token must be nearly as likely to us as ours.
"""

import re
import sys

import pytest

import harness
from harness import gemma, qwen

sys.path.insert(0, str(harness.ROOT / "tests/reference"))
from llamacpp import LlamaCpp  # noqa: E402

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "The three primary colours are",
    "Water boils at",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "SELECT name FROM users WHERE",
    "En un lugar de la Mancha,",
    "Question: What is the largest planet?\nAnswer:",
]
TOKENS = 16
CLOSE = 0.5  # nats between our best token and llama.cpp's where they part


ENDS = ("<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<eos>")  # llama.cpp gives them no text


@pytest.fixture(scope="module")
def llamacpp():
    pytest.importorskip("xllamacpp")
    with LlamaCpp(harness.MODEL) as running:
        yield running.post


def their_tokens(llamacpp, prompt):
    answer = llamacpp("/completion", {"prompt": prompt, "temperature": 0, "n_predict": TOKENS, "n_probs": 1,
                                      "cache_prompt": False})
    return [entry["token"] for entry in answer["completion_probabilities"]], answer["tokens_evaluated"]


def agreed_tokens(server, llamacpp, prompt):
    """How many tokens of the two answers agree before they part, which must be where it is close."""
    theirs, count = their_tokens(llamacpp, prompt)
    answer = server.complete({"prompt": prompt, "temperature": 0, "max_tokens": TOKENS, "logprobs": 5})
    ours = answer["choices"][0]["logprobs"]
    assert answer["usage"]["prompt_tokens"] == count
    for index, (mine, other) in enumerate(zip(ours["tokens"], theirs)):
        if mine == other or (mine in ENDS and other == ""):
            continue
        top = ours["top_logprobs"][index]
        other = other or next(end for end in ENDS if end in top)
        assert other in top, (prompt, index, other, top)
        assert top[mine] - top[other] <= CLOSE, (prompt, index, other, top)
        return index
    return TOKENS


def assert_greedy_answers_agree(server, llamacpp, prompts):
    agreed = sum(agreed_tokens(server, llamacpp, prompt) for prompt in prompts)
    assert agreed >= len(prompts) * TOKENS // 2, "they part early too often"


def test_greedy_answers_beside_llamacpp(server, llamacpp):
    assert_greedy_answers_agree(server, llamacpp, PROMPTS)


@pytest.mark.parametrize("model", [gemma, pytest.param(qwen, marks=pytest.mark.long)])
def test_greedy_answers_of_other_models_beside_llamacpp(model):
    pytest.importorskip("xllamacpp")
    server = model()
    with LlamaCpp(server.model) as running:
        assert_greedy_answers_agree(server, running.post, PROMPTS[:6])


def test_chat_prompts_are_as_long_as_llamacpps(server, llamacpp):
    for messages in ([{"role": "user", "content": "Hi"}],
                     [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How are you?"}],
                     [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]):
        body = {"messages": messages, "max_tokens": 1, "temperature": 0}
        theirs = llamacpp(harness.CHAT, body)["usage"]["prompt_tokens"]
        assert server.complete(body, harness.CHAT)["usage"]["prompt_tokens"] == theirs


def test_tokens_are_llamacpps(llamacpp):
    """The ids themselves, asked of our tokenizer through echo of theirs: each text comes back whole and
    counts as many."""
    server = harness.shared()
    for text in ("1234567", "3.14159", "a1b22c333", "foo\n\n\n  bar", "   x", "\t\t\n ", "don't DON'T", "!!!???", "A\u00a0B",
                 "\u200b", "👨‍👩‍👧‍👦", "\ufeff", "\u3000", "\u0085", "🇫🇷", "é", "e\u0301", "日本語のテキスト", "Привет, мир", "x" * 300):
        ids = llamacpp("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]
        fields = {"max_tokens": 4, "temperature": 0, "echo": True, "cache_prompt": False}
        by_ids = server.complete({"prompt": ids, **fields})
        by_text = server.complete({"prompt": text, **fields})
        assert by_ids["usage"] == by_text["usage"], text
        assert by_ids["choices"] == by_text["choices"], text
        assert re.match(re.escape(text), by_ids["choices"][0]["text"])
