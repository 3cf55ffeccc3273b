/* The preprocessing thread: order, the bound, and that there is the stack that templates need. */
#include "server/preprocessing_thread.h"

#include <check.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <string.h>

static struct preprocessing_thread *thread;
static sem_t begun, go, finished;
static unsigned order[64], order_count;

static void hold(void *arg)
{
    (void)arg;
    sem_post(&begun);
    sem_wait(&go);
}

static void note(void *arg)
{
    order[order_count++] = (unsigned)(uintptr_t)arg;
    sem_post(&finished);
}

/* Uses 32 MiB of stack in frames of 64 KiB. */
__attribute__((noinline)) static unsigned deep(unsigned depth)
{
    volatile char frame[64 << 10];
    memset((char *)(uintptr_t)frame, (int)depth, sizeof frame);
    return depth ? deep(depth - 1) + (unsigned)frame[17] % 2 : 0;
}

static void dig(void *arg)
{
    *(unsigned *)arg = deep(512) + 1;
    sem_post(&finished);
}

static void set_up_lanes(uint32_t lanes)
{
    struct error error;
    sem_init(&begun, 0, 0);
    sem_init(&go, 0, 0);
    sem_init(&finished, 0, 0);
    order_count = 0;
    ck_assert_int_eq(preprocessing_thread_create(8, lanes, &thread, &error), STATUS_OK);
}

static void setup(void)
{
    set_up_lanes(1);
}

static void setup_keys(void)
{
    set_up_lanes(4);
}

static void teardown(void)
{
    preprocessing_thread_destroy(thread);
}

START_TEST(test_order_and_bound)
{
    struct preprocessing_job jobs[10];
    jobs[0] = (struct preprocessing_job){.run = hold};
    ck_assert(preprocessing_thread_push(thread, &jobs[0]));
    sem_wait(&begun); /* taken out of the queue, so 8 fit */
    for (unsigned i = 1; i <= 8; i++) {
        jobs[i] = (struct preprocessing_job){.run = note, .arg = (void *)(uintptr_t)i};
        ck_assert(preprocessing_thread_push(thread, &jobs[i]));
    }
    jobs[9] = (struct preprocessing_job){.run = note};
    ck_assert(!preprocessing_thread_push(thread, &jobs[9]));
    ck_assert_uint_eq(preprocessing_thread_waiting(thread), 8);
    sem_post(&go);
    for (unsigned i = 0; i < 8; i++)
        sem_wait(&finished);
    ck_assert_uint_eq(order_count, 8);
    for (unsigned i = 0; i < 8; i++)
        ck_assert_uint_eq(order[i], i + 1);
    ck_assert_uint_eq(preprocessing_thread_waiting(thread), 0);
}
END_TEST

START_TEST(test_lanes_take_turns)
{
    struct preprocessing_job jobs[12];
    jobs[0] = (struct preprocessing_job){.run = hold};
    ck_assert(preprocessing_thread_push(thread, &jobs[0]));
    sem_wait(&begun);
    static const struct {
        uint32_t lane;
        bool room;
    } pushes[] = {{1, true}, {1, true}, {1, true},  {1, true}, {1, false}, /* as much as it left */
                  {2, true}, {2, true}, {2, false}, {3, true}, {1, false}, {3, false}};
    unsigned waiting = 0;
    for (unsigned i = 0; i < 11; i++) {
        jobs[1 + i] = (struct preprocessing_job){
            .run = note, .arg = (void *)(uintptr_t)i, .lane = pushes[i].lane};
        ck_assert_msg(preprocessing_thread_push(thread, &jobs[1 + i]) == pushes[i].room, "push %u",
                      i);
        waiting += pushes[i].room;
    }
    sem_post(&go);
    static const unsigned expected[] = {0, 5, 8, 1, 6, 2, 3};
    for (unsigned i = 0; i < waiting; i++)
        sem_wait(&finished);
    ck_assert_uint_eq(order_count, 7);
    ck_assert_mem_eq(order, expected, sizeof expected);
}
END_TEST

#define LONG_BYTES (8u << 20)

static struct preprocessing_job late[8];
static unsigned late_count;

/* A long job of several units. Between them others come: they run before it ends. */
static void work_long(void *arg)
{
    for (unsigned unit = 0; unit < 3; unit++) {
        if (unit == 1)
            for (unsigned i = 0; i < late_count; i++)
                ck_assert(preprocessing_thread_push(thread, &late[i]));
        preprocessing_thread_yield(thread);
    }
    note(arg);
}

static struct preprocessing_job job_of(unsigned number, uint32_t lane, uint64_t bytes)
{
    return (struct preprocessing_job){
        .run = note, .arg = (void *)(uintptr_t)number, .lane = lane, .bytes = bytes};
}

static void assert_order(const unsigned *expected, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        sem_wait(&finished);
    for (unsigned i = 0; i < count; i++)
        ck_assert_msg(order[i] == expected[i], "turn %u: job %u, not %u", i, order[i], expected[i]);
    ck_assert_uint_eq(order_count, count);
}

/* Four requests of 8 MB wait; a short and a middle one that come later run before three of them. */
START_TEST(test_short_overtake_long)
{
    struct preprocessing_job first = {.run = hold}, jobs[6];
    ck_assert(preprocessing_thread_push(thread, &first));
    sem_wait(&begun);
    for (unsigned i = 0; i < 4; i++)
        jobs[i] = job_of(i, 0, LONG_BYTES);
    jobs[4] = job_of(4, 0, 1000);
    jobs[5] = job_of(5, 0, 200000);
    for (unsigned i = 0; i < 6; i++)
        ck_assert(preprocessing_thread_push(thread, &jobs[i]));
    sem_post(&go);
    static const unsigned expected[] = {5, 0, 4, 1, 2, 3};
    assert_order(expected, 6);
}
END_TEST

/* Short jobs run within a long one, its own lane's and others'; long and middle ones do not, and
   nothing runs within the short ones. */
START_TEST(test_short_run_within_long)
{
    late[0] = job_of(1, 1, LONG_BYTES);
    late[1] = job_of(2, 2, LONG_BYTES);
    late[2] = job_of(3, 1, 1000);
    late[3] = job_of(4, 3, PREPROCESSING_JOB_SHORT_BYTES);
    late[4] = job_of(5, 2, PREPROCESSING_JOB_SHORT_BYTES + 1);
    late_count = 5;
    struct preprocessing_job job = {.run = work_long, .lane = 1, .bytes = LONG_BYTES};
    ck_assert(preprocessing_thread_push(thread, &job));
    static const unsigned expected[] = {4, 3, 0, 5, 2, 1};
    assert_order(expected, 6);
}
END_TEST

/* A short job pushes the next one while it runs: that could go on for ever. */
static void push_another(void *arg)
{
    (void)arg;
    preprocessing_thread_yield(thread); /* nothing runs within it */
    unsigned next = order_count % 2;
    if (order_count++ < 1000 && order_count < 1000) {
        late[next] =
            (struct preprocessing_job){.run = push_another, .bytes = PREPROCESSING_JOB_SHORT_BYTES};
        if (!preprocessing_thread_push(thread, &late[next]))
            order_count = 1000; /* the test is over */
    }
}

static void work_among_short(void *arg)
{
    late[0] =
        (struct preprocessing_job){.run = push_another, .bytes = PREPROCESSING_JOB_SHORT_BYTES};
    ck_assert(preprocessing_thread_push(thread, &late[0]));
    preprocessing_thread_yield(thread);
    *(unsigned *)arg = order_count;
    sem_post(&finished);
}

/* Those that run within a long job have its bytes at most, so it ends. */
START_TEST(test_short_do_not_starve_long)
{
    unsigned within = 0;
    struct preprocessing_job job = {.run = work_among_short, .arg = &within, .bytes = LONG_BYTES};
    ck_assert(preprocessing_thread_push(thread, &job));
    sem_wait(&finished);
    ck_assert_uint_ge(within, LONG_BYTES / PREPROCESSING_JOB_SHORT_BYTES / 2);
    ck_assert_uint_le(within, LONG_BYTES / PREPROCESSING_JOB_SHORT_BYTES + 1);
    while (preprocessing_thread_waiting(thread))
        sched_yield();
}
END_TEST

START_TEST(test_deep_stack)
{
    unsigned result = 0;
    struct preprocessing_job job = {.run = dig, .arg = &result};
    ck_assert(preprocessing_thread_push(thread, &job));
    sem_wait(&finished);
    ck_assert_uint_gt(result, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("preprocessing_thread");
    TCase *tests = tcase_create("preprocessing_thread");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_order_and_bound);
    tcase_add_test(tests, test_short_overtake_long);
    tcase_add_test(tests, test_short_do_not_starve_long);
    tcase_add_test(tests, test_deep_stack);
    suite_add_tcase(suite, tests);
    TCase *keys = tcase_create("keys");
    tcase_add_checked_fixture(keys, setup_keys, teardown);
    tcase_add_test(keys, test_lanes_take_turns);
    tcase_add_test(keys, test_short_run_within_long);
    suite_add_tcase(suite, keys);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
