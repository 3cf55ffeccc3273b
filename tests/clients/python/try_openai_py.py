"""The official openai package: parsed answers, the helpers for streams."""
import typing

import openai
import pydantic

from steps import BASE, KEY, MODEL, PATIENCE, run, step

client = openai.OpenAI(base_url=BASE, api_key=KEY, timeout=PATIENCE, max_retries=0)
ASK = [{"role": "user", "content": "Give a recipe for tea as JSON."}]


class Step(pydantic.BaseModel):
    title: typing.Literal["boil", "pour", "wait"]
    minutes: int = pydantic.Field(ge=0, le=60)


class Recipe(pydantic.BaseModel):
    dish: typing.Literal["tea", "soup"]
    steps: list[Step] = pydantic.Field(min_length=1, max_length=3)


@step("parse")
def parse():
    answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Recipe, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, Recipe)


@step("parse, streamed")
def stream():
    kinds = set()
    with client.chat.completions.stream(model=MODEL, messages=ASK, response_format=Recipe, temperature=0,
                                        stream_options={"include_usage": True}) as events:
        for event in events:
            kinds.add(event.type)
        final = events.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Recipe) and final.usage.completion_tokens > 0
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds


@step("JSON mode")
def json_mode():
    answer = client.chat.completions.create(model=MODEL, messages=ASK, response_format={"type": "json_object"}, temperature=0, max_tokens=300)
    assert answer.choices[0].message.content.lstrip().startswith("{")


@step("async")
async def asynchronous():
    async with openai.AsyncOpenAI(base_url=BASE, api_key=KEY, timeout=PATIENCE, max_retries=0) as other:
        answer = await other.chat.completions.parse(model=MODEL, messages=ASK, response_format=Recipe, temperature=0)
        assert answer.choices[0].message.parsed.steps


run()
