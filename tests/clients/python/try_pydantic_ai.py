"""pydantic-ai: native output, prompted output, output by a tool, streams, tool loops."""
import pydantic
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))
settings = ModelSettings(temperature=0, timeout=PATIENCE)
ASK = "Ada is 36 years old. Who is it?"


class Person(pydantic.BaseModel):
    name: str
    age: int


for name, output in (("native output", NativeOutput(Person)), ("prompted output", PromptedOutput(Person))):
    @step(name)
    async def structured(output=output):
        result = await Agent(model, output_type=output, model_settings=settings).run(ASK)
        assert result.output.age == 36, result.output


@step("native output, streamed")
async def stream():
    async with Agent(model, output_type=NativeOutput(Person), model_settings=settings).run_stream(ASK) as result:
        person = await result.get_output()
    assert person.age == 36, person


@step("text, streamed, with usage")
async def text():
    async with Agent(model, model_settings=settings).run_stream("Say hello.") as result:
        said = "".join([piece async for piece in result.stream_text(delta=True)])
        usage = result.usage() if callable(result.usage) else result.usage
    assert said and usage.output_tokens > 0


@step("default output")
async def default_output():
    result = await Agent(model, output_type=Person, model_settings=settings).run(ASK)
    assert result.output.age == 36, result.output


@step("default output, streamed")
async def default_stream():
    async with Agent(model, output_type=Person, model_settings=settings).run_stream(ASK) as result:
        person = await result.get_output()
    assert person.age == 36, person


@step("tool loop")
async def tool_loop():
    result = await Agent(model, tools=[tools.weather, tools.multiply], model_settings=settings).run(tools.QUESTION)
    tools.check(result.output)


@step("tool loop, streamed")
async def tool_stream():
    async with Agent(model, tools=[tools.weather, tools.multiply], model_settings=settings) as agent:
        async with agent.run_stream(tools.QUESTION) as result:
            said = await result.get_output()
    tools.check(said)


run()
