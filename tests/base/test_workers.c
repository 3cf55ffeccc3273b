/* Compute threads: every thread runs every job, barriers order memory, items are given once. */
#include "base/workers.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 1000, ROUNDS = 50, THREADS_MAX = 5 };

struct job {
    struct workers *workers;
    unsigned count;
    unsigned given[ITEMS]; /* how often each item was given, plain on purpose: TSan looks */
    unsigned value[THREADS_MAX];
    unsigned sums[THREADS_MAX];
    atomic_uint entered;
};

static void run(void *arg, unsigned index)
{
    struct job *job = arg;
    atomic_fetch_add(&job->entered, 1);
    for (unsigned round = 1; round <= 3; round++) {
        for (uint32_t i = index; i < ITEMS; i = workers_next(job->workers))
            job->given[i]++;
        job->value[index] = round * 10 + index;
        struct workers_ahead ahead = {(const uint8_t *)job->given, (const uint8_t *)job->value};
        workers_barrier(job->workers, &ahead);
        ck_assert(ahead.at < ahead.end + 64); /* a line at a time */
        for (unsigned t = 0; t < job->count; t++)
            job->sums[index] += job->value[t];
        workers_barrier(job->workers, NULL);
    }
}

START_TEST(jobs_run_on_all_threads)
{
    for (unsigned count = 1; count <= THREADS_MAX; count++) {
        struct job *job = calloc(1, sizeof *job);
        struct error error;
        ck_assert_int_eq(workers_create(count, &job->workers, &error), STATUS_OK);
        ck_assert_uint_eq(workers_count(job->workers), count);
        job->count = count;
        for (unsigned round = 0; round < ROUNDS; round++)
            workers_run(job->workers, run, job);
        ck_assert_uint_eq(job->entered, count * ROUNDS);
        unsigned expected = 0;
        for (unsigned round = 1; round <= 3; round++)
            for (unsigned t = 0; t < count; t++)
                expected += round * 10 + t;
        for (unsigned t = 0; t < count; t++)
            ck_assert_uint_eq(job->sums[t], expected * ROUNDS);
        for (unsigned i = 0; i < ITEMS; i++)
            ck_assert_uint_eq(job->given[i], 3 * ROUNDS);
        workers_destroy(job->workers);
        free(job);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("workers");
    TCase *tests = tcase_create("workers");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, jobs_run_on_all_threads);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
