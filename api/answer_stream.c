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
        if (role || !last)
            json_write_string(out, text, length);
        buffer_append_text(out, "},");
    } else {
        buffer_append_text(out, "\"text\":");
        json_write_string(out, text, length);
        buffer_append_text(out, ",");
    }
    write_event_logprobs(answer, choice, first, out);
    answer_write_finish(last ? choice->finish : NULL, choice->timed_out, out);
    answer_write_chunk_tail(&answer->head, out);
    buffer_append_text(out, "\n\n");
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

/* Events of one choice until nothing is ready or `out` has `full` bytes. */
static enum status stream_choice(struct answer *answer, struct answer_choice *choice, size_t full,
                                 struct buffer *out)
{
    size_t echo_length = answer->request.prompts[choice->prompt].echo_length;
    while (!choice->ended && out->length < full && answer_is_ready(answer, choice)) {
        uint32_t first = choice->text.next;
        if (!choice->started || choice->echo_sent < echo_length) {
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
        enum status status = answer_advance(answer, choice, &answer->delta);
        if (status != STATUS_OK)
            return status;
        bool logprobs = answer->request.want_logprobs && choice->text.next > first;
        if (answer->delta.length > 0 || logprobs)
            write_event(answer, choice, answer->delta.data ? answer->delta.data : "",
                        answer->delta.length, first, false, false, out);
        if (choice->finish) {
            write_event(answer, choice, "", 0, choice->text.next, false, true, out);
            choice->ended = true;
        }
    }
    return STATUS_OK;
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
            buffer_append_text(out, "data: ");
            api_write_error(&answer->error, out);
            buffer_append_text(out, "\n\n");
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
