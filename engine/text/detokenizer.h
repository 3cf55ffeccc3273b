/*
 * Incremental detokenizing: bytes of tokens in, whole UTF-8 characters out.
 *
 * Bytes are held back until a code point is whole; bytes that can never be valid become one U+FFFD
 * per maximal invalid subpart (Unicode 15, section 3.9). At the end an incomplete tail becomes one
 * U+FFFD, streamed or not. One owner, no locks.
 */
#ifndef QUIRE_ENGINE_TEXT_DETOKENIZER_H
#define QUIRE_ENGINE_TEXT_DETOKENIZER_H

#include "base/buffer.h"

#include <stddef.h>

struct detokenizer {
    char held[4];
    unsigned held_count;
};

void detokenizer_init(struct detokenizer *detokenizer);
/* Append what became whole to `out`. */
void detokenizer_push(struct detokenizer *detokenizer, const char *bytes, size_t length,
                      struct buffer *out);
void detokenizer_finish(struct detokenizer *detokenizer, struct buffer *out);

#endif
