/*
 * Private to engine/kernels: the kernel sets, and the constants of attention.
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
extern const struct kernels AVXVNNI_KERNELS;
extern const struct kernels AVX512_KERNELS;
#endif
#ifdef QUIRE_KERNELS_ARM
extern const struct kernels NEON_KERNELS;
extern const struct kernels DOTPROD_KERNELS;
#endif

/* The first position that a query at `position` sees. */
static inline uint32_t attention_first_visible(uint32_t position, uint32_t window)
{
    return window == 0 || position < window ? 0 : position + 1 - window;
}

/* The first segment that a task's first query sees. */
static inline uint32_t attention_first_segment(const struct attention_task *task)
{
    return attention_first_visible(task->first_position, task->window) / ATTENTION_SEGMENT;
}

/* Lanes i + 8, then 4, 2, 1 added to lane i. */
float scalar_sum_lanes(float lanes[16]);
void scalar_attention(const struct attention_task *task);
void scalar_attention_segment(const struct attention_task *task, uint32_t index, float *part);
void scalar_attention_merge(const struct attention_task *task, const float *parts);

#endif
