"""What docs/quality.md says of the packaged models, on the first windows of the same text: the arithmetic is the
float reference's but for a ten-thousandth. (bench/quality.py is the whole of it, llama.cpp's tool included.)

Models: QUIRE_TEST_MODEL, QUIRE_TEST_GEMMA, QUIRE_TEST_QWEN.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("QUIRE_BINARY", str(ROOT / "build/quire"))

sys.path.insert(0, str(ROOT / "bench"))
import quality  # noqa: E402


def perplexity(variable, text, windows):
    model = os.environ.get(variable)
    if not model:
        pytest.skip(f"{variable} is not set")
    done = subprocess.run([BINARY, "perplexity", "-m", model, "--windows", str(windows), "--kl", "--json", text],
                          capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr.decode()
    print(done.stdout.decode())
    return json.loads(done.stdout)


@pytest.mark.parametrize("variable, windows, likely", [
    ("QUIRE_TEST_MODEL", 2, (5.5, 6.0)),
    ("QUIRE_TEST_GEMMA", 2, (4.5, 5.0)),
    ("QUIRE_TEST_QWEN", 1, (2.0, 4.0)),
])
def test_the_arithmetic_is_the_reference(tmp_path, variable, windows, likely):
    text = tmp_path / "text.txt"
    text.write_text(quality.make_text(), newline="")
    found = perplexity(variable, text, windows)
    assert found["scored_tokens"] == windows * quality.SCORED and found["window"] == quality.WINDOW
    assert likely[0] < found["perplexity"] < likely[1]
    assert found["perplexity"] == pytest.approx(found["reference_perplexity"], rel=1e-3)
    assert 0 < found["kl_mean"] <= 1e-4 and found["kl_mean"] < found["kl_p99"] < found["kl_largest"] <= 0.01
    assert found["same_best"] >= 0.99
