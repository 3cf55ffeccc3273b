/*
 * quire run: one prompt through the same engine, printed as it comes. No HTTP, no JSON answers.
 *
 * Everything happens on the preprocessing thread, which has the stack for templates. The answer
 * goes to standard output, everything else to standard error.
 */
#include "cli/programs.h"

#include "api/chat_template.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"
#include "engine/text/detokenizer.h"
#include "server/preprocessing_thread.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A noncharacter: breaks up control tokens in the user's text, dropped by the tokenizer. */
#define SENTINEL 0xfdd0u

struct run {
    struct options *options;
    runtime_backend_factory factory;
    struct runtime runtime;
    sem_t news, done;
    int code;
};

static void on_news(void *arg)
{
    sem_post(&((struct run *)arg)->news);
}

static enum status render_chat(struct run *run, struct buffer *out, struct error *error)
{
    const struct runtime *runtime = &run->runtime;
    if (!runtime->chat_template)
        return error_set(error, STATUS_INVALID, "chat",
                         "the model has no chat template; leave --chat out, or give one with "
                         "--chat-template FILE");
    const char *prompt = run->options->run.prompt;
    struct buffer json;
    buffer_init(&json, 0);
    buffer_append_text(&json, "{\"add_generation_prompt\":true,\"tools\":null,\"documents\":null,"
                              "\"messages\":[{\"role\":\"user\",\"content\":");
    bool parts = chat_template_wants_parts(runtime->chat_template);
    buffer_append_text(&json, parts ? "[{\"type\":\"text\",\"text\":" : "");
    json_write_string(&json, prompt, strlen(prompt));
    buffer_append_text(&json, parts ? "}]}]}" : "}]}");
    enum status status = json.failed ? error_out_of_memory(error)
                                     : chat_template_render(runtime->chat_template, json.data,
                                                            json.length, out, error);
    uint8_t *own = status == STATUS_OK ? calloc(chat_template_own_bytes(out), 1) : NULL;
    if (status == STATUS_OK && !own)
        status = error_out_of_memory(error);
    if (status == STATUS_OK)
        status =
            chat_template_trace(runtime->chat_template, json.data, json.length, out, own, error);
    if (status == STATUS_OK)
        status = chat_template_guard(runtime->chat_template, out, own, SENTINEL, error);
    free(own);
    buffer_deinit(&json);
    return status;
}

static enum status tokenize(struct run *run, uint32_t **tokens, size_t *count, struct error *error)
{
    const struct options *options = run->options;
    const struct runtime *runtime = &run->runtime;
    struct buffer text;
    buffer_init(&text, 0);
    enum status status = STATUS_OK;
    unsigned flags = TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS;
    if (options->run.chat) {
        status = render_chat(run, &text, error);
        size_t length = 0;
        uint32_t bos = tokenizer_bos(runtime->tokenizer);
        const char *bos_text =
            bos == UINT32_MAX ? "" : tokenizer_text(runtime->tokenizer, bos, &length);
        bool has_bos = length && text.length >= length && !memcmp(text.data, bos_text, length);
        flags = TOKENIZER_PARSE_SPECIAL | (has_bos ? 0u : (unsigned)TOKENIZER_ADD_BOS);
    } else {
        buffer_append_text(&text, options->run.prompt);
    }
    size_t limit = runtime->api.max_model_len - 1;
    if (status == STATUS_OK)
        status =
            tokenizer_encode(runtime->tokenizer, text.data ? text.data : "", text.length, flags,
                             options->run.chat ? SENTINEL : 0, limit, tokens, count, error);
    buffer_deinit(&text);
    if (status == STATUS_OK && *count == 0)
        status = error_set(error, STATUS_INVALID, "prompt", "the prompt is empty");
    return status;
}

/* Print what the engine makes until it ends; false when standard output is gone. */
static bool print_answer(struct run *run, struct completion *completion, uint32_t *count)
{
    struct detokenizer detokenizer;
    struct buffer text;
    detokenizer_init(&detokenizer);
    buffer_init(&text, 0);
    bool ok = true;
    for (enum finish_reason reason = FINISH_NONE; reason == FINISH_NONE && ok;) {
        sem_wait(&run->news);
        reason = completion_reason(completion, 0);
        const struct completion_token *tokens;
        uint32_t ready = completion_read(completion, 0, *count, &tokens);
        for (uint32_t i = 0; i < ready; i++) {
            size_t length;
            const char *piece = tokenizer_piece(run->runtime.tokenizer, tokens[i].token, &length);
            detokenizer_push(&detokenizer, piece, length, &text);
        }
        *count += ready;
        if (reason != FINISH_NONE)
            detokenizer_finish(&detokenizer, &text);
        if (text.length)
            ok = fwrite(text.data, 1, text.length, stdout) == text.length && !fflush(stdout);
        buffer_clear(&text);
        if (reason == FINISH_ERROR)
            log_error("run_failed", "the engine could not go on");
    }
    ok = ok && completion_reason(completion, 0) != FINISH_ERROR;
    buffer_deinit(&text);
    return printf("\n") > 0 && ok;
}

static enum status complete(struct run *run, const uint32_t *tokens, size_t count,
                            struct error *error)
{
    const struct run_options *options = &run->options->run;
    uint32_t room = run->runtime.api.max_model_len - (uint32_t)count;
    struct completion_spec spec = {
        .tokens = tokens,
        .token_count = (uint32_t)count,
        .choice_count = 1,
        .max_tokens = min_u32(options->max_tokens, room),
        .sampling = {.temperature = options->temperature,
                     .top_p = 1,
                     .repetition_penalty = 1,
                     .seed = options->seed},
        .use_prefix_cache = run->options->settings.prefix_cache,
        .wake = on_news,
        .wake_arg = run,
    };
    struct completion *completion;
    enum status status = completion_create(&spec, &run->runtime.budget, &completion, error);
    if (status != STATUS_OK)
        return status;
    uint64_t start_ns = clock_now_ns();
    uint32_t made = 0;
    status = engine_submit(run->runtime.engine, &completion, 1, error);
    if (status == STATUS_OK && print_answer(run, completion, &made))
        run->code = 0;
    completion_release(completion);
    double seconds = (double)(clock_now_ns() - start_ns) / 1e9;
    if (status == STATUS_OK)
        log_info("run", "%zu prompt tokens, %u generated in %.2f s (%.1f a second)", count, made,
                 seconds, (double)made / seconds);
    return status;
}

static void run_all(void *arg)
{
    struct run *run = arg;
    struct error error;
    error_clear(&error);
    uint32_t *tokens = NULL;
    size_t count = 0;
    enum status status =
        runtime_create(&run->options->settings, run->factory, &run->runtime, &error);
    if (status == STATUS_OK)
        status = tokenize(run, &tokens, &count, &error);
    if (status == STATUS_OK)
        status = complete(run, tokens, count, &error);
    if (status != STATUS_OK)
        log_error("run_failed", "%s", error.message);
    free(tokens);
    runtime_destroy(&run->runtime);
    sem_post(&run->done);
}

int program_run(struct options *options, runtime_backend_factory factory)
{
    struct run *run = calloc(1, sizeof *run);
    struct preprocessing_thread *text = NULL;
    struct error error;
    if (!run)
        return 1;
    run->options = options;
    run->factory = factory;
    run->code = 1;
    sem_init(&run->news, 0, 0);
    sem_init(&run->done, 0, 0);
    struct preprocessing_job job = {.run = run_all, .arg = run};
    if (preprocessing_thread_create(1, 1, &text, &error) == STATUS_OK &&
        preprocessing_thread_push(text, &job))
        sem_wait(&run->done);
    else
        log_error("run_failed", "cannot start a thread");
    preprocessing_thread_destroy(text);
    int code = run->code;
    sem_destroy(&run->news);
    sem_destroy(&run->done);
    free(run);
    return code;
}
