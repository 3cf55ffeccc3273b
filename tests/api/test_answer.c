/*
 * Answers from body to bytes, whole and streamed, over the real engine and a scripted backend:
 * api/answer.h. Every request is made both ways and must say the same.
 */
#include "api/json.h"
#include "base/clock.h"
#include "tests/api/fixture.h"

#include <check.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHOICES_MAX 16

static struct fixture fixture;

static void set_up(void)
{
    fixture_init(&fixture,
                 &(struct fixture_options){.add_bos = true, .chat_template = fixture_template});
}

static void set_up_slow(void)
{
    fixture_init(&fixture, &(struct fixture_options){.add_bos = true, .step_delay_us = 50000});
}

static void set_up_long(void)
{
    fixture_init(&fixture, &(struct fixture_options){.add_bos = true,
                                                     .chat_template = fixture_template,
                                                     .context = 1024});
}

static void tear_down(void)
{
    fixture_deinit(&fixture);
}

/* Bytes are tokens here, NUL too, which json_open takes from nobody: an unused character for it. */
static void replace_nul(struct buffer *body)
{
    char *at = body->data;
    while (at && (at = strstr(at, "\\u0000")))
        memcpy(at, "\\u00ff", 6);
}

/* What an answer says, however it was sent. */
struct content {
    unsigned choice_count;
    struct buffer text[CHOICES_MAX];
    struct buffer logprobs[CHOICES_MAX]; /* the source text of its entries, joined */
    char finish[CHOICES_MAX][16];
    double prompt_tokens, completion_tokens, cached_tokens; /* -1: no usage */
    char id[48];
    unsigned events, usage_events, role_events;
    bool done; /* [DONE] was last */
};

static void content_init(struct content *content)
{
    memset(content, 0, sizeof *content);
    content->prompt_tokens = content->completion_tokens = -1;
}

static void content_deinit(struct content *content)
{
    for (unsigned i = 0; i < CHOICES_MAX; i++) {
        buffer_deinit(&content->text[i]);
        buffer_deinit(&content->logprobs[i]);
    }
}

static double number_of(const struct cJSON *object, const char *name)
{
    double number;
    ck_assert_msg(json_number(json_get(object, name), &number), "%s", name);
    return number;
}

static void read_usage(const struct cJSON *root, struct content *content)
{
    const struct cJSON *usage = json_get(root, "usage");
    if (!usage)
        return;
    content->prompt_tokens = number_of(usage, "prompt_tokens");
    content->completion_tokens = number_of(usage, "completion_tokens");
    content->cached_tokens = number_of(json_get(usage, "prompt_tokens_details"), "cached_tokens");
    ck_assert(number_of(usage, "total_tokens") ==
              content->prompt_tokens + content->completion_tokens);
}

/* Append the entries of each array in a choice's logprobs, by their source text. */
static void read_logprobs(struct json_slice choice, struct buffer *out)
{
    struct json_slice logprobs = json_find(choice, "logprobs"), entry;
    ck_assert_ptr_nonnull(logprobs.text);
    static const char *const names[] = {"content", "tokens", "token_logprobs", "top_logprobs",
                                        "text_offset"};
    if (logprobs.text[0] != '{')
        return;
    struct json_slice arrays[5];
    for (size_t i = 0; i < 5; i++)
        arrays[i] = json_find(logprobs, names[i]);
    size_t at[5] = {0};
    for (bool any = true; any;) { /* token by token, whatever the shape */
        any = false;
        for (size_t i = 0; i < 5; i++) {
            if (arrays[i].text && json_next(arrays[i], &at[i], NULL, &entry)) {
                buffer_append(out, entry.text, entry.length);
                buffer_append_text(out, "\n");
                any = true;
            }
        }
    }
}

static void read_choice(struct json_slice slice, const struct cJSON *choice, bool chat, bool chunk,
                        struct content *content)
{
    unsigned index = (unsigned)number_of(choice, "index");
    ck_assert_uint_lt(index, CHOICES_MAX);
    if (index >= content->choice_count)
        content->choice_count = index + 1;
    ck_assert_msg(content->finish[index][0] == '\0', "something behind the finish");
    const struct cJSON *holder = choice;
    if (chat)
        holder = json_get(choice, chunk ? "delta" : "message");
    ck_assert_ptr_nonnull(holder);
    const struct cJSON *text = json_get(holder, chat ? "content" : "text");
    const struct cJSON *role = json_get(holder, "role");
    if (role) {
        ck_assert_str_eq(json_string(role), "assistant");
        content->role_events++;
        if (chunk) {
            ck_assert_str_eq(json_string(text), "");
            ck_assert_uint_eq(content->text[index].length, 0);
        }
    }
    if (text)
        buffer_append_text(&content->text[index], json_string(text));
    read_logprobs(slice, &content->logprobs[index]);
    struct json_slice reason = json_find(slice, "finish_reason");
    ck_assert_ptr_nonnull(reason.text); /* there, null or a string */
    if (json_get(choice, "finish_reason"))
        snprintf(content->finish[index], sizeof content->finish[index], "%s",
                 json_string(json_get(choice, "finish_reason")));
}

static void read_object(const char *text, size_t length, bool chat, bool chunk,
                        struct content *content)
{
    struct json_document document;
    struct error error = {0};
    ck_assert_msg(json_open(text, length, NULL, &document, &error) == STATUS_OK, "%s: %.*s",
                  error.message, length < 500 ? (int)length : 500, text);
    const char *object = !chat   ? "text_completion"
                         : chunk ? "chat.completion.chunk"
                                 : "chat.completion";
    ck_assert_str_eq(json_string(json_get(document.root, "object")), object);
    ck_assert_str_eq(json_string(json_get(document.root, "model")), "tiny");
    ck_assert(number_of(document.root, "created") > 1600000000);
    ck_assert_int_eq(strncmp(json_string(json_get(document.root, "system_fingerprint")), "fp_", 3),
                     0);
    const char *id = json_string(json_get(document.root, "id"));
    ck_assert_int_eq(strncmp(id, chat ? "chatcmpl-" : "cmpl-", chat ? 9 : 5), 0);
    ck_assert(!content->id[0] || strcmp(content->id, id) == 0);
    snprintf(content->id, sizeof content->id, "%s", id);
    const struct cJSON *choice = json_first(json_get(document.root, "choices"));
    struct json_slice choices = json_find(document.text, "choices"), slice;
    for (size_t at = 0; json_next(choices, &at, NULL, &slice); choice = json_after(choice))
        read_choice(slice, choice, chat, chunk, content);
    if (json_get(document.root, "usage"))
        content->usage_events++;
    read_usage(document.root, content);
    json_close(&document);
}

/* "data: …\n\n" one after the other, [DONE] last. */
static void read_events(const struct buffer *body, bool chat, struct content *content)
{
    const char *at = body->data, *end = body->data + body->length;
    while (at < end) {
        ck_assert_msg(!content->done, "something behind [DONE]");
        ck_assert_int_eq(strncmp(at, "data: ", 6), 0);
        const char *stop = strstr(at, "\n\n");
        ck_assert_ptr_nonnull(stop);
        at += 6;
        if (strncmp(at, "[DONE]", 6) == 0 && stop == at + 6)
            content->done = true;
        else if (strncmp(at, "{\"error\"", 8) != 0)
            read_object(at, (size_t)(stop - at), chat, true, content);
        content->events++;
        at = stop + 2;
    }
}

static void get(enum answer_kind kind, const char *fields, bool stream, struct content *content)
{
    struct buffer body;
    struct reply reply;
    buffer_init(&body, 0);
    buffer_appendf(&body, "{");
    buffer_append_text(&body, fields);
    if (stream)
        buffer_append_text(&body, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    buffer_append_text(&body, "}");
    fixture_request(&fixture, kind, body.data, &reply);
    ck_assert_msg(reply.open_status == STATUS_OK, "%s: %s", body.data, reply.error.message);
    ck_assert_msg(reply.state == ANSWER_END, "%s: %s", body.data, reply.error.message);
    content_init(content);
    replace_nul(&reply.body);
    if (stream)
        read_events(&reply.body, kind == ANSWER_CHAT, content);
    else
        read_object(reply.body.data, reply.body.length, kind == ANSWER_CHAT, false, content);
    ck_assert(content->done == stream);
    ck_assert_uint_eq(content->usage_events, 1);
    ck_assert(reply.summary.prompt_tokens == content->prompt_tokens);
    ck_assert(reply.summary.completion_tokens == content->completion_tokens);
    ck_assert_str_eq(reply.summary.finish, content->finish[0]);
    reply_deinit(&reply);
    buffer_deinit(&body);
}

/* Both ways; they must agree. *content: free with content_deinit. */
static void get_both(enum answer_kind kind, const char *fields, struct content *whole)
{
    struct content stream;
    get(kind, fields, false, whole);
    get(kind, fields, true, &stream);
    ck_assert_uint_eq(whole->choice_count, stream.choice_count);
    for (unsigned i = 0; i < whole->choice_count; i++) {
        ck_assert_msg(whole->text[i].length == stream.text[i].length, "%s: %.*s, streamed %.*s",
                      fields, (int)whole->text[i].length, whole->text[i].data,
                      (int)stream.text[i].length, stream.text[i].data);
        if (whole->text[i].length)
            ck_assert_str_eq(whole->text[i].data, stream.text[i].data);
        ck_assert_uint_eq(whole->logprobs[i].length, stream.logprobs[i].length);
        if (whole->logprobs[i].length)
            ck_assert_str_eq(whole->logprobs[i].data, stream.logprobs[i].data);
        ck_assert_str_eq(whole->finish[i], stream.finish[i]);
        ck_assert(whole->finish[i][0] != '\0');
    }
    ck_assert(whole->prompt_tokens == stream.prompt_tokens);
    ck_assert(whole->completion_tokens == stream.completion_tokens);
    if (kind == ANSWER_CHAT)
        ck_assert_uint_eq(stream.role_events, stream.choice_count);
    content_deinit(&stream);
}

static void expect(const char *fields, const char *text, const char *finish, double tokens)
{
    struct content content;
    get_both(ANSWER_COMPLETION, fields, &content);
    const char *got = content.text[0].data ? content.text[0].data : "";
    ck_assert_msg(strcmp(got, text) == 0, "%s: \"%s\"", fields, got);
    ck_assert_msg(strcmp(content.finish[0], finish) == 0, "%s: %s", fields, content.finish[0]);
    ck_assert_msg(content.completion_tokens == tokens, "%s: %g tokens", fields,
                  content.completion_tokens);
    content_deinit(&content);
}

/* B11, B12, B14 */
START_TEST(split_characters)
{
    static const uint32_t emoji[] = {TOKEN_F09F, 0x98, 0x80, 'x'};
    fixture_script(&fixture, "e", emoji, 4);
    expect("\"prompt\":\"e\"", "\xf0\x9f\x98\x80x", "stop", 4);
    expect("\"prompt\":\"e\",\"max_tokens\":1", "\xef\xbf\xbd", "length", 1);
    expect("\"prompt\":\"e\",\"max_tokens\":2", "\xef\xbf\xbd", "length", 2);
    expect("\"prompt\":\"e\",\"max_tokens\":3", "\xf0\x9f\x98\x80", "length", 3);
    static const uint32_t cjk[] = {0xe4, 0xbd, 0xa0, 0xe5, 0xa5, 0xbd};
    fixture_script(&fixture, "c", cjk, 6);
    expect("\"prompt\":\"c\"", "\xe4\xbd\xa0\xe5\xa5\xbd", "stop", 6);
    static const uint32_t bad[] = {0x80, 0x80, 0xe2, 0x28, 0xa1, 0xf0, 0x9f, 0x41};
    fixture_script(&fixture, "b", bad, 8);
    expect("\"prompt\":\"b\"",
           "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd"
           "A",
           "stop", 8);
    /* A stop inside a character's pieces, and one that the cut tail's U+FFFD completes. */
    expect("\"prompt\":\"e\",\"stop\":\"\xf0\x9f\x98\x80\"", "", "stop", 3);
    expect("\"prompt\":\"e\",\"max_tokens\":1,\"stop\":\"\\ufffd\"", "", "stop", 1);
}
END_TEST

/* B18, B19, B22, B23 */
START_TEST(stop_strings)
{
    static const uint32_t opqr[] = {'O', TOKEN_SPACE_P, TOKEN_SPACE_Q, TOKEN_SPACE_R};
    fixture_script(&fixture, "o", opqr, 4);
    expect("\"prompt\":\"o\",\"stop\":[\"O P Q\"]", "", "stop", 3);
    expect("\"prompt\":\"o\",\"stop\":[\"zz\",\"P Q\",\"Q R\"]", "O ", "stop", 3);
    expect("\"prompt\":\"o\",\"stop\":[\"O P QQ\"]", "O P Q R", "stop", 4);
    expect("\"prompt\":\"o\",\"stop\":\"O\"", "", "stop", 1);
    expect("\"prompt\":\"o\",\"stop\":[\"R\"],\"max_tokens\":3", "O P Q", "length", 3);
    static const uint32_t paris[] = {TOKEN_PARIS, '.'};
    fixture_script(&fixture, "p", paris, 2);
    expect("\"prompt\":\"p\",\"stop\":[\"Pari\"]", " ", "stop", 1);
    static const uint32_t def[] = {TOKEN_DEF, 'G', TOKEN_HI_UPPER, 'J'};
    fixture_script(&fixture, "d", def, 4);
    expect("\"prompt\":\"d\",\"stop\":[\"DEFGHIJ\"]", "", "stop", 4);
    struct reply reply;
    fixture_request(&fixture, ANSWER_COMPLETION,
                    "{\"prompt\":\"d\",\"stop\":[\"DEFGHIJ\"],\"stream\":true}", &reply);
    ck_assert_ptr_null(strstr(reply.body.data, "\"text\":\"D")); /* stop_reason names it */
    ck_assert_ptr_nonnull(strstr(reply.body.data, "\"stop_reason\":\"DEFGHIJ\""));
    reply_deinit(&reply);
    /* Control tokens end by id or print nothing; stops are over text. */
    static const uint32_t controls[] = {'a', TOKEN_BOS, 'b', TOKEN_IM_START, 'c'};
    fixture_script(&fixture, "k", controls, 5);
    expect("\"prompt\":\"k\",\"stop\":[\"<|im_end|>\"]", "abc", "stop", 5);
    expect("\"prompt\":\"k\",\"stop\":[\"bc\"]", "a", "stop", 5);
    expect("\"prompt\":\"k\",\"stop\":null", "abc", "stop", 5);
    expect("\"prompt\":\"k\",\"stop\":[]", "abc", "stop", 5);
}
END_TEST

/* B27, B28 */
START_TEST(lengths)
{
    fixture_script_text(&fixture, "l", "abcdef");
    expect("\"prompt\":\"l\",\"max_tokens\":3", "abc", "length", 3);
    expect("\"prompt\":\"l\",\"max_tokens\":2", "ab", "length", 2);
    expect("\"prompt\":\"l\",\"max_tokens\":1", "a", "length", 1);
    expect("\"prompt\":\"l\",\"max_tokens\":0", "", "length", 0);
    expect("\"prompt\":\"l\",\"max_tokens\":0,\"echo\":true", "l", "length", 0);
    expect("\"prompt\":\"l\",\"max_tokens\":7", "abcdef", "stop", 6);
    expect("\"prompt\":\"l\",\"max_tokens\":1e18", "abcdef", "stop", 6);
    fixture_script_text(&fixture, "m", "0123456789abcdefghij");
    expect("\"prompt\":\"m\"", "0123456789abcdef", "length", 16);
    /* At once at the end: no token at all. */
    fixture_script_text(&fixture, "z", "");
    expect("\"prompt\":\"z\"", "", "stop", 0);
    /* ignore_eos: end tokens are not drawn. */
    struct content content;
    get_both(ANSWER_COMPLETION, "\"prompt\":\"z\",\"ignore_eos\":true,\"max_tokens\":5,\"seed\":1",
             &content);
    ck_assert_str_eq(content.finish[0], "length");
    ck_assert(content.completion_tokens == 5);
    content_deinit(&content);
}
END_TEST

/* Which tokens end an answer, and which do not. */
START_TEST(token_rules)
{
    fixture_script_text(&fixture, "l", "abcdef");
    expect("\"prompt\":\"l\",\"stop_token_ids\":[100]", "abc", "stop", 3); /* d */
    expect("\"prompt\":\"l\",\"stop_token_ids\":[100],\"include_stop_str_in_output\":true", "abcd",
           "stop", 4);
    expect("\"prompt\":\"l\",\"stop\":[\"cd\",\"\"],\"include_stop_str_in_output\":true", "abcd",
           "stop", 4);
    expect("\"prompt\":\"l\",\"stop\":\"\"", "abcdef", "stop", 6);
    /* a stop string that is complete before min_tokens ends nothing */
    expect("\"prompt\":\"l\",\"stop\":[\"b\",\"e\"],\"min_tokens\":4", "abcd", "stop", 5);
    struct reply reply;
    fixture_request(&fixture, ANSWER_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                    &reply);
    reply_deinit(&reply);
    fixture_request(&fixture, ANSWER_COMPLETION, "{\"prompt\":\"l\",\"stop_token_ids\":[100]}",
                    &reply);
    ck_assert_ptr_nonnull(strstr(reply.body.data, "\"stop_reason\":100"));
    reply_deinit(&reply);
    fixture_request(&fixture, ANSWER_COMPLETION,
                    "{\"prompt\":\"l\",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                    "\"continuous_usage_stats\":true}}",
                    &reply);
    ck_assert_ptr_null(strstr(reply.body.data, "\"usage\":null"));
    ck_assert_ptr_nonnull(strstr(reply.body.data, "\"finish_reason\":\"stop\"}],\"usage\":{"));
    reply_deinit(&reply);
    static const uint32_t controls[] = {'a', TOKEN_IM_START, 'b'};
    fixture_script(&fixture, "k", controls, 3);
    expect("\"prompt\":\"k\",\"skip_special_tokens\":false", "a<|im_start|>b", "stop", 3);
    fixture_script_text(&fixture, "ql", "zz");
    expect("\"prompt\":\"xyzql\",\"truncate_prompt_tokens\":3", "zz", "stop", 2);
    expect("\"prompt\":\"lxyz\",\"truncate_prompt_tokens\":2,\"truncation_side\":\"right\"",
           "abcdef", "stop", 6);
    expect("\"prompt\":\"l\",\"n_predict\":2", "ab", "length", 2);
    expect("\"prompt\":\"l\",\"max_tokens\":-1", "abcdef", "stop", 6);
}
END_TEST

START_TEST(context_edge)
{
    char text[128];
    memset(text, 'x', sizeof text);
    text[127] = '\0';
    fixture_script_text(&fixture, "q", text);
    text[126] = '\0'; /* 128 less BOS and "q" */
    expect("\"prompt\":\"q\",\"max_tokens\":1000", text, "length", 126);
}
END_TEST

START_TEST(prompts_and_choices)
{
    struct content content;
    fixture_script_text(&fixture, "a", "first");
    fixture_script_text(&fixture, "b", "second");
    static const uint32_t ids[] = {'n', 'o'};
    static const uint32_t answer[] = {TOKEN_HI};
    fixture_script_ids(&fixture, ids, 2, answer, 1);
    get_both(ANSWER_COMPLETION, "\"prompt\":[\"a\",\"b\"],\"n\":2", &content);
    ck_assert_uint_eq(content.choice_count, 4);
    ck_assert_str_eq(content.text[0].data, "first");
    ck_assert_str_eq(content.text[1].data, "first");
    ck_assert_str_eq(content.text[2].data, "second");
    ck_assert_str_eq(content.text[3].data, "second");
    ck_assert(content.prompt_tokens == 4); /* BOS and a letter each, once per prompt */
    ck_assert(content.completion_tokens == 22);
    content_deinit(&content);
    get_both(ANSWER_COMPLETION, "\"prompt\":[[110,111],[110,111]]", &content);
    ck_assert_uint_eq(content.choice_count, 2);
    ck_assert_str_eq(content.text[1].data, "hi");
    ck_assert(content.prompt_tokens == 4);
    content_deinit(&content);
    get_both(ANSWER_COMPLETION, "\"prompt\":\"a\",\"n\":16,\"max_tokens\":2", &content);
    ck_assert_uint_eq(content.choice_count, 16);
    ck_assert(content.prompt_tokens == 2);
    ck_assert(content.completion_tokens == 32);
    content_deinit(&content);
}
END_TEST

/* Stops that match in one choice and not in another; random texts, both ways, again and again. */
START_TEST(random_choices)
{
    unsigned stopped = 0, cut = 0;
    for (int seed = 0; seed < 12; seed++) {
        char fields[300];
        struct content content, again;
        snprintf(
            fields, sizeof fields,
            "\"prompt\":\"r%d\",\"n\":4,\"seed\":%d,\"max_tokens\":40,\"stop\":[\"a\",\"\\u0007"
            "\",\"hi\",\"P\"],\"logprobs\":%d,\"ignore_eos\":true",
            seed, seed, seed % 6);
        get_both(ANSWER_COMPLETION, fields, &content);
        get(ANSWER_COMPLETION, fields, seed % 2, &again);
        bool differ = false;
        for (unsigned i = 0; i < 4; i++) {
            ck_assert_uint_eq(content.logprobs[i].length, again.logprobs[i].length);
            ck_assert_str_eq(content.finish[i], again.finish[i]);
            differ |= content.text[i].length != content.text[0].length;
            stopped += strcmp(content.finish[i], "stop") == 0;
            cut += strcmp(content.finish[i], "length") == 0;
        }
        ck_assert(differ);
        ck_assert(content.completion_tokens == again.completion_tokens);
        content_deinit(&content);
        content_deinit(&again);
    }
    ck_assert_uint_ge(stopped, 5);
    ck_assert_uint_ge(cut, 5);
}
END_TEST

static void script_chat(const char *user, const char *text)
{
    char prompt[256];
    snprintf(prompt, sizeof prompt, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n",
             user);
    fixture_script_text(&fixture, prompt, text);
}

/* The mean of a choice's token log-probabilities; entries are token, logprob, top, offset. */
static double mean_logprob(const struct buffer *entries)
{
    double sum = 0;
    unsigned line = 0;
    const char *at = entries->data;
    for (; at && *at; at = strchr(at, '\n') + 1) {
        if (line++ % 4 == 1)
            sum += strtod(at, NULL);
    }
    ck_assert_uint_eq(line % 4, 0);
    return line ? sum * 4 / line : -INFINITY;
}

/* best_of: of the answers that n would show, those with the highest mean, best first. */
START_TEST(the_best_are_shown)
{
    for (unsigned seed = 1; seed < 8; seed++) {
        char fields[200];
        struct content all, best;
        snprintf(fields, sizeof fields,
                 "\"prompt\":[\"bz\",\"by\"],\"n\":6,\"seed\":%u,\"max_tokens\":9,\"logprobs\":0",
                 seed);
        get(ANSWER_COMPLETION, fields, false, &all);
        snprintf(fields, sizeof fields,
                 "\"prompt\":[\"bz\",\"by\"],\"n\":2,\"best_of\":6,\"seed\":%u,\"max_tokens\":9%s",
                 seed, seed % 2 ? ",\"logprobs\":0" : "");
        get(ANSWER_COMPLETION, fields, false, &best);
        ck_assert_uint_eq(best.choice_count, 4);
        ck_assert(best.completion_tokens == all.completion_tokens); /* all were made */
        ck_assert(best.prompt_tokens == all.prompt_tokens);
        for (unsigned prompt = 0; prompt < 2; prompt++) {
            double above = INFINITY;
            unsigned previous = 0;
            for (unsigned rank = 0; rank < 2; rank++) {
                unsigned found =
                    UINT_MAX; /* the best that is not shown yet; of equals the earlier */
                double most = -INFINITY;
                for (unsigned i = prompt * 6; i < prompt * 6 + 6; i++) {
                    double mean = mean_logprob(&all.logprobs[i]);
                    bool behind = mean < above || (mean == above && i > previous);
                    if (behind && (found == UINT_MAX || mean > most)) {
                        most = mean;
                        found = i;
                    }
                }
                unsigned shown = prompt * 2 + rank;
                ck_assert_uint_eq(best.text[shown].length, all.text[found].length);
                ck_assert_str_eq(best.text[shown].data, all.text[found].data);
                ck_assert_str_eq(best.finish[shown], all.finish[found]);
                if (seed % 2)
                    ck_assert_str_eq(best.logprobs[shown].data, all.logprobs[found].data);
                else
                    ck_assert_uint_eq(best.logprobs[shown].length, 0);
                above = most;
                previous = found;
            }
        }
        content_deinit(&all);
        content_deinit(&best);
    }
}
END_TEST

START_TEST(chats)
{
    struct content content;
    script_chat("hello", "Good \"day\"\n");
    const char *fields = "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]";
    get_both(ANSWER_CHAT, fields, &content);
    ck_assert_str_eq(content.text[0].data, "Good \"day\"\n");
    ck_assert_str_eq(content.finish[0], "stop");
    ck_assert(content.completion_tokens == 11);
    ck_assert(content.prompt_tokens == 25);
    content_deinit(&content);
    get_both(ANSWER_CHAT,
             "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"n\":3,"
             "\"max_completion_tokens\":4",
             &content);
    ck_assert_uint_eq(content.choice_count, 3);
    ck_assert_str_eq(content.text[2].data, "Good");
    ck_assert_str_eq(content.finish[2], "length");
    content_deinit(&content);
}
END_TEST

/* B49, B50: who gets a usage chunk, and the exact first and last events. */
START_TEST(stream_shape)
{
    static const struct {
        const char *options;
        bool usage;
    } cases[] = {{"", false},
                 {",\"stream_options\":null", false},
                 {",\"stream_options\":{}", false},
                 {",\"stream_options\":{\"include_usage\":false}", false},
                 {",\"stream_options\":{\"include_usage\":true}", true}};
    script_chat("s", "ok");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[300];
        struct reply reply;
        struct content content;
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"s\"}],\"stream\":true%s}",
                 cases[i].options);
        fixture_request(&fixture, ANSWER_CHAT, body, &reply);
        ck_assert_int_eq(reply.state, ANSWER_END);
        content_init(&content);
        read_events(&reply.body, true, &content);
        ck_assert(content.done);
        ck_assert_uint_eq(content.usage_events, cases[i].usage);
        ck_assert_str_eq(content.text[0].data, "ok");
        ck_assert_str_eq(content.id, "chatcmpl-0000000000001234");
        const char *first = strstr(reply.body.data, "\"choices\":");
        ck_assert_int_eq(strncmp(first,
                                 "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
                                 "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]",
                                 99),
                         0);
        ck_assert_ptr_nonnull(strstr(reply.body.data, "{\"index\":0,\"delta\":{},\"logprobs\":null,"
                                                      "\"finish_reason\":\"stop\"}]"));
        ck_assert(!!strstr(reply.body.data, "],\"usage\":null}\n\n") == cases[i].usage);
        ck_assert(!!strstr(reply.body.data, "\"choices\":[],\"usage\":{") == cases[i].usage);
        ck_assert_str_eq(reply.body.data + reply.body.length - 14, "data: [DONE]\n\n");
        content_deinit(&content);
        reply_deinit(&reply);
    }
}
END_TEST

START_TEST(completion_logprobs)
{
    static const uint32_t output[] = {TOKEN_PARIS, TOKEN_F09F, 0x98, 0x80, TOKEN_BOS, '"'};
    fixture_script(&fixture, "g", output, 6);
    struct content content;
    get_both(ANSWER_COMPLETION, "\"prompt\":\"g\",\"logprobs\":3,\"temperature\":0", &content);
    ck_assert_str_eq(content.text[0].data, " Paris\xf0\x9f\x98\x80\"");
    content_deinit(&content);
    struct reply reply;
    struct json_document document;
    struct error error;
    fixture_request(&fixture, ANSWER_COMPLETION,
                    "{\"prompt\":\"g\",\"logprobs\":3,\"temperature\":0}", &reply);
    replace_nul(&reply.body);
    ck_assert_int_eq(json_open(reply.body.data, reply.body.length, NULL, &document, &error),
                     STATUS_OK);
    const struct cJSON *logprobs =
        json_get(json_first(json_get(document.root, "choices")), "logprobs");
    static const char *const tokens[] = {" Paris",      "bytes:\\xf0\\x9f", "bytes:\\x98",
                                         "bytes:\\x80", "<|endoftext|>",    "\""};
    static const double offsets[] = {0, 6, 6, 6, 7, 7};
    const struct cJSON *token = json_first(json_get(logprobs, "tokens"));
    const struct cJSON *logprob = json_first(json_get(logprobs, "token_logprobs"));
    const struct cJSON *top = json_first(json_get(logprobs, "top_logprobs"));
    const struct cJSON *offset = json_first(json_get(logprobs, "text_offset"));
    for (size_t i = 0; i < 6; i++) {
        double number, best;
        ck_assert_str_eq(json_string(token), tokens[i]);
        ck_assert(json_number(logprob, &number) && number <= 0 && number > -1e5);
        ck_assert_uint_ge(json_count(top), 3);
        ck_assert(json_number(json_get(top, tokens[i]), &best) && best == number);
        double sum = 0, previous = 1;
        for (const struct cJSON *entry = json_first(top); entry; entry = json_after(entry)) {
            ck_assert(json_number(entry, &best) && best <= previous);
            previous = best;
            sum += exp(best);
        }
        ck_assert(sum <= 1 + 1e-5);
        ck_assert(json_number(offset, &number) && number == offsets[i]);
        token = json_after(token);
        logprob = json_after(logprob);
        top = json_after(top);
        offset = json_after(offset);
    }
    ck_assert(!token && !logprob && !top && !offset);
    json_close(&document);
    reply_deinit(&reply);
    /* 0: only the chosen one. */
    fixture_request(&fixture, ANSWER_COMPLETION,
                    "{\"prompt\":\"g\",\"logprobs\":0,\"max_tokens\":1}", &reply);
    ck_assert_ptr_nonnull(strstr(reply.body.data, "\"top_logprobs\":[{\" Paris\":"));
    reply_deinit(&reply);
}
END_TEST

START_TEST(chat_logprobs)
{
    struct content content;
    struct reply reply;
    static const uint32_t output[] = {TOKEN_HI, TOKEN_F09F};
    fixture_script(&fixture, "<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n", output, 2);
    const char *fields = "\"messages\":[{\"role\":\"user\",\"content\":\"y\"}],\"logprobs\":true,"
                         "\"top_logprobs\":2,\"temperature\":0.01";
    get_both(ANSWER_CHAT, fields, &content);
    ck_assert_str_eq(content.text[0].data, "hi\xef\xbf\xbd");
    content_deinit(&content);
    char body[400];
    snprintf(body, sizeof body, "{%s}", fields);
    fixture_request(&fixture, ANSWER_CHAT, body, &reply);
    struct json_document document;
    struct error error;
    replace_nul(&reply.body);
    ck_assert_int_eq(json_open(reply.body.data, reply.body.length, NULL, &document, &error),
                     STATUS_OK);
    const struct cJSON *entries =
        json_get(json_get(json_first(json_get(document.root, "choices")), "logprobs"), "content");
    ck_assert_uint_eq(json_count(entries), 2);
    const struct cJSON *first = json_first(entries), *second = json_after(first);
    ck_assert_str_eq(json_string(json_get(first, "token")), "hi");
    ck_assert_uint_eq(json_count(json_get(first, "bytes")), 2);
    ck_assert_uint_eq(json_count(json_get(first, "top_logprobs")), 2);
    ck_assert_str_eq(json_string(json_get(json_first(json_get(first, "top_logprobs")), "token")),
                     "hi");
    ck_assert_str_eq(json_string(json_get(second, "token")), "\xef\xbf\xbd");
    double byte;
    ck_assert(json_number(json_first(json_get(second, "bytes")), &byte) && byte == 0xf0);
    json_close(&document);
    reply_deinit(&reply);
}
END_TEST

START_TEST(echoes)
{
    fixture_script_text(&fixture, "h\"\xc3\xa9", "!");
    expect("\"prompt\":\"h\\\"\xc3\xa9\",\"echo\":true", "h\"\xc3\xa9!", "stop", 1);
    static const uint32_t ids[] = {TOKEN_HI, TOKEN_F09F, 0x98, 0x80, TOKEN_IM_START, 'u'};
    static const uint32_t answer[] = {'v'};
    fixture_script_ids(&fixture, ids, 6, answer, 1);
    expect("\"prompt\":[259,266,152,128,257,117],\"echo\":true", "hi\xf0\x9f\x98\x80uv", "stop", 1);
    expect("\"prompt\":[259,266,152,128,257,117]", "v", "stop", 1);
}
END_TEST

/* B51: a fault after some tokens is an event, before the first one only a status. */
START_TEST(faults)
{
    static const uint32_t late[] = {'a', 'b', 'c', SCRIPTED_NAN};
    static const uint32_t early[] = {SCRIPTED_NAN};
    struct reply reply;
    fixture_script(&fixture, "f", late, 4);
    fixture_script(&fixture, "w", early, 1);
    fixture_request(&fixture, ANSWER_COMPLETION, "{\"prompt\":\"f\",\"stream\":true}", &reply);
    ck_assert_int_eq(reply.state, ANSWER_FAILED);
    ck_assert_int_eq(reply.error.status, STATUS_INTERNAL);
    ck_assert_str_eq(reply.summary.finish, "error");
    if (reply.body.length) { /* whether tokens were seen before the fault is a matter of timing */
        ck_assert_ptr_nonnull(strstr(reply.body.data, "data: {\"error\":{\"message\":"));
        ck_assert_str_eq(reply.body.data + reply.body.length - 4, "}}\n\n");
        ck_assert_ptr_null(strstr(reply.body.data, "[DONE]"));
    }
    reply_deinit(&reply);
    static const char *const bodies[] = {"{\"prompt\":\"f\"}", "{\"prompt\":\"w\"}",
                                         "{\"prompt\":\"w\",\"stream\":true}",
                                         "{\"prompt\":[\"w\",\"x\"],\"n\":2}"};
    for (size_t i = 0; i < 4; i++) {
        fixture_request(&fixture, ANSWER_COMPLETION, bodies[i], &reply);
        ck_assert_int_eq(reply.state, ANSWER_FAILED);
        ck_assert_int_eq(reply.error.status, STATUS_INTERNAL);
        ck_assert_uint_eq(reply.body.length, 0);
        reply_deinit(&reply);
    }
    /* The next request works. */
    fixture_script_text(&fixture, "g", "fine");
    expect("\"prompt\":\"g\"", "fine", "stop", 4);
}
END_TEST

/* A fault that comes when events are out. */
START_TEST(fault_in_stream)
{
    static const uint32_t late[] = {'a', 'b', 'c', 'd', SCRIPTED_NAN};
    struct answer *answer;
    struct error error = {0};
    struct buffer out;
    buffer_init(&out, 0);
    fixture_script(&fixture, "f", late, 5);
    scripted_backend_hold(fixture.backend);
    const char *body = "{\"prompt\":\"f\",\"stream\":true}";
    ck_assert_int_eq(answer_open(&fixture.context, ANSWER_COMPLETION, body, strlen(body), 1,
                                 &(struct answer_caller){0}, fixture_wake, &fixture, &answer,
                                 &error),
                     STATUS_OK);
    ck_assert_int_eq(answer_pump(answer, &out), ANSWER_WAIT);
    ck_assert_uint_eq(out.length, 0);
    enum answer_state state = ANSWER_WAIT;
    for (int step = 0; step < 20 && state != ANSWER_FAILED; step++) { /* one step at a time */
        scripted_backend_let_go(fixture.backend);
        usleep(10000); /* a step takes 50 ms */
        scripted_backend_hold(fixture.backend);
        ck_assert(fixture_wait(&fixture));
        do
            state = answer_pump(answer, &out);
        while (state == ANSWER_DATA);
    }
    ck_assert_int_eq(state, ANSWER_FAILED);
    scripted_backend_let_go(fixture.backend);
    ck_assert_ptr_nonnull(strstr(out.data, "\"text\":\"a\""));
    ck_assert_ptr_nonnull(strstr(out.data, "\n\ndata: {\"error\":{"));
    ck_assert_int_eq(answer_error(answer)->status, STATUS_INTERNAL);
    answer_close(answer);
    buffer_deinit(&out);
}
END_TEST

/* The client leaves: queued, running, between pumps; everything is given back (see tear_down). */
/* Out of time before the first token: an error of its own. */
START_TEST(timeouts_before_the_answer)
{
    static const char *const bodies[] = {"{\"prompt\":\"t\",\"timeout\":0.001}",
                                         "{\"prompt\":[\"t\",\"u\"],\"n\":2,\"timeout\":0.001}",
                                         "{\"prompt\":\"t\",\"timeout\":0.001,\"stream\":true}"};
    scripted_backend_hold(fixture.backend);
    const char *busy = "{\"prompt\":\"x\",\"max_tokens\":3}";
    struct answer *first;
    struct error error = {0};
    ck_assert_int_eq(answer_open(&fixture.context, ANSWER_COMPLETION, busy, strlen(busy), 1,
                                 &(struct answer_caller){0}, fixture_wake, &fixture, &first,
                                 &error),
                     STATUS_OK);
    scripted_backend_wait(fixture.backend);
    struct answer *late[3];
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(answer_open(&fixture.context, ANSWER_COMPLETION, bodies[i],
                                     strlen(bodies[i]), 1,
                                     &(struct answer_caller){.arrival_ns = clock_now_ns()},
                                     fixture_wake, &fixture, &late[i], &error),
                         STATUS_OK);
    usleep(2000);
    scripted_backend_let_go(fixture.backend);
    for (unsigned i = 0; i < 3; i++) {
        struct buffer out;
        buffer_init(&out, 0);
        enum answer_state state;
        while ((state = answer_pump(late[i], &out)) == ANSWER_WAIT)
            ck_assert(fixture_wait(&fixture));
        ck_assert_int_eq(state, ANSWER_FAILED);
        ck_assert_uint_eq(out.length, 0);
        ck_assert_int_eq(answer_error(late[i])->status, STATUS_UNAVAILABLE);
        ck_assert_str_eq(answer_error(late[i])->code, "timeout");
        ck_assert_uint_ge(answer_error(late[i])->retry_after_s, 1);
        struct answer_summary summary;
        answer_summarize(late[i], &summary);
        ck_assert_str_eq(summary.finish, "timeout");
        answer_close(late[i]);
        buffer_deinit(&out);
    }
    answer_close(first);
}
END_TEST

/* Out of time after the first token: what is there, and how it came to its end. */
START_TEST(timeouts_in_the_answer)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"t\",\"timeout\":1.5,\"max_tokens\":100,\"ignore_eos\":true}",
        "{\"prompt\":\"t\",\"timeout\":1.5,\"max_tokens\":100,\"ignore_eos\":true,\"stream\":"
        "true}"};
    uint64_t arrival_ns = clock_now_ns();
    struct answer *answers[2];
    struct error error = {0};
    scripted_backend_hold(fixture.backend);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(answer_open(&fixture.context, ANSWER_COMPLETION, bodies[i],
                                     strlen(bodies[i]), 1,
                                     &(struct answer_caller){.arrival_ns = arrival_ns},
                                     fixture_wake, &fixture, &answers[i], &error),
                         STATUS_OK);
    scripted_backend_wait(fixture.backend);
    for (unsigned i = 0; i < 4; i++)
        scripted_backend_pass(fixture.backend);
    while (clock_now_ns() < arrival_ns + 1500000000)
        usleep(10000);
    scripted_backend_let_go(fixture.backend);
    for (unsigned i = 0; i < 2; i++) {
        struct buffer out;
        buffer_init(&out, 0);
        enum answer_state state;
        while ((state = answer_pump(answers[i], &out)) != ANSWER_END) {
            ck_assert_int_ne(state, ANSWER_FAILED);
            if (state == ANSWER_WAIT)
                ck_assert(fixture_wait(&fixture));
        }
        ck_assert_ptr_nonnull(
            strstr(out.data, "\"finish_reason\":\"length\",\"stop_reason\":\"timeout\"}"));
        struct answer_summary summary;
        answer_summarize(answers[i], &summary);
        ck_assert_str_eq(summary.finish, "timeout");
        ck_assert_uint_ge(summary.completion_tokens, 4);
        ck_assert_uint_lt(summary.completion_tokens, 10);
        answer_close(answers[i]);
        buffer_deinit(&out);
    }
}
END_TEST

START_TEST(cancels)
{
    for (int when = 0; when < 4; when++) {
        for (int stream = 0; stream < 2; stream++) {
            struct answer *answer;
            struct error error = {0};
            struct buffer out;
            char body[200];
            buffer_init(&out, 0);
            snprintf(body, sizeof body,
                     "{\"prompt\":[\"c1\",\"c2\"],\"n\":2,\"ignore_eos\":true,\"max_tokens\":100,"
                     "\"stream\":%s}",
                     stream ? "true" : "false");
            fixture.woken = false;
            scripted_backend_hold(fixture.backend);
            ck_assert_int_eq(answer_open(&fixture.context, ANSWER_COMPLETION, body, strlen(body), 1,
                                         &(struct answer_caller){0}, fixture_wake, &fixture,
                                         &answer, &error),
                             STATUS_OK);
            ck_assert(answer_is_stream(answer) == stream);
            if (when >= 1)
                scripted_backend_let_go(fixture.backend);
            if (when >= 2) {
                ck_assert(fixture_wait(&fixture));
                ck_assert_int_ne(answer_pump(answer, &out), ANSWER_FAILED);
            }
            if (when < 3) {
                answer_cancel(answer);
                scripted_backend_let_go(fixture.backend);
                enum answer_state state;
                while ((state = answer_pump(answer, &out)) != ANSWER_FAILED) {
                    ck_assert_int_ne(state, ANSWER_END);
                    if (state == ANSWER_WAIT)
                        ck_assert(fixture_wait(&fixture));
                }
                struct answer_summary summary;
                answer_summarize(answer, &summary);
                ck_assert_str_eq(summary.finish, "cancelled");
                ck_assert_int_eq(answer_error(answer)->status, STATUS_UNAVAILABLE);
            }
            answer_close(answer);
            buffer_deinit(&out);
        }
    }
}
END_TEST

/* More than LIMIT_OUTPUT_BYTES comes in pieces of about that, and is the same JSON. */
START_TEST(large_answers)
{
    struct content content;
    const char *fields = "\"messages\":[{\"role\":\"user\",\"content\":\"big\"}],\"logprobs\":true,"
                         "\"top_logprobs\":20,\"max_tokens\":300,\"ignore_eos\":true,\"seed\":7";
    get_both(ANSWER_CHAT, fields, &content);
    ck_assert(content.completion_tokens == 300);
    content_deinit(&content);
    char body[400];
    struct reply reply;
    for (int stream = 0; stream < 2; stream++) {
        snprintf(body, sizeof body, "{%s,\"stream\":%s}", fields, stream ? "true" : "false");
        fixture_request(&fixture, ANSWER_CHAT, body, &reply);
        ck_assert_uint_gt(reply.body.length, LIMIT_OUTPUT_BYTES);
        ck_assert_uint_ge(reply.pumps_with_data, 2);
        reply_deinit(&reply);
    }
}
END_TEST

static bool open_and_close(const char *body, struct error *error)
{
    struct answer *answer;
    enum status status =
        answer_open(&fixture.context, ANSWER_COMPLETION, body, strlen(body), 1,
                    &(struct answer_caller){0}, fixture_wake, &fixture, &answer, error);
    answer_close(answer);
    return status == STATUS_OK;
}

START_TEST(refusals)
{
    struct error error = {0};
    /* Drained engine, then memory. */
    ck_assert(open_and_close("{\"prompt\":\"x\"}", &error));
    uint64_t cap = fixture.budget.cap_bytes[BUDGET_REQUESTS];
    uint64_t used = atomic_load(&fixture.budget.used_bytes[BUDGET_REQUESTS]);
    while (used != 0) /* the engine lets go of what was closed */
        used = atomic_load(&fixture.budget.used_bytes[BUDGET_REQUESTS]);
    /* Whatever is left, a refusal leaves nothing behind. */
    for (uint64_t left = 0; left < 6000; left += 97) {
        ck_assert(budget_take(&fixture.budget, BUDGET_REQUESTS, cap - left));
        bool good = open_and_close("{\"prompt\":[\"x\",[0]],\"prompt2\":1}", &error);
        ck_assert(!good);
        good = open_and_close("{\"prompt\":[\"hello\",\"you\"],\"n\":2,\"logprobs\":5,"
                              "\"stop\":[\"a\"],\"logit_bias\":{\"1\":1}}",
                              &error);
        if (!good)
            ck_assert(error.status == STATUS_BUSY && error.retry_after_s >= 1);
        budget_give(&fixture.budget, BUDGET_REQUESTS, cap - left);
        while (atomic_load(&fixture.budget.used_bytes[BUDGET_REQUESTS]) != 0)
            ;
    }
    engine_drain(fixture.engine);
    ck_assert(!open_and_close("{\"prompt\":\"x\"}", &error));
    ck_assert_int_eq(error.status, STATUS_UNAVAILABLE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("answer");
    TCase *tests = tcase_create("answer");
    tcase_set_timeout(tests, 30);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, split_characters);
    tcase_add_test(tests, stop_strings);
    tcase_add_test(tests, lengths);
    tcase_add_test(tests, token_rules);
    tcase_add_test(tests, context_edge);
    tcase_add_test(tests, prompts_and_choices);
    tcase_add_test(tests, random_choices);
    tcase_add_test(tests, the_best_are_shown);
    tcase_add_test(tests, chats);
    tcase_add_test(tests, stream_shape);
    tcase_add_test(tests, completion_logprobs);
    tcase_add_test(tests, chat_logprobs);
    tcase_add_test(tests, echoes);
    tcase_add_test(tests, faults);
    tcase_add_test(tests, refusals);
    suite_add_tcase(suite, tests);
    TCase *slow = tcase_create("slow");
    tcase_set_timeout(slow, 30);
    tcase_add_checked_fixture(slow, set_up_slow, tear_down);
    tcase_add_test(slow, fault_in_stream);
    tcase_add_test(slow, timeouts_before_the_answer);
    tcase_add_test(slow, timeouts_in_the_answer);
    tcase_add_test(slow, cancels);
    suite_add_tcase(suite, slow);
    TCase *large = tcase_create("large");
    tcase_set_timeout(large, 30);
    tcase_add_checked_fixture(large, set_up_long, tear_down);
    tcase_add_test(large, large_answers);
    suite_add_tcase(suite, large);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
