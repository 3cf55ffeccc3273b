/* The watchdog alone: counters and a clock that are numbers. */
#include "server/watchdog.h"

#include <check.h>
#include <string.h>

#define SECOND 1000000000ull

static struct engine_metrics metrics;
static struct watchdog watchdog;

static void setup(void)
{
    memset(&metrics, 0, sizeof metrics);
    watchdog = (struct watchdog){.patience_ns = 10 * SECOND};
}

static enum watchdog_news observe(uint32_t in_flight, uint64_t now_s)
{
    return watchdog_observe(&watchdog, &metrics, in_flight, now_s * SECOND);
}

START_TEST(test_work_without_progress)
{
    ck_assert_int_eq(observe(1, 100), WATCHDOG_NOTHING);
    ck_assert_int_eq(observe(1, 109), WATCHDOG_NOTHING);
    ck_assert_int_eq(observe(1, 110), WATCHDOG_STALLED);
    ck_assert(watchdog_is_stalled(&watchdog));
    ck_assert_int_eq(observe(1, 111), WATCHDOG_NOTHING); /* told once */
    ck_assert(watchdog_is_stalled(&watchdog));
    metric_add(&metrics.progress, 1);
    ck_assert_int_eq(observe(1, 112), WATCHDOG_RECOVERED);
    ck_assert(!watchdog_is_stalled(&watchdog));
    ck_assert_int_eq(observe(1, 121), WATCHDOG_NOTHING);
    ck_assert_int_eq(observe(1, 122), WATCHDOG_STALLED);
    ck_assert_uint_eq(atomic_load(&watchdog.stalls), 2);
    ck_assert_int_eq(observe(0, 123), WATCHDOG_RECOVERED); /* all have left */
}
END_TEST

START_TEST(test_idle_is_no_stall)
{
    ck_assert_int_eq(observe(0, 100), WATCHDOG_NOTHING);
    ck_assert_int_eq(observe(0, 1000), WATCHDOG_NOTHING);
    ck_assert_int_eq(observe(1, 1001), WATCHDOG_NOTHING); /* counts from the last idle look */
    ck_assert_int_eq(observe(1, 1009), WATCHDOG_NOTHING);
    ck_assert_int_eq(observe(1, 1010), WATCHDOG_STALLED);
}
END_TEST

START_TEST(test_steps_alone_are_no_progress)
{
    ck_assert_int_eq(observe(3, 100), WATCHDOG_NOTHING);
    for (uint64_t s = 101; s < 110; s++) {
        metric_add(&metrics.steps, 50);
        ck_assert_int_eq(observe(3, s), WATCHDOG_NOTHING);
    }
    ck_assert_int_eq(observe(3, 110), WATCHDOG_STALLED);
    struct buffer why;
    buffer_init(&why, 0);
    atomic_store(&metrics.phase, ENGINE_FORWARD);
    atomic_store(&metrics.phase_rows, 512);
    atomic_store(&metrics.phase_sequences, 7);
    atomic_store(&metrics.requests_running, 9);
    atomic_store(&metrics.requests_waiting, 4);
    atomic_store(&metrics.pages_free, 3);
    atomic_store(&metrics.pages_total, 846);
    watchdog_describe(&watchdog, &metrics, 112 * SECOND, &why);
    ck_assert_str_eq(why.data,
                     "no progress for 12.0 s: the engine computes a step of 512 rows of 7 "
                     "sequences; 450 steps were made since, 9 sequences run, 4 requests wait, 3 of "
                     "846 pages are free");
    buffer_deinit(&why);
}
END_TEST

START_TEST(test_no_patience_no_bark)
{
    watchdog.patience_ns = 0;
    ck_assert_int_eq(observe(1, 100), WATCHDOG_NOTHING);
    ck_assert_int_eq(observe(1, 1000000), WATCHDOG_NOTHING);
    ck_assert(!watchdog_is_stalled(&watchdog));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("watchdog");
    TCase *tests = tcase_create("watchdog");
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, test_work_without_progress);
    tcase_add_test(tests, test_idle_is_no_stall);
    tcase_add_test(tests, test_steps_alone_are_no_progress);
    tcase_add_test(tests, test_no_patience_no_bark);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
