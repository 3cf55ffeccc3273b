/*
 * Packing rows side by side, and taking one out again: interleave.h draws the layout.
 *
 * Everything follows one table of the fields that a format's block has in the file (block.c says
 * what they mean). Taking a row out rebuilds the file's blocks and lets block.c dequantise them, so
 * packing is lossless or the tests notice.
 */
#include "engine/kernels/interleave.h"

#include "base/check.h"
#include "engine/kernels/block.h"

#include <string.h>

#define GROUP KERNEL_ROW_GROUP

#define FIELDS_MAX 6u

/* Bytes of one 16-row chunk's field start at 16·(bytes of the fields before it)·blocks, but for
   units of 4 bytes, whose lines interleave_line places. */
struct field {
    uint16_t at;    /* offset in the file's block */
    uint8_t units;  /* per block */
    uint8_t width;  /* bytes of a unit: 4, 2 or 1 */
    uint8_t planes; /* 1: a unit is the 32 fifth bits of a block, turned so that bit j of byte i is
                       that of value 4j + i */
};

/* Ended by units = 0. Fields whose sections are whole lines come first, so that they stay aligned
   in short chunks. */
static const struct field FIELDS[FORMAT_LIMIT][FIELDS_MAX] = {
    [FORMAT_Q4_0] = {{2, 4, 4, 0}, {0, 1, 2, 0}},
    [FORMAT_Q4_1] = {{4, 4, 4, 0}, {0, 1, 2, 0}, {2, 1, 2, 0}},
    [FORMAT_Q5_0] = {{6, 4, 4, 0}, {2, 1, 4, 1}, {0, 1, 2, 0}},
    [FORMAT_Q5_1] = {{8, 4, 4, 0}, {4, 1, 4, 1}, {0, 1, 2, 0}, {2, 1, 2, 0}},
    [FORMAT_Q8_0] = {{2, 8, 4, 0}, {0, 1, 2, 0}},
    [FORMAT_IQ4_NL] = {{2, 4, 4, 0}, {0, 1, 2, 0}},
    [FORMAT_Q2_K] = {{16, 16, 4, 0}, {0, 16, 1, 0}, {80, 1, 2, 0}, {82, 1, 2, 0}},
    [FORMAT_Q3_K] = {{32, 16, 4, 0}, {0, 8, 4, 0}, {96, 12, 1, 0}, {108, 1, 2, 0}},
    [FORMAT_Q4_K] = {{16, 32, 4, 0}, {4, 12, 1, 0}, {0, 1, 2, 0}, {2, 1, 2, 0}},
    [FORMAT_Q5_K] = {{48, 32, 4, 0}, {16, 8, 4, 0}, {4, 12, 1, 0}, {0, 1, 2, 0}, {2, 1, 2, 0}},
    [FORMAT_Q6_K] = {{0, 32, 4, 0}, {128, 16, 4, 0}, {192, 16, 1, 0}, {208, 1, 2, 0}},
    [FORMAT_IQ4_XS] = {{8, 32, 4, 0}, {4, 4, 1, 0}, {0, 1, 2, 0}, {2, 1, 2, 0}},
};

static uint64_t round_to_line(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

uint64_t interleave_chunk_bytes(enum tensor_format format)
{
    return round_to_line(GROUP * format_row_bytes(format, CHUNK_VALUES));
}

uint64_t interleave_group_bytes(enum tensor_format format, uint32_t k)
{
    if (!block_shape(format)) {
        return round_to_line(GROUP * format_row_bytes(format, k));
    }
    return k / CHUNK_VALUES * interleave_chunk_bytes(format) +
           round_to_line(GROUP * format_row_bytes(format, k % CHUNK_VALUES));
}

uint64_t interleave_packed_bytes(enum tensor_format format, uint32_t n, uint32_t k)
{
    if (format_row_bytes(format, k) == 0) {
        return 0;
    }
    return ((uint64_t)n + GROUP - 1) / GROUP * interleave_group_bytes(format, k);
}

/* Bit 4j + i of the word becomes bit j of byte i. */
static uint32_t planes_from_bits(uint32_t bits)
{
    uint32_t planes = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t every_fourth = bits >> i & 0x11111111u;
        every_fourth = (every_fourth | every_fourth >> 3) & 0x03030303u;
        every_fourth = (every_fourth | every_fourth >> 6) & 0x000F000Fu;
        every_fourth = (every_fourth | every_fourth >> 12) & 0xFFu;
        planes |= every_fourth << 8 * i;
    }
    return planes;
}

static uint32_t bits_from_planes(uint32_t planes)
{
    uint32_t bits = 0;
    for (int value = 0; value < 32; value++) {
        bits |= (planes >> (value % 4 * 8 + value / 4) & 1u) << value;
    }
    return bits;
}

/* A row of a chunk, whose units are visited in their order. */
struct chunk_row {
    enum tensor_format format;
    uint32_t blocks; /* in the file */
    uint32_t row;
    uint64_t at; /* bytes of all units before this one, of 16 rows */
};

/* The offset in the chunk of the row's next unit of `width` bytes. */
static uint64_t next_unit(struct chunk_row *row, uint32_t width)
{
    uint64_t at = row->at;
    row->at += width * GROUP;
    if (width == 4) {
        at = 64 * (uint64_t)interleave_line(row->format, row->blocks, (uint32_t)(at / 64));
    }
    return at + row->row * width;
}

/* One row of one chunk, from the file's blocks. */
static void pack_chunk_row(struct chunk_row row, const uint8_t *from, uint8_t *chunk)
{
    const uint32_t block_bytes = format_info(row.format)->block_bytes;
    for (const struct field *field = FIELDS[row.format]; field->units; field++) {
        for (uint32_t b = 0; b < row.blocks; b++) {
            const uint8_t *units = from + b * block_bytes + field->at;
            for (uint32_t i = 0; i < field->units; i++) {
                uint8_t *to = chunk + next_unit(&row, field->width);
                if (field->width == 4) {
                    uint32_t word;
                    memcpy(&word, units + 4 * i, 4);
                    word = field->planes ? planes_from_bits(word) : word;
                    memcpy(to, &word, 4);
                } else if (field->width == 2) {
                    memcpy(to, units, 2);
                } else {
                    *to = units[i];
                }
            }
        }
    }
}

/* The file's blocks again. */
static void unpack_chunk_row(struct chunk_row row, const uint8_t *chunk, uint8_t *to)
{
    const uint32_t block_bytes = format_info(row.format)->block_bytes;
    for (const struct field *field = FIELDS[row.format]; field->units; field++) {
        for (uint32_t b = 0; b < row.blocks; b++) {
            uint8_t *units = to + b * block_bytes + field->at;
            for (uint32_t i = 0; i < field->units; i++) {
                const uint8_t *unit = chunk + next_unit(&row, field->width);
                memcpy(units + field->width * i, unit, field->width);
                if (field->planes) {
                    uint32_t word;
                    memcpy(&word, unit, 4);
                    word = bits_from_planes(word);
                    memcpy(units, &word, 4);
                }
            }
        }
    }
}

/* Floats of 4 or 2 bytes to [column][16]: a few columns of all rows at a time, so that lines are
   filled while they are in the cache. */
static void pack_floats(const struct packed_matrix *matrix, const uint8_t *from, uint32_t rows,
                        uint8_t *group)
{
    uint32_t width = format_info(matrix->format)->block_bytes;
    uint64_t row_bytes = format_row_bytes(matrix->format, matrix->k);
    for (uint64_t first = 0; first < matrix->k; first += 64) {
        uint64_t last = first + 64 < matrix->k ? first + 64 : matrix->k;
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *row = from + r * row_bytes;
            for (uint64_t i = first; width == 4 && i < last; i++) {
                memcpy(group + (i * GROUP + r) * 4, row + i * 4, 4);
            }
            for (uint64_t i = first; width == 2 && i < last; i++) {
                memcpy(group + (i * GROUP + r) * 2, row + i * 2, 2);
            }
        }
    }
}

/* Sixteen rows, or `rows` and zeros. Zeros are weights of value 0 in every format. */
static void pack_group(const struct packed_matrix *matrix, const uint8_t *from, uint32_t rows,
                       uint8_t *group)
{
    const struct format_info *info = format_info(matrix->format);
    uint64_t row_bytes = format_row_bytes(matrix->format, matrix->k);
    if (rows < GROUP) {
        memset(group, 0, interleave_group_bytes(matrix->format, matrix->k));
    }
    if (!block_shape(matrix->format)) {
        pack_floats(matrix, from, rows, group);
        return;
    }
    uint32_t blocks_left = matrix->k / info->block_size;
    uint32_t per_chunk = CHUNK_VALUES / info->block_size;
    while (blocks_left > 0) {
        uint32_t blocks = blocks_left < per_chunk ? blocks_left : per_chunk;
        for (uint32_t r = 0; r < rows; r++) {
            struct chunk_row row = {.format = matrix->format, .blocks = blocks, .row = r};
            pack_chunk_row(row, from + r * row_bytes, group);
        }
        from += blocks * info->block_bytes;
        group += interleave_chunk_bytes(matrix->format);
        blocks_left -= blocks;
    }
}

void interleave_pack(struct packed_matrix *matrix, uint32_t first, uint32_t count, const void *rows)
{
    CHECK(first % GROUP == 0 && first + count <= matrix->n);
    CHECK(count % GROUP == 0 || first + count == matrix->n);
    const uint8_t *from = rows;
    uint64_t row_bytes = format_row_bytes(matrix->format, matrix->k);
    uint64_t group_bytes = interleave_group_bytes(matrix->format, matrix->k);
    uint8_t *group = (uint8_t *)matrix->data + first / GROUP * group_bytes;
    for (uint32_t r = 0; r < count; r += GROUP) {
        pack_group(matrix, from + r * row_bytes, count - r < GROUP ? count - r : GROUP, group);
        group += group_bytes;
    }
}

void interleave_unpack_row(const struct packed_matrix *matrix, uint32_t row, float *out)
{
    CHECK(row < matrix->n);
    const struct format_info *info = format_info(matrix->format);
    const uint8_t *group = matrix->data;
    group += row / GROUP * interleave_group_bytes(matrix->format, matrix->k);
    if (!block_shape(matrix->format)) {
        uint64_t width = info->block_bytes;
        for (uint64_t i = 0; i < matrix->k; i++) {
            const uint8_t *at = group + (i * GROUP + row % GROUP) * width;
            out[i] = block_read_float(matrix->format, at, 0);
        }
        return;
    }
    uint32_t blocks_left = matrix->k / info->block_size;
    uint32_t per_chunk = CHUNK_VALUES / info->block_size;
    while (blocks_left > 0) {
        uint32_t blocks = blocks_left < per_chunk ? blocks_left : per_chunk;
        uint8_t file_blocks[8 * 34]; /* the largest chunk of a row: Q8_0 */
        CHECK(blocks * info->block_bytes <= sizeof file_blocks);
        struct chunk_row of_row = {.format = matrix->format, .blocks = blocks, .row = row % GROUP};
        unpack_chunk_row(of_row, group, file_blocks);
        block_dequantize(matrix->format, file_blocks, blocks * info->block_size, out);
        group += interleave_chunk_bytes(matrix->format);
        out += blocks * info->block_size;
        blocks_left -= blocks;
    }
}
