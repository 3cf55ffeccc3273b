/*
 * The loops around the tiles: rows in chunks that stay in the second-level cache, blocks of 16
 * outputs, panels of 256 columns, tiles of a few rows. Bodies for any number of lanes.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_MATMUL_H
#define QUIRE_ENGINE_KERNELS_VECTOR_MATMUL_H

#include "base/check.h"
#include "base/minmax.h"
#include "engine/kernels/vector/tiles.h"

#define ROWS_MAX 128u
#define ROWS_MIN 64u
#define CACHE_BYTES (256u * 1024u)
#define FLOAT_COLUMNS 256u

/* Rows per chunk: their activations take about CACHE_BYTES. */
static uint32_t rows_per_chunk(uint32_t k)
{
    uint64_t row_bytes = activation_stride(k) * sizeof(struct activation_block);
    uint32_t rows = (uint32_t)(CACHE_BYTES / row_bytes) / TILE_ROWS * TILE_ROWS;
    return min_u32(max_u32(rows, ROWS_MIN), ROWS_MAX);
}

/* The next tile's rows: tiles as equal as can be, 9 = 5 + 4 rather than 8 + 1. */
INLINE uint32_t next_tile(uint32_t left)
{
    uint32_t tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
    return (left + tiles - 1) / tiles;
}

/* memset takes longer for so little. */
INLINE void clear(float *acc, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += KERNEL_ROW_BLOCK) {
        for (uint32_t j = 0; j < KERNEL_ROW_BLOCK; j += VECTOR_LANES) {
            vf_store(acc + i + j, vf_set1(0.0f));
            __asm__ volatile("" : : : "memory"); /* or the compiler makes it a memset */
        }
    }
}

/* What each of a chunk's steps prefetches: `lines` lines, the first `skip` bytes behind the chunk's
   end. Measured on Zen 4; results do not depend on it.
   Tiles that read the chunk itself ask for all of the next one, with nibbles from half a chunk
   further on. Where panels are read first, reading takes steps too; with one or two rows of a
   format with a table of values, whose panels are read from one end to the other, the hardware does better
   alone. */
struct ahead {
    uint64_t skip;
    uint32_t lines;
};
static struct ahead ahead_of(enum tensor_format format, uint64_t chunk_bytes, uint32_t rows)
{
    const uint64_t step_bytes = PANEL_BLOCKS * LINE_BYTES;
    const struct format_row *row = &FORMAT_TABLE[format];
    if (row->weights == WEIGHTS_BYTES)
        return (struct ahead){0, (uint32_t)(chunk_bytes / step_bytes)};
    if (panel_weights_of(format) != PANEL_BYTES)
        return (struct ahead){chunk_bytes / 2, (uint32_t)((chunk_bytes - 1) / step_bytes + 1)};
    if (row->values && rows <= 2)
        return (struct ahead){0, 0};
    return (struct ahead){0, (uint32_t)((chunk_bytes - 1) / step_bytes / 2 + 1)};
}

/* acc [rows][16] of one block; `first` is a row of the activations. */
static void integer_row_block(const struct repacked_matrix *matrix, const uint8_t *block,
                              const struct activations *activations, uint32_t first, uint32_t rows,
                              float *acc, const struct integer_tiles *tiles)
{
    struct panel panel;
    panel_read_fn *read = PANEL_READ_OF[matrix->format];
    uint64_t chunk_bytes = repack_chunk_bytes(matrix->format);
    struct ahead ahead = ahead_of(matrix->format, chunk_bytes, rows);
    size_t stride = activation_stride(matrix->k);
    const struct activation_block *a = activations->quantized;
    a += first * stride;
    clear(acc, rows * KERNEL_ROW_BLOCK);
    for (uint32_t left = matrix->k / BLOCK_VALUES; left > 0;) {
        uint32_t blocks = min_u32(left, PANEL_BLOCKS);
        panel.ahead = block + chunk_bytes + ahead.skip;
        panel.ahead_lines = ahead.lines;
        read(block, blocks, &panel);
        block += chunk_bytes;
        for (uint32_t r = 0; r < rows;) {
            uint32_t tile = next_tile(rows - r);
            tiles->of_rows[tile](&panel, blocks, a + r * stride, stride,
                                 acc + r * KERNEL_ROW_BLOCK);
            panel.ahead_lines = 0;
            r += tile;
        }
        a += blocks;
        left -= blocks;
    }
}

static void float_row_block(const struct repacked_matrix *matrix, const uint8_t *block,
                            const struct activations *activations, uint32_t first, uint32_t rows,
                            float *acc)
{
    const struct float_tiles *tiles = float_tiles_of(matrix->format);
    uint64_t column_bytes = (uint64_t)KERNEL_ROW_BLOCK * format_info(matrix->format)->block_bytes;
    const float *x = activations->x + (size_t)first * matrix->k;
    clear(acc, rows * KERNEL_ROW_BLOCK);
    for (uint32_t k = 0; k < matrix->k; k += FLOAT_COLUMNS) {
        uint32_t columns = min_u32(matrix->k - k, FLOAT_COLUMNS);
        for (uint32_t r = 0; r < rows;) {
            uint32_t tile = next_tile(rows - r);
            tiles->of_rows[tile](block + k * column_bytes, columns, x + (size_t)r * matrix->k + k,
                                 matrix->k, acc + r * KERNEL_ROW_BLOCK);
            r += tile;
        }
    }
}

/* Where the blocks from `first` end: behind `count` of them or with the matrix. */
static uint32_t last_block(const struct repacked_matrix *matrix, uint32_t first, uint32_t count)
{
    return min_u32(first + count, kernel_row_blocks(matrix->n));
}

/* acc [rows][16] to the outputs of block g in y, whose rows are `y_stride` floats apart. */
static void write_row_block(const struct repacked_matrix *matrix, uint32_t g, const float *acc,
                            uint32_t rows, bool accumulate, float *y, size_t y_stride)
{
    uint32_t output = g * KERNEL_ROW_BLOCK;
    uint32_t width = min_u32(matrix->n - output, KERNEL_ROW_BLOCK);
    y += output;
    for (uint32_t r = 0; r < rows; r++, y += y_stride, acc += KERNEL_ROW_BLOCK) {
        if (width < KERNEL_ROW_BLOCK) {
            for (uint32_t i = 0; i < width; i++)
                y[i] = accumulate ? y[i] + acc[i] : acc[i];
            continue;
        }
        for (uint32_t i = 0; i < KERNEL_ROW_BLOCK; i += VECTOR_LANES) {
            vf value = vf_load(acc + i);
            vf_store(y + i, accumulate ? vf_add(vf_load(y + i), value) : value);
        }
    }
}

static void vector_matmul(const struct repacked_matrix *matrix,
                          const struct activations *activations, uint32_t first_row, uint32_t rows,
                          uint32_t first_block, uint32_t blocks, bool accumulate, float *y,
                          size_t y_stride)
{
    CHECK(activations->k == matrix->k && first_row + rows <= activations->row_count);
    float acc[ROWS_MAX * KERNEL_ROW_BLOCK] __attribute__((aligned(64)));
    bool integer = format_is_quantized(matrix->format);
    const struct integer_tiles *tiles = integer ? integer_tiles_of(matrix->format) : NULL;
    uint32_t last = last_block(matrix, first_block, blocks);
    uint64_t block_bytes = repack_row_block_bytes(matrix->format, matrix->k);
    uint32_t per_chunk = rows_per_chunk(matrix->k);
    for (uint32_t r = 0; r < rows; r += per_chunk) {
        uint32_t count = min_u32(rows - r, per_chunk);
        for (uint32_t g = first_block; g < last; g++) {
            const uint8_t *block = (const uint8_t *)matrix->data + g * block_bytes;
            if (integer)
                integer_row_block(matrix, block, activations, first_row + r, count, acc, tiles);
            else
                float_row_block(matrix, block, activations, first_row + r, count, acc);
            write_row_block(matrix, g, acc, count, accumulate, y + (first_row + r) * y_stride,
                            y_stride);
        }
    }
}

#endif
