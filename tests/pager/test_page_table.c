/* Growing all or nothing, sharing, copy on write, and release from the tail. */
#include "pager/page_table.h"

#include "pager/pager.h"

#include <check.h>

#define SIZE 8

static struct pager *pager;
static uint32_t storage[3][8];
static struct page_table a, b, c;
static uint32_t scratch[16];

static void setup(void)
{
    struct pager_options options = {
        .page_count = 6, .page_size = SIZE, .groups = {.count = 1}, .hash_key = {1, 2}};
    struct error error;
    ck_assert_int_eq(pager_create(&options, &pager, &error), STATUS_OK);
    a = (struct page_table){.pages = storage[0], .capacity = 8};
    b = (struct page_table){.pages = storage[1], .capacity = 8};
    c = (struct page_table){.pages = storage[2], .capacity = 8};
}

static void teardown(void)
{
    const struct page_table *const tables[] = {&a, &b, &c};
    struct error error;
    ck_assert_msg(page_tables_check(tables, 3, pager, scratch, &error), "%s", error.message);
    page_tables_release(&a, 1, pager);
    page_tables_release(&b, 1, pager);
    page_tables_release(&c, 1, pager);
    ck_assert_uint_eq(pager_free_count(pager), pager_total_count(pager));
    ck_assert_msg(page_tables_check(NULL, 0, pager, scratch, &error), "%s", error.message);
    pager_destroy(pager);
}

START_TEST(growing_is_all_or_nothing)
{
    ck_assert(page_table_grow(&a, pager, 3));
    ck_assert(!page_table_grow(&b, pager, 3));
    ck_assert_uint_eq(b.count, 0);
    ck_assert_uint_eq(pager_free_count(pager), 2);
    ck_assert(page_table_grow(&b, pager, 2));
    ck_assert(page_table_grow(&b, pager, 0));
    ck_assert_uint_eq(pager_free_count(pager), 0);
}
END_TEST

START_TEST(a_fork_shares_and_the_first_write_splits)
{
    ck_assert(page_table_grow(&a, pager, 2));
    page_table_fork(&b, pager, &a);
    page_table_fork(&c, pager, &a);
    ck_assert_uint_eq(pager_free_count(pager), 3);
    ck_assert_uint_eq(pager_ref_count(pager, a.pages[1]), 3);
    struct page_copy copy = {0, 0};
    uint32_t shared = a.pages[1];
    ck_assert_int_eq(page_table_own(&b, pager, 1, &copy), PAGE_OWN_COPY);
    ck_assert_uint_eq(copy.from, shared);
    ck_assert_uint_eq(copy.to, b.pages[1]);
    ck_assert_uint_ne(copy.to, shared);
    ck_assert_int_eq(page_table_own(&c, pager, 1, &copy), PAGE_OWN_COPY);
    /* The last one writes in place. */
    ck_assert_int_eq(page_table_own(&a, pager, 1, &copy), PAGE_OWN_ALREADY);
    ck_assert_uint_eq(a.pages[1], shared);
    ck_assert_uint_eq(pager_ref_count(pager, a.pages[0]), 3); /* heads stay shared */
}
END_TEST

START_TEST(no_room_for_a_copy_changes_nothing)
{
    ck_assert(page_table_grow(&a, pager, 5));
    page_table_fork(&b, pager, &a);
    struct page_copy copy = {77, 88};
    uint32_t page = b.pages[4];
    ck_assert_int_eq(page_table_own(&b, pager, 4, &copy), PAGE_OWN_NO_ROOM);
    ck_assert_uint_eq(b.pages[4], page);
    ck_assert_uint_eq(pager_ref_count(pager, page), 2);
    ck_assert_uint_eq(copy.from, 77);
    ck_assert_uint_eq(copy.to, 88);
}
END_TEST

START_TEST(heads_outlive_tails)
{
    static const uint32_t tokens[3 * SIZE] = {5, 6, 7};
    ck_assert(page_table_grow(&a, pager, 3));
    uint64_t parent_id = 0;
    for (uint32_t i = 0; i < 3; i++)
        parent_id = pager_publish(pager, a.pages[i], 0, parent_id, tokens + i * SIZE, 0);
    page_tables_release(&a, 1, pager);
    ck_assert_uint_eq(pager_cached_count(pager), 3);
    /* Two empty pages go first, then the tail of the prefix. */
    ck_assert(page_table_grow(&b, pager, 3));
    uint32_t pages[3];
    struct pager_match match;
    pager_find(pager, tokens, 3 * SIZE, 0, pages, 0, &match);
    ck_assert_uint_eq(match.page_count, 2);
    ck_assert(page_table_grow(&b, pager, 1));
    pager_find(pager, tokens, 3 * SIZE, 0, pages, 0, &match);
    ck_assert_uint_eq(match.page_count, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("page_table");
    TCase *tcase = tcase_create("core");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, growing_is_all_or_nothing);
    tcase_add_test(tcase, a_fork_shares_and_the_first_write_splits);
    tcase_add_test(tcase, no_room_for_a_copy_changes_nothing);
    tcase_add_test(tcase, heads_outlive_tails);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
