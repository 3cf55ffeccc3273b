/*
 * Eight lanes as two registers of four: what lanes_avx2.h is, for the SIMD of every 64-bit ARM.
 *
 * Included by lanes.h only. Comparisons mirror the scalar ones: vf_max(a, b) is a > b ? a : b, and
 * so b when either is NaN; FMAX would say otherwise, of zeros too. Operators of the compiler's
 * vector types are one instruction each; shifts by them may be by 0.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_LANES_NEON_H
#define QUIRE_ENGINE_KERNELS_VECTOR_LANES_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_LANES 8u
#define VECTOR_BYTES 32u

typedef struct {
    float32x4_t low, high;
} vf;
typedef struct {
    int32x4_t low, high;
} vi;

INLINE vf vf_set1(float value)
{
    return (vf){vdupq_n_f32(value), vdupq_n_f32(value)};
}
INLINE vf vf_load(const float *from)
{
    return (vf){vld1q_f32(from), vld1q_f32(from + 4)};
}
INLINE void vf_store(float *to, vf value)
{
    vst1q_f32(to, value.low);
    vst1q_f32(to + 4, value.high);
}
INLINE vf vf_add(vf a, vf b)
{
    return (vf){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}
INLINE vf vf_sub(vf a, vf b)
{
    return (vf){vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}
INLINE vf vf_mul(vf a, vf b)
{
    return (vf){vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}
INLINE vf vf_div(vf a, vf b)
{
    return (vf){vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
INLINE float32x4_t four_max(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
INLINE float32x4_t four_min(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
INLINE vf vf_max(vf a, vf b)
{
    return (vf){four_max(a.low, b.low), four_max(a.high, b.high)};
}
INLINE vf vf_min(vf a, vf b)
{
    return (vf){four_min(a.low, b.low), four_min(a.high, b.high)};
}
INLINE vf vf_negate(vf a)
{
    return (vf){vnegq_f32(a.low), vnegq_f32(a.high)};
}
/* a < b ? x : y */
INLINE vf vf_select_less(vf a, vf b, vf x, vf y)
{
    return (vf){vbslq_f32(vcltq_f32(a.low, b.low), x.low, y.low),
                vbslq_f32(vcltq_f32(a.high, b.high), x.high, y.high)};
}
INLINE float vf_first(vf a)
{
    return vgetq_lane_f32(a.low, 0);
}
INLINE float vf_largest(vf a)
{
    float32x4_t m = four_max(a.low, a.high);
    m = four_max(m, vextq_f32(m, m, 2));
    return vgetq_lane_f32(four_max(m, vextq_f32(m, m, 1)), 0);
}
INLINE vf vf_bits(vi a)
{
    return (vf){vreinterpretq_f32_s32(a.low), vreinterpretq_f32_s32(a.high)};
}
INLINE vi vi_bits(vf a)
{
    return (vi){vreinterpretq_s32_f32(a.low), vreinterpretq_s32_f32(a.high)};
}
INLINE vf vf_from_int(vi a)
{
    return (vf){vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)};
}
/* To nearest, ties to even. */
INLINE vi vi_round(vf a)
{
    return (vi){vcvtnq_s32_f32(a.low), vcvtnq_s32_f32(a.high)};
}
INLINE float32x4_t four_load_f16(const uint16_t *from)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
INLINE vf vf_load_f16(const uint16_t *from)
{
    return (vf){four_load_f16(from), four_load_f16(from + 4)};
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
    float32x4_t value = vcvt_f32_f16(vreinterpret_f16_u16(vld1_dup_u16(from)));
    return (vf){value, value};
}
INLINE void vf_store_f16(uint16_t *to, vf value)
{
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(value.low)));
    vst1_u16(to + 4, vreinterpret_u16_f16(vcvt_f16_f32(value.high)));
}
INLINE vf vf_load_bf16(const uint16_t *from)
{
    return (vf){vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16)),
                vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from + 4), 16))};
}
INLINE vf vf_load_bf16_8(const uint16_t *from)
{
    return vf_load_bf16(from);
}
INLINE vi vi_load_u16(const uint16_t *from)
{
    return (vi){vreinterpretq_s32_u32(vmovl_u16(vld1_u16(from))),
                vreinterpretq_s32_u32(vmovl_u16(vld1_u16(from + 4)))};
}
INLINE vi vi_load_u8(const uint8_t *from)
{
    uint16x8_t words = vmovl_u8(vld1_u8(from));
    return (vi){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words))),
                vreinterpretq_s32_u32(vmovl_high_u16(words))};
}
INLINE vi vi_load_i8(const uint8_t *from)
{
    int16x8_t words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(from)));
    return (vi){vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)};
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
    return (vi){vdupq_n_s32(value), vdupq_n_s32(value)};
}
INLINE vi vi_add(vi a, vi b)
{
    return (vi){vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)};
}
INLINE vi vi_sub(vi a, vi b)
{
    return (vi){vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)};
}
INLINE vi vi_max_u32(vi a, vi b)
{
    return (vi){(int32x4_t)vmaxq_u32((uint32x4_t)a.low, (uint32x4_t)b.low),
                (int32x4_t)vmaxq_u32((uint32x4_t)a.high, (uint32x4_t)b.high)};
}
INLINE vi vi_sra32(vi a, int n)
{
    return (vi){a.low >> n, a.high >> n};
}
INLINE vi vi_srl32(vi a, int n)
{
    return (vi){(int32x4_t)((uint32x4_t)a.low >> n), (int32x4_t)((uint32x4_t)a.high >> n)};
}
INLINE vi vi_sll32(vi a, int n)
{
    return (vi){(int32x4_t)((uint32x4_t)a.low << n), (int32x4_t)((uint32x4_t)a.high << n)};
}
/* `shift` is 0 or 4, the same for all lanes. */
INLINE vi vi_shift_nibble(vi a, uint32_t shift)
{
    return vi_srl32(a, (int)shift);
}
/* The lowest four bits, less 8. */
INLINE vf vf_nibbles(vi a)
{
    return vf_from_int((vi){(a.low & 15) - 8, (a.high & 15) - 8});
}
/* a is NaN ? x : y */
INLINE vi vi_select_nan(vf a, vi x, vi y)
{
    return (vi){vbslq_s32(vceqq_f32(a.low, a.low), y.low, x.low),
                vbslq_s32(vceqq_f32(a.high, a.high), y.high, x.high)};
}
INLINE uint32_t vi_largest_u32(vi a)
{
    return vmaxvq_u32(vmaxq_u32((uint32x4_t)a.low, (uint32x4_t)a.high));
}
INLINE int32_t vi_sum(vi a)
{
    return vaddvq_s32(vaddq_s32(a.low, a.high));
}
/* Eight activations for products of bytes: a = 128·(a >> 7) + (a & 127), first the eight high
   parts, −32 … 31, then the low ones. What activation_place says is of other sets. */
INLINE void vi_store_activations(int16_t *to, vi a)
{
    int16x8_t words = vcombine_s16(vmovn_s32(a.low), vmovn_s32(a.high));
    int8x8_t low = vmovn_s16(vandq_s16(words, vdupq_n_s16(127)));
    vst1q_s16(to, vreinterpretq_s16_s8(vcombine_s8(vshrn_n_s16(words, 7), low)));
}

/* The lanes, which fit, as 16 and as 8 bits. */
INLINE void vi_store_words(uint16_t *to, vi a)
{
    vst1_u16(to, vmovn_u32((uint32x4_t)a.low));
    vst1_u16(to + 4, vmovn_u32((uint32x4_t)a.high));
}
INLINE void vi_store_bytes(uint8_t *to, vi a)
{
    uint16x8_t words = vcombine_u16(vmovn_u32((uint32x4_t)a.low), vmovn_u32((uint32x4_t)a.high));
    vst1_u8(to, vmovn_u16(words));
}

/* Bits and bytes */
INLINE vi vi_load(const uint8_t *from)
{
    return (vi){vreinterpretq_s32_u8(vld1q_u8(from)), vreinterpretq_s32_u8(vld1q_u8(from + 16))};
}
INLINE void vi_store(uint8_t *to, vi value)
{
    vst1q_u8(to, vreinterpretq_u8_s32(value.low));
    vst1q_u8(to + 16, vreinterpretq_u8_s32(value.high));
}
INLINE vi vi_set1_u8(uint8_t value)
{
    int32x4_t bytes = vreinterpretq_s32_u8(vdupq_n_u8(value));
    return (vi){bytes, bytes};
}
INLINE vi vi_and(vi a, vi b)
{
    return (vi){a.low & b.low, a.high & b.high};
}
INLINE vi vi_or(vi a, vi b)
{
    return (vi){a.low | b.low, a.high | b.high};
}
INLINE vi vi_sub_i8(vi a, vi b)
{
    return (vi){(int32x4_t)((uint8x16_t)a.low - (uint8x16_t)b.low),
                (int32x4_t)((uint8x16_t)a.high - (uint8x16_t)b.high)};
}
INLINE vi vi_sub16(vi a, vi b)
{
    return (vi){(int32x4_t)((uint16x8_t)a.low - (uint16x8_t)b.low),
                (int32x4_t)((uint16x8_t)a.high - (uint16x8_t)b.high)};
}
INLINE vi vi_srl8(vi a, int n)
{
    return (vi){(int32x4_t)((uint8x16_t)a.low >> n), (int32x4_t)((uint8x16_t)a.high >> n)};
}
INLINE vi vi_srl16(vi a, int n)
{
    return (vi){(int32x4_t)((uint16x8_t)a.low >> n), (int32x4_t)((uint16x8_t)a.high >> n)};
}
INLINE vi vi_sra16(vi a, int n)
{
    return (vi){(int32x4_t)((int16x8_t)a.low >> n), (int32x4_t)((int16x8_t)a.high >> n)};
}
INLINE vi vi_sll16(vi a, int n)
{
    return (vi){(int32x4_t)((uint16x8_t)a.low << n), (int32x4_t)((uint16x8_t)a.high << n)};
}
/* table[a] for bytes a < 16 */
INLINE vi vi_look_up(const int8_t table[16], vi a)
{
    int8x16_t entries = vld1q_s8(table);
    return (vi){(int32x4_t)vqtbl1q_s8(entries, (uint8x16_t)a.low),
                (int32x4_t)vqtbl1q_s8(entries, (uint8x16_t)a.high)};
}

/* Sixteen virtual lanes of a sum along a row, and the fixed tree (scalar_sum_lanes). */
struct lanes {
    vf at[2];
};
INLINE float lanes_sum(struct lanes lanes)
{
    vf a = vf_add(lanes.at[0], lanes.at[1]);
    float32x4_t b = vaddq_f32(a.low, a.high);
    b = vaddq_f32(b, vextq_f32(b, b, 2));
    return vgetq_lane_f32(b, 0) + vgetq_lane_f32(b, 1);
}

/* Pairs (2i, 2i + 1) of 2·VECTOR_LANES floats, apart and together again. */
INLINE void vf_load_pairs(const float *from, vf *even, vf *odd)
{
    float32x4x2_t low = vld2q_f32(from), high = vld2q_f32(from + 8);
    *even = (vf){low.val[0], high.val[0]};
    *odd = (vf){low.val[1], high.val[1]};
}
INLINE void vf_store_pairs(float *to, vf even, vf odd)
{
    vst2q_f32(to, (float32x4x2_t){{even.low, odd.low}});
    vst2q_f32(to + 8, (float32x4x2_t){{even.high, odd.high}});
}

#endif
