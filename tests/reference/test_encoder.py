"""Encoders' hidden states and scores against numpy, with the weights of the same file; and the same bits for any
threads, kernels and page sizes."""

import os
import pathlib
import subprocess

import encoder
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

TOOL = pathlib.Path(os.environ["QUIRE_BUILD"]) / "tests/engine/model/logits_tool"
RNG = np.random.default_rng(5)
PROMPTS = [[2, *map(int, RNG.integers(5, len(encoder.VOCABULARY), n)), 3] for n in (0, 1, 14, 33, 100, 600)]


def run(path, prompts, *options):
    text = "".join(" ".join(map(str, ids)) + "\n" for ids in prompts)
    done = subprocess.run([TOOL, str(path), "--chunk", str(encoder.CONTEXT), *map(str, options)], input=text.encode(),
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def hidden(path, prompts, *options):
    flat = np.frombuffer(run(path, prompts, "--hidden", *options), "<f4").reshape(-1, encoder.WIDTH)
    return np.split(flat, np.cumsum([len(ids) for ids in prompts])[:-1])


# What the file's numbers lose is not in it: only keys and values in f16, and 13 bits of activations of
# quantized weights.
@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.Q8_0, Q.Q4_0])
@pytest.mark.parametrize("family", ["bert", "nomic-bert"])
def test_hidden_states(tmp_path, family, kind):
    path = encoder.make(tmp_path / "model.gguf", family, kind)
    reference = encoder.Encoder(path)
    for ids, ours in zip(PROMPTS, hidden(path, PROMPTS, "--threads", 2), strict=True):
        theirs = reference.hidden(ids)
        assert np.abs(ours - theirs).max() < 0.02
        assert min(encoder.cosine(a, b) for a, b in zip(ours, theirs, strict=True)) > 0.99998


@pytest.mark.parametrize("family", ["bert", "nomic-bert"])
def test_same_bits(tmp_path, family):
    path = encoder.make(tmp_path / "model.gguf", family, Q.Q8_0)
    expected = run(path, PROMPTS, "--hidden")
    for options in (["--threads", 2], ["--threads", 3, "--page-size", 8], ["--page-size", 64],
                    ["--kernels", "scalar", "--threads", 2]):
        assert run(path, PROMPTS, "--hidden", *options) == expected, options


@pytest.mark.parametrize("labels, dense", [(1, True), (1, False), (3, True)])
def test_scores(tmp_path, labels, dense):
    path = encoder.make(tmp_path / "model.gguf", labels=labels, pooling=4, dense=dense)
    reference, differences = encoder.Encoder(path), []
    for ids in PROMPTS[2:]:
        second = len(ids) // 3
        ours = np.frombuffer(run(path, [ids], "--scores", "--second", second), "<f4")
        theirs = reference.scores(ids, second)
        assert ours.shape == (labels,)
        assert np.abs(ours - theirs).max() < 0.01
        differences.append(np.abs(theirs - reference.scores(ids, 0)).max())
    assert max(differences) > 0.05, "token types matter"


@pytest.mark.parametrize("damage, message", [
    (dict(pooling=4), "cls.output.weight"), (dict(pooling=5), "pooling_type"), (dict(causal=True), "attention.causal"),
    (dict(positions=encoder.CONTEXT - 1), "position_embd.weight"),
    (dict(without=["position_embd.weight"]), "position_embd.weight"),
    (dict(without=["token_embd_norm.bias"]), "token_embd_norm.bias"),
    (dict(without=["blk.1.layer_output_norm.bias"]), "blk.1.layer_output_norm.bias"),
    (dict(without=["blk.0.attn_k.bias"]), "blk.0.attn_k.bias"), (dict(without=["blk.1.ffn_up.weight"]), "blk.1.ffn_up.weight"),
    (dict(family="nomic-bert", without=["blk.0.attn_qkv.weight"]), "blk.0.attn_qkv.weight"),
])
def test_refused(tmp_path, damage, message):
    path = encoder.make(tmp_path / "model.gguf", **damage)
    done = subprocess.run([TOOL, str(path)], input=b"", capture_output=True, timeout=60)
    assert done.returncode == 1 and message in done.stderr.decode()


@pytest.mark.parametrize("without", [["blk.0.attn_output.bias", "blk.1.ffn_up.bias", "blk.1.ffn_down.bias"],
                                     ["token_types.weight"]])
def test_what_may_be_absent(tmp_path, without):
    path = encoder.make(tmp_path / "model.gguf", without=without)
    reference = encoder.Encoder(path)
    reference.w.setdefault("token_types.weight", np.zeros((2, encoder.WIDTH)))
    ids = PROMPTS[3]
    assert np.abs(hidden(path, [ids])[0] - reference.hidden(ids)).max() < 0.02
