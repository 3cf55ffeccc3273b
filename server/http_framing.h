/*
 * Message framing: every byte of a request is read here before the HTTP library sees it.
 *
 * libmicrohttpd parses heads and chunked bodies itself, differently from version to version, and
 * takes much that another reader in front of it reads otherwise: that is how requests are smuggled.
 * So this module defines recv(): the dynamic linker gives the program's definition to the library,
 * which calls it for each connection. Heads and chunk sizes are parsed here, strictly, and what the
 * library gets is a head and a body in their plainest form, which every version reads alike. A
 * request that must be refused reaches the handler too, as a whole one without a body, with
 * `status` saying why: so there is exactly one answer, in its turn, and it is ours.
 *
 * One message at a time: what a client sends behind it stays in the kernel until framing_next.
 *
 * Sockets that were not given to framing_open are read as always. A framing belongs to the
 * library's thread of its connection.
 */
#ifndef QUIRE_SERVER_HTTP_FRAMING_H
#define QUIRE_SERVER_HTTP_FRAMING_H

#include "server/http_chunked.h"
#include "server/http_head.h"

#include <stdbool.h>
#include <stddef.h>

enum framing_state {
    FRAMING_HEAD,    /* its end was not read */
    FRAMING_LENGTH,  /* a body of known length */
    FRAMING_CHUNKED, /* a chunked one */
    FRAMING_DONE,    /* all of the message was given to the library */
};

struct framing {
    int fd;
    enum framing_state state;
    struct http_head head; /* valid from the handler's first call until framing_next */
    unsigned status;       /* 0, or the HTTP status that the message must be refused with */
    struct error error;    /* then */
    /* private */
    char *bytes; /* of the head; allocated while there is one */
    size_t length, capacity, checked;
    uint64_t remaining; /* of a body of known length */
    struct http_chunked chunked;
    char pending[160]; /* for the library, before anything else */
    size_t pending_start, pending_length;
};

/* Once, before the first connection: room for every descriptor that this process can have. */
bool framing_start(void);

/* False when the descriptor is beyond that room. */
bool framing_open(struct framing *framing, int fd);
void framing_close(struct framing *framing);

/* The message was answered: free its head and go on with the next one. */
void framing_next(struct framing *framing);

#endif
