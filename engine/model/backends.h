/*
 * The backends' constructors, and what they share. Private to engine/model/; model.c dispatches.
 */
#ifndef QUIRE_ENGINE_MODEL_BACKENDS_H
#define QUIRE_ENGINE_MODEL_BACKENDS_H

#include "engine/batch.h"
#include "engine/model/architecture.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

#include <stdint.h>

struct backend_start {
    const struct gguf *gguf;
    const struct model_details *details;
    const struct backend_options *options;
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *progress_arg;
};

/* The quantised model: packed weights, our kernels, one arithmetic. */
void quantized_sizes(const struct model_details *details, const struct backend_options *options,
                     struct model_sizes *out);
enum status quantized_create(const struct backend_start *start, struct backend **out,
                             struct error *error);

/* The reference: f32 weights, OpenBLAS's sgemm, f32 keys and values. */
void openblas_sizes(const struct model_details *details, const struct backend_options *options,
                    struct model_sizes *out);
enum status openblas_create(const struct backend_start *start, struct backend **out,
                            struct error *error);

#endif
