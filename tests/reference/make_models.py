"""Write made-up models of a few hundred KB for tests: GGUF files with random weights.

    python make_models.py OUTPUT_FOLDER [NAME ...]      (no NAME: all of them; --list prints them)

The same name gives the same bytes every time. Each file has a byte-level BPE vocabulary (pre-tokenizer
"smollm": 3 control tokens, 256 bytes, merges learned from a text in this file), a ChatML template,
and the tensors of its family. They say nothing sensible, but everything that a real file exercises
(grouped queries, tied and separate heads, formats, RoPE variants) can be tested on them in
milliseconds. `llama-q4_1` is the one for tests that only need "a model".

Formats that the gguf package cannot quantise to (K-quants, IQ4) are made of random blocks with small
finite scales: valid data, as the reference only ever dequantises.
"""

import argparse
import collections
import dataclasses
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CORPUS = """
A quire is a gathering of sheets folded together, and a book is sewn from many quires. The printer
counts the sheets, the binder keeps the order, and the reader turns the pages one after another. In
the morning the workshop is quiet and the light falls on the tables; in the evening the sheets hang
from lines like leaves. What is the capital of France? The capital of France is Paris. How many pages
are there in the book? There are as many pages as the printer was asked for, and then some that are
left empty. The quick brown fox jumps over the lazy dog, and the dog does not mind. Once upon a time
there was a small machine that answered questions; it was neither fast nor clever, but it always gave
the same answer to the same question, and so the people of the town came to trust it.
"""


def byte_characters():
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def learn_merges(count):
    table = byte_characters()
    words = collections.Counter()
    for index, word in enumerate(CORPUS.split()):
        text = word if index == 0 else " " + word
        words[tuple(table[b] for b in text.encode())] += 1
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        merged = collections.Counter()
        for word, times in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i : i + 2] == best:
                    out.append(word[i] + word[i + 1])
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            merged[tuple(out)] += times
        words = merged
    return merges


@dataclasses.dataclass
class Model:
    name: str
    family: str = "llama"
    weights: Q = Q.Q4_1
    embedding_format: Q | None = None  # None: as weights
    per_tensor: dict = dataclasses.field(default_factory=dict)  # name without blk.N. → format
    tied: bool = True
    layers: int = 3
    width: int = 96
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 32
    feed_forward: int = 160
    vocabulary: int = 512
    context: int = 2048
    rope_base: float = 10000.0
    rope_scaling: dict = dataclasses.field(default_factory=dict)  # key behind rope. → value
    longrope: bool = False  # its two tensors
    rope_freqs: bool = False
    rotary: int | None = None
    extra_tensor: bool = False
    window: int | None = None
    window_pattern: int | list | None = None
    local_rope_base: float | None = None


K_QUANTS = dict(width=256, heads=4, kv_heads=2, head_dim=64, feed_forward=256, layers=2)

MODELS = [
    Model("llama-q4_1", embedding_format=Q.Q8_0),
    Model("llama-q8_0", weights=Q.Q8_0, tied=False, heads=6, kv_heads=2, head_dim=16),
    Model("llama-f32", weights=Q.F32, vocabulary=509, heads=6, kv_heads=3, head_dim=16),
    Model("llama-f16", weights=Q.F16, tied=False, vocabulary=500, heads=4, kv_heads=4, head_dim=24),
    Model("llama-bf16", weights=Q.BF16, width=80, heads=5, kv_heads=1, head_dim=16, feed_forward=136),
    Model(
        "llama-mixed",
        weights=Q.Q4_1,
        embedding_format=Q.F16,
        per_tensor={"attn_v": Q.Q8_0, "ffn_down": Q.BF16, "output": Q.Q8_0, "attn_k": Q.F32},
        tied=False,
        heads=8,
        kv_heads=2,
        head_dim=16,
        width=128,
        rope_freqs=True,
        extra_tensor=True,
    ),
    Model("llama-linear", rope_scaling={"scaling.type": "linear", "scaling.factor": 4.0}, heads=3, kv_heads=3),
    Model("llama-linear-old", weights=Q.Q8_0, rope_scaling={"scale_linear": 3.0}),  # as in 2023
    Model(
        "llama-yarn",
        weights=Q.Q8_0,
        rope_scaling={"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 512},
    ),
    Model(
        "llama-yarn-own",
        weights=Q.Q8_0,
        rope_scaling={
            "scaling.type": "yarn",
            "scaling.factor": 8.0,
            "scaling.original_context_length": 256,
            "scaling.yarn_beta_fast": 12.0,
            "scaling.yarn_beta_slow": 2.0,
            "scaling.yarn_attn_factor": 1.3,
        },
    ),
    Model("llama-partial", weights=Q.Q8_0, rotary=16),
    Model("llama-q4_0", weights=Q.Q4_0),
    Model("llama-q5_0", weights=Q.Q5_0, tied=False),
    Model("llama-q5_1", weights=Q.Q5_1),
    Model("llama-q2_k", weights=Q.Q2_K, **K_QUANTS),
    Model("llama-q3_k", weights=Q.Q3_K, **K_QUANTS),
    Model("llama-q4_k", weights=Q.Q4_K, **K_QUANTS),
    Model("llama-q5_k", weights=Q.Q5_K, **K_QUANTS),
    Model("llama-q6_k", weights=Q.Q6_K, tied=False, **K_QUANTS),
    Model("llama-iq4_nl", weights=Q.IQ4_NL),
    Model("llama-iq4_xs", weights=Q.IQ4_XS, **K_QUANTS),
    Model("qwen2", family="qwen2", weights=Q.Q8_0, rope_base=1e6),
    Model("qwen2-mixed", family="qwen2", tied=False, heads=6, kv_heads=2, head_dim=16),
    Model("qwen3", family="qwen3", weights=Q.Q8_0, heads=4, kv_heads=2, head_dim=32, rope_base=1e6),
    Model(
        "gemma3",
        family="gemma3",
        weights=Q.Q8_0,
        layers=7,
        heads=4,
        kv_heads=1,
        head_dim=32,
        rope_base=1e6,
        window=24,
    ),
    Model(
        "gemma2",
        family="gemma2",
        weights=Q.Q8_0,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=32,
        window=24,
    ),
    Model(
        "gemma3-pattern",
        family="gemma3",
        weights=Q.Q8_0,
        heads=4,
        kv_heads=2,
        head_dim=32,
        window=20,
        window_pattern=[False, True, True],
        local_rope_base=5000.0,
        rope_scaling={"scaling.type": "linear", "scaling.factor": 8.0},  # not of the layers with a window
    ),
    Model("gemma3-period", family="gemma3", weights=Q.Q8_0, layers=4, window=20, window_pattern=2),
    Model("phi3", family="phi3", weights=Q.Q8_0, heads=3, kv_heads=1),
    Model("phi3-window", family="phi3", weights=Q.Q8_0, heads=3, kv_heads=1, window=24, rotary=24),
    Model(
        "phi3-longrope",  # without the scaling's type, as the converter writes Phi-3
        family="phi3",
        weights=Q.Q4_1,
        tied=False,
        longrope=True,
        rope_scaling={"scaling.original_context_length": 512, "scaling.attn_factor": 1.19},
    ),
]


def random_blocks(rng, rows, columns, quantization):
    """Valid random data of a block format: random bits, then finite small f16 scales."""
    block, size = gguf.GGML_QUANT_SIZES[quantization]
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)

    def scale(at, low, high):
        values = rng.uniform(low, high, (rows, columns // block)).astype(np.float16)
        data[:, :, at : at + 2] = values.view(np.uint8).reshape(rows, columns // block, 2)

    root = 1.0 / np.sqrt(columns)
    if quantization == Q.Q2_K:
        scale(80, 0.05 * root, 0.1 * root)
        scale(82, 0.05 * root, 0.1 * root)
    elif quantization == Q.Q3_K:
        scale(108, 0.01 * root, 0.02 * root)
    elif quantization in (Q.Q4_K, Q.Q5_K):
        wide = 1 if quantization == Q.Q4_K else 2
        scale(0, 0.004 * root / wide, 0.008 * root / wide)
        scale(2, 0.03 * root, 0.06 * root)
    elif quantization == Q.Q6_K:
        scale(208, 0.0005 * root, 0.001 * root)
    elif quantization == Q.IQ4_XS:
        scale(0, 0.0005 * root, 0.001 * root)
    else:
        raise ValueError(quantization.name)
    return data.reshape(rows, -1)


def encode(rng, rows, columns, quantization, spread):
    if quantization in (Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_XS):
        return random_blocks(rng, rows, columns, quantization)
    if quantization == Q.IQ4_NL:
        data = rng.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
        values = rng.uniform(0.01, 0.02, (rows, columns // 32)).astype(np.float16) * spread
        data[:, :, :2] = values.astype(np.float16).view(np.uint8).reshape(rows, -1, 2)
        return data.reshape(rows, -1)
    values = rng.normal(0.0, spread, (rows, columns)).astype(np.float32)
    if quantization == Q.F32:
        return values
    if quantization == Q.F16:
        return values.astype(np.float16)
    return gguf.quants.quantize(values, quantization)


class Builder:
    def __init__(self, model, path):
        self.model = model
        self.writer = gguf.GGUFWriter(str(path), model.family)
        self.rng = np.random.default_rng(sum(model.name.encode()) * 7919 + len(model.name))

    def format_of(self, name):
        model = self.model
        if name == "token_embd" and model.embedding_format is not None:
            return model.embedding_format
        return model.per_tensor.get(name, model.weights)

    def matrix(self, name, rows, columns, prefix="", spread=None):
        kind = self.format_of(name)
        spread = 1.0 / np.sqrt(columns) if spread is None else spread
        data = encode(self.rng, rows, columns, kind, spread)
        self.writer.add_tensor(f"{prefix}{name}.weight", data, raw_dtype=kind)

    def vector(self, name, count, mean, spread):
        values = self.rng.normal(mean, spread, count).astype(np.float32)
        self.writer.add_tensor(name, values)

    def metadata(self):
        m, w, family = self.model, self.writer, self.model.family
        w.add_name(f"made-up {m.name}")
        w.add_context_length(m.context)
        w.add_embedding_length(m.width)
        w.add_block_count(m.layers)
        w.add_feed_forward_length(m.feed_forward)
        w.add_head_count(m.heads)
        w.add_head_count_kv(m.kv_heads)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_rope_freq_base(m.rope_base)
        if m.heads * m.head_dim != m.width or family in ("qwen3", "gemma2", "gemma3"):
            w.add_key_length(m.head_dim)
            w.add_value_length(m.head_dim)
        w.add_rope_dimension_count(m.rotary or m.head_dim)
        w.add_vocab_size(m.vocabulary)
        if m.window:
            w.add_sliding_window(m.window)
        if family == "gemma2":
            w.add_attn_logit_softcapping(50.0)
            w.add_final_logit_softcapping(30.0)
        if m.window_pattern is not None:
            w.add_sliding_window_pattern(m.window_pattern)
        if m.local_rope_base:
            w.add_float32(f"{family}.rope.freq_base_swa", m.local_rope_base)
        for key, value in m.rope_scaling.items():
            add = {str: w.add_string, int: w.add_uint32, float: w.add_float32}[type(value)]
            add(f"{family}.rope.{key}", value)

    def vocabulary(self):
        w, count = self.writer, self.model.vocabulary
        control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        if self.model.family == "phi3":  # llama.cpp asks for them
            control += ["<unk>", "<s>", "</s>"]
        merges = learn_merges(count - 256 - len(control))
        tokens = control + list(byte_characters().values()) + [a + b for a, b in merges]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("smollm")
        w.add_token_list(tokens)
        w.add_token_types([3] * len(control) + [1] * (count - len(control)))
        w.add_token_merges([f"{a} {b}" for a, b in merges])
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(0)
        w.add_pad_token_id(2)
        w.add_add_bos_token(False)
        w.add_add_space_prefix(False)
        w.add_chat_template(TEMPLATE)

    def layer(self, index):
        m, family, prefix = self.model, self.model.family, f"blk.{index}."
        query, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
        self.vector(f"{prefix}attn_norm.weight", m.width, 1.0, 0.1)
        if family == "phi3":
            self.matrix("attn_qkv", query + 2 * keys, m.width, prefix)
        else:
            self.matrix("attn_q", query, m.width, prefix, spread=1.5 / np.sqrt(m.width))
            self.matrix("attn_k", keys, m.width, prefix, spread=1.5 / np.sqrt(m.width))
            self.matrix("attn_v", keys, m.width, prefix)
        self.matrix("attn_output", m.width, query, prefix)
        if family == "qwen2":
            self.vector(f"{prefix}attn_q.bias", query, 0.0, 0.5)
            self.vector(f"{prefix}attn_k.bias", keys, 0.0, 0.5)
            self.vector(f"{prefix}attn_v.bias", keys, 0.0, 0.2)
        if family in ("qwen3", "gemma3"):
            self.vector(f"{prefix}attn_q_norm.weight", m.head_dim, 1.2, 0.1)
            self.vector(f"{prefix}attn_k_norm.weight", m.head_dim, 1.2, 0.1)
        if family in ("gemma2", "gemma3"):
            self.vector(f"{prefix}post_attention_norm.weight", m.width, 1.0, 0.1)
            self.vector(f"{prefix}post_ffw_norm.weight", m.width, 1.0, 0.1)
        self.vector(f"{prefix}ffn_norm.weight", m.width, 1.0, 0.1)
        if family == "phi3":
            self.matrix("ffn_up", 2 * m.feed_forward, m.width, prefix)
        else:
            self.matrix("ffn_gate", m.feed_forward, m.width, prefix)
            self.matrix("ffn_up", m.feed_forward, m.width, prefix)
        self.matrix("ffn_down", m.width, m.feed_forward, prefix)

    def build(self):
        m, w = self.model, self.writer
        self.metadata()
        self.vocabulary()
        half = (m.rotary or m.head_dim) // 2
        if m.rope_freqs:
            w.add_tensor("rope_freqs.weight", np.linspace(1.0, 8.0, half, dtype=np.float32))
        if m.longrope:
            w.add_tensor("rope_factors_long.weight", np.linspace(1, 6, half, dtype=np.float32))
            w.add_tensor("rope_factors_short.weight", np.linspace(1, 2, half, dtype=np.float32))
        if m.extra_tensor:
            w.add_tensor("blk.0.attn_rot_embd.weight", np.zeros(8, dtype=np.float32))
        spread = 0.25 if m.family not in ("gemma2", "gemma3") else 0.12
        self.matrix("token_embd", m.vocabulary, m.width, spread=spread)
        for index in range(m.layers):
            self.layer(index)
        self.vector("output_norm.weight", m.width, 1.0, 0.1)
        if not m.tied:
            self.matrix("output", m.vocabulary, m.width, spread=2.5 / np.sqrt(m.width))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def make(folder, names=None):
    """Write the named models (all if None); returns {name: path}."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for model in MODELS:
        if names and model.name not in names:
            continue
        path = folder / f"{model.name}.gguf"
        Builder(model, path).build()
        paths[model.name] = path
    unknown = set(names or ()) - set(paths)
    if unknown:
        raise SystemExit(f"make_models.py: no such model: {', '.join(sorted(unknown))}")
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="print the models' names and stop")
    options = parser.parse_args()
    if options.list:
        print("\n".join(model.name for model in MODELS))
        return
    if not options.folder:
        parser.error("a folder is needed")
    for name, path in make(options.folder, options.names).items():
        print(f"{name}: {path.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
