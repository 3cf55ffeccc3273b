"""Constrained output beside python-jsonschema: no text that a grammar accepts is one that the validator rejects.

grammar_tool compiles each schema on SmolLM2's vocabulary, walks at random through what the masks allow, and says
of given texts whether they are accepted. Schemas come from a generator (fixed seed) and from hand.
"""
import decimal
import json
import os
import random
import re
import subprocess

import jsonschema
import pytest

LONG = bool(os.environ.get("QUIRE_TEST_FULL"))
SCHEMA, REGEX, CHOICE, GRAMMAR = range(4)


def tool(requests, *, steps=120):
    """grammar_tool's answers to [{kind, source, texts?}], one run."""
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    program = os.path.join(os.environ["QUIRE_BUILD"], "tests/engine/constrain/grammar_tool")
    run = subprocess.run([program, os.environ["QUIRE_TEST_MODEL"], str(steps)], input=lines, text=True,
                         capture_output=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert "left in the account: 0" in run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(requests)
    return answers


def schema_request(schema, texts=None):
    request = {"kind": SCHEMA, "source": json.dumps(schema)}
    return request if texts is None else {**request, "texts": texts}


class Generator:
    """Schemas of the keywords that docs/api.md lists as supported, nested, with references."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *values):
        return self.random.choice(values)

    def number(self):
        low = self.random.randint(-50, 50)
        schema = {"type": self.pick("integer", "number")}
        if self.pick(0, 1):
            schema[self.pick("minimum", "exclusiveMinimum")] = low
        if self.pick(0, 1):
            schema[self.pick("maximum", "exclusiveMaximum")] = low + self.random.randint(3, 90)
        if schema["type"] == "integer" and self.pick(0, 0, 1):
            schema["multipleOf"] = self.random.randint(2, 3)
        return schema

    def string(self):
        schema = {"type": "string"}
        kind = self.random.randrange(5)
        if kind == 0:
            schema["minLength"] = self.random.randint(0, 4)
            schema["maxLength"] = schema["minLength"] + self.random.randint(0, 9)
        elif kind == 1:
            schema["pattern"] = self.pick("^[a-c]+$", "^[A-Z]{2}[0-9]{1,3}$", "^(x|yy|zzz)$", "[0-9]", "^a.c")
        elif kind == 2:
            schema["format"] = self.pick("date", "time", "date-time", "uuid", "ipv4", "email", "hostname")
        return schema

    def value(self):
        return self.pick(None, True, 7, -1.5, "red", "a \"b\"\n", [], [1, "x"], {"k": [None]})

    def schema(self, depth):
        kinds = ["number", "string", "boolean", "null", "enum", "const"]
        if depth > 0:
            kinds += ["object", "array", "tuple", "anyOf", "allOf", "ref"] * 2
        kind = self.random.choice(kinds)
        if kind == "number":
            return self.number()
        if kind == "string":
            return self.string()
        if kind in ("boolean", "null"):
            return {"type": kind}
        if kind == "enum":
            return {"enum": [self.value() for _ in range(self.random.randint(1, 4))]}
        if kind == "const":
            return {"const": self.value()}
        if kind == "object":
            names = self.random.sample(["id", "name", "tags", "über", "a b", "x\"y"], self.random.randint(0, 4))
            schema = {"type": "object", "properties": {n: self.schema(depth - 1) for n in names}}
            schema["required"] = [n for n in names if self.pick(0, 1)]
            extra = self.pick(True, False, None, {"type": "integer"})
            if extra is not None:
                schema["additionalProperties"] = extra
            return schema
        if kind == "array":
            low = self.random.randint(0, 3)
            schema = {"type": "array", "items": self.schema(depth - 1), "minItems": low}
            if self.pick(0, 1):
                schema["maxItems"] = low + self.random.randint(0, 3)
            return schema
        if kind == "tuple":
            return {"type": "array", "prefixItems": [self.schema(depth - 1) for _ in range(2)],
                    "items": self.pick(False, {"type": "boolean"}), "minItems": self.random.randint(0, 2)}
        if kind == "anyOf":
            return {"anyOf": [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]}
        if kind == "allOf":
            return {"allOf": [self.number(), {"minimum": -20}, {"maximum": 80}]}
        return {"$ref": "#/$defs/shared"}

    def top(self):
        schema = self.schema(3)
        schema["$defs"] = {"shared": self.pick({"type": "boolean"}, {"type": "array", "items": {"type": "null"}})}
        return schema


def test_walks_through_generated_schemas_validate():
    count = 1000 if LONG else 250
    schemas = [Generator(seed).top() for seed in range(count)]
    answers = tool([schema_request(s) for s in schemas])
    finished = refused = 0
    for schema, answer in zip(schemas, answers):
        if "error" in answer:
            refused += 1
            # An allOf of a random range and the fixed one may fit nothing; nothing else may be refused.
            assert re.search("[Uu]nsatisfiable|no text|empty|disjoint|multiple", answer["error"]), (answer["error"], schema)
            continue
        assert answer["failure"] == "", (answer, schema)
        if answer["ended"]:
            finished += 1
            # Exactly: 5.0000000000000000001 is above 5, and the double of it is not.
            jsonschema.validate(json.loads(answer["text"], parse_float=decimal.Decimal), schema, jsonschema.Draft202012Validator)
    assert finished > count * 0.7 and refused < count * 0.1


def test_instances_of_other_schemas_are_accepted_only_if_they_validate():
    """Each generated schema beside texts that were made for others, as they are and a little changed."""
    count = 400 if LONG else 60
    schemas = [Generator(seed).top() for seed in range(count)]
    walks = [a["text"] for a in tool([schema_request(s) for s in schemas]) if a.get("ended")]
    dice = random.Random(7)
    texts = [text.replace(*dice.choice([("true", "1"), ("1", "2"), (",", ",0,"), ("null", "\"x\""), ("[", "[null,"), ("{", "{\"id\":0,")]), 1)
             for text in walks] + walks
    chosen = [dice.sample(texts, 25) for _ in schemas]
    accepted = rejected = 0
    for schema, given, answer in zip(schemas, chosen, tool([schema_request(s, t) for s, t in zip(schemas, chosen)])):
        for text, good in zip(given, answer.get("accepted", [])):
            try:
                valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text, parse_float=decimal.Decimal))
            except ValueError:
                valid = False
            assert valid or not good, (text, schema)
            accepted += good
            rejected += not valid
    assert accepted > count and rejected > 10 * count


# What is wrong with the instance is what the keyword forbids, and nothing else.
REJECTED = [
    ({"type": "integer", "minimum": 3}, ["2", "2.5", "\"3\"", "null"], ["3", "40"]),
    ({"type": "number", "exclusiveMaximum": 1}, ["1", "1.0", "7"], ["0.5", "-3"]),
    ({"type": "integer", "multipleOf": 3}, ["4", "10"], ["9", "0"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["\"a\"", "\"abcd\"", "\"\\u00e9\""], ["\"ab\"", "\"äöü\""]),
    ({"type": "string", "pattern": "^[a-z]+$"}, ["\"A\"", "\"\"", "\"ab1\""], ["\"abc\""]),
    ({"enum": ["x", 1, None]}, ["\"y\"", "2", "true"], ["\"x\"", "1", "null"]),
    ({"const": {"a": 1}}, ["{}", "{\"a\":2}"], ["{\"a\":1}"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}, ["[]", "[null,null,null]", "[1]"], ["[null]"]),
    ({"type": "array", "prefixItems": [{"type": "boolean"}], "items": False}, ["[1]", "[true,1]"], ["[true]", "[]"]),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
     ["{}", "{\"a\":\"1\"}", "{\"a\":1,\"b\":2}", "[]"], ["{\"a\":1}"]),
    ({"type": "array", "prefixItems": [{"type": "string"}], "minItems": 1, "additionalItems": False}, ["[1]", "[]"], ["[\"a\"]"]),
    ({"items": [{"type": "null"}], "allOf": [{}], "additionalItems": False, "type": "array"}, ["[null,1]"], ["[null]"]),
    ({"type": "integer", "exclusiveMinimum": True, "anyOf": [{}], "minimum": 5, "$schema": "http://json-schema.org/draft-04/schema#"},
     ["5", "4"], ["6"]),
    ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, ["\"1\"", "null"], ["1", "true"]),
    ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, ["4", "5.5"], ["5"]),
    ({"type": ["string", "null"]}, ["1"], ["null", "\"\""]),
    ({"$ref": "#/definitions/t", "definitions": {"t": {"type": "array", "items": {"$ref": "#/definitions/t"}}}},
     ["[1]", "{}", "[[]"], ["[]", "[[],[[]]]"]),
    ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}}, ["{}", "{\"a\":null}"], ["{\"a\":1}"]),
]


def test_rejected_instances_are_not_accepted():
    answers = tool([schema_request(s, bad + good) for s, bad, good in REJECTED])
    for (schema, bad, good), answer in zip(REJECTED, answers):
        if "error" in answer:           # a refusal by name is honest, but these are documented as supported
            assert "minProperties" in answer["error"], (schema, answer)
            continue
        assert answer["accepted"] == [False] * len(bad) + [True] * len(good), (schema, answer, bad, good)


REFUSED = [
    ({"not": {"type": "string"}}, "/not"),
    ({"properties": {"a/b": {"uniqueItems": True}}}, "/properties/a~1b/uniqueItems"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, "/if"),
    ({"items": [{"contains": {"const": 1}}]}, "/items/0/contains"),
    ({"$defs": {"x": {"dependentRequired": {"a": ["b"]}}}}, "/$defs/x/dependentRequired"),
    ({"properties": {"a": {"$ref": "http://example.com/s.json"}}}, "/properties/a/$ref"),
    ({"anyOf": []}, "/anyOf"),
    ({"properties": {"a": {"enum": []}}}, "/properties/a/enum"),
    ({"maxLength": -1}, "/maxLength"),
    ({"unevaluatedProperties": False}, "/unevaluatedProperties"),
    ({"propertyNames": {"pattern": "a"}}, "/propertyNames"),
    ({"properties": {"a": 3}}, "/properties/a"),
    ({"const": 2 ** 53 + 1}, "/const"),
    ({"enum": [1, [2 ** 60]]}, "/enum"),
    ({"type": "integer", "maximum": 2 ** 70}, "/maximum"),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}, "/minProperties"),
    ({"prefixItems": [{}], "items": [{}], "additionalItems": False}, "/prefixItems"),
    ({"type": "integer", "multipleOf": 999983}, "/multipleOf"),
    ({"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]}, "/allOf/1/multipleOf"),
    ({"type": "string", "pattern": "a" * 20000}, "/pattern"),
    ({"properties": {"p%d" % i: {} for i in range(401)}}, "/properties"),
    ({"properties": {"a": {"allOf": [{"pattern": c} for c in "abcdefghi"]}}}, "/properties/a"),
]


def test_what_is_not_enforced_is_refused_with_its_path():
    for (schema, path), answer in zip(REFUSED, tool([schema_request(s) for s, _ in REFUSED])):
        assert answer.get("error", "").startswith(path + ": "), (schema, answer)


def test_annotations_change_nothing():
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    noted = {**plain, "title": "T", "description": "d", "default": {}, "examples": [1], "deprecated": True, "x-any": 1,
             "$schema": "https://json-schema.org/draft/2020-12/schema", "uniqueItems": False, "nullable": True}
    texts = ["{\"a\":1}", "{}", "null"]
    assert [a["accepted"] for a in tool([schema_request(s, texts) for s in (plain, noted)])] == [[True, False, False]] * 2


def test_regexes_choices_and_grammars():
    gbnf = 'root ::= "f(" arg ("," " "? arg)* ")" # a call\narg ::= [a-z]+ |\n  "-"? [0-9]{1,3}\n'
    lark = 'start: greeting " " NAME\ngreeting: "hello" | "bye"\nNAME: /[A-Z][a-z]+/\n'
    cases = [
        (REGEX, "[0-9]{3}-(ab|c)", ["123-ab", "007-c"], ["12-ab", "123-abc", ""]),
        (CHOICE, json.dumps(["yes", "no", "yes, but"]), ["yes", "no", "yes, but"], ["ye", "yes,", "maybe"]),
        (GRAMMAR, gbnf, ["f(a)", "f(ab,-12, 999)"], ["f()", "f(a", "f(1234)", "g(a)"]),
        (GRAMMAR, lark, ["hello Ann", "bye Bo"], ["hello ann", "hi Ann", "hello "]),
    ]
    answers = tool([{"kind": k, "source": s, "texts": good + bad} for k, s, good, bad in cases])
    for (_, source, good, bad), answer in zip(cases, answers):
        assert answer.get("accepted") == [True] * len(good) + [False] * len(bad), (source, answer)
    wrong = [(REGEX, "(a"), (REGEX, "a(?=b)"), (REGEX, "(a)\\1"), (CHOICE, "[]"), (CHOICE, "[\"\"]"), (GRAMMAR, ""),
             (GRAMMAR, "root ::= missing"), (GRAMMAR, "other ::= \"a\""), (GRAMMAR, "root ::= <[1]>"),
             (GRAMMAR, "root ::= \"a\"\nroot ::= \"b\""), (GRAMMAR, "start: missing"), (GRAMMAR, "{\"grammars\":[]}")]
    for (_, source), answer in zip(wrong, tool([{"kind": k, "source": s} for k, s in wrong])):
        assert answer.get("error"), source


def hostile():
    yield SCHEMA, json.dumps({"$ref": "#/$defs/a0", "$defs": {
        **{"a%d" % i: {"$ref": "#/$defs/a%d" % (i + 1)} for i in range(2500)}, "a2500": {"type": "null"}}})
    yield SCHEMA, json.dumps({"$ref": "#"})
    yield SCHEMA, json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})
    yield SCHEMA, json.dumps({"type": "array", "items": {"type": "string"}, "minItems": 10 ** 9})
    yield SCHEMA, json.dumps({"type": "string", "minLength": 10 ** 6, "maxLength": 10 ** 7})
    yield SCHEMA, json.dumps({"enum": ["v%d" % i for i in range(9000)]})
    yield SCHEMA, json.dumps({"type": "object", "properties": {"p%d" % i: {} for i in range(4000)}})
    yield SCHEMA, json.dumps({"anyOf": [{"type": "string", "pattern": ".*" + c * 200} for c in "abcdefghij"]})
    yield SCHEMA, json.dumps({"minimum": "éé" * 200})
    yield SCHEMA, json.dumps({"type": "integer", "minimum": -10 ** 300, "maximum": 10 ** 300})
    yield SCHEMA, json.dumps({"allOf": [{"anyOf": [{"const": i}, {"const": -i}]} for i in range(1, 30)]})
    yield SCHEMA, json.dumps({"type": "integer", "multipleOf": 999983})
    yield SCHEMA, json.dumps({"properties": {"p%d" % i: {"type": "integer", "multipleOf": i} for i in range(2, 140)}})
    yield SCHEMA, json.dumps({"allOf": [{"properties": {"a": {"type": "string", "pattern": ".*%s.*" % c}}} for c in "abcdefghijklmnop"]})
    for keyword in ("allOf", "anyOf"):          # references that double each other
        yield SCHEMA, json.dumps({"$ref": "#/$defs/d0", "$defs": {
            **{"d%d" % i: {keyword: [{"$ref": "#/$defs/d%d" % (i + 1)}] * 2} for i in range(60)}, "d60": {"type": "string", "pattern": "a"}}})
    yield CHOICE, json.dumps(["x%d" % i for i in range(5000)])
    yield REGEX, "(a{1,1000}){1,1000}"
    yield REGEX, ".*" + "".join("(a|b%d)?" % i for i in range(1600))
    yield REGEX, "(.*a){30}.{60}"
    yield REGEX, "((a{0,200}){0,200}){0,200}"
    yield REGEX, "(a|b)*c(a|b){900}"
    yield REGEX, "(" * 5000 + "a" + ")" * 5000
    yield REGEX, "[\\s\\S]{0,60000}"
    yield GRAMMAR, "start: r0\n" + "".join("r%d: r%d\n" % (i, i + 1) for i in range(4000)) + "r4000: \"a\"\n"
    yield GRAMMAR, "start: a\na: a a | \"x\" |"
    yield GRAMMAR, "start: " + "(" * 2000 + "\"a\"" + ")" * 2000
    yield GRAMMAR, "root ::= " + "(" * 2000 + "\"a\"" + ")" * 2000
    yield GRAMMAR, "root ::= \"a\"{60000} \"b\"{60000}"


def test_hostile_grammars_end_in_bounded_time_and_memory():
    cases = list(hostile())
    for (kind, source), answer in zip(cases, tool([{"kind": k, "source": s} for k, s in cases], steps=60)):
        shown = (source[:80], {k: v for k, v in answer.items() if k != "text"})
        assert answer["compile_us"] < 10e6, shown          # CPU time
        assert answer.get("mask_max_us", 0) < 1e6, shown
        assert answer["peak_kib"] < 48 << 10, shown        # of the process, beyond its start
        assert answer.get("bytes", 0) < 16 << 20, shown
        assert answer.get("matcher_bytes", 0) < 64 << 20, shown


if __name__ == "__main__":
    pytest.main([__file__])
