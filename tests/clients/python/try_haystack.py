"""haystack: chat generator, streams, response_format, an agent."""
import pydantic
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step


class Person(pydantic.BaseModel):
    name: str
    age: int


def generator(streaming=None, **more):
    return OpenAIChatGenerator(api_key=Secret.from_token(KEY), model=MODEL, api_base_url=BASE, timeout=PATIENCE, max_retries=0,
                               streaming_callback=streaming, generation_kwargs={"temperature": 0, **more})


@step("chat, streamed")
def chat():
    pieces = []
    reply = generator(pieces.append, max_tokens=20).run([ChatMessage.from_user("Say hello.")])["replies"][0]
    assert reply.text and len(pieces) > 1


@step("response_format")
def structured():
    reply = generator(response_format=Person).run([ChatMessage.from_user("Ada is 36 years old. Who is it?")])["replies"][0]
    assert Person.model_validate_json(reply.text).age == 36, reply.text


for name, streaming in (("agent", None), ("agent, streamed", lambda piece: None)):
    @step(name)
    def agent(streaming=streaming):
        made = Agent(chat_generator=generator(streaming), tools=[create_tool_from_function(f) for f in (tools.weather, tools.multiply)],
                     max_agent_steps=8)
        made.warm_up()
        tools.check(made.run([ChatMessage.from_user(tools.QUESTION)])["messages"][-1].text)


run()
