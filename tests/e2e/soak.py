"""The soak: everything clients do, for minutes, at a server in a memory cgroup of exactly its budget.

    QUIRE_BINARY=… QUIRE_TEST_MODEL=… python tests/e2e/soak.py --memory 200MiB --seconds 600

64 clients, each for itself: short and long prompts and answers, streams and not, chats that share a
system prompt, tools, several choices, hang-ups in the middle of a body, a prompt and an answer,
readers that dawdle, requests that are wrong. A client obeys Retry-After and asks the same again. Beside
them 1,000 connections that say nothing, some after having been answered once; what the server closes is
opened anew. Now and then a greedy probe is asked, whose answer must be the same bytes as when alone.

What is tested is memory, not speed: a request waits as long as it takes (--timeout), and when the whole machine
stands still for a while (a suspended virtual machine, stopped processes) that time does not count. SIGTERM ends it
early, with the report of what was done.

`soak` returns a Report, whose `problems` are what the promise forbids; test_soak.py wants none. The
cgroup is left out where the machine gives none (and the report says so); VmHWM is always held to the budget.
"""

import argparse
import collections
import dataclasses
import datetime
import http.client
import json
import random
import re
import resource
import select
import signal
import socket
import sys
import threading
import time

import harness
import memory_cgroup
from harness import CHAT, COMPLETIONS

MIB = 2**20
SYSTEM = "You are the clerk of a small library. " + harness.words(7, 60)
WAIT_SECONDS = 7200
STANDSTILL_SECONDS = 10
TOOLS = [{"type": "function", "function": {
    "name": "find_book", "description": "Looks a book up.",
    "parameters": {"type": "object", "properties": {"title": {"type": "string"}, "year": {"type": "integer"}}}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "book", "schema": {
    "type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}}}
# What is wrong, and the status it must have.
WRONG = [
    (b'{"prompt": "x", "max_tokens": ', 400), (b"[" * 5000, 400), (b'{"prompt": "\xff"}', 400),
    (b'{"prompt": "x", "n": -1}', 400), (b'{"prompt": "x", "temperature": "warm"}', 400),
    (b'{"prompt": ' + b"[1," * 60_000, 400), (b"x" * (9 * MIB), 413),
    (b'{"prompt": "' + b"word " * 200_000 + b'"}', 400),
]


@dataclasses.dataclass
class Report:
    memory_bytes: int
    seconds: float = 0
    counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    problems: list = dataclasses.field(default_factory=list)
    peaks: dict = dataclasses.field(default_factory=dict)
    accounts: dict = dataclasses.field(default_factory=dict)
    cgroup: str = ""

    def __str__(self):
        mib = {name: f"{value / MIB:.1f} MiB" for name, value in self.peaks.items()}
        return "\n".join([
            f"{datetime.date.today()}: --memory {self.memory_bytes / MIB:.0f}MiB for {self.seconds:.0f} s, {self.cgroup}",
            f"  peaks: {mib}", f"  requests: {dict(sorted(self.counts.items()))}",
            "  accounts at their peak: " + ", ".join(
                f"{n} {a['peak_bytes'] / MIB:.1f} of {a['limit_bytes'] / MIB:.1f}" for n, a in self.accounts.items()),
            *[f"  PROBLEM: {p}" for p in self.problems[:20]],
            f"  {len(self.problems)} problems"])


class Soak:
    def __init__(self, server, report, seconds, clients, idle):
        self.server, self.report, self.clients, self.idle = server, report, clients, idle
        self.lock = threading.Lock()
        self.context = server.max_model_len()
        sample = server.complete({"prompt": harness.words(1, 40), "max_tokens": 1})["usage"]["prompt_tokens"]
        self.words_per_token = 40 / sample * 0.9  # never more tokens than meant
        self.probe_text = server.complete(harness.PROBE)["choices"]
        self.open, self.leaving, self.stops = set(), False, 0
        self.idle_sockets = []
        self.seconds, self.is_over, self.is_enough = seconds, False, False

    def over(self):
        return self.is_over

    def count(self, what):
        with self.lock:
            self.report.counts[what] += 1

    def problem(self, what):
        with self.lock:
            self.report.problems.append(what)

    # one client

    def exchange(self, body, path, read):
        """Asks until it is not refused; `read` gets the response. False when time was over before."""
        while not self.over():
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_SECONDS)
            try:
                connection.connect()
                self.open.add(connection.sock)
                connection.request("POST", path, body, self.server.headers)
                response = connection.getresponse()
                if response.status != 429:
                    read(response)
                    return True
                response.read()
                self.count("refused")
                pause = int(response.headers["Retry-After"])
            finally:
                self.open.discard(connection.sock)
                connection.close()
            until = time.monotonic() + pause
            while time.monotonic() < until and not self.over():
                time.sleep(0.1)
        return False

    def ask(self, kind, body, path=COMPLETIONS, statuses=(200,), check=None):
        def read(response):
            content = response.read()
            if response.status not in statuses:
                return self.problem(f"{kind}: {response.status} {content[:300]!r}")
            if response.status == 200:
                answer = json.loads(content)
                if not all(c["finish_reason"] in ("stop", "length", "tool_calls") for c in answer["choices"]):
                    return self.problem(f"{kind}: ended by {answer['choices'][0]['finish_reason']}")
                if any(c.get("stop_reason") == "timeout" for c in answer["choices"]):
                    return self.problem(f"{kind}: timeout")
                if check:
                    check(answer)
            self.count(kind)

        self.exchange(body if isinstance(body, bytes) else json.dumps(body), path, read)

    def stream(self, kind, body, path=COMPLETIONS, pause=0.0):
        def read(response):
            if response.status != 200:
                return self.problem(f"{kind}: {response.status} {response.read()[:300]!r}")
            last = finish = None
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return self.problem(f"{kind}: {event['error']}")
                    finish = event["choices"][0]["finish_reason"] or finish
                elif line.startswith(b"data: "):
                    last = line
                if pause:
                    time.sleep(pause)
            if last is None:  # cut off: by us at the end, or is it a fault?
                raise ConnectionAbortedError("a stream broke off")
            if last != b"data: [DONE]\n" or finish not in ("stop", "length"):
                return self.problem(f"{kind}: a stream ended with {last!r}, {finish}")
            self.count(kind)

        self.exchange(json.dumps({"stream": True, **body}), path, read)

    def hang_up(self, body, chance, path=COMPLETIONS):
        """In the middle of the body, of waiting and the prompt, or of the answer."""
        kind = chance.choice(["body", "prompt", "answer", "answer"])
        text = json.dumps({"stream": True, **body}).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(text)}\r\n\r\n").encode()
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as client:
            if kind == "body":
                client.sendall(head + text[:len(text) // 2])
                time.sleep(chance.random() * 0.5)
            else:
                client.sendall(head + text)
                if kind == "answer":
                    client.settimeout(WAIT_SECONDS)
                    for _ in range(chance.randrange(1, 6)):
                        if not client.recv(4096):
                            break
                else:
                    time.sleep(chance.random() ** 3 * 5)
            if chance.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.count(f"hung up in the {kind}")

    def check_probe(self, answer):
        if answer["choices"] != self.probe_text:
            self.problem(f"other bytes than alone: {answer['choices']}")

    def one_request(self, seed, chance):
        # Lengths as people's: most are short, some as long as may be.
        room = self.context - 160
        tokens = min(room, int(2 ** (3 + 8 * chance.random())))
        prompt = harness.words(chance.randrange(10_000), max(1, int(tokens * self.words_per_token)))
        answer = min(self.context - tokens - 100, int(2 ** (1 + 7 * chance.random())))
        body = {"prompt": prompt, "max_tokens": answer, "temperature": chance.choice([0, 0.8]), "seed": seed}
        chat = {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": harness.words(seed, 20)}],
                "max_tokens": min(answer, 80), "seed": seed}
        kind = chance.randrange(100)
        if kind < 22:
            self.stream("stream", body)
        elif kind < 38:
            self.ask("answer", body)
        elif kind < 50:
            self.stream("chat stream", chat, CHAT)
        elif kind < 58:
            self.ask("chat", chat, CHAT)
        elif kind < 62:
            self.ask("tools", {**chat, "tools": TOOLS}, CHAT, statuses=(200, 400))
        elif kind < 64:
            self.ask("schema", {**chat, "response_format": SCHEMA}, CHAT, statuses=(200, 400))
        elif kind < 68:
            prompt = " ".join(prompt.split()[:max(1, int(100 * self.words_per_token))])
            self.ask("choices", {**body, "prompt": prompt, "n": chance.randrange(2, 5), "temperature": 1, "max_tokens": 24})
        elif kind < 71:
            self.stream("dawdling stream", {**body, "max_tokens": min(answer, 40), "logprobs": 5}, pause=0.05)
        elif kind < 85:
            self.hang_up(body, chance)
        elif kind < 92:
            self.ask("probe", harness.PROBE, check=self.check_probe)
        else:
            wrong, status = chance.choice(WRONG)
            self.ask("wrong", wrong, statuses=(status,))

    def client(self, seed):
        chance = random.Random(seed)
        while not self.over():
            stops = self.stops
            try:
                self.one_request(seed, chance)
            except Exception as error:  # pylint: disable=broad-except
                if self.leaving and self.server.process.poll() is None:
                    return self.count("hung up at the end")
                time.sleep(1)  # until `look` has seen that the machine stood still
                if stops != self.stops and self.server.process.poll() is None:
                    self.count("cut off when the machine stood still")
                else:
                    self.fault(error)

    def fault(self, error):
        """A body that is refused early may be cut off while it is sent; nothing else may."""
        if isinstance(error, (BrokenPipeError, ConnectionResetError)) and self.server.process.poll() is None:
            self.count("cut off")
            if self.report.counts["cut off"] <= self.report.counts["wrong"] + 20:
                return
        self.problem(f"{type(error).__name__}: {error}")

    def hang_up_all(self):
        """At the end all that still wait or read leave at once."""
        self.leaving = True
        for client in list(self.open):
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has just ended by itself

    # connections that say nothing

    def open_idle(self, chance):
        try:
            client = socket.create_connection(("127.0.0.1", self.server.port), 10)
            if chance.random() < 0.3:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return client
        except OSError as error:
            self.count("idle connections that did not open")
            if not isinstance(error, (TimeoutError, ConnectionError)):
                self.problem(f"idle: {error}")
            return None

    def idle_connections(self):
        chance = random.Random(0)
        while not self.over():
            poll = select.poll()
            for client in self.idle_sockets:
                poll.register(client, select.POLLIN | select.POLLHUP)
            closed = set()
            for number, _ in poll.poll(0):
                closed.add(number)
            kept = []
            for client in self.idle_sockets:
                if client.fileno() in closed:
                    client.settimeout(1)
                    try:
                        if client.recv(4096):
                            kept.append(client)
                            continue
                    except OSError:
                        pass
                    client.close()
                    self.count("idle connections closed by the server")
                else:
                    kept.append(client)
            self.idle_sockets = kept
            # At first all that fit; then a client comes back now and then.
            for _ in range(min(self.idle - len(kept), self.idle if not kept else 20)):
                client = self.open_idle(chance)
                if client:
                    self.idle_sockets.append(client)
            with self.lock:
                most = self.report.counts["idle connections at once"]
                self.report.counts["idle connections at once"] = max(most, len(self.idle_sockets))
            time.sleep(0.5)

    # looking on

    def look(self, cgroup):
        peaks = self.report.peaks

        def note(name, value):
            peaks[name] = max(peaks.get(name, 0), value)

        last = time.monotonic()
        while self.report.seconds < self.seconds and not self.is_enough and self.server.process.poll() is None:
            now = time.monotonic()
            if now - last > STANDSTILL_SECONDS:
                self.stops += 1
                self.count("standstills")
            else:
                self.report.seconds += now - last
            last = now
            note("VmHWM", self.server.peak_memory())
            if cgroup:
                note("cgroup rss", cgroup.rss())
                note("cgroup usage", cgroup.peak() or cgroup.usage())
                note("cgroup kernel", cgroup.kernel())
            time.sleep(0.25)

    def run(self, cgroup):
        threads = [threading.Thread(target=self.client, args=(seed,)) for seed in range(self.clients)]
        threads += [threading.Thread(target=self.idle_connections), threading.Thread(target=self.look, args=(cgroup,))]
        for thread in threads:
            thread.start()
        threads[-1].join()
        self.is_over = True
        while any(thread.is_alive() for thread in threads):
            self.hang_up_all()
            time.sleep(0.1)
        for client in self.idle_sockets:
            client.close()


def check_end(server, report, cgroup):
    """When the clients have gone: all is given back, and nothing passed its limit."""
    if server.process.poll() is not None:
        return report.problems.append(f"the server ended with {server.process.poll()}: {server.log[-1500:]}")
    server.wait_idle(600)
    memory = server.request("GET", "/debug/memory").json
    report.accounts = memory["accounts"]
    for name, account in report.accounts.items():
        if not account["used_bytes"] <= account["peak_bytes"] <= account["limit_bytes"]:
            report.problems.append(f"account {name}: {account}")
    if memory["pages"]["held"] != 0:
        report.problems.append(f"pages are still held: {memory['pages']}")
    report.counts["preemptions"] = int(server.metrics().preemptions)
    report.peaks["VmHWM"] = server.peak_memory()
    if report.peaks["VmHWM"] > report.memory_bytes:
        report.problems.append(f"VmHWM of {report.peaks['VmHWM']} bytes is over the budget")
    if server.complete(harness.PROBE)["choices"] is None:
        report.problems.append("no answer at the end")
    code = server.stop(600)
    if code != 0:
        report.problems.append(f"exit status {code}: {server.log[-1500:]}")
    if cgroup:
        report.counts["failcnt"] = cgroup.failures()
        if report.peaks.get("cgroup rss", 0) > report.memory_bytes:
            report.problems.append(f"the cgroup's rss of {report.peaks['cgroup rss']} bytes is over the budget")
        if cgroup.kills():
            report.problems.append(f"{cgroup.kills()} were killed for memory")


def soak(memory, seconds, clients=64, idle=1000, model=None, ends_on_sigterm=False):
    """`memory` in bytes, as the server's budget and as the cgroup's limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = idle + 4 * clients + 100
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    report = Report(memory)
    cgroup, why = memory_cgroup.make(memory)
    report.cgroup = f"in a memory cgroup v{cgroup.version} of as much" if cgroup else why
    server = None
    try:
        server = harness.Server("--memory", str(memory), "--timeout", "7200", model=model, ready=False,
                                launcher=cgroup.command if cgroup else None)
        harness.wait_until(lambda: server.get("/ready").status == 200, 600, "ready")
        work = Soak(server, report, seconds, clients, idle)
        if ends_on_sigterm:
            signal.signal(signal.SIGTERM, lambda *_: setattr(work, "is_enough", True))
        work.run(cgroup)
        check_end(server, report, cgroup)
    finally:
        if server:
            server.kill()
        if cgroup:
            cgroup.remove()
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", default="200MiB", help="such as 200MiB or 2GiB")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--model", help="a GGUF file ($QUIRE_TEST_MODEL)")
    arguments = parser.parse_args()
    number, unit = re.fullmatch(r"(\d+)(MiB|GiB)", arguments.memory).groups()
    memory = int(number) * (MIB if unit == "MiB" else 1024 * MIB)
    report = soak(memory, arguments.seconds, arguments.clients, arguments.idle, arguments.model, ends_on_sigterm=True)
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
