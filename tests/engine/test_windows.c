/*
 * KV cache groups through the engine, on made-up models with small windows: answers have the bits of
 * computing everything again for every token, with all pages kept and neither engine nor cache,
 *
 *   - for a prefix hit of every length, up to several windows and one by one around their edges;
 *   - in a pool so small that hits lose pages and sequences are preempted for each other;
 *   - preempted at every step and at every fifth, in the midst of windows;
 *   - when forks that share a prompt move on until their windows have left it;
 *
 * with chunks of 1, 7 and 64 rows and pages of 8 and 16. And the pages that are held are counted.
 */
#include "engine/engine.h"
#include "engine/model/model.h"
#include "tests/engine/model/made_up.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 7u /* of hit lengths */
#define KINDS 2
#else
#define STRIDE (_i == 0 ? 1u : 3u)
#define KINDS 4
#endif

#define LONGEST 52u /* tokens of the prompt that is hit */
#define TAIL 5u     /* other tokens after what is hit */
#define CONTEXT 136u
#define ANSWER_MAX 48u
#define CHOICES_MAX 3u
#define TOP 3u

static struct {
    char path[64];
    uint32_t vocabulary, window;
    struct kv_groups groups;
} model;

struct request {
    uint32_t prompt[CONTEXT], prompt_count;
    uint32_t choice_count, answer_count;
    float temperature;
    bool use_cache;
    struct sampled_token wanted[CHOICES_MAX][ANSWER_MAX];
};

static struct sampling_params params_of(const struct request *request)
{
    return (struct sampling_params){
        .temperature = request->temperature, .top_p = 1, .repetition_penalty = 1, .seed = 77};
}

/* ---- backends ---- */

struct served {
    struct gguf *gguf;
    struct model_config config;
    struct workers *workers;
    struct backend *backend;
};

/* With pages for `whole` sequences of which every page is kept, or page_count of them. */
static void serve(struct served *served, uint32_t page_size, uint32_t whole, uint32_t page_count)
{
    struct error error;
    struct model_sizes sizes;
    ck_assert_msg(gguf_open(model.path, &served->gguf, &error) == STATUS_OK, "%s", error.message);
    ck_assert_msg(model_describe(served->gguf, &served->config, &error) == STATUS_OK, "%s",
                  error.message);
    ck_assert(workers_create(1, &served->workers, &error) == STATUS_OK);
    struct backend_options options = {
        .workers = served->workers,
        .backend = "quantized",
        .page_size = page_size,
        .max_batch_rows = CONTEXT,
        .max_sequences = 4,
        .logits_rows_max = 4,
        .context = CONTEXT,
    };
    ck_assert(kernels_select("auto", &options.kernels, &error) == STATUS_OK);
    model_sizes(served->gguf, &served->config, &options, &sizes);
    model.groups = sizes.groups;
    uint32_t each = sizes.groups.count * kv_groups_pages(page_size, CONTEXT);
    options.page_count = 1 + (whole ? whole * each : page_count);
    ck_assert_msg(model_backend_create(served->gguf, &served->config, &options, NULL, NULL,
                                       &served->backend, &error) == STATUS_OK,
                  "%s", error.message);
    model.vocabulary = served->backend->vocabulary;
}

static void serve_end(struct served *served)
{
    served->backend->ops->destroy(served->backend);
    workers_destroy(served->workers);
    gguf_close(served->gguf);
}

/* Everything again for every token, in pages that are all there. */
static void answer_naively(struct backend *backend, struct request *request, uint32_t choice)
{
    uint32_t pages = kv_groups_pages(backend->page_size, CONTEXT);
    uint32_t tokens[CONTEXT], ids[KV_GROUPS_MAX * CONTEXT / 8];
    struct sampling_params params = params_of(request);
    uint64_t bytes = (sampler_workspace_bytes(backend->vocabulary) + 63) & ~(uint64_t)63;
    void *workspace = aligned_alloc(64, bytes);
    float *logits = malloc(backend->vocabulary * sizeof *logits);
    ck_assert(workspace && logits);
    memcpy(tokens, request->prompt, request->prompt_count * sizeof *tokens);
    for (uint32_t i = 0; i < backend->groups.count * pages; i++)
        ids[i] = 1 + i;
    for (uint32_t i = 0; i < request->answer_count; i++) {
        uint32_t count = request->prompt_count + i, last = count - 1;
        struct batch_sequence all = {0, count, 0, ids, pages, pages};
        struct batch batch = {count, tokens, 1, &all, 1, &last};
        backend->ops->forward(backend, &batch);
        backend->ops->logits(backend, 0, 1, logits);
        struct sampler_row row = {
            .logits = logits,
            .vocabulary = backend->vocabulary,
            .params = &params,
            .tokens = tokens,
            .token_count = count,
            .prompt_count = request->prompt_count,
            .choice = choice,
            .top_logprobs = TOP,
            .want_logprob = true,
        };
        struct sampled_token *out = &request->wanted[choice][i];
        ck_assert(sampler_sample(&row, workspace, out));
        tokens[count] = out->token;
    }
    free(workspace);
    free(logits);
}

/* ---- requests ---- */

static uint32_t common_token(uint32_t position)
{
    return (position * 61 + position * position * 7 + 3) % model.vocabulary;
}

/* `common` tokens that every request has, then `own` of its own. */
static void make_request(struct request *request, uint32_t number, uint32_t common, uint32_t own,
                         uint32_t answer_count)
{
    *request = (struct request){.prompt_count = common + own,
                                .choice_count = 1,
                                .answer_count = answer_count,
                                .use_cache = true};
    for (uint32_t i = 0; i < common; i++)
        request->prompt[i] = common_token(i);
    for (uint32_t i = common; i < common + own; i++)
        request->prompt[i] =
            (common_token(i) + 1 + number % (model.vocabulary - 1)) % model.vocabulary;
}

static void expect(struct backend *backend, struct request *request)
{
    for (uint32_t choice = 0; choice < request->choice_count; choice++)
        answer_naively(backend, request, choice);
}

static struct budget budget = {
    .total_bytes = UINT64_MAX / 2,
    .cap_bytes = {[BUDGET_REQUESTS] = UINT64_MAX / 4},
};

static struct completion *submit(struct engine *engine, const struct request *request)
{
    struct completion_spec spec = {
        .tokens = request->prompt,
        .token_count = request->prompt_count,
        .choice_count = request->choice_count,
        .max_tokens = request->answer_count,
        .sampling = params_of(request),
        .ignore_eos = true,
        .use_prefix_cache = request->use_cache,
        .want_logprobs = true,
        .top_logprobs = TOP,
    };
    struct completion *completion;
    struct error error;
    ck_assert(completion_create(&spec, &budget, &completion, &error) == STATUS_OK);
    ck_assert_msg(engine_submit(engine, &completion, 1, &error) == STATUS_OK, "%s", error.message);
    return completion;
}

static void wait_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Returns how many tokens came from the cache. */
static uint32_t finish(struct completion *completion, const struct request *request,
                       const char *what)
{
    while (!completion_done(completion))
        wait_briefly();
    for (uint32_t choice = 0; choice < request->choice_count; choice++) {
        const struct completion_token *tokens;
        ck_assert(completion_reason(completion, choice) == FINISH_LENGTH);
        ck_assert_uint_eq(completion_read(completion, choice, 0, &tokens), request->answer_count);
        for (uint32_t i = 0; i < request->answer_count; i++) {
            const struct sampled_token *wanted = &request->wanted[choice][i];
            uint32_t top_count;
            const struct top_logprob *top = completion_top(completion, choice, i, &top_count);
            ck_assert_msg(tokens[i].token == wanted->token &&
                              memcmp(&tokens[i].logprob, &wanted->logprob, sizeof(float)) == 0 &&
                              top_count == TOP && memcmp(top, wanted->top, TOP * sizeof *top) == 0,
                          "%s, window %u: choice %u, token %u differs", what, model.window, choice,
                          i);
        }
    }
    uint32_t cached = completion_cached_count(completion);
    completion_release(completion);
    return cached;
}

/* ---- engines ---- */

struct shape {
    uint32_t chunk, page_size;
    uint32_t page_count; /* 0: enough for all */
    uint32_t preempt_every;
};

struct run {
    struct served served;
    struct engine *engine;
    char what[128];
};

static void start(struct run *run, const struct shape *shape)
{
    struct error error;
    serve(&run->served, shape->page_size, shape->page_count ? 0 : 20, shape->page_count);
    struct engine_options options = {
        .backend = run->served.backend,
        .workers = run->served.workers,
        .context = CONTEXT,
        .max_batch_tokens = shape->chunk,
        .max_sequences = 4,
        .max_queue = 100,
        .prefix_cache = true,
        .check_every_step = true,
        .test_preempt_every = shape->preempt_every,
    };
    ck_assert_msg(engine_create(&options, &run->engine, &error) == STATUS_OK, "%s", error.message);
    snprintf(run->what, sizeof run->what, "%s, %u rows, pages of %u, %s pool, preempted every %u",
             run->served.config.architecture, shape->chunk, shape->page_size,
             shape->page_count ? "small" : "large", shape->preempt_every);
}

static void wait_idle(const struct run *run)
{
    while (engine_in_flight(run->engine) > 0)
        wait_briefly();
}

static void end(struct run *run)
{
    wait_idle(run);
    const struct engine_metrics *metrics = engine_metrics(run->engine);
    ck_assert(metrics->pages_free == metrics->pages_total);
    engine_destroy(run->engine);
    serve_end(&run->served);
    ck_assert_uint_eq(atomic_load(&budget.used_bytes[BUDGET_REQUESTS]), 0);
}

static uint32_t serve_one(struct run *run, const struct request *request)
{
    uint32_t cached = finish(submit(run->engine, request), request, run->what);
    wait_idle(run);
    return cached;
}

/* ---- models ---- */

static const struct {
    const char *family;
    uint32_t layers, window, group_count;
} kinds[] = {
    {"gemma3", 7, 20, 7},  /* one layer that sees all; a window that ends inside pages */
    {"gemma2", 4, 33, 2},  /* two layers a page */
    {"gemma3", 12, 16, 6}, /* two layers a page; a window of whole pages */
    {"gemma3", 26, 9, 7},  /* four layers a page, two places unused */
};

static void use_model(int kind)
{
    struct made_up spec = made_up_default(FORMAT_Q8_0);
    spec.family = kinds[kind].family;
    spec.layers = kinds[kind].layers;
    spec.window = model.window = kinds[kind].window;
    spec.separate_output = true; /* tied, it would only repeat a token */
    made_up_write(&spec, model.path);
}

static const struct shape shapes[] = {{1, 8, 0, 0}, {7, 8, 0, 0}, {64, 16, 0, 0}};

static struct request requests[LONGEST + 1];

/* ---- tests ---- */

START_TEST(a_hit_of_every_length_gives_the_same_bits)
{
    use_model(_i);
    struct served naive;
    serve(&naive, 16, 1, 0);
    ck_assert_uint_eq(model.groups.count, kinds[_i].group_count);
    make_request(&requests[0], 0, LONGEST, 0, 3);
    expect(naive.backend, &requests[0]);
    for (uint32_t common = 1; common <= LONGEST; common += STRIDE) {
        make_request(&requests[common], common, common, TAIL, 3);
        expect(naive.backend, &requests[common]);
    }
    serve_end(&naive);
    for (uint32_t s = 0; s < 3; s++) {
        struct run run;
        uint32_t size = shapes[s].page_size;
        start(&run, &shapes[s]);
        ck_assert_uint_eq(serve_one(&run, &requests[0]), 0);
        for (uint32_t common = 1; common <= LONGEST; common += STRIDE) {
            /* Nothing was taken for something else, so every full page is found. */
            uint32_t cached = serve_one(&run, &requests[common]);
            ck_assert_msg(cached == common / size * size, "%s: %u of %u tokens from the cache",
                          run.what, cached, common);
        }
        end(&run);
    }
    unlink(model.path);
}
END_TEST

/* The pool holds one sequence, and a little more: pages of windows are lost, hits get shorter. */
START_TEST(lost_pages_shorten_hits_and_change_nothing)
{
    use_model(_i);
    struct served naive;
    serve(&naive, 16, 1, 0);
    make_request(&requests[0], 0, LONGEST, 0, 3);
    expect(naive.backend, &requests[0]);
    for (uint32_t common = 1; common <= LONGEST; common += 3) {
        make_request(&requests[common], common, common, TAIL, 3);
        expect(naive.backend, &requests[common]);
    }
    serve_end(&naive);
    for (uint32_t s = 0; s < 3; s++) {
        struct shape shape = shapes[s];
        uint64_t need = kv_groups_need(&model.groups, shape.page_size, shape.chunk, LONGEST + 9);
        shape.page_count = (uint32_t)need + 2 * model.groups.count;
        struct run run;
        start(&run, &shape);
        serve_one(&run, &requests[0]);
        uint32_t hits = 0, shorter = 0;
        for (uint32_t common = 1; common <= LONGEST; common += 3) {
            uint32_t cached = serve_one(&run, &requests[common]);
            hits += cached > 0;
            shorter += cached < common / shape.page_size * shape.page_size;
        }
        ck_assert_msg(hits > 0 && shorter > 0, "%s: %u hits, %u shorter ones", run.what, hits,
                      shorter);
        end(&run);
    }
    unlink(model.path);
}
END_TEST

/* Several at the same time, with a common beginning, in a pool that does not hold them. */
START_TEST(preemption_changes_nothing)
{
    use_model(_i);
    struct served naive;
    serve(&naive, 16, 1, 0);
    for (uint32_t i = 0; i < 6; i++) {
        make_request(&requests[i], i + 1, 10 + 9 * i, 1 + 3 * i, 40 - 4 * i);
        requests[i].temperature = i % 2 ? 0.8f : 0;
        requests[i].use_cache = i != 4;
        expect(naive.backend, &requests[i]);
    }
    serve_end(&naive);
    static const uint32_t every[] = {0, 1, 5};
    for (uint32_t s = 0; s < 9; s++) {
        struct shape shape = shapes[s % 3];
        shape.preempt_every = every[s / 3];
        if (shape.preempt_every == 0) {
            uint64_t need = kv_groups_need(&model.groups, shape.page_size, shape.chunk, CONTEXT);
            shape.page_count = (uint32_t)need;
        }
        struct run run;
        struct completion *completions[6];
        start(&run, &shape);
        for (uint32_t i = 0; i < 6; i++)
            completions[i] = submit(run.engine, &requests[i]);
        for (uint32_t i = 0; i < 6; i++)
            finish(completions[i], &requests[i], run.what);
        wait_idle(&run);
        uint64_t preemptions = metric_get(&engine_metrics(run.engine)->preemptions);
        ck_assert_msg(shape.preempt_every == 0 || preemptions > 10, "%s: %u preemptions", run.what,
                      (unsigned)preemptions);
        end(&run);
    }
    unlink(model.path);
}
END_TEST

/* Three choices share a prompt's pages, copy the last, and give back the others one by one. */
START_TEST(forks_move_on_from_a_shared_prompt)
{
    use_model(_i);
    struct served naive;
    serve(&naive, 16, 1, 0);
    make_request(&requests[0], 1, 30, 7, ANSWER_MAX);
    requests[0].choice_count = CHOICES_MAX;
    requests[0].temperature = 0.8f;
    expect(naive.backend, &requests[0]);
    serve_end(&naive);
    for (uint32_t s = 0; s < 3; s++) {
        struct run run;
        start(&run, &shapes[s]);
        serve_one(&run, &requests[0]);
        ck_assert_uint_gt(serve_one(&run, &requests[0]), 0); /* and again, from the cache */
        end(&run);
    }
    unlink(model.path);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("windows");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, a_hit_of_every_length_gives_the_same_bits, 0, KINDS);
    tcase_add_loop_test(tcase, lost_pages_shorten_hits_and_change_nothing, 0, KINDS);
    tcase_add_loop_test(tcase, preemption_changes_nothing, 0, KINDS);
    tcase_add_loop_test(tcase, forks_move_on_from_a_shared_prompt, 0, KINDS);
    Suite *suite = suite_create("windows");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
