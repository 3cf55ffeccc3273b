/* The pacer against machines of known cost: does it keep the promise, and does it use the room? */
#include "engine/scheduler/pacer.h"

#include <check.h>

/* A machine: reading the weights once per step, then time per row, growing with the position. */
struct machine {
    double weights_ms, row_ms, decode_row_ms;
};

static double step_ms(const struct machine *m, uint32_t decode_tokens, uint32_t prompt_tokens)
{
    double compute = m->row_ms * prompt_tokens + m->decode_row_ms * decode_tokens;
    return m->weights_ms > compute ? m->weights_ms + compute / 4 : compute + m->weights_ms / 4;
}

static uint64_t to_ns(double ms)
{
    return (uint64_t)(ms * 1e6);
}

START_TEST(without_a_target_there_is_no_limit)
{
    struct pacer pacer;
    pacer_init(&pacer, 0, 500);
    pacer_observe(&pacer, 3, 100, to_ns(5000));
    ck_assert_uint_eq(pacer_prompt_tokens(&pacer, 3), 500);
}
END_TEST

START_TEST(the_first_chunk_is_small_and_never_more_than_the_batch)
{
    struct pacer pacer;
    pacer_init(&pacer, 100, 500);
    ck_assert_uint_eq(pacer_prompt_tokens(&pacer, 0), 32);
    pacer_init(&pacer, 100, 7);
    ck_assert_uint_eq(pacer_prompt_tokens(&pacer, 0), 7);
}
END_TEST

START_TEST(a_step_stays_under_the_target_and_uses_most_of_it)
{
    static const struct machine machines[] = {{5, 1, 1}, {10, 2, 2.5}, {5, 0.2, 0.3}, {40, 0.5, 1}};
    const struct machine *m = &machines[_i];
    struct pacer pacer;
    pacer_init(&pacer, 100, 4096);
    for (unsigned round = 0; round < 40; round++) { /* decoding alone, at several sizes */
        uint32_t rows = 1 + round % 8;
        pacer_observe(&pacer, rows, 0, to_ns(step_ms(m, rows, 0)));
    }
    for (unsigned round = 0; round < 60; round++) {
        uint32_t decode_tokens = round % 9;
        uint32_t prompt_tokens = pacer_prompt_tokens(&pacer, decode_tokens);
        double ms = step_ms(m, decode_tokens, prompt_tokens);
        double alone = decode_tokens ? step_ms(m, decode_tokens, 0) : 0;
        double limit = alone * 1.25 > 100 ? alone * 1.25 : 100;
        ck_assert_msg(ms <= limit * 1.06, "round %u: %g ms for %u+%u rows", round, ms,
                      decode_tokens, prompt_tokens);
        if (round > 30)
            ck_assert_msg(ms >= limit * 0.6, "round %u: %g ms for %u+%u rows", round, ms,
                          decode_tokens, prompt_tokens);
        pacer_observe(&pacer, decode_tokens, prompt_tokens, to_ns(ms));
    }
}
END_TEST

START_TEST(when_decoding_alone_is_slow_prompts_stretch_it_by_a_quarter)
{
    const struct machine m = {20, 1, 4};
    struct pacer pacer;
    pacer_init(&pacer, 100, 4096);
    for (unsigned round = 0; round < 20; round++)
        pacer_observe(&pacer, 64, 0, to_ns(step_ms(&m, 64, 0)));
    double alone = step_ms(&m, 64, 0);
    for (unsigned round = 0; round < 40; round++) {
        uint32_t rows = pacer_prompt_tokens(&pacer, 64);
        double ms = step_ms(&m, 64, rows);
        ck_assert_uint_ge(rows, 1);
        ck_assert(ms <= 1.25 * alone * 1.02);
        if (round > 20)
            ck_assert(ms >= 1.1 * alone);
        pacer_observe(&pacer, 64, rows, to_ns(ms));
    }
}
END_TEST

START_TEST(a_machine_that_becomes_slower_is_noticed_at_once)
{
    struct machine m = {5, 1, 1};
    struct pacer pacer;
    pacer_init(&pacer, 100, 4096);
    for (unsigned round = 0; round < 20; round++) {
        uint32_t rows = pacer_prompt_tokens(&pacer, 0);
        pacer_observe(&pacer, 0, rows, to_ns(step_ms(&m, 0, rows)));
    }
    m.row_ms = 3;
    unsigned too_long = 0;
    for (unsigned round = 0; round < 20; round++) {
        uint32_t rows = pacer_prompt_tokens(&pacer, 0);
        double ms = step_ms(&m, 0, rows);
        too_long += ms > 106;
        pacer_observe(&pacer, 0, rows, to_ns(ms));
    }
    ck_assert_uint_le(too_long, 2);
}
END_TEST

START_TEST(a_prompt_always_gets_a_token)
{
    struct pacer pacer;
    pacer_init(&pacer, 1, 64);
    pacer_observe(&pacer, 0, 1, to_ns(900));
    ck_assert_uint_eq(pacer_prompt_tokens(&pacer, 0), 1);
    pacer_observe(&pacer, 5, 0, to_ns(900));
    ck_assert_uint_ge(pacer_prompt_tokens(&pacer, 5), 1);
}
END_TEST

START_TEST(a_slow_machine_does_not_read_its_weights_for_a_token_or_two)
{
    /* A large model: 80 ms to read, 20 ms a row. Alone, 16 rows; beside who decodes, what fits. */
    const struct machine m = {80, 20, 20};
    struct pacer pacer;
    pacer_init(&pacer, 100, 512);
    for (unsigned round = 0; round < 40; round++) {
        uint32_t decode_tokens = round % 2;
        uint32_t rows = pacer_prompt_tokens(&pacer, decode_tokens);
        if (round > 10)
            ck_assert_uint_eq(rows, decode_tokens ? 1 : 16);
        pacer_observe(&pacer, decode_tokens, rows, to_ns(step_ms(&m, decode_tokens, rows)));
        pacer_observe(&pacer, 1, 0, to_ns(step_ms(&m, 1, 0)));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pacer");
    TCase *tcase = tcase_create("core");
    tcase_add_test(tcase, without_a_target_there_is_no_limit);
    tcase_add_test(tcase, the_first_chunk_is_small_and_never_more_than_the_batch);
    tcase_add_loop_test(tcase, a_step_stays_under_the_target_and_uses_most_of_it, 0, 4);
    tcase_add_test(tcase, when_decoding_alone_is_slow_prompts_stretch_it_by_a_quarter);
    tcase_add_test(tcase, a_machine_that_becomes_slower_is_noticed_at_once);
    tcase_add_test(tcase, a_prompt_always_gets_a_token);
    tcase_add_test(tcase, a_slow_machine_does_not_read_its_weights_for_a_token_or_two);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
