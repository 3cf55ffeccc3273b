/* Completions: budget, output tokens, references, and which function may be called when. No engine. */
#include "engine/completion_private.h"

#include <check.h>
#include <pthread.h>
#include <string.h>

static struct budget budget;
static const uint32_t prompt[5] = {10, 11, 12, 13, 14};
static unsigned wakes;

static void setup(void)
{
    budget_init(&budget, 1 << 20);
    struct error error;
    ck_assert_int_eq(budget_reserve(&budget, BUDGET_REQUESTS, 100000, &error), STATUS_OK);
    wakes = 0;
}

static void teardown(void)
{
    ck_assert_uint_eq(atomic_load(&budget.used_bytes[BUDGET_REQUESTS]), 0);
}

static void count_wake(void *arg)
{
    (*(unsigned *)arg)++;
}

static struct completion_spec spec_of(uint32_t choices, uint32_t max_tokens)
{
    return (struct completion_spec){
        .tokens = prompt,
        .token_count = 5,
        .choice_count = choices,
        .max_tokens = max_tokens,
        .want_logprobs = true,
        .top_logprobs = 2,
        .wake = count_wake,
        .wake_arg = &wakes,
    };
}

static struct completion *create(const struct completion_spec *spec)
{
    struct completion *out;
    struct error error;
    ck_assert_int_eq(completion_create(spec, &budget, &out, &error), STATUS_OK);
    return out;
}

static void push(struct completion *completion, uint32_t choice, uint32_t token)
{
    struct sampled_token sampled = {
        .token = token, .logprob = -0.5f, .top_count = 2, .top = {{token, -0.5f}, {1, -2.0f}}};
    completion_push(completion, choice, &sampled);
}

START_TEST(tokens_rise_in_order_to_the_reader)
{
    struct completion_spec spec = spec_of(2, 3);
    struct completion *c = create(&spec);
    const struct completion_token *tokens;
    ck_assert_uint_eq(completion_read(c, 1, 0, &tokens), 0);
    push(c, 1, 20);
    push(c, 1, 21);
    ck_assert_uint_eq(completion_read(c, 1, 0, &tokens), 2);
    ck_assert_uint_eq(tokens[1].token, 21);
    ck_assert(tokens[1].logprob == -0.5f);
    push(c, 1, 22);
    const struct completion_token *more;
    ck_assert_uint_eq(completion_read(c, 1, 2, &more), 1);
    ck_assert_ptr_eq(more, tokens + 2); /* what was read stays where it is */
    ck_assert_uint_eq(completion_read(c, 0, 0, &more), 0);
    uint32_t count;
    const struct top_logprob *top = completion_top(c, 1, 2, &count);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(top[0].token, 22);
    ck_assert(top[1].logprob == -2.0f);
    ck_assert_mem_eq(c->sequences[1].history, ((uint32_t[]){10, 11, 12, 13, 14, 20, 21, 22}), 32);
    ck_assert(!completion_done(c));
    completion_finish(c, 1, FINISH_LENGTH);
    ck_assert_int_eq(completion_reason(c, 1), FINISH_LENGTH);
    ck_assert(!completion_done(c));
    completion_finish(c, 0, FINISH_STOP);
    ck_assert(completion_done(c));
    completion_release(c);
}
END_TEST

START_TEST(what_the_caller_gave_is_copied)
{
    uint32_t tokens[2] = {1, 2};
    struct logit_bias bias = {.token = 3, .bias = 4};
    struct completion_spec spec = {.tokens = tokens,
                                   .token_count = 2,
                                   .choice_count = 2,
                                   .max_tokens = 1,
                                   .sampling = {.logit_bias = &bias, .logit_bias_count = 1}};
    struct completion *c = create(&spec);
    tokens[0] = bias.token = 99;
    ck_assert_uint_eq(c->sequences[1].history[0], 1);
    ck_assert_uint_eq(c->sampling.logit_bias[0].token, 3);
    uint32_t count = 9;
    push(c, 0, 5);
    ck_assert_ptr_null(completion_top(c, 0, 0, &count)); /* none wanted */
    ck_assert_uint_eq(count, 0);
    completion_release(c);
}
END_TEST

START_TEST(no_room_now_and_no_room_ever_are_told_apart)
{
    struct completion_spec small = spec_of(1, 1000), large = spec_of(16, 1000);
    struct completion *kept[16], *none = NULL;
    struct error error;
    ck_assert_int_eq(completion_create(&large, &budget, &none, &error), STATUS_TOO_LARGE);
    unsigned count = 0;
    enum status status;
    while ((status = completion_create(&small, &budget, &kept[count], &error)) == STATUS_OK)
        ck_assert_uint_lt(++count, 16);
    ck_assert_int_eq(status, STATUS_BUSY);
    ck_assert_uint_ge(error.retry_after_s, 1);
    ck_assert_uint_ge(count, 2);
    completion_release(kept[--count]);
    ck_assert_int_eq(completion_create(&small, &budget, &kept[count++], &error), STATUS_OK);
    while (count > 0)
        completion_release(kept[--count]);
    /* Sizes at the edge of 32 bits are refused, not wrapped. */
    struct completion_spec absurd = spec_of(16, UINT32_MAX);
    ck_assert_int_eq(completion_create(&absurd, &budget, &none, &error), STATUS_TOO_LARGE);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(both_references_are_released_in_either_order)
{
    atomic_uint epoch = 0;
    for (unsigned engine_first = 0; engine_first < 2; engine_first++) {
        struct completion_spec spec = spec_of(1, 3);
        struct completion *c = create(&spec);
        completion_attach(c, &epoch);
        push(c, 0, 9);
        completion_finish(c, 0, FINISH_LENGTH);
        completion_wake(c);
        if (engine_first) {
            completion_detach(c);
            const struct completion_token *tokens;
            ck_assert_uint_eq(completion_read(c, 0, 0, &tokens), 1);
            completion_cancel(c); /* late, but harmless */
            completion_release(c);
        } else {
            completion_release(c);
            completion_wake(c); /* nobody is woken any more */
            completion_detach(c);
        }
    }
    ck_assert_uint_eq(wakes, 2);
    ck_assert_uint_eq(epoch, 0);
}
END_TEST

START_TEST(cancelling_raises_the_engines_epoch_while_it_holds)
{
    atomic_uint epoch = 0;
    struct completion_spec spec = spec_of(3, 3);
    struct completion *c = create(&spec);
    completion_stop_choice(c, 1); /* before submit: seen when it comes in */
    ck_assert_uint_eq(epoch, 0);
    completion_attach(c, &epoch);
    ck_assert(!completion_is_cancelled(c, 0));
    ck_assert(completion_is_cancelled(c, 1));
    completion_stop_choice(c, 2);
    ck_assert_uint_eq(epoch, 1);
    completion_release(c); /* not done: the reader's leaving cancels all */
    ck_assert_uint_eq(epoch, 2);
    ck_assert(completion_is_cancelled(c, 0));
    completion_detach(c);
}
END_TEST

/* ---- two threads ---- */

#define MANY 2000

static void *write_all(void *arg)
{
    struct completion *c = arg;
    for (uint32_t i = 0; i < MANY; i++)
        push(c, 0, i);
    completion_finish(c, 0, FINISH_LENGTH);
    completion_wake(c);
    completion_detach(c);
    return NULL;
}

START_TEST(reader_and_writer_run_side_by_side)
{
    atomic_uint epoch = 0;
    budget.cap_bytes[BUDGET_REQUESTS] = 1 << 20;
    struct completion_spec spec = spec_of(1, MANY);
    struct completion *c = create(&spec);
    completion_attach(c, &epoch);
    pthread_t writer;
    ck_assert_int_eq(pthread_create(&writer, NULL, write_all, c), 0);
    uint32_t seen = 0;
    for (;;) {
        bool ended = completion_reason(c, 0) != FINISH_NONE; /* before the tokens */
        const struct completion_token *tokens;
        uint32_t count = completion_read(c, 0, seen, &tokens), top_count;
        for (uint32_t i = 0; i < count; i++) {
            ck_assert_uint_eq(tokens[i].token, seen + i);
            ck_assert_uint_eq(completion_top(c, 0, seen + i, &top_count)->token, seen + i);
        }
        seen += count;
        if (ended)
            break;
    }
    ck_assert_uint_eq(seen, MANY);
    completion_release(c);
    pthread_join(writer, NULL);
}
END_TEST

START_TEST(more_tokens_than_asked_for_is_a_bug)
{
    struct completion_spec spec = spec_of(1, 1);
    struct completion *c = create(&spec);
    push(c, 0, 1);
    push(c, 0, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("completion");
    TCase *tcase = tcase_create("core");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, tokens_rise_in_order_to_the_reader);
    tcase_add_test(tcase, what_the_caller_gave_is_copied);
    tcase_add_test(tcase, no_room_now_and_no_room_ever_are_told_apart);
    tcase_add_test(tcase, both_references_are_released_in_either_order);
    tcase_add_test(tcase, cancelling_raises_the_engines_epoch_while_it_holds);
    tcase_add_test(tcase, reader_and_writer_run_side_by_side);
    tcase_add_test_raise_signal(tcase, more_tokens_than_asked_for_is_a_bug, 6);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
