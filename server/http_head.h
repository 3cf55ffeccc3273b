/*
 * The head of a request: its syntax, strictly as RFC 9112 has it, and what frames its body.
 *
 * Plain functions over bytes, without sockets, so that the same bytes mean the same under every
 * version of the HTTP library. Whatever two readers could read differently is refused: bare line
 * feeds, folded lines, control characters, blanks around names, two Hosts or lengths, lengths
 * beside transfer codings.
 */
#ifndef QUIRE_SERVER_HTTP_HEAD_H
#define QUIRE_SERVER_HTTP_HEAD_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_head {
    /* strings inside the bytes that were parsed */
    const char *method;
    const char *target; /* without the query */
    const char *fields; /* field_count times: a name, a NUL, a value without blanks around, a NUL */
    unsigned field_count;
    bool http11;
    bool chunked;
    uint64_t content_length; /* 0 when there is none */
    bool close, keep_alive;  /* what Connection asks for */
};

/* Looks for the end of a head in `length` bytes, of which `*checked` were looked at before, and
   updates `*checked`. The length of the head with its empty line; 0 when it is not complete;
   SIZE_MAX when a byte stands there that no head can have. */
size_t http_head_find_end(const char *bytes, size_t length, size_t *checked);

/* Parses a complete head in place; `head` points into `bytes` afterwards. 0, or the HTTP status to
   refuse it with, and the error is filled in; `head` has the method and target then if they could
   be read, else "-". */
unsigned http_head_parse(char *bytes, size_t length, struct http_head *head, struct error *error);

/* The first value of a field, any case of the name; NULL when it is absent. */
const char *http_head_field(const struct http_head *head, const char *name);

#endif
