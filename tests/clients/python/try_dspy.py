"""DSPy: a typed signature through the chat adapter and the JSON adapter."""
import dspy
import pydantic

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step


class Person(pydantic.BaseModel):
    name: str
    age: int


class Find(dspy.Signature):
    """Find the person in the text."""
    text: str = dspy.InputField()
    person: Person = dspy.OutputField()


def predict(adapter, signature=Find, text="Ada is 36 years old."):
    lm = dspy.LM(f"openai/{MODEL}", api_base=BASE, api_key=KEY, temperature=0, max_tokens=400, cache=False, num_retries=0, timeout=PATIENCE)
    with dspy.context(lm=lm, adapter=adapter):
        return dspy.Predict(signature)(text=text)


@step("JSONAdapter")
def json_adapter():
    assert predict(dspy.JSONAdapter()).person.age == 36


@step("ChatAdapter")
def chat_adapter():
    assert predict(dspy.ChatAdapter()).person.age == 36


@step("ReAct")
def react():
    lm = dspy.LM(f"openai/{MODEL}", api_base=BASE, api_key=KEY, temperature=0, max_tokens=600, cache=False, num_retries=0, timeout=PATIENCE)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        tools.check(dspy.ReAct("question -> answer", tools=[tools.weather, tools.multiply], max_iters=5)(question=tools.QUESTION).answer)


run()
