/*
 * JSON in and out. The only user of cJSON.
 *
 * A body is read in two passes. The scan (json_scan.c) allocates nothing and decides what is JSON
 * for us: RFC 8259 to the letter, valid UTF-8, no lone surrogates, no NUL characters, bounded
 * depth, numbers and count of values. cJSON then sees only text that passed, with its memory
 * entered in the byte budget beforehand, and duplicate keys are refused: what a proxy in front
 * checked is what we act on. A prompt of token ids never becomes cJSON nodes (64 bytes each): the
 * scan reads it itself.
 *
 * Where spelling matters (1.0 is not 1 in a tool's schema, 64-bit seeds) callers read a value's
 * source text: a *slice* of a text that passed the scan. One thread per document.
 */
#ifndef QUIRE_API_JSON_H
#define QUIRE_API_JSON_H

#include "base/budget.h"
#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_NODES_MAX 131072u   /* values of one body beside token ids: at most 20 MiB of cJSON */
#define JSON_NUMBER_BYTES_MAX 60 /* cJSON 1.7 copies numbers into 64 bytes */
#define JSON_NODE_BYTES 160      /* a cJSON node, its key and its string's overhead */
#define JSON_INTEGER_MAX 9007199254740992.0 /* 2^53: doubles hold all integers up to it */
#define JSON_NONCHARACTERS 66 /* U+FDD0…U+FDEF, then U+nFFFE and U+nFFFF of the 17 planes */

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
/* The value of `key` in an object slice; text NULL when absent. */
struct json_slice json_find(struct json_slice object, const char *key);

struct cJSON;

struct json_document {
    const struct cJSON *root; /* an object */
    struct json_slice text;   /* the body, borrowed */
    struct json_scan scan;
    uint32_t *ids;       /* [scan.id_count] of the id prompt, all lists in turn; or NULL */
    uint32_t *list_ends; /* [max(1, scan.id_list_count)] end of each list in ids */
    /* private */
    struct budget *budget;
    uint64_t taken_bytes;
};

/* Parse a request body. STATUS_INVALID for anything that is not one JSON object, STATUS_BUSY or
   STATUS_TOO_LARGE when the budget has no room now or never. `body` is borrowed until json_close.
 */
enum status json_open(const char *body, size_t length, struct budget *budget,
                      struct json_document *out, struct error *error);
void json_close(struct json_document *document); /* also after a failed open */

/* Look-ups in a cJSON object: case-sensitive; NULL when absent or null. */
const struct cJSON *json_get(const struct cJSON *object, const char *name);
/* Type tests and contents, so that nobody else needs cJSON.h. NULL is none of them. */
bool json_is_string(const struct cJSON *value);
bool json_is_array(const struct cJSON *value);
bool json_is_object(const struct cJSON *value);
bool json_is_bool(const struct cJSON *value, bool *out);
bool json_is_null(const struct cJSON *value);
const char *json_string(const struct cJSON *value); /* CHECKs the type */
uint32_t json_count(const struct cJSON *container);
const struct cJSON *json_first(const struct cJSON *container); /* of an array or object, or NULL */
const struct cJSON *json_after(const struct cJSON *value);     /* its next sibling, or NULL */
const char *json_key(const struct cJSON *value);
/* A finite number; false for anything else, an overflow (1e999) included. */
bool json_number(const struct cJSON *value, double *out);

/* Optional fields: absent or null leaves *out alone. STATUS_INVALID names the field. */
enum status json_read_float(const struct cJSON *object, const char *name, double low, double high,
                            float *out, struct error *error);
/* Integers. Above 2^53, where `high` allows it (INFINITY: any), they count as 2^53. */
enum status json_read_integer(const struct cJSON *object, const char *name, double low, double high,
                              int64_t *out, struct error *error);
enum status json_read_bool(const struct cJSON *object, const char *name, bool *out,
                           struct error *error);
/* *out points into the document. */
enum status json_read_string(const struct cJSON *object, const char *name, const char **out,
                             struct error *error);

/* Append `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. */
void json_write_string(struct buffer *out, const char *text, size_t length);
/* The same without quotes. */
void json_write_escaped(struct buffer *out, const char *text, size_t length);

#endif
