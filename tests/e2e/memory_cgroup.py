"""A memory cgroup to run a server in (v1 or v2, whichever this machine has), and what it counted."""

import os
import pathlib
import time

HOST_MOUNTS = pathlib.Path("/proc/mounts")


def _mount(kind, has):
    for line in HOST_MOUNTS.read_text().splitlines():
        _, folder, found, options = line.split()[:4]
        if found == kind and has(pathlib.Path(folder), options.split(",")):
            return pathlib.Path(folder)
    return None


def _pairs(path):
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


class MemoryCgroup:
    """Of exactly `limit_bytes`, without swap. Use `make`; raises OSError where that may not be."""

    def __init__(self, version, mount, limit_bytes):
        self.version, self.limit_bytes = version, limit_bytes
        self.folder = mount / f"quire-soak-{os.getpid()}"
        self.folder.mkdir()
        try:
            if version == 1:
                self._write("memory.limit_in_bytes", limit_bytes)
                self._write("memory.swappiness", 0)
            else:
                self._write("memory.max", limit_bytes)
                if (self.folder / "memory.swap.max").exists():
                    self._write("memory.swap.max", 0)
        except OSError:
            self.folder.rmdir()
            raise

    def _write(self, name, value):
        (self.folder / name).write_text(str(value))

    def _number(self, name):
        path = self.folder / name
        return int(path.read_text()) if path.exists() else 0

    def command(self, command):
        """`command`, run by a shell that joins the cgroup first: not one byte is outside it."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    def rss(self):
        """Anonymous memory of its processes: what no reclaiming gets back."""
        stat = _pairs(self.folder / "memory.stat")
        return stat["rss"] if self.version == 1 else stat["anon"]

    def usage(self):
        """All that is charged: page cache and the kernel's own memory too."""
        return self._number("memory.usage_in_bytes" if self.version == 1 else "memory.current")

    def kernel(self):
        if self.version == 1:
            return self._number("memory.kmem.usage_in_bytes")
        return _pairs(self.folder / "memory.stat").get("kernel", 0)

    def peak(self):
        return self._number("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")

    def failures(self):
        """How often the limit was met: the kernel then reclaims page cache, or kills."""
        if self.version == 1:
            return self._number("memory.failcnt")
        return _pairs(self.folder / "memory.events")["max"]

    def kills(self):
        return _pairs(self.folder / ("memory.oom_control" if self.version == 1 else "memory.events"))["oom_kill"]

    def remove(self):
        for _ in range(50):
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.1)
        raise OSError(f"{self.folder} is still in use")


def make(limit_bytes):
    """A cgroup, or None and why there is none."""
    mount = _mount("cgroup", lambda _, options: "memory" in options)
    version = 1
    if mount is None:
        version = 2
        mount = _mount("cgroup2", lambda folder, _: "memory" in (folder / "cgroup.controllers").read_text().split())
    if mount is None:
        return None, "no memory cgroup is mounted"
    try:
        if version == 2:
            (mount / "cgroup.subtree_control").write_text("+memory")
        return MemoryCgroup(version, mount, limit_bytes), None
    except OSError as error:
        return None, f"no memory cgroup may be made under {mount}: {error.strerror}"
