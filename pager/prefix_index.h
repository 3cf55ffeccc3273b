/*
 * The prefix index: finds the page of a KV cache group that contains the keys and values of given
 * tokens after a given parent page. It does not know reference counts. Private to pager/; the
 * engine thread's.
 *
 * An entry says: page P contains `tokens` (a full page of them) for the layers of `group`, follows
 * the entry `parent`, and belongs to `salt`. Parents are entries of group 0, whatever the group:
 * the pages of a prefix in a group with a window may be evicted while the prefix is still extended.
 *
 * Entries are named by a number that is never used twice, so a child whose parent was evicted can
 * never be found through another page that took the parent's place. The first page of a prompt has
 * the parent PREFIX_ROOT. Keys are hashed with SipHash-1-3 (Aumasson, Bernstein 2012) under a
 * secret key, so that clients cannot make buckets long; a hit is verified by comparing everything.
 *
 * Invariants: at most one entry per page; at most one page per (group, parent, tokens, salt).
 */
#ifndef QUIRE_PAGER_PREFIX_INDEX_H
#define QUIRE_PAGER_PREFIX_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#define PREFIX_ROOT 0u

struct prefix_entry {
    uint64_t id; /* this entry's name; 0: the page has no entry */
    uint64_t parent;
    uint64_t salt;
    uint32_t bucket;
    uint32_t next;     /* page, of the same bucket; 0: none */
    uint32_t previous; /* page, 0: the bucket itself */
    uint32_t group;
    uint32_t restored; /* 1: the page came from a file */
};

struct prefix_index {
    /* fixed after start; the arrays are owned by the caller of init */
    uint32_t page_count;
    uint32_t page_size;
    uint32_t bucket_count; /* a power of two */
    uint64_t key[2];
    struct prefix_entry *entries; /* [page_count] */
    uint32_t *tokens;             /* [page_count][page_size] */
    uint32_t *buckets;            /* [bucket_count] first page, 0: empty */
    /* engine thread only */
    uint64_t last_id;
    uint32_t entry_count;
};

/* Buckets for so many pages: a power of two, at least page_count. */
uint32_t prefix_index_bucket_count(uint32_t page_count);

/* The arrays must be zeroed. */
void prefix_index_init(struct prefix_index *index, uint32_t page_count, uint32_t page_size,
                       const uint64_t key[2], struct prefix_entry *entries, uint32_t *tokens,
                       uint32_t *buckets);

/* The group's page that contains tokens [page_size] after `parent`; 0 when there is none. */
uint32_t prefix_index_find(const struct prefix_index *index, uint32_t group, uint64_t parent,
                           const uint32_t *tokens, uint64_t salt);

/* Enters a page that has no entry, under the next unused id, which is returned. There must be no
   entry for the same content. */
uint64_t prefix_index_add(struct prefix_index *index, uint32_t page, uint32_t group,
                          uint64_t parent, const uint32_t *tokens, uint64_t salt);

/* As prefix_index_add, under the id that the page had in the life before: above all ids so far. */
void prefix_index_restore(struct prefix_index *index, uint32_t page, uint64_t id, uint32_t group,
                          uint64_t parent, const uint32_t *tokens, uint64_t salt);

/* Removes the page's entry, which must exist. */
void prefix_index_remove(struct prefix_index *index, uint32_t page);

/* An entry's tokens [page_size]. */
static inline const uint32_t *prefix_index_tokens(const struct prefix_index *index, uint32_t page)
{
    return index->tokens + (uint64_t)page * index->page_size;
}

/* Do buckets, counts and entries agree? For pager_check. */
bool prefix_index_consistent(const struct prefix_index *index);

#endif
