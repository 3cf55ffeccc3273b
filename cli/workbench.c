/* See workbench.h. */
#include "cli/workbench.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/minmax.h"
#include "sizing/plan.h"

#include <stdlib.h>
#include <string.h>

static enum status reserve(struct workbench *bench, const struct backend_options *backend,
                           const struct model_sizes *sizes, uint64_t total, struct error *error)
{
    /* The callers' rows, and two more that prove compares. */
    uint64_t logits = (backend->logits_rows_max + 2ull) * bench->config.vocabulary * sizeof(float);
    budget_init(&bench->budget, total);
    enum status status = budget_reserve(&bench->budget, BUDGET_WEIGHTS, sizes->weights, error);
    if (status == STATUS_OK)
        status = budget_reserve(&bench->budget, BUDGET_TOKENIZER,
                                tokenizer_memory_bytes(bench->tokenizer), error);
    if (status == STATUS_OK)
        status = budget_reserve(&bench->budget, BUDGET_SCRATCH,
                                sizes->scratch + sizes->load_transient + logits, error);
    if (status == STATUS_OK)
        status =
            budget_reserve(&bench->budget, BUDGET_KV, backend->page_count * sizes->page, error);
    return status;
}

static enum status open_backend(struct workbench *bench, const struct settings *settings,
                                const struct workbench_shape *shape, struct error *error)
{
    if (shape->positions > bench->config.context)
        return error_set(error, STATUS_INVALID, "tokens",
                         "%u tokens are more than the %u that the model was trained for",
                         shape->positions, bench->config.context);
    bench->page_size = settings->page_size;
    bench->table_pages = (shape->positions + settings->page_size - 1) / settings->page_size;
    struct backend_options backend = {
        .kernels = bench->kernels,
        .workers = bench->workers,
        .backend = shape->backend,
        .kv_type = plan_kv_type(settings, shape->backend),
        .page_size = settings->page_size,
        .max_batch_rows = shape->rows,
        .max_sequences = shape->sequences,
        .logits_rows_max = shape->logits_rows,
        .context = shape->positions,
    };
    enum status status = model_check_kv_type(&bench->config, backend.kv_type, error);
    if (status != STATUS_OK)
        return status;
    struct model_sizes sizes;
    model_sizes(bench->gguf, &bench->config, &backend, &sizes);
    bench->page_bytes = sizes.page;
    bench->pages_each = sizes.groups.count * bench->table_pages;
    uint64_t page_count = (uint64_t)shape->sequences * bench->pages_each + 1;
    if (page_count > UINT32_MAX)
        return error_set(error, STATUS_INVALID, "tokens", "that is more than fits any memory");
    backend.page_count = (uint32_t)page_count;
    status = reserve(bench, &backend, &sizes, settings->memory_bytes, error);
    if (status != STATUS_OK)
        return status;
    bench->pages = malloc((page_count - 1) * sizeof *bench->pages);
    if (!bench->pages)
        return error_out_of_memory(error);
    for (uint32_t i = 0; i + 1 < page_count; i++)
        bench->pages[i] = i + 1;
    return model_backend_create(bench->gguf, &bench->config, &backend, NULL, NULL, &bench->backend,
                                error);
}

enum status workbench_open(const struct settings *settings, const struct workbench_shape *shape,
                           struct workbench *out, struct error *error)
{
    CHECK(shape->sequences >= 1 && shape->positions >= 1 && shape->rows >= 1);
    memset(out, 0, sizeof *out);
    enum status status = kernels_select(settings->kernels, &out->kernels, error);
    if (status == STATUS_OK)
        status = workers_create(settings->threads, &out->workers, error);
    if (status == STATUS_OK)
        status =
            gguf_open_within(settings->model_path, plan_header_bytes(settings), &out->gguf, error);
    if (status == STATUS_OK)
        status = model_describe(out->gguf, &out->config, error);
    if (status == STATUS_OK && out->config.bidirectional)
        status = error_set(error, STATUS_UNSUPPORTED, "model",
                           "%s is a %s model, which generates no text: there is nothing to measure "
                           "here but for quire serve",
                           out->config.name, out->config.architecture);
    if (status == STATUS_OK)
        status = tokenizer_create(out->gguf, &out->tokenizer, error);
    if (status == STATUS_OK)
        status = open_backend(out, settings, shape, error);
    if (status != STATUS_OK)
        workbench_close(out);
    return status;
}

void workbench_close(struct workbench *bench)
{
    if (bench->backend)
        bench->backend->ops->destroy(bench->backend);
    free(bench->pages);
    if (bench->tokenizer)
        tokenizer_destroy(bench->tokenizer);
    if (bench->gguf)
        gguf_close(bench->gguf);
    workers_destroy(bench->workers);
    memset(bench, 0, sizeof *bench);
}

struct batch_sequence workbench_sequence(const struct workbench *bench, uint32_t sequence,
                                         uint32_t first_position, uint32_t row_count)
{
    return (struct batch_sequence){
        .row_count = row_count,
        .first_position = first_position,
        .pages = bench->pages + (size_t)sequence * bench->pages_each,
        .page_count = bench->table_pages,
        .group_stride = bench->table_pages,
    };
}

void workbench_run(struct workbench *bench, uint32_t sequence, const uint32_t *tokens,
                   uint32_t first, uint32_t count, float *logits)
{
    struct backend *backend = bench->backend;
    for (uint32_t done = 0; done < count;) {
        uint32_t left = count - done;
        uint32_t rows = min_u32(left, backend->max_batch_rows);
        uint32_t last_row = rows - 1;
        struct batch_sequence piece = workbench_sequence(bench, sequence, first + done, rows);
        struct batch batch = {
            .row_count = rows,
            .tokens = tokens + done,
            .sequence_count = 1,
            .sequences = &piece,
            .logits_row_count = logits && rows == left ? 1 : 0,
            .logits_rows = &last_row,
        };
        backend->ops->forward(backend, &batch);
        if (batch.logits_row_count) /* while the batch is there: backends look at it again */
            backend->ops->logits(backend, 0, 1, logits);
        done += rows;
    }
}

uint32_t workbench_argmax(const float *logits, uint32_t vocabulary)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocabulary; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}
