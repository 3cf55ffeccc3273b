/*
 * How many pages a sequence needs, and how long a sequence so many pages can contain. Everything
 * that admits, plans or refuses by pages uses this arithmetic, so that a prompt that is accepted
 * can always be computed: the memory plan, the effective context length, admission, preemption.
 *
 * kv_groups_fit is the inverse of kv_groups_need, found by bisection: need grows with the length.
 */
#include "pager/kv_groups.h"

uint64_t kv_groups_need(const struct kv_groups *groups, uint32_t page_size, uint32_t chunk,
                        uint64_t token_count)
{
    uint64_t pages = token_count / page_size + (token_count % page_size != 0);
    uint64_t need = 0;
    for (uint32_t group = 0; group < groups->count; group++)
        need += kv_groups_most_pages(groups, group, page_size, chunk, pages);
    return need;
}

uint32_t kv_groups_fit(const struct kv_groups *groups, uint32_t page_size, uint32_t chunk,
                       uint64_t page_count)
{
    uint64_t pages = 0;                      /* fit */
    uint64_t limit = UINT32_MAX / page_size; /* more have more tokens than 32 bits can count … */
    limit = min_u64(limit, page_count) + 1;  /* … or more pages in the first group alone */
    while (pages + 1 < limit) {
        uint64_t middle = pages + (limit - pages) / 2;
        uint64_t need = kv_groups_need(groups, page_size, chunk, middle * page_size);
        *(need <= page_count ? &pages : &limit) = middle;
    }
    return (uint32_t)(pages * page_size);
}
