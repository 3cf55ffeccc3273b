"""Many at once: computed together, counted right, answered without fault; and the load of a yardstick."""

import asyncio
import json

import pytest

import harness


@pytest.mark.sanitizer
def test_one_forward_pass_per_step_for_all(tiny):
    """12 that start together and last as long: about as many steps as tokens of one of them."""
    bodies = [{"prompt": harness.words(i, 3), "max_tokens": 400, "temperature": 0, "ignore_eos": True}
              for i in range(12)]
    tiny.wait_idle()
    before = tiny.metrics()
    tiny.together(bodies)
    after = tiny.metrics()
    steps = after("quire_steps_total") - before("quire_steps_total")
    tokens = after("vllm:generation_tokens_total") - before("vllm:generation_tokens_total")
    assert tokens == 12 * 400
    assert 400 <= steps < 1200, "each step carried many of them"


@pytest.mark.parametrize("options, most", [((), 2 * 24), (("--max-batch-tokens", 10), 10)])
def test_chunks_of_prompts_are_short(options, most):
    """24 rows for each thread: prompts that wait have their first tokens one after the other."""
    with harness.started("--threads", 2, *options, model=harness.tiny()) as server:
        usage = server.complete({"prompt": harness.words(1, 300), "max_tokens": 2})["usage"]
        rows = server.metrics()("quire_step_rows_max")
        assert usage["prompt_tokens"] > 4 * most and most // 2 < rows <= most


def test_running_and_waiting_are_seen(server):
    """num_requests_running ≥ 8 while eight run."""
    bodies = [{"prompt": harness.words(i, 5), "max_tokens": 120, "temperature": 0, "ignore_eos": True}
              for i in range(10)]
    server.wait_idle()
    before = server.metrics()
    streams = [server.stream(body) for body in bodies]
    (busy,), _ = harness.wait_until(
        lambda: [m for m in (server.metrics(),) if m.running >= 8], what="eight running")
    assert 0 < busy("vllm:kv_cache_usage_perc") <= 1 and busy.pages_free < busy.pages_total
    for stream in streams:
        assert sum(1 for _ in stream.chunks()) > 1
    server.wait_idle()
    after = server.metrics()
    assert after("vllm:kv_cache_usage_perc") == 0
    assert after("vllm:generation_tokens_total") - before("vllm:generation_tokens_total") == 1200
    steps = after("quire_steps_total") - before("quire_steps_total")
    assert steps < 600, "ten streams of 120 tokens were computed together"


def test_waiting_is_counted():
    with harness.started("--max-seqs", "2", model=harness.tiny()) as server:
        streams = [server.stream({"prompt": harness.words(i, 4), "max_tokens": 1500, "ignore_eos": True})
                   for i in range(6)]
        (seen,), _ = harness.wait_until(lambda: [m for m in (server.metrics(),) if m.waiting])
        assert seen.running <= 2 and seen.running + seen.waiting <= 6
        for stream in streams:
            assert list(stream.chunks())[-1]["choices"][0]["finish_reason"] == "length"
        server.wait_idle()


@pytest.mark.sanitizer
def test_counters_add_up(tiny):
    tiny.wait_idle()
    before = tiny.metrics()
    asked = [tiny.complete({"prompt": harness.words(300 + i, 20), "max_tokens": 10, "n": 1 + i % 2, "temperature": 1,
                            "seed": i}) for i in range(6)]
    tiny.wait_idle()
    after = tiny.metrics()

    def grew(name, **labels):
        try:
            old = before(name, **labels)
        except KeyError:
            old = 0
        return after(name, **labels) - old

    assert grew("vllm:generation_tokens_total") == sum(a["usage"]["completion_tokens"] for a in asked)
    assert grew("vllm:prompt_tokens_total") == sum(a["usage"]["prompt_tokens"] for a in asked)
    reasons = [c["finish_reason"] for a in asked for c in a["choices"]]
    for reason in ("stop", "length"):
        assert grew("vllm:request_success_total", finished_reason=reason) == reasons.count(reason)
    long = {"prompt": harness.words(400, 20), "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    text = tiny.complete({**long, "max_tokens": 8})["choices"][0]["text"]
    before, old = tiny.metrics(), before
    stopped = tiny.complete({**long, "stop": text[len(text) // 2:]})
    assert stopped["choices"][0]["finish_reason"] == "stop"
    tiny.wait_idle()
    after, newest = tiny.metrics(), after
    assert grew("vllm:request_success_total", finished_reason="stop") == 1, "a stop string is a stop"
    assert grew("vllm:request_success_total", finished_reason="abort") == 0
    before, after = old, newest
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time",
                 "request_decode_time", "request_inference_time", "request_time_per_output_token"):
        assert grew(f"vllm:{name}_seconds_count") >= 6, name
        assert grew(f"vllm:{name}_seconds_sum") >= 0, name
        assert after(f"vllm:{name}_seconds_bucket", le="+Inf") == after(f"vllm:{name}_seconds_count"), name


def test_metrics_say_what_runs(server):
    metrics = server.metrics()
    info = [s for s in metrics.samples if s.name == "quire_build_info"]
    assert len(info) == 1 and info[0].value == 1
    assert info[0].labels["kernels"] in ("scalar", "avx2", "avxvnni", "avx512", "neon", "dotprod") and info[0].labels["version"]
    assert metrics.pages_total > 64


# load like a yardstick's: closed loops of streaming clients, every answer whole


async def one_stream(server, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        data = json.dumps({"stream": True, "stream_options": {"include_usage": True}, **body}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    head, _, _ = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    events = [line[6:].strip() for line in answer.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]" and b'"error"' not in answer
    return json.loads(events[-2])["usage"]["completion_tokens"]


@pytest.mark.parametrize("clients, each, max_tokens", [(1, 2, 24), (8, 2, 24), (32, 1, 24)])
def test_load_without_a_fault(server, clients, each, max_tokens):
    async def client(number):
        return [await one_stream(server, {
            "prompt": harness.words(1000 * number + i, 64), "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, "cache_prompt": False}) for i in range(each)]

    async def all_clients():
        return await asyncio.gather(*(client(n) for n in range(clients)))

    with server.unharmed():
        counts = asyncio.run(all_clients())
    assert counts == [[max_tokens] * each] * clients
