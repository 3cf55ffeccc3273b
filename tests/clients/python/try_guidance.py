"""guidance: its programs through OpenAI's API and through vLLM's and SGLang's fields."""
import json
import typing

import guidance
import pydantic
from guidance import assistant, gen, user
from guidance import json as json_of
from guidance.models.experimental import SglangModel, VLLMModel

from steps import BASE, KEY, MODEL, run, step


class Cup(pydantic.BaseModel):
    drink: typing.Literal["tea", "coffee"]
    sugar: int = pydantic.Field(ge=0, le=9)


def ask(model, question, answer):
    with user():
        model += question
    with assistant():
        model += answer
    return model


def openai():
    return guidance.models.OpenAI(MODEL, api_key=KEY, base_url=BASE, echo=False)


@step("OpenAI: gen")
def text():
    assert ask(openai(), "Say hello.", gen("said", max_tokens=20))["said"]


@step("OpenAI: json")
def structured():
    assert Cup(**json.loads(ask(openai(), "Describe a cup.", json_of("cup", schema=Cup))["cup"]))


for name, kind in (("VLLMModel", VLLMModel), ("SglangModel", SglangModel)):
    def model(kind=kind):
        return kind(MODEL, base_url=BASE, api_key=KEY, echo=False)

    @step(f"{name}: json")
    def cup(model=model):
        assert Cup(**json.loads(ask(model(), "Describe a cup.", json_of("cup", schema=Cup))["cup"]))

    @step(f"{name}: select and gen with a regex")
    def program(model=model):
        said = ask(model(), "Tea or coffee, how many?", guidance.select(["tea", "coffee"], name="drink") + ": " + gen("many", regex="[0-9]{1,2}"))
        assert said["drink"] in ("tea", "coffee") and said["many"].isdigit()


run()
