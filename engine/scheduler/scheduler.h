/*
 * The scheduler: who runs in the next step, with how many rows, in which pages; and what becomes of
 * the tokens. Knows tokens and pages, no tensors and no clock: it is tested without a model.
 * Private to engine/; engine thread only. Refuses nothing: what can never run is refused by
 * engine_submit.
 *
 * One step: scheduler_sweep (drop what was cancelled or is late) → scheduler_next → the caller
 * copies pages, runs the batch and fills the samples → scheduler_commit → scheduler_settle (wake
 * the readers).
 *
 * Rules
 * - Decoding sequences first, one row each; if there are more of them than rows they take turns
 * (one of each tenant, then a second of each …), and every fourth such step half of the rows (at
 * least one) goes to prompts. The rest goes to prompts, in chunks.
 * - Prompt rows and places go to whoever is first: the most urgent level, max(priority, 0); then
 * the tenant that was served the fewest tokens (scheduler_queue.c); then its lowest priority; then
 * first come, first served: age is (arrival, choice). Tenants with prompts at the same time share
 * a step's rows. What waits and is first is not passed by others that wait: it waits for a place,
 * for pages, or (then only its own tenant's wait behind it) for a running prompt that is computing
 * the very page it needs next.
 * - A sequence gets a place only with all pages for the tokens it has (in page groups with a window
 * as many as that and a step's rows can reach), and what the next page of each that runs takes left
 * over. So a half-computed prompt does not wait for pages; it takes more only where pages that its
 * window leaves stay with others.
 * - No page for the next token: somebody gives way (scheduler_victim.c says who), is put back into
 * the waiting list and is recomputed later, or brought back from the swap file where that is
 * cheaper (scheduler_swap.c). Never the first in rank (level, then age): alone it always fits. So
 * somebody always ends.
 * - What waits and is first may also take a place and pages from those who are less urgent, and
 * from a tenant that holds more than its part of them, as far as its own tenant's part goes.
 * - Preempted twice, a choice is not preempted again: it comes back only when all it may ever need
 * fits beside all that those who run may ever need, and while it runs everybody else is admitted
 * only like that. So while it runs there is a page for everyone.
 * - A deadline ends a choice as it is, wherever it is.
 * - n > 1: the first choice without a token leads and computes the prompt, the others that have a
 *   place follow; at its end all sample from the same logits row, and share its pages.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SCHEDULER_H
#define QUIRE_ENGINE_SCHEDULER_SCHEDULER_H

#include "engine/batch.h"
#include "engine/engine_metrics.h"
#include "engine/scheduler/sequence.h"

#include <stdbool.h>
#include <stdint.h>

struct scheduler;
struct page_swap;

struct scheduler_options {
    struct pager *pager;        /* borrowed */
    struct page_swap *swap;     /* borrowed; NULL: who gives way is always computed again */
    uint32_t max_sequences;     /* places */
    uint32_t max_batch_tokens;  /* rows per step */
    uint32_t max_length;        /* tokens of a sequence; its pages fit the pool */
    uint32_t tenant_count;      /* >= 1: completions name one below this */
    const uint32_t *end_tokens; /* borrowed */
    uint32_t end_token_count;
    bool prefix_cache;
    uint32_t test_preempt_every; /* preempt a sequence every N steps; 0: never */
    struct engine_metrics *metrics;
};

/* A token to be drawn. The caller sets ok and token between next and commit. */
struct schedule_sample {
    struct sequence *sequence;
    uint32_t
        logits_index; /* of batch.logits_rows; ascending; equal for choices that share a prompt */
    bool is_shared;   /* another sample uses the same logits */
    bool ok;          /* false: no token can be drawn, the choice ends in error */
    struct sampled_token token;
};

struct schedule {
    struct batch batch; /* row_count 0: nothing to run or commit, pages were moved */
    uint32_t decode_row_count;
    uint32_t prompt_row_count;
    const struct page_copy *copies; /* in this order, before the batch */
    uint32_t copy_count;
    struct schedule_sample *samples;
    uint32_t sample_count;
};

/* All memory in one allocation; STATUS_IO when it fails. */
enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *error);
/* Nothing may be waiting or running. */
void scheduler_destroy(struct scheduler *scheduler);
/* options->pager is not used. */
uint64_t scheduler_memory_bytes(const struct scheduler_options *options, uint32_t page_size,
                                uint32_t group_count);

/* An attached completion whose prompt_count < max_length; it is detached at its end. */
void scheduler_add(struct scheduler *scheduler, struct completion *completion, uint64_t now_ns);

/* End every choice that was cancelled or whose deadline has passed, running or waiting; its pages
   are free at once. Looks at all that wait: call it when the cancel epoch has moved or
   scheduler_deadline_ns has come. */
void scheduler_sweep(struct scheduler *scheduler, uint64_t now_ns);

/* End everything as cancelled. */
void scheduler_cancel_all(struct scheduler *scheduler, uint64_t now_ns);

/* The next step, prompts getting at most prompt_row_limit (>= 1) rows. Valid until the next call of
   any function here but commit. Has rows whenever anything is running or waiting; except while
   all that could run are on their way to the swap file or back: a step without rows moves a few of
   their pages, and is neither run nor committed. */
const struct schedule *scheduler_next(struct scheduler *scheduler, uint32_t prompt_row_limit,
                                      uint64_t now_ns);

/* The batch was run: advance, publish, append tokens, end what is complete. */
void scheduler_commit(struct scheduler *scheduler, uint64_t now_ns);

/* Wake the readers of everything that sweep or commit changed, and let go of what has ended. After
   it an ended completion may be gone. */
void scheduler_settle(struct scheduler *scheduler);

bool scheduler_has_work(const struct scheduler *scheduler);
uint32_t scheduler_running_count(const struct scheduler *scheduler); /* places taken */
uint32_t scheduler_waiting_count(const struct scheduler *scheduler); /* completions in the list */
uint32_t scheduler_decoding_count(const struct scheduler *scheduler);
/* No deadline passes before; UINT64_MAX: none at all. */
uint64_t scheduler_deadline_ns(const struct scheduler *scheduler);

struct scheduler_tenant_counts {
    uint64_t dequeued;        /* completions that left the queue, by running or ending, ever */
    uint64_t dequeued_tokens; /* and the tokens of their prompts */
    uint64_t tokens;          /* computed for it, each once: cached ones not, nor recomputed ones */
};
void scheduler_tenant_counts(const struct scheduler *scheduler, uint32_t tenant,
                             struct scheduler_tenant_counts *out);
/* Completions that have ended, ever. */
uint64_t scheduler_completed_count(const struct scheduler *scheduler);

/* page_tables_check with all tables, and the scheduler's own invariants. scratch [pager ids]. */
bool scheduler_check(const struct scheduler *scheduler, uint32_t *scratch, struct error *error);

#endif
