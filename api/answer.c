/*
 * An answer's life: see answer.h. The engine's rings hold all tokens until the end, so an answer
 * keeps almost nothing: a stream turns tokens into events as they come, a whole answer only looks
 * for stops while it runs, and is written from the rings when it is done, in pieces. Both go
 * through the same detokenizer and stop matcher, so their texts are the same.
 *
 * One thread at a time pumps; cancel may come from any. Tokens are counted up to and including the
 * one that completed a stop, whatever the engine made beyond it.
 */
#include "api/answer.h"

#include "api/answer_text.h"
#include "api/request_read.h"
#include "base/check.h"
#include "base/clock.h"
#include "engine/constrain/grammar_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status create_completion(struct answer *answer, uint32_t prompt, void (*wake)(void *),
                                     void *wake_arg, struct error *error)
{
    const struct request *request = &answer->request;
    uint64_t held = request_held(request);
    for (uint32_t i = 0; i < prompt && answer->completions[i]; i++)
        held += completion_bytes(answer->completions[i]);
    bool pools = request_is_pooling(request);
    uint32_t room = pools ? 0 : request_room(request, answer->context, prompt);
    if (room == 0 && !pools)
        return STATUS_OK;
    struct completion_spec spec = {
        .tokens = request->prompts[prompt].tokens,
        .token_count = (uint32_t)request->prompts[prompt].count,
        .choice_count = request->choice_count,
        .max_tokens = room,
        .pooling = pools ? answer->context->pooling : POOLING_NONE,
        .pooled_count = pools ? answer->context->pooled_count : 0,
        .second_segment = request->prompts[prompt].second_segment,
        .sampling = request->sampling,
        .rules = request->rules,
        .ignore_eos = request->ignore_eos,
        .use_prefix_cache = request->use_prefix_cache,
        .cache_salt = request->cache_salt,
        .priority = request->priority,
        .tenant = request->tenant,
        .deadline_ns = request->deadline_ns,
        .grammar = request->grammar,
        .want_logprobs = request->want_logprobs || request->choice_count > request->shown_count,
        .top_logprobs = request->top_logprobs,
        .wake = wake,
        .wake_arg = wake_arg,
        .held_bytes = held,
    };
    return completion_create(&spec, answer->context->budget, &answer->completions[prompt], error);
}

/* Make room for all choices and their completions. */
static enum status prepare(struct answer *answer, void (*wake)(void *), void *wake_arg,
                           struct error *error)
{
    struct request *request = &answer->request;
    uint32_t prompts = request->prompt_count, n = request->choice_count;
    uint32_t choices = prompts * n, shown = prompts * request->shown_count;
    uint64_t bytes = sizeof *answer + choices * sizeof *answer->choices +
                     shown * sizeof *answer->shown + prompts * sizeof(void *);
    if (request_parses(request)) /* what parsers hold back, and what they make of it */
        bytes += choices * 8ull * LIMIT_CALL_HEAD_BYTES;
    enum status status = request_take(answer->context, request, bytes, error);
    if (status != STATUS_OK)
        return status;
    answer->completions = calloc(prompts, sizeof *answer->completions);
    answer->choices = calloc(choices, sizeof *answer->choices);
    answer->shown = calloc(shown, sizeof *answer->shown);
    if (!answer->completions || !answer->choices || !answer->shown)
        return error_no_memory(error);
    answer->choice_count = choices; /* from here on there is something to deinit */
    answer->shown_count = shown;
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        struct answer_choice *choice = &answer->choices[i];
        choice->prompt = i / n;
        choice->choice = i % n;
        answer_text_init(&choice->text, request, (struct output_sink){answer_drop_event, NULL});
        text_offsets_init(&choice->offsets);
    }
    for (uint32_t i = 0; i < answer->shown_count; i++) /* unless the best are chosen later */
        answer->shown[i] = i;
    for (uint32_t i = 0; i < prompts && status == STATUS_OK; i++)
        status = create_completion(answer, i, wake, wake_arg, error);
    return status;
}

/* The completions have copies of the prompts' tokens. */
static void drop_tokens(struct answer *answer)
{
    struct request *request = &answer->request;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request->prompt_count; i++) {
        bytes += request->prompts[i].count * sizeof(uint32_t);
        free(request->prompts[i].tokens);
        request->prompts[i].tokens = NULL;
    }
    if (answer->context->budget) {
        budget_give(answer->context->budget, BUDGET_REQUESTS, bytes);
        request->taken_bytes -= bytes;
    }
}

/* The engine speaks of prompts. */
static void name_texts(const struct answer *answer, struct error *error)
{
    enum answer_kind kind = answer->request.kind;
    snprintf(error->param, sizeof error->param, "%s",
             kind == ANSWER_EMBEDDING ? "input"
             : kind == ANSWER_RERANK  ? "documents"
                                      : "text_2");
}

/* Either every prompt generates or, with max_tokens 0, none does. */
static enum status submit(struct answer *answer, struct error *error)
{
    enum status status = prepare(answer, answer->wake, answer->wake_arg, error);
    if (status == STATUS_OK && answer->completions[0])
        status = engine_submit(answer->context->engine, answer->completions,
                               answer->request.prompt_count, error);
    if (status == STATUS_INVALID && error && strcmp(error->param, "prompt") == 0 &&
        answer->request.kind > ANSWER_CHAT)
        name_texts(answer, error);
    if (status == STATUS_OK)
        drop_tokens(answer);
    return status;
}

enum status answer_open(const struct api_context *context, enum answer_kind kind, const char *body,
                        size_t body_length, uint64_t request_id, const struct answer_caller *caller,
                        void (*wake)(void *arg), void *wake_arg, struct answer **out,
                        struct error *error)
{
    *out = NULL;
    struct answer *answer = calloc(1, sizeof *answer);
    if (!answer)
        return error_no_memory(error);
    answer->context = context;
    buffer_init(&answer->delta, 0);
    buffer_init(&answer->piece, 0);
    answer->wake = wake;
    answer->wake_arg = wake_arg;
    enum status status =
        request_read(context, kind, body, body_length, caller, &answer->request, error);
    if (status == STATUS_OK) {
        answer_head_init(&answer->head, context, &answer->request, request_id);
        if (!answer_awaits_grammar(answer))
            status = submit(answer, error);
    }
    if (status != STATUS_OK) {
        answer_close(answer);
        return status;
    }
    *out = answer;
    return STATUS_OK;
}

bool answer_awaits_grammar(const struct answer *answer)
{
    return answer->request.constraint.source && !answer->request.grammar;
}

enum status answer_compile(struct answer *answer, struct error *error)
{
    struct request *request = &answer->request;
    const struct constraint *constraint = &request->constraint;
    struct error inner = {0};
    CHECK(answer_awaits_grammar(answer));
    if (request->deadline_ns && clock_now_ns() >= request->deadline_ns)
        return error_set_code(error, STATUS_UNAVAILABLE, "timeout", "timeout",
                              "The request's time was over before its %s was compiled: the server "
                              "is busy.",
                              constraint->param);
    enum status status =
        grammar_cache_compile(answer->context->grammars, constraint->kind, constraint->source,
                              constraint->length, request->cache_salt, &request->grammar, &inner);
    if (status == STATUS_BUSY && error) {
        *error = inner;
        error->retry_after_s = 1;
    } else if (status != STATUS_OK) {
        error_set_code(error, status, "invalid_constraint", constraint->param, "%s: %s",
                       constraint->param, inner.message);
    }
    return status == STATUS_OK ? submit(answer, error) : status;
}

bool answer_is_stream(const struct answer *answer)
{
    return answer->request.stream;
}

void answer_cancel(struct answer *answer)
{
    atomic_store(&answer->cancelled, true);
    for (uint32_t i = 0; i < answer->request.prompt_count; i++)
        if (answer->completions[i])
            completion_cancel(answer->completions[i]);
}

void answer_close(struct answer *answer)
{
    if (!answer)
        return;
    for (uint32_t i = 0; answer->completions && i < answer->request.prompt_count; i++)
        completion_release(answer->completions[i]);
    for (uint32_t i = 0; i < answer->choice_count; i++)
        answer_text_deinit(&answer->choices[i].text);
    free(answer->completions);
    free(answer->choices);
    free(answer->shown);
    free(answer->scores);
    buffer_deinit(&answer->delta);
    buffer_deinit(&answer->piece);
    request_deinit(&answer->request, answer->context);
    free(answer);
}

enum answer_state answer_pump(struct answer *answer, struct buffer *out)
{
    CHECK(answer->error.status == STATUS_OK);
    enum answer_state state = request_is_pooling(&answer->request)
                                  ? answer_pump_pooling(answer, out)
                              : answer->request.stream ? answer_pump_stream(answer, out)
                                                       : answer_pump_whole(answer, out);
    if ((answer->delta.failed || answer->piece.failed) && state != ANSWER_FAILED) {
        error_no_memory(&answer->error);
        state = ANSWER_FAILED;
    }
    if (state == ANSWER_FAILED)
        answer_cancel(answer);
    answer->sent = answer->sent || state == ANSWER_DATA;
    return state;
}

void answer_end_stream(struct answer *answer, const struct error *why, struct buffer *out)
{
    CHECK(answer->request.stream);
    answer_cut_stream(answer, why, out);
}

const struct error *answer_error(const struct answer *answer)
{
    return &answer->error;
}

void answer_summarize(const struct answer *answer, struct answer_summary *out)
{
    struct answer_usage usage = answer_usage(answer);
    const char *finish = answer->choices[0].timed_out ? "timeout" : answer->choices[0].finish;
    bool cancelled = atomic_load(&answer->cancelled);
    struct completion_times times = {0};
    if (answer->completions[0])
        times = completion_times(answer->completions[0]);
    *out = (struct answer_summary){
        .prompt_tokens = (uint32_t)usage.prompt_tokens,
        .completion_tokens = (uint32_t)usage.completion_tokens,
        .cached_tokens = (uint32_t)usage.cached_tokens,
        .finish = answer->error.status == STATUS_OK || answer->error.status == STATUS_UNAVAILABLE
                      ? (finish                                   ? finish
                         : !strcmp(answer->error.code, "timeout") ? "timeout"
                         : cancelled                              ? "cancelled"
                                                                  : "error")
                      : "error",
        .submit_ns = times.submit_ns,
        .admit_ns = times.admit_ns,
        .first_token_ns = times.first_token_ns,
        .seed = answer->request.sampling.seed,
    };
}
