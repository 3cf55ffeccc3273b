/*
 * The pager against a naive model: every operation is done twice, here with linear searches over
 * plain arrays, and everything that can be seen must agree. After each operation pager_check must
 * hold, and must stop holding when something is broken on purpose.
 */
#include "pager/page_table.h"
#include "pager/pager.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_MAX 41
#define TABLES 9
#define TABLE_PAGES 12
#define GROUPS_MAX 4
#define SIZE_MAX_TOKENS 64

/* ---- the naive model ---- */

struct naive_page {
    unsigned ref_count;
    bool is_cached;
    unsigned group;        /* of its entry */
    uint64_t name, parent; /* of its entry */
    uint64_t salt;
    uint32_t tokens[SIZE_MAX_TOKENS];
    /* What is truly in it: all tokens from the beginning; set when computed. */
    uint32_t truth[TABLE_PAGES * SIZE_MAX_TOKENS];
    unsigned truth_pages, truth_group;
    uint64_t truth_salt;
};

struct naive {
    unsigned page_count, size;
    struct kv_groups groups;
    struct naive_page pages[PAGES_MAX];
    uint32_t order[PAGES_MAX]; /* free pages, next to be reused first */
    unsigned free_count;
    uint64_t last_name;
};

struct table {
    struct page_table real[GROUPS_MAX];
    uint32_t storage[GROUPS_MAX][TABLE_PAGES];
    uint32_t tokens[TABLE_PAGES * SIZE_MAX_TOKENS]; /* what its owner computes */
    uint64_t salt;
    uint64_t parent_id, naive_parent;
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

static void naive_init(unsigned page_count, unsigned size, struct kv_groups groups)
{
    memset(&naive, 0, sizeof naive);
    naive.page_count = page_count;
    naive.size = size;
    naive.groups = groups;
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
        naive.pages[out[i]] = (struct naive_page){.ref_count = 1};
    }
    return true;
}

static void naive_add_reference(uint32_t page)
{
    if (naive.pages[page].ref_count++ == 0)
        naive_remove_from_order(page);
}

static void naive_release(uint32_t page)
{
    if (--naive.pages[page].ref_count > 0)
        return;
    unsigned at = naive.pages[page].is_cached ? naive.free_count : 0;
    memmove(naive.order + at + 1, naive.order + at, (naive.free_count - at) * sizeof *naive.order);
    naive.order[at] = page;
    naive.free_count++;
}

static uint32_t naive_lookup(unsigned group, uint64_t parent, const uint32_t *tokens, uint64_t salt)
{
    for (uint32_t page = 1; page < naive.page_count; page++) {
        const struct naive_page *p = &naive.pages[page];
        if (p->is_cached && p->group == group && p->parent == parent && p->salt == salt &&
            memcmp(p->tokens, tokens, naive.size * sizeof *tokens) == 0)
            return page;
    }
    return 0;
}

static uint64_t naive_publish(uint32_t page, unsigned group, uint64_t parent,
                              const uint32_t *tokens, uint64_t salt)
{
    uint32_t known = naive_lookup(group, parent, tokens, salt);
    if (known)
        return naive.pages[known].name;
    struct naive_page *p = &naive.pages[page];
    p->is_cached = true;
    p->group = group;
    p->name = ++naive.last_name;
    p->parent = parent;
    p->salt = salt;
    memcpy(p->tokens, tokens, naive.size * sizeof *tokens);
    return p->name;
}

/* ---- comparing ---- */

static void compare(void)
{
    const struct page_table *list[TABLES * GROUPS_MAX];
    size_t count = 0;
    for (unsigned t = 0; t < TABLES; t++) {
        for (unsigned g = 0; tables[t].alive && g < naive.groups.count; g++)
            list[count++] = &tables[t].real[g];
    }
    struct error error;
    ck_assert_msg(page_tables_check(list, count, pager, scratch, &error), "%s", error.message);
    ck_assert_uint_eq(pager_free_count(pager), naive.free_count);
    unsigned cached = 0;
    for (unsigned page = 1; page < naive.page_count; page++) {
        ck_assert_uint_eq(pager_ref_count(pager, page), naive.pages[page].ref_count);
        ck_assert_int_eq(pager_is_cached(pager, page), naive.pages[page].is_cached);
        cached += naive.pages[page].is_cached && naive.pages[page].ref_count == 0;
    }
    ck_assert_uint_eq(pager_cached_count(pager), cached);
}

/* ---- operations, done twice ---- */

static void set_truth(struct table *table, unsigned group, unsigned from)
{
    for (unsigned i = from; i < table->real[group].count; i++) {
        struct naive_page *page = &naive.pages[table->real[group].pages[i]];
        memcpy(page->truth, table->tokens, (i + 1) * naive.size * sizeof(uint32_t));
        page->truth_pages = i + 1;
        page->truth_group = group;
        page->truth_salt = table->salt;
    }
}

static void grow(struct table *table, unsigned group, unsigned count)
{
    uint32_t expected[TABLE_PAGES];
    struct page_table *real = &table->real[group];
    unsigned before = real->count;
    bool naive_room = naive_take(count, expected);
    ck_assert_int_eq(page_table_grow(real, pager, count), naive_room);
    ck_assert_uint_eq(real->count, naive_room ? before + count : before);
    if (!naive_room)
        return;
    ck_assert_mem_eq(real->pages + before, expected, count * sizeof *expected);
    set_truth(table, group, before);
}

/* Name of group 0's page `index` of the table's prompt, 0 when it cannot be found. */
static uint64_t naive_id(const struct table *table, unsigned index)
{
    uint64_t parent = 0;
    for (unsigned i = 0; i <= index; i++) {
        uint32_t page = naive_lookup(0, parent, table->tokens + i * naive.size, table->salt);
        if (!page)
            return 0;
        parent = naive.pages[page].name;
    }
    return parent;
}

/* The page of a group that holds page `index` of the table's prompt, 0: none. */
static uint32_t naive_page_of(const struct table *table, unsigned group, unsigned index)
{
    uint64_t parent = index ? naive_id(table, index - 1) : 0;
    if (index && !parent)
        return 0;
    return naive_lookup(group, parent, table->tokens + index * naive.size, table->salt);
}

static unsigned first_needed(unsigned group, unsigned length)
{
    return kv_groups_first(&naive.groups, group, naive.size, length * naive.size);
}

/* Has every group what it needs to go on after `length` pages? */
static bool naive_has(const struct table *table, unsigned length)
{
    for (unsigned g = 0; g < naive.groups.count; g++) {
        for (unsigned i = first_needed(g, length); i < length; i++) {
            if (!naive_page_of(table, g, i))
                return false;
        }
    }
    return true;
}

static void check_match(const struct table *table, const uint32_t *pages,
                        const struct pager_match *match, unsigned most)
{
    unsigned length = most, referenced = 0, full = 0;
    while (!naive_has(table, length))
        length--;
    ck_assert_uint_eq(match->page_count, length);
    for (unsigned g = 0; g < naive.groups.count; g++) {
        for (unsigned i = first_needed(g, length); i < length; i++) {
            uint32_t page = naive_page_of(table, g, i);
            ck_assert_uint_eq(pages[g * TABLE_PAGES + i], page);
            /* What matters: the page holds exactly what the prompt needs at this place. */
            const struct naive_page *p = &naive.pages[page];
            ck_assert_uint_eq(p->truth_pages, i + 1);
            ck_assert_uint_eq(p->truth_group, g);
            ck_assert_uint_eq(p->truth_salt, table->salt);
            ck_assert_mem_eq(p->truth, table->tokens, (i + 1) * naive.size * sizeof(uint32_t));
            referenced += p->ref_count > 0;
            full += p->ref_count > 0 && naive.groups.window[g] == 0;
        }
    }
    ck_assert_uint_eq(match->referenced_count, referenced);
    ck_assert_uint_eq(match->full_referenced_count, full);
}

static void empty_tables(struct table *table)
{
    for (unsigned g = 0; g < GROUPS_MAX; g++)
        table->real[g] = (struct page_table){.pages = table->storage[g], .capacity = TABLE_PAGES};
}

/* A new owner: tokens from a small alphabet of page contents, so that prefixes are often shared. */
static void start(struct table *table)
{
    empty_tables(table);
    table->salt = dice(4) == 0;
    table->alive = true;
    for (unsigned i = 0; i < TABLE_PAGES; i++) {
        uint32_t content = dice(3) == 0 ? 1 : 0;
        for (unsigned k = 0; k < naive.size; k++)
            table->tokens[i * naive.size + k] = content * 1000 + k;
    }
    unsigned token_count = 1 + dice(9 * naive.size);
    struct pager_match match;
    /* Straight into the tables' own arrays, as the scheduler does. */
    pager_find(pager, table->tokens, token_count, table->salt, table->storage[0], TABLE_PAGES,
               &match);
    check_match(table, table->storage[0], &match, (token_count - 1) / naive.size);
    table->published = match.page_count;
    table->parent_id = match.parent_id;
    table->naive_parent = match.page_count ? naive_id(table, match.page_count - 1) : 0;
    for (unsigned g = 0; g < naive.groups.count; g++) {
        unsigned first = first_needed(g, match.page_count);
        page_table_adopt(&table->real[g], pager, table->storage[g], first, match.page_count);
        for (unsigned i = 0; i < match.page_count; i++) {
            if (i < first)
                ck_assert_uint_eq(table->storage[g][i], 0);
            else
                naive_add_reference(table->storage[g][i]);
        }
    }
    unsigned more = 1 + dice(3);
    for (unsigned g = 0; g < naive.groups.count; g++)
        grow(table, g, more);
}

static void publish(struct table *table)
{
    uint64_t parent_id = 0, naive_next = 0;
    unsigned at = table->published;
    for (unsigned g = 0; g < naive.groups.count; g++) {
        if (at >= table->real[g].count || at < table->real[g].first)
            return;
        const struct naive_page *page = &naive.pages[table->real[g].pages[at]];
        if (page->is_cached || page->ref_count != 1)
            return; /* a fork publishes no page that another may publish */
    }
    for (unsigned g = 0; g < naive.groups.count; g++) {
        uint32_t page = table->real[g].pages[at];
        const uint32_t *tokens = table->tokens + at * naive.size;
        uint64_t real = pager_publish(pager, page, g, table->parent_id, tokens, table->salt);
        uint64_t name = naive_publish(page, g, table->naive_parent, tokens, table->salt);
        parent_id = g == 0 ? real : parent_id;
        naive_next = g == 0 ? name : naive_next;
    }
    table->parent_id = parent_id;
    table->naive_parent = naive_next;
    table->published++;
}

static void fork_table(const struct table *source, struct table *table)
{
    *table = *source;
    empty_tables(table);
    for (unsigned g = 0; g < naive.groups.count; g++) {
        const struct page_table *from = &source->real[g];
        page_table_fork(&table->real[g], pager, from);
        ck_assert_uint_eq(table->real[g].first, from->first);
        for (unsigned i = from->first; i < from->count; i++)
            naive_add_reference(from->pages[i]);
    }
}

/* Give back what nothing after the published pages sees. */
static void slide(struct table *table, unsigned group)
{
    struct page_table *real = &table->real[group];
    unsigned first = first_needed(group, table->published);
    first = first < real->count ? first : real->count;
    for (unsigned i = real->first; i < first; i++)
        naive_release(real->pages[i]);
    if (first > real->first)
        page_table_slide(real, pager, first);
    for (unsigned i = 0; i < real->first; i++)
        ck_assert_uint_eq(real->pages[i], 0);
}

static void own(struct table *table, unsigned group)
{
    struct page_table *real = &table->real[group];
    if (real->count == real->first)
        return;
    unsigned at = real->count - 1;
    uint32_t page = real->pages[at], expected;
    struct page_copy copy = {0, 0};
    enum page_own result = page_table_own(real, pager, at, &copy);
    if (naive.pages[page].ref_count == 1) {
        ck_assert_int_eq(result, PAGE_OWN_ALREADY);
    } else if (!naive_take(1, &expected)) {
        ck_assert_int_eq(result, PAGE_OWN_NO_ROOM);
    } else {
        ck_assert_int_eq(result, PAGE_OWN_COPY);
        ck_assert_uint_eq(copy.from, page);
        ck_assert_uint_eq(copy.to, expected);
        naive_release(page);
        set_truth(table, group, at);
        if (table->published > at)
            table->published = at + 1; /* its own page is not the published one: leave it */
    }
}

static void finish(struct table *table)
{
    for (unsigned i = TABLE_PAGES; i-- > 0;) {
        for (unsigned g = 0; g < naive.groups.count; g++) {
            if (i >= table->real[g].first && i < table->real[g].count)
                naive_release(table->real[g].pages[i]);
        }
    }
    page_tables_release(table->real, naive.groups.count, pager);
    for (unsigned g = 0; g < naive.groups.count; g++)
        ck_assert_uint_eq(table->real[g].count + table->real[g].first, 0);
    table->alive = false;
}

static void one_operation(void)
{
    struct table *table = &tables[dice(TABLES)];
    unsigned group = dice(naive.groups.count);
    if (!table->alive) {
        struct table *other = &tables[dice(TABLES)];
        if (other->alive && dice(3) == 0)
            fork_table(other, table);
        else
            start(table);
        return;
    }
    switch (dice(11)) {
    case 0:
    case 1:
    case 2:
        for (unsigned g = 0; g < naive.groups.count; g++) {
            if (table->real[g].count < TABLE_PAGES)
                grow(table, g, 1 + dice(TABLE_PAGES - table->real[g].count));
        }
        break;
    case 3:
    case 4:
    case 5:
    case 6:
        publish(table);
        break;
    case 7:
        own(table, group);
        break;
    case 8:
        slide(table, group);
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
    struct kv_groups groups = {.count = _i < 8 ? 1 : 2 + dice(GROUPS_MAX - 1)};
    for (unsigned g = 1; g < groups.count; g++)
        groups.window[g] = dice(4) ? 1 + dice(3 * size) : 0;
    naive_init(page_count, size, groups);
    struct pager_options options = {.page_count = page_count,
                                    .page_size = size,
                                    .groups = groups,
                                    .hash_key = {random_state, ~random_state}};
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
                if (!p->is_cached || p->ref_count > 0)
                    continue;
                p->is_cached = false;
                naive_remove_from_order(page);
                p->ref_count = 1;
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
    struct pager_options options = {
        .page_count = 6, .page_size = 8, .groups = {.count = 1}, .hash_key = {3, 4}};
    struct error error;
    struct pager *out;
    ck_assert_int_eq(pager_create(&options, &out, &error), STATUS_OK);
    memset(table, 0, sizeof *table);
    empty_tables(table);
    ck_assert(page_table_grow(table->real, out, 3));
    return out;
}

static bool sound(const struct pager *p, const struct table *table)
{
    const struct page_table *list[] = {table->real};
    struct error error;
    error_clear(&error);
    bool ok = page_tables_check(list, 1, p, scratch, &error);
    ck_assert_int_eq(ok, error.message[0] == '\0');
    return ok;
}

START_TEST(check_finds_a_leaked_page)
{
    struct table table;
    struct pager *p = small_pager(&table);
    ck_assert(sound(p, &table));
    table.real[0].count = 2; /* the third page is in no table now */
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_a_page_held_once_too_often)
{
    struct table table;
    struct pager *p = small_pager(&table);
    pager_add_reference(p, table.real[0].pages[1]);
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_a_page_that_was_freed_while_a_table_contains_it)
{
    struct table table;
    struct pager *p = small_pager(&table);
    pager_release(p, table.real[0].pages[0]);
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_a_page_in_two_tables_that_is_counted_once)
{
    struct table table, other;
    struct pager *p = small_pager(&table);
    memset(&other, 0, sizeof other);
    empty_tables(&other);
    other.real[0].count = 1;
    other.storage[0][0] = table.real[0].pages[0];
    const struct page_table *list[] = {table.real, other.real};
    struct error error;
    ck_assert(!page_tables_check(list, 2, p, scratch, &error));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_the_null_page_in_a_table)
{
    struct table table;
    struct pager *p = small_pager(&table);
    table.storage[0][2] = 0;
    ck_assert(!sound(p, &table));
    pager_destroy(p);
}
END_TEST

START_TEST(check_finds_a_page_before_the_first)
{
    struct table table;
    struct pager *p = small_pager(&table);
    page_table_slide(table.real, p, 2);
    ck_assert(sound(p, &table));
    table.storage[0][0] = table.storage[0][2]; /* given back, and still named */
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
    uint64_t parent_id = 0;
    for (unsigned i = 0; i < 3; i++)
        parent_id = pager_publish(p, table.real[0].pages[i], 0, parent_id, tokens + 8 * i, 0);
    static const struct {
        uint32_t tokens, pages;
    } cases[] = {{1, 0}, {8, 0}, {9, 1}, {16, 1}, {17, 2}, {24, 2}};
    struct pager_match match;
    for (unsigned i = 0; i < 6; i++) {
        pager_find(p, tokens, cases[i].tokens, 0, pages, 0, &match);
        ck_assert_uint_eq(match.page_count, cases[i].pages);
        ck_assert_uint_eq(match.referenced_count, cases[i].pages);
    }
    pager_destroy(p);
}
END_TEST

START_TEST(a_second_page_with_the_same_content_stays_private)
{
    struct table table;
    struct pager *p = small_pager(&table);
    static const uint32_t tokens[8] = {1, 2, 3};
    uint64_t first = pager_publish(p, table.real[0].pages[0], 0, 0, tokens, 9);
    uint64_t second = pager_publish(p, table.real[0].pages[1], 0, 0, tokens, 9);
    ck_assert_uint_eq(first, second);
    ck_assert(pager_is_cached(p, table.real[0].pages[0]));
    ck_assert(!pager_is_cached(p, table.real[0].pages[1]));
    ck_assert(sound(p, &table));
    pager_destroy(p);
}
END_TEST

/* Pages of 8 tokens, five of a prompt published; a window of 12 sees one or two pages back. */
static struct pager *windowed_pager(struct table *table)
{
    struct pager_options options = {.page_count = 20,
                                    .page_size = 8,
                                    .groups = {.count = 2, .window = {0, 12}},
                                    .hash_key = {3, 4}};
    struct error error;
    struct pager *out;
    ck_assert_int_eq(pager_create(&options, &out, &error), STATUS_OK);
    memset(table, 0, sizeof *table);
    empty_tables(table);
    for (unsigned i = 0; i < 5 * 8; i++)
        table->tokens[i] = 100 + i;
    for (unsigned g = 0; g < 2; g++)
        ck_assert(page_table_grow(&table->real[g], out, 5));
    for (unsigned i = 0; i < 5; i++) {
        uint64_t parent_id = table->parent_id;
        table->parent_id =
            pager_publish(out, table->storage[0][i], 0, parent_id, table->tokens + 8 * i, 0);
        pager_publish(out, table->storage[1][i], 1, parent_id, table->tokens + 8 * i, 0);
    }
    return out;
}

static uint32_t hit(const struct pager *p, const struct table *table, uint32_t token_count,
                    uint32_t pages[2][TABLE_PAGES])
{
    struct pager_match match;
    pager_find(p, table->tokens, token_count, 0, pages[0], TABLE_PAGES, &match);
    return match.page_count;
}

START_TEST(a_hit_needs_the_last_window_only)
{
    struct table table, other;
    struct pager *p = windowed_pager(&table);
    uint32_t pages[2][TABLE_PAGES];
    ck_assert_uint_eq(hit(p, &table, 41, pages), 5);
    ck_assert_uint_eq(hit(p, &table, 40, pages), 4); /* the last token is always computed */
    /* The window moves on, and what it left behind is used for something else. */
    page_table_slide(&table.real[1], p, 3);
    page_tables_release(table.real, 2, p);
    empty_tables(&other);
    ck_assert(page_table_grow(&other.real[0], p, 9));
    ck_assert_uint_eq(pager_cached_count(p), 10);
    for (unsigned length = 0; length <= 5; length++)
        ck_assert_uint_eq(hit(p, &table, 8 * length + 1, pages), length);
    ck_assert(page_table_grow(&other.real[0], p, 3));
    for (unsigned length = 0; length <= 5; length++)
        ck_assert_uint_eq(hit(p, &table, 8 * length + 1, pages), length == 5 ? 5 : 0);
    page_tables_release(&other.real[0], 1, p);
    pager_destroy(p);
}
END_TEST

START_TEST(a_missing_window_shortens_a_hit)
{
    struct table table, other;
    struct pager *p = windowed_pager(&table);
    uint32_t pages[2][TABLE_PAGES], taken[9];
    struct pager_match match;
    /* The window's page 2 goes first, then the others. */
    page_table_slide(&table.real[1], p, 3);
    ck_assert(pager_take(p, 9, taken)); /* all that are empty */
    ck_assert_uint_eq(pager_cached_count(p), 3);
    ck_assert_uint_eq(hit(p, &table, 41, pages), 5);
    uint32_t lost[2];
    ck_assert(pager_take(p, 2, lost)); /* pages 0 and 1 of the window: released first */
    ck_assert_uint_eq(pager_cached_count(p), 1);
    /* Page 5's first token sees pages 3 and 4, page 4's 2 and 3; page 3's would see 1 and 2. */
    static const uint32_t wanted[] = {0, 0, 0, 0, 4, 5};
    for (uint32_t length = 0; length <= 5; length++)
        ck_assert_uint_eq(hit(p, &table, 8 * length + 1, pages), wanted[length]);
    pager_find(p, table.tokens, 33, 0, pages[0], TABLE_PAGES, &match);
    ck_assert_uint_eq(match.page_count, 4);
    ck_assert_uint_eq(match.referenced_count, 5);      /* all but page 2 of the window */
    ck_assert_uint_eq(match.full_referenced_count, 4); /* group 0's */
    for (unsigned i = 0; i < 4; i++)
        ck_assert_uint_eq(pages[0][i], table.storage[0][i]);
    ck_assert_uint_eq(pages[1][3], table.storage[1][3]);
    /* Whoever hits it holds what it needs, and null pages before. */
    empty_tables(&other);
    page_table_adopt(&other.real[1], p, pages[1], 2, match.page_count);
    ck_assert_uint_eq(other.storage[1][0] + other.storage[1][1], 0);
    ck_assert_uint_eq(pager_ref_count(p, other.storage[1][2]), 1);
    ck_assert_uint_eq(pager_ref_count(p, other.storage[1][3]), 2);
    pager_destroy(p);
}
END_TEST

/* Pages of a window that were lost can be published again under the parent that is still cached. */
START_TEST(a_lost_window_can_come_back)
{
    struct table table;
    struct pager *p = windowed_pager(&table);
    uint32_t pages[2][TABLE_PAGES], page;
    uint32_t taken[10];
    page_tables_release(&table.real[1], 1, p);
    ck_assert(pager_take(p, 9, taken)); /* all that are empty, then the window's tail … */
    ck_assert_uint_eq(hit(p, &table, 41, pages), 5);
    ck_assert(pager_take(p, 1, &page));
    ck_assert_uint_eq(hit(p, &table, 41, pages), 4);
    /* … which somebody computes again after the first four pages. */
    uint64_t parent_id;
    struct pager_match match;
    pager_find(p, table.tokens, 33, 0, pages[0], TABLE_PAGES, &match);
    parent_id = match.parent_id;
    ck_assert(pager_publish(p, taken[0], 0, parent_id, table.tokens + 32, 0) == table.parent_id);
    ck_assert(!pager_is_cached(p, taken[0])); /* group 0 has it */
    pager_publish(p, page, 1, parent_id, table.tokens + 32, 0);
    ck_assert(pager_is_cached(p, page));
    ck_assert_uint_eq(hit(p, &table, 41, pages), 5);
    ck_assert_uint_eq(pages[1][4], page);
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
    tcase_add_loop_test(tcase, random_operations_agree_with_the_naive_model, 0, 20);
    tcase_add_test(tcase, check_finds_a_leaked_page);
    tcase_add_test(tcase, check_finds_a_page_held_once_too_often);
    tcase_add_test(tcase, check_finds_a_page_that_was_freed_while_a_table_contains_it);
    tcase_add_test(tcase, check_finds_a_page_in_two_tables_that_is_counted_once);
    tcase_add_test(tcase, check_finds_the_null_page_in_a_table);
    tcase_add_test(tcase, check_finds_a_page_before_the_first);
    tcase_add_test(tcase, at_most_all_but_one_token_match);
    tcase_add_test(tcase, a_hit_needs_the_last_window_only);
    tcase_add_test(tcase, a_missing_window_shortens_a_hit);
    tcase_add_test(tcase, a_lost_window_can_come_back);
    tcase_add_test(tcase, a_second_page_with_the_same_content_stays_private);
    tcase_add_test(tcase, wrong_options_are_refused);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
