/*
 * Swapping: which way a preempted sequence goes, and how it comes back. Its pages are written to
 * the swap file if that is cheaper than computing them again; what that costs, and what the file
 * is, page_swap.h says.
 *
 *     runs → SWAPPING_OUT → waits, with swapped pages → SWAPPING_IN → PREFILL, as far as before
 *
 * SWAPPING_OUT: the sequence has its slot while its pages are written, the last ones first; each
 * page is free once it is written. SWAPPING_IN: it has its slot and all its pages, and its swapped
 * pages until all of them are read; preempted then, it has nothing to write.
 *
 * Pages move at the beginning of a step, before anything is scheduled, so that none of them is
 * computed with or about to be copied. A step moves a few of them (page_swap_step_pages). If nobody
 * else can run, such a step has no tokens, and the engine looks for cancels and arrivals before it
 * moves the next few.
 *
 * Full pages at the beginning that other sequences use, too, and that are cached are not written.
 * If they have been evicted when the sequence is admitted again, or if anything fails, its swapped
 * pages are dropped and everything is computed again: the answer is the same.
 *
 * Invariants: a waiting sequence or one that is being swapped may have swapped pages, any other has
 * none; every slot of the file belongs to exactly one sequence.
 *
 * Private to engine/scheduler/; the engine thread's. Without a file (NULL) every preempted sequence
 * is requeued, and all of this does nothing.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SWAP_H
#define QUIRE_ENGINE_SCHEDULER_SWAP_H

#include "engine/scheduler/page_swap.h"
#include "engine/scheduler/slots.h"

#include <stdbool.h>
#include <stdint.h>

struct swap {
    /* fixed after start */
    struct page_swap *file; /* NULL: none */
    struct slots *slots;
    struct engine_metrics *metrics; /* page_swap counts pages and bytes, this counts sequences */
};

/* What preempting a sequence would cost, the cheaper way: nanoseconds, or without a file tokens.
 *swapped: that way is the file. */
uint64_t swap_preemption_cost(const struct swap *swap, const struct sequence *sequence,
                              bool *swapped);

/* Takes that way: the sequence is SWAPPING_OUT, or waits again. Its pending forks wait in any case.
 */
void swap_preempt(struct swap *swap, struct sequence *sequence);

/* Does a waiting sequence come back with swapped pages? Then they are part of its origin, which
   says what pager_find found (nothing, if no slot is free). Swapped pages that are of no use any
   more are dropped. */
void swap_extend_origin(struct swap *swap, struct completion *completion, uint32_t index,
                        struct sequence_origin *origin);

/* A sequence that was started as SWAPPING_IN: its pages are to be read. */
void swap_start_in(struct swap *swap, struct sequence *sequence);

/* Is a sequence being swapped out; or any way? */
bool swap_is_writing(const struct swap *swap);
bool swap_is_moving(const struct swap *swap);

/* Writes one page of a sequence that is being swapped out, so that it is free; false: there is
 * none. */
bool swap_write_page(struct swap *swap);

/* Moves the pages of a step. */
void swap_move_pages(struct swap *swap);

/* The sequence needs no swapped pages any more. */
void swap_drop(struct swap *swap, struct completion *completion, uint32_t index);

/* NULL, or what is wrong with swapped pages and slots of the file. */
const char *swap_check(const struct swap *swap);

#endif
