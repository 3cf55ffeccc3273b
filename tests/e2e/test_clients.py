"""Real clients, each a program from start to end (tests/clients): those of OpenAI in ./test, all others in ./test full."""
import pathlib
import sys

import pytest

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

import clients    # noqa: E402
import runner     # noqa: E402
from table import CLIENTS    # noqa: E402

IN_EVERY_RUN = ("openai_py", "openai_js")


def rows():
    for client in CLIENTS:
        yield pytest.param(client, id=client.name, marks=() if client.name in IN_EVERY_RUN else pytest.mark.long)


@pytest.mark.parametrize("client", list(rows()))
def test_client(client, tmp_path):
    """Every step does what its person wanted, or is known not to, with the reason that docs/clients.md gives."""
    if not clients.can_install(client):
        pytest.skip(f"what builds {client.language} programs is not here")
    server = runner.server_for(client.model)
    with server.unharmed():
        found = clients.run(client, server.url, runner.KEY, runner.NAME, output=tmp_path / "output.txt")
    failed = {step: error for step, error in found.items() if error}
    assert found and failed.keys() == client.known.keys(), failed or client.known


def test_the_document_is_of_the_last_run():
    assert runner.written(runner.DOCUMENT.read_text()) == runner.DOCUMENT.read_text(), "tests/clients/run --table writes it"
