"""The openai package in a real browser: a page of another origin asks the server, preflights and all.

Chromium runs headless and loads the page from a server of this test; the page imports the package's own modules, unbundled,
and posts back what it saw. QUIRE_TEST_OPENAI_JS names the folder of the package (./test full installs it).
"""

import functools
import http.server
import json
import pathlib
import queue
import shutil
import subprocess
import tempfile
import threading

import pytest

import harness

PAGE = """<!doctype html><title>test</title>
<script>addEventListener("error", e => fetch("/result", {method: "POST", body: JSON.stringify({error: String(e.message)})}))</script>
<script type="module">
import {OpenAI} from "/openai/client.mjs";
const seen = {};
async function step(name, run) {
  try { seen[name] = await run(); } catch (error) { seen[name] = `failed: ${error} ${error.cause ?? ""}`; }
}
const client = new OpenAI({baseURL: "%(url)s/v1", apiKey: "%(key)s", organization: "org", project: "project",
                           dangerouslyAllowBrowser: true, maxRetries: 0, timeout: 60000});
const messages = [{role: "user", content: "Say hello."}];
await step("models", async () => (await client.models.list()).data.length);
await step("chat", async () => {
  const answer = await client.chat.completions.create({model: "default", messages, max_tokens: 3}).withResponse();
  return {tokens: answer.data.usage.completion_tokens, id: answer.response.headers.get("x-request-id")};
});
await step("stream", async () => {
  let text = "", chunks = 0;
  for await (const chunk of await client.chat.completions.create({model: "default", messages, max_tokens: 8, stream: true})) {
    text += chunk.choices[0]?.delta?.content ?? "";
    chunks++;
  }
  return {text, chunks};
});
await step("stopped", async () => {
  const stream = await client.chat.completions.create(
    {model: "default", messages, max_tokens: 400, ignore_eos: true, stream: true});
  for await (const chunk of stream) break;
  stream.controller.abort();
  return "yes";
});
await step("refused", async () => {
  try { await client.chat.completions.create({model: "default", messages, temperature: -1}); }
  catch (error) { return {status: error.status, param: error.param}; }
});
await fetch("/result", {method: "POST", body: JSON.stringify(seen)});
</script>"""


class Pages(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def __init__(self, *arguments, page, results, **more):
        self.page, self.results = page, results
        super().__init__(*arguments, **more)

    def do_GET(self):
        if self.path != "/":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.page().encode())

    def do_POST(self):
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def what_the_page_saw(pages_port):
    browser = shutil.which("chromium") or pytest.skip("there is no chromium")
    profile = tempfile.mkdtemp(prefix="quire-browser-")
    process = subprocess.Popen(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
         "--remote-debugging-port=0", f"http://localhost:{pages_port}/"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True)
    return process, profile


@pytest.mark.long
@pytest.mark.parametrize("origin", ["its own", "*", "another"])
def test_openai_package_in_chromium(origin):
    """CASES-2 number 9: every header that the package sends is allowed to a listed origin, and to no other."""
    modules = harness.packaged("QUIRE_TEST_OPENAI_JS")
    results = queue.Queue()
    server = None
    with tempfile.TemporaryDirectory() as root, tempfile.NamedTemporaryFile("w", suffix=".txt") as keys:
        pathlib.Path(root, "openai").symlink_to(modules)
        keys.write("sk-browser\n")
        keys.flush()
        handler = functools.partial(Pages, directory=root, results=results,
                                    page=lambda: PAGE % {"url": server.url, "key": "sk-browser"})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages:
            threading.Thread(target=pages.serve_forever, daemon=True).start()
            allowed = {"its own": f"http://localhost:{pages.server_port}", "*": "*", "another": "https://app.example"}[origin]
            with harness.started("--cors-origin", allowed, "--api-key-file", keys.name) as server:
                process, profile = what_the_page_saw(pages.server_port)
                try:
                    seen = results.get(timeout=harness.patience(180))
                finally:
                    process.kill()
                    process.wait()
                    shutil.rmtree(profile, ignore_errors=True)
                server.wait_idle()
                log = server.log
            pages.shutdown()
    if origin == "another":
        assert all("failed: " in str(value) for name, value in seen.items() if name != "refused"), seen
        assert seen["refused"].get("status") is None and "status=200" not in log.replace("GET /ready", "")
        return
    assert seen["models"] >= 1
    assert seen["chat"]["tokens"] == 3 and len(seen["chat"]["id"]) == 16
    assert seen["stream"]["text"] and seen["stream"]["chunks"] > 3
    assert seen["stopped"] == "yes"
    assert seen["refused"] == {"status": 400, "param": "temperature"}
