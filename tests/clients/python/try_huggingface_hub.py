"""huggingface_hub's InferenceClient: chat, streams, schemas, text generation by its URL; the async client."""
import json

from huggingface_hub import AsyncInferenceClient, InferenceClient

from steps import BASE, KEY, MODEL, PATIENCE, run, step

client = InferenceClient(base_url=BASE, api_key=KEY, timeout=PATIENCE)
ASK = [{"role": "user", "content": "Say hello."}]
SCHEMA = {"type": "object", "properties": {"drink": {"enum": ["tea", "coffee"]}}, "required": ["drink"], "additionalProperties": False}


@step("chat_completion")
def chat():
    answer = client.chat_completion(ASK, model=MODEL, max_tokens=20)
    assert answer.choices[0].message.content and answer.usage.completion_tokens


@step("chat_completion, streamed")
def stream():
    assert "".join(c.choices[0].delta.content or "" for c in client.chat_completion(ASK, model=MODEL, max_tokens=20, stream=True) if c.choices)


@step("chat_completion, response_format")
def structured():
    answer = client.chat_completion(ASK, model=MODEL, max_tokens=50, response_format={
        "type": "json_schema", "json_schema": {"name": "cup", "schema": SCHEMA, "strict": True}})
    assert json.loads(answer.choices[0].message.content)["drink"] in ("tea", "coffee")


@step("chat.completions.create (openai's names)")
def alias():
    assert client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, logprobs=True, top_logprobs=2).choices[0].logprobs.content


@step("async")
async def asynchronous():
    other = AsyncInferenceClient(base_url=BASE, api_key=KEY, timeout=PATIENCE)
    pieces = [c async for c in await other.chat_completion(ASK, model=MODEL, max_tokens=20, stream=True)]
    assert len(pieces) > 1
    if hasattr(other, "close"):
        await other.close()


run()
