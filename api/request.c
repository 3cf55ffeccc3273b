/*
 * The fields that both endpoints share: model, sampling, lengths, stops, streaming; and what a
 * prompt may cost. See request.h.
 */
#include "api/request.h"

#include "api/models.h"
#include "api/unsupported.h"
#include "base/check.h"
#include "base/minmax.h"
#include "engine/constrain/grammar_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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
                          "This server's context holds %u tokens, answer included; the prompt "
                          "has %s%zu tokens. Shorten the prompt.",
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

enum status request_tokenize(const struct api_context *context, struct request *request,
                             const char *text, size_t length, unsigned flags, uint32_t sentinel,
                             const char *param, struct request_prompt *out, struct error *error)
{
    uint32_t *tokens = NULL;
    size_t count = 0;
    struct error inner = {0};
    const struct tokenizer_yield yield = {context->yield, context->yield_arg};
    request_yield(context);
    enum status status = tokenizer_encode_yielding(
        context->tokenizer, text, length, flags, sentinel, context->max_model_len,
        yield.call ? &yield : NULL, &tokens, &count, &inner);
    if (status == STATUS_TOO_LARGE)
        return too_long(context, "more than ", context->max_model_len, param, error);
    if (status != STATUS_OK) {
        if (error)
            *error = inner;
        return status;
    }
    out->tokens = tokens;
    out->count = count;
    if (count == 0)
        return error_set(error, STATUS_INVALID, param,
                         "%s is empty, and this model has no token to begin a text with.", param);
    status = request_check_length(context, request, count, param, error);
    return status == STATUS_OK ? request_take(context, request, count * sizeof *tokens, error)
                               : status;
}

static enum status read_model(const struct api_context *context, const struct cJSON *root,
                              struct error *error)
{
    const char *name = NULL;
    enum status status = json_read_string(root, "model", &name, error);
    if (status != STATUS_OK || !name || strcmp(name, "default") == 0)
        return status;
    for (unsigned i = 0; i < context->model_name_count; i++)
        if (strcmp(context->model_names[i], name) == 0)
            return STATUS_OK;
    return api_unknown_model(name, error);
}

/* The seed as the 64 bits its digits spell: a double would merge seeds above 2^53. */
static enum status read_seed(const struct json_document *document, struct sampling_params *sampling,
                             struct error *error)
{
    if (!json_get(document->root, "seed")) {
        if (getrandom(&sampling->seed, sizeof sampling->seed, 0) != sizeof sampling->seed)
            return error_set(error, STATUS_IO, NULL, "No random numbers from the system.");
        sampling->seed &= UINT64_MAX >> 11; /* exact as a JSON number, to be sent again */
        return STATUS_OK;
    }
    struct json_slice slice = json_find(document->text, "seed");
    double rounded;
    bool negative = false, number = json_number(json_get(document->root, "seed"), &rounded);
    uint64_t value = 0;
    if (!number || !json_integer(slice, &negative, &value) ||
        (negative && value > (uint64_t)INT64_MAX + 1))
        return error_set(error, STATUS_INVALID, "seed",
                         "seed must be an integer of at most 64 bits.");
    sampling->seed = negative ? 0 - value : value;
    return STATUS_OK;
}

static enum status read_logit_bias(const struct api_context *context, const struct cJSON *root,
                                   struct request *out, struct error *error)
{
    const struct cJSON *object = json_get(root, "logit_bias");
    if (!object)
        return STATUS_OK;
    uint32_t count = json_is_object(object) ? json_count(object) : UINT32_MAX;
    if (count > LIMIT_LOGIT_BIAS)
        return error_set(error, STATUS_INVALID, "logit_bias",
                         "logit_bias must be an object of at most %d entries.", LIMIT_LOGIT_BIAS);
    if (count == 0)
        return STATUS_OK;
    out->logit_bias = calloc(count, sizeof *out->logit_bias);
    if (!out->logit_bias)
        return error_no_memory(error);
    uint32_t vocabulary = tokenizer_vocabulary(context->tokenizer);
    for (const struct cJSON *entry = json_first(object); entry; entry = json_after(entry)) {
        const char *key = json_key(entry);
        uint64_t token = UINT64_MAX;
        size_t digits = strspn(key, "0123456789");
        if (digits > 0 && digits <= 10 && key[digits] == '\0')
            token = strtoull(key, NULL, 10);
        double bias;
        if (token >= vocabulary)
            return error_set(error, STATUS_INVALID, "logit_bias",
                             "logit_bias keys must be token ids below %u.", vocabulary);
        if (!json_number(entry, &bias) || !(bias >= -100 && bias <= 100))
            return error_set(error, STATUS_INVALID, "logit_bias",
                             "logit_bias values must be numbers from -100 to 100.");
        for (uint32_t i = 0; i < out->sampling.logit_bias_count; i++) /* "7" and "07" */
            if (out->logit_bias[i].token == token)
                return error_set(error, STATUS_INVALID, "logit_bias",
                                 "logit_bias names token %llu twice.", (unsigned long long)token);
        out->logit_bias[out->sampling.logit_bias_count++] =
            (struct logit_bias){(uint32_t)token, (float)bias};
    }
    out->sampling.logit_bias = out->logit_bias;
    return STATUS_OK;
}

static enum status read_sampling(const struct api_context *context,
                                 const struct json_document *document, struct request *out,
                                 struct error *error)
{
    const struct cJSON *root = document->root;
    struct sampling_params *sampling = &out->sampling;
    *sampling = (struct sampling_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    const struct {
        const char *name;
        double low, high;
        float *value;
    } fields[] = {
        {"temperature", 0, 2, &sampling->temperature},
        {"top_p", 0, 1, &sampling->top_p},
        {"min_p", 0, 1, &sampling->min_p},
        {"presence_penalty", -2, 2, &sampling->presence_penalty},
        {"frequency_penalty", -2, 2, &sampling->frequency_penalty},
        {"repetition_penalty", 0.01, 100, &sampling->repetition_penalty},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        enum status status = json_read_float(root, fields[i].name, fields[i].low, fields[i].high,
                                             fields[i].value, error);
        if (status != STATUS_OK)
            return status;
    }
    int64_t top_k = 0;
    enum status status = json_read_integer(root, "top_k", -1, INT32_MAX, &top_k, error);
    if (status != STATUS_OK)
        return status;
    sampling->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    status = read_seed(document, sampling, error);
    return status == STATUS_OK ? read_logit_bias(context, root, out, error) : status;
}

static enum status add_stop(const struct cJSON *value, struct request *out, struct error *error)
{
    const char *text = json_is_string(value) ? json_string(value) : NULL;
    size_t length = text ? strlen(text) : 0;
    if (!(length >= 1 && length <= LIMIT_STOP_BYTES))
        return error_set(error, STATUS_INVALID, "stop",
                         "stop must be a string, or a list of strings, of 1 to %d bytes each.",
                         LIMIT_STOP_BYTES);
    char *copy = strdup(text);
    if (!copy)
        return error_no_memory(error);
    out->stops[out->stop_count] = copy;
    out->stop_lengths[out->stop_count++] = length;
    return STATUS_OK;
}

static enum status read_stops(const struct cJSON *root, struct request *out, struct error *error)
{
    const struct cJSON *stop = json_get(root, "stop");
    if (!stop)
        return STATUS_OK;
    if (!json_is_array(stop))
        return add_stop(stop, out, error);
    if (json_count(stop) > LIMIT_STOPS)
        return error_set(error, STATUS_INVALID, "stop", "stop may hold at most %d strings.",
                         LIMIT_STOPS);
    enum status status = STATUS_OK;
    for (const struct cJSON *entry = json_first(stop); entry && status == STATUS_OK;
         entry = json_after(entry))
        status = add_stop(entry, out, error);
    return status;
}

static enum status read_streaming(const struct cJSON *root, struct request *out,
                                  struct error *error)
{
    enum status status = json_read_bool(root, "stream", &out->stream, error);
    const struct cJSON *options = json_get(root, "stream_options");
    if (status != STATUS_OK || !options)
        return status;
    if (!json_is_object(options))
        return error_set(error, STATUS_INVALID, "stream_options",
                         "stream_options must be an object.");
    if (!out->stream)
        return error_set(error, STATUS_INVALID, "stream_options",
                         "stream_options is only allowed together with \"stream\": true.");
    return json_read_bool(options, "include_usage", &out->include_usage, error);
}

/* After `stream` is known: which answer is the best is known when all are there. */
static enum status read_choices(const struct cJSON *root, struct request *out, struct error *error)
{
    int64_t count = 1;
    enum status status = json_read_integer(root, "n", 1, LIMIT_CHOICES, &count, error);
    if (status != STATUS_OK)
        return status;
    int64_t best_of = count;
    status = json_read_integer(root, "best_of", 1, LIMIT_CHOICES, &best_of, error);
    if (status != STATUS_OK)
        return status;
    out->shown_count = (uint32_t)count;
    out->choice_count = (uint32_t)best_of;
    if (best_of < count)
        return error_set(error, STATUS_INVALID, "best_of", "best_of must be at least n, %lld.",
                         (long long)count);
    if (best_of == count)
        return STATUS_OK;
    if (out->kind == ANSWER_CHAT)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "best_of",
                              "best_of is a parameter of /v1/completions.");
    if (out->stream)
        return error_set(error, STATUS_INVALID, "best_of",
                         "best_of cannot be streamed: the best is known when all are there.");
    return STATUS_OK;
}

/* A salt from the request keeps its prefixes apart within what the caller's own salt keeps apart.
 */
static enum status read_cache(const struct cJSON *root, uint64_t cache_salt, struct request *out,
                              struct error *error)
{
    const char *salt = NULL;
    out->use_prefix_cache = true;
    out->cache_salt = cache_salt;
    enum status status = json_read_bool(root, "cache_prompt", &out->use_prefix_cache, error);
    if (status == STATUS_OK)
        status = json_read_string(root, "cache_salt", &salt, error);
    if (status != STATUS_OK || !salt)
        return status;
    /* FNV-1a (Fowler, Noll, Vo) from the caller's salt on, with SplitMix64's finish. */
    uint64_t hash = 0xcbf29ce484222325u ^ cache_salt;
    for (const char *c = salt; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    out->cache_salt = hash ^ (hash >> 31);
    return STATUS_OK;
}

/* When it runs, and until when. */
static enum status read_schedule(const struct api_context *context, const struct cJSON *root,
                                 const struct answer_caller *caller, struct request *out,
                                 struct error *error)
{
    int64_t priority = 0;
    float timeout_s = 0;
    enum status status =
        json_read_integer(root, "priority", INT32_MIN, INT32_MAX, &priority, error);
    if (status == STATUS_OK)
        status = json_read_float(root, "timeout", 0.001, LIMIT_TIMEOUT_SECONDS, &timeout_s, error);
    uint64_t timeout_ns = timeout_s > 0 ? (uint64_t)((double)timeout_s * 1e9) : context->timeout_ns;
    out->tenant = caller->tenant;
    out->priority = (int32_t)priority;
    out->deadline_ns = timeout_ns ? caller->arrival_ns + timeout_ns : 0;
    return status;
}

/* After ignore_eos: such an answer could not end where its grammar does. */
static enum status read_constraint(const struct api_context *context,
                                   const struct json_document *document, struct request *out,
                                   struct error *error)
{
    struct constraint *constraint = &out->constraint;
    enum status status = constraint_read(document, constraint, error);
    if (status != STATUS_OK || !constraint->source)
        return status;
    if (!context->grammars)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", constraint->param,
                              "%s is not supported here: constrained output is off, by "
                              "--constraints or because --memory has no room for it.",
                              constraint->param);
    if (out->ignore_eos)
        return error_set(error, STATUS_INVALID, "ignore_eos",
                         "ignore_eos cannot be combined with %s, which says where the answer ends.",
                         constraint->param);
    status = request_take(context, out, constraint->length, error);
    if (status == STATUS_OK)
        out->grammar = grammar_cache_find(context->grammars, constraint->kind, constraint->source,
                                          constraint->length, out->cache_salt);
    return status;
}

enum status request_read_common(const struct api_context *context, const struct cJSON *root,
                                const struct answer_caller *caller, struct request *out,
                                struct error *error)
{
    const char *user = NULL;
    TRY(read_model(context, root, error));
    TRY(read_cache(root, caller->cache_salt, out, error));
    TRY(read_schedule(context, root, caller, out, error));
    return json_read_string(root, "user", &user, error);
}

enum status request_read_shared(const struct api_context *context,
                                const struct json_document *document,
                                const struct answer_caller *caller, struct request *out,
                                struct error *error)
{
    const struct cJSON *root = document->root;
    const char *user = NULL;
    enum status status = read_model(context, root, error);
    if (status == STATUS_OK)
        status = unsupported_check(out->kind, root, error);
    if (status == STATUS_OK)
        status = read_sampling(context, document, out, error);
    if (status == STATUS_OK)
        status = read_stops(root, out, error);
    if (status == STATUS_OK)
        status = read_streaming(root, out, error);
    if (status == STATUS_OK)
        status = read_choices(root, out, error);
    if (status == STATUS_OK)
        status = read_cache(root, caller->cache_salt, out, error);
    if (status == STATUS_OK)
        status = read_schedule(context, root, caller, out, error);
    if (status == STATUS_OK)
        status = json_read_bool(root, "ignore_eos", &out->ignore_eos, error);
    if (status == STATUS_OK)
        status = read_constraint(context, document, out, error);
    if (status == STATUS_OK)
        status = json_read_string(root, "user", &user, error);
    return status;
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
    constraint_deinit(&request->constraint);
    grammar_release(request->grammar);
    if (request->taken_bytes)
        budget_give(context->budget, BUDGET_REQUESTS, request->taken_bytes);
    *request = (struct request){0};
}
