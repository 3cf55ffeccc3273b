/*
 * The pages with reference count 0 form one circular list through the null page, page 0, so that
 * neither end is a special case: pages[0].next is the page that is taken next, pages[0].previous
 * the cached page that was used last. Taking, sharing and releasing move pages in and out of it.
 *
 * Nothing here decides anything: which page to take is the list's order, which pages are cached is
 * the prefix index's. The pager and the prefix file (for its slots) are the only callers.
 */
#include "pager/page_pool.h"

#include "base/check.h"

static void list_insert(struct page_pool *pool, uint32_t page, uint32_t after)
{
    struct page *pages = pool->pages;
    CHECK(pages[page].next == PAGE_IN_USE && pages[page].ref_count == 0);
    uint32_t before = pages[after].next;
    pages[page].previous = after;
    pages[page].next = before;
    pages[after].next = page;
    pages[before].previous = page;
    pool->free_count++;
    pool->cached_count += pages[page].is_cached;
}

static void list_remove(struct page_pool *pool, uint32_t page)
{
    struct page *pages = pool->pages;
    CHECK(page != 0 && pages[page].next != PAGE_IN_USE);
    pages[pages[page].previous].next = pages[page].next;
    pages[pages[page].next].previous = pages[page].previous;
    pages[page].next = PAGE_IN_USE;
    pages[page].previous = PAGE_IN_USE;
    pool->free_count--;
    pool->cached_count -= pages[page].is_cached;
}

void page_pool_init(struct page_pool *pool, struct page *pages, uint32_t page_count)
{
    CHECK(page_count >= 1 && page_count < PAGE_IN_USE);
    pool->page_count = page_count;
    pool->free_count = page_count - 1;
    pool->cached_count = 0;
    pool->pages = pages;
    for (uint32_t page = 0; page < page_count; page++) {
        pages[page] = (struct page){
            .next = page + 1 < page_count ? page + 1 : 0,
            .previous = page > 0 ? page - 1 : page_count - 1,
        };
    }
}

uint32_t page_pool_take(struct page_pool *pool)
{
    uint32_t page = pool->pages[0].next;
    if (page == 0)
        return 0;
    list_remove(pool, page);
    pool->pages[page].ref_count = 1;
    return page;
}

void page_pool_add_reference(struct page_pool *pool, uint32_t page)
{
    CHECK(page > 0 && page < pool->page_count);
    if (pool->pages[page].ref_count == 0)
        list_remove(pool, page);
    pool->pages[page].ref_count++;
}

void page_pool_release(struct page_pool *pool, uint32_t page)
{
    CHECK(page > 0 && page < pool->page_count);
    CHECK(pool->pages[page].ref_count > 0);
    if (--pool->pages[page].ref_count > 0)
        return;
    list_insert(pool, page, pool->pages[page].is_cached ? pool->pages[0].previous : 0);
}

void page_pool_set_cached(struct page_pool *pool, uint32_t page, bool is_cached)
{
    CHECK(page > 0 && page < pool->page_count);
    CHECK(pool->pages[page].is_cached != (uint32_t)is_cached);
    if (pool->pages[page].ref_count > 0) {
        pool->pages[page].is_cached = is_cached;
        return;
    }
    CHECK(!is_cached); /* only computed pages are published, and those are in use */
    list_remove(pool, page);
    pool->pages[page].is_cached = 0;
    list_insert(pool, page, 0);
}
