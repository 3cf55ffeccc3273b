/*
 * Admission: which waiting sequence gets a running slot, and whether its pages are there.
 *
 * A sequence is admitted only with all pages for the tokens it has (in KV cache groups with a
 * window as many as that and a step's chunk can reach), and only if the pages that each running
 * sequence takes next are left over. So a half-computed prompt waits for no pages. In worst-case
 * admission all pages must be free that the sequence and those that run may ever take, until their
 * ends. It holds while a sequence runs that must not be preempted again (preemption.h), and for
 * such a sequence itself.
 *
 * The first in the fair queue is not passed by others that wait. If it lacks a slot or pages,
 * nothing is admitted in this step. If it waits for a running prompt that is computing the very
 * page it needs next, only its own tenant's sequences wait behind it.
 *
 * Parallel sampling (n > 1): the first sequence of a completion that has no output yet is the
 * parent and computes the prompt; the others become pending forks, as far as slots go (and pages,
 * in worst-case admission). They have no pages until they get the parent's.
 *
 * Private to engine/scheduler/; the engine thread's.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_ADMISSION_H
#define QUIRE_ENGINE_SCHEDULER_ADMISSION_H

#include "engine/scheduler/preemption.h"

#include <stdbool.h>
#include <stdint.h>

struct admission {
    /* fixed after start */
    struct slots *slots;
    struct swap *swap;
    struct preemption *preemption;
    struct engine_metrics *metrics;
    bool prefix_cache;
    bool whole_prompts; /* a prompt is admitted only into a step that has room for all of it */
    /* of the step */
    uint32_t token_room; /* tokens that prompts may still have */
};

/* The prefix cache is on, for this completion, too. */
bool admission_uses_cache(const struct admission *admission, const struct completion *completion);

/* The prompt that gets the next tokens, at most *token_limit of them; NULL: there is none. Admits
   waiting sequences as their turn comes. */
struct sequence *admission_next_prompt(struct admission *admission, uint32_t *token_limit,
                                       uint64_t now_ns);

/* If in the step before the first in the queue lacked a slot or pages: preempts for it those that
   are less urgent or have more than their share. Before anything is scheduled, since it may be
   anyone. */
void admission_reclaim(struct admission *admission);

#endif
