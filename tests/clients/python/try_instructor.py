"""instructor: a pydantic object from JSON mode, JSON schema, tools; retries on its validator, streams of partial objects."""
import typing

import instructor
import openai
import pydantic

from steps import BASE, KEY, MODEL, PATIENCE, run, step

plain = openai.OpenAI(base_url=BASE, api_key=KEY, timeout=PATIENCE, max_retries=0)
ASK = [{"role": "user", "content": "Ada is 36 years old. Who is it?"}]


class Person(pydantic.BaseModel):
    name: str
    age: int


for mode in ("JSON", "JSON_SCHEMA", "MD_JSON", "TOOLS", "TOOLS_STRICT"):
    @step(mode)
    def structured(mode=mode):
        client = instructor.from_openai(plain, mode=instructor.Mode[mode])
        person = client.chat.completions.create(model=MODEL, messages=ASK, response_model=Person, temperature=0, max_tokens=200)
        assert person.age == 36, person


@step("JSON_SCHEMA, partial objects")
def partial():
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    last = None
    for last in client.chat.completions.create_partial(model=MODEL, messages=ASK, response_model=Person, temperature=0, max_tokens=200):
        pass
    assert last.age == 36, last


@step("PARALLEL_TOOLS")
def parallel():
    client = instructor.from_openai(plain, mode=instructor.Mode.PARALLEL_TOOLS)
    people = list(client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Ada is 36 years old, Bob is 7. Report each."}],
        response_model=typing.Iterable[Person], temperature=0, max_tokens=300))
    assert [person.age for person in people] == [36, 7], people


run()
