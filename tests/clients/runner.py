"""tests/clients/run: runs clients' programs against a server that it starts, and keeps the table of docs/clients.md."""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests"), str(ROOT / "tests/e2e")]

import conftest    # noqa: E402,F401 (finds the build and the models)
import clients     # noqa: E402
import harness     # noqa: E402
from table import CLIENTS, find    # noqa: E402

RESULTS = HERE / "results.json"
DOCUMENT = ROOT / "docs/clients.md"
KEY, NAME = "sk-clients", "quire"


def server_for(model):
    """The server that a client's program is run against."""
    keys = clients.CACHE / "keys.txt"
    clients.CACHE.mkdir(parents=True, exist_ok=True)
    keys.write_text(KEY + "\n")
    options = ("--api-key-file", str(keys), "--served-model-name", NAME)
    if model == "qwen":
        return harness.shared("--memory", "3GiB", *options, model=harness.packaged("QUIRE_TEST_QWEN"), key=KEY)
    return harness.shared("--memory", "768MiB", *options, key=KEY)


def commit():
    return subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def show(client, found):
    for step, error in found.items():
        known = client.known.get(step)
        word = "ok" if error is None else "known" if known else "FAILED"
        print(f"{word:7} {client.name}: {step}" + (f"  {error}" if error else ""), flush=True)


def record(client, found):
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[client.name] = {"packages": list(client.packages), "model": client.model, "commit": commit(),
                            "date": datetime.date.today().isoformat(),
                            "steps": {step: "ok" if error is None else client.known.get(step, "fails") for step, error in found.items()}}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def main():
    parser = argparse.ArgumentParser(prog="tests/clients/run", description=__doc__.split(": ")[1])
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients; all when none is named")
    parser.add_argument("--step", action="append", default=[], help="only this step of the program")
    parser.add_argument("--requests", metavar="FILE", help="write what the clients send and get to this file")
    parser.add_argument("--url", help="a server that runs already, in place of one's own")
    parser.add_argument("--key", default=KEY, help="the key for --url")
    parser.add_argument("--model", default=NAME, help="the model's name for --url")
    parser.add_argument("--record", action="store_true", help="write the results to results.json, and the table of docs/clients.md")
    parser.add_argument("--lock", action="store_true", help="write the locks of these clients and end")
    parser.add_argument("--table", action="store_true", help="write the table of docs/clients.md from results.json and end")
    arguments = parser.parse_args()
    chosen = [find(name) for name in arguments.names] or CLIENTS
    if arguments.lock:
        for client in chosen:
            if client.language == "python":
                clients.lock(client)
        return 0
    if arguments.table:
        write_table()
        return 0
    bad = 0
    for client in chosen:
        try:
            clients.environment(client)
        except RuntimeError as error:
            print(f"FAILED  {client.name}: it could not be installed: {error}")
            bad += 1
            continue
        url = arguments.url or server_for(client.model).url
        recorder = None
        if arguments.requests:
            recorder = clients.Recorder(int(url.rpartition(":")[2]), arguments.requests)
        found = clients.run(client, recorder.url if recorder else url, arguments.key, arguments.model, arguments.step,
                            clients.CACHE / f"{client.name}.log")
        if recorder:
            recorder.close()
        show(client, found)
        bad += sum(1 for step, error in found.items() if error and step not in client.known)
        if arguments.record and not arguments.step:
            record(client, found)
    harness.stop_shared()
    if arguments.record:
        write_table()
    return bad != 0


def table():
    """The rows of docs/clients.md: what was run, when, and what came of it."""
    results = json.loads(RESULTS.read_text())
    lines = ["| client | versions | works | fails | last run |", "|---|---|---|---|---|"]
    for client in CLIENTS:
        if client.name not in results:
            continue
        ran = results[client.name]
        works = ", ".join(step for step, word in ran["steps"].items() if word == "ok")
        fails = "; ".join(f"{step}: {word}" for step, word in ran["steps"].items() if word != "ok")
        model = {"qwen": "Qwen2.5-Coder 1.5B", "smollm2": "SmolLM2 135M"}[ran["model"]]
        lines.append(f"| {client.title} | {', '.join(ran['packages'])} | {works} | {fails} | {ran['date']}, {ran['commit']}, {model} |")
    return "\n".join(lines)


def setups():
    """The section on setting each client up."""
    return "\n\n".join(f"### {client.title}\n\n    " + client.setup.strip().replace("\n", "\n    ") for client in CLIENTS if client.setup)


def written(text):
    """`text` of the document with its made parts as they are today."""
    for name, made in (("table", table()), ("setups", setups())):
        begin, end = f"<!-- made by tests/clients/run: {name} -->\n", f"<!-- made: {name} -->"
        before, rest = text.split(begin)
        text = before + begin + "\n" + made + "\n\n" + end + rest.split(end)[1]
    return text


def write_table():
    DOCUMENT.write_text(written(DOCUMENT.read_text()))


if __name__ == "__main__":
    sys.exit(main())
