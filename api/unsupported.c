/* The table of fields that are refused, and which of their values ask for nothing. See
   unsupported.h: a field that is done here one day leaves the table. */
#include "api/unsupported.h"

#include <string.h>

enum endpoint { BOTH, COMPLETIONS, CHAT };

/* Which values, beside null, ask for nothing. */
enum neutral {
    NOTHING,      /* none does: {} as a schema and 0 as a count ask for something too */
    EMPTY,        /* "", [], {} and false: no text, none of them */
    FALSE,        /* it is off anyway */
    TRUE,         /* it is done anyway */
    NUMBER,       /* the number with which it does nothing */
    NOT_POSITIVE, /* 0 and below turn it off */
    TEXT,         /* the names of what is done anyway, with | between them */
};

static const struct field {
    const char *name;
    enum endpoint endpoint;
    enum neutral neutral;
    double number;
    const char *texts;
} fields[] = {
    /* OpenAI */
    {"audio", CHAT, NOTHING},
    {"documents", CHAT, EMPTY},
    {"echo", CHAT, FALSE},
    {"add_special_tokens", CHAT, FALSE},
    {"function_call", CHAT, TEXT, .texts = "none"},
    {"functions", CHAT, EMPTY},
    {"max_completion_tokens", COMPLETIONS, NOTHING},
    {"messages", COMPLETIONS, NOTHING},
    {"moderation", BOTH, NOTHING},
    {"prediction", CHAT, NOTHING},
    {"prompt_embeds", COMPLETIONS, EMPTY},
    {"service_tier", BOTH, TEXT, .texts = "auto|default"},
    {"store", BOTH, FALSE},
    {"suffix", BOTH, EMPTY},
    {"tools", COMPLETIONS, EMPTY},
    {"top_logprobs", COMPLETIONS, NUMBER},
    {"verbosity", CHAT, TEXT, .texts = "medium"},
    {"web_search_options", CHAT, NOTHING},
    /* vLLM */
    {"allowed_token_ids", BOTH, NOTHING},
    {"bad_words", BOTH, EMPTY},
    {"chat_template_kwargs", COMPLETIONS, EMPTY},
    {"early_stopping", BOTH, FALSE},
    /* Which library makes the masks: all of them mean the same, but for options behind a colon. */
    {"guided_decoding_backend", BOTH, TEXT,
     .texts = "auto|guidance|xgrammar|outlines|lm-format-enforcer"},
    {"guided_json_object", BOTH, FALSE},
    {"guided_whitespace_pattern", BOTH, NOTHING},
    {"include_reasoning", BOTH, TRUE},
    {"include_stop_str_in_output", BOTH, FALSE},
    {"kv_transfer_params", BOTH, EMPTY},
    {"length_penalty", BOTH, NUMBER, .number = 1},
    {"logits_processors", BOTH, EMPTY},
    {"mm_processor_kwargs", BOTH, EMPTY},
    {"min_tokens", BOTH, NUMBER},
    {"prompt_logprobs", BOTH, NOTHING},
    {"repetition_detection", BOTH, EMPTY},
    {"return_token_ids", BOTH, FALSE},
    {"return_tokens_as_token_ids", BOTH, FALSE},
    {"skip_special_tokens", BOTH, TRUE},
    {"spaces_between_special_tokens", BOTH, TRUE},
    {"stop_token_ids", BOTH, EMPTY},
    {"structural_tag", BOTH, NOTHING},
    {"thinking_token_budget", BOTH, NOTHING},
    {"truncate_prompt_tokens", BOTH, NOTHING},
    {"use_beam_search", BOTH, FALSE},
    {"vllm_xargs", BOTH, EMPTY},
    /* llama.cpp's server */
    {"adaptive_target", BOTH, NOT_POSITIVE},
    {"dry_multiplier", BOTH, NUMBER},
    {"dynatemp_range", BOTH, NUMBER},
    {"id_slot", BOTH, NUMBER, .number = -1},
    {"image_data", BOTH, EMPTY},
    {"lora", BOTH, EMPTY},
    {"min_keep", BOTH, NUMBER},
    {"mirostat", BOTH, NUMBER},
    {"multimodal_data", BOTH, EMPTY},
    {"n_discard", BOTH, NUMBER},
    {"n_indent", BOTH, NUMBER},
    {"n_keep", BOTH, NUMBER},
    {"n_predict", BOTH, NOTHING},
    {"n_probs", BOTH, NUMBER},
    {"post_sampling_probs", BOTH, FALSE},
    {"reasoning_format", BOTH, TEXT, .texts = "none"},
    {"repeat_last_n", BOTH, NUMBER, .number = -1},
    {"repeat_penalty", BOTH, NUMBER, .number = 1},
    {"response_fields", BOTH, EMPTY},
    {"return_progress", BOTH, FALSE},
    {"return_tokens", BOTH, FALSE},
    {"samplers", BOTH, EMPTY},
    {"sse_ping_interval", BOTH, NOTHING},
    {"t_max_predict_ms", BOTH, NOT_POSITIVE},
    {"t_max_prompt_ms", BOTH, NOT_POSITIVE},
    {"thinking_forced_open", BOTH, FALSE},
    {"timings_per_token", BOTH, FALSE},
    {"top_a", BOTH, NUMBER},
    {"top_n_sigma", BOTH, NOT_POSITIVE},
    {"tfs_z", BOTH, NUMBER, .number = 1},
    {"typical_p", BOTH, NUMBER, .number = 1},
    {"xtc_probability", BOTH, NUMBER},
    /* SGLang */
    {"custom_logit_processor", BOTH, EMPTY},
    {"custom_params", BOTH, EMPTY},
    {"input_embeds", BOTH, EMPTY},
    {"input_ids", BOTH, EMPTY},
    {"lora_path", BOTH, EMPTY},
    {"max_new_tokens", BOTH, NOTHING},
    {"min_new_tokens", BOTH, NUMBER},
    {"no_repeat_ngram_size", BOTH, NUMBER},
    {"no_stop_trim", BOTH, FALSE},
    {"penalty_alpha", BOTH, NUMBER},
    {"return_hidden_states", BOTH, FALSE},
    {"sampling_params", BOTH, EMPTY},
    {"separate_reasoning", BOTH, FALSE},
    {"session_params", BOTH, EMPTY},
    {"stop_regex", BOTH, EMPTY},
    {"stream_reasoning", BOTH, FALSE},
    /* Ollama */
    {"format", BOTH, EMPTY},
    {"images", BOTH, EMPTY},
    {"num_ctx", BOTH, NOTHING},
    {"num_predict", BOTH, NOTHING},
    {"options", BOTH, EMPTY},
    {"raw", BOTH, FALSE},
    {"system", BOTH, EMPTY},
    {"template", BOTH, EMPTY},
    {"think", BOTH, NOTHING},
    {"typical", BOTH, NUMBER, .number = 1},
};

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
    case NOTHING:
        return false;
    case EMPTY:
        return is_empty(value);
    case FALSE:
        return json_is_bool(value, &flag) && !flag;
    case TRUE:
        return json_is_bool(value, &flag) && flag;
    case NUMBER:
        return json_number(value, &number) && number == field->number;
    case NOT_POSITIVE:
        return json_number(value, &number) && number <= 0;
    case TEXT:
        return json_is_string(value) && is_one_of(field->texts, json_string(value));
    }
    return false;
}

enum status unsupported_check(enum answer_kind kind, const struct cJSON *root, struct error *error)
{
    enum endpoint other = kind == ANSWER_CHAT ? COMPLETIONS : CHAT;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *field = &fields[i];
        const struct cJSON *value = field->endpoint == other ? NULL : json_get(root, field->name);
        if (value && !asks_for_nothing(field, value))
            return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", field->name,
                                  "%s is not supported by this server.", field->name);
    }
    return STATUS_OK;
}
