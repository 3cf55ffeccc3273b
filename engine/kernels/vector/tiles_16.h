/*
 * Tiles of a kernel set of sixteen lanes: a vector is all outputs of a row block, so that a tile's
 * chains stay in registers. The chains are scalar.c's.
 *
 * The set's own file defines dot_lanes, its integer dot products.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_TILES_16_H
#define QUIRE_ENGINE_KERNELS_VECTOR_TILES_16_H

#include "engine/kernels/block.h"
#include "engine/kernels/vector/tile_kind.h"

/* dots[r] = Σ over `count` lanes of block b from lane `first`. */
INLINE void dot_lanes(const int rows, const struct tile_kind kind, const int parity,
                      const int first, const int count, const uint8_t *q, uint32_t b,
                      const struct activation_block *a, size_t stride, vi *dots);

INLINE void chain_scale(const int rows, const float *scale, const struct activation_block *a,
                        size_t stride, const vi *dots, vf *chain)
{
    vf s = vf_load(scale);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        vf factor = vf_mul(s, vf_set1(a[(size_t)r * stride].d));
        chain[r] = vf_fma(vf_from_int(dots[r]), factor, chain[r]);
    }
}

INLINE void chain_min(const int rows, const float *min, const float *sum, size_t stride, vf *chain)
{
    vf m = vf_load(min);
    const size_t floats = stride * sizeof(struct activation_block) / sizeof *sum;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        chain[r] = vf_fma(m, vf_set1(sum[(size_t)r * floats]), chain[r]);
}

/* One block's share of the chains; parity is b's. */
INLINE void tile_block(const int rows, const struct tile_kind kind, const int parity,
                       const struct panel *panel, uint32_t b, const struct activation_block *a,
                       size_t stride, vf *chain)
{
    vi dots[TILE_ROWS];
    if (!kind.sub_blocks) {
        dot_lanes(rows, kind, parity, 0, 8, panel->q, b, a, stride, dots);
        chain_scale(rows, panel->scale[b], a, stride, dots, chain);
        if (kind.has_min)
            chain_min(rows, panel->min[b], &a->sum_scaled, stride, chain);
        return;
    }
    dot_lanes(rows, kind, parity, 0, 4, panel->q, b, a, stride, dots);
    chain_scale(rows, panel->scale[2 * b], a, stride, dots, chain);
    dot_lanes(rows, kind, parity, 4, 4, panel->q, b, a, stride, dots);
    chain_scale(rows, panel->scale[2 * b + 1], a, stride, dots, chain);
    if (kind.has_min) {
        chain_min(rows, panel->min[2 * b], &a->sub_sum_scaled[0], stride, chain);
        chain_min(rows, panel->min[2 * b + 1], &a->sub_sum_scaled[1], stride, chain);
    }
}

INLINE void tile(const int rows, const struct tile_kind kind, const struct panel *panel,
                 uint32_t blocks, const struct activation_block *a, size_t stride, float *acc)
{
    vf chain[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        chain[r] = vf_load(acc + r * (int)KERNEL_ROW_BLOCK);
    const uint8_t *ahead = panel->ahead;
    const uint32_t ahead_lines = panel->ahead_lines;
    for (uint32_t b = 0; b < blocks; b++) {
        ahead = prefetch_ahead(ahead, ahead_lines);
        tile_block(rows, kind, 0, panel, b, a + b, stride, chain);
        if (kind.weights == PANEL_PAIRS) {
            b++;
            ahead = prefetch_ahead(ahead, ahead_lines);
            tile_block(rows, kind, 1, panel, b, a + b, stride, chain);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        vf_store(acc + r * (int)KERNEL_ROW_BLOCK, chain[r]);
}

INLINE void tile_float(const int rows, const enum tensor_format format, const void *weights,
                       uint32_t columns, const float *x, size_t stride, float *acc)
{
    vf chain[TILE_ROWS];
    const uint16_t *halves = weights;
    const float *floats = weights;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        chain[r] = vf_load(acc + r * (int)KERNEL_ROW_BLOCK);
    for (size_t i = 0; i < columns; i++) {
        vf w = format == FORMAT_F32   ? vf_load(floats + i * KERNEL_ROW_BLOCK)
               : format == FORMAT_F16 ? vf_load_f16(halves + i * KERNEL_ROW_BLOCK)
                                      : vf_load_bf16(halves + i * KERNEL_ROW_BLOCK);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            chain[r] = vf_fma(w, vf_set1(x[(size_t)r * stride + i]), chain[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        vf_store(acc + r * (int)KERNEL_ROW_BLOCK, chain[r]);
}

#endif
