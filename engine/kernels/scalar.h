/*
 * Private to engine/kernels: the kernel sets, and what they share in addressing pages.
 */
#ifndef QUIRE_ENGINE_KERNELS_SCALAR_H
#define QUIRE_ENGINE_KERNELS_SCALAR_H

#include "engine/kernels/kernels.h"

#include <stdint.h>

/* Attention walks keys in tiles and merges segments, both at absolute multiples of positions. */
#define ATTENTION_TILE 64u
#define ATTENTION_SEGMENT 512u

extern const struct kernels SCALAR_KERNELS;
#ifdef QUIRE_KERNELS_X86
extern const struct kernels AVX2_KERNELS;
extern const struct kernels AVX512_KERNELS;
#endif

/* Keys [head_dim][page_size] and, after them, values [page_size][head_dim] of one page. */
static inline uint16_t *kv_keys(const struct kv_layout *kv, uint32_t page, uint32_t layer,
                                uint32_t kv_head)
{
    uint64_t values = 2ull * kv->page_size * kv->head_dim;
    uint64_t index = (uint64_t)layer * kv->kv_heads + kv_head;
    return (uint16_t *)(void *)(kv->pool + page * kv->page_bytes) + index * values;
}

static inline uint16_t *kv_values(const struct kv_layout *kv, uint32_t page, uint32_t layer,
                                  uint32_t kv_head)
{
    return kv_keys(kv, page, layer, kv_head) + (uint64_t)kv->page_size * kv->head_dim;
}

/* The first position that a query at `position` sees. */
static inline uint32_t attention_first_visible(uint32_t position, uint32_t window)
{
    return window == 0 || position < window ? 0 : position + 1 - window;
}

/* Lanes i + 8, then 4, 2, 1 added to lane i. */
float scalar_sum_lanes(float lanes[16]);
void scalar_attention(const struct attention_task *task);

#endif
