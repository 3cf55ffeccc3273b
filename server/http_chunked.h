/*
 * The chunked coding of a request's body, strictly as RFC 9112, section 7.1, has it.
 *
 * What comes in is checked byte by byte, and what goes out is the same body in its plainest form:
 * sizes without zeros in front, no extensions, no trailers. Sizes end with CRLF and nothing else,
 * data too; a sum over the limit is refused where it is announced. What cannot be right ends the
 * body on the way out, and `status` says so: the reader behind never sees broken framing.
 *
 * Plain functions over bytes; no sockets, no allocation, one owner.
 */
#ifndef QUIRE_SERVER_HTTP_CHUNKED_H
#define QUIRE_SERVER_HTTP_CHUNKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum http_chunked_state {
    CHUNKED_SIZE,      /* hexadecimal digits */
    CHUNKED_BLANK,     /* blanks before an extension */
    CHUNKED_EXTENSION, /* ignored */
    CHUNKED_SIZE_LF,
    CHUNKED_DATA,
    CHUNKED_DATA_CR,
    CHUNKED_DATA_LF,
    CHUNKED_TRAILER_START, /* a trailer's name, or CR: the end */
    CHUNKED_TRAILER_NAME,
    CHUNKED_TRAILER_VALUE,
    CHUNKED_TRAILER_LF,
    CHUNKED_END_LF,
    CHUNKED_END,
};

struct http_chunked {
    enum http_chunked_state state;
    unsigned status;      /* 0, or the HTTP status to refuse the body with: 400 or 413 */
    unsigned digits;      /* of the size that is being read */
    uint64_t remaining;   /* of the chunk that is being read */
    uint64_t total_bytes; /* announced so far */
    uint64_t limit_bytes;
    size_t extra_bytes; /* extensions and trailers so far */
    char pending[24];   /* for the reader, before anything else */
    unsigned pending_start, pending_length;
};

/* `limit_bytes`: of the body's data. */
void http_chunked_init(struct http_chunked *chunked, uint64_t limit_bytes);

/* Reads from `from` and writes to `to`, up to `room` bytes, and says how many. Stops where `to` is
   full, where `from` ends, and at the body's end. Returns how many bytes were read. */
size_t http_chunked_feed(struct http_chunked *chunked, const char *from, size_t length, char *to,
                         size_t room, size_t *written);

/* The body has ended, well or not, and all was written. */
bool http_chunked_is_done(const struct http_chunked *chunked);

#endif
