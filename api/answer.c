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

#include "api/answer_write.h"
#include "api/request.h"
#include "base/check.h"
#include "engine/text/detokenizer.h"
#include "engine/text/stop_matcher.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_TOKENS_MAX 256         /* tokens merged into one event */
#define EVENT_TEXT_BYTES (64u << 10) /* and text, before the next event begins */

/* Tokens to text: detokenizer, then stop strings. */
struct text_state {
    struct detokenizer detokenizer;
    struct stop_matcher matcher;
    uint32_t next; /* token */
};

struct answer_choice {
    uint32_t prompt; /* index of its completion */
    uint32_t choice; /* index in it */
    struct text_state text;
    struct text_offsets offsets;
    const char *finish;   /* "stop" or "length"; NULL: going on */
    uint32_t token_count; /* counted in usage */
    size_t echo_sent;
    bool started; /* stream: its first event was written */
    bool ended;   /* stream: its last event was written */
};

/* A whole answer is written in these steps, choice by choice. */
enum write_step {
    STEP_HEAD,
    STEP_OPEN,
    STEP_ECHO,
    STEP_TEXT,
    STEP_LOGPROBS,
    STEP_CLOSE,
    STEP_TAIL
};

struct answer {
    const struct api_context *context;
    struct request request;
    struct answer_head head;
    struct completion **completions; /* [prompt_count]; NULL each when nothing is generated */
    struct answer_choice *choices;   /* [choice_count] prompt by prompt */
    uint32_t choice_count;
    uint64_t own_bytes;
    atomic_bool cancelled;
    bool sent;           /* bytes were handed out */
    struct buffer delta; /* text of the event being written */
    struct buffer piece; /* text of one token */
    struct error error;
    /* writing a whole answer */
    enum write_step step;
    uint32_t write_choice;
    enum logprob_pass pass;
    uint32_t pass_next;
};

static void text_state_init(struct text_state *state, const struct request *request)
{
    detokenizer_init(&state->detokenizer);
    stop_matcher_init(&state->matcher, (const char *const *)request->stops, request->stop_lengths,
                      request->stop_count);
    state->next = 0;
}

static struct completion *completion_of(const struct answer *answer,
                                        const struct answer_choice *choice)
{
    return answer->completions[choice->prompt];
}

static enum status create_completion(struct answer *answer, uint32_t prompt, void (*wake)(void *),
                                     void *wake_arg, struct error *error)
{
    const struct request *request = &answer->request;
    uint32_t room = request_room(request, answer->context, prompt);
    if (room == 0)
        return STATUS_OK;
    struct completion_spec spec = {
        .tokens = request->prompts[prompt].tokens,
        .token_count = (uint32_t)request->prompts[prompt].count,
        .choice_count = request->choice_count,
        .max_tokens = room,
        .sampling = request->sampling,
        .ignore_eos = request->ignore_eos,
        .use_prefix_cache = request->use_prefix_cache,
        .cache_salt = request->cache_salt,
        .want_logprobs = request->want_logprobs,
        .top_logprobs = request->top_logprobs,
        .wake = wake,
        .wake_arg = wake_arg,
    };
    return completion_create(&spec, answer->context->budget, &answer->completions[prompt], error);
}

/* Make room for all choices and their completions. */
static enum status prepare(struct answer *answer, void (*wake)(void *), void *wake_arg,
                           struct error *error)
{
    struct request *request = &answer->request;
    uint32_t prompts = request->prompt_count, n = request->choice_count;
    answer->choice_count = prompts * n;
    uint64_t bytes =
        sizeof *answer + answer->choice_count * sizeof *answer->choices + prompts * sizeof(void *);
    enum status status = request_take(answer->context, request, bytes, error);
    if (status != STATUS_OK)
        return status;
    answer->completions = calloc(prompts, sizeof *answer->completions);
    answer->choices = calloc(answer->choice_count, sizeof *answer->choices);
    if (!answer->completions || !answer->choices) {
        answer->choice_count = 0;
        return error_set(error, STATUS_IO, NULL, "Out of memory.");
    }
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        struct answer_choice *choice = &answer->choices[i];
        choice->prompt = i / n;
        choice->choice = i % n;
        text_state_init(&choice->text, request);
        text_offsets_init(&choice->offsets);
    }
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

enum status answer_open(const struct api_context *context, enum answer_kind kind, const char *body,
                        size_t body_length, uint64_t request_id, uint64_t cache_salt,
                        void (*wake)(void *arg), void *wake_arg, struct answer **out,
                        struct error *error)
{
    *out = NULL;
    struct answer *answer = calloc(1, sizeof *answer);
    if (!answer)
        return error_set(error, STATUS_IO, NULL, "Out of memory.");
    answer->context = context;
    buffer_init(&answer->delta, 0);
    buffer_init(&answer->piece, 0);
    enum status status =
        request_read(context, kind, body, body_length, cache_salt, &answer->request, error);
    if (status == STATUS_OK) {
        answer_head_init(&answer->head, context, &answer->request, request_id);
        status = prepare(answer, wake, wake_arg, error);
    }
    /* Either every prompt generates or, with max_tokens 0, none does. */
    if (status == STATUS_OK && answer->completions[0])
        status = engine_submit(context->engine, answer->completions, answer->request.prompt_count,
                               error);
    if (status != STATUS_OK) {
        answer_close(answer);
        return status;
    }
    drop_tokens(answer);
    *out = answer;
    return STATUS_OK;
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
        stop_matcher_deinit(&answer->choices[i].text.matcher);
    free(answer->completions);
    free(answer->choices);
    buffer_deinit(&answer->delta);
    buffer_deinit(&answer->piece);
    request_deinit(&answer->request, answer->context);
    free(answer);
}

/* Text of the next token; true once a stop matched. */
static bool push_token(struct answer *answer, struct text_state *state, uint32_t token,
                       struct buffer *out)
{
    size_t length;
    const char *bytes = tokenizer_piece(answer->context->tokenizer, token, &length);
    state->next++;
    buffer_clear(&answer->piece);
    detokenizer_push(&state->detokenizer, bytes, length, &answer->piece);
    if (answer->piece.length == 0)
        return false;
    return stop_matcher_push(&state->matcher, answer->piece.data, answer->piece.length, out);
}

/* The end of the tokens: a cut character, then what was held back. True if that completed a stop.
 */
static bool push_end(struct answer *answer, struct text_state *state, struct buffer *out)
{
    buffer_clear(&answer->piece);
    detokenizer_finish(&state->detokenizer, &answer->piece);
    if (answer->piece.length > 0 &&
        stop_matcher_push(&state->matcher, answer->piece.data, answer->piece.length, out))
        return true;
    stop_matcher_finish(&state->matcher, out);
    return false;
}

static enum status fault(struct answer *answer, enum finish_reason reason)
{
    if (reason == FINISH_CANCELLED)
        return error_set_code(&answer->error, STATUS_UNAVAILABLE, "cancelled", NULL,
                              "The request was cancelled.");
    return error_set_code(&answer->error, STATUS_INTERNAL, "generation_failed", NULL,
                          "Generation failed: the model gave no usable probabilities.");
}

/* Take what is ready of one choice, at most an event's worth: text goes to `out`, finish is set
   when it ended. */
static enum status advance(struct answer *answer, struct answer_choice *choice, struct buffer *out)
{
    struct completion *completion = completion_of(answer, choice);
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
        stopped = push_token(answer, state, tokens[taken++].token, out);
    choice->token_count = state->next;
    if (stopped) {
        choice->finish = "stop";
        completion_cancel_choice(completion, choice->choice);
        return STATUS_OK;
    }
    if (taken < count || reason == FINISH_NONE)
        return STATUS_OK;
    if (reason == FINISH_CANCELLED || reason == FINISH_ERROR)
        return fault(answer, reason);
    stopped = push_end(answer, state, out);
    choice->finish = stopped || reason == FINISH_STOP ? "stop" : "length";
    return STATUS_OK;
}

static struct answer_usage usage_of(const struct answer *answer)
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

/* Write text[0..length) in pieces that end at characters: the next piece of at most `most` bytes.
 */
static size_t piece_length(const char *text, size_t length, size_t most)
{
    if (length <= most)
        return length;
    while (most > 0 && ((unsigned char)text[most] & 0xc0) == 0x80)
        most--;
    return most;
}

/* -- streams -- */

static struct logprob_range range_of(struct answer *answer, struct answer_choice *choice,
                                     uint32_t first, uint32_t end)
{
    return (struct logprob_range){
        .tokenizer = answer->context->tokenizer,
        .completion = completion_of(answer, choice),
        .choice = choice->choice,
        .first = first,
        .end = end,
        .offsets = &choice->offsets,
    };
}

/* "logprobs":… of tokens first … next-1, null if there are none. */
static void write_event_logprobs(struct answer *answer, struct answer_choice *choice,
                                 uint32_t first, struct buffer *out)
{
    buffer_append_text(out, "\"logprobs\":");
    uint32_t end = choice->text.next;
    if (!answer->request.want_logprobs || first == end) {
        buffer_append_text(out, "null");
        return;
    }
    struct logprob_range range = range_of(answer, choice, first, end);
    for (enum logprob_pass pass = logprob_pass_first(answer->request.kind);; pass++) {
        buffer_append_text(out, logprob_pass_open(pass));
        answer_write_logprobs(&range, pass, out);
        buffer_append_text(out, logprob_pass_close(pass));
        if (logprob_pass_last(pass))
            return;
    }
}

/* One event of one choice. `role`: the first of a chat; `finish`: the last. */
static void write_event(struct answer *answer, struct answer_choice *choice, const char *text,
                        size_t length, uint32_t first, bool role, const char *finish,
                        struct buffer *out)
{
    uint32_t index = (uint32_t)(choice - answer->choices);
    buffer_append_text(out, "data: ");
    answer_write_head(&answer->head, out);
    buffer_appendf(out, "{\"index\":%u,", index);
    if (answer->request.kind == ANSWER_CHAT) {
        buffer_append_text(out,
                           role ? "\"delta\":{\"role\":\"assistant\",\"content\":" : "\"delta\":{");
        if (!role && !finish)
            buffer_append_text(out, "\"content\":");
        if (role || !finish)
            json_write_string(out, text, length);
        buffer_append_text(out, "},");
    } else {
        buffer_append_text(out, "\"text\":");
        json_write_string(out, text, length);
        buffer_append_text(out, ",");
    }
    write_event_logprobs(answer, choice, first, out);
    if (finish)
        buffer_appendf(out, ",\"finish_reason\":\"%s\"}", finish);
    else
        buffer_append_text(out, ",\"finish_reason\":null}");
    answer_write_chunk_tail(&answer->head, out);
    buffer_append_text(out, "\n\n");
}

/* The first event of a choice, once there is something to say; echoed prompts in pieces. */
static void write_start(struct answer *answer, struct answer_choice *choice, size_t full,
                        struct buffer *out)
{
    const struct request_prompt *prompt = &answer->request.prompts[choice->prompt];
    if (answer->request.kind == ANSWER_CHAT && !choice->started)
        write_event(answer, choice, "", 0, choice->text.next, true, NULL, out);
    choice->started = true;
    while (choice->echo_sent < prompt->echo_length && out->length < full) {
        const char *text = prompt->echo + choice->echo_sent;
        size_t length =
            piece_length(text, prompt->echo_length - choice->echo_sent, EVENT_TEXT_BYTES);
        write_event(answer, choice, text, length, choice->text.next, false, NULL, out);
        choice->echo_sent += length;
    }
}

/* Has the choice anything that was not taken yet? */
static bool is_ready(const struct answer *answer, const struct answer_choice *choice)
{
    struct completion *completion = completion_of(answer, choice);
    const struct completion_token *tokens;
    return !completion || completion_reason(completion, choice->choice) != FINISH_NONE ||
           completion_read(completion, choice->choice, choice->text.next, &tokens) > 0;
}

/* Events of one choice until nothing is ready or `out` has `full` bytes. */
static enum status stream_choice(struct answer *answer, struct answer_choice *choice, size_t full,
                                 struct buffer *out)
{
    size_t echo_length = answer->request.prompts[choice->prompt].echo_length;
    while (!choice->ended && out->length < full && is_ready(answer, choice)) {
        uint32_t first = choice->text.next;
        if (!choice->started || choice->echo_sent < echo_length) {
            /* An early fault must keep its status: nothing is written before a first token. */
            enum finish_reason reason = FINISH_NONE;
            if (completion_of(answer, choice))
                reason = completion_reason(completion_of(answer, choice), choice->choice);
            if (reason == FINISH_ERROR || reason == FINISH_CANCELLED)
                return fault(answer, reason);
            write_start(answer, choice, full, out);
            continue;
        }
        buffer_clear(&answer->delta);
        enum status status = advance(answer, choice, &answer->delta);
        if (status != STATUS_OK)
            return status;
        bool logprobs = answer->request.want_logprobs && choice->text.next > first;
        if (answer->delta.length > 0 || logprobs)
            write_event(answer, choice, answer->delta.data ? answer->delta.data : "",
                        answer->delta.length, first, false, NULL, out);
        if (choice->finish) {
            write_event(answer, choice, "", 0, choice->text.next, false, choice->finish, out);
            choice->ended = true;
        }
    }
    return STATUS_OK;
}

static enum answer_state pump_stream(struct answer *answer, struct buffer *out)
{
    size_t before = out->length;
    bool all = true;
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        if (stream_choice(answer, &answer->choices[i], before + LIMIT_OUTPUT_BYTES, out) !=
            STATUS_OK) {
            answer_cancel(answer);
            if (!answer->sent && out->length == before)
                return ANSWER_FAILED;
            buffer_append_text(out, "data: ");
            api_write_error(&answer->error, out);
            buffer_append_text(out, "\n\n");
            return ANSWER_FAILED;
        }
        all = all && answer->choices[i].ended;
    }
    if (all) {
        if (answer->head.show_usage) {
            struct answer_usage usage = usage_of(answer);
            buffer_append_text(out, "data: ");
            answer_write_head(&answer->head, out);
            buffer_append_text(out, "],");
            answer_write_usage(&usage, out);
            buffer_append_text(out, "}\n\n");
        }
        buffer_append_text(out, "data: [DONE]\n\n");
        return ANSWER_END;
    }
    return out->length > before ? ANSWER_DATA : ANSWER_WAIT;
}

/* -- whole answers -- */

/* Look for stops in what came since. True when every choice has finished. */
static enum status follow(struct answer *answer, bool *all)
{
    *all = true;
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        struct answer_choice *choice = &answer->choices[i];
        while (!choice->finish && is_ready(answer, choice)) {
            buffer_clear(&answer->delta);
            enum status status = advance(answer, choice, &answer->delta);
            if (status != STATUS_OK)
                return status;
        }
        *all = *all && choice->finish;
    }
    return STATUS_OK;
}

/* The next piece of a choice's text, from the ring. True when there is no more. */
static bool write_text_piece(struct answer *answer, struct answer_choice *choice,
                             struct buffer *out)
{
    struct text_state *state = &choice->text;
    const struct completion_token *tokens;
    uint32_t count = 0;
    if (completion_of(answer, choice))
        count =
            completion_read(completion_of(answer, choice), choice->choice, state->next, &tokens);
    uint32_t left = choice->token_count - state->next;
    count = count < left ? count : left;
    buffer_clear(&answer->delta);
    bool stopped = false;
    for (uint32_t i = 0; i < count && answer->delta.length < EVENT_TEXT_BYTES && !stopped; i++)
        stopped = push_token(answer, state, tokens[i].token, &answer->delta);
    bool done = stopped || state->next == choice->token_count;
    if (done && !stopped)
        push_end(answer, state, &answer->delta);
    json_write_escaped(out, answer->delta.data ? answer->delta.data : "", answer->delta.length);
    return done;
}

static void write_open(struct answer *answer, struct buffer *out)
{
    struct answer_choice *choice = &answer->choices[answer->write_choice];
    stop_matcher_deinit(&choice->text.matcher);
    text_state_init(&choice->text, &answer->request); /* from the first token again */
    buffer_append_text(out, answer->write_choice ? "," : "");
    buffer_appendf(out, "{\"index\":%u,", answer->write_choice);
    buffer_append_text(out, answer->request.kind == ANSWER_CHAT
                                ? "\"message\":{\"role\":\"assistant\",\"content\":\""
                                : "\"text\":\"");
}

static bool write_echo_piece(struct answer *answer, struct answer_choice *choice,
                             struct buffer *out)
{
    const struct request_prompt *prompt = &answer->request.prompts[choice->prompt];
    if (!prompt->echo)
        return true;
    const char *text = prompt->echo + choice->echo_sent;
    size_t length = piece_length(text, prompt->echo_length - choice->echo_sent, EVENT_TEXT_BYTES);
    json_write_escaped(out, text, length);
    choice->echo_sent += length;
    return choice->echo_sent == prompt->echo_length;
}

/* Behind the text; begins the log-probabilities. */
static void write_text_close(struct answer *answer, struct buffer *out)
{
    buffer_append_text(out, answer->request.kind == ANSWER_CHAT ? "\",\"refusal\":null}," : "\",");
    buffer_append_text(out, "\"logprobs\":");
    answer->pass = logprob_pass_first(answer->request.kind);
    answer->pass_next = 0;
}

/* True when all passes are written. */
static bool write_logprobs_piece(struct answer *answer, struct answer_choice *choice,
                                 struct buffer *out)
{
    if (!answer->request.want_logprobs || !completion_of(answer, choice)) {
        buffer_append_text(out, "null");
        return true;
    }
    uint32_t end = answer->pass_next + EVENT_TOKENS_MAX;
    end = end < choice->token_count ? end : choice->token_count;
    struct logprob_range range = range_of(answer, choice, answer->pass_next, end);
    range.comma = answer->pass_next > 0;
    if (answer->pass_next == 0)
        buffer_append_text(out, logprob_pass_open(answer->pass));
    answer_write_logprobs(&range, answer->pass, out);
    answer->pass_next = end;
    if (end < choice->token_count)
        return false;
    buffer_append_text(out, logprob_pass_close(answer->pass));
    answer->pass_next = 0;
    return logprob_pass_last(answer->pass++);
}

/* One step; true when the body is whole. */
static bool write_step(struct answer *answer, struct buffer *out)
{
    struct answer_choice *choice = &answer->choices[answer->write_choice];
    switch (answer->step) {
    case STEP_HEAD:
        answer_write_head(&answer->head, out);
        answer->step = STEP_OPEN;
        return false;
    case STEP_OPEN:
        write_open(answer, out);
        answer->step = STEP_ECHO;
        return false;
    case STEP_ECHO:
        if (write_echo_piece(answer, choice, out))
            answer->step = STEP_TEXT;
        return false;
    case STEP_TEXT:
        if (!write_text_piece(answer, choice, out))
            return false;
        write_text_close(answer, out);
        answer->step = STEP_LOGPROBS;
        return false;
    case STEP_LOGPROBS:
        if (write_logprobs_piece(answer, choice, out))
            answer->step = STEP_CLOSE;
        return false;
    case STEP_CLOSE:
        buffer_appendf(out, ",\"finish_reason\":\"%s\"}", choice->finish);
        answer->write_choice++;
        answer->step = answer->write_choice < answer->choice_count ? STEP_OPEN : STEP_TAIL;
        return false;
    case STEP_TAIL:
        break;
    }
    struct answer_usage usage = usage_of(answer);
    buffer_append_text(out, "],");
    answer_write_usage(&usage, out);
    buffer_append_text(out, "}");
    return true;
}

static enum answer_state pump_whole(struct answer *answer, struct buffer *out)
{
    bool all;
    if (follow(answer, &all) != STATUS_OK) {
        answer_cancel(answer);
        return ANSWER_FAILED;
    }
    if (!all)
        return ANSWER_WAIT;
    size_t before = out->length;
    while (out->length - before < LIMIT_OUTPUT_BYTES)
        if (write_step(answer, out))
            return ANSWER_END;
    return ANSWER_DATA;
}

enum answer_state answer_pump(struct answer *answer, struct buffer *out)
{
    CHECK(answer->error.status == STATUS_OK);
    enum answer_state state =
        answer->request.stream ? pump_stream(answer, out) : pump_whole(answer, out);
    if ((answer->delta.failed || answer->piece.failed) && state != ANSWER_FAILED) {
        error_set(&answer->error, STATUS_IO, NULL, "Out of memory.");
        answer_cancel(answer);
        state = ANSWER_FAILED;
    }
    answer->sent = answer->sent || state == ANSWER_DATA;
    return state;
}

const struct error *answer_error(const struct answer *answer)
{
    return &answer->error;
}

void answer_summarize(const struct answer *answer, struct answer_summary *out)
{
    struct answer_usage usage = usage_of(answer);
    const char *finish = answer->choices[0].finish;
    bool cancelled = atomic_load(&answer->cancelled);
    *out = (struct answer_summary){
        .prompt_tokens = (uint32_t)usage.prompt_tokens,
        .completion_tokens = (uint32_t)usage.completion_tokens,
        .cached_tokens = (uint32_t)usage.cached_tokens,
        .finish = answer->error.status == STATUS_OK || answer->error.status == STATUS_UNAVAILABLE
                      ? (finish      ? finish
                         : cancelled ? "cancelled"
                                     : "error")
                      : "error",
        .seed = answer->request.sampling.seed,
    };
}
