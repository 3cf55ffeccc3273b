/*
 * Texts of files and users in output for people and SVG. Any thread.
 */
#ifndef QUIRE_BASE_PRINT_H
#define QUIRE_BASE_PRINT_H

#include "base/buffer.h"

#include <stddef.h>
#include <stdint.h>

/* UTF-8 as it is; what is no text or would move a terminal's cursor as '?'. */
void print_name(struct buffer *out, const char *text, size_t length);

/* As print_name, with what XML reserves written as references. */
void print_xml(struct buffer *out, const char *text, size_t length);

/* "8,192" into out; returns out. */
const char *print_count(uint64_t count, char out[static 32]);

#endif
