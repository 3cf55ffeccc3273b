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
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        return error


def quire_render(folder, source, context):
    (folder / "template").write_text(source, encoding="utf-8")
    (folder / "context").write_text(context, encoding="utf-8")
    done = subprocess.run([TOOL, folder / "template", folder / "context", "<s>", "</s>"],
                          capture_output=True, timeout=20)
    assert done.returncode in (0, 1, 2), done.stderr
    return done.stdout.decode("utf-8") if done.returncode == 0 else RuntimeError(done.stderr.decode("utf-8"))


def check(folder, source, context):
    for _ in range(2):  # a second time if midnight fell between the two
        wanted, got = python_render(source, context), quire_render(folder, source, context)
        if isinstance(wanted, str) and isinstance(got, str) and wanted == got:
            return
        if not isinstance(wanted, str) and not isinstance(got, str):
            return
    assert got == wanted


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Get the \"weather\" <now> & later's é 日本 😀",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "a/b\\c\n\t"},
            "days": {"type": "integer", "default": 3, "minimum": 0, "maximum": 9007199254740993},
            "limit": {"type": "number", "default": 1.0, "enum": [0.1, 1e-7, 1e20, 1e16, 123456789.125, -0.0]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "mixed": {"type": ["string", "number"]},
            "flag": {"type": "boolean", "default": True, "nothing": None, "empty": {}, "list": []}}}}},
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
    "null-content": [USER, {"role": "assistant", "content": None}, USER],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_public_forms(tmp_path, path, conversation):
    source = path.read_text(encoding="utf-8")
    extra = {"enable_thinking": False, "thinking": True, "controls": {"length": "short"}}
    for tools, options in ((None, {"add_generation_prompt": True}), (TOOLS, {"add_generation_prompt": True}),
                           (None, {"add_generation_prompt": False, **extra})):
        context = {"messages": CONVERSATIONS[conversation], "tools": tools, "documents": None, **options}
        check(tmp_path, source, json.dumps(context, ensure_ascii=False))


def test_there_are_templates():
    assert len(TEMPLATES) >= 14


PROBES = """
{{ true }} {{ false }} {{ none }} {{ 1 }} {{ -1.0 }} {{ 1e20 }} {{ 1e-7 }} {{ 1e16 }} {{ 123456.5 }} {{ 0.1 }}
{{ [1, 'a', "it's", none, true, 1.0] }} {{ {'a': [1], 'b': {'c': 'd'}} }} {{ (1, 2) }} {{ (1,) }} {{ [] }} {{ {} }}
{{ 'a\\nb' }} {{ ['a\\nb\\t\\\\', "q'\\"q"] }}
{{ d | tojson }}
{{ d | tojson(indent=2) }}
{{ d | tojson(indent=4, sort_keys=true) }}
{{ d | tojson(separators=(',', ':')) }}
{{ d | tojson(ensure_ascii=true) }}
{{ d | tojson(true) }}
{{ 'é<>&\\'' | tojson }} {{ none | tojson }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ '\\u2028\\x7f' | tojson }}
{{ {1: 'a', true: 'b', none: 'c', 1.5: 'd'} | tojson }}
{{ undefined_thing | tojson }}
{{ undefined_thing }} {{ undefined_thing is defined }} {{ undefined_thing | default('x') }} {{ undefined_thing or 'y' }}
{{ undefined_thing.attribute }}
{{ d.missing }} {{ d.missing is none }} {{ d['missing'] | default('z') }} {{ d.get('missing') }} {{ d.get('missing', 5) }}
{{ d.missing.deeper }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }},{% endfor %}{{ d.keys() | list }} {{ d.values() | list | length }}
{% for k, v in d | dictsort %}{{ k }},{% endfor %}
{% for x in [1,2,3,4] if x is even %}{{ loop.index0 }}{{ x }}{{ loop.last }}{% else %}none{% endfor %}
{% for x in [] %}{{ x }}{% else %}none{% endfor %}
{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in range(5, 0, -2) %}{{ x }}{% endfor %}{% for x in range(3) %}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}
{% for x in 'añb' %}[{{ x }}]{% endfor %}{{ loop is defined }}
{% set ns = namespace(a=1, found=false) %}{% for x in [1,2] %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.found }}
{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}
{% set block %}a{{ 1 + 1 }}b{% endset %}{{ block | length }}{{ block }}
{% macro m(a, b='x') %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 2) }} {{ m(b=3, a=4) }}
{{ messages[-1] }} {{ messages[1:] | length }} {{ messages[::-1][0] }} {{ messages[:-1] | length }} {{ 'abcdef'[1:4] }} {{ 'abc'[::-1] }}
{{ messages[5] }}
{{ messages[5].role }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] }}
{{ 'a' + 1 }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 6 / 3 }} {{ 1 / 3 }}
{{ 'ab' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ ([1] + [2]) | tojson }} {{ ([1] + [2]) | length }}
{{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ none == false }} {{ 1 in [1] }} {{ 'b' in 'abc' }} {{ 'k' in {'k': 1} }} {{ 'z' not in 'abc' }}
{{ 1 if false }} {{ 'yes' if 'x' else 'no' }} {{ not '' }} {{ '' or 'b' }} {{ 'a' and 'b' }} {{ 0 and 1 }}
{{ 'Hello World' | upper }} {{ 'Hello' | lower }} {{ 'hello world' | title }} {{ 'hELLO' | capitalize }} {{ '  x ' | trim }}| {{ 'xxaxx' | trim('x') }}
{{ 'a-b-a' | replace('a', 'c') }} {{ 'a-b-a' | replace('a', 'c', 1) }} {{ 'abc' | first }} {{ [1,2] | last }} {{ [3,1,2] | sort }} {{ [3,1,2] | sort(reverse=true) }}
{{ [1,2,3] | join(', ') }} {{ ['a','b'] | join }} {{ 'abc' | list }} {{ 'abc' | length }} {{ [1,[2]] | string }} {{ '5' | int + 1 }} {{ 'x' | int }} {{ '1.5' | float }}
{{ [1,2,3,4] | select('odd') | list }} {{ [1,2,3,4] | reject('odd') | list }} {{ [1,2,3] | sum }} {{ [1,2,3] | max }} {{ [1,1,2] | unique | list }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'in', ['user']) | list | length }} {{ messages | map(attribute='role') | list }}
{{ [1, 2] | map('string') | join('-') }} {{ ['a', 'b'] | map('upper') | list }} {{ [1,2,3,4,5] | batch(2) | list }} {{ {'b': 1, 'a': 2} | items | list }}
{{ 'a b c' | wordcount }} {{ 'abc' | indent(4) }} {{ 'a\\nb' | indent(2) }} {{ 'a\\n\\nb' | indent(2, true) }}
{{ '%s is %d' | format('a', 5) }} {{ '{} and {}'.format('a', 1) }} {{ '{0}{x}'.format(1, x=2) }}
{{ 3.7 | int }} {{ 3.14159 | round(2) }} {{ 3 | abs }} {{ -3.5 | abs }} {{ 2.5 | round }} {{ 7 | float }}
{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ 'abc'.split('x') }} {{ ''.split(',') }} {{ ''.split() }}
{{ 'abcabc'.find('c') }} {{ 'abc'.find('x') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.index('c') }} {{ 'abcabc'.rindex('a') }} {{ 'aaa'.count('a') }}
{{ 'abc'.index('x') }}
{{ '  x  '.strip() }}| {{ '  x  '.lstrip() }}| {{ '  x  '.rstrip() }}| {{ 'xyx'.strip('x') }} {{ 'xyx'.lstrip('x') }} {{ '\\n\\nx\\n'.strip('\\n') }}
{{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('b', 'c')) }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'x'.removeprefix('y') }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}
{{ 'x'.ljust(3) }}| {{ 'x'.rjust(3, '*') }} {{ 'x'.center(4, '-') }} {{ 'xy'.center(5, '-') }} {{ '42'.zfill(5) }} {{ '-42'.zfill(5) }} {{ 'abcd'.center(2) }}
{{ 'aB'.swapcase() }} {{ 'ABC'.casefold() }} {{ 'abc'.upper() }} {{ 'ABC'.lower() }} {{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }}
{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'A'.isupper() }} {{ 'a'.islower() }} {{ ''.isdigit() }}
{{ 'a\\nb\\r\\nc'.splitlines() }} {{ '-'.join(['a', 'b']) }} {{ 'abc'.replace('b', 'x') }} {{ 'aaa'.replace('a', 'b', 2) }}
{{ [1,2,1].count(1) }} {{ [1,2,1].index(2) }}
{{ x is defined }} {{ 1 is number }} {{ 'a' is string }} {{ [] is iterable }} {{ 'a' is iterable }} {{ {} is mapping }} {{ [] is sequence }} {{ none is none }} {{ true is boolean }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is true }} {{ 3 is odd }} {{ 4 is divisibleby(2) }} {{ 1 is sameas(1) }} {{ 'A' is upper }}
{{ 1 is not none and 'x' is not number }} {{ 5 is gt(3) }} {{ 5 is in([5]) }} {{ raise_exception is callable }}
{{ raise_exception('stop here') }}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %B %Y') }} {{ strftime_now('%%') }}
{{ bos_token }}{{ eos_token }} {{ bos_token is defined }} {{ unk_token is defined }}
{% generation %}x{% endgeneration %}y
{%- generation -%}  x  {%- endgeneration -%}  y
a {#- comment -#} b {# another #}
c
{% raw %}{{ not rendered }}{% endraw %}
  {% if true %}
  indented
  {% endif %}
after
   {%+ if true %} kept{% endif %}

{{ 'trailing' }}
{% with a = 1 %}{{ a }}{% endwith %}{{ a is defined }}
{% filter upper %}abc{% endfilter %}
{% if messages[0].role == 'user' and (messages | length) > 1 %}A{% elif messages %}B{% else %}C{% endif %}
{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.revindex }}{% endfor %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = [1, 2] %}{% set d1, d2 = c %}{{ d1 + d2 }}
{{ d.text.upper() }} {{ d['text'] }} {{ d.number + 1 }} {{ d.nested.list[1] }} {{ d.nested['list'] | join('|') }}
{{ d.big }} {{ d.float }} {{ d.whole }} {{ d.tiny }} {{ d.negative }}
{{ dict(a=1, b='c') }} {{ dict(a=1).a }} {{ range(3) | list }}
{{ [1, 2].append(3) }}
{{ d.update({'a': 1}) }}
{{ ''.__class__ }}
{{ 'x' | nothing }}
{% include 'x' %}
{{ 'é' | length }} {{ '日本語'[1] }} {{ '😀x'[1] }} {{ 'ß'.upper() }} {{ 'İ'.lower() | length }}
{{ '\\u00e9' }} {{ '\\x41' }} {{ "\\"" }} {{ '\\'' }} {{ 'a' 'b' }}
{{ 1_000 }} {{ 0x10 }} {{ 1.5e3 }}
{{ (messages | first)['content'] }} {{ (messages | map(attribute='content') | list)[1] }} {{ messages | groupby('role') | length }}
{{ [[1, 2], [3, 4]] | map('first') | list }} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ [{'a': 1}, {}] | map(attribute='a', default=0) | list }}
{{ 'a' if x is defined else 'b' if messages else 'c' }} {{ -2 ** 2 }} {{ not true == false }} {{ 1 < 2 < 3 }}
""".strip("\n").split("\n")
# What differs, so that a change is noticed: printf with %, macros' varargs, range's repr, for over none, center.
DIFFERENT = [
    "{{ '%s' % 'a' }}",
    "{% macro m(a) %}{{ varargs }}{% endmacro %}{{ m(1, 2) }}",
    "{{ range(2) }}",
    "{{ 'x' | center(5) }}",
    "{% for x in none %}{% endfor %}",
]

CONTEXT = json.dumps({
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho <é>"}],
    "d": {"text": "é<&>'\"\n", "number": 3, "nested": {"list": [1, "b", None, True]}, "big": 9007199254740993,
          "float": 0.1, "whole": 2.0, "tiny": 1e-9, "negative": -1.5e300},
}, ensure_ascii=False)


@pytest.mark.parametrize("index", range(len(PROBES)))
def test_features(tmp_path, index):
    source = PROBES[index]
    check(tmp_path, source, CONTEXT)


@pytest.mark.xfail(strict=True, reason="minijinja differs")
@pytest.mark.parametrize("index", range(len(DIFFERENT)))
def test_known_differences(tmp_path, index):
    check(tmp_path, DIFFERENT[index], CONTEXT)
