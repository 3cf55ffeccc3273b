/*
 * exp, tanh, log, sin, cos, pow as polynomials in one fixed order of operations.
 *
 * The float forms are mirrored, operation by operation, by the vector forms in math.h;
 * whoever changes one changes both (tests compare them bit for bit). Every a·b + c that is written
 * as fmaf here is one rounding there; nothing else may be contracted (-ffp-contract=off). Rounding
 * to an integer adds and subtracts 1.5·2^23: nearest even under the default mode, which is the only
 * one we run in. Coefficients are our own minimax fits; how far off they are stands beside them.
 */
#include "engine/kernels/math.h"

#include <math.h>
#include <string.h>

#define ROUND_MAGIC 12582912.0f /* 1.5·2^23 */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e^x = 2^n · e^r, n = round(x / ln 2), |r| <= 0.35; e^r = 1 + r + r²·q(r), 0.06 ulp off. 2^n is
   multiplied in two halves so that subnormal results round once. The comparisons let NaN through.
 */
float math_exp(float x)
{
    float clamped = x < -105.0f ? -105.0f : x;
    clamped = clamped > 89.0f ? 89.0f : clamped;
    float shifted = fmaf(clamped, 0x1.715476p+0f, ROUND_MAGIC);
    float n = shifted - ROUND_MAGIC;
    float r = fmaf(n, -0x1.62e4p-1f, clamped);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float q = 0x1.6a1a64p-10f;
    q = fmaf(q, r, 0x1.123fc8p-7f);
    q = fmaf(q, r, 0x1.555916p-5f);
    q = fmaf(q, r, 0x1.55548ap-3f);
    q = fmaf(q, r, 0x1.fffffcp-2f);
    float p = fmaf(r * r, q, r) + 1.0f;
    int32_t exponent = (int32_t)(bits_of(shifted) - bits_of(ROUND_MAGIC));
    int32_t half = exponent >> 1;
    float low = float_of((uint32_t)(half + 127) << 23);
    float high = float_of((uint32_t)(exponent - half + 127) << 23);
    return p * low * high;
}

float math_silu(float x)
{
    return x / (1.0f + math_exp(-x));
}

/* 0.5·x·(1 + tanh(u)) with u = √(2/π)·x·(1 + 0.044715·x²), written as x / (1 + e^(−2u)): the same
   function with one division, and without the cancellation at negative x. */
float math_gelu(float x)
{
    float inner = fmaf(0.044715f * x, x, 1.0f);
    float minus_2u = (-1.5957691216f * x) * inner;
    return x / (1.0f + math_exp(minus_2u));
}

/* x·Φ(x). Φ(−a) = e^(−a²/2)·t·P(t) with t = 1/(1 + 0.3·a), for a = |x|; P is 3 ulp off. */
float math_gelu_erf(float x)
{
    float a = float_of(bits_of(x) & 0x7FFFFFFFu);
    float t = 1.0f / fmaf(0.3f, a, 1.0f);
    float p = 0x1.28bdeap-5f;
    p = fmaf(p, t, -0x1.465baep-3f);
    p = fmaf(p, t, 0x1.adb5ecp-3f);
    p = fmaf(p, t, -0x1.d00934p-5f);
    p = fmaf(p, t, 0x1.0a401p-3f);
    p = fmaf(p, t, 0x1.979b7ap-4f);
    p = fmaf(p, t, 0x1.eed8c0p-4f);
    p = fmaf(p, t, 0x1.e9fcd0p-4f);
    float tail = p * t * math_exp((-0.5f * a) * a);
    return x < 0.0f ? x * tail : x * (1.0f - tail);
}

/* Below 0.625: x + x³·P(x²), 0.07 ulp off; above: 1 − 2 / (e^(2|x|) + 1). */
float math_tanh(float x)
{
    float a = float_of(bits_of(x) & 0x7FFFFFFFu);
    float z = x * x;
    float p = -0x1.76ab8ap-8f;
    p = fmaf(p, z, 0x1.5256b4p-6f);
    p = fmaf(p, z, -0x1.b84442p-5f);
    p = fmaf(p, z, 0x1.110768p-3f);
    p = fmaf(p, z, -0x1.555534p-2f);
    float small = fmaf(x * z, p, x);
    float large = 1.0f - 2.0f / (math_exp(a + a) + 1.0f);
    uint32_t sign = bits_of(x) & 0x80000000u;
    return a < 0.625f ? small : float_of(bits_of(large) | sign);
}

/* x = 2^e · (1 + f), f in [√½ − 1, √2 − 1); log(1+f) = f − f²/2 + f³·P(f), 0.01 ulp off. */
float math_log(float x)
{
    if (!(x > 0.0f))
        return x == 0.0f ? -INFINITY : NAN;
    if (x == INFINITY)
        return x;
    int32_t exponent = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p23f;
        exponent = -23;
    }
    uint32_t bits = bits_of(x) - 0x3F3504F3u; /* √½ */
    exponent += (int32_t)bits >> 23;
    float f = float_of((bits & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f;
    static const float P[9] = {0.3333331346511841f,   -0.25000008940696716f, 0.2000211924314499f,
                               -0.16667994856834412f, 0.142195463180542f,    -0.12405597418546677f,
                               0.11888211220502853f,  -0.11675615608692169f, 0.0674649178981781f};
    float p = P[8];
    for (int i = 7; i >= 0; i--)
        p = fmaf(p, f, P[i]);
    float e = (float)exponent;
    float ff = f * f;
    float tail = fmaf(ff * f, p, e * 0x1.7f7d1cp-20f);
    tail = fmaf(-0.5f, ff, tail);
    return fmaf(e, 0x1.62e4p-1f, f + tail);
}

/* x = n·π/2 + r. π/2 as two parts of 30 bits, so that n·part is exact for |n| < 2^22, and a third
   of 53; the rounding error of the second subtraction is carried. Beyond |x| = 6·10^6 accuracy
   fades. */
static double reduce_quarter(double x, unsigned *quadrant)
{
    double n = rint(x * 0x1.45f306dc9c883p-1);
    double r = x - n * 0x1.921fb54p+0;
    double w = r - n * 0x1.10b46118p-30;
    double error = (r - w) - n * 0x1.10b46118p-30;
    error -= n * 0x1.313198a2e0370p-61;
    *quadrant = (unsigned)((int64_t)n & 3);
    return w + error;
}

/* Taylor series on |r| <= π/4; the first term left out is below 2^-53 of the result. */
static double sin_near(double r)
{
    double z = r * r;
    double p = -0x1.ae7f3e733b81fp-41; /* −1/15! */
    p = fma(p, z, 0x1.6124613a86d09p-33);
    p = fma(p, z, -0x1.ae64567f544e4p-26);
    p = fma(p, z, 0x1.71de3a556c734p-19);
    p = fma(p, z, -0x1.a01a01a01a01ap-13);
    p = fma(p, z, 0x1.1111111111111p-7);
    p = fma(p, z, -0x1.5555555555555p-3);
    return fma(r * z, p, r);
}

static double cos_near(double r)
{
    double z = r * r;
    double p = 0x1.ae7f3e733b81fp-45; /* 1/16! */
    p = fma(p, z, -0x1.93974a8c07c9dp-37);
    p = fma(p, z, 0x1.1eed8eff8d898p-29);
    p = fma(p, z, -0x1.27e4fb7789f5cp-22);
    p = fma(p, z, 0x1.a01a01a01a01ap-16);
    p = fma(p, z, -0x1.6c16c16c16c17p-10);
    p = fma(p, z, 0x1.5555555555555p-5);
    return fma(z * z, p, 1.0 - 0.5 * z);
}

double math_sin(double x)
{
    unsigned quadrant;
    double r = reduce_quarter(x, &quadrant);
    double value = quadrant & 1 ? cos_near(r) : sin_near(r);
    return quadrant & 2 ? -value : value;
}

double math_cos(double x)
{
    unsigned quadrant;
    double r = reduce_quarter(x, &quadrant);
    double value = quadrant & 1 ? sin_near(r) : cos_near(r);
    return quadrant == 1 || quadrant == 2 ? -value : value;
}

double math_exp_double(double x)
{
    if (x != x)
        return x;
    if (x > 710.0)
        return INFINITY;
    if (x < -746.0)
        return 0.0;
    double n = rint(x * 0x1.71547652b82fep+0);
    double r = fma(n, -0x1.62e42fefp-1, x);
    r = fma(n, -0x1.473de6af278edp-34, r);
    double p = 1.0; /* Horner of Σ r^i / i!, each step dividing by i: 1 + r/1·(1 + r/2·(1 + …)) */
    for (int i = 14; i >= 1; i--)
        p = fma(p * r, 1.0 / i, 1.0);
    int64_t exponent = (int64_t)n;
    int64_t half = exponent >> 1;
    p *= double_of((uint64_t)(half + 1023) << 52);
    return p * double_of((uint64_t)(exponent - half + 1023) << 52);
}

/* log(m) = 2·atanh(s), s = (m − 1)/(m + 1), |s| <= 0.172: the odd series up to s^23. */
double math_log_double(double x)
{
    if (!(x > 0.0))
        return x == 0.0 ? -INFINITY : NAN;
    if (x == INFINITY)
        return x;
    int64_t exponent = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        exponent = -54;
    }
    uint64_t bits = double_bits(x) - 0x3FE6A09E667F3BCDu; /* √½ */
    exponent += (int64_t)bits >> 52;
    double m = double_of((bits & 0xFFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu);
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double p = 0.0;
    for (int i = 23; i >= 3; i -= 2)
        p = fma(p, z, 2.0 / i);
    double e = (double)exponent;
    double low = fma(s * z, p, e * 0x1.473de6af278edp-34);
    return fma(e, 0x1.62e42fefp-1, fma(2.0, s, low));
}

double math_pow(double base, double exponent)
{
    return math_exp_double(exponent * math_log_double(base));
}

float math_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u;
    uint32_t mantissa = half & 0x3FFu;
    if (exponent == 31) {
        uint32_t quiet = mantissa ? 0x400000u : 0;
        return float_of(sign | 0x7F800000u | quiet | mantissa << 13);
    }
    if (exponent == 0) {
        float value = (float)mantissa * 0x1p-24f;
        return float_of(sign | bits_of(value));
    }
    return float_of(sign | (exponent + 112u) << 23 | mantissa << 13);
}

uint16_t math_f32_to_f16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
    if (magnitude >= 0x477FE000u) /* 65504 and above, infinity too */
        return (uint16_t)(sign | 0x7BFFu);
    if (magnitude < 0x38800000u) { /* below 2^-14: adding ½ makes the subnormal's unit 2^-24 */
        uint32_t rounded = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
        return (uint16_t)(sign | rounded);
    }
    uint32_t even = magnitude >> 13 & 1u;
    uint32_t rounded = magnitude + 0xFFFu + even;
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

float math_bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t math_f32_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    if (magnitude >= 0x7F7F0000u)
        return (uint16_t)(sign | 0x7F7Fu);
    return (uint16_t)(sign | (magnitude + 0x7FFFu + (magnitude >> 16 & 1u)) >> 16);
}
