/*
 * Kernels for AVX-512 F, BW, VL, DQ and VNNI: sixteen lanes.
 *
 * The integer dot products are here; all else is in this folder's headers. Lanes are outputs: one
 * VPDPWSSD multiplies two columns of 16 output rows with two activations of one row, in 16 bits,
 * and adds to the int32 sum that scalar.c has; one row alone has its own way to that sum
 * (matvec.h). Built with its own flags; only kernels_select may hand it out.
 */
#include "engine/kernels/sets.h"
#include "engine/kernels/vector/kernel_table.h"
#include "engine/kernels/vector/matvec.h"

INLINE __m512i broadcast(const void *from)
{
    int32_t value;
    memcpy(&value, from, sizeof value);
    return _mm512_set1_epi32(value);
}

INLINE void dot_lanes(const int rows, const struct tile_kind kind, const int parity,
                      const int first, const int count, const uint8_t *q, uint32_t b,
                      const struct activation_block *a, size_t stride, __m512i *dots)
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        dots[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const int j = lane_order(kind.weights, first + i);
        __m512i even, odd;
        panel_lane(kind.weights, !kind.has_min, kind.zero, q, b, parity, j, 0, &even, &odd);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const int16_t *x = a[(size_t)r * stride].q + 4 * j;
            dots[r] = _mm512_dpwssd_epi32(dots[r], even, broadcast(x));
            dots[r] = _mm512_dpwssd_epi32(dots[r], odd, broadcast(x + 2));
        }
    }
}

static void avx512_matmul(const struct repacked_matrix *matrix,
                          const struct activations *activations, uint32_t first_row, uint32_t rows,
                          uint32_t first_block, uint32_t blocks, bool accumulate, float *y,
                          size_t y_stride)
{
    if (rows == 1 && matvec_can(matrix)) {
        vector_matvec(matrix, activations, first_row, first_block, blocks, accumulate, y, y_stride);
    } else {
        vector_matmul(matrix, activations, first_row, rows, first_block, blocks, accumulate, y,
                      y_stride);
    }
}

const struct kernels AVX512_KERNELS = {.name = "avx512", .matmul = avx512_matmul, VECTOR_KERNELS};
