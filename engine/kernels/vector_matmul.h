/*
 * The loops around the dot products: rows in chunks that stay in the second-level cache, groups of
 * 16 outputs, panels of 256 columns, tiles of a few rows. Bodies for any number of lanes.
 *
 * The including file gives TILE_ROWS and, for every format, integer_tile and float_tile functions
 * that add one panel's share to acc [rows][16], each output's chain continuing from acc. So nothing
 * about tiles, chunks or the number of rows can show in a result.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_MATMUL_H
#define QUIRE_ENGINE_KERNELS_VECTOR_MATMUL_H

#include "base/check.h"
#include "engine/kernels/block.h"
#include "engine/kernels/vector_panel.h"

#define ROWS_MAX 128u
#define ROWS_MIN 64u
#define CACHE_BYTES (256u * 1024u)
#define FLOAT_COLUMNS 256u

/* rows rows of blocks, `stride` blocks apart. */
typedef void integer_tile(const struct panel *panel, uint32_t blocks,
                          const struct activation_block *a, size_t stride, float *acc);

/* columns columns [column][16] of weights; rows of x are `stride` floats apart. */
typedef void float_tile(const void *weights, uint32_t columns, const float *x, size_t stride,
                        float *acc);

/* How a format's tiles are found: by row count, 1 … TILE_ROWS. */
struct integer_plan {
    integer_tile *tiles[TILE_ROWS + 1];
};
struct float_plan {
    float_tile *tiles[TILE_ROWS + 1];
};

/* What a format's tile does; constants at every call. */
struct tile_kind {
    enum panel_weights weights;
    bool halves;   /* a scale per 16 values */
    bool minimums; /* weights have minimums and are not negative */
    int offset;    /* of nibbles */
};

enum float_kind { KIND_F32, KIND_F16, KIND_BF16 };

static const struct integer_plan *integer_plan_of(enum tensor_format format);
static const struct float_plan *float_plan_of(enum tensor_format format);

/* Rows per chunk: their activations take about CACHE_BYTES. */
static uint32_t rows_per_chunk(uint32_t k)
{
    uint64_t row_bytes = activation_stride(k) * sizeof(struct activation_block);
    uint32_t rows = (uint32_t)(CACHE_BYTES / row_bytes) / TILE_ROWS * TILE_ROWS;
    return rows < ROWS_MIN ? ROWS_MIN : rows > ROWS_MAX ? ROWS_MAX : rows;
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
    for (uint32_t i = 0; i < count; i += KERNEL_ROW_GROUP) {
        for (uint32_t j = 0; j < KERNEL_ROW_GROUP; j += VECTOR_LANES) {
            vf_store(acc + i + j, vf_set1(0.0f));
            __asm__ volatile("" : : : "memory"); /* or the compiler makes it a memset */
        }
    }
}

/* What each of a chunk's steps prefetches: `lines` lines, the first `skip` bytes behind the chunk's
   end. Measured on Zen 4; results do not depend on it.
   Tiles that read the chunk itself ask for all of the next one, with nibbles from half a chunk
   further on. Where panels are read first, reading takes steps too; with one or two rows of IQ4,
   whose panels are read from one end to the other, the hardware does better alone. */
struct ahead {
    uint64_t skip;
    uint32_t lines;
};
static struct ahead ahead_of(enum tensor_format format, uint64_t chunk_bytes, uint32_t rows)
{
    const uint64_t step_bytes = PANEL_BLOCKS * LINE_BYTES;
    switch (format) {
    case FORMAT_Q8_0:
        return (struct ahead){0, (uint32_t)(chunk_bytes / step_bytes)};
    case FORMAT_Q4_0:
    case FORMAT_Q4_1:
    case FORMAT_Q4_K:
        return (struct ahead){chunk_bytes / 2, (uint32_t)((chunk_bytes - 1) / step_bytes + 1)};
    case FORMAT_IQ4_NL:
    case FORMAT_IQ4_XS:
        return (struct ahead){0,
                              rows <= 2 ? 0 : (uint32_t)((chunk_bytes - 1) / step_bytes / 2 + 1)};
    default:
        return (struct ahead){0, (uint32_t)((chunk_bytes - 1) / step_bytes / 2 + 1)};
    }
}

/* acc [rows][16] of one group; `first` is a row of the activations. */
static void integer_group(const struct packed_matrix *matrix, const uint8_t *group,
                          const struct activations *activations, uint32_t first, uint32_t rows,
                          float *acc)
{
    struct panel panel;
    const struct integer_plan *plan = integer_plan_of(matrix->format);
    panel_read *read = PANEL_READ[matrix->format];
    uint64_t chunk_bytes = interleave_chunk_bytes(matrix->format);
    struct ahead ahead = ahead_of(matrix->format, chunk_bytes, rows);
    size_t stride = activation_stride(matrix->k);
    const struct activation_block *a = activations->quantized;
    a += first * stride;
    clear(acc, rows * KERNEL_ROW_GROUP);
    for (uint32_t left = matrix->k / BLOCK_VALUES; left > 0;) {
        uint32_t blocks = left < PANEL_BLOCKS ? left : PANEL_BLOCKS;
        panel.ahead = group + chunk_bytes + ahead.skip;
        panel.ahead_lines = ahead.lines;
        read(group, blocks, &panel);
        group += chunk_bytes;
        for (uint32_t r = 0; r < rows;) {
            uint32_t tile = next_tile(rows - r);
            plan->tiles[tile](&panel, blocks, a + r * stride, stride, acc + r * KERNEL_ROW_GROUP);
            panel.ahead_lines = 0;
            r += tile;
        }
        a += blocks;
        left -= blocks;
    }
}

static void float_group(const struct packed_matrix *matrix, const uint8_t *group,
                        const struct activations *activations, uint32_t first, uint32_t rows,
                        float *acc)
{
    const struct float_plan *plan = float_plan_of(matrix->format);
    uint64_t column_bytes = (uint64_t)KERNEL_ROW_GROUP * format_info(matrix->format)->block_bytes;
    const float *x = activations->x + (size_t)first * matrix->k;
    clear(acc, rows * KERNEL_ROW_GROUP);
    for (uint32_t k = 0; k < matrix->k; k += FLOAT_COLUMNS) {
        uint32_t columns = matrix->k - k < FLOAT_COLUMNS ? matrix->k - k : FLOAT_COLUMNS;
        for (uint32_t r = 0; r < rows;) {
            uint32_t tile = next_tile(rows - r);
            plan->tiles[tile](group + k * column_bytes, columns, x + (size_t)r * matrix->k + k,
                              matrix->k, acc + r * KERNEL_ROW_GROUP);
            r += tile;
        }
    }
}

/* Where the groups from `first` end: behind `count` of them or with the matrix. */
static uint32_t last_group(const struct packed_matrix *matrix, uint32_t first, uint32_t count)
{
    uint32_t all = (matrix->n + KERNEL_ROW_GROUP - 1) / KERNEL_ROW_GROUP;
    return first + count < all ? first + count : all;
}

/* acc [rows][16] to the outputs of group g in y, whose rows are `y_stride` floats apart. */
static void write_group(const struct packed_matrix *matrix, uint32_t g, const float *acc,
                        uint32_t rows, bool accumulate, float *y, size_t y_stride)
{
    uint32_t output = g * KERNEL_ROW_GROUP;
    uint32_t width = matrix->n - output < KERNEL_ROW_GROUP ? matrix->n - output : KERNEL_ROW_GROUP;
    y += output;
    for (uint32_t r = 0; r < rows; r++, y += y_stride, acc += KERNEL_ROW_GROUP) {
        if (width < KERNEL_ROW_GROUP) {
            for (uint32_t i = 0; i < width; i++) {
                y[i] = accumulate ? y[i] + acc[i] : acc[i];
            }
            continue;
        }
        for (uint32_t i = 0; i < KERNEL_ROW_GROUP; i += VECTOR_LANES) {
            vf value = vf_load(acc + i);
            vf_store(y + i, accumulate ? vf_add(vf_load(y + i), value) : value);
        }
    }
}

static void vector_matmul(const struct packed_matrix *matrix, const struct activations *activations,
                          uint32_t first_row, uint32_t rows, uint32_t first_group, uint32_t groups,
                          bool accumulate, float *y, size_t y_stride)
{
    CHECK(activations->k == matrix->k && first_row + rows <= activations->row_count);
    float acc[ROWS_MAX * KERNEL_ROW_GROUP] __attribute__((aligned(64)));
    bool integer = block_shape(matrix->format) != NULL;
    uint32_t last = last_group(matrix, first_group, groups);
    uint64_t group_bytes = interleave_group_bytes(matrix->format, matrix->k);
    uint32_t per_chunk = rows_per_chunk(matrix->k);
    for (uint32_t r = 0; r < rows; r += per_chunk) {
        uint32_t count = rows - r < per_chunk ? rows - r : per_chunk;
        for (uint32_t g = first_group; g < last; g++) {
            const uint8_t *group = (const uint8_t *)matrix->data + g * group_bytes;
            if (integer) {
                integer_group(matrix, group, activations, first_row + r, count, acc);
            } else {
                float_group(matrix, group, activations, first_row + r, count, acc);
            }
            write_group(matrix, g, acc, count, accumulate, y + (first_row + r) * y_stride,
                        y_stride);
        }
    }
}

#endif
