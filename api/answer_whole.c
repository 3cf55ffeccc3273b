/*
 * Whole answers: stops are looked for while the engine runs, the body is written from its rings
 * when it is done: choice by choice, in pieces, so that a long answer needs no memory of its own.
 */
#include "api/answer_text.h"

#include "base/json_writer.h"
#include "base/minmax.h"

#include <math.h>
#include <string.h>

/* Look for stops in what came since. True when every choice has finished. */
static enum status follow(struct answer *answer, bool *all)
{
    *all = true;
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        struct answer_choice *choice = &answer->choices[i];
        while (!choice->finish && answer_is_ready(answer, choice)) {
            buffer_clear(&answer->delta);
            enum status status = answer_advance(answer, choice, &answer->delta);
            if (status != STATUS_OK)
                return status;
        }
        *all = *all && choice->finish;
    }
    return STATUS_OK;
}

/* The mean log-probability of a choice's tokens: OpenAI's measure of the best. */
static double quality(const struct answer *answer, const struct answer_choice *choice)
{
    const struct completion_token *tokens;
    if (!answer_completion(answer, choice) || choice->token_count == 0)
        return -INFINITY; /* nothing was said: no measure */
    completion_read(answer_completion(answer, choice), choice->choice, 0, &tokens);
    double sum = 0;
    for (uint32_t i = 0; i < choice->token_count; i++)
        sum += (double)tokens[i].logprob;
    return sum / choice->token_count;
}

/* best_of: of each prompt's choices show the best, best first; of equals the earlier one. */
static void choose_best(struct answer *answer)
{
    uint32_t made = answer->request.choice_count, shown = answer->request.shown_count;
    for (uint32_t p = 0; made > shown && p < answer->request.prompt_count; p++) {
        uint32_t *best = answer->shown + (size_t)p * shown, count = 0;
        for (uint32_t i = p * made; i < (p + 1) * made; i++) {
            double value = quality(answer, &answer->choices[i]);
            uint32_t at = count;
            while (at > 0 && quality(answer, &answer->choices[best[at - 1]]) < value)
                at--;
            if (at == shown)
                continue;
            count += count < shown;
            memmove(best + at + 1, best + at, (count - at - 1) * sizeof *best);
            best[at] = i;
        }
    }
}

/* The next piece of a choice's text, from the ring. True when there is no more. */
static bool write_text_piece(struct answer *answer, struct answer_choice *choice,
                             struct buffer *out)
{
    struct text_state *state = &choice->text;
    const struct completion_token *tokens;
    uint32_t count = 0;
    if (answer_completion(answer, choice))
        count = completion_read(answer_completion(answer, choice), choice->choice, state->next,
                                &tokens);
    uint32_t left = choice->token_count - state->next;
    count = min_u32(count, left);
    buffer_clear(&answer->delta);
    answer->writing_to = out;
    bool stopped = false;
    for (uint32_t i = 0; i < count && answer->delta.length < EVENT_TEXT_BYTES && !stopped; i++)
        stopped = answer_push_token(answer, state, tokens[i].token, &answer->delta);
    bool done = stopped || state->next == choice->token_count;
    if (done && !stopped)
        answer_push_end(answer, state, &answer->delta);
    if (answer->writing == WRITE_TEXT)
        json_write_escaped(out, answer->delta.data ? answer->delta.data : "", answer->delta.length);
    return done;
}

/* The one that is being written. */
static struct answer_choice *shown_choice(const struct answer *answer)
{
    return &answer->choices[answer->shown[answer->write_choice]];
}

/* Writes what one reading of a choice's text is for; see enum write_part. */
static void take_event(void *arg, const struct output_event *event)
{
    struct answer *answer = arg;
    struct buffer *out = answer->writing_to;
    enum write_part part = answer->writing;
    if (event->kind == OUTPUT_REASONING && (part == WRITE_REASONING || part == WRITE_REASONING_2)) {
        const char *name = part == WRITE_REASONING ? "reasoning_content" : "reasoning";
        if (!answer->wrote_part)
            buffer_appendf(out, ",\"%s\":\"", name);
        json_write_escaped(out, event->text, event->length);
        answer->wrote_part = true;
    } else if (event->kind == OUTPUT_CONTENT && part == WRITE_CONTENT) {
        if (!answer->wrote_part)
            buffer_append_text(out, ",\"content\":\"");
        json_write_escaped(out, event->text, event->length);
        answer->wrote_part = true;
    } else if (event->kind == OUTPUT_CALL && part == WRITE_CALLS) {
        buffer_append_text(out, answer->wrote_part ? ",{" : ",\"tool_calls\":[{");
        answer_write_call_id(&answer->head, &answer->request, answer->shown[answer->write_choice],
                             event->call, out);
        buffer_append_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write_string(out, event->text, event->length);
        buffer_append_text(out, ",\"arguments\":\"");
        answer->wrote_part = true;
    } else if (event->kind == OUTPUT_ARGUMENTS && part == WRITE_CALLS) {
        json_write_escaped(out, event->text, event->length);
    } else if (event->kind == OUTPUT_CALL_END && part == WRITE_CALLS) {
        buffer_append_text(out, "\"}}");
    }
}

/* The choice's text from its first token again. */
static void begin_pass(struct answer *answer, struct answer_choice *choice)
{
    answer_text_deinit(&choice->text);
    answer_text_init(&choice->text, &answer->request, (struct output_sink){take_event, answer});
    answer->wrote_part = false;
}

/* Behind one reading; true behind the last. */
static bool end_pass(struct answer *answer, struct answer_choice *choice, struct buffer *out)
{
    if (answer->writing == WRITE_TEXT)
        return true;
    if (answer->wrote_part)
        buffer_append_text(out, answer->writing == WRITE_CALLS ? "]" : "\"");
    else if (answer->writing == WRITE_CONTENT)
        buffer_append_text(out, choice->text.parser.calls > 0 ? ",\"content\":null"
                                                              : ",\"content\":\"\"");
    if (answer->writing == WRITE_CALLS)
        return true;
    answer->writing++;
    begin_pass(answer, choice);
    return false;
}

static void write_open(struct answer *answer, struct buffer *out)
{
    struct answer_choice *choice = shown_choice(answer);
    begin_pass(answer, choice);
    answer->writing = request_parses(&answer->request) ? WRITE_REASONING : WRITE_TEXT;
    buffer_append_text(out, answer->write_choice ? "," : "");
    buffer_appendf(out, "{\"index\":%u,", answer->write_choice);
    buffer_append_text(out, answer->request.kind == ANSWER_CHAT
                                ? answer->writing == WRITE_TEXT
                                      ? "\"message\":{\"role\":\"assistant\",\"content\":\""
                                      : "\"message\":{\"role\":\"assistant\""
                                : "\"text\":\"");
}

static bool write_echo_piece(struct answer *answer, struct answer_choice *choice,
                             struct buffer *out)
{
    const struct request_prompt *prompt = &answer->request.prompts[choice->prompt];
    if (!prompt->echo)
        return true;
    const char *text = prompt->echo + choice->echo_sent;
    size_t length =
        answer_piece_length(text, prompt->echo_length - choice->echo_sent, EVENT_TEXT_BYTES);
    json_write_escaped(out, text, length);
    choice->echo_sent += length;
    return choice->echo_sent == prompt->echo_length;
}

/* Behind the text; begins the log-probabilities. */
static void write_text_close(struct answer *answer, struct buffer *out)
{
    buffer_append_text(out, answer->request.kind != ANSWER_CHAT ? "\","
                            : answer->writing == WRITE_TEXT     ? "\",\"refusal\":null},"
                                                                : ",\"refusal\":null},");
    buffer_append_text(out, "\"logprobs\":");
    answer->pass = logprob_pass_first(answer->request.kind);
    answer->pass_next = 0;
}

/* True when all passes are written. */
static bool write_logprobs_piece(struct answer *answer, struct answer_choice *choice,
                                 struct buffer *out)
{
    if (!answer->request.want_logprobs || !answer_completion(answer, choice)) {
        buffer_append_text(out, "null");
        return true;
    }
    uint32_t end = answer->pass_next + EVENT_TOKENS_MAX;
    end = min_u32(end, choice->token_count);
    struct logprob_range range = answer_logprob_range(answer, choice, answer->pass_next, end);
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
    struct answer_choice *choice = answer->step == STEP_TAIL ? NULL : shown_choice(answer);
    struct answer_end end;
    switch (answer->step) {
    case STEP_HEAD:
        choose_best(answer);
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
        if (!write_text_piece(answer, choice, out) || !end_pass(answer, choice, out))
            return false;
        write_text_close(answer, out);
        answer->step = STEP_LOGPROBS;
        return false;
    case STEP_LOGPROBS:
        if (write_logprobs_piece(answer, choice, out))
            answer->step = STEP_CLOSE;
        return false;
    case STEP_CLOSE:
        end = answer_end_of(answer, choice);
        answer_write_finish(&end, out);
        answer->write_choice++;
        answer->step = answer->write_choice < answer->shown_count ? STEP_OPEN : STEP_TAIL;
        return false;
    case STEP_TAIL:
        break;
    }
    struct answer_usage usage = answer_usage(answer);
    buffer_append_text(out, "],");
    answer_write_usage(&usage, out);
    buffer_append_text(out, "}");
    return true;
}

enum answer_state answer_pump_whole(struct answer *answer, struct buffer *out)
{
    bool all;
    if (follow(answer, &all) != STATUS_OK)
        return ANSWER_FAILED;
    if (!all)
        return ANSWER_WAIT;
    size_t before = out->length;
    while (out->length - before < LIMIT_OUTPUT_BYTES)
        if (write_step(answer, out))
            return ANSWER_END;
    return ANSWER_DATA;
}
