/*
 * What becomes of the engine when the system has no memory: allocations are counted by the linker's
 * --wrap, and any one of them can be made to fail. Starting either works or
 * leaves nothing behind; a completion either is there or its bytes are not taken; and once there,
 * submitting, computing, preempting and ending allocate nothing at all.
 */
#include "engine/completion_private.h"
#include "engine/engine.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

static atomic_int allocations; /* so far */
static atomic_int failing = -1;

static bool fails(void)
{
    return atomic_fetch_add(&allocations, 1) == atomic_load(&failing);
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

static void fail_at(int number)
{
    atomic_store(&allocations, 0);
    atomic_store(&failing, number);
}

static struct backend *backend;
static struct workers *workers;
static struct engine_options options;
static const uint32_t end_token = RIG_END_TOKEN;

static void setup(void)
{
    struct error error;
    fail_at(-1);
    backend = scripted_backend_create(&(struct scripted_options){
        .vocabulary = RIG_VOCABULARY,
        .page_count = 13,
        .page_size = 8,
        .max_batch_rows = 16,
        .max_sequences = 4,
        .logits_rows_max = 3,
        .end_token = RIG_END_TOKEN,
    });
    ck_assert_ptr_nonnull(backend);
    ck_assert_int_eq(workers_create(2, &workers, &error), STATUS_OK);
    options = (struct engine_options){
        .backend = backend,
        .workers = workers,
        .context = 90,
        .max_batch_tokens = 16,
        .max_sequences = 4,
        .max_queue = 40,
        .key_count = 2,
        .end_tokens = &end_token,
        .end_token_count = 1,
        .prefix_cache = true,
        .check_every_step = true,
    };
}

static void teardown(void)
{
    workers_destroy(workers);
    backend->ops->destroy(backend);
}

static void wait_done(const struct completion *completion)
{
    while (!completion_done(completion))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

START_TEST(an_engine_starts_or_leaves_nothing_behind)
{
    struct error error;
    struct engine *engine = NULL;
    int number = 0;
    for (;; number++) {
        fail_at(number);
        enum status status = engine_create(&options, &engine, &error);
        fail_at(-1);
        if (status == STATUS_OK)
            break;
        ck_assert_int_eq(status, STATUS_IO);
        ck_assert_ptr_null(engine);
        ck_assert_int_lt(number, 100);
    }
    ck_assert_int_ge(number, 6); /* each of its parts has some */
    static const uint32_t tokens[] = {1, 2, 3};
    struct rig_request request = {.tokens = tokens, .token_count = 3, .max_tokens = 9};
    struct completion *completion = rig_completion(&request);
    ck_assert_int_eq(engine_submit(engine, &completion, 1, &error), STATUS_OK);
    wait_done(completion);
    rig_check_answers(completion, &request, engine_max_length(engine));
    completion_release(completion);
    engine_destroy(engine);
    ck_assert_uint_eq(rig_request_bytes(), 0);
}
END_TEST

/* Without memory for it the engine goes without a cache on disk, or does not start. */
START_TEST(a_cache_on_disk_is_there_or_is_not)
{
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    struct rig_request request = {.tokens = tokens, .token_count = 11, .max_tokens = 9};
    struct error error;
    struct engine *engine = NULL;
    char directory[] = "/tmp/quire-engine-XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/quire.pages", directory);
    options.cache_dir = directory;
    unsigned without = 0;
    bool reached = true;
    for (int number = 0; reached; number++) {
        fail_at(number);
        enum status status = engine_create(&options, &engine, &error);
        reached = atomic_load(&allocations) > number;
        fail_at(-1);
        if (status != STATUS_OK) {
            ck_assert_int_eq(status, STATUS_IO);
            continue;
        }
        without += metric_get(&engine_metrics(engine)->cache_dir_errors) > 0;
        struct completion *completion = rig_completion(&request);
        ck_assert_int_eq(engine_submit(engine, &completion, 1, &error), STATUS_OK);
        wait_done(completion);
        rig_check_answers(completion, &request, engine_max_length(engine));
        completion_release(completion);
        engine_destroy(engine);
    }
    ck_assert_uint_ge(without, 3);
    unlink(path);
    rmdir(directory);
}
END_TEST

START_TEST(a_completion_is_there_or_takes_nothing)
{
    static const uint32_t tokens[] = {1, 2, 3};
    struct budget budget = {.total_bytes = 1 << 20, .cap_bytes = {[BUDGET_REQUESTS] = 1 << 20}};
    struct completion_spec spec = {
        .tokens = tokens, .token_count = 3, .choice_count = 2, .max_tokens = 5};
    struct completion *completion = NULL;
    struct error error;
    fail_at(0);
    ck_assert_int_eq(completion_create(&spec, &budget, &completion, &error), STATUS_UNAVAILABLE);
    fail_at(-1);
    ck_assert_ptr_null(completion);
    ck_assert_uint_eq(atomic_load(&budget.used_bytes[BUDGET_REQUESTS]), 0);
    ck_assert_int_eq(completion_create(&spec, &budget, &completion, &error), STATUS_OK);
    completion_release(completion);
    ck_assert_uint_eq(atomic_load(&budget.used_bytes[BUDGET_REQUESTS]), 0);
}
END_TEST

/* Twelve pages for twenty that want up to eleven each: they are preempted, are late, are cancelled. */
START_TEST(nothing_is_allocated_while_it_runs)
{
    static uint32_t tokens[20][30];
    struct rig_request requests[20];
    struct completion *completions[20];
    struct engine *engine;
    struct error error;
    ck_assert_int_eq(engine_create(&options, &engine, &error), STATUS_OK);
    for (unsigned i = 0; i < 20; i++) {
        for (unsigned k = 0; k < 30; k++)
            tokens[i][k] = (i % 3 + k) % RIG_VOCABULARY;
        requests[i] = (struct rig_request){.tokens = tokens[i],
                                           .token_count = 1 + i,
                                           .choice_count = 1 + i % 3,
                                           .max_tokens = 60,
                                           .tenant = i % 3,
                                           .priority = (int32_t)(i % 4) - 1,
                                           .logprobs = i % 2};
        completions[i] = rig_completion(&requests[i]);
    }
    fail_at(-1);
    bool taken = true; /* the test library allocates, too: nothing of it until we have counted */
    for (unsigned i = 0; i < 20; i++)
        taken &= engine_submit(engine, &completions[i], 1, &error) == STATUS_OK;
    completion_cancel(completions[7]);
    engine_reset_cache(engine);
    for (unsigned i = 0; i < 20; i++)
        wait_done(completions[i]);
    int count = atomic_load(&allocations);
    ck_assert(taken);
    ck_assert_int_eq(count, 0);
    ck_assert_uint_gt(metric_get(&engine_metrics(engine)->preemptions), 0);
    for (unsigned i = 0; i < 20; i++) {
        if (i != 7)
            rig_check_answers(completions[i], &requests[i], engine_max_length(engine));
        completion_release(completions[i]);
    }
    engine_destroy(engine);
    ck_assert_uint_eq(rig_request_bytes(), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("allocation");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, an_engine_starts_or_leaves_nothing_behind);
    tcase_add_test(tcase, a_cache_on_disk_is_there_or_is_not);
    tcase_add_test(tcase, a_completion_is_there_or_takes_nothing);
    tcase_add_test(tcase, nothing_is_allocated_while_it_runs);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
