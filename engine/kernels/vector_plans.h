/*
 * Which tiles a format has: tile and tile_float, made for each number of rows. Included behind
 * them.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_PLANS_H
#define QUIRE_ENGINE_KERNELS_VECTOR_PLANS_H

/* One tile of each number of rows, and their names. */
#if TILE_ROWS == 8
#define EACH_TILE(TILE, ...)                                                                       \
    TILE(1, __VA_ARGS__)                                                                           \
    TILE(2, __VA_ARGS__)                                                                           \
    TILE(3, __VA_ARGS__)                                                                           \
    TILE(4, __VA_ARGS__)                                                                           \
    TILE(5, __VA_ARGS__)                                                                           \
    TILE(6, __VA_ARGS__)                                                                           \
    TILE(7, __VA_ARGS__)                                                                           \
    TILE(8, __VA_ARGS__)
#define TILE_NAMES(name)                                                                           \
    NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8
#else
_Static_assert(TILE_ROWS == 4, "tiles of 1 to 4 or to 8 rows");
#define EACH_TILE(TILE, ...)                                                                       \
    TILE(1, __VA_ARGS__)                                                                           \
    TILE(2, __VA_ARGS__)                                                                           \
    TILE(3, __VA_ARGS__)                                                                           \
    TILE(4, __VA_ARGS__)
#define TILE_NAMES(name) NULL, name##_1, name##_2, name##_3, name##_4
#endif

#define INTEGER_TILE(rows, name, ...)                                                              \
    static void name##_##rows(const struct panel *panel, uint32_t blocks,                          \
                              const struct activation_block *a, size_t stride, float *acc)         \
    {                                                                                              \
        tile(rows, (struct tile_kind){__VA_ARGS__}, panel, blocks, a, stride, acc);                \
    }
#define INTEGER_PLAN(name, ...)                                                                    \
    EACH_TILE(INTEGER_TILE, name, __VA_ARGS__)                                                     \
    static const struct integer_plan name = {{TILE_NAMES(name)}};

INTEGER_PLAN(PLAN_SIGNED, .weights = PANEL_BYTES)
INTEGER_PLAN(PLAN_MINIMUM, .weights = PANEL_BYTES, .minimums = true)
INTEGER_PLAN(PLAN_HALVES_SIGNED, .weights = PANEL_BYTES, .halves = true)
INTEGER_PLAN(PLAN_HALVES_MINIMUM, .weights = PANEL_BYTES, .halves = true, .minimums = true)
INTEGER_PLAN(PLAN_NIBBLES_OFFSET, .weights = PANEL_NIBBLES, .offset = 8)
INTEGER_PLAN(PLAN_NIBBLES_MINIMUM, .weights = PANEL_NIBBLES, .minimums = true)
INTEGER_PLAN(PLAN_PAIRS_MINIMUM, .weights = PANEL_PAIRS, .minimums = true)

static const struct integer_plan *integer_plan_of(enum tensor_format format)
{
    static const struct integer_plan *const PLANS[FORMAT_LIMIT] = {
        [FORMAT_Q4_0] = &PLAN_NIBBLES_OFFSET, [FORMAT_Q4_1] = &PLAN_NIBBLES_MINIMUM,
        [FORMAT_Q5_0] = &PLAN_SIGNED,         [FORMAT_Q5_1] = &PLAN_MINIMUM,
        [FORMAT_Q8_0] = &PLAN_SIGNED,         [FORMAT_Q2_K] = &PLAN_HALVES_MINIMUM,
        [FORMAT_Q3_K] = &PLAN_HALVES_SIGNED,  [FORMAT_Q4_K] = &PLAN_PAIRS_MINIMUM,
        [FORMAT_Q5_K] = &PLAN_MINIMUM,        [FORMAT_Q6_K] = &PLAN_HALVES_SIGNED,
        [FORMAT_IQ4_NL] = &PLAN_SIGNED,       [FORMAT_IQ4_XS] = &PLAN_SIGNED,
    };
    CHECK(PLANS[format] != NULL);
    return PLANS[format];
}

#define FLOAT_TILE(rows, name)                                                                     \
    static void name##_##rows(const void *weights, uint32_t columns, const float *x,               \
                              size_t stride, float *acc)                                           \
    {                                                                                              \
        tile_float(rows, name, weights, columns, x, stride, acc);                                  \
    }
#define FLOAT_PLAN(name)                                                                           \
    EACH_TILE(FLOAT_TILE, name)                                                                    \
    static const struct float_plan PLAN_##name = {{TILE_NAMES(name)}};

FLOAT_PLAN(KIND_F32)
FLOAT_PLAN(KIND_F16)
FLOAT_PLAN(KIND_BF16)

static const struct float_plan *float_plan_of(enum tensor_format format)
{
    return format == FORMAT_F32   ? &PLAN_KIND_F32
           : format == FORMAT_F16 ? &PLAN_KIND_F16
                                  : &PLAN_KIND_BF16;
}

#endif
