/*
 * See json_writer.h. Runs of bytes that need no escape are appended as one: most text is one run.
 */
#include "base/json_writer.h"

#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* U+0085, U+2028 and U+2029 end a line for clients that split event streams the Unicode way. */
static bool needs_escape(uint32_t code_point, bool printable)
{
    return code_point < 0x20 || code_point == '"' || code_point == '\\' || code_point == 0x85 ||
           code_point == 0x2028 || code_point == 0x2029 ||
           (printable && code_point >= 0x7f && code_point < 0xa0);
}

static void write_escape(struct buffer *out, uint32_t code_point, bool printable)
{
    static const char codes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = code_point && code_point < 0x80 ? strchr(codes, (int)code_point) : NULL;
    if (found && (!printable || code_point >= 0x20))
        buffer_appendf(out, "\\%c", letters[found - codes]);
    else
        buffer_appendf(out, "\\u%04x", (unsigned)code_point);
}

static void write_escaped(struct buffer *out, const char *text, size_t length, bool printable)
{
    size_t start = 0; /* of bytes that need no escape */
    for (size_t i = 0; i < length;) {
        uint32_t code_point = (unsigned char)text[i];
        int size = code_point < 0x80 ? 1 : utf8_decode(text + i, length - i, &code_point);
        if (size > 0 && !needs_escape(code_point, printable)) {
            i += (size_t)size;
            continue;
        }
        buffer_append(out, text + start, i - start);
        if (size > 0)
            write_escape(out, code_point, printable);
        else
            buffer_append_text(out, printable ? "\\ufffd" : "\xef\xbf\xbd");
        i += size > 0 ? (size_t)size : size < 0 ? (size_t)-size : length - i;
        start = i;
    }
    buffer_append(out, text + start, length - start);
}

void json_write_escaped(struct buffer *out, const char *text, size_t length)
{
    write_escaped(out, text, length, false);
}

void json_write_string(struct buffer *out, const char *text, size_t length)
{
    buffer_append(out, "\"", 1);
    write_escaped(out, text, length, false);
    buffer_append(out, "\"", 1);
}

void json_write_text(struct buffer *out, const char *text)
{
    json_write_string(out, text, strlen(text));
}

void json_write_printable(struct buffer *out, const char *text, size_t length)
{
    buffer_append(out, "\"", 1);
    write_escaped(out, text, length, true);
    buffer_append(out, "\"", 1);
}

void json_write_printable_text(struct buffer *out, const char *text)
{
    json_write_printable(out, text, strlen(text));
}
