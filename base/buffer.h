/*
 * A growable byte string with a hard limit. Plain malloc; one owner; no locks.
 *
 * After the limit or an allocation failure is hit, `failed` stays true and appends do nothing, so
 * that a writer can append freely and look once at the end. data[length] is always '\0' if data.
 */
#ifndef QUIRE_BASE_BUFFER_H
#define QUIRE_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

struct buffer {
    char *data; /* NULL until the first append */
    size_t length;
    size_t capacity;
    size_t limit_bytes; /* 0: no limit */
    bool failed;
};

void buffer_init(struct buffer *buffer, size_t limit_bytes);
void buffer_deinit(struct buffer *buffer); /* frees; the struct may be used again after init */
void buffer_clear(struct buffer *buffer);  /* length 0, failed false; keeps the memory */
bool buffer_append(struct buffer *buffer, const void *bytes, size_t length);
bool buffer_append_text(struct buffer *buffer, const char *text);
bool buffer_appendf(struct buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Remove the first `length` bytes. */
void buffer_consume(struct buffer *buffer, size_t length);

#endif
