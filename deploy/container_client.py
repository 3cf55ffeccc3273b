"""The client of deploy/container-test; standard library only.

  ready SECONDS           waits for /ready
  alone FILE              asks each question once, one after another, and keeps the answers
  together FILE STREAMS   asks them again in that many concurrent streams: the answers must be the same
  long STREAMS            that many concurrent answers of some hundred tokens, all complete: more than
                          the page pool of a 400 MiB container holds at once
  stop PID                sends SIGTERM to PID while an answer is running: the answer must end well
"""
import http.client
import json
import os
import signal
import sys
import threading
import time

HOST, PORT = "127.0.0.1", 8080
QUESTIONS = [
    {"prompt": "The capital of France is", "temperature": 0},
    {"prompt": "Once upon a time there was a bookbinder who", "temperature": 0.8, "seed": 7},
    {"prompt": "Water boils at", "temperature": 0},
    {"prompt": "A list of the colours of the rainbow:", "temperature": 1.0, "top_p": 0.9, "seed": 42},
]


def stream(body, on_text=None):
    """The whole text of one streamed answer; raises unless it is complete."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(dict(body, stream=True)),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError("status %d: %s" % (response.status, response.read(500)))
    text, finish = "", None
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            if finish is None:
                raise RuntimeError("[DONE] without a finish_reason")
            return text, finish
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError("error event: %s" % event["error"])
        for choice in event["choices"]:
            text += choice["text"]
            finish = choice.get("finish_reason") or finish
            if on_text and choice["text"]:
                on_text()
    raise RuntimeError("the stream ended without [DONE]")


def concurrently(bodies):
    results = [None] * len(bodies)

    def run(index):
        try:
            results[index] = stream(bodies[index])
        except Exception as error:              # reported below, with its request's number
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def ready(seconds):
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            connection = http.client.HTTPConnection(HOST, PORT, timeout=2)
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def alone(path):
    answers = [stream(dict(q, max_tokens=48)) for q in QUESTIONS]
    if any(not text.strip() for text, _ in answers):
        print("    an answer is empty:", answers)
        return False
    print("    for example: %r -> %r" % (QUESTIONS[0]["prompt"], answers[0][0][:60]))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(answers, file)
    return True


def together(path, count):
    with open(path, encoding="utf-8") as file:
        expected = [tuple(a) for a in json.load(file)]
    count = int(count)
    start = time.monotonic()
    results = concurrently([dict(QUESTIONS[i % len(QUESTIONS)], max_tokens=48) for i in range(count)])
    good = True
    for index, result in enumerate(results):
        if result != expected[index % len(expected)]:
            print("    stream %d: %r instead of %r" % (index, result, expected[index % len(expected)]))
            good = False
    print("    %d streams in %.1f s" % (count, time.monotonic() - start))
    return good


def long(count):
    body = {"prompt": "word " * 400, "temperature": 0, "ignore_eos": True, "max_tokens": 300}
    results = concurrently([dict(body, prompt="%d %s" % (i, body["prompt"])) for i in range(int(count))])
    wrong = [r for r in results if isinstance(r, Exception) or r[1] != "length"]
    for result in wrong:
        print("    %r" % (result,))
    connection = http.client.HTTPConnection(HOST, PORT, timeout=10)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode("utf-8")
    for name in ["vllm:num_preemptions_total"]:
        print("    " + " ".join(line for line in metrics.splitlines() if line.startswith(name)))
    return not wrong


def stop(pid):
    started = threading.Event()
    outcome = []

    def run():
        try:
            outcome.append(stream({"prompt": "Count: one, two, three,", "temperature": 0,
                                   "ignore_eos": True, "max_tokens": 100}, started.set))
        except Exception as error:
            outcome.append(error)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(60)
    os.kill(int(pid), signal.SIGTERM)
    thread.join()
    if isinstance(outcome[0], Exception) or outcome[0][1] != "length":
        print("    %r" % (outcome[0],))
        return False
    return True


sys.exit(0 if {"ready": ready, "alone": alone, "together": together, "long": long, "stop": stop}
         [sys.argv[1]](*sys.argv[2:]) else 1)
