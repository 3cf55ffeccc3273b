/*
 * A model's tensors: which must be there in which shape, what they take, and loading them into one
 * private block of memory.
 *
 * One table of tensors (weights.c) serves checking, sizing and loading, so the three cannot differ.
 * Tensors are read in pieces and packed once; fused tensors become separate matrices here, so the
 * forward pass does not know about them. Private to engine/model/.
 */
#ifndef QUIRE_ENGINE_MODEL_WEIGHTS_H
#define QUIRE_ENGINE_MODEL_WEIGHTS_H

#include "engine/model/architecture.h"

#include <stdbool.h>
#include <stdint.h>

struct layer_weights {
    struct repacked_matrix q;                   /* [heads·head_dim][embedding] */
    struct repacked_matrix k, v;                /* [kv_heads·head_dim][embedding] */
    struct repacked_matrix output;              /* [embedding][heads·head_dim] */
    struct repacked_matrix gate, up;            /* [feed_forward][embedding] */
    struct repacked_matrix down;                /* [embedding][feed_forward] */
    float *attention_norm, *ffn_norm;           /* [embedding] */
    float *post_attention_norm, *post_ffn_norm; /* [embedding] or NULL */
    float *q_norm, *k_norm;                     /* [head_dim] or NULL */
    float *q_bias, *k_bias, *v_bias;            /* as the matrices' rows, or NULL */
    float *output_bias, *down_bias;             /* [embedding] or NULL: with post layer norms */
    float *up_bias;                             /* [feed_forward] or NULL */
    float *post_attention_bias, *post_ffn_bias; /* [embedding]: of the layer norms, whose weights
                                                   are the post norms' */
};

enum weights_form {
    WEIGHTS_PACKED, /* as the kernels want them */
    WEIGHTS_F32,    /* plain f32 rows, format FORMAT_F32: for BLAS */
};

struct weights {
    void *memory; /* one block; everything below lies in it */
    uint64_t bytes;
    uint64_t checksum; /* of all that was read of the file, the same for any form and threads */
    struct layer_weights *layers;
    float *output_norm;                          /* NULL: the last layer's is the last */
    float *embedding_norm, *embedding_norm_bias; /* NULL: none */
    struct repacked_matrix positions;            /* [context][embedding], or no rows */
    struct repacked_matrix types;                /* [token_types][embedding], or no rows */
    struct repacked_matrix dense;  /* [embedding][embedding] of the classification head, or none */
    struct repacked_matrix labels; /* [labels][embedding] */
    float *dense_bias, *label_bias;
    struct repacked_matrix embedding; /* [vocabulary][embedding] */
    struct repacked_matrix head;      /* the same data as embedding when tied */
};

/* Check every tensor against the details, set the config's vocabulary, tied_output, parameter_count
   and tensor_bytes. Tensors that no rule names are logged and ignored, biases and formats that we
   do not compute are refused by name. Allocates nothing. */
enum status weights_check(const struct gguf *gguf, struct model_details *details,
                          struct error *error);

/* Bytes of the block that weights_load maps, exactly; and of its transient buffers. */
uint64_t weights_bytes(const struct gguf *gguf, const struct model_details *details,
                       const struct kernels *kernels, enum weights_form form);
uint64_t weights_transient_bytes(const struct gguf *gguf, const struct model_details *details,
                                 const struct kernels *kernels, unsigned threads);

struct weights_loader {
    const struct gguf *gguf;
    const struct model_details *details;
    const struct kernels *kernels;
    struct workers *workers; /* pack in parallel */
    enum weights_form form;
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_arg;
};

/* Load everything and let the file's page cache go. On failure nothing is left. */
enum status weights_load(const struct weights_loader *loader, struct weights *out,
                         struct error *error);
void weights_deinit(struct weights *weights); /* zeroed weights are fine */

#endif
