/*
 * What the scheduler itself costs per step, without any model: 128 decoding sequences, with and without
 * 1,000 requests in the queue, of one tenant and of 257, when the first in the queue has no pages, and
 * when there are fewer tokens than sequences.
 *
 * It measures the thread's CPU time, so that a busy machine changes little, and it prints the numbers. It
 * fails where something grew by orders: absolutely, and as a ratio to the step without a queue, which
 * holds with sanitizers, too.
 */
#include "engine/engine_metrics.h"
#include "engine/scheduler/scheduler.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SEQUENCES 128
#define QUEUED 1000
#define STEPS 200
#define STEPS_TIMED 16    /* at a time: the best of these is taken */
#define HUGE_PROMPT 32000 /* 2,000 pages */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 20
#else
#define SLOWER 1
#endif
/* A step of 128 tokens takes 50 ms and more: 2 % of that are 1 ms. */
#define STEP_NS_MAX (1e6 * SLOWER)
/* A queue of 1,000 with 257 tenants costs about three times what no queue costs. */
#define RATIO_MAX 30

static struct engine_metrics metrics;
static double token_bounds[METRIC_BUCKETS_MAX];

/* Of this thread. */
static uint64_t cpu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fill_samples(const struct schedule *schedule)
{
    for (uint32_t i = 0; i < schedule->sample_count; i++) {
        schedule->samples[i].ok = true;
        schedule->samples[i].token = (struct sampled_token){.token = i % 50};
    }
}

struct load {
    uint32_t queued;
    uint32_t tenant_count;
    uint32_t step_tokens;
    bool pages_short;
};

static struct completion *one(const struct load *load, uint32_t number, uint32_t token_count)
{
    static uint32_t tokens[HUGE_PROMPT];
    for (uint32_t i = 0; i < token_count; i++)
        tokens[i] = number * 5 + i;
    return rig_completion(&(struct rig_request){
        .tokens = tokens,
        .token_count = token_count,
        .max_tokens = STEPS * SEQUENCES / load->step_tokens + 2 * STEPS,
        .tenant = number % load->tenant_count,
        .priority = load->tenant_count == 1 ? 0
                    : number < SEQUENCES    ? -(int32_t)(number % 4)
                                            : (int32_t)(number % 7) - 3,
        .deadline_ns = 1000000 + number,
    });
}

/* CPU nanoseconds per step of next + commit + notify. */
static double measure(const struct load *load)
{
    struct pager_options pager_options = {
        .page_count = load->pages_short ? SEQUENCES * 32 : 20000,
        .page_size = 16,
        .groups = {.count = 1},
        .hash_key = {1, 2},
    };
    struct pager *pager;
    struct scheduler *scheduler;
    struct error error;
    atomic_uint epoch = 0;
    ck_assert_int_eq(pager_create(&pager_options, &pager, &error), STATUS_OK);
    engine_metrics_init(&metrics, 32600, token_bounds);
    struct scheduler_options options = {
        .pager = pager,
        .max_sequences = load->pages_short ? SEQUENCES + 1 : SEQUENCES,
        .max_batch_tokens = load->step_tokens,
        .max_length = 32600,
        .tenant_count = load->tenant_count,
        .prefix_cache = true,
        .metrics = &metrics,
    };
    ck_assert_int_eq(scheduler_create(&options, &scheduler, &error), STATUS_OK);
    static struct completion *completions[SEQUENCES + QUEUED];
    uint32_t all = SEQUENCES + load->queued;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        completions[i] = one(load, i, 16);
        completion_attach(completions[i], &epoch);
        scheduler_add(scheduler, completions[i], 1);
    }
    while (scheduler_decoding_count(scheduler) < SEQUENCES) {
        fill_samples(scheduler_next(scheduler, 512, 1));
        scheduler_commit(scheduler, 2);
        scheduler_notify(scheduler);
    }
    for (uint32_t i = SEQUENCES; i < all; i++) {
        completions[i] = one(load, i, load->pages_short ? HUGE_PROMPT : 400);
        completion_attach(completions[i], &epoch);
        scheduler_add(scheduler, completions[i], 1);
    }
    uint64_t best_ns = UINT64_MAX; /* others use the caches of this machine, too */
    uint64_t start_ns = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        if (step % STEPS_TIMED == 0) {
            uint64_t now_ns = cpu_now_ns();
            if (step > 0 && now_ns - start_ns < best_ns)
                best_ns = now_ns - start_ns;
            start_ns = now_ns;
        }
        const struct schedule *schedule = scheduler_next(scheduler, 512, 3);
        ck_assert_uint_ge(schedule->decode_token_count,
                          load->step_tokens < SEQUENCES ? load->step_tokens / 2 : SEQUENCES);
        fill_samples(schedule);
        scheduler_commit(scheduler, 4);
        scheduler_notify(scheduler);
    }
    scheduler_cancel_all(scheduler, 5);
    for (uint32_t i = 0; i < all; i++)
        completion_release(completions[i]);
    scheduler_destroy(scheduler);
    pager_destroy(pager);
    return (double)best_ns / STEPS_TIMED;
}

START_TEST(a_step_costs_microseconds_and_the_queue_nothing)
{
    static const struct {
        const char *what;
        struct load load;
    } cases[] = {
        {"alone", {0, 1, 512, false}},
        {"1000 wait", {QUEUED, 1, 512, false}},
        {"1000 wait, and the first has a slot but no pages", {QUEUED, 1, 512, true}},
        {"1000 of 257 tenants and 7 priorities wait", {QUEUED, 257, 512, false}},
        {"the same, and the first has a slot but no pages", {QUEUED, 257, 512, true}},
        {"the same with 32 tokens a step", {QUEUED, 257, 32, false}},
    };
    double alone_ns = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double ns = measure(&cases[i].load);
        alone_ns = i == 0 ? ns : alone_ns;
        printf("%d sequences decode, %s: %.1f us a step\n", SEQUENCES, cases[i].what, ns / 1e3);
        ck_assert_double_le(ns, STEP_NS_MAX);
        ck_assert_double_le(ns, RATIO_MAX * alone_ns);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheduler_cost");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 600); /* against hangs only: sanitizers on a busy machine */
    tcase_add_test(tcase, a_step_costs_microseconds_and_the_queue_nothing);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
