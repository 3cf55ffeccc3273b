"""outlines: its own kinds of output through both of its remote models (OpenAI's API, vLLM's server)."""
import typing

import openai
import outlines
import pydantic

from steps import BASE, KEY, MODEL, PATIENCE, run, step

client = openai.OpenAI(base_url=BASE, api_key=KEY, timeout=PATIENCE, max_retries=0)


class Cup(pydantic.BaseModel):
    model_config = {"extra": "forbid"}    # vLLM's field is sent the schema as it is: without this any other key may follow
    drink: typing.Literal["tea", "coffee"]
    sugar: int = pydantic.Field(ge=0, le=9)


@step("from_openai: pydantic model")
def from_openai():
    text = outlines.from_openai(client, MODEL)("Describe a cup.", Cup, temperature=0)
    assert Cup.model_validate_json(text)


@step("from_vllm: pydantic model")
def from_vllm():
    assert Cup.model_validate_json(outlines.from_vllm(client, MODEL)("Describe a cup.", Cup, temperature=0))


@step("from_vllm: choice")
def choice():
    assert outlines.from_vllm(client, MODEL)("Tea or coffee?", typing.Literal["tea", "coffee"]) in ("tea", "coffee")


@step("from_vllm: regex")
def regex():
    text = outlines.from_vllm(client, MODEL)("A plate:", outlines.regex("[A-Z]{2}-[0-9]{3}"))
    assert len(text) == 6 and text[2] == "-", text


@step("from_vllm: grammar")
def grammar():
    text = outlines.from_vllm(client, MODEL)("Count.", outlines.cfg('start: "<" /[0-9]{1,3}/ ">"'))
    assert text.startswith("<") and text.endswith(">"), text


@step("from_vllm: stream")
def stream():
    assert Cup.model_validate_json("".join(outlines.from_vllm(client, MODEL).stream("Describe a cup.", Cup)))


@step("from_sglang: pydantic model")
def from_sglang():
    assert Cup.model_validate_json(outlines.from_sglang(client, MODEL)("Describe a cup.", Cup, temperature=0))


@step("from_sglang: regex")
def sglang_regex():
    text = outlines.from_sglang(client, MODEL)("A plate:", outlines.regex("[A-Z]{2}-[0-9]{3}"))
    assert len(text) == 6 and text[2] == "-", text


run()
