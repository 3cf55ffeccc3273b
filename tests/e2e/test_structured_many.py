"""Finished answers of real models to generated schemas all validate: 2,000 of SmolLM2, 200 of Qwen2.5-Coder (`./test full`)."""
import concurrent.futures
import decimal
import json
import os
import pathlib
import sys

import httpx
import jsonschema
import pytest

import harness

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import test_grammar                         # noqa: E402

WANTED = {"QUIRE_TEST_MODEL": 2000, "QUIRE_TEST_QWEN": 200}


def ask(server, seed):
    """(schema, text or None when it was cut or could not be compiled)."""
    schema = test_grammar.Generator(seed).top()
    body = {"messages": [{"role": "user", "content": "Answer with a short value as JSON."}], "max_tokens": 150, "temperature": 0.8,
            "seed": seed, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=600)
    if answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_constraint":
        return schema, None
    assert answer.status_code == 200, (answer.text, schema)
    choice = answer.json()["choices"][0]
    return schema, choice["message"]["content"] if choice["finish_reason"] == "stop" else None


@pytest.mark.long
@pytest.mark.parametrize("name", list(WANTED))
def test_finished_answers_validate(name):
    model, wanted = os.environ.get(name), WANTED[name]
    if not model:
        pytest.skip(f"{name} is not set")
    finished = tried = 0
    with harness.started("--memory", "2GiB" if name == "QUIRE_TEST_QWEN" else "512MiB", model=model) as server, \
            concurrent.futures.ThreadPoolExecutor(24) as pool:
        while finished < wanted:
            for schema, text in pool.map(lambda seed: ask(server, seed), range(tried, tried + 96)):
                tried += 1
                if text is not None:
                    # Exactly: 5.0000000000000000001 is above 5, and the double of it is not.
                    jsonschema.validate(json.loads(text, parse_float=decimal.Decimal), schema, jsonschema.Draft202012Validator)
                    finished += 1
            assert tried < 4 * wanted, (tried, finished)
            print(f"{name}: {finished} finished answers of {tried} validate", flush=True)
