/*
 * Kernels for AVX-512 F, BW, VL, DQ and VNNI: sixteen lanes.
 *
 * The integer dot products are here; all else is in the vector_*.h bodies. Lanes are outputs: one
 * VPDPWSSD multiplies two columns of 16 output rows with two activations of one row, in 16 bits,
 * and adds to the int32 sum that scalar.c has; one row alone has its own way to that sum
 * (vector_row.h). Built with its own flags; only kernels_select may hand it out.
 */
#include "engine/kernels/vector_avx512.h"

#define TILE_ROWS 8u

/* Attention: few rows take 4 vectors at a time, more rows take 2. */
#define ATTENTION_WIDE 4u
#define ATTENTION_FEW 4u
#define ATTENTION_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)

/* Each uses the ones before it. clang-format would sort them. */
/* clang-format off */
#include "engine/kernels/vector_math.h"
#include "engine/kernels/vector_rows.h"
#include "engine/kernels/vector_kv.h"
#include "engine/kernels/vector_matmul.h"
#include "engine/kernels/vector_row.h"
#include "engine/kernels/vector_attention.h"
#include "engine/kernels/vector_members.h"
/* clang-format on */

INLINE __m512i broadcast(const void *from)
{
    int32_t value;
    memcpy(&value, from, sizeof value);
    return _mm512_set1_epi32(value);
}

/* dots[r] = Σ over `count` quads of block b from quad `first`. */
INLINE void dot_quads(const int rows, const struct tile_kind kind, const int parity,
                      const int first, const int count, const uint8_t *q, uint32_t b,
                      const struct activation_block *a, size_t stride, __m512i *dots)
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        dots[r] = _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const int j = panel_order(kind.weights, first + i);
        __m512i even, odd;
        panel_quad(kind.weights, !kind.minimums, kind.offset, q, b, parity, j, 0, &even, &odd);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const int16_t *x = a[(size_t)r * stride].q + 4 * j;
            dots[r] = _mm512_dpwssd_epi32(dots[r], even, broadcast(x));
            dots[r] = _mm512_dpwssd_epi32(dots[r], odd, broadcast(x + 2));
        }
    }
}

INLINE void chain_scale(const int rows, const float *scale, const struct activation_block *a,
                        size_t stride, const __m512i *dots, __m512 *chain)
{
    __m512 s = _mm512_load_ps(scale);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        __m512 factor = _mm512_mul_ps(s, _mm512_set1_ps(a[(size_t)r * stride].d));
        chain[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), factor, chain[r]);
    }
}

INLINE void chain_minimum(const int rows, const float *minimum, const float *sum, size_t stride,
                          __m512 *chain)
{
    __m512 m = _mm512_load_ps(minimum);
    const size_t floats = stride * sizeof(struct activation_block) / sizeof *sum;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        chain[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sum[(size_t)r * floats]), chain[r]);
    }
}

/* One block's share of the chains; parity is b's. */
INLINE void tile_block(const int rows, const struct tile_kind kind, const int parity,
                       const struct panel *panel, uint32_t b, const struct activation_block *a,
                       size_t stride, __m512 *chain)
{
    __m512i dots[TILE_ROWS];
    if (!kind.halves) {
        dot_quads(rows, kind, parity, 0, 8, panel->q, b, a, stride, dots);
        chain_scale(rows, panel->scale[b], a, stride, dots, chain);
        if (kind.minimums) {
            chain_minimum(rows, panel->minimum[b], &a->sum_scaled, stride, chain);
        }
        return;
    }
    dot_quads(rows, kind, parity, 0, 4, panel->q, b, a, stride, dots);
    chain_scale(rows, panel->scale[2 * b], a, stride, dots, chain);
    dot_quads(rows, kind, parity, 4, 4, panel->q, b, a, stride, dots);
    chain_scale(rows, panel->scale[2 * b + 1], a, stride, dots, chain);
    if (kind.minimums) {
        chain_minimum(rows, panel->minimum[2 * b], &a->half_sum_scaled[0], stride, chain);
        chain_minimum(rows, panel->minimum[2 * b + 1], &a->half_sum_scaled[1], stride, chain);
    }
}

INLINE void tile(const int rows, const struct tile_kind kind, const struct panel *panel,
                 uint32_t blocks, const struct activation_block *a, size_t stride, float *acc)
{
    __m512 chain[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        chain[r] = _mm512_load_ps(acc + r * (int)KERNEL_ROW_GROUP);
    }
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
    for (int r = 0; r < rows; r++) {
        _mm512_store_ps(acc + r * (int)KERNEL_ROW_GROUP, chain[r]);
    }
}

INLINE void tile_float(const int rows, const enum float_kind kind, const void *weights,
                       uint32_t columns, const float *x, size_t stride, float *acc)
{
    __m512 chain[TILE_ROWS];
    const uint16_t *halves = weights;
    const float *floats = weights;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        chain[r] = _mm512_load_ps(acc + r * (int)KERNEL_ROW_GROUP);
    }
    for (size_t i = 0; i < columns; i++) {
        __m512 w = kind == KIND_F32   ? vf_load(floats + i * KERNEL_ROW_GROUP)
                   : kind == KIND_F16 ? vf_load_f16(halves + i * KERNEL_ROW_GROUP)
                                      : vf_load_bf16(halves + i * KERNEL_ROW_GROUP);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            chain[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(size_t)r * stride + i]), chain[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        _mm512_store_ps(acc + r * (int)KERNEL_ROW_GROUP, chain[r]);
    }
}

#include "engine/kernels/vector_plans.h"

static void avx512_matmul(const struct packed_matrix *matrix, const struct activations *activations,
                          uint32_t first_row, uint32_t rows, uint32_t first_group, uint32_t groups,
                          bool accumulate, float *y, size_t y_stride)
{
    if (rows == 1 && row_can(matrix)) {
        row_matmul(matrix, activations, first_row, first_group, groups, accumulate, y, y_stride);
    } else {
        vector_matmul(matrix, activations, first_row, rows, first_group, groups, accumulate, y,
                      y_stride);
    }
}

const struct kernels AVX512_KERNELS = {.name = "avx512", .matmul = avx512_matmul, VECTOR_MEMBERS};
