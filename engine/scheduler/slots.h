/*
 * The running slots: --max-seqs places for sequences that run at the same time, each with the page
 * tables that its sequence uses. Allocated at start; nothing is allocated later.
 *
 * Invariants: a slot is either in the free list, empty and without pages, or its sequence is in
 * `order`; order is sorted (sequence_precedes), so order[0] is the one that is never preempted; a
 * sequence in order is RUNNING in its completion; a pending fork stands behind its parent.
 *
 * A sequence gets its slot from the fair queue and leaves it for the queue (requeue) or for good
 * (release); the queue's counts change with it.
 *
 * Private to engine/scheduler/; the engine thread's.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SLOTS_H
#define QUIRE_ENGINE_SCHEDULER_SLOTS_H

#include "engine/scheduler/fair_queue.h"
#include "engine/scheduler/sequence.h"

#include <stdbool.h>
#include <stdint.h>

struct slots {
    /* fixed after start */
    struct pager *pager;
    struct fair_queue *queue;
    uint32_t slot_count;
    uint32_t page_size;
    uint32_t group_count;
    uint32_t table_capacity;    /* pages of a table; a slot's tables lie one behind the other */
    uint32_t max_batch_tokens;  /* of a step: the longest chunk of a prompt */
    struct sequence *sequences; /* [slot_count] */
    /* engine thread only */
    struct sequence *free_first; /* NULL: every slot is taken */
    struct sequence **order;     /* [slot_count] the first `count` run */
    uint32_t count;
};

/* All slots are free. tables [slot_count·group_count], pages
   [slot_count·group_count·table_capacity]; the other fields are set. */
void slots_init(struct slots *slots, struct page_table *tables, uint32_t *pages);

/* A waiting sequence gets a free slot, without pages; there is one. */
struct sequence *slots_take(struct slots *slots, struct completion *completion, uint32_t index);

/* The sequence leaves its slot and releases its pages. */
void slots_release(struct slots *slots, struct sequence *sequence);

/* The sequence leaves its slot, releases its pages and waits again; so do its pending forks. */
void slots_requeue(struct slots *slots, struct sequence *sequence);
void slots_requeue_forks(struct slots *slots, const struct sequence *parent);

/* The first in order that is in this state, or NULL. */
struct sequence *slots_find(const struct slots *slots, enum sequence_state state);

uint32_t slots_decoding_count(const struct slots *slots);

/* NULL, or what is wrong with order and free list. */
const char *slots_check(const struct slots *slots);

#endif
