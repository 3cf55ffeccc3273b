"""autogen: an assistant with tools, structured output, streams."""
import pydantic
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step

ABOUT = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown", "structured_output": True}


class Person(pydantic.BaseModel):
    name: str
    age: int


def client():
    return OpenAIChatCompletionClient(model=MODEL, base_url=BASE, api_key=KEY, model_info=ABOUT, temperature=0, timeout=PATIENCE, max_retries=0)


@step("create, json_output with a model")
async def structured():
    answer = await client().create([UserMessage(content="Ada is 36 years old. Who is it?", source="user")], json_output=Person)
    assert Person.model_validate_json(answer.content).age == 36, answer


@step("create_stream")
async def stream():
    pieces = [piece async for piece in client().create_stream([UserMessage(content="Say hello.", source="user")], max_consecutive_empty_chunk_tolerance=50)]
    assert pieces[-1].content and pieces[-1].usage is not None


for name, streamed in (("agent with tools", False), ("agent with tools, streamed", True)):
    @step(name)
    async def agent(streamed=streamed):
        made = AssistantAgent("helper", client(), tools=[tools.weather, tools.multiply], max_tool_iterations=8, model_client_stream=streamed,
                              system_message="You are helpful.")
        tools.check((await made.run(task=tools.QUESTION)).messages[-1].content)


run()
