/*
 * What differs from one family of models to the next, as one table, and a model file's own numbers
 * read against it.
 *
 * Private to engine/model/. The forward pass asks these fields and never the family's name, so a
 * new family is a row here, and code only where it does something no other does. What is read from
 * the file is checked here, before anything is allocated from it; errors name the key.
 */
#ifndef QUIRE_ENGINE_MODEL_ARCHITECTURE_H
#define QUIRE_ENGINE_MODEL_ARCHITECTURE_H

#include "base/limits.h"
#include "engine/model/config.h"
#include "engine/model/gguf.h"

#include <stdbool.h>
#include <stdint.h>

enum architecture_feature {
    FEATURE_QK_NORM = 1,          /* RMS norm of every query and key head before RoPE */
    FEATURE_POST_NORMS = 2,       /* norms of the sub-layers' results before they are added */
    FEATURE_FUSED_QKV = 4,        /* one tensor attn_qkv, rows q then k then v */
    FEATURE_FUSED_GATE_UP = 8,    /* ffn_up holds the gate's rows first */
    FEATURE_QKV_BIAS = 16,        /* must be there; in other families they are used when there */
    FEATURE_POST_LAYER_NORM = 32, /* x = layer norm(x + result) behind each half of the layer, with
                                     biases, in place of RMS norms before it */
    FEATURE_NO_GATE = 64,         /* the feed-forward network is down(GELU(up)) */
};

struct architecture {
    const char *name; /* general.architecture, and the prefix of its keys */
    unsigned features;
    bool neox;              /* RoPE turns (i, i + rotary/2), not (2i, 2i + 1) */
    bool encoder;           /* tokens see what follows them */
    bool learned_positions; /* position_embd.weight in place of RoPE */
    bool gelu;              /* the gate's activation; else SiLU */
    bool scaled_embedding;  /* embeddings are multiplied by sqrt(width) */
    bool score_cap;         /* attn_logit_softcapping must be there; elsewhere it may be */
    bool final_cap;         /* final_logit_softcapping must be there; elsewhere it may be */
    uint32_t window_period; /* every n-th layer sees all, the others a window; 0: none has one. */
                            /* WINDOW_EVERYWHERE: all have one if the file has its size */
    float local_rope_base;  /* of the layers with a window; 0: as all. The file may say another */
    uint32_t odd_layers;    /* with this number of layers queries are scaled by … */
                            /* 1/sqrt(width/heads) instead of 1/sqrt(head_dim) */
};

#define WINDOW_EVERYWHERE UINT32_MAX

enum rope_scaling { ROPE_NONE, ROPE_LINEAR, ROPE_YARN, ROPE_LONG };

struct model_details {
    struct model_config config;
    const struct architecture *architecture;
    float attention_scale;
    float score_cap;          /* 0: none */
    float final_cap;          /* 0: none */
    float embedding_scale;    /* 1: none */
    bool local[LIMIT_LAYERS]; /* the layers that see only config.window */
    float local_rope_base;    /* of these layers; 0: as all */
    enum rope_scaling rope_scaling;
    float rope_factor;
    float rope_attn_factor; /* sine and cosine are multiplied with it */
    float yarn_attn_factor; /* in place of YaRN's own, a second factor; 0: that */
    float yarn_beta_fast, yarn_beta_slow;
    uint32_t rope_original; /* context before scaling */
};

#define MODEL_HEAD_DIM_MAX 512u

/* Read and check the metadata. STATUS_UNSUPPORTED for what we do not do, STATUS_INVALID for a file
   that contradicts itself. Tensors are weights.c's. */
enum status model_details_read(const struct gguf *gguf, struct model_details *out,
                               struct error *error);

/* Does this layer see only the window? */
bool model_layer_is_local(const struct model_details *details, uint32_t layer);

/* Angle per position of each rotated pair [rotary/2], scalings included, and what sine and cosine
   are multiplied with. `context` is the longest sequence that will be served (longrope chooses by
   it). */
enum status model_rope_frequencies(const struct gguf *gguf, const struct model_details *details,
                                   bool local, uint32_t context, double *frequencies,
                                   float *magnitude, struct error *error);

#endif
