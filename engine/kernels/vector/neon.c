/*
 * Kernels for 64-bit ARM, and with QUIRE_DOTPROD for its dot product instructions: eight lanes as
 * two registers.
 *
 * The integer dot products are here; all else is in this folder's headers. A line of a panel has
 * four weights of an output in each 32-bit lane, which is what SDOT multiplies with four bytes.
 * Activations have 13 bits: their upper six and lower seven (lanes_neon.h) are multiplied apart,
 * and 128·Σ w·high + Σ w·low is exact, the integer that scalar.c has. Two SDOT do what takes four
 * SMLAL on 16 bits, and weights need no widening. Without SDOT the same from SMULL and pairwise
 * sums. Built once for each set; only kernels_select may hand out the second.
 */
#define DOT_SIDES 1
#include "engine/kernels/sets.h"
#include "engine/kernels/vector/kernel_table.h"

/* sum + the four products of each lane with bytes 4·lane … of x; lane is a constant. */
INLINE int32x4_t dot_bytes(int32x4_t sum, int8x16_t weights, int8x16_t x, const int lane)
{
#ifdef QUIRE_DOTPROD
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(sum, weights, x, 0);
    case 1:
        return vdotq_laneq_s32(sum, weights, x, 1);
    case 2:
        return vdotq_laneq_s32(sum, weights, x, 2);
    default:
        return vdotq_laneq_s32(sum, weights, x, 3);
    }
#else
    int8x16_t four = (int8x16_t)vdupq_n_s32(((int32x4_t)x)[lane]);
    int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(four));
    int16x8_t high = vmull_high_s8(weights, four);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

/* The i-th lane to multiply: two neighbours, whose activations are in one register, then those
   that share their lines. */
INLINE int byte_lane_order(const enum panel_weights weights, const int i)
{
    return weights == PANEL_NIBBLES ? i % 4 / 2 * 4 + i / 4 * 2 + i % 2 : i;
}

/* Quad j of block b as signed bytes, VECTOR_BYTES of its line from p; see panel_lane. */
INLINE vi lane_bytes(const struct tile_kind kind, const uint8_t *q, uint32_t b, const int parity,
                     const int j, const uint32_t p)
{
    const vi x = vi_load(q + panel_line(kind.weights, b, j) * LINE_BYTES + p);
    if (kind.weights == PANEL_BYTES)
        return x;
    const bool high = kind.weights == PANEL_NIBBLES ? j >= 4 : parity;
    const vi nibbles = high ? vi_srl8(x, 4) : vi_and(x, vi_set1_u8(15));
    return kind.zero ? vi_sub_i8(nibbles, vi_set1_u8((uint8_t)kind.zero)) : nibbles;
}

INLINE void dot_lanes(const int rows, const struct tile_kind kind, const int parity,
                      const int first, const int count, const uint8_t *q, uint32_t b,
                      const uint32_t output, const struct activation_block *a, size_t stride,
                      vi dots[][DOT_SIDES])
{
    vi high[TILE_ROWS], low[TILE_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        high[r] = low[r] = vi_set1(0);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const int j = byte_lane_order(kind.weights, first + i);
        const vi w = lane_bytes(kind, q, b, parity, j, 4 * output);
        const int8x16_t even = vreinterpretq_s8_s32(w.low), odd = vreinterpretq_s8_s32(w.high);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const int16_t *eight = a[(size_t)r * stride].q + j / 2 * 8;
            const int8x16_t x = vreinterpretq_s8_s16(vld1q_s16(eight));
            high[r].low = dot_bytes(high[r].low, even, x, j % 2);
            high[r].high = dot_bytes(high[r].high, odd, x, j % 2);
            low[r].low = dot_bytes(low[r].low, even, x, 2 + j % 2);
            low[r].high = dot_bytes(low[r].high, odd, x, 2 + j % 2);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        dots[r][0] = vi_add(vi_sll32(high[r], 7), low[r]);
}

#ifdef QUIRE_DOTPROD
const struct kernels DOTPROD_KERNELS = {.name = "dotprod", .matmul = vector_matmul, VECTOR_KERNELS};
#else
const struct kernels NEON_KERNELS = {.name = "neon", .matmul = vector_matmul, VECTOR_KERNELS};
#endif
