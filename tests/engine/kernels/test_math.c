/*
 * How far math.c is from libm in double, over dense sweeps and at the edges its header promises.
 */
#include "engine/kernels/format_table.h"
#include "engine/kernels/math.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Distance in units of the last place of the exact result; subnormals count in 2^-149. */
static double ulps(float got, double exact)
{
    int exponent;
    frexp(exact, &exponent);
    double unit = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)got - exact) / unit;
}

/* All floats of either sign whose bits are a multiple of `step` apart, within [low, high]. */
static double worst_ulps(float (*f)(float), double (*exact)(double), float low, float high)
{
    double worst = 0;
    for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 4099) {
        float x = float_of((uint32_t)bits);
        if (x >= low && x <= high) {
            double distance = ulps(f(x), exact((double)x));
            worst = distance > worst ? distance : worst;
        }
    }
    return worst;
}

static double exact_silu(double x)
{
    return x / (1 + exp(-x));
}

static double exact_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x)));
}

static double exact_gelu_erf(double x)
{
    return 0.5 * x * erfc(-x * M_SQRT1_2);
}

START_TEST(exp_is_within_two_ulp)
{
    ck_assert_double_le(worst_ulps(math_exp, exp, -87.3f, 88.72f), 2.0);
    ck_assert_double_le(worst_ulps(math_exp, exp, -104.0f, -87.3f), 2.0);
}
END_TEST

START_TEST(exp_keeps_its_edges)
{
    ck_assert_uint_eq(bits_of(math_exp(0.0f)), bits_of(1.0f));
    ck_assert_uint_eq(bits_of(math_exp(-0.0f)), bits_of(1.0f));
    ck_assert_uint_eq(bits_of(math_exp(-INFINITY)), 0);
    ck_assert_uint_eq(bits_of(math_exp(-104.01f)), 0);
    ck_assert(math_exp(89.0f) == INFINITY);
    ck_assert(math_exp(INFINITY) == INFINITY);
    ck_assert(isnan(math_exp(NAN)));
}
END_TEST

START_TEST(activations_are_near_libm)
{
    ck_assert_double_le(worst_ulps(math_tanh, tanh, -30.0f, 30.0f), 3.0);
    ck_assert_double_le(worst_ulps(math_silu, exact_silu, -80.0f, 1e30f), 4.0);
    ck_assert_double_le(worst_ulps(math_gelu, exact_gelu, -1.0f, 1e30f), 5.0);
    ck_assert_double_le(worst_ulps(math_gelu_erf, exact_gelu_erf, -2.0f, 1e30f), 12.0);
    for (float x = -12.0f; x < 12.0f; x += 0x1p-10f)
        ck_assert_double_le(fabs((double)math_gelu_erf(x) - exact_gelu_erf((double)x)), 1e-6);
    ck_assert(isnan(math_gelu_erf(NAN)));
    for (float x = -12.0f; x < 12.0f; x += 0x1p-10f)
        ck_assert_double_le(fabs((double)math_gelu(x) - exact_gelu((double)x)), 1e-6);
    ck_assert(math_tanh(INFINITY) == 1.0f);
    ck_assert(math_tanh(-INFINITY) == -1.0f);
    ck_assert(isnan(math_tanh(NAN)));
    ck_assert(isnan(math_silu(NAN)));
    ck_assert(isnan(math_gelu(NAN)));
}
END_TEST

START_TEST(log_is_within_two_ulp)
{
    ck_assert_double_le(worst_ulps(math_log, log, 0x1p-149f, 3.4e38f), 2.0);
    for (uint32_t bits = 0x3F700000u; bits < 0x3F900000u; bits += 17) {
        float x = float_of(bits);
        ck_assert_double_le(ulps(math_log(x), log((double)x)), 2.0);
    }
    ck_assert(math_log(1.0f) == 0.0f);
    ck_assert(math_log(0.0f) == -INFINITY);
    ck_assert(isnan(math_log(-1.0f)));
    ck_assert(math_log(INFINITY) == INFINITY);
}
END_TEST

static double relative(double got, double exact)
{
    return exact == 0 ? fabs(got) : fabs(got - exact) / fabs(exact);
}

START_TEST(doubles_are_within_1e_13)
{
    double worst = 0;
    for (int i = 0; i < 2000000; i++) {
        double x = i * 0.5 + (i % 977) * 1e-4;
        worst = fmax(worst, relative(math_sin(x), sin(x)));
        worst = fmax(worst, relative(math_cos(-x), cos(x)));
    }
    for (double x = 1e-12; x < 10; x *= 1.0007) {
        worst = fmax(worst, relative(math_sin(-x), sin(-x)));
        worst = fmax(worst, relative(math_cos(x), cos(x)));
    }
    for (double x = -700; x < 700; x += 0.00317)
        worst = fmax(worst, relative(math_exp_double(x), exp(x)));
    for (double x = 1e-300; x < 1e300; x *= 1.00313)
        worst = fmax(worst, relative(math_log_double(x), log(x)));
    for (double x = 0.5; x < 2; x += 1.7e-6)
        worst = fmax(worst, relative(math_log_double(x), log(x)));
    for (double base = 100; base < 1e8; base *= 1.37) {
        for (int i = 0; i <= 128; i++) {
            double exponent = -i / 128.0;
            worst = fmax(worst, relative(math_pow(base, exponent), pow(base, exponent)));
        }
    }
    ck_assert_double_le(worst, 1e-13);
    ck_assert(math_exp_double(0) == 1 && math_cos(0) == 1 && math_sin(0) == 0);
    ck_assert(math_exp_double(-800) == 0 && math_exp_double(800) == INFINITY);
}
END_TEST

START_TEST(f16_conversions_are_exact)
{
    for (uint32_t half = 0; half < 0x10000u; half++) {
        float value = math_f16_to_f32((uint16_t)half);
        uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
        double exact =
            exponent ? ldexp(1024.0 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
        if (exponent == 31) {
            ck_assert(mantissa ? isnan(value) : isinf(value));
            continue;
        }
        ck_assert(fabs((double)value) == exact);
        ck_assert_int_eq(signbit(value) != 0, half >> 15);
        ck_assert_uint_eq(math_f32_to_f16(value), half);
        if (exact < 65504) { /* halfway to the next goes to the even one */
            float next = math_f16_to_f32((uint16_t)(half + 1));
            float middle = (value + next) / 2;
            ck_assert_uint_eq(math_f32_to_f16(middle), half & 1 ? half + 1 : half);
            ck_assert_uint_eq(math_f32_to_f16(nextafterf(middle, next)), half + 1);
            ck_assert_uint_eq(math_f32_to_f16(nextafterf(middle, value)), half);
        }
    }
    ck_assert_uint_eq(math_f32_to_f16(1e9f), 0x7BFF);
    ck_assert_uint_eq(math_f32_to_f16(65519.0f), 0x7BFF);
    ck_assert_uint_eq(math_f32_to_f16(-INFINITY), 0xFBFF);
    ck_assert(isnan(math_f16_to_f32(math_f32_to_f16(NAN))));
    ck_assert(isnan(math_f16_to_f32(math_f32_to_f16(float_of(0x7F800001u)))));
    ck_assert(math_bf16_to_f32(0x3F80) == 1.0f);
}
END_TEST

START_TEST(rows_have_the_bytes_of_their_blocks)
{
    ck_assert_uint_eq(format_row_bytes(FORMAT_Q4_1, 576), 360);
    ck_assert_uint_eq(format_row_bytes(FORMAT_Q6_K, 512), 420);
    ck_assert_uint_eq(format_row_bytes(FORMAT_Q6_K, 576), 0);
    ck_assert_uint_eq(format_row_bytes(FORMAT_F32, 7), 28);
    ck_assert_uint_eq(format_row_bytes(4, 256), 0);
    ck_assert_uint_eq(format_row_bytes(4000000000u, 256), 0);
    ck_assert_uint_eq(format_row_bytes(FORMAT_F32, UINT64_MAX), 0);
    ck_assert_uint_eq(format_row_bytes(FORMAT_MXFP4, 96), 51);
    ck_assert_str_eq(format_info(FORMAT_IQ4_XS)->name, "IQ4_XS");
    ck_assert_ptr_null(format_info(9)->name);
}
END_TEST

/* The fields of a row of the table fill its block, and none lies on another. */
START_TEST(fields_fill_their_blocks)
{
    for (int format = 0; format < FORMAT_LIMIT; format++) {
        const struct format_row *row = &FORMAT_TABLE[format];
        ck_assert_int_eq(format_is_quantized((uint32_t)format), row->fields[FIELD_Q].units > 0);
        if (!format_is_quantized((uint32_t)format))
            continue;
        uint8_t used[256] = {0};
        for (int f = 0; f < FIELD_COUNT; f++)
            for (int i = 0; i < row->fields[f].units * row->fields[f].width; i++)
                used[row->fields[f].at + i]++;
        for (uint32_t i = 0; i < sizeof used; i++)
            ck_assert_msg(used[i] == (i < row->info.block_bytes), "%s: byte %u", row->info.name, i);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("math");
    TCase *tcase = tcase_create("math");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, exp_is_within_two_ulp);
    tcase_add_test(tcase, exp_keeps_its_edges);
    tcase_add_test(tcase, activations_are_near_libm);
    tcase_add_test(tcase, log_is_within_two_ulp);
    tcase_add_test(tcase, doubles_are_within_1e_13);
    tcase_add_test(tcase, f16_conversions_are_exact);
    tcase_add_test(tcase, rows_have_the_bytes_of_their_blocks);
    tcase_add_test(tcase, fields_fill_their_blocks);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
