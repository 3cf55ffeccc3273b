/*
 * The pager: a fixed pool of pages, who holds them, and which can be found again by their tokens.
 * Knows tokens, page numbers and page groups; no bytes of keys and values, no models, no HTTP.
 * Engine thread only.
 *
 * Every page is free or held. A free page may be cached: still findable, at its place in the LRU,
 * until it is taken for something else. free (cached included) + held = total at all times. All
 * memory is allocated by pager_create; "no room" is an ordinary false.
 */
#ifndef QUIRE_PAGER_PAGER_H
#define QUIRE_PAGER_PAGER_H

#include "base/error.h"
#include "pager/kv_groups.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pager;

struct pager_options {
    uint32_t page_count; /* ids, the null page 0 included: page_count - 1 pages can be held */
    uint32_t page_size;  /* tokens per page: 8, 16, 32 or 64 */
    struct kv_groups groups;
    uint64_t hash_key[2]; /* secret of this process */
};

/* STATUS_INVALID for an unknown page size or fewer than 2 ids, STATUS_IO when memory fails. Groups
   are checked, not refused. */
enum status pager_create(const struct pager_options *options, struct pager **out,
                         struct error *error);
void pager_destroy(struct pager *pager);

/* What pager_create allocates. */
uint64_t pager_memory_bytes(uint32_t page_count, uint32_t page_size);

uint32_t pager_page_size(const struct pager *pager);
const struct kv_groups *pager_groups(const struct pager *pager); /* as long as the pager lives */
uint32_t pager_total_count(const struct pager *pager);           /* without the null page */
uint32_t pager_free_count(const struct pager *pager);   /* without a holder, cached included */
uint32_t pager_cached_count(const struct pager *pager); /* of those: findable */

/* Take `count` pages into out: all, or none and false. Least recently used first. */
bool pager_take(struct pager *pager, uint32_t count, uint32_t *out);
void pager_hold(struct pager *pager, uint32_t page);
void pager_release(struct pager *pager, uint32_t page);
uint32_t pager_holders(const struct pager *pager, uint32_t page);

struct pager_match {
    uint32_t page_count; /* full pages of tokens that match, from the beginning */
    uint32_t
        held_count; /* pages of all groups that have a holder: adopting takes none of the free */
    uint32_t kept_count; /* of those, in groups that see all: they stay until a sequence's end */
    uint32_t restored_count; /* of page_count: their pages of group 0 came from a file */
    uint64_t chain;          /* parent for the page that follows */
};

/* The longest beginning of a prompt for which every group has what it needs to go on from there:
   all pages, or with a window those that the next token sees. At most token_count - 1 tokens: the
   last one is always computed, since its logits are wanted. Group g's pages go to pages +
   g·group_stride, [token_count / page_size] each, of which [kv_groups_first, page_count) are
   good. Holds nothing and changes no order. The answer is good until the next call that takes
   pages. */
void pager_find(const struct pager *pager, const uint32_t *tokens, uint32_t token_count,
                uint64_t salt, uint32_t *pages, uint32_t group_stride, struct pager_match *out);

/* Make a held, full, computed page of a group findable as the continuation of `chain`. Returns what
   continues a chain if the group is 0; the other groups' pages of the same tokens have the same
   parent. When another page with the same content is findable already it stays the one, and ours
   private. */
uint64_t pager_publish(struct pager *pager, uint32_t page, uint32_t group, uint64_t chain,
                       const uint32_t *tokens, uint64_t salt);

/* Is the page named by the prefix index? Such a page is full and must not be written. */
bool pager_findable(const struct pager *pager, uint32_t page);

/* What the prefix index says of a page. */
struct pager_entry {
    uint64_t id; /* its name, never used twice by this process; 0: the page is not findable */
    uint64_t parent, salt;
    uint32_t group;
    const uint32_t *tokens; /* [page_size] */
};
void pager_describe(const struct pager *pager, uint32_t page, struct pager_entry *out);

/* How many pages were ever published: the index has changed when this has. */
uint64_t pager_published(const struct pager *pager);

/* The cached pages (free and findable), those that would be reused last first, at most `most`;
   returns how many. Heads of prefixes come before what continues them, page by page. */
uint32_t pager_cached(const struct pager *pager, uint32_t *out, uint32_t most);

/* A page that was just published came from a file, for restored_count. */
void pager_mark_restored(struct pager *pager, uint32_t page);

/* Forget every page that is findable and has no holder; returns how many. */
uint32_t pager_forget(struct pager *pager);

/* Verify everything against the tables that exist: free + held = total, holders equal the tables
   that name a page, every page in exactly one place, empty pages before cached ones, findable pages
   and index agree. named [page_count] says how many tables name each page, and is overwritten.
   false with what is wrong in *error. O(pages). page_tables_check counts the tables. */
bool pager_check(const struct pager *pager, uint32_t *named, struct error *error);

#endif
