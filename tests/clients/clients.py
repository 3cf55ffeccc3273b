"""The clients that Quire is tried with: what each one is, how it is installed, how its program is run.

A client is a row of table.py and a program: python/try_NAME.py, js/try_NAME.mjs, or a folder in go/ or rust/. Its environment is made once, in
${QUIRE_CACHE:-~/.cache/quire}/clients, and named by the sum of what it holds: a changed pin makes a new one. Python packages are
pinned in full in locks/ (`tests/clients/run --lock NAME` writes them), Go's and Rust's in their own files, npm packages by the row.
"""
import dataclasses
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("QUIRE_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "quire") / "clients"
UV = "uv==0.13.9"        # resolves and installs in seconds what takes pip minutes, and links equal files
NODE = "24"              # the package of Node.js itself: Debian 12's is older than the clients allow
SECONDS = 1800           # of one program; for hangs only

# Clients that would report to their makers, or look for news, are told not to: there is no other host than the server.
QUIET = {"DO_NOT_TRACK": "1", "OTEL_SDK_DISABLED": "true", "CREWAI_DISABLE_TELEMETRY": "true", "HAYSTACK_TELEMETRY_ENABLED": "False",
         "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false",
         "HF_HUB_DISABLE_TELEMETRY": "1", "ANONYMIZED_TELEMETRY": "false", "NO_COLOR": "1", "CI": "1"}


@dataclasses.dataclass(frozen=True)
class Client:
    name: str
    title: str
    packages: tuple            # what a user would install, pinned
    language: str = "python"
    model: str = "qwen"        # "smollm2" where it is strong enough
    known: dict = dataclasses.field(default_factory=dict)    # {step: why it fails}: what is known not to work
    setup: str = ""            # how a user sets it up, for docs/clients.md
    environment: dict = dataclasses.field(default_factory=dict)

    @property
    def path(self):
        return HERE / {"python": f"python/try_{self.name}.py", "js": f"js/try_{self.name}.mjs", "go": f"go/{self.name}/main.go",
                       "rust": f"rust/{self.name}/src/main.rs"}[self.language]

    @property
    def lock(self):
        return HERE / "locks" / f"{self.name}.txt"







# installing


def _say(text):
    print("==> " + text, file=sys.stderr, flush=True)


def _command(*command, **more):
    done = subprocess.run(["nice", "-n", "10", *map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}")
    return done.stdout


def _uv():
    folder = CACHE / UV.replace("==", "-")
    if not (folder / "bin/uv").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        _command(folder / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", UV)
    return folder / "bin/uv"


def lock(client):
    """Writes the client's lock: what its packages need today, all pinned."""
    wanted = "\n".join(client.packages)
    done = subprocess.run([_uv(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.11", "-"],
                          input=wanted, text=True, stdout=subprocess.PIPE, check=True)
    client.lock.parent.mkdir(exist_ok=True)
    client.lock.write_text(done.stdout)


def _make_python(client, folder):
    _command(_uv(), "venv", "--clear", "--python", sys.executable, folder)
    _command(_uv(), "pip", "install", "--no-deps", "--python", folder / "bin/python", "-r", client.lock)


def _node():
    """A Node.js new enough for all clients, from the npm registry."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
    folder = CACHE / f"node-{NODE}"
    found = folder / f"node_modules/node-linux-{machine}/bin"
    if not (found / "node").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _command("npm", "--prefix", folder, "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund",
                 f"node-linux-{machine}@{NODE}")
    return found


def _make_js(client, folder):
    folder.mkdir(parents=True)
    names = [package.rpartition("@")[::2] for package in client.packages]
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module", "dependencies": dict(names)}))
    # --ignore-scripts: nothing of a package runs before its program does.
    _command("npm", "--prefix", folder, "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund")


def _make_go(client, folder):
    _command("go", "build", "-o", folder / "program", ".", cwd=client.path.parent, env=os.environ | {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"})


def _make_rust(client, folder):
    target = CACHE / "rust-target"
    _command("cargo", "build", "--locked", "--target-dir", target, cwd=client.path.parents[1])
    folder.mkdir(parents=True)
    shutil.copy(target / "debug" / client.name, folder / "program")


MAKERS = {"python": _make_python, "js": _make_js, "go": _make_go, "rust": _make_rust}
TOOLS = {"python": "python3", "js": "npm", "go": "go", "rust": "cargo"}


def _content(client):
    """What the environment depends on. Compiled programs are part of theirs."""
    if client.language == "python":
        return client.lock.read_bytes()
    if client.language == "js":
        return "\n".join(client.packages).encode()
    folder = client.path.parent if client.language == "go" else client.path.parents[1]
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def environment(client):
    """The folder of the client's environment, made when it is missing."""
    content = _content(client)
    folder = CACHE / f"{client.name}-{hashlib.sha256(content).hexdigest()[:12]}"
    if not (folder / ".complete").exists():
        _say(f"installing {client.name}")
        shutil.rmtree(folder, ignore_errors=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        MAKERS[client.language](client, folder)
        (folder / ".complete").touch()
    return folder


def can_install(client):
    return shutil.which(TOOLS[client.language]) is not None


# running


def run(client, url, key, model, steps=(), output=None):
    """Runs the client's program against the server at `url`. Returns {step: error, or None}; a program that ended early has the step
    "(ended)". What it printed is written to `output`."""
    folder = environment(client)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("QUIRE_", "OPENAI_", "ANTHROPIC_", "OLLAMA_", "PYTHON"))}
    variables |= QUIET | {"HOME": str(home), "QUIRE_URL": url, "QUIRE_KEY": key, "QUIRE_MODEL": model,
                          "PATH": f"{folder}/bin:{folder}/node_modules/.bin:{os.environ['PATH']}"} | client.environment
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        variables.pop(name, None)
    if client.language == "python":
        command = [folder / "bin/python", client.path, *steps]
        variables["PYTHONPATH"] = str(HERE / "python")
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
    elif client.language in ("go", "rust"):
        command = [folder / "program"]
    else:
        # Node looks for packages beside the program: the folder gets copies.
        for source in (client.path, HERE / "js/steps.mjs", HERE / "js/tools.mjs"):
            shutil.copy(source, folder / source.name)
        node = _node()
        variables["PATH"] = f"{node}:{variables['PATH']}"
        command = [node / "node", folder / client.path.name, *steps]
    try:
        done = subprocess.run(list(map(str, command)), cwd=home, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS)
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        text, status = (late.stdout or b"").decode(errors="replace"), "no end"
    if output:
        pathlib.Path(output).write_text(text)
    found = {}
    for line in re.findall(r"^@step (.*)$", text, re.M):
        line = json.loads(line)
        found[line["step"]] = line["error"]
    if status != 0 or not found:
        found["(ended)"] = f"status {status}: {text[-1500:]}"
    return found


# looking


class Recorder:
    """A proxy on a free loopback port that writes each request and answer to `path`, to see what a client sends."""

    def __init__(self, port, path):
        recorder, lock = self, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if "chunked" in self.headers.get("Transfer-Encoding", ""):
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "content-length", "connection")}
                connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection", "date"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                whole = b""
                while piece := answer.read1(65536):
                    whole += piece
                    self.wfile.write(piece)
                    self.wfile.flush()
                self.close_connection = True
                with lock, open(path, "ab") as out:
                    head = f"{self.command} {self.path}\n{''.join(f'{k}: {v}' + chr(10) for k, v in headers.items())}"
                    out.write(b"%s\n%s\n--- %d\n%s\n======\n" % (head.encode(), body, answer.status, whole))

            do_GET = do_POST = do_DELETE = do_OPTIONS = do_HEAD = pass_on

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        recorder.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
