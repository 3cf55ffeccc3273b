/* See text_endpoints.h. */
#include "api/text_endpoints.h"

#include "api/request.h"
#include "api/request_read.h"
#include "base/json_writer.h"
#include "engine/text/detokenizer.h"

#include <stdlib.h>
#include <string.h>

/* Room for what will be written, twice: a buffer grows by doubling. */
static enum status take_output(const struct api_context *context, struct request *request,
                               uint64_t bytes, struct error *error)
{
    return request_take(context, request, 2 * (bytes + 256), error);
}

/* A token's own text need not be whole characters: what is not becomes U+FFFD. */
static void write_token_text(const struct tokenizer *tokenizer, uint32_t token,
                             struct buffer *piece, struct buffer *out)
{
    struct detokenizer detokenizer;
    size_t length;
    const char *text = tokenizer_shown_piece(tokenizer, token, &length);
    detokenizer_init(&detokenizer);
    buffer_clear(piece);
    detokenizer_push(&detokenizer, text, length, piece);
    detokenizer_finish(&detokenizer, piece);
    json_write_string(out, piece->data ? piece->data : "", piece->length);
}

static enum status write_tokens(const struct api_context *context, struct request *request,
                                const struct request_prompt *prompt, bool texts, bool pieces,
                                struct buffer *out, struct error *error)
{
    uint64_t text_bytes = 0;
    for (size_t i = 0; i < prompt->count && (texts || pieces); i++) {
        size_t length;
        tokenizer_shown_piece(context->tokenizer, prompt->tokens[i], &length);
        text_bytes += 6 * length + 32;
    }
    TRY(take_output(context, request, prompt->count * 11 + text_bytes, error));
    struct buffer piece;
    buffer_init(&piece, 0);
    buffer_appendf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", prompt->count,
                   context->max_model_len);
    for (size_t i = 0; i < prompt->count; i++) {
        buffer_appendf(out, pieces ? "%s{\"id\":%u,\"piece\":" : "%s%u", i ? "," : "",
                       prompt->tokens[i]);
        if (pieces) {
            write_token_text(context->tokenizer, prompt->tokens[i], &piece, out);
            buffer_append_text(out, "}");
        }
    }
    buffer_append_text(out, "],\"token_strs\":");
    for (size_t i = 0; i < prompt->count && texts; i++) {
        buffer_append_text(out, i ? "," : "[");
        write_token_text(context->tokenizer, prompt->tokens[i], &piece, out);
    }
    buffer_append_text(out, !texts ? "null}" : prompt->count ? "]}" : "[]}");
    out->failed |= piece.failed;
    buffer_deinit(&piece);
    return STATUS_OK;
}

/* vLLM's prompt gets what the model has around a text, llama.cpp's content only if it is asked. */
static enum status read_text(const struct cJSON *root, const char **text, unsigned *flags,
                             struct error *error)
{
    bool special = true, add = json_get(root, "prompt") != NULL;
    TRY(json_read_string(root, "content", text, error));
    TRY(json_read_string(root, "prompt", text, error));
    TRY(json_read_bool(root, "add_special", &add, error));
    TRY(json_read_bool(root, "add_special_tokens", &add, error));
    TRY(json_read_bool(root, "parse_special", &special, error));
    if (!*text)
        return error_set(error, STATUS_INVALID, "prompt",
                         "prompt, a string, is missing; content and messages are taken too.");
    *flags = request_text_flags(special, add);
    return STATUS_OK;
}

/* A text of any length: nothing is computed with its tokens. */
static enum status tokenize_text(const struct api_context *context, const struct cJSON *root,
                                 struct request *request, struct buffer *out, struct error *error)
{
    const char *text = NULL;
    unsigned flags = 0;
    bool texts = false, pieces = false;
    struct request_prompt prompt = {0};
    TRY(read_text(root, &text, &flags, error));
    TRY(json_read_bool(root, "return_token_strs", &texts, error));
    TRY(json_read_bool(root, "with_pieces", &pieces, error));
    enum status status =
        request_encode_whole(context, request, text, strlen(text), flags, 0, &prompt, error);
    if (status == STATUS_OK)
        status = write_tokens(context, request, &prompt, texts, pieces, out, error);
    free(prompt.tokens);
    return status;
}

/* As the chat endpoint would have it, which parses the body itself. */
static enum status tokenize_chat(const struct api_context *context, bool texts, const char *body,
                                 size_t length, const struct answer_caller *caller,
                                 struct buffer *out, struct error *error)
{
    struct request request;
    enum status status = request_read(context, ANSWER_CHAT, body, length, caller, &request, error);
    if (status == STATUS_OK)
        status = write_tokens(context, &request, &request.prompts[0], texts, false, out, error);
    request_deinit(&request, context);
    return status;
}

static enum status detokenize(const struct api_context *context, const struct cJSON *root,
                              struct request *request, struct buffer *out, struct error *error)
{
    const struct cJSON *tokens = json_get(root, "tokens");
    uint32_t vocabulary = tokenizer_vocabulary(context->tokenizer);
    uint64_t bytes = 0;
    uint32_t id = 0;
    size_t length;
    if (!json_is_array(tokens))
        return error_set(error, STATUS_INVALID, "tokens", "tokens must be a list of token ids.");
    for (const struct cJSON *entry = json_first(tokens); entry; entry = json_after(entry)) {
        if (!json_id(entry, vocabulary, &id))
            return error_set(error, STATUS_INVALID, "tokens", "tokens must hold ids below %u.",
                             vocabulary);
        tokenizer_shown_piece(context->tokenizer, id, &length);
        bytes += 7 * length + 3; /* as text, and escaped */
    }
    TRY(take_output(context, request, 2 * bytes, error));
    struct detokenizer detokenizer;
    struct buffer text;
    detokenizer_init(&detokenizer);
    buffer_init(&text, 0);
    for (const struct cJSON *entry = json_first(tokens); entry; entry = json_after(entry)) {
        json_id(entry, vocabulary, &id);
        const char *piece = tokenizer_shown_piece(context->tokenizer, id, &length);
        detokenizer_push(&detokenizer, piece, length, &text);
    }
    detokenizer_finish(&detokenizer, &text);
    buffer_append_text(out, "{\"prompt\":"); /* vLLM's name of it, and llama.cpp's */
    json_write_string(out, text.data ? text.data : "", text.length);
    buffer_append_text(out, ",\"content\":");
    json_write_string(out, text.data ? text.data : "", text.length);
    buffer_append_text(out, "}");
    out->failed |= text.failed;
    buffer_deinit(&text);
    return STATUS_OK;
}

enum status text_endpoint_answer(const struct api_context *context, enum text_endpoint endpoint,
                                 const char *body, size_t length,
                                 const struct answer_caller *caller, struct buffer *out,
                                 struct error *error)
{
    struct request request = {.kind = ANSWER_COMPLETION};
    struct json_document document;
    bool chat = false, texts = false;
    enum status status = json_open(body, length, context->budget, &document, error);
    request.source_bytes = length + document.taken_bytes;
    const struct cJSON *root = document.root;
    if (status == STATUS_OK) {
        chat = endpoint == TEXT_TOKENIZE && json_get(root, "messages");
        status = chat ? json_read_bool(root, "return_token_strs", &texts, error)
                      : request_read_common(context, root, caller, &request, error);
    }
    if (status == STATUS_OK && !chat)
        status = endpoint == TEXT_DETOKENIZE ? detokenize(context, root, &request, out, error)
                                             : tokenize_text(context, root, &request, out, error);
    json_close(&document);
    request_deinit(&request, context);
    if (status == STATUS_OK && chat)
        status = tokenize_chat(context, texts, body, length, caller, out, error);
    if (status == STATUS_OK && out->failed)
        status = error_no_memory(error);
    if (status != STATUS_OK)
        buffer_clear(out);
    return status;
}
