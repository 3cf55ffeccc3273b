/* Measuring the machine: times are what they can be, more work takes longer, and what cannot be
   measured says so. How fast it is is nobody's to test. */
#include "base/bytes.h"
#include "sizing/speed.h"

#include <check.h>

static struct workers *workers;
static const struct kernels *sets[2]; /* the specification and the best that this CPU has */

static void setup(void)
{
    struct error error;
    ck_assert_int_eq(workers_create(2, &workers, &error), STATUS_OK);
    ck_assert_int_eq(kernels_select("scalar", &sets[0], &error), STATUS_OK);
    ck_assert_int_eq(kernels_select("auto", &sets[1], &error), STATUS_OK);
}

static void teardown(void)
{
    workers_destroy(workers);
}

START_TEST(test_products)
{
    static const uint32_t rows[] = {1, 64};
    static const enum tensor_format formats[] = {FORMAT_Q4_K, FORMAT_F16};
    for (int set = 0; set < 2; set++) {
        struct speed_meter meter = {sets[set], workers, 2, MIB};
        for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
            double seconds[2];
            speed_products(&meter, formats[i], 300, rows, 2, seconds); /* 300: no whole blocks */
            ck_assert(seconds[0] > 1e-14 && seconds[0] < 1e-4);
            ck_assert_msg(seconds[1] > 2 * seconds[0], "%s: 64 rows %g s, 1 row %g s",
                          format_info(formats[i])->name, seconds[1], seconds[0]);
        }
    }
}
END_TEST

START_TEST(test_attention_and_reading)
{
    for (int set = 0; set < 2; set++) {
        struct speed_meter meter = {sets[set], workers, 2, MIB};
        double one = speed_attention(&meter, KV_F16, 64, 3, 1);
        double tile = speed_attention(&meter, KV_Q8_0, 64, 3, 16);
        ck_assert(one > 1e-11 && one < 1e-3);
        ck_assert(tile > one);
        double bytes = speed_read(&meter);
        ck_assert(bytes > 1e6 && bytes < 1e13);
    }
}
END_TEST

/* More threads than cores are not faster than cores. */
START_TEST(test_cores)
{
    struct speed_meter two = {sets[1], workers, 2, MIB}, one = {sets[1], workers, 1, MIB};
    double both = speed_attention(&two, KV_F16, 64, 3, 16);
    double alone = speed_attention(&one, KV_F16, 64, 3, 16);
    ck_assert_msg(alone > 1.3 * both && alone < 3 * both, "two cores %g s, one %g s", both, alone);
}
END_TEST

START_TEST(test_what_cannot_be_measured)
{
    const uint32_t rows = 1;
    double seconds = 1;
    struct speed_meter meter = {sets[0], workers, 2, MIB};
    speed_products(&meter, 4, 64, &rows, 1, &seconds); /* no format has this number any more */
    ck_assert(seconds == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("speed");
    TCase *tests = tcase_create("speed");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_products);
    tcase_add_test(tests, test_attention_and_reading);
    tcase_add_test(tests, test_cores);
    tcase_add_test(tests, test_what_cannot_be_measured);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
