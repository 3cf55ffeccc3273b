/* Incremental UTF-8 assembly: see detokenizer.h. What is held is always a proper prefix of a valid
   sequence, so it is at most three bytes. */
#include "engine/text/detokenizer.h"

#include "base/check.h"
#include "base/utf8.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

void detokenizer_init(struct detokenizer *detokenizer)
{
    *detokenizer = (struct detokenizer){0};
}

/* Append the whole and the hopeless of bytes[0..length); returns how many bytes of a started
   character are left at the end. */
static size_t take_whole(const char *bytes, size_t length, struct buffer *out)
{
    size_t done = 0, at = 0; /* [done, at) is valid and not yet appended */
    while (at < length) {
        uint32_t code_point = 0;
        int taken = utf8_decode(bytes + at, length - at, &code_point);
        if (taken == 0)
            break;
        if (taken < 0) {
            buffer_append(out, bytes + done, at - done);
            buffer_append(out, replacement, 3);
            done = at + (size_t)-taken;
        }
        at += taken > 0 ? (size_t)taken : (size_t)-taken;
    }
    buffer_append(out, bytes + done, at - done);
    return length - at;
}

void detokenizer_push(struct detokenizer *detokenizer, const char *bytes, size_t length,
                      struct buffer *out)
{
    /* Finish the held character byte by byte: at most three more decide it. */
    while (detokenizer->held_count > 0 && length > 0) {
        CHECK(detokenizer->held_count < sizeof detokenizer->held);
        detokenizer->held[detokenizer->held_count++] = *bytes++;
        --length;
        size_t left = take_whole(detokenizer->held, detokenizer->held_count, out);
        memmove(detokenizer->held, detokenizer->held + detokenizer->held_count - left, left);
        detokenizer->held_count = (unsigned)left;
    }
    if (length == 0)
        return;
    size_t left = take_whole(bytes, length, out);
    CHECK(left < sizeof detokenizer->held);
    memcpy(detokenizer->held, bytes + length - left, left);
    detokenizer->held_count = (unsigned)left;
}

void detokenizer_finish(struct detokenizer *detokenizer, struct buffer *out)
{
    if (detokenizer->held_count > 0)
        buffer_append(out, replacement, 3);
    detokenizer->held_count = 0;
}
