/*
 * recv() as the HTTP library calls it: see http_framing.h.
 *
 * The library waits for edges: after a read that was shorter than asked for it reads again only
 * when more arrives. So a read goes on until the library's buffer is full, the kernel has no more,
 * or the message is whole; and framing_next asks the kernel for a new edge, since bytes of the next
 * message may have come with this one's last. (Setting SO_RCVLOWAT, to what it is anyway, does that
 * since Linux 4.18.)
 *
 * Heads and size lines are peeked at first, so that not a byte behind them is taken.
 */
#include "server/http_framing.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/minmax.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define DESCRIPTORS_MAX (1u << 20)
#define HEAD_START_BYTES 1024u
#define BLOCK_BYTES 4096u /* of chunked bodies, on the stack */

/* By descriptor. Only those that are used take memory. */
static _Atomic(struct framing *) *framings;
static size_t framing_count;

bool framing_start(void)
{
    struct rlimit limit;
    if (framings)
        return true;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return false;
    framing_count = (size_t)min_u64(limit.rlim_max, DESCRIPTORS_MAX);
    framings = calloc(framing_count, sizeof *framings);
    return framings != NULL;
}

bool framing_open(struct framing *framing, int fd)
{
    *framing = (struct framing){.fd = fd};
    if (fd < 0 || (size_t)fd >= framing_count)
        return false;
    atomic_store(&framings[fd], framing);
    return true;
}

void framing_close(struct framing *framing)
{
    if (atomic_load(&framings[framing->fd]) == framing)
        atomic_store(&framings[framing->fd], NULL);
    free(framing->bytes);
    framing->bytes = NULL;
}

static void free_head(struct framing *framing)
{
    free(framing->bytes);
    framing->bytes = NULL;
    framing->length = framing->capacity = framing->checked = 0;
    framing->head = (struct http_head){0};
}

void framing_next(struct framing *framing)
{
    free_head(framing);
    /* After a refused message nothing can be told from its rest any more. */
    if (framing->status || framing->state != FRAMING_DONE)
        return;
    framing->state = FRAMING_HEAD;
    int one = 1;
    setsockopt(framing->fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
}

static void refuse(struct framing *framing, unsigned status, enum status kind, const char *code,
                   const char *message)
{
    framing->status = status;
    error_set_code(&framing->error, kind, code, NULL, "%s", message);
}

/* What the library reads in place of the head: only what it acts upon. */
static void give_head(struct framing *framing)
{
    struct http_head *head = &framing->head;
    const char *expect = http_head_field(head, "Expect");
    bool continues = expect && head->http11 && !strcasecmp(expect, "100-continue");
    bool closes = framing->status || head->close;
    char length[48] = "";
    framing->state = FRAMING_DONE;
    if (framing->status) {
        ;
    } else if (head->chunked) {
        snprintf(length, sizeof length, "Transfer-Encoding: chunked\r\n");
        framing->state = FRAMING_CHUNKED;
        http_chunked_init(&framing->chunked, LIMIT_BODY_BYTES);
    } else if (head->content_length) {
        snprintf(length, sizeof length, "Content-Length: %llu\r\n",
                 (unsigned long long)head->content_length);
        framing->state = FRAMING_LENGTH;
        framing->remaining = head->content_length;
    }
    framing->pending_start = 0;
    framing->pending_length = (size_t)snprintf(
        framing->pending, sizeof framing->pending, "%s / HTTP/1.%c\r\nHost: -\r\n%s%s%s\r\n",
        strcmp(head->method, "HEAD") != 0 ? "POST" : "HEAD",
        head->http11 || framing->status ? '1' : '0', length,
        closes             ? "Connection: close\r\n"
        : head->keep_alive ? "Connection: Keep-Alive\r\n"
                           : "",
        continues && *length ? "Expect: 100-continue\r\n" : "");
    CHECK(framing->pending_length < sizeof framing->pending);
}

/* The head ends here, for better or worse. */
static void end_head(struct framing *framing, size_t length)
{
    if (!framing->status)
        framing->status = http_head_parse(framing->bytes, length, &framing->head, &framing->error);
    else
        framing->head = (struct http_head){.method = "-", .target = "-", .fields = ""};
    give_head(framing);
}

static void refuse_head(struct framing *framing, unsigned status, enum status kind,
                        const char *code, const char *message)
{
    refuse(framing, status, kind, code, message);
    end_head(framing, 0);
}

/* Room for more of the head; false: there can be none. */
static bool grow_head(struct framing *framing)
{
    if (framing->length < framing->capacity)
        return true;
    size_t capacity = framing->capacity ? framing->capacity * 4 : HEAD_START_BYTES;
    char *bytes = capacity <= LIMIT_HEAD_BYTES ? realloc(framing->bytes, capacity) : NULL;
    if (bytes) {
        framing->bytes = bytes;
        framing->capacity = capacity;
        return true;
    }
    if (capacity <= LIMIT_HEAD_BYTES)
        refuse_head(framing, 503, STATUS_UNAVAILABLE, "out_of_memory",
                    "there is no memory for this request now");
    else if (!memchr(framing->bytes, '\n', framing->length))
        refuse_head(framing, 414, STATUS_INVALID, "uri_too_long",
                    "the request line is longer than a head may be");
    else
        refuse_head(framing, 431, STATUS_INVALID, "headers_too_large",
                    "request line and headers are longer than a head may be");
    return false;
}

static ssize_t peek(int fd, void *to, size_t most)
{
    return recvfrom(fd, to, most, MSG_PEEK, NULL, NULL);
}

/* Take what was peeked at. */
static void take(int fd, void *to, size_t length)
{
    ssize_t got = length ? recvfrom(fd, to, length, 0, NULL, NULL) : 0;
    CHECK(got == (ssize_t)length || got < 0); /* a reset may come between */
}

/* 1: went on; 0: the client closed; -1: errno. */
static int read_head(struct framing *framing)
{
    if (!grow_head(framing))
        return 1;
    char *to = framing->bytes + framing->length;
    ssize_t got = peek(framing->fd, to, framing->capacity - framing->length);
    if (got <= 0)
        return (int)got;
    if (!framing->length && *to == '\r' && (got == 1 || to[1] == '\n')) {
        /* An empty line may stand before a request line (RFC 9112, section 2.2). */
        if (got == 1) {
            errno = EAGAIN;
            return -1;
        }
        take(framing->fd, to, 2);
        return 1;
    }
    size_t length = framing->length + (size_t)got;
    size_t end = http_head_find_end(framing->bytes, length, &framing->checked);
    bool found = end && end != SIZE_MAX;
    take(framing->fd, to, (found ? end : length) - framing->length);
    framing->length = found ? end : length;
    if (end == SIZE_MAX)
        refuse_head(framing, 400, STATUS_INVALID, "bad_request",
                    "the head has a byte that no head can have");
    else if (found)
        end_head(framing, end);
    return 1;
}

/* The same for bodies; `*given` bytes were put at `to`. */
static int read_length(struct framing *framing, char *to, size_t room, size_t *given)
{
    size_t most = (size_t)min_u64(room, framing->remaining);
    ssize_t got = recvfrom(framing->fd, to, most, 0, NULL, NULL);
    if (got <= 0)
        return (int)got;
    *given = (size_t)got;
    framing->remaining -= (uint64_t)got;
    if (!framing->remaining)
        framing->state = FRAMING_DONE;
    return 1;
}

static void refuse_body(struct framing *framing)
{
    if (framing->chunked.status == 413)
        refuse(framing, 413, STATUS_TOO_LARGE, "body_too_large",
               "the chunks announce more than a body may have");
    else
        refuse(framing, 400, STATUS_INVALID, "bad_request", "the chunked coding is malformed");
}

static int read_chunked(struct framing *framing, char *to, size_t room, size_t *given)
{
    struct http_chunked *chunked = &framing->chunked;
    char block[BLOCK_BYTES];
    if (http_chunked_is_done(chunked)) {
        framing->state = FRAMING_DONE;
        return 1;
    }
    ssize_t got = 0;
    if (!chunked->pending_length) {
        got = peek(framing->fd, block, sizeof block);
        if (got <= 0)
            return (int)got;
    }
    size_t read = http_chunked_feed(chunked, block, (size_t)got, to, room, given);
    take(framing->fd, block, read);
    if (chunked->status && !framing->status)
        refuse_body(framing);
    return 1;
}

/* The message is whole: nothing more until it is answered, but a client that closed is told. */
static int read_done(struct framing *framing)
{
    char byte;
    ssize_t got = peek(framing->fd, &byte, 1);
    if (got > 0)
        errno = EAGAIN;
    return got > 0 ? -1 : (int)got;
}

static ssize_t read_message(struct framing *framing, char *to, size_t room)
{
    size_t given = 0;
    while (given < room) {
        size_t part = 0;
        int result = 1;
        if (framing->pending_length) {
            part = (size_t)min_u64(framing->pending_length, room - given);
            memcpy(to + given, framing->pending + framing->pending_start, part);
            framing->pending_start += part;
            framing->pending_length -= part;
        } else if (framing->state == FRAMING_HEAD) {
            result = read_head(framing);
        } else if (framing->state == FRAMING_LENGTH) {
            result = read_length(framing, to + given, room - given, &part);
        } else if (framing->state == FRAMING_CHUNKED) {
            result = read_chunked(framing, to + given, room - given, &part);
        } else {
            if (given)
                break;
            result = read_done(framing);
        }
        if (result <= 0)
            return given ? (ssize_t)given : result;
        given += part;
    }
    return (ssize_t)given;
}

/* Overrides the C library's for the whole program: see http_framing.h. */
__attribute__((visibility("default"))) ssize_t recv(int fd, void *to, size_t room, int flags)
{
    struct framing *framing =
        fd >= 0 && (size_t)fd < framing_count ? atomic_load(&framings[fd]) : NULL;
    if (!framing)
        return recvfrom(fd, to, room, flags, NULL, NULL);
    return read_message(framing, to, room);
}
