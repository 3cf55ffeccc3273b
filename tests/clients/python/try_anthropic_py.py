"""The official anthropic package on /v1/messages: text, streams, tokens counted, a tool loop by hand and by its tool runner."""
import anthropic

import tools
from steps import KEY, MODEL, PATIENCE, URL, run, step

client = anthropic.Anthropic(base_url=URL, api_key=KEY, timeout=PATIENCE, max_retries=0)
ASK = [{"role": "user", "content": "Say hello."}]
TOOLS = [{"name": "weather", "description": "Returns the weather of a city.",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
         {"name": "multiply", "description": "Multiplies two integers.",
          "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}]


@step("messages.create")
def create():
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=ASK, system="You are short.")
    assert answer.content[0].text and answer.usage.output_tokens and answer.stop_reason in ("end_turn", "max_tokens")


@step("messages.stream")
def stream():
    with client.messages.stream(model=MODEL, max_tokens=20, messages=ASK) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text and final.content[0].text == text and final.usage.output_tokens


@step("messages.count_tokens")
def count():
    counted = client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    assert counted == client.messages.create(model=MODEL, max_tokens=1, messages=ASK).usage.input_tokens


for name, streamed in (("tool loop", False), ("tool loop, streamed", True)):
    @step(name)
    def loop(streamed=streamed):
        messages = [{"role": "user", "content": tools.QUESTION}]
        for _ in range(8):
            more = dict(model=MODEL, max_tokens=400, messages=messages, tools=TOOLS, extra_body={"temperature": 0})
            if streamed:
                with client.messages.stream(**more) as events:
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(**more)
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                break
            messages += [{"role": "assistant", "content": answer.content},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                       "content": str(getattr(tools, call.name)(**call.input))} for call in calls]}]
        tools.check("".join(block.text for block in answer.content if block.type == "text"))


@step("its exceptions: a wrong key, a wrong field")
def exceptions():
    for broken, kind in ((client.with_options(api_key="wrong"), anthropic.AuthenticationError), (client, anthropic.BadRequestError)):
        try:
            broken.messages.create(model=MODEL, max_tokens=5 if kind is anthropic.AuthenticationError else 0, messages=ASK)
        except kind:
            continue
        raise AssertionError("it was taken")


run()
