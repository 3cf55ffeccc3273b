/*
 * The pager joins the page pool (reference counts, free list) and the prefix index (what is
 * cached), and keeps them in step: a page that is taken leaves the index, a page that is published
 * is marked in the pool. All arrays lie behind the struct in one allocation.
 *
 * Finding looks up group 0 forwards, page after page, and then the groups with a window backwards
 * from the end of that match, so that every page is looked up once.
 */
#include "pager/pager.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/minmax.h"
#include "pager/page_pool.h"
#include "pager/prefix_index.h"

#include <stdlib.h>
#include <string.h>

struct pager {
    struct page_pool pool;
    struct prefix_index index;
    struct kv_groups groups;
};

/* The arrays, behind the struct: see base/arena.h. */
static void lay_out(struct arena *arena, struct pager *pager, uint32_t page_count,
                    uint32_t page_size)
{
    pager->pool.pages = arena_take(arena, page_count, sizeof(struct page));
    pager->index.entries = arena_take(arena, page_count, sizeof(struct prefix_entry));
    pager->index.tokens = arena_take(arena, page_count, (uint64_t)page_size * sizeof(uint32_t));
    pager->index.buckets =
        arena_take(arena, prefix_index_bucket_count(page_count), sizeof(uint32_t));
}

uint64_t pager_memory_bytes(uint32_t page_count, uint32_t page_size)
{
    struct arena arena = {0};
    struct pager counted;
    arena_take(&arena, 1, sizeof counted);
    lay_out(&arena, &counted, page_count, page_size);
    return arena.used_bytes;
}

enum status pager_create(const struct pager_options *options, struct pager **out,
                         struct error *error)
{
    uint32_t size = options->page_size;
    if (size != 8 && size != 16 && size != 32 && size != 64)
        return error_set(error, STATUS_INVALID, "page-size",
                         "a page holds 8, 16, 32 or 64 tokens, not %u", size);
    if (options->page_count < 2 || options->page_count >= PAGE_IN_USE)
        return error_set(error, STATUS_INVALID, "memory", "a pool of %u pages holds nothing",
                         options->page_count);
    CHECK(options->groups.count >= 1 && options->groups.count <= KV_GROUPS_MAX);
    CHECK(options->groups.window[0] == 0); /* a page's parents are all there */
    struct arena arena = {.memory = calloc(1, pager_memory_bytes(options->page_count, size))};
    if (!arena.memory)
        return error_set(error, STATUS_IO, NULL, "no memory for the tables of %u pages",
                         options->page_count);
    struct pager *pager = arena_take(&arena, 1, sizeof *pager);
    lay_out(&arena, pager, options->page_count, size);
    pager->groups = options->groups;
    page_pool_init(&pager->pool, pager->pool.pages, options->page_count);
    prefix_index_init(&pager->index, options->page_count, size, options->hash_key,
                      pager->index.entries, pager->index.tokens, pager->index.buckets);
    *out = pager;
    return STATUS_OK;
}

void pager_destroy(struct pager *pager)
{
    free(pager);
}

uint32_t pager_page_size(const struct pager *pager)
{
    return pager->index.page_size;
}

const struct kv_groups *pager_groups(const struct pager *pager)
{
    return &pager->groups;
}

uint32_t pager_total_count(const struct pager *pager)
{
    return pager->pool.page_count - 1;
}

uint32_t pager_free_count(const struct pager *pager)
{
    return pager->pool.free_count;
}

uint32_t pager_cached_count(const struct pager *pager)
{
    return pager->pool.cached_count;
}

static void evict_page(struct pager *pager, uint32_t page)
{
    prefix_index_remove(&pager->index, page);
    page_pool_set_cached(&pager->pool, page, false);
}

bool pager_take(struct pager *pager, uint32_t count, uint32_t *out)
{
    if (count > pager->pool.free_count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = page_pool_take(&pager->pool);
        CHECK(page != 0);
        if (pager->pool.pages[page].is_cached)
            evict_page(pager, page);
        out[i] = page;
    }
    return true;
}

void pager_add_reference(struct pager *pager, uint32_t page)
{
    page_pool_add_reference(&pager->pool, page);
}

void pager_release(struct pager *pager, uint32_t page)
{
    page_pool_release(&pager->pool, page);
}

uint32_t pager_ref_count(const struct pager *pager, uint32_t page)
{
    CHECK(page < pager->pool.page_count);
    return page_pool_ref_count(&pager->pool, page);
}

/* How many pages of group 0 match, one after the other. */
static uint32_t find_first_group(const struct prefix_index *index, const uint32_t *tokens,
                                 uint32_t most, uint64_t salt, uint32_t *pages)
{
    uint64_t parent = PREFIX_ROOT;
    for (uint32_t i = 0; i < most; i++) {
        pages[i] =
            prefix_index_find(index, 0, parent, tokens + (uint64_t)i * index->page_size, salt);
        if (pages[i] == 0)
            return i;
        parent = index->entries[pages[i]].id;
    }
    return most;
}

/* Page `at` of the other groups that need it for a beginning of `length` pages; false when one has
   it not. */
static bool find_others(const struct pager *pager, const uint32_t *tokens, uint64_t salt,
                        uint32_t at, uint32_t length, uint32_t *pages, uint32_t group_stride)
{
    const struct prefix_index *index = &pager->index;
    uint32_t size = index->page_size;
    for (uint32_t g = 1; g < pager->groups.count; g++) {
        if (at < kv_groups_first(&pager->groups, g, size, length * size))
            continue;
        uint32_t page = prefix_index_find(index, g, index->entries[pages[at]].parent,
                                          tokens + (uint64_t)at * size, salt);
        if (page == 0)
            return false;
        pages[(uint64_t)g * group_stride + at] = page;
    }
    return true;
}

/* First page that any of the other groups needs for a beginning of `length` pages. */
static uint32_t first_of_others(const struct pager *pager, uint32_t length)
{
    uint32_t size = pager->index.page_size, first = length;
    for (uint32_t g = 1; g < pager->groups.count; g++)
        first = min_u32(first, kv_groups_first(&pager->groups, g, size, length * size));
    return first;
}

void pager_find(const struct pager *pager, const uint32_t *tokens, uint32_t token_count,
                uint64_t salt, uint32_t *pages, uint32_t group_stride, struct pager_match *out)
{
    CHECK(token_count >= 1);
    uint32_t size = pager->index.page_size;
    uint32_t length =
        find_first_group(&pager->index, tokens, (token_count - 1) / size, salt, pages);
    /* Downwards, so that every page is looked up once: where one is missing, no longer beginning
       has all it needs, and those pages of a shorter one that have been looked up are its own. */
    for (uint32_t at = length; at > first_of_others(pager, length);) {
        at--;
        if (!find_others(pager, tokens, salt, at, length, pages, group_stride))
            length = at;
    }
    *out = (struct pager_match){.page_count = length, .parent_id = PREFIX_ROOT};
    if (length > 0)
        out->parent_id = pager->index.entries[pages[length - 1]].id;
    for (uint32_t g = 0; g < pager->groups.count; g++) {
        const uint32_t *own = pages + (uint64_t)g * group_stride;
        uint32_t first = kv_groups_first(&pager->groups, g, size, length * size);
        uint32_t referenced = 0;
        for (uint32_t i = first; i < length; i++)
            referenced += page_pool_ref_count(&pager->pool, own[i]) > 0;
        out->referenced_count += referenced;
        for (uint32_t i = 0; g == 0 && i < length; i++)
            out->restored_count += pager->index.entries[own[i]].restored;
        out->full_referenced_count += pager->groups.window[g] == 0 ? referenced : 0;
    }
}

uint64_t pager_publish(struct pager *pager, uint32_t page, uint32_t group, uint64_t parent_id,
                       const uint32_t *tokens, uint64_t salt)
{
    CHECK(group < pager->groups.count);
    CHECK(page_pool_ref_count(&pager->pool, page) >= 1);
    CHECK(!pager_is_cached(pager, page));
    uint32_t known = prefix_index_find(&pager->index, group, parent_id, tokens, salt);
    if (known)
        return pager->index.entries[known].id;
    uint64_t id = prefix_index_add(&pager->index, page, group, parent_id, tokens, salt);
    page_pool_set_cached(&pager->pool, page, true);
    return id;
}

bool pager_is_cached(const struct pager *pager, uint32_t page)
{
    CHECK(page > 0 && page < pager->pool.page_count);
    return pager->pool.pages[page].is_cached != 0;
}

void pager_describe(const struct pager *pager, uint32_t page, struct pager_entry *out)
{
    CHECK(page > 0 && page < pager->pool.page_count);
    const struct prefix_entry *entry = &pager->index.entries[page];
    *out = (struct pager_entry){entry->id, entry->parent, entry->salt, entry->group,
                                prefix_index_tokens(&pager->index, page)};
}

uint64_t pager_published(const struct pager *pager)
{
    return pager->index.last_id;
}

uint32_t pager_cached(const struct pager *pager, uint32_t *out, uint32_t most)
{
    const struct page *pages = pager->pool.pages;
    uint32_t count = 0;
    for (uint32_t page = pages[0].previous; count < most && page != 0 && pages[page].is_cached;
         page = pages[page].previous)
        out[count++] = page;
    return count;
}

void pager_mark_restored(struct pager *pager, uint32_t page)
{
    CHECK(pager_is_cached(pager, page));
    pager->index.entries[page].restored = 1;
}

uint32_t pager_forget(struct pager *pager)
{
    uint32_t count = pager->pool.cached_count;
    for (uint32_t page = 1; page < pager->pool.page_count && pager->pool.cached_count > 0; page++) {
        if (pager->pool.pages[page].is_cached && pager->pool.pages[page].ref_count == 0)
            evict_page(pager, page);
    }
    CHECK(pager->pool.cached_count == 0);
    return count;
}

/* The free list from head to tail: linked both ways, no page twice, counts right. Marks its pages
   in named with UINT32_MAX. */
static const char *check_free_list(const struct page_pool *pool, uint32_t *named)
{
    uint32_t length = 0, cached = 0, previous = 0;
    for (uint32_t page = pool->pages[0].next; page != 0; page = pool->pages[page].next) {
        if (page >= pool->page_count || pool->pages[page].previous != previous)
            return "the free list's links are broken";
        if (named[page] == UINT32_MAX)
            return "a page is in the free list twice";
        if (named[page] != 0 || pool->pages[page].ref_count != 0)
            return "a page in use is in the free list";
        if (cached > 0 && !pool->pages[page].is_cached)
            return "an empty page lies behind a cached one";
        named[page] = UINT32_MAX;
        length++;
        cached += pool->pages[page].is_cached;
        previous = page;
    }
    if (pool->pages[0].previous != previous || length != pool->free_count)
        return "the free list's length is wrong";
    if (cached != pool->cached_count)
        return "the number of cached pages is wrong";
    return NULL;
}

static const char *check_page(const struct pager *pager, uint32_t page, uint32_t tables)
{
    const struct page *entry = &pager->pool.pages[page];
    if (tables != UINT32_MAX) {
        if (tables == 0)
            return "a page is neither free nor in any table";
        if (entry->ref_count != tables)
            return "a page's reference count is not the number of tables that contain it";
        if (entry->next != PAGE_IN_USE || entry->previous != PAGE_IN_USE)
            return "a page in use has list links";
    }
    if ((entry->is_cached != 0) != (pager->index.entries[page].id != 0))
        return "pool and prefix index disagree on what is cached";
    return NULL;
}

bool pager_check(const struct pager *pager, uint32_t *named, struct error *error)
{
    const struct page_pool *pool = &pager->pool;
    uint32_t used = 0;
    for (uint32_t page = 1; page < pool->page_count; page++)
        used += named[page] != 0;
    const char *trouble = check_free_list(pool, named);
    uint32_t page = 1;
    for (; !trouble && page < pool->page_count; page++)
        trouble = check_page(pager, page, named[page]);
    if (!trouble && used + pool->free_count != pool->page_count - 1)
        trouble = "free pages and pages in use do not add up to the total";
    if (!trouble && !prefix_index_consistent(&pager->index))
        trouble = "the prefix index is inconsistent";
    if (trouble)
        error_set(error, STATUS_INTERNAL, NULL, "%s (page %u, %u in use, %u free of %u)", trouble,
                  page - 1, used, pool->free_count, pool->page_count - 1);
    return trouble == NULL;
}
