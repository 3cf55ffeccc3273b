/*
 * See page_pool.h. The list is circular through the null page, so that no end is a special case.
 */
#include "pager/page_pool.h"

#include "base/check.h"

static void list_insert(struct page_pool *pool, uint32_t page, uint32_t after)
{
    struct page *pages = pool->pages;
    CHECK(pages[page].next == PAGE_HELD && pages[page].holders == 0);
    uint32_t before = pages[after].next;
    pages[page].previous = after;
    pages[page].next = before;
    pages[after].next = page;
    pages[before].previous = page;
    pool->free_count++;
    pool->cached_count += pages[page].findable;
}

static void list_remove(struct page_pool *pool, uint32_t page)
{
    struct page *pages = pool->pages;
    CHECK(page != 0 && pages[page].next != PAGE_HELD);
    pages[pages[page].previous].next = pages[page].next;
    pages[pages[page].next].previous = pages[page].previous;
    pages[page].next = PAGE_HELD;
    pages[page].previous = PAGE_HELD;
    pool->free_count--;
    pool->cached_count -= pages[page].findable;
}

void page_pool_init(struct page_pool *pool, struct page *pages, uint32_t page_count)
{
    CHECK(page_count >= 1 && page_count < PAGE_HELD);
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
    pool->pages[page].holders = 1;
    return page;
}

void page_pool_hold(struct page_pool *pool, uint32_t page)
{
    CHECK(page > 0 && page < pool->page_count);
    if (pool->pages[page].holders == 0)
        list_remove(pool, page);
    pool->pages[page].holders++;
}

void page_pool_release(struct page_pool *pool, uint32_t page)
{
    CHECK(page > 0 && page < pool->page_count);
    CHECK(pool->pages[page].holders > 0);
    if (--pool->pages[page].holders > 0)
        return;
    list_insert(pool, page, pool->pages[page].findable ? pool->pages[0].previous : 0);
}

void page_pool_set_findable(struct page_pool *pool, uint32_t page, bool findable)
{
    CHECK(page > 0 && page < pool->page_count);
    CHECK(pool->pages[page].findable != (uint32_t)findable);
    if (pool->pages[page].holders > 0) {
        pool->pages[page].findable = findable;
        return;
    }
    CHECK(!findable); /* only computed pages are published, and those are held */
    list_remove(pool, page);
    pool->pages[page].findable = 0;
    list_insert(pool, page, 0);
}
