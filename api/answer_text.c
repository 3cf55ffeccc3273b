/* What streams and whole answers share: from the engine's tokens to text. See answer_text.h. */
#include "api/answer_text.h"

void answer_text_init(struct text_state *state, const struct request *request)
{
    detokenizer_init(&state->detokenizer);
    stop_matcher_init(&state->matcher, (const char *const *)request->stops, request->stop_lengths,
                      request->stop_count, request->include_stop);
    state->next = 0;
}

struct completion *answer_completion(const struct answer *answer,
                                     const struct answer_choice *choice)
{
    return answer->completions[choice->prompt];
}

bool answer_push_token(struct answer *answer, struct text_state *state, uint32_t token,
                       struct buffer *out)
{
    const struct tokenizer *tokenizer = answer->context->tokenizer;
    const struct request *request = &answer->request;
    size_t length;
    bool special = !request->skip_special && tokenizer_is_control(tokenizer, token);
    const char *bytes = special ? tokenizer_text(tokenizer, token, &length)
                                : tokenizer_piece(tokenizer, token, &length);
    state->next++;
    buffer_clear(&answer->piece);
    detokenizer_push(&state->detokenizer, bytes, length, &answer->piece);
    if (answer->piece.length == 0)
        return false;
    if (state->next < request->rules.min_tokens) { /* no stop string ends it yet */
        buffer_append(out, answer->piece.data, answer->piece.length);
        return false;
    }
    return stop_matcher_push(&state->matcher, answer->piece.data, answer->piece.length, out);
}

bool answer_push_end(struct answer *answer, struct text_state *state, struct buffer *out)
{
    buffer_clear(&answer->piece);
    detokenizer_finish(&state->detokenizer, &answer->piece);
    if (answer->piece.length > 0 &&
        stop_matcher_push(&state->matcher, answer->piece.data, answer->piece.length, out))
        return true;
    stop_matcher_finish(&state->matcher, out);
    return false;
}

static bool constraint_has_failed(const struct answer *answer)
{
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        const struct completion *completion = answer_completion(answer, &answer->choices[i]);
        if (completion && completion_constraint_failed(completion, answer->choices[i].choice))
            return true;
    }
    return false;
}

enum status answer_fault(struct answer *answer, enum finish_reason reason)
{
    if (reason == FINISH_CANCELLED)
        return error_set_code(&answer->error, STATUS_UNAVAILABLE, "cancelled", NULL,
                              "The request was cancelled.");
    if (reason == FINISH_TIMEOUT) {
        enum status status =
            error_set_code(&answer->error, STATUS_UNAVAILABLE, "timeout", "timeout",
                           "The request's time was over before its answer began: the server is "
                           "busy.");
        answer->error.retry_after_s = engine_retry_after_s(answer->context->engine);
        return status;
    }
    const char *constraint = answer->request.constraint.param;
    if (constraint && constraint_has_failed(answer))
        return error_set_code(&answer->error, STATUS_INTERNAL, "constraint_failed", constraint,
                              "%s could not be followed to the end: the answer reached the limit "
                              "of steps or of memory for one grammar.",
                              constraint);
    return error_set_code(&answer->error, STATUS_INTERNAL, "generation_failed", NULL,
                          "Generation failed: the model gave no usable probabilities.");
}

/* Has any choice a token? */
static bool has_begun(const struct answer *answer)
{
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        const struct answer_choice *choice = &answer->choices[i];
        const struct completion_token *tokens;
        if (completion_read(answer_completion(answer, choice), choice->choice, 0, &tokens) > 0)
            return true;
    }
    return false;
}

bool answer_is_good(const struct answer *answer, enum finish_reason reason)
{
    if (reason == FINISH_TIMEOUT)
        return has_begun(answer);
    return reason != FINISH_CANCELLED && reason != FINISH_ERROR;
}

enum status answer_advance(struct answer *answer, struct answer_choice *choice, struct buffer *out)
{
    struct completion *completion = answer_completion(answer, choice);
    if (!completion) { /* max_tokens 0 */
        choice->finish = "length";
        return STATUS_OK;
    }
    struct text_state *state = &choice->text;
    enum finish_reason reason =
        completion_reason(completion, choice->choice); /* before the tokens */
    const struct completion_token *tokens;
    uint32_t count = completion_read(completion, choice->choice, state->next, &tokens);
    uint32_t taken = 0;
    bool stopped = false;
    while (taken < count && taken < EVENT_TOKENS_MAX && out->length < EVENT_TEXT_BYTES && !stopped)
        stopped = answer_push_token(answer, state, tokens[taken++].token, out);
    choice->token_count = state->next;
    if (stopped) {
        choice->finish = "stop";
        completion_stop_choice(completion, choice->choice);
        return STATUS_OK;
    }
    if (taken < count || reason == FINISH_NONE)
        return STATUS_OK;
    if (!answer_is_good(answer, reason))
        return answer_fault(answer, reason);
    stopped = answer_push_end(answer, state, out);
    choice->finish = stopped || reason == FINISH_STOP ? "stop" : "length";
    choice->timed_out = !stopped && reason == FINISH_TIMEOUT;
    return STATUS_OK;
}

struct answer_end answer_end_of(const struct answer *answer, const struct answer_choice *choice)
{
    const struct stop_matcher *matcher = &choice->text.matcher;
    struct completion *completion = answer_completion(answer, choice);
    return (struct answer_end){
        .finish = choice->finish,
        .timed_out = choice->timed_out,
        .stop = matcher->matched ? answer->request.stops[matcher->matched_index] : NULL,
        .stop_token = choice->finish && completion
                          ? completion_stop_token(completion, choice->choice)
                          : UINT32_MAX,
    };
}

struct answer_usage answer_usage(const struct answer *answer)
{
    struct answer_usage usage = {0};
    for (uint32_t i = 0; i < answer->request.prompt_count; i++) {
        usage.prompt_tokens += answer->request.prompts[i].count;
        if (answer->completions && answer->completions[i])
            usage.cached_tokens += completion_cached_count(answer->completions[i]);
    }
    for (uint32_t i = 0; i < answer->choice_count; i++)
        usage.completion_tokens += answer->choices[i].token_count;
    return usage;
}

size_t answer_piece_length(const char *text, size_t length, size_t most)
{
    if (length <= most)
        return length;
    while (most > 0 && ((unsigned char)text[most] & 0xc0) == 0x80)
        most--;
    return most;
}

struct logprob_range answer_logprob_range(struct answer *answer, struct answer_choice *choice,
                                          uint32_t first, uint32_t end)
{
    return (struct logprob_range){
        .tokenizer = answer->context->tokenizer,
        .completion = answer_completion(answer, choice),
        .choice = choice->choice,
        .first = first,
        .end = end,
        .offsets = &choice->offsets,
    };
}

bool answer_is_ready(const struct answer *answer, const struct answer_choice *choice)
{
    struct completion *completion = answer_completion(answer, choice);
    const struct completion_token *tokens;
    return !completion || completion_reason(completion, choice->choice) != FINISH_NONE ||
           completion_read(completion, choice->choice, choice->text.next, &tokens) > 0;
}
