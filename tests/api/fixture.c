/* See fixture.h. The GGUF is written by hand after ggml's docs/gguf.md: header, keys, no tensors.
 */
#include "tests/api/fixture.h"

#include "api/control_guard.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/costs.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char fixture_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const char fixture_template_bos[] =
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static const struct {
    const char *bytes;
    bool control;
} extra_tokens[VOCABULARY - TOKEN_BOS] = {
    {"<|endoftext|>", true}, {"<|im_start|>", true}, {"<|im_end|>", true}, {"hi", false},
    {" P", false},           {" Q", false},          {" R", false},        {" Paris", false},
    {"DEF", false},          {"HI", false},          {"\xf0\x9f", false},  {"\x80\x80", false},
};

static void put_u32(struct buffer *out, uint32_t value)
{
    buffer_append(out, &value, 4);
}

static void put_u64(struct buffer *out, uint64_t value)
{
    buffer_append(out, &value, 8);
}

static void put_text(struct buffer *out, const char *text, size_t length)
{
    put_u64(out, length);
    buffer_append(out, text, length);
}

static void put_key(struct buffer *out, const char *key, uint32_t type)
{
    put_text(out, key, strlen(key));
    put_u32(out, type);
}

static void put_array(struct buffer *out, const char *key, uint32_t type, uint64_t count)
{
    put_key(out, key, GGUF_ARRAY);
    put_u32(out, type);
    put_u64(out, count);
}

/* GPT-2's printable stand-in for a byte. */
static uint32_t byte_character(unsigned byte)
{
    uint32_t extra = 0;
    for (unsigned b = 0;; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
        if (b == byte)
            return plain ? b : 256 + extra;
        extra += !plain;
    }
}

static void put_token(struct buffer *out, const char *bytes, size_t length, bool control)
{
    char text[64];
    size_t used = 0;
    for (size_t i = 0; i < length && !control; i++)
        used += (size_t)utf8_encode(byte_character((unsigned char)bytes[i]), text + used);
    put_text(out, control ? bytes : text, control ? length : used);
}

static void put_vocabulary(struct buffer *out, bool user_defined)
{
    put_array(out, "tokenizer.ggml.tokens", GGUF_STRING, VOCABULARY);
    for (unsigned byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        put_token(out, &c, 1, false);
    }
    for (unsigned i = 0; i < VOCABULARY - TOKEN_BOS; i++)
        put_token(out, extra_tokens[i].bytes, strlen(extra_tokens[i].bytes),
                  extra_tokens[i].control);
    put_array(out, "tokenizer.ggml.token_type", GGUF_INT32, VOCABULARY);
    for (unsigned i = 0; i < VOCABULARY; i++)
        put_u32(out, i < TOKEN_BOS || !extra_tokens[i - TOKEN_BOS].control ? 1
                     : user_defined && i != TOKEN_BOS                      ? 4
                                                                           : 3);
    put_array(out, "tokenizer.ggml.merges", GGUF_STRING, 1);
    put_text(out, "h i", 3);
}

static void write_gguf(const char *path, const struct fixture_options *options)
{
    struct buffer out;
    buffer_init(&out, 0);
    buffer_append_text(&out, "GGUF");
    put_u32(&out, 3);
    put_u64(&out, 0);  /* tensors */
    put_u64(&out, 10); /* keys */
    put_key(&out, "general.architecture", GGUF_STRING);
    put_text(&out, "llama", 5);
    put_key(&out, "tokenizer.ggml.model", GGUF_STRING);
    put_text(&out, "gpt2", 4);
    put_key(&out, "tokenizer.ggml.pre", GGUF_STRING);
    put_text(&out, "smollm", 6);
    put_vocabulary(&out, options->user_defined);
    put_key(&out, "tokenizer.ggml.bos_token_id", GGUF_UINT32);
    put_u32(&out, TOKEN_BOS);
    put_key(&out, "tokenizer.ggml.eos_token_id", GGUF_UINT32);
    put_u32(&out, TOKEN_IM_END);
    put_key(&out, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
    buffer_append(&out, options->add_bos ? "\1" : "\0", 1);
    put_key(&out, "tokenizer.ggml.add_eos_token", GGUF_BOOL);
    buffer_append(&out, options->add_eos ? "\1" : "\0", 1);
    while (out.length % 32)
        buffer_append(&out, "", 1);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(out.data, 1, out.length, file) == out.length && fclose(file) == 0);
    buffer_deinit(&out);
}

static void must(enum status status, const struct error *error)
{
    if (status != STATUS_OK)
        fprintf(stderr, "fixture: %s\n", error->message);
    CHECK(status == STATUS_OK);
}

static void open_template(struct fixture *fixture, const struct fixture_options *options,
                          const char *source, struct chat_template **out)
{
    struct error error = {0};
    struct control_guard guard;
    if (!source)
        return;
    must(control_guard_init(&guard, fixture->tokenizer, &error), &error);
    must(chat_template_create(source, strlen(source), "<|endoftext|>", "<|im_end|>", &guard,
                              options->template_bytes ? options->template_bytes
                                                      : COST_TEMPLATE_BYTES_MAX,
                              out, &error),
         &error);
}

static void open_tokenizer(struct fixture *fixture, const struct fixture_options *options)
{
    struct error error = {0};
    char path[] = "/tmp/quire-api-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    write_gguf(path, options);
    must(gguf_open(path, &fixture->gguf, &error), &error);
    unlink(path);
    must(tokenizer_create(fixture->gguf, &fixture->tokenizer, &error), &error);
    open_template(fixture, options, options->chat_template, &fixture->chat_template);
    open_template(fixture, options, options->tool_template, &fixture->tool_template);
}

static void open_engine(struct fixture *fixture, const struct fixture_options *options)
{
    struct error error = {0};
    must(workers_create(1, &fixture->workers, &error), &error);
    struct scripted_options scripted = {
        .vocabulary = VOCABULARY,
        .page_count = 1025,
        .page_size = 8,
        .max_batch_rows = 64,
        .max_sequences = 64,
        .logits_rows_max = 8,
        .end_token = TOKEN_IM_END,
        .step_delay_us = options->step_delay_us,
    };
    fixture->backend = scripted_backend_create(&scripted);
    CHECK(fixture->backend);
    static const uint32_t ends[] = {TOKEN_IM_END};
    struct engine_options engine = {
        .backend = fixture->backend,
        .workers = fixture->workers,
        .context = options->context ? options->context : FIXTURE_CONTEXT,
        .max_batch_tokens = 64,
        .max_sequences = 64,
        .max_queue = 256,
        .end_tokens = ends,
        .end_token_count = 1,
        .check_every_step = true,
    };
    must(engine_create(&engine, &fixture->engine, &error), &error);
}

void fixture_init(struct fixture *fixture, const struct fixture_options *options)
{
    static const char *const names[] = {"tiny", "tiny-alias"};
    *fixture = (struct fixture){0};
    pthread_mutex_init(&fixture->lock, NULL);
    pthread_cond_init(&fixture->changed, NULL);
    budget_init(&fixture->budget, 1u << 30);
    struct error error = {0};
    uint64_t bytes = options->request_bytes ? options->request_bytes : 64u << 20;
    must(budget_reserve(&fixture->budget, BUDGET_REQUESTS, bytes, &error), &error);
    open_tokenizer(fixture, options);
    open_engine(fixture, options);
    fixture->context = (struct api_context){
        .engine = fixture->engine,
        .tokenizer = fixture->tokenizer,
        .chat_template = fixture->chat_template,
        .tool_template = fixture->tool_template,
        .budget = &fixture->budget,
        .model_names = names,
        .model_name_count = 2,
        .max_model_len = options->context ? options->context : FIXTURE_CONTEXT,
        .created_unix_s = 1700000000,
    };
}

void fixture_deinit(struct fixture *fixture)
{
    engine_destroy(fixture->engine);
    CHECK(atomic_load(&fixture->budget.used_bytes[BUDGET_REQUESTS]) == 0);
    fixture->backend->ops->destroy(fixture->backend);
    workers_destroy(fixture->workers);
    chat_template_destroy(fixture->tool_template);
    chat_template_destroy(fixture->chat_template);
    tokenizer_destroy(fixture->tokenizer);
    gguf_close(fixture->gguf);
    pthread_cond_destroy(&fixture->changed);
    pthread_mutex_destroy(&fixture->lock);
}

void fixture_script_ids(struct fixture *fixture, const uint32_t *prompt, uint32_t prompt_count,
                        const uint32_t *output, uint32_t count)
{
    CHECK(scripted_backend_add(fixture->backend, prompt, prompt_count, output, count));
}

void fixture_script(struct fixture *fixture, const char *prompt, const uint32_t *output,
                    uint32_t count)
{
    uint32_t *tokens;
    size_t token_count;
    struct error error = {0};
    must(tokenizer_encode(fixture->tokenizer, prompt, strlen(prompt),
                          TOKENIZER_ADD_BOS | TOKENIZER_PARSE_SPECIAL, 0, SIZE_MAX, &tokens,
                          &token_count, &error),
         &error);
    fixture_script_ids(fixture, tokens, (uint32_t)token_count, output, count);
    free(tokens);
}

void fixture_script_text(struct fixture *fixture, const char *prompt, const char *text)
{
    uint32_t output[1024];
    uint32_t count = 0;
    for (; text[count]; count++) {
        CHECK(count < 1024);
        output[count] = (unsigned char)text[count];
    }
    fixture_script(fixture, prompt, output, count);
}

void fixture_wake(void *arg)
{
    struct fixture *fixture = arg;
    pthread_mutex_lock(&fixture->lock);
    fixture->woken = true;
    pthread_cond_signal(&fixture->changed);
    pthread_mutex_unlock(&fixture->lock);
}

bool fixture_wait(struct fixture *fixture)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    int result = 0;
    pthread_mutex_lock(&fixture->lock);
    while (!fixture->woken && result == 0)
        result = pthread_cond_timedwait(&fixture->changed, &fixture->lock, &until);
    bool woken = fixture->woken;
    fixture->woken = false;
    pthread_mutex_unlock(&fixture->lock);
    return woken;
}

void fixture_request(struct fixture *fixture, enum answer_kind kind, const char *body,
                     struct reply *out)
{
    *out = (struct reply){.state = ANSWER_WAIT};
    buffer_init(&out->body, 0);
    struct answer *answer = NULL;
    /* The exact size, so that a sanitizer sees a read behind it. */
    size_t length = strlen(body);
    char *copy = malloc(length ? length : 1);
    CHECK(copy);
    memcpy(copy, body, length);
    out->open_status = answer_open(&fixture->context, kind, copy, length, 0x1234,
                                   &(struct answer_caller){.arrival_ns = clock_now_ns()},
                                   fixture_wake, fixture, &answer, &out->error);
    free(copy);
    if (out->open_status != STATUS_OK) {
        CHECK(!answer);
        return;
    }
    for (;;) {
        size_t before = out->body.length;
        out->state = answer_pump(answer, &out->body);
        out->pumps_with_data += out->body.length > before;
        if (out->state == ANSWER_END || out->state == ANSWER_FAILED)
            break;
        if (out->state == ANSWER_WAIT)
            CHECK(fixture_wait(fixture));
    }
    if (out->state == ANSWER_FAILED)
        out->error = *answer_error(answer);
    answer_summarize(answer, &out->summary);
    answer_close(answer);
}

void reply_deinit(struct reply *reply)
{
    buffer_deinit(&reply->body);
}
