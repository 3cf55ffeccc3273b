"""The official openai package: tool loops, whole and streamed, calls that are asked for."""
import json

import openai
import pydantic

import tools
from steps import BASE, KEY, MODEL, PATIENCE, run, step

client = openai.OpenAI(base_url=BASE, api_key=KEY, timeout=PATIENCE, max_retries=0)
FUNCTIONS = [openai.pydantic_function_tool(pydantic.create_model("weather", city=(str, ...)), description="Returns the weather of a city."),
             openai.pydantic_function_tool(pydantic.create_model("multiply", a=(int, ...), b=(int, ...)), description="Multiplies two integers.")]


def loop(ask):
    """Asks until the model makes no more calls; each call's result goes back."""
    messages = [{"role": "user", "content": tools.QUESTION}]
    for _ in range(8):
        message = ask(messages)
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = getattr(tools, call.function.name)(**call.function.parsed_arguments.model_dump())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


@step("tool loop")
def tool_loop():
    tools.check(loop(lambda messages: client.chat.completions.parse(
        model=MODEL, messages=messages, tools=FUNCTIONS, temperature=0).choices[0].message))


@step("tool loop, streamed")
def tool_stream():
    def ask(messages):
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=FUNCTIONS, temperature=0) as events:
            kinds = [event.type for event in events]
            message = events.get_final_completion().choices[0].message
        assert not message.tool_calls or "tool_calls.function.arguments.done" in kinds, kinds
        return message
    tools.check(loop(ask))


@step("tool_choice required and named")
def forced():
    for choice in ("required", {"type": "function", "function": {"name": "multiply"}}):
        answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Multiply 6 and 7."}], tools=FUNCTIONS,
                                                tool_choice=choice, temperature=0)
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "multiply" and json.loads(call.function.arguments) == {"a": 6, "b": 7}, call


run()
