"""Makes the servers of fixtures.py known to pytest; harness.py says how one is started."""

from fixtures import client, end_shared_servers, pytest_collection_modifyitems, server, tiny  # noqa: F401
