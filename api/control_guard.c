/*
 * What of a rendered chat the tokenizer may take for control tokens: see control_guard.h. The walk
 * over the text is the tokenizer's own, longest token first from left to right, so that both agree
 * on what stands where; a token that is not the template's own is broken up behind its first
 * character, one that would swallow the beginning of the template's own as well.
 *
 * One sorted array and narrowing by bytes: neither thousands of control tokens (Gemma's <unused…>)
 * nor a text full of '<' cost more than some look-ups per byte.
 */
#include "api/control_guard.h"

#include "base/check.h"
#include "base/minmax.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static int compare_texts(const void *a, const void *b)
{
    const struct control_text *x = a, *y = b;
    size_t shorter = min_u64(x->length, y->length);
    int order = memcmp(x->text, y->text, shorter);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* In order, each text once. */
static void sort_texts(struct control_guard *guard)
{
    uint32_t kept = 0;
    qsort(guard->texts, guard->count, sizeof *guard->texts, compare_texts);
    for (uint32_t i = 0; i < guard->count; i++) {
        if (kept > 0 && compare_texts(&guard->texts[kept - 1], &guard->texts[i]) == 0)
            guard->texts[kept - 1].guarded |= guard->texts[i].guarded;
        else
            guard->texts[kept++] = guard->texts[i];
    }
    guard->count = kept;
}

static void add_text(struct control_guard *guard, struct control_text text)
{
    if (text.length == 0)
        return;
    guard->begins[(unsigned char)text.text[0]] = true;
    guard->texts[guard->count++] = text;
}

enum status control_guard_init_texts(struct control_guard *guard, const char *const *texts,
                                     uint32_t count, uint32_t guarded, struct error *error)
{
    *guard = (struct control_guard){0};
    guard->texts = calloc(count + 1, sizeof *guard->texts);
    if (!guard->texts)
        return error_no_memory(error);
    for (uint32_t i = 0; i < count; i++)
        add_text(guard, (struct control_text){texts[i], strlen(texts[i]), i < guarded});
    sort_texts(guard);
    return STATUS_OK;
}

enum status control_guard_init(struct control_guard *guard, const struct tokenizer *tokenizer,
                               struct error *error)
{
    *guard = (struct control_guard){0};
    uint32_t count = 0, vocabulary = tokenizer_vocabulary(tokenizer);
    for (uint32_t i = 0; i < vocabulary; i++)
        count += tokenizer_is_control(tokenizer, i) || tokenizer_is_user_defined(tokenizer, i);
    guard->texts = calloc(count + 1, sizeof *guard->texts);
    if (!guard->texts)
        return error_no_memory(error);
    for (uint32_t i = 0; i < vocabulary; i++) {
        bool control = tokenizer_is_control(tokenizer, i);
        if (!control && !tokenizer_is_user_defined(tokenizer, i))
            continue;
        struct control_text text = {.guarded = control || tokenizer_is_end(tokenizer, i)};
        text.text = tokenizer_text(tokenizer, i, &text.length);
        add_text(guard, text);
    }
    sort_texts(guard);
    return STATUS_OK;
}

void control_guard_deinit(struct control_guard *guard)
{
    free(guard->texts);
    *guard = (struct control_guard){0};
}

/* First of texts [low, high), which agree in `depth` bytes, whose byte `depth` is >= byte. */
static uint32_t lower_bound(const struct control_guard *guard, uint32_t low, uint32_t high,
                            size_t depth, unsigned byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct control_text *text = &guard->texts[middle];
        unsigned here = depth >= text->length ? 0 : (unsigned char)text->text[depth] + 1u;
        if (here < byte + 1)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Lengths of tokens that begin at one place, 0: none. */
struct matches {
    size_t own;    /* the longest guarded one that is the template's own */
    size_t forged; /* the shortest guarded one that is not … */
    size_t longest_forged;
    size_t plain; /* the longest that is not guarded */
};

static bool is_own(const uint8_t *own, size_t at)
{
    return own[at / 8] >> (at % 8) & 1;
}

static struct matches match(const struct control_guard *guard, const char *text, const uint8_t *own,
                            size_t at, size_t length)
{
    struct matches found = {0};
    uint32_t low = 0, high = guard->count;
    bool all_own = true;
    for (size_t depth = 0; low < high; depth++) {
        const struct control_text *token = &guard->texts[low];
        if (depth > 0 && token->length == depth) {
            if (!token->guarded)
                found.plain = depth;
            else if (all_own)
                found.own = depth;
            else
                found.longest_forged = depth;
            if (token->guarded && !all_own && found.forged == 0)
                found.forged = depth;
        }
        if (at + depth == length)
            break;
        unsigned byte = (unsigned char)text[at + depth];
        all_own &= is_own(own, at + depth);
        low = lower_bound(guard, low, high, depth, byte);
        high = lower_bound(guard, low, high, depth, byte + 1);
    }
    return found;
}

static bool has_marker_form(const struct control_text *token, bool turns)
{
    const char *text = token->text;
    size_t length = token->length;
    if (length < 3)
        return false;
    bool angles = text[0] == '<' && text[length - 1] == '>';
    if (turns)
        return angles || (text[0] == '[' && text[length - 1] == ']');
    return angles && length >= 5 && text[1] == '|' && text[length - 2] == '|';
}

void control_guard_add_markers(struct control_guard *guard, const char *text, size_t length,
                               bool turns)
{
    for (uint32_t i = 0; i < guard->count; i++) {
        struct control_text *token = &guard->texts[i];
        if (!token->guarded && has_marker_form(token, turns))
            token->guarded = memmem(text, length, token->text, token->length) != NULL;
    }
}

static size_t character_length(const char *text, size_t length)
{
    uint32_t code_point;
    int size = utf8_decode(text, length, &code_point);
    return size > 0 ? (size_t)size : 1;
}

/* Whether a token over text[from..end) would take along the beginning of the template's own. */
static bool swallows(const struct control_guard *guard, const char *text, const uint8_t *own,
                     size_t from, size_t end, size_t length)
{
    for (size_t at = from + 1; at < end; at++)
        if (is_own(own, at) && guard->begins[(unsigned char)text[at]] &&
            at + match(guard, text, own, at, length).own > end)
            return true;
    return false;
}

uint32_t control_guard_apply(const struct control_guard *guard, const char *text,
                             const uint8_t *own, size_t length, uint32_t sentinel,
                             struct buffer *out)
{
    char bytes[4];
    size_t sentinel_length = (size_t)utf8_encode(sentinel, bytes), written = 0;
    uint32_t broken = 0;
    for (size_t at = 0; at < length;) {
        if (!guard->begins[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        struct matches found = match(guard, text, own, at, length);
        size_t first = character_length(text + at, length - at);
        bool forged = found.forged > 0, breaks;
        size_t step;
        if (found.own > 0) {
            step = found.own;
            breaks = found.longest_forged > step || found.plain > step;
        } else if (forged) {
            if (found.forged <= first)
                return UINT32_MAX;
            step = first;
            breaks = true;
        } else if (found.plain > 0) {
            breaks = swallows(guard, text, own, at, at + found.plain, length);
            step = breaks ? first : found.plain;
        } else {
            at++;
            continue;
        }
        at += step;
        broken += forged;
        if (breaks && out) {
            buffer_append(out, text + written, at - written);
            buffer_append(out, bytes, sentinel_length);
            written = at;
        }
    }
    if (out)
        buffer_append(out, text + written, length - written);
    return broken;
}
