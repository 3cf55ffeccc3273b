/*
 * One pass over the text: each code point becomes none, one or several, and each of those goes on
 * with the word, ends it, or is one alone. Tables are looked up by bisection; ASCII never is.
 */
#include "engine/text/wordpiece.h"

#include "base/minmax.h"
#include "base/utf8.h"
#include "engine/text/wordpiece_tables.h"

#include <string.h>

#define MARK "\xe2\x96\x81" /* U+2581: a word begins */
#define MARK_BYTES 3u
#define CODE_POINT_BYTES 4u

struct word {
    const struct wordpiece *wordpiece;
    const struct wordpiece_sink *sink;
    struct error *error;
    uint32_t characters; /* more than the most: its bytes are not kept */
    uint32_t length;     /* of bytes, with the mark in front */
    char bytes[MARK_BYTES + WORDPIECE_WORD_MAX * CODE_POINT_BYTES];
};

/* The index of the first entry of `stride` words whose first is above c, minus one; −1: none. */
static int find_entry(const uint32_t *entries, size_t count, size_t stride, uint32_t c)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (entries[middle * stride] <= c)
            low = middle + 1;
        else
            high = middle;
    }
    return (int)low - 1;
}

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static bool in_ranges(const uint32_t (*ranges)[2], size_t count, uint32_t c)
{
    int i = find_entry(ranges[0], count, 2, c);
    return i >= 0 && c <= ranges[i][1];
}

/* −1: none. */
static int class_of(uint32_t c)
{
    size_t low = 0, high = COUNT(WORDPIECE_CLASSES);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c > WORDPIECE_CLASSES[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT(WORDPIECE_CLASSES) && c >= WORDPIECE_CLASSES[low].first
               ? (int)WORDPIECE_CLASSES[low].class
               : -1;
}

/* Accents stripped and lower case: returns how many code points, none to 4. */
static unsigned fold(uint32_t c, uint32_t out[static 4])
{
    unsigned count = 0;
    if (c < 0x80) {
        out[0] = c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
        return 1;
    }
    if (c >= 0xAC00 && c <= 0xD7A3) { /* Hangul syllables fall apart by arithmetic */
        uint32_t index = c - 0xAC00;
        out[0] = 0x1100 + index / 588;
        out[1] = 0x1161 + index % 588 / 28;
        out[2] = 0x11A7 + index % 28;
        return index % 28 == 0 ? 2 : 3;
    }
    if (in_ranges(WORDPIECE_MARKS, COUNT(WORDPIECE_MARKS), c))
        return 0;
    int at = find_entry(WORDPIECE_FOLDS[0], COUNT(WORDPIECE_FOLDS), 2, c);
    if (at >= 0 && WORDPIECE_FOLDS[at][0] == c) {
        out[0] = WORDPIECE_FOLDS[at][1];
        return 1;
    }
    at = find_entry(WORDPIECE_LONG_FOLDS[0], COUNT(WORDPIECE_LONG_FOLDS), 5, c);
    if (at >= 0 && WORDPIECE_LONG_FOLDS[at][0] == c) {
        while (count < 4 && WORDPIECE_LONG_FOLDS[at][1 + count] != 0) {
            out[count] = WORDPIECE_LONG_FOLDS[at][1 + count];
            count++;
        }
        return count;
    }
    out[0] = c;
    return 1;
}

/* ---- Words ---- */

static void word_clear(struct word *word)
{
    memcpy(word->bytes, MARK, MARK_BYTES);
    word->length = MARK_BYTES;
    word->characters = 0;
}

static void word_add(struct word *word, uint32_t c)
{
    if (++word->characters <= WORDPIECE_WORD_MAX)
        word->length += (uint32_t)utf8_encode(c, word->bytes + word->length);
}

/* The longest token that `bytes` begin with; TOKEN_NONE: none. *taken: of how many bytes. */
static uint32_t longest_token(const struct wordpiece *wordpiece, const char *bytes, uint32_t length,
                              uint32_t *taken)
{
    for (uint32_t end = min_u32(length, wordpiece->longest); end > 0; end--) {
        if (end < length && ((uint8_t)bytes[end] & 0xC0) == 0x80)
            continue; /* within a character */
        uint32_t token = token_index_find(wordpiece->index, wordpiece->vocabulary, bytes, end);
        if (token != TOKEN_NONE && wordpiece->vocabulary->types[token] == TOKEN_NORMAL) {
            *taken = end;
            return token;
        }
    }
    return TOKEN_NONE;
}

static enum status word_end(struct word *word)
{
    const struct wordpiece *wordpiece = word->wordpiece;
    uint32_t tokens[WORDPIECE_WORD_MAX + 1], count = 0, at = 0, taken;
    if (word->characters == 0)
        return STATUS_OK;
    bool known = word->characters <= WORDPIECE_WORD_MAX;
    while (known && at < word->length) {
        uint32_t token = longest_token(wordpiece, word->bytes + at, word->length - at, &taken);
        known = token != TOKEN_NONE && (at > 0 || taken > MARK_BYTES);
        if (known) {
            tokens[count++] = token;
            at += taken;
        }
    }
    word_clear(word);
    if (!known) {
        count = wordpiece->unknown != TOKEN_NONE;
        tokens[0] = wordpiece->unknown;
    }
    for (uint32_t i = 0; i < count; i++)
        TRY(word->sink->push(word->sink->arg, tokens[i], word->error));
    return STATUS_OK;
}

static enum status word_alone(struct word *word, uint32_t c)
{
    TRY(word_end(word));
    word_add(word, c);
    return word_end(word);
}

static bool is_punctuation(uint32_t c)
{
    return c < 0x80 ? c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') &&
                          !(c >= 'A' && c <= 'Z')
                    : class_of(c) == WORDPIECE_PUNCTUATION;
}

/* A code point of the text. */
static enum status take(struct word *word, uint32_t c)
{
    uint32_t folded[4] = {c};
    unsigned count = 1;
    int class = c >= 'a' && c <= 'z' ? -1 : class_of(c);
    if (class == WORDPIECE_DROPPED || c == 0)
        return STATUS_OK;
    if (class == WORDPIECE_SPACE)
        return word_end(word);
    bool ideograph = c >= 0x3400 && in_ranges(WORDPIECE_IDEOGRAPHS, COUNT(WORDPIECE_IDEOGRAPHS), c);
    if (ideograph)
        TRY(word_end(word));
    if (word->wordpiece->folds)
        count = fold(c, folded);
    for (unsigned i = 0; i < count; i++) {
        if (is_punctuation(folded[i]))
            TRY(word_alone(word, folded[i]));
        else
            word_add(word, folded[i]);
    }
    return ideograph ? word_end(word) : STATUS_OK;
}

enum status wordpiece_encode(const struct wordpiece *wordpiece, const char *text, size_t length,
                             const struct wordpiece_sink *sink, struct error *error)
{
    struct word word = {.wordpiece = wordpiece, .sink = sink, .error = error};
    word_clear(&word);
    for (size_t i = 0; i < length;) {
        uint32_t c = 0;
        int taken = utf8_decode(text + i, length - i, &c);
        if (taken > 0)
            TRY(take(&word, c));
        i += taken > 0 ? (size_t)taken : 1; /* bytes that are no UTF-8 are dropped, as U+FFFD is */
    }
    return word_end(&word);
}
