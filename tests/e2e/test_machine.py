"""What the server takes when it is not told: real cgroups, and files that are bound over those of the machine."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import harness
import memory_cgroup

MIB = 2**20
CPU = pathlib.Path("/sys/fs/cgroup/cpu")
PLAN = [harness.BINARY, "plan", "--layers", "4", "--kv-heads", "2", "--head-dim", "64", "--weights", "20MiB", "--context", "256",
        "--log-level", "info"]


NO_PROC = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]


def machine_line(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=harness.patience(60), stdin=subprocess.DEVNULL)
    found = re.search(r"machine: .*", done.stdout + done.stderr)
    assert found, done.stdout + done.stderr
    return found[0]


def may_mount():
    return shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@contextlib.contextmanager
def held(cgroup, size):
    """A process in the cgroup that holds so many bytes."""
    program = f"import sys; b = b'x' * {size}; print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen(cgroup.command([sys.executable, "-c", program]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(harness.sanitized(), reason="sanitizers need memory of their own")
def test_a_neighbour_keeps_what_it_holds():
    cgroup, why = memory_cgroup.make(500 * MIB)
    if cgroup is None:
        pytest.skip(why)
    server = None
    try:
        with held(cgroup, 260 * MIB) as neighbour:
            def launch(command):
                at = command.index("--memory")
                return cgroup.command(command[:at] + command[at + 2:])

            server = harness.Server(launcher=launch)
            budget = int(server.metrics()("quire_memory_budget_bytes"))
            assert budget <= 240 * MIB and "others hold 2" in server.log
            length = server.max_model_len()
            assert length < 8192 and "warn  context: the model's context of 8192" in server.log
            # Every page is written.
            server.complete({"prompt": [5 + i % 90 for i in range(length - 9)], "max_tokens": 8})
            assert server.metrics()("quire_kv_pages_held_max") > 0.8 * server.metrics()("quire_kv_pages")
            assert cgroup.kills() == 0 and neighbour.poll() is None and server.process.poll() is None
            assert server.peak_memory() <= budget
    finally:
        if server:
            server.kill()
        cgroup.remove()


@pytest.mark.skipif(not os.access(CPU / "cgroup.procs", os.W_OK), reason="no CPU cgroup (v1) may be made")
@pytest.mark.parametrize("quota, cores", [(50_000, 1), (150_000, 1)])
def test_a_quota_is_rounded_down(quota, cores):
    folder = CPU / f"quire-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
        line = machine_line(["sh", "-c", 'echo $$ >"$0" && exec "$@"', folder / "cgroup.procs", *PLAN])
        allowed = len(os.sched_getaffinity(0))
        assert f"cores: {cores} (" in line
        assert allowed == 1 or f"the CPU quota of {folder}: {quota / 100_000:.2f} cores" in line
    finally:
        harness.wait_until(lambda: not (folder / "cgroup.procs").read_text(), 10, "an empty cgroup")
        folder.rmdir()


def test_affinity():
    core = min(os.sched_getaffinity(0))
    assert "cores: 1 (the affinity)" in machine_line(["taskset", "-c", core, *PLAN])


@pytest.mark.skipif(not may_mount(), reason="no mount namespace may be made")
def test_lxc_and_no_proc(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n")
    lxc = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', tmp_path / "meminfo", *PLAN]
    assert "the machine: 2.0 GiB, of which others hold" in machine_line(lxc)
    assert "the machine: " in machine_line(NO_PROC + PLAN)


@pytest.mark.skipif(not may_mount(), reason="no mount namespace may be made")
def test_what_proc_does_not_tell_is_absent():
    figures = {"process_open_fds", "process_resident_memory_bytes"}
    for launcher in (None, lambda command: NO_PROC + command):
        with harness.started(model=harness.tiny(), launcher=launcher) as server:
            names = {sample.name for sample in server.metrics().samples}
            report = server.get("/debug/memory").json
            assert names & figures == (set() if launcher else figures)
            assert (report["resident_bytes"] is None) == (report["resident_peak_bytes"] is None) == bool(launcher)


def test_more_than_the_machine_has_is_a_warning():
    done = harness.run_quire("serve", "-m", "/none.gguf", "--port", 0, "--memory", "100TiB", "--threads", 1)
    assert "warn  memory: --memory 100.0 TiB is more than the " in done.stderr.decode()
