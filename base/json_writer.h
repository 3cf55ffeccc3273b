/*
 * Text as JSON strings: the one place that escapes. What is no UTF-8 becomes U+FFFD, so that the
 * result is always valid JSON. Appends to a buffer; see its `failed`. Any thread.
 */
#ifndef QUIRE_BASE_JSON_WRITER_H
#define QUIRE_BASE_JSON_WRITER_H

#include "base/buffer.h"

#include <stddef.h>

/* A string with its quotes. */
void json_write_string(struct buffer *out, const char *text, size_t length);
void json_write_text(struct buffer *out, const char *text); /* terminated */
/* The same without quotes. */
void json_write_escaped(struct buffer *out, const char *text, size_t length);

/* A string with its quotes, for a terminal: DEL and the controls U+0080 to U+009F are escaped too,
   and every control character as \u00XX. */
void json_write_printable(struct buffer *out, const char *text, size_t length);
void json_write_printable_text(struct buffer *out, const char *text); /* terminated */

#endif
