/*
 * What one unit of attention is, and into which segments its keys divide.
 *
 * attention.c is the specification of what is computed; vector/attention.h does the same for a set
 * of lanes. The constants are part of "One arithmetic": tiles and segments start at absolute
 * multiples of positions. Everything here is stateless; any thread.
 */
#ifndef QUIRE_ENGINE_KERNELS_ATTENTION_H
#define QUIRE_ENGINE_KERNELS_ATTENTION_H

#include "engine/kernels/kv.h"

#include <stddef.h>
#include <stdint.h>

#define KERNEL_QUERY_TILE 16u
#define ATTENTION_TILE 64u
#define ATTENTION_SEGMENT 512u

/* Some consecutive queries of one sequence with all query heads that share one KV head. */
struct attention_task {
    const struct kv_layout *kv;
    uint32_t layer;
    uint32_t kv_head;
    const uint32_t *pages;   /* the sequence's page table */
    uint32_t first_position; /* of the first query; query i sees keys 0 … first_position + i, … */
    uint32_t key_count; /* … or, unless this is 0, keys 0 … key_count − 1, what follows it too */
    uint32_t query_count; /* 1 … KERNEL_QUERY_TILE */
    uint32_t gqa_group;   /* query heads per KV head */
    const float *q;       /* query i, head j at q + i·q_stride + j·head_dim; RoPE applied */
    size_t q_stride;
    float scale;     /* multiplies every q·k */
    float softcap;   /* 0: none; else s = softcap·tanh(s/softcap) */
    uint32_t window; /* 0: all keys; else only the last `window` positions */
    float *out;      /* as q */
    size_t out_stride;
    void *scratch; /* attention_scratch_bytes, 64-byte aligned, one per thread */
    /* What this thread will probably compute next, of the same layer, or NULL: its keys and values
       are prefetched meanwhile. */
    const struct attention_task *next;
};

/* The first position that a query at `position` sees. */
static inline uint32_t attention_first_visible(uint32_t position, uint32_t window)
{
    return window == 0 || position < window ? 0 : position + 1 - window;
}

/* The last position that a query at `position` sees. */
static inline uint32_t attention_last_visible(const struct attention_task *task, uint32_t position)
{
    return task->key_count > 0 ? task->key_count - 1 : position;
}

/* The last position that any of a task's queries sees. */
static inline uint32_t attention_last_key(const struct attention_task *task)
{
    return attention_last_visible(task, task->first_position + task->query_count - 1);
}

/* The first segment that a task's first query sees. */
static inline uint32_t attention_first_segment(const struct attention_task *task)
{
    return attention_first_visible(task->first_position, task->window) / ATTENTION_SEGMENT;
}

/* Segments of the keys that a task's first query sees. */
static inline uint32_t attention_segments(const struct attention_task *task)
{
    return attention_last_visible(task, task->first_position) / ATTENTION_SEGMENT + 1 -
           attention_first_segment(task);
}

/* The specification: struct kernels members of the scalar set. */
void scalar_attention(const struct attention_task *task);
void scalar_attention_segment(const struct attention_task *task, uint32_t index, float *part);
void scalar_attention_merge(const struct attention_task *task, const float *parts);
/* Lanes i + 8, then 4, 2, 1 added to lane i: every sum along a row ends so. */
float scalar_sum_lanes(float lanes[16]);

#endif
