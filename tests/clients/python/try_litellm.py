"""litellm's routes to an OpenAI-like server: text, streams, schemas, tools, its exceptions; text completions."""
import json

import litellm
import pydantic

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Returns the weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "multiply", "description": "Multiplies two integers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}]


class Person(pydantic.BaseModel):
    name: str
    age: int


def ask(messages, route="openai", **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return litellm.completion(model=f"{route}/{MODEL}", api_base=BASE, api_key=KEY, messages=messages, temperature=0, timeout=PATIENCE,
                              num_retries=0, **more)


for route in ("openai", "hosted_vllm", "lm_studio", "llamafile"):
    @step(f"{route}: text, whole and streamed")
    def text(route=route):
        whole = ask("Say hello.", route, max_tokens=20).choices[0].message.content
        pieces = [c.choices[0].delta.content or "" for c in ask("Say hello.", route, max_tokens=20, stream=True)]
        assert whole and "".join(pieces) == whole, (whole, pieces)


@step("response_format")
def structured():
    assert Person.model_validate_json(ask("Ada is 36 years old. Who is it?", response_format=Person).choices[0].message.content).age == 36


@step("text_completion")
def completion():
    assert litellm.text_completion(model=f"text-completion-openai/{MODEL}", api_base=BASE, api_key=KEY, prompt="Once upon a time", max_tokens=8,
                                   timeout=PATIENCE).choices[0].text


for name, streamed in (("tool loop", False), ("tool loop, streamed", True)):
    @step(name)
    def loop(streamed=streamed):
        messages = [{"role": "user", "content": tools.QUESTION}]
        for _ in range(8):
            answer = ask(messages, tools=TOOLS, stream=streamed)
            message = (litellm.stream_chunk_builder(list(answer)) if streamed else answer).choices[0].message
            if not message.tool_calls:
                break
            messages.append(message)
            for call in message.tool_calls:
                result = getattr(tools, call.function.name)(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
        tools.check(message.content)


@step("its exceptions: too long a prompt, a wrong key")
def exceptions():
    try:
        ask("word " * 200000, max_tokens=5)
        raise AssertionError("it was taken")
    except litellm.ContextWindowExceededError:
        pass
    try:
        litellm.completion(model=f"openai/{MODEL}", api_base=BASE, api_key="wrong", messages=[{"role": "user", "content": "x"}], num_retries=0)
        raise AssertionError("it was taken")
    except litellm.AuthenticationError:
        pass


run()
