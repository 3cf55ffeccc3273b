/*
 * The pager: a fixed pool of pages, their reference counts, and the prefix cache, which finds
 * computed pages again by their tokens. It knows tokens, page numbers and KV cache groups; no bytes
 * of keys and values, no models, no HTTP. The engine thread's.
 *
 * Every page is in use (its reference count is the number of page tables that contain it) or free.
 * A free page may be cached: the prefix index still names it, and it stays at its place in the LRU
 * until it is evicted. Free (cached included) + in use = total at all times.
 *
 * All memory is allocated by pager_create. "No room" is an ordinary false.
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
    uint32_t page_count; /* ids, the null page 0 included: page_count - 1 pages can be used */
    uint32_t page_size;  /* tokens per page: 8, 16, 32 or 64 */
    struct kv_groups groups;
    uint64_t hash_key[2]; /* secret of this process */
};

/* STATUS_INVALID for an unknown page size or fewer than 2 ids, STATUS_IO when memory fails. Wrong
   groups are a bug, not an error. */
enum status pager_create(const struct pager_options *options, struct pager **out,
                         struct error *error);
void pager_destroy(struct pager *pager);

/* What pager_create allocates. */
uint64_t pager_memory_bytes(uint32_t page_count, uint32_t page_size);

uint32_t pager_page_size(const struct pager *pager);
const struct kv_groups *pager_groups(const struct pager *pager); /* as long as the pager lives */
uint32_t pager_total_count(const struct pager *pager);           /* without the null page */
uint32_t pager_free_count(const struct pager *pager);   /* reference count 0, cached included */
uint32_t pager_cached_count(const struct pager *pager); /* the cached ones of the free pages */

/* Takes `count` pages into out, each with reference count 1: all of them, or none and false. Cached
   pages are evicted when no empty ones are left, the least recently used first. */
bool pager_take(struct pager *pager, uint32_t count, uint32_t *out);
void pager_add_reference(struct pager *pager, uint32_t page);
void pager_release(struct pager *pager, uint32_t page);
uint32_t pager_ref_count(const struct pager *pager, uint32_t page);

/* What pager_find found. */
struct pager_match {
    uint32_t page_count;            /* full pages of tokens that match, from the beginning */
    uint32_t referenced_count;      /* pages of all groups that are in use: sharing them takes no
                                       free page */
    uint32_t full_referenced_count; /* of those, pages of groups without a window, which stay in the
                                       tables until the sequence ends */
    uint32_t
        restored_count; /* of page_count: pages of group 0 that came from the cache directory */
    uint64_t parent_id; /* the parent page id of the page that follows */
};

/* Finds the longest beginning of a prompt for which every group has what it needs to go on from
   there: all pages, or with a window those that the next token sees. At most token_count - 1 tokens
   match: the last one is always computed, since its logits are wanted.

   Group g's pages go to pages + g·group_stride, [token_count / page_size] each, of which
   [kv_groups_first, page_count) are valid. Takes no reference and changes no order: the answer is
   valid until the next call that takes pages. */
void pager_find(const struct pager *pager, const uint32_t *tokens, uint32_t token_count,
                uint64_t salt, uint32_t *pages, uint32_t group_stride, struct pager_match *out);

/* Enters a full, computed page that is in use into the prefix cache, as the page that follows the
   page named `parent_id` (0: it is the first of a prompt). Returns the page's own id, which is the
   next page's parent id if the group is 0; the other groups' pages of the same tokens have the same
   parent. If another page with the same content is cached already, its id is returned and ours
   stays out of the cache. */
uint64_t pager_publish(struct pager *pager, uint32_t page, uint32_t group, uint64_t parent_id,
                       const uint32_t *tokens, uint64_t salt);

/* Does the prefix index name the page? Such a page is full and must not be written. */
bool pager_is_cached(const struct pager *pager, uint32_t page);

/* What the prefix index says of a page. */
struct pager_entry {
    uint64_t id; /* its name, never used twice by this process; 0: the page is not cached */
    uint64_t parent, salt;
    uint32_t group;
    const uint32_t *tokens; /* [page_size] */
};
void pager_describe(const struct pager *pager, uint32_t page, struct pager_entry *out);

/* How many pages were ever published: the index has changed when this has. */
uint64_t pager_published(const struct pager *pager);

/* The cached pages that are free, at most `most`, those that would be evicted last first; returns
   how many. The heads of prefixes come before what follows them, page by page. */
uint32_t pager_cached(const struct pager *pager, uint32_t *out, uint32_t most);

/* A page that was just published came from the cache directory: it counts in restored_count. */
void pager_mark_restored(struct pager *pager, uint32_t page);

/* Evicts every cached page that is free; returns how many. */
uint32_t pager_forget(struct pager *pager);

/* Verifies everything against the tables that exist: free + in use = total; reference counts equal
   the tables that contain a page; every page is in exactly one place; empty pages stand before
   cached ones; pool and prefix index agree on what is cached. named [page_count] says how many
   tables contain each page (page_tables_check counts them), and is overwritten. false with what is
   wrong in *error. O(pages). */
bool pager_check(const struct pager *pager, uint32_t *named, struct error *error);

#endif
