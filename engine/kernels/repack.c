/*
 * Laying rows side by side, and taking one out again: repack.h draws the layout.
 *
 * Everything follows the fields of format_table.h. A row of a chunk is moved by one loop in either
 * direction; taking a row out rebuilds the file's blocks and lets block.c dequantize them, so
 * repacking is lossless or the tests notice. Called at load, and for embedding look-ups.
 */
#include "engine/kernels/repack.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/minmax.h"
#include "engine/kernels/block.h"

#include <string.h>

#define ROWS KERNEL_ROW_BLOCK

uint64_t repack_chunk_bytes(enum tensor_format format)
{
    return bytes_align(ROWS * format_row_bytes(format, CHUNK_VALUES), 64);
}

uint64_t repack_row_block_bytes(enum tensor_format format, uint32_t k)
{
    if (!format_is_quantized(format))
        return bytes_align(ROWS * format_row_bytes(format, k), 64);
    return k / CHUNK_VALUES * repack_chunk_bytes(format) +
           bytes_align(ROWS * format_row_bytes(format, k % CHUNK_VALUES), 64);
}

uint64_t repack_bytes(enum tensor_format format, uint32_t n, uint32_t k)
{
    if (format_row_bytes(format, k) == 0)
        return 0;
    return kernel_row_blocks(n) * repack_row_block_bytes(format, k);
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
    for (int value = 0; value < 32; value++)
        bits |= (planes >> (value % 4 * 8 + value / 4) & 1u) << value;
    return bits;
}

/* Constant sizes are single instructions. */
static inline void copy_unit(uint8_t *to, const uint8_t *from, uint32_t width)
{
    if (width == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, width == 2 ? 2 : 1);
}

/* One row of one chunk: `in` says whether from the file's blocks into the chunk, or back. The 32
   high bits of a block of nibbles are turned, so that bit j of byte i is that of value 4j + i. */
static inline __attribute__((always_inline)) void move_chunk_row(enum tensor_format format,
                                                                 uint32_t blocks, uint32_t row,
                                                                 const bool in, uint8_t *file,
                                                                 uint8_t *chunk)
{
    const struct format_row *of = &FORMAT_TABLE[format];
    const bool has_high = format_has_high_bits(format);
    uint64_t at = 0; /* bytes of all units before this one, of 16 rows */
    for (int f = 0; f < FIELD_COUNT; f++) {
        const struct format_field field = of->fields[f];
        const bool lines = has_high && field.width == 4;
        const bool planes = f == FIELD_HIGH && of->weights == WEIGHTS_NIBBLES;
        for (uint32_t b = 0; b < blocks; b++) {
            uint8_t *unit = file + b * of->info.block_bytes + field.at;
            const uint32_t plain = field.width == 4 && !has_high ? field.units : 0;
            uint32_t i = 0;
#pragma GCC unroll 4
            for (; i < plain; i++, unit += 4, at += 64) {
                uint8_t *place = chunk + at + row * 4; /* most of a matrix */
                memcpy(in ? place : unit, in ? unit : place, 4);
            }
            for (; i < field.units; i++) {
                uint64_t offset = at;
                if (lines)
                    offset = 64 * (uint64_t)repack_line(format, blocks, (uint32_t)(at / 64));
                uint8_t *place = chunk + offset + row * field.width;
                copy_unit(in ? place : unit, in ? unit : place, field.width);
                if (planes) {
                    uint32_t word;
                    memcpy(&word, in ? place : unit, 4);
                    word = in ? planes_from_bits(word) : bits_from_planes(word);
                    memcpy(in ? place : unit, &word, 4);
                }
                unit += field.width;
                at += field.width * ROWS;
            }
        }
    }
}

/* Floats of 4 or 2 bytes to [column][16]: a few columns of all rows at a time, so that lines are
   filled while they are in the cache. */
static void repack_floats(const struct repacked_matrix *matrix, const uint8_t *from, uint32_t rows,
                          uint8_t *block)
{
    uint32_t width = format_info(matrix->format)->block_bytes;
    uint64_t row_bytes = format_row_bytes(matrix->format, matrix->k);
    for (uint64_t first = 0; first < matrix->k; first += 64) {
        uint64_t last = min_u64(first + 64, matrix->k);
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *row = from + r * row_bytes;
            for (uint64_t i = first; width == 4 && i < last; i++)
                memcpy(block + (i * ROWS + r) * 4, row + i * 4, 4);
            for (uint64_t i = first; width == 2 && i < last; i++)
                memcpy(block + (i * ROWS + r) * 2, row + i * 2, 2);
        }
    }
}

/* Sixteen rows, or `rows` and zeros. Zeros are weights of value 0 in every format. */
static void repack_row_block(const struct repacked_matrix *matrix, const uint8_t *from,
                             uint32_t rows, uint8_t *block)
{
    const struct format_info *info = format_info(matrix->format);
    uint64_t row_bytes = format_row_bytes(matrix->format, matrix->k);
    if (rows < ROWS)
        memset(block, 0, repack_row_block_bytes(matrix->format, matrix->k));
    if (!format_is_quantized(matrix->format)) {
        repack_floats(matrix, from, rows, block);
        return;
    }
    for (uint32_t k = 0; k < matrix->k; k += CHUNK_VALUES) {
        uint32_t blocks = min_u32(matrix->k - k, CHUNK_VALUES) / info->block_size;
        for (uint32_t r = 0; r < rows; r++)
            move_chunk_row(matrix->format, blocks, r, true, (uint8_t *)from + r * row_bytes, block);
        from += blocks * info->block_bytes;
        block += repack_chunk_bytes(matrix->format);
    }
}

void repack_rows(struct repacked_matrix *matrix, uint32_t first, uint32_t count, const void *rows)
{
    CHECK(first % ROWS == 0 && first + count <= matrix->n);
    CHECK(count % ROWS == 0 || first + count == matrix->n);
    const uint8_t *from = rows;
    uint64_t row_bytes = format_row_bytes(matrix->format, matrix->k);
    uint64_t block_bytes = repack_row_block_bytes(matrix->format, matrix->k);
    uint8_t *block = (uint8_t *)matrix->data + first / ROWS * block_bytes;
    for (uint32_t r = 0; r < count; r += ROWS, block += block_bytes)
        repack_row_block(matrix, from + r * row_bytes, min_u32(count - r, ROWS), block);
}

void repack_dequantize_row(const struct repacked_matrix *matrix, uint32_t row, float *out)
{
    CHECK(row < matrix->n);
    const enum tensor_format format = matrix->format;
    const struct format_info *info = format_info(format);
    uint8_t *block = (uint8_t *)matrix->data;
    block += row / ROWS * repack_row_block_bytes(format, matrix->k);
    if (!format_is_quantized(format)) {
        uint64_t width = info->block_bytes;
        for (uint64_t i = 0; i < matrix->k; i++)
            out[i] = block_read_float(format, block + (i * ROWS + row % ROWS) * width, 0);
        return;
    }
    for (uint32_t k = 0; k < matrix->k; k += CHUNK_VALUES) {
        uint32_t values = min_u32(matrix->k - k, CHUNK_VALUES);
        uint8_t file[8 * 34]; /* the largest chunk of a row: Q8_0 */
        CHECK(format_row_bytes(format, values) <= sizeof file);
        move_chunk_row(format, values / info->block_size, row % ROWS, false, file, block);
        block_dequantize(format, file, values, out + k);
        block += repack_chunk_bytes(format);
    }
}
