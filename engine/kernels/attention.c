/*
 * The specification of attention, for one query and one head at a time. Keys and values are what
 * kv_page.c reads back from the page, as floats, whatever their type.
 *
 * A query at position P sees keys lo … P (lo > 0 with a window), or, where a task has a key_count,
 * keys 0 … key_count − 1; others are skipped, never read.
 * Keys are walked upwards in segments of 512 and tiles of 64 positions, both at absolute multiples,
 * so pages, chunks and batches cannot show. In a segment, from m = −∞, l = 0, o = 0, per tile:
 *
 *   s_t = (fma chain of q[i]·k_t[i], i ascending, from 0)·scale; capped: softcap·tanh(s_t/softcap)
 *   m'  = max(m, all s_t); c = exp(m − m'); p_t = exp(s_t − m')
 *   l   = fma(l, c, Σ p_t), the sum in 16 lanes by position (scalar_sum_lanes)
 *   o   = o·c, then o = fma(p_t, v_t, o), t ascending
 *
 * Segments are merged upwards, always, from M = −∞, L = 0, O = 0:
 *
 *   M' = max(M, m); a = exp(M − M'); b = exp(m − M'); L = fma(L, a, l·b); O = fma(O, a, o·b)
 *
 * and out = O·(1/L). max(a, b) is b unless a > b, so a NaN score leaves the maximum alone and comes
 * through in p.
 */
#include "engine/kernels/attention.h"

#include "base/check.h"
#include "base/minmax.h"
#include "engine/kernels/kv_page.h"
#include "engine/kernels/math.h"

#include <math.h>
#include <string.h>

float scalar_sum_lanes(float lanes[16])
{
    for (uint32_t width = 8; width >= 1; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

struct running {
    float maximum;
    float sum;
    float *out; /* [head_dim] */
};

static void running_start(struct running *running, uint32_t head_dim)
{
    running->maximum = -INFINITY;
    running->sum = 0.0f;
    memset(running->out, 0, head_dim * sizeof *running->out);
}

/* row [head_dim] = a position's key or value. */
static void read_row(const struct attention_task *task, uint32_t position, bool values, float *row)
{
    const struct kv_layout *kv = task->kv;
    uint32_t page = task->pages[position / kv->page_size], offset = position % kv->page_size;
    const uint8_t *plane = kv_plane(kv, page, task->layer, task->kv_head, values);
    if (values)
        scalar_kv_read_value(kv, plane, offset, row);
    else
        scalar_kv_read_key(kv, plane, offset, row);
}

static float score(const struct attention_task *task, const float *q, const float *key)
{
    float s = 0.0f;
    for (uint32_t i = 0; i < task->kv->head_dim; i++)
        s = fmaf(q[i], key[i], s);
    s *= task->scale;
    return task->softcap > 0.0f ? task->softcap * math_tanh(s / task->softcap) : s;
}

/* Positions [first, end) of one tile. */
static void walk_tile(const struct attention_task *task, const float *q, uint32_t first,
                      uint32_t end, float *scores, struct running *running)
{
    const uint32_t head_dim = task->kv->head_dim;
    float *row = scores + ATTENTION_TILE;
    float maximum = running->maximum;
    for (uint32_t t = first; t < end; t++) {
        read_row(task, t, false, row);
        scores[t % ATTENTION_TILE] = score(task, q, row);
        maximum = scores[t % ATTENTION_TILE] > maximum ? scores[t % ATTENTION_TILE] : maximum;
    }
    float correction = math_exp(running->maximum - maximum);
    float lanes[16] = {0};
    for (uint32_t i = 0; i < head_dim; i++)
        running->out[i] *= correction;
    for (uint32_t t = first; t < end; t++) {
        float p = math_exp(scores[t % ATTENTION_TILE] - maximum);
        lanes[t % 16] += p;
        read_row(task, t, true, row);
        for (uint32_t i = 0; i < head_dim; i++)
            running->out[i] = fmaf(p, row[i], running->out[i]);
    }
    running->sum = fmaf(running->sum, correction, scalar_sum_lanes(lanes));
    running->maximum = maximum;
}

static void merge(struct running *total, const struct running *segment, uint32_t head_dim)
{
    float maximum = segment->maximum > total->maximum ? segment->maximum : total->maximum;
    float a = math_exp(total->maximum - maximum);
    float b = math_exp(segment->maximum - maximum);
    total->sum = fmaf(total->sum, a, segment->sum * b);
    for (uint32_t i = 0; i < head_dim; i++)
        total->out[i] = fmaf(total->out[i], a, segment->out[i] * b);
    total->maximum = maximum;
}

/* One query's running figures of segment s. */
static void walk_segment(const struct attention_task *task, const float *q, uint32_t position,
                         uint32_t s, float *scores, struct running *running)
{
    uint32_t start =
        max_u32(attention_first_visible(position, task->window), s * ATTENTION_SEGMENT);
    uint32_t last = attention_last_visible(task, position);
    uint32_t end = min_u32(last + 1, (s + 1) * ATTENTION_SEGMENT);
    running_start(running, task->kv->head_dim);
    while (start < end) {
        uint32_t tile_end = min_u32(end, (start / ATTENTION_TILE + 1) * ATTENTION_TILE);
        walk_tile(task, q, start, tile_end, scores, running);
        start = tile_end;
    }
}

static void write_total(const struct running *total, uint32_t head_dim, float *out)
{
    float inverse = 1.0f / total->sum;
    for (uint32_t i = 0; i < head_dim; i++)
        out[i] = total->out[i] * inverse;
}

static void attend(const struct attention_task *task, const float *q, uint32_t position, float *out)
{
    uint32_t head_dim = task->kv->head_dim;
    float *scratch = task->scratch;
    struct running segment = {.out = scratch};
    struct running total = {.out = scratch + head_dim};
    uint32_t first = attention_first_visible(position, task->window);
    running_start(&total, head_dim);
    uint32_t last = attention_last_visible(task, position);
    for (uint32_t s = first / ATTENTION_SEGMENT; s <= last / ATTENTION_SEGMENT; s++) {
        walk_segment(task, q, position, s, scratch + 2 * head_dim, &segment);
        merge(&total, &segment, head_dim);
    }
    write_total(&total, head_dim, out);
}

void scalar_attention(const struct attention_task *task)
{
    uint32_t head_dim = task->kv->head_dim;
    CHECK(head_dim % 8 == 0 && task->query_count <= KERNEL_QUERY_TILE);
    for (uint32_t i = 0; i < task->query_count; i++) {
        for (uint32_t j = 0; j < task->gqa_group; j++) {
            attend(task, task->q + i * task->q_stride + (size_t)j * head_dim,
                   task->first_position + i,
                   task->out + i * task->out_stride + (size_t)j * head_dim);
        }
    }
}

void scalar_attention_segment(const struct attention_task *task, uint32_t index, float *part)
{
    uint32_t head_dim = task->kv->head_dim;
    CHECK(task->query_count == 1 && index < attention_segments(task));
    float *scratch = task->scratch;
    for (uint32_t j = 0; j < task->gqa_group; j++, part += head_dim + 2) {
        struct running segment = {.out = part};
        walk_segment(task, task->q + (size_t)j * head_dim, task->first_position,
                     attention_first_segment(task) + index, scratch + 2 * head_dim, &segment);
        part[head_dim] = segment.maximum;
        part[head_dim + 1] = segment.sum;
    }
}

void scalar_attention_merge(const struct attention_task *task, const float *parts)
{
    uint32_t head_dim = task->kv->head_dim, segments = attention_segments(task);
    CHECK(task->query_count == 1);
    for (uint32_t j = 0; j < task->gqa_group; j++) {
        struct running total = {.out = task->scratch};
        running_start(&total, head_dim);
        for (uint32_t s = 0; s < segments; s++) {
            const float *part = parts + ((size_t)s * task->gqa_group + j) * (head_dim + 2);
            struct running segment = {part[head_dim], part[head_dim + 1], (float *)part};
            merge(&total, &segment, head_dim);
        }
        write_total(&total, head_dim, task->out + (size_t)j * head_dim);
    }
}
