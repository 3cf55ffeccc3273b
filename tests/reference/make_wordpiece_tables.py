"""Makes engine/text/wordpiece_tables.h: what BERT's normalizer does with each code point, asked of Hugging Face's
tokenizers one by one. Run it with the tests' Python when their version changes; test_wordpiece.py compares.

  python make_wordpiece_tables.py > engine/text/wordpiece_tables.h
"""

from tokenizers import normalizers, pre_tokenizers

HEAD = """/*
 * What BERT's normalizer does with each code point. Made by tests/reference/make_wordpiece_tables.py
 * from Hugging Face's tokenizers %s; not to be edited. wordpiece.h says what the classes mean.
 */
#ifndef QUIRE_ENGINE_TEXT_WORDPIECE_TABLES_H
#define QUIRE_ENGINE_TEXT_WORDPIECE_TABLES_H

#include <stdint.h>

enum wordpiece_class { WORDPIECE_DROPPED, WORDPIECE_SPACE, WORDPIECE_PUNCTUATION };

/* clang-format off */
"""
CHINESE = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
           (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def points():
    return (c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000)


def ranges(classes):
    out = []
    for c in points():
        kind = classes.get(c)
        if kind is None:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == kind:
            out[-1][1] = c
        else:
            out.append([c, c, kind])
    return out


def is_hangul(c):
    return 0xAC00 <= c <= 0xD7A3


def hangul(c):
    index = c - 0xAC00
    parts = [0x1100 + index // 588, 0x1161 + index % 588 // 28, 0x11A7 + index % 28]
    return "".join(map(chr, parts[:2 if index % 28 == 0 else 3]))


def lines(items, per_line):
    return "".join("    " + " ".join(items[i:i + per_line]) + "\n" for i in range(0, len(items), per_line))


def make():
    import tokenizers
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    chinese = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)
    folded = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=True)
    split = pre_tokenizers.BertPreTokenizer()
    classes, spaced, maps = {}, {}, {}
    for c in points():
        text = chr(c)
        cleaned = clean.normalize_str(text)
        if cleaned == "":
            classes[c] = "WORDPIECE_DROPPED"
        elif cleaned == " ":
            classes[c] = "WORDPIECE_SPACE"
        elif len(split.pre_tokenize_str("a" + text + "a")) == 3:
            classes[c] = "WORDPIECE_PUNCTUATION"
        if chinese.normalize_str(text) != text:
            spaced[c] = "x"
        if cleaned == text:
            fold = folded.normalize_str(text)
            if is_hangul(c):
                assert fold == hangul(c)
            elif fold != text:
                maps[c] = fold
    single = [(c, ord(t)) for c, t in sorted(maps.items()) if len(t) == 1]
    several = [(c, t) for c, t in sorted(maps.items()) if len(t) > 1]
    dropped = ranges({c: "x" for c, t in maps.items() if t == ""})
    assert max(len(t) for _, t in several) <= 4
    out = HEAD % tokenizers.__version__
    out += "static const struct {\n    uint32_t first, last;\n    enum wordpiece_class class;\n} WORDPIECE_CLASSES[] = {\n"
    out += lines(["{0x%X, 0x%X, %s}," % tuple(r) for r in ranges(classes)], 2) + "};\n\n"
    out += "/* A word of its own each. */\nstatic const uint32_t WORDPIECE_IDEOGRAPHS[][2] = {\n"
    out += lines(["{0x%X, 0x%X}," % (a, b) for a, b, _ in ranges(spaced)], 4) + "};\n\n"
    out += "/* Folding (accents stripped, lower case) leaves nothing of these. */\nstatic const uint32_t WORDPIECE_MARKS[][2] = {\n"
    out += lines(["{0x%X, 0x%X}," % (a, b) for a, b, _ in dropped], 4) + "};\n\n"
    out += "/* Folding makes another code point of these … */\nstatic const uint32_t WORDPIECE_FOLDS[][2] = {\n"
    out += lines(["{0x%X, 0x%X}," % pair for pair in single], 4) + "};\n\n"
    out += "/* … and several of these; 0 ends them. */\nstatic const uint32_t WORDPIECE_LONG_FOLDS[][5] = {\n"
    out += lines(["{0x%X, %s}," % (c, ", ".join("0x%X" % ord(x) for x in t)) for c, t in several], 2) + "};\n"
    return out + "/* clang-format on */\n\n#endif\n"


if __name__ == "__main__":
    print(make(), end="")
