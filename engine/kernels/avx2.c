/*
 * Kernels for AVX2, FMA and F16C: eight lanes, sixteen outputs as two vectors.
 *
 * The integer dot products are here; all else is in the vector_*.h bodies. VPMADDUBSW multiplies
 * unsigned weights with signed activations into 16-bit sums of two; how many of those may be added
 * before they must widen depends on the largest weight, so that nothing ever saturates:
 *
 *   weights up to 15: 15·127·2·8 = 30,480: a whole block of 32
 *   weights up to 31: 31·127·2·4 = 31,496: 16 values
 *   weights up to 63: 63·127·2·2 = 32,004: 8 values
 *   signed bytes: |w|·(x with w's sign): 128·127·2 = 32,512: 4 values
 *
 * Built with its own flags; only kernels_select may hand it out.
 */
#include "engine/kernels/vector_avx2.h"

#define PANEL_FLIP 0
#define TILE_ROWS 4u

/* Attention: few rows take 4 vectors at a time, more rows take 2. */
#define ATTENTION_WIDE 4u
#define ATTENTION_FEW 2u
#define ATTENTION_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4)

/* Each uses the ones before it. clang-format would sort them. */
/* clang-format off */
#include "engine/kernels/vector_math.h"
#include "engine/kernels/vector_rows.h"
#include "engine/kernels/vector_matmul.h"
#include "engine/kernels/vector_attention.h"
#include "engine/kernels/vector_members.h"
/* clang-format on */

/* What a format's tile does; constants at every call. */
struct tile_kind {
    bool halves;   /* a scale per 16 values */
    bool minimums; /* weights have minimums */
    int adds;      /* quads whose 16-bit sums may be added; 0: signed weights */
    int offset;    /* what was added to the weights */
};

INLINE __m256i broadcast(const void *from)
{
    int32_t value;
    memcpy(&value, from, sizeof value);
    return _mm256_set1_epi32(value);
}

/* The compiler would put sums off until it runs out of registers for what is to be added. */
#define SUM_NOW(value) __asm__ volatile("" : "+x"(value))

INLINE __m256i load_line(const uint8_t *q, int quad, int side)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(q + quad * 64 + side * 32));
}

/* sums[r] += 16-bit sums of `count` quads from quad `first`. */
INLINE void add_quads(const int rows, const int first, const int count, const uint8_t *q,
                      const struct activation_block *a, size_t stride, int at, __m256i sums[][2])
{
#pragma GCC unroll 8
    for (int j = first; j < first + count; j++) {
        __m256i left = load_line(q, j, 0), right = load_line(q, j, 1);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256i x = broadcast(a[(size_t)r * stride].q + at + 4 * j);
            __m256i l = _mm256_maddubs_epi16(left, x), s = _mm256_maddubs_epi16(right, x);
            sums[r][0] = j == first ? l : _mm256_add_epi16(sums[r][0], l);
            sums[r][1] = j == first ? s : _mm256_add_epi16(sums[r][1], s);
            SUM_NOW(sums[r][0]);
            SUM_NOW(sums[r][1]);
        }
    }
}

INLINE void dot_signed(const int rows, const int quads, const uint8_t *q,
                       const struct activation_block *a, size_t stride, int at, __m256i dots[][2])
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int j = 0; j < quads; j++) {
        __m256i left = load_line(q, j, 0), right = load_line(q, j, 1);
        __m256i left_size = _mm256_abs_epi8(left), right_size = _mm256_abs_epi8(right);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256i x = broadcast(a[(size_t)r * stride].q + at + 4 * j);
            __m256i l = _mm256_maddubs_epi16(left_size, _mm256_sign_epi8(x, left));
            __m256i s = _mm256_maddubs_epi16(right_size, _mm256_sign_epi8(x, right));
            l = _mm256_madd_epi16(l, ones);
            s = _mm256_madd_epi16(s, ones);
            dots[r][0] = j == 0 ? l : _mm256_add_epi32(dots[r][0], l);
            dots[r][1] = j == 0 ? s : _mm256_add_epi32(dots[r][1], s);
            SUM_NOW(dots[r][0]);
            SUM_NOW(dots[r][1]);
        }
    }
}

/* dots[r] = Σ over `quads` quads from q, `at` being the first activation's index. */
INLINE void dot_quads(const int rows, const struct tile_kind kind, const int quads,
                      const uint8_t *q, const struct activation_block *a, size_t stride, int at,
                      __m256i dots[][2])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i minus_offset = _mm256_set1_epi32(-kind.offset & 0xFFFF);
    if (kind.adds == 0) {
        dot_signed(rows, quads, q, a, stride, at, dots);
        return;
    }
#pragma GCC unroll 4
    for (int j = 0; j < quads; j += kind.adds) {
        __m256i sums[TILE_ROWS][2];
        add_quads(rows, j, kind.adds, q, a, stride, at, sums);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            for (int side = 0; side < 2; side++) {
                __m256i wide = _mm256_madd_epi16(sums[r][side], ones);
                dots[r][side] = j == 0 ? wide : _mm256_add_epi32(dots[r][side], wide);
            }
        }
    }
    if (kind.offset) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const struct activation_block *block = a + (size_t)r * stride;
            const int32_t *sum = kind.halves ? &block->half_sum[at / 16] : &block->sum;
            __m256i excess = _mm256_madd_epi16(minus_offset, broadcast(sum));
            dots[r][0] = _mm256_add_epi32(dots[r][0], excess);
            dots[r][1] = _mm256_add_epi32(dots[r][1], excess);
        }
    }
}

/* One block's or half block's share of the chains. The chains stay in acc: registers hold sums. */
INLINE void chain_block(const int rows, const float *scale, const float *minimum,
                        const struct activation_block *a, const float *sum, size_t stride,
                        __m256i dots[][2], float *acc)
{
    const size_t floats = stride * sizeof(struct activation_block) / sizeof *sum;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m256 d = _mm256_set1_ps(a[(size_t)r * stride].d);
        float *chain = acc + r * (int)KERNEL_ROW_GROUP;
#pragma GCC unroll 2
        for (int side = 0; side < 2; side++) {
            __m256 factor = _mm256_mul_ps(_mm256_load_ps(scale + 8 * side), d);
            __m256 value = _mm256_load_ps(chain + 8 * side);
            value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][side]), factor, value);
            if (minimum) {
                __m256 s = _mm256_set1_ps(sum[(size_t)r * floats]);
                value = _mm256_fmadd_ps(_mm256_load_ps(minimum + 8 * side), s, value);
            }
            _mm256_store_ps(chain + 8 * side, value);
        }
    }
}

INLINE void chain_minimum(const int rows, const float *minimum, const float *sum, size_t stride,
                          float *acc)
{
    const size_t floats = stride * sizeof(struct activation_block) / sizeof *sum;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m256 s = _mm256_set1_ps(sum[(size_t)r * floats]);
        for (int side = 0; side < 2; side++) {
            float *chain = acc + r * (int)KERNEL_ROW_GROUP + 8 * side;
            __m256 m = _mm256_load_ps(minimum + 8 * side);
            _mm256_store_ps(chain, _mm256_fmadd_ps(m, s, _mm256_load_ps(chain)));
        }
    }
}

INLINE void tile(const int rows, const struct tile_kind kind, const struct panel *panel,
                 uint32_t blocks, const struct activation_block *a, size_t stride, float *acc)
{
    __m256i dots[TILE_ROWS][2];
    const uint8_t *ahead = panel->ahead;
    const uint32_t ahead_lines = panel->ahead_lines;
    for (uint32_t b = 0; b < blocks; b++, a++) {
        const uint8_t *q = panel->q + b * 8 * LINE_BYTES;
        ahead = prefetch_ahead(ahead, ahead_lines);
        if (!kind.halves) {
            const float *minimum = kind.minimums ? panel->minimum[b] : NULL;
            dot_quads(rows, kind, 8, q, a, stride, 0, dots);
            chain_block(rows, panel->scale[b], minimum, a, &a->sum_scaled, stride, dots, acc);
            continue;
        }
        dot_quads(rows, kind, 4, q, a, stride, 0, dots);
        chain_block(rows, panel->scale[2 * b], NULL, a, NULL, stride, dots, acc);
        dot_quads(rows, kind, 4, q + 4 * LINE_BYTES, a, stride, 16, dots);
        chain_block(rows, panel->scale[2 * b + 1], NULL, a, NULL, stride, dots, acc);
        if (kind.minimums) {
            chain_minimum(rows, panel->minimum[2 * b], &a->half_sum_scaled[0], stride, acc);
            chain_minimum(rows, panel->minimum[2 * b + 1], &a->half_sum_scaled[1], stride, acc);
        }
    }
}

#define INTEGER_TILE(name, rows, ...)                                                              \
    static void name##_##rows(const struct panel *panel, uint32_t blocks,                          \
                              const struct activation_block *a, size_t stride, float *acc)         \
    {                                                                                              \
        tile(rows, (struct tile_kind){__VA_ARGS__}, panel, blocks, a, stride, acc);                \
    }
#define INTEGER_PLAN(name, ...)                                                                    \
    INTEGER_TILE(name, 1, __VA_ARGS__)                                                             \
    INTEGER_TILE(name, 2, __VA_ARGS__)                                                             \
    INTEGER_TILE(name, 3, __VA_ARGS__)                                                             \
    INTEGER_TILE(name, 4, __VA_ARGS__)                                                             \
    static const struct integer_plan name = {{NULL, name##_1, name##_2, name##_3, name##_4}};

INTEGER_PLAN(PLAN_4_MINIMUM, .adds = 8, .minimums = true)
INTEGER_PLAN(PLAN_4_OFFSET, .adds = 8, .offset = 8)
INTEGER_PLAN(PLAN_5_MINIMUM, .adds = 4, .minimums = true)
INTEGER_PLAN(PLAN_5_OFFSET, .adds = 4, .offset = 16)
INTEGER_PLAN(PLAN_SIGNED, .adds = 0)
INTEGER_PLAN(PLAN_HALVES_2, .halves = true, .adds = 4, .minimums = true)
INTEGER_PLAN(PLAN_HALVES_3, .halves = true, .adds = 4, .offset = 4)
INTEGER_PLAN(PLAN_HALVES_6, .halves = true, .adds = 2, .offset = 32)

static const struct integer_plan *integer_plan_of(enum tensor_format format)
{
    static const struct integer_plan *const PLANS[FORMAT_LIMIT] = {
        [FORMAT_Q4_0] = &PLAN_4_OFFSET,  [FORMAT_Q4_1] = &PLAN_4_MINIMUM,
        [FORMAT_Q5_0] = &PLAN_5_OFFSET,  [FORMAT_Q5_1] = &PLAN_5_MINIMUM,
        [FORMAT_Q8_0] = &PLAN_SIGNED,    [FORMAT_Q2_K] = &PLAN_HALVES_2,
        [FORMAT_Q3_K] = &PLAN_HALVES_3,  [FORMAT_Q4_K] = &PLAN_4_MINIMUM,
        [FORMAT_Q5_K] = &PLAN_5_MINIMUM, [FORMAT_Q6_K] = &PLAN_HALVES_6,
        [FORMAT_IQ4_NL] = &PLAN_SIGNED,  [FORMAT_IQ4_XS] = &PLAN_SIGNED,
    };
    CHECK(PLANS[format] != NULL);
    return PLANS[format];
}

enum float_kind { KIND_F32, KIND_F16, KIND_BF16 };

INLINE void tile_float(const int rows, const enum float_kind kind, const void *weights,
                       uint32_t columns, const float *x, size_t stride, float *acc)
{
    __m256 chain[TILE_ROWS][2];
    const uint16_t *halves = weights;
    const float *floats = weights;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        chain[r][0] = _mm256_load_ps(acc + r * (int)KERNEL_ROW_GROUP);
        chain[r][1] = _mm256_load_ps(acc + r * (int)KERNEL_ROW_GROUP + 8);
    }
    for (size_t i = 0; i < columns; i++) {
        __m256 w[2];
#pragma GCC unroll 2
        for (size_t side = 0; side < 2; side++) {
            size_t at = i * KERNEL_ROW_GROUP + side * 8;
            w[side] = kind == KIND_F32   ? vf_load(floats + at)
                      : kind == KIND_F16 ? vf_load_f16(halves + at)
                                         : vf_load_bf16(halves + at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256 value = _mm256_set1_ps(x[(size_t)r * stride + i]);
            chain[r][0] = _mm256_fmadd_ps(w[0], value, chain[r][0]);
            chain[r][1] = _mm256_fmadd_ps(w[1], value, chain[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        _mm256_store_ps(acc + r * (int)KERNEL_ROW_GROUP, chain[r][0]);
        _mm256_store_ps(acc + r * (int)KERNEL_ROW_GROUP + 8, chain[r][1]);
    }
}

#define FLOAT_TILE(name, rows)                                                                     \
    static void name##_##rows(const void *weights, uint32_t columns, const float *x,               \
                              size_t stride, float *acc)                                           \
    {                                                                                              \
        tile_float(rows, name, weights, columns, x, stride, acc);                                  \
    }
#define FLOAT_PLAN(name)                                                                           \
    FLOAT_TILE(name, 1)                                                                            \
    FLOAT_TILE(name, 2)                                                                            \
    FLOAT_TILE(name, 3)                                                                            \
    FLOAT_TILE(name, 4)                                                                            \
    static const struct float_plan PLAN_##name = {{NULL, name##_1, name##_2, name##_3, name##_4}};

FLOAT_PLAN(KIND_F32)
FLOAT_PLAN(KIND_F16)
FLOAT_PLAN(KIND_BF16)

static const struct float_plan *float_plan_of(enum tensor_format format)
{
    return format == FORMAT_F32   ? &PLAN_KIND_F32
           : format == FORMAT_F16 ? &PLAN_KIND_F16
                                  : &PLAN_KIND_BF16;
}

const struct kernels AVX2_KERNELS = {.name = "avx2", .matmul = vector_matmul, VECTOR_MEMBERS};
