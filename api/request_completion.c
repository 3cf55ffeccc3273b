/*
 * The fields of /v1/completions. A prompt is a text, a list of texts, a list of ids or a list of
 * lists of ids. Texts get the model's BOS and, as vLLM and llama.cpp do it, texts of control tokens
 * in them become those tokens (`parse_special: false` turns that off); ids are taken as they are.
 */
#include "api/request.h"
#include "base/check.h"
#include "engine/text/detokenizer.h"

#include <stdlib.h>
#include <string.h>

#define COMPLETION_MAX_TOKENS 16 /* OpenAI's default for this endpoint */

struct completion_fields {
    bool echo, parse_special, add_special_tokens;
    const char *suffix; /* in the document; NULL: the answer goes on behind the prompt */
};

static enum status read_fields(const struct cJSON *root, struct request *out,
                               struct completion_fields *fields, struct error *error)
{
    *fields = (struct completion_fields){.parse_special = true, .add_special_tokens = true};
    int64_t logprobs = -1;
    enum status status = json_read_integer(root, "logprobs", 0, LIMIT_LOGPROBS, &logprobs, error);
    if (status == STATUS_OK)
        status = json_read_bool(root, "echo", &fields->echo, error);
    if (status == STATUS_OK)
        status = json_read_bool(root, "parse_special", &fields->parse_special, error);
    if (status == STATUS_OK)
        status = json_read_bool(root, "add_special_tokens", &fields->add_special_tokens, error);
    if (status == STATUS_OK)
        status = json_read_string(root, "suffix", &fields->suffix, error);
    if (status != STATUS_OK)
        return status;
    if (fields->suffix && fields->suffix[0] == '\0')
        fields->suffix = NULL;
    if (fields->suffix && fields->echo)
        return error_set(error, STATUS_INVALID, "echo", "echo cannot be combined with suffix.");
    out->max_tokens = request_max_tokens(out, COMPLETION_MAX_TOKENS);
    out->want_logprobs = logprobs >= 0;
    out->top_logprobs = logprobs > 0 ? (uint32_t)logprobs : 0;
    if (fields->echo && out->want_logprobs)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "logprobs",
                              "logprobs together with echo is not supported by this server.");
    return STATUS_OK;
}

/* The text of `ids` as it would have been generated, for echo. */
static enum status echo_ids(const struct api_context *context, struct request *request,
                            struct request_prompt *prompt, struct error *error)
{
    struct detokenizer detokenizer;
    struct buffer text;
    detokenizer_init(&detokenizer);
    buffer_init(&text, 0);
    for (size_t i = 0; i < prompt->count; i++) {
        size_t length;
        const char *piece = tokenizer_piece(context->tokenizer, prompt->tokens[i], &length);
        detokenizer_push(&detokenizer, piece, length, &text);
    }
    detokenizer_finish(&detokenizer, &text);
    buffer_append(&text, "", 0); /* data is there even if nothing was printed */
    if (text.failed) {
        buffer_deinit(&text);
        return error_no_memory(error);
    }
    prompt->echo = text.data;
    prompt->echo_length = text.length;
    return request_take(context, request, text.length, error);
}

static enum status add_text(const struct api_context *context, const struct cJSON *value,
                            const struct completion_fields *fields, struct request *out,
                            struct error *error)
{
    if (!json_is_string(value))
        return error_set(error, STATUS_INVALID, "prompt",
                         "prompt must be a string, a list of strings, a list of token ids or a "
                         "list of lists of token ids.");
    const char *text = json_string(value);
    size_t length = strlen(text);
    struct request_prompt *prompt = &out->prompts[out->prompt_count++];
    if (fields->suffix)
        return request_fill_in(context, out, text, fields->suffix, prompt, error);
    unsigned flags = request_text_flags(fields->parse_special, fields->add_special_tokens);
    enum status status =
        request_tokenize(context, out, text, length, flags, 0, "prompt", prompt, error);
    if (status != STATUS_OK || !fields->echo)
        return status;
    prompt->echo = strdup(text);
    prompt->echo_length = length;
    return prompt->echo ? request_take(context, out, length, error) : error_no_memory(error);
}

static enum status add_ids(const struct api_context *context, const uint32_t *ids, uint32_t count,
                           const struct completion_fields *fields, struct request *out,
                           struct error *error)
{
    uint32_t vocabulary = tokenizer_vocabulary(context->tokenizer);
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] >= vocabulary)
            return error_set(error, STATUS_INVALID, "prompt",
                             "prompt holds a token id that is not below %u.", vocabulary);
    enum status status = request_check_length(context, out, count, "prompt", error);
    if (status == STATUS_OK)
        status = request_take(context, out, count * sizeof *ids, error);
    if (status != STATUS_OK)
        return status;
    struct request_prompt *prompt = &out->prompts[out->prompt_count++];
    prompt->tokens = malloc(count * sizeof *ids);
    if (!prompt->tokens)
        return error_no_memory(error);
    memcpy(prompt->tokens, ids, count * sizeof *ids);
    prompt->count = count;
    return fields->echo ? echo_ids(context, out, prompt, error) : STATUS_OK;
}

static enum status reserve_prompts(struct request *out, uint32_t count, struct error *error)
{
    if (!(count >= 1 && count <= LIMIT_PROMPTS && count * out->choice_count <= LIMIT_SEQUENCES))
        return error_set(error, STATUS_INVALID, "prompt",
                         "prompt must hold 1 to %d prompts, and prompts times n (or best_of) must "
                         "be at most %d.",
                         LIMIT_PROMPTS, LIMIT_SEQUENCES);
    out->prompts = calloc(count, sizeof *out->prompts);
    return out->prompts ? STATUS_OK : error_no_memory(error);
}

static enum status read_id_prompts(const struct api_context *context,
                                   const struct json_document *document,
                                   const struct completion_fields *fields, struct request *out,
                                   struct error *error)
{
    uint32_t lists = document->scan.id_list_count ? document->scan.id_list_count : 1;
    enum status status = reserve_prompts(out, lists, error);
    uint32_t start = 0;
    for (uint32_t i = 0; i < lists && status == STATUS_OK; i++) {
        uint32_t end = document->list_ends[i];
        status = add_ids(context, document->ids + start, end - start, fields, out, error);
        start = end;
    }
    return status;
}

enum status request_read_completion(const struct api_context *context,
                                    const struct json_document *document, struct request *out,
                                    struct error *error)
{
    struct completion_fields fields;
    enum status status = read_fields(document->root, out, &fields, error);
    if (status != STATUS_OK)
        return status;
    if (document->ids && fields.suffix)
        return error_set(error, STATUS_INVALID, "suffix", "suffix needs a prompt of text.");
    if (document->ids)
        return read_id_prompts(context, document, &fields, out, error);
    const struct cJSON *prompt = json_get(document->root, "prompt");
    if (!prompt)
        return error_set(error, STATUS_INVALID, "prompt", "prompt is missing.");
    if (!json_is_array(prompt)) {
        status = reserve_prompts(out, 1, error);
        return status == STATUS_OK ? add_text(context, prompt, &fields, out, error) : status;
    }
    status = reserve_prompts(out, json_count(prompt), error);
    for (const struct cJSON *entry = json_first(prompt); entry && status == STATUS_OK;
         entry = json_after(entry))
        status = add_text(context, entry, &fields, out, error);
    return status;
}
