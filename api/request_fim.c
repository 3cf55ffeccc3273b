/*
 * Filling in the middle: completions with a `suffix`, for models whose vocabulary has the marks. The
 * order is the one that the models were trained with, prefix, suffix, middle ("Efficient Training of
 * Language Models to Fill in the Middle", Bavarian et al., 2022); texts are never taken for marks.
 */
#include "api/request.h"

#include <stdlib.h>
#include <string.h>

static const struct marks {
    const char *prefix, *suffix, *middle;
} MARKS[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, /* Qwen2.5-Coder, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       /* StarCoder, Granite */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},       /* SantaCoder */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}, /* DeepSeek-Coder */
};

/* The token whose text that is, if it is no ordinary piece of text; else UINT32_MAX. */
static uint32_t find_mark(const struct tokenizer *tokenizer, const char *text)
{
    uint32_t *tokens = NULL, found = UINT32_MAX;
    size_t count = 0;
    if (tokenizer_encode(tokenizer, text, strlen(text), TOKENIZER_PARSE_SPECIAL, 0, 64, &tokens,
                         &count, NULL) == STATUS_OK &&
        count == 1 &&
        (tokenizer_is_control(tokenizer, tokens[0]) ||
         tokenizer_is_user_defined(tokenizer, tokens[0])))
        found = tokens[0];
    free(tokens);
    return found;
}

static bool find_marks(const struct tokenizer *tokenizer, uint32_t out[static 3])
{
    for (size_t i = 0; i < sizeof MARKS / sizeof *MARKS; i++) {
        out[0] = find_mark(tokenizer, MARKS[i].prefix);
        out[1] = out[0] == UINT32_MAX ? UINT32_MAX : find_mark(tokenizer, MARKS[i].suffix);
        out[2] = out[1] == UINT32_MAX ? UINT32_MAX : find_mark(tokenizer, MARKS[i].middle);
        if (out[2] != UINT32_MAX)
            return true;
    }
    return false;
}

/* A text as ordinary pieces; "" is none. */
static enum status encode(const struct api_context *context, struct request *request,
                          const char *text, const char *param, struct request_prompt *out,
                          struct error *error)
{
    if (*text == '\0')
        return STATUS_OK;
    return request_tokenize(context, request, text, strlen(text), 0, 0, param, out, error);
}

enum status request_fill_in(const struct api_context *context, struct request *request,
                            const char *text, const char *suffix, struct request_prompt *out,
                            struct error *error)
{
    const struct tokenizer *tokenizer = context->tokenizer;
    struct request_prompt before = {0}, behind = {0};
    uint32_t marks[3];
    if (!find_marks(tokenizer, marks))
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "suffix",
                              "suffix is not supported by this model: its vocabulary has no tokens "
                              "for filling in the middle.");
    enum status status = encode(context, request, text, "prompt", &before, error);
    if (status == STATUS_OK)
        status = encode(context, request, suffix, "suffix", &behind, error);
    bool bos = tokenizer_adds_bos(tokenizer) && tokenizer_bos(tokenizer) != UINT32_MAX;
    size_t count = before.count + behind.count + 3 + bos, at = 0;
    if (status == STATUS_OK)
        status = request_check_length(context, request, count, "prompt", error);
    if (status == STATUS_OK)
        status = request_take(context, request, count * sizeof *out->tokens, error);
    if (status == STATUS_OK) {
        out->tokens = malloc(count * sizeof *out->tokens);
        status = out->tokens ? STATUS_OK : error_no_memory(error);
    }
    if (status == STATUS_OK) {
        if (bos)
            out->tokens[at++] = tokenizer_bos(tokenizer);
        out->tokens[at++] = marks[0];
        if (before.count)
            memcpy(out->tokens + at, before.tokens, before.count * sizeof *before.tokens);
        at += before.count;
        out->tokens[at++] = marks[1];
        if (behind.count)
            memcpy(out->tokens + at, behind.tokens, behind.count * sizeof *behind.tokens);
        at += behind.count;
        out->tokens[at++] = marks[2];
        out->count = count;
    }
    free(before.tokens);
    free(behind.tokens);
    return status;
}
