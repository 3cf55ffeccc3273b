/*
 * The scheduler from inside: shared by scheduler.c (who waits, who has a place, how things end) and
 * scheduler_step.c (what the next step does, and what comes of it). Nobody else includes this.
 *
 * `order` holds everyone that has a place, oldest first; the waiting list is in the same order of
 * age. Places, arrays and page tables are allocated at start; nothing is allocated later.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_PRIVATE_H
#define QUIRE_ENGINE_SCHEDULER_PRIVATE_H

#include "engine/scheduler.h"

struct schedule_entry {
    struct sequence *sequence;
    uint32_t row_count;
};

struct scheduler {
    /* fixed after start */
    struct scheduler_options options;
    uint32_t page_size;
    /* engine thread only */
    struct sequence *sequences; /* [max_sequences] places */
    struct sequence *free_list;
    struct sequence **order; /* [max_sequences] those with a place, oldest first */
    uint32_t running_count;
    struct completion *waiting_first, *waiting_last;
    uint32_t waiting_count;
    uint64_t arrivals, dequeued, completed;
    uint64_t step;
    uint32_t starved_steps; /* in which prompts could have run and got no row */
    /* the step's plan */
    struct schedule schedule;
    struct schedule_entry *entries; /* [max_sequences] */
    uint32_t entry_count;
    struct sequence **turns;                /* [max_sequences] scratch */
    uint32_t *tokens;                       /* [max_batch_tokens] */
    struct batch_sequence *batch_sequences; /* [max_sequences] */
    uint32_t *logits_rows;                  /* [max_sequences] */
    struct schedule_copy *copies;           /* [max_sequences]: each sequence copies at most once */
    const struct page_table **tables;       /* [max_sequences] scratch of scheduler_check */
    struct completion *dirty; /* whose readers are to be woken, linked by next_dirty */
};

/* A waiting choice gets a free place, without pages; there must be one. */
struct sequence *scheduler_seat(struct scheduler *scheduler, struct completion *completion,
                                uint32_t choice);

/* From its place back to the waiting list; who follows it goes along. */
void scheduler_send_back(struct scheduler *scheduler, struct sequence *sequence);

/* From its place to its end. */
void scheduler_end(struct scheduler *scheduler, struct sequence *sequence,
                   enum finish_reason reason, uint64_t now_ns);

/* The completion has no claim to a place in the queue any more: it runs for the first time or
 * ended. */
void scheduler_leave_queue(struct scheduler *scheduler, struct completion *completion);

/* The reader is to be woken by scheduler_settle. */
void scheduler_mark_dirty(struct scheduler *scheduler, struct completion *completion);

void scheduler_update_gauges(struct scheduler *scheduler);

static inline double scheduler_seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

#endif
