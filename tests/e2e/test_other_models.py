"""The other packaged models through the server and the commands: Gemma 3 270M in ./test, Qwen2.5-Coder-1.5B in
./test full. That their numbers are right is shown in tests/reference; here that they answer, chat, and answer
the same however they are served."""

import json
import re

import pytest

import harness
from harness import CHAT, gemma, qwen, run_quire

TEMPLATE = harness.ROOT / "tests/api/templates/gemma3.jinja"
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
            "max_tokens": 12}
LONG_TEXT = " ".join(f"Line {number} of the list is about page {number * 7 % 100}." for number in range(1, 46))
BODY = {"prompt": LONG_TEXT, "max_tokens": 8, "temperature": 0, "logprobs": 3}


def run_json(*arguments, timeout=600):
    done = run_quire(*arguments, "--json", "--log-level", "error", timeout=timeout)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


# Gemma


def test_gemma_chats_only_with_a_template():
    """The file holds none, and none is made up for it."""
    answer = gemma().post(QUESTION, CHAT)
    assert answer.status == 400 and "--chat-template FILE" in answer.error["message"]
    server = gemma("--chat-template", TEMPLATE)
    chat = server.complete(QUESTION, CHAT)
    # (To be taken at its word the model is too small and too coarsely quantised: llama.cpp's answer is as odd.)
    assert chat["choices"][0]["message"]["content"].startswith("What is the capital of France?")
    # What the template wrote, BOS once: the same text as a raw prompt, which gets its BOS from the tokenizer.
    raw = "<start_of_turn>user\nWhat is the capital of France?<end_of_turn>\n<start_of_turn>model\n"
    same = server.complete({"prompt": raw, "temperature": 0, "max_tokens": 12})
    assert same["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"] == 16
    assert same["choices"][0]["text"] == chat["choices"][0]["message"]["content"]


def served_in_many_ways(model, others):
    """An answer alone, from the cache, among others, and of servers that cut it otherwise: the same bytes."""
    server = model()
    alone = server.complete({**BODY, "cache_prompt": False})
    again = server.complete(BODY)
    cached = server.complete(BODY)
    assert cached["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    beside = server.together([BODY, *({"prompt": f"Number {i}:", "max_tokens": 8} for i in range(3))])[0]
    answers = [alone, again, cached, beside, *(model(*options).complete(BODY) for options in others)]
    assert all(answer["choices"] == alone["choices"] for answer in answers)
    return alone["usage"]["prompt_tokens"]


def test_gemma_answers_with_the_same_bytes():
    kernels = ("--kernels", "avx2") if "kernels: avx512" in gemma().log else ()
    others = [("--page-size", "32", "--max-batch-tokens", "48", "--threads", "1", *kernels)]
    assert served_in_many_ways(gemma, others) > 600  # beyond the window of 512


def test_gemma_is_proven():
    proof = run_json("prove", "-m", harness.packaged("QUIRE_TEST_GEMMA"), "--tokens", 24, "--batch", 3)
    assert proof["differing_bits"] == 0
    assert [way["projections"] for way in proof["ways"]] == [300, 24, 24]


# Qwen


@pytest.mark.long
def test_qwen_answers():
    server = qwen()
    assert "Paris" in server.complete(QUESTION, CHAT)["choices"][0]["message"]["content"]
    text = server.text("def is_even(n):\n    return n %", temperature=0, max_tokens=6)
    assert re.match(r" 2 == 0", text), text
    assert served_in_many_ways(qwen, [("--page-size", "8", "--max-batch-tokens", "33", "--threads", "1")]) > 600


@pytest.mark.long
def test_qwen_is_proven():
    proof = run_json("prove", "-m", harness.packaged("QUIRE_TEST_QWEN"), "--tokens", 5, "--batch", 2)
    assert proof["differing_bits"] == 0
    assert [way["projections"] for way in proof["ways"]] == [15, 5, 5]
