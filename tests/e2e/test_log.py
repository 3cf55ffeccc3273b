"""Logging never blocks: whatever becomes of standard error, requests go on, and SIGTERM ends the server."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import termios
import tty

import pytest

import harness

TINY_PIPE = 4096  # one page: a score of log lines
PATH = "/" + "x" * 110  # a refusal is a line; long paths make it longer


@contextlib.contextmanager
def pipe():
    """Nobody reads it. Yields its end for the server, and a function that reads what is there to the end."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, TINY_PIPE)
    yield writer, reader
    os.close(reader)


@contextlib.contextmanager
def fifo():
    folder = harness.tempfile.mkdtemp()
    path = os.path.join(folder, "log")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, TINY_PIPE)
    yield writer, reader
    os.close(reader)
    harness.shutil.rmtree(folder)


@contextlib.contextmanager
def journald():
    """A stream socket, as systemd's journal has it, whose reader stands still."""
    reader, writer = socket.socketpair()
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TINY_PIPE)
    yield writer.detach(), reader.fileno()
    reader.close()


@contextlib.contextmanager
def stopped_terminal():
    """After ctrl-S."""
    master, slave = os.openpty()
    tty.setraw(slave)
    termios.tcflow(slave, termios.TCOOFF)
    yield slave, master
    os.close(master)


@contextlib.contextmanager
def full_disk():
    yield os.open("/dev/full", os.O_WRONLY), None


@contextlib.contextmanager
def closed_reader():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer, None


KINDS = [pipe, fifo, journald, stopped_terminal, full_disk, closed_reader]


@contextlib.contextmanager
def logging_into(kind, *options):
    with kind() as (writer, reader):
        try:
            with harness.started(*options, model=harness.tiny(), stderr=writer) as server:
                yield server, reader
        finally:
            os.close(writer)


def refusals(server, count):
    """So many answers, a log line for each, many requests at a time on one connection."""
    request = f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), harness.patience(60)) as connection:
        left = count
        while left:
            burst = min(left, 20)
            connection.sendall(request * burst)
            answers = b""
            while answers.count(b'"code":"not_found"') < burst:
                got = connection.recv(65536)
                assert got, "closed"
                answers += got
            left -= burst


@pytest.mark.sanitizer
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_requests_go_on_and_sigterm_ends(kind):
    with logging_into(kind) as (server, _):
        refusals(server, 400)  # the line that blocks is among the first forty
        assert server.get("/health").status == 200
        assert server.complete(harness.PROBE)["choices"]
        server.signal()
        assert server.wait(20) == 0


@pytest.mark.sanitizer
def test_a_second_signal_ends_without_a_log_line():
    with logging_into(pipe, "--drain-seconds", 600) as (server, _):
        refusals(server, 100)
        stream = server.stream({"prompt": "a", "max_tokens": 7000, "ignore_eos": True})
        next(stream.events())
        server.signal()
        harness.wait_until(lambda: not server.listens(), what="draining")
        server.signal(signal.SIGINT)
        assert server.wait(20) == 128 + signal.SIGINT
        stream.hang_up()


def test_what_was_dropped_is_said():
    """Numbers of lines: those that were read and those that the log says are missing are all that were written."""
    with logging_into(pipe) as (server, reader):
        refusals(server, 4000)
        dropped = server.metrics()("quire_log_lines_dropped_total")
        assert dropped > 0
        text = b""
        while f"{int(dropped)} lines were dropped" not in text.decode():
            text += os.read(reader, 65536)
        lines = text.decode().splitlines()
        assert sum("status=404" in line for line in lines) + dropped == 4000
        assert server.metrics()("quire_log_lines_dropped_total") == dropped


@pytest.mark.parametrize("command", [("run", "-n", "4000", "hello"), ("bench", "--answer-tokens", "4"), ("help",)],
                         ids=lambda command: command[0])
def test_standard_output_with_a_closed_reader(command):
    """A program whose output nobody reads ends, with an exit code that says so."""
    reader, writer = os.pipe()
    os.close(reader)
    options = [] if command[0] == "help" else ["-m", harness.tiny()]
    with open(writer, "wb") as out:
        done = harness.subprocess.run([harness.BINARY, command[0], *options, *command[1:]], stdin=harness.subprocess.DEVNULL,
                                      stdout=out, stderr=harness.subprocess.PIPE, timeout=harness.patience(60))
    assert done.returncode == 1, done.stderr


def test_requests_as_json(tmp_path):
    """Every field is one: numbers are numbers, a refusal says what and why."""
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    keys.chmod(0o600)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with harness.started("--log-format", "json", "--api-key-file", keys, key="second", model=harness.tiny()) as server:
        def line(ask):
            before = len(requests())
            ask()
            harness.wait_until(lambda: len(requests()) > before, what="a line")
            return requests()[-1]

        def requests():
            lines = [json.loads(text) for text in server.log.splitlines() if text.startswith("{") and text.endswith("}")]
            return [one for one in lines if one["event"] == "request"]

        prompt = {"prompt": harness.words(1, 30), "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        server.headers |= {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Request-Id": "mine"}
        whole = line(lambda: server.complete(prompt))
        assert whole["message"] == "POST /v1/completions" and whole["route"] == "completions" and whole["status"] == 200
        assert (whole["client"], whole["client_id"], whole["trace_id"], whole["key"]) == ("127.0.0.1", "mine", trace, 2)
        assert whole["prompt_tokens"] >= 30 and whole["completion_tokens"] == 3 and whole["cached_tokens"] == 0
        assert whole["finish"] == "length" and whole["stream"] is False
        assert 0 <= whole["queue_ms"] <= whole["first_token_ms"] <= whole["ms"]
        server.headers.pop("traceparent")
        stream = line(lambda: list(server.stream(prompt).chunks()))
        assert stream["stream"] is True and stream["cached_tokens"] >= 16 and "trace_id" not in stream
        assert stream["first_token_ms"] <= stream["first_ms"] <= stream["ms"]
        refused = line(lambda: server.post({**prompt, "temperature": "hot"}))
        assert (refused["status"], refused["param"]) == (400, "temperature")
        assert refused["reason"] and "prompt_tokens" not in refused
        unknown = line(lambda: server.request("GET", "/v2"))
        assert (unknown["status"], unknown["code"]) == (404, "not_found") and "route" not in unknown
        server.headers["Authorization"] = "Bearer third"
        stranger = line(lambda: server.post(prompt))
        assert (stranger["status"], stranger["code"]) == (401, "invalid_api_key") and "key" not in stranger
        assert "third" not in server.log
