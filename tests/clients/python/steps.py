"""What every client's program in this folder shares: where the server is, and how a step's end is told.

A program imports its client, and each thing that a person would do with it is a function marked with @step; `run()` calls them in
order and prints one line of JSON for each, which tests/clients/clients.py reads. A step fails by any exception.
"""
import asyncio
import inspect
import json
import os
import sys
import traceback

URL = os.environ["QUIRE_URL"]          # http://127.0.0.1:PORT, without /v1
BASE = URL + "/v1"
KEY = os.environ["QUIRE_KEY"]
MODEL = os.environ["QUIRE_MODEL"]      # the served name
PATIENCE = 900                         # seconds: for hangs only, the machine may be busy

_steps = []


def step(name):
    def add(function):
        _steps.append((name, function))
        return function
    return add


def run():
    only = sys.argv[1:]
    for name, function in _steps:
        if only and name not in only:
            continue
        error = None
        try:
            result = function()
            if inspect.isawaitable(result):
                asyncio.run(_wait(result))
        except BaseException as caught:    # a client may call exit
            traceback.print_exc()
            error = f"{type(caught).__name__}: {caught}"[:2000]
        print("\n@step " + json.dumps({"step": name, "error": error}), flush=True)


async def _wait(awaitable):
    return await awaitable
