/* Parameters of /v1/completions and what both endpoints share: api/request.h. */
#include "api/models.h"
#include "api/request_read.h"
#include "tests/api/fixture.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fixture fixture;

static void set_up(void)
{
    fixture_init(&fixture,
                 &(struct fixture_options){.add_bos = true, .chat_template = fixture_template});
}

static void tear_down(void)
{
    fixture_deinit(&fixture);
}

static enum status read_kind(enum answer_kind kind, const char *body, struct request *out,
                             struct error *error)
{
    return request_read(&fixture.context, kind, body, strlen(body),
                        &(struct answer_caller){.cache_salt = 5}, out, error);
}

/* {"prompt":"a", fields} or the same as a chat. */
static enum status read_fields(enum answer_kind kind, const char *fields, struct request *out,
                               struct error *error)
{
    char body[4096];
    snprintf(body, sizeof body, "{%s%s%s}",
             kind == ANSWER_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
                                 : "\"prompt\":\"a\"",
             *fields ? "," : "", fields);
    return read_kind(kind, body, out, error);
}

static void expect_error(enum answer_kind kind, const char *fields, enum status status,
                         const char *param)
{
    struct request request;
    struct error error = {0};
    enum status got = read_fields(kind, fields, &request, &error);
    request_deinit(&request, &fixture.context);
    ck_assert_msg(got == status, "%s: status %d, %s", fields, got, error.message);
    ck_assert_msg(strcmp(error.param, param) == 0, "%s: param %s, %s", fields, error.param,
                  error.message);
    ck_assert_uint_eq(atomic_load(&fixture.budget.used_bytes[BUDGET_REQUESTS]), 0);
}

static void expect_good(enum answer_kind kind, const char *fields)
{
    struct request request;
    struct error error = {0};
    enum status got = read_fields(kind, fields, &request, &error);
    request_deinit(&request, &fixture.context);
    ck_assert_msg(got == STATUS_OK, "%s: %s", fields, error.message);
}

START_TEST(refused_by_both)
{
    static const struct {
        const char *fields, *param;
    } cases[] = {
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":1e999", "temperature"},
        {"\"temperature\":-1e999", "temperature"},
        {"\"temperature\":\"NaN\"", "temperature"},
        {"\"temperature\":\"Infinity\"", "temperature"},
        {"\"temperature\":\"1\"", "temperature"},
        {"\"temperature\":true", "temperature"},
        {"\"temperature\":[1]", "temperature"},
        {"\"temperature\":{}", "temperature"},
        {"\"top_p\":1.1", "top_p"},
        {"\"top_p\":-0.1", "top_p"},
        {"\"top_p\":1e999", "top_p"},
        {"\"top_p\":\"0.5\"", "top_p"},
        {"\"min_p\":1.5", "min_p"},
        {"\"min_p\":-1e999", "min_p"},
        {"\"top_k\":-2", "top_k"},
        {"\"top_k\":1.5", "top_k"},
        {"\"top_k\":1e10", "top_k"},
        {"\"top_k\":1e999", "top_k"},
        {"\"presence_penalty\":2.1", "presence_penalty"},
        {"\"presence_penalty\":1e999", "presence_penalty"},
        {"\"frequency_penalty\":-2.1", "frequency_penalty"},
        {"\"frequency_penalty\":-1e999", "frequency_penalty"},
        {"\"repetition_penalty\":0", "repetition_penalty"},
        {"\"repetition_penalty\":1e999", "repetition_penalty"},
        {"\"seed\":1.5", "seed"},
        {"\"seed\":1e-3", "seed"},
        {"\"seed\":1.25e1", "seed"},
        {"\"seed\":1e20", "seed"},
        {"\"seed\":1e99999999999999999999", "seed"},
        {"\"seed\":[1]", "seed"},
        {"\"seed\":\"1\"", "seed"},
        {"\"seed\":18446744073709551616", "seed"},
        {"\"seed\":-9223372036854775809", "seed"},
        {"\"n\":0", "n"},
        {"\"n\":-1", "n"},
        {"\"n\":129", "n"},
        {"\"n\":1000000000", "n"},
        {"\"n\":1.5", "n"},
        {"\"n\":\"1\"", "n"},
        {"\"max_tokens\":-2", "max_tokens"},
        {"\"max_tokens\":1.5", "max_tokens"},
        {"\"max_tokens\":\"10\"", "max_tokens"},
        {"\"max_tokens\":1e999", "max_tokens"},
        {"\"stop_token_ids\":[268]", "stop_token_ids"},
        {"\"stop_token_ids\":5", "stop_token_ids"},
        {"\"allowed_token_ids\":[]", "allowed_token_ids"},
        {"\"allowed_token_ids\":[1.5]", "allowed_token_ids"},
        {"\"bad_words\":[\"\"]", "bad_words"},
        {"\"bad_words\":\"x\"", "bad_words"},
        {"\"min_tokens\":-1", "min_tokens"},
        {"\"min_keep\":1.5", "min_keep"},
        {"\"typical_p\":1.5", "typical_p"},
        {"\"truncate_prompt_tokens\":0", "truncate_prompt_tokens"},
        {"\"truncation_side\":\"up\"", "truncation_side"},
        {"\"n_predict\":4,\"max_tokens\":5", "n_predict"},
        {"\"repeat_penalty\":0", "repeat_penalty"},
        {"\"stop\":5", "stop"},
        {"\"stop\":[5]", "stop"},
        {"\"stop\":[null]", "stop"},
        {"\"stop\":{\"a\":\"b\"}", "stop"},
        {"\"stream\":1", "stream"},
        {"\"stream\":\"true\"", "stream"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"stream\":true,\"stream_options\":true", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "include_usage"},
        {"\"logit_bias\":[]", "logit_bias"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1.5\":1}", "logit_bias"},
        {"\"logit_bias\":{\"\":1}", "logit_bias"},
        {"\"logit_bias\":{\"268\":1}", "logit_bias"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias"},
        {"\"logit_bias\":{\"7\":101}", "logit_bias"},
        {"\"logit_bias\":{\"7\":1e999}", "logit_bias"},
        {"\"logit_bias\":{\"7\":\"1\"}", "logit_bias"},
        {"\"logit_bias\":{\"7\":1,\"07\":2}", "logit_bias"},
        {"\"ignore_eos\":1", "ignore_eos"},
        {"\"cache_prompt\":\"no\"", "cache_prompt"},
        {"\"cache_salt\":5", "cache_salt"},
        {"\"user\":5", "user"},
        {"\"model\":5", "model"},
        {"\"priority\":1.5", "priority"},
        {"\"priority\":\"high\"", "priority"},
        {"\"priority\":2147483648", "priority"},
        {"\"priority\":-2147483649", "priority"},
        {"\"priority\":true", "priority"},
        {"\"timeout\":0", "timeout"},
        {"\"timeout\":-1", "timeout"},
        {"\"timeout\":86401", "timeout"},
        {"\"timeout\":1e999", "timeout"},
        {"\"timeout\":\"10\"", "timeout"},
        {"\"timeout\":true", "timeout"},
        {"\"best_of\":1,\"n\":2", "best_of"},
        {"\"best_of\":129", "best_of"},
        {"\"best_of\":0", "best_of"},
        {"\"best_of\":\"2\"", "best_of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_error(ANSWER_COMPLETION, cases[i].fields, STATUS_INVALID, cases[i].param);
        expect_error(ANSWER_CHAT, cases[i].fields, STATUS_INVALID, cases[i].param);
    }
}
END_TEST

enum endpoint { BOTH, COMPLETIONS, CHAT };

/* Fields that mean something here or there and are not done; values that ask for something, and
   values that do not. */
static const struct {
    const char *name;
    enum endpoint endpoint;
    const char *asking, *neutral;
} not_done[] = {
    {"audio", CHAT, "1 0 {} [] \"x\" false", ""},
    {"documents", CHAT, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"echo", CHAT, "true", "false"},
    {"add_special_tokens", CHAT, "true", "false"},
    {"function_call", CHAT, "\"x\" 1", "\"none\""},
    {"functions", CHAT, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"messages", COMPLETIONS, "1 0 {} [] \"x\" false", ""},
    {"moderation", BOTH, "1 0 {} [] \"x\" false", ""},
    {"prediction", CHAT, "1 0 {} [] \"x\" false", ""},
    {"prompt_embeds", COMPLETIONS, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"service_tier", BOTH, "\"x\" 1", "\"auto\" \"default\""},
    {"store", BOTH, "true", "false"},
    {"suffix", CHAT, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"tools", COMPLETIONS, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"top_logprobs", COMPLETIONS, "2 0.25 \"x\"", "0"},
    {"verbosity", CHAT, "\"x\" 1", "\"medium\""},
    {"web_search_options", CHAT, "1 0 {} [] \"x\" false", ""},
    {"chat_template_kwargs", COMPLETIONS, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"early_stopping", BOTH, "true", "false"},
    {"guided_decoding_backend", BOTH, "\"x\" 1 \"xgrammar:disable-any-whitespace\"",
     "\"auto\" \"guidance\" \"xgrammar\" \"outlines\" \"lm-format-enforcer\""},
    {"guided_json_object", BOTH, "true", "false"},
    {"guided_whitespace_pattern", BOTH, "1 0 {} [] \"x\" false", ""},
    {"include_reasoning", BOTH, "false", "true"},
    {"kv_transfer_params", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"length_penalty", BOTH, "2 0.25 \"x\"", "1"},
    {"logits_processors", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"mm_processor_kwargs", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"prompt_logprobs", BOTH, "1 0 {} [] \"x\" false", ""},
    {"repetition_detection", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"return_token_ids", BOTH, "true", "false"},
    {"return_tokens_as_token_ids", BOTH, "true", "false"},
    {"structural_tag", BOTH, "1 0 {} [] \"x\" false", ""},
    {"thinking_token_budget", BOTH, "1 0 {} [] \"x\" false", ""},
    {"use_beam_search", BOTH, "true", "false"},
    {"vllm_xargs", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"adaptive_target", BOTH, "1 0.5", "0 -1"},
    {"dry_multiplier", BOTH, "2 0.25 \"x\"", "0"},
    {"dynatemp_range", BOTH, "2 0.25 \"x\"", "0"},
    {"id_slot", BOTH, "2 0.25 \"x\"", "-1"},
    {"image_data", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"lora", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"mirostat", BOTH, "2 0.25 \"x\"", "0"},
    {"multimodal_data", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"n_discard", BOTH, "2 0.25 \"x\"", "0"},
    {"n_indent", BOTH, "2 0.25 \"x\"", "0"},
    {"n_keep", BOTH, "2 0.25 \"x\"", "0"},
    {"n_probs", BOTH, "2 0.25 \"x\"", "0"},
    {"post_sampling_probs", BOTH, "true", "false"},
    {"reasoning_format", COMPLETIONS, "\"x\" 1", "\"none\""},
    {"repeat_last_n", BOTH, "2 0.25 \"x\"", "-1"},
    {"response_fields", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"return_progress", BOTH, "true", "false"},
    {"return_tokens", BOTH, "true", "false"},
    {"samplers", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"sse_ping_interval", BOTH, "1 0 {} [] \"x\" false", ""},
    {"t_max_predict_ms", BOTH, "1 0.5", "0 -1"},
    {"t_max_prompt_ms", BOTH, "1 0.5", "0 -1"},
    {"thinking_forced_open", BOTH, "true", "false"},
    {"timings_per_token", BOTH, "true", "false"},
    {"top_a", BOTH, "2 0.25 \"x\"", "0"},
    {"tfs_z", BOTH, "2 0.25 \"x\"", "1"},
    {"xtc_probability", BOTH, "2 0.25 \"x\"", "0"},
    {"custom_logit_processor", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"custom_params", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"input_embeds", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"input_ids", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"lora_path", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"no_repeat_ngram_size", BOTH, "2 0.25 \"x\"", "0"},
    {"penalty_alpha", BOTH, "2 0.25 \"x\"", "0"},
    {"return_hidden_states", BOTH, "true", "false"},
    {"sampling_params", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"separate_reasoning", COMPLETIONS, "true", "false"},
    {"session_params", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"stop_regex", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"stream_reasoning", BOTH, "true", "false"},
    {"format", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"images", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"num_ctx", BOTH, "1 0 {} [] \"x\" false", ""},
    {"options", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"raw", BOTH, "true", "false"},
    {"system", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"template", BOTH, "\"x\" [1] {\"a\":1}", "\"\" [] {} false"},
    {"think", BOTH, "1 0 {} [] \"x\" false", ""},
};

static void send_each(const char *name, const char *values, enum answer_kind kind, bool refused)
{
    for (const char *at = values; *at; at += strcspn(at, " "), at += *at == ' ') {
        char field[128];
        snprintf(field, sizeof field, "\"%s\":%.*s", name, (int)strcspn(at, " "), at);
        if (refused)
            expect_error(kind, field, STATUS_UNSUPPORTED, name);
        else
            expect_good(kind, field);
    }
}

START_TEST(not_done_is_refused_by_name)
{
    for (size_t i = 0; i < sizeof not_done / sizeof *not_done; i++) {
        for (int chat = 0; chat < 2; chat++) {
            if (not_done[i].endpoint == (chat ? COMPLETIONS : CHAT))
                continue;
            enum answer_kind kind = chat ? ANSWER_CHAT : ANSWER_COMPLETION;
            send_each(not_done[i].name, not_done[i].asking, kind, true);
            send_each(not_done[i].name, not_done[i].neutral, kind, false);
            send_each(not_done[i].name, "null", kind, false);
        }
    }
}
END_TEST

START_TEST(accepted_by_both)
{
    static const char *const cases[] = {
        "",
        "\"temperature\":0",
        "\"temperature\":-0.0",
        "\"temperature\":1e-45",
        "\"temperature\":2",
        "\"top_p\":0",
        "\"top_p\":1e-9",
        "\"top_p\":1",
        "\"top_k\":-1",
        "\"top_k\":0",
        "\"top_k\":1000000000",
        "\"max_tokens\":1e18",
        "\"max_tokens\":2147483648",
        "\"stop\":null",
        "\"stop\":[]",
        "\"stop\":\"x\"",
        "\"stop\":[\"a\",\"b\",\"c\",\"d\"]",
        "\"seed\":-1",
        "\"seed\":0",
        "\"n\":16",
        "\"best_of\":2,\"n\":2",
        "\"best_of\":2,\"n\":2,\"stream\":true",
        "\"priority\":-2147483648,\"timeout\":0.001",
        "\"priority\":2147483647,\"timeout\":86400",
        "\"logit_bias\":{}",
        "\"logit_bias\":{\"0\":-100,\"267\":100}",
        "\"stream\":true,\"stream_options\":{}",
        "\"stream\":true,\"stream_options\":{\"include_usage\":false}",
        "\"temperature\":null,\"top_p\":null,\"top_k\":null,\"min_p\":null,\"seed\":null,"
        "\"n\":null,\"max_tokens\":null,\"stop\":null,\"stream\":null,\"stream_options\":null,"
        "\"logit_bias\":null,\"ignore_eos\":null,\"user\":null,\"model\":null,\"best_of\":null,"
        "\"logprobs\":null,\"cache_prompt\":null,\"cache_salt\":null,\"presence_penalty\":null,"
        "\"frequency_penalty\":null,\"repetition_penalty\":null,\"priority\":null,"
        "\"timeout\":null",
        "\"model\":\"default\"",
        "\"model\":\"tiny\"",
        "\"model\":\"tiny-alias\"",
        /* Fields nobody knows have no effect, whatever they hold. */
        "\"unknown\":{\"deep\":[1,{\"x\":1e999}]},\"Temperature\":\"no\",\"request_id\":-1",
        "\"use_beam_search\":false,\"stop_token_ids\":[],\"min_tokens\":0,\"bad_words\":[]",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_good(ANSWER_COMPLETION, cases[i]);
        expect_good(ANSWER_CHAT, cases[i]);
    }
}
END_TEST

START_TEST(only_completions)
{
    static const struct {
        const char *fields;
        enum status status;
        const char *param;
    } cases[] = {
        {"\"logprobs\":21", STATUS_INVALID, "logprobs"},
        {"\"logprobs\":-1", STATUS_INVALID, "logprobs"},
        {"\"logprobs\":1e9", STATUS_INVALID, "logprobs"},
        {"\"logprobs\":true", STATUS_INVALID, "logprobs"},
        {"\"echo\":1", STATUS_INVALID, "echo"},
        {"\"best_of\":4,\"n\":2,\"stream\":true", STATUS_INVALID, "best_of"},
        {"\"echo\":true,\"logprobs\":1", STATUS_UNSUPPORTED, "logprobs"},
        {"\"suffix\":\"x\"", STATUS_UNSUPPORTED, "suffix"}, /* no marks in this vocabulary */
        {"\"suffix\":5", STATUS_INVALID, "suffix"},
        {"\"suffix\":\"x\",\"echo\":true", STATUS_INVALID, "echo"},
        {"\"parse_special\":1", STATUS_INVALID, "parse_special"},
        {"\"add_special_tokens\":0", STATUS_INVALID, "add_special_tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(ANSWER_COMPLETION, cases[i].fields, cases[i].status, cases[i].param);
    expect_good(ANSWER_COMPLETION, "\"logprobs\":0,\"suffix\":\"\"");
    expect_good(ANSWER_COMPLETION, "\"logprobs\":5");
    expect_good(ANSWER_COMPLETION, "\"max_tokens\":0,\"echo\":true");
}
END_TEST

START_TEST(only_chat)
{
    static const struct {
        const char *fields;
        enum status status;
        const char *param;
    } cases[] = {
        {"\"max_tokens\":0", STATUS_INVALID, "max_tokens"},
        {"\"max_completion_tokens\":0", STATUS_INVALID, "max_tokens"},
        {"\"logprobs\":5", STATUS_INVALID, "logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", STATUS_INVALID, "top_logprobs"},
        {"\"top_logprobs\":2", STATUS_INVALID, "top_logprobs"},
        {"\"response_format\":\"text\"", STATUS_INVALID, "response_format"},
        {"\"response_format\":{\"type\":\"json_object\"}", STATUS_UNSUPPORTED, "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}", STATUS_INVALID,
         "response_format"},
        {"\"tool_choice\":\"required\"", STATUS_INVALID, "tool_choice"},
        {"\"tool_choice\":\"often\"", STATUS_INVALID, "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"}", STATUS_INVALID, "tool_choice"},
        {"\"tools\":{}", STATUS_INVALID, "tools"},
        {"\"tools\":[{\"type\":\"x\"}]", STATUS_INVALID, "tools"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", STATUS_INVALID, "tools"},
        {"\"functions\":[{\"name\":\"f\"}]", STATUS_UNSUPPORTED, "functions"},
        {"\"chat_template\":\"{{ messages }}\"", STATUS_UNSUPPORTED, "chat_template"},
        {"\"chat_template_kwargs\":[]", STATUS_INVALID, "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"x\":{}}", STATUS_INVALID, "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"x\":[1]}", STATUS_INVALID, "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"bos_token\":\"x\"}", STATUS_INVALID, "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"messages\":1}", STATUS_INVALID, "chat_template_kwargs"},
        {"\"continue_final_message\":true", STATUS_INVALID, "continue_final_message"},
        {"\"continue_final_message\":true,\"add_generation_prompt\":true", STATUS_INVALID,
         "continue_final_message"},
        {"\"modalities\":[\"audio\"]", STATUS_UNSUPPORTED, "modalities"},
        {"\"reasoning_effort\":1", STATUS_INVALID, "reasoning_effort"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(ANSWER_CHAT, cases[i].fields, cases[i].status, cases[i].param);
    expect_good(ANSWER_CHAT, "\"logprobs\":true,\"top_logprobs\":20");
    expect_good(ANSWER_CHAT, "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"]");
    expect_good(ANSWER_CHAT, "\"tool_choice\":\"none\",\"tools\":[]");
    expect_good(ANSWER_CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":false,\"x\":1.5}");
    expect_good(ANSWER_CHAT, "\"logprobs\":false,\"top_logprobs\":0");
}
END_TEST

START_TEST(unknown_model)
{
    struct request request;
    struct error error = {0};
    ck_assert_int_eq(
        read_fields(ANSWER_COMPLETION, "\"model\":\"gpt-\\u0007\\\"4\"", &request, &error),
        STATUS_NOT_FOUND);
    ck_assert_str_eq(error.code, "model_not_found");
    ck_assert_str_eq(error.param, "model");
    request_deinit(&request, &fixture.context);
    struct buffer body;
    buffer_init(&body, 0);
    api_write_error(&error, &body);
    struct json_document document;
    ck_assert_int_eq(json_open(body.data, body.length, NULL, &document, &error), STATUS_OK);
    json_close(&document);
    buffer_deinit(&body);
}
END_TEST

START_TEST(values_arrive)
{
    struct request request;
    struct error error = {0};
    ck_assert_int_eq(read_fields(ANSWER_COMPLETION,
                                 "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,"
                                 "\"presence_penalty\":-1,\"frequency_penalty\":1.5,"
                                 "\"repetition_penalty\":1.25,\"seed\":18446744073709551615,"
                                 "\"n\":3,\"max_tokens\":9,\"stop\":[\"x\",\"yz\"],\"stream\":true,"
                                 "\"stream_options\":{\"include_usage\":true},\"logprobs\":2,"
                                 "\"logit_bias\":{\"65\":-1.5},\"ignore_eos\":true,"
                                 "\"cache_prompt\":false",
                                 &request, &error),
                     STATUS_OK);
    const struct sampling_params *sampling = &request.sampling;
    ck_assert(sampling->temperature == 0.5f && sampling->top_p == 0.25f);
    ck_assert(sampling->top_k == 7 && sampling->min_p == 0.125f);
    ck_assert(sampling->presence_penalty == -1 && sampling->frequency_penalty == 1.5f);
    ck_assert(sampling->repetition_penalty == 1.25f);
    ck_assert(sampling->seed == UINT64_MAX);
    ck_assert_uint_eq(sampling->logit_bias_count, 1);
    ck_assert(sampling->logit_bias[0].token == 65 && sampling->logit_bias[0].bias == -1.5f);
    ck_assert_uint_eq(request.choice_count, 3);
    ck_assert_uint_eq(request.max_tokens, 9);
    ck_assert_uint_eq(request.stop_count, 2);
    ck_assert_str_eq(request.stops[1], "yz");
    ck_assert_uint_eq(request.stop_lengths[1], 2);
    ck_assert(request.stream && request.include_usage && request.ignore_eos);
    ck_assert(request.want_logprobs && request.top_logprobs == 2);
    ck_assert(!request.use_prefix_cache);
    ck_assert_uint_eq(request.cache_salt, 5);
    request_deinit(&request, &fixture.context);

    ck_assert_int_eq(read_fields(ANSWER_COMPLETION, "", &request, &error), STATUS_OK);
    ck_assert(request.sampling.temperature == 1 && request.sampling.top_p == 1);
    ck_assert(request.sampling.repetition_penalty == 1);
    ck_assert_uint_eq(request.max_tokens, 16);
    ck_assert_uint_eq(request.choice_count, 1);
    ck_assert(!request.stream && !request.want_logprobs && request.use_prefix_cache);
    uint64_t first_seed = request.sampling.seed;
    request_deinit(&request, &fixture.context);
    ck_assert_int_eq(read_fields(ANSWER_CHAT, "", &request, &error), STATUS_OK);
    ck_assert(request.sampling.seed != first_seed); /* drawn anew, 53 bits */
    ck_assert_uint_eq(request.max_tokens, UINT32_MAX);
    request_deinit(&request, &fixture.context);
}
END_TEST

/* Timeouts count from the arrival; what names none gets the server's, if there is one. */
START_TEST(when_it_runs)
{
    static const struct {
        const char *fields;
        uint64_t default_ns;
        int32_t priority;
        uint64_t deadline_ns;
    } cases[] = {
        {"", 0, 0, 0},
        {"", 300000000000, 0, 300000001000},
        {"\"timeout\":0.25,\"priority\":-3", 300000000000, -3, 250001000},
        {"\"timeout\":2,\"priority\":2147483647", 0, INT32_MAX, 2000001000},
        {"\"timeout\":86400", 300000000000, 0, 86400000001000},
        {"\"timeout\":null,\"priority\":null", 5000, 0, 6000},
    };
    struct answer_caller caller = {.tenant = 3, .arrival_ns = 1000};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[200];
        struct request request;
        struct error error = {0};
        snprintf(body, sizeof body, "{\"prompt\":\"a\"%s%s}", *cases[i].fields ? "," : "",
                 cases[i].fields);
        fixture.context.timeout_ns = cases[i].default_ns;
        ck_assert_int_eq(request_read(&fixture.context, ANSWER_COMPLETION, body, strlen(body),
                                      &caller, &request, &error),
                         STATUS_OK);
        ck_assert_int_eq(request.priority, cases[i].priority);
        ck_assert_uint_eq(request.deadline_ns, cases[i].deadline_ns);
        ck_assert_uint_eq(request.tenant, 3);
        request_deinit(&request, &fixture.context);
    }
}
END_TEST

START_TEST(best_of_makes_more_than_it_shows)
{
    struct request request;
    struct error error = {0};
    ck_assert_int_eq(read_fields(ANSWER_COMPLETION, "\"best_of\":5,\"n\":2", &request, &error),
                     STATUS_OK);
    ck_assert_uint_eq(request.choice_count, 5);
    ck_assert_uint_eq(request.shown_count, 2);
    ck_assert(!request.want_logprobs);
    request_deinit(&request, &fixture.context);
    ck_assert_int_eq(read_fields(ANSWER_COMPLETION, "\"n\":3", &request, &error), STATUS_OK);
    ck_assert_uint_eq(request.choice_count, 3);
    ck_assert_uint_eq(request.shown_count, 3);
    request_deinit(&request, &fixture.context);
    expect_error(ANSWER_CHAT, "\"best_of\":4,\"n\":2", STATUS_UNSUPPORTED, "best_of");
    /* It is best_of that counts against the limit of sequences. */
    const char *body = "{\"prompt\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"],"
                       "\"n\":1,\"best_of\":15}";
    ck_assert_int_eq(read_kind(ANSWER_COMPLETION, body, &request, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "prompt");
    request_deinit(&request, &fixture.context);
}
END_TEST

START_TEST(seeds_are_exact)
{
    static const struct {
        const char *text;
        uint64_t seed;
    } cases[] = {{"9007199254740993", 9007199254740993u},
                 {"9223372036854775808", 9223372036854775808u},
                 {"-1", UINT64_MAX},
                 {"-9223372036854775808", 9223372036854775808u},
                 {"0", 0},
                 {"42.0", 42},
                 {"1e1", 10},
                 {"1.5E+1", 15},
                 {"-12000.000e-3", (uint64_t)-12},
                 {"-0.0", 0},
                 {"0e99", 0},
                 {"18446744073709551615.00", UINT64_MAX},
                 {"1844674407370955161500e-2", UINT64_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request request;
        struct error error = {0};
        char fields[64];
        snprintf(fields, sizeof fields, "\"s\\u0065ed\" : %s ", cases[i].text);
        ck_assert_int_eq(read_fields(ANSWER_COMPLETION, fields, &request, &error), STATUS_OK);
        ck_assert_msg(request.sampling.seed == cases[i].seed, "%s", cases[i].text);
        request_deinit(&request, &fixture.context);
    }
}
END_TEST

START_TEST(cache_salts)
{
    static const char *const fields[] = {"", "\"cache_salt\":\"a\"", "\"cache_salt\":\"b\"",
                                         "\"cache_salt\":\"\""};
    uint64_t salts[4];
    struct error error = {0};
    for (size_t i = 0; i < 4; i++) {
        struct request request;
        ck_assert_int_eq(read_fields(ANSWER_COMPLETION, fields[i], &request, &error), STATUS_OK);
        salts[i] = request.cache_salt;
        request_deinit(&request, &fixture.context);
        for (size_t k = 0; k < i; k++)
            ck_assert(salts[k] != salts[i]);
    }
    const char *body = "{\"prompt\":\"a\",\"cache_salt\":\"a\"}";
    struct request request;
    ck_assert_int_eq(request_read(&fixture.context, ANSWER_COMPLETION, body, strlen(body),
                                  &(struct answer_caller){.cache_salt = 6}, &request, &error),
                     STATUS_OK);
    ck_assert(request.cache_salt != salts[1]); /* another caller's */
    request_deinit(&request, &fixture.context);
}
END_TEST

static void expect_prompt(const char *prompt, enum status status, const char *param)
{
    char body[4096];
    struct request request;
    struct error error = {0};
    snprintf(body, sizeof body, "{\"prompt\":%s}", prompt);
    enum status got = read_kind(ANSWER_COMPLETION, body, &request, &error);
    request_deinit(&request, &fixture.context);
    ck_assert_msg(got == status, "%s: %d %s", prompt, got, error.message);
    if (status != STATUS_OK)
        ck_assert_str_eq(error.param, param);
}

START_TEST(prompt_forms)
{
    static const char *const bad[] = {
        "[]",          "[[]]",    "[\"a\",5]", "[5,\"a\"]",    "[1.5]",
        "[-1]",        "[true]",  "[null]",    "null",         "{}",
        "5",           "true",    "[[1],[]]",  "[[1],\"a\"]",  "[268]",
        "[[1],[268]]", "[[[1]]]", "[1e3]",     "[4294967296]", "[[1],2]",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_prompt(bad[i], STATUS_INVALID, "prompt");
    static const char *const good[] = {"\"a\"", "\"\"",     "[\"a\"]", "[\"a\",\"\"]",
                                       "[1]",   "[[1]]",    "[1,2,3]", "[[1,2],[3]]",
                                       "[267]", "[ 1 , 2 ]"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect_prompt(good[i], STATUS_OK, "");
    struct request request;
    struct error error = {0};
    ck_assert_int_eq(read_kind(ANSWER_COMPLETION, "{}", &request, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "prompt");
    request_deinit(&request, &fixture.context);
}
END_TEST

START_TEST(prompt_tokens)
{
    struct request request;
    struct error error = {0};
    /* A text gets BOS and its control tokens; ids are taken as they are. */
    ck_assert_int_eq(
        read_kind(ANSWER_COMPLETION, "{\"prompt\":\"hi<|im_end|>!\"}", &request, &error),
        STATUS_OK);
    ck_assert_uint_eq(request.prompts[0].count, 4);
    ck_assert_uint_eq(request.prompts[0].tokens[0], TOKEN_BOS);
    ck_assert_uint_eq(request.prompts[0].tokens[1], TOKEN_HI);
    ck_assert_uint_eq(request.prompts[0].tokens[2], TOKEN_IM_END);
    request_deinit(&request, &fixture.context);
    ck_assert_int_eq(read_kind(ANSWER_COMPLETION,
                               "{\"prompt\":\"hi<|im_end|>\",\"parse_special\":false,"
                               "\"add_special_tokens\":false}",
                               &request, &error),
                     STATUS_OK);
    ck_assert_uint_eq(request.prompts[0].count, 11); /* hi, then ten bytes */
    for (size_t i = 0; i < request.prompts[0].count; i++)
        ck_assert(request.prompts[0].tokens[i] < 256 || request.prompts[0].tokens[i] == TOKEN_HI);
    request_deinit(&request, &fixture.context);
    ck_assert_int_eq(
        read_kind(ANSWER_COMPLETION, "{\"prompt\":[[7,8],[9]],\"n\":2}", &request, &error),
        STATUS_OK);
    ck_assert_uint_eq(request.prompt_count, 2);
    ck_assert_uint_eq(request.prompts[0].count, 2);
    ck_assert_uint_eq(request.prompts[0].tokens[1], 8);
    ck_assert_uint_eq(request.prompts[1].tokens[0], 9);
    request_deinit(&request, &fixture.context);
    /* "" is BOS alone. */
    ck_assert_int_eq(read_kind(ANSWER_COMPLETION, "{\"prompt\":\"\"}", &request, &error),
                     STATUS_OK);
    ck_assert_uint_eq(request.prompts[0].count, 1);
    ck_assert_uint_eq(request.prompts[0].tokens[0], TOKEN_BOS);
    request_deinit(&request, &fixture.context);
}
END_TEST

START_TEST(prompt_limits)
{
    struct buffer body;
    struct request request;
    struct error error = {0};
    for (unsigned count = LIMIT_PROMPTS; count <= LIMIT_PROMPTS + 1; count++) {
        for (int ids = 0; ids < 2; ids++) {
            buffer_init(&body, 0);
            buffer_append_text(&body, "{\"prompt\":[");
            for (unsigned i = 0; i < count; i++)
                buffer_appendf(&body, "%s%s", i ? "," : "", ids ? "[1]" : "\"a\"");
            buffer_append_text(&body, "]}");
            ck_assert_int_eq(read_kind(ANSWER_COMPLETION, body.data, &request, &error),
                             count == LIMIT_PROMPTS ? STATUS_OK : STATUS_INVALID);
            request_deinit(&request, &fixture.context);
            buffer_deinit(&body);
        }
    }
    ck_assert_int_eq(read_kind(ANSWER_COMPLETION,
                               "{\"prompt\":[[1],[2],[3],[4],[5],[6],[7],[8],[9]],\"n\":16}",
                               &request, &error),
                     STATUS_INVALID);
    ck_assert_str_eq(error.param, "prompt");
    request_deinit(&request, &fixture.context);
}
END_TEST

/* Context 128: 127 tokens fit with one to come, 128 only with none. */
START_TEST(context_edges)
{
    static const struct {
        unsigned count;
        const char *fields;
        enum status status;
        uint32_t room;
    } cases[] = {
        {126, "", STATUS_OK, 2},
        {127, "", STATUS_OK, 1},
        {128, "", STATUS_INVALID, 0},
        {129, "", STATUS_INVALID, 0},
        {128, ",\"max_tokens\":0", STATUS_OK, 0},
        {129, ",\"max_tokens\":0", STATUS_INVALID, 0},
        {100, ",\"max_tokens\":28", STATUS_OK, 28},
        {100, ",\"max_tokens\":29", STATUS_OK, 28},
        {100, ",\"max_tokens\":1e18", STATUS_OK, 28},
        {100, ",\"max_tokens\":27", STATUS_OK, 27},
    };
    for (int text = 0; text < 2; text++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct buffer body;
            struct request request;
            struct error error = {0};
            buffer_init(&body, 0);
            buffer_append_text(&body, text ? "{\"prompt\":\"" : "{\"prompt\":[65");
            for (unsigned k = 1; k < cases[i].count; k++) /* one is BOS */
                buffer_append_text(&body, text ? "A" : ",65");
            buffer_appendf(&body, "%s%s}", text ? "\"" : "]", cases[i].fields);
            ck_assert_msg(read_kind(ANSWER_COMPLETION, body.data, &request, &error) ==
                              cases[i].status,
                          "%u %s %s", cases[i].count, cases[i].fields, error.message);
            if (cases[i].status == STATUS_OK) {
                ck_assert_uint_eq(request.prompts[0].count, cases[i].count);
                ck_assert_uint_eq(request_room(&request, &fixture.context, 0), cases[i].room);
            } else {
                char number[32];
                ck_assert_str_eq(error.code, "context_length_exceeded");
                snprintf(number, sizeof number,
                         text && cases[i].count > 128 ? "more than 128 " : " %u ", cases[i].count);
                ck_assert_msg(strstr(error.message, number) && strstr(error.message, "128"), "%s",
                              error.message);
            }
            request_deinit(&request, &fixture.context);
            buffer_deinit(&body);
        }
    }
}
END_TEST

START_TEST(long_stop)
{
    char body[4096], stop[LIMIT_STOP_BYTES + 2];
    struct request request;
    struct error error = {0};
    for (size_t length = LIMIT_STOP_BYTES; length <= LIMIT_STOP_BYTES + 1; length++) {
        memset(stop, 'x', length);
        stop[length] = '\0';
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"stop\":\"%s\"}", stop);
        ck_assert_int_eq(read_kind(ANSWER_COMPLETION, body, &request, &error),
                         length == LIMIT_STOP_BYTES ? STATUS_OK : STATUS_INVALID);
        request_deinit(&request, &fixture.context);
    }
}
END_TEST

START_TEST(no_bos_model)
{
    struct fixture plain;
    struct request request;
    struct error error = {0};
    fixture_init(&plain, &(struct fixture_options){.add_bos = false});
    const char *body = "{\"prompt\":\"\"}";
    ck_assert_int_eq(request_read(&plain.context, ANSWER_COMPLETION, body, strlen(body),
                                  &(struct answer_caller){.cache_salt = 0}, &request, &error),
                     STATUS_INVALID);
    ck_assert_str_eq(error.param, "prompt");
    request_deinit(&request, &plain.context);
    body = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"; /* no template */
    ck_assert_int_eq(request_read(&plain.context, ANSWER_CHAT, body, strlen(body),
                                  &(struct answer_caller){.cache_salt = 0}, &request, &error),
                     STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.message, "--chat-template"));
    request_deinit(&request, &plain.context);
    fixture_deinit(&plain);
}
END_TEST

START_TEST(errors_and_models)
{
    struct buffer out;
    struct error error;
    struct json_document document;
    buffer_init(&out, 0);
    error_set_code(&error, STATUS_INVALID, "some_code", "a\"b", "quote \" and \xff bytes");
    api_write_error(&error, &out);
    ck_assert_str_eq(out.data, "{\"error\":{\"message\":\"quote \\\" and ? bytes\",\"type\":"
                               "\"invalid_request_error\",\"param\":\"a\\\"b\",\"code\":"
                               "\"some_code\"}}");
    buffer_clear(&out);
    error_set(&error, STATUS_BUSY, NULL, "later");
    api_write_error(&error, &out);
    ck_assert_str_eq(out.data, "{\"error\":{\"message\":\"later\",\"type\":\"rate_limit_error\","
                               "\"param\":null,\"code\":null}}");
    buffer_clear(&out);
    api_write_models(&fixture.context, &out);
    ck_assert_int_eq(json_open(out.data, out.length, NULL, &document, &error), STATUS_OK);
    const struct cJSON *data = json_get(document.root, "data");
    ck_assert_uint_eq(json_count(data), 2);
    ck_assert_str_eq(json_string(json_get(json_first(data), "id")), "tiny");
    double length = 0;
    ck_assert(json_number(json_get(json_first(data), "max_model_len"), &length));
    ck_assert(length == FIXTURE_CONTEXT);
    json_close(&document);
    buffer_clear(&out);
    ck_assert_int_eq(api_write_model(&fixture.context, "tiny-alias", &out, &error), STATUS_OK);
    ck_assert_ptr_nonnull(strstr(out.data, "\"id\":\"tiny-alias\""));
    buffer_clear(&out);
    ck_assert_int_eq(api_write_model(&fixture.context, "x\xff", &out, &error), STATUS_NOT_FOUND);
    ck_assert_uint_eq(out.length, 0);
    buffer_deinit(&out);
    static const struct {
        enum status status;
        unsigned http;
    } statuses[] = {{STATUS_OK, 200},           {STATUS_INVALID, 400},   {STATUS_UNSUPPORTED, 400},
                    {STATUS_UNAUTHORIZED, 401}, {STATUS_NOT_FOUND, 404}, {STATUS_TOO_LARGE, 413},
                    {STATUS_BUSY, 429},         {STATUS_IO, 500},        {STATUS_INTERNAL, 500},
                    {STATUS_UNAVAILABLE, 503}};
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        ck_assert_uint_eq(api_http_status(statuses[i].status), statuses[i].http);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("request");
    TCase *tests = tcase_create("request");
    tcase_set_timeout(tests, 20);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, refused_by_both);
    tcase_add_test(tests, not_done_is_refused_by_name);
    tcase_add_test(tests, accepted_by_both);
    tcase_add_test(tests, only_completions);
    tcase_add_test(tests, only_chat);
    tcase_add_test(tests, unknown_model);
    tcase_add_test(tests, values_arrive);
    tcase_add_test(tests, when_it_runs);
    tcase_add_test(tests, best_of_makes_more_than_it_shows);
    tcase_add_test(tests, seeds_are_exact);
    tcase_add_test(tests, cache_salts);
    tcase_add_test(tests, prompt_forms);
    tcase_add_test(tests, prompt_tokens);
    tcase_add_test(tests, prompt_limits);
    tcase_add_test(tests, context_edges);
    tcase_add_test(tests, long_stop);
    tcase_add_test(tests, no_bos_model);
    tcase_add_test(tests, errors_and_models);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
