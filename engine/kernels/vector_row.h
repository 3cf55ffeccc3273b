/*
 * One activation row: its products with weights as bytes, in the order in which they lie.
 *
 * Many rows share every unpacked weight; one row alone would take longer to unpack weights to 16
 * bits than to multiply them. Here the activations are taken apart instead, once per call:
 * q = 128·high + low, both of 8 bits, and one instruction multiplies four unsigned bytes of weights
 * with either. Σ w·q is the same integer and the chains are those of the tiles, so no bit differs.
 * Weights are read without what their format takes off, the bias; bias·Σq is taken off the sums.
 *
 * Included after vector_panel.h, by sets whose vectors are as long as a line, with vi_dot_bytes.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_ROW_H
#define QUIRE_ENGINE_KERNELS_VECTOR_ROW_H

#define ROW_BLOCKS_MAX 512u /* longer rows are left to tiles: this is on the stack */

struct row {
    int8_t high[ROW_BLOCKS_MAX][BLOCK_VALUES] __attribute__((aligned(64)));
    int8_t low[ROW_BLOCKS_MAX][BLOCK_VALUES];
    int32_t sums[ROW_BLOCKS_MAX][2]; /* Σq of values 0–15 and 16–31 */
    const struct activation_block *a;
};

/* Takes `blocks` blocks apart. */
INLINE void row_split(const struct activation_block *a, uint32_t blocks, const bool sums,
                      struct row *row)
{
    row->a = a;
    for (uint32_t b = 0; b < blocks; b++) {
        vi_split_words(a[b].q, row->high[b], row->low[b]);
        if (sums) {
            vi_sum_words(a[b].q, row->sums[b]);
        }
    }
}

/* What is taken off a format's bytes. */
INLINE int32_t row_bias(const enum tensor_format format)
{
    return format == FORMAT_Q4_0                                ? 8
           : format == FORMAT_Q5_0                              ? 16
           : format == FORMAT_Q8_0                              ? 128
           : format == FORMAT_IQ4_NL || format == FORMAT_IQ4_XS ? 128
           : format == FORMAT_Q3_K                              ? 4
           : format == FORMAT_Q6_K                              ? 32
                                                                : 0;
}

/* Whether a row is whole chunks. */
INLINE bool row_is_whole(const enum tensor_format format)
{
    return format == FORMAT_Q2_K || format == FORMAT_Q3_K || format == FORMAT_Q4_K ||
           format == FORMAT_Q5_K || format == FORMAT_Q6_K || format == FORMAT_IQ4_XS;
}

/* Quad j of block b of a chunk: a row's four weights in each 32-bit lane, bytes that
   are not negative. interleave.h has the layout, vector_panel.h reads whole panels of it. */
INLINE vi row_quad(const enum tensor_format format, const uint8_t *chunk, const int b, const int j)
{
    const vi four = vi_set1_u8(15);
    const uint8_t *line = chunk + (uint32_t)(b * 4 + j % 4) * LINE_BYTES;
    switch (format) {
    case FORMAT_Q8_0:
        return vi_xor(vi_load(chunk + (uint32_t)(b * 8 + j) * LINE_BYTES), vi_set1_u8(128));
    case FORMAT_Q4_0:
    case FORMAT_Q4_1:
        return vi_and(SHIFTED(vi_load(line), -(j / 4 * 4)), four);
    case FORMAT_Q5_0:
    case FORMAT_Q5_1: {
        line = chunk + (uint32_t)(b * 5) * LINE_BYTES;
        vi fifth = vi_and(SHIFTED(vi_load(line), 4 - j), vi_set1_u8(16));
        line += (uint32_t)(1 + j % 4) * LINE_BYTES;
        return vi_or(vi_and(SHIFTED(vi_load(line), -(j / 4 * 4)), four), fifth);
    }
    case FORMAT_IQ4_NL:
    case FORMAT_IQ4_XS: {
        vi value = vi_and(SHIFTED(vi_load(line), -(j / 4 * 4)), four);
        return vi_xor(vi_look_up(PANEL_IQ4_VALUES, value), vi_set1_u8(128));
    }
    default:
        break;
    }
    /* Q4_K, Q5_K: two blocks share lines; Q2_K, Q3_K and the upper bits of Q6_K: four. */
    const uint32_t of_two = (uint32_t)(b / 2 * 8 + j), of_four = (uint32_t)(b / 4 * 8 + j);
    switch (format) {
    case FORMAT_Q4_K:
        return vi_and(SHIFTED(vi_load(panel_at(format, chunk, of_two)), -(b % 2 * 4)), four);
    case FORMAT_Q5_K: {
        vi fifths = vi_load(panel_at(format, chunk, 32 + (uint32_t)j));
        vi lower = vi_load(panel_at(format, chunk, of_two));
        return vi_or(vi_and(SHIFTED(lower, -(b % 2 * 4)), four),
                     vi_and(SHIFTED(fifths, 4 - b), vi_set1_u8(16)));
    }
    case FORMAT_Q2_K:
        return vi_and(SHIFTED(vi_load(panel_at(format, chunk, of_four)), -(b % 4 * 2)),
                      vi_set1_u8(3));
    case FORMAT_Q3_K: {
        vi thirds = vi_load(panel_at(format, chunk, 16 + (uint32_t)j));
        vi lower = vi_load(panel_at(format, chunk, of_four));
        return vi_or(vi_and(SHIFTED(lower, -(b % 4 * 2)), vi_set1_u8(3)),
                     vi_and(SHIFTED(thirds, 2 - b), vi_set1_u8(4)));
    }
    default:
        CHECK(false);
    }
}

/* Σ w·q from the sums with either byte, `part` of 0 … parts - 1 of a block's values. */
INLINE vi row_sum(const enum tensor_format format, vi high, vi low, const int32_t *sums,
                  const int parts, const int part)
{
    vi dot = vi_add(vi_sll32(high, 7), low);
    if (row_bias(format) == 0) {
        return dot;
    }
    int32_t sum = parts == 1 ? sums[0] + sums[1] : sums[part];
    return vi_sub(dot, vi_set1(sum * row_bias(format)));
}

/* Σ w·q of `count` quads from quad `first` of block b; `at` is the block's place in the row. */
INLINE vi row_dot(const enum tensor_format format, const uint8_t *chunk, const int b,
                  const int first, const int count, const struct row *row, uint32_t at)
{
    const bool nibbles = format == FORMAT_Q4_0 || format == FORMAT_Q4_1 || format == FORMAT_Q5_0 ||
                         format == FORMAT_Q5_1 || format == FORMAT_IQ4_NL ||
                         format == FORMAT_IQ4_XS;
    vi high = vi_set1(0), low = vi_set1(0);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const int j = first + (nibbles ? i % 2 * 4 + i / 2 : i); /* those of one line together */
        vi w = row_quad(format, chunk, b, j);
        high = vi_dot_bytes(high, w, row->high[at] + 4 * j);
        low = vi_dot_bytes(low, w, row->low[at] + 4 * j);
    }
    return row_sum(format, high, low, row->sums[at], 8 / count, first / 4);
}

/* The dot products of Q6_K's whole chunk: four blocks together, as they share lines. */
INLINE void row_dots_q6_k(const uint8_t *chunk, const struct row *row, uint32_t at, vi dots[16])
{
    const vi four = vi_set1_u8(15), two = vi_set1_u8(0x30);
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; quarter++) { /* the same 16 values' places of four blocks */
        const uint32_t b = (uint32_t)(quarter / 2 * 4);
        vi high[4], low[4];
        for (int i = 0; i < 4; i++) {
            high[i] = low[i] = vi_set1(0);
        }
#pragma GCC unroll 4
        for (int j = quarter % 2 * 4; j < quarter % 2 * 4 + 4; j++) {
            const uint8_t *lines = panel_at(FORMAT_Q6_K, chunk, 32 + b * 2 + (uint32_t)j);
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
            dots[quarter / 2 * 8 + 2 * i + quarter % 2] = row_sum(
                FORMAT_Q6_K, high[i], low[i], row->sums[at + b + (uint32_t)i], 2, quarter % 2);
        }
    }
}

INLINE void row_dots(const enum tensor_format format, const int parts, const uint8_t *chunk,
                     const struct row *row, uint32_t at, vi *dots)
{
    if (format == FORMAT_Q6_K) {
        row_dots_q6_k(chunk, row, at, dots);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < (int)PANEL_BLOCKS * parts; i++) {
        dots[i] = row_dot(format, chunk, i / parts, i % parts * 4, 8 / parts, row,
                          at + (uint32_t)(i / parts));
        __asm__ volatile("" : "+v"(dots[i])); /* now: loads stay in their order */
    }
}

/* The chain of one block, its scaled dot products first, as in a tile. */
INLINE vf row_chain(const int parts, const bool minimums, const struct panel *panel, uint32_t b,
                    const struct activation_block *a, const vi *dots, vf chain)
{
    const vf d = vf_set1(a->d);
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
        vf scale = vf_load(panel->scale[b * (uint32_t)parts + (uint32_t)part]);
        chain = vf_fma(vf_from_int(dots[part]), vf_mul(scale, d), chain);
    }
#pragma GCC unroll 2
    for (int part = 0; minimums && part < parts; part++) {
        vf m = vf_load(panel->minimum[b * (uint32_t)parts + (uint32_t)part]);
        float sum = parts == 2 ? a->half_sum_scaled[part] : a->sum_scaled;
        chain = vf_fma(m, vf_set1(sum), chain);
    }
    return chain;
}

/* One group's acc [16]. In a chunk all dot products come first: the scales lie behind the weights,
   and what is read in its order is fetched by the hardware in time. */
INLINE void row_group(const enum tensor_format format, const bool halves, const bool minimums,
                      panel_read *scales, const uint8_t *chunk, uint32_t blocks,
                      const struct row *row, float *acc)
{
    const uint64_t chunk_bytes = interleave_chunk_bytes(format);
    const int parts = halves ? 2 : 1;
    struct panel panel;
    vf chain = vf_set1(0.0f);
    uint32_t at = 0;
    for (; at + PANEL_BLOCKS <= blocks; at += PANEL_BLOCKS, chunk += chunk_bytes) {
        vi dots[PANEL_BLOCKS * 2];
        row_dots(format, parts, chunk, row, at, dots);
        scales(chunk, PANEL_BLOCKS, &panel);
#pragma GCC unroll 8
        for (int b = 0; b < (int)PANEL_BLOCKS; b++) {
            chain = row_chain(parts, minimums, &panel, (uint32_t)b, row->a + at + b,
                              dots + b * parts, chain);
        }
    }
    if (!row_is_whole(format) && at < blocks) {
        const uint32_t last = blocks - at;
        vi dots[PANEL_BLOCKS];
        for (uint32_t b = 0; b < last; b++) {
            dots[b] = row_dot(format, chunk, (int)b, 0, 8, row, at + b);
        }
        scales(chunk, last, &panel);
        for (uint32_t b = 0; b < last; b++) {
            chain = row_chain(1, minimums, &panel, b, row->a + at + b, &dots[b], chain);
        }
    }
    vf_store(acc, chain);
}

/* acc [16] of one group. */
typedef void row_products(const uint8_t *group, uint32_t blocks, const struct row *row, float *acc);

#define ROW_PRODUCTS(format, name, halves, minimums)                                               \
    static void row_##name(const uint8_t *group, uint32_t blocks, const struct row *row,           \
                           float *acc)                                                             \
    {                                                                                              \
        row_group(format, halves, minimums, panel_scales_##name, group, blocks, row, acc);         \
    }
ROW_PRODUCTS(FORMAT_Q4_0, q4_0, false, false)
ROW_PRODUCTS(FORMAT_Q4_1, q4_1, false, true)
ROW_PRODUCTS(FORMAT_Q5_0, q5_0, false, false)
ROW_PRODUCTS(FORMAT_Q5_1, q5_1, false, true)
ROW_PRODUCTS(FORMAT_Q8_0, q8_0, false, false)
ROW_PRODUCTS(FORMAT_Q2_K, q2_k, true, true)
ROW_PRODUCTS(FORMAT_Q3_K, q3_k, true, false)
ROW_PRODUCTS(FORMAT_Q4_K, q4_k, false, true)
ROW_PRODUCTS(FORMAT_Q5_K, q5_k, false, true)
ROW_PRODUCTS(FORMAT_Q6_K, q6_k, true, false)
ROW_PRODUCTS(FORMAT_IQ4_NL, iq4_nl, false, false)
ROW_PRODUCTS(FORMAT_IQ4_XS, iq4_xs, false, false)

static row_products *const ROW_PRODUCTS_OF[FORMAT_LIMIT] = {
    [FORMAT_Q4_0] = row_q4_0, [FORMAT_Q4_1] = row_q4_1,     [FORMAT_Q5_0] = row_q5_0,
    [FORMAT_Q5_1] = row_q5_1, [FORMAT_Q8_0] = row_q8_0,     [FORMAT_Q2_K] = row_q2_k,
    [FORMAT_Q3_K] = row_q3_k, [FORMAT_Q4_K] = row_q4_k,     [FORMAT_Q5_K] = row_q5_k,
    [FORMAT_Q6_K] = row_q6_k, [FORMAT_IQ4_NL] = row_iq4_nl, [FORMAT_IQ4_XS] = row_iq4_xs,
};

/* Whether row_matmul computes such matrices: not of floats, not of very long rows. */
static bool row_can(const struct packed_matrix *matrix)
{
    return ROW_PRODUCTS_OF[matrix->format] != NULL && matrix->k / BLOCK_VALUES <= ROW_BLOCKS_MAX;
}

/* kernels->matmul of one row. */
static void row_matmul(const struct packed_matrix *matrix, const struct activations *activations,
                       uint32_t r, uint32_t first_group, uint32_t groups, bool accumulate, float *y,
                       size_t y_stride)
{
    CHECK(activations->k == matrix->k && r < activations->row_count);
    struct row row;
    float acc[KERNEL_ROW_GROUP] __attribute__((aligned(64)));
    uint32_t blocks = matrix->k / BLOCK_VALUES;
    const struct activation_block *a = activations->quantized;
    a += (size_t)r * activation_stride(matrix->k);
    uint64_t group_bytes = interleave_group_bytes(matrix->format, matrix->k);
    const uint8_t *group = (const uint8_t *)matrix->data + first_group * group_bytes;
    row_split(a, blocks, row_bias(matrix->format) != 0, &row);
    uint32_t last = last_group(matrix, first_group, groups);
    for (uint32_t g = first_group; g < last; g++, group += group_bytes) {
        ROW_PRODUCTS_OF[matrix->format](group, blocks, &row, acc);
        write_group(matrix, g, acc, 1, accumulate, y + r * y_stride, y_stride);
    }
}

#endif
