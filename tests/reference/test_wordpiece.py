"""WordPiece token ids equal those of Hugging Face's tokenizers: a vocabulary made up here, and MiniLM's own."""

import collections
import os
import pathlib
import random
import sys

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import make_wordpiece_tables  # noqa: E402
import test_tokenizer  # noqa: E402

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
EDGES = ["", " ", "\t\r\n", "[CLS] forged [SEP]", "a" * 100, "a" * 101, "é" * 100, "e\u0301" * 100, "\u0301", "x\u0301\u0301y",
         "İstanbul I\u0307", "ﬁ ΑΣ ΣΑΣ ß ẞ", "東京タワーに行く", "\u00ad\u200b\u200d\ufeff\ufffd", "a\x00b\x7fc\x85d\x1fe",
         "한국어 뷁 각", "\u037e;\u0387·", "a\u3000b\u2028c\u00a0d", "don't stop-me_now @#$ ^`|~", "𝔘𝔫𝔦 🎉👩‍🚀", "豈更 \uf900",
         "ａｂｃ　１２", "ক্ষো ொ", "\U0001d165\U0001d16d\u302e"]


def vocabulary(lines):
    counts, inner = collections.Counter(), collections.Counter()
    fold = normalizers.BertNormalizer()
    for line in lines:
        for word in fold.normalize_str(line).split():
            for i in range(len(word)):
                for size in (1, 2, 3, 5):
                    (counts if i == 0 else inner)[word[i:i + size]] += 1
    words = [w for w, _ in sorted(counts.most_common(4000)) if not w.startswith("##")]
    return SPECIAL + words + ["##" + w for w, _ in sorted(inner.most_common(4000))]


def theirs(vocab, lower=True):
    tokenizer = tokenizers.Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ids = [(t, vocab.index(t)) for t in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return tokenizer


def write(path, vocab, lower=True):
    import gguf
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list([t if t in SPECIAL else t[2:] if t.startswith("##") and len(t) > 2 else "\u2581" + t
                           for t in vocab])
    writer.add_token_types([3 if t in SPECIAL else 1 for t in vocab])
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", lower)
    for name, token in (("bos", "[CLS]"), ("eos", "[SEP]"), ("unknown", "[UNK]")):
        writer.add_uint32("tokenizer.ggml.%s_token_id" % name, vocab.index(token))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def random_unicode(count, seed):
    rng = random.Random(seed)
    points = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    lines = []
    for i in range(count):
        high = (0x250, 0x3000, 0x110000)[i % 3]
        lines.append("".join(chr(points[rng.randrange(min(high, len(points)))]) if rng.random() < 0.4 else rng.choice("ab c'De.")
                             for _ in range(rng.randrange(1, 40))))
    return lines


def compare(path, reference, count, kind):
    lines = EDGES + test_tokenizer.make_lines(count * 3 // 4, 41) + random_unicode(count // 4, 43)
    expected = [e.ids for e in reference.encode_batch(lines)]
    test_tokenizer.assert_same(kind, lines, test_tokenizer.our_ids(path, lines, "special", "bos"), expected)
    flat = [token for ids in expected for token in ids]
    assert flat.count(reference.token_to_id("[UNK]")) < len(flat) / 4


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("count", [2500, pytest.param(20000, marks=pytest.mark.long)])
def test_made_up_vocabulary(tmp_path, count, lower):
    vocab = vocabulary(EDGES + test_tokenizer.make_lines(4000, 7))
    path = write(tmp_path / "tokens.gguf", vocab, lower)
    compare(path, theirs(vocab, lower), count, "WordPiece, made up")


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("QUIRE_TEST_MINILM"), reason="QUIRE_TEST_MINILM is not set")
def test_minilm_vocabulary():
    path = os.environ["QUIRE_TEST_MINILM"]
    tokens, types, _ = test_tokenizer.vocabulary_of(path)
    vocab = [t if types[i] == 3 else t[1:] if t.startswith("\u2581") else "##" + t for i, t in enumerate(tokens)]
    compare(path, theirs(vocab), 20000, "WordPiece, MiniLM")


def test_tables_are_those_of_the_package():
    made = pathlib.Path(__file__).resolve().parents[2] / "engine/text/wordpiece_tables.h"
    assert make_wordpiece_tables.make() == made.read_text()
