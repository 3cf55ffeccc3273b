/*
 * Encoding keys and values for their pages, and reading them back, for any number of lanes;
 * kv_page.c is the specification. The type is a constant where these are inlined.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_KV_H
#define QUIRE_ENGINE_KERNELS_VECTOR_KV_H

#include "engine/kernels/kv_page.h"
#include "engine/kernels/math.h"
#include "engine/kernels/vector/lanes.h"

#include <math.h>

#define KV_VECTORS (KV_BLOCK / VECTOR_LANES)

/* At most `most` in magnitude; NaN stays NaN, since vf_min and vf_max give their second operand
   then. */
INLINE vf vf_saturate(vf value, float most)
{
    return vf_min(vf_set1(most), vf_max(vf_set1(-most), value));
}

/* The upper halves are rounded to nearest even and moved down; NaN becomes a quiet one. */
INLINE vi vi_round_bf16(vf value)
{
    vi bits = vi_bits(vf_saturate(value, 0x1.FEp127f));
    vi even = vi_and(vi_srl32(bits, 16), vi_set1(1));
    vi rounded = vi_add(vi_add(bits, vi_set1(0x7FFF)), even);
    vi quiet = vi_or(bits, vi_set1(0x400000));
    return vi_srl32(vi_select_nan(value, quiet, rounded), 16);
}

/* d of a block as f16, and whether all its codes are `zero`. */
static uint16_t vector_scale(enum kv_type type, const vf values[KV_VECTORS], bool *zero)
{
    vi magnitude = vi_set1(0);
    vf high = vf_set1(-INFINITY), low = high; /* low: of the negated values */
    for (uint32_t i = 0; i < KV_VECTORS; i++) {
        magnitude = vi_max_u32(magnitude, vi_and(vi_bits(values[i]), vi_set1(0x7FFFFFFF)));
        high = vf_max(values[i], high);
        low = vf_max(vf_negate(values[i]), low);
    }
    if (vi_largest_u32(magnitude) > 0x7F800000u) {
        *zero = true;
        return 0x7E00u;
    }
    float above = vf_largest(high), below = vf_largest(low);
    float m = above > below ? above : below;
    float d = type == KV_Q8_0 ? m / 127.0f : (above > below ? m : -m) / -8.0f;
    uint16_t half = math_f32_to_f16(d);
    *zero = (half & 0x7FFFu) == 0;
    return *zero ? 0 : half;
}

static void vector_encode_quantized(enum kv_type type, const vf values[KV_VECTORS],
                                    struct kv_block *out)
{
    const int zero = type == KV_Q8_0 ? 0 : 8;
    bool all_zero;
    out->d = vector_scale(type, values, &all_zero);
    if (all_zero) {
        memset(out->code, zero, sizeof out->code);
        return;
    }
    const vf d = vf_set1(math_f16_to_f32(out->d));
    const vf least = vf_set1(type == KV_Q8_0 ? -127.0f : -8.0f);
    const vf most = vf_set1(type == KV_Q8_0 ? 127.0f : 7.0f);
    for (uint32_t i = 0; i < KV_VECTORS; i++) {
        vf scaled = vf_min(most, vf_max(least, vf_div(values[i], d)));
        vi_store_bytes(out->code + i * VECTOR_LANES, vi_add(vi_round(scaled), vi_set1(zero)));
    }
}

static void vector_kv_encode(enum kv_type type, const float x[static KV_BLOCK],
                             struct kv_block *out)
{
    vf values[KV_VECTORS];
    for (uint32_t i = 0; i < KV_VECTORS; i++)
        values[i] = vf_load(x + i * VECTOR_LANES);
    if (kv_is_quantized(type)) {
        vector_encode_quantized(type, values, out);
        return;
    }
    for (uint32_t i = 0; i < KV_VECTORS; i++)
        if (type == KV_F32)
            vf_store(out->f32 + i * VECTOR_LANES, values[i]);
        else if (type == KV_F16)
            vf_store_f16(out->half + i * VECTOR_LANES, vf_saturate(values[i], 65504.0f));
        else
            vi_store_words(out->half + i * VECTOR_LANES, vi_round_bf16(values[i]));
}

static void vector_kv_store(const struct kv_layout *kv, uint32_t layer, uint32_t kv_head,
                            uint64_t slot, const float *key, const float *value)
{
    kv_store_with(vector_kv_encode, kv, layer, kv_head, slot, key, value);
}

/* ---- Reading ---- */

/* One vector of a row: of its elements at `low`, or, `split`, 8 lanes at `low` and 8 at `high`.
   `shift`: of q4_0's two dimensions in a byte the low (0) or the high one (4). */
INLINE vf vf_load_kv(const enum kv_type type, const bool split, const void *low, const void *high,
                     const vf scale, const uint32_t shift)
{
    switch (type) {
    case KV_F32:
        return split ? vf_load_split(low, high) : vf_load(low);
    case KV_F16:
        return split ? vf_load_f16_split(low, high) : vf_load_f16(low);
    case KV_BF16:
        return split ? vf_load_bf16_split(low, high) : vf_load_bf16(low);
    case KV_Q8_0:
        return vf_mul(scale, vf_from_int(split ? vi_load_i8_split(low, high) : vi_load_i8(low)));
    default: {
        vi bytes = split ? vi_load_u8_split(low, high) : vi_load_u8(low);
        return vf_mul(scale, vf_nibbles(vi_shift_nibble(bytes, shift)));
    }
    }
}

/* The first 8 lanes; only where there is no scale, since its blocks are whole vectors. */
INLINE vf vf_load_kv_8(const enum kv_type type, const void *from)
{
    switch (type) {
    case KV_F32:
        return vf_load_8(from);
    case KV_F16:
        return vf_load_f16_8(from);
    default:
        return vf_load_bf16_8(from);
    }
}

#endif
