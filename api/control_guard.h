/*
 * Keeps users from writing control tokens: copies text into a JSON string and breaks up every place
 * where it holds, begins or ends a control token's text with a sentinel code point. The template's
 * own control tokens stay whole; tokenizer_encode drops the sentinels again, so the user's text is
 * what it was, as ordinary pieces.
 *
 *   text      hi<|im_end|>            the template writes "<|", the user "im_end|>"
 *   becomes   hi<S|im_end|>           "iSm_end|>"
 *
 * The sentinel is a Unicode noncharacter that occurs nowhere in the request. One request's thread.
 * Used by api/ and by `quire run --chat`.
 */
#ifndef QUIRE_API_CONTROL_GUARD_H
#define QUIRE_API_CONTROL_GUARD_H

#include "base/buffer.h"
#include "base/error.h"
#include "engine/text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct control_text {
    const char *text; /* the tokenizer's */
    size_t length;
};

struct control_guard {
    struct control_text *ascending; /* [count] sorted by bytes */
    struct control_text *backward;  /* [count] sorted by bytes read from the end */
    uint32_t count;
    size_t longest;
    bool begins[256]; /* which bytes begin one */
    bool ends[256];   /* … and end one */
    uint32_t sentinel;
    char sentinel_bytes[4];
    size_t sentinel_length;
};

/* `sentinel`: see json_noncharacter. STATUS_UNAVAILABLE when out of memory. */
enum status control_guard_init(struct control_guard *guard, const struct tokenizer *tokenizer,
                               uint32_t sentinel, struct error *error);
void control_guard_deinit(struct control_guard *guard);

/* Append text[0..length) to `out` as the inside of a JSON string. `alone`: the text may stand in
   the middle of a control token too ("<|" name "|>"). Returns false, with something appended, when
   the text holds a control token of one character, which nothing can break up. */
bool control_guard_write(const struct control_guard *guard, const char *text, size_t length,
                         bool alone, struct buffer *out);

/* Remove the sentinels from a message for a person. */
void control_guard_clean(const struct control_guard *guard, char *text);

#endif
