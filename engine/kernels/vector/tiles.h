/*
 * Which tiles a format has: tile and tile_float, compiled for each kind and number of rows.
 *
 * A tile adds one panel's share to acc [rows][16], each output's chain continuing from acc. So
 * nothing about tiles, chunks or the number of rows can show in a result.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_TILES_H
#define QUIRE_ENGINE_KERNELS_VECTOR_TILES_H

#include "base/check.h"
#include "engine/kernels/vector/lanes.h"

#if VECTOR_LANES == 16
#include "engine/kernels/vector/tiles_16.h"
#else
#include "engine/kernels/vector/tiles_8.h"
#endif

/* `blocks` blocks; rows are `stride` blocks apart. */
typedef void integer_tile(const struct panel *panel, uint32_t blocks,
                          const struct activation_block *a, size_t stride, float *acc);

/* `columns` columns [column][16] of weights; rows of x are `stride` floats apart. */
typedef void float_tile(const void *weights, uint32_t columns, const float *x, size_t stride,
                        float *acc);

/* By number of rows, 1 … TILE_ROWS. */
struct integer_tiles {
    struct tile_kind kind;
    integer_tile *of_rows[TILE_ROWS + 1];
};
struct float_tiles {
    float_tile *of_rows[TILE_ROWS + 1];
};

#define TILE_ENTRY(rows, name) [rows] = name##_##rows,

#define INTEGER_TILE(rows, name, ...)                                                              \
    static void name##_##rows(const struct panel *panel, uint32_t blocks,                          \
                              const struct activation_block *a, size_t stride, float *acc)         \
    {                                                                                              \
        tile(rows, (struct tile_kind){__VA_ARGS__}, panel, blocks, a, stride, acc);                \
    }
#define INTEGER_TILES(name, ...)                                                                   \
    EACH_TILE_ROWS(INTEGER_TILE, name, __VA_ARGS__)                                                \
    static const struct integer_tiles name = {{__VA_ARGS__}, {EACH_TILE_ROWS(TILE_ENTRY, name)}};

INTEGER_TILES(TILES_SIGNED, .weights = PANEL_BYTES)
INTEGER_TILES(TILES_MIN, .weights = PANEL_BYTES, .has_min = true)
INTEGER_TILES(TILES_SUB_SIGNED, .weights = PANEL_BYTES, .sub_blocks = true)
INTEGER_TILES(TILES_SUB_MIN, .weights = PANEL_BYTES, .sub_blocks = true, .has_min = true)
INTEGER_TILES(TILES_NIBBLES_ZERO, .weights = PANEL_NIBBLES, .zero = 8)
INTEGER_TILES(TILES_NIBBLES_MIN, .weights = PANEL_NIBBLES, .has_min = true)
INTEGER_TILES(TILES_PAIRS_MIN, .weights = PANEL_PAIRS, .has_min = true)

static const struct integer_tiles *integer_tiles_of(enum tensor_format format)
{
    static const struct integer_tiles *const ALL[] = {
        &TILES_SIGNED,       &TILES_MIN,         &TILES_SUB_SIGNED, &TILES_SUB_MIN,
        &TILES_NIBBLES_ZERO, &TILES_NIBBLES_MIN, &TILES_PAIRS_MIN};
    const struct tile_kind kind = tile_kind_of(format);
    for (size_t i = 0; i < sizeof ALL / sizeof ALL[0]; i++) {
        const struct tile_kind *of = &ALL[i]->kind;
        if (of->weights == kind.weights && of->sub_blocks == kind.sub_blocks &&
            of->has_min == kind.has_min && of->zero == kind.zero)
            return ALL[i];
    }
    CHECK(false); /* a format of a new kind has a line above */
}

#define FLOAT_TILE(rows, name)                                                                     \
    static void name##_##rows(const void *weights, uint32_t columns, const float *x,               \
                              size_t stride, float *acc)                                           \
    {                                                                                              \
        tile_float(rows, FORMAT_##name, weights, columns, x, stride, acc);                         \
    }
EACH_TILE_ROWS(FLOAT_TILE, F32)
EACH_TILE_ROWS(FLOAT_TILE, F16)
EACH_TILE_ROWS(FLOAT_TILE, BF16)

static const struct float_tiles *float_tiles_of(enum tensor_format format)
{
    static const struct float_tiles TILES[FORMAT_LIMIT] = {
        [FORMAT_F32] = {{EACH_TILE_ROWS(TILE_ENTRY, F32)}},
        [FORMAT_F16] = {{EACH_TILE_ROWS(TILE_ENTRY, F16)}},
        [FORMAT_BF16] = {{EACH_TILE_ROWS(TILE_ENTRY, BF16)}},
    };
    return &TILES[format];
}

#endif
