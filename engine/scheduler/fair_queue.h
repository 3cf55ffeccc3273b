/*
 * The fair queue: which sequences wait for a running slot, and which tenant's prompt is served
 * next.
 *
 * Between tenants the one that was served the fewest tokens comes first: the virtual token counter
 * of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024. Within a tenant lower
 * priority values come first, then earlier arrivals. A more urgent priority class of any tenant
 * comes before both:
 *
 *     priority class = max(priority, 0)   over everything
 *     served tokens                       between tenants of a class
 *     priority, arrival                   within a tenant
 *
 * A token is charged once, when it is scheduled: a prompt token or an output token, no cached
 * token, no token that is recomputed. A tenant is backlogged while it has something waiting or a
 * prompt to compute, that is, while it could use more tokens than it gets. When its backlog begins,
 * its counter is lifted to the least of the backlogged tenants, or to that of the tenant whose
 * backlog ended last. So an idle tenant earns no credit, and a tenant that ran alone owes nothing.
 *
 * Invariants: a completion is in its tenant's list exactly while at least one of its sequences is
 * WAITING; every list is in the order in which the tenant wants to be served; prefill_count is the
 * number of the tenant's running sequences with a prompt (sequence_has_prompt).
 *
 * Private to engine/scheduler/; the engine thread's. It decides nothing about pages or slots: who
 * asks for the next prompt says through the `blocked` flags whose head cannot be admitted in this
 * step.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_FAIR_QUEUE_H
#define QUIRE_ENGINE_SCHEDULER_FAIR_QUEUE_H

#include "engine/engine_metrics.h"
#include "engine/scheduler/sequence.h"

#include <stdbool.h>
#include <stdint.h>

struct tenant {
    struct completion *waiting_first, *waiting_last;
    uint32_t waiting_count; /* completions */
    uint32_t prefill_count; /* running sequences with a prompt */
    uint64_t served;        /* the virtual counter: tokens served, and what it was lifted */
    uint64_t tokens;        /* tokens served, ever */
    uint64_t dequeued, dequeued_tokens; /* completions that left the queue, ever; their prompts */
    bool is_blocked;         /* in this step: its head waits for a prefix that is being computed */
    struct sequence *prompt; /* scratch of fair_queue_next */
};

struct fair_queue {
    /* fixed after start */
    struct tenant *tenants; /* [tenant_count] */
    uint32_t tenant_count;
    struct engine_metrics *metrics; /* progress is counted here */
    /* engine thread only */
    struct tenant *last_backlogged; /* whose backlog ended last; NULL: none yet */
    uint32_t waiting_count;         /* completions of all tenants */
    uint64_t arrivals;
    bool is_blocked;  /* in this step: nothing that waits is admitted any more */
    bool was_blocked; /* in the step before */
};

/* A new step: nothing is blocked. */
void fair_queue_begin_step(struct fair_queue *queue);

/* A new completion: all its sequences wait. */
void fair_queue_add(struct fair_queue *queue, struct completion *completion);

/* A sequence waits again. */
void fair_queue_push(struct fair_queue *queue, struct completion *completion, uint32_t index);

/* A sequence waits no longer; its status is now RUNNING or FINISHED. */
void fair_queue_remove(struct fair_queue *queue, struct completion *completion, uint32_t index,
                       enum sequence_status status);

/* The completion leaves the queue for good: it was admitted for the first time, or it ended. */
void fair_queue_count_dequeued(struct fair_queue *queue, struct completion *completion);

/* A running sequence of the completion has a prompt to compute, or has none any more. */
void fair_queue_begin_prefill(struct fair_queue *queue, const struct completion *completion);
void fair_queue_end_prefill(struct fair_queue *queue, const struct completion *completion);

/* The sequence's tokens before position `end` are being computed: new ones are charged. */
void fair_queue_charge(struct fair_queue *queue, const struct sequence *sequence, uint32_t end);

/* Whose prompt gets tokens next. */
struct fair_queue_turn {
    struct sequence *prompt;    /* a running prompt with tokens left, or NULL: … */
    struct completion *waiting; /* … the head of the tenant's waiting list, to be admitted */
    struct tenant *tenant;
    uint32_t token_limit; /* tokens until it is another tenant's turn */
};

/* running [running_count]: the sequences that have a slot. false: nobody wants tokens, or all that
   do are blocked. */
bool fair_queue_next(struct fair_queue *queue, struct sequence *const *running,
                     uint32_t running_count, struct fair_queue_turn *out);

/* NULL, or what is wrong with the lists and counts. */
const char *fair_queue_check(const struct fair_queue *queue, struct sequence *const *running,
                             uint32_t running_count);

static inline struct tenant *fair_queue_tenant(const struct fair_queue *queue,
                                               const struct completion *completion)
{
    return &queue->tenants[completion->tenant];
}

#endif
