/*
 * The fields that endpoints share: model, sampling, stops, streaming, choices, schedule. What goes to
 * one place as it is the table of fields.h reads; here is what needs a closer look.
 */
#include "api/fields.h"
#include "api/models.h"
#include "api/request.h"
#include "base/minmax.h"
#include "engine/constrain/grammar_cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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
    if (context->any_model_name)
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

/* What a request that says nothing asks for. */
static void set_defaults(struct request *out)
{
    out->sampling = (struct sampling_params){
        .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    out->asked_tokens = ASKED_NOTHING;
    out->asked_choices = 1;
    out->asked_best_of = ASKED_NOTHING;
    out->use_prefix_cache = true;
    out->skip_special = true;
    out->truncate_left = true;
}

static enum status read_sampling(const struct api_context *context,
                                 const struct json_document *document, struct request *out,
                                 struct error *error)
{
    out->sampling.top_k = out->asked_top_k > 0 ? (uint32_t)out->asked_top_k : 0;
    out->sampling.min_keep = (uint32_t)out->asked_min_keep;
    out->rules.min_tokens = (uint32_t)min_u64((uint64_t)out->asked_min_tokens, UINT32_MAX);
    out->rules.keep_stop = out->include_stop;
    TRY(read_seed(document, &out->sampling, error));
    TRY(read_logit_bias(context, document->root, out, error));
    return request_read_rules(context, document->root, out, error);
}

/* Editors send empty ones: there is nothing to stop at. */
static enum status add_stop(const struct api_context *context, const struct cJSON *value,
                            struct request *out, struct error *error)
{
    const char *text = json_is_string(value) ? json_string(value) : NULL;
    size_t length = text ? strlen(text) : 0;
    if (!text || length > LIMIT_STOP_BYTES)
        return error_set(error, STATUS_INVALID, "stop",
                         "stop must be a string, or a list of strings, of at most %d bytes each.",
                         LIMIT_STOP_BYTES);
    if (length == 0)
        return STATUS_OK;
    if (out->stop_count == LIMIT_STOPS)
        return error_set(error, STATUS_INVALID, "stop", "stop may hold at most %d strings.",
                         LIMIT_STOPS);
    enum status status = request_take(context, out, length + 1, error);
    if (status != STATUS_OK)
        return status;
    char *copy = strdup(text);
    if (!copy)
        return error_no_memory(error);
    out->stops[out->stop_count] = copy;
    out->stop_lengths[out->stop_count++] = length;
    return STATUS_OK;
}

static enum status read_stops(const struct api_context *context, const struct cJSON *root,
                              struct request *out, struct error *error)
{
    const struct cJSON *stop = json_get(root, "stop");
    if (!stop)
        return STATUS_OK;
    if (!json_is_array(stop))
        return add_stop(context, stop, out, error);
    enum status status = STATUS_OK;
    for (const struct cJSON *entry = json_first(stop); entry && status == STATUS_OK;
         entry = json_after(entry))
        status = add_stop(context, entry, out, error);
    return status;
}

static enum status read_truncation(const struct cJSON *root, struct request *out,
                                   struct error *error)
{
    const char *side = "left";
    enum status status = json_read_string(root, "truncation_side", &side, error);
    if (status != STATUS_OK)
        return status;
    out->truncate_left = strcmp(side, "left") == 0;
    if (!out->truncate_left && strcmp(side, "right") != 0)
        return error_set(error, STATUS_INVALID, "truncation_side",
                         "truncation_side must be \"left\" or \"right\".");
    if (json_get(root, "truncate_prompt_tokens") && out->truncate_tokens == 0)
        return error_set(error, STATUS_INVALID, "truncate_prompt_tokens",
                         "truncate_prompt_tokens must be -1 or an integer from 1 on.");
    return STATUS_OK;
}

static enum status read_streaming(const struct cJSON *root, struct request *out,
                                  struct error *error)
{
    const struct cJSON *options = json_get(root, "stream_options");
    if (!options)
        return STATUS_OK;
    if (!json_is_object(options))
        return error_set(error, STATUS_INVALID, "stream_options",
                         "stream_options must be an object.");
    if (!out->stream)
        return error_set(error, STATUS_INVALID, "stream_options",
                         "stream_options is only allowed together with \"stream\": true.");
    enum status status = json_read_bool(options, "include_usage", &out->include_usage, error);
    if (status == STATUS_OK)
        status =
            json_read_bool(options, "continuous_usage_stats", &out->usage_in_every_chunk, error);
    out->usage_in_every_chunk = out->usage_in_every_chunk && out->include_usage;
    return status;
}

/* After `stream` is known: which answer is the best is known when all are there. */
static enum status read_choices(const struct api_context *context, const struct cJSON *root,
                                struct request *out, struct error *error)
{
    int64_t count = out->asked_choices, best_of = out->asked_best_of;
    if (out->kind == ANSWER_CHAT) {
        enum status status = json_read_integer(root, "best_of", 1, LIMIT_CHOICES, &best_of, error);
        if (status != STATUS_OK)
            return status;
    }
    best_of = best_of == ASKED_NOTHING ? count : best_of;
    int64_t most = context->max_choices ? context->max_choices : LIMIT_CHOICES;
    if (count > most || best_of > most)
        return error_set(error, STATUS_INVALID, count > most ? "n" : "best_of",
                         "%s must be at most %lld here, the larger of %d and --max-seqs.",
                         count > most ? "n" : "best_of", (long long)most, LIMIT_CHOICES_QUEUED);
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
    out->cache_salt = cache_salt;
    enum status status = json_read_string(root, "cache_salt", &salt, error);
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
static void read_schedule(const struct api_context *context, const struct answer_caller *caller,
                          struct request *out)
{
    uint64_t timeout_ns = out->asked_timeout_s > 0 ? (uint64_t)((double)out->asked_timeout_s * 1e9)
                                                   : context->timeout_ns;
    out->tenant = caller->tenant;
    out->priority = (int32_t)out->asked_priority;
    out->deadline_ns = timeout_ns ? caller->arrival_ns + timeout_ns : 0;
}

/* After ignore_eos: such an answer could not end where its grammar does. */
enum status request_take_constraint(const struct api_context *context, struct request *out,
                                    struct error *error)
{
    struct constraint *constraint = &out->constraint;
    if (!constraint->source)
        return STATUS_OK;
    if (!context->grammars)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", constraint->param,
                              "%s is not supported here: constrained output is off, by "
                              "--constraints or because --memory has no room for it.",
                              constraint->param);
    if (out->ignore_eos)
        return error_set(error, STATUS_INVALID, "ignore_eos",
                         "ignore_eos cannot be combined with %s, which says where the answer ends.",
                         constraint->param);
    if (out->rules.min_tokens > 0)
        return error_set(error, STATUS_INVALID, "min_tokens",
                         "min_tokens cannot be combined with %s, which says where the answer ends.",
                         constraint->param);
    enum status status = request_take(context, out, constraint->length, error);
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
    set_defaults(out);
    TRY(read_model(context, root, error));
    TRY(fields_read(out->kind, root, out, error));
    TRY(read_cache(root, caller->cache_salt, out, error));
    read_schedule(context, caller, out);
    return json_read_string(root, "user", &user, error);
}

enum status request_read_shared(const struct api_context *context,
                                const struct json_document *document,
                                const struct answer_caller *caller, struct request *out,
                                struct error *error)
{
    const struct cJSON *root = document->root;
    const char *user = NULL;
    set_defaults(out);
    TRY(read_model(context, root, error));
    TRY(fields_check(out->kind, root, error));
    TRY(fields_read(out->kind, root, out, error));
    TRY(read_sampling(context, document, out, error));
    TRY(read_stops(context, root, out, error));
    TRY(read_truncation(root, out, error));
    TRY(read_streaming(root, out, error));
    TRY(read_choices(context, root, out, error));
    TRY(read_cache(root, caller->cache_salt, out, error));
    read_schedule(context, caller, out);
    TRY(constraint_read(document, &out->constraint, error));
    TRY(request_take_constraint(context, out, error));
    return json_read_string(root, "user", &user, error);
}
