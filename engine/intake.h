/*
 * The intake: how full the queue is, whether there is room for more, and when there will be.
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
#ifndef QUIRE_ENGINE_INTAKE_H
#define QUIRE_ENGINE_INTAKE_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdint.h>

/* How fast something goes by, while there is something to do. */
struct intake_rate {
    /* engine thread only */
    uint64_t seen, since_ns;  /* since_ns 0: nothing to do until now */
    double recent, recent_ns; /* events and the time they took, fading */
    /* atomics */
    atomic_uint_fast64_t each_ps; /* picoseconds between two; 0: not known yet */
    atomic_uint_fast64_t last_ns; /* when the last one was, or work began; 0: never */
};

struct intake_tenant {
    /* atomics */
    atomic_uint_fast64_t submitted, submitted_tokens; /* written under the engine's lock */
    atomic_uint_fast64_t dequeued, dequeued_tokens;
    atomic_uint_fast64_t served_tokens; /* computed for it, for metrics */
};

struct intake {
    /* fixed after start */
    uint32_t tenant_count;         /* 0 is the tenant without a key, the others are keys */
    uint32_t max_queue;            /* requests */
    uint32_t max_sequences;        /* places */
    uint64_t max_tokens;           /* prompt tokens; 0: no bound */
    struct intake_tenant *tenants; /* [tenant_count] */
    /* atomics */
    atomic_uint room; /* places for newcomers: they pass the queue at once */
    struct intake_rate completions, tokens;
};

/* Under the engine's lock: may `count` requests of a tenant with so many prompt tokens in all come
   in? STATUS_BUSY with retry_after_s if not now, STATUS_INVALID if never. */
enum status intake_check(const struct intake *intake, uint32_t tenant, uint32_t count,
                         uint64_t tokens, uint64_t now_ns, struct error *error);
/* Under the engine's lock: they came in. */
void intake_enter(struct intake *intake, uint32_t tenant, uint32_t count, uint64_t tokens);

/* Engine thread: what left the queue so far, and what was computed. */
void intake_publish(struct intake *intake, uint32_t tenant, uint64_t dequeued,
                    uint64_t dequeued_tokens, uint64_t served_tokens);
/* Engine thread: so many completions have ended so far. Call after intake_publish. */
void intake_observe(struct intake *intake, uint64_t completed, uint64_t now_ns);
/* Engine thread: there is work again after there was none. */
void intake_resume(struct intake *intake, uint64_t now_ns);

/* Any thread. */
struct intake_queued {
    uint64_t requests, tokens;
};
/* Exact under the engine's lock, else near enough for a gauge. */
struct intake_queued intake_queued(const struct intake *intake);
/* Seconds, at least 1, until all that wait now will probably have left the queue. */
unsigned intake_retry_after_s(const struct intake *intake, uint64_t now_ns);

#endif
