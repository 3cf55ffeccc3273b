/*
 * A panel: one chunk of 16 interleaved rows with its weights as bytes and its scales as f32, ready
 * to be multiplied with many activation rows. Bodies for any number of lanes; interleave.h has the
 * layout of what is read, block.c the meaning of the bits. Included after the lanes.
 *
 * A 32-bit lane has four weights of one row, a quad; panel_quad makes two lanes of two 16-bit
 * weights from it. The weights are those of block_read: of formats with a minimum none is negative.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_PANEL_H
#define QUIRE_ENGINE_KERNELS_VECTOR_PANEL_H

#include "engine/kernels/interleave.h"

#include <stdbool.h>

#define PANEL_BLOCKS (CHUNK_VALUES / 32u)
#define LINE_BYTES 64u

struct panel {
    uint8_t buffer[PANEL_BLOCKS][8][LINE_BYTES]; /* [block][quad][row][4]: values 4·quad … + 3 */
    float scale[2 * PANEL_BLOCKS][KERNEL_ROW_GROUP]; /* [block], or [2·block + half] */
    float minimum[2 * PANEL_BLOCKS][KERNEL_ROW_GROUP];
    const uint8_t *ahead; /* what is prefetched next, so many lines a time */
    uint32_t ahead_lines;
    const uint8_t *q; /* the buffer, or the chunk itself */
} __attribute__((aligned(64)));

/* How weights stand in what `q` points to. */
enum panel_weights {
    PANEL_BYTES,   /* quad j of a block: its line j, signed bytes */
    PANEL_NIBBLES, /* quad j: line j, low nibbles; quad j + 4: line j, high nibbles */
    PANEL_PAIRS, /* quad j of an even block: line j of 8, low nibbles; of the odd one: high ones */
};

/* Fill a panel from a chunk of `blocks` blocks of 32. */
typedef void panel_read(const uint8_t *chunk, uint32_t blocks, struct panel *panel);

/* While one chunk is unpacked and multiplied the next one comes from memory, a few lines at a time:
   in PANEL_BLOCKS steps of each. Only the first tile of rows asks for it. */

INLINE const uint8_t *prefetch_ahead(const uint8_t *ahead, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; i++) {
        __builtin_prefetch(ahead + i * LINE_BYTES, 0, 3);
    }
    return ahead + lines * LINE_BYTES;
}

/* Line `line` of a whole chunk of a format whose blocks have 256 values. */
INLINE const uint8_t *panel_at(const enum tensor_format format, const uint8_t *chunk, uint32_t line)
{
    return chunk + interleave_line(format, 1, line) * LINE_BYTES;
}

INLINE void panel_read_f16(const uint8_t *from, uint32_t blocks, float to[][KERNEL_ROW_GROUP])
{
    const uint16_t *halves = (const uint16_t *)(const void *)from;
    for (uint32_t i = 0; i < blocks * KERNEL_ROW_GROUP; i += VECTOR_LANES) {
        vf_store(&to[0][0] + i, vf_load_f16(halves + i));
    }
}

/* to[part][row] = d[row]·subscale[part][row], subscale = the byte at from − offset. */
INLINE void panel_scale(const float *d, bool negate, const uint8_t *from, uint32_t parts,
                        bool is_signed, int32_t offset, float to[][KERNEL_ROW_GROUP])
{
    for (uint32_t row = 0; row < KERNEL_ROW_GROUP; row += VECTOR_LANES) {
        vf factor = negate ? vf_negate(vf_load(d + row)) : vf_load(d + row);
        for (uint32_t part = 0; part < parts; part++) {
            const uint8_t *at = from + part * KERNEL_ROW_GROUP + row;
            vi subscale = is_signed ? vi_load_i8(at) : vi_load_u8(at);
            subscale = offset ? vi_sub(subscale, vi_set1(offset)) : subscale;
            vf_store(&to[part][row], vf_mul(factor, vf_from_int(subscale)));
        }
    }
}

/* Which line has quad j of block b. */
INLINE uint32_t panel_line(const enum panel_weights weights, uint32_t b, const int j)
{
    const uint32_t per_block = weights == PANEL_NIBBLES ? 4 : 8;
    return weights == PANEL_PAIRS ? b / 2 * 8 + (uint32_t)j
                                  : b * per_block + (uint32_t)j % per_block;
}

/* Quad j of block b (parity: b's), VECTOR_BYTES of its line from p: weights 0, 2 and 1, 3 of each
   row as 16-bit lanes. */
INLINE void panel_quad(const enum panel_weights weights, const bool negatives, const int offset,
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
    if (offset) {
        const vi by = vi_set1(offset << 16 | offset);
        *even = vi_sub16(*even, by);
        *odd = vi_sub16(*odd, by);
    }
}

/* The i-th quad to multiply: two that share a line follow each other. */
INLINE int panel_order(const enum panel_weights weights, const int i)
{
    return weights == PANEL_NIBBLES ? i % 2 * 4 + i / 2 : i;
}

/* Nibbles of 32-value blocks: quad j low, quad j + 4 high; a line of fifth bits before each block's
   or a table where given, or less an offset. */
INLINE void panel_nibbles(const uint8_t *lines, const bool fifths, const int8_t *table,
                          uint8_t offset, uint32_t blocks, struct panel *panel)
{
    const vi low = vi_set1_u8(15), fifth = vi_set1_u8(16);
    for (uint32_t b = 0; b < blocks; b++) {
        panel->ahead = prefetch_ahead(panel->ahead, panel->ahead_lines);
        for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
            const uint8_t *of_block = lines + b * (fifths ? 5 : 4) * LINE_BYTES + p;
            vi bits = fifths ? vi_load(of_block) : vi_set1(0);
            of_block += fifths ? LINE_BYTES : 0;
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                vi x = vi_load(of_block + (uint32_t)j * LINE_BYTES);
                vi first = vi_and(x, low), second = vi_and(vi_srl16(x, 4), low);
                if (fifths) {
                    first = vi_or(first, vi_and(vi_sll16(bits, 4 - j), fifth));
                    second = vi_or(second, vi_and(vi_srl16(bits, j), fifth));
                }
                if (table) {
                    first = vi_look_up(table, first);
                    second = vi_look_up(table, second);
                }
                if (offset) {
                    first = vi_sub_i8(first, vi_set1_u8(offset));
                    second = vi_sub_i8(second, vi_set1_u8(offset));
                }
                vi_store(panel->buffer[b][j] + p, first);
                vi_store(panel->buffer[b][4 + j] + p, second);
            }
        }
    }
    panel->q = panel->buffer[0][0];
}

#define F16_SECTION (2u * KERNEL_ROW_GROUP)

/* Tiles unpack nibbles themselves: that costs them less than reading bytes in their place. */

INLINE void panel_scales_q4_0(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_read_f16(chunk + blocks * 4 * LINE_BYTES, blocks, panel->scale);
}
static void panel_read_q4_0(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel->q = chunk;
    panel_scales_q4_0(chunk, blocks, panel);
}

INLINE void panel_scales_q4_1(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_read_f16(chunk + blocks * 4 * LINE_BYTES, blocks, panel->scale);
    panel_read_f16(chunk + blocks * (4 * LINE_BYTES + F16_SECTION), blocks, panel->minimum);
}
static void panel_read_q4_1(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel->q = chunk;
    panel_scales_q4_1(chunk, blocks, panel);
}

INLINE void panel_scales_q5_0(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_read_f16(chunk + blocks * 5 * LINE_BYTES, blocks, panel->scale);
}
static void panel_read_q5_0(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_nibbles(chunk, true, NULL, 16, blocks, panel);
    panel_scales_q5_0(chunk, blocks, panel);
}

INLINE void panel_scales_q5_1(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_read_f16(chunk + blocks * 5 * LINE_BYTES, blocks, panel->scale);
    panel_read_f16(chunk + blocks * (5 * LINE_BYTES + F16_SECTION), blocks, panel->minimum);
}
static void panel_read_q5_1(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_nibbles(chunk, true, NULL, 0, blocks, panel);
    panel_scales_q5_1(chunk, blocks, panel);
}

INLINE void panel_scales_q8_0(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_read_f16(chunk + blocks * 8 * LINE_BYTES, blocks, panel->scale);
}
static void panel_read_q8_0(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel->q = chunk;
    panel_scales_q8_0(chunk, blocks, panel);
}

static const int8_t PANEL_IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

#define panel_scales_iq4_nl panel_scales_q4_0
static void panel_read_iq4_nl(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_nibbles(chunk, false, PANEL_IQ4_VALUES, 0, blocks, panel);
    panel_scales_iq4_nl(chunk, blocks, panel);
}

/* The rest have one block of 256. */

INLINE void panel_scales_iq4_xs(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    (void)blocks;
    const uint8_t *low = chunk + 32 * LINE_BYTES;
    const uint16_t *d = (const uint16_t *)(const void *)(low + 4 * KERNEL_ROW_GROUP);
    for (uint32_t row = 0; row < KERNEL_ROW_GROUP; row += VECTOR_LANES) {
        vf factor = vf_load_f16(d + row);
        vi high = vi_load_u16(d + KERNEL_ROW_GROUP + row);
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++) {
            vi l = vi_load_u8(low + b / 2 * (int)KERNEL_ROW_GROUP + row);
            l = vi_and(vi_srl32(l, b % 2 * 4), vi_set1(15));
            vi h = vi_sll32(vi_and(vi_srl32(high, b * 2), vi_set1(3)), 4);
            vi subscale = vi_sub(vi_or(l, h), vi_set1(32));
            vf_store(&panel->scale[b][row], vf_mul(factor, vf_from_int(subscale)));
        }
    }
}

static void panel_read_iq4_xs(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_nibbles(chunk, false, PANEL_IQ4_VALUES, 0, blocks, panel);
    panel_scales_iq4_xs(chunk, blocks, panel);
}

/* Six-bit scales and minimums of Q4_K and Q5_K, 12 bytes a row, then d and dmin. */
INLINE void panel_six_bit(const uint8_t *from, struct panel *panel)
{
    uint8_t scales[8][KERNEL_ROW_GROUP], minimums[8][KERNEL_ROW_GROUP];
    float d[2][KERNEL_ROW_GROUP];
    const vi six = vi_set1_u8(63), low = vi_set1_u8(15), top = vi_set1_u8(0x30);
    for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
        vi a = vi_load(from + p), b = vi_load(from + LINE_BYTES + p);
        vi c = vi_load(from + 2 * LINE_BYTES + p);
        vi_store(scales[0] + p, vi_and(a, six));
        vi_store(minimums[0] + p, vi_and(b, six));
        vi_store(scales[4] + p, vi_or(vi_and(c, low), vi_and(vi_srl16(a, 2), top)));
        vi_store(minimums[4] + p, vi_or(vi_and(vi_srl16(c, 4), low), vi_and(vi_srl16(b, 2), top)));
    }
    panel_read_f16(from + 12 * KERNEL_ROW_GROUP, 2, d);
    panel_scale(d[0], false, scales[0], 8, false, 0, panel->scale);
    panel_scale(d[1], true, minimums[0], 8, false, 0, panel->minimum);
}

/* a << n, or to the right for a negative n. */
#define SHIFTED(a, n) ((n) >= 0 ? vi_sll16(a, (n) >= 0 ? (n) : 0) : vi_srl16(a, (n) < 0 ? -(n) : 0))

/* Q5_K: byte i of 32 has value i of two blocks in its nibbles; the fifth bit of block b is bit b.
 */
INLINE void panel_nibble_pairs(const uint8_t *chunk, struct panel *panel)
{
    const vi low = vi_set1_u8(15), fifth = vi_set1_u8(16);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {
        uint8_t(*out)[8][LINE_BYTES] = panel->buffer + 2 * pair;
        panel->ahead = prefetch_ahead(panel->ahead, 2 * panel->ahead_lines);
        for (uint32_t j = 0; j < 8; j++) {
            const uint8_t *line = panel_at(FORMAT_Q5_K, chunk, (uint32_t)pair * 8 + j);
            const uint8_t *fifths = panel_at(FORMAT_Q5_K, chunk, 32 + j);
            for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
                vi x = vi_load(line + p), bits = vi_load(fifths + p);
                vi first = vi_and(x, low), second = vi_and(vi_srl16(x, 4), low);
                first = vi_or(first, vi_and(SHIFTED(bits, 4 - 2 * pair), fifth));
                second = vi_or(second, vi_and(SHIFTED(bits, 3 - 2 * pair), fifth));
                vi_store(out[0][j] + p, first);
                vi_store(out[1][j] + p, second);
            }
        }
    }
    panel->q = panel->buffer[0][0];
}

INLINE void panel_scales_q4_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    (void)blocks;
    panel_six_bit(chunk + 32 * LINE_BYTES, panel);
}
static void panel_read_q4_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel->q = chunk;
    panel_scales_q4_k(chunk, blocks, panel);
}

INLINE void panel_scales_q5_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    (void)blocks;
    panel_six_bit(chunk + 40 * LINE_BYTES, panel);
}
static void panel_read_q5_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_nibble_pairs(chunk, panel);
    panel_scales_q5_k(chunk, blocks, panel);
}

INLINE void panel_scales_q6_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    (void)blocks;
    float d[1][KERNEL_ROW_GROUP];
    const uint8_t *scales = chunk + 48 * LINE_BYTES;
    panel_read_f16(scales + 16 * KERNEL_ROW_GROUP, 1, d);
    panel_scale(d[0], false, scales, 16, true, 0, panel->scale);
}
static void panel_read_q6_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    const vi low = vi_set1_u8(15), top = vi_set1_u8(0x30), middle = vi_set1_u8(32);
    for (uint32_t half = 0; half < 2; half++) {
        panel->ahead = prefetch_ahead(panel->ahead, 4 * panel->ahead_lines);
        for (uint32_t j = 0; j < 8; j++) {
            uint8_t(*out)[8][LINE_BYTES] = panel->buffer + 4 * half;
            for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
                vi a = vi_load(panel_at(FORMAT_Q6_K, chunk, half * 16 + j) + p);
                vi b = vi_load(panel_at(FORMAT_Q6_K, chunk, half * 16 + 8 + j) + p);
                vi h = vi_load(panel_at(FORMAT_Q6_K, chunk, 32 + half * 8 + j) + p);
                vi c = vi_srl16(a, 4), d = vi_srl16(b, 4);
                a = vi_or(vi_and(a, low), vi_and(vi_sll16(h, 4), top));
                b = vi_or(vi_and(b, low), vi_and(vi_sll16(h, 2), top));
                c = vi_or(vi_and(c, low), vi_and(h, top));
                d = vi_or(vi_and(d, low), vi_and(vi_srl16(h, 2), top));
                vi_store(out[0][j] + p, vi_sub_i8(a, middle));
                vi_store(out[1][j] + p, vi_sub_i8(b, middle));
                vi_store(out[2][j] + p, vi_sub_i8(c, middle));
                vi_store(out[3][j] + p, vi_sub_i8(d, middle));
            }
        }
    }
    panel->q = panel->buffer[0][0];
    panel_scales_q6_k(chunk, blocks, panel);
}

/* Q2_K and Q3_K: byte i of 32 has value i of four blocks; the third bit of block b is bit b. */
INLINE void panel_two_bit(const enum tensor_format format, const uint8_t *chunk,
                          struct panel *panel)
{
    const vi low = vi_set1_u8(3), third = vi_set1_u8(4);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        uint8_t(*out)[8][LINE_BYTES] = panel->buffer + 4 * half;
        panel->ahead = prefetch_ahead(panel->ahead, 4 * panel->ahead_lines);
        for (uint32_t j = 0; j < 8; j++) {
            const uint8_t *line = panel_at(format, chunk, (uint32_t)half * 8 + j);
            const uint8_t *thirds = panel_at(format, chunk, 16 + j); /* of Q3_K */
            for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
                vi x = vi_load(line + p);
                vi bits = format == FORMAT_Q3_K ? vi_load(thirds + p) : x;
#pragma GCC unroll 4
                for (int b = 0; b < 4; b++) {
                    vi value = vi_and(vi_srl16(x, 2 * b), low);
                    if (format == FORMAT_Q3_K) {
                        value = vi_or(value, vi_and(SHIFTED(bits, 2 - 4 * half - b), third));
                        value = vi_sub_i8(value, third);
                    }
                    vi_store(out[b][j] + p, value);
                }
            }
        }
    }
    panel->q = panel->buffer[0][0];
}

INLINE void panel_scales_q2_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    (void)blocks;
    uint8_t scales[16][KERNEL_ROW_GROUP], minimums[16][KERNEL_ROW_GROUP];
    float d[2][KERNEL_ROW_GROUP];
    const uint8_t *from = chunk + 16 * LINE_BYTES;
    const vi low = vi_set1_u8(15);
    for (uint32_t p = 0; p < 16 * KERNEL_ROW_GROUP; p += VECTOR_BYTES) {
        vi x = vi_load(from + p);
        vi_store(scales[0] + p, vi_and(x, low));
        vi_store(minimums[0] + p, vi_and(vi_srl16(x, 4), low));
    }
    panel_read_f16(from + 16 * KERNEL_ROW_GROUP, 2, d);
    panel_scale(d[0], false, scales[0], 16, false, 0, panel->scale);
    panel_scale(d[1], true, minimums[0], 16, false, 0, panel->minimum);
}

static void panel_read_q2_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_two_bit(FORMAT_Q2_K, chunk, panel);
    panel_scales_q2_k(chunk, blocks, panel);
}

INLINE void panel_scales_q3_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    (void)blocks;
    uint8_t scales[16][KERNEL_ROW_GROUP];
    float d[1][KERNEL_ROW_GROUP];
    const uint8_t *from = chunk + 24 * LINE_BYTES;
    const vi low = vi_set1_u8(15), top = vi_set1_u8(0x30);
    for (uint32_t p = 0; p < LINE_BYTES; p += VECTOR_BYTES) {
        vi a = vi_load(from + p), b = vi_load(from + LINE_BYTES + p);
        vi h = vi_load(from + 2 * LINE_BYTES + p);
        vi_store(scales[0] + p, vi_or(vi_and(a, low), vi_and(vi_sll16(h, 4), top)));
        vi_store(scales[4] + p, vi_or(vi_and(b, low), vi_and(vi_sll16(h, 2), top)));
        vi_store(scales[8] + p, vi_or(vi_and(vi_srl16(a, 4), low), vi_and(h, top)));
        vi_store(scales[12] + p, vi_or(vi_and(vi_srl16(b, 4), low), vi_and(vi_srl16(h, 2), top)));
    }
    panel_read_f16(from + 12 * KERNEL_ROW_GROUP, 1, d);
    panel_scale(d[0], false, scales[0], 16, false, 32, panel->scale);
}

static void panel_read_q3_k(const uint8_t *chunk, uint32_t blocks, struct panel *panel)
{
    panel_two_bit(FORMAT_Q3_K, chunk, panel);
    panel_scales_q3_k(chunk, blocks, panel);
}

static panel_read *const PANEL_READ[FORMAT_LIMIT] = {
    [FORMAT_Q4_0] = panel_read_q4_0,     [FORMAT_Q4_1] = panel_read_q4_1,
    [FORMAT_Q5_0] = panel_read_q5_0,     [FORMAT_Q5_1] = panel_read_q5_1,
    [FORMAT_Q8_0] = panel_read_q8_0,     [FORMAT_Q2_K] = panel_read_q2_k,
    [FORMAT_Q3_K] = panel_read_q3_k,     [FORMAT_Q4_K] = panel_read_q4_k,
    [FORMAT_Q5_K] = panel_read_q5_k,     [FORMAT_Q6_K] = panel_read_q6_k,
    [FORMAT_IQ4_NL] = panel_read_iq4_nl, [FORMAT_IQ4_XS] = panel_read_iq4_xs,
};

#endif
