/* Finding, forgetting, and that nothing is found that is not exactly what was asked for. */
#include "pager/prefix_index.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 40
#define SIZE 8

static struct prefix_entry entries[PAGES];
static uint32_t tokens[PAGES * SIZE];
static uint32_t buckets[64];
static struct prefix_index prefixes;

static void setup(void)
{
    static const uint64_t key[2] = {0x0123456789abcdefu, 0xfedcba9876543210u};
    memset(entries, 0, sizeof entries);
    memset(buckets, 0, sizeof buckets);
    ck_assert_uint_eq(prefix_index_bucket_count(PAGES), 64);
    prefix_index_init(&prefixes, PAGES, SIZE, key, entries, tokens, buckets);
}

/* Eight tokens counted up from `first`. */
static const uint32_t *run(uint32_t first)
{
    static uint32_t ids[4][SIZE];
    static unsigned next;
    uint32_t *out = ids[next++ % 4];
    for (uint32_t i = 0; i < SIZE; i++)
        out[i] = first + i;
    return out;
}

START_TEST(an_entry_is_found_by_parent_tokens_and_salt_together)
{
    if (_i == 1)
        prefixes.bucket_count = 1; /* the comparison alone must tell them apart */
    uint64_t root = prefix_index_add(&prefixes, 7, 0, PREFIX_ROOT, run(100), 1);
    uint64_t child = prefix_index_add(&prefixes, 3, 0, root, run(200), 1);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, PREFIX_ROOT, run(100), 1), 7);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, root, run(200), 1), 3);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, PREFIX_ROOT, run(200), 1), 0);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, child, run(200), 1), 0);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, root, run(201), 1), 0);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, root, run(200), 2), 0);
    ck_assert(prefix_index_consistent(&prefixes));
}
END_TEST

START_TEST(a_child_is_not_found_through_a_page_that_took_its_parents_place)
{
    uint64_t old = prefix_index_add(&prefixes, 1, 0, PREFIX_ROOT, run(10), 0);
    prefix_index_add(&prefixes, 2, 0, old, run(20), 0);
    prefix_index_remove(&prefixes, 1);
    uint64_t other = prefix_index_add(&prefixes, 1, 0, PREFIX_ROOT, run(90), 0);
    ck_assert_uint_ne(other, old);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, other, run(20), 0), 0);
    /* Nor when the same content is computed again: the number is another. */
    prefix_index_remove(&prefixes, 1);
    uint64_t again = prefix_index_add(&prefixes, 1, 0, PREFIX_ROOT, run(10), 0);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, again, run(20), 0), 0);
    ck_assert(prefix_index_consistent(&prefixes));
}
END_TEST

START_TEST(removal_from_any_place_of_a_bucket_leaves_the_others)
{
    /* One bucket for all: it is as long as the index. */
    prefixes.bucket_count = 1;
    for (uint32_t page = 1; page < PAGES; page++)
        prefix_index_add(&prefixes, page, 0, PREFIX_ROOT, run(page * 100), 0);
    ck_assert(prefix_index_consistent(&prefixes));
    srand(5);
    bool there[PAGES] = {false};
    memset(there + 1, true, PAGES - 1);
    for (unsigned left = PAGES - 1; left > 0; left--) {
        uint32_t page;
        do
            page = 1 + (uint32_t)rand() % (PAGES - 1);
        while (!there[page]);
        prefix_index_remove(&prefixes, page);
        there[page] = false;
        ck_assert(prefix_index_consistent(&prefixes));
        for (uint32_t i = 1; i < PAGES; i++)
            ck_assert_uint_eq(prefix_index_find(&prefixes, 0, PREFIX_ROOT, run(i * 100), 0),
                              there[i] ? i : 0);
    }
}
END_TEST

START_TEST(a_restored_entry_has_its_old_id_and_new_ones_come_after_it)
{
    prefix_index_restore(&prefixes, 1, 41, 0, PREFIX_ROOT, run(10), 0);
    ck_assert_uint_eq(prefix_index_find(&prefixes, 0, PREFIX_ROOT, run(10), 0), 1);
    ck_assert_uint_eq(entries[1].id, 41);
    ck_assert_uint_eq(prefix_index_add(&prefixes, 2, 0, 41, run(20), 0), 42);
    ck_assert(prefix_index_consistent(&prefixes));
}
END_TEST

START_TEST(an_id_is_never_given_twice)
{
    prefix_index_add(&prefixes, 1, 0, PREFIX_ROOT, run(10), 0);
    prefix_index_restore(&prefixes, 2, 1, 0, PREFIX_ROOT, run(20), 0);
}
END_TEST

START_TEST(keys_spread_over_the_buckets)
{
    /* Sequential contents in 39 entries and 64 buckets: a bucket of more than 6 would be a bad
     * hash.
     */
    for (uint32_t page = 1; page < PAGES; page++)
        prefix_index_add(&prefixes, page, 0, PREFIX_ROOT, run(page), 0);
    for (uint32_t bucket = 0; bucket < 64; bucket++) {
        unsigned length = 0;
        for (uint32_t page = buckets[bucket]; page; page = entries[page].next)
            length++;
        ck_assert_uint_le(length, 6);
    }
}
END_TEST

START_TEST(another_key_gives_other_buckets)
{
    uint32_t bucket_of[2][PAGES];
    for (unsigned round = 0; round < 2; round++) {
        setup();
        prefixes.key[0] += round;
        for (uint32_t page = 1; page < PAGES; page++) {
            prefix_index_add(&prefixes, page, 0, PREFIX_ROOT, run(page), 0);
            bucket_of[round][page] = entries[page].bucket;
        }
    }
    unsigned same = 0;
    for (uint32_t page = 1; page < PAGES; page++)
        same += bucket_of[0][page] == bucket_of[1][page];
    ck_assert_uint_le(same, 6); /* 39 / 64 expected */
}
END_TEST

START_TEST(a_second_entry_for_the_same_content_is_a_bug)
{
    prefix_index_add(&prefixes, 1, 0, PREFIX_ROOT, run(10), 0);
    prefix_index_add(&prefixes, 2, 0, PREFIX_ROOT, run(10), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("prefix_index");
    TCase *tcase = tcase_create("core");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_loop_test(tcase, an_entry_is_found_by_parent_tokens_and_salt_together, 0, 2);
    tcase_add_test(tcase, a_child_is_not_found_through_a_page_that_took_its_parents_place);
    tcase_add_test(tcase, removal_from_any_place_of_a_bucket_leaves_the_others);
    tcase_add_test(tcase, a_restored_entry_has_its_old_id_and_new_ones_come_after_it);
    tcase_add_test_raise_signal(tcase, an_id_is_never_given_twice, 6);
    tcase_add_test(tcase, keys_spread_over_the_buckets);
    tcase_add_test(tcase, another_key_gives_other_buckets);
    tcase_add_test_raise_signal(tcase, a_second_entry_for_the_same_content_is_a_bug, 6);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
