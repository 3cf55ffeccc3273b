"""Our token ids against Hugging Face's tokenizers, and against llama.cpp's.

tests/engine/text/tokenize_tool reads lines and prints ids. Every pre-tokenizer that it claims to know
is tried: the Hugging Face side is built from the model's published pre_tokenizer, over a vocabulary
that was trained here without any pre-tokenizing, so that its merges cross every border that a
pre-tokenizer may draw and a border that is missing shows in the ids. The SmolLM2 file, named by
QUIRE_TEST_MODEL, is tried with its own vocabulary.

Lines are made from a fixed seed: scripts, digits, code, odd spaces, emoji, combining marks. Characters
are those of Unicode 14, which all sides know.
"""

import functools
import json
import os
import pathlib
import random
import subprocess
import unicodedata
import urllib.request

import gguf
import numpy
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

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


def make_lines(count, seed):
    rng = random.Random(seed)
    characters = known_characters()
    lines = list(FIXED)
    while len(lines) < count:
        parts = []
        for _ in range(rng.randrange(1, 12)):
            kind = rng.randrange(10)
            if kind < 4:
                parts.append(rng.choice(WORDS))
            elif kind < 6:
                parts.append(rng.choice(SPACES) * rng.randrange(1, 4))
            elif kind == 6:
                parts.append("".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 9))))
            elif kind == 7:
                parts.append("".join(rng.choice("!?.,;:'\"()[]{}<>=+-*/\\|&^%$#@~`_") for _ in range(rng.randrange(1, 5))))
            elif kind == 8:
                parts.append("".join(rng.choice("abcdeABCDE") for _ in range(rng.randrange(1, 7))))
            else:
                parts.append("".join(rng.choice(characters) for _ in range(rng.randrange(1, 4))))
            if rng.random() < 0.5:
                parts.append(" ")
        lines.append("".join(parts))
    return lines


def escape(line):
    return line.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").encode()


def our_ids(path, lines, *flags):
    done = subprocess.run([TOOL, path, *flags], input=b"".join(escape(line) + b"\n" for line in lines),
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    rows = done.stdout.decode().split("\n")[:-1]
    assert len(rows) == len(lines)
    return [[int(x) for x in row.split()] for row in rows]


def assert_same(lines, ours, theirs):
    wrong = [(line, a, b) for line, a, b in zip(lines, ours, theirs, strict=True) if a != b]
    assert not wrong, "%d of %d lines differ, e.g.\n%s" % (
        len(wrong), len(lines), "\n".join("%a\n ours   %s\n theirs %s" % w for w in wrong[:5]))


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
                     "granite-docling"], GPT2_LIKE),
    **dict.fromkeys(["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
                     "mellum2"], SMOLLM_LIKE),
    **dict.fromkeys(["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "dbrx",
                     "smaug-bpe", "chatglm-bpe", "glm4"], LLAMA3_LIKE),
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2"], QWEN2_LIKE),
    "qwen35": sequence(split(QWEN35), byte_level(False)),
    "tekken": sequence(split(cased("", r"\p{N}")), byte_level(False)),
    **dict.fromkeys(["gpt-4o", "llama4"],
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
    **dict.fromkeys(["deepseek-v3", "hunyuan-dense"], DEEPSEEK_V3),
    **dict.fromkeys(["bloom", "poro-chat", "gpt3-finnish"], sequence(split(BLOOM), byte_level(False))),
    "viking": sequence(split(BLOOM), digits(True), byte_level(False)),
    "seed-coder": sequence(split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+"
                                 r"|\s*[\r\n]+|\s+(?!\S)|\s+"), byte_level(False)),
}
IGNORES_MERGES = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
ADDS_BOS = IGNORES_MERGES


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
    tokenizer.train_from_iterator(make_lines(6000, 1), trainer)
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
    lines = make_lines(4000 if pre == first else 400, pre)
    if pre == "falcon":
        lines = [line for line in lines if not set(line) & unknown_punctuation()]
        assert len(lines) > 3900
    added = [(len(tokens) + i, text, kind == 3) for i, (text, kind) in enumerate(ADDED)]
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, PUBLISHED[pre], pre in IGNORES_MERGES,
                       [a for a in added if not a[2]])
    assert_same(lines, our_ids(path, lines), [e.ids for e in reference.encode_batch(lines)])


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens(special, tmp_path):
    tokens, merges = trained()
    path = write_vocabulary(tmp_path / "v.gguf", "smollm", tokens, merges)
    rng = random.Random(5)
    texts = [text for text, _ in ADDED] + ["<|im_", "start|>", "<", "|>", "<thi", "nk>", " ", "\n", "abc", "é"]
    lines = ["".join(rng.choice(texts) for _ in range(rng.randrange(1, 9))) for _ in range(3000)]
    added = [(len(tokens) + i, text, kind == 3) for i, (text, kind) in enumerate(ADDED)]
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, PUBLISHED["smollm"],
                       added=[a for a in added if special or not a[2]])
    got = our_ids(path, lines, *(["special"] if special else []))
    assert_same(lines, got, [e.ids for e in reference.encode_batch(lines)])


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


# ---- The real model.

@functools.cache
def smollm2():
    reader = gguf.GGUFReader(MODEL)
    field = reader.fields["tokenizer.ggml.tokens"]
    tokens = [bytes(field.parts[i]).decode() for i in field.data]
    field = reader.fields["tokenizer.ggml.token_type"]
    types = [int(field.parts[i][0]) for i in field.data]
    field = reader.fields["tokenizer.ggml.merges"]
    merges = [tuple(bytes(field.parts[i]).decode().split(" ")) for i in field.data]
    return tokens, types, merges


@needs_model
@pytest.mark.parametrize("special", [False, True])
def test_smollm2_against_hugging_face(special):
    tokens, types, merges = smollm2()
    controls = [(i, t, True) for i, t in enumerate(tokens) if types[i] == 3]
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, SMOLLM_LIKE, added=controls if special else [])
    lines = make_lines(30000, 7)
    got = our_ids(MODEL, lines, *(["special"] if special else []))
    assert_same(lines, got, [e.ids for e in reference.encode_batch(lines)])


@needs_model
def test_pieces_are_hugging_face_bytes():
    tokens, types, merges = smollm2()
    reference = theirs({t: i for i, t in enumerate(tokens)}, merges, SMOLLM_LIKE)
    rows = subprocess.run([TOOL, MODEL, "pieces"], check=True, capture_output=True, text=True).stdout.split("\n")
    for i, kind in enumerate(types):
        ours = bytes.fromhex(rows[i])
        assert ours.decode("utf-8", "replace") == ("" if kind == 3 else reference.decode([i])), tokens[i]


def llama_cpp_ids(path, lines, special=False):
    """Ids of llama.cpp's own server for a whole model file."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 256
    params.port = 0
    server = xllamacpp.Server(params)
    found = []
    for line in lines:
        body = json.dumps({"content": line, "add_special": False, "parse_special": special}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", data=body,
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found.append(json.load(answer)["tokens"])
    return found


@needs_model
def test_smollm2_against_llama_cpp():
    # llama.cpp leaves its own way of cutting where a byte has no token; such bytes cannot be compared.
    have = {t for t in smollm2()[0] if len(t) == 1}
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    lines = [line for line in make_lines(1500, 11) if line]
    lines = [line for line in lines if set("".join(p for p, _ in level.pre_tokenize_str(line))) <= have]
    assert len(lines) > 1000
    assert_same(lines, our_ids(MODEL, lines), llama_cpp_ids(MODEL, lines))


# ---- SentencePiece.

SPECIAL_PIECES = [("<unk>", 2), ("<s>", 3), ("</s>", 3)] + [("<0x%02X>" % byte, 6) for byte in range(256)]
USER_DEFINED = ["\n\n", "<tool>", "\u2581\u2581\u2581"]


def write_sentencepiece(path, space_prefix):
    """A whole model of one layer (llama.cpp opens no less), its weights zero."""
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
    width, writer = 32, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(space_prefix)
    zeros = functools.partial(numpy.zeros, dtype=numpy.float32)
    writer.add_tensor("token_embd.weight", zeros((len(tokens), width)))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor("blk.0.%s.weight" % name, zeros((width, width)))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(name + ".weight", zeros(width))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_against_llama_cpp(space_prefix, tmp_path):
    path = write_sentencepiece(tmp_path / "spm.gguf", space_prefix)
    rng = random.Random(9)
    lines = [line for line in make_lines(1500, 13) if line]
    lines += ["".join(rng.choice(["<s>", "</s>", "<tool>", "\n\n", "a b", "  ", " ", "x", "<", "\u2581"])
                      for _ in range(6)) for _ in range(200)]
    for special in (False, True):
        ours = our_ids(path, lines, *(["special"] if special else []))
        assert_same(lines, ours, llama_cpp_ids(path, lines, special))
