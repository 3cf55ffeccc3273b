/*
 * A sequence's pages in KV cache groups, in exact numbers: what a prompt starts with, what moves on
 * with its window, what a choice takes and shares, and what it may come to take.
 *
 * Pages of 8 tokens, steps of up to 16 rows; group 0 sees all, 1 and 2 the last 20 tokens: at most
 * (20 - 1 + 16) positions at once, in 6 pages, and 4 pages when one token is computed at a time.
 */
#include "engine/scheduler/sequence.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <string.h>

#define SIZE 8u
#define ROWS 16u
#define GROUPS 3u
#define TABLE 16u

static struct pager *pager;
static uint32_t storage[4][GROUPS][TABLE];
static struct page_table tables[4][GROUPS];
static struct sequence sequences[4];
static uint32_t tokens[TABLE * SIZE];
static struct page_copy copies[4 * GROUPS];
static uint32_t copy_count;

static void setup(void)
{
    struct pager_options options = {.page_count = 101,
                                    .page_size = SIZE,
                                    .groups = {.count = GROUPS, .window = {0, 20, 20}},
                                    .hash_key = {1, 2}};
    struct error error;
    ck_assert_int_eq(pager_create(&options, &pager, &error), STATUS_OK);
    memset(sequences, 0, sizeof sequences);
    for (uint32_t i = 0; i < TABLE * SIZE; i++)
        tokens[i] = i * 5 % RIG_VOCABULARY;
    for (uint32_t s = 0; s < 4; s++) {
        sequences[s].tables = tables[s];
        for (uint32_t g = 0; g < GROUPS; g++)
            tables[s][g] = (struct page_table){.pages = storage[s][g], .capacity = TABLE};
    }
    copy_count = 0;
}

static void check_pages(void)
{
    static uint32_t scratch[101];
    const struct page_table *list[4 * GROUPS];
    struct error error;
    for (uint32_t i = 0; i < 4 * GROUPS; i++)
        list[i] = &tables[i / GROUPS][i % GROUPS];
    ck_assert_msg(page_tables_check(list, 4 * GROUPS, pager, scratch, &error), "%s", error.message);
}

static void teardown(void)
{
    for (uint32_t s = 0; s < 4; s++) {
        struct completion *completion = sequences[s].completion;
        if (completion)
            sequence_clear(&sequences[s], pager);
        if (completion && s == 0)
            completion_release(completion);
    }
    check_pages();
    ck_assert_uint_eq(pager_free_count(pager), pager_total_count(pager));
    pager_destroy(pager);
}

/* All sequences of a test are choices of one completion. */
static struct completion *completion_of(uint32_t token_count)
{
    struct completion *completion =
        rig_completion(&(struct rig_request){.tokens = tokens,
                                             .token_count = token_count,
                                             .choice_count = 4,
                                             .max_tokens = TABLE * SIZE - token_count});
    completion->token_limit = TABLE * SIZE;
    return completion;
}

static struct pager_match start(uint32_t s, struct completion *completion)
{
    struct pager_match match;
    sequence_init(&sequences[s], completion, s);
    pager_find(pager, tokens, completion->prompt_count, 0, storage[s][0], TABLE, &match);
    uint32_t before = pager_free_count(pager);
    struct sequence_origin origin = {match, match.page_count * SIZE};
    uint64_t need = sequence_initial_pages(pager, completion->prompt_count, ROWS, &origin);
    sequence_start(&sequences[s], pager, ROWS, &origin);
    ck_assert_uint_eq(sequence_page_count(&sequences[s], pager), need);
    ck_assert_uint_eq(pager_free_count(pager), before - (need - match.referenced_count));
    check_pages();
    return match;
}

static void expect_table(uint32_t s, uint32_t group, uint32_t first, uint32_t count)
{
    const struct page_table *table = &tables[s][group];
    ck_assert_msg(table->first == first && table->count == count,
                  "sequence %u, group %u: pages %u … %u, not %u … %u", s, group, table->first,
                  table->count, first, count);
}

/* What a step does with it; returns how many pages it took beyond those that it gave back. */
static int step(uint32_t s, uint32_t count)
{
    struct sequence *sequence = &sequences[s];
    int before = (int)pager_free_count(pager);
    sequence_slide(sequence, pager);
    uint32_t wanted = sequence_missing_pages(sequence, pager, ROWS);
    uint32_t free_count = pager_free_count(pager), copied = copy_count;
    sequence_take_pages(sequence, pager, ROWS, copies, &copy_count);
    ck_assert_uint_eq(pager_free_count(pager) + wanted + copy_count - copied, free_count);
    ck_assert_uint_eq(sequence_missing_pages(sequence, pager, ROWS), 0);
    sequence_advance(sequence, pager, count, true);
    check_pages();
    return before - (int)pager_free_count(pager);
}

START_TEST(a_prompt_moves_on_in_pages_of_its_own)
{
    struct completion *completion = completion_of(100);
    start(0, completion);
    expect_table(0, 0, 0, 13);
    expect_table(0, 1, 0, 6);
    expect_table(0, 2, 0, 6);
    static const struct {
        uint32_t rows, first, count;
    } steps[] = {{16, 0, 6},  {16, 0, 6},  {5, 1, 7},  {16, 2, 8},
                 {16, 4, 10}, {16, 6, 12}, {15, 8, 13}};
    uint32_t computed = 0;
    for (uint32_t i = 0; i < 7; i++) {
        /* What it gives back it takes again: other prompts do not wait for it, nor it for them.
           Only the last step needs less. */
        ck_assert_int_eq(step(0, steps[i].rows), i == 6 ? -2 : 0);
        expect_table(0, 0, 0, 13);
        for (uint32_t g = 1; g < GROUPS; g++)
            expect_table(0, g, steps[i].first, steps[i].count);
        /* It is there what the first of the next positions sees. */
        computed += steps[i].rows;
        ck_assert_uint_le(steps[i].first * SIZE, computed < 20 ? 0 : computed + 1 - 20);
    }
    ck_assert_uint_eq(sequences[0].computed, 100);
}
END_TEST

START_TEST(a_decoding_sequence_releases_pages_at_the_end_of_a_page)
{
    struct completion *completion = completion_of(39);
    start(0, completion);
    for (uint32_t left = 39; left > 0; left -= left < ROWS ? left : ROWS)
        step(0, left < ROWS ? left : ROWS);
    sequences[0].state = SEQUENCE_DECODE;
    sequences[0].token_count++;
    expect_table(0, 1, 1, 5); /* position 32's step saw from 13 on */
    ck_assert_uint_eq(sequence_next_growth(&sequences[0], pager), 1); /* both windows move */
    ck_assert_int_eq(step(0, 1), 0);                                  /* position 39 */
    expect_table(0, 1, 1, 5);
    sequences[0].token_count++;
    /* Position 40 sees 21 … 40: pages 2 … 5. One page more of group 0. */
    ck_assert_int_eq(step(0, 1), 1);
    expect_table(0, 0, 0, 6);
    expect_table(0, 1, 2, 6);
    ck_assert_uint_eq(sequence_worst_case_growth(&sequences[0], pager, ROWS), 16 - 6);
    for (uint32_t position = 41; position < 120; position++) {
        sequences[0].token_count++;
        ck_assert_int_eq(step(0, 1), position % SIZE == 0);
        ck_assert_uint_le(tables[0][1].count - tables[0][1].first, 4);
    }
}
END_TEST

START_TEST(a_hit_starts_with_the_last_window)
{
    struct completion *completion = completion_of(100);
    start(0, completion);
    for (uint32_t i = 0; i < 4; i++)
        step(0, 16);
    /* 64 tokens are there. The same prompt again: pages 0 … 7 of group 0, and those that position
       64 sees (45 … 64): 5 … 7. They are shared, the rest is its own. */
    struct pager_match match = start(1, completion);
    ck_assert_uint_eq(match.page_count, 8);
    ck_assert_uint_eq(match.referenced_count, 8 + 3 + 3);
    ck_assert_uint_eq(match.full_referenced_count, 8);
    ck_assert_uint_eq(sequences[1].computed, 64);
    expect_table(1, 0, 0, 13);
    expect_table(1, 1, 5, 11);
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(storage[1][1][i], 0);
    for (uint32_t i = 5; i < 8; i++)
        ck_assert_uint_eq(storage[1][1][i], storage[0][1][i]);
    /* To its end undisturbed it needs six pages of each window that are not the other's, which
       keeps them when this one moves on; but not the eight of group 0. */
    struct sequence_origin origin = {match, match.page_count * SIZE};
    ck_assert_uint_eq(sequence_worst_case_pages(pager, TABLE * SIZE, ROWS, &origin),
                      16 - 8 + 2 * 6);
    ck_assert_uint_eq(sequence_worst_case_growth(&sequences[1], pager, ROWS), 3 + 2 * 3);
    ck_assert_uint_eq(sequence_private_pages(&sequences[1], pager), 5 + 2 * 3);
    ck_assert_uint_eq(sequence_recompute_tokens(&sequences[1], pager), 0);
    step(1, 16);
    /* The window moved on by two pages that the other still holds: two more were taken of each. */
    ck_assert_int_eq(step(1, 16), 2 * 2);
    expect_table(1, 1, 7, 13);
}
END_TEST

START_TEST(forks_share_and_copy_in_every_group)
{
    struct completion *completion = completion_of(28);
    start(0, completion);
    step(0, 16);
    step(0, 12);
    for (uint32_t s = 1; s < 3; s++) {
        sequence_init(&sequences[s], completion, s);
        sequences[s].state = SEQUENCE_PENDING_FORK;
        sequences[s].parent = &sequences[0];
        /* All that it may come to hold: sixteen pages, and six of each window. */
        ck_assert_uint_eq(sequence_worst_case_growth(&sequences[s], pager, ROWS), 16 + 2 * 6);
        sequence_fork(&sequences[s], pager, &sequences[0]);
    }
    for (uint32_t s = 0; s < 3; s++) {
        sequences[s].state = SEQUENCE_DECODE;
        sequences[s].token_count++;
    }
    check_pages();
    ck_assert_uint_eq(sequence_private_pages(&sequences[0], pager), 0);
    ck_assert_uint_eq(sequence_worst_case_growth(&sequences[0], pager, ROWS), 16 - 4 + 1 + 2 * 4);
    /* Position 28 lies in page 3, which has three references in every group. */
    ck_assert_int_eq(step(0, 1), GROUPS);
    ck_assert_int_eq(step(1, 1), GROUPS);
    ck_assert_int_eq(step(2, 1), 0); /* the last one writes where it is */
    ck_assert_uint_eq(copy_count, 2 * GROUPS);
    for (uint32_t i = 0; i < copy_count; i++) {
        ck_assert_uint_eq(copies[i].from, storage[2][i % GROUPS][3]);
        ck_assert_uint_eq(copies[i].to, storage[i / GROUPS][i % GROUPS][3]);
    }
    /* Two move on: position 32 sees from 13 on. Page 0 stays with the third. */
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t position = 29; position < 33; position++) {
            sequences[s].token_count++;
            ck_assert_int_eq(step(s, 1), position == 32 ? (int)GROUPS : 0);
        }
        expect_table(s, 1, 1, 5);
    }
    ck_assert_uint_eq(pager_ref_count(pager, storage[2][1][0]), 1);
    ck_assert_uint_eq(pager_ref_count(pager, storage[2][1][1]), 3);
    ck_assert_uint_eq(pager_ref_count(pager, storage[2][0][0]), 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sequence");
    TCase *tcase = tcase_create("core");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_prompt_moves_on_in_pages_of_its_own);
    tcase_add_test(tcase, a_decoding_sequence_releases_pages_at_the_end_of_a_page);
    tcase_add_test(tcase, a_hit_starts_with_the_last_window);
    tcase_add_test(tcase, forks_share_and_copy_in_every_group);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
