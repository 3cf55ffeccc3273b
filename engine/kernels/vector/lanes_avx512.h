/*
 * Sixteen lanes: what lanes_avx2.h is for eight, for AVX-512 F, BW, VL, DQ.
 *
 * Included by lanes.h only. Comparisons mirror the scalar ones: vf_max(a, b) is a > b ? a : b, and
 * so b when either is NaN.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_LANES_AVX512_H
#define QUIRE_ENGINE_KERNELS_VECTOR_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_LANES 16u
#define VECTOR_BYTES 64u

typedef __m512 vf;
typedef __m512i vi;

INLINE vf vf_set1(float value)
{
    return _mm512_set1_ps(value);
}
INLINE vf vf_load(const float *from)
{
    return _mm512_loadu_ps(from);
}
INLINE void vf_store(float *to, vf value)
{
    _mm512_storeu_ps(to, value);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
INLINE vf vf_negate(vf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
/* a < b ? x : y */
INLINE vf vf_select_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
INLINE float vf_first(vf a)
{
    return _mm512_cvtss_f32(a);
}
INLINE float vf_largest(vf a)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
INLINE vf vf_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
INLINE vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}
INLINE vf vf_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
/* To nearest, ties to even. */
INLINE vi vi_round(vf a)
{
    return _mm512_cvtps_epi32(a);
}
INLINE vf vf_load_f16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
}
/* The first 8 lanes; the others are 0. */
INLINE vf vf_load_8(const float *from)
{
    return _mm512_zextps256_ps512(_mm256_loadu_ps(from));
}
INLINE void vf_store_8(float *to, vf value)
{
    _mm256_storeu_ps(to, _mm512_castps512_ps256(value));
}
INLINE vf vf_load_f16_8(const uint16_t *from)
{
    return _mm512_cvtph_ps(
        _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)from)));
}
/* All lanes the same f16. */
INLINE vf vf_set1_f16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)*from));
}
INLINE void vf_store_f16(uint16_t *to, vf value)
{
    __m256i half = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)(void *)to, half);
}
INLINE vf vf_load_bf16(const uint16_t *from)
{
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
INLINE vf vf_load_bf16_8(const uint16_t *from)
{
    __m256i half = _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
INLINE vi vi_load_u8(const uint8_t *from)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
}
INLINE vi vi_load_i8(const uint8_t *from)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
}
INLINE vi vi_load_u16(const uint16_t *from)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)from));
}
/* Of low and high, 8 lanes each. */
INLINE __m256i load_halves_split(const uint16_t *low, const uint16_t *high)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)low);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)high);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}
INLINE __m128i load_bytes_split(const uint8_t *low, const uint8_t *high)
{
    return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)low),
                              _mm_loadl_epi64((const __m128i *)(const void *)high));
}
INLINE vf vf_load_split(const float *low, const float *high)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high),
                              1);
}
INLINE vf vf_load_f16_split(const uint16_t *low, const uint16_t *high)
{
    return _mm512_cvtph_ps(load_halves_split(low, high));
}
INLINE vf vf_load_bf16_split(const uint16_t *low, const uint16_t *high)
{
    __m512i wide = _mm512_cvtepu16_epi32(load_halves_split(low, high));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE vi vi_load_u8_split(const uint8_t *low, const uint8_t *high)
{
    return _mm512_cvtepu8_epi32(load_bytes_split(low, high));
}
INLINE vi vi_load_i8_split(const uint8_t *low, const uint8_t *high)
{
    return _mm512_cvtepi8_epi32(load_bytes_split(low, high));
}

/* 32-bit lanes */
INLINE vi vi_set1(int32_t value)
{
    return _mm512_set1_epi32(value);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
INLINE vi vi_max_u32(vi a, vi b)
{
    return _mm512_max_epu32(a, b);
}
#define vi_sra32(a, n) _mm512_srai_epi32(a, n)
#define vi_srl32(a, n) _mm512_srli_epi32(a, n)
#define vi_sll32(a, n) _mm512_slli_epi32(a, n)
/* `shift` is 0 or 4, the same for all lanes. */
INLINE vi vi_shift_nibble(vi a, uint32_t shift)
{
    if (__builtin_constant_p(shift))
        return shift ? vi_srl32(a, 4) : a;
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128((int)shift));
}
/* The lowest four bits, less 8. */
INLINE vf vf_nibbles(vi a)
{
    const __m512 less_8 = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
    return _mm512_permutexvar_ps(a, less_8); /* which looks at four bits only */
}
/* a is NaN ? x : y */
INLINE vi vi_select_nan(vf a, vi x, vi y)
{
    return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), y, x);
}
INLINE uint32_t vi_largest_u32(vi a)
{
    return _mm512_reduce_max_epu32(a);
}
INLINE int32_t vi_sum(vi a)
{
    return _mm512_reduce_add_epi32(a);
}
/* The lanes as 16 bits, of every four the middle two exchanged (activation_place). */
INLINE void vi_store_activations(int16_t *to, vi a)
{
    __m256i words = _mm512_cvtepi32_epi16(a);
    words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xD8), 0xD8);
    _mm256_storeu_si256((__m256i *)(void *)to, words);
}

/* 32 words of quads, |q| < 2^13, as q = 128·high + low in their order, low not negative. */
INLINE void vi_split_words(const int16_t *from, int8_t *high, int8_t *low)
{
    __m512i words = _mm512_loadu_si512((const void *)from);
    words = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(words, 0xD8), 0xD8);
    __m256i upper = _mm512_cvtepi16_epi8(_mm512_srai_epi16(words, 7));
    __m256i lower = _mm512_cvtepi16_epi8(_mm512_and_si512(words, _mm512_set1_epi16(127)));
    _mm256_storeu_si256((__m256i *)(void *)high, upper);
    _mm256_storeu_si256((__m256i *)(void *)low, lower);
}
/* sum + Σ of each lane's four unsigned bytes with x [4]. */
INLINE vi vi_dot_bytes(vi sum, vi bytes, const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi32(four));
}
/* Of 32 words the sums of the first and of the last 16. */
INLINE void vi_sum_words(const int16_t *from, int32_t sums[2])
{
    __m512i words = _mm512_loadu_si512((const void *)from);
    __m512i pairs = _mm512_madd_epi16(words, _mm512_set1_epi16(1));
    __m256i first = _mm512_castsi512_si256(pairs), last = _mm512_extracti32x8_epi32(pairs, 1);
    __m256i fours = _mm256_hadd_epi32(first, last);
    fours = _mm256_hadd_epi32(fours, fours); /* first, last, of either 128 bits */
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    _mm_storel_epi64((__m128i *)(void *)sums, both);
}

/* The lanes, which fit, as 16 and as 8 bits. */
INLINE void vi_store_words(uint16_t *to, vi a)
{
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(a));
}
INLINE void vi_store_bytes(uint8_t *to, vi a)
{
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(a));
}

/* Bits and bytes */
INLINE vi vi_load(const uint8_t *from)
{
    return _mm512_loadu_si512((const void *)from);
}
INLINE void vi_store(uint8_t *to, vi value)
{
    _mm512_storeu_si512((void *)to, value);
}
INLINE vi vi_set1_u8(uint8_t value)
{
    return _mm512_set1_epi8((char)value);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
INLINE vi vi_sub_i8(vi a, vi b)
{
    return _mm512_sub_epi8(a, b);
}
INLINE vi vi_sub16(vi a, vi b)
{
    return _mm512_sub_epi16(a, b);
}
#define vi_srl16(a, n) _mm512_srli_epi16(a, n)
#define vi_sra16(a, n) _mm512_srai_epi16(a, n)
#define vi_sll16(a, n) _mm512_slli_epi16(a, n)
/* table[a] for bytes a < 16 */
INLINE vi vi_look_up(const int8_t table[16], vi a)
{
    __m128i entries = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), a);
}

/* Sixteen virtual lanes of a sum along a row, and the fixed tree (scalar_sum_lanes). */
struct lanes {
    vf at[1];
};
INLINE float lanes_sum(struct lanes lanes)
{
    __m512 l = lanes.at[0];
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(l), _mm512_extractf32x8_ps(l, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

/* Pairs (2i, 2i + 1) of 2·VECTOR_LANES floats, apart and together again. */
INLINE void vf_load_pairs(const float *from, vf *even, vf *odd)
{
    const __m512i evens =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
    *even = _mm512_permutex2var_ps(a, evens, b);
    *odd = _mm512_permutex2var_ps(a, odds, b);
}
INLINE void vf_store_pairs(float *to, vf even, vf odd)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(even, low, odd));
    _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(even, high, odd));
}

#endif
