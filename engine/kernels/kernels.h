/*
 * Kernels: one scalar specification (scalar.c), one file per instruction set that equals it bit for
 * bit, chosen at start. docs/ARCHITECTURE.md, "One arithmetic", is what the specification fixes.
 *
 * Who may include this: engine/model/. Everything here is stateless; any thread; no allocation.
 * Matrices are packed once at load into rows interleaved for the chosen instruction set (lanes are
 * outputs). Output ranges are in units of KERNEL_ROW_GROUP rows so that threads can split a matrix.
 */
#ifndef QUIRE_ENGINE_KERNELS_KERNELS_H
#define QUIRE_ENGINE_KERNELS_KERNELS_H

#include "base/error.h"
#include "engine/kernels/format.h"
#include "engine/kernels/kv.h"

#include <stddef.h>
#include <stdint.h>

#define KERNEL_ROW_GROUP 16u /* rows of a matrix are padded to a multiple of this when packed */

/* A weight matrix W [n][k] as the kernels want it. Plain struct; `data` is owned by the caller,
   64-byte aligned, kernels->packed_bytes(format, n, k) long. */
struct packed_matrix {
    enum tensor_format format;
    uint32_t n; /* output rows, unpadded */
    uint32_t k; /* input columns */
    void *data;
};

/* Activations of a step for one matrix input: float rows and their quantised form, made once per
   row and reused by all matrices that read them. Layout of `quantized` is the kernels' own. */
struct activations {
    uint32_t row_count;
    uint32_t k;
    const float *x;  /* [row_count][k] contiguous */
    void *quantized; /* quantized_row_bytes(k) per row, 64-byte aligned */
};

/* One unit of attention: some consecutive queries of one sequence with all query heads that share
   one KV head. */
struct attention_task {
    const struct kv_layout *kv;
    uint32_t layer;
    uint32_t kv_head;
    const uint32_t *pages;   /* the sequence's page table */
    uint32_t first_position; /* of the first query; query i sees keys 0 … first_position + i */
    uint32_t query_count;    /* 1 … KERNEL_QUERY_TILE */
    uint32_t group;          /* query heads per KV head */
    const float *q;          /* query i, head j at q + i·q_stride + j·head_dim; RoPE applied */
    size_t q_stride;
    float scale;     /* multiplies every q·k */
    float softcap;   /* 0: none; else s = softcap·tanh(s/softcap) */
    uint32_t window; /* 0: all keys; else only the last `window` positions */
    float *out;      /* as q */
    size_t out_stride;
    void *scratch; /* attention_scratch_bytes, 64-byte aligned, one per thread */
    /* What this thread will probably compute next, of the same layer, or NULL: its keys and values
       are fetched meanwhile. */
    const struct attention_task *next;
};
#define KERNEL_QUERY_TILE 16u

struct kernels {
    const char *name; /* "scalar"; "avx2", "avxvnni", "avx512"; "neon", "dotprod" */

    /* 0 when this format cannot be computed. The padded rows are included. */
    uint64_t (*packed_bytes)(enum tensor_format format, uint32_t n, uint32_t k);
    /* Pack rows [first, first+count) of W from the file's layout; first is a multiple of
       KERNEL_ROW_GROUP, and so is count unless it ends at n (the rest is padded). Lossless. */
    void (*pack)(struct packed_matrix *matrix, uint32_t first, uint32_t count, const void *rows);
    /* out [k] = row `row` of W as f32, exactly as the gguf package dequantises it. */
    void (*unpack_row)(const struct packed_matrix *matrix, uint32_t row, float *out);

    uint64_t (*quantized_row_bytes)(uint32_t k);
    /* Fill activations->quantized of rows [first, first+count) from x. */
    void (*quantize)(const struct activations *activations, uint32_t first, uint32_t count);

    /* y[r][o] = Σ_k W[o][k]·x[r][k] for rows r in [first_row, first_row + rows) of the activations
       and outputs o in groups [first_group, first_group + groups) of KERNEL_ROW_GROUP (cut at n).
       y is [row_count][y_stride] floats. `accumulate`: y += instead of y = (one add per output,
       after the chain). */
    void (*matmul)(const struct packed_matrix *matrix, const struct activations *activations,
                   uint32_t first_row, uint32_t rows, uint32_t first_group, uint32_t groups,
                   bool accumulate, float *y, size_t y_stride);

    /* out[i] = x[i]·r·weight[i], r = 1/sqrt(mean(x²) + eps); fixed-lane sum; out may be x. */
    void (*rms_norm)(const float *x, const float *weight, float eps, uint32_t n, float *out);
    /* Rotate a head in place. cos, sin [rotary/2]. neox: pairs (i, i + rotary/2), else (2i, 2i+1).
     */
    void (*rope)(float *head, const float *cos, const float *sin, uint32_t rotary, bool neox);
    /* gate[i] = silu(gate[i])·up[i] (or gelu_tanh). */
    void (*silu_multiply)(float *gate, const float *up, uint32_t n);
    void (*gelu_multiply)(float *gate, const float *up, uint32_t n);
    void (*add)(float *x, const float *y, uint32_t n); /* x += y */

    /* Store one token's key and value [head_dim] of one layer and KV head at `slot` =
       page·page_size + offset, rounded and saturated as kv.c says. Threads may store different
       tokens of one page at the same time. */
    void (*kv_store)(const struct kv_layout *kv, uint32_t layer, uint32_t kv_head, uint64_t slot,
                     const float *key, const float *value);
    uint64_t (*attention_scratch_bytes)(uint32_t head_dim, uint32_t group);
    void (*attention)(const struct attention_task *task);
    /* The same in two steps, of one query, for several threads: each segment's share into its part
       [group][head_dim + 2], index 0 … attention_segments(task) - 1, and then all parts, which
       stand one after the other, into the task's out. Scratch as for attention. */
    void (*attention_segment)(const struct attention_task *task, uint32_t index, float *part);
    void (*attention_merge)(const struct attention_task *task, const float *parts);
};

/* Segments of the keys that a task's first query sees; see scalar_attention.c. */
uint32_t attention_segments(const struct attention_task *task);

/* "auto" takes the best that this CPU has. STATUS_INVALID (param "kernels") for unknown names and
   for instruction sets that this CPU lacks. The result is static. */
enum status kernels_select(const char *name, const struct kernels **out, struct error *error);

/* NULL-terminated list of the kernel sets that run on this CPU, scalar first. */
const struct kernels *const *kernels_available(void);

#endif
