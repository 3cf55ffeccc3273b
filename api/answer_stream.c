/*
 * Streams: tokens become server-sent events as they come. One event of a choice merges what was
 * ready; an event is written only when there is text, a log-probability or an end to tell. Nothing
 * is written before the first token, so that an early fault keeps its HTTP status.
 */
#include "api/answer_text.h"
#include "api/models.h"
#include "base/json_writer.h"

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
    struct logprob_range range = answer_logprob_range(answer, choice, first, end);
    for (enum logprob_pass pass = logprob_pass_first(answer->request.kind);; pass++) {
        buffer_append_text(out, logprob_pass_open(pass));
        answer_write_logprobs(&range, pass, out);
        buffer_append_text(out, logprob_pass_close(pass));
        if (logprob_pass_last(pass))
            return;
    }
}

/* Behind an event's log-probabilities; `ended`: the choice that it ends, or NULL. */
static void end_event(const struct answer *answer, const struct answer_choice *ended,
                      struct buffer *out)
{
    struct answer_end end = ended ? answer_end_of(answer, ended) : (struct answer_end){0};
    struct answer_usage usage;
    bool shown = answer->request.usage_in_every_chunk;
    if (shown)
        usage = answer_usage(answer);
    answer_write_finish(&end, out);
    answer_write_chunk_tail(&answer->head, shown ? &usage : NULL, out);
    buffer_append_text(out, "\n\n");
}

/* One event of one choice. `role`: the first of a chat; `last`: the one with the finish reason. */
static void write_event(struct answer *answer, struct answer_choice *choice, const char *text,
                        size_t length, uint32_t first, bool role, bool last, struct buffer *out)
{
    uint32_t index = (uint32_t)(choice - answer->choices);
    buffer_append_text(out, "data: ");
    answer_write_head(&answer->head, out);
    buffer_appendf(out, "{\"index\":%u,", index);
    if (answer->request.kind == ANSWER_CHAT) {
        buffer_append_text(out,
                           role ? "\"delta\":{\"role\":\"assistant\",\"content\":" : "\"delta\":{");
        if (!role && !last)
            buffer_append_text(out, "\"content\":");
        if (role && request_parses(&answer->request))
            buffer_append_text(out, "null");
        else if (role || !last)
            json_write_string(out, text, length);
        buffer_append_text(out, "},");
    } else {
        buffer_append_text(out, "\"text\":");
        json_write_string(out, text, length);
        buffer_append_text(out, ",");
    }
    write_event_logprobs(answer, choice, first, out);
    end_event(answer, last ? choice : NULL, out);
}

/* The events of one delta, each an event of the stream; the first one has the log-probabilities. */
struct delta_writer {
    struct answer *answer;
    struct answer_choice *choice;
    uint32_t first;
    struct buffer *out;
};

static void write_output_event(void *arg, const struct output_event *event)
{
    struct delta_writer *writer = arg;
    struct answer *answer = writer->answer;
    struct buffer *out = writer->out;
    uint32_t index = (uint32_t)(writer->choice - answer->choices);
    if (event->kind == OUTPUT_CALL_END)
        return;
    buffer_append_text(out, "data: ");
    answer_write_head(&answer->head, out);
    buffer_appendf(out, "{\"index\":%u,\"delta\":{", index);
    if (event->kind == OUTPUT_CONTENT) {
        buffer_append_text(out, "\"content\":");
        json_write_string(out, event->text, event->length);
    } else if (event->kind == OUTPUT_REASONING) {
        answer_write_reasoning(event->text, event->length, out);
    } else {
        buffer_appendf(out, "\"tool_calls\":[{\"index\":%u,", event->call);
        if (event->kind == OUTPUT_CALL) {
            answer_write_call_id(&answer->head, &answer->request, index, event->call, out);
            buffer_append_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
            json_write_string(out, event->text, event->length);
            buffer_append_text(out, ",\"arguments\":\"\"}}]");
        } else {
            buffer_append_text(out, "\"function\":{\"arguments\":");
            json_write_string(out, event->text, event->length);
            buffer_append_text(out, "}}]");
        }
    }
    buffer_append_text(out, "},");
    write_event_logprobs(answer, writer->choice, writer->first, out);
    writer->first = writer->choice->text.next;
    end_event(answer, NULL, out);
}

/* The first event of a choice, once there is something to say; echoed prompts in pieces. */
static void write_start(struct answer *answer, struct answer_choice *choice, size_t full,
                        struct buffer *out)
{
    const struct request_prompt *prompt = &answer->request.prompts[choice->prompt];
    if (answer->request.kind == ANSWER_CHAT && !choice->started)
        write_event(answer, choice, "", 0, choice->text.next, true, false, out);
    choice->started = true;
    while (choice->echo_sent < prompt->echo_length && out->length < full) {
        const char *text = prompt->echo + choice->echo_sent;
        size_t length =
            answer_piece_length(text, prompt->echo_length - choice->echo_sent, EVENT_TEXT_BYTES);
        write_event(answer, choice, text, length, choice->text.next, false, false, out);
        choice->echo_sent += length;
    }
}

/* One event with the text in `delta`, the tokens from `first` on, and the last one if it ended. */
static void write_delta(struct answer *answer, struct answer_choice *choice, uint32_t first,
                        struct buffer *out)
{
    bool logprobs = answer->request.want_logprobs && choice->text.next > first;
    bool text = !request_parses(&answer->request) && answer->delta.length > 0;
    if (text || logprobs)
        write_event(answer, choice, text ? answer->delta.data : "", text ? answer->delta.length : 0,
                    first, false, false, out);
    if (choice->finish) {
        write_event(answer, choice, "", 0, choice->text.next, false, true, out);
        choice->ended = true;
    }
}

static bool has_said_its_start(const struct answer *answer, const struct answer_choice *choice)
{
    return choice->started &&
           choice->echo_sent >= answer->request.prompts[choice->prompt].echo_length;
}

/* Events of one choice until nothing is ready or `out` has `full` bytes. */
static enum status stream_choice(struct answer *answer, struct answer_choice *choice, size_t full,
                                 struct buffer *out)
{
    while (!choice->ended && out->length < full && answer_is_ready(answer, choice)) {
        uint32_t first = choice->text.next;
        if (!has_said_its_start(answer, choice)) {
            /* An early fault must keep its status: nothing is written before a first token. */
            enum finish_reason reason = FINISH_NONE;
            if (answer_completion(answer, choice))
                reason = completion_reason(answer_completion(answer, choice), choice->choice);
            if (!answer_is_good(answer, reason))
                return answer_fault(answer, reason);
            write_start(answer, choice, full, out);
            continue;
        }
        buffer_clear(&answer->delta);
        struct delta_writer writer = {answer, choice, first, out};
        choice->text.parser.sink = (struct output_sink){write_output_event, &writer};
        enum status status = answer_advance(answer, choice, &answer->delta);
        if (status != STATUS_OK) /* no stop string comes any more: what was held back is text */
            answer_text_flush(answer, &choice->text, &answer->delta);
        first = writer.first;
        write_delta(answer, choice, first, out);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* A choice that will not come to its end: what is ready of it, then what was held back. */
static void write_rest(struct answer *answer, struct answer_choice *choice, size_t full,
                       struct buffer *out)
{
    if (choice->ended || !has_said_its_start(answer, choice) ||
        stream_choice(answer, choice, full, out) != STATUS_OK || choice->ended ||
        answer_is_ready(answer, choice))
        return;
    buffer_clear(&answer->delta);
    struct delta_writer writer = {answer, choice, choice->text.next, out};
    choice->text.parser.sink = (struct output_sink){write_output_event, &writer};
    answer_text_flush(answer, &choice->text, &answer->delta);
    write_delta(answer, choice, choice->text.next, out);
}

static void write_error_event(const struct error *error, struct buffer *out)
{
    buffer_append_text(out, "data: ");
    api_write_error(error, out);
    buffer_append_text(out, "\n\n");
}

void answer_cut_stream(struct answer *answer, const struct error *why, struct buffer *out)
{
    size_t full = out->length + LIMIT_OUTPUT_BYTES;
    for (uint32_t i = 0; i < answer->choice_count; i++)
        write_rest(answer, &answer->choices[i], full, out);
    answer->error = *why;
    write_error_event(why, out);
}

enum answer_state answer_pump_stream(struct answer *answer, struct buffer *out)
{
    size_t before = out->length;
    bool all = true;
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        if (stream_choice(answer, &answer->choices[i], before + LIMIT_OUTPUT_BYTES, out) !=
            STATUS_OK) {
            if (!answer->sent && out->length == before)
                return ANSWER_FAILED;
            struct error error = answer->error;
            answer_cut_stream(answer, &error, out);
            return ANSWER_FAILED;
        }
        all = all && answer->choices[i].ended;
    }
    if (all) {
        if (answer->head.show_usage) {
            struct answer_usage usage = answer_usage(answer);
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
