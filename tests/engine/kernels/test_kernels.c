/*
 * Every kernel of every set that this CPU runs against the scalar specification, bit for bit.
 *
 * Inputs are random with zeros, subnormals, huge scales, infinities and NaN among them. Two NaNs
 * count as equal whatever their payload; everything else must have the same bits.
 */
#include "base/error.h"
#include "tests/engine/kernels/inputs.h"
#include "tests/engine/kernels/sets.h"

#include <stdio.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROWS_STEP 4u /* the release build goes through all */
#else
#define ROWS_STEP 1u
#endif

static const struct kernels *scalar;

static void assert_same(const float *expected, const float *got, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t a, b;
        memcpy(&a, &expected[i], 4);
        memcpy(&b, &got[i], 4);
        if (a != b && !(isnan(expected[i]) && isnan(got[i]))) {
            ck_abort_msg("%s: at %zu expected %.9g (%08x), got %.9g (%08x)", what, i,
                         (double)expected[i], a, (double)got[i], b);
        }
    }
}

struct problem {
    enum tensor_format format;
    uint32_t n, k, rows;
    enum spice spice;
    bool accumulate;
};

struct matmul_inputs {
    uint8_t *weights;
    float *x;
    float *y; /* what is there before */
};

static struct repacked_matrix pack(const struct kernels *kernels, const struct problem *problem,
                                   const uint8_t *weights)
{
    struct repacked_matrix matrix = {problem->format, problem->n, problem->k, NULL};
    uint64_t bytes = kernels->repacked_bytes(problem->format, problem->n, problem->k);
    ck_assert_uint_gt(bytes, 0);
    matrix.data = allocate(bytes);
    uint64_t row_bytes = format_row_bytes(problem->format, problem->k);
    for (uint32_t first = 0; first < problem->n;) { /* in pieces of 16 and 32 rows */
        uint32_t count = 16 + random_u32() % 2 * 16;
        count = count < problem->n - first ? count : problem->n - first;
        kernels->repack(&matrix, first, count, weights + first * row_bytes);
        first += count;
    }
    return matrix;
}

static struct activations quantize(const struct kernels *kernels, const struct problem *problem,
                                   const float *x)
{
    struct activations activations = {problem->rows, problem->k, x, NULL};
    activations.quantized = allocate(kernels->quantized_row_bytes(problem->k) * problem->rows);
    uint32_t middle = problem->rows / 2;
    kernels->quantize(&activations, 0, middle);
    kernels->quantize(&activations, middle, problem->rows - middle);
    return activations;
}

/* y of a whole product; the matrix is given in `pieces` ranges of groups, the rows in two; one by
   one for the last range of several. */
static float *multiply(const struct kernels *kernels, const struct problem *problem,
                       const struct matmul_inputs *inputs, uint32_t pieces)
{
    struct repacked_matrix matrix = pack(kernels, problem, inputs->weights);
    struct activations activations = quantize(kernels, problem, inputs->x);
    size_t stride = problem->n + 3;
    float *y = allocate(problem->rows * stride * sizeof *y);
    memcpy(y, inputs->y, problem->rows * stride * sizeof *y);
    uint32_t groups = (problem->n + KERNEL_ROW_BLOCK - 1) / KERNEL_ROW_BLOCK;
    uint32_t row_split = pieces > 1 ? problem->rows / 3 : 0;
    for (uint32_t piece = 0; piece < pieces; piece++) {
        uint32_t first = groups * piece / pieces, last = groups * (piece + 1) / pieces;
        for (uint32_t r = 0; piece > 0 && piece + 1 == pieces && r < problem->rows; r++) {
            kernels->matmul(&matrix, &activations, r, 1, first, last - first, problem->accumulate,
                            y, stride);
        }
        if (piece > 0 && piece + 1 == pieces)
            break;
        kernels->matmul(&matrix, &activations, 0, row_split, first, last - first,
                        problem->accumulate, y, stride);
        kernels->matmul(&matrix, &activations, row_split, problem->rows - row_split, first,
                        last - first, problem->accumulate, y, stride);
    }
    free(matrix.data);
    free(activations.quantized);
    return y;
}

static void check_matmul(const struct problem *problem)
{
    struct matmul_inputs inputs;
    size_t stride = problem->n + 3, outputs = problem->rows * stride;
    inputs.weights = allocate(problem->n * format_row_bytes(problem->format, problem->k));
    inputs.x = allocate((size_t)problem->rows * problem->k * sizeof(float));
    inputs.y = allocate(outputs * sizeof(float));
    fill_weights(inputs.weights, problem->format, problem->n, problem->k, problem->spice);
    fill_floats(inputs.x, (size_t)problem->rows * problem->k, problem->spice);
    fill_floats(inputs.y, outputs, PLAIN);
    float *expected = multiply(scalar, problem, &inputs, 1);
    char what[160];
    for (const struct kernels *const *at = sets_tested(); *at; at++) {
        for (uint32_t pieces = 1; pieces <= 3; pieces += 2) {
            snprintf(what, sizeof what, "%s %s n=%u k=%u rows=%u spice=%d pieces=%u", (*at)->name,
                     format_info(problem->format)->name, problem->n, problem->k, problem->rows,
                     problem->spice, pieces);
            float *got = multiply(*at, problem, &inputs, pieces);
            assert_same(expected, got, outputs, what);
            free(got);
        }
    }
    /* Only columns < n were written. */
    for (uint32_t r = 0; r < problem->rows; r++) {
        ck_assert(memcmp(expected + r * stride + problem->n, inputs.y + r * stride + problem->n,
                         3 * sizeof(float)) == 0);
    }
    free(expected);
    free(inputs.weights);
    free(inputs.x);
    free(inputs.y);
}

START_TEST(matmul_equals_the_specification)
{
    static const uint32_t KS[] = {32, 64, 96, 256, 576, 1536};
    for (size_t i = 0; i < sizeof KS / sizeof KS[0]; i++) {
        for (int spice = 0; spice < SPICE_COUNT; spice++) {
            struct problem problem = {.format = FORMATS[_i], .k = KS[i], .spice = spice};
            if (problem.k % format_info(problem.format)->block_size)
                continue;
            static const uint32_t NS[] = {8, 17, 24, 49, 64};
            problem.n = NS[random_u32() % 5];
            problem.rows = 1 + random_u32() % 9;
            problem.accumulate = random_u32() % 2;
            check_matmul(&problem);
        }
    }
    check_matmul(&(struct problem){FORMATS[_i], 17, 4864, 5, WILD, false});
    check_matmul(&(struct problem){FORMATS[_i], 16, 256, 1, WILD, true});
    check_matmul(&(struct problem){FORMATS[_i], 16, 16896, 2, WILD, false}); /* very long rows */
}
END_TEST

START_TEST(any_number_of_rows_gives_the_same)
{
    for (uint32_t rows = 1; rows <= 17; rows += ROWS_STEP)
        check_matmul(&(struct problem){FORMATS[_i], 33, 512, rows, PLAIN, rows % 2 == 0});
    check_matmul(&(struct problem){FORMATS[_i], 24, 256, 33, PLAIN, false});
    check_matmul(&(struct problem){FORMATS[_i], 16, 256, 131, PLAIN, false});
    check_matmul(&(struct problem){FORMATS[_i], 16, 2304, 67, PLAIN, true});
}
END_TEST

START_TEST(float_columns_need_not_be_a_multiple_of_32)
{
    for (int f = 0; f < 3; f++) {
        check_matmul(&(struct problem){FORMATS[f], 17, 24, 5, WILD, false});
        check_matmul(&(struct problem){FORMATS[f], 24, 7, 9, PLAIN, true});
    }
}
END_TEST

START_TEST(a_vocabulary_is_not_too_wide)
{
    check_matmul(&(struct problem){FORMAT_Q8_0, 49153, 64, 2, PLAIN, false});
    check_matmul(&(struct problem){FORMAT_Q4_1, 49153, 32, 1, PLAIN, false});
}
END_TEST

/* The largest sums there can be: nothing saturates, and float conversion stays exact. */
START_TEST(extreme_integers_do_not_saturate)
{
    const struct format_info *info = format_info(FORMATS[_i]);
    struct problem problem = {FORMATS[_i], 16, 256, 5, PLAIN, false};
    struct matmul_inputs inputs;
    uint64_t bytes = problem.n * format_row_bytes(problem.format, problem.k);
    inputs.weights = allocate(bytes);
    inputs.x = allocate(problem.rows * problem.k * sizeof(float));
    inputs.y = allocate(problem.rows * (problem.n + 3) * sizeof(float));
    for (int fill = 0; fill < 4; fill++) {
        static const uint8_t BYTES[] = {0xFF, 0x00, 0x80, 0x7F};
        fill_weights(inputs.weights, problem.format, problem.n, problem.k, PLAIN);
        uint8_t *copy = allocate(bytes);
        memcpy(copy, inputs.weights, bytes);
        memset(inputs.weights, BYTES[fill], bytes);
        const struct format_row *row = &FORMAT_TABLE[problem.format];
        for (uint64_t at = 0; format_is_quantized(problem.format) && at < bytes;
             at += info->block_bytes) { /* the scales stay */
            for (int f = FIELD_D; f <= (row->has_min ? FIELD_MIN : FIELD_D); f++) {
                uint64_t scale = at + row->fields[f].at;
                memcpy(inputs.weights + scale, copy + scale, row->fields[f].width);
            }
        }
        for (uint32_t i = 0; i < problem.rows * problem.k; i++)
            inputs.x[i] = i / problem.k == 0 ? 1.0f : i / problem.k == 1 ? -1.0f : i % 2 ? 2 : -2;
        memset(inputs.y, 0, problem.rows * (problem.n + 3) * sizeof(float));
        float *expected = multiply(scalar, &problem, &inputs, 1);
        for (const struct kernels *const *at = sets_tested(); *at; at++) {
            for (uint32_t pieces = 1; pieces <= 3; pieces += 2) {
                float *got = multiply(*at, &problem, &inputs, pieces);
                assert_same(expected, got, problem.rows * (problem.n + 3), info->name);
                free(got);
            }
        }
        free(expected);
        free(copy);
    }
    free(inputs.weights);
    free(inputs.x);
    free(inputs.y);
}
END_TEST

START_TEST(repacking_is_lossless_and_small)
{
    enum tensor_format format = FORMATS[_i];
    struct problem problem = {.format = format, .n = 70, .k = 768, .spice = WILD};
    uint64_t bytes = problem.n * format_row_bytes(format, problem.k);
    uint8_t *weights = allocate(bytes);
    float *expected = allocate(problem.k * sizeof(float)), *got = allocate(problem.k * 4);
    fill_weights(weights, format, problem.n, problem.k, problem.spice);
    for (const struct kernels *const *at = sets_tested(); *at; at++) {
        struct repacked_matrix matrix = pack(*at, &problem, weights);
        for (uint32_t row = 0; row < problem.n; row++) {
            block_dequantize(format, weights + row * format_row_bytes(format, problem.k), problem.k,
                             expected);
            (*at)->dequantize_row(&matrix, row, got);
            assert_same(expected, got, problem.k, (*at)->name);
        }
        free(matrix.data);
        uint64_t file = 49152 * format_row_bytes(format, 1536);
        ck_assert_uint_le((*at)->repacked_bytes(format, 49152, 1536) * 100, file * 102);
        ck_assert_uint_eq((*at)->repacked_bytes((enum tensor_format)10000, 16, 256), 0);
        if (format_is_quantized(format))
            ck_assert_uint_eq((*at)->repacked_bytes(format, 16, 16), 0);
    }
    free(weights);
    free(expected);
    free(got);
}
END_TEST

/* Value i of a block as a set stores it. */
static int32_t quantized_value(const struct kernels *kernels, const struct activation_block *block,
                               uint32_t i)
{
    if (strcmp(kernels->name, "neon") == 0 || strcmp(kernels->name, "dotprod") == 0) {
        const int8_t *eight = (const int8_t *)(block->q + i / 8 * 8); /* high parts, low parts */
        ck_assert(eight[8 + i % 8] >= 0);
        return 128 * eight[i % 8] + eight[8 + i % 8];
    }
    return block->q[activation_place(i)];
}

START_TEST(quantized_rows_have_the_same_bits)
{
    static const uint32_t KS[] = {1, 24, 32, 576, 1000};
    for (int round = 0; round < 60; round++) {
        struct problem problem = {FORMAT_Q4_1, 16, KS[round % 5], 4, round % SPICE_COUNT, false};
        float *x = allocate(problem.rows * problem.k * sizeof *x);
        fill_floats(x, problem.rows * problem.k, problem.spice);
        struct activations expected = quantize(scalar, &problem, x);
        const struct activation_block *a = expected.quantized;
        size_t blocks = activation_stride(problem.k);
        for (const struct kernels *const *at = sets_tested(); *at; at++) {
            struct activations got = quantize(*at, &problem, x);
            const struct activation_block *b = got.quantized;
            for (size_t i = 0; i < problem.rows * blocks; i++) {
                if (i % blocks >= (problem.k + 31) / 32)
                    continue; /* the block that only spaces rows */
                for (uint32_t value = 0; value < BLOCK_VALUES; value++) {
                    ck_assert_int_eq(quantized_value(scalar, &a[i], value),
                                     quantized_value(*at, &b[i], value));
                }
                assert_same(&a[i].d, &b[i].d, 4, "d and scaled sums");
            }
            free(got.quantized);
        }
        free(expected.quantized);
        free(x);
    }
}
END_TEST

START_TEST(quantizing_defines_its_edges)
{
    float x[32 * 5] = {0};
    x[32] = 1e-35f;   /* 4095/amax overflows: zero */
    x[64] = INFINITY; /* not finite: d is NaN */
    x[96 + 5] = NAN;
    for (int i = 0; i < 32; i++)
        x[128 + i] = i % 2 ? 63.5f : -4095.0f; /* 63.5 goes to the even 64 */
    for (const struct kernels *const *at = sets_tested(); *at; at++) {
        struct problem problem = {FORMAT_Q4_1, 16, 160, 1, PLAIN, false};
        struct activations activations = quantize(*at, &problem, x);
        const struct activation_block *a = activations.quantized;
        ck_assert(a[0].d == 0.0f && a[0].q[0] == 0 && a[0].sum_scaled == 0.0f);
        ck_assert(a[1].d == 0.0f && a[1].q[0] == 0);
        ck_assert(isnan(a[2].d) && isnan(a[2].sum_scaled) && a[2].q[0] == 0);
        ck_assert(isnan(a[3].d) && isnan(a[3].sub_sum_scaled[0]));
        ck_assert(a[4].d == 1.0f && quantized_value(*at, &a[4], 0) == -4095);
        ck_assert(quantized_value(*at, &a[4], 1) == 64);
        ck_assert(a[4].sum_scaled == 16 * (64 - 4095));
        ck_assert(a[4].sub_sum_scaled[1] == 8 * (64 - 4095));
        free(activations.quantized);
    }
}
END_TEST

START_TEST(rows_equal_the_specification)
{
    static const uint32_t NS[] = {1, 8, 15, 16, 24, 64, 100, 576, 1003};
    for (int round = 0; round < 90; round++) {
        uint32_t n = NS[round % 9];
        enum spice spice = round / 9 % SPICE_COUNT;
        float *x = allocate(n * 4), *w = allocate(n * 4), *a = allocate(n * 4),
              *b = allocate(n * 4);
        fill_floats(x, n, spice);
        fill_floats(w, n, spice);
        for (uint32_t i = 0; spice == PLAIN && i < n; i++)
            x[i] *= 10;
        for (const struct kernels *const *at = sets_tested(); *at; at++) {
            scalar->rms_norm(x, w, 1e-5f, n, a);
            (*at)->rms_norm(x, w, 1e-5f, n, b);
            assert_same(a, b, n, "rms_norm");
            memcpy(b, x, n * 4);
            (*at)->rms_norm(b, w, 1e-5f, n, b);
            assert_same(a, b, n, "rms_norm in place");
            scalar->layer_norm(x, w, x, 1e-12f, n, a);
            (*at)->layer_norm(x, w, x, 1e-12f, n, b);
            assert_same(a, b, n, "layer_norm");
            memcpy(b, x, n * 4);
            (*at)->layer_norm(b, w, x, 1e-12f, n, b);
            assert_same(a, b, n, "layer_norm in place");
            memcpy(a, x, n * 4);
            memcpy(b, x, n * 4);
            scalar->gelu_erf(a, n);
            (*at)->gelu_erf(b, n);
            assert_same(a, b, n, "gelu_erf");
            void (*const scalar_binary[])(float *, const float *, uint32_t) = {
                scalar->silu_multiply, scalar->gelu_multiply, scalar->add};
            void (*const binary[])(float *, const float *, uint32_t) = {
                (*at)->silu_multiply, (*at)->gelu_multiply, (*at)->add};
            for (int f = 0; f < 3; f++) {
                memcpy(a, x, n * 4);
                memcpy(b, x, n * 4);
                scalar_binary[f](a, w, n);
                binary[f](b, w, n);
                assert_same(a, b, n, f == 0 ? "silu" : f == 1 ? "gelu" : "add");
            }
        }
        free(x);
        free(w);
        free(a);
        free(b);
    }
}
END_TEST

/* Every 1009th float through the vector forms of exp and tanh, as silu and gelu show them. */
START_TEST(activations_equal_over_all_magnitudes)
{
    enum { COUNT = 4096 };
    static float x[COUNT], a[COUNT], b[COUNT], ones[COUNT];
    uint64_t bits = 0;
    for (int i = 0; i < COUNT; i++)
        ones[i] = 1.0f;
    while (bits <= 0xFFFFFFFFu) {
        for (int i = 0; i < COUNT; i++, bits += 1009) {
            uint32_t low = (uint32_t)bits;
            memcpy(&x[i], &low, 4);
        }
        memcpy(a, x, sizeof x);
        scalar->gelu_erf(a, COUNT);
        for (const struct kernels *const *at = sets_tested(); *at; at++) {
            memcpy(b, x, sizeof x);
            (*at)->gelu_erf(b, COUNT);
            assert_same(a, b, COUNT, (*at)->name);
        }
        for (int f = 0; f < 2; f++) {
            memcpy(a, x, sizeof x);
            (f ? scalar->gelu_multiply : scalar->silu_multiply)(a, ones, COUNT);
            for (const struct kernels *const *at = sets_tested(); *at; at++) {
                memcpy(b, x, sizeof x);
                (f ? (*at)->gelu_multiply : (*at)->silu_multiply)(b, ones, COUNT);
                assert_same(a, b, COUNT, (*at)->name);
            }
        }
    }
}
END_TEST

START_TEST(rope_equals_the_specification)
{
    static const uint32_t ROTARY[] = {2, 8, 20, 64, 80, 96, 128, 256};
    for (int i = 0; i < 8; i++) {
        uint32_t rotary = ROTARY[i];
        float head[256], c[128], s[128], a[256], b[256];
        fill_floats(head, 256, WILD);
        for (uint32_t j = 0; j < rotary / 2; j++) {
            c[j] = (float)math_cos(j * 1.37 + i);
            s[j] = (float)math_sin(j * 1.37 + i);
        }
        for (int neox = 0; neox < 2; neox++) {
            memcpy(a, head, sizeof a);
            scalar->rope(a, c, s, rotary, neox);
            for (const struct kernels *const *at = sets_tested(); *at; at++) {
                memcpy(b, head, sizeof b);
                (*at)->rope(b, c, s, rotary, neox);
                assert_same(a, b, 256, "rope");
            }
        }
    }
}
END_TEST

START_TEST(names_choose_kernels)
{
    const struct kernels *kernels = NULL;
    struct error error;
    const struct kernels *const *available = kernels_available();
    ck_assert_str_eq(available[0]->name, "scalar");
    const struct kernels *best = NULL;
    for (const struct kernels *const *at = available; *at; at++) {
        ck_assert_int_eq(kernels_select((*at)->name, &kernels, &error), STATUS_OK);
        ck_assert_ptr_eq(kernels, *at);
        best = *at;
    }
    ck_assert_int_eq(kernels_select("auto", &kernels, &error), STATUS_OK);
    ck_assert_ptr_eq(kernels, best);
    kernels = NULL;
    ck_assert_int_eq(kernels_select("avx3", &kernels, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "kernels");
    ck_assert_ptr_nonnull(strstr(error.message, "avx3"));
    ck_assert_int_eq(kernels_select("", &kernels, &error), STATUS_INVALID);
    ck_assert_ptr_null(kernels);
}
END_TEST

int main(void)
{
    if (!sets_tested()[0])
        return STATUS_SKIPPED;
    kernels_select("scalar", &scalar, NULL);
    Suite *suite = suite_create("kernels");
    TCase *tcase = tcase_create("kernels");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, matmul_equals_the_specification, 0, FORMAT_COUNT);
    tcase_add_loop_test(tcase, any_number_of_rows_gives_the_same, 0, FORMAT_COUNT);
    tcase_add_loop_test(tcase, extreme_integers_do_not_saturate, 0, FORMAT_COUNT);
    tcase_add_loop_test(tcase, repacking_is_lossless_and_small, 0, FORMAT_COUNT);
    tcase_add_test(tcase, float_columns_need_not_be_a_multiple_of_32);
    tcase_add_test(tcase, a_vocabulary_is_not_too_wide);
    tcase_add_test(tcase, quantized_rows_have_the_same_bits);
    tcase_add_test(tcase, quantizing_defines_its_edges);
    tcase_add_test(tcase, rows_equal_the_specification);
    tcase_add_test(tcase, activations_equal_over_all_magnitudes);
    tcase_add_test(tcase, rope_equals_the_specification);
    tcase_add_test(tcase, names_choose_kernels);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
