"""The keywords of JSON schema as docs/api.md lists them are those that the compiler enforces, passes over and refuses.

Each keyword of drafts 3 to 2020-12 is compiled in a schema of its own, with a text that it forbids and one that it
allows. `python tests/reference/test_keywords.py --draw` writes the table of docs/api.md anew.
"""
import pathlib
import re
import sys

import test_grammar

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/api.md"
BEGIN, END = "<!-- begin keywords: tests/reference/test_keywords.py --draw -->\n", "<!-- end keywords -->\n"
FORMATS = {"date": "2026-02-03", "time": "12:30:00Z", "date-time": "2026-02-03T12:30:00Z", "duration": "P3D", "email": "a@b.cd",
           "hostname": "a.example", "ipv4": "127.0.0.1", "ipv6": "::1", "uuid": "123e4567-e89b-12d3-a456-426614174000", "uri": "http://a.example/b",
           "json-pointer": "/a", "regex": "a", "uri-reference": "/a", "uri-template": "/a", "iri": "http://a.example/ü",
           "iri-reference": "/ü", "idn-email": "ü@b.cd", "idn-hostname": "ü.example", "relative-json-pointer": "1/a", "color": "red"}

# keyword: (the schema with it, what it forbids, what it allows)
PROBES = {
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "1", "null"),
    "type": ({"type": "null"}, "1", "null"),
    "enum": ({"enum": [1, "a"]}, "2", "1"),
    "const": ({"const": [1]}, "[2]", "[1]"),
    "allOf": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "2", "3"),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "1", "null"),
    "oneOf": ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "1", "null"),
    "not": ({"type": ["null", "boolean"], "not": {"type": "null"}}, "null", "true"),
    "if": ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "2", "3"),
    "then": ({"then": {"type": "null"}}, "1", "null"),
    "else": ({"else": {"type": "null"}}, "1", "null"),
    "properties": ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a":1}', '{"a":null}'),
    "patternProperties": ({"type": "object", "patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, '{"ab":1}', '{"ab":null}'),
    "additionalProperties": ({"type": "object", "additionalProperties": False}, '{"a":1}', "{}"),
    "required": ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, "{}", '{"a":1}'),
    "minProperties": ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "null"}}, "{}", '{"a":null}'),
    "maxProperties": ({"type": "object", "maxProperties": 0}, '{"a":1}', "{}"),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 1}}, '{"ab":1}', '{"a":1}'),
    "dependencies": ({"dependencies": {"a": ["b"]}}, '{"a":1}', "{}"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, '{"a":1}', "{}"),
    "dependentSchemas": ({"dependentSchemas": {"a": {"required": ["b"]}}}, '{"a":1}', "{}"),
    "items": ({"type": "array", "items": {"type": "null"}}, "[1]", "[null]"),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "null"}]}, "[1]", "[null]"),
    "additionalItems": ({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, "[null,1]", "[null]"),
    "minItems": ({"type": "array", "minItems": 1}, "[]", "[1]"),
    "maxItems": ({"type": "array", "maxItems": 1}, "[1,2]", "[1]"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "[1,1]", "[1]"),
    "contains": ({"type": "array", "contains": {"const": 1}}, "[2]", "[1]"),
    "minContains": ({"type": "array", "contains": {}, "minContains": 2}, "[1]", "[1,2]"),
    "maxContains": ({"type": "array", "contains": {}, "maxContains": 1}, "[1,2]", "[1]"),
    "unevaluatedItems": ({"type": "array", "unevaluatedItems": False}, "[1]", "[]"),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, '{"a":1}', "{}"),
    "minLength": ({"type": "string", "minLength": 2}, '"a"', '"ab"'),
    "maxLength": ({"type": "string", "maxLength": 2}, '"abc"', '"ab"'),
    "pattern": ({"type": "string", "pattern": "^a+$"}, '"b"', '"a"'),
    "minimum": ({"type": "integer", "minimum": 3}, "2", "3"),
    "maximum": ({"type": "integer", "maximum": 3}, "4", "3"),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 3}, "3", "4"),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 3}, "3", "2"),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, "4", "6"),
    "divisibleBy": ({"type": "integer", "divisibleBy": 3}, "4", "6"),
    "disallow": ({"disallow": ["null"]}, "null", "1"),
    "extends": ({"extends": {"type": "null"}}, "1", "null"),
    "$dynamicRef": ({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a", "type": "null"}}}, "1", "null"),
    "$recursiveRef": ({"$recursiveRef": "#", "type": ["array", "null"]}, "1", "null"),
    **{name: ({name: value}, None, "1") for name, value in {
        "title": "a", "description": "a", "default": 1, "examples": [1], "deprecated": True, "readOnly": True, "writeOnly": True,
        "$comment": "a", "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://a.example/s", "$anchor": "a",
        "$defs": {"a": {"type": "null"}}, "definitions": {"a": {"type": "null"}}, "$vocabulary": {}, "$dynamicAnchor": "a",
        "contentEncoding": "base64", "contentMediaType": "a/b", "contentSchema": {"type": "null"}, "nullable": True,
        "discriminator": {"propertyName": "a"}, "x-any": 1}.items()},
}


def classify():
    """({keyword: "enforced" | "annotation" | "refused"}, the same of formats)."""
    formats = {name: ({"type": "string", "format": name}, '"?? ??"', f'"{good}"') for name, good in FORMATS.items()}
    probes = {**PROBES, **{f"format {name}": probe for name, probe in formats.items()}}
    answers = test_grammar.tool([test_grammar.schema_request(schema, [t for t in (bad, good) if t]) for schema, bad, good in probes.values()])
    kinds = {}
    for (name, (_, bad, _)), answer in zip(probes.items(), answers):
        if "error" in answer:
            kinds[name] = "refused"
        else:
            assert answer["accepted"][-1], f"{name} forbids what it allows"
            kinds[name] = "enforced" if bad and not answer["accepted"][0] else "annotation"
    return ({n: k for n, k in kinds.items() if not n.startswith("format ")},
            {n[7:]: k for n, k in kinds.items() if n.startswith("format ")})


def table():
    keywords, formats = classify()

    def listed(kinds, kind):
        return ", ".join(f"`{name}`" for name, is_kind in kinds.items() if is_kind == kind)

    return (BEGIN + "| keywords of JSON schema (drafts 3 to 2020-12) | |\n|---|---|\n"
            f"| enforced | {listed(keywords, 'enforced')}; `format` by form: {listed(formats, 'enforced')} |\n"
            f"| annotations, no effect | {listed(keywords, 'annotation')}, and every keyword that no draft defines |\n"
            f"| refused | {listed(keywords, 'refused')}; `format`: {listed(formats, 'refused')} and others |\n" + END)


def test_the_page_lists_what_the_compiler_does():
    page = PAGE.read_text()
    assert page[page.index(BEGIN):page.index(END) + len(END)] == table(), "run tests/reference/test_keywords.py --draw"


def test_every_keyword_that_the_compiler_knows_is_probed():
    source = (PAGE.parents[1] / "subprojects/textshim/src/schema.rs").read_text()
    lists = re.findall(r"const (?:SUPPORTED|REFUSED|DEPENDENT|STRUCTURE): \[&str; \d+\] = \[(.*?)\];", source, re.S)
    assert len(lists) == 4
    assert set(re.findall(r'"([^"]+)"', "".join(lists))) <= {*PROBES, "format", "id"}


if __name__ == "__main__":
    if sys.argv[1:] == ["--draw"]:
        text = PAGE.read_text()
        PAGE.write_text(text[:text.index(BEGIN)] + table() + text[text.index(END) + len(END):])
    else:
        print(table())
