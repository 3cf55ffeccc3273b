/* What a request holds and what a prompt may cost. See request.h. */
#include "api/request.h"

#include "base/check.h"
#include "base/minmax.h"

#include <stdlib.h>
#include <string.h>

uint64_t request_held(const struct request *request)
{
    return request->source_bytes + request->taken_bytes;
}

enum status request_take(const struct api_context *context, struct request *request, uint64_t bytes,
                         struct error *error)
{
    enum status status = STATUS_OK;
    if (context->budget)
        status = budget_take_request(context->budget, request_held(request), bytes, NULL, error);
    if (status != STATUS_OK)
        return status;
    request->taken_bytes += context->budget ? bytes : 0;
    return STATUS_OK;
}

void request_yield(const struct api_context *context)
{
    if (context->yield)
        context->yield(context->yield_arg);
}

uint32_t request_room(const struct request *request, const struct api_context *context,
                      uint32_t index)
{
    size_t count = request->prompts[index].count;
    uint32_t left = count < context->max_model_len ? context->max_model_len - (uint32_t)count : 0;
    return min_u32(request->max_tokens, left);
}

/* `than`: "" or "more than ", where nobody counted any further. */
static enum status too_long(const struct api_context *context, const char *than, size_t count,
                            const char *param, struct error *error)
{
    return error_set_code(error, STATUS_INVALID, "context_length_exceeded", param,
                          "This model's maximum context length is %u tokens, answer included; the "
                          "prompt is too long: it has %s%zu tokens. Shorten the prompt.",
                          context->max_model_len, than, count);
}

enum status request_check_length(const struct api_context *context, const struct request *request,
                                 size_t count, const char *param, struct error *error)
{
    uint32_t limit = context->max_model_len;
    if (count > limit || (count == limit && request->max_tokens > 0))
        return too_long(context, "", count, param, error);
    return STATUS_OK;
}

/* truncate_prompt_tokens; returns how many are left. */
static size_t truncate(const struct api_context *context, const struct request *request,
                       uint32_t *tokens, size_t count)
{
    uint32_t room = context->max_model_len - (request->max_tokens > 0 ? 1 : 0);
    size_t most = request->truncate_tokens < 0 ? room : (uint64_t)request->truncate_tokens;
    if (request->truncate_tokens == 0 || count <= most)
        return count;
    size_t first = tokens[0] == tokenizer_bos(context->tokenizer) ? 1 : 0; /* BOS stays */
    if (request->truncate_left)
        memmove(tokens + first, tokens + count - most + first, (most - first) * sizeof *tokens);
    return most;
}

/* The text's tokens, of which there are at most `most`: STATUS_TOO_LARGE. */
static enum status encode(const struct api_context *context, const char *text, size_t length,
                          unsigned flags, uint32_t sentinel, size_t most,
                          struct request_prompt *out, struct error *error)
{
    const struct tokenizer_yield yield = {context->yield, context->yield_arg};
    request_yield(context);
    return tokenizer_encode_yielding(context->tokenizer, text, length, flags, sentinel, most,
                                     yield.call ? &yield : NULL, &out->tokens, &out->count, error);
}

enum status request_encode_whole(const struct api_context *context, struct request *request,
                                 const char *text, size_t length, unsigned flags, uint32_t sentinel,
                                 struct request_prompt *out, struct error *error)
{
    size_t most = length + 2; /* no token has less than a byte, and two may stand around the text */
    TRY(request_take(context, request, most * sizeof *out->tokens, error));
    return encode(context, text, length, flags, sentinel, most, out, error);
}

enum status request_tokenize(const struct api_context *context, struct request *request,
                             const char *text, size_t length, unsigned flags, uint32_t sentinel,
                             const char *param, struct request_prompt *out, struct error *error)
{
    bool cut = request->truncate_tokens != 0;
    struct error inner = {0};
    if (cut) {
        TRY(request_encode_whole(context, request, text, length, flags, sentinel, out, error));
        out->count = truncate(context, request, out->tokens, out->count);
    } else {
        enum status status =
            encode(context, text, length, flags, sentinel, context->max_model_len, out, &inner);
        if (status == STATUS_TOO_LARGE)
            return too_long(context, "more than ", context->max_model_len, param, error);
        if (status != STATUS_OK && error)
            *error = inner;
        TRY(status);
    }
    if (out->count == 0)
        return error_set(error, STATUS_INVALID, param,
                         "%s is empty, and this model has no token to begin a text with.", param);
    TRY(request_check_length(context, request, out->count, param, error));
    return cut ? STATUS_OK
               : request_take(context, request, out->count * sizeof *out->tokens, error);
}

uint32_t request_max_tokens(const struct request *request, uint32_t rest)
{
    if (request->asked_tokens == ASKED_NOTHING)
        return rest;
    if (request->asked_tokens < 0)
        return UINT32_MAX;
    return (uint32_t)min_u64((uint64_t)request->asked_tokens, UINT32_MAX);
}

void request_deinit(struct request *request, const struct api_context *context)
{
    for (unsigned i = 0; i < request->stop_count; i++)
        free(request->stops[i]);
    for (uint32_t i = 0; i < request->prompt_count; i++) {
        free(request->prompts[i].tokens);
        free(request->prompts[i].echo);
    }
    free(request->prompts);
    free(request->logit_bias);
    free(request->rules_memory);
    for (uint32_t i = 0; i < request->tools.count; i++)
        free((void *)(uintptr_t)request->tools.tools[i].name);
    free((void *)(uintptr_t)request->tools.tools);
    free(request->tools_text);
    constraint_deinit(&request->constraint);
    grammar_release(request->grammar);
    if (request->taken_bytes)
        budget_give(context->budget, BUDGET_REQUESTS, request->taken_bytes);
    *request = (struct request){0};
}
