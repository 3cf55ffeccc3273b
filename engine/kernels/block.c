/*
 * GGML's block formats, read from the file's layout into integers and exact scales.
 *
 * The one reader of weight bits and of scales for a single row: format_table.h says where a format
 * has its fields and how their bits lie. tests/reference/test_formats.py compares every value with
 * the gguf Python package (gguf/quants.py) bit for bit. Nothing here is on a hot path of the fast
 * kernels, which read 16 rows at once (vector/unpack.h); what they read must equal this.
 */
#include "engine/kernels/block.h"

#include "base/check.h"
#include "engine/kernels/format_table.h"
#include "engine/kernels/math.h"

#include <string.h>

static uint16_t read_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static float read_f16(const uint8_t *at)
{
    return math_f16_to_f32(read_u16(at));
}

/* ---- Weights ---- */

/* The integer that is stored for value i of part `part` of a block, without its upper bits. */
static int low_bits(enum weight_layout layout, const uint8_t *q, uint32_t part, uint32_t i)
{
    switch (layout) {
    case WEIGHTS_NIBBLES:
        return q[part * 16 + i % 16] >> (i / 16 * 4) & 15;
    case WEIGHTS_PAIRS:
        return q[part / 2 * 32 + i] >> (part % 2 * 4) & 15;
    case WEIGHTS_FOURS:
        return q[part / 4 * 32 + i] >> (part % 4 * 2) & 3;
    case WEIGHTS_SIXES:
        return q[part / 4 * 64 + part % 2 * 32 + i] >> (part % 4 / 2 * 4) & 15;
    default:
        CHECK(layout == WEIGHTS_BYTES);
        return (int8_t)q[part * 32 + i];
    }
}

/* Its upper bits, in their place. */
static int high_bits(enum weight_layout layout, const uint8_t *high, uint32_t part, uint32_t i)
{
    switch (layout) {
    case WEIGHTS_NIBBLES:
        return (high[i / 8] >> (i % 8) & 1) << 4;
    case WEIGHTS_PAIRS:
        return (high[i] >> part & 1) << 4;
    case WEIGHTS_FOURS:
        return (high[i] >> part & 1) << 2;
    default:
        CHECK(layout == WEIGHTS_SIXES);
        return (high[part / 4 * 32 + i] >> (part % 4 * 2) & 3) << 4;
    }
}

static void read_weights(const struct format_row *row, const uint8_t *block, uint32_t part,
                         int8_t *out)
{
    const struct format_field *high = &row->fields[FIELD_HIGH];
    for (uint32_t i = 0; i < BLOCK_VALUES; i++) {
        int stored = low_bits(row->weights, block + row->fields[FIELD_Q].at, part, i);
        if (high->units > 0)
            stored |= high_bits(row->weights, block + high->at, part, i);
        out[i] = (int8_t)(row->values ? row->values[stored] : stored - row->zero);
    }
}

/* ---- Scales ---- */

struct scale_pair {
    int scale, min;
};

/* The 12 bytes with eight scales and eight mins of six bits each. */
static struct scale_pair six_bits(const uint8_t *s, uint32_t part)
{
    if (part < 4)
        return (struct scale_pair){s[part] & 63, s[part + 4] & 63};
    return (struct scale_pair){(s[part + 4] & 15) | (s[part - 4] >> 6) << 4,
                               s[part + 4] >> 4 | (s[part] >> 6) << 4};
}

/* The integers that d and min are multiplied with; `sub` counts blocks of 16. */
static struct scale_pair read_sub_scale(const struct format_row *row, const uint8_t *block,
                                        uint32_t part, uint32_t sub)
{
    const uint8_t *s = block + row->fields[FIELD_SCALES].at;
    switch (row->scales) {
    case SCALES_NIBBLES:
        return (struct scale_pair){s[sub] & 15, s[sub] >> 4};
    case SCALES_SIX_BITS:
        return six_bits(s, part);
    case SCALES_SIX_BITS_16: {
        int low = sub < 8 ? s[sub] & 15 : s[sub - 8] >> 4;
        int high = s[8 + sub % 4] >> (sub / 4 * 2) & 3;
        return (struct scale_pair){(low | high << 4) - 32, 0};
    }
    case SCALES_BYTES_16:
        return (struct scale_pair){(int8_t)s[sub], 0};
    default: {
        CHECK(row->scales == SCALES_SPLIT);
        int low = s[part / 2] >> (part % 2 * 4) & 15;
        int high = read_u16(block + row->fields[FIELD_SCALES_HIGH].at) >> (part * 2) & 3;
        return (struct scale_pair){(low | high << 4) - 32, 0};
    }
    }
}

/* 2^(exponent − 128), which is a subnormal for 0 and 1. */
static float read_e8m0(uint8_t exponent)
{
    uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void read_scales(const struct format_row *row, const uint8_t *block, uint32_t part,
                        struct weight_block *out)
{
    const uint8_t *d_at = block + row->fields[FIELD_D].at;
    float d = row->scales == SCALES_E8M0 ? read_e8m0(*d_at) : read_f16(d_at);
    float min = row->has_min ? read_f16(block + row->fields[FIELD_MIN].at) : 0.0f;
    for (uint32_t i = 0; i < 2; i++) {
        out->scale[i] = d;
        out->min[i] = min;
        if (row->info.block_size == BLOCK_VALUES)
            continue;
        struct scale_pair sub = read_sub_scale(row, block, part, part * 2 + i);
        out->scale[i] = d * (float)sub.scale;
        out->min[i] = row->has_min ? -(min * (float)sub.min) : 0.0f;
    }
}

/* ---- Blocks and rows ---- */

void block_read(enum tensor_format format, const uint8_t *row, uint32_t index,
                struct weight_block *out)
{
    const struct format_row *of = &FORMAT_TABLE[format];
    const uint32_t parts = of->info.block_size / BLOCK_VALUES;
    const uint8_t *block = row + (uint64_t)(index / parts) * of->info.block_bytes;
    read_weights(of, block, index % parts, out->q);
    read_scales(of, block, index % parts, out);
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
    if (!format_is_quantized(format)) {
        for (uint32_t i = 0; i < k; i++)
            out[i] = block_read_float(format, row, i);
        return;
    }
    const bool has_min = FORMAT_TABLE[format].has_min;
    for (uint32_t b = 0; b < k / BLOCK_VALUES; b++) {
        struct weight_block block;
        block_read(format, row, b, &block);
        for (uint32_t i = 0; i < BLOCK_VALUES; i++) {
            float value = block.scale[i / 16] * (float)block.q[i];
            out[b * BLOCK_VALUES + i] = has_min ? value + block.min[i / 16] : value;
        }
    }
}

void activation_block_finish(struct activation_block *block, float d)
{
    int32_t sums[2] = {0, 0};
    for (uint32_t i = 0; i < BLOCK_VALUES; i++)
        sums[i / 16] += block->q[i];
    block->d = d;
    block->sum_scaled = d * (float)(sums[0] + sums[1]);
    block->sub_sum_scaled[0] = d * (float)sums[0];
    block->sub_sum_scaled[1] = d * (float)sums[1];
}
