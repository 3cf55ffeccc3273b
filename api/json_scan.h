/*
 * The scan: what is JSON for us, and the spelling of values in text that passed it. Allocates
 * nothing but what json_decode_string appends. See json.h. Any thread.
 */
#ifndef QUIRE_API_JSON_SCAN_H
#define QUIRE_API_JSON_SCAN_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_NODES_MAX 131072u   /* values of one body beside token ids: at most 20 MiB of cJSON */
#define JSON_NUMBER_BYTES_MAX 60 /* cJSON 1.7 copies numbers into 64 bytes */
#define JSON_NONCHARACTERS 66    /* U+FDD0…U+FDEF, then U+nFFFE and U+nFFFF of the 17 planes */

struct json_slice {
    const char *text; /* NULL: none */
    size_t length;
};

/* The result of a scan. */
struct json_scan {
    uint32_t nodes;                        /* values, an id prompt counting as one */
    bool noncharacter[JSON_NONCHARACTERS]; /* which occur in strings, escaped or not */
    struct json_slice id_prompt;      /* top-level "prompt" if it is a list (of lists) of ids */
    uint32_t id_count, id_list_count; /* id_list_count 0: one flat list */
};

/* STATUS_INVALID with the place of the fault. `scan` may hold results of earlier scans: they add
   up. Any text, any length; uses 64 bytes of stack per call, whatever the depth. */
enum status json_scan_text(const char *text, size_t length, bool want_prompt,
                           struct json_scan *scan, struct error *error);

/* i-th noncharacter's code point. */
uint32_t json_noncharacter(unsigned index);

/* Walk the members of an object slice or the elements of an array slice (any other slice has none).
   *at is 0 at the start; false at the end. `key` may be NULL for arrays. Slices must have passed
   the scan; a key slice is its string with the quotes. O(length of the member). */
bool json_next(struct json_slice container, size_t *at, struct json_slice *key,
               struct json_slice *value);
/* Whether a string slice decodes to `text`. */
bool json_slice_is(struct json_slice string, const char *text);
/* Append the decoded text of a string slice. */
void json_decode_string(struct json_slice string, struct buffer *out);
/* A number slice that is an integer, however it is spelled (42.0, 1e1): its sign and its magnitude,
   exactly. False when it is none, or one of more than 64 bits. */
bool json_integer(struct json_slice number, bool *negative, uint64_t *value);
/* The value of `key` in an object slice; text NULL when absent. */
struct json_slice json_find(struct json_slice object, const char *key);

#endif
