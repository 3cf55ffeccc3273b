"""Vocabularies and chat templates of public models, and llama.cpp's converter: not copied here but taken, in
./test full, from the source package that llama-cpp-python publishes. It is fetched once, by pip, into the
cache folder.
"""

import functools
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python==0.3.36"
WANTED = ("/models/", "/conversion/", "/gguf-py/", "/convert_hf_to_gguf.py", "/requirements/")


def unpack(folder):
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                        "--disable-pip-version-check", "--dest", work, PACKAGE], check=True, timeout=900)
        archive = next(pathlib.Path(work).glob("*.tar.gz"))
        with tarfile.open(archive) as tar:
            inside = "/vendor/llama.cpp"
            members = [m for m in tar.getmembers() if m.isfile() and inside in m.name
                       and any(part in m.name.partition(inside)[2] for part in WANTED)]
            tar.extractall(pathlib.Path(work) / "out", members, filter="data")
        next((pathlib.Path(work) / "out").glob("*/vendor/llama.cpp")).rename(folder)


@functools.cache
def llama_cpp_sources():
    """llama.cpp's folder as that package carries it."""
    cache = pathlib.Path(os.environ.get("QUIRE_CACHE") or pathlib.Path.home() / ".cache/quire")
    folder = cache / "published" / PACKAGE.replace("==", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        unpack(folder)
    return folder


def vocabulary(name):
    return llama_cpp_sources() / "models" / ("ggml-vocab-%s.gguf" % name)


def templates():
    return sorted((llama_cpp_sources() / "models/templates").glob("*.jinja"))
