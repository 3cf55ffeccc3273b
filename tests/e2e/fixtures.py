"""The servers that most tests share. See harness.py; conftest.py makes these known to pytest."""

import pytest

import harness


@pytest.fixture(scope="session", autouse=True)
def end_shared_servers():
    yield
    harness.stop_shared()


@pytest.fixture
def server():
    """SmolLM2 with the defaults."""
    return harness.shared()


@pytest.fixture
def tiny():
    """A made-up model: for what does not depend on sense."""
    return harness.shared(model=harness.tiny())


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def pytest_collection_modifyitems(config, items):
    """Tests marked long run when asked for: by -m, or by QUIRE_TEST_FULL=1."""
    if harness.FULL or config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="takes minutes: QUIRE_TEST_FULL=1 or -m long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)
