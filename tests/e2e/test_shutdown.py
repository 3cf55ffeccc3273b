"""SIGTERM: stop accepting, let streams end within the grace time, exit 0; a second one ends at once. B83"""

import json
import re
import signal
import socket
import time

import pytest

import harness

LONG = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


def refuses_connections(server):
    try:
        socket.create_connection(("127.0.0.1", server.port), 1).close()
        return False
    except OSError:
        return True


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


def test_new_requests_on_open_connections_are_refused_while_draining():
    with harness.started("--drain-seconds", 60) as server:
        open_connection = harness.Stream(server, {**LONG, "max_tokens": 1})
        assert open_connection.response().read()
        stream = server.stream({**LONG, "max_tokens": 150})
        events = stream.events()
        next(events)
        server.signal()
        harness.wait_until(lambda: refuses_connections(server), what="refusing connections")
        try:
            open_connection.connection.request("POST", harness.COMPLETIONS, json.dumps(LONG), server.headers)
            answer = harness.Answer(open_connection.connection.getresponse())
            assert answer.status == 503 and answer.headers["Retry-After"]
        except (ConnectionError, harness.http.client.RemoteDisconnected):
            pass  # an idle connection may be closed instead
        assert list(events)[-1] == "[DONE]"
        assert server.wait() == 0


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
