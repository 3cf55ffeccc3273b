/* A growable byte string with a hard limit: see buffer.h. */
#include "base/buffer.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buffer_init(struct buffer *buffer, size_t limit_bytes)
{
    *buffer = (struct buffer){.limit_bytes = limit_bytes};
}

void buffer_deinit(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){.limit_bytes = buffer->limit_bytes};
}

void buffer_clear(struct buffer *buffer)
{
    buffer->length = 0;
    buffer->failed = false;
    if (buffer->data)
        buffer->data[0] = '\0';
}

/* Room for `more` bytes and the terminator. */
static bool reserve(struct buffer *buffer, size_t more)
{
    if (buffer->failed)
        return false;
    size_t needed;
    if (__builtin_add_overflow(buffer->length, more, &needed) ||
        (buffer->limit_bytes && needed > buffer->limit_bytes) || needed >= SIZE_MAX / 2) {
        buffer->failed = true;
        return false;
    }
    if (needed < buffer->capacity)
        return true;
    size_t capacity = buffer->capacity ? buffer->capacity : 64;
    while (capacity <= needed)
        capacity *= 2;
    if (buffer->limit_bytes && capacity > buffer->limit_bytes + 1)
        capacity = buffer->limit_bytes + 1;
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

bool buffer_append(struct buffer *buffer, const void *bytes, size_t length)
{
    if (!reserve(buffer, length))
        return false;
    if (length)
        memcpy(buffer->data + buffer->length, bytes, length);
    buffer->length += length;
    buffer->data[buffer->length] = '\0';
    return true;
}

bool buffer_append_text(struct buffer *buffer, const char *text)
{
    return buffer_append(buffer, text, strlen(text));
}

bool buffer_appendf(struct buffer *buffer, const char *format, ...)
{
    char small[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(small, sizeof small, format, arguments);
    va_end(arguments);
    CHECK(length >= 0);
    if ((size_t)length < sizeof small)
        return buffer_append(buffer, small, (size_t)length);
    if (!reserve(buffer, (size_t)length))
        return false;
    va_start(arguments, format);
    vsnprintf(buffer->data + buffer->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    buffer->length += (size_t)length;
    return true;
}

void buffer_consume(struct buffer *buffer, size_t length)
{
    CHECK(length <= buffer->length);
    if (!length)
        return;
    buffer->length -= length;
    memmove(buffer->data, buffer->data + length, buffer->length);
    buffer->data[buffer->length] = '\0';
}
