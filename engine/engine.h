/*
 * The engine: one thread that schedules, runs and commits steps (docs/ARCHITECTURE.md, "The step").
 *
 * Everything inside is owned by the engine thread and has no lock; other threads reach it through
 * the inbox, which has one. Metrics and counts are atomics, read without a lock.
 */
#ifndef QUIRE_ENGINE_ENGINE_H
#define QUIRE_ENGINE_ENGINE_H

#include "base/budget.h"
#include "base/error.h"
#include "base/workers.h"
#include "engine/batch.h"
#include "engine/completion.h"
#include "engine/engine_metrics.h"

#include <stdbool.h>
#include <stdint.h>

struct engine;

struct engine_options {
    struct backend *backend;    /* it outlives the engine */
    struct workers *workers;    /* shared with the backend; used for sampling */
    uint32_t context;           /* longest sequence in tokens, prompt and answer */
    uint32_t max_batch_tokens;  /* tokens per step, 1 … backend->max_batch_rows */
    uint32_t max_sequences;     /* running slots */
    uint32_t max_queue;         /* completions waiting for admission */
    uint64_t max_queue_tokens;  /* and tokens of their prompts; 0: no bound */
    uint32_t key_count;         /* API keys: completions name tenants 0 … key_count */
    const uint32_t *end_tokens; /* borrowed; end-of-generation ids */
    uint32_t end_token_count;
    uint32_t step_target_ms; /* prompt chunks shrink so that a step stays below this; 0: never */
    bool prefix_cache;
    bool grammars;         /* completions may have one */
    const char *swap_dir;  /* for pages of preempted sequences (page_swap.h); NULL: none */
    uint64_t swap_bytes;   /* of that file at most */
    const char *cache_dir; /* borrowed; where the prefix cache survives a restart; NULL: nowhere */
    uint64_t cache_dir_bytes;    /* its cap; 0: as many pages as the pool has */
    uint64_t model_identity;     /* of its content: the file's header and the weights */
    uint64_t cache_scope;        /* of cache_dir: whose prompts may be found in it */
    bool check_every_step;       /* tests: pager_check after each step */
    uint32_t test_preempt_every; /* tests: preempt a sequence every N steps; 0: never */
    bool test_swap;              /* tests: whatever is preempted is swapped */
};

/* Will everything that engine_create needs beside memory be there? Asked before the weights are
   loaded: of options->backend only the sizes are read. STATUS_INVALID (param "swap-dir" or
   "swap-bytes") when pages cannot be written to the swap directory or none fits. A cache_dir that
   cannot be used is no error: the engine does without. It leaves nothing behind. Any thread. */
enum status engine_check(const struct engine_options *options, struct error *error);

/* Pages that fit the file in options->swap_dir, and how much of engine_memory_bytes is for them;
   0 and 0 without a swap_dir. Of options->backend only the sizes are read, of the directory
   nothing. STATUS_INVALID (param "swap-bytes") when none fits. Any thread. */
enum status engine_swap_room(const struct engine_options *options, uint32_t *pages,
                             uint64_t *memory_bytes, struct error *error);

/* STATUS_INVALID for contradictory options, STATUS_IO when a thread or memory fails. */
enum status engine_create(const struct engine_options *options, struct engine **out,
                          struct error *error);
/* Cancels what is left, joins the thread. */
void engine_destroy(struct engine *engine);

/* Submits all `count` completions of one client request (of one tenant), or none. STATUS_INVALID
   with code "context_length_exceeded" when a prompt can never fit, STATUS_BUSY with retry_after_s
   when the queue is full, STATUS_UNAVAILABLE after engine_drain. Any thread. */
enum status engine_submit(struct engine *engine, struct completion *const *completions,
                          uint32_t count, struct error *error);

/* From now on no completion is accepted; those that were are finished. */
void engine_drain(struct engine *engine);
/* Completions that wait or run. */
uint32_t engine_in_flight(struct engine *engine);

/* How many API keys share the queue now; at first key_count. One alone may fill it. Any thread. */
void engine_share(struct engine *engine, uint32_t keys);

/* Empties the prefix cache, except for pages in use: completions that are submitted from now on do
   not find them. Does not wait. Any thread. */
void engine_reset_cache(struct engine *engine);

/* Seconds, at least 1, until everything that waits now has probably left the queue. Any thread. */
unsigned engine_retry_after_s(const struct engine *engine);

/* Prompt tokens of completions that wait. Any thread. */
uint64_t engine_queued_tokens(const struct engine *engine);
/* Tokens computed for a tenant, prompt and output, each once and no cached ones; tenant <=
   key_count. Any thread. */
uint64_t engine_tenant_tokens(const struct engine *engine, uint32_t tenant);

const struct engine_metrics *engine_metrics(const struct engine *engine);

/* The effective context length, prompt and output together: the smaller of `context` and what fits
   the page pool. */
uint32_t engine_max_length(const struct engine *engine);

/* Bytes that engine_create will allocate (sequences, batch arrays, logits, sampler workspaces): for
   the budget. */
uint64_t engine_memory_bytes(const struct engine_options *options);

#endif
