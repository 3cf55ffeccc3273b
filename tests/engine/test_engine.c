/*
 * The engine with its thread, over the scripted backend: submit, cancel, release, drain and destroy
 * from several threads. Built with ThreadSanitizer as well. Tests stop the engine inside a step
 * (scripted_backend_hold) where an order has to be exact.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static struct backend *backend;
static struct workers *workers;
static struct engine *engine;
static struct engine_options options;
static uint32_t prompts[200][64];
static const uint32_t end_token = RIG_END_TOKEN;

struct shape {
    uint32_t page_count, max_sequences, max_batch_tokens, max_queue, step_delay_us, threads;
    uint32_t preempt_every;
};

static void start(const struct shape *shape)
{
    struct error error;
    for (unsigned i = 0; i < 200; i++) {
        for (unsigned k = 0; k < 64; k++)
            prompts[i][k] = (i * 7 + k * (i % 5 + 1)) % RIG_VOCABULARY;
        prompts[i][1] = i % RIG_VOCABULARY;
        prompts[i][2] = i / RIG_VOCABULARY;
    }
    backend = scripted_backend_create(&(struct scripted_options){
        .vocabulary = RIG_VOCABULARY,
        .page_count = shape->page_count + 1,
        .page_size = 8,
        .max_batch_rows = shape->max_batch_tokens,
        .max_sequences = shape->max_sequences,
        .logits_rows_max = 3,
        .end_token = RIG_END_TOKEN,
        .step_delay_us = shape->step_delay_us,
    });
    ck_assert_ptr_nonnull(backend);
    ck_assert_int_eq(workers_create(shape->threads ? shape->threads : 2, &workers, &error),
                     STATUS_OK);
    options = (struct engine_options){
        .backend = backend,
        .workers = workers,
        .context = 120,
        .max_batch_tokens = shape->max_batch_tokens,
        .max_sequences = shape->max_sequences,
        .max_queue = shape->max_queue,
        .end_tokens = &end_token,
        .end_token_count = 1,
        .prefix_cache = true,
        .check_every_step = true,
        .test_preempt_every = shape->preempt_every,
    };
    ck_assert_msg(engine_create(&options, &engine, &error) == STATUS_OK, "%s", error.message);
}

static void finish(void)
{
    const struct engine_metrics *metrics = engine_metrics(engine);
    while (engine_in_flight(engine) > 0)
        sched_yield();
    ck_assert_int_eq(metrics->pages_free, metrics->pages_total);
    ck_assert_int_eq(metrics->requests_running, 0);
    ck_assert_int_eq(metrics->requests_waiting, 0);
    engine_destroy(engine);
    workers_destroy(workers);
    backend->ops->destroy(backend);
    ck_assert_uint_eq(rig_request_bytes(), 0);
}

static struct rig_request request_of(unsigned i, uint32_t token_count, uint32_t max_tokens)
{
    return (struct rig_request){
        .tokens = prompts[i], .token_count = token_count, .max_tokens = max_tokens};
}

static struct completion *submit(const struct rig_request *request)
{
    struct completion *completion = rig_completion(request);
    struct error error;
    enum status status = engine_submit(engine, &completion, 1, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.message);
    return completion;
}

static void wait_done(const struct completion *completion)
{
    while (!completion_done(completion))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

START_TEST(answers_are_those_of_a_sequence_alone)
{
    start(&(struct shape){.page_count = 200,
                          .max_sequences = 16,
                          .max_batch_tokens = 40,
                          .max_queue = 100,
                          .threads = 1 + (uint32_t)_i});
    struct rig_request r[40];
    struct completion *c[40];
    for (unsigned i = 0; i < 40; i++) {
        r[i] = request_of(i, 1 + i, 1 + i % 17);
        r[i].temperature = i % 2 ? 0.8f : 0;
        r[i].seed = i;
        r[i].stops = i % 3;
        r[i].choice_count = i % 7 == 0 ? 4 : 1;
        r[i].logprobs = i % 5 == 0;
        c[i] = submit(&r[i]);
    }
    for (unsigned i = 0; i < 40; i++) {
        wait_done(c[i]);
        rig_check_answers(c[i], &r[i], engine_max_length(engine));
        completion_release(c[i]);
    }
    finish();
}
END_TEST

START_TEST(sequences_run_together_in_one_forward_per_step)
{
    start(&(struct shape){
        .page_count = 200, .max_sequences = 16, .max_batch_tokens = 64, .max_queue = 100});
    struct rig_request r[13];
    struct completion *c[13];
    scripted_backend_hold(backend);
    for (unsigned i = 0; i < 13; i++) {
        r[i] = request_of(i, 4, 20);
        c[i] = submit(&r[i]);
    }
    scripted_backend_wait(backend);
    scripted_backend_let_go(backend);
    for (unsigned i = 0; i < 13; i++) {
        wait_done(c[i]);
        rig_check_answers(c[i], &r[i], engine_max_length(engine));
        completion_release(c[i]);
    }
    struct scripted_counts counts;
    scripted_backend_counts(backend, &counts);
    const struct engine_metrics *metrics = engine_metrics(engine);
    ck_assert_uint_eq(counts.forwards, metric_get(&metrics->steps));
    ck_assert_uint_ge(counts.sequences_max, 12);
    ck_assert_uint_eq(counts.sequences_max, metric_get(&metrics->step_sequences_max));
    ck_assert_uint_eq(counts.rows, metric_get(&metrics->rows_computed));
    ck_assert_uint_eq(metric_get(&metrics->prompt_tokens), 13 * 4);
    ck_assert_uint_eq(metric_get(&metrics->generation_tokens), 13 * 20);
    ck_assert_uint_eq(metric_get(&metrics->finished[FINISH_LENGTH]), 13);
    finish();
}
END_TEST

/* Queued, in the prompt, decoding: what is cancelled during a step is gone after it. */
START_TEST(cancelling_takes_effect_within_one_step)
{
    start(&(struct shape){
        .page_count = 30, .max_sequences = 2, .max_batch_tokens = 16, .max_queue = 10});
    struct rig_request decoding = request_of(0, 4, 100), prompt = request_of(1, 60, 5),
                       queued = request_of(2, 9, 5), other = request_of(3, 3, 60);
    scripted_backend_hold(backend);
    struct completion *cd = submit(&decoding);
    scripted_backend_wait(backend); /* alone in its first step */
    struct completion *cp = submit(&prompt), *cq = submit(&queued), *co = submit(&other);
    scripted_backend_pass(backend); /* the first token is there, the prompt begins: 1 + 15 rows */
    scripted_backend_pass(backend);
    const struct engine_metrics *metrics = engine_metrics(engine);
    ck_assert_uint_eq(completion_output_count(cd, 0), 2);
    ck_assert_int_eq(metrics->requests_running, 2);
    ck_assert_int_eq(metrics->requests_waiting, 2);
    int64_t free_before = metrics->pages_free;
    completion_cancel(cd);
    completion_cancel(cp);
    completion_cancel(cq);
    scripted_backend_pass(backend); /* that step ends, and already the next one is without them */
    ck_assert_int_eq(completion_reason(cd, 0), FINISH_CANCELLED);
    ck_assert_int_eq(completion_reason(cp, 0), FINISH_CANCELLED);
    ck_assert_int_eq(completion_reason(cq, 0), FINISH_CANCELLED);
    ck_assert_uint_eq(completion_output_count(cd, 0), 3);
    ck_assert_uint_eq(completion_output_count(cp, 0), 0);
    ck_assert_int_eq(metrics->requests_running, 1);
    ck_assert_int_eq(metrics->requests_waiting, 0);
    ck_assert_int_eq(metrics->pages_free, metrics->pages_total - 1);
    ck_assert_int_lt(free_before, metrics->pages_total - 8);
    scripted_backend_let_go(backend);
    wait_done(co);
    rig_check_answers(co, &other, engine_max_length(engine));
    completion_release(cd);
    completion_release(cp);
    completion_release(cq);
    completion_release(co);
    finish();
}
END_TEST

START_TEST(what_was_cancelled_before_it_came_in_never_runs)
{
    start(&(struct shape){
        .page_count = 30, .max_sequences = 2, .max_batch_tokens = 16, .max_queue = 10});
    struct rig_request r = request_of(0, 4, 10);
    struct completion *c = rig_completion(&r);
    completion_cancel(c);
    struct error error;
    ck_assert_int_eq(engine_submit(engine, &c, 1, &error), STATUS_OK);
    wait_done(c);
    ck_assert_int_eq(completion_reason(c, 0), FINISH_CANCELLED);
    ck_assert_uint_eq(completion_output_count(c, 0), 0);
    ck_assert_uint_eq(metric_get(&engine_metrics(engine)->steps), 0);
    completion_release(c);
    finish();
}
END_TEST

START_TEST(what_can_never_fit_is_refused_with_the_numbers)
{
    start(&(struct shape){
        .page_count = 5, .max_sequences = 4, .max_batch_tokens = 16, .max_queue = 10});
    ck_assert_uint_eq(engine_max_length(engine), 40); /* the pool is smaller than the context */
    struct rig_request fits = request_of(0, 39, 10), never = request_of(1, 40, 1);
    struct completion *cf = submit(&fits), *cn = rig_completion(&never);
    struct error error;
    ck_assert_int_eq(engine_submit(engine, &cn, 1, &error), STATUS_INVALID);
    ck_assert_str_eq(error.code, "context_length_exceeded");
    ck_assert(strstr(error.message, "40") != NULL);
    completion_release(cn);
    wait_done(cf);
    rig_check_answers(cf, &fits, 40);
    ck_assert_uint_eq(completion_output_count(cf, 0), 1);
    completion_release(cf);
    uint32_t unknown[2] = {1, RIG_VOCABULARY};
    never.tokens = unknown;
    never.token_count = 2;
    cn = rig_completion(&never);
    ck_assert_int_eq(engine_submit(engine, &cn, 1, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "prompt");
    completion_release(cn);
    finish();
}
END_TEST

START_TEST(a_group_goes_in_whole_or_not_at_all)
{
    start(&(struct shape){
        .page_count = 7, .max_sequences = 2, .max_batch_tokens = 16, .max_queue = 3});
    struct rig_request r = request_of(0, 3, 30), long_one = request_of(1, 64, 5);
    struct error error;
    struct completion *group[6];
    for (unsigned i = 0; i < 6; i++)
        group[i] = rig_completion(&r);
    /* One that can never fit keeps out those before and after it. */
    struct completion *mixed[3] = {group[0], rig_completion(&long_one), group[1]};
    ck_assert_int_eq(engine_submit(engine, mixed, 3, &error), STATUS_INVALID);
    ck_assert_str_eq(error.code, "context_length_exceeded");
    ck_assert_uint_eq(engine_in_flight(engine), 0);
    completion_release(mixed[1]);
    /* Two running slots and a queue of three: five fit, six never do. */
    ck_assert_int_eq(engine_submit(engine, group, 6, &error), STATUS_INVALID);
    ck_assert_uint_eq(engine_in_flight(engine), 0);
    scripted_backend_hold(backend);
    ck_assert_int_eq(engine_submit(engine, group, 4, &error), STATUS_OK);
    scripted_backend_wait(backend);
    ck_assert_uint_eq(engine_in_flight(engine), 4);
    /* Two run, two wait: room for one more, not for two. */
    ck_assert_int_eq(engine_submit(engine, group + 4, 2, &error), STATUS_BUSY);
    ck_assert_uint_ge(error.retry_after_s, 1);
    ck_assert_uint_eq(engine_in_flight(engine), 4);
    ck_assert_int_eq(engine_submit(engine, group + 4, 1, &error), STATUS_OK);
    ck_assert_int_eq(engine_submit(engine, group + 5, 1, &error), STATUS_BUSY);
    scripted_backend_let_go(backend);
    for (unsigned i = 0; i < 5; i++) {
        wait_done(group[i]);
        rig_check_answers(group[i], &r, engine_max_length(engine));
    }
    while (engine_in_flight(engine) > 0)
        sched_yield();
    ck_assert_int_eq(engine_submit(engine, group + 5, 1, &error), STATUS_OK);
    wait_done(group[5]);
    for (unsigned i = 0; i < 6; i++)
        completion_release(group[i]);
    finish();
}
END_TEST

START_TEST(draining_refuses_newcomers_and_finishes_what_is_in)
{
    start(&(struct shape){
        .page_count = 50, .max_sequences = 2, .max_batch_tokens = 16, .max_queue = 10});
    struct rig_request r = request_of(0, 3, 30);
    struct completion *c[4], *late;
    scripted_backend_hold(backend);
    for (unsigned i = 0; i < 4; i++)
        c[i] = submit(&r);
    engine_drain(engine);
    late = rig_completion(&r);
    struct error error;
    ck_assert_int_eq(engine_submit(engine, &late, 1, &error), STATUS_UNAVAILABLE);
    completion_release(late);
    scripted_backend_let_go(backend);
    for (unsigned i = 0; i < 4; i++) {
        wait_done(c[i]);
        rig_check_answers(c[i], &r, engine_max_length(engine));
        completion_release(c[i]);
    }
    finish();
}
END_TEST

static void *destroy(void *unused)
{
    (void)unused;
    engine_destroy(engine);
    return NULL;
}

/* Returns once an engine_destroy of another thread has begun. */
static void wait_until_ending(const struct rig_request *r)
{
    for (enum status status = STATUS_OK; status != STATUS_UNAVAILABLE;) {
        struct completion *late = rig_completion(r);
        struct error error;
        status = engine_submit(engine, &late, 1, &error);
        completion_release(late);
    }
}

START_TEST(destroying_ends_everything_as_cancelled)
{
    start(&(struct shape){
        .page_count = 50, .max_sequences = 2, .max_batch_tokens = 16, .max_queue = 10});
    struct rig_request r = request_of(0, 30, 80);
    struct completion *c[6];
    scripted_backend_hold(backend);
    for (unsigned i = 0; i < 6; i++)
        c[i] = submit(&r);
    scripted_backend_wait(backend);
    completion_release(c[5]); /* its reader has gone already */
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, destroy, NULL), 0);
    wait_until_ending(&r);
    scripted_backend_let_go(backend);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_int_eq(completion_reason(c[i], 0), FINISH_CANCELLED);
        completion_cancel(c[i]); /* after the engine's end: harmless */
        completion_release(c[i]);
    }
    workers_destroy(workers);
    backend->ops->destroy(backend);
    ck_assert_uint_eq(rig_request_bytes(), 0);
}
END_TEST

START_TEST(a_request_that_cannot_be_sampled_ends_alone)
{
    start(&(struct shape){
        .page_count = 50, .max_sequences = 4, .max_batch_tokens = 16, .max_queue = 10});
    struct rig_request bad = request_of(0, 4, 30), good = request_of(1, 4, 30);
    static const uint32_t script[] = {20, 21, SCRIPTED_NAN, 22};
    ck_assert(scripted_backend_add(backend, bad.tokens, bad.token_count, script, 4));
    struct completion *cb = submit(&bad), *cg = submit(&good);
    wait_done(cb);
    wait_done(cg);
    ck_assert_int_eq(completion_reason(cb, 0), FINISH_ERROR);
    const struct completion_token *tokens;
    ck_assert_uint_eq(completion_read(cb, 0, 0, &tokens), 2);
    ck_assert_uint_eq(tokens[0].token, 20);
    ck_assert_uint_eq(tokens[1].token, 21);
    rig_check_answers(cg, &good, engine_max_length(engine));
    completion_release(cb);
    completion_release(cg);
    ck_assert_uint_eq(metric_get(&engine_metrics(engine)->finished[FINISH_ERROR]), 1);
    finish();
}
END_TEST

START_TEST(scripts_are_followed_to_their_end_token)
{
    start(&(struct shape){
        .page_count = 50, .max_sequences = 4, .max_batch_tokens = 16, .max_queue = 10});
    struct rig_request r = request_of(0, 11, 30);
    r.stops = true;
    r.choice_count = 2;
    static const uint32_t script[] = {9, 8, 9, 8, 50};
    ck_assert(scripted_backend_add(backend, r.tokens, r.token_count, script, 5));
    struct completion *c = submit(&r);
    wait_done(c);
    for (unsigned choice = 0; choice < 2; choice++) {
        const struct completion_token *tokens;
        ck_assert_int_eq(completion_reason(c, choice), FINISH_STOP);
        ck_assert_uint_eq(completion_read(c, choice, 0, &tokens), 5);
        for (unsigned i = 0; i < 5; i++)
            ck_assert_uint_eq(tokens[i].token, script[i]);
    }
    completion_release(c);
    finish();
}
END_TEST

struct wakes {
    atomic_uint count;
    atomic_bool released;
    atomic_bool late;
};

static void on_wake(void *arg)
{
    struct wakes *wakes = arg;
    atomic_fetch_add(&wakes->count, 1);
    if (atomic_load(&wakes->released))
        atomic_store(&wakes->late, true);
}

START_TEST(readers_are_woken_for_each_token_and_never_after_release)
{
    start(&(struct shape){
        .page_count = 100, .max_sequences = 8, .max_batch_tokens = 16, .max_queue = 10});
    struct wakes wakes[8];
    memset(wakes, 0, sizeof wakes);
    struct completion *c[8];
    for (unsigned i = 0; i < 8; i++) {
        struct rig_request r = request_of(i, 5, 20);
        r.wake = on_wake;
        r.wake_arg = &wakes[i];
        c[i] = submit(&r);
    }
    for (unsigned i = 0; i < 8; i += 2) { /* some leave in the middle */
        completion_release(c[i]);
        atomic_store(&wakes[i].released, true);
    }
    for (unsigned i = 1; i < 8; i += 2)
        wait_done(c[i]);
    while (engine_in_flight(engine) > 0)
        sched_yield();
    for (unsigned i = 0; i < 8; i++) {
        ck_assert(!atomic_load(&wakes[i].late));
        if (i % 2) {
            completion_release(c[i]);
            ck_assert_uint_eq(atomic_load(&wakes[i].count), 20); /* the last one is the end, too */
        }
    }
    finish();
}
END_TEST

/* ---- several threads ---- */

#define ROUNDS 40

static void *client_main(void *arg)
{
    unsigned number = (unsigned)(uintptr_t)arg;
    uint32_t state = number * 2654435761u + 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        state = state * 1664525u + 1013904223u;
        struct rig_request r = request_of(state >> 8 & 63, 1 + (state >> 16) % 60, 1 + state % 23);
        r.choice_count = state % 11 == 0 ? 3 : 1;
        r.temperature = state % 3 ? 0.9f : 0;
        r.seed = state % 5;
        r.stops = state % 2;
        struct completion *completion = rig_completion(&r);
        struct error error;
        enum status status = engine_submit(engine, &completion, 1, &error);
        if (status == STATUS_BUSY) {
            completion_release(completion);
            sched_yield();
            continue;
        }
        ck_assert_int_eq(status, STATUS_OK);
        switch (state >> 20 & 7) {
        case 0: /* leaves at once */
            break;
        case 1: /* leaves after the first token */
            while (completion_reason(completion, 0) == FINISH_NONE &&
                   completion_output_count(completion, 0) == 0)
                sched_yield();
            break;
        case 2:
            completion_cancel(completion);
            wait_done(completion);
            break;
        default:
            wait_done(completion);
            rig_check_answers(completion, &r, engine_max_length(engine));
        }
        completion_release(completion);
    }
    return NULL;
}

START_TEST(clients_come_and_go_from_many_threads)
{
    start(&(struct shape){.page_count = 24 + 40 * (uint32_t)(_i % 2),
                          .max_sequences = 6,
                          .max_batch_tokens = 16,
                          .max_queue = 4,
                          .preempt_every = _i == 2 ? 3 : 0});
    pthread_t threads[6];
    for (uintptr_t i = 0; i < 6; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, client_main, (void *)(i + 1)), 0);
    for (unsigned i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    finish();
}
END_TEST

/* ---- resources ---- */

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

START_TEST(an_idle_engine_uses_no_cpu)
{
    start(&(struct shape){
        .page_count = 50, .max_sequences = 4, .max_batch_tokens = 16, .max_queue = 10});
    struct rig_request r = request_of(0, 4, 30);
    struct completion *c = submit(&r);
    wait_done(c);
    completion_release(c);
    while (engine_in_flight(engine) > 0)
        sched_yield();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    double before = cpu_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    ck_assert_double_le(cpu_seconds() - before, 0.03);
    finish();
}
END_TEST

START_TEST(memory_is_what_was_announced)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return; /* their malloc counts otherwise */
#endif
    static const struct {
        uint32_t pages, sequences, rows, context;
    } shapes[] = {{40, 1, 1, 30}, {3000, 16, 64, 5000}, {60000, 128, 512, 131072}};
    char directory[] = "/tmp/quire-engine-XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/quire.pages", directory);
    for (unsigned round = 0; round < 6; round++) {
        unsigned i = round / 2;
        bool saves = round % 2 == 1; /* the prefix cache, to a directory */
        backend = scripted_backend_create(&(struct scripted_options){
            .vocabulary = RIG_VOCABULARY * (i + 1) * 50,
            .page_count = shapes[i].pages,
            .page_size = 16,
            .max_batch_rows = shapes[i].rows,
            .max_sequences = shapes[i].sequences,
            .logits_rows_max = 8,
        });
        struct error error;
        ck_assert_int_eq(workers_create(3, &workers, &error), STATUS_OK);
        options = (struct engine_options){
            .backend = backend,
            .workers = workers,
            .context = shapes[i].context,
            .max_batch_tokens = shapes[i].rows,
            .max_sequences = shapes[i].sequences,
            .end_tokens = &end_token,
            .end_token_count = 1,
            .check_every_step = i == 1,
            .prefix_cache = saves,
            .cache_dir = saves ? directory : NULL,
        };
        /* What it needs while it saves: a stack, and what sorting takes. */
        uint64_t spare = 40960 + (saves ? 276 * KIB + shapes[i].pages * 16 : 0);
        uint64_t announced = engine_memory_bytes(&options);
        struct mallinfo2 before = mallinfo2();
        ck_assert_int_eq(engine_create(&options, &engine, &error), STATUS_OK);
        struct mallinfo2 after = mallinfo2();
        uint64_t used = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        ck_assert_msg(used <= announced, "%llu bytes used, %llu announced",
                      (unsigned long long)used, (unsigned long long)announced);
        ck_assert_msg(used + spare >= announced, "%llu bytes used, %llu announced",
                      (unsigned long long)used, (unsigned long long)announced);
        engine_destroy(engine);
        workers_destroy(workers);
        backend->ops->destroy(backend);
        ck_assert(!saves || unlink(path) == 0);
    }
    rmdir(directory);
}
END_TEST

START_TEST(contradictory_options_are_refused)
{
    start(&(struct shape){
        .page_count = 50, .max_sequences = 4, .max_batch_tokens = 16, .max_queue = 10});
    struct error error;
    struct engine *none = NULL;
    struct engine_options wrong = options;
    wrong.max_batch_tokens = 17;
    ck_assert_int_eq(engine_create(&wrong, &none, &error), STATUS_INVALID);
    wrong = options;
    wrong.max_batch_tokens = 0;
    ck_assert_int_eq(engine_create(&wrong, &none, &error), STATUS_INVALID);
    wrong = options;
    wrong.max_sequences = 5;
    ck_assert_int_eq(engine_create(&wrong, &none, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "max-seqs");
    wrong = options;
    wrong.context = 1;
    ck_assert_int_eq(engine_create(&wrong, &none, &error), STATUS_INVALID);
    ck_assert_ptr_null(none);
    finish();
}
END_TEST

START_TEST(retry_after_follows_the_measured_rate)
{
    /* A step takes 60 ms and an answer 10 of them; one runs at a time. */
    start(&(struct shape){.page_count = 50,
                          .max_sequences = 1,
                          .max_batch_tokens = 16,
                          .max_queue = 6,
                          .step_delay_us = 60000});
    struct rig_request r = request_of(0, 4, 10);
    struct completion *c[7], *late[4];
    struct error error;
    for (unsigned i = 0; i < 7; i++)
        c[i] = submit(&r);
    wait_done(c[0]);
    wait_done(c[1]);
    wait_done(c[2]);
    for (unsigned i = 0; i < 4; i++)
        late[i] = rig_completion(&r);
    /* Five in the queue or running; each further place in the queue takes 0.6 s (and the machine may be slow). */
    enum status status = engine_submit(engine, late, 4, &error);
    ck_assert_int_eq(status, STATUS_BUSY);
    ck_assert_uint_ge(error.retry_after_s, 1);
    ck_assert_uint_le(error.retry_after_s, 6);
    engine_destroy(engine);
    for (unsigned i = 0; i < 7; i++)
        completion_release(c[i]);
    for (unsigned i = 0; i < 4; i++)
        completion_release(late[i]);
    workers_destroy(workers);
    backend->ops->destroy(backend);
}
END_TEST

START_TEST(idle_time_does_not_count_as_slowness)
{
    start(&(struct shape){
        .page_count = 50, .max_sequences = 1, .max_batch_tokens = 16, .max_queue = 4});
    struct rig_request r = request_of(0, 4, 10);
    struct completion *c[5], *late[4];
    struct error error;
    for (unsigned i = 0; i < 4; i++) {
        c[i] = submit(&r);
        wait_done(c[i]);
        completion_release(c[i]);
    }
    while (engine_in_flight(engine) > 0)
        sched_yield();
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    scripted_backend_hold(backend);
    c[0] = submit(&r);
    scripted_backend_wait(backend); /* it waits no longer: the queue has room for four */
    for (unsigned i = 1; i < 5; i++)
        c[i] = submit(&r);
    for (unsigned i = 0; i < 4; i++)
        late[i] = rig_completion(&r);
    ck_assert_int_eq(engine_submit(engine, late, 4, &error), STATUS_BUSY);
    ck_assert_uint_le(error.retry_after_s,
                      2); /* four places in the queue at milliseconds each, not at a second */
    scripted_backend_let_go(backend);
    for (unsigned i = 0; i < 5; i++) {
        wait_done(c[i]);
        completion_release(c[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        completion_release(late[i]);
    finish();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, answers_are_those_of_a_sequence_alone, 0, 3);
    tcase_add_test(tcase, sequences_run_together_in_one_forward_per_step);
    tcase_add_test(tcase, cancelling_takes_effect_within_one_step);
    tcase_add_test(tcase, what_was_cancelled_before_it_came_in_never_runs);
    tcase_add_test(tcase, what_can_never_fit_is_refused_with_the_numbers);
    tcase_add_test(tcase, a_group_goes_in_whole_or_not_at_all);
    tcase_add_test(tcase, draining_refuses_newcomers_and_finishes_what_is_in);
    tcase_add_test(tcase, destroying_ends_everything_as_cancelled);
    tcase_add_test(tcase, a_request_that_cannot_be_sampled_ends_alone);
    tcase_add_test(tcase, scripts_are_followed_to_their_end_token);
    tcase_add_test(tcase, readers_are_woken_for_each_token_and_never_after_release);
    tcase_add_loop_test(tcase, clients_come_and_go_from_many_threads, 0, 3);
    tcase_add_test(tcase, an_idle_engine_uses_no_cpu);
    tcase_add_test(tcase, memory_is_what_was_announced);
    tcase_add_test(tcase, contradictory_options_are_refused);
    tcase_add_test(tcase, retry_after_follows_the_measured_rate);
    tcase_add_test(tcase, idle_time_does_not_count_as_slowness);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
