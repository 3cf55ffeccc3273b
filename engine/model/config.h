/*
 * What a model is and how it is to be run: plain data that every file of engine/model/ works on.
 * model.h is what other folders include.
 */
#ifndef QUIRE_ENGINE_MODEL_CONFIG_H
#define QUIRE_ENGINE_MODEL_CONFIG_H

#include "base/workers.h"
#include "engine/batch.h"
#include "engine/kernels/kernels.h"
#include "pager/kv_groups.h"

#include <stdint.h>

/* The version of "One arithmetic": raised by whoever changes a bit of what is computed (a scalar
   kernel, an order of operations, a layout of keys and values in kernels/kv.h). Pages on disk that
   another version computed are not used. */
#define MODEL_ARITHMETIC 1u

struct model_config {
    char architecture[32];
    char name[128]; /* general.name, or the architecture */
    uint32_t layers;
    uint32_t embedding; /* width of the residual stream */
    uint32_t feed_forward;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t rotary;     /* rotated dimensions per head */
    uint32_t vocabulary; /* rows of the output head */
    uint32_t context;    /* trained length */
    uint32_t window;     /* positions that window_layers see, the last ones; 0: none has one */
    uint32_t window_layers;
    float norm_eps;
    float rope_base;
    bool bidirectional;   /* an encoder: tokens see what follows them, and nothing is generated */
    enum pooling pooling; /* as the file says; POOLING_NONE: it does not say */
    uint32_t token_types; /* rows of token_types.weight; 0: it has none */
    uint32_t labels;      /* outputs of the classification head; 0: it has none */
    bool tied_output;     /* output.weight absent: the embedding is the head */
    uint64_t parameter_count;
    uint64_t tensor_bytes; /* of all tensors used, as in the file */
};

/* How a model's layers divide into KV cache groups. */
struct model_groups {
    struct kv_groups groups;
    uint32_t layers; /* places for layers in a page; in the last group some may stay unused */
};

/* Groups of equally many layers, those that see all first; all layers have the same window. A model
   is one group and kept whole when no layer has a window, when none sees all, or when there would
   be too many groups. */
struct model_groups model_groups_of(uint32_t layers, uint32_t window_layers, uint32_t window);

/* Sizes for the budget, before anything large is allocated. All in bytes. */
struct model_sizes {
    uint64_t weights; /* packed weights, norms, RoPE tables */
    uint64_t scratch; /* activations for max_batch_rows rows, attention scratch per thread,
                         logits_rows_max rows of logits are NOT included (the engine's) */
    uint64_t page;    /* one KV page: page_size tokens for the layers of one group */
    struct kv_groups groups;
    uint64_t load_transient; /* read buffers, freed when loading ends */
};

struct backend_options {
    const struct kernels *kernels;
    struct workers *workers; /* outlives the backend */
    const char *backend;     /* "quantized" or "openblas" */
    enum kv_type kv_type;    /* of the quantized backend; openblas's is f32 */
    uint32_t page_size;
    uint32_t page_count; /* page 0 included */
    uint32_t max_batch_rows;
    uint32_t max_sequences;
    uint32_t logits_rows_max;
    uint32_t context; /* longest sequence: RoPE tables */
};

#endif
