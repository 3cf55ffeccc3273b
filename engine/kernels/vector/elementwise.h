/*
 * What works along one row: quantizing, norms, RoPE, activation functions, sums.
 *
 * Bodies for any number of lanes; scalar.c is the specification and also computes the ends of rows
 * that fill no vector.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_ELEMENTWISE_H
#define QUIRE_ENGINE_KERNELS_VECTOR_ELEMENTWISE_H

#include "base/check.h"
#include "engine/kernels/block.h"
#include "engine/kernels/math.h"
#include "engine/kernels/sets.h"
#include "engine/kernels/vector/math.h"

#include <math.h>
#include <stddef.h>

#define VECTORS_PER_BLOCK (BLOCK_VALUES / VECTOR_LANES)

static void vector_quantize_block(const float *x, struct activation_block *out)
{
    vf values[VECTORS_PER_BLOCK];
    vi largest = vi_set1(0);
    for (uint32_t i = 0; i < VECTORS_PER_BLOCK; i++) {
        values[i] = vf_load(x + i * VECTOR_LANES);
        largest = vi_max_u32(largest, vi_and(vi_bits(values[i]), vi_set1(0x7FFFFFFF)));
    }
    uint32_t bits = vi_largest_u32(largest);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    float inverse = (float)ACTIVATION_LIMIT / amax;
    if (bits >= 0x7F800000u || !(inverse < INFINITY)) {
        memset(out->q, 0, sizeof out->q);
        activation_block_finish(out, bits >= 0x7F800000u ? NAN : 0.0f);
        return;
    }
    float d = amax / (float)ACTIVATION_LIMIT;
    vi sums[2] = {vi_set1(0), vi_set1(0)};
    for (uint32_t i = 0; i < VECTORS_PER_BLOCK; i++) {
        vi q = vi_round(vf_mul(values[i], vf_set1(inverse)));
        vi *sum = &sums[i * VECTOR_LANES / 16];
        *sum = vi_add(*sum, q);
        vi_store_activations(out->q + i * VECTOR_LANES, q);
    }
    int32_t first = vi_sum(sums[0]), second = vi_sum(sums[1]);
    out->d = d;
    out->sum_scaled = d * (float)(first + second);
    out->sub_sum_scaled[0] = d * (float)first;
    out->sub_sum_scaled[1] = d * (float)second;
}

static uint64_t vector_quantized_row_bytes(uint32_t k)
{
    return (uint64_t)activation_stride(k) * sizeof(struct activation_block);
}

static void vector_quantize(const struct activations *activations, uint32_t first, uint32_t count)
{
    CHECK(first + count <= activations->row_count);
    uint32_t k = activations->k;
    for (uint32_t r = first; r < first + count; r++) {
        const float *x = activations->x + (uint64_t)r * k;
        struct activation_block *out = activations->quantized;
        out += (uint64_t)r * activation_stride(k);
        uint32_t i = 0;
        for (; i + BLOCK_VALUES <= k; i += BLOCK_VALUES)
            vector_quantize_block(x + i, out++);
        if (i < k) {
            float padded[BLOCK_VALUES] = {0};
            memcpy(padded, x + i, (k - i) * sizeof *x);
            vector_quantize_block(padded, out);
        }
    }
}

static void vector_rms_norm(const float *x, const float *weight, float eps, uint32_t n, float *out)
{
    struct lanes lanes;
    for (uint32_t j = 0; j < 16 / VECTOR_LANES; j++)
        lanes.at[j] = vf_set1(0.0f);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (uint32_t j = 0; j < 16 / VECTOR_LANES; j++) {
            vf value = vf_load(x + i + j * VECTOR_LANES);
            lanes.at[j] = vf_fma(value, value, lanes.at[j]);
        }
    }
    if (i < n) { /* squares are not negative: adding 0 changes nothing */
        float padded[16] = {0};
        memcpy(padded, x + i, (n - i) * sizeof *x);
        for (uint32_t j = 0; j < 16 / VECTOR_LANES; j++) {
            vf value = vf_load(padded + j * VECTOR_LANES);
            lanes.at[j] = vf_fma(value, value, lanes.at[j]);
        }
    }
    float mean = lanes_sum(lanes) / (float)n;
    float r = 1.0f / sqrtf(mean + eps);
    for (i = 0; i + VECTOR_LANES <= n; i += VECTOR_LANES) {
        vf value = vf_mul(vf_load(x + i), vf_set1(r));
        vf_store(out + i, vf_mul(value, vf_load(weight + i)));
    }
    for (; i < n; i++)
        out[i] = x[i] * r * weight[i];
}

/* Lane sums of x, or of (x − *mean)². */
static float vector_sum_row(const float *x, uint32_t n, const float *mean)
{
    struct lanes lanes;
    for (uint32_t j = 0; j < 16 / VECTOR_LANES; j++)
        lanes.at[j] = vf_set1(0.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        float padded[16];
        const float *at = x + i;
        if (n - i < 16) { /* the mean itself, or 0: adding 0 changes nothing */
            for (uint32_t j = 0; j < 16; j++)
                padded[j] = i + j < n ? x[i + j] : mean ? *mean : 0.0f;
            at = padded;
        }
        for (uint32_t j = 0; j < 16 / VECTOR_LANES; j++) {
            vf value = vf_load(at + j * VECTOR_LANES);
            if (mean) {
                value = vf_sub(value, vf_set1(*mean));
                lanes.at[j] = vf_fma(value, value, lanes.at[j]);
            } else {
                lanes.at[j] = vf_add(lanes.at[j], value);
            }
        }
    }
    return lanes_sum(lanes);
}

static void vector_layer_norm(const float *x, const float *weight, const float *bias, float eps,
                              uint32_t n, float *out)
{
    float mean = vector_sum_row(x, n, NULL) / (float)n;
    float r = 1.0f / sqrtf(vector_sum_row(x, n, &mean) / (float)n + eps);
    uint32_t i = 0;
    for (; i + VECTOR_LANES <= n; i += VECTOR_LANES) {
        vf value = vf_mul(vf_sub(vf_load(x + i), vf_set1(mean)), vf_set1(r));
        vf_store(out + i, vf_fma(value, vf_load(weight + i), vf_load(bias + i)));
    }
    for (; i < n; i++)
        out[i] = fmaf((x[i] - mean) * r, weight[i], bias[i]);
}

static void vector_rope(float *head, const float *cos, const float *sin, uint32_t rotary, bool neox)
{
    uint32_t half = rotary / 2;
    uint32_t i = 0;
    for (; i + VECTOR_LANES <= half; i += VECTOR_LANES) {
        vf x, y, c = vf_load(cos + i), s = vf_load(sin + i);
        if (neox) {
            x = vf_load(head + i);
            y = vf_load(head + half + i);
        } else {
            vf_load_pairs(head + 2 * i, &x, &y);
        }
        vf a = vf_fma(x, c, vf_negate(vf_mul(y, s)));
        vf b = vf_fma(y, c, vf_mul(x, s));
        if (neox) {
            vf_store(head + i, a);
            vf_store(head + half + i, b);
        } else {
            vf_store_pairs(head + 2 * i, a, b);
        }
    }
    for (; i < half; i++) {
        float *a = neox ? head + i : head + 2 * i;
        float *b = neox ? a + half : a + 1;
        float x = *a, y = *b;
        *a = fmaf(x, cos[i], -(y * sin[i]));
        *b = fmaf(y, cos[i], x * sin[i]);
    }
}

static void vector_silu_multiply(float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + VECTOR_LANES <= n; i += VECTOR_LANES)
        vf_store(gate + i, vf_mul(vf_silu(vf_load(gate + i)), vf_load(up + i)));
    SCALAR_KERNELS.silu_multiply(gate + i, up + i, n - i);
}

static void vector_gelu_multiply(float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + VECTOR_LANES <= n; i += VECTOR_LANES)
        vf_store(gate + i, vf_mul(vf_gelu(vf_load(gate + i)), vf_load(up + i)));
    SCALAR_KERNELS.gelu_multiply(gate + i, up + i, n - i);
}

static void vector_gelu_erf(float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + VECTOR_LANES <= n; i += VECTOR_LANES)
        vf_store(x + i, vf_gelu_erf(vf_load(x + i)));
    SCALAR_KERNELS.gelu_erf(x + i, n - i);
}

static void vector_add(float *x, const float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + VECTOR_LANES <= n; i += VECTOR_LANES)
        vf_store(x + i, vf_add(vf_load(x + i), vf_load(y + i)));
    SCALAR_KERNELS.add(x + i, y + i, n - i);
}

#endif
