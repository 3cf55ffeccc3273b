/* See fields.h. */
#include "api/fields.h"

#include "api/request.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define PLACE(member) .offset = offsetof(struct request, member)
/* Done here, by the table itself where it has a place. */
#define DONE(name, api, endpoint, type, ...)                                                       \
    {                                                                                              \
        name, api, endpoint, FIELD_DONE, type, __VA_ARGS__                                         \
    }
#define SAME_AS(name, api, endpoint, other)                                                        \
    {                                                                                              \
        name, api, endpoint, FIELD_DONE, .same_as = other                                          \
    }
#define NO_EFFECT(name, api, endpoint, text)                                                       \
    {                                                                                              \
        name, api, endpoint, FIELD_NO_EFFECT, FIELD_ANY, .texts = text                             \
    }
#define REFUSED(name, api, endpoint, neutral, ...)                                                 \
    {                                                                                              \
        name, api, endpoint, FIELD_REFUSED, FIELD_ANY, 0, 0, 0, NULL, neutral, __VA_ARGS__         \
    }

static const struct field fields[] = {
    /* OpenAI */
    DONE("model", "OpenAI", FIELD_ALL, FIELD_STRING, .texts = "a served name, or `default`"),
    DONE("prompt", "OpenAI", FIELD_COMPLETIONS, FIELD_ANY, .texts = "see below"),
    DONE("messages", "OpenAI", FIELD_CHAT, FIELD_LIST, .texts = "see below"),
    DONE("max_tokens", "OpenAI", FIELD_BOTH, FIELD_INTEGER, -1, INFINITY, PLACE(asked_tokens),
         .texts = "-1: the rest of the context"),
    SAME_AS("max_completion_tokens", "OpenAI", FIELD_BOTH, "max_tokens"),
    DONE("temperature", "OpenAI", FIELD_BOTH, FIELD_NUMBER, 0, INFINITY,
         PLACE(sampling.temperature), .texts = "below 1e-5: greedy"),
    DONE("top_p", "OpenAI", FIELD_BOTH, FIELD_NUMBER, 0, 1, PLACE(sampling.top_p),
         .texts = "0: greedy"),
    DONE("presence_penalty", "OpenAI", FIELD_BOTH, FIELD_NUMBER, -2, 2,
         PLACE(sampling.presence_penalty)),
    DONE("frequency_penalty", "OpenAI", FIELD_BOTH, FIELD_NUMBER, -2, 2,
         PLACE(sampling.frequency_penalty)),
    DONE("seed", "OpenAI", FIELD_BOTH, FIELD_INTEGER,
         .texts = "64 bits, signed or not; drawn when it is absent"),
    DONE("logit_bias", "OpenAI", FIELD_BOTH, FIELD_OBJECT,
         .texts = "at most 1,024 ids with values from -100 to 100"),
    DONE("stop", "OpenAI", FIELD_BOTH, FIELD_STRINGS,
         .texts = "at most 32 strings of at most 1,024 bytes; empty ones are dropped"),
    DONE("n", "OpenAI", FIELD_BOTH, FIELD_INTEGER, 1, LIMIT_CHOICES, PLACE(asked_choices),
         .texts = "at most the larger of 16 and --max-seqs"),
    DONE("best_of", "OpenAI", FIELD_COMPLETIONS, FIELD_INTEGER, 1, LIMIT_CHOICES,
         PLACE(asked_best_of), .texts = "at least n, at most as n; not streamed"),
    DONE("stream", "OpenAI", FIELD_BOTH, FIELD_BOOL, PLACE(stream)),
    DONE("stream_options", "OpenAI", FIELD_BOTH, FIELD_OBJECT,
         .texts = "include_usage, continuous_usage_stats"),
    DONE("logprobs", "OpenAI", FIELD_BOTH, FIELD_ANY,
         .texts = "completions: 0 … 20; chat: true or false"),
    DONE("top_logprobs", "OpenAI", FIELD_CHAT, FIELD_INTEGER, 0, LIMIT_LOGPROBS,
         .texts = "needs `logprobs: true`"),
    DONE("echo", "OpenAI", FIELD_COMPLETIONS, FIELD_BOOL),
    DONE("suffix", "OpenAI", FIELD_COMPLETIONS, FIELD_STRING,
         .texts = "what stands behind the answer, for models with tokens for it"),
    DONE("response_format", "OpenAI", FIELD_BOTH, FIELD_OBJECT, .texts = "see below"),
    DONE("tools", "OpenAI", FIELD_CHAT, FIELD_LIST, .texts = "see below"),
    DONE("tool_choice", "OpenAI", FIELD_CHAT, FIELD_ANY, .texts = "see below"),
    DONE("modalities", "OpenAI", FIELD_CHAT, FIELD_LIST, .texts = "may only hold `text`"),
    DONE("reasoning_effort", "OpenAI", FIELD_CHAT, FIELD_STRING, .texts = "the template reads it"),
    DONE("user", "OpenAI", FIELD_ALL, FIELD_STRING, .texts = "no effect"),
    NO_EFFECT("metadata", "OpenAI", FIELD_BOTH, "tags the request"),
    DONE("parallel_tool_calls", "OpenAI", FIELD_CHAT, FIELD_BOOL, .texts = "see below"),
    NO_EFFECT("prompt_cache_key", "OpenAI", FIELD_BOTH, "the cache finds every prefix without it"),
    NO_EFFECT("prompt_cache_retention", "OpenAI", FIELD_BOTH, "the cache keeps what it can"),
    NO_EFFECT("safety_identifier", "OpenAI", FIELD_BOTH, "tags the request"),
    REFUSED("audio", "OpenAI", FIELD_CHAT, NEUTRAL_NONE),
    REFUSED("documents", "OpenAI", FIELD_CHAT, NEUTRAL_EMPTY),
    REFUSED("echo", "OpenAI", FIELD_CHAT, NEUTRAL_FALSE),
    REFUSED("add_special_tokens", "OpenAI", FIELD_CHAT, NEUTRAL_FALSE),
    REFUSED("function_call", "OpenAI", FIELD_CHAT, NEUTRAL_TEXT, .texts = "none"),
    REFUSED("functions", "OpenAI", FIELD_CHAT, NEUTRAL_EMPTY),
    REFUSED("messages", "OpenAI", FIELD_COMPLETIONS, NEUTRAL_NONE),
    REFUSED("moderation", "OpenAI", FIELD_BOTH, NEUTRAL_NONE),
    REFUSED("prediction", "OpenAI", FIELD_CHAT, NEUTRAL_NONE),
    REFUSED("prompt_embeds", "OpenAI", FIELD_COMPLETIONS, NEUTRAL_EMPTY),
    REFUSED("service_tier", "OpenAI", FIELD_BOTH, NEUTRAL_TEXT, .texts = "auto|default"),
    REFUSED("store", "OpenAI", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("suffix", "OpenAI", FIELD_CHAT, NEUTRAL_EMPTY),
    REFUSED("tools", "OpenAI", FIELD_COMPLETIONS, NEUTRAL_EMPTY),
    REFUSED("top_logprobs", "OpenAI", FIELD_COMPLETIONS, NEUTRAL_NUMBER),
    REFUSED("verbosity", "OpenAI", FIELD_CHAT, NEUTRAL_TEXT, .texts = "medium"),
    REFUSED("web_search_options", "OpenAI", FIELD_CHAT, NEUTRAL_NONE),
    /* vLLM */
    DONE("top_k", "vLLM", FIELD_BOTH, FIELD_INTEGER, -1, INT32_MAX, PLACE(asked_top_k),
         .texts = "0 and -1: off"),
    DONE("min_p", "vLLM", FIELD_BOTH, FIELD_NUMBER, 0, 1, PLACE(sampling.min_p)),
    DONE("repetition_penalty", "vLLM", FIELD_BOTH, FIELD_NUMBER, 0.01, 100,
         PLACE(sampling.repetition_penalty)),
    DONE("min_tokens", "vLLM", FIELD_BOTH, FIELD_INTEGER, 0, INFINITY, PLACE(asked_min_tokens),
         .texts = "no end token, stop token or stop string ends the answer before"),
    DONE("stop_token_ids", "vLLM", FIELD_BOTH, FIELD_IDS, .texts = "at most 32"),
    DONE("include_stop_str_in_output", "vLLM", FIELD_BOTH, FIELD_BOOL, PLACE(include_stop)),
    DONE("ignore_eos", "vLLM", FIELD_BOTH, FIELD_BOOL, PLACE(ignore_eos),
         .texts = "end tokens cannot be sampled"),
    DONE("bad_words", "vLLM", FIELD_BOTH, FIELD_STRINGS,
         .texts = "at most 128 of at most 32 tokens; with and without a blank in front"),
    DONE("allowed_token_ids", "vLLM", FIELD_BOTH, FIELD_IDS, .texts = "only these can be sampled"),
    DONE("skip_special_tokens", "vLLM", FIELD_BOTH, FIELD_BOOL, PLACE(skip_special),
         .texts = "false: texts of control tokens are in the answer"),
    NO_EFFECT("spaces_between_special_tokens", "vLLM", FIELD_BOTH, "no blanks are ever added"),
    DONE("truncate_prompt_tokens", "vLLM", FIELD_BOTH, FIELD_INTEGER, -1, INFINITY,
         PLACE(truncate_tokens), .texts = "-1: to what the context holds"),
    DONE("truncation_side", "vLLM", FIELD_BOTH, FIELD_STRING,
         .texts = "`left`, the default, keeps the end; `right`"),
    DONE("add_special_tokens", "vLLM", FIELD_COMPLETIONS, FIELD_BOOL),
    DONE("chat_template_kwargs", "vLLM", FIELD_CHAT, FIELD_OBJECT, .texts = "plain values"),
    DONE("enable_thinking", "vLLM", FIELD_CHAT, FIELD_BOOL, .texts = "the template reads it"),
    DONE("add_generation_prompt", "vLLM", FIELD_CHAT, FIELD_BOOL),
    DONE("continue_final_message", "vLLM", FIELD_CHAT, FIELD_BOOL),
    DONE("priority", "vLLM", FIELD_ALL, FIELD_INTEGER, INT32_MIN, INT32_MAX, PLACE(asked_priority),
         .texts = "lower is earlier"),
    DONE("cache_salt", "vLLM", FIELD_ALL, FIELD_STRING),
    DONE("structured_outputs", "vLLM", FIELD_BOTH, FIELD_OBJECT, .texts = "see below"),
    DONE("guided_json", "vLLM", FIELD_BOTH, FIELD_ANY, .texts = "see below"),
    DONE("guided_regex", "vLLM", FIELD_BOTH, FIELD_STRING, .texts = "see below"),
    DONE("guided_choice", "vLLM", FIELD_BOTH, FIELD_LIST, .texts = "see below"),
    DONE("guided_grammar", "vLLM", FIELD_BOTH, FIELD_STRING, .texts = "see below"),
    NO_EFFECT("request_id", "vLLM", FIELD_BOTH, "X-Request-Id is the way to give one"),
    REFUSED("chat_template_kwargs", "vLLM", FIELD_COMPLETIONS, NEUTRAL_EMPTY),
    REFUSED("early_stopping", "vLLM", FIELD_BOTH, NEUTRAL_FALSE),
    /* Which library makes the masks: all mean the same, but for options behind a colon. */
    REFUSED("guided_decoding_backend", "vLLM", FIELD_BOTH, NEUTRAL_TEXT,
            .texts = "auto|guidance|xgrammar|outlines|lm-format-enforcer"),
    REFUSED("guided_json_object", "vLLM", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("guided_whitespace_pattern", "vLLM", FIELD_BOTH, NEUTRAL_NONE),
    REFUSED("include_reasoning", "vLLM", FIELD_BOTH, NEUTRAL_TRUE),
    REFUSED("kv_transfer_params", "vLLM", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("length_penalty", "vLLM", FIELD_BOTH, NEUTRAL_NUMBER, .number = 1),
    REFUSED("logits_processors", "vLLM", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("mm_processor_kwargs", "vLLM", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("prompt_logprobs", "vLLM", FIELD_BOTH, NEUTRAL_NONE),
    REFUSED("repetition_detection", "vLLM", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("return_token_ids", "vLLM", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("return_tokens_as_token_ids", "vLLM", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("structural_tag", "vLLM", FIELD_BOTH, NEUTRAL_NONE),
    REFUSED("thinking_token_budget", "vLLM", FIELD_BOTH, NEUTRAL_NONE),
    REFUSED("use_beam_search", "vLLM", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("vllm_xargs", "vLLM", FIELD_BOTH, NEUTRAL_EMPTY),
    /* llama.cpp's server */
    SAME_AS("n_predict", "llama.cpp", FIELD_BOTH, "max_tokens"),
    SAME_AS("repeat_penalty", "llama.cpp", FIELD_BOTH, "repetition_penalty"),
    DONE("typical_p", "llama.cpp", FIELD_BOTH, FIELD_NUMBER, 0, 1, PLACE(sampling.typical_p),
         .texts = "0 and 1: off"),
    DONE("top_n_sigma", "llama.cpp", FIELD_BOTH, FIELD_NUMBER, -INFINITY, INFINITY,
         PLACE(sampling.top_n_sigma), .texts = "0 and below: off"),
    DONE("min_keep", "llama.cpp", FIELD_BOTH, FIELD_INTEGER, 0, INT32_MAX, PLACE(asked_min_keep),
         .texts = "what top_p, min_p and typical_p leave at least"),
    DONE("cache_prompt", "llama.cpp", FIELD_ALL, FIELD_BOOL, PLACE(use_prefix_cache)),
    DONE("parse_special", "llama.cpp", FIELD_COMPLETIONS, FIELD_BOOL),
    DONE("json_schema", "llama.cpp", FIELD_BOTH, FIELD_ANY, .texts = "see below"),
    DONE("grammar", "llama.cpp", FIELD_BOTH, FIELD_STRING, .texts = "see below"),
    DONE("chat_template", "llama.cpp", FIELD_CHAT, FIELD_STRING,
         .texts = "refused: the operator sets it"),
    NO_EFFECT("dry_allowed_length", "llama.cpp", FIELD_BOTH, "tunes dry_multiplier"),
    NO_EFFECT("dry_base", "llama.cpp", FIELD_BOTH, "tunes dry_multiplier"),
    NO_EFFECT("dry_penalty_last_n", "llama.cpp", FIELD_BOTH, "tunes dry_multiplier"),
    NO_EFFECT("dry_sequence_breakers", "llama.cpp", FIELD_BOTH, "tunes dry_multiplier"),
    NO_EFFECT("dynatemp_exponent", "llama.cpp", FIELD_BOTH, "tunes dynatemp_range"),
    NO_EFFECT("mirostat_eta", "llama.cpp", FIELD_BOTH, "tunes mirostat"),
    NO_EFFECT("mirostat_tau", "llama.cpp", FIELD_BOTH, "tunes mirostat"),
    NO_EFFECT("xtc_threshold", "llama.cpp", FIELD_BOTH, "tunes xtc_probability"),
    REFUSED("adaptive_target", "llama.cpp", FIELD_BOTH, NEUTRAL_NOT_POSITIVE),
    REFUSED("dry_multiplier", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("dynatemp_range", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("id_slot", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER, .number = -1),
    REFUSED("image_data", "llama.cpp", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("lora", "llama.cpp", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("mirostat", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("multimodal_data", "llama.cpp", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("n_discard", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("n_indent", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("n_keep", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("n_probs", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("post_sampling_probs", "llama.cpp", FIELD_BOTH, NEUTRAL_FALSE),
    DONE("reasoning_format", "llama.cpp", FIELD_CHAT, FIELD_STRING, .texts = "see below"),
    REFUSED("reasoning_format", "llama.cpp", FIELD_COMPLETIONS, NEUTRAL_TEXT, .texts = "none"),
    REFUSED("repeat_last_n", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER, .number = -1),
    REFUSED("response_fields", "llama.cpp", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("return_progress", "llama.cpp", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("return_tokens", "llama.cpp", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("samplers", "llama.cpp", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("sse_ping_interval", "llama.cpp", FIELD_BOTH, NEUTRAL_NONE),
    REFUSED("t_max_predict_ms", "llama.cpp", FIELD_BOTH, NEUTRAL_NOT_POSITIVE),
    REFUSED("t_max_prompt_ms", "llama.cpp", FIELD_BOTH, NEUTRAL_NOT_POSITIVE),
    REFUSED("thinking_forced_open", "llama.cpp", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("timings_per_token", "llama.cpp", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("top_a", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("tfs_z", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER, .number = 1),
    REFUSED("xtc_probability", "llama.cpp", FIELD_BOTH, NEUTRAL_NUMBER),
    /* SGLang */
    SAME_AS("max_new_tokens", "SGLang", FIELD_BOTH, "max_tokens"),
    SAME_AS("min_new_tokens", "SGLang", FIELD_BOTH, "min_tokens"),
    SAME_AS("no_stop_trim", "SGLang", FIELD_BOTH, "include_stop_str_in_output"),
    DONE("regex", "SGLang", FIELD_BOTH, FIELD_STRING, .texts = "see below"),
    DONE("ebnf", "SGLang", FIELD_BOTH, FIELD_STRING, .texts = "see below"),
    NO_EFFECT("rid", "SGLang", FIELD_BOTH, "X-Request-Id is the way to give one"),
    REFUSED("custom_logit_processor", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("custom_params", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("input_embeds", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("input_ids", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("lora_path", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("no_repeat_ngram_size", "SGLang", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("penalty_alpha", "SGLang", FIELD_BOTH, NEUTRAL_NUMBER),
    REFUSED("return_hidden_states", "SGLang", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("sampling_params", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    DONE("separate_reasoning", "SGLang", FIELD_CHAT, FIELD_BOOL, .texts = "see below"),
    REFUSED("separate_reasoning", "SGLang", FIELD_COMPLETIONS, NEUTRAL_FALSE),
    REFUSED("session_params", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("stop_regex", "SGLang", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("stream_reasoning", "SGLang", FIELD_BOTH, NEUTRAL_FALSE),
    /* Ollama */
    SAME_AS("num_predict", "Ollama", FIELD_BOTH, "max_tokens"),
    SAME_AS("typical", "Ollama", FIELD_BOTH, "typical_p"),
    NO_EFFECT("keep_alive", "Ollama", FIELD_BOTH, "the model stays"),
    NO_EFFECT("num_gpu", "Ollama", FIELD_BOTH, "there is none"),
    NO_EFFECT("num_thread", "Ollama", FIELD_BOTH, "--threads says it"),
    NO_EFFECT("num_batch", "Ollama", FIELD_BOTH, "--max-batch-tokens says it"),
    REFUSED("format", "Ollama", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("images", "Ollama", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("num_ctx", "Ollama", FIELD_BOTH, NEUTRAL_NONE),
    REFUSED("options", "Ollama", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("raw", "Ollama", FIELD_BOTH, NEUTRAL_FALSE),
    REFUSED("system", "Ollama", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("template", "Ollama", FIELD_BOTH, NEUTRAL_EMPTY),
    REFUSED("think", "Ollama", FIELD_BOTH, NEUTRAL_NONE),
    /* Quire */
    DONE("timeout", "Quire", FIELD_ALL, FIELD_NUMBER, 0.001, LIMIT_TIMEOUT_SECONDS,
         PLACE(asked_timeout_s), .texts = "seconds from the request's arrival"),
};
#define FIELD_COUNT (sizeof fields / sizeof *fields)

const struct field *fields_table(size_t *count)
{
    *count = FIELD_COUNT;
    return fields;
}

static bool is_empty(const struct cJSON *value)
{
    bool flag;
    if (json_is_bool(value, &flag))
        return !flag;
    if (json_is_string(value))
        return json_string(value)[0] == '\0';
    return (json_is_array(value) || json_is_object(value)) && !json_first(value);
}

static bool is_one_of(const char *texts, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = texts; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strcspn(at, "|") == length && memcmp(at, text, length) == 0)
            return true;
    return false;
}

static bool asks_for_nothing(const struct field *field, const struct cJSON *value)
{
    bool flag;
    double number;
    switch (field->neutral) {
    case NEUTRAL_NONE:
        return false;
    case NEUTRAL_EMPTY:
        return is_empty(value);
    case NEUTRAL_FALSE:
        return json_is_bool(value, &flag) && !flag;
    case NEUTRAL_TRUE:
        return json_is_bool(value, &flag) && flag;
    case NEUTRAL_NUMBER:
        return json_number(value, &number) && number == field->number;
    case NEUTRAL_NOT_POSITIVE:
        return json_number(value, &number) && number <= 0;
    case NEUTRAL_TEXT:
        return json_is_string(value) && is_one_of(field->texts, json_string(value));
    }
    return false;
}

/* Its value in a request to that endpoint; NULL: absent, or another endpoint's. */
static const struct cJSON *value_of(const struct field *field, enum answer_kind kind,
                                    const struct cJSON *root)
{
    unsigned endpoint = kind == ANSWER_CHAT         ? FIELD_CHAT
                        : kind == ANSWER_COMPLETION ? FIELD_COMPLETIONS
                                                    : FIELD_POOLING;
    return field->endpoint & endpoint ? json_get(root, field->name) : NULL;
}

enum status fields_check(enum answer_kind kind, const struct cJSON *root, struct error *error)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const struct field *field = &fields[i];
        if (field->support != FIELD_REFUSED)
            continue;
        const struct cJSON *value = value_of(field, kind, root);
        if (value && !asks_for_nothing(field, value))
            return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", field->name,
                                  "%s is not supported by this server.", field->name);
    }
    return STATUS_OK;
}

/* The row that says what a field means. */
static const struct field *meaning_of(const struct field *field)
{
    for (size_t i = 0; field->same_as && i < FIELD_COUNT; i++)
        if (strcmp(fields[i].name, field->same_as) == 0)
            return &fields[i];
    return field;
}

/* Read `name` as `meaning` says. */
static enum status read_value(const struct field *meaning, const char *name,
                              const struct cJSON *root, struct request *out, struct error *error)
{
    char *place = (char *)out + meaning->offset;
    bool any = meaning->low == 0 && meaning->high == 0;
    double low = any ? -INFINITY : meaning->low, high = any ? INFINITY : meaning->high;
    switch (meaning->type) {
    case FIELD_NUMBER:
        return json_read_float(root, name, low, high, (float *)place, error);
    case FIELD_INTEGER:
        return json_read_integer(root, name, low, high, (int64_t *)place, error);
    case FIELD_BOOL:
        return json_read_bool(root, name, (bool *)place, error);
    default:
        return STATUS_OK;
    }
}

/* max_completion_tokens is the newer name of max_tokens and wins, as at OpenAI. */
static enum status check_both(const struct field *field, const struct cJSON *root,
                              struct error *error)
{
    double one, other;
    bool flag, other_flag;
    const struct cJSON *a = json_get(root, field->name), *b = json_get(root, field->same_as);
    if (!b || strcmp(field->name, "max_completion_tokens") == 0 ||
        (json_number(a, &one) && json_number(b, &other) && one == other) ||
        (json_is_bool(a, &flag) && json_is_bool(b, &other_flag) && flag == other_flag))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, field->name,
                     "%s is another name of %s: give one of them.", field->name, field->same_as);
}

enum status fields_read(enum answer_kind kind, const struct cJSON *root, struct request *out,
                        struct error *error)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const struct field *field = &fields[i], *meaning = meaning_of(field);
        if (meaning->offset == 0 || !value_of(field, kind, root))
            continue;
        enum status status = read_value(meaning, field->name, root, out, error);
        if (status == STATUS_OK && field->same_as)
            status = check_both(field, root, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}
