/*
 * The quantized backend: its lifecycle, memory, and operations. forward_pass.h runs a batch.
 *
 * Weights are repacked once for the chosen kernels, keys and values lie in one pool of pages, and
 * nothing is allocated after create: what create maps is what quantized_sizes announced. Called
 * through backend_ops by the engine thread only.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/checksum.h"
#include "engine/model/backends.h"
#include "engine/model/forward_pass.h"
#include "engine/model/memory.h"

#include <stdlib.h>
#include <string.h>

struct quantized {
    struct backend base;
    struct forward_pass pass;
    uint64_t pool_bytes;
    void *scratch;
    uint64_t scratch_bytes;
};

void quantized_sizes(const struct model_details *details, const struct backend_options *options,
                     struct model_sizes *out)
{
    struct quantized model = {0};
    struct arena arena = {0};
    forward_pass_lay_out(&model.pass, details, options, &arena);
    out->scratch = memory_map_bytes(arena.used_bytes) + sizeof model;
    struct model_groups groups = layer_groups_of(&details->config);
    out->groups = groups.groups;
    out->page = kv_page_bytes(options->kv_type, groups.layers, details->config.kv_heads,
                              details->config.head_dim, options->page_size);
}

/* ---- The backend's operations ---- */

static struct forward_pass *pass_of(struct backend *backend)
{
    return &((struct quantized *)backend)->pass;
}

static void quantized_forward(struct backend *backend, const struct batch *batch)
{
    forward_pass_run(pass_of(backend), batch);
}

static void quantized_logits(struct backend *backend, uint32_t first, uint32_t count, float *out)
{
    CHECK(count <= backend->logits_rows_max);
    forward_pass_logits(pass_of(backend), first, count, out);
}

static const float *quantized_hidden(const struct backend *backend, uint32_t row)
{
    return forward_pass_hidden(&((const struct quantized *)backend)->pass, row);
}

static void quantized_scores(struct backend *backend, uint32_t row, float *out)
{
    CHECK(backend->score_count > 0);
    forward_pass_scores(pass_of(backend), row, out);
}

static void quantized_copy_page(struct backend *backend, uint32_t from_page, uint32_t to_page)
{
    const struct kv_layout *kv = &pass_of(backend)->forward.kv;
    CHECK(from_page < backend->page_count && to_page < backend->page_count && from_page != to_page);
    memcpy(kv->pool + to_page * kv->page_bytes, kv->pool + from_page * kv->page_bytes,
           kv->page_bytes);
}

static void *quantized_page(struct backend *backend, uint32_t page)
{
    const struct kv_layout *kv = &pass_of(backend)->forward.kv;
    CHECK(page > 0 && page < backend->page_count);
    return kv->pool + page * kv->page_bytes;
}

static void quantized_destroy(struct backend *backend)
{
    struct quantized *model = (struct quantized *)backend;
    weights_deinit(&model->pass.forward.weights);
    memory_unmap(model->pass.forward.kv.pool, model->pool_bytes);
    memory_unmap(model->scratch, model->scratch_bytes);
    free(model);
}

static uint32_t quantized_profile(const struct backend *backend,
                                  struct backend_stage out[static BACKEND_STAGES_MAX])
{
    return forward_pass_profile(&((const struct quantized *)backend)->pass, out);
}

static const struct backend_ops quantized_ops = {
    .forward = quantized_forward,
    .logits = quantized_logits,
    .hidden = quantized_hidden,
    .scores = quantized_scores,
    .copy_page = quantized_copy_page,
    .page = quantized_page,
    .profile = quantized_profile,
    .destroy = quantized_destroy,
};

/* ---- Create ---- */

static void set_units(struct forward *forward)
{
    const struct model_config *config = &forward->details.config;
    forward->unit_heads = 1;
    while (forward->unit_heads * config->head_dim % KERNEL_ROW_BLOCK != 0)
        forward->unit_heads++;
    forward->kv_units = (config->kv_heads + forward->unit_heads - 1) / forward->unit_heads;
    forward->query_units = (config->heads + forward->unit_heads - 1) / forward->unit_heads;
}

static enum status set_rotation(struct forward *forward, const struct backend_start *start,
                                struct error *error)
{
    forward->bases = start->details->local_rope_base > 0.0f ? 2 : 1;
    for (uint32_t base = 0; base < forward->bases; base++) {
        TRY(model_rope_frequencies(start->gguf, start->details, base == 1, start->options->context,
                                   forward->frequencies[base], &forward->magnitude[base], error));
    }
    return STATUS_OK;
}

static enum status map_memory(struct quantized *model, const struct backend_start *start,
                              struct error *error)
{
    const struct backend_options *options = start->options;
    const struct model_config *config = &start->details->config;
    struct forward *forward = &model->pass.forward;
    struct arena arena = {0};
    forward_pass_lay_out(&model->pass, start->details, options, &arena);
    model->scratch_bytes = arena.used_bytes;
    TRY(memory_map(model->scratch_bytes, "scratch", &model->scratch, error));
    arena = (struct arena){.memory = model->scratch};
    forward_pass_lay_out(&model->pass, start->details, options, &arena);
    struct model_groups groups = layer_groups_of(config);
    layer_groups_places(start->details, forward->places);
    forward->groups = groups.groups.count;
    forward->slot_stride = options->max_batch_rows;
    forward->kv = kv_layout_of(options->kv_type, groups.layers, config->kv_heads, config->head_dim,
                               options->page_size);
    if (!bytes_multiply(options->page_count, forward->kv.page_bytes, &model->pool_bytes))
        return error_set(error, STATUS_IO, NULL, "the page pool does not fit the address space");
    void *pool;
    TRY(memory_map(model->pool_bytes, "page pool", &pool, error));
    forward->kv.pool = pool;
    return STATUS_OK;
}

enum status quantized_create(const struct backend_start *start, struct backend **out,
                             struct error *error)
{
    const struct backend_options *options = start->options;
    struct quantized *model = calloc(1, sizeof *model);
    if (!model)
        return error_set(error, STATUS_IO, NULL, "no memory for the backend");
    struct forward *forward = &model->pass.forward;
    forward->kernels = options->kernels;
    forward->details = *start->details;
    model->pass.workers = options->workers;
    model->pass.threads = workers_count(options->workers);
    set_units(forward);
    struct weights_loader loader = {start->gguf,        start->details, options->kernels,
                                    options->workers,   WEIGHTS_PACKED, start->progress,
                                    start->progress_arg};
    enum status status;
    if ((status = set_rotation(forward, start, error)) ||
        (status = map_memory(model, start, error)) ||
        (status = weights_load(&loader, &forward->weights, error))) {
        quantized_destroy(&model->base);
        return status;
    }
    forward_pass_init(&model->pass);
    model->base = (struct backend){
        .ops = &quantized_ops,
        .name = "quantized",
        .kernels = options->kernels->name,
        .kv_type = kv_type_name(options->kv_type),
        .weights_checksum = forward->weights.checksum,
        .rotation =
            checksum_bytes(forward->magnitude, sizeof forward->magnitude,
                           checksum_bytes(forward->frequencies, sizeof forward->frequencies, 0)),
        .vocabulary = start->details->config.vocabulary,
        .hidden_width = start->details->config.embedding,
        .score_count = start->details->config.labels,
        .bidirectional = start->details->config.bidirectional,
        .page_count = options->page_count,
        .page_size = options->page_size,
        .page_bytes = forward->kv.page_bytes,
        .groups = layer_groups_of(&start->details->config).groups,
        .max_batch_rows = options->max_batch_rows,
        .max_sequences = options->max_sequences,
        .logits_rows_max = options->logits_rows_max,
    };
    *out = &model->base;
    return STATUS_OK;
}
