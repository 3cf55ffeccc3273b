/*
 * Thirty-two consecutive values, of weights and of activations: the unit of every integer kernel.
 *
 * Private to engine/kernels. block.c reads the bits of GGML's block formats (format_table.h says
 * where they are); scalar.c computes from what it returns, and the tests hold the instruction sets
 * against that.
 */
#ifndef QUIRE_ENGINE_KERNELS_BLOCK_H
#define QUIRE_ENGINE_KERNELS_BLOCK_H

#include "engine/kernels/format.h"

#include <stdbool.h>
#include <stdint.h>

#define BLOCK_VALUES 32u

/* 32 weights: value i is scale[i / 16]·q[i] + min[i / 16]. Every scale and min is exact in f32: an
   f16 times an integer of at most 8 bits, or a power of two. */
struct weight_block {
    int8_t q[BLOCK_VALUES];
    float scale[2];
    float min[2]; /* 0 where the format has none */
};

/* Values [32·index, 32·index + 32) of the row that starts at `row` in the file's layout. The format
   is a quantized one. */
void block_read(enum tensor_format format, const uint8_t *row, uint32_t index,
                struct weight_block *out);

/* Value `index` of a row of F32, F16 or BF16. */
float block_read_float(enum tensor_format format, const uint8_t *row, uint32_t index);

/* A whole row as the gguf Python package dequantizes it: (scale·q) + min, each step rounded. */
void block_dequantize(enum tensor_format format, const uint8_t *row, uint32_t k, float *out);

/* The largest |q| of an activation: 128·4,095·32 < 2^24, so that every block's dot product is
   exact as a float, whatever the weights' format. */
#define ACTIVATION_LIMIT 4095

/* 32 activations. Value i is about d·q[activation_place(i)]. */
struct activation_block {
    int16_t q[BLOCK_VALUES];
    float d;
    float sum_scaled;        /* d·(float)Σq, rounded once */
    float sub_sum_scaled[2]; /* of values 0–15 and 16–31 */
};
_Static_assert(sizeof(struct activation_block) == 80, "no padding: lanes do not cross cache lines");

/* Where value i stands: of every four the middle two are exchanged, so that the even and the odd
   bytes of four weights, each pair in one 32-bit lane, meet two neighbours. */
static inline uint32_t activation_place(uint32_t i)
{
    return i % 4 == 1 ? i + 1 : i % 4 == 2 ? i - 1 : i;
}

/* Blocks from one quantized row to the next: odd, so that rows do not share cache sets. */
static inline uint32_t activation_stride(uint32_t k)
{
    return ((k + BLOCK_VALUES - 1) / BLOCK_VALUES) | 1u;
}

/* The steps of quantizing that come after q: d and the sums. */
void activation_block_finish(struct activation_block *block, float d);

#endif
