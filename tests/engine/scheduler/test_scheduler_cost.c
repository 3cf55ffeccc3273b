/*
 * What the scheduler itself costs per step, without any model: 128 decoding sequences, with and
 * without 1,000 requests in the queue, of one tenant and of 257, when the one that is first has no
 * pages, and when there are fewer rows than sequences. Prints nanoseconds; fails only where
 * something grew by orders.
 */
#include "base/clock.h"
#include "engine/engine_metrics.h"
#include "engine/scheduler/scheduler.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#define SEQUENCES 128
#define QUEUED 1000
#define STEPS 200
#define HUGE_PROMPT 32000 /* 2,000 pages */

static struct engine_metrics metrics;
static double token_bounds[METRIC_BUCKETS_MAX];

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
    uint32_t rows; /* of a step */
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
        .max_tokens = STEPS * SEQUENCES / load->rows + 2 * STEPS,
        .tenant = number % load->tenant_count,
        .priority = load->tenant_count == 1 ? 0
                    : number < SEQUENCES    ? -(int32_t)(number % 4)
                                            : (int32_t)(number % 7) - 3,
        .deadline_ns = 1000000 + number,
    });
}

/* Nanoseconds per step of next + commit + settle. */
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
        .max_batch_tokens = load->rows,
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
    uint64_t best_ns = UINT64_MAX; /* of sixteen steps: others use this machine, too */
    uint64_t start_ns = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        if (step % 16 == 0) {
            uint64_t now_ns = clock_now_ns();
            if (step > 0 && now_ns - start_ns < best_ns)
                best_ns = now_ns - start_ns;
            start_ns = now_ns;
        }
        const struct schedule *schedule = scheduler_next(scheduler, 512, 3);
        ck_assert_uint_ge(schedule->decode_token_count,
                          load->rows < SEQUENCES ? load->rows / 2 : SEQUENCES);
        fill_samples(schedule);
        scheduler_commit(scheduler, 4);
        scheduler_notify(scheduler);
    }
    scheduler_cancel_all(scheduler, 5);
    for (uint32_t i = 0; i < all; i++)
        completion_release(completions[i]);
    scheduler_destroy(scheduler);
    pager_destroy(pager);
    return (double)best_ns / 16;
}

START_TEST(a_step_costs_microseconds_and_the_queue_nothing)
{
    static const struct {
        const char *what;
        struct load load;
    } cases[] = {
        {"alone", {0, 1, 512, false}},
        {"1000 wait", {QUEUED, 1, 512, false}},
        {"1000 wait, and the first has a place but no pages", {QUEUED, 1, 512, true}},
        {"1000 of 257 tenants and 7 priorities wait", {QUEUED, 257, 512, false}},
        {"the same, and the first has a place but no pages", {QUEUED, 257, 512, true}},
        {"the same with 32 rows a step", {QUEUED, 257, 32, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double ns = measure(&cases[i].load);
        printf("%d sequences decode, %s: %.1f us a step\n", SEQUENCES, cases[i].what, ns / 1e3);
        /* A step of 128 rows takes 50 ms and more: 2 % are 1 ms. Sanitizers are up to 20 times
           slower. */
        ck_assert_double_le(ns, 1e6);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheduler_cost");
    TCase *tcase = tcase_create("core");
    tcase_add_test(tcase, a_step_costs_microseconds_and_the_queue_nothing);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
