"""Calls of tools and reasoning over HTTP: streamed as one openai client puts them together, and whole.

On the scripted backend, so that each token is the test's; the formats themselves are tried to the
byte in tests/api/test_output_parser.c.
"""

import json
import os
import pathlib
import re
import subprocess

import pytest

import harness
from harness import CHAT

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }}: {{ tool.function.description }}"
    "{% endfor %}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endfor %}{% if false %}<think></think>{% endif %}"
)
ARGUMENTS = '{"city": "Köln", "days": 3}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
TEXTS = {
    "one": "Let me look.\n" + CALL,
    "two": CALL + "\n" + CALL,
    "thought": "<think>\nWeather is asked.\n</think>\n\n" + CALL,
    "said": "<think>\nHm.\n</think>\n\nHello.",
    "broken": '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
    "unknown": '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
    "plain": "Just text <too.",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "d",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    (folder / "template.jinja").write_text(TEMPLATE)
    lines = []
    for name, text in TEXTS.items():
        pieces = [rf"\x{b:02x}" for b in text.encode()]
        for prompt in (name, "get_weather: d" + name):
            lines.append("\t".join(["answer", prompt, *pieces]))
    (folder / "script.txt").write_text("\n".join(lines) + "\n")
    with harness.started(
        "--chat-template",
        str(folder / "template.jinja"),
        program=harness.SCRIPTED,
        model=harness.tiny(),
        environment={"QUIRE_TEST_SCRIPT": str(folder / "script.txt")},
    ) as server:
        yield server


def joined(chunks):
    """A message of a stream's deltas, as the openai clients put it together."""
    message = {"role": None, "content": None}
    for delta in (c["choices"][0]["delta"] for c in chunks if c["choices"]):
        for key, value in delta.items():
            if key == "role":
                message["role"] = value
            elif key != "tool_calls":
                message[key] = message.get(key) if value is None else (message.get(key) or "") + value
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


def both(server, prompt, **fields):
    """The message and the finish reason, which must be the same streamed."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 400, "temperature": 0, **fields}
    whole = server.complete(body, CHAT)
    chunks = list(server.stream({**body, "stream": True, "stream_options": {"include_usage": True}}, CHAT).chunks())
    choice = whole["choices"][0]
    usage = chunks.pop()["usage"]
    message, streamed = dict(choice["message"]), joined(chunks)
    for some in (message, streamed):
        some.pop("refusal", None)
        for call in some.get("tool_calls", []):
            assert call.pop("id").startswith("call_")
        some["content"] = some["content"] or None
    assert streamed == message
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert usage["completion_tokens_details"] == whole["usage"]["completion_tokens_details"]
    return message, choice["finish_reason"], usage


CALLED = {"type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}


@pytest.mark.parametrize("name, content, calls", [
    ("one", "Let me look.\n", 1),
    ("two", None, 2),
    ("broken", TEXTS["broken"], 0),
    ("unknown", TEXTS["unknown"], 0),
    ("plain", TEXTS["plain"], 0),
])
def test_calls(scripted, name, content, calls):
    message, finish, usage = both(scripted, name, tools=TOOLS)
    assert message["content"] == content
    assert message.get("tool_calls", []) == [CALLED] * calls
    assert finish == ("tool_calls" if calls else "stop")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_without_tools_a_call_is_text(scripted):
    message, finish, _ = both(scripted, "one")
    assert (message["content"], finish) == (TEXTS["one"], "stop")
    message, finish, _ = both(scripted, "one", tools=TOOLS, tool_choice="none")
    assert (message["content"], finish) == (TEXTS["one"], "stop")


def test_arguments_come_in_pieces(scripted):
    body = {"messages": [{"role": "user", "content": "one"}], "tools": TOOLS, "max_tokens": 400}
    deltas = [c["choices"][0]["delta"] for c in scripted.stream({**body, "stream": True}, CHAT).chunks()]
    assert sum("tool_calls" in d for d in deltas) > 5


def test_one_call_ends_the_answer(scripted):
    message, finish, usage = both(scripted, "two", tools=TOOLS, parallel_tool_calls=False)
    assert (message["tool_calls"], finish) == ([CALLED], "tool_calls")
    assert usage["completion_tokens"] <= len(CALL.encode()) + 1


def test_reasoning_is_apart(scripted):
    message, _, usage = both(scripted, "said")
    assert message["reasoning_content"] == message["reasoning"] == "Hm."
    assert message["content"] == "Hello."
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("\nHm.\n</think>")
    message, finish, _ = both(scripted, "thought", tools=TOOLS)
    assert (message["reasoning_content"], message["tool_calls"]) == ("Weather is asked.", [CALLED])
    assert finish == "tool_calls"


def test_logprobs_are_of_all_tokens(scripted):
    body = {"messages": [{"role": "user", "content": "thought"}], "tools": TOOLS, "max_tokens": 400, "logprobs": True}
    whole = scripted.complete(body, CHAT)
    chunks = list(scripted.stream({**body, "stream": True}, CHAT).chunks())
    logprobs = [c["choices"][0].get("logprobs") for c in chunks]
    tokens = [t["token"] for part in logprobs if part for t in part["content"]]
    assert tokens == [t["token"] for t in whole["choices"][0]["logprobs"]["content"]]


def test_openai_client_streams_a_call(scripted):
    with scripted.client().chat.completions.stream(
        model="default", messages=[{"role": "user", "content": "one"}], tools=TOOLS, max_tokens=400
    ) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Köln", "days": 3}


def test_the_table_of_formats_is_true():
    root = pathlib.Path(__file__).parents[2]
    tool = os.path.join(os.environ["QUIRE_BUILD"], "tests", "api", "template_tool")
    document = (root / "docs" / "api.md").read_text()
    section = document[document.index("## Tools") : document.index("## Reasoning")]
    served, thinking = {}, set()
    for path in sorted((root / "tests" / "api" / "templates").glob("*.jinja")):
        name, mark = subprocess.run([tool, "--format", path], capture_output=True, text=True, check=True).stdout.split()
        if name != "-":
            served.setdefault(name, set()).add(path.stem)
        if mark != "-":
            thinking.add(path.stem)
    table = {}
    for row in re.findall(r"^\| `([a-z0-9-]+)` \|.*\| ([^|]*) \|$", section, re.M):
        table[row[0]] = set(re.findall(r"`([^`]+)`", row[1]))
    assert {name: templates for name, templates in table.items() if templates} == served
    reasoning = document[document.index("## Reasoning") :].split("with marks are")[1].split("\n\n")[0]
    assert set(re.findall(r"`([^`]+)`", reasoning)) == thinking


def test_required_and_named_calls_fit_their_schema(tmp_path):
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    named = 0
    number = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"],
              "additionalProperties": False, "$defs": {"N": {"enum": [7, 8]}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "pick", "parameters": number}}]
    with harness.started("--chat-template", str(tmp_path / "template.jinja"), model=harness.tiny()) as server:
        for choice in ("required", {"type": "function", "function": {"name": "pick"}}):
            for seed in range(3):
                body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice,
                        "max_tokens": 300, "seed": seed}
                answer = server.post(body, CHAT)
                assert answer.status == 200, answer.error
                (chosen,) = answer.json["choices"]
                if chosen["finish_reason"] == "length":
                    continue
                (call,) = chosen["message"]["tool_calls"]
                assert (chosen["finish_reason"], chosen["message"]["content"]) == ("tool_calls", None)
                named += choice != "required"
                if choice != "required":
                    assert call["function"]["name"] == "pick"
                if call["function"]["name"] == "pick":
                    assert json.loads(call["function"]["arguments"])["n"] in (7, 8)
    assert named > 0


def test_a_constrained_answer_has_no_reasoning(tmp_path):
    """Also where the prompt opened it: the constraint holds from the first token on."""
    (tmp_path / "template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
        "{% if false %}</think>{% endif %}"
    )
    with harness.started("--chat-template", str(tmp_path / "template.jinja"), model=harness.tiny()) as server:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50}
        message = server.complete({**body, "structured_outputs": {"choice": ["yes", "no"]}}, CHAT)["choices"][0]["message"]
        assert message["content"] in ("yes", "no") and "reasoning_content" not in message
        message = server.complete({**body, "ignore_eos": True}, CHAT)["choices"][0]["message"]
        assert message["reasoning_content"] and not message["content"]


def test_a_template_without_tools_gets_them_as_text(tmp_path):
    """The tools, a call and its result cost tokens, and tool_choice none leaves the tools out."""
    (tmp_path / "template.jinja").write_text("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", **CALLED}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    with harness.started("--chat-template", str(tmp_path / "template.jinja"), model=harness.tiny()) as server:
        def count(messages, **fields):
            body = {"messages": messages, "max_tokens": 1, **fields}
            return server.complete(body, CHAT)["usage"]["prompt_tokens"]

        plain = count(history[:1])
        assert count(history[:1], tools=TOOLS) > plain + 50
        assert count(history[:1], tools=TOOLS, tool_choice="none") == plain
        assert count(history) > plain + len(ARGUMENTS) // 4


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}])
def test_a_model_with_examples_makes_the_right_call(fields):
    template = pathlib.Path(__file__).parents[1] / "api" / "templates" / "hermes-tools.jinja"
    messages = []
    for city in ("Paris", "London", "Rome", "Berlin"):
        function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        messages += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "sunny"},
            {"role": "assistant", "content": "It is sunny."},
        ]
    messages.append({"role": "user", "content": "What is the weather in Oslo?"})
    with harness.started("--chat-template", str(template), model=harness.MODEL) as server:
        answer = server.client().chat.completions.create(
            model="default", messages=messages, tools=TOOLS, temperature=0, max_tokens=60, **fields
        )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] == "Oslo"
