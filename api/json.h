/*
 * JSON in. The only user of cJSON.
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

#include "api/json_scan.h"
#include "base/budget.h"

#define JSON_NODE_BYTES 160                 /* a cJSON node, its key and its string's overhead */
#define JSON_INTEGER_MAX 9007199254740992.0 /* 2^53: doubles hold all integers up to it */

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

/* Parse a request body, which is entered in BUDGET_REQUESTS. STATUS_INVALID for anything that is not
   one JSON object, STATUS_BUSY or STATUS_TOO_LARGE when the budget has no room beside it now or
   never, STATUS_UNAVAILABLE when the system has no memory. `body` is borrowed until json_close. */
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
/* An integer from 0 on, below `end`: a token's id. False for anything else. */
bool json_id(const struct cJSON *value, uint32_t end, uint32_t *out);
/* A finite number; false for anything else, an overflow (1e999) included. */
bool json_number(const struct cJSON *value, double *out);

/* Optional fields: absent or null leaves *out alone. STATUS_INVALID names the field. Bounds may be
   infinite; what a float cannot hold is the largest float. */
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

#endif
