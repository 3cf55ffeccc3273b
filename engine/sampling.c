/*
 * The samples of a schedule are in the order of their logits rows, so the rows in the buffer and
 * their samples are walked together. One sample alone is drawn on the engine thread: it is not
 * worth waking the workers.
 *
 * The sampler overwrites the logits. A parent and its forks share a row: each of them gets a copy.
 */
#include "engine/sampling.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/minmax.h"

#include <stdlib.h>
#include <string.h>

static uint64_t logits_bytes(const struct backend *backend, uint64_t rows)
{
    return bytes_align(rows * backend->vocabulary * sizeof(float), 64);
}

static uint64_t workspace_bytes_for(const struct backend *backend)
{
    return bytes_align(sampler_workspace_bytes(backend->vocabulary), 64) + logits_bytes(backend, 1);
}

uint64_t sampling_memory_bytes(const struct backend *backend, const struct workers *workers)
{
    return logits_bytes(backend, backend->logits_rows_max) +
           workspace_bytes_for(backend) * workers_count(workers);
}

enum status sampling_init(struct sampling *sampling, struct error *error)
{
    const struct backend *backend = sampling->backend;
    sampling->workspace_bytes = workspace_bytes_for(backend);
    sampling->logits = aligned_alloc(64, logits_bytes(backend, backend->logits_rows_max));
    sampling->workspaces =
        aligned_alloc(64, sampling->workspace_bytes * workers_count(sampling->workers));
    if (!sampling->logits || !sampling->workspaces)
        return error_set(error, STATUS_IO, NULL, "out of memory starting the engine");
    return STATUS_OK;
}

void sampling_deinit(struct sampling *sampling)
{
    free(sampling->workspaces);
    free(sampling->logits);
}

void sampling_start_masks(struct sampling *sampling, const struct schedule *schedule)
{
    if (!sampling->masks)
        return;
    masks_begin(sampling->masks);
    for (uint32_t i = 0; i < schedule->sample_count; i++) {
        struct schedule_sample *sample = &schedule->samples[i];
        struct grammar *grammar = sample->sequence->completion->grammar;
        if (grammar)
            sample->mask_index =
                masks_add(sampling->masks, grammar, &sample->sequence->record->matcher);
    }
    masks_start(sampling->masks);
}

static bool is_end_token(const struct sampling *sampling, uint32_t token)
{
    return token_is_among(sampling->end_tokens, sampling->end_token_count, token);
}

static void advance_matcher(const struct sampling *sampling, struct schedule_sample *sample)
{
    const struct sequence *sequence = sample->sequence;
    const struct completion *completion = sequence->completion;
    struct grammar_matcher *matcher = sequence->record->matcher;
    if (is_end_token(sampling, sample->token.token))
        return;
    sample->ok = grammar_matcher_accept(matcher, &sample->token.token, 1, &sample->is_complete);
    uint32_t room = completion->token_limit - sequence->token_count - 1;
    if (!sample->ok || sample->is_complete || completion->want_logprobs)
        return;
    sample->forced_count =
        grammar_matcher_forced(matcher, sample->forced, min_u32(room, LIMIT_FORCED_TOKENS));
    for (uint32_t i = 0; i < sample->forced_count; i++) {
        if (is_end_token(sampling, sample->forced[i]) ||
            token_rules_stop(&completion->rules, sample->forced[i]))
            sample->forced_count = i; /* an end is sampled, under its mask */
    }
    if (sample->forced_count)
        sample->ok = grammar_matcher_accept(matcher, sample->forced, sample->forced_count,
                                            &sample->is_complete);
}

void sampling_draw(const struct sampling *sampling, struct schedule_sample *sample, float *logits,
                   const uint32_t *allowed, void *workspace)
{
    const struct sequence *sequence = sample->sequence;
    const struct completion *completion = sequence->completion;
    bool may_end = !completion->ignore_eos &&
                   sequence->token_count - completion->prompt_count >= completion->rules.min_tokens;
    struct sampler_row row = {
        .logits = logits,
        .vocabulary = sampling->backend->vocabulary,
        .params = &completion->sampling,
        .tokens = sequence->record->history,
        .token_count = sequence->token_count,
        .prompt_count = completion->prompt_count,
        .choice = sequence->index,
        .top_logprobs = completion->top_logprobs,
        .want_logprob = completion->want_logprobs,
        .rules = &completion->rules,
        .banned = may_end ? NULL : sampling->end_tokens,
        .banned_count = may_end ? 0 : sampling->end_token_count,
        .allowed = allowed,
    };
    sample->ok = sampler_sample(&row, workspace, &sample->token);
    if (sample->ok && completion->grammar)
        advance_matcher(sampling, sample);
}

static void draw(struct sampling *sampling, struct schedule_sample *sample, char *workspace)
{
    uint32_t vocabulary = sampling->backend->vocabulary;
    float *logits =
        sampling->logits + (size_t)(sample->logits_index - sampling->first_row) * vocabulary;
    const uint32_t *allowed = NULL;
    if (sample->sequence->completion->grammar) {
        allowed = masks_wait(sampling->masks, sample->mask_index);
        if (!allowed)
            return; /* not ok: the matcher has failed */
    }
    if (sample->is_shared) {
        float *copy =
            (float *)(workspace + sampling->workspace_bytes - logits_bytes(sampling->backend, 1));
        memcpy(copy, logits, vocabulary * sizeof *copy);
        logits = copy;
    }
    sampling_draw(sampling, sample, logits, allowed, workspace);
}

static void draw_job(void *arg, unsigned thread_index)
{
    struct sampling *sampling = arg;
    char *workspace = sampling->workspaces + thread_index * sampling->workspace_bytes;
    for (;;) {
        uint32_t i = atomic_fetch_add_explicit(&sampling->next_sample, 1, memory_order_relaxed);
        if (i >= sampling->sample_end)
            return;
        draw(sampling, &sampling->schedule->samples[i], workspace);
    }
}

/* The samples from `first` on whose logits rows are consecutive and fit the buffer. Rows between
   them that nobody samples from are pooled, and have no logits. */
static uint32_t last_of_run(const struct schedule *schedule, uint32_t first, uint32_t rows_max)
{
    const struct schedule_sample *samples = schedule->samples;
    uint32_t last = first;
    while (last + 1 < schedule->sample_count &&
           samples[last + 1].logits_index <= samples[last].logits_index + 1 &&
           samples[last + 1].logits_index < samples[first].logits_index + rows_max)
        last++;
    return last;
}

void sampling_run(struct sampling *sampling, const struct schedule *schedule)
{
    struct backend *backend = sampling->backend;
    sampling->schedule = schedule;
    for (uint32_t first = 0; first < schedule->sample_count; first = sampling->sample_end) {
        uint32_t last = last_of_run(schedule, first, backend->logits_rows_max);
        uint32_t row = schedule->samples[first].logits_index;
        CHECK(schedule->samples[last].logits_index < schedule->batch.logits_row_count);
        backend->ops->logits(backend, row, schedule->samples[last].logits_index - row + 1,
                             sampling->logits);
        sampling->first_row = row;
        sampling->sample_end = last + 1;
        atomic_store(&sampling->next_sample, first);
        if (first == last)
            draw_job(sampling, 0);
        else
            workers_run(sampling->workers, draw_job, sampling);
    }
}
