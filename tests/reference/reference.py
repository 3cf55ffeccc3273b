"""The independent reference: full attention over the whole text, no cache, in numpy.

Nothing here is ours but the reading of the papers: tensors are read and dequantised by the `gguf`
package, and every position is recomputed from scratch. It is slow and plain on purpose.

    python reference.py MODEL.gguf < token-ids      writes float32 logits [positions][vocabulary]

What differs between families (names as in the files) is in FAMILIES. Files of the `llama` family
keep queries and keys permuted so that RoPE turns neighbouring pairs; all others turn halves.
"""

import dataclasses
import math
import sys

import gguf
import numpy as np


@dataclasses.dataclass(frozen=True)
class Family:
    halves: bool = True  # RoPE pairs (i, i + rotary/2) instead of (2i, 2i + 1)
    gelu: bool = False
    scaled_embedding: bool = False
    window_period: int = 0  # every n-th layer sees everything, the others only the window; inf: none does
    local_base: float | None = None  # RoPE base of layers with a window


FAMILIES = {
    "llama": Family(halves=False),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma2": Family(gelu=True, scaled_embedding=True, window_period=2),
    "gemma3": Family(gelu=True, scaled_embedding=True, window_period=6, local_base=10000.0),
    "phi3": Family(window_period=math.inf),
}


class Reference:
    def __init__(self, path, context=None):
        """`context`: the longest sequence served, which longrope chooses its factors by."""
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.cache = {}
        self.architecture = self.value("general.architecture")
        self.family = FAMILIES[self.architecture]
        self.layers = self.key("block_count")
        self.width = self.key("embedding_length")
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv", self.heads)
        self.head_dim = self.key("attention.key_length", self.width // self.heads)
        self.feed_forward = self.key("feed_forward_length")
        self.rotary = self.key("rope.dimension_count", self.head_dim)
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.base = self.key("rope.freq_base", 10000.0)
        self.window = self.key("attention.sliding_window", 0)
        self.local_base = self.key("rope.freq_base_swa", self.family.local_base)
        self.attention_cap = self.key("attn_logit_softcapping", 0.0)
        self.final_cap = self.key("final_logit_softcapping", 0.0)
        self.context = context or self.key("context_length")

    def value(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def key(self, key, default=None):
        return self.value(f"{self.architecture}.{key}", default)

    def tensor(self, name):
        """Dequantised to float32, rows first; kept, as layers are read again for every prompt."""
        if name not in self.cache:
            tensor = self.tensors[name]
            shape = tuple(int(n) for n in reversed(tensor.shape))
            data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            self.cache[name] = data.reshape(shape).astype(np.float32)
        return self.cache[name]

    def optional(self, name):
        return self.tensor(name) if name in self.tensors else None

    def is_local(self, index):
        pattern = self.key("attention.sliding_window_pattern", self.family.window_period)
        if not self.window or not pattern:
            return False
        return bool(pattern[index]) if isinstance(pattern, list) else (index + 1) % pattern != 0

    # RoPE

    def frequencies(self, local):
        """Angles per position [rotary/2] and the factor on sine and cosine."""
        half = self.rotary // 2
        base = self.local_base if local and self.local_base else self.base
        inverse = base ** (-np.arange(half, dtype=np.float64) * 2.0 / self.rotary)
        if local and self.local_base:
            return inverse, 1.0
        factor = self.key("rope.scaling.factor", self.key("rope.scale_linear", 1.0))
        # Without a type: Phi-3's files only hold the factors, old ones only linear scaling's factor.
        kind = self.key("rope.scaling.type", "longrope" if "rope_factors_long.weight" in self.tensors else "linear")
        original = self.key("rope.scaling.original_context_length", self.key("context_length"))
        magnitude = self.key("rope.scaling.attn_factor", 1.0)
        table = self.optional("rope_freqs.weight")
        if kind == "longrope":
            which = "long" if self.context > original else "short"
            table = self.tensor(f"rope_factors_{which}.weight")
        if table is not None:
            inverse = inverse / table.astype(np.float64)
        if kind == "linear":
            inverse = inverse / factor
        elif kind == "yarn":
            # "YaRN" (Peng et al. 2023), section 3.2 and appendix A: dimensions that turn fast stay
            # as they are, slow ones are interpolated, between beta_slow and beta_fast turns a ramp.
            def correction(turns):
                return self.rotary * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

            low = max(math.floor(correction(self.key("rope.scaling.yarn_beta_fast", 32.0))), 0)
            high = min(math.ceil(correction(self.key("rope.scaling.yarn_beta_slow", 1.0))), self.rotary - 1)
            ramp = np.clip((np.arange(half) - low) / max(high - low, 0.001), 0.0, 1.0)
            inverse = inverse * (1.0 - ramp) + inverse / factor * ramp
            magnitude *= self.key("rope.scaling.yarn_attn_factor", 1.0 + 0.1 * math.log(factor))
        return inverse, magnitude

    def rotate(self, heads, local):
        """heads [positions][heads][head_dim]"""
        inverse, magnitude = self.frequencies(local)
        angles = np.arange(heads.shape[0], dtype=np.float64)[:, None] * inverse
        cos = (np.cos(angles) * magnitude).astype(np.float32)[:, None, :]
        sin = (np.sin(angles) * magnitude).astype(np.float32)[:, None, :]
        out = heads.copy()
        half = self.rotary // 2
        if self.family.halves:
            first, second = slice(0, half), slice(half, self.rotary)
        else:
            first, second = slice(0, self.rotary, 2), slice(1, self.rotary, 2)
        out[..., first] = heads[..., first] * cos - heads[..., second] * sin
        out[..., second] = heads[..., first] * sin + heads[..., second] * cos
        return out

    # Sub-layers

    def norm(self, x, weight):
        mean = np.mean(np.square(x.astype(np.float64)), axis=-1, keepdims=True)
        return (x / np.sqrt(mean + self.eps)).astype(np.float32) * weight

    def project(self, x, prefix, name):
        y = x @ self.tensor(f"{prefix}{name}.weight").T
        bias = self.optional(f"{prefix}{name}.bias")
        return y if bias is None else y + bias

    def attention(self, x, index, prefix):
        n, dim = x.shape[0], self.head_dim
        query, keys = self.heads * dim, self.kv_heads * dim
        if f"{prefix}attn_qkv.weight" in self.tensors:
            q, k, v = np.split(self.project(x, prefix, "attn_qkv"), [query, query + keys], axis=1)
        else:
            q, k, v = (self.project(x, prefix, f"attn_{name}") for name in "qkv")
        q, k, v = (part.reshape(n, -1, dim) for part in (q, k, v))
        for name in ("q", "k"):
            weight = self.optional(f"{prefix}attn_{name}_norm.weight")
            if weight is not None and name == "q":
                q = self.norm(q, weight)
            elif weight is not None:
                k = self.norm(k, weight)
        local = self.is_local(index)
        q, k = self.rotate(q, local), self.rotate(k, local)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(math.sqrt(dim))
        if self.attention_cap:
            scores = self.attention_cap * np.tanh(scores / self.attention_cap)
        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        hidden = distance < 0
        if local:
            hidden |= distance >= self.window
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weights, v).reshape(n, query)
        return self.project(out, prefix, "attn_output")

    def feed(self, x, prefix):
        if f"{prefix}ffn_gate.weight" in self.tensors:
            gate, up = self.project(x, prefix, "ffn_gate"), self.project(x, prefix, "ffn_up")
        else:
            gate, up = np.split(self.project(x, prefix, "ffn_up"), 2, axis=1)
        if self.family.gelu:
            inner = math.sqrt(2.0 / math.pi) * gate * (1.0 + 0.044715 * gate * gate)
            gate = 0.5 * gate * (1.0 + np.tanh(inner))
        else:
            gate = gate / (1.0 + np.exp(-gate))
        return self.project(gate * up, prefix, "ffn_down")

    def logits(self, tokens, last=0):
        """[positions][vocabulary] float32; of the `last` positions only, if given."""
        x = self.tensor("token_embd.weight")[np.asarray(tokens)]
        if self.family.scaled_embedding:
            x = x * np.float32(math.sqrt(self.width))
        for index in range(self.layers):
            prefix = f"blk.{index}."
            y = self.norm(x, self.tensor(f"{prefix}attn_norm.weight"))
            y = self.attention(y, index, prefix)
            post = self.optional(f"{prefix}post_attention_norm.weight")
            x = x + (y if post is None else self.norm(y, post))
            y = self.feed(self.norm(x, self.tensor(f"{prefix}ffn_norm.weight")), prefix)
            post = self.optional(f"{prefix}post_ffw_norm.weight")
            x = x + (y if post is None else self.norm(y, post))
        x = self.norm(x[-last:], self.tensor("output_norm.weight"))
        head = self.optional("output.weight")
        y = x @ (self.tensor("token_embd.weight") if head is None else head).T
        return self.final_cap * np.tanh(y / self.final_cap) if self.final_cap else y


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    tokens = [int(word) for word in sys.stdin.read().split()]
    sys.stdout.buffer.write(Reference(sys.argv[1]).logits(tokens).astype("<f4").tobytes())


if __name__ == "__main__":
    main()
