"""SIGTERM: stop accepting, let streams end within the grace time, exit 0; a second one ends at once. B83"""

import json
import re
import signal
import socket
import threading
import time

import pytest

import harness

LONG = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


def refuses_connections(server):
    return not server.listens()


@pytest.mark.sanitizer
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle(number):
    with harness.started(model=harness.tiny()) as server:
        server.complete(harness.PROBE)
        server.signal(number)
        assert server.wait(10) == 0


def test_before_it_is_ready():
    with harness.started(ready=False) as server:
        server.signal()
        assert server.wait(10) == 0


@pytest.mark.sanitizer
def test_an_idle_connection_does_not_hold_it_up():
    with harness.started(model=harness.tiny()) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert idle.recv(1000).startswith(b"HTTP/1.1 200")
            with socket.create_connection(("127.0.0.1", server.port)) as half:
                half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
                server.signal()
                assert server.wait(15) == 0


def eight(server, max_tokens):
    streams = [server.stream({**LONG, "max_tokens": max_tokens, "prompt": harness.words(i, 4)}) for i in range(8)]
    for stream in streams:
        next(stream.events())
    return streams


def test_eight_streams_end_as_they_would_have():
    with harness.started("--drain-seconds", 60) as server:
        expected = [server.text(harness.words(i, 4), temperature=0, ignore_eos=True, max_tokens=40) for i in range(8)]
        streams = [server.stream({**LONG, "max_tokens": 40, "prompt": harness.words(i, 4)}) for i in range(8)]
        harness.wait_until(lambda: server.metrics().running == 8, what="eight running")
        server.signal()
        harness.wait_until(lambda: refuses_connections(server), what="refusing connections")
        for stream, text in zip(streams, expected):
            assert "".join(c["choices"][0]["text"] for c in stream.chunks()) == text
        assert server.wait() == 0


@pytest.mark.sanitizer
def test_streams_that_last_too_long_are_told():
    with harness.started("--drain-seconds", 1) as server:
        streams = eight(server, 7000)
        whole = server.stream({**LONG, "max_tokens": 7000, "stream": False})
        harness.wait_until(lambda: server.metrics().running == 9, what="nine running")
        server.signal()
        start = time.monotonic()
        for stream in streams:
            events = list(stream.events())
            assert "error" in json.loads([e for e in events if e != "[DONE]"][-1]), events[-1]
        answer = harness.Answer(whole.response())
        assert answer.status == 503 and answer.error["message"]
        assert server.wait() == 0
        assert time.monotonic() - start < harness.patience(20)


class KeptAlive:
    """One connection, asked again and again."""

    def __init__(self, server):
        self.server = server
        self.connection = harness.http.client.HTTPConnection("127.0.0.1", server.port, timeout=harness.patience(60))
        self.connection.connect()
        self.socket = self.connection.sock

    def ask(self, body=None):
        method, path = ("POST", harness.COMPLETIONS) if body else ("GET", "/v1/models")
        self.connection.request(method, path, json.dumps(body) if body else None, self.server.headers)
        assert self.connection.sock is self.socket, "not a second connection in its place"
        return harness.Answer(self.connection.getresponse())


@pytest.mark.sanitizer
def test_open_connections_are_answered_once_more():
    """Kept-alive connections whose next request comes after the listener's end, idle or behind a stream."""
    with harness.started("--drain-seconds", 60, model=harness.tiny()) as server:
        get, post, silent = (KeptAlive(server) for _ in range(3))
        for connection in (get, post):
            assert "Connection" not in connection.ask().headers
        server.signal()
        harness.wait_until(lambda: refuses_connections(server), what="refusing connections")
        for answer in (get.ask(), post.ask({**LONG, "max_tokens": 4})):
            assert answer.status == 200 and answer.headers["Connection"] == "close"
        silent.socket.settimeout(harness.patience(60))
        assert silent.socket.recv(1) == b""
        assert server.wait(30) == 0


def hammer(server, body, outcomes):
    """Connects, asks, and again, until it is refused. Notes what became of each request."""
    request = json.dumps(body).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
        b"Content-Length: %d\r\n\r\n%s" % (len(request), request)
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", server.port), harness.patience(30))
        except OSError as problem:
            outcomes.append(type(problem).__name__)
            return
        with connection:
            try:
                connection.sendall(request)
                outcomes.append(connection.recv(65536)[:12].decode())
            except OSError as problem:
                outcomes.append("sent, then " + type(problem).__name__)


@pytest.mark.sanitizer
@pytest.mark.parametrize("delay", [0, 1])
def test_nobody_who_could_connect_is_left_without_an_answer(delay):
    """Requests come without a break, each on a connection of its own, before, while and after it stops listening."""
    with harness.started("--drain-delay", delay, model=harness.tiny()) as server:
        outcomes = [[] for _ in range(6)]
        threads = [threading.Thread(target=hammer, args=(server, {**LONG, "max_tokens": 1}, found)) for found in outcomes]
        for thread in threads:
            thread.start()
        harness.wait_until(lambda: all(len(found) > 5 for found in outcomes), what="answers")
        server.signal()
        for thread in threads:
            thread.join()
        assert server.wait(30) == 0
        for found in outcomes:
            assert found.pop() == "ConnectionRefusedError"
            assert set(found) == {"HTTP/1.1 200"}, found


@pytest.mark.sanitizer
def test_drain_delay_says_unready_and_serves():
    with harness.started("--drain-delay", 600, model=harness.tiny()) as server:
        kept = KeptAlive(server)
        kept.ask()
        server.signal()
        harness.wait_until(lambda: server.get("/ready").status == 503, what="not ready")
        assert server.get("/ready").json == {"status": "draining"} and server.get("/health").status == 200
        assert server.metrics()("quire_ready") == 0
        for _ in range(2):
            answer = kept.ask({**LONG, "max_tokens": 2})
            assert answer.status == 200 and "Connection" not in answer.headers
        assert server.complete({**LONG, "max_tokens": 2})
        server.signal(signal.SIGINT)
        assert server.wait(10) == 128 + signal.SIGINT


@pytest.mark.sanitizer
def test_signals_that_are_not_for_the_end():
    with harness.started(model=harness.tiny()) as server:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            server.signal(number)
        harness.wait_until(lambda: "reload" in server.log, what="SIGHUP in the log")
        assert server.complete(harness.PROBE) and server.process.poll() is None


@pytest.mark.sanitizer
def test_hangup_reads_the_keys_again(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\nstays\n")
    keys.chmod(0o600)

    def status(key):
        return server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}).status

    def reload(text, said):
        keys.write_text(text)
        before = server.log.count(said)
        server.signal(signal.SIGHUP)
        harness.wait_until(lambda: server.log.count(said) > before, what=said)

    with harness.started("--api-key-file", keys, key="stays", model=harness.tiny()) as server:
        assert [status(key) for key in ("first", "stays", "second")] == [200, 200, 401]
        stream = server.stream({**LONG, "max_tokens": 400})
        next(stream.events())
        reload("second\nstays\n", "2 keys: 1 are new, 1 are gone")
        assert [status(key) for key in ("first", "stays", "second")] == [401, 200, 200]
        reload("a b\n", "the keys stay as they were")
        assert [status(key) for key in ("first", "stays", "second")] == [401, 200, 200]
        assert "second" not in server.log
        server.key = "second"
        server.headers["Authorization"] = "Bearer second"
        server.complete({**LONG, "max_tokens": 3})
        assert server.metrics()("quire_key_tokens_total", key="3") >= 3, "a new key has a number of its own"
        stream.hang_up()


def test_the_end_of_its_terminal_is_an_end():
    """Whoever closes the window does not leave a server behind."""
    import os
    import termios
    master, slave = os.openpty()

    def own_terminal(command):
        return ["setsid", "--ctty", *command]

    with open(slave, "rb", buffering=0) as terminal:
        with harness.started(model=harness.tiny(), launcher=own_terminal, stdin=terminal) as server:
            assert termios.tcgetattr(terminal)
            server.complete(harness.PROBE)
            os.close(master)
            assert server.wait(20) == 0
            assert "stopped: all requests are done" in server.log


def test_it_ends_when_a_request_never_does():
    """A library that never lets a request end (its resume does nothing here) holds nothing up for ever."""
    with harness.started("--drain-seconds", 1, model=harness.tiny(),
                         environment={"LD_PRELOAD": str(harness.BUILD / "tests/server/libstuck.so")}) as server:
        stream = server.stream({**LONG, "max_tokens": 4})
        harness.wait_until(lambda: server.metrics()("quire_http_requests_in_flight") >= 2, what="in flight")
        server.signal()
        assert server.wait(30) == 1
        assert "could not be ended" in server.log
        stream.hang_up()


@pytest.mark.sanitizer
def test_a_second_signal_ends_at_once():
    with harness.started("--drain-seconds", 600) as server:
        streams = eight(server, 7000)
        server.signal()
        harness.wait_until(lambda: refuses_connections(server), what="refusing connections")
        assert server.process.poll() is None
        server.signal()
        server.wait(10)
        for stream in streams:
            stream.hang_up()


def test_in_the_middle_of_a_long_prompt():
    with harness.started("--drain-seconds", 0) as server:
        stream = server.stream({**LONG, "prompt": harness.words(1, 5500), "max_tokens": 10})
        harness.wait_until(lambda: server.metrics().running == 1, what="running")
        server.signal()
        assert server.wait(20) == 0
        stream.hang_up()


def test_ready_says_draining_and_health_lives(tiny):
    """B84: alive is not ready."""
    with harness.started(ready=False) as server:
        answer = server.get("/health")
        assert answer.status == 200
        codes = {server.get("/ready").status}
        harness.wait_until(lambda: codes.add(server.get("/ready").status) or 200 in codes, 60, "ready")
        assert codes <= {200, 503}
        refused = server.get("/metrics")
        assert refused.status == 200


@pytest.mark.sanitizer
def test_profile_is_logged_at_the_end():
    with harness.started("--profile", model=harness.tiny()) as server:
        server.complete({**LONG, "max_tokens": 8})
        assert "attention:" not in server.log
        server.signal()
        assert server.wait(10) == 0
        shares = [float(share) for share in re.findall(r"profile.* s at work \(([\d.]+) %\)", server.log)]
        assert len(shares) == 8 and max(shares) > 0 and sum(shares) < 100.5  # a small one may be rounded to 0
        assert re.search(r"attention: [\d.]+ s at work", server.log)
