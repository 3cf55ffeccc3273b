/*
 * A backend for tests: no model, but real pages.
 *
 * Two kinds of answers. History mode: every position leaves a fake key and value in its page slot
 * (two "layers", the second a digest of the first up to it), and the logits are a digest of all
 * slots that the page table reaches. A wrong page, a lost page copy, a wrong position, a slot that
 * was not computed or a shared page written by another therefore gives other tokens. KV cache groups
 * with a window get the same slots, and at every row those that it sees must equal the first
 * group's. Scripted mode:
 * where the tokens found in the pages begin with a registered prompt (or hold the echo token), the
 * row's logits force the script's next id; the longest registered prompt wins.
 *
 * Engine thread only, except scripted_backend_add and the counters, which any thread may use.
 */
#ifndef QUIRE_TESTS_ENGINE_SCRIPTED_BACKEND_H
#define QUIRE_TESTS_ENGINE_SCRIPTED_BACKEND_H

#include "engine/batch.h"

#include <stdbool.h>
#include <stdint.h>

/* In a script: the row's logits are NaN, so that sampling fails and the request ends in error. */
#define SCRIPTED_NAN UINT32_MAX

struct scripted_options {
    uint32_t vocabulary; /* >= 2 */
    uint32_t page_count; /* null page included */
    uint32_t page_size;
    struct kv_groups groups; /* count 0: one */
    uint32_t max_batch_rows;
    uint32_t max_sequences;
    uint32_t logits_rows_max; /* >= 1 */
    uint32_t end_token;       /* forced after a script's last id */
    uint32_t echo_token;      /* E, 0: off. A prompt …, E, a, b, c, E is answered a, b, c, end */
    uint32_t step_delay_us;   /* slept in each forward … */
    uint32_t row_delay_us;    /* … plus this per row: makes long prompts take long */
};

/* NULL when out of memory. Freed by backend->ops->destroy. */
struct backend *scripted_backend_create(const struct scripted_options *options);

/* A sequence whose tokens begin with `prompt` is answered `output`, then end_token. Output ids are
   < vocabulary or SCRIPTED_NAN. Copies both. false: out of memory. Any thread. */
bool scripted_backend_add(struct backend *backend, const uint32_t *prompt, uint32_t prompt_count,
                          const uint32_t *output, uint32_t output_count);

/* The history mode's logits [vocabulary] after `tokens`, computed without any page: the oracle. */
void scripted_logits(const uint32_t *tokens, uint32_t count, uint32_t vocabulary, float *out);

/* What was seen so far. Any thread. */
struct scripted_counts {
    uint64_t forwards;      /* calls of forward */
    uint64_t rows;          /* rows computed */
    uint64_t copies;        /* pages copied */
    uint32_t rows_max;      /* largest batch */
    uint32_t sequences_max; /* most sequences in one forward */
};
void scripted_backend_counts(const struct backend *backend, struct scripted_counts *out);

/* From now on forward waits at its beginning until let go (any thread): tests stop the engine
   inside a step to make orders exact. wait returns when a forward has arrived there; pass lets that
   one go on and returns when the next one has arrived. One thread may do this at a time. */
void scripted_backend_hold(struct backend *backend);
void scripted_backend_wait(struct backend *backend);
void scripted_backend_pass(struct backend *backend);
void scripted_backend_let_go(struct backend *backend);

#endif
