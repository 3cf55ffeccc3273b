/*
 * The door of engine/model/: describing a file, sizing, and choosing a backend.
 */
#include "engine/model/model.h"

#include "base/check.h"
#include "engine/model/architecture.h"
#include "engine/model/backends.h"
#include "engine/model/weights.h"

#include <string.h>

static enum status details_read(const struct gguf *gguf, struct model_details *details,
                                struct error *error)
{
    TRY(model_details_read(gguf, details, error));
    TRY(weights_check(gguf, details, error));
    double frequencies[MODEL_HEAD_DIM_MAX / 2]; /* refuse bad RoPE factors now, not after loading */
    float magnitude;
    return model_rope_frequencies(gguf, details, false, details->config.context, frequencies,
                                  &magnitude, error);
}

enum status model_describe(const struct gguf *gguf, struct model_config *out, struct error *error)
{
    struct model_details details;
    TRY(details_read(gguf, &details, error));
    *out = details.config;
    return STATUS_OK;
}

static bool is_openblas(const struct backend_options *options)
{
    return strcmp(options->backend, "openblas") == 0;
}

/* A synthetic model shape: what every family has. */
static const struct architecture plain_architecture = {.name = "plain"};

enum status model_check_kv_type(const struct model_config *config, enum kv_type type,
                                struct error *error)
{
    uint32_t block = kv_type_block(type);
    if (config->head_dim % block == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "kv-type",
                     "--kv-type: %s keeps keys and values in blocks of %u, and this model's heads "
                     "have %u dimensions, no multiple of that; use f16, bf16 or f32",
                     kv_type_name(type), block, config->head_dim);
}

void model_sizes(const struct gguf *gguf, const struct model_config *config,
                 const struct backend_options *options, struct model_sizes *out)
{
    struct model_details details = {.architecture = &plain_architecture};
    if (gguf) {
        enum status status = model_details_read(gguf, &details, NULL);
        CHECK(status == STATUS_OK); /* model_describe was fine */
    }
    details.config = *config;
    enum weights_form form = is_openblas(options) ? WEIGHTS_F32 : WEIGHTS_PACKED;
    *out = (struct model_sizes){0};
    out->weights = config->tensor_bytes;
    if (gguf) {
        out->weights = weights_bytes(gguf, &details, options->kernels, form);
        out->load_transient = weights_transient_bytes(gguf, &details, options->kernels,
                                                      workers_count(options->workers));
    }
    if (is_openblas(options))
        openblas_sizes(&details, options, out);
    else
        quantized_sizes(&details, options, out);
}

static enum status check_options(const struct model_config *config,
                                 const struct backend_options *options, struct error *error)
{
    if (strcmp(options->backend, "quantized") != 0 && !is_openblas(options))
        return error_set(error, STATUS_INVALID, "backend",
                         "unknown backend '%s' (known: quantized, openblas)", options->backend);
    uint32_t size = options->page_size;
    if (size != 8 && size != 16 && size != 32 && size != 64)
        return error_set(error, STATUS_INVALID, "page-size",
                         "pages of %u tokens: must be 8, 16, "
                         "32 or 64",
                         size);
    if (is_openblas(options) && config->bidirectional)
        return error_set(error, STATUS_UNSUPPORTED, "backend",
                         "the openblas backend does not run %s models", config->architecture);
    if (options->page_count < 2)
        return error_set(error, STATUS_INVALID, "memory", "no room for a single page");
    CHECK(options->max_batch_rows > 0 && options->logits_rows_max > 0 && options->context > 0);
    return is_openblas(options) ? STATUS_OK : model_check_kv_type(config, options->kv_type, error);
}

enum status model_backend_create(const struct gguf *gguf, const struct model_config *config,
                                 const struct backend_options *options,
                                 void (*progress)(void *arg, uint64_t done, uint64_t total),
                                 void *progress_arg, struct backend **out, struct error *error)
{
    TRY(check_options(config, options, error));
    struct model_details details;
    TRY(details_read(gguf, &details, error));
    CHECK(details.config.layers == config->layers); /* the same file */
    struct backend_start start = {gguf, &details, options, progress, progress_arg};
    return is_openblas(options) ? openblas_create(&start, out, error)
                                : quantized_create(&start, out, error);
}
