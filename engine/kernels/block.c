/*
 * GGML's block formats, read from the file's layout into integers and exact scales.
 *
 * Layouts are those of the GGUF files as the gguf Python package (gguf/quants.py) decodes them;
 * tests/reference/test_formats.py compares every value bit for bit. Nothing here is on a hot path
 * of the fast kernels.
 *
 *   Q4_0   d:f16 q:16                    value i: low nibble of q[i], i + 16: high nibble; minus 8
 *   Q4_1   d:f16 m:f16 q:16              as Q4_0, plus m
 *   Q5_0   d:f16 h:32 bits q:16          fifth bit of value i: bit i of h; minus 16
 *   Q5_1   d:f16 m:f16 h q               plus m
 *   Q8_0   d:f16 q:32 signed
 *   IQ4_NL d:f16 q:16                    nibbles index a table
 *   Q2_K   s:16 q:64 d:f16 dmin:f16      per 16: scale low nibble, minimum high nibble of s
 *   Q3_K   h:32 q:64 s:12 d:f16          per 16: 6-bit scale minus 32; third bit in h, minus 4
 *   Q4_K   d dmin s:12 q:128             per 32: 6-bit scale and minimum
 *   Q5_K   d dmin s:12 h:32 q:128        fifth bit of block b: bit b of h[i]
 *   Q6_K   l:128 h:64 s:16 d:f16         per 16: signed scale; minus 32
 *   IQ4_XS d:f16 sh:u16 sl:4 q:128       per 32: 6-bit scale minus 32; table as IQ4_NL
 */
#include "engine/kernels/block.h"

#include "base/check.h"
#include "engine/kernels/math.h"

#include <string.h>

static const struct block_shape PLAIN = {false, false};
static const struct block_shape MINIMUM = {false, true};
static const struct block_shape HALVES = {true, false};
static const struct block_shape HALVES_MINIMUM = {true, true};

static const struct block_shape *const SHAPES[FORMAT_LIMIT] = {
    [FORMAT_Q4_0] = &PLAIN,          [FORMAT_Q4_1] = &MINIMUM, [FORMAT_Q5_0] = &PLAIN,
    [FORMAT_Q5_1] = &MINIMUM,        [FORMAT_Q8_0] = &PLAIN,   [FORMAT_IQ4_NL] = &PLAIN,
    [FORMAT_Q2_K] = &HALVES_MINIMUM, [FORMAT_Q3_K] = &HALVES,  [FORMAT_Q4_K] = &MINIMUM,
    [FORMAT_Q5_K] = &MINIMUM,        [FORMAT_Q6_K] = &HALVES,  [FORMAT_IQ4_XS] = &PLAIN,
};

const struct block_shape *block_shape(enum tensor_format format)
{
    return (uint32_t)format < FORMAT_LIMIT ? SHAPES[format] : NULL;
}

static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static uint16_t read_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static float read_f16(const uint8_t *at)
{
    return math_f16_to_f32(read_u16(at));
}

static void set_scale(struct weight_block *out, float scale)
{
    out->scale[0] = scale;
    out->scale[1] = scale;
}

static void set_minimum(struct weight_block *out, float minimum)
{
    out->minimum[0] = minimum;
    out->minimum[1] = minimum;
}

/* Value i is the low nibble of at[i], i + 16 the high one. */
static void read_nibbles(struct weight_block *out, const uint8_t *at)
{
    for (int i = 0; i < 16; i++) {
        out->q[i] = (int8_t)(at[i] & 15);
        out->q[i + 16] = (int8_t)(at[i] >> 4);
    }
}

static void add_fifth_bits(struct weight_block *out, const uint8_t *at)
{
    for (int i = 0; i < 32; i++) {
        int bit = at[i / 8] >> (i % 8) & 1;
        out->q[i] = (int8_t)(out->q[i] | bit << 4);
    }
}

static void subtract(struct weight_block *out, int offset)
{
    for (int i = 0; i < 32; i++) {
        out->q[i] = (int8_t)(out->q[i] - offset);
    }
}

static void look_up(struct weight_block *out)
{
    for (int i = 0; i < 32; i++) {
        out->q[i] = IQ4_VALUES[out->q[i]];
    }
}

/* The 12 bytes of 6-bit scales and minimums of Q4_K and Q5_K. */
static void read_six_bit(struct weight_block *out, const uint8_t *s, uint32_t part, float d,
                         float d_min)
{
    int scale, minimum;
    if (part < 4) {
        scale = s[part] & 63;
        minimum = s[part + 4] & 63;
    } else {
        scale = (s[part + 4] & 15) | (s[part - 4] >> 6) << 4;
        minimum = s[part + 4] >> 4 | (s[part] >> 6) << 4;
    }
    set_scale(out, d * (float)scale);
    set_minimum(out, -(d_min * (float)minimum));
}

static void read_q2_k(struct weight_block *out, const uint8_t *at, uint32_t part)
{
    float d = read_f16(at + 80);
    float d_min = read_f16(at + 82);
    const uint8_t *q = at + 16 + part / 4 * 32;
    for (int i = 0; i < 32; i++) {
        out->q[i] = (int8_t)(q[i] >> (part % 4 * 2) & 3);
    }
    for (uint32_t half = 0; half < 2; half++) {
        uint8_t s = at[part * 2 + half];
        out->scale[half] = d * (float)(s & 15);
        out->minimum[half] = -(d_min * (float)(s >> 4));
    }
}

static void read_q3_k(struct weight_block *out, const uint8_t *at, uint32_t part)
{
    float d = read_f16(at + 108);
    const uint8_t *q = at + 32 + part / 4 * 32;
    for (int i = 0; i < 32; i++) {
        int high = at[i] >> part & 1;
        int low = q[i] >> (part % 4 * 2) & 3;
        out->q[i] = (int8_t)(low - (high ? 0 : 4));
    }
    const uint8_t *s = at + 96;
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t j = part * 2 + half;
        int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
        int high = s[8 + j % 4] >> (j / 4 * 2) & 3;
        out->scale[half] = d * (float)((low | high << 4) - 32);
    }
}

static void read_q4_k(struct weight_block *out, const uint8_t *at, uint32_t part)
{
    read_six_bit(out, at + 4, part, read_f16(at), read_f16(at + 2));
    const uint8_t *q = at + 16 + part / 2 * 32;
    for (int i = 0; i < 32; i++) {
        out->q[i] = (int8_t)(q[i] >> (part % 2 * 4) & 15);
    }
}

static void read_q5_k(struct weight_block *out, const uint8_t *at, uint32_t part)
{
    read_six_bit(out, at + 4, part, read_f16(at), read_f16(at + 2));
    const uint8_t *q = at + 48 + part / 2 * 32;
    for (int i = 0; i < 32; i++) {
        int high = at[16 + i] >> part & 1;
        out->q[i] = (int8_t)((q[i] >> (part % 2 * 4) & 15) | high << 4);
    }
}

static void read_q6_k(struct weight_block *out, const uint8_t *at, uint32_t part)
{
    float d = read_f16(at + 208);
    const uint8_t *low = at + part / 4 * 64 + part % 2 * 32;
    const uint8_t *high = at + 128 + part / 4 * 32;
    for (int i = 0; i < 32; i++) {
        int l = low[i] >> (part % 4 / 2 * 4) & 15;
        int h = high[i] >> (part % 4 * 2) & 3;
        out->q[i] = (int8_t)((l | h << 4) - 32);
    }
    for (uint32_t half = 0; half < 2; half++) {
        out->scale[half] = d * (float)(int8_t)at[192 + part * 2 + half];
    }
}

static void read_iq4_xs(struct weight_block *out, const uint8_t *at, uint32_t part)
{
    int low = at[4 + part / 2] >> (part % 2 * 4) & 15;
    int high = read_u16(at + 2) >> (part * 2) & 3;
    set_scale(out, read_f16(at) * (float)((low | high << 4) - 32));
    read_nibbles(out, at + 8 + part * 16);
    look_up(out);
}

/* Formats of 256 values: `at` is the block, part 0–7 its 32 values. */
static void read_k_quant(enum tensor_format format, const uint8_t *at, uint32_t part,
                         struct weight_block *out)
{
    switch (format) {
    case FORMAT_Q2_K:
        read_q2_k(out, at, part);
        break;
    case FORMAT_Q3_K:
        read_q3_k(out, at, part);
        break;
    case FORMAT_Q4_K:
        read_q4_k(out, at, part);
        break;
    case FORMAT_Q5_K:
        read_q5_k(out, at, part);
        break;
    case FORMAT_Q6_K:
        read_q6_k(out, at, part);
        break;
    default:
        CHECK(format == FORMAT_IQ4_XS);
        read_iq4_xs(out, at, part);
        break;
    }
}

void block_read(enum tensor_format format, const uint8_t *row, uint32_t index,
                struct weight_block *out)
{
    const struct format_info *info = format_info(format);
    if (info->block_size == 256) {
        set_minimum(out, 0.0f);
        read_k_quant(format, row + (uint64_t)(index / 8) * info->block_bytes, index % 8, out);
        return;
    }
    const uint8_t *at = row + (uint64_t)index * info->block_bytes;
    bool minimums = format == FORMAT_Q4_1 || format == FORMAT_Q5_1;
    set_scale(out, read_f16(at));
    set_minimum(out, minimums ? read_f16(at + 2) : 0.0f);
    at += minimums ? 4 : 2;
    switch (format) {
    case FORMAT_Q8_0:
        memcpy(out->q, at, 32);
        break;
    case FORMAT_Q5_0:
    case FORMAT_Q5_1:
        read_nibbles(out, at + 4);
        add_fifth_bits(out, at);
        break;
    case FORMAT_IQ4_NL:
        read_nibbles(out, at);
        look_up(out);
        break;
    default:
        CHECK(format == FORMAT_Q4_0 || format == FORMAT_Q4_1);
        read_nibbles(out, at);
        break;
    }
    if (format == FORMAT_Q4_0 || format == FORMAT_Q5_0) {
        subtract(out, format == FORMAT_Q4_0 ? 8 : 16);
    }
}

float block_read_float(enum tensor_format format, const uint8_t *row, uint32_t index)
{
    if (format == FORMAT_F32) {
        float value;
        memcpy(&value, row + 4u * (uint64_t)index, sizeof value);
        return value;
    }
    uint16_t bits = read_u16(row + 2u * (uint64_t)index);
    return format == FORMAT_F16 ? math_f16_to_f32(bits) : math_bf16_to_f32(bits);
}

void block_dequantize(enum tensor_format format, const uint8_t *row, uint32_t k, float *out)
{
    const struct block_shape *shape = block_shape(format);
    if (!shape) {
        for (uint32_t i = 0; i < k; i++) {
            out[i] = block_read_float(format, row, i);
        }
        return;
    }
    for (uint32_t b = 0; b < k / BLOCK_VALUES; b++) {
        struct weight_block block;
        block_read(format, row, b, &block);
        for (uint32_t i = 0; i < BLOCK_VALUES; i++) {
            float value = block.scale[i / 16] * (float)block.q[i];
            out[b * BLOCK_VALUES + i] = shape->minimums ? value + block.minimum[i / 16] : value;
        }
    }
}

void activation_block_finish(struct activation_block *block, float d)
{
    int32_t sums[2] = {0, 0};
    for (uint32_t i = 0; i < BLOCK_VALUES; i++) {
        sums[i / 16] += block->q[i];
    }
    block->d = d;
    block->sum_scaled = d * (float)(sums[0] + sums[1]);
    block->half_sum_scaled[0] = d * (float)sums[0];
    block->half_sum_scaled[1] = d * (float)sums[1];
}
