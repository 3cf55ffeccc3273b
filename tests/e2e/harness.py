"""Starts the real server, asks it, and looks at what it says about itself.

A Server is one `quire serve` (or the scripted one of tests/cli) on a free loopback port, with its log
in a file. Whoever needs one with the same options gets the same one (`shared`); a test that ends or
strains its server starts its own (`started`). Only what was started here is ended here.

What to test comes from the environment: QUIRE_BINARY (the program), QUIRE_BUILD (its build folder),
QUIRE_TEST_MODEL (SmolLM2), QUIRE_TEST_GEMMA and QUIRE_TEST_QWEN (the other packaged models; without them
their tests are skipped), QUIRE_TEST_MODELS (the made-up models; made in a temporary folder when it
is not set). QUIRE_TEST_FULL=1 adds the tests marked long and their larger counts.
"""

import atexit
import concurrent.futures
import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("QUIRE_BINARY", ROOT / "build/quire")).resolve()
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", BINARY.parents[1])).resolve()
SCRIPTED = BUILD / "tests/cli/quire-scripted"
MODEL = os.environ.get("QUIRE_TEST_MODEL", "")
FULL = os.environ.get("QUIRE_TEST_FULL", "") not in ("", "0")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CHECK_EVERY_STEP = {"QUIRE_TEST_CHECK_EVERY_STEP": "1"}
PROBE = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


@functools.cache
def sanitized():
    """Is the program a sanitizer build? Then times are no measure, and memory neither."""
    return b"__asan_init" in BINARY.read_bytes() or b"__tsan_init" in BINARY.read_bytes()


@functools.cache
def made_up_models():
    folder = os.environ.get("QUIRE_TEST_MODELS")
    if folder:
        return pathlib.Path(folder)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    maker = ROOT / "tests/reference/make_models.py"
    subprocess.run([sys.executable, maker, folder, "llama-q4_1", "llama-q8_0", "gemma3"], check=True, stdout=subprocess.DEVNULL)
    return folder


def tiny():
    """A made-up model of the default model's family and formats: nonsense, in milliseconds."""
    return str(made_up_models() / "llama-q4_1.gguf")


def patience(seconds):
    """A deadline that only a hang should miss."""
    return seconds * (8 if sanitized() else 1)


def wait_until(true, seconds=20, what="it"):
    """Polls `true` and returns its first true value and how long that took."""
    start = time.monotonic()
    while True:
        value = true()
        took = time.monotonic() - start
        if value:
            return value, took
        assert took < patience(seconds), f"{what} did not happen in {took:.1f} s"
        time.sleep(0.005)


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.body.decode("utf-8"))

    @property
    def error(self):
        """The error object, checked for its shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"], error
        return error


class Metrics:
    def __init__(self, text):
        self.samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def __call__(self, name, **labels):
        """The sum of a metric's samples with these labels. Raises KeyError if there is none."""
        found = [s.value for s in self.samples
                 if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())]
        if not found:
            raise KeyError(name)
        return sum(found)

    @property
    def running(self):
        return self("vllm:num_requests_running")

    @property
    def waiting(self):
        return self("vllm:num_requests_waiting")

    @property
    def preemptions(self):
        return self("vllm:num_preemptions_total")

    @property
    def pages_total(self):
        return self("quire_kv_pages")

    @property
    def pages_free(self):
        return self("quire_kv_pages_free")

    @property
    def idle(self):
        return self.running == 0 and self.waiting == 0 and self.pages_free == self.pages_total


class Stream:
    """A request whose socket the test holds in its hand."""

    def __init__(self, server, body, path=COMPLETIONS, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(patience(60))
        self.socket.connect(("127.0.0.1", server.port))
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self.connection.sock = self.socket
        self.connection.request("POST", path, json.dumps(body), server.headers)
        self.answer = None

    def response(self):
        if self.answer is None:
            self.answer = self.connection.getresponse()
        return self.answer

    def events(self):
        """The payloads of the events, "[DONE]" included, until the server ends the body."""
        for line in self.response():
            if line.startswith(b"data: "):
                yield line[len(b"data: "):].rstrip(b"\n").decode("utf-8")
            else:
                assert line == b"\n" or line.startswith(b":"), line
        self.hang_up()

    def chunks(self):
        """The decoded chunks. The stream must end with [DONE]."""
        last = None
        for last in self.events():
            if last != "[DONE]":
                chunk = json.loads(last)
                assert "error" not in chunk, chunk
                yield chunk
        assert last == "[DONE]", last

    def half_close(self):
        self.socket.shutdown(socket.SHUT_WR)

    def hang_up(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.answer is not None:
            self.answer.close()
        self.connection.close()


class Server:
    def __init__(self, *options, model=None, program=BINARY, key=None, environment=None, ready=True,
                 launcher=None, stderr=None, stdin=subprocess.DEVNULL):
        """`launcher` makes of the command the one that is run in its place; it must become the server.
        `stderr` is a file in place of the log's."""
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        self.key, self.model = key, str(model or MODEL)
        self.log_file = tempfile.NamedTemporaryFile(prefix="quire-e2e-", suffix=".log", delete=False)
        command = [str(program), "serve", "-m", self.model, "--port", "0"]
        for name, value in (("--memory", "512MiB"), ("--threads", "2")):
            if name not in options:
                command += [name, value]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        command += map(str, options)
        self.process = subprocess.Popen(launcher(command) if launcher else command, stdin=stdin,
                                        stdout=self.log_file, stderr=stderr or self.log_file,
                                        env={**clean, **(environment or {})})
        self.port = self.baseline = None
        self.streams = []
        try:
            (self.port,), _ = wait_until(self._find_port, 30, "listening")
            if ready:
                wait_until(lambda: self.get("/ready").status == 200, 60, "ready")
        except BaseException:
            self.kill()
            raise

    def _find_port(self):
        found = re.search(r"127\.0\.0\.1(?::| port )(\d+)", self.log)
        assert found or self.process.poll() is None, f"the server ended: {self.log}"
        return (int(found[1]),) if found else None

    # asking

    @property
    def log(self):
        return pathlib.Path(self.log_file.name).read_text(errors="replace")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience(120))
        try:
            connection.request(method, path, body, self.headers if headers is None else headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path):
        return self.request("GET", path, headers={})

    def post(self, body, path=COMPLETIONS):
        """`body` is an object to send as JSON, or the very bytes."""
        return self.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))

    def complete(self, body, path=COMPLETIONS):
        answer = self.post(body, path)
        assert answer.status == 200, answer.body
        return answer.json

    def text(self, prompt, **fields):
        return self.complete({"prompt": prompt, **fields})["choices"][0]["text"]

    def chat(self, content, **fields):
        return self.complete({"messages": [{"role": "user", "content": content}], **fields}, CHAT)

    def stream(self, body, path=COMPLETIONS, **options):
        stream = Stream(self, {"stream": True, **body}, path, **options)
        self.streams.append(stream)
        return stream

    def hang_up_all(self):
        while self.streams:
            self.streams.pop().hang_up()

    def together(self, bodies, path=COMPLETIONS):
        """Ask everything at once; the answers in the order of the bodies."""
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: self.complete(body, path), bodies))

    def client(self, **options):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0,
                             timeout=patience(120), **options)

    def async_client(self, **options):
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0,
                                  timeout=patience(120), **options)

    # looking

    def metrics(self):
        answer = self.get("/metrics")
        assert answer.status == 200
        return Metrics(answer.body.decode("utf-8"))

    def max_model_len(self):
        return self.request("GET", "/v1/models").json["data"][0]["max_model_len"]

    def _sockets(self):
        """The kernel's states of the sockets on its port."""
        rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return [row[3] for row in rows if int(row[1].rpartition(":")[2], 16) == self.port]

    def connections(self):
        """Its open connections, as the kernel counts them; asking over HTTP would be one more."""
        listening, time_wait = "0A", "06"
        return sum(1 for state in self._sockets() if state not in (listening, time_wait))

    def listens(self):
        """Does the kernel still take connections for it? Asking would be one."""
        return "0A" in self._sockets()

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def peak_memory(self):
        """VmHWM in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def wait_idle(self, seconds=20):
        return wait_until(lambda: self.metrics().idle, seconds, "idle with all pages free")

    @contextlib.contextmanager
    def unharmed(self):
        """What must hold after everything that a client may do, good or bad."""
        if self.baseline is None:
            self.complete(PROBE)
            self.wait_idle()
            self.baseline = self.complete(PROBE)["choices"]
        self.wait_idle()
        files = self.open_files()
        try:
            yield self
        finally:
            self.hang_up_all()
        assert self.process.poll() is None, self.log[-2000:]
        assert self.get("/health").status == 200
        self.wait_idle()
        assert self.complete(PROBE)["choices"] == self.baseline
        self.wait_idle()
        wait_until(lambda: self.open_files() <= files, 10, f"open files back to {files}")

    # ending

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        return self.process.wait(patience(seconds))

    def stop(self, seconds=60):
        """End it as an operator does. Returns the exit code."""
        self.hang_up_all()
        if self.process.poll() is None:
            self.signal()
        try:
            code = self.wait(seconds)
        finally:
            self.kill()
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log_file.close()


@contextlib.contextmanager
def started(*options, **more):
    """A server of one's own. It must end with exit code 0 unless the test ended it."""
    server = Server(*options, **more)
    try:
        yield server
        if server.process.poll() is None:
            code = server.stop()
            assert code == 0, f"exit code {code}: {server.log[-4000:]}"
    finally:
        server.kill()
        os.unlink(server.log_file.name)


_shared = {}


def shared(*options, **more):
    """The server with these options: the one that runs already, or a new one."""
    key = (options, tuple(sorted((k, str(v)) for k, v in more.items())))
    if key not in _shared or _shared[key].process.poll() is not None:
        _shared[key] = Server(*options, **more)
    return _shared[key]


def packaged(variable):
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} is not set")
    return path


def gemma(*options):
    """Gemma 3 270M: most layers see a window of 512 tokens; no chat template in the file."""
    return shared("--memory", "768MiB", *options, model=packaged("QUIRE_TEST_GEMMA"))


def qwen(*options):
    """Qwen2.5-Coder-1.5B: 1.1 GB, for tests marked long."""
    return shared("--memory", "2GiB", *options, model=packaged("QUIRE_TEST_QWEN"))


def stop_shared():
    """End all. Every one must end well."""
    codes = {}
    for server_key in list(_shared):
        server = _shared.pop(server_key)
        codes[server_key] = server.stop()
        if codes[server_key] == 0:
            os.unlink(server.log_file.name)
        else:
            print(server.log[-4000:], file=sys.stderr)
    assert all(code == 0 for code in codes.values()), codes


def run_quire(*arguments, timeout=60, environment=None, binary=None):
    """One call of the program to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    arguments = [a if isinstance(a, bytes) else str(a) for a in arguments]
    return subprocess.run([str(binary or BINARY), *arguments], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=patience(timeout),
                          env={**clean, **(environment or {})})


@functools.cache
def small_options(pages=60, model=None):
    """Options with which a made-up model's pool holds about `pages` pages of 16 tokens."""
    fixed = ("--max-connections", "64", "--max-seqs", "32")
    model = model or tiny()
    refusal = run_quire("serve", "-m", model, "--port", 0, "--memory", "1MiB", *fixed, "--threads", 2)
    needed = re.search(rb"needs at least ([0-9.]+) MiB", refusal.stderr)
    assert refusal.returncode == 1 and needed, refusal.stderr
    memory = int((float(needed[1]) + 0.1) * 2**20)
    for _ in range(8):
        with started("--memory", memory, *fixed, model=model) as server:
            have = server.metrics().pages_total
        if abs(have - pages) <= 8:
            return ("--memory", memory, *fixed)
        per_page = 6 * 1024
        memory += int((pages - have) * per_page)
    raise AssertionError(f"no memory budget gives {pages} pages; the last gave {have}")


def small_pool(pages=60, model=None):
    """A server whose pool holds about `pages` pages; every step checks the pager."""
    return shared(*small_options(pages, model), model=model or tiny(), environment=CHECK_EVERY_STEP)


WORDS = """time water light house river paper morning garden window letter street music winter summer
people small large quiet early under over before after every never again always often little great
small old new good long right high different important next young black white begin show hear play
run move live believe hold bring happen write provide sit stand lose pay meet include continue set
learn change lead understand watch follow stop create speak read allow add spend grow open walk""".split()


def words(seed, count):
    """`count` common words, the same for the same seed: a prompt that no other seed begins alike."""
    state, out = seed * 2654435761 + 12345, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(WORDS[(state >> 33) % len(WORDS)])
    return " ".join(out)
