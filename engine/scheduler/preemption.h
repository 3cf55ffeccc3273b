/*
 * Preemption: which running sequence loses its pages and its slot when there are too few.
 *
 * There are two occasions. A running sequence needs a page and none is free
 * (preemption_secure_pages, before tokens are scheduled, so that nothing has to be taken back). Or
 * a waiting sequence is more urgent than running ones, or its tenant has less than its share of
 * slots and pages while another has more (preemption_reclaim).
 *
 * The order of preemption: the least urgent priority class; then the tenant that has the most
 * pages; then the greatest priority value; then the sequence that costs least to bring back
 * (swap.h); then the youngest.
 *
 * Invariants: the first sequence in order is never preempted. It always fits alone, so some
 * sequence always ends. A sequence that was preempted PREEMPTIONS_MAX times is not preempted again:
 * while it runs, admission counts the worst case of everybody (admission.h), so there is a page for
 * everyone.
 *
 * Private to engine/scheduler/; the engine thread's.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_PREEMPTION_H
#define QUIRE_ENGINE_SCHEDULER_PREEMPTION_H

#include "engine/engine_metrics.h"
#include "engine/scheduler/swap.h"

#include <stdbool.h>
#include <stdint.h>

#define PREEMPTIONS_MAX 2

/* What the running sequences of a tenant have. */
struct tenant_share {
    uint32_t slots, pages;
};

struct preemption {
    /* fixed after start */
    struct slots *slots;
    struct swap *swap;
    struct engine_metrics *metrics;
    /* scratch */
    struct tenant_share *shares;  /* [tenant_count] */
    struct sequence **candidates; /* [slot_count] */
};

static inline bool preemption_limit_reached(const struct completion_sequence *record)
{
    return record->preemptions >= PREEMPTIONS_MAX;
}

/* Does a sequence run that must not be preempted again? */
bool preemption_any_limit_reached(const struct preemption *preemption);

/* Preempts until there is a page for every sequence that takes some in this step
   (sequence_takes_pages). true: some sequence was preempted, or written out early. */
bool preemption_secure_pages(struct preemption *preemption);

/* Does a sequence run that might be preempted for the completion: a less urgent one, or another
   tenant's? */
bool preemption_could_serve(const struct preemption *preemption,
                            const struct completion *completion);

/* The completion is first to be admitted but lacks `pages` pages (it will have `initial_pages` of
   its own) or a slot. Preempts those that have more than their share if that is enough, else
   nobody. */
void preemption_reclaim(struct preemption *preemption, const struct completion *completion,
                        uint64_t pages, uint64_t initial_pages);

/* Tests: preempts one of the decoding sequences, the least often forced first, then the oldest. */
void preemption_force_one(struct preemption *preemption);

#endif
