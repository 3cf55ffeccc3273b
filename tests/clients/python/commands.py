"""Runs a client that is a program of the command line."""
import subprocess


def command(*words, **more):
    """What it printed; it must end well."""
    done = subprocess.run(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=900, **more)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout[-1500:]}"
    return done.stdout
