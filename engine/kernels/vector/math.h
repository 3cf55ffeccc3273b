/*
 * exp, tanh, silu and gelu of math.c, lane by lane: the same operations in the same order, so the
 * same bits.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_MATH_H
#define QUIRE_ENGINE_KERNELS_VECTOR_MATH_H

#include "engine/kernels/vector/lanes.h"

INLINE vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f);
    vf clamped = vf_min(vf_set1(89.0f), vf_max(vf_set1(-105.0f), x));
    vf shifted = vf_fma(clamped, vf_set1(0x1.715476p+0f), magic);
    vf n = vf_sub(shifted, magic);
    vf r = vf_fma(n, vf_set1(-0x1.62e4p-1f), clamped);
    r = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), r);
    vf q = vf_set1(0x1.6a1a64p-10f);
    q = vf_fma(q, r, vf_set1(0x1.123fc8p-7f));
    q = vf_fma(q, r, vf_set1(0x1.555916p-5f));
    q = vf_fma(q, r, vf_set1(0x1.55548ap-3f));
    q = vf_fma(q, r, vf_set1(0x1.fffffcp-2f));
    vf p = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set1(1.0f));
    vi exponent = vi_sub(vi_bits(shifted), vi_bits(magic));
    vi half = vi_sra32(exponent, 1);
    vf low = vf_bits(vi_sll32(vi_add(half, vi_set1(127)), 23));
    vf high = vf_bits(vi_sll32(vi_add(vi_sub(exponent, half), vi_set1(127)), 23));
    return vf_mul(vf_mul(p, low), high);
}

INLINE vf vf_silu(vf x)
{
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_negate(x))));
}

INLINE vf vf_gelu(vf x)
{
    vf inner = vf_fma(vf_mul(vf_set1(0.044715f), x), x, vf_set1(1.0f));
    vf minus_2u = vf_mul(vf_mul(vf_set1(-1.5957691216f), x), inner);
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(minus_2u)));
}

INLINE vf vf_gelu_erf(vf x)
{
    vf a = vf_bits(vi_and(vi_bits(x), vi_set1(0x7FFFFFFF)));
    vf t = vf_div(vf_set1(1.0f), vf_fma(vf_set1(0.3f), a, vf_set1(1.0f)));
    vf p = vf_set1(0x1.28bdeap-5f);
    p = vf_fma(p, t, vf_set1(-0x1.465baep-3f));
    p = vf_fma(p, t, vf_set1(0x1.adb5ecp-3f));
    p = vf_fma(p, t, vf_set1(-0x1.d00934p-5f));
    p = vf_fma(p, t, vf_set1(0x1.0a401p-3f));
    p = vf_fma(p, t, vf_set1(0x1.979b7ap-4f));
    p = vf_fma(p, t, vf_set1(0x1.eed8c0p-4f));
    p = vf_fma(p, t, vf_set1(0x1.e9fcd0p-4f));
    vf tail = vf_mul(vf_mul(p, t), vf_exp(vf_mul(vf_mul(vf_set1(-0.5f), a), a)));
    vf above = vf_mul(x, vf_sub(vf_set1(1.0f), tail));
    return vf_select_less(x, vf_set1(0.0f), vf_mul(x, tail), above);
}

INLINE vf vf_tanh(vf x)
{
    vf a = vf_bits(vi_and(vi_bits(x), vi_set1(0x7FFFFFFF)));
    vf z = vf_mul(x, x);
    vf p = vf_set1(-0x1.76ab8ap-8f);
    p = vf_fma(p, z, vf_set1(0x1.5256b4p-6f));
    p = vf_fma(p, z, vf_set1(-0x1.b84442p-5f));
    p = vf_fma(p, z, vf_set1(0x1.110768p-3f));
    p = vf_fma(p, z, vf_set1(-0x1.555534p-2f));
    vf small = vf_fma(vf_mul(x, z), p, x);
    vf grown = vf_add(vf_exp(vf_add(a, a)), vf_set1(1.0f));
    vf large = vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), grown));
    vi sign = vi_and(vi_bits(x), vi_set1((int32_t)0x80000000u));
    return vf_select_less(a, vf_set1(0.625f), small, vf_bits(vi_or(vi_bits(large), sign)));
}

#endif
