"""LlamaIndex's OpenAILike: chat, streams, structured predictions, an agent."""
import pydantic
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step


class Person(pydantic.BaseModel):
    """A person."""
    name: str
    age: int


def model(**more):
    return OpenAILike(model=MODEL, api_base=BASE, api_key=KEY, is_chat_model=True, temperature=0, timeout=PATIENCE, max_retries=0,
                      context_window=8192, **more)


ASK = "Ada is 36 years old. Who is it?"


@step("chat")
def chat():
    assert model().chat([ChatMessage(role="user", content="Say hello.")]).message.content


@step("stream_chat")
def stream():
    assert [piece.delta for piece in model().stream_chat([ChatMessage(role="user", content="Say hello.")])]


@step("complete")
def complete():
    assert model(max_tokens=20).complete("Once upon a time").text


@step("structured_predict, json_schema")
def schema():
    person = model(should_use_structured_outputs=True).structured_predict(Person, PromptTemplate(ASK))
    assert person.age == 36, person


@step("as_structured_llm, prompted")
def prompted():
    person = model().as_structured_llm(Person).chat([ChatMessage(role="user", content=ASK)]).raw
    assert person.age == 36, person


@step("structured_predict, by a tool")
def by_tool():
    person = model(is_function_calling_model=True).structured_predict(Person, PromptTemplate(ASK))
    assert person.age == 36, person


@step("FunctionAgent")
async def agent():
    made = FunctionAgent(tools=[FunctionTool.from_defaults(tools.weather), FunctionTool.from_defaults(tools.multiply)],
                         llm=model(is_function_calling_model=True), timeout=PATIENCE)
    tools.check(str(await made.run(tools.QUESTION)))


run()
