/* See print.h. */
#include "base/print.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* The next character's length in bytes; *plain when a terminal may get it. */
static size_t next_character(const char *text, size_t left, uint32_t *code_point, bool *plain)
{
    int taken = utf8_decode(text, left, code_point);
    *plain = taken > 0 && *code_point >= 0x20 && (*code_point < 0x7f || *code_point >= 0xa0);
    return taken > 0 ? (size_t)taken : taken < 0 ? (size_t)-taken : left;
}

void print_name(struct buffer *out, const char *text, size_t length)
{
    for (size_t i = 0, size; i < length; i += size) {
        uint32_t code_point = 0;
        bool plain;
        size = next_character(text + i, length - i, &code_point, &plain);
        buffer_append(out, plain ? text + i : "?", plain ? size : 1);
    }
}

void print_xml(struct buffer *out, const char *text, size_t length)
{
    for (size_t i = 0, size; i < length; i += size) {
        uint32_t code_point = 0;
        bool plain;
        size = next_character(text + i, length - i, &code_point, &plain);
        if (plain && strchr("<>&\"'", (int)code_point) && code_point < 0x80)
            buffer_appendf(out, "&#%u;", (unsigned)code_point);
        else
            buffer_append(out, plain ? text + i : "?", plain ? size : 1);
    }
}

const char *print_count(uint64_t count, char out[static 32])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    char *to = out;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}
