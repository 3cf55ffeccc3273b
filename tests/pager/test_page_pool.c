/* Exact orders of the free list that is the LRU. */
#include "pager/page_pool.h"

#include <check.h>

#define PAGES 6 /* ids 0 … 5 */

static struct page pages[PAGES];
static struct page_pool pool;

static void setup(void)
{
    page_pool_init(&pool, pages, PAGES);
}

/* The free list, head first, as digits. */
static const char *order(void)
{
    static char text[PAGES + 1];
    unsigned length = 0;
    for (uint32_t page = pages[0].next; page != 0; page = pages[page].next)
        text[length++] = (char)('0' + page);
    text[length] = '\0';
    ck_assert_uint_eq(length, pool.free_count);
    return text;
}

START_TEST(pages_are_taken_in_order_and_never_the_null_page)
{
    ck_assert_str_eq(order(), "12345");
    for (uint32_t page = 1; page < PAGES; page++)
        ck_assert_uint_eq(page_pool_take(&pool), page);
    ck_assert_uint_eq(page_pool_take(&pool), 0);
    ck_assert_str_eq(order(), "");
}
END_TEST

START_TEST(empty_pages_are_reused_first_cached_ones_last_used_last)
{
    for (uint32_t page = 1; page < PAGES; page++)
        page_pool_take(&pool);
    page_pool_set_cached(&pool, 2, true);
    page_pool_set_cached(&pool, 4, true);
    page_pool_release(&pool, 4);
    page_pool_release(&pool, 1);
    page_pool_release(&pool, 2);
    page_pool_release(&pool, 5);
    ck_assert_str_eq(order(), "5142"); /* empty: last in, first out; cached: first in, first out */
    ck_assert_uint_eq(pool.cached_count, 2);
    ck_assert_uint_eq(page_pool_take(&pool), 5);
    ck_assert_uint_eq(page_pool_take(&pool), 1);
    ck_assert_uint_eq(page_pool_take(&pool), 4);
    ck_assert_uint_eq(pool.cached_count, 1);
}
END_TEST

START_TEST(a_page_is_free_only_after_its_last_release)
{
    uint32_t page = page_pool_take(&pool);
    page_pool_add_reference(&pool, page);
    ck_assert_uint_eq(page_pool_ref_count(&pool, page), 2);
    page_pool_release(&pool, page);
    ck_assert_uint_eq(pool.free_count, PAGES - 2);
    page_pool_release(&pool, page);
    ck_assert_uint_eq(pool.free_count, PAGES - 1);
    ck_assert_str_eq(order(), "12345");
}
END_TEST

START_TEST(holding_a_cached_page_takes_it_out_of_the_middle)
{
    for (uint32_t page = 1; page <= 3; page++) {
        page_pool_take(&pool);
        page_pool_set_cached(&pool, page, true);
    }
    for (uint32_t page = 1; page <= 3; page++)
        page_pool_release(&pool, page);
    ck_assert_str_eq(order(), "45123");
    page_pool_add_reference(&pool, 2);
    ck_assert_str_eq(order(), "4513");
    ck_assert_uint_eq(pool.cached_count, 2);
    page_pool_release(&pool, 2);
    ck_assert_str_eq(order(), "45132");
}
END_TEST

START_TEST(a_cached_page_that_is_forgotten_is_reused_next)
{
    for (uint32_t page = 1; page <= 2; page++) {
        page_pool_take(&pool);
        page_pool_set_cached(&pool, page, true);
    }
    page_pool_release(&pool, 1);
    page_pool_release(&pool, 2);
    ck_assert_str_eq(order(), "34512");
    page_pool_set_cached(&pool, 2, false);
    ck_assert_str_eq(order(), "23451");
    ck_assert_uint_eq(pool.cached_count, 1);
}
END_TEST

START_TEST(releasing_a_free_page_is_a_bug)
{
    page_pool_release(&pool, 1);
}
END_TEST

START_TEST(holding_the_null_page_is_a_bug)
{
    page_pool_add_reference(&pool, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("page_pool");
    TCase *tcase = tcase_create("core");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, pages_are_taken_in_order_and_never_the_null_page);
    tcase_add_test(tcase, empty_pages_are_reused_first_cached_ones_last_used_last);
    tcase_add_test(tcase, a_page_is_free_only_after_its_last_release);
    tcase_add_test(tcase, holding_a_cached_page_takes_it_out_of_the_middle);
    tcase_add_test(tcase, a_cached_page_that_is_forgotten_is_reused_next);
    tcase_add_test_raise_signal(tcase, releasing_a_free_page_is_a_bug, 6);
    tcase_add_test_raise_signal(tcase, holding_the_null_page_is_a_bug, 6);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
