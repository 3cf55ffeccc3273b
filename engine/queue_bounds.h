/*
 * The bounds of the queue: how full it is, whether there is room for more, and when there will be.
 * Private to engine/. It decides on numbers alone: it is tested without an engine and without a
 * clock.
 *
 * The queue is bounded in requests and in prompt tokens. Where several API keys are served, one key
 * may use at most as much of the queue as is free (the dynamic thresholds of Choudhury and Hahne,
 * "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): alone it gets half,
 * two get a third each, and there is always room for one more that has nothing waiting.
 *
 * Queued = submitted − dequeued, for each tenant. Submitted is written under the inbox's lock,
 * dequeued by the engine thread; both are atomics, so nobody locks to read how long the queue is.
 */
#ifndef QUIRE_ENGINE_QUEUE_BOUNDS_H
#define QUIRE_ENGINE_QUEUE_BOUNDS_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdint.h>

/* How fast events follow each other while there is work. */
struct event_rate {
    /* engine thread only */
    uint64_t seen, since_ns;  /* since_ns 0: there was no work until now */
    double recent, recent_ns; /* events and the time they took, fading */
    /* atomics */
    atomic_uint_fast64_t each_ps; /* picoseconds between two; 0: not known yet */
    atomic_uint_fast64_t last_ns; /* when the last one was, or work began; 0: never */
};

struct tenant_queue {
    /* atomics */
    atomic_uint_fast64_t submitted, submitted_tokens; /* written under the inbox's lock */
    atomic_uint_fast64_t dequeued, dequeued_tokens;
    atomic_uint_fast64_t served_tokens; /* computed for it, for metrics */
};

struct queue_bounds {
    /* fixed after start */
    uint32_t tenant_count;        /* 0 is the tenant without a key, the others are keys */
    uint32_t max_queue;           /* requests */
    uint32_t max_sequences;       /* running slots */
    uint64_t max_tokens;          /* prompt tokens; 0: no bound */
    struct tenant_queue *tenants; /* [tenant_count] */
    /* atomics */
    atomic_uint sharing; /* tenants that share the queue now */
    atomic_uint room;    /* running slots for new requests, which then do not wait */
    struct event_rate completions, tokens;
};

/* Under the inbox's lock: is there room for `count` requests of a tenant with so many prompt tokens
   in all? STATUS_BUSY with retry_after_s if not now, STATUS_INVALID if never. */
enum status queue_bounds_check(const struct queue_bounds *bounds, uint32_t tenant, uint32_t count,
                               uint64_t tokens, uint64_t now_ns, struct error *error);
/* Under the inbox's lock: they are in. */
void queue_bounds_enter(struct queue_bounds *bounds, uint32_t tenant, uint32_t count,
                        uint64_t tokens);

/* Engine thread: what left the queue so far, and what was computed. */
void queue_bounds_publish(struct queue_bounds *bounds, uint32_t tenant, uint64_t dequeued,
                          uint64_t dequeued_tokens, uint64_t served_tokens);
/* Engine thread: so many completions have ended so far. Call after queue_bounds_publish. */
void queue_bounds_observe(struct queue_bounds *bounds, uint64_t completed, uint64_t now_ns);
/* Engine thread: there is work again after there was none. */
void queue_bounds_resume(struct queue_bounds *bounds, uint64_t now_ns);

/* Any thread. */
struct queue_size {
    uint64_t requests, tokens;
};
/* Exact under the inbox's lock, else near enough for a gauge. */
struct queue_size queue_bounds_size(const struct queue_bounds *bounds);
/* Seconds, at least 1, until everything that waits now will probably have left the queue. */
unsigned queue_bounds_retry_after_s(const struct queue_bounds *bounds, uint64_t now_ns);

#endif
