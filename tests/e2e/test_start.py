"""How the process finds itself placed: closed descriptors, Kubernetes' variables, the health check's server."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import threading

import pytest

import harness


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def status_of(port, path="/ready"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=harness.patience(30))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@pytest.mark.sanitizer
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(closed):
    """No socket or file gets the number of a standard descriptor."""
    port = free_port()
    process = subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {closed}', harness.BINARY, "serve", "-m", harness.tiny(),
                                "--port", str(port), "--memory", "256MiB"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        harness.wait_until(lambda: status_of(port) == 200 or process.poll() is not None, 60, "ready")
        assert process.poll() is None
        for fd in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == "/dev/null"
        process.send_signal(signal.SIGTERM)
        assert process.wait(harness.patience(30)) == 0
    finally:
        process.kill()
        process.wait()


def test_output_that_goes_nowhere_is_an_error():
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', harness.BINARY, "run", "-m", harness.tiny(), "-n", "2", "x"],
                          stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=harness.patience(60))
    assert done.returncode == 1


def test_kubernetes_variables():
    """A Service named quire: one line in the log, and no effect."""
    service = {"QUIRE_PORT": "tcp://10.96.0.1:80", "QUIRE_SERVICE_HOST": "10.96.0.1", "QUIRE_SERVICE_PORT": "80",
               "QUIRE_SERVICE_PORT_HTTP": "80", "QUIRE_PORT_80_TCP": "tcp://10.96.0.1:80", "QUIRE_PORT_80_TCP_PORT": "80",
               "QUIRE_PORT_80_TCP_PROTO": "tcp", "QUIRE_PORT_80_TCP_ADDR": "10.96.0.1"}
    with harness.started(model=harness.tiny(), environment=service) as server:
        lines = [line for line in server.log.splitlines() if "environment" in line]
        assert len(lines) == 1 and "QUIRE_PORT=tcp://10.96.0.1:80" in lines[0] and "no effect" in lines[0]


def test_health_check_of_an_address_in_brackets():
    """As it stands in a URL, and as the server takes it."""
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def answer():
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        for host in ("[::1]", "::1"):
            assert harness.run_quire("healthcheck", environment={"QUIRE_HOST": host, "QUIRE_PORT": str(port)}).returncode == 0
        thread.join(harness.patience(30))


@pytest.mark.parametrize("front", [[], ["sh", "-c", '"$@"; exit $?', "init"]], ids=["first process", "behind an init"])
def test_health_check_finds_the_first_process(front):
    """In a container with the port as an argument, the image's health check knows it, whatever QUIRE_PORT says."""
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("unshare") or not shutil.which("nsenter") or \
            subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("no process namespaces here")
    port, other = free_port(), free_port()
    environment = {**os.environ, "QUIRE_PORT": str(other)}
    runner = subprocess.Popen([*namespace, *front, harness.BINARY, "serve", "-m", harness.tiny(), f"--port={port}",
                               "--memory", "256MiB"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=environment)
    try:
        harness.wait_until(lambda: status_of(port) == 200 or runner.poll() is not None, 60, "ready")
        assert runner.poll() is None
        first = open(f"/proc/{runner.pid}/task/{runner.pid}/children").read().split()[0]

        def check(*arguments):
            return subprocess.run(["nsenter", "--target", first, "--pid", "--mount", harness.BINARY, "healthcheck", *arguments],
                                  env=environment, capture_output=True, timeout=harness.patience(30)).returncode

        assert check() == 0
        assert check("--port", str(other)) == 1, "what is asked for is asked"
    finally:
        runner.kill()
        runner.wait()
