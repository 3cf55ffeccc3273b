"""The official ollama package: chat, generate, streams, schemas, models, a tool loop."""
import json

import ollama

import tools
from steps import KEY, MODEL, PATIENCE, URL, run, step

client = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENCE)
ASK = [{"role": "user", "content": "Say hello."}]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": False}
OPTIONS = {"temperature": 0, "num_predict": 400}


@step("chat")
def chat():
    answer = client.chat(MODEL, ASK, options={"num_predict": 20})
    assert answer.message.content and answer.done and answer.eval_count


@step("chat, streamed")
def stream():
    parts = list(client.chat(MODEL, ASK, stream=True, options={"num_predict": 20}))
    assert "".join(part.message.content or "" for part in parts) and parts[-1].done


@step("generate, whole and streamed")
def generate():
    options = {"num_predict": 20, "temperature": 0}
    whole = client.generate(MODEL, "Say hello.", options=options).response
    assert whole and "".join(part.response for part in client.generate(MODEL, "Say hello.", stream=True, options=options)) == whole


@step("format: a schema")
def structured():
    answer = client.chat(MODEL, [{"role": "user", "content": "Ada is 36 years old. Who is it?"}], format=SCHEMA, options=OPTIONS)
    assert json.loads(answer.message.content)["age"] == 36


@step("list, show, ps")
def models():
    assert any(MODEL in (model.model or "") for model in client.list().models), client.list()
    assert client.show(MODEL) and client.ps() is not None


@step("tool loop")
def loop():
    messages = [{"role": "user", "content": tools.QUESTION}]
    for _ in range(8):
        message = client.chat(MODEL, messages, tools=[tools.weather, tools.multiply], options=OPTIONS).message
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_name": call.function.name,
                             "content": str(getattr(tools, call.function.name)(**call.function.arguments))})
    tools.check(message.content)


run()
