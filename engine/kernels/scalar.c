/*
 * The specification: every kernel in plain C, in the order of operations that all others keep.
 *
 * What is fixed here, bit for bit (NaN payloads excepted):
 *
 * Activations, per 32 values of a row (the last block padded with zeros), L = 4,095 (13 bits):
 *   amax = the largest magnitude. Any infinity or NaN: d = NaN and q = 0, so that the logits show
 *   it. L/amax infinite (amax = 0 or below about 1.2e-35): d = 0 and q = 0. Else d = amax/L and
 *   q = round-to-nearest-even(x·(L/amax)), clamped to ±L. sum_scaled = d·(float)Σq.
 *
 * Integer formats, one chain per output, blocks of 32 ascending, from 0:
 *   acc = fma((float)Σ q_w·q_a, scale_w·d, acc)         the product scale_w·d is rounded once
 *   acc = fma(min_w, sum_scaled, acc)                   formats with a min
 *   Formats with a scale per 16 values take the first line for values 0–15, then for 16–31, then
 *   the second line twice. scale_w = d_w·subscale and min_w = −(dmin·submin) are exact in f32 (f16
 *   times at most 8 bits), so sub-scales cost nothing per activation row; |Σ q_w·q_a| < 2^24.
 * F32, F16, BF16: acc = fma(w, x, acc), k ascending, from 0.
 *   y = acc, or y = y + acc.
 *
 * Sums along a row: 16 lanes, lane = position mod 16, ascending; then lanes i + 8, 4, 2, 1 are
 * added to lane i. Attention: attention.c; storing keys and values: kv_page.c. Everything else is
 * elementwise.
 *
 * Packed matrices are the file's rows. Called through SCALAR_KERNELS only.
 */
#include "engine/kernels/sets.h"

#include "base/check.h"
#include "base/minmax.h"
#include "engine/kernels/block.h"
#include "engine/kernels/format_table.h"
#include "engine/kernels/kv_page.h"
#include "engine/kernels/math.h"

#include <math.h>
#include <string.h>

#define ROW_TILE 32u

static uint64_t scalar_repacked_bytes(enum tensor_format format, uint32_t n, uint32_t k)
{
    return (uint64_t)kernel_row_blocks(n) * KERNEL_ROW_BLOCK * format_row_bytes(format, k);
}

static void scalar_repack(struct repacked_matrix *matrix, uint32_t first, uint32_t count,
                          const void *rows)
{
    CHECK(first % KERNEL_ROW_BLOCK == 0 && first + count <= matrix->n);
    CHECK(count % KERNEL_ROW_BLOCK == 0 || first + count == matrix->n);
    uint64_t bytes = format_row_bytes(matrix->format, matrix->k);
    uint8_t *to = (uint8_t *)matrix->data + first * bytes;
    memcpy(to, rows, count * bytes);
    uint32_t padding = (KERNEL_ROW_BLOCK - count % KERNEL_ROW_BLOCK) % KERNEL_ROW_BLOCK;
    memset(to + count * bytes, 0, padding * bytes);
}

static const uint8_t *matrix_row(const struct repacked_matrix *matrix, uint32_t row)
{
    return (const uint8_t *)matrix->data + row * format_row_bytes(matrix->format, matrix->k);
}

static void scalar_dequantize_row(const struct repacked_matrix *matrix, uint32_t row, float *out)
{
    CHECK(row < matrix->n);
    block_dequantize(matrix->format, matrix_row(matrix, row), matrix->k, out);
}

static uint64_t scalar_quantized_row_bytes(uint32_t k)
{
    return (uint64_t)activation_stride(k) * sizeof(struct activation_block);
}

static void quantize_block(const float *x, uint32_t count, struct activation_block *out)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7FFFFFFFu;
        largest = max_u32(bits, largest);
    }
    float amax;
    memcpy(&amax, &largest, sizeof amax);
    memset(out->q, 0, sizeof out->q);
    if (largest >= 0x7F800000u) {
        activation_block_finish(out, NAN);
        return;
    }
    float inverse = (float)ACTIVATION_LIMIT / amax;
    if (!(inverse < INFINITY)) {
        activation_block_finish(out, 0.0f);
        return;
    }
    const int limit = ACTIVATION_LIMIT;
    for (uint32_t i = 0; i < count; i++) {
        float scaled = x[i] * inverse;
        float rounded = (scaled + 12582912.0f) - 12582912.0f;
        int q = (int)rounded;
        out->q[activation_place(i)] = (int16_t)(q > limit ? limit : q < -limit ? -limit : q);
    }
    activation_block_finish(out, amax / (float)ACTIVATION_LIMIT);
}

static void scalar_quantize(const struct activations *activations, uint32_t first, uint32_t count)
{
    CHECK(first + count <= activations->row_count);
    uint32_t k = activations->k;
    for (uint32_t r = first; r < first + count; r++) {
        const float *x = activations->x + (uint64_t)r * k;
        struct activation_block *out = activations->quantized;
        out += (uint64_t)r * activation_stride(k);
        for (uint32_t i = 0; i < k; i += BLOCK_VALUES)
            quantize_block(x + i, min_u32(k - i, BLOCK_VALUES), out++);
    }
}

static int32_t dot16(const int8_t *weights, const int16_t *q)
{
    int32_t dot = 0;
    for (uint32_t i = 0; i < 16; i++)
        dot += weights[i] * q[activation_place(i)];
    return dot;
}

static float chain_block(float acc, const struct format_row *format, const struct weight_block *w,
                         const struct activation_block *a)
{
    int32_t first = dot16(w->q, a->q);
    int32_t second = dot16(w->q + 16, a->q + 16);
    if (!format->sub_blocks) {
        acc = fmaf((float)(first + second), w->scale[0] * a->d, acc);
        return format->has_min ? fmaf(w->min[0], a->sum_scaled, acc) : acc;
    }
    acc = fmaf((float)first, w->scale[0] * a->d, acc);
    acc = fmaf((float)second, w->scale[1] * a->d, acc);
    if (format->has_min) {
        acc = fmaf(w->min[0], a->sub_sum_scaled[0], acc);
        acc = fmaf(w->min[1], a->sub_sum_scaled[1], acc);
    }
    return acc;
}

/* acc[i] = W[output] · row first + i, for count <= ROW_TILE rows. */
static void dot_rows(const struct repacked_matrix *matrix, const struct activations *activations,
                     uint32_t output, uint32_t first, uint32_t count, float *acc)
{
    const uint8_t *row = matrix_row(matrix, output);
    const struct format_row *format = &FORMAT_TABLE[matrix->format];
    memset(acc, 0, count * sizeof *acc);
    if (!format_is_quantized(matrix->format)) {
        for (uint32_t i = 0; i < matrix->k; i++) {
            float w = block_read_float(matrix->format, row, i);
            for (uint32_t r = 0; r < count; r++)
                acc[r] = fmaf(w, activations->x[(uint64_t)(first + r) * matrix->k + i], acc[r]);
        }
        return;
    }
    const struct activation_block *blocks = activations->quantized;
    uint64_t stride = activation_stride(matrix->k);
    for (uint32_t b = 0; b < matrix->k / BLOCK_VALUES; b++) {
        struct weight_block w;
        block_read(matrix->format, row, b, &w);
        for (uint32_t r = 0; r < count; r++)
            acc[r] = chain_block(acc[r], format, &w, &blocks[(first + r) * stride + b]);
    }
}

static void scalar_matmul(const struct repacked_matrix *matrix,
                          const struct activations *activations, uint32_t first_row, uint32_t rows,
                          uint32_t first_block, uint32_t blocks, bool accumulate, float *y,
                          size_t y_stride)
{
    CHECK(activations->k == matrix->k && first_row + rows <= activations->row_count);
    uint64_t end = ((uint64_t)first_block + blocks) * KERNEL_ROW_BLOCK;
    uint32_t last = (uint32_t)min_u64(end, matrix->n);
    for (uint32_t o = first_block * KERNEL_ROW_BLOCK; o < last; o++) {
        for (uint32_t r = 0; r < rows; r += ROW_TILE) {
            float acc[ROW_TILE];
            uint32_t count = min_u32(rows - r, ROW_TILE);
            dot_rows(matrix, activations, o, first_row + r, count, acc);
            for (uint32_t i = 0; i < count; i++) {
                float *out = y + (first_row + r + i) * y_stride + o;
                *out = accumulate ? *out + acc[i] : acc[i];
            }
        }
    }
}

static void scalar_rms_norm(const float *x, const float *weight, float eps, uint32_t n, float *out)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    float mean = scalar_sum_lanes(lanes) / (float)n;
    float r = 1.0f / sqrtf(mean + eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * r * weight[i];
}

static void scalar_layer_norm(const float *x, const float *weight, const float *bias, float eps,
                              uint32_t n, float *out)
{
    float sums[16] = {0}, squares[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        sums[i % 16] += x[i];
    float mean = scalar_sum_lanes(sums) / (float)n;
    for (uint32_t i = 0; i < n; i++)
        squares[i % 16] = fmaf(x[i] - mean, x[i] - mean, squares[i % 16]);
    float r = 1.0f / sqrtf(scalar_sum_lanes(squares) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = fmaf((x[i] - mean) * r, weight[i], bias[i]);
}

static void scalar_rope(float *head, const float *cos, const float *sin, uint32_t rotary, bool neox)
{
    uint32_t half = rotary / 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = neox ? head + i : head + 2 * i;
        float *b = neox ? a + half : a + 1;
        float x = *a, y = *b;
        *a = fmaf(x, cos[i], -(y * sin[i]));
        *b = fmaf(y, cos[i], x * sin[i]);
    }
}

static void scalar_silu_multiply(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        gate[i] = math_silu(gate[i]) * up[i];
}

static void scalar_gelu_multiply(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        gate[i] = math_gelu(gate[i]) * up[i];
}

static void scalar_gelu_erf(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = math_gelu_erf(x[i]);
}

static void scalar_add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void scalar_kv_store(const struct kv_layout *kv, uint32_t layer, uint32_t kv_head,
                            uint64_t slot, const float *key, const float *value)
{
    kv_store_with(scalar_kv_encode, kv, layer, kv_head, slot, key, value);
}

static uint64_t scalar_attention_scratch_bytes(uint32_t head_dim, uint32_t gqa_group)
{
    (void)gqa_group;
    return (3ull * head_dim + ATTENTION_TILE) * sizeof(float);
}

const struct kernels SCALAR_KERNELS = {
    .name = "scalar",
    .repacked_bytes = scalar_repacked_bytes,
    .repack = scalar_repack,
    .dequantize_row = scalar_dequantize_row,
    .quantized_row_bytes = scalar_quantized_row_bytes,
    .quantize = scalar_quantize,
    .matmul = scalar_matmul,
    .rms_norm = scalar_rms_norm,
    .layer_norm = scalar_layer_norm,
    .rope = scalar_rope,
    .silu_multiply = scalar_silu_multiply,
    .gelu_multiply = scalar_gelu_multiply,
    .gelu_erf = scalar_gelu_erf,
    .add = scalar_add,
    .kv_store = scalar_kv_store,
    .attention_scratch_bytes = scalar_attention_scratch_bytes,
    .attention = scalar_attention,
    .attention_segment = scalar_attention_segment,
    .attention_merge = scalar_attention_merge,
};
