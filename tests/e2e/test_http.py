"""HTTP as bytes on a socket: heads that must not be believed, bodies, limits, keys, hosts, and what a
stream looks like on the wire. CASES sections 7, 8 and 12: B17, B49, B50, B51, B55, B57, B59, B61-B63, B84
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import tempfile
import time

import pytest

import harness
import malformed
from harness import CHAT, COMPLETIONS

BODY = json.dumps({"prompt": "x", "max_tokens": 1, "temperature": 0}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


class Raw:
    """A socket and what came over it."""

    def __init__(self, server, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(harness.patience(20))
        self.socket.connect(("127.0.0.1", server.port))
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def send(self, data):
        with contextlib.suppress(ConnectionError):  # refused before the end of a long request
            self.socket.sendall(data)
        return self

    def head(self):
        """Status and headers of one answer, names in small letters."""
        line = self.file.readline()
        assert line.startswith(b"HTTP/1."), line
        headers = {}
        while (header := self.file.readline()) not in (b"\r\n", b""):
            name, value = header.decode("utf-8").split(":", 1)
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers

    def answer(self):
        status, headers = self.head()
        return status, headers, self.file.read(int(headers["content-length"]))

    def chunk(self):
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        assert self.file.read(2) == b"\r\n"
        return data

    def closes(self):
        """Does the server close, with nothing more to say?"""
        try:
            return self.file.read() == b""
        except ConnectionError:
            return True


def ask(server, data):
    with Raw(server) as raw:
        return raw.send(data).answer()


def error_of(answer):
    status, headers, body = answer
    assert headers["content-type"] == "application/json"
    error = json.loads(body.decode("utf-8"))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["code"]


# heads


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", malformed.CASES)
def test_malformed_requests(tiny, name):
    """The table that every HTTP library must answer alike; what follows a refused request is not read as one."""
    assert malformed.try_case(tiny.port, name) is None


@pytest.mark.sanitizer
def test_malformed_requests_leave_nothing(tiny):
    with tiny.unharmed():
        for name in malformed.CASES:
            malformed.try_case(tiny.port, name)
        assert tiny.metrics()("quire_http_requests_in_flight") == 1


@pytest.mark.sanitizer
def test_large_and_slow_but_right_heads(tiny):
    """The check of every byte of a head refuses no honest one, however it arrives."""
    many = b"".join(b"X-%d: %s\r\n" % (i, b"v" * (i % 50)) for i in range(100))
    odd = b"Accept:*/*\r\nX-A:\t b \r\nX-Empty:\r\nX-High: \xc3\xa9\r\nCookie: a=b; c=d\r\n" + b"X-Long: " + b"y" * 9000 + b"\r\n"
    request = b"GET /health?a=b&c=%20d HTTP/1.1\r\nHost: localhost\r\n" + many + odd + b"\r\n"
    with Raw(tiny) as raw:
        for _ in range(2):  # a kept-alive connection parses the second one elsewhere
            for i in range(0, len(request), 700):
                raw.send(request[i:i + 700])
                time.sleep(0.002)
            assert raw.answer()[0] == 200
        raw.send(request * 2)
        assert raw.answer()[0] == 200
        assert raw.answer()[0] == 200


@pytest.mark.sanitizer
def test_floods_take_no_memory(tiny):
    """B59"""
    with tiny.unharmed():
        before = tiny.peak_memory()
        for name in "header of 10 MB", "line of 1 MB", "10,000 headers", "a flood without a line":
            assert malformed.try_case(tiny.port, name) is None
        if not harness.sanitized():
            assert tiny.peak_memory() - before < 2 << 20


def resident(server):
    """VmRSS in bytes."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


@pytest.mark.sanitizer
def test_refused_heads_leave_nothing(tiny):
    """10,000 heads that end before any handler: no record of them stays, in no account. (The leak was 952 bytes each.)"""
    count = 1_000 if harness.sanitized() else 10_000
    head = b"GET /health?" + b"a&" * 700 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def send(number):
        for _ in range(number):
            with Raw(tiny) as raw:
                raw.send(head)

    with tiny.unharmed():
        send(500)  # what the allocator keeps anyway
        before = resident(tiny)
        send(count)
        harness.wait_until(lambda: tiny.metrics()("quire_http_connections") == 1, 20, "connections closed")
        assert tiny.metrics()("quire_http_requests_in_flight") == 1  # the one that asks
        if not harness.sanitized():
            assert resident(tiny) - before < count * 200


# routes and methods


@pytest.mark.sanitizer
def test_methods_and_paths(tiny):
    """B57"""
    for path in "/health", "/v1/models", "/metrics", "/debug/memory", "/version", "/", "/ready":
        whole = tiny.request("GET", path, headers={})
        head = tiny.request("HEAD", path, headers={})
        assert whole.status == head.status == 200
        assert head.body == b"" and whole.body
        assert head.headers["Content-Type"] == whole.headers["Content-Type"]
    for method, path, status, allow in (
            ("PUT", COMPLETIONS, 405, "POST, OPTIONS"), ("GET", CHAT, 405, "POST, OPTIONS"),
            ("HEAD", CHAT, 405, "POST, OPTIONS"), ("POST", "/v1/models", 405, "GET, HEAD, OPTIONS"),
            ("DELETE", "/v1/models/x", 405, "GET, HEAD, OPTIONS"), ("TRACE", "/", 405, "GET, HEAD, OPTIONS"),
            ("GET", "/nothing", 404, None), ("GET", "/v1/models/", 404, None), ("GET", "//v1/models", 404, None),
            ("POST", COMPLETIONS + "/", 404, None), ("GET", "/v1/../v1/models", 404, None)):
        answer = tiny.request(method, path, headers={})
        assert answer.status == status, path
        assert answer.headers["Allow"] == allow
        if method != "HEAD":
            assert answer.error
    assert tiny.request("GET", "/v1/models?x=y", headers={}).status == 200
    absolute = ask(tiny, b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert absolute[0] == 200
    for target in b"*", b"/v1/chat/completions":
        status, headers = options(tiny, target)
        assert status == 204 and headers["allow"] and "access-control-allow-origin" not in headers


def options(server, target, origin=b"https://a.example", asked=None):
    asked = b"Access-Control-Request-Headers: " + asked + b"\r\n" if asked else b""
    with Raw(server) as raw:
        raw.send(b"OPTIONS " + target + b" HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin
                 + b"\r\nAccess-Control-Request-Method: POST\r\n" + asked + b"\r\n")
        return raw.head()


@pytest.mark.sanitizer
def test_models_by_id(tiny):
    name = tiny.request("GET", "/v1/models").json["data"][0]["id"]
    assert tiny.get(f"/v1/models/{name}").json["id"] == name
    assert tiny.get("/v1/models/default").json["id"] == name, "as requests may call it"
    escaped = "".join(f"%{byte:02x}" for byte in name.encode())
    assert tiny.get(f"/v1/models/{escaped}").json["id"] == name
    for bad in "other", name + "%00", "%zz", "%", "%4", name + "/x", "a" * 300:
        answer = tiny.get(f"/v1/models/{bad}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found"), bad


@pytest.mark.sanitizer
def test_request_ids(tiny):
    ids = {tiny.get("/health").headers["X-Request-Id"] for _ in range(3)}
    assert len(ids) == 3 and all(re.fullmatch("[0-9a-f]{16}", i) for i in ids)
    own = tiny.request("GET", "/health", headers={"X-Request-Id": "trace-1:a.b_c"})
    assert own.headers["X-Request-Id"] == "trace-1:a.b_c"
    for bad in "a b", "x" * 100, 'a"b':
        assert tiny.request("GET", "/health", headers={"X-Request-Id": bad}).headers["X-Request-Id"] != bad


# bodies


@pytest.mark.sanitizer
def test_expect(tiny):
    """B55"""
    with tiny.unharmed():
        with Raw(tiny) as raw:  # told to go on at once
            start = time.monotonic()
            raw.send(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
            assert raw.head()[0] == 100
            assert time.monotonic() - start < harness.patience(0.5)
            assert raw.send(BODY).answer()[0] == 200
        for head, status in ((HEAD + b"Content-Length: 999999999\r\n", 413), (HEAD + b"Content-Length: 9000000\r\n", 413),
                             (b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n", 404)):
            with Raw(tiny) as raw:  # told not to, at once
                start = time.monotonic()
                answer = raw.send(head + b"Expect: 100-continue\r\n\r\n").answer()
                assert answer[0] == status and answer[1]["connection"].lower() == "close"
                assert raw.closes()
                assert time.monotonic() - start < harness.patience(0.5)
        assert ask(tiny, HEAD + b"Expect: foo\r\nContent-Length: 5\r\n\r\n")[0] == 417


@pytest.mark.sanitizer
def test_chunked_bodies(tiny):
    with tiny.unharmed():
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(BODY[i:i + 7]), BODY[i:i + 7]) for i in range(0, len(BODY), 7))
        assert ask(tiny, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")[0] == 200
        assert ask(tiny, HEAD + b"Transfer-Encoding: CHUNKED\r\n\r\n" + chunks + b"0\r\nX-T: y\r\n\r\n")[0] == 200


@pytest.mark.sanitizer
def test_too_large(tiny):
    """An answer comes although the client sends all of it first, and the connection goes on."""
    with tiny.unharmed():
        big = b'{"prompt":"' + b"a" * (9 << 20) + b'"}'
        before = tiny.peak_memory()
        with Raw(tiny) as raw:
            raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(big) + big)
            assert error_of(raw.answer()) == (413, "body_too_large")
            assert raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").answer()[0] == 200
        if not harness.sanitized():
            assert tiny.peak_memory() - before < 2 << 20  # it was never held
        with Raw(tiny) as raw:
            raw.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(
                b"10000\r\n%s\r\n" % (b"a" * 65536) for _ in range(144)) + b"0\r\n\r\n")
            assert error_of(raw.answer()) == (413, "body_too_large")


@pytest.mark.sanitizer
@pytest.mark.parametrize("data,code", [
    (HEAD + b"Content-Length: 50000000\r\n\r\n" + b"x" * 50_000_000, "body_too_large"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1000000\r\n" + b"x" * 0x1000000, "body_too_large"),
    (HEAD + b"Content-Length: x\r\n\r\n" + b"x" * 10_000_000, "bad_request"),
    (HEAD + b"X: " + b"x" * 10_000_000, "headers_too_large"),
    (b"GET /" + b"x" * 10_000_000, "uri_too_long")])
def test_answers_are_not_lost_in_a_reset(tiny, data, code):
    """Refused at once, though the client sends on and reads only then."""
    with tiny.unharmed():
        for _ in range(3):
            with Raw(tiny) as raw:
                raw.socket.sendall(data)
                assert error_of(raw.answer())[1] == code
                assert raw.closes()


@pytest.mark.sanitizer
@pytest.mark.parametrize("type_,status", [
    ("application/json", 200), ("Application/JSON; charset=UTF-8", 200), ('application/json; charset="utf-8"', 200),
    (None, 200), ("multipart/form-data; boundary=\"", 415), ("multipart/form-data; boundary=a\tb", 415),
    ("application/x-www-form-urlencoded", 415), ("text/plain", 415), ("application/json; charset=utf-16", 415),
    ("application/jsonx", 415), ("", 415), ("application/json;charset=utf8", 200), ("application/json;CharSet=US-ASCII", 200),
    ("application/json; charset=utf-8x", 415), ("application/json; charset=", 415), ("application/json; charset=latin1", 415),
    ("application/json; charset=utf-8; profile=x", 200), ("application/json; x=charset; charset=utf-16", 415),
    ("application/json; charset=\"utf-8\"; q=1", 200), ("application/json;", 200)])
def test_content_types(tiny, type_, status):
    """B62"""
    headers = {} if type_ is None else {"Content-Type": type_}
    for path in COMPLETIONS, CHAT:
        body = BODY if path == COMPLETIONS else b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1}'
        assert tiny.request("POST", path, body, headers).status == status
    if type_ is None:  # a web page may send untyped bodies to anyone
        assert tiny.request("POST", COMPLETIONS, BODY, {"Origin": "https://a.example"}).status == 415
    encoded = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert tiny.request("POST", COMPLETIONS, BODY, encoded).status == 415
    assert tiny.request("POST", COMPLETIONS, BODY, {**encoded, "Content-Encoding": "Identity"}).status == 200


@pytest.mark.sanitizer
def test_aborted_uploads(tiny):
    with tiny.unharmed():
        for cut in range(0, len(POST), 11):
            with Raw(tiny) as raw:
                raw.send(POST[:cut])
        with Raw(tiny) as raw:  # together with the FIN
            raw.send(POST)
            raw.socket.shutdown(socket.SHUT_WR)
            raw.closes()
        harness.wait_until(lambda: tiny.metrics()("quire_http_connections") == 1, 10, "connections closed")


@pytest.mark.sanitizer
def test_pipelining_and_keep_alive(tiny):
    with tiny.unharmed(), Raw(tiny) as raw:
        raw.send(POST * 3 + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + POST)
        answers = [raw.answer() for _ in range(5)]
        assert [a[0] for a in answers] == [200] * 5
        assert json.loads(answers[3][2]) == {"status": "ok"}
        texts = [json.loads(answers[i][2])["choices"][0]["text"] for i in (0, 1, 2, 4)]
        assert len(set(texts)) == 1
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 300 + b"\r\n\r\n"
        raw.send(get * 300)  # many times what one head may have
        assert [raw.answer()[0] for _ in range(300)] == [200] * 300
        chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
        raw.send((chunked + get) * 20)
        assert [raw.answer()[0] for _ in range(40)] == [200] * 40
        raw.send(POST.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n"))
        assert raw.answer()[0] == 200
        assert raw.closes()


# keys, hosts, origins


@pytest.fixture(scope="module")
def keyed():
    """A server with two keys, one allowed host and one origin."""
    file = tempfile.NamedTemporaryFile("w", prefix="quire-keys-", suffix=".txt", delete=False)
    with file:
        file.write("# ours\nsk-first\n\nsk-second\n")
    with harness.started("--api-key-file", file.name, "--cors-origin", "https://app.example",
                         "--allowed-host", "quire.example", model=harness.tiny(), key="sk-second") as server:
        yield server
    os.unlink(file.name)


@pytest.mark.sanitizer
def test_keys(keyed):
    assert keyed.request("GET", "/v1/models").status == 200
    assert keyed.complete({"prompt": "x", "max_tokens": 1})
    for header in (None, "", "Bearer", "Bearer ", "Bearer sk-secon", "Bearer sk-second2", "Basic sk-second", "sk-second",
                   "Bearer " + "x" * 5000, "Bearer \xc3\xa9"):
        headers = {"Content-Type": "application/json"} | ({} if header is None else {"Authorization": header})
        for method, path, body in (("POST", COMPLETIONS, BODY), ("POST", CHAT, b"{}"), ("GET", "/v1/models", None),
                                   ("GET", "/debug/memory", None)):
            answer = keyed.request(method, path, body, headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), header
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    for path in "/health", "/ready", "/metrics":  # probes have no key
        assert keyed.get(path).status == 200
    assert "sk-second" not in keyed.log


# What the openai package sends from a browser.
OPENAI_HEADERS = (b"authorization,content-type,openai-organization,openai-project,x-stainless-arch,x-stainless-lang,"
                  b"x-stainless-os,x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
                  b"x-stainless-runtime-version,x-stainless-timeout")


@pytest.mark.sanitizer
def test_origins(keyed):
    """Preflight needs no key; only listed origins are answered, and those may send what they ask for."""
    status, headers = options(keyed, b"/v1/chat/completions", b"https://app.example")
    assert status == 204
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in headers["access-control-allow-methods"]
    assert "Authorization" in headers["access-control-allow-headers"]
    asked = options(keyed, b"/v1/models", b"https://app.example", OPENAI_HEADERS)[1]
    assert asked["access-control-allow-headers"] == OPENAI_HEADERS.decode()
    many = options(keyed, b"/v1/models", b"https://app.example", b"x-" + b"y" * 15_000)
    assert many[0] == 204 and "x-y" not in many[1]["access-control-allow-headers"]
    for evil in b"https://evil.example", b"https://app.example.evil", b"null", b"https://app.example," + b"x" * 15_000:
        status, headers = options(keyed, b"/v1/chat/completions", evil, OPENAI_HEADERS)
        assert status == 204 and not [name for name in headers if name.startswith("access-control")]
    answer = keyed.request("GET", "/health", headers={"Origin": "https://app.example"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert answer.headers["Vary"] == "Origin"
    status, headers = options(keyed, b"/nothing")  # as any other method there
    assert status == 404


@pytest.mark.sanitizer
@pytest.mark.parametrize("host,status", [
    ("localhost", 200), ("localhost:80", 200), ("LOCALHOST", 200), ("app.localhost:8080", 200), ("localhost.", 200),
    ("127.0.0.1", 200), ("127.1.2.3", 200), ("10.0.0.1:8080", 200), ("192.168.1.7", 200), ("[::1]:8080", 200),
    ("[fe80::1]", 200), ("host.docker.internal:8080", 200), ("host.containers.internal", 200), ("QUIRE.example", 200),
    ("quire.example.", 200), ("evil.example", 403), ("localhost.evil.example", 403), ("notlocalhost", 403),
    (".localhost", 403), ("evil-host.docker.internal", 403), ("docker.internal", 403), ("10.0.0.1.evil.example", 403),
    ("[::1].evil.example", 403), ("[::1", 403), ("[]", 403), ("1", 403), ("localhost:evil", 403), ("", 403), ("a" * 200, 403)])
def test_host_names(keyed, host, status):
    """A page whose name was rebound to 127.0.0.1 still says its own name. Addresses cannot be rebound; probes and
    scrapers say what they like."""
    for path, expected in (("/version", status), ("/v1/models", 403 if status == 403 else 401), ("/health", 200),
                           ("/ready", 200), ("/metrics", 200)):
        assert ask(keyed, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())[0] == expected, path


# streams on the wire


def script(*lines):
    """A server whose answers these lines write (tests/cli/scripted_main.c)."""
    file = tempfile.NamedTemporaryFile("w", prefix="quire-script-", suffix=".txt", delete=False)
    with file:
        file.write("\n".join("\t".join(line) for line in lines) + "\n")
    return harness.started(program=harness.SCRIPTED, environment={"QUIRE_TEST_SCRIPT": file.name})


@pytest.fixture(scope="module")
def scripted():
    with script(("delay_us", "2000"), ("answer", "fault", " a", " b", " c", "!nan"), ("answer", "fault now", "!nan"),
                ("answer", "letters", " a", " b", " c"), ("answer", "odd", r"\xf0\x9f", r"\x98", r"\x80")) as server:
        yield server


@pytest.mark.sanitizer
def test_a_stream_on_the_wire(scripted):
    """B17, B49, B50: every event whole, one chunk each, a proper end, and the connection goes on."""
    body = json.dumps({"prompt": "letters", "stream": True, "max_tokens": 9}).encode()
    with Raw(scripted) as raw:
        for _ in range(2):
            raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            status, headers = raw.head()
            assert status == 200
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no"
            assert headers["transfer-encoding"] == "chunked" and "content-length" not in headers
            data = b""
            while chunk := raw.chunk():
                assert chunk.endswith(b"\n\n")
                data += chunk
            events = data.split(b"\n\n")
            assert events[-2:] == [b"data: [DONE]", b""]
            chunks = [json.loads(event[6:]) for event in events[:-2]]
            assert "".join(c["choices"][0]["text"] for c in chunks) == " a b c"
            assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"
            assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    with Raw(scripted) as raw:  # HTTP/1.0: no chunks, closed at the end
        raw.send(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                 % len(body) + body)
        status, headers = raw.head()
        assert status == 200 and "transfer-encoding" not in headers
        assert raw.file.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.sanitizer
def test_faults(scripted):
    """B51: before the first token a status of its own, later an error event, and never an open end."""
    with scripted.unharmed():
        for stream in False, True:
            answer = scripted.post({"prompt": "fault now", "stream": stream, "max_tokens": 9})
            assert answer.status == 500 and answer.error
        assert scripted.post({"prompt": "fault", "max_tokens": 9}).status == 500
        answer = scripted.post({"prompt": "fault", "stream": True, "max_tokens": 9})
        assert answer.status == 200
        events = [json.loads(e[6:]) for e in answer.body.split(b"\n\n")[:-1] if e != b"data: [DONE]"]
        assert "".join(e["choices"][0]["text"] for e in events[:-1]) == " a b c"
        assert events[-1]["error"]["message"]


def test_comments_on_slow_streams():
    """Headers are held until there is something; a slow stream is kept alive by comments."""
    with script(("delay_us", "13000000")) as server:
        with Raw(server) as raw:
            body = json.dumps({"prompt": "slow", "stream": True, "max_tokens": 1}).encode()
            start = time.monotonic()
            raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert raw.head()[0] == 200
            assert 4 < time.monotonic() - start < harness.patience(8)
            assert raw.chunk() == b": keep-alive\n\n"
            assert server.get("/health").status == 200  # never waits for computing
            assert raw.chunk() == b": keep-alive\n\n"
            last = b""
            while chunk := raw.chunk():
                last = chunk
            assert last.endswith(b"data: [DONE]\n\n")


def test_tokens_are_sent_at_once(scripted):
    """B61: no 40 ms pattern of Nagle and delayed acknowledgements, and the end is not held back."""
    if harness.sanitized():
        pytest.skip("times are no measure here")
    body = json.dumps({"prompt": "anything", "stream": True, "max_tokens": 200, "ignore_eos": True}).encode()
    with Raw(scripted) as raw:
        raw.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        raw.head()
        times = []
        while raw.chunk():
            times.append(time.monotonic())
        gaps = sorted(b - a for a, b in zip(times, times[1:]))
        assert gaps[len(gaps) // 2] < 0.02, gaps[len(gaps) // 2]
        assert time.monotonic() - times[-1] < 0.2


# limits


@pytest.mark.long
def test_slowloris():
    """B63: a byte now and then does not keep a head or body open; others are served meanwhile."""
    with harness.started("--max-connections", "300", model=harness.tiny()) as server:
        heads = [Raw(server) for _ in range(100)]
        bodies = [Raw(server) for _ in range(100)]
        idle = Raw(server)
        patient = [Raw(server).send(b"POST /v1/comp"), Raw(server).send(HEAD + b"Content-Length: 50\r\n\r\n{")]
        start = time.monotonic()
        for raw in heads:
            raw.send(b"POST /v1/comp")
        for raw in bodies:
            raw.send(HEAD + b"Content-Length: 50\r\n\r\n{")

        def open_ones(raws):
            return sum(not closed(raw.socket) for raw in raws)

        while open_ones(heads) and time.monotonic() - start < harness.patience(60):
            for raw in heads + bodies:
                raw.send(b"x")
            assert server.complete(harness.PROBE)
            time.sleep(1)
        assert not open_ones(heads) and time.monotonic() - start > 9
        assert open_ones(bodies) == 100 or time.monotonic() - start > 29
        harness.wait_until(lambda: not open_ones(bodies), 60, "bodies timed out")
        assert time.monotonic() - start > 29
        assert not closed(idle.socket)  # silence alone is not an attack
        for raw in patient:  # who can still read is told
            answer = raw.answer()
            assert error_of(answer) == (408, "request_timeout") and len(answer[1]["x-request-id"]) == 16
            assert raw.closes()
        harness.wait_until(lambda: server.metrics()("quire_http_requests_total", code="408") == 202, 10, "all counted")
        assert "499" not in {s.labels.get("code") for s in server.metrics().samples}
        for raw in [*heads, *bodies, *patient, idle]:
            raw.__exit__()


def closed(sock):
    """Has the server closed? What it said before is dropped."""
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        sock.settimeout(harness.patience(20))


@pytest.mark.long
def test_a_client_that_reads_nothing_is_dropped():
    """B63: after 30 s, and meanwhile nobody waits for it."""
    with script() as server:
        stuck = server.stream({"prompt": "x", "max_tokens": 7000, "ignore_eos": True, "temperature": 0, "logprobs": 5},
                              receive_buffer=4096)
        stuck.response()
        start = time.monotonic()
        harness.wait_until(lambda: "client_stalled" in server.log, 60, "dropped")
        assert 25 < time.monotonic() - start < 60
        server.wait_idle()
        with pytest.raises(Exception):  # broken off: no [DONE]
            list(stuck.chunks())


@pytest.mark.sanitizer
def test_connection_limit():
    """More connections than allowed: the one that was idle longest is closed; when all are busy an honest 503 at
    once, and again served when there is room."""
    with harness.started("--max-connections", "8", model=harness.tiny()) as server:
        harness.wait_until(lambda: server.connections() == 0, what="the harness's own connections closed")
        many = [Raw(server) for _ in range(8)]
        for raw in many:
            assert raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").answer()[0] == 200
        many[0].send(HEAD + b"Content-Length: 50\r\n\r\n{")
        with Raw(server) as late:
            assert late.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").answer()[0] == 200
            harness.wait_until(lambda: closed(many[1].socket), 5, "the longest idle one closed")
            assert not any(closed(raw.socket) for raw in [many[0], *many[2:], late])
        many[1].__exit__()
        harness.wait_until(lambda: server.connections() == 7, 5, "both closed")
        many[1] = Raw(server)
        for raw in many[1:]:
            raw.send(HEAD + b"Content-Length: 50\r\n\r\n{")
        harness.wait_until(lambda: server.connections() == 8, 5, "eight busy ones")
        time.sleep(0.3)  # until their heads are read
        for path in b"health", b"ready", b"metrics":  # a probe must not fail because all are busy
            assert ask(server, b"GET /" + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200
        status, headers, body = ask(server, b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_connections")
        assert headers["retry-after"] and headers["connection"].lower() == "close"
        for raw in many:
            raw.__exit__()
        harness.wait_until(lambda: server.get("/health").status == 200, 5, "room again")


@pytest.mark.sanitizer
def test_slow_heads_keep_nobody_out():
    """Four times as many incomplete heads as connections: each probe and each request is served at once; the oldest
    incomplete head is closed for it. (A liveness probe that fails restarts the pod.)"""
    with harness.started("--max-connections", "8", model=harness.tiny()) as server:
        harness.wait_until(lambda: server.connections() == 0, what="the harness's own connections closed")
        slow = []
        for i in range(32):
            slow.append(Raw(server).send(b"GET /health HT"))
            if i % 4 == 3:
                for path in "/health", "/ready", "/metrics", "/version":
                    assert server.get(path).status == 200, (i, path)
        assert server.complete(harness.PROBE)
        harness.wait_until(lambda: sum(not closed(raw.socket) for raw in slow) <= 8, 10, "the oldest closed")
        assert closed(slow[0].socket) and not closed(slow[-1].socket)
        for raw in slow:
            raw.__exit__()


# start, readiness, health


def test_served_while_loading():
    """B84: it listens before the model is there, and says so."""
    with harness.started(ready=False) as server:
        seen = []
        while True:
            answer = server.get("/ready")
            assert server.get("/health").status == 200
            seen.append(answer.status)
            memory = server.get("/debug/memory")
            assert memory.status == 200 or (memory.status, memory.error["code"]) == (503, "loading")
            if answer.status == 200:
                break
            assert answer.json == {"status": "loading"} and answer.headers["Retry-After"] is None
            refused = server.post(BODY)
            if refused.status != 200:
                assert (refused.status, refused.error["code"]) == (503, "loading")
                assert refused.headers["Retry-After"]
        assert seen[0] == 503, "loaded before the first look"


def test_ready_while_draining():
    with script(("delay_us", "300000")) as server:
        with Raw(server) as probe:
            get = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert probe.send(get).answer()[0] == 200
            stream = server.stream({"prompt": "x", "max_tokens": 6, "ignore_eos": True})
            other = server.stream({"prompt": "y", "max_tokens": 6, "ignore_eos": True})
            next(stream.events())
            probe.send(get[:10])  # in the middle of a request: not idle
            time.sleep(0.4)
            server.signal()
            harness.wait_until(lambda: "draining" in server.log, 5, "draining")
            probe.send(get[10:])
            status, headers, body = probe.answer()
            assert status == 503 and json.loads(body) == {"status": "draining"}
            assert headers["connection"].lower() == "close"
            assert len(list(stream.chunks())) >= 5
            assert len(list(other.chunks())) >= 6
        assert server.wait(10) == 0


@pytest.mark.sanitizer
def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = harness.run_quire("serve", "-m", harness.tiny(), "--port", port)
        assert result.returncode == 1
        assert f"port {port}".encode() in result.stderr and b"in use" in result.stderr


@pytest.mark.sanitizer
def test_health_check(tiny):
    assert harness.run_quire("healthcheck", "--port", tiny.port).returncode == 0
    assert harness.run_quire("healthcheck", environment={"QUIRE_PORT": str(tiny.port), "QUIRE_HOST": "0.0.0.0"}).returncode == 0
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert harness.run_quire("healthcheck", "--port", port).returncode == 1
        silent.listen()
        assert harness.run_quire("healthcheck", "--port", port, timeout=10).returncode == 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("arguments,code,said", [
    (["serve"], 2, b"which model"), (["serve", "-m", "x", "--memroy", "5"], 2, b"did you mean --memory"),
    (["serve", "-m", "/nonexistent.gguf", "--port", "0"], 1, b"/nonexistent.gguf"), (["frob"], 2, b"no command"),
    (["serve", "-m", "x", "--api-key-file", "/nonexistent"], 1, b"/nonexistent"),
    (["serve", "-m", "x", "--host", "no such host"], 1, b"no such host")])
def test_exit_codes(arguments, code, said):
    result = harness.run_quire(*arguments)
    assert result.returncode == code and said in result.stderr
    assert len(result.stderr.splitlines()) <= 3  # the machine, the address, the error


def test_memory_that_cannot_do():
    result = harness.run_quire("serve", "-m", harness.MODEL, "--port", "0", "--memory", "100MiB")
    assert result.returncode == 1
    needed = re.search(rb"at least ([0-9.]+) MiB", result.stderr)
    assert needed, result.stderr
    with harness.started("--memory", f"{float(needed[1]) + 0.1:.1f}MiB") as server:
        assert server.complete(harness.PROBE)


@pytest.mark.sanitizer
def test_metrics_page(tiny):
    """Strictly parsed, the promised names there, counters of one request right."""
    names = {"vllm:num_requests_running": "gauge", "vllm:num_requests_waiting": "gauge", "vllm:kv_cache_usage_perc": "gauge",
             "vllm:prompt_tokens": "counter", "vllm:generation_tokens": "counter", "vllm:num_preemptions": "counter",
             "vllm:request_success": "counter", "vllm:prefix_cache_queries": "counter", "vllm:prefix_cache_hits": "counter",
             "vllm:time_to_first_token_seconds": "histogram", "vllm:inter_token_latency_seconds": "histogram",
             "vllm:e2e_request_latency_seconds": "histogram", "vllm:request_queue_time_seconds": "histogram",
             "vllm:request_prefill_time_seconds": "histogram", "vllm:request_decode_time_seconds": "histogram",
             "vllm:request_inference_time_seconds": "histogram", "vllm:request_time_per_output_token_seconds": "histogram",
             "vllm:request_max_num_generation_tokens": "histogram", "vllm:request_params_n": "histogram",
             "vllm:request_params_max_tokens": "histogram", "vllm:cache_config_info": "gauge", "http_requests": "counter",
             "vllm:gpu_cache_usage_perc": "gauge", "vllm:gpu_prefix_cache_hits": "counter", "vllm:gpu_prefix_cache_queries": "counter",
             "vllm:iteration_tokens_total": "histogram", "quire_build_info": "gauge", "quire_steps": "counter"}
    with tiny.unharmed():
        answer = tiny.get("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = {f.name: f for f in harness.text_string_to_metric_families(answer.body.decode("utf-8"))}
        for name, kind in names.items():
            assert families[name].type == kind, name
            if name.startswith("vllm:"):
                assert all("model_name" in s.labels for s in families[name].samples)
        for family in families.values():
            if family.type == "histogram":
                counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
                assert counts == sorted(counts)
                assert counts[-1] == next(s.value for s in family.samples if s.name.endswith("_count"))
        before, began = tiny.metrics(), time.monotonic()
        usage = tiny.complete({"prompt": "count me", "max_tokens": 5, "ignore_eos": True})["usage"]
        tiny.wait_idle()
        after, took = tiny.metrics(), time.monotonic() - began

        def grew(name, **labels):
            return after(name, **labels) - before(name, **labels)

        assert grew("vllm:prompt_tokens_total") == usage["prompt_tokens"]
        assert grew("vllm:generation_tokens_total") == usage["completion_tokens"] == 5
        assert grew("vllm:request_success_total", finished_reason="length") == 1
        assert grew("vllm:time_to_first_token_seconds_count") == 1
        assert grew("vllm:e2e_request_latency_seconds_count") == 1
        assert grew("quire_http_requests_total", route="completions", code="200") == 1
        work = [grew("quire_engine_seconds_total", phase=p) for p in ("planning", "forward", "sampling", "committing")]
        assert min(work) > 0 and sum(work) <= took
        assert grew("quire_engine_seconds_total", phase="idle") > 0    # until the request came
        used = {a: after("quire_memory_used_bytes", account=a) for a in ("requests", "kv", "weights")}
        assert used["requests"] == 0 and used["kv"] > 0 and used["weights"] > 0
