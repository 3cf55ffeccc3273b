"""The promise of --memory under everything clients do at once: soak.py, shortly here, ten minutes a budget in
./test full. In a memory cgroup of exactly the budget where this machine gives one."""

import pytest

import harness
import soak

MIB = 2**20
SECONDS = 600 if harness.FULL else 20
KINDS = ["stream", "answer", "chat", "wrong", "hung up in the body", "hung up in the answer"]
FULL_ONLY = pytest.mark.long


@pytest.mark.skipif(harness.sanitized(), reason="sanitizers need memory of their own")
@pytest.mark.parametrize("memory", [200, pytest.param(400, marks=FULL_ONLY), pytest.param(2048, marks=FULL_ONLY)])
def test_64_clients_and_1000_idle_connections_stay_within_the_budget(memory):
    report = soak.soak(memory * MIB, SECONDS)
    print(report)
    assert not report.problems, str(report)
    assert report.peaks["VmHWM"] > 93 * MIB, "at least the weights"
    assert report.counts["idle connections at once"] > 900
    # Most of the 64 wait at 200 MiB, but many kinds have had their turn even on a slow machine.
    assert sum(report.counts[kind] > 0 for kind in KINDS) >= 4, str(report)


@pytest.mark.skipif(harness.sanitized(), reason="sanitizers need memory of their own")
def test_many_requests_stay_within_a_small_budget():
    """With a made-up model computing is nothing, so in the same time there are many more requests."""
    report = soak.soak(64 * MIB, SECONDS / 2, model=harness.tiny())
    print(report)
    assert not report.problems, str(report)
    assert all(report.counts[kind] > 5 for kind in KINDS), str(report)
