/*
 * See completion.h and completion_private.h. Everything of a completion lies in one allocation,
 * entered in BUDGET_REQUESTS before it is made. Memory of tokens that are never generated is never
 * touched.
 */
#include "engine/completion_private.h"

#include "base/bytes.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

struct layout {
    uint64_t bias, history, tokens, top, top_counts; /* offsets; the last four per choice */
    uint64_t history_stride, tokens_stride, top_stride, top_counts_stride;
    uint64_t bytes;
};

static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;
    *end = bytes_align(at + bytes, 64);
    return at;
}

/* Cannot overflow: counts are 32 bit, at most LIMIT_CHOICES times about 200 bytes each. */
static struct layout layout_for(const struct completion_spec *spec, uint32_t top_logprobs)
{
    struct layout layout = {0};
    uint64_t n = spec->choice_count, max = spec->max_tokens;
    layout.history_stride = bytes_align((spec->token_count + max) * sizeof(uint32_t), 64);
    layout.tokens_stride = bytes_align(max * sizeof(struct completion_token), 64);
    layout.top_stride = bytes_align(max * top_logprobs * sizeof(struct top_logprob), 64);
    layout.top_counts_stride = top_logprobs ? bytes_align(max, 64) : 0;
    uint64_t end =
        bytes_align(sizeof(struct completion) + n * sizeof(struct completion_choice), 64);
    layout.bias = place(&end, spec->sampling.logit_bias_count * sizeof(struct logit_bias));
    layout.history = place(&end, n * layout.history_stride);
    layout.tokens = place(&end, n * layout.tokens_stride);
    layout.top = place(&end, n * layout.top_stride);
    layout.top_counts = place(&end, n * layout.top_counts_stride);
    layout.bytes = end;
    return layout;
}

static void init_choices(struct completion *completion, const struct completion_spec *spec,
                         const struct layout *layout)
{
    char *memory = (char *)completion;
    for (uint32_t i = 0; i < spec->choice_count; i++) {
        struct completion_choice *choice = &completion->choices[i];
        memset(choice, 0, sizeof *choice);
        choice->history = (uint32_t *)(memory + layout->history + i * layout->history_stride);
        choice->tokens =
            (struct completion_token *)(memory + layout->tokens + i * layout->tokens_stride);
        if (completion->top_logprobs) {
            choice->top = (struct top_logprob *)(memory + layout->top + i * layout->top_stride);
            choice->top_counts =
                (uint8_t *)(memory + layout->top_counts + i * layout->top_counts_stride);
        }
        memcpy(choice->history, spec->tokens, spec->token_count * sizeof(uint32_t));
    }
}

enum status completion_create(const struct completion_spec *spec, struct budget *budget,
                              struct completion **out, struct error *error)
{
    CHECK(spec->token_count >= 1 && spec->max_tokens >= 1);
    CHECK(spec->choice_count >= 1 && spec->choice_count <= LIMIT_CHOICES);
    CHECK(spec->top_logprobs <= LIMIT_LOGPROBS);
    uint32_t top_logprobs = spec->want_logprobs ? spec->top_logprobs : 0;
    struct layout layout = layout_for(spec, top_logprobs);
    if (layout.bytes > budget->cap_bytes[BUDGET_REQUESTS])
        return error_set(error, STATUS_TOO_LARGE, "max_tokens",
                         "a request of this size needs more memory than all requests may use");
    if (!budget_take(budget, BUDGET_REQUESTS, layout.bytes)) {
        enum status status = error_set(error, STATUS_BUSY, NULL,
                                       "no memory for another request now, try again later");
        if (error)
            error->retry_after_s = 1;
        return status;
    }
    struct completion *completion = aligned_alloc(64, layout.bytes);
    if (!completion) {
        budget_give(budget, BUDGET_REQUESTS, layout.bytes);
        return error_set(error, STATUS_IO, NULL, "out of memory");
    }
    *completion = (struct completion){
        .budget = budget,
        .bytes = layout.bytes,
        .prompt_count = spec->token_count,
        .choice_count = spec->choice_count,
        .max_tokens = spec->max_tokens,
        .top_logprobs = top_logprobs,
        .sampling = spec->sampling,
        .ignore_eos = spec->ignore_eos,
        .use_prefix_cache = spec->use_prefix_cache,
        .want_logprobs = spec->want_logprobs,
        .cache_salt = spec->cache_salt,
        .priority = spec->priority,
        .tenant = spec->tenant,
        .deadline_ns = spec->deadline_ns,
        .ref_count = 1,
        .wake = spec->wake,
        .wake_arg = spec->wake_arg,
    };
    pthread_mutex_init(&completion->lock, NULL);
    struct logit_bias *bias = (struct logit_bias *)((char *)completion + layout.bias);
    if (spec->sampling.logit_bias_count)
        memcpy(bias, spec->sampling.logit_bias,
               spec->sampling.logit_bias_count * sizeof(struct logit_bias));
    completion->sampling.logit_bias = bias;
    init_choices(completion, spec, &layout);
    *out = completion;
    return STATUS_OK;
}

static void drop(struct completion *completion)
{
    if (atomic_fetch_sub(&completion->ref_count, 1) != 1)
        return;
    struct budget *budget = completion->budget;
    uint64_t bytes = completion->bytes;
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
    drop(completion);
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
    for (uint32_t i = 0; i < completion->choice_count; i++)
        atomic_store(&completion->choices[i].cancelled, true);
    raise_epoch(completion);
}

void completion_cancel_choice(struct completion *completion, uint32_t choice)
{
    CHECK(choice < completion->choice_count);
    atomic_store(&completion->choices[choice].cancelled, true);
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
    drop(completion);
}

uint32_t completion_read(const struct completion *completion, uint32_t choice, uint32_t from,
                         const struct completion_token **tokens)
{
    CHECK(choice < completion->choice_count);
    const struct completion_choice *ring = &completion->choices[choice];
    uint32_t count = atomic_load_explicit(&ring->token_count, memory_order_acquire);
    CHECK(from <= count);
    *tokens = ring->tokens + from;
    return count - from;
}

const struct top_logprob *completion_top(const struct completion *completion, uint32_t choice,
                                         uint32_t index, uint32_t *count)
{
    CHECK(choice < completion->choice_count);
    const struct completion_choice *ring = &completion->choices[choice];
    CHECK(index < atomic_load_explicit(&ring->token_count, memory_order_acquire));
    *count = ring->top ? ring->top_counts[index] : 0;
    return ring->top ? ring->top + (size_t)index * completion->top_logprobs : NULL;
}

enum finish_reason completion_reason(const struct completion *completion, uint32_t choice)
{
    CHECK(choice < completion->choice_count);
    return (enum finish_reason)atomic_load_explicit(&completion->choices[choice].reason,
                                                    memory_order_acquire);
}

bool completion_done(const struct completion *completion)
{
    for (uint32_t i = 0; i < completion->choice_count; i++) {
        if (completion_reason(completion, i) == FINISH_NONE)
            return false;
    }
    return true;
}

uint32_t completion_prompt_count(const struct completion *completion)
{
    return completion->prompt_count;
}

uint32_t completion_choice_count(const struct completion *completion)
{
    return completion->choice_count;
}

uint32_t completion_cached_count(const struct completion *completion)
{
    return atomic_load_explicit(&completion->cached_count, memory_order_acquire);
}

void completion_push(struct completion *completion, uint32_t choice,
                     const struct sampled_token *token)
{
    struct completion_choice *ring = &completion->choices[choice];
    uint32_t at = completion_generated(completion, choice);
    CHECK(at < completion->max_tokens);
    CHECK(atomic_load_explicit(&ring->reason, memory_order_relaxed) == FINISH_NONE);
    ring->history[completion->prompt_count + at] = token->token;
    ring->tokens[at] = (struct completion_token){token->token, token->logprob};
    if (ring->top) {
        CHECK(token->top_count <= completion->top_logprobs);
        memcpy(ring->top + (size_t)at * completion->top_logprobs, token->top,
               token->top_count * sizeof *token->top);
        ring->top_counts[at] = (uint8_t)token->top_count;
    }
    atomic_store_explicit(&ring->token_count, at + 1, memory_order_release);
}

void completion_finish(struct completion *completion, uint32_t choice, enum finish_reason reason)
{
    struct completion_choice *ring = &completion->choices[choice];
    CHECK(reason != FINISH_NONE);
    CHECK(atomic_load_explicit(&ring->reason, memory_order_relaxed) == FINISH_NONE);
    atomic_store_explicit(&ring->reason, reason, memory_order_release);
}

void completion_wake(struct completion *completion)
{
    pthread_mutex_lock(&completion->lock);
    if (completion->wake)
        completion->wake(completion->wake_arg);
    pthread_mutex_unlock(&completion->lock);
}
