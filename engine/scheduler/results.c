/*
 * From samples to output tokens and ends. A sequence ends for one of these reasons: an end token
 * (which is not an output token), a stop token of the request's, its token limit, a cancel, a
 * deadline, or a sample that could not be drawn.
 *
 * Times are observed here and nowhere else in the scheduler, all of them from the `now_ns` of the
 * caller: there is no clock. A completion that was cancelled before its first token measures
 * nothing.
 */
#include "engine/scheduler/results.h"

#include "base/check.h"
#include "base/minmax.h"

static void observe_seconds(struct metric_histogram *histogram, uint64_t from_ns, uint64_t to_ns)
{
    metric_histogram_observe(histogram, to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0);
}

static void observe_end(struct engine_metrics *metrics, const struct completion *completion,
                        uint64_t now_ns)
{
    if (completion->first_token_ns == 0)
        return;
    observe_seconds(&metrics->end_to_end, completion->submit_ns, now_ns);
    observe_seconds(&metrics->queue_time, completion->submit_ns, completion->admit_ns);
    observe_seconds(&metrics->prefill_time, completion->admit_ns, completion->first_token_ns);
    observe_seconds(&metrics->decode_time, completion->first_token_ns, now_ns);
    observe_seconds(&metrics->inference_time, completion->admit_ns, now_ns);
    metric_histogram_observe(&metrics->request_prompt_tokens, completion->prompt_count);
    metric_histogram_observe(&metrics->params_n, completion->sequence_count);
    metric_histogram_observe(&metrics->params_max_tokens, completion->max_tokens);
    uint32_t longest = 0;
    for (uint32_t i = 0; i < completion->sequence_count; i++)
        longest = max_u32(longest, completion_output_count(completion, i));
    metric_histogram_observe(&metrics->request_max_generation_tokens, longest);
}

static void observe_token(struct engine_metrics *metrics, const struct sequence *sequence,
                          uint64_t now_ns)
{
    struct completion *completion = sequence->completion;
    if (completion->first_token_ns == 0) {
        completion->first_token_ns = now_ns;
        metric_add(&metrics->prompt_tokens, completion->prompt_count);
        observe_seconds(&metrics->time_to_first_token, completion->submit_ns, now_ns);
    } else if (sequence->record->last_token_ns) {
        observe_seconds(&metrics->inter_token, sequence->record->last_token_ns, now_ns);
    }
    sequence->record->last_token_ns = now_ns;
}

/* ---- notifications ---- */

static void mark_pending(struct results *results, struct completion *completion)
{
    if (completion->notify_pending)
        return;
    completion->notify_pending = true;
    completion->next_notify = results->notify_first;
    results->notify_first = completion;
}

void results_notify(struct results *results)
{
    while (results->notify_first) {
        struct completion *completion = results->notify_first;
        results->notify_first = completion->next_notify;
        completion->notify_pending = false;
        completion_wake(completion);
        if (completion->unfinished_sequences == 0) {
            CHECK(!completion->is_waiting);
            completion_detach(completion);
        }
    }
}

/* ---- ends ---- */

/* The sequence has left the queue and its slot. */
static void finish(struct results *results, struct completion *completion, uint32_t index,
                   enum finish_reason reason, uint64_t now_ns)
{
    struct engine_metrics *metrics = results->metrics;
    completion->sequences[index].status = SEQUENCE_FINISHED;
    swap_drop(results->swap, completion, index);
    const struct grammar_matcher *matcher = completion->sequences[index].matcher;
    if (reason == FINISH_ERROR && completion->grammar &&
        (!matcher || grammar_matcher_error(matcher)[0]))
        completion->sequences[index].constraint_failed = true;
    grammar_matcher_destroy(completion->sequences[index].matcher);
    completion->sequences[index].matcher = NULL;
    completion_finish(completion, index, reason);
    mark_pending(results, completion);
    metric_add(&metrics->finished[reason], 1);
    metric_add(&metrics->progress, 1);
    metric_histogram_observe(&metrics->request_generation_tokens,
                             completion_output_count(completion, index));
    uint32_t output = completion_output_count(completion, index);
    uint64_t first_ns = completion->first_token_ns,
             last_ns = completion->sequences[index].last_token_ns;
    if (output > 1 && first_ns && last_ns > first_ns)
        metric_histogram_observe(&metrics->time_per_output_token,
                                 (double)(last_ns - first_ns) * 1e-9 / (output - 1));
    CHECK(completion->unfinished_sequences > 0);
    if (--completion->unfinished_sequences > 0)
        return;
    fair_queue_count_dequeued(results->slots->queue, completion);
    observe_end(metrics, completion, now_ns);
    results->completed++;
}

void results_end_waiting(struct results *results, struct completion *completion, uint32_t index,
                         enum finish_reason reason, uint64_t now_ns)
{
    fair_queue_remove(results->slots->queue, completion, index, SEQUENCE_FINISHED);
    finish(results, completion, index, reason, now_ns);
}

void results_end_running(struct results *results, struct sequence *sequence,
                         enum finish_reason reason, uint64_t now_ns)
{
    struct completion *completion = sequence->completion;
    uint32_t index = sequence->index;
    slots_release(results->slots, sequence);
    finish(results, completion, index, reason, now_ns);
}

/* ---- samples ---- */

static bool is_end_token(const struct results *results, uint32_t token)
{
    return token_is_among(results->end_tokens, results->end_token_count, token);
}

/* The sampled token and those that a grammar forced behind it. */
static void push_tokens(struct results *results, struct sequence *sequence,
                        const struct schedule_sample *sample)
{
    struct completion *completion = sequence->completion;
    completion_push(completion, sequence->index, &sample->token);
    for (uint32_t i = 0; i < sample->forced_count; i++)
        completion_push(completion, sequence->index,
                        &(struct sampled_token){.token = sample->forced[i]});
    sequence->token_count += 1 + sample->forced_count;
    CHECK(sequence->token_count <= completion->token_limit);
    metric_add(&results->metrics->generation_tokens, 1 + sample->forced_count);
}

void results_apply_sample(struct results *results, const struct schedule_sample *sample,
                          uint64_t now_ns)
{
    struct sequence *sequence = sample->sequence;
    struct completion *completion = sequence->completion;
    CHECK(sequence->computed == sequence->token_count);
    if (!sample->ok) {
        results_end_running(results, sequence, FINISH_ERROR, now_ns);
        return;
    }
    observe_token(results->metrics, sequence, now_ns);
    if (!completion->ignore_eos && is_end_token(results, sample->token.token)) {
        results_end_running(results, sequence, FINISH_STOP, now_ns);
        return;
    }
    bool stopped = token_rules_stop(&completion->rules, sample->token.token);
    if (stopped)
        sequence->record->stop_token = sample->token.token;
    if (stopped && !completion->rules.keep_stop) {
        results_end_running(results, sequence, FINISH_STOP, now_ns);
        return;
    }
    push_tokens(results, sequence, sample);
    sequence->sampled_count++;
    if (sequence->state == SEQUENCE_PREFILL)
        fair_queue_end_prefill(results->slots->queue, completion);
    sequence->state = SEQUENCE_DECODE;
    if (sample->is_complete || stopped)
        results_end_running(results, sequence, FINISH_STOP, now_ns);
    else if (sequence->token_count == completion->token_limit)
        results_end_running(results, sequence, FINISH_LENGTH, now_ns);
    else
        mark_pending(results, completion);
}

void results_apply_pooling(struct results *results, const struct schedule_pooling *pooling,
                           uint64_t now_ns)
{
    struct sequence *sequence = pooling->sequence;
    if (!pooling->is_complete)
        return;
    CHECK(sequence->computed == sequence->token_count);
    observe_token(results->metrics, sequence, now_ns);
    results_end_running(results, sequence, FINISH_STOP, now_ns);
}
