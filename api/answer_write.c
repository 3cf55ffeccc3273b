/* See answer_write.h. Shapes after OpenAI's API reference (chat.completion, text_completion). */
#include "api/answer_write.h"

#include "base/clock.h"
#include "base/json_writer.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOGPROB_FLOOR (-9999.0f) /* JSON has no -inf */

void answer_head_init(struct answer_head *head, const struct api_context *context,
                      const struct request *request, uint64_t request_id)
{
    bool chat = request->kind == ANSWER_CHAT;
    *head = (struct answer_head){
        .kind = request->kind,
        .stream = request->stream,
        .show_usage = request->stream && request->include_usage,
        .created = clock_unix_s(),
        .model = context->model_names[0],
    };
    snprintf(head->id, sizeof head->id, "%s-%016" PRIx64,
             chat                                ? "chatcmpl"
             : request->kind == ANSWER_EMBEDDING ? "embd"
             : request->kind == ANSWER_RERANK    ? "rerank"
             : request->kind == ANSWER_SCORE     ? "score"
                                                 : "cmpl",
             request_id);
    snprintf(head->fingerprint, sizeof head->fingerprint, "fp_%012" PRIx64,
             context->fingerprint & 0xffffffffffffu);
}

void answer_write_head(const struct answer_head *head, struct buffer *out)
{
    const char *object = head->kind == ANSWER_COMPLETION ? "text_completion"
                         : head->stream                  ? "chat.completion.chunk"
                                                         : "chat.completion";
    buffer_appendf(out,
                   "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", head->id,
                   object, head->created);
    json_write_text(out, head->model);
    buffer_appendf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", head->fingerprint);
}

void answer_write_chunk_tail(const struct answer_head *head, const struct answer_usage *usage,
                             struct buffer *out)
{
    buffer_append_text(out, "]");
    if (usage) {
        buffer_append_text(out, ",");
        answer_write_usage(usage, out);
    } else if (head->show_usage) {
        buffer_append_text(out, ",\"usage\":null");
    }
    buffer_append_text(out, "}");
}

void answer_write_finish(const struct answer_end *end, struct buffer *out)
{
    buffer_append_text(out, ",\"finish_reason\":");
    if (!end->finish) {
        buffer_append_text(out, "null}");
        return;
    }
    buffer_appendf(out, "\"%s\"", end->finish);
    if (end->timed_out) {
        buffer_append_text(out, ",\"stop_reason\":\"timeout\"");
    } else if (end->stop) {
        buffer_append_text(out, ",\"stop_reason\":");
        json_write_text(out, end->stop);
    } else if (end->stop_token != UINT32_MAX) {
        buffer_appendf(out, ",\"stop_reason\":%u", end->stop_token);
    }
    buffer_append_text(out, "}");
}

void answer_write_usage(const struct answer_usage *usage, struct buffer *out)
{
    buffer_appendf(out,
                   "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                   ",\"total_tokens\":%" PRIu64
                   ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}",
                   usage->prompt_tokens, usage->completion_tokens,
                   usage->prompt_tokens + usage->completion_tokens, usage->cached_tokens);
    if (usage->show_reasoning)
        buffer_appendf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%" PRIu64 "}",
                       usage->reasoning_tokens);
    buffer_append_text(out, "}");
}

void answer_write_reasoning(const char *text, size_t length, struct buffer *out)
{
    buffer_append_text(out, "\"reasoning_content\":");
    json_write_string(out, text, length);
    buffer_append_text(out, ",\"reasoning\":");
    json_write_string(out, text, length);
}

void answer_write_call_id(const struct answer_head *head, const struct request *request,
                          uint32_t choice, uint32_t call, struct buffer *out)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = head->id; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    hash = (hash ^ head->created ^ (uint64_t)choice << 32 ^ call) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
    /* Mistral's templates take ids of nine letters and digits only. */
    bool plain = request->parsing.calls && request->parsing.calls->named;
    char id[10] = "";
    for (int i = 0; i < 9; i++, hash /= 36)
        id[i] = letters[hash % 36];
    buffer_appendf(out, "\"id\":\"%s%s\"", plain ? "" : "call_", id);
}

enum logprob_pass logprob_pass_first(enum answer_kind kind)
{
    return kind == ANSWER_CHAT ? PASS_CHAT : PASS_TOKENS;
}

bool logprob_pass_last(enum logprob_pass pass)
{
    return pass == PASS_CHAT || pass == PASS_TEXT_OFFSETS;
}

const char *logprob_pass_open(enum logprob_pass pass)
{
    static const char *const opens[] = {
        [PASS_CHAT] = "{\"content\":[",
        [PASS_TOKENS] = "{\"tokens\":[",
        [PASS_TOKEN_LOGPROBS] = "\"token_logprobs\":[",
        [PASS_TOP_LOGPROBS] = "\"top_logprobs\":[",
        [PASS_TEXT_OFFSETS] = "\"text_offset\":[",
    };
    return opens[pass];
}

const char *logprob_pass_close(enum logprob_pass pass)
{
    static const char *const closes[] = {
        [PASS_CHAT] = "],\"refusal\":null}", [PASS_TOKENS] = "],",
        [PASS_TOKEN_LOGPROBS] = "],",        [PASS_TOP_LOGPROBS] = "],",
        [PASS_TEXT_OFFSETS] = "]}",
    };
    return closes[pass];
}

void text_offsets_init(struct text_offsets *offsets)
{
    offsets->characters = 0;
    detokenizer_init(&offsets->detokenizer);
}

static void write_logprob(float logprob, struct buffer *out)
{
    buffer_appendf(out, "%.9g", (double)(logprob >= LOGPROB_FLOOR ? logprob : LOGPROB_FLOOR));
}

/* What a token shows in log-probabilities: its bytes, a control token its name. */
static const char *token_bytes(const struct tokenizer *tokenizer, uint32_t token, size_t *length)
{
    const char *bytes = tokenizer_piece(tokenizer, token, length);
    return *length > 0 ? bytes : tokenizer_text(tokenizer, token, length);
}

static void write_chat_token(const struct tokenizer *tokenizer, uint32_t token, float logprob,
                             struct buffer *out)
{
    size_t length;
    const char *bytes = token_bytes(tokenizer, token, &length);
    buffer_append_text(out, "{\"token\":");
    json_write_string(out, bytes, length);
    buffer_append_text(out, ",\"logprob\":");
    write_logprob(logprob, out);
    buffer_append_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < length; i++)
        buffer_appendf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    buffer_append_text(out, "]");
}

static void write_chat_item(const struct logprob_range *range, uint32_t index,
                            const struct completion_token *token, struct buffer *out)
{
    uint32_t count = 0;
    const struct top_logprob *top = completion_top(range->completion, range->choice, index, &count);
    write_chat_token(range->tokenizer, token->token, token->logprob, out);
    buffer_append_text(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; top && i < count; i++) {
        buffer_append_text(out, i ? "," : "");
        write_chat_token(range->tokenizer, top[i].token, top[i].logprob, out);
        buffer_append_text(out, "}");
    }
    buffer_append_text(out, "]}");
}

/* A token as a JSON string that tells tokens apart: bytes that are no text are spelled out. */
static void write_completion_token(const struct tokenizer *tokenizer, uint32_t token,
                                   struct buffer *out)
{
    size_t length;
    const char *bytes = token_bytes(tokenizer, token, &length);
    if (utf8_valid(bytes, length)) {
        json_write_string(out, bytes, length);
        return;
    }
    buffer_append_text(out, "\"bytes:");
    for (size_t i = 0; i < length; i++)
        buffer_appendf(out, "\\\\x%02x", (unsigned char)bytes[i]);
    buffer_append_text(out, "\"");
}

/* Would `token` be a key of the object a second time? */
static bool is_repeated(const struct tokenizer *tokenizer, const struct top_logprob *top,
                        uint32_t count, uint32_t token)
{
    size_t length, other_length;
    const char *bytes = token_bytes(tokenizer, token, &length);
    for (uint32_t i = 0; i < count; i++) {
        const char *other = token_bytes(tokenizer, top[i].token, &other_length);
        if (length == other_length && memcmp(bytes, other, length) == 0)
            return true;
    }
    return false;
}

/* The most likely tokens, and the chosen one if it is not among them. */
static void write_top_item(const struct logprob_range *range, uint32_t index,
                           const struct completion_token *token, struct buffer *out)
{
    uint32_t count = 0;
    const struct top_logprob *top = completion_top(range->completion, range->choice, index, &count);
    count = top ? count : 0;
    const char *comma = "";
    buffer_append_text(out, "{");
    for (uint32_t i = 0; i < count; i++) {
        if (is_repeated(range->tokenizer, top, i, top[i].token))
            continue;
        buffer_append_text(out, comma);
        write_completion_token(range->tokenizer, top[i].token, out);
        buffer_append_text(out, ":");
        write_logprob(top[i].logprob, out);
        comma = ",";
    }
    if (!is_repeated(range->tokenizer, top, count, token->token)) {
        buffer_append_text(out, comma);
        write_completion_token(range->tokenizer, token->token, out);
        buffer_append_text(out, ":");
        write_logprob(token->logprob, out);
    }
    buffer_append_text(out, "}");
}

static void write_offset(const struct logprob_range *range, uint32_t token, struct buffer *out)
{
    struct text_offsets *offsets = range->offsets;
    buffer_appendf(out, "%" PRIu64, offsets->characters);
    struct buffer text;
    buffer_init(&text, 0);
    size_t length;
    const char *bytes = tokenizer_piece(range->tokenizer, token, &length);
    detokenizer_push(&offsets->detokenizer, bytes, length, &text);
    for (size_t i = 0; i < text.length; i++)
        offsets->characters += ((unsigned char)text.data[i] & 0xc0) != 0x80;
    buffer_deinit(&text);
}

void answer_write_logprobs(const struct logprob_range *range, enum logprob_pass pass,
                           struct buffer *out)
{
    const struct completion_token *tokens;
    uint32_t count = completion_read(range->completion, range->choice, range->first, &tokens);
    uint32_t wanted = range->end - range->first;
    for (uint32_t i = 0; i < count && i < wanted; i++) {
        if (i > 0 || range->comma)
            buffer_append_text(out, ",");
        uint32_t index = range->first + i;
        switch (pass) {
        case PASS_CHAT:
            write_chat_item(range, index, &tokens[i], out);
            break;
        case PASS_TOKENS:
            write_completion_token(range->tokenizer, tokens[i].token, out);
            break;
        case PASS_TOKEN_LOGPROBS:
            write_logprob(tokens[i].logprob, out);
            break;
        case PASS_TOP_LOGPROBS:
            write_top_item(range, index, &tokens[i], out);
            break;
        case PASS_TEXT_OFFSETS:
            write_offset(range, tokens[i].token, out);
            break;
        case PASS_END:
            break;
        }
    }
}
