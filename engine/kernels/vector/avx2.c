/*
 * Kernels for AVX2, FMA and F16C, and with QUIRE_AVXVNNI for AVX-VNNI too: eight lanes.
 *
 * The integer dot products are here; all else is in this folder's headers. VPMADDWD multiplies two
 * columns of 8 output rows with two activations of one row, in 16 bits, into 32-bit sums: those
 * that scalar.c has. VPDPWSSD adds them up as well, and is all that differs. Built once with each
 * set's flags; only kernels_select may hand them out.
 */
#define DOT_SIDES 2
#include "engine/kernels/sets.h"
#include "engine/kernels/vector/kernel_table.h"

INLINE __m256i broadcast(const void *from)
{
    int32_t value;
    memcpy(&value, from, sizeof value);
    return _mm256_set1_epi32(value);
}

/* The compiler would put sums off until it runs out of registers for what is to be added. */
#define SUM_NOW(value) __asm__ volatile("" : "+x"(value))

/* dot + Σ of products, or only these when first. */
INLINE __m256i dot_pairs(const bool first, __m256i dot, __m256i weights, __m256i pair)
{
    if (first)
        return _mm256_madd_epi16(weights, pair);
#ifdef QUIRE_AVXVNNI
    return _mm256_dpwssd_epi32(dot, weights, pair);
#else
    return _mm256_add_epi32(dot, _mm256_madd_epi16(weights, pair));
#endif
}

/* dot += Σ of both sides' products with two activations; = when first. */
INLINE void add_products(const bool first, const __m256i *weights, const int16_t *x, __m256i *dot)
{
    __m256i pair = broadcast(x);
#pragma GCC unroll 2
    for (int side = 0; side < 2; side++) {
        dot[side] = dot_pairs(first, dot[side], weights[side], pair);
        SUM_NOW(dot[side]);
    }
}

INLINE void dot_lanes(const int rows, const struct tile_kind kind, const int parity,
                      const int first, const int count, const uint8_t *q, uint32_t b,
                      const uint32_t output, const struct activation_block *a, size_t stride,
                      __m256i dots[][DOT_SIDES])
{
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const int j = lane_order(kind.weights, first + i);
        __m256i even[2], odd[2];
        for (uint32_t side = 0; side < 2; side++) {
            panel_lane(kind.weights, !kind.has_min, kind.zero, q, b, parity, j,
                       4 * output + side * VECTOR_BYTES, &even[side], &odd[side]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const int16_t *x = a[(size_t)r * stride].q + 4 * j;
            add_products(i == 0, even, x, dots[r]);
            add_products(false, odd, x + 2, dots[r]);
        }
    }
}

#ifdef QUIRE_AVXVNNI
const struct kernels AVXVNNI_KERNELS = {.name = "avxvnni", .matmul = vector_matmul, VECTOR_KERNELS};
#else
const struct kernels AVX2_KERNELS = {.name = "avx2", .matmul = vector_matmul, VECTOR_KERNELS};
#endif
