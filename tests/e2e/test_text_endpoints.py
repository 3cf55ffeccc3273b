"""POST /tokenize and /detokenize: what the other endpoints count, and back to the same text."""
import pytest

import harness
from harness import CHAT, COMPLETIONS

TEXTS = ["Hello, world!", " two  blanks ", "naïve café — 漢字 😀\n\tend", "x" * 500, "<|im_start|>user"]


def tokens_of(server, **fields):
    answer = server.post(fields, "/tokenize")
    assert answer.status == 200, answer.body
    assert answer.json["count"] == len(answer.json["tokens"])
    return answer.json


@pytest.fixture(scope="module", params=["smollm2", "tiny"])
def served(request):
    return harness.shared() if request.param == "smollm2" else harness.shared(model=harness.tiny())


@pytest.mark.parametrize("text", TEXTS)
def test_there_and_back(served, text):
    ids = tokens_of(served, prompt=text, add_special_tokens=False)["tokens"]
    back = served.post({"tokens": ids}, "/detokenize").json
    assert back["prompt"] == back["content"] == text
    assert tokens_of(served, content=text)["tokens"] == ids, "llama.cpp's field adds nothing"


@pytest.mark.parametrize("text", TEXTS)
def test_it_is_what_the_endpoints_count(served, text):
    answer = served.post({"prompt": text, "max_tokens": 1}, COMPLETIONS).json
    assert answer["usage"]["prompt_tokens"] == tokens_of(served, prompt=text)["count"]
    messages = [{"role": "user", "content": text}]
    answer = served.post({"messages": messages, "max_tokens": 1}, CHAT)
    if answer.status == 200:
        assert answer.json["usage"]["prompt_tokens"] == tokens_of(served, messages=messages)["count"]
    else:
        refused = served.post({"messages": messages}, "/tokenize")
        assert (refused.status, refused.json) == (answer.status, answer.json)


def test_user_text_is_no_control_token():
    server = harness.shared()
    own = tokens_of(server, prompt="<|im_end|>", add_special_tokens=False)["tokens"]
    plain = tokens_of(server, prompt="<|im_end|>", add_special_tokens=False, parse_special=False)["tokens"]
    chat = tokens_of(server, messages=[{"role": "user", "content": "<|im_end|>"}])["tokens"]
    assert len(own) == 1 and len(plain) > 1 and chat.count(own[0]) == tokens_of(
        server, messages=[{"role": "user", "content": "x"}])["tokens"].count(own[0])


def test_texts_of_tokens():
    server = harness.shared()
    answer = tokens_of(server, prompt="ab cd", return_token_strs=True)
    assert "".join(answer["token_strs"]) == "ab cd" and answer["max_model_len"] == server.max_model_len()
    pieces = tokens_of(server, content="ab cd", with_pieces=True)["tokens"]
    assert "".join(p["piece"] for p in pieces) == "ab cd" and [p["id"] for p in pieces] == answer["tokens"]


def test_longer_than_the_context(served):
    assert tokens_of(served, prompt="word " * 20_000)["count"] > 8192


@pytest.mark.parametrize("path, body, param", [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"), ("/tokenize", {"prompt": ["a"]}, "prompt"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ("/tokenize", {"messages": []}, "messages"), ("/tokenize", {"prompt": "a", "return_token_strs": "x"}, "return_token_strs"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [10**9]}, "tokens"), ("/detokenize", {"tokens": [1.5]}, "tokens"),
])
def test_bad_fields(path, body, param):
    answer = harness.shared().post(body, path)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_unknown_model_and_empty_text():
    server = harness.shared()
    assert server.post({"model": "nobody", "prompt": "a"}, "/tokenize").status == 404
    assert tokens_of(server, prompt="", add_special_tokens=False)["tokens"] == []
    assert server.post({"tokens": []}, "/detokenize").json["prompt"] == ""
