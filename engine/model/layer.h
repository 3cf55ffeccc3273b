/*
 * The transformer layer as a table of sub-layers, over tiles of tokens. Private to engine/model/.
 *
 * A tile is some tokens that go through a sub-layer together. How a step is cut into tiles, and who
 * computes which part of a tile, is forward_pass.c's. Nothing here depends on the cut: every value is a
 * function of its own token (and of the keys and values before it), which is what makes an answer
 * independent of its batch.
 *
 *   x ── attention_norm ── q, k, v ── (norm, RoPE) ── keys, values into pages
 *   │                          └───── attention ── attended ── output ──(post norm)── + x
 *   └── ffn_norm ── gate, up ── act(gate)·up ── down ──(post norm)── + x
 *
 * An encoder's layer norms stand behind its halves:
 *
 *   x ── q, k, v ── attention ── attended ── output ── + x ── attention_output_norm ── x
 *   └── up ── act(up) ── down ── + x ── layer_output_norm ── x
 */
#ifndef QUIRE_ENGINE_MODEL_LAYER_H
#define QUIRE_ENGINE_MODEL_LAYER_H

#include "base/limits.h"
#include "engine/batch.h"
#include "engine/model/architecture.h"
#include "engine/model/layer_groups.h"
#include "engine/model/weights.h"

#include <stdint.h>

struct forward {
    /* fixed after start */
    const struct kernels *kernels;
    struct model_details details;
    struct weights weights;
    struct kv_layout kv;
    uint32_t groups; /* of layers, and so of page tables */
    struct kv_place places[LIMIT_LAYERS];
    double frequencies[2][MODEL_HEAD_DIM_MAX / 2]; /* [0] all layers, or [1] those with a window */
    float magnitude[2];
    uint32_t bases;      /* 1 or 2: RoPE tables in use */
    uint32_t unit_heads; /* heads per work unit: the fewest that fill whole row blocks */
    uint32_t kv_units;   /* units of key and value heads, first in the order of units */
    uint32_t query_units;
    /* scratch, for every token of a batch */
    float *x;                   /* [tokens][embedding] residual stream */
    float *q;                   /* [tokens][heads·head_dim] */
    float *attended;            /* [tokens][heads·head_dim]; in the last layer [logits rows] */
    float *hidden;              /* [logits rows][embedding] of the last layer, at the end normed */
    float *cosine[2], *sine[2]; /* [tokens][rotary/2] */
    uint64_t *slots;            /* [groups][tokens] page·page_size + offset */
    uint32_t slot_stride;       /* tokens of a batch at most */
    uint32_t *positions;        /* [tokens] */
    uint8_t *types;             /* [tokens] token types, of encoders */
    /* the step */
    const struct batch *batch;
};

/* Buffers of a tile: tokens of one thread, or of all threads together. */
struct workspace {
    float *normed;        /* [tokens][embedding] */
    void *quantized;      /* the widest input, quantized */
    float *keys, *values; /* [tokens][kv_heads·head_dim] */
    float *gate, *up;     /* [tokens][feed_forward] */
    float *projected;     /* [tokens][embedding], only with post norms */
};

struct tile {
    uint32_t first; /* batch row of the tile's first token; not used after attention */
    uint32_t tokens;
    float *x;              /* [tokens][embedding] */
    const float *attended; /* [tokens][heads·head_dim] */
    struct workspace work;
};

/* ---- The table ---- */

/* What a sub-layer's work divides into, and so how threads may share it. */
enum share {
    SHARE_INPUTS,  /* tokens, each written to the workspace only: a thread may do all for itself */
    SHARE_TOKENS,  /* tokens, each added to x */
    SHARE_HEADS,   /* units of key and value heads, then of query heads */
    SHARE_OUTPUTS, /* row blocks of the matrix */
    SHARE_ATTENTION, /* query tiles and KV heads of the whole batch, when all have their keys */
};

/* Parts of a step whose time is measured. */
enum stage {
    STAGE_EMBED,
    STAGE_ROWS,
    STAGE_QKV,
    STAGE_ATTENTION,
    STAGE_OUTPUT,
    STAGE_FFN_UP,
    STAGE_FFN_DOWN,
    STAGE_HEAD,
    STAGE_COUNT
};

/* Parts [first, first + count) of what the sub-layer's work divides into. */
typedef void sublayer_fn(const struct forward *forward, uint32_t layer, const struct tile *tile,
                         uint32_t first, uint32_t count);

struct sublayer {
    sublayer_fn *run; /* NULL for attention, whose tasks are of the batch and not of a tile */
    enum share share;
    enum stage stage; /* whose time it is */
    size_t matrix;    /* in struct layer_weights: what it reads first; of HEADS and OUTPUTS */
    unsigned with;    /* only in families with this feature; 0: in all */
    unsigned without; /* only in families without it */
};

/* In the order of the maths; LAYER_LENGTH entries, one of them attention. */
#define LAYER_LENGTH 14u
extern const struct sublayer LAYER[LAYER_LENGTH];

/* The sub-layer has a matrix whose weights are worth prefetching. */
static inline bool sublayer_has_matrix(const struct sublayer *sublayer)
{
    return sublayer->share == SHARE_HEADS || sublayer->share == SHARE_OUTPUTS;
}

static inline const struct repacked_matrix *
sublayer_matrix(const struct forward *forward, const struct sublayer *sublayer, uint32_t layer)
{
    const char *weights = (const char *)&forward->weights.layers[layer];
    return (const struct repacked_matrix *)(const void *)(weights + sublayer->matrix);
}

/* Does this family have it? */
static inline bool sublayer_applies(const struct forward *forward, const struct sublayer *sublayer)
{
    unsigned features = forward->details.architecture->features;
    return (!sublayer->with || features & sublayer->with) && !(features & sublayer->without);
}

/* ---- Around the layers ---- */

/* Embeddings and RoPE angles of batch rows [first, first + count). */
void layer_embed(struct forward *forward, uint32_t first, uint32_t count);

/* hidden row = final norm of it. */
void layer_final_norm(const struct forward *forward, uint32_t first, uint32_t count);

/* ---- Attention's tasks ---- */

/* A stretch of queries of one sequence. */
struct query_tile {
    uint32_t sequence; /* in the batch */
    uint32_t row;      /* batch row of the first query */
    uint32_t count;    /* <= KERNEL_QUERY_TILE */
    uint32_t out_row;  /* in `attended` */
};

/* Attention of one query tile with one KV head: for kernels->attention, which wants scratch too,
   or for layer_prefetch_kv, which asks for its first keys and values before they are needed. */
struct attention_task layer_attention_task(const struct forward *forward, uint32_t layer,
                                           const struct query_tile *queries, uint32_t kv_head);
void layer_prefetch_kv(const struct attention_task *task);

#endif
