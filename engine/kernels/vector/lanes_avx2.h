/*
 * Eight lanes: the few vector operations that all kernels of this folder are written in, for AVX2,
 * FMA and F16C. lanes_avx512.h is the same with sixteen.
 *
 * Included by lanes.h only. Comparisons mirror the scalar ones: vf_max(a, b) is a > b ? a : b, and
 * so b when either is NaN.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_LANES_AVX2_H
#define QUIRE_ENGINE_KERNELS_VECTOR_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_LANES 8u
#define VECTOR_BYTES 32u

typedef __m256 vf;
typedef __m256i vi;

INLINE vf vf_set1(float value)
{
    return _mm256_set1_ps(value);
}
INLINE vf vf_load(const float *from)
{
    return _mm256_loadu_ps(from);
}
INLINE void vf_store(float *to, vf value)
{
    _mm256_storeu_ps(to, value);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
INLINE vf vf_negate(vf a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
/* a < b ? x : y */
INLINE vf vf_select_less(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
INLINE float vf_first(vf a)
{
    return _mm256_cvtss_f32(a);
}
INLINE float vf_largest(vf a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
INLINE vf vf_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
INLINE vi vi_bits(vf a)
{
    return _mm256_castps_si256(a);
}
INLINE vf vf_from_int(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
/* To nearest, ties to even. */
INLINE vi vi_round(vf a)
{
    return _mm256_cvtps_epi32(a);
}
INLINE vf vf_load_f16(const uint16_t *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
}
/* The first 8 lanes: here all. */
INLINE vf vf_load_8(const float *from)
{
    return vf_load(from);
}
INLINE void vf_store_8(float *to, vf value)
{
    vf_store(to, value);
}
INLINE vf vf_load_f16_8(const uint16_t *from)
{
    return vf_load_f16(from);
}
/* All lanes the same f16. */
INLINE vf vf_set1_f16(const uint16_t *from)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)*from));
}
INLINE void vf_store_f16(uint16_t *to, vf value)
{
    __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128((__m128i *)(void *)to, half);
}
INLINE vf vf_load_bf16(const uint16_t *from)
{
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
INLINE vf vf_load_bf16_8(const uint16_t *from)
{
    return vf_load_bf16(from);
}
INLINE vi vi_load_u8(const uint8_t *from)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
}
INLINE vi vi_load_i8(const uint8_t *from)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
}
INLINE vi vi_load_u16(const uint16_t *from)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
}
/* Of low and high, 8 lanes each; here there are only 8. */
INLINE vf vf_load_split(const float *low, const float *high)
{
    (void)high;
    return vf_load(low);
}
INLINE vf vf_load_f16_split(const uint16_t *low, const uint16_t *high)
{
    (void)high;
    return vf_load_f16(low);
}
INLINE vf vf_load_bf16_split(const uint16_t *low, const uint16_t *high)
{
    (void)high;
    return vf_load_bf16(low);
}
INLINE vi vi_load_u8_split(const uint8_t *low, const uint8_t *high)
{
    (void)high;
    return vi_load_u8(low);
}
INLINE vi vi_load_i8_split(const uint8_t *low, const uint8_t *high)
{
    (void)high;
    return vi_load_i8(low);
}

/* 32-bit lanes */
INLINE vi vi_set1(int32_t value)
{
    return _mm256_set1_epi32(value);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
INLINE vi vi_max_u32(vi a, vi b)
{
    return _mm256_max_epu32(a, b);
}
#define vi_sra32(a, n) _mm256_srai_epi32(a, n)
#define vi_srl32(a, n) _mm256_srli_epi32(a, n)
#define vi_sll32(a, n) _mm256_slli_epi32(a, n)
/* `shift` is 0 or 4, the same for all lanes. */
INLINE vi vi_shift_nibble(vi a, uint32_t shift)
{
    if (__builtin_constant_p(shift))
        return shift ? vi_srl32(a, 4) : a;
    return _mm256_srl_epi32(a, _mm_cvtsi32_si128((int)shift));
}
/* The lowest four bits, less 8. */
INLINE vf vf_nibbles(vi a)
{
    vi nibbles = _mm256_and_si256(a, vi_set1(15));
    return vf_from_int(vi_sub(nibbles, vi_set1(8)));
}
/* a is NaN ? x : y */
INLINE vi vi_select_nan(vf a, vi x, vi y)
{
    return vi_bits(_mm256_blendv_ps(vf_bits(y), vf_bits(x), _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
INLINE uint32_t vi_largest_u32(vi a)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}
INLINE int32_t vi_sum(vi a)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}
/* The lanes as 16 bits, of every four the middle two exchanged (activation_place). */
INLINE void vi_store_activations(int16_t *to, vi a)
{
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    words = _mm_shufflehi_epi16(_mm_shufflelo_epi16(words, 0xD8), 0xD8);
    _mm_storeu_si128((__m128i *)(void *)to, words);
}

/* The lanes, which fit, as 16 and as 8 bits. */
INLINE void vi_store_words(uint16_t *to, vi a)
{
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storeu_si128((__m128i *)(void *)to, words);
}
INLINE void vi_store_bytes(uint8_t *to, vi a)
{
    const __m256i first = _mm256_set1_epi32(0x0C080400);
    __m256i quads = _mm256_shuffle_epi8(a, first);
    __m128i low = _mm256_castsi256_si128(quads), high = _mm256_extracti128_si256(quads, 1);
    _mm_storel_epi64((__m128i *)(void *)to, _mm_unpacklo_epi32(low, high));
}

/* Bits and bytes */
INLINE vi vi_load(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}
INLINE void vi_store(uint8_t *to, vi value)
{
    _mm256_storeu_si256((__m256i *)(void *)to, value);
}
INLINE vi vi_set1_u8(uint8_t value)
{
    return _mm256_set1_epi8((char)value);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
INLINE vi vi_sub_i8(vi a, vi b)
{
    return _mm256_sub_epi8(a, b);
}
INLINE vi vi_sub16(vi a, vi b)
{
    return _mm256_sub_epi16(a, b);
}
#define vi_srl16(a, n) _mm256_srli_epi16(a, n)
#define vi_sra16(a, n) _mm256_srai_epi16(a, n)
#define vi_sll16(a, n) _mm256_slli_epi16(a, n)
/* table[a] for bytes a < 16 */
INLINE vi vi_look_up(const int8_t table[16], vi a)
{
    __m128i entries = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), a);
}

/* Sixteen virtual lanes of a sum along a row, and the fixed tree (scalar_sum_lanes). */
struct lanes {
    vf at[2];
};
INLINE float lanes_sum(struct lanes lanes)
{
    __m256 a = _mm256_add_ps(lanes.at[0], lanes.at[1]);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

/* Pairs (2i, 2i + 1) of 2·VECTOR_LANES floats, apart and together again. */
INLINE void vf_load_pairs(const float *from, vf *even, vf *odd)
{
    __m256 a = _mm256_loadu_ps(from), b = _mm256_loadu_ps(from + 8);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xDD);
}
INLINE void vf_store_pairs(float *to, vf even, vf odd)
{
    __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

#endif
