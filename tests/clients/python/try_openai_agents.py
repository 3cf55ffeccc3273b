"""OpenAI's Agents SDK, by chat completions and by its default, the responses API: tools, output types, streams."""
import openai
import pydantic
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step

set_tracing_disabled(True)
settings = ModelSettings(temperature=0)


class Person(pydantic.BaseModel):
    name: str
    age: int


def model(kind):
    return kind(model=MODEL, openai_client=openai.AsyncOpenAI(base_url=BASE, api_key=KEY, timeout=PATIENCE, max_retries=0))


for api, kind in (("chat completions", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
    @step(f"{api}: output type")
    async def output_type(kind=kind):
        agent = Agent(name="finder", instructions="Find the person.", model=model(kind), output_type=Person, model_settings=settings)
        person = (await Runner.run(agent, "Ada is 36 years old. Who is it?")).final_output
        assert person.age == 36, person

    @step(f"{api}: tool loop")
    async def loop(kind=kind):
        agent = Agent(name="helper", model=model(kind), tools=[function_tool(tools.weather), function_tool(tools.multiply)], model_settings=settings)
        tools.check((await Runner.run(agent, tools.QUESTION)).final_output)

    @step(f"{api}: tool loop, streamed")
    async def streamed(kind=kind):
        agent = Agent(name="helper", model=model(kind), tools=[function_tool(tools.weather), function_tool(tools.multiply)], model_settings=settings)
        result = Runner.run_streamed(agent, tools.QUESTION)
        kinds = {event.type async for event in result.stream_events()}
        tools.check(result.final_output)
        assert "raw_response_event" in kinds and "run_item_stream_event" in kinds, kinds


run()
