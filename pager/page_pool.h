/*
 * The page pool: which of a fixed number of pages are held, by how many, and in which order the
 * others may be reused. Knows nothing of what is in a page. Private to pager/; engine thread only.
 *
 * Pages are numbered 1 … page_count-1. Page 0 is the null page: never given out, and the head of
 * the free list. One doubly linked list through all pages without a holder is free list and LRU at
 * once:
 *
 *     head → pages with nothing worth keeping → findable pages, longest unused first → tail
 *
 * Pages are taken at the head. A released page goes to the tail when it is findable (the prefix
 * index names it) and to the head when not, so nothing findable is lost while there is an empty
 * page.
 *
 * Invariants: a page is in the list exactly when it has no holder; free_count is the list's length,
 * cached_count how many of them are findable. Every function is O(1) (per page).
 */
#ifndef QUIRE_PAGER_PAGE_POOL_H
#define QUIRE_PAGER_PAGE_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct page {
    uint32_t holders;  /* tables that hold it */
    uint32_t next;     /* in the free list; PAGE_HELD when not in it */
    uint32_t previous; /* in the free list; PAGE_HELD when not in it */
    uint32_t findable; /* 1: the prefix index names it */
};

#define PAGE_HELD UINT32_MAX

struct page_pool {
    uint32_t page_count; /* ids, the null page included; fixed after start */
    uint32_t free_count;
    uint32_t cached_count;
    struct page *pages; /* [page_count], owned by the caller of init */
};

/* All pages free and not findable, to be taken in the order 1, 2, 3 … */
void page_pool_init(struct page_pool *pool, struct page *pages, uint32_t page_count);

/* The page that would be reused next becomes held once; 0 when there is none. It may still be
   findable: the caller has to make the prefix index forget it. */
uint32_t page_pool_take(struct page_pool *pool);

/* One more holder, of a held or a free page. */
void page_pool_hold(struct page_pool *pool, uint32_t page);

/* One holder less. */
void page_pool_release(struct page_pool *pool, uint32_t page);

/* The prefix index began or ceased to name the page. A free page that ceases to be findable moves
   to the head. */
void page_pool_set_findable(struct page_pool *pool, uint32_t page, bool findable);

static inline uint32_t page_pool_holders(const struct page_pool *pool, uint32_t page)
{
    return pool->pages[page].holders;
}

#endif
