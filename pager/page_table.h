/*
 * A page table: the pages that hold one sequence's keys and values for one page group, in order of
 * position. Grows at the tail only. In a group with a window its head slides: pages that nothing
 * sees any more are given back, and 0, the null page, stands in their place. At the end everything
 * is given back from the tail, so that heads, which others may share, stay findable longest.
 *
 * Plain struct, embedded in whoever owns a sequence; its array belongs to the owner. Engine thread
 * only.
 */
#ifndef QUIRE_PAGER_PAGE_TABLE_H
#define QUIRE_PAGER_PAGE_TABLE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pager;

struct page_table {
    uint32_t *pages; /* [capacity] ids; [0, first) are 0, [first, count) are held */
    uint32_t first;
    uint32_t count;
    uint32_t capacity;
};

/* The keys and values of a whole page, to be copied before anything is written. */
struct page_copy {
    uint32_t from, to;
};

/* Append `page_count` pages that nobody else holds; all, or none and false when there are not
   enough. Their old content, findable or not, is gone. count + page_count <= capacity. */
bool page_table_grow(struct page_table *table, struct pager *pager, uint32_t page_count);

/* An empty table gets entries [first, count) of pages that are in the pool already (from
   pager_find), one holder more each; before them null pages. `pages` may be the table's own. */
void page_table_adopt(struct page_table *table, struct pager *pager, const uint32_t *pages,
                      uint32_t first, uint32_t count);

/* An empty table becomes a second holder of all of another's pages. */
void page_table_fork(struct page_table *table, struct pager *pager,
                     const struct page_table *source);

/* Give back the pages before `first`, at most count: no query still to be computed sees them. */
void page_table_slide(struct page_table *table, struct pager *pager, uint32_t first);

/* Give back the last page; there is one. */
void page_table_pop(struct page_table *table, struct pager *pager);

/* Give everything back that a sequence's tables (of all its groups) hold, from the tails: the last
   page of every group, then the one before. */
void page_tables_release(struct page_table *tables, uint32_t table_count, struct pager *pager);

enum page_own {
    PAGE_OWN_ALREADY, /* this table is the only holder */
    PAGE_OWN_COPY,    /* a page was taken in its place; to be copied before anything is written */
    PAGE_OWN_NO_ROOM, /* nothing changed */
};

/* Make page `index` of the table writable: copy on write. */
enum page_own page_table_own(struct page_table *table, struct pager *pager, uint32_t index,
                             struct page_copy *copy);

/* pager_check with all the tables there are; and null pages stand before a table's first page and
   nowhere else. scratch [page_count]. O(pages + table entries). */
bool page_tables_check(const struct page_table *const *tables, size_t table_count,
                       const struct pager *pager, uint32_t *scratch, struct error *error);

#endif
