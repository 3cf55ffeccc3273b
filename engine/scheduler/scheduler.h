/*
 * The scheduler: which sequences run in the next step, with how many tokens, in which pages; and
 * what becomes of their output. It knows tokens and pages, no tensors and no clock: it is tested
 * without a model. Private to engine/; the engine thread's. It refuses nothing: what can never run
 * is refused by engine_submit.
 *
 *     scheduler_sweep     ends what was cancelled or is late
 *     scheduler_next      schedules; the caller copies pages, runs the batch and fills the samples
 *     scheduler_commit    advances sequences, appends tokens, ends what is complete
 *     scheduler_notify    wakes the readers
 *
 * The rules, and the object that keeps each:
 *
 *     scheduler.c    decoding comes first, one token for each sequence; prompts get the rest, in
 *                    chunks. A deadline ends a sequence as it is, waiting or running
 *     step.h         if more sequences decode than a step has tokens, they take turns by tenant; in
 *                    every fourth such step half of the tokens, at least one, go to prompts
 *     fair_queue.h   prompts are served by priority class, tenant, priority, arrival
 *     admission.h    a sequence gets a slot only with all its pages, and none passes the first in
 *                    the queue. The sequences of one prompt share its pages
 *     preemption.h   when no page is free a sequence is preempted, never the first in order, none
 *                    more than twice. The first in the queue may preempt less urgent sequences
 *     swap.h         a preempted sequence waits with its pages in a file if that is cheaper
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SCHEDULER_H
#define QUIRE_ENGINE_SCHEDULER_SCHEDULER_H

#include "base/error.h"
#include "engine/engine_metrics.h"
#include "engine/scheduler/step.h"

#include <stdbool.h>
#include <stdint.h>

struct scheduler;
struct page_swap;

struct scheduler_options {
    struct pager *pager;        /* borrowed */
    struct page_swap *swap;     /* borrowed; NULL: preempted sequences are always recomputed */
    uint32_t max_sequences;     /* running slots */
    uint32_t max_batch_tokens;  /* tokens per step */
    uint32_t max_length;        /* tokens of a sequence; its pages fit the pool */
    uint32_t tenant_count;      /* >= 1: completions name one below this */
    const uint32_t *end_tokens; /* borrowed */
    uint32_t end_token_count;
    bool prefix_cache;
    bool whole_prompts; /* all tokens of a prompt in one step; max_length <= max_batch_tokens */
    uint32_t test_preempt_every; /* preempt a sequence every N steps; 0: never */
    struct engine_metrics *metrics;
};

/* All memory in one allocation; STATUS_IO when it fails. */
enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *error);
/* Nothing may be waiting or running. */
void scheduler_destroy(struct scheduler *scheduler);
/* What scheduler_create allocates; options->pager is not used. */
uint64_t scheduler_memory_bytes(const struct scheduler_options *options, uint32_t page_size,
                                uint32_t group_count);

/* An attached completion whose prompt_count < max_length; it is detached at its end. */
void scheduler_add(struct scheduler *scheduler, struct completion *completion, uint64_t now_ns);

/* Ends every sequence that was cancelled or whose deadline has passed, running or waiting; its
   pages are free at once. It looks at everything that waits: call it when the cancel epoch has
   moved or scheduler_deadline_ns has come. */
void scheduler_sweep(struct scheduler *scheduler, uint64_t now_ns);

/* Ends everything as cancelled. */
void scheduler_cancel_all(struct scheduler *scheduler, uint64_t now_ns);

/* The next step, in which prompts get at most prompt_token_limit (>= 1) tokens. Valid until the
   next call of any function here but commit. It has tokens whenever anything is running or waiting,
   except while all that could run is being swapped: a step without tokens moves a few pages, and is
   neither run nor committed. */
const struct schedule *scheduler_next(struct scheduler *scheduler, uint32_t prompt_token_limit,
                                      uint64_t now_ns);

/* The batch was run: advances sequences, publishes full pages, appends tokens, ends what is
 * complete. */
void scheduler_commit(struct scheduler *scheduler, uint64_t now_ns);

/* Notifies the readers of everything that sweep or commit changed, and detaches what has ended:
   after it an ended completion may be gone. */
void scheduler_notify(struct scheduler *scheduler);

bool scheduler_has_work(const struct scheduler *scheduler);
uint32_t scheduler_running_count(const struct scheduler *scheduler); /* slots taken */
uint32_t scheduler_waiting_count(const struct scheduler *scheduler); /* completions */
uint32_t scheduler_decoding_count(const struct scheduler *scheduler);
/* No deadline passes before; UINT64_MAX: there is none. */
uint64_t scheduler_deadline_ns(const struct scheduler *scheduler);

struct scheduler_tenant_counts {
    uint64_t dequeued;        /* completions that left the queue, by running or ending, ever */
    uint64_t dequeued_tokens; /* and the tokens of their prompts */
    uint64_t tokens;          /* computed for the tenant, each once; cached tokens do not count */
};
void scheduler_tenant_counts(const struct scheduler *scheduler, uint32_t tenant,
                             struct scheduler_tenant_counts *out);
/* Completions that have ended, ever. */
uint64_t scheduler_completed_count(const struct scheduler *scheduler);

#endif
