/* Compute threads: every thread runs every job, barriers order memory, items are given once,
   waiting takes no core. */
#include "base/workers.h"

#include <check.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

struct late {
    struct workers *workers;
    uint64_t cpu_ns[THREADS_MAX];
};

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Thread 0 comes 200 ms late, without using its core meanwhile. */
static void wait_for_late(void *arg, unsigned index)
{
    struct late *late = arg;
    uint64_t start_ns = cpu_ns();
    if (index == 0)
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    workers_barrier(late->workers, NULL);
    late->cpu_ns[index] = cpu_ns() - start_ns;
}

/* Two threads where they may run, and more on one core: those are told by the affinity. */
START_TEST(waiting_gives_the_core_up)
{
    for (unsigned count = 2; count <= THREADS_MAX; count++) {
        struct late late = {0};
        struct error error;
        cpu_set_t all, one;
        ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
        CPU_ZERO(&one);
        for (int cpu = 0; count > 2 && CPU_COUNT(&one) == 0; cpu++)
            if (CPU_ISSET(cpu, &all))
                CPU_SET(cpu, &one);
        ck_assert_int_eq(sched_setaffinity(0, sizeof all, count > 2 ? &one : &all), 0);
        ck_assert_int_eq(workers_create(count, &late.workers, &error), STATUS_OK);
        workers_run(late.workers, wait_for_late, &late);
        for (unsigned i = 1; i < count; i++)
            ck_assert_uint_lt(late.cpu_ns[i], 20000000);
        workers_destroy(late.workers);
        ck_assert_int_eq(sched_setaffinity(0, sizeof all, &all), 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("workers");
    TCase *tests = tcase_create("workers");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, jobs_run_on_all_threads);
    tcase_add_test(tests, waiting_gives_the_core_up);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
