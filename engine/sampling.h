/*
 * Sampling: from the logits of a step to its tokens. Logits are computed for as many rows at a time
 * as the buffer has, so that memory does not grow with the batch; the samples of those rows are
 * drawn on the workers, each with its own random numbers, so that the result does not depend on who
 * draws it.
 *
 * Private to engine/. Called by the engine thread; the workers see the struct only during
 * sampling_run.
 */
#ifndef QUIRE_ENGINE_SAMPLING_H
#define QUIRE_ENGINE_SAMPLING_H

#include "base/error.h"
#include "base/workers.h"
#include "engine/batch.h"
#include "engine/constrain/masks.h"
#include "engine/scheduler/step.h"

#include <stdatomic.h>
#include <stdint.h>

struct sampling {
    /* fixed after start */
    struct backend *backend;
    struct workers *workers;
    const uint32_t *end_tokens; /* borrowed; banned for sequences that ignore them */
    uint32_t end_token_count;
    struct masks *masks; /* the owner's; NULL: no completion has a grammar */
    float *logits;       /* [logits_rows_max][vocabulary] */
    char *workspaces;    /* [threads][workspace_bytes]: the sampler's, then one row of logits */
    size_t workspace_bytes;
    /* of the rows whose logits are there; read by the workers */
    const struct schedule *schedule;
    uint32_t first_row; /* logits row 0 of the buffer is this one of the batch */
    uint32_t sample_end;
    atomic_uint next_sample;
};

/* What sampling_init allocates, in two allocations. */
uint64_t sampling_memory_bytes(const struct backend *backend, const struct workers *workers);

/* backend, workers and end tokens are set. STATUS_IO when memory fails. */
enum status sampling_init(struct sampling *sampling, struct error *error);
void sampling_deinit(struct sampling *sampling); /* zeroed is fine */

/* The masks of sequences with a grammar are computed from here on, while the batch is run. */
void sampling_start_masks(struct sampling *sampling, const struct schedule *schedule);

/* Draws the token of every sample of the schedule, whose batch has just been run. */
void sampling_run(struct sampling *sampling, const struct schedule *schedule);

/* Draws one sample from `logits`, which are overwritten; `allowed` is its mask, NULL where there is no
   grammar. Behind the token its matcher says whether the answer is complete and which tokens are
   forced. They depend on the sequence's own tokens alone. Where log-probabilities are wanted none
   is forced: every token is sampled, under a mask that leaves no choice. Any thread. */
void sampling_draw(const struct sampling *sampling, struct schedule_sample *sample, float *logits,
                   const uint32_t *allowed, void *workspace);

#endif
