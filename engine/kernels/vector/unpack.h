/*
 * A panel: one chunk of 16 interleaved rows with its weights as bytes and its scales as f32, ready
 * to be multiplied with many activation rows. Bodies for any number of lanes; repack.h has the
 * layout of what is read, format_table.h the meaning of the bits, block.c the specification.
 *
 * A 32-bit lane has four consecutive weights of one row: lane j of a block has values 4j … 4j + 3.
 * panel_lane makes two lanes of two 16-bit weights from it. The weights are those of block_read: of
 * formats with a min none is negative.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_UNPACK_H
#define QUIRE_ENGINE_KERNELS_VECTOR_UNPACK_H

#include "engine/kernels/repack.h"
#include "engine/kernels/vector/lanes.h"

#include <stdbool.h>

#define PANEL_BLOCKS (CHUNK_VALUES / 32u)
#define LINE_BYTES 64u

struct panel {
    uint8_t buffer[PANEL_BLOCKS][8][LINE_BYTES];     /* [block][lane j][row][4] */
    float scale[2 * PANEL_BLOCKS][KERNEL_ROW_BLOCK]; /* [block], or [2·block + sub-block] */
    float min[2 * PANEL_BLOCKS][KERNEL_ROW_BLOCK];
    const uint8_t *ahead; /* what is prefetched next, so many lines a time */
    uint32_t ahead_lines;
    const uint8_t *q; /* the buffer, or the chunk itself */
} __attribute__((aligned(64)));

/* How weights stand in what `q` points to. */
enum panel_weights {
    PANEL_BYTES,   /* lane j of a block: its line j, signed bytes */
    PANEL_NIBBLES, /* lane j: line j, low nibbles; lane j + 4: line j, high nibbles */
    PANEL_PAIRS,   /* lane j of an even block: line j of 8, low nibbles; of the odd: high ones */
};

/* Tiles unpack plain nibbles themselves: that costs them less than reading bytes in their place. */
INLINE enum panel_weights panel_weights_of(const enum tensor_format format)
{
    const struct format_row *row = &FORMAT_TABLE[format];
    const bool plain = !format_has_high_bits(format) && !row->values;
    return plain && row->weights == WEIGHTS_NIBBLES ? PANEL_NIBBLES
           : plain && row->weights == WEIGHTS_PAIRS ? PANEL_PAIRS
                                                    : PANEL_BYTES;
}

/* Fill a panel from a chunk of `blocks` blocks of 32. */
typedef void panel_read_fn(const uint8_t *chunk, uint32_t blocks, struct panel *panel);

/* While one chunk is unpacked and multiplied the next one comes from memory, a few lines at a time:
   in PANEL_BLOCKS steps of each. Only the first tile of rows asks for it. */
INLINE const uint8_t *prefetch_ahead(const uint8_t *ahead, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; i++)
        __builtin_prefetch(ahead + i * LINE_BYTES, 0, 3);
    return ahead + lines * LINE_BYTES;
}

/* ---- Lanes ---- */

/* Which line has lane j of block b. */
INLINE uint32_t panel_line(const enum panel_weights weights, uint32_t b, const int j)
{
    const uint32_t per_block = weights == PANEL_NIBBLES ? 4 : 8;
    return weights == PANEL_PAIRS ? b / 2 * 8 + (uint32_t)j
                                  : b * per_block + (uint32_t)j % per_block;
}

/* Lane j of block b (parity: b's), VECTOR_BYTES of its line from p: weights 0, 2 and 1, 3 of each
   row as 16-bit lanes. */
INLINE void panel_lane(const enum panel_weights weights, const bool negatives, const int zero,
                       const uint8_t *q, uint32_t b, const int parity, const int j,
                       const uint32_t p, vi *even, vi *odd)
{
    const vi x = vi_load(q + panel_line(weights, b, j) * LINE_BYTES + p);
    if (weights == PANEL_BYTES) {
        *even = negatives ? vi_sra16(vi_sll16(x, 8), 8) : vi_and(x, vi_set1(0x00FF00FF));
        *odd = negatives ? vi_sra16(x, 8) : vi_srl16(x, 8);
        return;
    }
    const vi low = vi_set1(0x000F000F);
    const bool high = weights == PANEL_NIBBLES ? j >= 4 : parity;
    *even = high ? vi_and(vi_srl16(x, 4), low) : vi_and(x, low);
    *odd = high ? vi_srl16(x, 12) : vi_and(vi_srl16(x, 8), low);
    if (zero) {
        const vi by = vi_set1(zero << 16 | zero);
        *even = vi_sub16(*even, by);
        *odd = vi_sub16(*odd, by);
    }
}

/* The i-th lane to multiply: two that share a line follow each other. */
INLINE int lane_order(const enum panel_weights weights, const int i)
{
    return weights == PANEL_NIBBLES ? i % 2 * 4 + i / 2 : i;
}

/* ---- Weights as bytes ---- */

/* a << n, or to the right for a negative n. */
#define SHIFTED(a, n) ((n) >= 0 ? vi_sll16(a, (n) >= 0 ? (n) : 0) : vi_srl16(a, (n) < 0 ? -(n) : 0))

/* Line `line` of a whole chunk of a format whose blocks have 256 values. */
INLINE const uint8_t *panel_at(const enum tensor_format format, const uint8_t *chunk, uint32_t line)
{
    return chunk + repack_line(format, 1, line) * LINE_BYTES;
}

/* What the format's stored integers mean: what they index, or less its zero. */
INLINE vi panel_value(const enum tensor_format format, vi stored)
{
    const struct format_row *row = &FORMAT_TABLE[format];
    if (row->values)
        return vi_look_up(row->values, stored);
    return row->zero ? vi_sub_i8(stored, vi_set1_u8((uint8_t)row->zero)) : stored;
}

/* WEIGHTS_NIBBLES: lane j low, lane j + 4 high; a line of high bits before each block's. */
INLINE void panel_nibbles(const enum tensor_format format, const uint8_t *lines, uint32_t blocks,
                          struct panel *panel)
{
    const bool has_high = format_has_high_bits(format);
    const vi low = vi_set1_u8(15), fifth = vi_set1_u8(16);
    for (uint32_t b = 0; b < blocks; b++) {
        panel->ahead = prefetch_ahead(panel->ahead, panel->ahead_lines);
        for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
            const uint8_t *of_block = lines + b * (has_high ? 5 : 4) * LINE_BYTES + p;
            vi bits = has_high ? vi_load(of_block) : vi_set1(0);
            of_block += has_high ? LINE_BYTES : 0;
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                vi x = vi_load(of_block + (uint32_t)j * LINE_BYTES);
                vi first = vi_and(x, low), second = vi_and(vi_srl16(x, 4), low);
                if (has_high) {
                    first = vi_or(first, vi_and(vi_sll16(bits, 4 - j), fifth));
                    second = vi_or(second, vi_and(vi_srl16(bits, j), fifth));
                }
                vi_store(panel->buffer[b][j] + p, panel_value(format, first));
                vi_store(panel->buffer[b][4 + j] + p, panel_value(format, second));
            }
        }
    }
}

/* WEIGHTS_PAIRS with high bits: byte i of 32 has value i of two blocks in its nibbles; the fifth bit
   of block b is bit b. */
INLINE void panel_pairs(const enum tensor_format format, const uint8_t *chunk, struct panel *panel)
{
    const vi low = vi_set1_u8(15), fifth = vi_set1_u8(16);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {
        uint8_t(*out)[8][LINE_BYTES] = panel->buffer + 2 * pair;
        panel->ahead = prefetch_ahead(panel->ahead, 2 * panel->ahead_lines);
        for (uint32_t j = 0; j < 8; j++) {
            const uint8_t *line = panel_at(format, chunk, (uint32_t)pair * 8 + j);
            const uint8_t *high = panel_at(format, chunk, 32 + j);
            for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
                vi x = vi_load(line + p), bits = vi_load(high + p);
                vi first = vi_and(x, low), second = vi_and(vi_srl16(x, 4), low);
                first = vi_or(first, vi_and(SHIFTED(bits, 4 - 2 * pair), fifth));
                second = vi_or(second, vi_and(SHIFTED(bits, 3 - 2 * pair), fifth));
                vi_store(out[0][j] + p, first);
                vi_store(out[1][j] + p, second);
            }
        }
    }
}

/* WEIGHTS_FOURS: byte i of 32 has value i of four blocks; the third bit of block b is bit b. */
INLINE void panel_fours(const enum tensor_format format, const uint8_t *chunk, struct panel *panel)
{
    const bool has_high = format_has_high_bits(format);
    const vi low = vi_set1_u8(3), third = vi_set1_u8(4);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        uint8_t(*out)[8][LINE_BYTES] = panel->buffer + 4 * half;
        panel->ahead = prefetch_ahead(panel->ahead, 4 * panel->ahead_lines);
        for (uint32_t j = 0; j < 8; j++) {
            const uint8_t *line = panel_at(format, chunk, (uint32_t)half * 8 + j);
            const uint8_t *high = panel_at(format, chunk, 16 + j);
            for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
                vi x = vi_load(line + p);
                vi bits = has_high ? vi_load(high + p) : x;
#pragma GCC unroll 4
                for (int b = 0; b < 4; b++) {
                    vi value = vi_and(vi_srl16(x, 2 * b), low);
                    if (has_high)
                        value = vi_or(value, vi_and(SHIFTED(bits, 2 - 4 * half - b), third));
                    vi_store(out[b][j] + p, panel_value(format, value));
                }
            }
        }
    }
}

/* WEIGHTS_SIXES: lines j and j + 8 of low bits have four blocks in their nibbles. */
INLINE void panel_sixes(const enum tensor_format format, const uint8_t *chunk, struct panel *panel)
{
    const vi low = vi_set1_u8(15), top = vi_set1_u8(0x30);
    for (uint32_t half = 0; half < 2; half++) {
        panel->ahead = prefetch_ahead(panel->ahead, 4 * panel->ahead_lines);
        for (uint32_t j = 0; j < 8; j++) {
            uint8_t(*out)[8][LINE_BYTES] = panel->buffer + 4 * half;
            for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
                vi a = vi_load(panel_at(format, chunk, half * 16 + j) + p);
                vi b = vi_load(panel_at(format, chunk, half * 16 + 8 + j) + p);
                vi h = vi_load(panel_at(format, chunk, 32 + half * 8 + j) + p);
                vi c = vi_srl16(a, 4), d = vi_srl16(b, 4);
                a = vi_or(vi_and(a, low), vi_and(vi_sll16(h, 4), top));
                b = vi_or(vi_and(b, low), vi_and(vi_sll16(h, 2), top));
                c = vi_or(vi_and(c, low), vi_and(h, top));
                d = vi_or(vi_and(d, low), vi_and(vi_srl16(h, 2), top));
                vi_store(out[0][j] + p, panel_value(format, a));
                vi_store(out[1][j] + p, panel_value(format, b));
                vi_store(out[2][j] + p, panel_value(format, c));
                vi_store(out[3][j] + p, panel_value(format, d));
            }
        }
    }
}

/* ---- Scales ---- */

/* Where a chunk of `blocks` blocks of 32 has this field. */
INLINE const uint8_t *panel_field(const enum tensor_format format, const enum field field,
                                  const uint8_t *chunk, uint32_t blocks)
{
    const uint32_t in_file = FORMAT_TABLE[format].info.block_size == 32 ? blocks : 1;
    return chunk + format_bytes_before(format, field) * in_file * KERNEL_ROW_BLOCK;
}

INLINE void panel_f16(const uint8_t *from, uint32_t blocks, float to[][KERNEL_ROW_BLOCK])
{
    const uint16_t *halves = (const uint16_t *)(const void *)from;
    for (uint32_t i = 0; i < blocks * KERNEL_ROW_BLOCK; i += VECTOR_LANES)
        vf_store(&to[0][0] + i, vf_load_f16(halves + i));
}

/* 2^(e − 128) as the product of two powers, since it may be a subnormal. */
INLINE void panel_e8m0(const uint8_t *from, uint32_t blocks, float to[][KERNEL_ROW_BLOCK])
{
    for (uint32_t i = 0; i < blocks * KERNEL_ROW_BLOCK; i += VECTOR_LANES) {
        vi e = vi_load_u8(from + i), half = vi_srl32(e, 1), bias = vi_set1(127 - 64);
        vf low = vf_bits(vi_sll32(vi_add(half, bias), 23));
        vf high = vf_bits(vi_sll32(vi_add(vi_sub(e, half), bias), 23));
        vf_store(&to[0][0] + i, vf_mul(low, high));
    }
}

/* to[part][row] = d[row]·subscale[part][row], subscale = the byte at from − offset. */
INLINE void panel_scale(const float *d, bool negate, const uint8_t *from, uint32_t parts,
                        bool is_signed, int32_t offset, float to[][KERNEL_ROW_BLOCK])
{
    for (uint32_t row = 0; row < KERNEL_ROW_BLOCK; row += VECTOR_LANES) {
        vf factor = negate ? vf_negate(vf_load(d + row)) : vf_load(d + row);
        for (uint32_t part = 0; part < parts; part++) {
            const uint8_t *at = from + part * KERNEL_ROW_BLOCK + row;
            vi subscale = is_signed ? vi_load_i8(at) : vi_load_u8(at);
            subscale = offset ? vi_sub(subscale, vi_set1(offset)) : subscale;
            vf_store(&to[part][row], vf_mul(factor, vf_from_int(subscale)));
        }
    }
}

/* Eight scales and mins of six bits, 12 bytes a row: as bytes. */
INLINE void panel_six_bits(const uint8_t *from, uint8_t scales[][KERNEL_ROW_BLOCK],
                           uint8_t mins[][KERNEL_ROW_BLOCK])
{
    const vi six = vi_set1_u8(63), low = vi_set1_u8(15), top = vi_set1_u8(0x30);
    for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
        vi a = vi_load(from + p), b = vi_load(from + LINE_BYTES + p);
        vi c = vi_load(from + 2 * LINE_BYTES + p);
        vi_store(scales[0] + p, vi_and(a, six));
        vi_store(mins[0] + p, vi_and(b, six));
        vi_store(scales[4] + p, vi_or(vi_and(c, low), vi_and(vi_srl16(a, 2), top)));
        vi_store(mins[4] + p, vi_or(vi_and(vi_srl16(c, 4), low), vi_and(vi_srl16(b, 2), top)));
    }
}

/* Sixteen scales of six bits, 12 bytes a row: as bytes. */
INLINE void panel_six_bits_16(const uint8_t *from, uint8_t scales[][KERNEL_ROW_BLOCK])
{
    const vi low = vi_set1_u8(15), top = vi_set1_u8(0x30);
    for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
        vi a = vi_load(from + p), b = vi_load(from + LINE_BYTES + p);
        vi h = vi_load(from + 2 * LINE_BYTES + p);
        vi_store(scales[0] + p, vi_or(vi_and(a, low), vi_and(vi_sll16(h, 4), top)));
        vi_store(scales[4] + p, vi_or(vi_and(b, low), vi_and(vi_sll16(h, 2), top)));
        vi_store(scales[8] + p, vi_or(vi_and(vi_srl16(a, 4), low), vi_and(h, top)));
        vi_store(scales[12] + p, vi_or(vi_and(vi_srl16(b, 4), low), vi_and(vi_srl16(h, 2), top)));
    }
}

/* Sixteen scales and mins of four bits: as bytes. */
INLINE void panel_nibble_scales(const uint8_t *from, uint8_t scales[][KERNEL_ROW_BLOCK],
                                uint8_t mins[][KERNEL_ROW_BLOCK])
{
    const vi low = vi_set1_u8(15);
    for (uint32_t p = 0; p < 16 * KERNEL_ROW_BLOCK; p += VECTOR_BYTES) {
        vi x = vi_load(from + p);
        vi_store(scales[0] + p, vi_and(x, low));
        vi_store(mins[0] + p, vi_and(vi_srl16(x, 4), low));
    }
}

/* SCALES_SPLIT: four bits a block at `low`, two upper ones of all eight blocks behind d. */
INLINE void panel_split_scales(const uint8_t *low, const uint8_t *d, const uint8_t *upper,
                               float to[][KERNEL_ROW_BLOCK])
{
    const uint16_t *d_halves = (const uint16_t *)(const void *)d;
    const uint16_t *upper_bits = (const uint16_t *)(const void *)upper;
    for (uint32_t row = 0; row < KERNEL_ROW_BLOCK; row += VECTOR_LANES) {
        vf factor = vf_load_f16(d_halves + row);
        vi high = vi_load_u16(upper_bits + row);
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++) {
            vi l = vi_load_u8(low + b / 2 * (int)KERNEL_ROW_BLOCK + row);
            l = vi_and(vi_srl32(l, b % 2 * 4), vi_set1(15));
            vi h = vi_sll32(vi_and(vi_srl32(high, b * 2), vi_set1(3)), 4);
            vi subscale = vi_sub(vi_or(l, h), vi_set1(32));
            vf_store(&to[b][row], vf_mul(factor, vf_from_int(subscale)));
        }
    }
}

/* panel->scale and ->min of a chunk. */
INLINE void panel_scales(const enum tensor_format format, const uint8_t *chunk, uint32_t blocks,
                         struct panel *panel)
{
    const struct format_row *of = &FORMAT_TABLE[format];
    const uint8_t *sub = panel_field(format, FIELD_SCALES, chunk, blocks);
    const uint8_t *d_at = panel_field(format, FIELD_D, chunk, blocks);
    const uint8_t *min_at = panel_field(format, FIELD_MIN, chunk, blocks);
    uint8_t scales[16][KERNEL_ROW_BLOCK], mins[16][KERNEL_ROW_BLOCK];
    float d[2][KERNEL_ROW_BLOCK]; /* and dmin */
    switch (of->scales) {
    case SCALES_F16:
        panel_f16(d_at, blocks, panel->scale);
        if (of->has_min)
            panel_f16(min_at, blocks, panel->min);
        return;
    case SCALES_E8M0:
        panel_e8m0(d_at, blocks, panel->scale);
        return;
    case SCALES_SPLIT:
        panel_split_scales(sub, d_at, min_at, panel->scale);
        return;
    case SCALES_NIBBLES:
        panel_nibble_scales(sub, scales, mins);
        break;
    case SCALES_SIX_BITS:
        panel_six_bits(sub, scales, mins);
        break;
    case SCALES_SIX_BITS_16:
        panel_six_bits_16(sub, scales);
        break;
    default:
        break; /* SCALES_BYTES_16: bytes as they are */
    }
    const bool is_signed = of->scales == SCALES_BYTES_16;
    const uint32_t parts = of->sub_blocks ? 16 : 8;
    panel_f16(d_at, of->has_min ? 2 : 1, d); /* min follows d */
    panel_scale(d[0], false, is_signed ? sub : scales[0], parts, is_signed,
                of->scales == SCALES_SIX_BITS_16 ? 32 : 0, panel->scale);
    if (of->has_min)
        panel_scale(d[1], true, mins[0], parts, false, 0, panel->min);
}

/* ---- A panel of each format ---- */

INLINE void panel_read(const enum tensor_format format, const uint8_t *chunk, uint32_t blocks,
                       struct panel *panel)
{
    const enum weight_layout weights = FORMAT_TABLE[format].weights;
    panel->q = panel->buffer[0][0];
    if (weights == WEIGHTS_BYTES || panel_weights_of(format) != PANEL_BYTES)
        panel->q = chunk;
    else if (weights == WEIGHTS_NIBBLES)
        panel_nibbles(format, chunk, blocks, panel);
    else if (weights == WEIGHTS_PAIRS)
        panel_pairs(format, chunk, panel);
    else if (weights == WEIGHTS_FOURS)
        panel_fours(format, chunk, panel);
    else
        panel_sixes(format, chunk, panel);
    panel_scales(format, chunk, blocks, panel);
}

#define PANEL_READ(name)                                                                           \
    static void panel_read_##name(const uint8_t *chunk, uint32_t blocks, struct panel *panel)      \
    {                                                                                              \
        panel_read(FORMAT_##name, chunk, blocks, panel);                                           \
    }
EACH_QUANTIZED_FORMAT(PANEL_READ)

#define PANEL_READ_ENTRY(name) [FORMAT_##name] = panel_read_##name,
static panel_read_fn *const PANEL_READ_OF[FORMAT_LIMIT] = {EACH_QUANTIZED_FORMAT(PANEL_READ_ENTRY)};

#endif
