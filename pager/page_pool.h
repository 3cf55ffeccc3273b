/*
 * The page pool: which of a fixed number of pages are in use, by how many page tables, and in which
 * order the others are evicted. It knows nothing of what is in a page. Private to pager/; the
 * engine thread's.
 *
 * Pages are numbered 1 … page_count-1. Page 0 is the null page: it is never given out, and it is
 * the head of the free list. One doubly linked list through all pages with reference count 0 is
 * free list and LRU at once:
 *
 *     head → empty pages → cached pages, least recently used first → tail
 *
 * A page is taken at the head. A released page goes to the tail if it is cached (the prefix index
 * names it) and to the head if it is not, so no cached page is evicted while an empty page is left.
 *
 * Invariants: a page is in the list exactly when its reference count is 0; free_count is the list's
 * length; cached_count is the number of cached pages in the list. Every function is O(1).
 */
#ifndef QUIRE_PAGER_PAGE_POOL_H
#define QUIRE_PAGER_PAGE_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct page {
    uint32_t ref_count; /* page tables that contain it */
    uint32_t next;      /* in the free list; PAGE_IN_USE when the page is not in it */
    uint32_t previous;  /* in the free list; PAGE_IN_USE when the page is not in it */
    uint32_t is_cached; /* 1: the prefix index names it */
};

#define PAGE_IN_USE UINT32_MAX

struct page_pool {
    uint32_t page_count; /* ids, the null page included; fixed after start */
    uint32_t free_count;
    uint32_t cached_count; /* cached pages that are free */
    struct page *pages;    /* [page_count], owned by the caller of init */
};

/* All pages are free and empty, to be taken in the order 1, 2, 3 … */
void page_pool_init(struct page_pool *pool, struct page *pages, uint32_t page_count);

/* Takes the first page of the list; its reference count becomes 1. 0 when the list is empty. The
   page may still be cached: then the caller removes it from the prefix index. */
uint32_t page_pool_take(struct page_pool *pool);

/* Raises the reference count of a page, which may be free. */
void page_pool_add_reference(struct page_pool *pool, uint32_t page);

/* Lowers the reference count; at 0 the page is free. */
void page_pool_release(struct page_pool *pool, uint32_t page);

/* The prefix index has begun or ceased to name the page. A free page that is cached no longer moves
   to the head. */
void page_pool_set_cached(struct page_pool *pool, uint32_t page, bool is_cached);

static inline uint32_t page_pool_ref_count(const struct page_pool *pool, uint32_t page)
{
    return pool->pages[page].ref_count;
}

#endif
