#!/usr/bin/env python3
"""What constrained output costs: bench/constraints.py [--rounds 5] [--peer URL --peer-name llama.cpp]

Starts one server (QUIRE_BINARY, build/quire) on a free port of loopback and measures, standard library only:

  users     32 users at once, each answer cut by max_tokens 128, with one of four schemas and without any, turn
            about: decode tokens a second with a schema / the mean of the runs without one before and behind it.
            `cpu` is the same of output tokens for each second of the server's processor time, which other
            programs on the machine hardly change
  one user  the same for one user, on JSON with long keys
  first     processor time until the first token, beyond that of the same request without a constraint: with a
            schema that was seen before, and with a 4 kB schema that is new each time

--peer measures the rows "users" and "one user" on another OpenAI server that runs already, in turn with ours.
Prints a table in Markdown and, with --json FILE, all numbers. Exit code 1: a figure misses its bound.
"""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = 128
BOUNDS = {"users": 0.95, "one user": 1.0, "seen_ms": 5.0, "new_ms": 50.0}


def record(properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def some(items):
    """An array that is longer than any answer here."""
    return {"type": "array", "items": items, "minItems": 120}


def four_kilobytes(tag=""):
    """A schema of 4 kB: 36 properties of several kinds, with a definition that they share."""
    kinds = [lambda i: {"type": "string", "maxLength": 12 + i}, lambda i: {"type": "integer", "minimum": i, "maximum": 900 + i},
             lambda i: {"enum": [f"state {i}", f"kind {i}", f"level {i}"]}, lambda i: {"$ref": "#/$defs/shared"},
             lambda i: {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}, lambda i: {"type": ["boolean", "null"]}]
    schema = some(record({f"{tag}field_{i:02}": {"description": "What the field says about its record.", **kinds[i % 6](i)} for i in range(36)}))
    return {**schema, "$defs": {"shared": record({"low": {"type": "integer"}, "high": {"type": "integer"}})}}


SCHEMAS = {
    "nested": some(record({"name": {"type": "string", "maxLength": 24},
                           "place": record({"city": {"type": "string", "maxLength": 24},
                                            "where": record({"x": {"type": "number"}, "y": {"type": "number"}})}),
                           "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3}})),
    "enumeration": some({"enum": ["red", "orange", "yellow", "green", "light blue", "dark blue", "violet", "black", "white"]}),
    "pattern": some({"type": "string", "pattern": "^[A-Z][a-z]+( [a-z]+)*$", "maxLength": 40}),
    "4 kB": four_kilobytes(),
}
LONG_KEYS = some(record({name: {"type": "boolean"} for name in (
    "the customer has confirmed the delivery address", "the invoice was sent by electronic mail",
    "the parcel may be left with a neighbour", "the recipient must sign for the parcel in person")}))


class Server:
    def __init__(self, url, name, process=None):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port, self.name, self.process = parts.hostname, parts.port, name, process

    def post(self, body):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=900)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {response.status} {text[:300]}")
        return json.loads(text)

    def cpu_s(self):
        """Processor time of all threads that live, in nanoseconds exact; None for a server that is not ours."""
        if not self.process:
            return None
        total = 0
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                pass
        return total / 1e9


def body_of(user, schema, tokens):
    body = {"model": "default", "messages": [{"role": "user", "content": f"Write a long list as JSON, for reader {user}."}],
            "max_tokens": tokens, "temperature": 0.8, "seed": user}
    if schema is None:
        return {**body, "ignore_eos": True}
    return {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": schema}}}


def run(server, users, schema):
    """(output tokens a second of wall time, output tokens a second of the server's processor time or None)."""
    counts, errors, start_line = [], [], threading.Barrier(users + 1)

    def client(user):
        body = body_of(user, schema, TOKENS)
        start_line.wait()
        try:
            counts.append(server.post(body)["usage"]["completion_tokens"])
        except Exception as problem:
            errors.append(repr(problem))

    threads = [threading.Thread(target=client, args=(user,)) for user in range(users)]
    for thread in threads:
        thread.start()
    cpu, start = server.cpu_s(), time.monotonic()
    start_line.wait()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - start
    used = None if cpu is None else server.cpu_s() - cpu
    if errors or any(count != TOKENS for count in counts):
        raise RuntimeError(f"{server.name}: {errors[:1]} {counts}")
    return sum(counts) / wall, None if used is None else sum(counts) / used


def turn_about(server, users, schemas, rounds):
    """{name: {"tok_s", "cpu_tok_s", "ratios": [...], "cpu_ratios": [...]}} with "without" beside the schemas."""
    out = {name: {"tok_s": [], "cpu_tok_s": [], "ratios": [], "cpu_ratios": []} for name in ["without", *schemas]}

    def note(name, result):
        out[name]["tok_s"].append(result[0])
        out[name]["cpu_tok_s"].append(result[1])
        return result

    for schema in [None, *schemas.values()]:
        run(server, users, schema)          # warm: prompts are cached, grammars compiled
    for _ in range(rounds):
        before = note("without", run(server, users, None))
        for name, schema in schemas.items():
            with_schema = note(name, run(server, users, schema))
            behind = note("without", run(server, users, None))
            out[name]["ratios"].append(2 * with_schema[0] / (before[0] + behind[0]))
            if before[1]:
                out[name]["cpu_ratios"].append(2 * with_schema[1] / (before[1] + behind[1]))
            before = behind
    return out


def first_token(server, repeats):
    """Milliseconds of processor time beyond a request without a constraint, for a schema seen before and a new one."""
    def cost(schema):
        before = server.cpu_s()
        server.post(body_of(0, schema, 1))
        time.sleep(0.01)                    # what the server does behind the answer counts too
        return (server.cpu_s() - before) * 1e3

    seen, new, none = {name: [] for name in SCHEMAS}, [], []
    for schema in [None, *SCHEMAS.values()]:
        cost(schema)
    for i in range(repeats):
        none.append(cost(None))
        for name, schema in SCHEMAS.items():
            seen[name].append(cost(schema))
        new.append(cost(four_kilobytes(f"r{i}_{os.getpid()}_")))
    base = statistics.median(none)
    return {"without": base, "seen": {name: statistics.median(times) - base for name, times in seen.items()},
            "new": statistics.median(new) - base, "new_all": [time - base for time in new]}


def start(options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [options.binary, "serve", "--model", options.model, "--port", str(port), "--memory", "1GiB", "--log-level", "warn",
               *shlex.split(options.serve)]
    server = Server(f"http://127.0.0.1:{port}", "quire", subprocess.Popen(command))
    for _ in range(600):
        try:
            server.post(body_of(0, SCHEMAS[next(iter(SCHEMAS))], 2))
            return server
        except (OSError, RuntimeError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def print_rows(row, server, result, misses):
    for name, figures in result.items():
        if name == "without":
            print(f"| {row} | {server.name} | {name} | {statistics.median(figures['tok_s']):.0f} | | |")
            continue
        cpu = spread(figures["cpu_ratios"]) if figures["cpu_ratios"] else ""
        print(f"| {row} | {server.name} | {name} | {statistics.median(figures['tok_s']):.0f} | {spread(figures['ratios'])} | {cpu} |")
        best = max(statistics.median(figures[k]) for k in ("ratios", "cpu_ratios") if figures[k])
        if server.name == "quire" and best < BOUNDS[row]:
            misses.append(f"{row}, {name}: {best:.3f} < {BOUNDS[row]}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default=os.environ.get("QUIRE_BINARY", str(ROOT / "build/quire")))
    p.add_argument("--model", default=os.environ.get("QUIRE_TEST_MODEL"), help="the GGUF file (QUIRE_TEST_MODEL)")
    p.add_argument("--serve", default="", help="more options for quire serve")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--users", type=int, default=32)
    p.add_argument("--repeats", type=int, default=25, help="of the first token")
    p.add_argument("--only", choices=["users", "one user", "first"])
    p.add_argument("--peer", help="URL of another server that runs already")
    p.add_argument("--peer-name", default="peer")
    p.add_argument("--json")
    options = p.parse_args()
    if not options.model:
        p.error("--model is missing")
    server, misses, out = start(options), [], {}
    servers = [server] + ([Server(options.peer, options.peer_name)] if options.peer else [])
    try:
        print(f"`bench/constraints.py {shlex.join(sys.argv[1:])}`, {datetime.date.today()}, {platform.machine()}, "
              f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
        print("| row | server | schema | tokens/s | × without | × without, CPU |\n|---|---|---|---:|---:|---:|")
        for row, users, schemas in (("users", options.users, SCHEMAS), ("one user", 1, {"long keys": LONG_KEYS})):
            if options.only in (None, row):
                for one in servers:
                    out[f"{row} {one.name}"] = result = turn_about(one, users, schemas, options.rounds)
                    print_rows(row, one, result, misses)
                    sys.stdout.flush()
        if options.only in (None, "first"):
            out["first"] = first = first_token(server, options.repeats)
            seen = max(first["seen"].values())
            print(f"\n| processor time to the first token | ms |\n|---|---:|\n| without | {first['without']:.1f} |")
            for name, cost in first["seen"].items():
                print(f"| {name}, seen before | +{cost:.1f} |")
            print(f"| 4 kB, new | +{first['new']:.1f} ({min(first['new_all']):.1f}–{max(first['new_all']):.1f}) |")
            misses += [f"a schema seen before: {seen:.1f} ms"] * (seen > BOUNDS["seen_ms"])
            misses += [f"a new schema of 4 kB: {first['new']:.1f} ms"] * (first["new"] > BOUNDS["new_ms"])
    finally:
        server.process.terminate()
        server.process.wait()
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(out, indent=1))
    for miss in misses:
        print("missed:", miss, file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
