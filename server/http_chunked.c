/*
 * The chunked coding's reader and writer: see http_chunked.h.
 *
 * A size line is kept as a number until it is complete and is then written anew, so that an error
 * is always met where the body may be ended: between two chunks, or after the data of one.
 */
#include "server/http_chunked.h"

#include "base/limits.h"
#include "base/minmax.h"

#include <stdio.h>
#include <string.h>

#define SIZE_DIGITS_MAX 16u

void http_chunked_init(struct http_chunked *chunked, uint64_t limit_bytes)
{
    *chunked = (struct http_chunked){.limit_bytes = limit_bytes};
}

static void write_pending(struct http_chunked *chunked, const char *text)
{
    chunked->pending_start = 0;
    chunked->pending_length =
        (unsigned)snprintf(chunked->pending, sizeof chunked->pending, "%s", text);
}

/* End the body on the way out, wherever it stands. */
static void fail(struct http_chunked *chunked, unsigned status)
{
    bool after_data = chunked->state == CHUNKED_DATA_CR || chunked->state == CHUNKED_DATA_LF;
    chunked->status = status;
    chunked->state = CHUNKED_END;
    write_pending(chunked, after_data ? "\r\n0\r\n\r\n" : "0\r\n\r\n");
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void read_size(struct http_chunked *chunked, char c)
{
    int digit = hex_digit(c);
    if (digit >= 0 && chunked->digits < SIZE_DIGITS_MAX) {
        chunked->remaining = chunked->remaining << 4 | (uint64_t)digit;
        chunked->digits++;
    } else if (!chunked->digits) {
        fail(chunked, 400);
    } else if (c == '\r') {
        chunked->state = CHUNKED_SIZE_LF;
    } else if (c == ';') {
        chunked->state = CHUNKED_EXTENSION;
    } else if (c == ' ' || c == '\t') {
        chunked->state = CHUNKED_BLANK;
    } else {
        fail(chunked, 400);
    }
}

static void end_size(struct http_chunked *chunked)
{
    chunked->digits = 0;
    if (!chunked->remaining) {
        chunked->state = CHUNKED_TRAILER_START;
        return;
    }
    if (chunked->remaining > chunked->limit_bytes - chunked->total_bytes) {
        fail(chunked, 413);
        return;
    }
    char line[24];
    snprintf(line, sizeof line, "%llx\r\n", (unsigned long long)chunked->remaining);
    write_pending(chunked, line);
    chunked->total_bytes += chunked->remaining;
    chunked->state = CHUNKED_DATA;
}

/* Tabs and what is no control character. */
static bool is_text(char c)
{
    unsigned char byte = (unsigned char)c;
    return c == '\t' || (byte >= ' ' && byte != 0x7f);
}

/* A name is checked for what may not be in it, and its blanks. */
static bool is_name(char c)
{
    return c > ' ' && c < 0x7f && !strchr("\"(),/;<=>?@[\\]{}", c);
}

static void read_extra(struct http_chunked *chunked, char c)
{
    enum http_chunked_state state = chunked->state;
    chunked->extra_bytes++;
    if (chunked->extra_bytes > LIMIT_HEAD_BYTES)
        fail(chunked, 400);
    else if (state == CHUNKED_BLANK && c == ';')
        chunked->state = CHUNKED_EXTENSION;
    else if (state == CHUNKED_BLANK && c != ' ' && c != '\t')
        fail(chunked, 400);
    else if (state == CHUNKED_EXTENSION && c == '\r')
        chunked->state = CHUNKED_SIZE_LF;
    else if (state == CHUNKED_TRAILER_VALUE && c == '\r')
        chunked->state = CHUNKED_TRAILER_LF;
    else if (state == CHUNKED_TRAILER_START && c == '\r')
        chunked->state = CHUNKED_END_LF;
    else if (state == CHUNKED_TRAILER_START && c != ':' && is_name(c))
        chunked->state = CHUNKED_TRAILER_NAME;
    else if (state == CHUNKED_TRAILER_NAME && c == ':')
        chunked->state = CHUNKED_TRAILER_VALUE;
    else if (state == CHUNKED_TRAILER_START || (state == CHUNKED_TRAILER_NAME && !is_name(c)) ||
             !is_text(c))
        fail(chunked, 400);
}

/* One byte of what is not data. */
static void read_byte(struct http_chunked *chunked, char c)
{
    switch (chunked->state) {
    case CHUNKED_SIZE:
        read_size(chunked, c);
        return;
    case CHUNKED_DATA_CR:
        if (c == '\r')
            chunked->state = CHUNKED_DATA_LF;
        else
            fail(chunked, 400);
        return;
    case CHUNKED_SIZE_LF:
    case CHUNKED_DATA_LF:
    case CHUNKED_TRAILER_LF:
    case CHUNKED_END_LF:
        break;
    default:
        read_extra(chunked, c);
        return;
    }
    if (c != '\n') {
        fail(chunked, 400);
    } else if (chunked->state == CHUNKED_SIZE_LF) {
        end_size(chunked);
    } else if (chunked->state == CHUNKED_DATA_LF) {
        write_pending(chunked, "\r\n");
        chunked->state = CHUNKED_SIZE;
    } else if (chunked->state == CHUNKED_TRAILER_LF) {
        chunked->state = CHUNKED_TRAILER_START;
    } else {
        write_pending(chunked, "0\r\n\r\n");
        chunked->state = CHUNKED_END;
    }
}

static size_t give_pending(struct http_chunked *chunked, char *to, size_t room)
{
    size_t length = (size_t)min_u64(chunked->pending_length, room);
    memcpy(to, chunked->pending + chunked->pending_start, length);
    chunked->pending_start += (unsigned)length;
    chunked->pending_length -= (unsigned)length;
    return length;
}

size_t http_chunked_feed(struct http_chunked *chunked, const char *from, size_t length, char *to,
                         size_t room, size_t *written)
{
    size_t read = 0, out = 0;
    for (;;) {
        out += give_pending(chunked, to + out, room - out);
        if (chunked->pending_length || chunked->state == CHUNKED_END || read == length)
            break;
        if (chunked->state != CHUNKED_DATA) {
            read_byte(chunked, from[read++]);
            continue;
        }
        size_t part = (size_t)min_u64(length - read, room - out);
        part = (size_t)min_u64(part, chunked->remaining);
        if (!part)
            break;
        memcpy(to + out, from + read, part);
        read += part;
        out += part;
        chunked->remaining -= part;
        if (!chunked->remaining)
            chunked->state = CHUNKED_DATA_CR;
    }
    *written = out;
    return read;
}

bool http_chunked_is_done(const struct http_chunked *chunked)
{
    return chunked->state == CHUNKED_END && !chunked->pending_length;
}
