/*
 * See control_guard.h. Two sorted arrays and binary search, so that neither thousands of control
 * tokens (Gemma's <unused…>) nor a text full of '<' cost more than some look-ups per byte.
 */
#include "api/control_guard.h"

#include "api/json.h"
#include "base/check.h"
#include "base/json_writer.h"
#include "base/minmax.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static int compare_forward(const void *a, const void *b)
{
    const struct control_text *x = a, *y = b;
    size_t shorter = min_u64(x->length, y->length);
    int order = memcmp(x->text, y->text, shorter);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

static unsigned char byte_from_end(const struct control_text *token, size_t index)
{
    return (unsigned char)token->text[token->length - 1 - index];
}

static int compare_backward(const void *a, const void *b)
{
    const struct control_text *x = a, *y = b;
    size_t shorter = min_u64(x->length, y->length);
    for (size_t i = 0; i < shorter; i++) {
        int order = byte_from_end(x, i) - byte_from_end(y, i);
        if (order)
            return order;
    }
    return (x->length > y->length) - (x->length < y->length);
}

static uint32_t count_controls(const struct tokenizer *tokenizer)
{
    uint32_t count = 0;
    while (tokenizer_control_token(tokenizer, count) != UINT32_MAX)
        count++;
    return count;
}

enum status control_guard_init(struct control_guard *guard, const struct tokenizer *tokenizer,
                               uint32_t sentinel, struct error *error)
{
    *guard = (struct control_guard){.sentinel = sentinel};
    guard->sentinel_length = (size_t)utf8_encode(sentinel, guard->sentinel_bytes);
    uint32_t count = count_controls(tokenizer);
    guard->ascending = calloc(count + 1, sizeof *guard->ascending);
    guard->backward = calloc(count + 1, sizeof *guard->backward);
    if (!guard->ascending || !guard->backward) {
        control_guard_deinit(guard);
        return error_no_memory(error);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = tokenizer_control_token(tokenizer, i);
        struct control_text text;
        text.text = tokenizer_text(tokenizer, token, &text.length);
        if (text.length == 0)
            continue;
        guard->begins[(unsigned char)text.text[0]] = true;
        guard->ends[(unsigned char)text.text[text.length - 1]] = true;
        if (text.length > guard->longest)
            guard->longest = text.length;
        guard->ascending[guard->count++] = text;
    }
    memcpy(guard->backward, guard->ascending, guard->count * sizeof *guard->backward);
    qsort(guard->ascending, guard->count, sizeof *guard->ascending, compare_forward);
    qsort(guard->backward, guard->count, sizeof *guard->backward, compare_backward);
    return STATUS_OK;
}

void control_guard_deinit(struct control_guard *guard)
{
    free(guard->ascending);
    free(guard->backward);
    guard->ascending = guard->backward = NULL;
    guard->count = 0;
}

/* First of tokens [low, high), which agree in `depth` bytes, whose byte `depth` is >= byte. */
static uint32_t lower_bound(const struct control_text *tokens, uint32_t low, uint32_t high,
                            size_t depth, unsigned byte, bool from_end)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct control_text *token = &tokens[middle];
        unsigned here = depth >= token->length ? 0
                        : from_end             ? byte_from_end(token, depth) + 1u
                                               : (unsigned char)token->text[depth] + 1u;
        if (here < byte + 1)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

enum match { MATCH_NONE, MATCH_PREFIX, MATCH_WHOLE };

/* Does a token begin at text[0]? MATCH_WHOLE: *matched is the shortest; MATCH_PREFIX: all of the
   text is the beginning of one. */
static enum match match_forward(const struct control_guard *guard, const char *text, size_t length,
                                size_t *matched)
{
    uint32_t low = 0, high = guard->count;
    for (size_t depth = 0; low < high; depth++) {
        if (guard->ascending[low].length == depth && depth > 0) {
            *matched = depth;
            return MATCH_WHOLE;
        }
        if (depth == length)
            return depth > 0 ? MATCH_PREFIX : MATCH_NONE;
        unsigned byte = (unsigned char)text[depth];
        low = lower_bound(guard->ascending, low, high, depth, byte, false);
        high = lower_bound(guard->ascending, low, high, depth, byte + 1, false);
    }
    return MATCH_NONE;
}

/* Is text[0..length) the end of a longer token? */
static bool is_token_end(const struct control_guard *guard, const char *text, size_t length)
{
    uint32_t low = 0, high = guard->count;
    for (size_t depth = 0; depth < length && low < high; depth++) {
        unsigned byte = (unsigned char)text[length - 1 - depth];
        low = lower_bound(guard->backward, low, high, depth, byte, true);
        high = lower_bound(guard->backward, low, high, depth, byte + 1, true);
    }
    return low < high && guard->backward[high - 1].length > length;
}

static size_t character_length(const char *text, size_t length)
{
    uint32_t code_point;
    int size = utf8_decode(text, length, &code_point);
    return size > 0 ? (size_t)size : 1;
}

/* Where a text must be broken because a token may end at its beginning: at 0, or behind its first
   character, which leaves what templates look for at a text's edges; SIZE_MAX: nowhere. */
static size_t break_at_start(const struct control_guard *guard, const char *text, size_t length)
{
    size_t most = min_u64(length, guard->longest);
    size_t first = length ? character_length(text, length) : 0;
    size_t place = SIZE_MAX;
    for (size_t end = 1; end <= most; end++) {
        if (!guard->ends[(unsigned char)text[end - 1]] || !is_token_end(guard, text, end))
            continue;
        if (end <= first)
            return 0;
        place = first;
    }
    return place;
}

/* Is the whole text inside a token? */
static bool is_inside(const struct control_guard *guard, const char *text, size_t length)
{
    if (!text || length == 0 || length >= guard->longest)
        return false;
    for (uint32_t i = 0; i < guard->count; i++) {
        const struct control_text *token = &guard->ascending[i];
        if (memmem(token->text, token->length, text, length))
            return true;
    }
    return false;
}

/* Append the text up to `place`, then a sentinel. */
static void break_at(const struct control_guard *guard, const char *text, size_t place,
                     size_t *written, struct buffer *out)
{
    json_write_escaped(out, text + *written, place - *written);
    buffer_append(out, guard->sentinel_bytes, guard->sentinel_length);
    *written = place;
}

bool control_guard_write(const struct control_guard *guard, const char *text, size_t length,
                         bool alone, struct buffer *out)
{
    size_t written = 0, last_break = SIZE_MAX;
    size_t start = break_at_start(guard, text, length);
    if (start == SIZE_MAX && alone && is_inside(guard, text, length))
        start = 0;
    bool good = true;
    for (size_t at = 0; at < length;) {
        size_t first = character_length(text + at, length - at), matched = 0;
        if (at == start && at != last_break)
            break_at(guard, text, last_break = at, &written, out);
        at += first;
        if (!guard->begins[(unsigned char)text[at - first]])
            continue;
        enum match match = match_forward(guard, text + at - first, length - at + first, &matched);
        if (match == MATCH_WHOLE && matched <= first)
            good = false;
        if (match != MATCH_NONE)
            break_at(guard, text, last_break = at, &written, out);
    }
    json_write_escaped(out, text + written, length - written);
    return good;
}

void control_guard_clean(const struct control_guard *guard, char *text)
{
    char *found, *from = text;
    while ((found = memmem(from, strlen(from), guard->sentinel_bytes, guard->sentinel_length))) {
        char *rest = found + guard->sentinel_length;
        memmove(found, rest, strlen(rest) + 1);
        from = found;
    }
}
