/*
 * The inbox: how full the queue is, whether there is room for more, and when there will be.
 * Private to engine/. Decides on numbers alone: tested without an engine or a clock.
 *
 * The queue is bounded in requests and in prompt tokens. Where several API keys are served, one may
 * hold at most as much of the queue as is free (the dynamic thresholds of Choudhury and Hahne,
 * "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): alone it gets half,
 * two get a third each, and there is always room for one more that has nothing waiting.
 *
 * Queued = submitted − dequeued, per tenant. Submitted is written under the engine's lock, dequeued
 * by the engine thread; both are atomics, so nobody locks to read how long the queue is.
 */
#ifndef QUIRE_ENGINE_INBOX_H
#define QUIRE_ENGINE_INBOX_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdint.h>

/* How fast something goes by, while there is something to do. */
struct inbox_rate {
    /* engine thread only */
    uint64_t seen, since_ns;  /* since_ns 0: nothing to do until now */
    double recent, recent_ns; /* events and the time they took, fading */
    /* atomics */
    atomic_uint_fast64_t each_ps; /* picoseconds between two; 0: not known yet */
    atomic_uint_fast64_t last_ns; /* when the last one was, or work began; 0: never */
};

struct inbox_tenant {
    /* atomics */
    atomic_uint_fast64_t submitted, submitted_tokens; /* written under the engine's lock */
    atomic_uint_fast64_t dequeued, dequeued_tokens;
    atomic_uint_fast64_t served_tokens; /* computed for it, for metrics */
};

struct inbox {
    /* fixed after start */
    uint32_t tenant_count;        /* 0 is the tenant without a key, the others are keys */
    uint32_t max_queue;           /* requests */
    uint32_t max_sequences;       /* places */
    uint64_t max_tokens;          /* prompt tokens; 0: no bound */
    struct inbox_tenant *tenants; /* [tenant_count] */
    /* atomics */
    atomic_uint sharing; /* tenants that share the queue now */
    atomic_uint room;    /* places for newcomers: they pass the queue at once */
    struct inbox_rate completions, tokens;
};

/* Under the engine's lock: may `count` requests of a tenant with so many prompt tokens in all come
   in? STATUS_BUSY with retry_after_s if not now, STATUS_INVALID if never. */
enum status inbox_check(const struct inbox *inbox, uint32_t tenant, uint32_t count, uint64_t tokens,
                        uint64_t now_ns, struct error *error);
/* Under the engine's lock: they came in. */
void inbox_enter(struct inbox *inbox, uint32_t tenant, uint32_t count, uint64_t tokens);

/* Engine thread: what left the queue so far, and what was computed. */
void inbox_publish(struct inbox *inbox, uint32_t tenant, uint64_t dequeued,
                   uint64_t dequeued_tokens, uint64_t served_tokens);
/* Engine thread: so many completions have ended so far. Call after inbox_publish. */
void inbox_observe(struct inbox *inbox, uint64_t completed, uint64_t now_ns);
/* Engine thread: there is work again after there was none. */
void inbox_resume(struct inbox *inbox, uint64_t now_ns);

/* Any thread. */
struct inbox_queued {
    uint64_t requests, tokens;
};
/* Exact under the engine's lock, else near enough for a gauge. */
struct inbox_queued inbox_queued(const struct inbox *inbox);
/* Seconds, at least 1, until all that wait now will probably have left the queue. */
unsigned inbox_retry_after_s(const struct inbox *inbox, uint64_t now_ns);

#endif
