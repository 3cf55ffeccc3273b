/* What streams and whole answers share: from the engine's tokens to text. See answer_text.h. */
#include "api/answer_text.h"

#include <string.h>

void answer_text_init(struct text_state *state, const struct request *request,
                      struct output_sink sink)
{
    detokenizer_init(&state->detokenizer);
    stop_matcher_init(&state->matcher, (const char *const *)request->stops, request->stop_lengths,
                      request->stop_count, request->include_stop);
    state->next = 0;
    state->reasoning_tokens = 0;
    output_parser_init(&state->parser, &request->parsing, sink);
}

void answer_drop_event(void *arg, const struct output_event *event)
{
    (void)arg;
    (void)event;
}

void answer_text_deinit(struct text_state *state)
{
    stop_matcher_deinit(&state->matcher);
    output_parser_deinit(&state->parser);
}

/* Hand what was appended to `out` since it had `before` bytes to the parser. */
static void parse(struct answer *answer, struct text_state *state, const struct buffer *out,
                  size_t before, bool end)
{
    if (!request_parses(&answer->request))
        return;
    bool done = out->length == before ||
                output_parser_push(&state->parser, out->data + before, out->length - before);
    if (done && end)
        done = output_parser_end(&state->parser);
    answer->delta.failed |= !done;
}

void answer_text_flush(struct answer *answer, struct text_state *state, struct buffer *out)
{
    size_t before = out->length;
    stop_matcher_finish(&state->matcher, out);
    parse(answer, state, out, before, true);
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
    const char *bytes = request->skip_special ? tokenizer_piece(tokenizer, token, &length)
                                              : tokenizer_shown_piece(tokenizer, token, &length);
    if (length == 0 && request_parses(request)) { /* a mark may be a control token */
        size_t size;
        const char *mark = tokenizer_text(tokenizer, token, &size);
        if (output_parser_wants(&request->parsing, mark, size)) {
            bytes = mark;
            length = size;
        }
    }
    state->next++;
    buffer_clear(&answer->piece);
    detokenizer_push(&state->detokenizer, bytes, length, &answer->piece);
    bool stopped = false;
    size_t before = out->length;
    if (answer->piece.length > 0 && state->next < request->rules.min_tokens)
        buffer_append(out, answer->piece.data, answer->piece.length); /* no stop string yet */
    else if (answer->piece.length > 0)
        stopped = stop_matcher_push(&state->matcher, answer->piece.data, answer->piece.length, out);
    parse(answer, state, out, before, stopped);
    state->reasoning_tokens += output_parser_in_reasoning(&state->parser);
    return stopped || output_parser_is_done(&state->parser);
}

bool answer_push_end(struct answer *answer, struct text_state *state, struct buffer *out)
{
    size_t before = out->length;
    bool stopped = false;
    buffer_clear(&answer->piece);
    detokenizer_finish(&state->detokenizer, &answer->piece);
    if (answer->piece.length > 0)
        stopped = stop_matcher_push(&state->matcher, answer->piece.data, answer->piece.length, out);
    if (!stopped)
        stop_matcher_finish(&state->matcher, out);
    parse(answer, state, out, before, true);
    return stopped;
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
    choice->reasoning_tokens = state->reasoning_tokens;
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
    bool calls = choice->finish && choice->text.parser.calls > 0;
    return (struct answer_end){
        .finish = calls && strcmp(choice->finish, "stop") == 0 ? "tool_calls" : choice->finish,
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
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        usage.completion_tokens += answer->choices[i].token_count;
        usage.reasoning_tokens += answer->choices[i].reasoning_tokens;
    }
    usage.show_reasoning = answer->request.parsing.reasoning;
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
