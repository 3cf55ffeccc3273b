"""The official openai client, as people use it: sync, async, streams, raw answers, and its exceptions."""

import asyncio
import functools
import json
import math
import pathlib

import gguf
import openai
import pytest

import harness

PROMPT = "Once upon a time"


@functools.cache
def vocabulary():
    """The model file's own tokens, read by another program than ours."""
    field = gguf.GGUFReader(harness.MODEL).fields["tokenizer.ggml.tokens"]
    return [bytes(field.parts[i]).decode("utf-8") for i in field.data]


def ids(*pieces):
    """Token ids of pieces that are one token each; a space is written as the file does, Ġ."""
    return [vocabulary().index(piece.replace(" ", "Ġ").replace("\n", "Ċ")) for piece in pieces]


# completions


@pytest.mark.sanitizer
def test_completion_has_openais_shape(client):
    answer = client.completions.create(model="default", prompt=PROMPT, max_tokens=8, temperature=0)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    assert answer.created > 1_700_000_000 and answer.model == client.models.list().data[0].id
    assert len(answer.choices) == 1 and answer.choices[0].index == 0
    assert answer.choices[0].finish_reason == "length" and answer.choices[0].logprobs is None
    assert answer.choices[0].text.strip()
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 8, 12)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_never_more_than_max_tokens(client, count):
    answer = client.completions.create(
        model="default", prompt=PROMPT, max_tokens=count, temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == count and answer.choices[0].finish_reason == "length"


def test_no_tokens_asked_no_tokens_made(client):
    answer = client.completions.create(model="default", prompt=PROMPT, max_tokens=0)
    assert answer.choices[0].text == "" and answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 0)
    echo = client.completions.create(model="default", prompt=PROMPT, max_tokens=0, echo=True)
    assert echo.choices[0].text == PROMPT


@pytest.mark.sanitizer
def test_stream_says_the_same_as_the_whole_answer(client):
    fields = dict(model="default", prompt=PROMPT, max_tokens=24, temperature=0)
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert len(chunks) > 4, "a stream comes in pieces"
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert all(c.usage is None for c in chunks)


def test_usage_comes_last_in_a_stream_that_asked_for_it(client):
    chunks = list(client.completions.create(
        model="default", prompt=PROMPT, max_tokens=5, temperature=0, stream=True,
        stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 9
    assert all(c.usage is None for c in chunks[:-1]) and all(c.choices for c in chunks[:-1])


def test_list_of_prompts(client):
    prompts = [PROMPT, "The capital of France is", "def add(a, b):"]
    fields = dict(model="default", max_tokens=6, temperature=0)
    single = [client.completions.create(prompt=p, **fields) for p in prompts]
    together = client.completions.create(prompt=prompts, **fields)
    assert [c.index for c in together.choices] == [0, 1, 2]
    assert [c.text for c in together.choices] == [s.choices[0].text for s in single]
    assert together.usage.prompt_tokens == sum(s.usage.prompt_tokens for s in single)
    assert together.usage.completion_tokens == sum(s.usage.completion_tokens for s in single)


def test_list_of_prompts_with_n_in_one_stream(client):
    fields = dict(model="default", prompt=[PROMPT, "Roses are red"], n=2, max_tokens=6, temperature=0.9,
                  seed=5)
    whole = client.completions.create(**fields)
    assert [c.index for c in whole.choices] == [0, 1, 2, 3]
    texts = {i: "" for i in range(4)}
    for chunk in client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {c.index: c.text for c in whole.choices}


@pytest.mark.sanitizer
def test_prompts_as_token_ids(client):
    hello, again = ids("Hello", " world"), ids("The", " capital", " of", " France", " is")
    fields = dict(model="default", max_tokens=6, temperature=0)
    for prompt, text in ((hello, "Hello world"), (again, "The capital of France is")):
        by_ids = client.completions.create(prompt=prompt, **fields)
        by_text = client.completions.create(prompt=text, **fields)
        assert by_ids.usage == by_text.usage and by_ids.usage.prompt_tokens == len(prompt)
        assert by_ids.choices == by_text.choices
    both = client.completions.create(prompt=[hello, again], **fields)
    assert both.choices[1].text == by_ids.choices[0].text and both.usage.prompt_tokens == 7
    echo = client.completions.create(model="default", prompt=hello, max_tokens=0, echo=True)
    assert echo.choices[0].text == "Hello world"


def test_n_choices_are_told_apart_and_the_prompt_counts_once(client):
    fields = dict(model="default", prompt=PROMPT, max_tokens=12, temperature=1.2, seed=11)
    three = client.completions.create(n=3, **fields)
    one = client.completions.create(**fields)
    assert [c.index for c in three.choices] == [0, 1, 2]
    assert len({c.text for c in three.choices}) == 3
    assert three.choices[0].text == one.choices[0].text, "a choice does not depend on the others"
    assert (three.usage.prompt_tokens, three.usage.completion_tokens) == (4, 36)


def test_a_seed_is_a_promise(client):
    def ask(seed):
        return client.completions.create(
            model="default", prompt=PROMPT, max_tokens=12, temperature=1, seed=seed).choices[0].text

    seeds = [0, 1, -1, 42, 2**31, 2**53 + 1, 2**53 + 2, 2**63 - 1]
    texts = [ask(seed) for seed in seeds]
    assert [ask(seed) for seed in seeds] == texts
    assert len(set(texts)) == len(seeds), "seeds are not cut to fewer bits"


def test_without_a_seed_answers_differ(client):
    texts = {client.completions.create(model="default", prompt=PROMPT, max_tokens=16, temperature=1.3)
             .choices[0].text for _ in range(3)}
    assert len(texts) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop(client, stream):
    def ask(**more):
        answer = client.completions.create(
            model="default", prompt=PROMPT, max_tokens=32, temperature=0, stream=stream, **more)
        if not stream:
            return answer.choices[0].text, answer.choices[0].finish_reason
        chunks = list(answer)
        return "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason

    text, _ = ask()
    for stop in (text[20:25], text[3:40], text[7], text[:2]):
        expected = text[:text.index(stop)]
        assert ask(stop=stop) == (expected, "stop")
        assert ask(stop=["never said", stop, "nor this"]) == (expected, "stop")
    assert ask(stop=["@@@@"]) == (text, "length")
    assert ask(stop=[]) == (text, "length")


def test_logprobs_of_completions(client):
    answer = client.completions.create(
        model="default", prompt=PROMPT, max_tokens=10, temperature=0, logprobs=5)
    text, log = answer.choices[0].text, answer.choices[0].logprobs
    assert "".join(log.tokens) == text and len(log.token_logprobs) == len(log.tokens) == 10
    assert log.text_offset == [len("".join(log.tokens[:i])) for i in range(10)]
    for token, logprob, top in zip(log.tokens, log.token_logprobs, log.top_logprobs):
        assert len(top) == 5 and max(top, key=top.get) == token and top[token] == logprob <= 0
        assert sum(map(math.exp, top.values())) <= 1 + 1e-5
    stream = client.completions.create(
        model="default", prompt=PROMPT, max_tokens=10, temperature=0, logprobs=5, stream=True)
    pieces = [c.choices[0].logprobs for c in stream if c.choices[0].logprobs]
    assert sum((p.tokens for p in pieces), []) == log.tokens
    assert sum((p.token_logprobs for p in pieces), []) == log.token_logprobs
    assert sum((p.top_logprobs for p in pieces), []) == log.top_logprobs


def test_logprobs_ignore_sampling_parameters(client):
    """They come from the model's own distribution, so that they can be compared between requests."""
    def first(**more):
        log = client.completions.create(
            model="default", prompt=PROMPT, max_tokens=1, logprobs=5, **more).choices[0].logprobs
        return log.tokens[0], log.top_logprobs[0]

    token, expected = first(temperature=0)
    assert first(temperature=0.01) == first(temperature=1, extra_body={"top_k": 1}) == (token, expected)
    token, top = first(temperature=2, seed=1, presence_penalty=1)
    assert {t: p for t, p in top.items() if t != token or t in expected} == expected
    assert token in top, "what was drawn is listed beside the five likeliest"


def test_logit_bias(client):
    wanted, = ids(" water")
    forced = client.completions.create(
        model="default", prompt=PROMPT, max_tokens=3, temperature=0, logit_bias={str(wanted): 100})
    assert forced.choices[0].text == " water" * 3
    plain = client.completions.create(model="default", prompt=PROMPT, max_tokens=1, temperature=0, logprobs=2)
    first, second = plain.choices[0].logprobs.top_logprobs[0]
    banned = client.completions.create(
        model="default", prompt=PROMPT, max_tokens=1, temperature=0, logit_bias={str(ids(first)[0]): -100})
    assert banned.choices[0].text == second


# chat


@pytest.mark.sanitizer
def test_chat_has_openais_shape(client):
    answer = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Which city is the capital of France? Answer with one word."}],
        max_completion_tokens=24, temperature=0)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    message = answer.choices[0].message
    assert message.role == "assistant" and "Paris" in message.content
    assert answer.choices[0].finish_reason == "stop", "the model ends its turn"
    assert "<|im_end|>" not in message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_says_the_same(client):
    fields = dict(model="default", max_tokens=24, temperature=0,
                  messages=[{"role": "system", "content": "You are brief."},
                            {"role": "user", "content": "Name a colour."}])
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "")
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_chat_stream_of_several_choices(client):
    fields = dict(model="default", messages=[{"role": "user", "content": "Name a colour."}], n=3, seed=4,
                  temperature=1, max_tokens=8)
    whole = client.chat.completions.create(**fields)
    texts, roles = {i: "" for i in range(3)}, []
    for chunk in client.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
    assert texts == {c.index: c.message.content for c in whole.choices} and len(set(texts.values())) == 3
    assert sorted(roles) == [0, 1, 2], "each choice has its role once"


def test_chat_content_parts_are_the_text(client):
    def ask(content):
        answer = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": content}], max_tokens=8, temperature=0)
        return answer.choices, answer.usage.prompt_tokens

    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "two plus two?"}]
    assert ask(parts) == ask("What is\ntwo plus two?"), "parts are lines"
    assert ask([{"type": "text", "text": "What is two plus two?"}]) == ask("What is two plus two?")


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0,
        logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    text = b"".join(bytes(entry.bytes) for entry in content).decode("utf-8")
    assert text == answer.choices[0].message.content
    for entry in content:
        assert entry.top_logprobs[0].token == entry.token and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)


def test_chat_of_many_turns(client):
    messages = [{"role": "user", "content": "My name is Ada. Remember it."}]
    for question in ("What is my name?", "Spell it."):
        answer = client.chat.completions.create(model="default", messages=messages, max_tokens=24, temperature=0)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                     {"role": "user", "content": question}]
    assert len(messages) == 5 and answer.usage.prompt_tokens > 20


# async


@pytest.mark.asyncio
async def test_async_answers_equal_sync_ones(server):
    prompts = [harness.words(i, 6) for i in range(8)]
    with server.client() as client:
        sync = [client.completions.create(model="default", prompt=p, max_tokens=12, temperature=0).choices[0].text
                for p in prompts]
    async with server.async_client() as client:
        answers = await asyncio.gather(*(
            client.completions.create(model="default", prompt=p, max_tokens=12, temperature=0) for p in prompts))
    assert [a.choices[0].text for a in answers] == sync


@pytest.mark.sanitizer
@pytest.mark.asyncio
async def test_async_streams_side_by_side(server):
    async with server.async_client() as client:
        async def ask(index):
            stream = await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": f"Count to {index + 3}."}],
                max_tokens=12, temperature=0, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        alone = [await ask(i) for i in range(3)]
        assert await asyncio.gather(*(ask(i) for i in range(3))) == alone


@pytest.mark.asyncio
async def test_async_stream_left_early(server):
    with server.unharmed():
        async with server.async_client() as client:
            for left_after in (1, 3):
                stream = await client.completions.create(
                    model="default", prompt=PROMPT, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
                seen = 0
                async for _ in stream:
                    seen += 1
                    if seen == left_after:
                        break
                await stream.close()


# raw answers


def test_raw_answer(client):
    raw = client.completions.with_raw_response.create(
        model="default", prompt=PROMPT, max_tokens=2, temperature=0)
    assert raw.headers["content-type"] == "application/json" and raw.request_id
    assert raw.parse().usage.completion_tokens == 2


def test_raw_stream_is_server_sent_events(client):
    with client.completions.with_streaming_response.create(
            model="default", prompt=PROMPT, max_tokens=3, temperature=0, stream=True) as raw:
        assert raw.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert raw.headers["cache-control"] == "no-cache" and raw.headers["x-accel-buffering"] == "no"
        body = "".join(raw.iter_text())
    assert body.endswith("\n\ndata: [DONE]\n\n")
    assert all(event.startswith("data: ") for event in body.removesuffix("\n\n").split("\n\n"))
    for event in body.split("\n\n")[:-2]:
        json.loads(event.removeprefix("data: "))


# models and keys


def test_models(client, server):
    models = client.models.list().data
    assert len(models) == 1 and models[0].object == "model" and models[0].id
    assert client.models.retrieve(models[0].id) == models[0]
    assert server.max_model_len() == 8192
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


def test_served_names(client):
    server = harness.shared("--served-model-name", "alpha", "--served-model-name", "org/beta",
                            model=harness.tiny())
    with server.client() as named:
        assert [m.id for m in named.models.list().data] == ["alpha", "org/beta"]
        assert named.models.retrieve("org/beta").id == "org/beta"
        for model in ("alpha", "org/beta", "default"):
            assert named.completions.create(model=model, prompt="a", max_tokens=1).model in ("alpha", model)
        with pytest.raises(openai.NotFoundError) as caught:
            named.completions.create(model="gamma", prompt="a", max_tokens=1)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "model" not in harness.PROBE and server.complete(harness.PROBE), "model may be left out"


def test_any_name_is_served():
    server = harness.shared("--served-model-name", "*", model=harness.tiny())
    with server.client() as named:
        shown = [m.id for m in named.models.list().data]
        assert len(shown) == 1 and shown[0] != "*" and named.models.retrieve("default").id == shown[0]
        assert named.completions.create(model="gpt-4o", prompt="a", max_tokens=1).model == shown[0]


def test_bearer_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first-key-of-some-length\nsecond-key-of-some-length\n")
    with harness.started("--api-key-file", keys, model=harness.tiny(), key="second-key-of-some-length") as server:
        fields = dict(model="default", prompt="a", max_tokens=1)
        for key in ("first-key-of-some-length", "second-key-of-some-length"):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=key).completions.create(**fields)
        for key in ("first-key-of-some-lengt", "first-key-of-some-lengthX", "x", "FIRST-KEY-OF-SOME-LENGTH"):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                with pytest.raises(openai.AuthenticationError) as caught:
                    client.completions.create(**fields)
                assert caught.value.code == "invalid_api_key" and key not in str(caught.value)
                with pytest.raises(openai.AuthenticationError):
                    client.models.list()
        assert server.get("/health").status == server.get("/ready").status == 200
        assert pathlib.Path(keys).read_text() and "some-length" not in server.log


# errors


@pytest.mark.parametrize("fields, param", [
    ({"temperature": -9}, "temperature"),
    ({"top_p": -0.5}, "top_p"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"n": 1000}, "n"),
    ({"stop": ["a"] * 33}, "stop"),
    ({"logit_bias": {"0": 101}}, "logit_bias"),
    ({"logprobs": 50}, "logprobs"),
    ({"suffix": "the end"}, "suffix"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields_are_bad_requests(client, fields, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "default", "prompt": PROMPT, "stream": stream, **fields})
    assert caught.value.status_code == 400 and caught.value.param == param
    assert param in caught.value.message and caught.value.type == "invalid_request_error"


def test_too_long_is_a_bad_request_with_the_numbers(client, server):
    limit = server.max_model_len()
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="default", prompt=[500] * (limit + 7), max_tokens=1)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    assert "this model's maximum context length is" in str(caught.value).lower(), "litellm knows it by these words"
    assert str(limit) in caught.value.message and str(limit + 7) in caught.value.message
