/* The preprocessing thread: order, the bound, and that there is the stack that templates need. */
#include "server/preprocessing_thread.h"

#include <check.h>
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
    tcase_add_test(tests, test_deep_stack);
    suite_add_tcase(suite, tests);
    TCase *keys = tcase_create("keys");
    tcase_add_checked_fixture(keys, setup_keys, teardown);
    tcase_add_test(keys, test_lanes_take_turns);
    suite_add_tcase(suite, keys);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
