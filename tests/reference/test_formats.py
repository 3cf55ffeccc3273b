"""Every tensor format, dequantised by each kernel set of this CPU, against the gguf package.

The blocks are random bits; only the scales are kept finite. Equality is of bits.
"""

import os
import pathlib
import subprocess

import gguf
import gguf.quants
import numpy
import pytest

TOOL = pathlib.Path(os.environ.get("QUIRE_BUILD", "build")) / "tests/engine/kernels/dequantize_tool"

# Format, and where in a block its f16 fields lie.
F16_FIELDS = {
    "F32": None,
    "F16": (0,),
    "BF16": None,
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
LARGEST_E8M0 = 250  # of a scale whose products with E2M1's values are finite


def kernel_sets():
    return subprocess.run([TOOL, "--list"], check=True, capture_output=True, text=True).stdout.split()


def random_rows(name, rows, k, seed):
    """Random blocks [rows][bytes of a row] whose values are all finite."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    random = numpy.random.default_rng(seed)
    if name in ("F32", "BF16"):
        bits = random.normal(size=(rows, k)).astype(numpy.float32) * 10.0 ** random.integers(-40, 38, (rows, 1))
        bits = bits.astype(numpy.float32).view(numpy.uint32)
        return bits.view(numpy.uint8) if name == "F32" else (bits >> 16).astype(numpy.uint16).view(numpy.uint8)
    data = random.integers(0, 256, (rows, k // block, size), dtype=numpy.uint8)
    for field in F16_FIELDS[name]:
        high = data[:, :, field + 1]
        high[(high & 0x7C) == 0x7C] &= 0xBF  # not infinite, not NaN
    if name == "MXFP4":
        numpy.minimum(data[:, :, 0], LARGEST_E8M0, out=data[:, :, 0])
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kernels", kernel_sets())
@pytest.mark.parametrize("name", F16_FIELDS)
@pytest.mark.parametrize("rows,k", [(16, 256), (17, 768), (3, 2048), (33, 1280)])
def test_dequantized_rows_equal_the_gguf_package(kernels, name, rows, k):
    data = random_rows(name, rows, k, seed=rows + k)
    kind = gguf.GGMLQuantizationType[name]
    with numpy.errstate(over="ignore"):
        expected = gguf.quants.dequantize(data, kind).reshape(rows, k)
    assert numpy.isfinite(expected).all()
    result = subprocess.run(
        [TOOL, kernels, str(int(kind)), str(rows), str(k)], input=data.tobytes(), capture_output=True, check=True
    )
    got = numpy.frombuffer(result.stdout, numpy.float32).reshape(rows, k)
    assert got.view(numpy.uint32).tolist() == numpy.ascontiguousarray(expected).view(numpy.uint32).tolist()
