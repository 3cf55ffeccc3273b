/*
 * quire plan: what a budget would do, before anything is bought or started. Opens the model's
 * header at most, never its weights; measures the machine unless told not to. Exit code 0: it fits;
 * 1: it does not, or the question could not be answered (then nothing is on standard output).
 */
#include "cli/programs.h"

#include "base/budget.h"
#include "base/bytes.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/minmax.h"
#include "sizing/plan_answer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MEASURE_BYTES (128 * MIB) /* beyond most machines' caches */
#define TOKENIZER_TOKEN_BYTES 48u /* of a synthetic shape: about what vocabularies take */

struct planning {
    const struct options *options;
    struct workers *workers;
    struct gguf *gguf;
    struct model_config config;
    struct plan_question question;
    struct plan_format formats[PLAN_FORMATS_MAX];
    unsigned format_count;
    struct plan_answer answer;
};

/* The number of a format by its name, whatever the case. */
static enum tensor_format format_named(const char *name)
{
    for (uint32_t i = 0; i < FORMAT_LIMIT; i++) {
        const char *known = format_info(i)->name;
        if (known && !strcasecmp(known, name))
            return (enum tensor_format)i;
    }
    return FORMAT_LIMIT;
}

static enum status open_model(struct planning *planning, struct error *error)
{
    struct plan_model *model = &planning->question.model;
    struct tokenizer *tokenizer = NULL;
    enum status status = gguf_open(planning->options->settings.model_path, &planning->gguf, error);
    if (status == STATUS_OK)
        status = model_describe(planning->gguf, &planning->config, error);
    if (status == STATUS_OK)
        status = tokenizer_create(planning->gguf, &tokenizer, error);
    if (status != STATUS_OK)
        return status;
    model->gguf = planning->gguf;
    model->tokenizer_bytes = tokenizer_memory_bytes(tokenizer);
    tokenizer_destroy(tokenizer);
    planning->format_count = plan_formats(planning->gguf, &planning->config, planning->formats);
    return STATUS_OK;
}

/* A synthetic model shape instead of a file. What they do not say is as in most models: the width
   is that of all heads, the feed-forward's four times that. */
static void describe_shape(struct planning *planning)
{
    const struct shape_options *shape = &planning->options->plan.shape;
    struct model_config *config = &planning->config;
    *config = (struct model_config){
        .layers = shape->layers,
        .embedding = shape->heads * shape->head_dim,
        .feed_forward = 4 * shape->heads * shape->head_dim,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .rotary = shape->head_dim,
        .vocabulary = shape->vocabulary,
        .context = planning->options->settings.context,
        .window = shape->window,
        .window_layers = shape->window_layers,
        .tensor_bytes = shape->weights_bytes,
    };
    snprintf(config->name, sizeof config->name, "A synthetic model");
    planning->question.model.tokenizer_bytes = (uint64_t)TOKENIZER_TOKEN_BYTES * shape->vocabulary;
    enum tensor_format format = format_named(shape->weight_type);
    const struct format_info *info = format_info(format);
    planning->formats[0] = (struct plan_format){
        .format = format,
        .layer_values = config->tensor_bytes / info->block_bytes * info->block_size,
    };
    planning->format_count = config->tensor_bytes > 0;
}

static enum status prepare(struct planning *planning, struct error *error)
{
    const struct settings *settings = &planning->options->settings;
    struct plan_question *question = &planning->question;
    enum status status = kernels_select(settings->kernels, &question->model.kernels, error);
    if (status == STATUS_OK)
        status = workers_create(settings->threads, &planning->workers, error);
    if (status != STATUS_OK)
        return status;
    question->settings = settings;
    question->users = planning->options->plan.users;
    question->max_seqs_given = planning->options->plan.max_seqs_given;
    question->model.config = &planning->config;
    question->model.workers = planning->workers;
    if (settings->model_path) {
        status = open_model(planning, error);
        if (status != STATUS_OK)
            return status;
    } else {
        describe_shape(planning);
    }
    return model_check_kv_type(&planning->config, plan_kv_type(settings, settings->backend), error);
}

/* As it is, or within single quotes for a shell. */
static void append_word(struct buffer *out, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "._-+=/,@:";
    if (*text && strspn(text, plain) == strlen(text)) {
        buffer_append_text(out, text);
        return;
    }
    buffer_append_text(out, "'");
    for (; *text; text++) {
        if (*text == '\'')
            buffer_append_text(out, "'\\''");
        else
            buffer_append(out, text, 1);
    }
    buffer_append_text(out, "'");
}

/* --NAME-dir DIRECTORY --BYTES_NAME-bytes BYTES; no bytes: the default. */
static void append_directory(struct buffer *out, const char *name, const char *bytes_name,
                             const char *directory, uint64_t bytes)
{
    if (!directory)
        return;
    buffer_appendf(out, " --%s-dir ", name);
    append_word(out, directory);
    if (bytes)
        buffer_appendf(out, " --%s-bytes %llu", bytes_name, (unsigned long long)bytes);
}

/* The server that the plan is about, as far as its memory goes: nothing when it does not fit. */
static void write_start(const struct planning *planning, struct buffer *out)
{
    const struct settings *settings = &planning->options->settings;
    const struct plan_answer *answer = &planning->answer;
    const char *path = settings->model_path;
    if (!path || !answer->yes)
        return;
    buffer_append_text(out, "quire serve -m ");
    append_word(out, path);
    bool whole = settings->memory_bytes % MIB == 0;
    buffer_appendf(
        out, whole ? " --memory %lluMiB" : " --memory %llu",
        (unsigned long long)(whole ? settings->memory_bytes / MIB : settings->memory_bytes));
    if (settings->context)
        buffer_appendf(out, " --context %u", answer->tokens);
    if (answer->max_seqs != options_default("max-seqs"))
        buffer_appendf(out, " --max-seqs %u", answer->max_seqs);
    if (settings->page_size != options_default("page-size"))
        buffer_appendf(out, " --page-size %u", settings->page_size);
    if (settings->kv_type)
        buffer_appendf(out, " --kv-type %s", settings->kv_type);
    if (settings->max_batch_tokens)
        buffer_appendf(out, " --max-batch-tokens %u", settings->max_batch_tokens);
    if (!settings->connections_fitted)
        buffer_appendf(out, " --max-connections %u", settings->max_connections);
    if (strcmp(settings->constraints, "auto") != 0)
        buffer_appendf(out, " --constraints %s", settings->constraints);
    if (strcmp(settings->backend, "quantized") != 0)
        buffer_appendf(out, " --backend %s", settings->backend);
    append_directory(out, "swap", "swap", settings->swap_dir,
                     settings->swap_bytes != options_default("swap-bytes") ? settings->swap_bytes
                                                                           : 0);
    append_directory(out, "cache", "cache-dir", settings->cache_dir, settings->cache_dir_bytes);
    buffer_appendf(out, " --threads %u", settings->threads);
}

static void measure(struct planning *planning)
{
    struct machine machine;
    machine_inspect_own(&machine);
    uint64_t quarter = machine.memory_bytes / 4;
    struct speed_meter meter = {
        .kernels = planning->question.model.kernels,
        .workers = planning->workers,
        .cores = machine.cores,
        .memory_bytes = min_u64(quarter, MEASURE_BYTES),
    };
    plan_times_make(&meter, &planning->config, planning->formats, planning->format_count,
                    &planning->answer);
}

static enum status draw(const struct plan_words *words, const struct plan_answer *answer,
                        const char *path, struct error *error)
{
    struct buffer out;
    buffer_init(&out, 0);
    plan_write_svg(words, answer, &out);
    FILE *file = fopen(path, "we");
    bool written = file && !out.failed && fwrite(out.data, 1, out.length, file) == out.length;
    int cause = errno;
    if (file && fclose(file)) {
        written = false;
        cause = errno;
    }
    buffer_deinit(&out);
    return written ? STATUS_OK
                   : error_set(error, STATUS_IO, "svg", "--svg: cannot write %s: %s", path,
                               strerror(cause));
}

static enum status write_answer(const struct planning *planning, const struct plan_words *words,
                                struct error *error)
{
    const struct options *options = planning->options;
    if (options->plan.svg_file) {
        enum status status = draw(words, &planning->answer, options->plan.svg_file, error);
        if (status != STATUS_OK)
            return status;
    }
    struct buffer out;
    buffer_init(&out, 0);
    if (options->json)
        plan_write_json(words, &planning->answer, &out);
    else
        plan_write_text(words, &planning->answer, &out);
    enum status status = out.failed ? error_out_of_memory(error) : STATUS_OK;
    if (!out.failed)
        fwrite(out.data, 1, out.length, stdout); /* program_main sees whether it can be flushed */
    buffer_deinit(&out);
    return status;
}

/* An encoder keeps nothing between steps, so it has no users with keys and values: the question is
   how long a text may be. */
static enum status answer_encoder(struct planning *planning, struct error *error)
{
    const struct settings *settings = &planning->options->settings;
    struct plan plan;
    TRY(plan_make(&planning->question.model, settings, &plan, error));
    planning->answer.yes = true;
    struct budget budget;
    budget_init(&budget, plan.total_bytes);
    struct buffer out;
    buffer_init(&out, 0);
    if (planning->options->json) {
        buffer_append_text(&out, "{\"model\":");
        json_write_text(&out, planning->config.name);
        buffer_appendf(&out,
                       ",\"encoder\":true,\"text_tokens\":%u,\"step_tokens\":%u,"
                       "\"step_texts\":%u,\"budget\":{",
                       plan.context, plan.backend.max_batch_rows, settings->max_seqs);
    } else {
        buffer_appendf(
            &out,
            "%s: an encoder of %u layers\n\nyes: texts of up to %u tokens; up to %u texts "
            "and %u tokens share a step, and nothing is kept beyond it\n\nmemory budget\n",
            planning->config.name, planning->config.layers, plan.context, settings->max_seqs,
            plan.backend.max_batch_rows);
    }
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++) {
        TRY(budget_reserve(&budget, (enum budget_account)i, plan.account_bytes[i], error));
        if (planning->options->json)
            buffer_appendf(&out, "\"%s\":%llu,", budget_account_name((enum budget_account)i),
                           (unsigned long long)plan.account_bytes[i]);
    }
    if (planning->options->json)
        buffer_appendf(&out, "\"total\":%llu}}\n", (unsigned long long)plan.total_bytes);
    else
        budget_print(&budget, &out);
    enum status status = out.failed ? error_out_of_memory(error) : STATUS_OK;
    if (!out.failed)
        fwrite(out.data, 1, out.length, stdout);
    buffer_deinit(&out);
    return status;
}

static enum status answer(struct planning *planning, struct error *error)
{
    if (planning->config.bidirectional)
        return answer_encoder(planning, error);
    const struct options *options = planning->options;
    plan_answer_make(&planning->question, &planning->answer);
    uint32_t pages;
    uint64_t bytes;
    enum status status = engine_swap_room(&planning->answer.plan.engine, &pages, &bytes, error);
    if (status != STATUS_OK)
        return status; /* a server would not start */
    if (options->plan.measure && strcmp(options->settings.backend, "openblas") != 0)
        measure(planning);
    struct buffer start;
    buffer_init(&start, 0);
    write_start(planning, &start);
    struct plan_words words = {planning->config.name, start.data, &planning->question.model,
                               &options->settings};
    status = write_answer(planning, &words, error);
    buffer_deinit(&start);
    return status;
}

int program_plan(const struct options *options)
{
    struct planning planning = {.options = options};
    struct error error;
    error_clear(&error);
    enum status status = prepare(&planning, &error);
    if (status == STATUS_OK)
        status = answer(&planning, &error);
    if (status != STATUS_OK)
        log_error("plan_failed", "%s", error.message);
    if (planning.gguf)
        gguf_close(planning.gguf);
    workers_destroy(planning.workers);
    return status == STATUS_OK && planning.answer.yes ? 0 : 1;
}
