/*
 * KV cache groups: a model's layers in groups of equally many, so that all pages have the same
 * bytes. A page contains the keys and values of consecutive tokens for the layers of one group; a
 * sequence has one page table for each group. In a group with a sliding window a token sees only so
 * many tokens back, itself included: pages that no query still to be computed sees are released. A
 * model without windows is one group.
 *
 *     group 0   all    [0][1][2][3][4][5][6]        every page up to where the sequence is
 *     group 1   window [ · · · ][3][4][5][6]        only those that the window and a chunk reach
 *
 * Plain data and arithmetic; it knows tokens and pages, no models. Any thread. Group 0 always sees
 * all: the prefix index finds a page's parents there.
 */
#ifndef QUIRE_PAGER_KV_GROUPS_H
#define QUIRE_PAGER_KV_GROUPS_H

#include "base/minmax.h"

#include <stdint.h>

#define KV_GROUPS_MAX 16u /* each has a page table per sequence; Gemma 3 needs up to 13 */

struct kv_groups {
    uint32_t count;                 /* 1 … KV_GROUPS_MAX */
    uint32_t window[KV_GROUPS_MAX]; /* tokens; 0: all. window[0] is 0 */
};

/* Pages that `token_count` tokens fill. */
static inline uint32_t kv_groups_pages(uint32_t page_size, uint32_t token_count)
{
    return token_count / page_size + (token_count % page_size != 0);
}

/* The first page of a group that queries at `position` and later can see. */
static inline uint32_t kv_groups_first(const struct kv_groups *groups, uint32_t group,
                                       uint32_t page_size, uint32_t position)
{
    uint32_t window = groups->window[group];
    return window == 0 || position < window ? 0 : (position + 1 - window) / page_size;
}

/* The most pages of a group that a sequence of page_count pages of tokens needs at once, while up
   to `chunk` tokens are computed together: the window before the first of them, and theirs. */
static inline uint64_t kv_groups_most_pages(const struct kv_groups *groups, uint32_t group,
                                            uint32_t page_size, uint32_t chunk, uint64_t page_count)
{
    if (groups->window[group] == 0)
        return page_count;
    /* window - 1 + chunk positions that may begin anywhere in a page */
    uint64_t most = ((uint64_t)groups->window[group] + chunk + page_size - 3) / page_size + 1;
    return min_u64(most, page_count);
}

/* The most pages of all groups that a sequence of `token_count` tokens needs at once. */
uint64_t kv_groups_need(const struct kv_groups *groups, uint32_t page_size, uint32_t chunk,
                        uint64_t token_count);

/* The longest sequence that fits page_count pages: a multiple of page_size. */
uint32_t kv_groups_fit(const struct kv_groups *groups, uint32_t page_size, uint32_t chunk,
                       uint64_t page_count);

#endif
