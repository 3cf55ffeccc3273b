"""llama.cpp's own server from the wheel xllamacpp, to compare with: one model on a loopback port.

    with LlamaCpp("model.gguf") as llamacpp:
        llamacpp.post("/tokenize", {"content": "a"})

It runs in a process of its own, python llamacpp.py MODEL PORT [floats] [embeddings], until that one's standard input is
closed, so that it never outlives the test that started it. With floats=True keys and values are kept and
added up in f32, else as llama.cpp does by default.
"""

import contextlib
import http.client
import json
import math
import socket
import subprocess
import sys
import time

CONTEXT = 2048


class LlamaCpp(contextlib.AbstractContextManager):
    def __init__(self, path, floats=False, wait_s=180, embeddings=False):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, __file__, str(path), str(self.port), *(["floats"] if floats else []),
                   *(["embeddings"] if embeddings else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + wait_s
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"llama.cpp does not serve {path}")
            time.sleep(0.05)

    def _is_ready(self):
        try:
            return "tokens" in self.post("/tokenize", {"content": "a"})
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            return False

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read().decode("utf-8", "replace"))
        finally:
            connection.close()

    def tokenize(self, text):
        """As a prompt: BOS where the model wants one, control tokens by their text."""
        return self.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def next_token(self, tokens, count):
        """{id: log-probability} of the `count` likeliest tokens to follow. Empty when it gives none, which is
        when its choice is a piece of a character."""
        answer = self.post("/completion", {"prompt": tokens, "n_predict": 1, "n_probs": count, "temperature": 0,
                                           "ignore_eos": False, "cache_prompt": True})
        entries = answer.get("completion_probabilities") or [{"top_logprobs": []}]
        return {entry["id"]: entry["logprob"] for entry in entries[0]["top_logprobs"] if math.isfinite(entry["logprob"])}


def serve(path, port, floats, embeddings):
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.port = port
    parameters.hostnames = ["127.0.0.1"]
    parameters.n_ctx, parameters.n_parallel = CONTEXT, 1
    # Its threads spin while they wait: bad company.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.ctx_shift = False
    if embeddings:
        parameters.embedding, parameters.n_batch, parameters.n_ubatch = True, CONTEXT, CONTEXT
    if floats:
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(parameters)
    print("listening", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), "floats" in sys.argv[3:], "embeddings" in sys.argv[3:])
