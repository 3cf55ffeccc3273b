/*
 * Embeddings and scores as JSON: OpenAI's list of embeddings, vLLM's list of scores, and the ranking
 * that Jina, Cohere and llama.cpp's server agree on. Nothing is streamed: the body is written when
 * all results are there, in pieces of one text each.
 *
 * An embedding is cut to the dimensions that were asked for, and then normalized to length 1, with
 * sums in double, ascending. Floats are spelt with nine digits, which say which float it is.
 */
#include "api/answer_text.h"

#include "base/check.h"
#include "base/json_writer.h"
#include "engine/kernels/math.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum answer_state follow(struct answer *answer)
{
    bool all = true;
    for (uint32_t i = 0; i < answer->choice_count; i++) {
        enum finish_reason reason = completion_reason(answer->completions[i], 0);
        if (reason != FINISH_NONE && reason != FINISH_STOP) {
            answer_fault(answer, reason);
            return ANSWER_FAILED;
        }
        all = all && reason == FINISH_STOP;
    }
    return all ? ANSWER_END : ANSWER_WAIT;
}

/* ---- Embeddings ---- */

static double inverse_length(const float *values, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum > 0 ? 1 / sqrt(sum) : 0;
}

/* Little-endian floats as base64 (RFC 4648), three bytes at a time. */
static void write_base64(const float *values, uint32_t count, double scale, struct buffer *out)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0, held = 0; /* bytes in `bits` */
    buffer_append_text(out, "\"");
    for (uint32_t i = 0; i < count; i++) {
        float value = (float)((double)values[i] * scale);
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        for (unsigned byte = 0; byte < 4; byte++) {
            bits = bits << 8 | (word >> 8 * byte & 0xFF);
            if (++held < 3)
                continue;
            char four[4] = {letters[bits >> 18], letters[bits >> 12 & 63], letters[bits >> 6 & 63],
                            letters[bits & 63]};
            buffer_append(out, four, 4);
            bits = held = 0;
        }
    }
    if (held == 1)
        buffer_appendf(out, "%c%c==", letters[bits >> 2], letters[bits << 4 & 63]);
    if (held == 2)
        buffer_appendf(out, "%c%c%c=", letters[bits >> 10], letters[bits >> 4 & 63],
                       letters[bits << 2 & 63]);
    buffer_append_text(out, "\"");
}

static void write_embedding(const struct answer *answer, uint32_t index, struct buffer *out)
{
    const float *values = completion_pooled(answer->completions[index]);
    uint32_t count = answer->request.dimensions;
    double scale = inverse_length(values, count);
    buffer_appendf(out, "%s{\"object\":\"embedding\",\"index\":%" PRIu32 ",\"embedding\":",
                   index ? "," : "", index);
    if (answer->request.base64) {
        write_base64(values, count, scale, out);
    } else {
        for (uint32_t i = 0; i < count; i++)
            buffer_appendf(out, "%c%.9g", i ? ',' : '[',
                           (double)(float)((double)values[i] * scale));
        buffer_append_text(out, "]");
    }
    buffer_append_text(out, "}");
}

/* ---- Scores ---- */

static bool is_before(const struct answer *answer, uint32_t a, uint32_t b)
{
    const float *scores = answer->scores;
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
}

/* As libc's qsort would, but without a global: a heap, whose order does not depend on libc. */
static void sift(const struct answer *answer, uint32_t *heap, uint32_t count, uint32_t at)
{
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && is_before(answer, heap[child], heap[child + 1]))
            child++;
        if (!is_before(answer, heap[at], heap[child]))
            return;
        uint32_t moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

/* The scores, and for a ranking `shown` in their order, the best first. */
static enum status rank(struct answer *answer)
{
    uint32_t count = answer->choice_count, *order = answer->shown;
    answer->scores = malloc(count * sizeof *answer->scores);
    if (!answer->scores)
        return error_no_memory(&answer->error);
    for (uint32_t i = 0; i < count; i++) {
        float score = completion_pooled(answer->completions[i])[0];
        answer->scores[i] = answer->request.raw_scores ? score : 1.0f / (1.0f + math_exp(-score));
    }
    if (answer->request.kind != ANSWER_RERANK)
        return STATUS_OK;
    for (uint32_t i = count / 2; i-- > 0;)
        sift(answer, order, count, i);
    for (uint32_t left = count; left-- > 1;) {
        uint32_t last = order[0];
        order[0] = order[left];
        order[left] = last;
        sift(answer, order, left, 0);
    }
    return STATUS_OK;
}

static void write_score(const struct answer *answer, uint32_t at, struct buffer *out)
{
    uint32_t index = answer->shown[at];
    bool ranks = answer->request.kind == ANSWER_RERANK;
    const struct request_prompt *prompt = &answer->request.prompts[index];
    buffer_appendf(out, "%s{%s\"index\":%" PRIu32 ",\"%s\":%.9g", at ? "," : "",
                   ranks ? "" : "\"object\":\"score\",", index, ranks ? "relevance_score" : "score",
                   (double)answer->scores[index]);
    if (prompt->echo) {
        buffer_append_text(out, ",\"document\":{\"text\":");
        json_write_string(out, prompt->echo, prompt->echo_length);
        buffer_append_text(out, "}");
    }
    buffer_append_text(out, "}");
}

/* ---- The body ---- */

static void write_head(const struct answer *answer, struct buffer *out)
{
    buffer_appendf(out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%" PRId64 ",\"model\":",
                   answer->head.id, answer->head.created);
    json_write_text(out, answer->head.model);
    buffer_appendf(out, ",\"%s\":[", answer->request.kind == ANSWER_RERANK ? "results" : "data");
}

static void write_tail(const struct answer *answer, struct buffer *out)
{
    struct answer_usage usage = answer_usage(answer);
    buffer_appendf(out, "],\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"total_tokens\":%" PRIu64 "}}",
                   usage.prompt_tokens, usage.prompt_tokens);
}

enum answer_state answer_pump_pooling(struct answer *answer, struct buffer *out)
{
    bool embeds = answer->request.kind == ANSWER_EMBEDDING;
    enum answer_state state = follow(answer);
    if (state != ANSWER_END)
        return state;
    if (answer->step == STEP_HEAD) {
        if (!embeds && rank(answer) != STATUS_OK)
            return ANSWER_FAILED;
        answer->choices[0].finish = "stop";
        write_head(answer, out);
        answer->step = STEP_TEXT;
    }
    uint32_t end =
        answer->request.kind == ANSWER_RERANK ? answer->request.top_n : answer->choice_count;
    size_t before = out->length;
    while (answer->write_choice < end) {
        if (out->length - before >= LIMIT_OUTPUT_BYTES)
            return ANSWER_DATA;
        if (embeds)
            write_embedding(answer, answer->write_choice++, out);
        else
            write_score(answer, answer->write_choice++, out);
    }
    write_tail(answer, out);
    return ANSWER_END;
}
