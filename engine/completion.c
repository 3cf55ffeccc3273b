/*
 * Everything of a completion lies in one allocation, entered in BUDGET_REQUESTS before it is made.
 * It is sized for max_tokens, so the engine never waits for a reader; memory of tokens that are
 * never generated is never touched.
 *
 * The order of the stores is the contract with the reader: a token's value, then output_count; all
 * tokens, then reason. The lock covers wake and cancel_epoch only, and no other lock is taken under
 * it.
 */
#include "engine/completion_private.h"

#include "base/arena.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static void copy_ids(const uint32_t *to, const uint32_t *from, uint32_t count)
{
    if (count)
        memcpy((void *)to, from, count * sizeof *from);
}

/* The struct and the arrays behind it: see base/arena.h. completion is NULL while the arena counts.
   Counts are 32 bit, at most LIMIT_CHOICES times about 200 bytes each: no sum overflows. */
static void lay_out(struct arena *arena, struct completion *completion,
                    const struct completion_spec *spec, uint32_t top_logprobs)
{
    uint64_t n = spec->choice_count, max = spec->max_tokens;
    arena_take(arena, 1, sizeof *completion + n * sizeof(struct completion_sequence));
    void *bias = arena_take(arena, spec->sampling.logit_bias_count, sizeof(struct logit_bias));
    float *pooled = arena_take(arena, spec->pooling ? spec->pooled_count : 0, sizeof *pooled);
    uint32_t bad_tokens =
        spec->rules.bad_count ? spec->rules.bad_ends[spec->rules.bad_count - 1] : 0;
    struct token_rules rules = token_rules_take(arena, &spec->rules, bad_tokens);
    if (completion) {
        completion->sampling.logit_bias = bias;
        completion->pooled = spec->pooling ? pooled : NULL;
        completion->rules = rules;
        copy_ids(rules.stop_tokens, spec->rules.stop_tokens, rules.stop_count);
        copy_ids(rules.bad_tokens, spec->rules.bad_tokens, bad_tokens);
        copy_ids(rules.bad_ends, spec->rules.bad_ends, rules.bad_count);
        copy_ids(rules.allowed, spec->rules.allowed, rules.allowed_words);
    }
    for (uint64_t i = 0; i < n; i++) {
        struct completion_sequence record = {.stop_token = UINT32_MAX};
        record.history = arena_take(arena, spec->token_count + max, sizeof *record.history);
        record.output = arena_take(arena, max, sizeof *record.output);
        if (top_logprobs) {
            record.top = arena_take(arena, max * top_logprobs, sizeof *record.top);
            record.top_counts = arena_take(arena, max, sizeof *record.top_counts);
        }
        if (completion)
            completion->sequences[i] = record;
    }
}

static enum status take_memory(const struct completion_spec *spec, struct budget *budget,
                               uint64_t bytes, char **out, struct error *error)
{
    enum status status = budget_take_request(budget, spec->held_bytes, bytes, "max_tokens", error);
    if (status)
        return status;
    *out = aligned_alloc(64, bytes);
    if (*out)
        return STATUS_OK;
    budget_give(budget, BUDGET_REQUESTS, bytes);
    return error_no_memory(error);
}

enum status completion_create(const struct completion_spec *spec, struct budget *budget,
                              struct completion **out, struct error *error)
{
    CHECK(spec->token_count >= 1 && (spec->max_tokens >= 1) == (spec->pooling == POOLING_NONE));
    CHECK(!spec->pooling || (spec->pooled_count >= 1 && spec->choice_count == 1));
    CHECK(spec->choice_count >= 1 && spec->choice_count <= LIMIT_CHOICES);
    CHECK(spec->top_logprobs <= LIMIT_LOGPROBS);
    uint32_t top_logprobs = spec->want_logprobs ? spec->top_logprobs : 0;
    struct arena arena = {0};
    lay_out(&arena, NULL, spec, top_logprobs);
    uint64_t bytes = arena.used_bytes;
    arena = (struct arena){0};
    enum status status = take_memory(spec, budget, bytes, &arena.memory, error);
    if (status)
        return status;
    struct completion *completion = (struct completion *)arena.memory;
    *completion = (struct completion){
        .budget = budget,
        .bytes = bytes,
        .prompt_count = spec->token_count,
        .sequence_count = spec->choice_count,
        .max_tokens = spec->max_tokens,
        .top_logprobs = top_logprobs,
        .sampling = spec->sampling,
        .ignore_eos = spec->ignore_eos,
        .use_prefix_cache = spec->use_prefix_cache,
        .want_logprobs = spec->want_logprobs,
        .pooling = spec->pooling,
        .pooled_count = spec->pooled_count,
        .second_segment = spec->second_segment,
        .grammar = spec->grammar ? grammar_take(spec->grammar) : NULL,
        .cache_salt = spec->cache_salt,
        .priority = spec->priority,
        .tenant = spec->tenant,
        .deadline_ns = spec->deadline_ns,
        .ref_count = 1,
        .wake = spec->wake,
        .wake_arg = spec->wake_arg,
    };
    lay_out(&arena, completion, spec, top_logprobs);
    pthread_mutex_init(&completion->lock, NULL);
    if (completion->pooled)
        memset(completion->pooled, 0, spec->pooled_count * sizeof *completion->pooled);
    if (spec->sampling.logit_bias_count)
        memcpy((void *)completion->sampling.logit_bias, spec->sampling.logit_bias,
               spec->sampling.logit_bias_count * sizeof(struct logit_bias));
    for (uint32_t i = 0; i < spec->choice_count; i++)
        memcpy(completion->sequences[i].history, spec->tokens,
               spec->token_count * sizeof *spec->tokens);
    *out = completion;
    return STATUS_OK;
}

uint64_t completion_bytes(const struct completion *completion)
{
    return completion->bytes;
}

static void release_reference(struct completion *completion)
{
    if (atomic_fetch_sub(&completion->ref_count, 1) != 1)
        return;
    struct budget *budget = completion->budget;
    uint64_t bytes = completion->bytes;
    for (uint32_t i = 0; i < completion->sequence_count; i++)
        grammar_matcher_destroy(completion->sequences[i].matcher);
    grammar_release(completion->grammar);
    pthread_mutex_destroy(&completion->lock);
    free(completion);
    budget_give(budget, BUDGET_REQUESTS, bytes);
}

void completion_release(struct completion *completion)
{
    if (!completion)
        return;
    pthread_mutex_lock(&completion->lock);
    completion->wake = NULL;
    pthread_mutex_unlock(&completion->lock);
    if (!completion_done(completion))
        completion_cancel(completion);
    release_reference(completion);
}

static void raise_epoch(struct completion *completion)
{
    pthread_mutex_lock(&completion->lock);
    if (completion->cancel_epoch)
        atomic_fetch_add(completion->cancel_epoch, 1);
    pthread_mutex_unlock(&completion->lock);
}

void completion_cancel(struct completion *completion)
{
    for (uint32_t i = 0; i < completion->sequence_count; i++)
        atomic_store(&completion->sequences[i].cancelled, true);
    raise_epoch(completion);
}

void completion_stop_choice(struct completion *completion, uint32_t choice)
{
    CHECK(choice < completion->sequence_count);
    atomic_store(&completion->sequences[choice].stopped, true);
    atomic_store(&completion->sequences[choice].cancelled, true);
    raise_epoch(completion);
}

void completion_attach(struct completion *completion, atomic_uint *cancel_epoch)
{
    atomic_fetch_add(&completion->ref_count, 1);
    pthread_mutex_lock(&completion->lock);
    CHECK(completion->cancel_epoch == NULL); /* submitted once */
    completion->cancel_epoch = cancel_epoch;
    pthread_mutex_unlock(&completion->lock);
}

void completion_detach(struct completion *completion)
{
    pthread_mutex_lock(&completion->lock);
    completion->cancel_epoch = NULL;
    pthread_mutex_unlock(&completion->lock);
    release_reference(completion);
}

uint32_t completion_read(const struct completion *completion, uint32_t choice, uint32_t from,
                         const struct completion_token **tokens)
{
    CHECK(choice < completion->sequence_count);
    const struct completion_sequence *log = &completion->sequences[choice];
    uint32_t count = atomic_load_explicit(&log->output_count, memory_order_acquire);
    CHECK(from <= count);
    *tokens = log->output + from;
    return count - from;
}

const struct top_logprob *completion_top(const struct completion *completion, uint32_t choice,
                                         uint32_t index, uint32_t *count)
{
    CHECK(choice < completion->sequence_count);
    const struct completion_sequence *log = &completion->sequences[choice];
    CHECK(index < atomic_load_explicit(&log->output_count, memory_order_acquire));
    *count = log->top ? log->top_counts[index] : 0;
    return log->top ? log->top + (size_t)index * completion->top_logprobs : NULL;
}

uint32_t completion_stop_token(const struct completion *completion, uint32_t choice)
{
    return completion->sequences[choice].stop_token;
}

enum finish_reason completion_reason(const struct completion *completion, uint32_t choice)
{
    CHECK(choice < completion->sequence_count);
    return (enum finish_reason)atomic_load_explicit(&completion->sequences[choice].reason,
                                                    memory_order_acquire);
}

const float *completion_pooled(const struct completion *completion)
{
    CHECK(completion->pooled && completion_reason(completion, 0) == FINISH_STOP);
    return completion->pooled;
}

bool completion_done(const struct completion *completion)
{
    for (uint32_t i = 0; i < completion->sequence_count; i++) {
        if (completion_reason(completion, i) == FINISH_NONE)
            return false;
    }
    return true;
}

uint32_t completion_cached_count(const struct completion *completion)
{
    return atomic_load_explicit(&completion->cached_count, memory_order_acquire);
}

void completion_push(struct completion *completion, uint32_t choice,
                     const struct sampled_token *token)
{
    struct completion_sequence *log = &completion->sequences[choice];
    uint32_t at = completion_output_count(completion, choice);
    CHECK(at < completion->max_tokens);
    CHECK(atomic_load_explicit(&log->reason, memory_order_relaxed) == FINISH_NONE);
    log->history[completion->prompt_count + at] = token->token;
    log->output[at] = (struct completion_token){token->token, token->logprob};
    if (log->top) {
        CHECK(token->top_count <= completion->top_logprobs);
        memcpy(log->top + (size_t)at * completion->top_logprobs, token->top,
               token->top_count * sizeof *token->top);
        log->top_counts[at] = (uint8_t)token->top_count;
    }
    atomic_store_explicit(&log->output_count, at + 1, memory_order_release);
}

bool completion_constraint_failed(const struct completion *completion, uint32_t choice)
{
    return completion_reason(completion, choice) == FINISH_ERROR &&
           atomic_load_explicit(&completion->sequences[choice].constraint_failed,
                                memory_order_relaxed);
}

void completion_finish(struct completion *completion, uint32_t choice, enum finish_reason reason)
{
    struct completion_sequence *log = &completion->sequences[choice];
    CHECK(reason != FINISH_NONE);
    CHECK(atomic_load_explicit(&log->reason, memory_order_relaxed) == FINISH_NONE);
    atomic_store_explicit(&log->reason, reason, memory_order_release);
}

void completion_wake(struct completion *completion)
{
    pthread_mutex_lock(&completion->lock);
    if (completion->wake)
        completion->wake(completion->wake_arg);
    pthread_mutex_unlock(&completion->lock);
}

struct completion_times completion_times(const struct completion *completion)
{
    return (struct completion_times){
        .submit_ns = completion->submit_ns,
        .admit_ns = atomic_load(&completion->admit_ns),
        .first_token_ns = atomic_load(&completion->first_token_ns),
    };
}
