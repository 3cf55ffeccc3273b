/* The arithmetic of KV cache groups against counting page by page. */
#include "pager/kv_groups.h"

#include <check.h>
#include <stdbool.h>

static const uint32_t page_sizes[] = {8, 16, 32, 64};
static const uint32_t windows[] = {0, 1, 2, 7, 8, 9, 16, 20, 64, 65, 100, 512};
#define WINDOWS (sizeof windows / sizeof *windows)

static bool page_is_seen(uint32_t window, uint32_t page_size, uint32_t page, uint32_t position)
{
    for (uint32_t p = page * page_size; p < (page + 1) * page_size; p++) {
        if (window == 0 || p + window > position)
            return true; /* by the query at `position`, or by one after it */
    }
    return false;
}

START_TEST(the_first_page_is_the_first_that_is_seen)
{
    uint32_t size = page_sizes[_i];
    for (uint32_t w = 0; w < WINDOWS; w++) {
        struct kv_groups groups = {.count = 2, .window = {0, windows[w]}};
        for (uint32_t position = 0; position < 700; position++) {
            uint32_t first = 0;
            while (!page_is_seen(windows[w], size, first, position))
                first++;
            ck_assert_uint_eq(kv_groups_first(&groups, 1, size, position), first);
            ck_assert_uint_eq(kv_groups_first(&groups, 0, size, position), 0);
        }
    }
}
END_TEST

/* The most pages that steps of up to `rows` tokens ever need at once, wherever they begin. */
static uint32_t count_held(uint32_t window, uint32_t size, uint32_t rows, uint32_t token_count)
{
    uint32_t most = 0;
    for (uint32_t start = 0; start < token_count; start++) {
        uint32_t end = start + rows < token_count ? start + rows : token_count, pages = 0;
        for (uint32_t page = 0; page <= (end - 1) / size; page++)
            pages += page_is_seen(window, size, page, start);
        most = pages > most ? pages : most;
    }
    return most;
}

START_TEST(what_is_held_is_what_a_step_can_reach)
{
    static const uint32_t rows[] = {1, 2, 7, 8, 9, 33, 64};
    uint32_t size = page_sizes[_i];
    for (uint32_t w = 0; w < WINDOWS - 1; w++) {
        struct kv_groups groups = {.count = 3, .window = {0, windows[w], windows[w]}};
        for (uint32_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            for (uint32_t tokens = 1; tokens < 500; tokens += 83) {
                uint32_t pages = kv_groups_pages(size, tokens);
                uint64_t held = kv_groups_most_pages(&groups, 1, size, rows[r], pages);
                uint32_t counted = count_held(windows[w], size, rows[r], tokens);
                /* Long enough for steps to begin anywhere in a page it is exact. */
                ck_assert_uint_ge(held, counted);
                if (windows[w] == 0 || tokens >= windows[w] + rows[r] + 2 * size)
                    ck_assert_uint_eq(held, counted);
                ck_assert_uint_eq(kv_groups_need(&groups, size, rows[r], tokens), pages + 2 * held);
            }
        }
    }
}
END_TEST

START_TEST(what_fits_is_the_longest_that_does)
{
    static const struct kv_groups groups[] = {
        {.count = 1},
        {.count = 2, .window = {0, 20}},
        {.count = 6, .window = {0, 512, 512, 512, 512, 512}},
        {.count = 3, .window = {0, 0, 64}},
    };
    uint32_t size = page_sizes[_i];
    for (uint32_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (uint32_t rows = 1; rows < 600; rows = rows * 5 + 3) {
            for (uint64_t pages = 0; pages < 300; pages += 1 + pages / 20) {
                uint32_t fit = kv_groups_fit(&groups[g], size, rows, pages);
                ck_assert_uint_eq(fit % size, 0);
                ck_assert(kv_groups_need(&groups[g], size, rows, fit) <= pages);
                ck_assert(kv_groups_need(&groups[g], size, rows, fit + 1) > pages);
            }
        }
        /* Nothing overflows. */
        uint32_t longest = kv_groups_fit(&groups[g], size, 512, UINT64_MAX);
        ck_assert_uint_eq(longest, UINT32_MAX / size * size);
        longest = kv_groups_fit(&groups[0], size, 512, UINT32_MAX - 1);
        ck_assert_uint_eq(longest, UINT32_MAX / size * size);
    }
    ck_assert_uint_eq(kv_groups_fit(&groups[0], size, 512, 77), 77 * size);
}
END_TEST

/* Gemma 3 270M, pages of 16: at 4,096 tokens 256 pages that grow, and five times 33 when decoding,
   instead of the 1,536 of six groups kept whole. */
START_TEST(gemma_3_holds_little)
{
    struct kv_groups groups = {.count = 6, .window = {0, 512, 512, 512, 512, 512}};
    ck_assert_uint_eq(kv_groups_need(&groups, 16, 1, 4096), 256 + 5 * 33);
    ck_assert_uint_eq(kv_groups_need(&groups, 16, 512, 4096), 256 + 5 * 65);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kv_groups");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, the_first_page_is_the_first_that_is_seen, 0, 4);
    tcase_add_loop_test(tcase, what_is_held_is_what_a_step_can_reach, 0, 4);
    tcase_add_loop_test(tcase, what_fits_is_the_longest_that_does, 0, 4);
    tcase_add_test(tcase, gemma_3_holds_little);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
