/*
 * The watcher: one thread that sees what libmicrohttpd cannot see or does not time.
 *
 * A suspended connection is out of the library's epoll, so a client that hangs up while its request
 * waits or computes goes unnoticed; the library's timeouts do not run then either, and count from
 * the last byte, which a client that sends a byte now and then renews for ever. The watcher has
 * every connection's socket in an epoll of its own (hang-ups only) and a deadline for every phase.
 *
 * A half-closed client (it shut down its sending side) cannot be told from one that left: it counts
 * as gone.
 *
 * Connections without a whole request keep nobody out: when more than `limit` are open, one is
 * closed in favour of the new one, as it would be at its deadline: the one that has been idle
 * longest, or when none is idle the one whose head has been incomplete longest. Only when all have
 * requests is a new one over the limit.
 *
 * Connections are named by 64-bit ids, never by pointers: an event that comes late finds no one.
 * add and remove are called on the library's threads while the socket is open. The callbacks run on
 * the watcher's thread under its lock: they must be short and must not call the watcher.
 */
#ifndef QUIRE_SERVER_WATCHER_H
#define QUIRE_SERVER_WATCHER_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct watcher;

enum watch_phase {
    WATCH_IDLE,  /* between requests: LIMIT_IDLE_SECONDS, or LIMIT_HEAD_SECONDS from the first byte
                  */
    WATCH_BODY,  /* the head was read: the deadline for the rest is given */
    WATCH_WORK,  /* the request waits or computes: no deadline; a hang-up is told */
    WATCH_REPLY, /* an answer is being sent: the deadline is given */
};

struct watcher_callbacks {
    void *arg;
    /* A head, or a body (WATCH_BODY), did not come in time: tell the client on its socket, which is
       closed after it. The library sends nothing in these phases. */
    void (*expired)(void *connection, bool body);
    /* The client of the attached request is gone. */
    void (*hangup)(void *request);
    /* A few times a second for each attached request; true: drop the client. */
    bool (*tick)(void *request, uint64_t now_ns);
    /* A few times a second while there are connections. */
    void (*every)(void *arg, uint64_t now_ns);
};

/* Up to `capacity` connections are watched, of which `limit` are served. */
enum status watcher_create(unsigned limit, unsigned capacity,
                           const struct watcher_callbacks *callbacks, struct watcher **out,
                           struct error *error);
void watcher_destroy(struct watcher *watcher); /* no connections may be left */

/* The id, in WATCH_IDLE; 0 when `capacity` connections are watched already. `connection` is for
   `expired` and lives until watcher_remove. */
uint64_t watcher_add(struct watcher *watcher, int fd, void *connection);
void watcher_remove(struct watcher *watcher, uint64_t id);

/* `seconds` is for WATCH_BODY and WATCH_REPLY. False when the connection is closed already: nothing
   can be sent on it. */
bool watcher_phase(struct watcher *watcher, uint64_t id, enum watch_phase phase, unsigned seconds);

/* From now on hang-ups and ticks go to `request`. False when the client is already gone. */
bool watcher_attach(struct watcher *watcher, uint64_t id, void *request);
/* After it returns no callback gets the request any more. */
void watcher_detach(struct watcher *watcher, uint64_t id);

/* A connection that is closed while its client may still be sending: `fd` is a duplicate of its
   socket, which is read to its end, or for LIMIT_LINGER_SECONDS, and closed. Bytes that nobody reads
   would reset the connection, and the client would lose the answer that it was given. */
void watcher_linger(struct watcher *watcher, int fd);

/* Call `visit` for every attached request, as the callbacks are called. */
void watcher_visit(struct watcher *watcher, void (*visit)(void *request));

/* From now on a connection without a request has LIMIT_DRAIN_IDLE_SECONDS to send one. */
void watcher_drain(struct watcher *watcher);
/* Close every socket, pending answers included; attached requests are told. */
void watcher_drop_all(struct watcher *watcher);

unsigned watcher_connections(struct watcher *watcher);
/* Are there more connections than the limit, those not counted that are being closed? */
bool watcher_is_over_limit(struct watcher *watcher);
/* Connections that ran into a deadline or were closed for a new one. */
uint64_t watcher_dropped(struct watcher *watcher);

#endif
