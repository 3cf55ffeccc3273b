/*
 * From options to a running engine: see runtime.h.
 *
 * Nothing large is allocated before its bytes are reserved. Sizes are known from the file's header
 * alone (plan.c), so a model that does not fit is refused within milliseconds, with the numbers.
 */
#include "server/runtime.h"

#include "api/chat_template.h"
#include "api/control_guard.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/minmax.h"
#include "base/utf8.h"
#include "engine/constrain/grammar_cache.h"
#include "sizing/plan.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* More than the machine has is the operator's to ask for: others may leave, there may be swap. */
static void warn_memory(uint64_t asked_bytes, const struct machine *machine)
{
    char asked[24], has[24];
    bytes_format(asked_bytes, asked);
    if (asked_bytes > machine->memory_limit_bytes)
        log_warn("memory",
                 "--memory %s is more than the %s of %s: the process may be killed for it", asked,
                 bytes_format(machine->memory_limit_bytes, has), machine->memory_limit_by);
    else if (asked_bytes > machine->memory_bytes)
        log_warn("memory", "--memory %s is more than the %s that are available now (%s)", asked,
                 bytes_format(machine->memory_bytes, has), machine->memory_by);
}

void runtime_resolve(struct settings *settings, bool runs_here)
{
    struct machine machine;
    char memory[24];
    machine_inspect_own(&machine);
    log_info("machine", "available memory: %s (%s); cores: %u (%s)",
             bytes_format(machine.memory_bytes, memory), machine.memory_by, machine.cores,
             machine.cores_by);
    if (!settings->threads)
        settings->threads = machine.cores;
    if (!settings->memory_bytes) {
        settings->memory_bytes = machine.memory_bytes;
        settings->memory_fitted = runs_here; /* quire plan asks what is left */
    } else if (runs_here) {
        warn_memory(settings->memory_bytes, &machine);
    }
    if (settings->max_connections)
        return;
    settings->max_connections = plan_connections(settings->memory_bytes);
    settings->connections_fitted = true;
}

/* Enter the plan's accounts. What clients drive is taken while running, the rest for good. */
static enum status reserve_all(struct runtime *runtime, const struct plan *plan,
                               struct error *error)
{
    struct budget *budget = &runtime->budget;
    budget_init(budget, plan->total_bytes);
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++) {
        enum budget_account account = (enum budget_account)i;
        uint64_t bytes = plan->account_bytes[i];
        enum status status = budget_reserve(budget, account, bytes, error);
        if (status != STATUS_OK)
            return status;
        bool counted =
            account == BUDGET_HTTP || account == BUDGET_REQUESTS || account == BUDGET_GRAMMAR;
        if (!counted && account != BUDGET_TEMPLATE) /* the text shim counts for itself */
            CHECK(budget_take(budget, account, bytes));
    }
    return STATUS_OK;
}

static void print_plan(const struct runtime *runtime, const struct plan *plan,
                       const struct settings *settings)
{
    const struct budget *budget = &runtime->budget;
    log_info("model", "%s: %s, %u layers, %.1f M parameters", runtime->config.name,
             runtime->config.architecture, runtime->config.layers,
             (double)runtime->config.parameter_count / 1e6);
    log_info("kernels", "%s on %u threads, backend %s, steps of up to %u tokens",
             runtime->kernels->name, settings->threads, settings->backend,
             plan->backend.max_batch_rows);
    if (settings->log_format == LOG_TEXT && log_enabled(LOG_INFO)) {
        struct buffer table;
        buffer_init(&table, 0);
        buffer_append_text(&table, "memory budget\n");
        budget_print(budget, &table);
        if (!table.failed)
            log_write_block(LOG_INFO, table.data);
        buffer_deinit(&table);
    } else {
        for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
            log_info("memory_budget", "%s=%llu", budget_account_name((enum budget_account)i),
                     (unsigned long long)budget->cap_bytes[i]);
        log_info("memory_budget", "total=%llu", (unsigned long long)budget->total_bytes);
    }
    const struct kv_groups *groups = &plan->sizes.groups;
    char windows[64] = "";
    if (groups->count > 1)
        snprintf(windows, sizeof windows, ", %u groups of layers, window %u", groups->count,
                 groups->window[groups->count - 1]);
    log_info("kv_pool", "%u pages of %u tokens in %s%s, context %u, up to %u sequences%s",
             plan->backend.page_count - 1, plan->backend.page_size,
             kv_type_name(plan->backend.kv_type), windows, runtime->context, settings->max_seqs,
             plan->capped ? PLAN_CAPPED : "");
}

/* A length that was asked for, or that the model has, and that is not what will be served. */
static void warn_context(const struct plan_model *model, const struct plan *plan,
                         const struct settings *settings)
{
    if (settings->context > model->config->context)
        log_warn("context",
                 "--context %u is more than the %u that the model was trained for; it is %u",
                 settings->context, model->config->context, plan->context);
    if (plan->context < plan->wanted) {
        char would[24];
        log_warn("context",
                 "%s %u does not fit the memory budget; it is %u; --memory %s would hold "
                 "one sequence of that length",
                 settings->context ? "--context" : "the model's context of", plan->wanted,
                 plan->context,
                 bytes_format(plan_least_bytes(model, settings, 1, plan->wanted), would));
    }
}

static enum status plan_memory(struct runtime *runtime, struct plan *plan,
                               const struct settings *settings, struct error *error)
{
    struct plan_model model = {
        .gguf = runtime->gguf,
        .config = &runtime->config,
        .kernels = runtime->kernels,
        .workers = runtime->workers,
        .tokenizer_bytes = tokenizer_memory_bytes(runtime->tokenizer),
    };
    enum status status = plan_make(&model, settings, plan, error);
    if (status != STATUS_OK)
        return status;
    runtime->context = plan->context;
    warn_context(&model, plan, settings);
    return reserve_all(runtime, plan, error);
}

/* Test hooks: only for tests, so not options. */
static uint32_t test_hook(const char *name)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

static enum status read_file(const char *path, size_t limit, struct buffer *out,
                             struct error *error)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set(error, STATUS_IO, "chat-template", "cannot open %s: %s", path,
                         strerror(errno));
    char piece[4096];
    for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;)
        buffer_append(out, piece, got);
    bool failed = ferror(file);
    fclose(file);
    if (failed || out->failed || out->length > limit)
        return error_set(error, STATUS_INVALID, "chat-template",
                         "%s cannot be read, or has more than %zu bytes", path, limit);
    return STATUS_OK;
}

/* The text of a special token, terminated; empty when there is none. */
static void token_text(const struct tokenizer *tokenizer, uint32_t token, char *out, size_t size)
{
    size_t length = 0;
    const char *text = token == UINT32_MAX ? "" : tokenizer_text(tokenizer, token, &length);
    snprintf(out, size, "%.*s", (int)length, text);
}

static enum status create_template(struct runtime *runtime, const char *source, size_t length,
                                   struct chat_template **out, struct error *error)
{
    char bos[128], eos[128];
    token_text(runtime->tokenizer, tokenizer_bos(runtime->tokenizer), bos, sizeof bos);
    token_text(runtime->tokenizer, tokenizer_eos(runtime->tokenizer), eos, sizeof eos);
    struct control_guard guard;
    enum status status = control_guard_init(&guard, runtime->tokenizer, error);
    if (status != STATUS_OK)
        return status;
    return chat_template_create(source, length, bos, eos, &guard,
                                runtime->budget.cap_bytes[BUDGET_TEMPLATE], out, error);
}

/* One of the file's own; absent or empty is no fault. */
static enum status load_own_template(struct runtime *runtime, const char *key,
                                     struct chat_template **out, struct error *error)
{
    struct gguf_string own;
    if (!gguf_has(runtime->gguf, key))
        return STATUS_OK;
    enum status status = gguf_get_string(runtime->gguf, key, &own, error);
    if (status != STATUS_OK || own.length == 0)
        return status;
    return create_template(runtime, own.text, own.length, out, error);
}

/* The operator's template stands for all of the file's. Of those "tool_use" is for requests with
   tools, as in transformers. */
static enum status load_templates(struct runtime *runtime, const struct settings *settings,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    if (settings->chat_template_file) {
        struct buffer source;
        buffer_init(&source, LIMIT_TEMPLATE_BYTES + 1);
        status = read_file(settings->chat_template_file, LIMIT_TEMPLATE_BYTES, &source, error);
        if (status == STATUS_OK && source.length)
            status = create_template(runtime, source.data, source.length, &runtime->chat_template,
                                     error);
        buffer_deinit(&source);
    } else {
        status =
            load_own_template(runtime, "tokenizer.chat_template", &runtime->chat_template, error);
        if (status == STATUS_OK && runtime->chat_template)
            status = load_own_template(runtime, "tokenizer.chat_template.tool_use",
                                       &runtime->tool_template, error);
    }
    if (status == STATUS_OK && !runtime->chat_template && !runtime->config.bidirectional)
        log_info("chat_template", "the model has none: /v1/chat/completions answers 400");
    return status;
}

static enum status collect_end_tokens(struct runtime *runtime, struct plan *plan,
                                      struct error *error)
{
    uint32_t count = 0, vocabulary = tokenizer_vocabulary(runtime->tokenizer);
    if (vocabulary != runtime->config.vocabulary)
        return error_set(error, STATUS_INVALID, "tokenizer.ggml.tokens",
                         "the tokenizer has %u tokens, the model's output %u", vocabulary,
                         runtime->config.vocabulary);
    for (uint32_t token = 0; token < vocabulary; token++)
        count += tokenizer_is_end(runtime->tokenizer, token);
    runtime->end_tokens = malloc((count + 1) * sizeof *runtime->end_tokens);
    if (!runtime->end_tokens)
        return error_out_of_memory(error);
    count = 0;
    for (uint32_t token = 0; token < vocabulary; token++) {
        if (tokenizer_is_end(runtime->tokenizer, token))
            runtime->end_tokens[count++] = token;
    }
    if (!count)
        log_warn("end_tokens", "the model file names no end-of-generation token");
    plan->engine.end_tokens = runtime->end_tokens;
    plan->engine.end_token_count = count;
    return STATUS_OK;
}

struct progress {
    uint64_t next_ns;
};

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct progress *progress = arg;
    uint64_t now_ns = clock_now_ns();
    if (now_ns < progress->next_ns || done == total || !total)
        return;
    progress->next_ns = now_ns + 2000000000u;
    log_info("loading", "%llu %% of the weights", (unsigned long long)(100 * done / total));
}

/* What the model's file says, from its header to its last weight, wherever it lies. */
static uint64_t content_of(const struct runtime *runtime)
{
    uint64_t header = gguf_header_checksum(runtime->gguf);
    return checksum_bytes(&runtime->backend->weights_checksum, sizeof(uint64_t), header);
}

/* Whose prompts may be found: what was kept without keys, or for all keys, is not for a server
   whose keys are apart. */
static uint64_t scope_of(const struct settings *settings)
{
    const char *scope = settings->api_key_file ? settings->cache_scope : "no keys";
    return checksum_bytes(scope, strlen(scope), 0);
}

/* Changes with whatever may change an answer's bytes, and with nothing else: the build, the model's
   content, and what computes. */
static uint64_t fingerprint_of(const struct backend *backend, uint64_t content)
{
    uint64_t numbers[] = {content, MODEL_ARITHMETIC, backend->rotation};
    uint64_t sum = checksum_bytes(numbers, sizeof numbers, 0);
    const char *texts[] = {QUIRE_VERSION, backend->name, backend->kv_type};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        sum = checksum_bytes(texts[i], strlen(texts[i]), sum);
    return sum;
}

static enum status make_engine(struct runtime *runtime, struct plan *plan,
                               const struct settings *settings, runtime_backend_factory factory,
                               struct error *error)
{
    struct progress progress = {clock_now_ns() + 2000000000u};
    enum status status =
        factory ? factory(runtime->gguf, &runtime->config, &plan->backend, &runtime->backend, error)
                : model_backend_create(runtime->gguf, &runtime->config, &plan->backend, on_progress,
                                       &progress, &runtime->backend, error);
    if (status != STATUS_OK)
        return status;
    plan->engine.backend = runtime->backend;
    plan->engine.model_identity = content_of(runtime);
    plan->engine.cache_scope = scope_of(settings);
    runtime->api.fingerprint = fingerprint_of(runtime->backend, plan->engine.model_identity);
    plan->engine.check_every_step = test_hook("QUIRE_TEST_CHECK_EVERY_STEP") != 0;
    plan->engine.test_preempt_every = test_hook("QUIRE_TEST_PREEMPT_EVERY");
    plan->engine.test_swap = test_hook("QUIRE_TEST_SWAP") != 0;
    return engine_create(&plan->engine, &runtime->engine, error);
}

/* A name stands in JSON, in metrics' labels and in paths. */
static enum status check_name(const char *name, bool given, struct error *error)
{
    size_t length = strlen(name);
    bool good = length > 0 && length < MODEL_NAME_BYTES && utf8_valid(name, length);
    uint32_t code_point;
    for (size_t at = 0; good && at < length;) {
        at += (size_t)utf8_decode(name + at, length - at, &code_point);
        good = code_point >= 0x20 && !(code_point >= 0x7f && code_point < 0xa0);
    }
    if (good)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "served-model-name",
                     given ? "--served-model-name must be 1 to %u bytes of UTF-8 without control "
                             "characters"
                           : "the file's name cannot be the model's name, which is 1 to %u bytes "
                             "of UTF-8 without control characters: give --served-model-name",
                     MODEL_NAME_BYTES - 1);
}

/* What clients call the model: as given, or the file's name without its folder and ".gguf". */
static void name_model(struct runtime *runtime, const struct settings *settings)
{
    const char *slash = strrchr(settings->model_path, '/');
    snprintf(runtime->model_name, sizeof runtime->model_name, "%s",
             slash ? slash + 1 : settings->model_path);
    size_t length = strlen(runtime->model_name);
    if (length > 5 && !strcasecmp(runtime->model_name + length - 5, ".gguf"))
        runtime->model_name[length - 5] = '\0';
    for (unsigned i = 0; i < settings->served_model_name_count; i++) {
        if (strcmp(settings->served_model_names[i], "*") == 0) /* no name that answers could show */
            runtime->api.any_model_name = true;
        else
            runtime->model_names[runtime->api.model_name_count++] = settings->served_model_names[i];
    }
    if (!runtime->api.model_name_count) {
        runtime->model_names[0] = runtime->model_name;
        runtime->api.model_name_count = 1;
    }
    runtime->api.model_names = runtime->model_names;
}

enum status runtime_check_names(const struct settings *settings, struct error *error)
{
    const char *slash = strrchr(settings->model_path, '/');
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < settings->served_model_name_count && status == STATUS_OK; i++)
        status = check_name(settings->served_model_names[i], true, error);
    return settings->served_model_name_count
               ? status
               : check_name(slash ? slash + 1 : settings->model_path, false, error);
}

/* What embeddings are made by: as asked, else as the file says, else the mean where the model does
   nothing else. */
static enum status choose_pooling(const struct runtime *runtime, const struct settings *settings,
                                  enum pooling *out, struct error *error)
{
    static const struct {
        const char *name;
        enum pooling pooling;
    } names[] = {{"mean", POOLING_MEAN},
                 {"last", POOLING_LAST},
                 {"cls", POOLING_CLS},
                 {"none", POOLING_NONE}};
    const struct model_config *config = &runtime->config;
    enum pooling pooling = config->pooling;
    bool encoder = config->bidirectional;
    if (encoder && !settings->serves)
        return error_set(error, STATUS_UNSUPPORTED, "model",
                         "%s is a %s model, which generates no text: quire serve makes embeddings "
                         "or scores with it",
                         config->name, config->architecture);
    for (size_t i = 0; settings->pooling && i < sizeof names / sizeof *names; i++)
        if (strcmp(settings->pooling, names[i].name) == 0)
            pooling = names[i].pooling;
    if (!settings->pooling && encoder && pooling == POOLING_NONE)
        pooling = POOLING_MEAN;
    if (!encoder && pooling == POOLING_RANK) /* a reranker made of a chat model: not read */
        pooling = POOLING_NONE;
    if (settings->pooling && pooling == POOLING_NONE && encoder)
        return error_set(error, STATUS_INVALID, "pooling",
                         "--pooling none: a %s model makes embeddings and nothing else",
                         config->architecture);
    if (pooling == POOLING_CLS && !encoder)
        return error_set(error, STATUS_INVALID, "pooling",
                         "--pooling cls: the first token of a %s model sees no other; use mean or "
                         "last",
                         config->architecture);
    if (pooling != POOLING_NONE && strcmp(settings->backend, "openblas") == 0)
        return error_set(error, STATUS_UNSUPPORTED, "pooling",
                         "the openblas backend makes no embeddings");
    *out = pooling;
    return STATUS_OK;
}

static void set_pooling(struct runtime *runtime, enum pooling pooling)
{
    struct api_context *api = &runtime->api;
    const struct backend *backend = runtime->backend;
    api->pooling = pooling;
    api->embeds_only = runtime->config.bidirectional;
    api->pooling_why = "start the server with --pooling mean or --pooling last";
    if (pooling == POOLING_NONE)
        return;
    api->pooled_count = pooling == POOLING_RANK ? backend->score_count : backend->hidden_width;
    log_info("pooling", "%s of %u numbers, texts of up to %u tokens",
             pooling == POOLING_RANK ? "scores" : "embeddings", api->pooled_count,
             engine_max_length(runtime->engine));
}

static enum status load_all(struct runtime *runtime, const struct settings *settings,
                            runtime_backend_factory factory, struct error *error)
{
    struct plan plan;
    enum status status = kernels_select(settings->kernels, &runtime->kernels, error);
    if (status == STATUS_OK)
        status = workers_create(settings->threads, &runtime->workers, error);
    if (status == STATUS_OK)
        status = gguf_open_within(settings->model_path, plan_header_bytes(settings), &runtime->gguf,
                                  error);
    if (status == STATUS_OK)
        status = model_describe(runtime->gguf, &runtime->config, error);
    enum pooling pooling = POOLING_NONE;
    if (status == STATUS_OK)
        status = choose_pooling(runtime, settings, &pooling, error);
    if (status == STATUS_OK)
        status = tokenizer_create(runtime->gguf, &runtime->tokenizer, error);
    if (status == STATUS_OK)
        status = plan_memory(runtime, &plan, settings, error);
    if (status == STATUS_OK)
        status = collect_end_tokens(runtime, &plan, error);
    if (status == STATUS_OK)
        status = load_templates(runtime, settings, error);
    if (status == STATUS_OK && plan.engine.grammars)
        status =
            grammar_cache_create(runtime->tokenizer, &runtime->budget, &runtime->grammars, error);
    if (status == STATUS_OK)
        status = engine_check(&plan.engine, error);
    if (status != STATUS_OK)
        return status;
    print_plan(runtime, &plan, settings);
    if (settings->serves && !runtime->grammars && !runtime->config.bidirectional)
        log_info("structured_outputs", strcmp(settings->constraints, "off") != 0
                                           ? "off: beside this model --memory has no room for them"
                                           : "off: --constraints off");
    status = make_engine(runtime, &plan, settings, factory, error);
    if (status != STATUS_OK)
        return status;
    gguf_close(runtime->gguf);
    runtime->gguf = NULL;
    name_model(runtime, settings);
    runtime->profile = settings->profile;
    runtime->cache_dir = settings->cache_dir != NULL;
    runtime->api.engine = runtime->engine;
    runtime->api.tokenizer = runtime->tokenizer;
    runtime->api.chat_template = runtime->chat_template;
    runtime->api.tool_template = runtime->tool_template;
    runtime->api.grammars = runtime->grammars;
    runtime->api.budget = &runtime->budget;
    runtime->api.max_model_len = engine_max_length(runtime->engine);
    runtime->api.max_choices =
        min_u32(max_u32(settings->max_seqs, LIMIT_CHOICES_QUEUED), LIMIT_CHOICES);
    set_pooling(runtime, pooling);
    runtime->api.timeout_ns = settings->timeout_seconds * 1000000000ull;
    runtime->api.created_unix_s = clock_unix_s();
    return STATUS_OK;
}

enum status runtime_create(const struct settings *settings, runtime_backend_factory factory,
                           struct runtime *out, struct error *error)
{
    memset(out, 0, sizeof *out);
    enum status status = load_all(out, settings, factory, error);
    if (status != STATUS_OK)
        runtime_destroy(out);
    return status;
}

/* While no step runs any more. */
static void log_profile(const struct backend *backend)
{
    struct backend_stage stages[BACKEND_STAGES_MAX];
    uint32_t count = backend->ops->profile ? backend->ops->profile(backend, stages) : 0;
    uint64_t total_ns = 0;
    for (uint32_t i = 0; i < count; i++)
        total_ns += stages[i].work_ns + stages[i].wait_ns;
    for (uint32_t i = 0; i < count; i++)
        log_info("profile", "%s: %.3f s at work (%.1f %%), %.3f s waiting for other threads",
                 stages[i].name, (double)stages[i].work_ns * 1e-9,
                 100.0 * (double)stages[i].work_ns / (double)(total_ns ? total_ns : 1),
                 (double)stages[i].wait_ns * 1e-9);
    if (count == 0)
        log_warn("profile", "the %s backend does not measure its parts", backend->name);
}

void runtime_destroy(struct runtime *runtime)
{
    if (runtime->engine)
        engine_destroy(runtime->engine);
    if (runtime->backend && runtime->profile)
        log_profile(runtime->backend);
    if (runtime->backend)
        runtime->backend->ops->destroy(runtime->backend);
    grammar_cache_destroy(runtime->grammars);
    chat_template_destroy(runtime->tool_template);
    chat_template_destroy(runtime->chat_template);
    if (runtime->tokenizer)
        tokenizer_destroy(runtime->tokenizer);
    if (runtime->gguf)
        gguf_close(runtime->gguf);
    if (runtime->workers)
        workers_destroy(runtime->workers);
    free(runtime->end_tokens);
    memset(runtime, 0, sizeof *runtime);
}
