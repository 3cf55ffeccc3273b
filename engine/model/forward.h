/*
 * The forward pass, one function per sub-layer, over tiles of rows. Private to engine/model/.
 *
 * A tile is some rows that go through a sub-layer together; how a step is cut into tiles and who
 * computes which part of a tile is quantized.c's. Nothing here depends on the cut: every value is a
 * function of its own row (and of the keys and values before it), which is what makes an answer
 * independent of its batch.
 *
 *   x ── attention_norm ── q,k,v ── (norm, RoPE) ── keys, values into pages
 *   │                       └────── attention ── attended ── output ──(post norm)── + x
 *   └── feed_norm ── gate, up ── act(gate)·up ── down ──(post norm)── + x
 */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_H
#define QUIRE_ENGINE_MODEL_FORWARD_H

#include "base/limits.h"
#include "engine/batch.h"
#include "engine/model/architecture.h"
#include "engine/model/kv_groups.h"
#include "engine/model/weights.h"

#include <stdint.h>

struct forward {
    /* fixed after start */
    const struct kernels *kernels;
    struct model_details details;
    struct weights weights;
    struct kv_layout kv;
    uint32_t groups; /* of pages */
    struct kv_place places[LIMIT_LAYERS];
    double frequencies[2][MODEL_HEAD_DIM_MAX / 2]; /* [0] all layers, or [1] those with a window */
    float magnitude[2];
    uint32_t bases;      /* 1 or 2: RoPE tables in use */
    uint32_t unit_heads; /* heads per work unit: the fewest that fill whole row groups */
    uint32_t kv_units;   /* units of key and value heads, first in the order of units */
    uint32_t query_units;
    /* scratch, for every row of a batch */
    float *x;                   /* [rows][embedding] residual stream */
    float *q;                   /* [rows][heads·head_dim] */
    float *attended;            /* [rows][heads·head_dim]; in the last layer [logits rows] */
    float *hidden;              /* [logits rows][embedding] of the last layer, at the end normed */
    float *cosine[2], *sine[2]; /* [rows][rotary/2] */
    uint64_t *slots;            /* [groups][rows] page·page_size + offset */
    uint32_t slot_stride;       /* rows of a batch at most */
    uint32_t *positions;        /* [rows] */
    /* the step */
    const struct batch *batch;
};

/* Buffers of a tile: rows of one thread, or of all threads together. */
struct workspace {
    float *normed;        /* [rows][embedding] */
    void *quantized;      /* the widest input, quantized */
    float *keys, *values; /* [rows][kv_heads·head_dim] */
    float *gate, *up;     /* [rows][feed_forward] */
    float *projected;     /* [rows][embedding], only with post norms */
};

struct tile {
    uint32_t first; /* batch row of the tile's first row; not used after attention */
    uint32_t rows;
    float *x;              /* [rows][embedding] */
    const float *attended; /* [rows][heads·head_dim] */
    struct workspace work;
};

/* A stretch of queries of one sequence. */
struct query_tile {
    uint32_t sequence; /* in the batch */
    uint32_t row;      /* batch row of the first query */
    uint32_t count;    /* <= KERNEL_QUERY_TILE */
    uint32_t out_row;  /* in `attended` */
};

/* Embeddings, RoPE angles, of batch rows [first, first + count). */
void forward_embed(struct forward *forward, uint32_t first, uint32_t count);

/* Rows [from, from + count) of the tile: work.normed = norm(x), quantized for the next matrices. */
void forward_norm_attention(const struct forward *forward, uint32_t layer, const struct tile *tile,
                            uint32_t from, uint32_t count);
void forward_norm_feed(const struct forward *forward, uint32_t layer, const struct tile *tile,
                       uint32_t from, uint32_t count);
/* The same of `attended` and of work.gate as they are. */
void forward_quantize_attended(const struct forward *forward, uint32_t layer,
                               const struct tile *tile, uint32_t from, uint32_t count);
void forward_quantize_gate(const struct forward *forward, uint32_t layer, const struct tile *tile,
                           uint32_t from, uint32_t count);

/* Unit 0 … kv_units - 1: keys and values of some heads, rotated and stored in their pages; then
   query_units units of queries, rotated, into forward->q. */
void forward_qkv_unit(const struct forward *forward, uint32_t layer, const struct tile *tile,
                      uint32_t unit);

/* Attention of one query tile with one KV head: for kernels->attention, which wants scratch too,
   or for forward_fetch, which asks for its first keys and values before they are needed. */
struct attention_task forward_attention(const struct forward *forward, uint32_t layer,
                                        const struct query_tile *queries, uint32_t kv_head);
void forward_fetch(const struct attention_task *task);

/* Row groups [first, first + groups) of the output projection: added to x, or, when there is a post
   norm, into work.projected. */
void forward_output(const struct forward *forward, uint32_t layer, const struct tile *tile,
                    uint32_t first, uint32_t groups);
/* Row groups of gate and up, and the gate's activation times up, into work.gate. */
void forward_gate_up(const struct forward *forward, uint32_t layer, const struct tile *tile,
                     uint32_t first, uint32_t groups);
void forward_down(const struct forward *forward, uint32_t layer, const struct tile *tile,
                  uint32_t first, uint32_t groups);

/* x += post norm(work.projected); only when the family has these norms. */
void forward_post_attention(const struct forward *forward, uint32_t layer, const struct tile *tile,
                            uint32_t from, uint32_t count);
void forward_post_feed(const struct forward *forward, uint32_t layer, const struct tile *tile,
                       uint32_t from, uint32_t count);

/* hidden row = final norm of it. */
void forward_final_norm(const struct forward *forward, uint32_t first, uint32_t count);

static inline bool forward_has_post_norms(const struct forward *forward)
{
    return (forward->details.architecture->features & FEATURE_POST_NORMS) != 0;
}

/* Row groups of a matrix of n rows. */
static inline uint32_t forward_groups(uint32_t n)
{
    return (n + KERNEL_ROW_BLOCK - 1) / KERNEL_ROW_BLOCK;
}

/* Are this matrix's inputs used in their quantized form? */
static inline bool forward_reads_quantized(const struct repacked_matrix *matrix)
{
    return format_is_quantized(matrix->format);
}

#endif
