/*
 * The pager against a naive model: every operation is done twice, here with linear searches over
 * plain arrays, and everything that can be seen must agree. After each operation pager_check must
 * hold, and must stop holding when something is broken on purpose.
 */
#include "pager/pager.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_MAX 41
#define TABLES 9
#define TABLE_PAGES 12
#define SIZE_MAX_TOKENS 64

/* ---- the naive model ---- */

struct naive_page {
    unsigned holders;
    bool findable;
    uint64_t name, parent; /* of its entry */
    uint64_t salt;
    uint32_t tokens[SIZE_MAX_TOKENS];
    /* What is truly in it: all tokens from the beginning; set when computed. */
    uint32_t truth[TABLE_PAGES * SIZE_MAX_TOKENS];
    unsigned truth_pages;
    uint64_t truth_salt;
};

struct naive {
    unsigned page_count, size;
    struct naive_page pages[PAGES_MAX];
    uint32_t order[PAGES_MAX]; /* free pages, next to be reused first */
    unsigned free_count;
    uint64_t last_name;
};

struct table {
    struct page_table real;
    uint32_t storage[TABLE_PAGES];
    uint32_t tokens[TABLE_PAGES * SIZE_MAX_TOKENS]; /* what its owner computes */
    uint64_t salt;
    uint64_t chain, naive_chain;
    unsigned published;
    bool alive;
};

static struct naive naive;
static struct table tables[TABLES];
static struct pager *pager;
static uint32_t scratch[PAGES_MAX];
static uint64_t random_state;

static uint32_t dice(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20) % sides;
}

static void naive_init(unsigned page_count, unsigned size)
{
    memset(&naive, 0, sizeof naive);
    naive.page_count = page_count;
    naive.size = size;
    for (unsigned page = 1; page < page_count; page++)
        naive.order[naive.free_count++] = page;
}

static void naive_remove_from_order(uint32_t page)
{
    unsigned at = 0;
    while (naive.order[at] != page)
        ck_assert_uint_lt(++at, naive.free_count);
    memmove(naive.order + at, naive.order + at + 1,
            (naive.free_count - at - 1) * sizeof *naive.order);
    naive.free_count--;
}

static bool naive_take(unsigned count, uint32_t *out)
{
    if (count > naive.free_count)
        return false;
    for (unsigned i = 0; i < count; i++) {
        out[i] = naive.order[0];
        naive_remove_from_order(out[i]);
        naive.pages[out[i]] = (struct naive_page){.holders = 1};
    }
    return true;
}

static void naive_hold(uint32_t page)
{
    if (naive.pages[page].holders++ == 0)
        naive_remove_from_order(page);
}

static void naive_release(uint32_t page)
{
    if (--naive.pages[page].holders > 0)
        return;
    unsigned at = naive.pages[page].findable ? naive.free_count : 0;
    memmove(naive.order + at + 1, naive.order + at, (naive.free_count - at) * sizeof *naive.order);
    naive.order[at] = page;
    naive.free_count++;
}

static uint32_t naive_lookup(uint64_t parent, const uint32_t *tokens, uint64_t salt)
{
    for (uint32_t page = 1; page < naive.page_count; page++) {
        const struct naive_page *p = &naive.pages[page];
        if (p->findable && p->parent == parent && p->salt == salt &&
            memcmp(p->tokens, tokens, naive.size * sizeof *tokens) == 0)
            return page;
    }
    return 0;
}

static uint64_t naive_publish(uint32_t page, uint64_t parent, const uint32_t *tokens, uint64_t salt)
{
    uint32_t known = naive_lookup(parent, tokens, salt);
    if (known)
        return naive.pages[known].name;
    struct naive_page *p = &naive.pages[page];
    p->findable = true;
    p->name = ++naive.last_name;
    p->parent = parent;
    p->salt = salt;
    memcpy(p->tokens, tokens, naive.size * sizeof *tokens);
    return p->name;
}

/* ---- comparing ---- */

static void compare(void)
{
    const struct page_table *list[TABLES];
    size_t count = 0;
    for (unsigned t = 0; t < TABLES; t++) {
        if (tables[t].alive)
            list[count++] = &tables[t].real;
    }
    struct error error;
    ck_assert_msg(pager_check(pager, list, count, scratch, &error), "%s", error.message);
    ck_assert_uint_eq(pager_free_count(pager), naive.free_count);
    unsigned cached = 0;
    for (unsigned page = 1; page < naive.page_count; page++) {
        ck_assert_uint_eq(pager_holders(pager, page), naive.pages[page].holders);
        ck_assert_int_eq(pager_findable(pager, page), naive.pages[page].findable);
        cached += naive.pages[page].findable && naive.pages[page].holders == 0;
    }
    ck_assert_uint_eq(pager_cached_count(pager), cached);
}

/* ---- operations, done twice ---- */

static void set_truth(struct table *table, unsigned from)
{
    for (unsigned i = from; i < table->real.count; i++) {
        struct naive_page *page = &naive.pages[table->real.pages[i]];
        memcpy(page->truth, table->tokens, (i + 1) * naive.size * sizeof(uint32_t));
        page->truth_pages = i + 1;
        page->truth_salt = table->salt;
    }
}

static void grow(struct table *table, unsigned count)
{
    uint32_t expected[TABLE_PAGES];
    unsigned before = table->real.count;
    bool naive_room = naive_take(count, expected);
    ck_assert_int_eq(page_table_grow(&table->real, pager, count), naive_room);
    ck_assert_uint_eq(table->real.count, naive_room ? before + count : before);
    if (!naive_room)
        return;
    ck_assert_mem_eq(table->real.pages + before, expected, count * sizeof *expected);
    set_truth(table, before);
}

static void check_match(const struct table *table, const uint32_t *pages,
                        const struct pager_match *match, unsigned most)
{
    uint64_t parent = 0;
    unsigned found = 0, unheld = 0;
    while (found < most) {
        uint32_t page = naive_lookup(parent, table->tokens + found * naive.size, table->salt);
        if (!page)
            break;
        ck_assert_uint_eq(pages[found], page);
        /* What matters: the page holds exactly what the prompt needs at this place. */
        const struct naive_page *p = &naive.pages[page];
        ck_assert_uint_eq(p->truth_pages, found + 1);
        ck_assert_uint_eq(p->truth_salt, table->salt);
        ck_assert_mem_eq(p->truth, table->tokens, (found + 1) * naive.size * sizeof(uint32_t));
        unheld += p->holders == 0;
        parent = p->name;
        found++;
    }
    ck_assert_uint_eq(match->page_count, found);
    ck_assert_uint_eq(match->free_count, unheld);
}

/* A new owner: tokens from a small alphabet of page contents, so that prefixes are often shared. */
static void start(struct table *table)
{
    table->real = (struct page_table){.pages = table->storage, .capacity = TABLE_PAGES};
    table->salt = dice(4) == 0;
    table->alive = true;
    for (unsigned i = 0; i < TABLE_PAGES; i++) {
        uint32_t content = dice(3) == 0 ? 1 : 0;
        for (unsigned k = 0; k < naive.size; k++)
            table->tokens[i * naive.size + k] = content * 1000 + k;
    }
    unsigned token_count = 1 + dice(5 * naive.size);
    uint32_t pages[TABLE_PAGES];
    struct pager_match match;
    pager_find(pager, table->tokens, token_count, table->salt, pages, &match);
    check_match(table, pages, &match, (token_count - 1) / naive.size);
    page_table_adopt(&table->real, pager, pages, match.page_count);
    for (unsigned i = 0; i < match.page_count; i++)
        naive_hold(pages[i]);
    table->published = match.page_count;
    table->chain = match.chain;
    table->naive_chain = match.page_count ? naive.pages[pages[match.page_count - 1]].name : 0;
    grow(table, 1 + dice(3));
}

static void publish(struct table *table)
{
    if (table->published == table->real.count)
        return;
    uint32_t page = table->real.pages[table->published];
    const uint32_t *tokens = table->tokens + table->published * naive.size;
    if (naive.pages[page].findable || naive.pages[page].holders != 1)
        return; /* a fork publishes no page that another may publish */
    table->chain = pager_publish(pager, page, table->chain, tokens, table->salt);
    table->naive_chain = naive_publish(page, table->naive_chain, tokens, table->salt);
    table->published++;
}

static void fork_table(const struct table *source, struct table *table)
{
    *table = *source;
    table->real = (struct page_table){.pages = table->storage, .capacity = TABLE_PAGES};
    page_table_fork(&table->real, pager, &source->real);
    for (unsigned i = 0; i < source->real.count; i++)
        naive_hold(source->real.pages[i]);
}

static void own(struct table *table)
{
    if (table->real.count == 0)
        return;
    unsigned at = table->real.count - 1;
    uint32_t page = table->real.pages[at], from = 0, to = 0, expected;
    enum page_own result = page_table_own(&table->real, pager, at, &from, &to);
    if (naive.pages[page].holders == 1) {
        ck_assert_int_eq(result, PAGE_OWN_ALREADY);
    } else if (!naive_take(1, &expected)) {
        ck_assert_int_eq(result, PAGE_OWN_NO_ROOM);
    } else {
        ck_assert_int_eq(result, PAGE_OWN_COPY);
        ck_assert_uint_eq(from, page);
        ck_assert_uint_eq(to, expected);
        naive_release(page);
        set_truth(table, at);
        if (table->published > at)
            table->published = at + 1; /* its own page is not the published one: leave it */
    }
}

static void finish(struct table *table)
{
    for (unsigned i = table->real.count; i-- > 0;)
        naive_release(table->real.pages[i]);
    page_table_release(&table->real, pager);
    ck_assert_uint_eq(table->real.count, 0);
    table->alive = false;
}

static void one_operation(void)
{
    struct table *table = &tables[dice(TABLES)];
    if (!table->alive) {
        struct table *other = &tables[dice(TABLES)];
        if (other->alive && dice(3) == 0)
            fork_table(other, table);
        else
            start(table);
        return;
    }
    switch (dice(10)) {
    case 0:
    case 1:
    case 2:
        if (table->real.count < TABLE_PAGES)
            grow(table, 1 + dice(TABLE_PAGES - table->real.count));
        break;
    case 3:
    case 4:
    case 5:
    case 6:
        publish(table);
        break;
    case 7:
        own(table);
        break;
    default:
        finish(table);
    }
}

START_TEST(random_operations_agree_with_the_naive_model)
{
    static const unsigned sizes[] = {8, 16, 32, 64};
    random_state = 0x9e3779b97f4a7c15u * (uint64_t)(_i + 1);
    unsigned size = sizes[_i % 4];
    unsigned page_count = 2 + dice(PAGES_MAX - 1);
    naive_init(page_count, size);
    struct pager_options options = {
        .page_count = page_count, .page_size = size, .hash_key = {random_state, ~random_state}};
    struct error error;
    ck_assert_int_eq(pager_create(&options, &pager, &error), STATUS_OK);
    memset(tables, 0, sizeof tables);
    for (unsigned i = 0; i < 2000; i++) {
        one_operation();
        compare();
        if (i % 500 == 499) {
            pager_forget(pager);
            /* Reproduce: cached pages become empty ones, each put at the head in turn. */
            for (uint32_t page = 1; page < page_count; page++) {
                struct naive_page *p = &naive.pages[page];
                if (!p->findable || p->holders > 0)
                    continue;
                p->findable = false;
                naive_remove_from_order(page);
                p->holders = 1;
                naive_release(page);
            }
            compare();
        }
    }
    for (unsigned t = 0; t < TABLES; t++) {
        if (tables[t].alive)
            finish(&tables[t]);
    }
    compare();
    ck_assert_uint_eq(pager_free_count(pager), page_count - 1);
    pager_destroy(pager);
}
END_TEST

/* ---- pager_check finds what is wrong ---- */

static struct pager *small_pager(struct table *table)
{
    struct pager_options options = {.page_count = 6, .page_size = 8, .hash_key = {3, 4}};
    struct error error;
    struct pager *out;
    ck_assert_int_eq(pager_create(&options, &out, &error), STATUS_OK);
    memset(table, 0, sizeof *table);
    table->real = (struct page_table){.pages = table->storage, .capacity = TABLE_PAGES};
    ck_assert(page_table_grow(&table->real, out, 3));
    return out;
}

static bool sound(const struct pager *p, const struct table *table)
{
    const struct page_table *list[] = {&table->real};
    struct error error;
    error_clear(&error);
    bool ok = pager_check(p, list, 1, scratch, &error);
    ck_assert_int_eq(ok, error.message[0] == '\0');
    return ok;
}

START_TEST(check_finds_a_leaked_page)
{
    struct table table;
    struct pager *p = small_pager(&table);
    ck_assert(sound(p, &table));
    table.real.count = 2; /* the third page is in no table now */
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_a_page_held_once_too_often)
{
    struct table table;
    struct pager *p = small_pager(&table);
    pager_hold(p, table.real.pages[1]);
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_a_page_that_was_freed_under_its_holder)
{
    struct table table;
    struct pager *p = small_pager(&table);
    pager_release(p, table.real.pages[0]);
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_a_page_in_two_tables_that_is_counted_once)
{
    struct table table, other;
    struct pager *p = small_pager(&table);
    memset(&other, 0, sizeof other);
    other.real = (struct page_table){.pages = other.storage, .count = 1, .capacity = TABLE_PAGES};
    other.storage[0] = table.real.pages[0];
    const struct page_table *list[] = {&table.real, &other.real};
    struct error error;
    ck_assert(!pager_check(p, list, 2, scratch, &error));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_the_null_page_in_a_table)
{
    struct table table;
    struct pager *p = small_pager(&table);
    table.storage[2] = 0;
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

/* ---- plain cases ---- */

START_TEST(at_most_all_but_one_token_match)
{
    struct table table;
    struct pager *p = small_pager(&table);
    uint32_t tokens[24] = {0}, pages[3];
    uint64_t chain = 0;
    for (unsigned i = 0; i < 3; i++)
        chain = pager_publish(p, table.real.pages[i], chain, tokens + 8 * i, 0);
    static const struct {
        uint32_t tokens, pages;
    } cases[] = {{1, 0}, {8, 0}, {9, 1}, {16, 1}, {17, 2}, {24, 2}};
    struct pager_match match;
    for (unsigned i = 0; i < 6; i++) {
        pager_find(p, tokens, cases[i].tokens, 0, pages, &match);
        ck_assert_uint_eq(match.page_count, cases[i].pages);
        ck_assert_uint_eq(match.free_count, 0);
    }
    pager_destroy(p);
}
END_TEST

START_TEST(a_second_page_with_the_same_content_stays_private)
{
    struct table table;
    struct pager *p = small_pager(&table);
    static const uint32_t tokens[8] = {1, 2, 3};
    uint64_t first = pager_publish(p, table.real.pages[0], 0, tokens, 9);
    uint64_t second = pager_publish(p, table.real.pages[1], 0, tokens, 9);
    ck_assert_uint_eq(first, second);
    ck_assert(pager_findable(p, table.real.pages[0]));
    ck_assert(!pager_findable(p, table.real.pages[1]));
    ck_assert(sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(wrong_options_are_refused)
{
    static const struct pager_options wrong[] = {
        {.page_count = 10, .page_size = 12},  {.page_count = 10, .page_size = 0},
        {.page_count = 10, .page_size = 128}, {.page_count = 1, .page_size = 16},
        {.page_count = 0, .page_size = 16},
    };
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct pager *out;
        struct error error;
        ck_assert_int_eq(pager_create(&wrong[i], &out, &error), STATUS_INVALID);
        ck_assert_str_ne(error.message, "");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pager");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, random_operations_agree_with_the_naive_model, 0, 16);
    tcase_add_test(tcase, check_finds_a_leaked_page);
    tcase_add_test(tcase, check_finds_a_page_held_once_too_often);
    tcase_add_test(tcase, check_finds_a_page_that_was_freed_under_its_holder);
    tcase_add_test(tcase, check_finds_a_page_in_two_tables_that_is_counted_once);
    tcase_add_test(tcase, check_finds_the_null_page_in_a_table);
    tcase_add_test(tcase, at_most_all_but_one_token_match);
    tcase_add_test(tcase, a_second_page_with_the_same_content_stays_private);
    tcase_add_test(tcase, wrong_options_are_refused);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
