/*
 * A kernel set: the functions that every instruction set has, and the matrices and activations that
 * they work on. kernels.h hands sets out and is what other folders include.
 *
 * scalar.c is the specification, each file in vector/ equals it bit for bit; what it fixes is in
 * docs/ARCHITECTURE.md, "One arithmetic". Everything here is stateless; any thread; no allocation.
 * Matrices are repacked once at load, rows interleaved for the chosen instruction set (lanes are
 * outputs). Ranges of outputs are in units of KERNEL_ROW_BLOCK rows, so that threads can split a
 * matrix.
 */
#ifndef QUIRE_ENGINE_KERNELS_KERNEL_SET_H
#define QUIRE_ENGINE_KERNELS_KERNEL_SET_H

#include "engine/kernels/attention.h"
#include "engine/kernels/format.h"
#include "engine/kernels/kv.h"

#include <stddef.h>
#include <stdint.h>

#define KERNEL_ROW_BLOCK 16u /* rows of a repacked matrix are padded to a multiple of this */

/* A weight matrix W [n][k] as the kernels want it. Plain struct; `data` is owned by the caller,
   64-byte aligned, kernels->repacked_bytes(format, n, k) long. */
struct repacked_matrix {
    enum tensor_format format;
    uint32_t n; /* output rows, unpadded */
    uint32_t k; /* input columns */
    void *data;
};

/* Activations of a step for one matrix input: float rows and their quantized form, made once per
   row and reused by all matrices that read them. Layout of `quantized` is the kernels' own. */
struct activations {
    uint32_t row_count;
    uint32_t k;
    const float *x;  /* [row_count][k] contiguous */
    void *quantized; /* quantized_row_bytes(k) per row, 64-byte aligned */
};

struct kernels {
    const char *name; /* "scalar"; "avx2", "avxvnni", "avx512"; "neon", "dotprod" */

    /* 0 when this format cannot be computed. The padded rows are included. */
    uint64_t (*repacked_bytes)(enum tensor_format format, uint32_t n, uint32_t k);
    /* Repack rows [first, first+count) of W from the file's layout; first is a multiple of
       KERNEL_ROW_BLOCK, and so is count unless it ends at n (the rest is padded). Lossless. */
    void (*repack)(struct repacked_matrix *matrix, uint32_t first, uint32_t count,
                   const void *rows);
    /* out [k] = row `row` of W as f32, exactly as the gguf package dequantizes it. */
    void (*dequantize_row)(const struct repacked_matrix *matrix, uint32_t row, float *out);

    uint64_t (*quantized_row_bytes)(uint32_t k);
    /* Fill activations->quantized of rows [first, first+count) from x. */
    void (*quantize)(const struct activations *activations, uint32_t first, uint32_t count);

    /* y[r][o] = Σ_k W[o][k]·x[r][k] for rows r in [first_row, first_row + rows) of the activations
       and outputs o in row blocks [first_block, first_block + blocks) of KERNEL_ROW_BLOCK (cut at
       n). y is [row_count][y_stride] floats. `accumulate`: y += instead of y = (one add per output,
       after the chain). */
    void (*matmul)(const struct repacked_matrix *matrix, const struct activations *activations,
                   uint32_t first_row, uint32_t rows, uint32_t first_block, uint32_t blocks,
                   bool accumulate, float *y, size_t y_stride);

    /* out[i] = x[i]·r·weight[i], r = 1/sqrt(mean(x²) + eps); fixed-lane sum; out may be x. */
    void (*rms_norm)(const float *x, const float *weight, float eps, uint32_t n, float *out);
    /* out[i] = (x[i] − m)·r·weight[i] + bias[i], m = mean(x), r = 1/sqrt(mean((x − m)²) + eps);
       fixed-lane sums; out may be x. */
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float eps,
                       uint32_t n, float *out);
    /* Rotate a head in place. cos, sin [rotary/2]. neox: pairs (i, i + rotary/2), else (2i, 2i+1).
     */
    void (*rope)(float *head, const float *cos, const float *sin, uint32_t rotary, bool neox);
    /* gate[i] = silu(gate[i])·up[i] (or gelu_tanh). */
    void (*silu_multiply)(float *gate, const float *up, uint32_t n);
    void (*gelu_multiply)(float *gate, const float *up, uint32_t n);
    void (*gelu_erf)(float *x, uint32_t n);            /* x[i] = x[i]·Φ(x[i]), without a gate */
    void (*add)(float *x, const float *y, uint32_t n); /* x += y */

    /* Store one token's key and value [head_dim] of one layer and KV head at `slot` =
       page·page_size + offset, rounded and saturated as kv_page.c says. Threads may store different
       tokens of one page at the same time. */
    void (*kv_store)(const struct kv_layout *kv, uint32_t layer, uint32_t kv_head, uint64_t slot,
                     const float *key, const float *value);
    uint64_t (*attention_scratch_bytes)(uint32_t head_dim, uint32_t gqa_group);
    void (*attention)(const struct attention_task *task);
    /* The same in two steps, of one query, for several threads: each segment's share into its part
       [gqa_group][head_dim + 2], index 0 … attention_segments(task) - 1, and then all parts, which
       stand one after the other, into the task's out. Scratch as for attention. */
    void (*attention_segment)(const struct attention_task *task, uint32_t index, float *part);
    void (*attention_merge)(const struct attention_task *task, const float *parts);
};

/* Row blocks of a matrix of n rows. */
static inline uint32_t kernel_row_blocks(uint32_t n)
{
    return (n + KERNEL_ROW_BLOCK - 1) / KERNEL_ROW_BLOCK;
}

#endif
