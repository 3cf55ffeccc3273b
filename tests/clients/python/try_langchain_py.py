"""LangChain: with_structured_output by schema, JSON mode and function calling, streams, agents."""
import pydantic
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step

llm = ChatOpenAI(base_url=BASE, api_key=KEY, model=MODEL, temperature=0, timeout=PATIENCE, max_retries=0, stream_usage=True)


class Person(pydantic.BaseModel):
    """A person."""
    name: str = pydantic.Field(description="the first name")
    age: int = pydantic.Field(description="the age in years")


ASK = "Ada is 36 years old. Answer as JSON with the keys name and age: who is it?"


@step("with_structured_output, json_schema")
def json_schema():
    person = llm.with_structured_output(Person, method="json_schema").invoke(ASK)
    assert isinstance(person, Person) and person.age == 36, person


@step("with_structured_output, json_schema strict")
def strict():
    person = llm.with_structured_output(Person, method="json_schema", strict=True).invoke(ASK)
    assert isinstance(person, Person) and person.age == 36, person


@step("with_structured_output, json_mode")
def json_mode():
    person = llm.with_structured_output(Person, method="json_mode").invoke(ASK)
    assert isinstance(person, Person) and person.age == 36, person


@step("stream with usage")
def stream():
    chunks = list(llm.stream("Say hello."))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole


@step("astream of a schema")
async def stream_schema():
    last = None
    async for last in llm.with_structured_output(Person.model_json_schema(), method="json_schema").astream(ASK):
        pass
    assert last["age"] == 36, last


for name, streamed in (("agent", False), ("agent, streamed", True)):
    @step(name)
    def agent(streamed=streamed):
        made = create_agent(llm, [tool(tools.weather), tool(tools.multiply)])
        ask = {"messages": [{"role": "user", "content": tools.QUESTION}]}
        if streamed:
            for _, chunk in made.stream(ask, stream_mode=["messages", "values"]):
                last = chunk
        else:
            last = made.invoke(ask)
        tools.check(last["messages"][-1].text)


@step("with_structured_output, function_calling")
def function_calling():
    person = llm.with_structured_output(Person, method="function_calling").invoke(ASK)
    assert isinstance(person, Person) and person.age == 36, person


@step("agent with response_format")
def structured_agent():
    made = create_agent(llm, [], response_format=Person)
    person = made.invoke({"messages": [{"role": "user", "content": ASK}]})["structured_response"]
    assert person.age == 36, person


run()
