/*
 * Stop strings: see stop_matcher.h. Held text is never longer than the longest stop minus one byte
 * between pushes, so looking at every stop anew costs little: a push of n bytes takes
 * O((n + held) · stops) comparisons that mostly end at the first byte.
 */
#include "engine/text/stop_matcher.h"

#include "base/check.h"

#include <stdint.h>
#include <string.h>

void stop_matcher_init(struct stop_matcher *matcher, const char *const *stops,
                       const size_t *lengths, unsigned count, bool keep)
{
    for (unsigned i = 0; i < count; i++)
        CHECK(lengths[i] > 0);
    *matcher =
        (struct stop_matcher){.stops = stops, .lengths = lengths, .count = count, .keep = keep};
    buffer_init(&matcher->held, 0);
}

void stop_matcher_deinit(struct stop_matcher *matcher)
{
    buffer_deinit(&matcher->held);
}

/* The match that is complete first, as if the text had come byte by byte: so the answer does not
   depend on how it is cut into pushes. Of matches that end together the longest. */
static bool find_stop(const struct stop_matcher *matcher, const char *text, size_t length,
                      size_t *at, unsigned *index)
{
    size_t best_end = SIZE_MAX;
    for (unsigned i = 0; i < matcher->count; i++) {
        size_t size = matcher->lengths[i];
        const char *found = size <= length ? memmem(text, length, matcher->stops[i], size) : NULL;
        if (!found)
            continue;
        size_t begin = (size_t)(found - text);
        if (begin + size > best_end || (begin + size == best_end && begin >= *at))
            continue;
        *at = begin;
        *index = i;
        best_end = begin + size;
    }
    return best_end != SIZE_MAX;
}

/* Whether `text` is a proper prefix of some stop. */
static bool starts_stop(const struct stop_matcher *matcher, const char *text, size_t length)
{
    for (unsigned i = 0; i < matcher->count; i++)
        if (matcher->lengths[i] > length && memcmp(matcher->stops[i], text, length) == 0)
            return true;
    return false;
}

/* Bytes at the end of the text that may yet become a stop. */
static size_t open_suffix(const struct stop_matcher *matcher, const char *text, size_t length)
{
    size_t longest = 0;
    for (unsigned i = 0; i < matcher->count; i++)
        if (matcher->lengths[i] > longest)
            longest = matcher->lengths[i];
    size_t suffix = longest > 0 && longest - 1 < length ? longest - 1 : length;
    while (suffix > 0 && !starts_stop(matcher, text + length - suffix, suffix))
        --suffix;
    return suffix;
}

bool stop_matcher_push(struct stop_matcher *matcher, const char *text, size_t length,
                       struct buffer *out)
{
    if (matcher->matched)
        return true;
    if (matcher->count == 0) {
        buffer_append(out, text, length);
        return false;
    }
    struct buffer *held = &matcher->held;
    buffer_append(held, text, length);
    size_t at = 0;
    if (held->length > 0 &&
        find_stop(matcher, held->data, held->length, &at, &matcher->matched_index)) {
        matcher->matched = true;
        size_t stop = matcher->keep ? matcher->lengths[matcher->matched_index] : 0;
        buffer_append(out, held->data, at + stop);
        buffer_clear(held);
        return true;
    }
    size_t free_bytes = held->length - open_suffix(matcher, held->data, held->length);
    if (free_bytes > 0) {
        buffer_append(out, held->data, free_bytes);
        buffer_consume(held, free_bytes);
    }
    return false;
}

void stop_matcher_finish(struct stop_matcher *matcher, struct buffer *out)
{
    if (matcher->matched || matcher->held.length == 0)
        return;
    buffer_append(out, matcher->held.data, matcher->held.length);
    buffer_clear(&matcher->held);
}
