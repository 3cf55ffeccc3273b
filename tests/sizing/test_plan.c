/*
 * The memory plan: what keys and values take against figures of textbooks, windows in groups
 * against counting page by page, the division of a budget against its own promises, and the answer
 * of `quire plan` against plan_make. That a started server has the same numbers is in tests/e2e.
 */
#include "base/bytes.h"
#include "sizing/plan_answer.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct workers *workers;
static struct model_config config;
static struct settings settings;
static bool max_seqs_given;
static uint32_t asked_users;

static void setup(void)
{
    struct error error;
    ck_assert_int_eq(workers_create(2, &workers, &error), STATUS_OK);
    /* Eight billion parameters in four bits: 32 layers, 32 heads over 8. */
    config = (struct model_config){.layers = 32,
                                   .embedding = 4096,
                                   .feed_forward = 14336,
                                   .heads = 32,
                                   .kv_heads = 8,
                                   .head_dim = 128,
                                   .rotary = 128,
                                   .vocabulary = 128256,
                                   .context = 131072,
                                   .tensor_bytes = 4600 * MIB};
    max_seqs_given = false;
    settings = (struct settings){.serves = true,
                                 .memory_bytes = 24 * GIB,
                                 .threads = 2,
                                 .context = 8192,
                                 .page_size = 16,
                                 .max_seqs = 128,
                                 .max_queue = 1024,
                                 .connections_fitted = true,
                                 .max_connections = 1024,
                                 .kernels = "auto",
                                 .backend = "quantized",
                                 .prefix_cache = true,
                                 .constraints = "auto"};
}

static void teardown(void)
{
    workers_destroy(workers);
}

static struct plan_question question(void)
{
    const struct kernels *kernels;
    ck_assert_int_eq(kernels_select("auto", &kernels, NULL), STATUS_OK);
    return (struct plan_question){.model = {.config = &config,
                                            .kernels = kernels,
                                            .workers = workers,
                                            .tokenizer_bytes = 6 * MIB},
                                  .settings = &settings,
                                  .users = asked_users,
                                  .max_seqs_given = max_seqs_given};
}

/* ---- Keys and values ---- */

static struct plan_kv kv_of(uint32_t layers, uint32_t kv_heads, enum kv_type type)
{
    return (struct plan_kv){
        .type = type, .layers = layers, .kv_heads = kv_heads, .head_dim = 128, .page_size = 16};
}

static uint64_t sequence_bytes(const struct plan_kv *kv, uint64_t tokens)
{
    return plan_kv_pages(kv, tokens) * plan_kv_page_bytes(kv);
}

START_TEST(test_textbook_figures)
{
    /* LLaMA-3 70B: 80 layers, 8 KV heads of 128, 16 bits. */
    struct plan_kv large = kv_of(80, 8, KV_F16);
    ck_assert_uint_eq(plan_kv_token_bytes(&large), 2 * 80 * 8 * 128 * 2);
    ck_assert(fabs((double)plan_kv_token_bytes(&large) / MIB - 0.3125) < 1e-12);
    double gb = (double)sequence_bytes(&large, 4096) / 1e9;
    ck_assert_msg(fabs(gb - 1.3) < 0.05, "%.3f GB at 4,096 tokens", gb);
    ck_assert_uint_eq(sequence_bytes(&large, 131072), 40 * GIB);
    /* LLaMA-2 7B's shape: 32 layers, 32 heads of 128, bf16; and with 8 KV heads a quarter. */
    struct plan_kv all_heads = kv_of(32, 32, KV_BF16), grouped_heads = kv_of(32, 8, KV_BF16);
    ck_assert_uint_eq(plan_kv_token_bytes(&all_heads), MIB / 2);
    ck_assert_uint_eq(sequence_bytes(&all_heads, 8192), 4 * GIB);
    ck_assert_uint_eq(sequence_bytes(&grouped_heads, 8192), GIB);
    ck_assert_uint_eq(sequence_bytes(&grouped_heads, 8193), GIB + 16 * MIB / 8);
}
END_TEST

START_TEST(test_types)
{
    static const struct {
        enum kv_type type;
        uint64_t bytes; /* of 32 values */
    } types[] = {{KV_F32, 128}, {KV_F16, 64}, {KV_BF16, 64}, {KV_Q8_0, 34}, {KV_Q4_0, 18}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct plan_kv kv = kv_of(3, 5, types[i].type);
        ck_assert_uint_eq(plan_kv_token_bytes(&kv), 2 * 3 * 5 * 128 / 32 * types[i].bytes);
        ck_assert_uint_eq(plan_kv_page_bytes(&kv), 16 * plan_kv_token_bytes(&kv));
    }
    struct plan_kv odd = kv_of(3, 5, KV_Q8_0);
    odd.head_dim = 80;
    ck_assert_uint_eq(plan_kv_token_bytes(&odd), 0);
    /* What the kernels lay out is what is planned for. */
    struct plan_kv served = kv_of(7, 3, KV_Q8_0);
    ck_assert_uint_eq(plan_kv_page_bytes(&served), kv_page_bytes(KV_Q8_0, 7, 3, 128, 16));
}
END_TEST

/* Pages that a decoding sequence holds, counted: those that a position in the window lies in, at
   the worst moment up to `tokens`. */
static uint64_t counted_pages(const struct plan_kv *kv, uint32_t full, uint32_t local,
                              uint64_t tokens)
{
    uint64_t most = 0;
    for (uint64_t length = 1; length <= tokens; length++) {
        uint64_t first = length > kv->window ? length - kv->window : 0;
        uint64_t in_window = (length - 1) / kv->page_size - first / kv->page_size + 1;
        most = in_window > most ? in_window : most;
    }
    return full * ((tokens + kv->page_size - 1) / kv->page_size) + local * most;
}

START_TEST(test_windows)
{
    /* Gemma 3 270M: 18 layers, 15 of them with a window of 512: six groups of three. */
    struct plan_kv gemma = {.type = KV_F16,
                            .layers = 18,
                            .window_layers = 15,
                            .window = 512,
                            .kv_heads = 1,
                            .head_dim = 256,
                            .page_size = 16};
    uint64_t whole = plan_kv_page_bytes(&gemma);
    ck_assert_uint_eq(whole, 16 * 18 * 2 * 256 * 2);
    ck_assert_uint_eq(plan_kv_pages(&gemma, 32768), 2048);
    gemma.grouped = true;
    ck_assert_uint_eq(plan_kv_page_bytes(&gemma), whole / 6);
    ck_assert_uint_eq(plan_kv_pages(&gemma, 16), 6); /* as many bytes as before */
    ck_assert_uint_eq(plan_kv_pages(&gemma, 32768), 2048 + 5 * 33);
    static const uint32_t windows[] = {1, 2, 15, 16, 17, 33, 512};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        gemma.window = windows[i];
        for (uint64_t tokens = 1; tokens < 1200; tokens += 13)
            ck_assert_uint_eq(plan_kv_pages(&gemma, tokens), counted_pages(&gemma, 1, 5, tokens));
    }
}
END_TEST

/* plan_kv_tokens is the largest length whose pages are there. */
START_TEST(test_tokens_of_pages)
{
    struct plan_kv kv = kv_of(12, 2, KV_F16);
    static const uint32_t local[] = {0, 6, 8, 12};
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
        kv.window = 100;
        kv.window_layers = local[i];
        kv.grouped = local[i] > 0;
        for (uint64_t pages = 0; pages < 200; pages++) {
            uint64_t tokens = plan_kv_tokens(&kv, pages);
            ck_assert_uint_le(plan_kv_pages(&kv, tokens), pages);
            if (tokens < UINT32_MAX)
                ck_assert_uint_gt(plan_kv_pages(&kv, tokens + 1), pages);
        }
    }
}
END_TEST

/* ---- The budget ---- */

static uint64_t sum_of(const struct plan *plan)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        sum += plan->account_bytes[i];
    return sum;
}

START_TEST(test_division)
{
    struct plan_question ask = question();
    struct plan plan;
    struct error error;
    uint64_t before = 0;
    for (uint64_t gib = 6; gib <= 96; gib *= 2) {
        settings.memory_bytes = gib * GIB;
        ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, &error), STATUS_OK);
        ck_assert_uint_le(sum_of(&plan), gib * GIB);
        ck_assert_uint_eq(plan.account_bytes[BUDGET_KV], plan.backend.page_count * plan.sizes.page);
        ck_assert_uint_eq(plan.account_bytes[BUDGET_WEIGHTS], config.tensor_bytes);
        ck_assert_uint_gt(plan.account_bytes[BUDGET_KV], before);
        before = plan.account_bytes[BUDGET_KV];
        /* Less than two pages are left over, unless the pool is as large as can be used. */
        uint64_t most = plan_pages(&plan, settings.max_seqs, plan.wanted) + 1;
        ck_assert(plan.backend.page_count == most ||
                  gib * GIB - sum_of(&plan) < 2 * plan.sizes.page);
    }
    settings.memory_bytes = 4 * GIB; /* less than the weights */
    ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "memory");
    ck_assert_uint_eq(plan.account_bytes[BUDGET_WEIGHTS], config.tensor_bytes);
    ck_assert_uint_eq(plan.account_bytes[BUDGET_KV], 0);
}
END_TEST

/* A pool that --max-seqs sequences of the context fill is marked, and a budget that nobody gave
   ends there. */
START_TEST(test_capped)
{
    struct plan_question ask = question();
    struct plan plan;
    settings.max_seqs = 4;
    settings.memory_bytes = 96 * GIB;
    ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, NULL), STATUS_OK);
    ck_assert(plan.capped);
    ck_assert_uint_eq(plan.total_bytes, 96 * GIB);
    uint64_t sum = sum_of(&plan);
    settings.memory_fitted = true;
    ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(sum_of(&plan), sum);
    ck_assert_uint_eq(plan.total_bytes, sum);
    settings.memory_bytes = 8 * GIB;
    ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, NULL), STATUS_OK);
    ck_assert(!plan.capped);
    ck_assert_uint_eq(plan.total_bytes, 8 * GIB);
}
END_TEST

/* auto: where there is room; on: or no start; off: never. What off saves is pages. */
START_TEST(test_constraints)
{
    struct plan_question ask = question();
    struct plan plan;
    struct error error;
    uint64_t pages[3];
    static const char *const when[] = {"auto", "on", "off"};
    for (unsigned i = 0; i < 3; i++) {
        settings.constraints = when[i];
        settings.memory_bytes = 8 * GIB;
        ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, &error), STATUS_OK);
        ck_assert_int_eq(plan.engine.grammars, i < 2);
        ck_assert_int_eq(plan.account_bytes[BUDGET_GRAMMAR] > 0, i < 2);
        pages[i] = plan.account_bytes[BUDGET_KV];
    }
    ck_assert_uint_eq(pages[0], pages[1]);
    ck_assert_uint_gt(pages[2], pages[0]);
    settings.constraints = "off";
    uint64_t least = plan_least_bytes(&ask.model, &settings, 1, 256);
    settings.memory_bytes = least;
    settings.constraints = "auto";
    ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, &error), STATUS_OK);
    ck_assert(!plan.engine.grammars);
    settings.constraints = "on";
    ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "memory");
}
END_TEST

START_TEST(test_least)
{
    struct plan_question ask = question();
    struct plan plan;
    static const uint32_t users[] = {1, 16, 100};
    for (size_t i = 0; i < sizeof users / sizeof users[0]; i++) {
        uint64_t least = plan_least_bytes(&ask.model, &settings, users[i], 8192);
        settings.memory_bytes = least;
        ck_assert_int_eq(plan_make(&ask.model, &settings, &plan, NULL), STATUS_OK);
        uint64_t need = plan_pages(&plan, users[i], 8192);
        ck_assert_uint_ge(plan.backend.page_count - 1, need);
        settings.memory_bytes = least - MIB;
        ck_assert(plan_make(&ask.model, &settings, &plan, NULL) != STATUS_OK ||
                  plan.backend.page_count - 1 < need);
    }
    ck_assert_uint_eq(plan_least_bytes(&ask.model, &settings, 129, 8192), 0); /* --max-seqs */
    ck_assert_uint_eq(plan_least_bytes(&ask.model, &settings, 1, 8193), 0);   /* --context */
}
END_TEST

/* ---- The answer ---- */

static struct plan_answer answer;

static void make_answer(uint32_t users)
{
    asked_users = users;
    struct plan_question ask = question();
    if (users > settings.max_seqs && !max_seqs_given)
        settings.max_seqs = users;
    plan_answer_make(&ask, &answer);
    settings.max_seqs = 128;
}

START_TEST(test_yes)
{
    make_answer(16);
    ck_assert(answer.yes && answer.asked);
    ck_assert_uint_eq(answer.need_bytes, 16 * GIB);
    ck_assert_uint_eq(answer.need_bytes + answer.other_bytes + answer.left_bytes +
                          answer.plan.account_bytes[BUDGET_WEIGHTS],
                      24 * GIB);
    ck_assert_uint_eq(answer.missing_bytes, 0);
    ck_assert_ptr_eq(strstr(answer.sentence, "yes: 16 users at 8,192 tokens need 16.0 GiB of KV "
                                             "beside 4.5 GiB of weights and "),
                     answer.sentence);
    ck_assert_uint_eq(answer.tokens_fit, 8192);
    ck_assert_uint_eq(answer.least_bytes / GIB, 21); /* 16 + 4.5 + the rest */
}
END_TEST

/* "How many?" and "do so many fit?" give the same answer. */
START_TEST(test_as_many_as_fit)
{
    static const uint64_t memory[] = {7 * GIB, 24 * GIB, 200 * GIB, 2000 * GIB};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        settings.memory_bytes = memory[i];
        make_answer(0);
        ck_assert(answer.yes && !answer.asked);
        uint32_t fit = answer.users;
        ck_assert_uint_eq(answer.max_seqs, fit > 128 ? fit : 128);
        make_answer(fit);
        ck_assert(answer.yes);
        ck_assert_uint_ge(answer.plan.backend.page_count - 1, fit * 8192ull / 16);
        make_answer(fit + 1);
        ck_assert(!answer.yes);
        ck_assert_uint_eq(answer.users_fit, fit);
        ck_assert_uint_gt(answer.least_bytes, memory[i]);
        ck_assert_uint_lt(answer.tokens_fit, 8192);
    }
}
END_TEST

START_TEST(test_no)
{
    make_answer(40);
    ck_assert(!answer.yes);
    ck_assert_uint_eq(answer.left_bytes, 0);
    ck_assert_uint_eq(answer.need_bytes + answer.other_bytes +
                          answer.plan.account_bytes[BUDGET_WEIGHTS] - answer.missing_bytes,
                      24 * GIB);
    ck_assert_ptr_nonnull(strstr(answer.sentence, "no: 40 users at 8,192 tokens need 40.0 GiB"));
    ck_assert_ptr_nonnull(
        strstr(answer.sentence, "what fits: 18 users at 8,192 tokens, or 40 users at "));
    /* What is offered is true. */
    const char *memory = strstr(answer.sentence, "--memory ");
    ck_assert_ptr_nonnull(memory);
    uint64_t offered;
    memory += strlen("--memory ");
    ck_assert(bytes_parse(memory, &offered));
    uint32_t tokens = (uint32_t)answer.tokens_fit;
    settings.memory_bytes = offered;
    make_answer(40);
    ck_assert(answer.yes);
    settings.memory_bytes = 24 * GIB;
    settings.context = tokens;
    make_answer(40);
    ck_assert(answer.yes);
    settings.context = tokens + 16;
    make_answer(40);
    ck_assert(!answer.yes);
}
END_TEST

START_TEST(test_rows)
{
    make_answer(16);
    ck_assert_uint_eq(answer.type_count, 5);
    ck_assert_uint_eq(answer.types[0].user_bytes, 2 * GIB);
    ck_assert(answer.types[1].own && answer.types[1].user_bytes == GIB);
    ck_assert_uint_eq(answer.types[3].user_bytes * 32, GIB * 17); /* 34 bytes for 64 */
    ck_assert_uint_eq(answer.types[4].user_bytes * 32, GIB * 9);
    for (unsigned i = 1; i < 5; i++)
        ck_assert_uint_ge(answer.types[i].users, answer.types[i - 1].users);
    /* MHA 32, GQA 8, GQA 4, MQA 1 */
    ck_assert_uint_eq(answer.head_count, 4);
    ck_assert_str_eq(answer.heads[0].name, "MHA, 32 heads");
    ck_assert_uint_eq(answer.heads[0].user_bytes, 4 * GIB);
    ck_assert(answer.heads[1].own && answer.heads[1].user_bytes == GIB);
    ck_assert_str_eq(answer.heads[3].name, "MQA, 1 head");
    ck_assert_uint_eq(answer.heads[3].user_bytes, GIB / 8);
    ck_assert_uint_eq(answer.window_count, 0);
    config.window = 1024;
    config.window_layers = 24;
    make_answer(16);
    ck_assert_uint_eq(answer.window_count, 2);
    ck_assert_uint_eq(answer.windows[0].user_bytes, GIB);
    /* a quarter of the layers whole, three quarters 65 pages of 512 */
    ck_assert_uint_eq(answer.windows[1].user_bytes, GIB / 4 + 3 * (GIB / 4) * 65 / 512);
    ck_assert_uint_gt(answer.windows[1].users, answer.windows[0].users);
    /* A type that these heads cannot be kept in. */
    config.head_dim = 80;
    make_answer(16);
    ck_assert_uint_eq(answer.types[3].token_bytes, 0);
    ck_assert_uint_eq(answer.types[3].users, 0);
    ck_assert_uint_gt(answer.types[1].users, 0);
}
END_TEST

/* A question about any numbers has an answer: sums saturate, nothing overflows. */
START_TEST(test_absurd_numbers)
{
    config.layers = 1024;
    config.heads = config.kv_heads = 4096;
    config.head_dim = 512;
    config.embedding = 4096 * 512;
    config.feed_forward = 4 * config.embedding;
    config.context = settings.context = 1u << 24;
    config.tensor_bytes = (uint64_t)1 << 62;
    make_answer(4096);
    ck_assert(!answer.yes);
    ck_assert_uint_eq(answer.need_bytes, UINT64_MAX);
    ck_assert_uint_eq(answer.users_fit, 0);
    ck_assert_uint_eq(answer.least_bytes, 0);
    config.layers = config.heads = config.kv_heads = 1;
    config.head_dim = 8;
    config.embedding = 8;
    config.feed_forward = 8;
    config.vocabulary = 1;
    config.context = settings.context = 1;
    config.tensor_bytes = 0;
    make_answer(0);
    ck_assert(answer.yes);
    ck_assert_uint_eq(answer.users_fit, PLAN_USERS_MOST);
    ck_assert_ptr_nonnull(strstr(answer.sentence, "4,096 users and more"));
}
END_TEST

START_TEST(test_given_max_seqs_bounds_the_users)
{
    max_seqs_given = true;
    settings.memory_bytes = 2000 * GIB;
    settings.max_seqs = 10;
    make_answer(0);
    ck_assert_uint_eq(answer.users_fit, 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tests = tcase_create("plan");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_textbook_figures);
    tcase_add_test(tests, test_types);
    tcase_add_test(tests, test_windows);
    tcase_add_test(tests, test_tokens_of_pages);
    tcase_add_test(tests, test_division);
    tcase_add_test(tests, test_capped);
    tcase_add_test(tests, test_constraints);
    tcase_add_test(tests, test_least);
    tcase_add_test(tests, test_yes);
    tcase_add_test(tests, test_as_many_as_fit);
    tcase_add_test(tests, test_no);
    tcase_add_test(tests, test_rows);
    tcase_add_test(tests, test_absurd_numbers);
    tcase_add_test(tests, test_given_max_seqs_bounds_the_users);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
