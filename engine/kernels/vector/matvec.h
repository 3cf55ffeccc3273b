/*
 * One activation row: its products with weights as bytes, in the order in which they lie.
 *
 * Many rows share every unpacked weight; one row alone would take longer to unpack weights to 16
 * bits than to multiply them. Here the activations are taken apart instead, once per call:
 * q = 128·high + low, both of 8 bits, and one instruction multiplies four unsigned bytes of weights
 * with either. Σ w·q is the same integer and the chains are those of the tiles, so no bit differs.
 * Weights are read without what their format takes off, the bias; bias·Σq is taken off the sums.
 *
 * For sets whose vectors are as long as a line and whose lanes_*.h has vi_dot_bytes.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_MATVEC_H
#define QUIRE_ENGINE_KERNELS_VECTOR_MATVEC_H

#include "engine/kernels/vector/matmul.h"

#define MATVEC_BLOCKS_MAX 512u /* longer rows are left to tiles: this is on the stack */

struct split_row {
    int8_t high[MATVEC_BLOCKS_MAX][BLOCK_VALUES] __attribute__((aligned(64)));
    int8_t low[MATVEC_BLOCKS_MAX][BLOCK_VALUES];
    int32_t sums[MATVEC_BLOCKS_MAX][2]; /* Σq of values 0–15 and 16–31 */
    const struct activation_block *a;
};

/* What is taken off a format's bytes, which are not negative; signed ones have 128 added. */
INLINE int32_t matvec_bias(const enum tensor_format format)
{
    const struct format_row *row = &FORMAT_TABLE[format];
    return row->values || row->weights == WEIGHTS_BYTES ? 128 : row->zero;
}

/* Takes `blocks` blocks apart. */
INLINE void split_activations(const struct activation_block *a, uint32_t blocks, const bool sums,
                              struct split_row *row)
{
    row->a = a;
    for (uint32_t b = 0; b < blocks; b++) {
        vi_split_words(a[b].q, row->high[b], row->low[b]);
        if (sums)
            vi_sum_words(a[b].q, row->sums[b]);
    }
}

/* The `bits` lowest bits of x >> shift, in every byte. */
INLINE vi low_bits(vi x, const int shift, const int bits)
{
    return vi_and(SHIFTED(x, -shift), vi_set1_u8((uint8_t)((1 << bits) - 1)));
}

/* Lane j of block b of a chunk: a row's four weights in each 32-bit lane, bytes that are not
   negative. repack.h has the layout, unpack.h reads whole panels of it. WEIGHTS_SIXES has its own
   way (matvec_dots_sixes). */
INLINE vi matvec_lane(const enum tensor_format format, const uint8_t *chunk, const int b,
                      const int j)
{
    const struct format_row *row = &FORMAT_TABLE[format];
    const bool has_high = format_has_high_bits(format);
    const vi flip = vi_set1_u8(128);
    vi value;
    if (row->weights == WEIGHTS_BYTES)
        return vi_xor(vi_load(chunk + (uint32_t)(b * 8 + j) * LINE_BYTES), flip);
    if (row->weights == WEIGHTS_NIBBLES) {
        const uint8_t *lines = chunk + (uint32_t)(b * (has_high ? 5 : 4)) * LINE_BYTES;
        const uint8_t *line = lines + (uint32_t)(j % 4 + has_high) * LINE_BYTES;
        value = low_bits(vi_load(line), j / 4 * 4, 4);
        if (has_high)
            value = vi_or(value, vi_and(SHIFTED(vi_load(lines), 4 - j), vi_set1_u8(16)));
        return row->values ? vi_xor(vi_look_up(row->values, value), flip) : value;
    }
    /* Two blocks share lines, or four; bit b of the high bits' line is block b's. */
    const bool pairs = row->weights == WEIGHTS_PAIRS;
    const uint32_t line = (uint32_t)(b / (pairs ? 2 : 4) * 8 + j);
    value = low_bits(vi_load(panel_at(format, chunk, line)), pairs ? b % 2 * 4 : b % 4 * 2,
                     pairs ? 4 : 2);
    if (has_high) {
        vi high = vi_load(panel_at(format, chunk, (pairs ? 32 : 16) + (uint32_t)j));
        value =
            vi_or(value, vi_and(SHIFTED(high, (pairs ? 4 : 2) - b), vi_set1_u8(pairs ? 16 : 4)));
    }
    return value;
}

/* Σ w·q from the sums with either byte, `part` of 0 … parts - 1 of a block's values. */
INLINE vi matvec_sum(const enum tensor_format format, vi high, vi low, const int32_t *sums,
                     const int parts, const int part)
{
    vi dot = vi_add(vi_sll32(high, 7), low);
    if (matvec_bias(format) == 0)
        return dot;
    int32_t sum = parts == 1 ? sums[0] + sums[1] : sums[part];
    return vi_sub(dot, vi_set1(sum * matvec_bias(format)));
}

/* Σ w·q of `count` lanes from lane `first` of block b; `at` is the block's place in the row. */
INLINE vi matvec_dot(const enum tensor_format format, const uint8_t *chunk, const int b,
                     const int first, const int count, const struct split_row *row, uint32_t at)
{
    const bool nibbles = FORMAT_TABLE[format].weights == WEIGHTS_NIBBLES;
    vi high = vi_set1(0), low = vi_set1(0);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const int j = first + (nibbles ? i % 2 * 4 + i / 2 : i); /* those of one line together */
        vi w = matvec_lane(format, chunk, b, j);
        high = vi_dot_bytes(high, w, row->high[at] + 4 * j);
        low = vi_dot_bytes(low, w, row->low[at] + 4 * j);
    }
    return matvec_sum(format, high, low, row->sums[at], 8 / count, first / 4);
}

/* The dot products of a whole chunk of WEIGHTS_SIXES: four blocks together, as they share lines. */
INLINE void matvec_dots_sixes(const enum tensor_format format, const uint8_t *chunk,
                              const struct split_row *row, uint32_t at, vi dots[16])
{
    const vi four = vi_set1_u8(15), two = vi_set1_u8(0x30);
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; quarter++) { /* the same 16 values' places of four blocks */
        const uint32_t b = (uint32_t)(quarter / 2 * 4);
        vi high[4], low[4];
        for (int i = 0; i < 4; i++)
            high[i] = low[i] = vi_set1(0);
#pragma GCC unroll 4
        for (int j = quarter % 2 * 4; j < quarter % 2 * 4 + 4; j++) {
            const uint8_t *lines = panel_at(format, chunk, 32 + b * 2 + (uint32_t)j);
            const vi upper = vi_load(lines);
            const vi x = vi_load(lines + LINE_BYTES), y = vi_load(lines + 2 * LINE_BYTES);
            vi w[4] = {vi_and(x, four), vi_and(y, four), vi_and(vi_srl16(x, 4), four),
                       vi_and(vi_srl16(y, 4), four)};
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                w[i] = vi_or(w[i], vi_and(SHIFTED(upper, 4 - 2 * i), two));
                high[i] = vi_dot_bytes(high[i], w[i], row->high[at + b + (uint32_t)i] + 4 * j);
                low[i] = vi_dot_bytes(low[i], w[i], row->low[at + b + (uint32_t)i] + 4 * j);
            }
            __asm__ volatile("" : : : "memory"); /* loads stay in their order */
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            dots[quarter / 2 * 8 + 2 * i + quarter % 2] = matvec_sum(
                format, high[i], low[i], row->sums[at + b + (uint32_t)i], 2, quarter % 2);
        }
    }
}

INLINE void matvec_dots(const enum tensor_format format, const int parts, const uint8_t *chunk,
                        const struct split_row *row, uint32_t at, vi *dots)
{
    if (FORMAT_TABLE[format].weights == WEIGHTS_SIXES) {
        matvec_dots_sixes(format, chunk, row, at, dots);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < (int)PANEL_BLOCKS * parts; i++) {
        dots[i] = matvec_dot(format, chunk, i / parts, i % parts * 4, 8 / parts, row,
                             at + (uint32_t)(i / parts));
        __asm__ volatile("" : "+v"(dots[i])); /* now: loads stay in their order */
    }
}

/* The chain of one block, its scaled dot products first, as in a tile. */
INLINE vf matvec_chain(const int parts, const bool has_min, const struct panel *panel, uint32_t b,
                       const struct activation_block *a, const vi *dots, vf chain)
{
    const vf d = vf_set1(a->d);
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
        vf scale = vf_load(panel->scale[b * (uint32_t)parts + (uint32_t)part]);
        chain = vf_fma(vf_from_int(dots[part]), vf_mul(scale, d), chain);
    }
#pragma GCC unroll 2
    for (int part = 0; has_min && part < parts; part++) {
        vf m = vf_load(panel->min[b * (uint32_t)parts + (uint32_t)part]);
        float sum = parts == 2 ? a->sub_sum_scaled[part] : a->sum_scaled;
        chain = vf_fma(m, vf_set1(sum), chain);
    }
    return chain;
}

/* acc [16] of one row block. In a chunk all dot products come first: the scales lie behind the
   weights, and what is read in its order is prefetched by the hardware in time. */
INLINE void matvec_row_block(const enum tensor_format format, const uint8_t *chunk, uint32_t blocks,
                             const struct split_row *row, float *acc)
{
    const bool has_min = FORMAT_TABLE[format].has_min;
    const uint64_t chunk_bytes = repack_chunk_bytes(format);
    const int parts = FORMAT_TABLE[format].sub_blocks ? 2 : 1;
    struct panel panel;
    vf chain = vf_set1(0.0f);
    uint32_t at = 0;
    for (; at + PANEL_BLOCKS <= blocks; at += PANEL_BLOCKS, chunk += chunk_bytes) {
        vi dots[PANEL_BLOCKS * 2];
        matvec_dots(format, parts, chunk, row, at, dots);
        panel_scales(format, chunk, PANEL_BLOCKS, &panel);
#pragma GCC unroll 8
        for (int b = 0; b < (int)PANEL_BLOCKS; b++)
            chain = matvec_chain(parts, has_min, &panel, (uint32_t)b, row->a + at + b,
                                 dots + b * parts, chain);
    }
    if (FORMAT_TABLE[format].info.block_size == BLOCK_VALUES && at < blocks) {
        const uint32_t last = blocks - at;
        vi dots[PANEL_BLOCKS];
        for (uint32_t b = 0; b < last; b++)
            dots[b] = matvec_dot(format, chunk, (int)b, 0, 8, row, at + b);
        panel_scales(format, chunk, last, &panel);
        for (uint32_t b = 0; b < last; b++)
            chain = matvec_chain(1, has_min, &panel, b, row->a + at + b, &dots[b], chain);
    }
    vf_store(acc, chain);
}

typedef void matvec_fn(const uint8_t *block, uint32_t blocks, const struct split_row *row,
                       float *acc);

#define MATVEC(name)                                                                               \
    static void matvec_##name(const uint8_t *block, uint32_t blocks, const struct split_row *row,  \
                              float *acc)                                                          \
    {                                                                                              \
        matvec_row_block(FORMAT_##name, block, blocks, row, acc);                                  \
    }
EACH_QUANTIZED_FORMAT(MATVEC)

#define MATVEC_ENTRY(name) [FORMAT_##name] = matvec_##name,
static matvec_fn *const MATVEC_OF[FORMAT_LIMIT] = {EACH_QUANTIZED_FORMAT(MATVEC_ENTRY)};

/* Whether vector_matvec computes such matrices: not of floats, not of very long rows. */
static bool matvec_can(const struct repacked_matrix *matrix)
{
    return MATVEC_OF[matrix->format] && matrix->k / BLOCK_VALUES <= MATVEC_BLOCKS_MAX;
}

/* kernels->matmul of one row. */
static void vector_matvec(const struct repacked_matrix *matrix,
                          const struct activations *activations, uint32_t r, uint32_t first_block,
                          uint32_t row_blocks, bool accumulate, float *y, size_t y_stride)
{
    CHECK(activations->k == matrix->k && r < activations->row_count);
    struct split_row row;
    float acc[KERNEL_ROW_BLOCK] __attribute__((aligned(64)));
    uint32_t blocks = matrix->k / BLOCK_VALUES;
    const struct activation_block *a = activations->quantized;
    a += (size_t)r * activation_stride(matrix->k);
    uint64_t block_bytes = repack_row_block_bytes(matrix->format, matrix->k);
    const uint8_t *block = (const uint8_t *)matrix->data + first_block * block_bytes;
    split_activations(a, blocks, matvec_bias(matrix->format) != 0, &row);
    uint32_t last = last_block(matrix, first_block, row_blocks);
    for (uint32_t g = first_block; g < last; g++, block += block_bytes) {
        MATVEC_OF[matrix->format](block, blocks, &row, acc);
        write_row_block(matrix, g, acc, 1, accumulate, y + r * y_stride, y_stride);
    }
}

#endif
