"""Constrained output through the real clients: schemas, expressions, lists, grammars; streams, choices, errors, memory."""
import concurrent.futures
import json
import re
import threading
import time
import typing

import httpx
import jsonschema
import openai
import pydantic
import pytest

import harness

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Describe a person as JSON."}]


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def chat(client, **fields):
    return client.chat.completions.create(**{"model": "default", "messages": ASK, "max_tokens": 100, "temperature": 0, **fields})


class Step(pydantic.BaseModel):
    title: typing.Literal["boil", "pour", "wait"]
    minutes: int


class Recipe(pydantic.BaseModel):
    dish: typing.Literal["tea", "soup"]
    steps: list[Step] = pydantic.Field(min_length=1, max_length=2)


@pytest.mark.sanitizer
def test_parse_gives_an_object(client):
    answer = client.chat.completions.parse(model="default", messages=ASK, response_format=Recipe, max_tokens=150, temperature=0)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Recipe) and answer.choices[0].message.parsed.steps


def test_answers_fit_and_streams_say_the_same(client):
    for temperature in (0, 0.9):
        fields = {"response_format": as_format(PERSON), "temperature": temperature, "seed": 5}
        whole = chat(client, **fields).choices[0]
        assert whole.finish_reason == "stop"
        jsonschema.validate(json.loads(whole.message.content), PERSON)
        parts = [c.choices[0] for c in chat(client, stream=True, **fields) if c.choices]
        assert "".join(p.delta.content or "" for p in parts) == whole.message.content
        assert parts[-1].finish_reason == "stop"
        # With log-probabilities every token is sampled under its mask; without, those that must follow are appended.
        masked = chat(client, logprobs=True, **fields).choices[0]
        assert masked.message.content == whole.message.content
        assert "".join(t.token for t in masked.logprobs.content) == whole.message.content


def test_several_choices_and_neighbours(server, client):
    """Each of n fits; the same bytes alone and among others, constrained and free."""
    fields = {"response_format": as_format(PERSON), "temperature": 1.0, "seed": 11, "n": 3}
    alone = [c.message.content for c in chat(client, **fields).choices]
    for text in alone:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(alone)) > 1
    others = [{"temperature": 1.0, "seed": i, **({} if i % 2 else {"response_format": {"type": "json_object"}})} for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        busy = [pool.submit(chat, client, **other) for other in others]
        again = [c.message.content for c in pool.submit(chat, client, **fields).result().choices]
        for one in busy:
            one.result()
    assert again == alone


def test_the_forms_of_four_apis(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    for body in [{"response_format": as_format(schema)}, {"response_format": {"type": "json_object", "schema": schema}},
                 {"response_format": {"type": "json_object", "value": schema}}, {"response_format": {"type": "json", "value": schema}},
                 {"structured_outputs": {"json": schema}}, {"structured_outputs": {"json": json.dumps(schema)}},
                 {"guided_json": schema}, {"json_schema": schema}, {"json_schema": json.dumps(schema)}]:
        text = chat(client, max_tokens=30, extra_body=body).choices[0].message.content
        assert re.fullmatch(r'\{\s*"ok"\s*:\s*(true|false)\s*\}', text), (body, text)
    for body in [{"response_format": {"type": "regex", "value": "[a-f]{4}-[0-9]{2}"}}, {"structured_outputs": {"regex": "[a-f]{4}-[0-9]{2}"}}, {"guided_regex": "[a-f]{4}-[0-9]{2}"}, {"regex": "[a-f]{4}-[0-9]{2}"}]:
        assert re.fullmatch("[a-f]{4}-[0-9]{2}", chat(client, extra_body=body).choices[0].message.content)
    both = {"guided_choice": ["yes", "no"], "structured_outputs": {"choice": ["yes", "no"]}, "guided_decoding_backend": "guidance"}    # guidance's client
    for body in [{"structured_outputs": {"choice": ["yes", "no"]}}, {"guided_choice": ["yes", "no"]}, both]:
        assert chat(client, extra_body=body).choices[0].message.content in ("yes", "no")
    for body in [{"grammar": 'root ::= "<" [a-c]+ ">"'}, {"ebnf": 'root ::= "<" [a-c]+ ">"'},
                 {"structured_outputs": {"grammar": 'start: "<" /[a-c]{1,5}/ ">"'}}, {"guided_grammar": 'start: "<" /[a-c]{1,5}/ ">"'}]:
        choice = chat(client, extra_body=body, max_tokens=60).choices[0]
        assert re.fullmatch("<[a-c]+>" if choice.finish_reason == "stop" else "<[a-c]*", choice.message.content)
    completion = client.completions.create(model="default", prompt="Answer:", max_tokens=8, extra_body={"guided_choice": ["yes", "no"]})
    assert completion.choices[0].text in ("yes", "no")
    for body in [{"response_format": {"type": "text"}}, {"grammar": ""}, {"structured_outputs": {"json_object": False}}, {"guided_json": None},
                 {"structured_outputs": {"disable_fallback": True, "disable_any_whitespace": False}}]:
        assert chat(client, max_tokens=3, extra_body=body).choices[0].finish_reason == "length"


def test_with_the_other_parameters(client):
    constrained = {"response_format": as_format(PERSON)}
    text = chat(client, **constrained).choices[0].message.content
    cut = chat(client, max_tokens=5, **constrained).choices[0]
    assert cut.finish_reason == "length" and text.startswith(cut.message.content)
    stopped = chat(client, stop=["\"age\""], **constrained).choices[0]
    assert stopped.finish_reason == "stop" and stopped.message.content == text[:text.index('"age"')]
    for fields in [{"presence_penalty": 2, "frequency_penalty": 2}, {"logit_bias": {"11": 100}},
                   {"extra_body": {"repetition_penalty": 1.5, "top_k": 1}}, {"top_p": 0.1, "temperature": 1}]:
        answer = chat(client, **constrained, **fields).choices[0]
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.message.content), PERSON)


@pytest.mark.parametrize("body, param, says", [
    ({"response_format": as_format({"properties": {"a": {"not": {}}}})}, "response_format", "/properties/a/not"),
    ({"guided_json": {"$ref": "https://example.com/x"}}, "guided_json", "/$ref"),
    ({"guided_json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "guided_json", ""),
    ({"guided_json": 3}, "guided_json", "schema"),
    ({"guided_regex": "(a"}, "guided_regex", ""),
    ({"guided_regex": "a(?=b)"}, "guided_regex", ""),
    ({"guided_choice": []}, "guided_choice", "list"),
    ({"grammar": "root ::= missing"}, "grammar", "missing"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
    ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, "structured_outputs", "disable_any_whitespace"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "structured_outputs", "whitespace_pattern"),
    ({"structured_outputs": {"json": {}, "disable_additional_properties": True}}, "structured_outputs", "disable_additional"),
    ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "jsn"),
    ({"guided_regex": "a" * 20000}, "guided_regex", "16384"),
    ({"response_format": {"type": "grammar"}}, "response_format", "grammar"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "missing"),
    ({"response_format": {"type": "regex"}}, "response_format", "regex"),
    ({"response_format": {"type": "json_object", "value": 1}}, "response_format", "value"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "guided_regex"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "guided_regex"),
    ({"guided_json": {"description": "x" * 140000}}, "guided_json", "131072"),
])
def test_what_cannot_be_done_is_refused_by_name(server, body, param, says):
    answer = httpx.post(server.url + "/v1/chat/completions", json={"messages": ASK, "max_tokens": 5, **body}, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and says in error["message"], error


def grammar_account(server):
    return httpx.get(server.url + "/debug/memory").json()["accounts"]["grammar"]


def test_hostile_schemas_cost_nobody_else_anything(server, client):
    before = chat(client, max_tokens=12).choices[0].message.content
    chain = {"$ref": "#/$defs/a0", "$defs": {**{"a%d" % i: {"$ref": "#/$defs/a%d" % (i + 1)} for i in range(2500)}, "a2500": {"type": "null"}}}
    hostile = [{"guided_json": chain}, {"guided_json": {"$ref": "#"}}, {"guided_json": {"type": "array", "items": {}, "minItems": 10 ** 9}},
               {"guided_regex": "((a{0,200}){0,200}){0,200}"}, {"guided_regex": "(" * 4000 + "a" + ")" * 4000},
               {"guided_json": {"allOf": [{"anyOf": [{"const": i}, {"const": -i}]} for i in range(1, 30)]}},
               {"grammar": 'root ::= "a"{60000} "b"{60000}'}, {"guided_regex": "(.*a){30}.{60}"}]
    for body in hostile:
        answer = httpx.post(server.url + "/v1/chat/completions", json={"messages": ASK, "max_tokens": 20, **body}, timeout=120)
        assert answer.status_code in (200, 400, 500), answer.text
        account = grammar_account(server)
        assert account["used_bytes"] <= account["limit_bytes"] and account["peak_bytes"] <= account["limit_bytes"]
    # What a refusal says is freed in the ledger that it was made in: templates still have their fuel.
    used = httpx.get(server.url + "/debug/memory").json()["accounts"]["template"]["used_bytes"]
    for i in range(40):
        long = {"properties": {"p" * 100000 + str(i): {"not": {}}}}
        assert httpx.post(server.url + "/v1/chat/completions", json={"messages": ASK, "guided_json": long}, timeout=60).status_code == 400
    assert abs(httpx.get(server.url + "/debug/memory").json()["accounts"]["template"]["used_bytes"] - used) < 100000
    assert chat(client, max_tokens=12).choices[0].message.content == before


def test_others_decode_while_a_hostile_grammar_compiles(server):
    """Counted, not timed: tokens of a stream that arrive between a grammar's sending and its answer."""
    count, ended = [0], threading.Event()
    body = {"messages": ASK, "max_tokens": 1500, "stream": True, "ignore_eos": True}

    def read():
        with httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=300) as answer:
            for line in answer.iter_lines():
                count[0] += line.startswith("data: {")
                if ended.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        while count[0] < 3:
            time.sleep(0.01)
        before = count[0]
        slow = 'start: ' + 'a? ' * 2500 + '\na: "a"'       # a third of a second of processor time
        answer = httpx.post(server.url + "/v1/chat/completions", json={"messages": ASK, "max_tokens": 1, "grammar": slow}, timeout=300)
        assert answer.status_code in (200, 400, 500), answer.text
        assert count[0] - before >= 10
    finally:
        ended.set()
        reader.join()


def test_the_account_comes_back(server, client):
    """Sequences give their matchers' memory back; compiled grammars stay, each once."""
    for seed in range(3):
        chat(client, response_format=as_format(PERSON), seed=seed, n=4, temperature=1)
    one = grammar_account(server)["used_bytes"]
    for seed in range(6):
        chat(client, response_format=as_format(PERSON), seed=seed, n=4, temperature=1)
    assert grammar_account(server)["used_bytes"] == one


@pytest.mark.parametrize("options", [("--memory", "200MiB"), ("--constraints", "off")])
def test_without_room_or_turned_off_it_is_refused_by_name(options):
    with harness.started(*options) as server:
        assert grammar_account(server)["limit_bytes"] == 0
        answer = httpx.post(server.url + "/v1/chat/completions", json={"messages": ASK, "response_format": {"type": "json_object"}})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "response_format"
        assert httpx.post(server.url + "/v1/chat/completions", json={"messages": ASK, "max_tokens": 3}).status_code == 200
