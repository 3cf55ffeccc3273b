/*
 * Tiles of a kernel set of eight lanes: sixteen outputs are two sides. The chains are scalar.c's.
 *
 * The set's own file defines dot_lanes, its integer dot products of DOT_SIDES sides at a time. Sums
 * of a tile stay in acc: registers hold the dot products.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_TILES_8_H
#define QUIRE_ENGINE_KERNELS_VECTOR_TILES_8_H

#include "engine/kernels/block.h"
#include "engine/kernels/vector/tile_kind.h"

/* dots[r] = Σ over `count` lanes of block b from lane `first`, of the sides from `output`. */
INLINE void dot_lanes(const int rows, const struct tile_kind kind, const int parity,
                      const int first, const int count, const uint8_t *q, uint32_t b,
                      const uint32_t output, const struct activation_block *a, size_t stride,
                      vi dots[][DOT_SIDES]);

/* Scaled dot products go into the chains. These stay in acc: registers hold sums. */
INLINE void chain_scale(const int rows, const float *scale, const struct activation_block *a,
                        size_t stride, vi dots[][DOT_SIDES], float *acc)
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        vf d = vf_set1(a[(size_t)r * stride].d);
        float *chain = acc + r * (int)KERNEL_ROW_BLOCK;
#pragma GCC unroll 2
        for (int side = 0; side < DOT_SIDES; side++) {
            vf factor = vf_mul(vf_load(scale + 8 * side), d);
            vf value = vf_load(chain + 8 * side);
            vf_store(chain + 8 * side, vf_fma(vf_from_int(dots[r][side]), factor, value));
        }
    }
}

INLINE void chain_min(const int rows, const float *min, const float *sum, size_t stride, float *acc)
{
    const size_t floats = stride * sizeof(struct activation_block) / sizeof *sum;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        vf s = vf_set1(sum[(size_t)r * floats]);
        for (int side = 0; side < DOT_SIDES; side++) {
            float *chain = acc + r * (int)KERNEL_ROW_BLOCK + 8 * side;
            vf_store(chain, vf_fma(vf_load(min + 8 * side), s, vf_load(chain)));
        }
    }
}

/* One block's share of the chains of outputs from `output`; parity is b's. */
INLINE void tile_sides(const int rows, const struct tile_kind kind, const int parity,
                       const struct panel *panel, uint32_t b, const uint32_t output,
                       const struct activation_block *a, size_t stride, float *acc)
{
    vi dots[TILE_ROWS][DOT_SIDES];
    acc += output;
    if (!kind.sub_blocks) {
        dot_lanes(rows, kind, parity, 0, 8, panel->q, b, output, a, stride, dots);
        chain_scale(rows, panel->scale[b] + output, a, stride, dots, acc);
        if (kind.has_min)
            chain_min(rows, panel->min[b] + output, &a->sum_scaled, stride, acc);
        return;
    }
    const float *mins = panel->min[2 * b] + output;
    dot_lanes(rows, kind, parity, 0, 4, panel->q, b, output, a, stride, dots);
    chain_scale(rows, panel->scale[2 * b] + output, a, stride, dots, acc);
    dot_lanes(rows, kind, parity, 4, 4, panel->q, b, output, a, stride, dots);
    chain_scale(rows, panel->scale[2 * b + 1] + output, a, stride, dots, acc);
    if (kind.has_min) {
        chain_min(rows, mins, &a->sub_sum_scaled[0], stride, acc);
        chain_min(rows, mins + KERNEL_ROW_BLOCK, &a->sub_sum_scaled[1], stride, acc);
    }
}

INLINE void tile_block(const int rows, const struct tile_kind kind, const int parity,
                       const struct panel *panel, uint32_t b, const struct activation_block *a,
                       size_t stride, float *acc)
{
#pragma GCC unroll 2
    for (uint32_t output = 0; output < KERNEL_ROW_BLOCK; output += DOT_SIDES * VECTOR_LANES)
        tile_sides(rows, kind, parity, panel, b, output, a, stride, acc);
}

INLINE void tile(const int rows, const struct tile_kind kind, const struct panel *panel,
                 uint32_t blocks, const struct activation_block *a, size_t stride, float *acc)
{
    const uint8_t *ahead = panel->ahead;
    const uint32_t ahead_lines = panel->ahead_lines;
    for (uint32_t b = 0; b < blocks; b++) {
        ahead = prefetch_ahead(ahead, ahead_lines);
        tile_block(rows, kind, 0, panel, b, a + b, stride, acc);
        if (kind.weights == PANEL_PAIRS) {
            b++;
            ahead = prefetch_ahead(ahead, ahead_lines);
            tile_block(rows, kind, 1, panel, b, a + b, stride, acc);
        }
    }
}

INLINE void tile_float(const int rows, const enum tensor_format format, const void *weights,
                       uint32_t columns, const float *x, size_t stride, float *acc)
{
    vf chain[TILE_ROWS][2];
    const uint16_t *halves = weights;
    const float *floats = weights;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        chain[r][0] = vf_load(acc + r * (int)KERNEL_ROW_BLOCK);
        chain[r][1] = vf_load(acc + r * (int)KERNEL_ROW_BLOCK + 8);
    }
    for (size_t i = 0; i < columns; i++) {
        vf w[2];
#pragma GCC unroll 2
        for (size_t side = 0; side < 2; side++) {
            size_t at = i * KERNEL_ROW_BLOCK + side * 8;
            w[side] = format == FORMAT_F32   ? vf_load(floats + at)
                      : format == FORMAT_F16 ? vf_load_f16(halves + at)
                                             : vf_load_bf16(halves + at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf value = vf_set1(x[(size_t)r * stride + i]);
            chain[r][0] = vf_fma(w[0], value, chain[r][0]);
            chain[r][1] = vf_fma(w[1], value, chain[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        vf_store(acc + r * (int)KERNEL_ROW_BLOCK, chain[r][0]);
        vf_store(acc + r * (int)KERNEL_ROW_BLOCK + 8, chain[r][1]);
    }
}

#endif
