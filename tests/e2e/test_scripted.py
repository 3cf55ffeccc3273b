"""Every token decided by the test: the real server on the scripted backend (tests/cli/scripted_main.c).

The script says what is answered to which prompt, piece by piece, so that what stands in CASES 2, 3 and
7 can be tried to the letter: characters and stop strings over token edges, faults in mid-stream. A
long step makes clients' timing exact: what happens in one step and what in the next.
"""

import json

import pytest

import harness
from harness import CHAT, COMPLETIONS

# prompt, the pieces of the answer. A piece of several bytes that is no token becomes one token a byte.
ANSWERS = {
    "emoji": [r"\xf0\x9f", r"\x98", r"\x80"],
    "cjk": [r"\xe6", r"\xbc", r"\xa2", "!"],
    "family": [*(rf"\x{b:02x}" for b in "👨‍👩‍👧".encode())],
    "half": ["A", r"\xf0\x9f"],
    "only half": [r"\xf0", r"\x9f"],
    "broken": [r"\x80\x80\xe2\x28\xa1\xf0\x9f\x41"],
    "broken then good": [r"\xff", "B", r"\xe6\xad", "C"],
    "opqr": ["O", " P", " Q", " R", " S"],
    "paris": [" Paris", " is"],
    "defghij": ["D", "E", "F", "G", "H", "I", "J", "K"],
    "almost": ["D", "E", "F", "x", "D", "E"],
    "first": ["x", "y"],
    "stop in a character": ["a", r"\xe6", r"\xbc", r"\xa2", "b"],
    "nothing": [],
    "fault": ["a", "b", "c", "!nan"],
    "fault at once": ["!nan"],
    "markers": ["a", "#1", "b"],
    "lines": ["a", *(rf"\x{b:02x}" for b in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e".encode()), "b"],
    "quotes": ['"', "\\\\", r"\x01", r"\n", "/", r"\x7f", r"\t"],
}


def bytes_of(pieces):
    out = b""
    for piece in pieces:
        if not piece.startswith(("#", "!nan")):
            out += piece.encode("latin-1").decode("unicode_escape").encode("latin-1") if "\\" in piece else piece.encode()
    return out


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    yield from scripted_server(tmp_path_factory, "")


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Steps of 30 ms and a millisecond more for each prompt token."""
    yield from scripted_server(tmp_path_factory, "delay_us\t30000\nrow_delay_us\t1000\n")


def scripted_server(tmp_path_factory, options, *more):
    path = tmp_path_factory.mktemp("script") / "script.txt"
    path.write_text(options + "".join("\t".join(["answer", p, *pieces]) + "\n" for p, pieces in ANSWERS.items()))
    environment = {"QUIRE_TEST_SCRIPT": str(path), "QUIRE_TEST_CHECK_EVERY_STEP": "1"}
    with harness.started(*more, program=harness.SCRIPTED, model=harness.tiny(), environment=environment) as server:
        yield server


def both(server, prompt, **fields):
    """The answer, which must be the same streamed: text, finish reason, usage; and the stream's pieces."""
    body = {"prompt": prompt, "max_tokens": 100, "temperature": 0, **fields}
    whole = server.complete(body)
    chunks = list(server.stream({**body, "stream_options": {"include_usage": True}}).chunks())
    usage = chunks.pop()["usage"]
    pieces = [c["choices"][0]["text"] for c in chunks]
    assert "".join(pieces) == whole["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    for key in ("prompt_tokens", "completion_tokens"):
        assert usage[key] == whole["usage"][key]
    return whole["choices"][0]["text"], whole["choices"][0]["finish_reason"], usage["completion_tokens"], pieces


@pytest.mark.sanitizer
@pytest.mark.parametrize("prompt", [p for p in ANSWERS if not p.startswith("fault")])
def test_text_is_what_the_bytes_say(scripted, prompt):
    """B11, B14, B23: decoded as the standard has it; control tokens have no text; ends at the end token."""
    with scripted.unharmed():
        text, reason, _, pieces = both(scripted, prompt)
        assert text == bytes_of(ANSWERS[prompt]).decode("utf-8", "replace")
        assert reason == "stop"
        if prompt in ("emoji", "cjk"):
            assert text.startswith([p for p in pieces if p][0]), "not a part of a character was sent"


@pytest.mark.parametrize("prompt, count, expected", [
    ("half", 1, "A"), ("half", 2, "A\ufffd"), ("only half", 1, "\ufffd"), ("cjk", 1, "\ufffd"), ("cjk", 2, "\ufffd"),
    ("cjk", 3, "漢"), ("cjk", 4, "漢!"), ("broken then good", 4, "\ufffdB\ufffd"),
])
def test_max_tokens_in_a_character(scripted, prompt, count, expected):
    """B12: the part of a character is one U+FFFD, streamed or not."""
    text, reason, tokens, _ = both(scripted, prompt, max_tokens=count)
    assert (text, reason, tokens) == (expected, "length", count)


@pytest.mark.sanitizer
@pytest.mark.parametrize("prompt, stop, expected", [
    ("opqr", ["O P Q"], ""),                # B18: over tokens
    ("opqr", [" Q R", "P Q"], "O "),        # the one that begins first
    ("opqr", ["Q R S", " Q"], "O P"),
    ("paris", ["Pari"], " "),               # B18: ends inside a token
    ("paris", ["s is"], " Pari"),
    ("defghij", ["DEFGHIJ"], ""),           # B19: not a character of it was sent
    ("defghij", ["FG"], "DE"),
    ("defghij", ["K"], "DEFGHIJ"),
    ("first", ["x"], ""),                   # B22: the very first output
    ("stop in a character", ["漢"], "a"),
    ("stop in a character", ["漢b"], "a"),
    ("markers", ["ab"], ""),                # control tokens between have no text
])
def test_stops(scripted, prompt, stop, expected):
    text, reason, _, pieces = both(scripted, prompt, stop=stop)
    assert (text, reason) == (expected, "stop")
    assert "".join(pieces) == expected


@pytest.mark.parametrize("prompt, stop", [
    ("almost", ["DEFGHIJ"]),                # held back, then let go
    ("almost", ["DEx", "EFy", "DEFG"]),
    ("opqr", [" S T"]),
    ("markers", ["<|im_start|>"]),          # B23: markers are no text
    ("nothing", ["x"]),
])
def test_stops_that_do_not_come(scripted, prompt, stop):
    text, reason, _, _ = both(scripted, prompt, stop=stop)
    assert text == bytes_of(ANSWERS[prompt]).decode("utf-8") and reason == "stop"


def test_a_stop_ends_the_work_too(slow):
    """A stop string ends the sequence in the engine: few tokens are made that nobody will see."""
    before = slow.metrics()("vllm:generation_tokens_total")
    slow.complete({"prompt": "opqr", "stop": ["O"], "max_tokens": 100, "temperature": 0})
    slow.wait_idle()
    assert slow.metrics()("vllm:generation_tokens_total") - before <= 4, "of nine"


@pytest.mark.sanitizer
def test_no_line_ends_within_events(scripted):
    """A client that splits the stream where Unicode ends a line (Python's splitlines) sees whole events."""
    lines = scripted.post({"prompt": "lines", "stream": True, "max_tokens": 99}).body.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert all(line == "" or line.startswith("data: ") for line in lines)
    assert "".join(e["choices"][0]["text"] for e in events) == "a\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1eb"



def test_what_comes_out_is_json(scripted):
    answer = scripted.post({"prompt": "quotes", "max_tokens": 50, "temperature": 0})
    assert answer.json["choices"][0]["text"] == '"\\\x01\n/\x7f\t'


# B51: faults


def test_a_fault_before_the_first_token_is_a_whole_answer(scripted):
    with scripted.unharmed():
        for stream in (False, True):
            answer = scripted.post({"prompt": "fault at once", "temperature": 0, "stream": stream})
            assert answer.status == 500 and answer.error["type"], answer.body


@pytest.mark.sanitizer
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_fault_in_a_stream_is_an_event(slow, path):
    """The tokens before it were sent; then the error, then the end. Nobody else is harmed."""
    with slow.unharmed():
        neighbour = slow.stream({"prompt": "defghij", "temperature": 0, "max_tokens": 50})
        if path == COMPLETIONS:
            events = list(slow.stream({"prompt": "fault", "temperature": 0}).events())
            texts = [json.loads(e)["choices"][0]["text"] for e in events if e != "[DONE]" and "error" not in json.loads(e)]
            assert "".join(texts) == "abc"
            errors = [json.loads(e)["error"] for e in events if e != "[DONE]" and "error" in json.loads(e)]
            assert len(errors) == 1 and errors[0]["message"]
        assert "".join(c["choices"][0]["text"] for c in neighbour.chunks()) == "DEFGHIJK"


def taken_apart(events):
    """The text of a stream's events, and its error."""
    text, error = "", None
    for event in map(json.loads, events):
        assert error is None, "nothing comes after the error"
        error = event.get("error")
        text += "" if error else event["choices"][0]["text"]
    return text, error


@pytest.mark.sanitizer
def test_a_fault_loses_no_text(slow):
    """What was held back for a stop string is text once no stop can come."""
    with slow.unharmed():
        for stop in ([], ["abcd"], ["bcd"]):
            events = [e for e in slow.stream({"prompt": "fault", "temperature": 0, "stop": stop}).events() if e != "[DONE]"]
            text, error = taken_apart(events)
            assert text == "abc" and error["message"]


@pytest.mark.sanitizer
def test_sigterm_loses_no_text(tmp_path_factory):
    """A stream that is cut off has all that was held back for a stop string."""
    with harness.contextlib.contextmanager(shutting_down)(tmp_path_factory) as server:
        stream = server.stream({"prompt": "defghij", "temperature": 0, "max_tokens": 50, "stop": ["EFGHIJKLM"]})
        events = stream.events()
        assert json.loads(next(events))["choices"][0]["text"] == "D"
        before = server.metrics()("quire_steps_total")
        harness.wait_until(lambda: server.metrics()("quire_steps_total") >= before + 2, what="steps")
        server.signal()
        text, error = taken_apart(e for e in events if e != "[DONE]")
        assert len(text) >= 2 and "EFGHIJK".startswith(text), text
        assert error["code"] == "draining"
        assert server.wait(30) == 0


def shutting_down(tmp_path_factory):
    yield from scripted_server(tmp_path_factory, "delay_us\t300000\n", "--drain-seconds", 0)


def test_a_fault_without_streaming(scripted):
    with scripted.unharmed():
        answer = scripted.post({"prompt": "fault", "temperature": 0})
        assert answer.status == 500 and answer.error


# timing made exact by slow steps


@pytest.mark.sanitizer
def test_tokens_are_sent_as_they_come(slow):
    """The first event is there while the engine still has steps to do: nothing is collected."""
    stream = slow.stream({"prompt": "defghij", "temperature": 0, "max_tokens": 50})
    steps = slow.metrics()("quire_steps_total")
    events = stream.events()
    next(events)
    assert slow.metrics().running == 1 and slow.metrics()("quire_steps_total") <= steps + 5
    assert len(list(events)) >= 7


@pytest.mark.sanitizer
@pytest.mark.parametrize("stream", [True, False])
def test_a_hang_up_in_a_long_prompt_is_seen_within_a_step(slow, stream):
    """B52: a prompt of several seconds is given up after the step that is being computed."""
    with slow.unharmed():
        request = slow.stream({"prompt": [9] * 2000, "max_tokens": 5, "stream": stream})
        harness.wait_until(lambda: slow.metrics().running == 1, what="running")
        steps = slow.metrics()("quire_steps_total")
        request.hang_up()
        slow.wait_idle()
        assert slow.metrics()("quire_steps_total") <= steps + 3


def test_health_and_metrics_never_wait_for_a_step(slow):
    """A long prompt is being computed; both answer in between, not after it."""
    with slow.unharmed():
        request = slow.stream({"prompt": [9] * 2000, "max_tokens": 1})
        harness.wait_until(lambda: slow.metrics().running == 1, what="running")
        for _ in range(20):
            assert slow.get("/health").status == 200
            assert slow.metrics().running == 1
        request.hang_up()


def test_a_slow_stream_is_kept_alive(tmp_path_factory):
    """Nothing for 5 s: headers come, and a comment, so that nobody in between gives up."""
    with harness.contextlib.contextmanager(scripted_server)(tmp_path_factory, "row_delay_us\t6000\n") as server:
        stream = server.stream({"prompt": [9] * 1300, "max_tokens": 1, "temperature": 0})
        lines = list(stream.response())
        assert b": keep-alive\n" in lines
        assert lines[-2] == b"data: [DONE]\n"
