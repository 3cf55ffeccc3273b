"""A folder in Hugging Face's format, made into a GGUF by llama.cpp's convert_hf_to_gguf.py, is served right.

The folder is made here: SmolLM2's tokenizer, a chat template, and two layers of random weights. What the
served file answers is compared with the folder: token ids with its tokenizer.json by Hugging Face's own
library, log-probabilities with a forward pass over its safetensors, written after the Llama paper and RoPE
by halves as Hugging Face keeps it (the converter reorders it for GGUF).
"""

import json
import os
import pathlib
import platform
import shutil
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness  # noqa: E402
import published  # noqa: E402
import test_logits  # noqa: E402
import test_tokenizer  # noqa: E402
import tokenizers  # noqa: E402

WIDTH, LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 64, 2, 4, 2, 128, 512
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def make_weights(vocabulary):
    rng = np.random.default_rng(1)
    shapes = {"model.embed_tokens.weight": (vocabulary, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        name = "model.layers.%d." % layer
        shapes.update({name + "self_attn.q_proj.weight": (WIDTH, WIDTH), name + "self_attn.o_proj.weight": (WIDTH, WIDTH),
                       name + "self_attn.k_proj.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
                       name + "self_attn.v_proj.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
                       name + "mlp.gate_proj.weight": (INNER, WIDTH), name + "mlp.up_proj.weight": (INNER, WIDTH),
                       name + "mlp.down_proj.weight": (WIDTH, INNER), name + "input_layernorm.weight": (WIDTH,),
                       name + "post_attention_layernorm.weight": (WIDTH,)})
    # Whatever an F16 holds, so that nothing is lost on the way.
    return {name: (rng.standard_normal(shape) * 0.2 + (len(shape) == 1)).astype(np.float16).astype(np.float32)
            for name, shape in shapes.items()}


def write_safetensors(path, weights):
    """As the format's own page has it: a length, a JSON head, the bytes."""
    head, at = {}, 0
    for name, array in weights.items():
        head[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in weights.values()))


def make_folder(folder):
    tokens, types, merges = test_tokenizer.vocabulary_of(test_tokenizer.MODEL)
    controls = [(i, t, True) for i, t in enumerate(tokens) if types[i] == 3]
    tokenizer = test_tokenizer.theirs({t: i for i, t in enumerate(tokens)}, merges, test_tokenizer.SMOLLM_LIKE,
                                      added=controls)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>", "chat_template": TEMPLATE}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": INNER,
        "vocab_size": len(tokens), "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}))
    weights = make_weights(len(tokens))
    write_safetensors(folder / "model.safetensors", weights)
    return weights


def norm(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * weight


def rotate(x):
    """x: [position][head][size]; the second half is the first's imaginary part."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], axis=-1)


def logits(weights, ids):
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x, n, size = w["model.embed_tokens.weight"][ids], len(ids), WIDTH // HEADS
    for layer in range(LAYERS):
        part = lambda name: w["model.layers.%d.%s.weight" % (layer, name)]  # noqa: E731
        h = norm(x, part("input_layernorm"))
        q = rotate((h @ part("self_attn.q_proj").T).reshape(n, HEADS, size))
        k = rotate((h @ part("self_attn.k_proj").T).reshape(n, KV_HEADS, size)).repeat(HEADS // KV_HEADS, axis=1)
        v = (h @ part("self_attn.v_proj").T).reshape(n, KV_HEADS, size).repeat(HEADS // KV_HEADS, axis=1)
        score = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(size) + np.triu(np.full((n, n), -np.inf), 1)
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", weight, v).reshape(n, WIDTH) @ part("self_attn.o_proj").T
        h = norm(x, part("post_attention_layernorm"))
        gate = h @ part("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part("mlp.up_proj").T)) @ part("mlp.down_proj").T
    return norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T


def debian_torch_fits():
    return shutil.which("apt-get") and platform.machine() == "x86_64" and sys.version_info[:2] == (3, 11)


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("QUIRE_TEST_MODEL"), reason="QUIRE_TEST_MODEL is not set")
@pytest.mark.skipif(not debian_torch_fits(), reason="Debian 12's PyTorch does not fit this Python")
def test_folder_becomes_a_model(tmp_path):
    weights = make_folder(tmp_path / "model")
    path = published.convert(tmp_path / "model", tmp_path / "model.gguf", "f16")

    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "model/tokenizer.json"))
    lines = test_tokenizer.make_lines(3000, 23)
    theirs = [e.ids for e in reference.encode_batch(lines)]
    test_tokenizer.assert_same("byte-level, a converted folder's, Hugging Face", lines,
                               test_tokenizer.our_ids(path, lines, "special"), theirs)

    prompts = [ids[:100] for ids in theirs if ids][40:52]
    for prompt, ours in zip(prompts, test_logits.run_tool(path, prompts, "--context", CONTEXT), strict=True):
        assert test_logits.divergence(logits(weights, prompt), ours).max() < 0.01

    serve_and_chat(path, reference, weights)


def serve_and_chat(path, reference, weights):
    """Every token of the served greedy answer is one that the folder's weights find best, or next to it."""
    with harness.started(model=str(path)) as server:
        answer = server.post({"messages": [{"role": "user", "content": "Hello, how are you?"}], "max_tokens": 16,
                              "temperature": 0, "logprobs": True}, harness.CHAT).json
    ids = reference.encode("<|im_start|>user\nHello, how are you?<|im_end|>\n<|im_start|>assistant\n").ids
    assert answer["usage"]["prompt_tokens"] == len(ids)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"] > 1
    for entry in entries:
        theirs = test_logits.log_softmax(logits(weights, ids)[-1:])[0]
        near = {reference.decode([int(i)]): int(i) for i in np.nonzero(theirs > theirs.max() - 0.1)[0]}
        assert entry["token"] in near
        assert abs(theirs[near[entry["token"]]] - entry["logprob"]) < 0.1
        ids.append(near[entry["token"]])
