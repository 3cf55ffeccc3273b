"""What requests may ask for, row by row: refused with the field's name, or answered. CASES 4 and 5.

The tables run on a made-up model; after each row the server must be as it was before.
"""

import json

import pytest

import harness
from harness import CHAT, COMPLETIONS


def row(name, path, fields, status=400, param=None, code=None, marks=()):
    return pytest.param(path, fields, status, param, code, id=name, marks=marks)


def completion(name, status=400, param=None, code=None, **fields):
    return row(name, COMPLETIONS, {"prompt": "ab", "max_tokens": 2, "temperature": 0, **fields}, status,
               param, code)


def chat(name, messages, status=400, param="messages", **fields):
    return row(name, CHAT, {"messages": messages, "max_tokens": 2, "temperature": 0, **fields}, status,
               param if status != 200 else None)


def user(content):
    return [{"role": "user", "content": content}]


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

TYPES = [
    completion(f"{field}={value!r}", param=field, **{field: value})
    for field, values in {
        "max_tokens": ["10", -2, 1.5, -1e18, [], {}, True],
        "temperature": ["1", -1, True, [], "NaN", "Infinity"],
        "top_p": ["1", -1e-9, 1.0001, {}],
        "min_p": ["0", -1, 1.5],
        "top_k": ["1", 1.5, -2, True, 1e18],
        "n": [0, -1, 129, 1e9, "1", 1.5],
        "best_of": [0, 1e9, "x", 129],
        "priority": [1.5, "high", True, 2**31, -2**31 - 1, []],
        "timeout": [0, -1, 86401, "10", True, 1e300],
        "logprobs": [-1, 1e9, "x", 21],
        "seed": ["x", 1.5, 1e300, True, [], 2**64],
        "presence_penalty": [-2.1, 2.1, "x"],
        "frequency_penalty": [-2.1, 2.1, "x"],
        "repetition_penalty": [0, -1, "x"],
        "stop": [["a"] * 33, 5, [5], [None], {}, "s" * 1_000_000],
        "typical_p": [-0.1, 1.1, "x"],
        "top_n_sigma": ["x", []],
        "min_keep": [-1, 1.5, "x"],
        "min_tokens": [-1, 1.5, "x"],
        "stop_token_ids": [5, ["a"], [-1], [512], [1] * 33, [1.5]],
        "allowed_token_ids": [[], 5, ["a"], [512]],
        "bad_words": ["x", [5], [""], ["x"] * 129],
        "include_stop_str_in_output": [1, "x"],
        "skip_special_tokens": [1, "x"],
        "truncate_prompt_tokens": [0, -2, "x", 1.5],
        "truncation_side": ["up", 5],
        "n_predict": ["x", -3],
        "repeat_penalty": [0, "x"],
        "stream": ["true", 1, []],
        "stream_options": [{"include_usage": True}, 5, "x"],
        "logit_bias": [[], "x", {"-1": 1}, {"a": 1}, {"512": 1}, {"1e2": 1}, {"0": "x"}, {"0": 101},
                       {"0": -101}, {"": 1}, {"99999999999999999999": 1}],
        "echo": ["x", 1],
        "ignore_eos": ["x", 1],
        "user": [5, []],
        "model": [5, [], {}],
    }.items()
    for value in values
]

PROMPTS = [
    completion(f"prompt={value!r}"[:60], param="prompt", prompt=value)
    for value in [None, 5, True, {}, [], "", [""], [[]], ["a", 5], [5, "a"], [1.5], [-1], [True], [None],
                  [[1], "a"], [[1], [2.5]], [[1], []], [[[1]]], [512], [4294967296], [1e300], [{}],
                  ["a"] * 129]
]

UNSUPPORTED = [
    completion(f"{field} is not done here", param=field, code="unsupported_parameter", **{field: value})
    for field, value in [("suffix", "x"), ("use_beam_search", True), ("response_format", {"type": "x"})]
] + [
    completion("two names with two values", param="n_predict", n_predict=3),
    completion("min_tokens with a schema", param="min_tokens", min_tokens=1, guided_regex="a"),
] + [
    chat(f"{field} is not done here", [{"role": "user", "content": "x"}], param=field, **{field: value})
    for field, value in [("response_format", {"type": "x"}), ("tool_choice", "required"),
                         ("best_of", 3), ("audio", {"voice": "x"}), ("functions", [{"name": "f"}])]
]

MESSAGES = [
    chat("no messages at all", None),
    chat("empty list", []),
    chat("not a list", "hello"),
    chat("a number in the list", [5]),
    chat("no role", [{"content": "x"}]),
    chat("unknown role", [{"role": "wizard", "content": "x"}]),
    chat("role is a number", [{"role": 5, "content": "x"}]),
    chat("content is a number", user(5)),
    chat("content part without type", user([{"text": "x"}])),
    chat("content part with an unknown type", user([{"type": "hologram", "text": "x"}])),
    chat("image part", user([{"type": "image_url", "image_url": {"url": "data:,"}}])),
    chat("text part without text", user([{"type": "text"}])),
    chat("text part with a number", user([{"type": "text", "text": 5}])),
    chat("top_logprobs without logprobs", user("x"), param="top_logprobs", top_logprobs=2),
    chat("top_logprobs too large", user("x"), param="top_logprobs", logprobs=True, top_logprobs=21),
    chat("logprobs of completions", user("x"), param="logprobs", logprobs=5),
    chat("a template from the request", user("x"), param="chat_template", chat_template="{{ 1 }}"),
]

GOOD = [
    completion(name, status=200, **fields)
    for name, fields in {
        "nulls are as if absent": dict.fromkeys(
            ["temperature", "top_p", "n", "stop", "seed", "stream", "logprobs", "logit_bias", "user",
             "stream_options", "max_tokens", "echo", "presence_penalty", "model"]),
        "unknown fields": {"frobnicate": {"a": [1, None]}, "__internal_priority": 1e9},
        "no stops": {"stop": []},
        "neutral values": {"suffix": "", "best_of": 1, "logit_bias": {}, "use_beam_search": False},
        "empty stops": {"stop": ["", "x", ""]},
        "no stop at all": {"stop": ""},
        "many stops": {"stop": [f"stop{i}" for i in range(32)]},
        "as many as the context holds": {"max_tokens": -1, "stop": "e"},
        "very hot": {"temperature": 1e300},
        "top_n_sigma off": {"top_n_sigma": -1},
        "typical": {"temperature": 1, "typical_p": 0.5, "min_keep": 3},
        "aliases": {"n_predict": 2, "max_new_tokens": 2, "repeat_penalty": 1.1},
        "tiny temperature": {"temperature": 1e-45},
        "negative zero": {"temperature": -0.0},
        "hottest": {"temperature": 2},
        "top_p 0": {"temperature": 1, "top_p": 0},
        "top_p 1e-9": {"temperature": 1, "top_p": 1e-9},
        "top_k -1": {"top_k": -1},
        "top_k 10^9": {"top_k": 1_000_000_000},
        "all but one banned": {"temperature": 1, "logit_bias": {str(i): -100 for i in range(511)}},
        "16 choices": {"n": 16},
        "128 prompts": {"prompt": ["a"] * 128},
        "as many tokens as one likes": {"max_tokens": 2147483648, "stop": "e"},
        "even 10^18": {"max_tokens": 10**18, "temperature": 1, "seed": 1},
        "seed -1": {"seed": -1},
        "the lowest priority and the shortest timeout that makes sense": {"priority": 2**31 - 1, "timeout": 30},
        "the best of 16": {"best_of": 16, "temperature": 1},
        "seed 2^64-1": {"seed": 2**64 - 1},
        "user and salt": {"user": "someone", "cache_salt": "mine"},
        "a float that is whole": {"max_tokens": 2.0},
    }.items()
] + [
    chat("developer is a system role", [{"role": "developer", "content": "x"}, *user("y")], 200),
    chat("two users", user("a") + user("b"), 200),
    chat("assistant first", [{"role": "assistant", "content": "x"}, *user("y")], 200),
    chat("two systems", [{"role": "system", "content": "x"}] * 2 + user("y"), 200),
    chat("empty content", user(""), 200),
    chat("null content", user(None), 200),
    chat("no content", [{"role": "user"}], 200),
    chat("no parts", user([]), 200),
    chat("text parts", user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), 200),
    chat("max_completion_tokens", user("a"), 200, max_completion_tokens=1, max_tokens=None),
] + [
    chat(f"an answer of ours with content {name}", user("x") + [{"role": "assistant", "tool_calls": [], "refusal": None, **content}] +
         user("y"), 200)
    for name, content in {"null": {"content": None}, "absent": {}, "empty": {"content": ""}, "of no parts": {"content": []}}.items()
] + [
    chat("tool calls that the template does not print", user("x") + [{"role": "assistant", "tool_calls": [CALL]}], 200),
    chat("tools that the template does not print", user("x"), 200, tools=[{"type": "function", "function": {"name": "f"}}]),
]


def ask(server, path, body):
    """The answer, checked for what holds for every refusal."""
    answer = server.post(body, path)
    assert answer.headers["Content-Type"].startswith(("application/json", "text/event-stream"))
    if answer.status != 200:
        assert 400 <= answer.status < 500 and answer.status not in (401, 403), answer.body
        assert answer.error["type"] == "invalid_request_error"
        assert len(answer.body) < 2000, "a refusal does not repeat what was sent"
    return answer


@pytest.mark.parametrize("path, fields, status, param, code", TYPES + PROMPTS + UNSUPPORTED + MESSAGES + GOOD)
def test_field(tiny, path, fields, status, param, code):
    with tiny.unharmed():
        answer = ask(tiny, path, fields)
        assert answer.status == status, answer.body
        if status != 200:
            named = answer.error["param"]
            assert named == param or param == "messages" and named.startswith("messages["), answer.error
            assert named in answer.error["message"], answer.error
            if code:
                assert answer.error["code"] == code
        else:
            choices = answer.json["choices"]
            assert choices and all(c["finish_reason"] in ("stop", "length") for c in choices)


@pytest.mark.sanitizer
def test_all_fields_under_the_sanitizers(tiny):
    """The tables once more in one go, with one look at the server at the end."""
    with tiny.unharmed():
        for parameters in TYPES + PROMPTS + UNSUPPORTED + MESSAGES + GOOD:
            path, fields, status, _, _ = parameters.values
            assert ask(tiny, path, fields).status == status, parameters.id


# bodies that are not JSON, or not the JSON that it looks like


def body(prompt, rest=b""):
    return b'{"prompt": ' + prompt + b', "max_tokens": 1, "temperature": 0' + rest + b"}"


BODIES = {
    # B38: text after the value, nothing at all
    "more after the value": b'{"prompt":"a"}}}}',
    "garbage after the value": b'{"a":1}garbage',
    "a list of two": b'"a", b',
    "two objects": b'{"prompt":"a"}{"prompt":"b"}',
    "a byte order mark": b"\xef\xbb\xbf" + body(b'"a"'),
    "empty": b"",
    "only spaces": b"  \r\n\t ",
    "a list": b"[1]",
    "a string": b'"hello"',
    "null": b"null",
    "NUL after the value": body(b'"a"') + b"\0",
    "NUL inside": b'{"prompt": "a\0b"}',
    "NUL as an escape in a key": b'{"prompt\\u0000x": "a"}',
    "cut off": body(b'"a"')[:-1],
    "single quotes": b"{'prompt': 'a'}",
    "a comment": b'{"prompt": "a" /* hi */}',
    "comma at the end": b'{"prompt": "a",}',
    "no comma": b'{"prompt": "a" "max_tokens": 1}',
    "a key twice": b'{"prompt": "a", "prompt": "b"}',
    "control character in a string": b'{"prompt": "a\nb"}',
    "unknown escape": b'{"prompt": "a\\x41"}',
    # B32: what is no number in JSON, and what is none after reading it
    **{f"temperature {text}": body(b'"a"', b', "seed": 1, "top_p": ' + text.encode())
       for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "01", "+1", "1.", ".5", "0x1", "1e", "--1")},
    "a number of 10^6 digits": body(b'"a"', b', "seed": ' + b"1" * 1_000_000),
    # B40: lone surrogates
    **{f"surrogate {text}": body(b'"' + text.encode() + b'"')
       for text in (r"\uD800", r"\uDC00", r"\uD83D\u0041", r"\uDE00\uD83D", r"\uD83D", r"\uD83Dx", r"\uD8")},
    # B4: bytes that are not UTF-8
    **{f"bytes {raw.hex(' ')}": body(b'"' + raw + b'"')
       for raw in (b"\xe6\xad", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xff", b"\xf0\x9f\x98")},
    "bad UTF-8 in a key": b'{"\xff": 1, "prompt": "a"}',
    "bad UTF-8 in the model": b'{"model": "\xe6\xad", "prompt": "a"}',
    # B43: nesting
    **{f"{count} {opening.decode()}": b'{"prompt": "a", "x": ' + opening * count
       for opening in (b"[", b'{"a":') for count in (999, 1001, 1_000_000)},
    "1000 closed lists": b'{"prompt": "a", "x": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "nesting in a tool": b'{"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", '
                         b'"function": {"name": "f", "parameters": ' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}}]}",
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("text", BODIES.values(), ids=BODIES.keys())
def test_not_json(tiny, text):
    with tiny.unharmed():
        for path in (COMPLETIONS, CHAT):
            answer = ask(tiny, path, text)
            assert answer.status == 400, answer.body
            answer.body.decode("utf-8")


@pytest.mark.sanitizer
def test_bodies_cut_at_each_byte(tiny):
    whole = body(rb'["a\u00e9\n", "b"]', rb', "stop": ["\\"], "logit_bias": {"5": -1.5e0}, "x": [null, true]')
    assert tiny.post(whole).status == 200
    with tiny.unharmed():
        for length in range(len(whole)):
            answer = ask(tiny, COMPLETIONS, whole[:length])
            assert answer.status == 400, (length, answer.body)


def test_characters_of_all_kinds_are_read(tiny):
    """B6, B40: what is valid is answered, whichever way it was written."""
    for text in ("A\u00a0B", "\u200b", "👨‍👩‍👧‍👦", "\ufeff", "\u3000", "\u0085", "🇫🇷", "é", "e\u0301", "\U0001f600", "\u0001\u007f",
                 "\ufffd", "\uffff", "a\tb\r\nc"):
        plain = tiny.complete({"prompt": text, "max_tokens": 4, "temperature": 0, "echo": True})
        escaped = json.dumps({"prompt": text, "max_tokens": 4, "temperature": 0, "echo": True}, ensure_ascii=True)
        unescaped = json.dumps({"prompt": text, "max_tokens": 4, "temperature": 0, "echo": True}, ensure_ascii=False)
        for sent in (escaped.encode(), unescaped.encode()):
            assert tiny.post(sent).json["choices"] == plain["choices"]
        assert plain["choices"][0]["text"].startswith(text)


def test_huge_bodies_are_refused_by_size(tiny):
    with tiny.unharmed():
        answer = tiny.post({"prompt": "x" * (9 << 20)})
        assert answer.status == 413 and answer.error["code"] == "body_too_large"
        answer = tiny.post({"prompt": "word " * 1_000_000})
        assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"


@pytest.mark.sanitizer
def test_no_bytes_of_the_client_come_back_raw(tiny):
    """B15: what provokes an error is never copied into it unescaped."""
    nasty = "\"}\u2028</script>\u0001é" * 50
    with tiny.unharmed():
        for body_ in ({"model": nasty, "prompt": "a"}, {"prompt": "a", "stop": [nasty * 100]},
                      {"prompt": "a", "logit_bias": {nasty: 1}}, {"prompt": "a", "temperature": nasty}):
            answer = tiny.post(body_)
            assert answer.status in (400, 404) and len(answer.body) < 2000
            assert answer.error["message"].encode() and not set(map(chr, range(32))) & set(answer.error["message"])
        for path in ("/%FF%FE", "/v1/models/%E6%AD", "/v1/models/%00", "/v1/models/" + "a" * 5000):
            answer = tiny.get(path)
            assert answer.status in (400, 404, 414)
            answer.body.decode("utf-8")
            assert answer.error


# numbers that mean greedy, and empty prompts


def test_what_means_greedy(tiny):
    """B31"""
    def ask_(**fields):
        return tiny.complete({"prompt": "The printer", "max_tokens": 12, "seed": 3, **fields})["choices"]

    greedy = ask_(temperature=0)
    for fields in ({"temperature": -0.0}, {"temperature": 1e-6}, {"temperature": 1e-45},
                   {"temperature": 2, "top_p": 0}, {"temperature": 2, "top_k": 1}, {"temperature": 2, "top_p": 1e-9},
                   {"temperature": 1e-4}):
        assert ask_(**fields) == greedy, fields
    assert ask_(temperature=2) != greedy


def test_answers_without_probabilities_of_zero_or_infinity(tiny):
    """B34: the numbers are JSON, finite, and the same when streamed."""
    for fields in ({"top_k": 1}, {"temperature": 0.01}, {"logit_bias": {str(i): -100 for i in range(3, 512)}}):
        body_ = {"prompt": "a", "max_tokens": 4, "seed": 1, "logprobs": 5, "temperature": 1, "ignore_eos": True, **fields}
        log = tiny.complete(body_)["choices"][0]["logprobs"]
        numbers = log["token_logprobs"] + [p for top in log["top_logprobs"] for p in top.values()]
        assert all(-1e5 < p <= 0 for p in numbers)
        chunks = [c["choices"][0].get("logprobs") for c in tiny.stream(body_).chunks()]
        assert sum((c["token_logprobs"] for c in chunks if c), []) == log["token_logprobs"]


def test_absent_max_tokens_is_the_context(tiny):
    """B28: a chat without a limit ends at the context's edge at the latest; completions at 16."""
    answer = tiny.complete({"messages": user("a"), "ignore_eos": True, "temperature": 1, "seed": 9}, CHAT)
    assert answer["usage"]["total_tokens"] == tiny.max_model_len()
    assert answer["choices"][0]["finish_reason"] == "length"
    answer = tiny.complete({"prompt": "a", "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 16
