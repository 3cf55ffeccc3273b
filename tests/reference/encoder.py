"""Encoders: made-up files of the families bert and nomic-bert, and what they say by numpy, from the weights that
the file holds. Written after the BERT paper and the GGUF tensors' names; llama.cpp and transformers agree
(test_encoder.py asks the first)."""

import math
import string

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the a of and to in is was for on that with he she it quick brown fox dog jumps over lazy query text".split()
VOCABULARY = list(dict.fromkeys(
    SPECIAL + WORDS + list(string.ascii_lowercase + string.digits + string.punctuation) + \
    ["##" + c for c in string.ascii_lowercase + string.digits] + ["##ing", "##ed", "##er"]))
WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 4, 128, 700


def make(path, family="bert", kind=Q.F32, labels=0, pooling=1, seed=1, dense=True,
         without=(), causal=False, positions=CONTEXT):
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_name("made-up " + family)
    for add, value in ((writer.add_context_length, CONTEXT), (writer.add_embedding_length, WIDTH),
                       (writer.add_block_count, LAYERS), (writer.add_feed_forward_length, INNER),
                       (writer.add_head_count, HEADS), (writer.add_layer_norm_eps, 1e-12),
                       (writer.add_causal_attention, causal), (writer.add_token_type_count, 2)):
        add(value)
    if pooling is not None:
        writer.add_uint32(family + ".pooling_type", pooling)
    if family == "nomic-bert":
        writer.add_rope_freq_base(1000.0)
    writer.add_tokenizer_model("bert")
    writer.add_token_list([t if t in SPECIAL else t[2:] if t.startswith("##") and len(t) > 2 else "\u2581" + t
                           for t in VOCABULARY])
    writer.add_token_types([3 if t in SPECIAL else 1 for t in VOCABULARY])
    for name, token in (("bos", "[CLS]"), ("eos", "[SEP]"), ("unknown", "[UNK]"), ("padding", "[PAD]")):
        writer.add_uint32("tokenizer.ggml.%s_token_id" % name, VOCABULARY.index(token))

    def matrix(name, rows, columns, plain=False, spread=None):
        data = (rng.standard_normal((rows, columns)) * (spread or 1.5 / math.sqrt(columns))).astype(np.float32)
        use = Q.F32 if plain else kind
        if name in without:
            return
        writer.add_tensor(name, gguf.quants.quantize(data, use), raw_dtype=use)

    def vector(name, count, mean=0.0):
        if name in without:
            return
        writer.add_tensor(name, (rng.standard_normal(count) * 0.2 + mean).astype(np.float32))

    def norm(name):
        vector(name + ".weight", WIDTH, 1.0)
        vector(name + ".bias", WIDTH)

    matrix("token_embd.weight", len(VOCABULARY), WIDTH, spread=1.0)
    matrix("token_types.weight", 2, WIDTH, True, 0.7)
    norm("token_embd_norm")
    if family == "bert":
        matrix("position_embd.weight", positions, WIDTH, True, 0.5)
    for layer in range(LAYERS):
        block = "blk.%d." % layer
        if family == "bert":
            for part in "qkv":
                matrix(block + "attn_%s.weight" % part, WIDTH, WIDTH)
                vector(block + "attn_%s.bias" % part, WIDTH)
            vector(block + "attn_output.bias", WIDTH)
            vector(block + "ffn_up.bias", INNER)
            vector(block + "ffn_down.bias", WIDTH)
        else:
            matrix(block + "attn_qkv.weight", 3 * WIDTH, WIDTH)
            matrix(block + "ffn_gate.weight", INNER, WIDTH)
        matrix(block + "attn_output.weight", WIDTH, WIDTH)
        matrix(block + "ffn_up.weight", INNER, WIDTH)
        matrix(block + "ffn_down.weight", WIDTH, INNER)
        norm(block + "attn_output_norm")
        norm(block + "layer_output_norm")
    if labels:
        if dense:
            matrix("cls.weight", WIDTH, WIDTH)
            vector("cls.bias", WIDTH)
        matrix("cls.output.weight", labels, WIDTH)
        vector("cls.output.bias", labels)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Encoder:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.w = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64).reshape(t.shape[::-1])
                  for t in reader.tensors}
        self.family = reader.fields["general.architecture"].contents()
        number = lambda key: reader.fields[self.family + "." + key].contents()  # noqa: E731
        self.layers, self.heads = number("block_count"), number("attention.head_count")
        self.eps = number("attention.layer_norm_epsilon")

    def norm(self, x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        return x * self.w[name + ".weight"] + self.w[name + ".bias"]

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def rotate(self, x):
        """x: [position][head][size]; halves, base 1000."""
        half = x.shape[-1] // 2
        angle = np.arange(len(x))[:, None] * 1000.0 ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)

    def hidden(self, ids, second=0):
        n, types = len(ids), np.zeros(len(ids), int)
        if second:
            types[second:] = 1
        x = self.w["token_embd.weight"][ids] + self.w["token_types.weight"][types]
        if self.family == "bert":
            x = x + self.w["position_embd.weight"][:n]
        x = self.norm(x, "token_embd_norm")
        width = x.shape[1]
        for layer in range(self.layers):
            block = "blk.%d." % layer
            if self.family == "bert":
                q, k, v = (self.linear(x, block + "attn_" + part) for part in "qkv")
            else:
                q, k, v = np.split(self.linear(x, block + "attn_qkv"), 3, axis=1)
            q, k, v = (part.reshape(n, self.heads, -1) for part in (q, k, v))
            if self.family == "nomic-bert":
                q, k = self.rotate(q), self.rotate(k)
            score = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
            weight = np.exp(score - score.max(axis=-1, keepdims=True))
            weight /= weight.sum(axis=-1, keepdims=True)
            attended = np.einsum("hij,jhd->ihd", weight, v).reshape(n, width)
            x = self.norm(x + self.linear(attended, block + "attn_output"), block + "attn_output_norm")
            up = self.linear(x, block + "ffn_up")
            if self.family == "bert":
                inner = 0.5 * up * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
            else:
                gate = self.linear(x, block + "ffn_gate")
                inner = gate / (1 + np.exp(-gate)) * up
            x = self.norm(x + self.linear(inner, block + "ffn_down"), block + "layer_output_norm")
        return x

    def scores(self, ids, second):
        x = self.hidden(ids, second)[0]
        if "cls.weight" in self.w:
            x = np.tanh(self.linear(x, "cls"))
        return self.linear(x, "cls.output")

    def embed(self, ids, pooling="mean"):
        x = self.hidden(ids)
        x = x.mean(axis=0) if pooling == "mean" else x[0] if pooling == "cls" else x[-1]
        return x / np.linalg.norm(x)


def cosine(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
