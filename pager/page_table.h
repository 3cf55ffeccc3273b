/*
 * A page table: for one sequence and one KV cache group the pages that contain its keys and values,
 * in order of position. It grows at the tail only. In a group with a sliding window its head
 * slides: pages that no later token sees are released, and 0, the null page, stands in their place.
 * At the end everything is released from the tail, so that heads, which other prompts may share,
 * are evicted last.
 *
 * A plain struct, embedded in its owner, who also owns the array. The engine thread's.
 */
#ifndef QUIRE_PAGER_PAGE_TABLE_H
#define QUIRE_PAGER_PAGE_TABLE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pager;

struct page_table {
    uint32_t *pages; /* [capacity] ids; [0, first) are 0, [first, count) are in use */
    uint32_t first;
    uint32_t count;
    uint32_t capacity;
};

/* The keys and values of a whole page, to be copied before anything is written. */
struct page_copy {
    uint32_t from, to;
};

/* Appends `page_count` pages with reference count 1: all of them, or none and false when too few
   are free. What they contained, cached or not, is gone. count + page_count <= capacity. */
bool page_table_grow(struct page_table *table, struct pager *pager, uint32_t page_count);

/* An empty table gets entries [first, count) of `pages`, which are in the pool already (from
   pager_find); each gets one reference more. The entries before them are null pages. `pages` may be
   the table's own array. */
void page_table_adopt(struct page_table *table, struct pager *pager, const uint32_t *pages,
                      uint32_t first, uint32_t count);

/* An empty table gets all pages of another; each gets one reference more. */
void page_table_fork(struct page_table *table, struct pager *pager,
                     const struct page_table *source);

/* Releases the pages before `first` (at most count): no query still to be computed sees them. */
void page_table_slide(struct page_table *table, struct pager *pager, uint32_t first);

/* Releases the last page; there is one. */
void page_table_pop(struct page_table *table, struct pager *pager);

/* Releases everything that the tables of all groups of a sequence contain, from the tails: the last
   page of every group, then the one before. */
void page_tables_release(struct page_table *tables, uint32_t table_count, struct pager *pager);

enum page_own {
    PAGE_OWN_ALREADY, /* the page is in this table only */
    PAGE_OWN_COPY,    /* a page was taken in its place, to be copied before anything is written */
    PAGE_OWN_NO_ROOM, /* no page is free; nothing changed */
};

/* Makes page `index` of the table writable: copy on write. */
enum page_own page_table_own(struct page_table *table, struct pager *pager, uint32_t index,
                             struct page_copy *copy);

/* pager_check with all the tables there are; and null pages stand before a table's first page and
   nowhere else. scratch [page_count]. O(pages + table entries). */
bool page_tables_check(const struct page_table *const *tables, size_t table_count,
                       const struct pager *pager, uint32_t *scratch, struct error *error);

#endif
