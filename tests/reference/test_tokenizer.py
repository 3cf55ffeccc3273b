"""Our token ids against Hugging Face's tokenizers, and against llama.cpp's.

tests/engine/text/tokenize_tool reads lines and prints ids. Every pre-tokenizer that it claims to know
is tried: the Hugging Face side is built from the model's published pre_tokenizer, over a vocabulary
that was trained here without any pre-tokenizing, so that its merges cross every border that a
pre-tokenizer may draw and a border that is missing shows in the ids. The SmolLM2 file, named by
QUIRE_TEST_MODEL, and Gemma's, named by QUIRE_TEST_GEMMA, are tried with their own vocabularies; ./test
full also tries those of a dozen public models, which the source package of llama-cpp-python carries.

Lines are made from a fixed seed: scripts, digits, odd spaces, emoji, combining marks, this repository's
own source code; then bytes that are not UTF-8, and very long runs. Characters are those of Unicode 14,
which all sides know. How many lines each kind of tokenizer was given is printed at the end.
"""

import collections
import functools
import json
import os
import pathlib
import random
import subprocess
import unicodedata

import gguf
import llama_cpp
import numpy
import published
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

FULL = bool(os.environ.get("QUIRE_TEST_FULL"))
TOOL = pathlib.Path(os.environ.get("QUIRE_BUILD", "build")) / "tests/engine/text/tokenize_tool"
MODEL = os.environ.get("QUIRE_TEST_MODEL", "")
needs_model = pytest.mark.skipif(not MODEL, reason="QUIRE_TEST_MODEL is not set")

# ---- Lines.

# Cases B1 and B6, and what else has gone wrong with tokenizers in public.
FIXED = [
    "", " ", "  ", "   x", "\t\t\n ", "foo\n\n\n  bar", "1234567", "3.14159", "a1b22c333",
    "don't DON'T", "we'Ve I'LL it'S o'reilly 'tis", "!!!???", "Hello, y'all! How are you?",
    "A\u00a0B", "a\u200bb", "\ufeffx", "\u3000", "x\u0085y", "caf\u00e9", "cafe\u0301",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1e9\U0001f1ea\U0001f1eb",
    "\n", "\r\n", "\n\n \r\n\t x", "a \n b\r\rc", "x  \n", " \n \n ", "$100,000.00 (50%)", "''''''",
    "void f(int *p) {\n\tif (p[0] >= 10 && !q)\n\t\treturn -1;\n}", "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u3072\u3089\u304c\u306a\u30ab\u30bf\u30ab\u30ca\u6f22\u5b57", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! 42", "\u0627\u0644\u0633\u0644\u0627\u0645 \u0661\u0662\u0663\u0664",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0967\u0968\u0969", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u00bd \u00b2\u00b3 \u216b \u2460", "\u01c5\u01c6 \u1f88 \u02b0x",
    "\u017ft 'ſ 'S \u212a", "\u1680\u2003\u2028\u2029x", "a\u180eb", "<|im_end|>", "<|endoftext|>x",
    "  12  345 6789", "x\u00b9\u00b2\u00bc\u00bdy", "\u00f2\u0440\u043c\u0430\u0442", "-----====-----", "a/b/c//\n/x",
    "HelloWorld helloWORLD XMLHttpRequest iPhone \u00c4pfel \u00dcBUNG", "e\u0301\u0302\u0303x", "\u0301x \u0301",
]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u200b"]
WORDS = ["the", "Hello", "WORLD", "can't", "I'm", "they'LL", "don'T", "naïve", "straße", "İstanbul", "Ǆabc",
         "return", "foo_bar", "x+=1;", "->", "::", "/*", "*/", "http://a.b/c?d=e&f", "3.14", "0x1F", "1e-5",
         "привет", "МИР", "γειά", "שלום", "مرحبا", "नमस्ते", "ไทย", "日本語", "ひらがな", "カタカナ", "한국어", "你好",
         "😀", "👍🏽", "❤️", "é", "…", "“q”", "—", "（）", "。", "、", "٣٤", "१२", "½", "²", "Ⅳ", "①",
         "ﬁ", "ℂ", "𝔘", "𐐷", "\U0002070e"]


@functools.cache
def known_characters():
    kinds = {"Cn", "Cs", "Co"}
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in kinds]


@functools.cache
def unknown_punctuation():
    """Hugging Face's Punctuation has a table of its own, of an older Unicode than its expressions."""
    cut = pre_tokenizers.Punctuation("isolated")
    unknown = {c for c in known_characters() if unicodedata.category(c)[0] == "P" and
               len(cut.pre_tokenize_str("a%sa" % c)) == 1}
    assert len(unknown) < 150 and min(unknown) >= "\u061d"
    return unknown


# First and last code point of what words are made of.
SCRIPTS = [
    (0x61, 0x7a), (0xc0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x531, 0x587), (0x591, 0x5f4), (0x600, 0x6ff),
    (0x780, 0x7b1), (0x900, 0x97f), (0x980, 0x9fe), (0xb82, 0xbfa), (0xe01, 0xe5b), (0xf00, 0xfda), (0x10a0, 0x10ff),
    (0x1200, 0x137c), (0x1780, 0x17f9), (0x3041, 0x30ff), (0x3105, 0x312f), (0x4e00, 0x9fff), (0xac00, 0xd7a3),
    (0xff01, 0xff9f), (0x1d400, 0x1d7ff), (0x1f300, 0x1f64f), (0x1f900, 0x1f9ff), (0x20000, 0x2a6df),
]


@functools.cache
def letters_of_scripts():
    known = known_characters()
    return [[c for c in known if chr(first) <= c <= chr(last)] for first, last in SCRIPTS]


@functools.cache
def source_lines():
    root = pathlib.Path(__file__).resolve().parents[2]
    files = [f for kind in ("c", "h", "rs", "py", "md", "jinja") for f in sorted(root.glob("*/**/*." + kind))
             if not f.relative_to(root).parts[0].startswith(("build", "."))]
    lines = [line for f in files for line in f.read_text(encoding="utf-8").split("\n")]
    known = set(known_characters())
    lines = [line for line in lines if set(line) <= known]
    assert len(lines) > 20000
    return lines


def make_part(rng):
    kind = rng.randrange(12)
    if kind < 4:
        return rng.choice(WORDS)
    if kind < 6:
        return rng.choice(SPACES) * rng.randrange(1, 4)
    if kind == 6:
        return "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 9)))
    if kind == 7:
        return "".join(rng.choice("!?.,;:'\"()[]{}<>=+-*/\\|&^%$#@~`_") for _ in range(rng.randrange(1, 5)))
    if kind == 8:
        return "".join(rng.choice("abcdeABCDE") for _ in range(rng.randrange(1, 7)))
    if kind < 11:
        letters = rng.choice(letters_of_scripts())
        return "".join(rng.choice(letters) for _ in range(rng.randrange(1, 9)))
    return "".join(rng.choice(known_characters()) for _ in range(rng.randrange(1, 4)))


def make_lines(count, seed):
    """The fixed ones, a quarter source code (now and then several lines of it in one), the rest made up."""
    rng = random.Random(seed)
    lines, code = list(FIXED), source_lines()
    while len(lines) < count:
        if rng.random() < 0.25:
            first = rng.randrange(len(code))
            lines.append("\n".join(code[first:first + rng.choice([1, 1, 1, 1, 2, 5])]))
            continue
        parts = []
        for _ in range(rng.randrange(1, 12)):
            parts.append(make_part(rng))
            if rng.random() < 0.5:
                parts.append(" ")
        lines.append("".join(parts))
    return lines


def make_broken(count, seed):
    """Bytes that are not UTF-8, among what is."""
    rng = random.Random(seed)
    pieces = [b"\x80", b"\xff", b"\xc3", b"\xe6\xad", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80",
              b"\xf5\x80\x80\x80", b"\xe2\x28\xa1", b"\x80\x80\x80", b"\xfe\xfe", b"\x00", b"\xf4\x90\x80\x80"]
    lines = []
    while len(lines) < count:
        parts = [rng.choice(pieces) if rng.random() < 0.4 else make_part(rng).encode()
                 for _ in range(rng.randrange(1, 9))]
        if rng.random() < 0.3:
            parts.append(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))))
        lines.append(b"".join(parts))
    return lines


def make_runs():
    """Very long ones: of one thing, of two by turns, and the same behind and before a word."""
    units = ["a", "A", " ", "\n", "\t", "\r\n", "1", "!", "'", "=", "\u00a0", "\u3000", "\u00e9", "e\u0301", "\u0301", "\u4f60",
             "\u3042", "\uac00", "\u0e01\u0e31", "\u0628\u064e", "\U0001f600", "\U0001f468\u200d\U0001f469", "\u200b", "\ufeff",
             "ab", "aA", "a1", "a ", " a", "a\n", "1 ", "!a", "don't", "xyz", "\u2581", "0123456789", "<|", "\\", "/*", "\u00bd"]
    length = 40000 if FULL else 8000
    runs = [unit * (length // len(unit)) for unit in units]
    return runs + ["x" + run[:997] + "y" for run in runs] + [run[:301] + " x" for run in runs]


def make_marked(specials, count, seed):
    """Special tokens' texts whole, in part, side by side, and among spaces."""
    rng = random.Random(seed)
    texts = rng.sample(specials, min(len(specials), 40))
    between = [" ", "  ", "\n", "\n\n", "\t", "abc", "\u00e9", "1", "", ""]
    lines = []
    while len(lines) < count:
        line = "".join(rng.choice(texts) + rng.choice(between) for _ in range(rng.randrange(1, 6)))
        cut = rng.randrange(len(line))
        lines.append(line if rng.random() < 0.7 else line[:cut] + line[cut + 1:])
    return lines


COUNTED = collections.Counter()


def escape(line):
    line = line.encode() if isinstance(line, str) else line
    return line.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def our_ids(path, lines, *flags):
    done = subprocess.run([TOOL, path, *flags], input=b"".join(escape(line) + b"\n" for line in lines),
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    rows = done.stdout.decode().split("\n")[:-1]
    assert len(rows) == len(lines)
    return [[int(x) for x in row.split()] for row in rows]


def assert_same(kind, lines, ours, theirs):
    """kind: the tokenizer and the reference, for the table at the end."""
    wrong = [(line, a, b) for line, a, b in zip(lines, ours, theirs, strict=True) if a != b]
    assert not wrong, "%d of %d lines differ, e.g.\n%s" % (
        len(wrong), len(lines), "\n".join("%.300a\n ours   %.300s\n theirs %.300s" % w for w in wrong[:5]))
    COUNTED[kind] += len(lines)


# ---- The published pre-tokenizers.

def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + ENDING
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + ENDING
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(suffix, numbers):
    return (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + suffix + r"|[^\r\n\p{L}\p{N}]?" + UPPER + "+" +
            LOWER + "*" + suffix + "|" + numbers + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# Cased letters, as DeepSeek lists them. Escapes, since an editor that normalises would break it.
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+".replace("\ud7ff", r"\x{D7FF}")
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
DEEPSEEK_V3 = sequence(
    split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    split(r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
          r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""), byte_level(False))

GPT2_LIKE = byte_level(True)
SMOLLM_LIKE = sequence(digits(True), byte_level(True))
LLAMA3_LIKE = sequence(split(LLAMA3), byte_level(False))
QWEN2_LIKE = sequence(split(QWEN2), byte_level(False))
PUBLISHED = {
    **dict.fromkeys(["gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "mellum", "gigachat",
                     "granite-docling", "a.x-4.0"], GPT2_LIKE),
    **dict.fromkeys(["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
                     "mellum2"], SMOLLM_LIKE),
    **dict.fromkeys(["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0",
                     "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"], LLAMA3_LIKE),
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2", "kormo", "f2llmv2",
                     "solar-open"], QWEN2_LIKE),
    "qwen35": sequence(split(QWEN35), byte_level(False)),
    "tekken": sequence(split(cased("", r"\p{N}")), byte_level(False)),
    **dict.fromkeys(["gpt-4o", "llama4", "kanana2", "minimax-m2"],
                    sequence(split(cased(CONTRACTIONS + "?", r"\p{N}{1,3}")), byte_level(False))),
    "falcon": sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), digits(False),
                       split("[0-9][0-9][0-9]")),
    # Not a model's: llama.cpp's own list, in its order.
    "default": sequence(split(r"[\p{P}\$\+<=>\^~\|]+"),
                        split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
                        split(r"\p{N}+"), split("[0-9][0-9][0-9]"), byte_level(False)),
    "deepseek-llm": sequence(split("[\r\n]"), split(r"\s?[" + DEEPSEEK_LETTERS + "]+"),
                             split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                             split(r"\s+$"), split(CJK), split(r"\p{N}+"), byte_level(False)),
    "deepseek-coder": sequence(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK),
                               digits(True), byte_level(False)),
    **dict.fromkeys(["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], DEEPSEEK_V3),
    "minicpm5": sequence(split(r"\p{N}{1,3}"), split(LLAMA3.replace("{1,3}", "+")), byte_level(False)),
    **dict.fromkeys(["bailingmoe", "bailingmoe2", "llada-moe"],
                    sequence(split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
                                   r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"), byte_level(False))),
    **dict.fromkeys(["bloom", "poro-chat", "gpt3-finnish"], sequence(split(BLOOM), byte_level(False))),
    "viking": sequence(split(BLOOM), digits(True), byte_level(False)),
    "seed-coder": sequence(split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+"
                                 r"|\s*[\r\n]+|\s+(?!\S)|\s+"), byte_level(False)),
}
ADDS_BOS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0", "tekken"}
IGNORES_MERGES = ADDS_BOS | {"glm4", "glm5", "minicpm5"}


def theirs(vocabulary, merges, pre, ignore_merges=False, added=()):
    """A Hugging Face tokenizer; added: (id, text, special)."""
    return tokenizers.Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": special} for i, text, special in added],
        "pre_tokenizer": pre, "decoder": byte_level(True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": ignore_merges, "vocab": vocabulary,
                  "merges": [list(pair) for pair in merges]}}))


# ---- A vocabulary that no pre-tokenizer has shaped.

@functools.cache
def trained():
    """Tokens in order, and merges."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=4000, show_progress=False, max_token_length=24,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    # No marks: their texts are tokens of their own (ADDED).
    tokenizer.train_from_iterator([line for line in make_lines(6000, 1) if "<" not in line], trainer)
    data = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].get)
    return tokens, [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in data["merges"]]


# User-defined ones first: Hugging Face numbers added tokens in order, and is given only them at times.
ADDED = [("<think>", 4), ("<|im_end|>\n", 4), ("\u00e9\u00e9", 4), ("<th", 4),
         ("<|im_start|>", 3), ("<|im_end|>", 3), ("<|endoftext|>", 3)]
BOS, EOS = 4, 5  # their places in ADDED


def write_vocabulary(path, pre, tokens, merges, added=ADDED, **flags):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, *(text for text, _ in added)])
    writer.add_token_types([1] * len(tokens) + [kind for _, kind in added])
    writer.add_token_merges([a + " " + b for a, b in merges])
    if added:
        writer.add_bos_token_id(len(tokens) + BOS)
        writer.add_eos_token_id(len(tokens) + EOS)
    for key, value in flags.items():
        writer.add_bool("tokenizer.ggml." + key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def claimed():
    if not TOOL.exists():
        return []
    return subprocess.run([TOOL, "--pre"], check=True, capture_output=True, text=True).stdout.split()


def test_every_claim_is_tried():
    assert TOOL.exists(), "build tests/engine/text/tokenize_tool first"
    assert sorted(claimed()) == sorted(PUBLISHED)


@pytest.mark.parametrize("pre", sorted(PUBLISHED))
def test_pre_tokenizer(pre, tmp_path):
    tokens, merges = trained()
    path = write_vocabulary(tmp_path / "v.gguf", pre, tokens, merges)
    first = next(name for name in PUBLISHED if PUBLISHED[name] is PUBLISHED[pre])
    lines = make_lines((8000 if FULL else 3500) if pre == first else 400, pre) + make_runs()[::1 if pre == first else 7]
    if pre == "falcon":
        lines = [line for line in lines if not set(line) & unknown_punctuation()]
        assert len(lines) > 3000
    added = [(len(tokens) + i, text, kind == 3) for i, (text, kind) in enumerate(ADDED)]
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, PUBLISHED[pre], pre in IGNORES_MERGES,
                       [a for a in added if not a[2]])
    assert_same("byte-level, %s, Hugging Face" % first, lines, our_ids(path, lines),
                [e.ids for e in reference.encode_batch(lines)])


def broken_ids(reference, model, line):
    """What bytes should become: runs of text as ever, runs of anything else by the merges alone."""
    ids, text, broken = [], [], []
    level = {0x21 + i: chr(0x21 + i) for i in range(94)} | {i: chr(i) for i in [*range(0xa1, 0xad), *range(0xae, 0x100)]}
    rest = iter(range(0x100, 0x200))
    level |= {byte: chr(next(rest)) for byte in range(256) if byte not in level}
    for c in line.decode("utf-8", "surrogateescape") + "\0":
        if "\udc80" <= c <= "\udcff":
            ids += reference.encode("".join(text)).ids
            text = []
            broken.append(level[ord(c) & 0xff])
        else:
            ids += [token.id for token in model.tokenize("".join(broken))] if broken else []
            broken = []
            text.append(c)
    return ids + reference.encode("".join(text)[:-1]).ids


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "deepseek-v3", "deepseek-llm"])
def test_bytes_that_are_not_text(pre, tmp_path):
    tokens, merges = trained()
    path = write_vocabulary(tmp_path / "v.gguf", pre, tokens, merges, [])
    vocabulary = {t: i for i, t in enumerate(tokens)}
    reference = theirs(vocabulary, merges, PUBLISHED[pre], pre in IGNORES_MERGES)
    lines = make_broken(3000 if FULL else 600, pre)
    assert_same("byte-level, not UTF-8, Hugging Face's merges", lines, our_ids(path, lines),
                [broken_ids(reference, reference.model, line) for line in lines])


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens(special, tmp_path):
    tokens, merges = trained()
    path = write_vocabulary(tmp_path / "v.gguf", "smollm", tokens, merges)
    rng = random.Random(5)
    texts = [text for text, _ in ADDED] + ["<|im_", "start|>", "<", "|>", "<thi", "nk>", " ", "\n", "abc", "é"]
    lines = ["".join(rng.choice(texts) for _ in range(rng.randrange(1, 9)))
             for _ in range(10000 if FULL else 2000)]
    added = [(len(tokens) + i, text, kind == 3) for i, (text, kind) in enumerate(ADDED)]
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, PUBLISHED["smollm"],
                       added=[a for a in added if special or not a[2]])
    got = our_ids(path, lines, *(["special"] if special else []))
    assert_same("byte-level, special tokens, Hugging Face", lines, got, [e.ids for e in reference.encode_batch(lines)])


def test_beginning_and_end(tmp_path):
    tokens, merges = trained()
    bos, eos = len(tokens) + BOS, len(tokens) + EOS
    for pre in ("smollm", "llama-bpe"):
        path = write_vocabulary(tmp_path / (pre + ".gguf"), pre, tokens, merges)
        ids = our_ids(path, ["abc", "<|im_start|>abc"], "bos", "special")
        assert [i.count(bos) for i in ids] == [pre in ADDS_BOS, 1]
        assert not any(eos in i for i in ids)
    path = write_vocabulary(tmp_path / "both.gguf", "smollm", tokens, merges, add_bos_token=True,
                            add_eos_token=True)
    plain, marked, empty, unparsed = our_ids(path, ["abc", "<|im_start|>abc<|im_end|>", "", "x"], "bos", "special")
    assert plain[0] == bos and plain[-1] == eos and plain == marked
    assert empty == [bos, eos]
    assert our_ids(path, ["<|im_start|>"], "bos")[0].count(bos) == 1  # ordinary text after a real one
    assert unparsed[0] == bos


def test_long_merges(tmp_path):
    """Code models merge runs of hundreds of spaces into one token."""
    level = sorted(pre_tokenizers.ByteLevel.alphabet())
    runs = ["\u0120" * 2 ** i for i in range(1, 10)]
    tokens = level + runs
    merges = [(run[:len(run) // 2],) * 2 for run in runs]
    path = write_vocabulary(tmp_path / "v.gguf", "gpt-2", tokens, merges, [])
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, PUBLISHED["gpt-2"])
    lines = [" " * count + end for count in range(1, 1400, 3) for end in ("", "x", "\n")]
    assert_same("byte-level, runs of spaces, Hugging Face", lines, our_ids(path, lines),
                [e.ids for e in reference.encode_batch(lines)])


# ---- The real model.

@functools.cache
def vocabulary_of(path):
    """Tokens, their types, merges."""
    reader = gguf.GGUFReader(path)
    field = reader.fields["tokenizer.ggml.tokens"]
    tokens = [bytes(field.parts[i]).decode() for i in field.data]
    field = reader.fields["tokenizer.ggml.token_type"]
    types = [int(field.parts[i][0]) for i in field.data]
    field = reader.fields.get("tokenizer.ggml.merges")
    merges = [tuple(bytes(field.parts[i]).decode().split(" ")) for i in field.data] if field else []
    return tokens, types, merges


@needs_model
@pytest.mark.parametrize("special", [False, True])
def test_smollm2_against_hugging_face(special):
    tokens, types, merges = vocabulary_of(MODEL)
    controls = [(i, t, True) for i, t in enumerate(tokens) if types[i] == 3]
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, SMOLLM_LIKE, added=controls if special else [])
    lines = make_lines(30000 if FULL else 12000, 7 + special) + make_runs()
    got = our_ids(MODEL, lines, *(["special"] if special else []))
    assert_same("byte-level, SmolLM2's own, Hugging Face", lines, got, [e.ids for e in reference.encode_batch(lines)])


@needs_model
def test_pieces_are_hugging_face_bytes():
    tokens, types, merges = vocabulary_of(MODEL)
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, SMOLLM_LIKE)
    rows = subprocess.run([TOOL, MODEL, "pieces"], check=True, capture_output=True, text=True).stdout.split("\n")
    for i, kind in enumerate(types):
        ours = bytes.fromhex(rows[i])
        assert ours.decode("utf-8", "replace") == ("" if kind == 3 else reference.decode([i])), tokens[i]


@needs_model
def test_smollm2_against_llama_cpp():
    # llama.cpp leaves its own way of cutting where a byte has no token; such bytes cannot be compared.
    have = {t for t in vocabulary_of(MODEL)[0] if len(t) == 1}
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    lines = make_lines(12000 if FULL else 4000, 11)
    lines = [line for line in lines if set("".join(p for p, _ in level.pre_tokenize_str(line))) <= have]
    assert len(lines) > 2000
    assert_same("byte-level, SmolLM2's own, llama.cpp", lines, our_ids(MODEL, lines), llama_cpp.ids_of(MODEL, lines))


# ---- SentencePiece.

SPECIAL_PIECES = [("<unk>", 2), ("<s>", 3), ("</s>", 3)] + [("<0x%02X>" % byte, 6) for byte in range(256)]
USER_DEFINED = ["\n\n", "<tool>", "\u2581\u2581\u2581"]


@functools.cache
def trained_pieces():
    """Tokens, types and scores."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=3000, show_progress=False, max_token_length=16)
    # Words apart, as SentencePiece trains; every other line whole, so that pieces may cross spaces.
    lines = make_lines(6000, 3)
    words = [word for line in lines for word in line.replace(" ", " \u2581").split(" ")]
    tokenizer.train_from_iterator(words, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = [t for t in sorted(vocabulary, key=vocabulary.get) if t not in USER_DEFINED]
    merged, single = [t for t in pieces if len(t) > 1], [t for t in pieces if len(t) == 1]
    tokens = SPECIAL_PIECES + [(t, 1) for t in merged + single] + [(t, 4) for t in USER_DEFINED]
    scores = [0.0] * len(SPECIAL_PIECES) + [-float(i) for i in range(len(merged) + len(single))] + [0.0] * 3
    return tokens, scores


def write_sentencepiece(path, space_prefix):
    tokens, scores = trained_pieces()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_against_llama_cpp(space_prefix, special, tmp_path):
    path = write_sentencepiece(tmp_path / "spm.gguf", space_prefix)
    rng = random.Random(9)
    lines = make_lines(12000 if FULL else 4000, 13) + make_runs()
    lines += ["".join(rng.choice(["<s>", "</s>", "<tool>", "\n\n", "a b", "  ", " ", "x", "<", "\u2581"])
                      for _ in range(6)) for _ in range(2000)]
    ours = our_ids(path, lines, *(["special"] if special else []))
    assert_same("SentencePiece, trained here, llama.cpp", lines, ours, llama_cpp.ids_of(path, lines, special))


def own_marks(path, count, seed):
    tokens, types, _ = vocabulary_of(path)
    return make_marked([token for token, kind in zip(tokens, types, strict=True) if kind in (2, 3, 4)], count, seed)


def without_retyped(path, lines):
    """llama.cpp takes a user-defined </s> (a tag of HTML to Gemma) for a control token; Hugging Face does not."""
    tokens, types, _ = vocabulary_of(path)
    retyped = "</s>" in tokens and types[tokens.index("</s>")] != 3
    return [line for line in lines if not (retyped and "</s>" in line)]


@pytest.mark.skipif(not os.environ.get("QUIRE_TEST_GEMMA"), reason="QUIRE_TEST_GEMMA is not set")
@pytest.mark.parametrize("special", [False, True])
def test_gemma_against_llama_cpp(special):
    path = os.environ["QUIRE_TEST_GEMMA"]
    lines = make_lines(12000 if FULL else 4000, 17 + special) + make_runs() + own_marks(path, 2000, special)
    lines = without_retyped(path, lines)
    ours = our_ids(path, lines, *(["special"] if special else []))
    assert_same("SentencePiece, Gemma 3's own, llama.cpp", lines, ours, llama_cpp.ids_of(path, lines, special))


# ---- Public vocabularies.

@pytest.mark.long
@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "falcon", "gpt-2", "mpt",
                                  "refact", "starcoder", "command-r", "qwen35"])
def test_public_byte_level(name):
    path = published.vocabulary(name)
    tokens, types, merges = vocabulary_of(path)
    controls = [(i, t, True) for i, t in enumerate(tokens) if types[i] == 3]
    users = [(i, t, False) for i, t in enumerate(tokens) if types[i] == 4]
    for special in (False, True):
        reference = theirs({t: i for i, t in enumerate(tokens)}, merges, PUBLISHED[name], name in IGNORES_MERGES,
                           users + (controls if special else []))
        lines = make_lines(4000, name) + make_runs() + make_marked([t for _, t, _ in controls + users], 1000, name)
        if name == "falcon":
            lines = [line for line in lines if not set(line) & unknown_punctuation()]
        assert_same("byte-level, %s's own, Hugging Face" % name, lines,
                    our_ids(path, lines, *(["special"] if special else [])),
                    [e.ids for e in reference.encode_batch(lines)])


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama-spm", "phi-3", "baichuan"])
def test_public_sentencepiece(name):
    path = published.vocabulary(name)
    for special in (False, True):
        lines = without_retyped(path, make_lines(4000, name) + make_runs() + own_marks(path, 1000, name))
        assert_same("SentencePiece, %s's own, llama.cpp" % name, lines,
                    our_ids(path, lines, *(["special"] if special else [])), llama_cpp.ids_of(path, lines, special))


def test_lines_in_all(capsys):
    """Last: how much was compared; nothing differed."""
    total = sum(COUNTED.values())
    with capsys.disabled():
        for kind in sorted(COUNTED):
            print("\n  %-60s %7d lines" % (kind, COUNTED[kind]), end="")
        print("\n  %-60s %7d lines, none differs" % ("in all", total))
    if len([kind for kind in COUNTED if kind.endswith("Hugging Face")]) > 15:  # the whole file was run
        assert total >= (200000 if FULL else 80000)
