/*
 * A model: its description, its packed weights, and the backends that run it.
 *
 * Start order: model_describe (cheap, header only) → sizes → budget → model_backend_create.
 * model_describe refuses unknown architectures, formats and shapes by name.
 */
#ifndef QUIRE_ENGINE_MODEL_MODEL_H
#define QUIRE_ENGINE_MODEL_MODEL_H

#include "base/error.h"
#include "engine/batch.h"
#include "engine/kernels/kernels.h"
#include "engine/model/config.h"
#include "engine/model/gguf.h"

#include <stdint.h>

enum status model_describe(const struct gguf *gguf, struct model_config *out, struct error *error);

/* Can the model's heads be kept in this type? STATUS_INVALID (param "kv-type") naming both if not.
 */
enum status model_check_kv_type(const struct model_config *config, enum kv_type type,
                                struct error *error);

/* options->page_count may be 0 here; kv_type is one that model_check_kv_type accepts. Without a
   file (gguf NULL) the model is what `config` says: weights are its tensor_bytes as they stand,
   nothing is loaded, layers are a plain family's. */
void model_sizes(const struct gguf *gguf, const struct model_config *config,
                 const struct backend_options *options, struct model_sizes *out);

/* Load weights, allocate pool and scratch, return a ready backend. Errors: STATUS_IO (file,
   memory), STATUS_UNSUPPORTED, STATUS_INVALID for options. `progress` (may be NULL) is called with
   bytes done and total. */
enum status model_backend_create(const struct gguf *gguf, const struct model_config *config,
                                 const struct backend_options *options,
                                 void (*progress)(void *arg, uint64_t done, uint64_t total),
                                 void *progress_arg, struct backend **out, struct error *error);

#endif
