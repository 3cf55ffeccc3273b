#!/usr/bin/env python3
"""Load generator for OpenAI-style /v1/completions streams. Standard library only.

  load.py --port 8080 --concurrency 8 --requests 24 --max-tokens 64 --words 128 [--prefix-words 800]

One worker thread per concurrent client sends the next prompt as soon as its last answer ended
(closed loop). Prompts are random common words, seeded by request number, so every server gets
the same work. Prints one JSON object:

  out_tok_s    generated tokens per second of wall time, over all clients
  all_tok_s    prompt + generated tokens per second
  ttft_*_s     time to first non-empty text, seconds (p50, p95)
  itl_*_ms     gap between two streamed texts, milliseconds (p50, p99, max)
  client_cpu_s processor time that this program took, which the server did not have
  errors       answers that were not a complete 200 stream
"""
import argparse
import http.client
import json
import random
import threading
import time

WORDS = """the of and a to in is you that it he was for on are as with his they at be this have from or
one had by word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look two more
write go see number no way could people my than first water been call who oil its now find long down day
did get come made may part""".split()


def words(seed, count):
    rnd = random.Random(seed)
    return " ".join(rnd.choice(WORDS) for _ in range(count))


def prefix_of(args):
    return words(999_983, args.prefix_words) + " " if args.prefix_words else ""


def body_of(args, index):
    body = {"model": args.model, "prompt": prefix_of(args) + words(args.seed + index, args.words),
            "max_tokens": args.max_tokens, "temperature": 0, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    if not args.prefix_words:
        body["cache_prompt"] = False          # measure computing, not remembering
    return json.dumps(body)


def read_stream(response):
    """(times of the non-empty texts, usage); raises for a stream that is not whole."""
    times, usage, done = [], None, False
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            done = True
            break
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError(str(event["error"])[:300])
        usage = event.get("usage") or usage
        if event.get("choices") and event["choices"][0].get("text"):
            times.append(time.monotonic())
    if not done or not usage or not times:
        raise RuntimeError("stream ended early")
    return times, usage


def one(args, index):
    """Send one request; return (ttft_s, gaps_s, prompt_tokens, completion_tokens) or raise."""
    headers = {"Content-Type": "application/json"}
    if args.api_key:
        headers["Authorization"] = "Bearer " + args.api_key
    body = body_of(args, index)
    connection = http.client.HTTPConnection(args.host, args.port, timeout=args.timeout)
    start = time.monotonic()
    connection.request("POST", "/v1/completions", body, headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError("status %d: %s" % (response.status, response.read(300)))
    times, usage = read_stream(response)
    connection.close()
    gaps = [after - before for before, after in zip(times, times[1:])]
    return times[0] - start, gaps, usage["prompt_tokens"], usage["completion_tokens"]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def figures(concurrency, wall_s, first_s, gaps_s, prompt_tokens, out_tokens):
    """What is printed, by whatever way it was measured."""
    return {"concurrency": concurrency, "requests": len(first_s), "wall_s": round(wall_s, 3),
            "prompt_tokens": prompt_tokens, "out_tokens": out_tokens,
            "out_tok_s": round(out_tokens / wall_s, 1), "all_tok_s": round((out_tokens + prompt_tokens) / wall_s, 1),
            "ttft_p50_s": round(percentile(first_s, .5), 4), "ttft_p95_s": round(percentile(first_s, .95), 4),
            "itl_p50_ms": round(1e3 * percentile(gaps_s, .5), 2),
            "itl_p99_ms": round(1e3 * percentile(gaps_s, .99), 2),
            "itl_max_ms": round(1e3 * max(gaps_s, default=float("nan")), 2)}


def measure(args):
    pending, results, errors, lock = list(range(args.requests))[::-1], [], [], threading.Lock()

    def client():
        while True:
            with lock:
                if not pending:
                    return
                index = pending.pop()
            try:
                result = one(args, index)
                with lock:
                    results.append(result)
            except Exception as problem:      # counted and shown, never hidden
                with lock:
                    errors.append(repr(problem)[:300])

    cpu, start = time.process_time(), time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(args.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - start
    out = figures(args.concurrency, wall, [r[0] for r in results], [g for r in results for g in r[1]],
                  sum(r[2] for r in results), sum(r[3] for r in results))
    return {**out, "client_cpu_s": round(time.process_time() - cpu, 3),
            "errors": len(errors), "first_error": errors[0] if errors else None}


def add_work(parser):
    """Options that say what work is done: the same for every contender."""
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=128, help="random words of each prompt, about one token each")
    parser.add_argument("--prefix-words", type=int, default=0, help="words that all prompts share at their start")
    parser.add_argument("--seed", type=int, default=0)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--model", default="default")
    p.add_argument("--api-key")
    p.add_argument("--timeout", type=float, default=900)
    add_work(p)
    print(json.dumps(measure(p.parse_args())))


if __name__ == "__main__":
    main()
