"""--swap-dir: the pages of preempted sequences go to a file and come back, to the same bytes; and
whatever the file or the disk does, the answer is the one that would have been computed.
"""

import concurrent.futures
import os
import pathlib
import resource
import subprocess

import pytest

import harness

HOOKS = {**harness.CHECK_EVERY_STEP, "QUIRE_TEST_SWAP": "1"}  # every preempted sequence is swapped if it can be


def ids(seed, count):
    return [270 + (seed * 31 + i * 61 + i * i * 7) % 200 for i in range(count)]


def bodies():
    """More than the pool holds: pairs begin alike, some share a prompt among choices, some avoid the cache."""
    common = {"max_tokens": 150, "logprobs": 3, "ignore_eos": True}
    return [{"prompt": ids(i // 2, 90) + ids(9 + i, 20), "temperature": 0 if i % 3 else 0.8, "seed": i,
             "n": 2 if i % 4 == 1 else 1, "cache_prompt": i % 5 != 4, **common} for i in range(10)]


def choices(answer):
    return answer["choices"], {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}


def swaps(server):
    metrics = server.metrics()
    return {name: metrics(f"quire_swap_{name}_total") for name in ("out", "in", "out_bytes", "in_bytes", "errors", "fallbacks")}


@pytest.fixture(scope="module")
def expected():
    """Each alone, in a pool with room for all."""
    server = harness.shared("--no-prefix-cache", model=harness.tiny())
    answers = [choices(server.complete(body)) for body in bodies()]
    assert swaps(server)["out"] == 0 and server.metrics()("quire_swap_limit_bytes") == 0
    return answers


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "swap-here"
    folder.mkdir()
    return folder


def files_in(server, folder):
    """What the process has open in the folder, by name or without one."""
    fds = pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()
    return [os.stat(fd) for fd in fds if os.readlink(fd).startswith(f"{folder}/")]


def small(folder, *more, **options):
    return harness.started(*harness.small_options(), "--swap-dir", folder, "--swap-bytes", "4MiB", *more,
                           model=harness.tiny(), **options)


@pytest.mark.sanitizer
@pytest.mark.parametrize("hooks", [harness.CHECK_EVERY_STEP, HOOKS])
def test_pages_that_do_not_fit_go_to_the_file(folder, expected, hooks):
    with small(folder, environment=hooks) as server:
        (status,) = files_in(server, folder)
        assert status.st_nlink == 0 and status.st_mode & 0o777 == 0o600 and not list(folder.iterdir())
        assert [choices(a) for a in server.together(bodies())] == expected
        server.wait_idle()
        seen, metrics = swaps(server), server.metrics()
        assert metrics.preemptions >= seen["out"] >= 2 and seen["in"] >= 2, seen
        assert seen["errors"] == 0 and seen["out_bytes"] >= seen["in_bytes"] > 0
        report = server.request("GET", "/debug/memory").json
        assert report["swap"] == {"limit_bytes": metrics("quire_swap_limit_bytes"), "used_bytes": 0, "errors": 0,
                                  "out_bytes": seen["out_bytes"], "in_bytes": seen["in_bytes"],
                                  "fallbacks": seen["fallbacks"]}
        page = report["pages"]["bytes"]
        assert seen["out_bytes"] % page == 0 and 4 * 2**20 - page < report["swap"]["limit_bytes"] <= 4 * 2**20


@pytest.mark.sanitizer
def test_who_hangs_up_while_swapped_leaves_nothing(folder):
    with small(folder, environment=HOOKS) as server, server.unharmed():
        streams = [server.stream({"prompt": ids(i, 100), "max_tokens": 700, "ignore_eos": True}) for i in range(10)]
        harness.wait_until(lambda: server.metrics()("quire_swap_used_bytes") > 0, what="swapping")
        for stream in streams:
            stream.hang_up()
        harness.wait_until(lambda: server.metrics()("quire_swap_used_bytes") == 0, what="slots given back")


@pytest.mark.parametrize("every", [1, 5])
def test_swapped_at_every_step(folder, expected, every):
    environment = {**HOOKS, "QUIRE_TEST_PREEMPT_EVERY": str(every)}
    with harness.started("--swap-dir", folder, model=harness.tiny(), environment=environment) as server:
        assert [choices(a) for a in server.together(bodies())] == expected
        seen = swaps(server)
        assert seen["out"] == server.metrics().preemptions >= 150 // every
        # At a page's end all may be in the prefix cache still: then there is nothing to bring back.
        assert seen["out"] >= seen["in"] >= 0.8 * seen["out"] and seen["fallbacks"] == seen["errors"] == 0


def test_windows_are_swapped_too(folder):
    model = str(harness.made_up_models() / "gemma3.gguf")
    with harness.started("--no-prefix-cache", model=model) as server:
        expected = [choices(server.complete(body)) for body in bodies()]
    environment = {**HOOKS, "QUIRE_TEST_PREEMPT_EVERY": "3"}
    with harness.started("--swap-dir", folder, model=model, environment=environment) as server:
        assert [choices(a) for a in server.together(bodies())] == expected
        seen = swaps(server)
        assert seen["out"] >= seen["in"] >= 0.8 * seen["out"] > 20 and seen["fallbacks"] == seen["errors"] == 0


@pytest.mark.sanitizer
def test_a_full_disk_means_computing_again(folder, expected):
    """The disk's fullness is a limit on the size of files, which the kernel reports in the same way."""
    with small(folder, environment=HOOKS) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        assert [choices(a) for a in server.together(bodies())] == expected
        server.wait_idle()
        seen = swaps(server)
        assert seen["errors"] >= 1 and seen["fallbacks"] >= 1, seen
        assert server.metrics()("quire_swap_used_bytes") == 0
        assert server.log.count("cannot be swapped out") == 1
        assert server.get("/ready").status == 200


def test_a_damaged_file_means_computing_again(folder, expected):
    """Somebody writes over all of it while sequences are there."""
    with small(folder, environment=HOOKS) as server:
        fd = next(fd for fd in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()
                  if os.readlink(fd).startswith(f"{folder}/"))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answers = pool.submit(server.together, bodies())
            with open(fd, "r+b", buffering=0) as file:
                while not answers.done():
                    size = os.fstat(file.fileno()).st_size
                    os.pwrite(file.fileno(), os.urandom(size), 0)
            assert [choices(a) for a in answers.result()] == expected
        server.wait_idle()
        seen = swaps(server)
        assert seen["errors"] >= 1 and seen["fallbacks"] >= 1, seen
        assert server.log.count("cannot be swapped in") == 1


def refusal(*options):
    done = harness.run_quire("serve", "-m", harness.tiny(), "--port", 0, "--memory", "64MiB", *options)
    assert done.returncode == 1
    return done.stderr.decode()


def test_a_directory_that_cannot_be_used_is_an_error_at_start(folder):
    text = refusal("--swap-dir", folder / "none")
    assert "--swap-dir" in text and "No such file" in text
    (folder / "file").write_text("")
    assert "Not a directory" in refusal("--swap-dir", folder / "file")
    assert "--swap-bytes" in refusal("--swap-dir", folder, "--swap-bytes", "1KiB")
    assert "--swap-dir /proc cannot be used" in refusal("--swap-dir", "/proc")


@pytest.mark.parametrize("where, what", [("none", "No such file"), ("", None)])
def test_it_is_refused_before_the_weights_are_read(folder, where, what):
    """Of the model's file its header alone was read. And so with a disk that is full: no file may grow."""
    full = {} if what else {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))}
    process = subprocess.Popen([harness.BINARY, "serve", "-m", harness.MODEL, "--port", "0", "--memory", "400MiB",
                                "--swap-dir", folder / where], stderr=subprocess.PIPE, **full)
    try:
        harness.wait_until(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), 20, "the refusal")
        io = dict(line.split(": ") for line in pathlib.Path(f"/proc/{process.pid}/io").read_text().splitlines())
    finally:
        process.kill()
        _, text = process.communicate()
    assert process.returncode == 1
    assert f"--swap-dir {folder / where} cannot be used" in text.decode() and (what or "File too large") in text.decode()
    assert b"memory budget\n" not in text and b"kv_pool" not in text  # what the log says when it goes on
    assert int(io["rchar"]) < os.stat(harness.MODEL).st_size / 10, io
