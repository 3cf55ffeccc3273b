/* See kv_groups.h. */
#include "pager/kv_groups.h"

uint64_t kv_groups_need(const struct kv_groups *groups, uint32_t page_size, uint32_t rows,
                        uint64_t token_count)
{
    uint64_t pages = token_count / page_size + (token_count % page_size != 0);
    uint64_t need = 0;
    for (uint32_t group = 0; group < groups->count; group++)
        need += kv_groups_held(groups, group, page_size, rows, pages);
    return need;
}

uint32_t kv_groups_fit(const struct kv_groups *groups, uint32_t page_size, uint32_t rows,
                       uint64_t page_count)
{
    uint64_t pages = 0;                           /* fit */
    uint64_t limit = UINT32_MAX / page_size + 1u; /* do not, or have more tokens than fit 32 bits */
    if (page_count < limit)
        limit = page_count + 1; /* the first group alone needs so many */
    while (pages + 1 < limit) {
        uint64_t middle = pages + (limit - pages) / 2;
        uint64_t need = kv_groups_need(groups, page_size, rows, middle * page_size);
        *(need <= page_count ? &pages : &limit) = middle;
    }
    return (uint32_t)(pages * page_size);
}
