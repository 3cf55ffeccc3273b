"""Vocabularies and chat templates of public models, and llama.cpp's converter: not copied here but taken, in
./test full, from the source package that llama-cpp-python publishes. It is fetched once, by pip, into the
cache folder. The converter also needs PyTorch; the Debian package is taken, because the one on PyPI brings
gigabytes for graphics cards. Nothing is installed: its files are unpacked into the cache folder.
"""

import functools
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import venv

PACKAGE = "llama-cpp-python==0.3.36"
CONVERTER_NEEDS = ["numpy==1.26.4", "protobuf==7.36.2", "requests==2.34.2", "sentencepiece==0.2.3",
                   "transformers==5.24.0"]
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


def cached(name, make):
    cache = pathlib.Path(os.environ.get("QUIRE_CACHE") or pathlib.Path.home() / ".cache/quire")
    folder = cache / "published" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        make(folder)
    return folder


@functools.cache
def llama_cpp_sources():
    """llama.cpp's folder as that package carries it."""
    return cached(PACKAGE.replace("==", "-"), unpack)


def unpack_torch(folder):
    plan = subprocess.run(["apt-get", "install", "--print-uris", "--no-install-recommends", "-y", "python3-torch"],
                          check=True, capture_output=True, text=True, timeout=120).stdout
    files = [urllib.parse.unquote(line.split("'")[1].rsplit("/", 1)[1]) for line in plan.split("\n") if line[:1] == "'"]
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        subprocess.run(["apt-get", "download", "-q", *(file.split("_")[0] for file in files)], check=True, cwd=work,
                       capture_output=True, timeout=900)
        for package in pathlib.Path(work).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, pathlib.Path(work) / "root"], check=True)
        # The module alone: what lies beside it is the other Python's.
        alone = pathlib.Path(work) / "root/alone"
        alone.mkdir()
        (alone / "torch").symlink_to("../usr/lib/python3/dist-packages/torch")
        (pathlib.Path(work) / "root").rename(folder)


def make_converter_python(folder):
    work = folder.with_name(folder.name + ".partial")
    venv.create(work, clear=True, with_pip=True)
    subprocess.run([work / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    *CONVERTER_NEEDS], check=True, timeout=900)
    work.rename(folder)


def convert(folder, out, kind):
    """Run convert_hf_to_gguf.py on a Hugging Face folder."""
    torch = cached("debian-torch", unpack_torch)
    python = cached("converter-python", make_converter_python) / "bin/python"
    libraries = {str(library.parent) for library in torch.rglob("*.so*")}
    # Two types that this PyTorch has no name for, and this model no use.
    start = ("import runpy, sys, torch\n"
             "for name in ('float8_e4m3fn', 'float8_e5m2'): hasattr(torch, name) or setattr(torch, name, object())\n"
             "sys.argv = sys.argv[1:]; sys.path[0] = sys.argv[0].rpartition('/')[0]\n"
             "runpy.run_path(sys.argv[0], run_name='__main__')")
    done = subprocess.run([python, "-c", start, llama_cpp_sources() / "convert_hf_to_gguf.py", folder,
                           "--outfile", out, "--outtype", kind], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PYTHONPATH": str(torch / "alone"),
                               "LD_LIBRARY_PATH": ":".join(sorted(libraries))})
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def vocabulary(name):
    return llama_cpp_sources() / "models" / ("ggml-vocab-%s.gguf" % name)


def templates():
    return sorted((llama_cpp_sources() / "models/templates").glob("*.jinja"))
