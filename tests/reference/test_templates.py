"""Chat templates render as Python's jinja2 renders them, called the way transformers calls it.

The templates under tests/api/templates/ have the forms of public models' (written for this test); the
probes ask one feature each. Both sides get the same JSON; they must print the same or both refuse.
"""

import datetime
import functools
import json
import os
import pathlib
import subprocess

import jinja2
import jinja2.ext
import jinja2.sandbox
import published
import pytest

TOOL = pathlib.Path(os.environ.get("QUIRE_BUILD", "build")) / "tests/api/template_tool"
TEMPLATES = sorted((pathlib.Path(__file__).resolve().parents[1] / "api/templates").glob("*.jinja"))


class GenerationMark(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %} prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def python_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationMark, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return environment


@functools.lru_cache(maxsize=1)
def python_template(source):
    return python_environment().from_string(source)


def python_render(source, context):
    try:
        template = python_template(source)
        return template.render(bos_token="<s>", eos_token="</s>", **json.loads(context))
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        return error


def quire_render(folder, source, contexts):
    """What template_tool says to each context: a text, or the error that it gives."""
    (folder / "template").write_text(source, encoding="utf-8")
    done = subprocess.run([TOOL, folder / "template", "<s>", "</s>"], capture_output=True, timeout=60,
                          input="".join(context + "\n" for context in contexts).encode())
    assert done.returncode == 0, done.stderr
    answers, rest = [], done.stdout
    while rest:
        head, _, rest = rest.partition(b"\n")
        status, length = map(int, head.split())
        text, rest = rest[:length].decode("utf-8"), rest[length + 1:]
        answers.append(text if status == 0 else RuntimeError(text))
        if status == 1:
            answers *= len(contexts)
    assert len(answers) == len(contexts)
    return answers


def same(wanted, got):
    if isinstance(wanted, str) or isinstance(got, str):
        return wanted == got
    if type(wanted) is jinja2.exceptions.TemplateError:  # raise_exception: its message reaches the client
        return str(wanted)[:100] in str(got)  # cut on its way
    return True


def check(folder, source, contexts):
    """contexts: JSON by a name for it. The same text or the same refusal for each."""
    for attempt in range(3):  # once more where a date changed between the two
        wanted = [python_render(source, context) for context in contexts.values()]
        got = quire_render(folder, source, contexts.values())
        wrong = [i for i in range(len(wanted)) if not same(wanted[i], got[i])]
        if not wrong:
            return [not isinstance(text, str) for text in wanted]
    names = list(contexts)
    pytest.fail("%d of %d differ:\n%s" % (len(wrong), len(names), "\n".join(
        "%s\n  jinja2 %r\n  quire  %r" % (names[i], wanted[i], got[i]) for i in wrong[:3])))


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Get the \"weather\" <now> & later's é 日本 😀",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "a/b\\c\n\t"},
            "days": {"type": "integer", "default": 3, "minimum": 0, "maximum": 9007199254740993},
            "limit": {"type": "number", "default": 1.0, "enum": [0.1, 1e-7, 1e20, 1e16, 123456789.125, -0.0]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "mixed": {"type": ["string", "number"]},
            "flag": {"type": "boolean", "default": True, "nothing": None, "empty": {}, "list": []},
            "items": {"type": "array", "items": {"type": "object", "properties": {"get": {"type": "string"}}},
                      "nullable": True, "description": "named as a method of dict"}}}}},
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"id": "abcdefghi", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Zürich's \"x\"", "days": 2, "a": [1.5, None, True]}}}
SYSTEM = {"role": "system", "content": " Be brief. \n"}
USER = {"role": "user", "content": "  What's <b>up</b> & \"how\" 日本 😀?\n"}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFine.\n"}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER],
    "no-system": [USER, ANSWER, USER, ANSWER],
    "long": [USER, ANSWER] * 5 + [USER],
    "assistant-first": [ANSWER, USER],
    "user-user": [USER, USER],
    "two-systems": [SYSTEM, SYSTEM, USER],
    "empty-content": [{"role": "user", "content": ""}],
    "tools": [SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
              {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "{\"t\": 21}"}],
    "two-calls": [USER, {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CALL]},
                  {"role": "tool", "tool_call_id": "abcdefghi", "content": "1"},
                  {"role": "tool", "tool_call_id": "abcdefghi", "content": "2"}, ANSWER, USER],
    "reasoning": [USER, {"role": "assistant", "content": "So.", "reasoning_content": "\nlong\n"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]}],
    "image": [{"role": "user", "content": [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "b"}]}],
    "null-content": [USER, {"role": "assistant", "content": None}, USER],
    "no-content": [USER, {"role": "assistant", "tool_calls": [CALL]},
                   {"role": "tool", "tool_call_id": "abcdefghi", "content": "x"}, ANSWER],
    "null-call": [USER, {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {
        "name": "f", "arguments": "{\"a\": \"\u00e9\\n\"}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}],
    "text-arguments": [USER, {"role": "assistant", "content": "", "tool_calls": [
        {"id": "short", "type": "function", "function": {"name": "python", "arguments": "{}"}}]}],
    "no-arguments": [USER, {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}]}, USER],
    "thinking": [USER, {"role": "assistant", "content": "", "thinking": "hm", "reasoning_content": "hm",
                        "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "abcdefghi", "content": "x"}],
    "switched-off": [{"role": "system", "content": "Be brief. /no_think"}, USER, ANSWER, USER],
    "switched-on": [{"role": "system", "content": "Be brief. /think /system_override"}, {
        "role": "user", "content": "/nothink"}],
    "unknown-role": [USER, {"role": "critic", "content": "no"}],
    "tool-first": [{"role": "tool", "tool_call_id": "1", "content": "{}"}, USER],
    "marks": [USER, {"role": "assistant", "content": "<|channel|>final<|message|>x"}, USER],
    "ends-with-answer": [SYSTEM, USER, {"role": "assistant", "content": "\n\nThe answer is"}],
}
DOCUMENTS = [{"title": "One", "text": "of\n'two'"}, {"title": "Two", "text": "日本"}]
OPTIONS = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "off": {"enable_thinking": False, "thinking": True, "controls": {"length": "short"}, "thinking_budget": 0,
            "builtin_tools": ["browser", "get_weather"], "model_identity": "I am."},
    "on": {"add_generation_prompt": True, "tools": TOOLS, "enable_thinking": True, "reasoning_effort": "high",
           "thinking_budget": 3000, "tools_in_user_message": False, "date_string": "1 Jan 2030",
           "keep_past_thinking": True, "thinking": False},
    "documents": {"add_generation_prompt": True, "documents": DOCUMENTS, "xml_tools": TOOLS[1:],
                  "python_tools": TOOLS[1:], "thinking_budget": 512, "custom_tools": TOOLS[1:]},
}


def contexts_of(conversations=None):
    return {"%s, %s" % (conversation, options): json.dumps(
        {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False,
         **OPTIONS[options]}, ensure_ascii=False)
        for conversation, messages in (conversations or CONVERSATIONS).items() for options in OPTIONS}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_public_forms(tmp_path, path):
    refused = check(tmp_path, path.read_text(encoding="utf-8"), contexts_of())
    assert not all(refused)


@pytest.mark.long
def test_collected_templates(tmp_path):
    """The templates of public models as llama.cpp collects them."""
    paths = published.templates()
    assert len(paths) >= 70
    contexts = contexts_of()
    for path in paths:
        if path.stem == "llama-cpp-deepseek-r1":  # it dumps a generator, which Python refuses (RENDERED)
            continue
        check(tmp_path, path.read_text(encoding="utf-8"), contexts)


def test_there_are_templates():
    assert len(TEMPLATES) >= 40


PROBES = (TEMPLATES[0].parents[1] / "probes.txt").read_text(encoding="utf-8").split("\n")[:-1]
# Where the engine is known to differ, so that a change is noticed. It refuses:
REFUSED = r"""
{{ '{!r}'.format('a') }}
{{ '{:.1%}'.format(0.256) }}
{% macro m(a) %}{{ varargs }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ kwargs }}{% endmacro %}{{ m(1, b=2) }}
{{ {'b': 1, 'a': 2} | dictsort(false, 'value') }}
{{ 'a  b' | wordwrap(2) }}
{{ '<a>' | forceescape }}
{{ '<b>x</b> y' | striptags }}
{{ 'a b' | urlencode }}
{{ 1234567 | filesizeformat }}
{{ 'ab'.encode() }}
{{ 'a b'.isprintable() }}
{{ ''.format_map({}) }}
{{ cycler('a', 'b').next() }}
{% set j = joiner(', ') %}{% for x in [1, 2] %}{{ j() }}{{ x }}{% endfor %}
{{ +5 }}
{% block content %}in block{% endblock %}
""".strip("\n").split("\n")
# It renders what Python refuses:
RENDERED = r"""
{{ messages | map(attribute='role') | tojson }}
{{ d.items() | tojson }}
{{ range(3) | tojson }}
{{ namespace(a=1) | tojson }}
{{ 'a' < 1 }}
{{ none < 1 }}
{{ undefined_x > 1 }}
{{ 1 in 'abc' }}
{{ 'a'.join([1, 2]) }}
{{ [3, 'a'] | sort }}
""".strip("\n").split("\n")
# It renders another text:
DIFFERENT = r"""
{{ range(2) }}
{{ {'a': 1}.items() }}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}
{% for x in [] %}{% else %}{% set y = 1 %}{% endfor %}{{ y is defined }}
{% autoescape true %}{{ '<' }}{% endautoescape %}
{{ d | attr('text') }}
{{ (messages | map(attribute='role')) is sequence }}
{{ '五'.isnumeric() }} {{ 'ⓐ'.isalpha() }} {{ 'ा'.isalpha() }}
{{ '\N{BULLET}' }}
""".strip("\n").split("\n")

CONTEXT = json.dumps({
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho <é>"}],
    "d": {"text": "é<&>'\"\n", "number": 3, "nested": {"list": [1, "b", None, True]}, "big": 9007199254740993,
          "float": 0.1, "whole": 2.0, "tiny": 1e-9, "negative": -1.5e300},
}, ensure_ascii=False)


@pytest.mark.parametrize("index", range(len(PROBES)))
def test_features(tmp_path, index):
    source = PROBES[index]
    check(tmp_path, source, {"probe": CONTEXT})


@pytest.mark.parametrize("index", range(len(REFUSED + RENDERED + DIFFERENT)))
def test_known_differences(tmp_path, index):
    source = (REFUSED + RENDERED + DIFFERENT)[index]
    wanted, got = python_render(source, CONTEXT), quire_render(tmp_path, source, [CONTEXT])[0]
    kinds = (isinstance(wanted, str), isinstance(got, str))
    assert kinds == ((True, False) if source in REFUSED else (False, True) if source in RENDERED else (True, True))
    assert wanted != got


HOSTILE = [
    "{{ " + "(" * 240 + "'a' ~ 'b'" + ")" * 240 + " }}", "{{ " + "(" * 499 + " }}", "{{ 'a'" + " ~ 'b'" * 498 + " }}",
    "{{ 'a'" + " % 'b'" * 498 + " }}", "{{ " + "[" * 300 + "1 % 2" + "]" * 300 + " }}", "{% for x in " + "(" * 90 + "[1]" + ")" * 90 + " %}{% endfor %}",
    "{{ 'a' ~ }}", "{{ ~ }}", "{{ % }}", "{{ 'a", "{% for %}{% endfor %}", "{% for x in %}{% endfor %}", "{% for x in ) %}{% endfor %}",
    "{% for in in in %}{% endfor %}", "{% raw %}{{ a ~ b", "{% raw %}{% for x in none %}{{ 'a' ~ 1e20 }}{% endraw %}x", "{%", "{%-%}", "{{-}}", "{{--}}",
    "{{ 'a' ~ ')' }}", "{{ '\\U0001F6' ~ '\\", "{{ '%9999s' % 'a' }}", "{{ '%*d' % (99999999, 1) }}", "{{ '%(' % {} }}", "{{ '%' % () }}",
    "{{ '%s%s' % 'a' }}", "{{ '%s' % ('a', 'b') }}", "{{ 'x'.center(10 ** 12) }}", "{{ 'x' | indent(10 ** 12) | length }}", "{{ 'a\\tb'.expandtabs(10 ** 12) }}",
    "{% for x in range(10 ** 9) %}{% endfor %}", "{{ ['x'] * 10 ** 9 | join('y' * 1000) }}",
]


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_hostile_sources(tmp_path, index):
    """Each is rendered as Python does, or refused in a moment with a sentence; never a crash."""
    answer = quire_render(tmp_path, HOSTILE[index], [CONTEXT])[0]
    if isinstance(answer, str):
        assert answer == python_render(HOSTILE[index], CONTEXT)
    else:
        assert "template" in str(answer)
