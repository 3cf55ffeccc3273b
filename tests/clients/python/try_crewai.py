"""crewAI: a crew of one agent, with tools and with a typed result."""
import pydantic
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step


class Person(pydantic.BaseModel):
    name: str
    age: int


def llm(**more):
    return LLM(model=f"openai/{MODEL}", base_url=BASE, api_key=KEY, temperature=0, timeout=PATIENCE, max_tokens=600, **more)


def crew(task, used=(), **more):
    agent = Agent(role="helper", goal="Answer exactly.", backstory="You are exact and short.", llm=llm(), tools=list(used), max_iter=6, max_retry_limit=0)
    return Crew(agents=[agent], tasks=[Task(description=task, expected_output="the answer", agent=agent, **more)]).kickoff()


@step("crew")
def plain():
    assert crew("Say hello.").raw


@step("crew, output_pydantic")
def typed():
    assert crew("Ada is 36 years old. Who is it?", output_pydantic=Person).pydantic.age == 36


@step("LLM.call with response_format")
def response_format():
    answer = llm(response_format=Person).call("Ada is 36 years old. Who is it?")
    person = answer if isinstance(answer, Person) else Person.model_validate_json(answer)
    assert person.age == 36, person


@step("crew with tools")
def with_tools():
    tools.check(crew(tools.QUESTION, [tool("weather")(tools.weather), tool("multiply")(tools.multiply)]).raw)


run()
