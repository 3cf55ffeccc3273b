/*
 * Attention over pages for several queries and heads at once; engine/kernels/attention.c says what
 * is computed and in which order. Bodies for any number of lanes.
 *
 * A row is one query of one head. Per tile of 64 positions: scores of all rows (lanes are tokens),
 * softmax of each row, then values added to all rows (lanes are dimensions), so keys and values are
 * read once per few rows. Rows see different ranges only at a tile's ends: there they go alone.
 * Lanes outside a row's range are computed from whatever the page holds and then dropped.
 *
 * What reads a page is compiled once for each type of keys and values, a constant there (`type`).
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_ATTENTION_H
#define QUIRE_ENGINE_KERNELS_VECTOR_ATTENTION_H

#include "base/check.h"
#include "base/minmax.h"
#include "engine/kernels/kernel_set.h"
#include "engine/kernels/vector/kv.h"
#include "engine/kernels/vector/math.h"

#include <math.h>

/* Copied wherever it is called with other constants. Sanitizers would take minutes to compile all
   copies: there it is one, and the constants are arguments. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COPIED static
#else
#define COPIED INLINE
#endif

#define ATTENTION_ROWS TILE_ROWS
#define TILE_VECTORS (ATTENTION_TILE / VECTOR_LANES)
#define NEXT_TOKENS 512u /* fetched of the next task: half of a core's own cache */

struct attention_rows;

/* What reads pages, of one type: score_all and values_of_rows. */
struct kv_reader {
    void (*score)(const struct attention_rows *rows, uint32_t first, uint32_t end);
    void (*values)(const struct attention_rows *rows, uint32_t r, uint32_t count, uint32_t first,
                   uint32_t end);
};

/* Scratch, in floats; `rows` of each. */
struct attention_rows {
    const struct attention_task *task;
    const struct kv_reader *reader;
    const struct attention_task *next; /* its keys and values here are fetched, or NULL */
    uint32_t head_dim;
    uint32_t rows;
    uint32_t last;   /* the last position that any of them sees */
    uint32_t tile;   /* first position of the current tile */
    uint32_t active; /* rows [active, active_end) see some of it … */
    uint32_t active_end;
    float *scores;  /* [rows][64] */
    float *out;     /* [rows][head_dim] of the current segment */
    float *total;   /* [rows][head_dim] */
    float *maximum; /* [rows] of the current segment, and so on */
    float *sum;
    float *total_maximum;
    float *total_sum;
};

static uint64_t vector_attention_scratch_bytes(uint32_t head_dim, uint32_t gqa_group)
{
    uint64_t rows = (uint64_t)KERNEL_QUERY_TILE * gqa_group;
    return rows * (2ull * head_dim + ATTENTION_TILE + 4) * sizeof(float) + 64;
}

/* What row r sees of [from, from + length): [*first, *end) relative to `from`; false: nothing. */
static bool row_range(const struct attention_rows *rows, uint32_t r, uint32_t from, uint32_t length,
                      uint32_t *first, uint32_t *end)
{
    uint32_t position = rows->task->first_position + r / rows->task->gqa_group;
    uint32_t visible = attention_first_visible(position, rows->task->window);
    uint32_t last = attention_last_visible(rows->task, position);
    if (last < from || visible >= from + length)
        return false;
    *first = visible > from ? visible - from : 0;
    *end = last - from < length ? last - from + 1 : length;
    return true;
}

/* The plane with a task's keys or values of one position. */
static const uint8_t *plane_at(const struct attention_task *task, uint32_t position, bool values)
{
    uint32_t page = task->pages[position / task->kv->page_size];
    return kv_plane(task->kv, page, task->layer, task->kv_head, values);
}

/* Where the keys of consecutive tokens start: dimension 0 of them, and their first scales. */
struct key_place {
    const uint8_t *keys;
    const uint8_t *scales;
};

INLINE struct key_place keys_at(const enum kv_type type, const struct attention_task *task,
                                uint32_t position)
{
    const size_t page_size = task->kv->page_size;
    const uint8_t *plane = plane_at(task, position, false);
    size_t offset = position % page_size;
    size_t scales = kv_is_quantized(type) ? 2 * page_size : 0;
    return (struct key_place){plane + scales + offset * kv_element_bytes(type), plane + 2 * offset};
}

/* What is fetched meanwhile: the same place in the next tile, for the first-level cache, and in the
   same tile of the next task, which may be far away. Rows go through a tile one after the other,
   and the first ones fetch for all. */
INLINE bool is_ahead(const struct attention_rows *rows, uint32_t r, uint32_t at)
{
    return r == rows->active && rows->tile + ATTENTION_TILE + at <= rows->last;
}

INLINE bool is_next(const struct attention_rows *rows, uint32_t r, uint32_t at)
{
    return r == rows->active && rows->next != NULL &&
           rows->tile + at <= attention_last_key(rows->next);
}

/* Scores of `count` rows from r and `vectors` vectors of tokens; low and high are where the keys of
   a vector's two halves of 8 lanes start. */
COPIED void score_tile(const enum kv_type type, const int count, const int vectors,
                       const bool split, const struct attention_rows *rows, uint32_t r,
                       const struct key_place *low, const struct key_place *high, uint32_t at)
{
    const struct attention_task *task = rows->task;
    const size_t stride = (size_t)task->kv->page_size * kv_element_bytes(type);
    const uint8_t *ahead[4], *next[4];
    const bool fetch = is_ahead(rows, r, at + (uint32_t)(vectors - 1) * VECTOR_LANES);
    const bool fetch_next = is_next(rows, r, at + (uint32_t)(vectors - 1) * VECTOR_LANES);
    for (int v = 0; v < vectors; v++) {
        uint32_t position = rows->tile + at + (uint32_t)v * VECTOR_LANES;
        ahead[v] = fetch ? keys_at(type, task, position + ATTENTION_TILE).keys : NULL;
        next[v] = fetch_next ? keys_at(type, rows->next, position).keys : NULL;
    }
    const float *q[ATTENTION_ROWS];
    vf sums[ATTENTION_ROWS][4];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        uint32_t row = r + (uint32_t)i;
        q[i] = task->q + row / task->gqa_group * task->q_stride +
               (size_t)(row % task->gqa_group) * rows->head_dim;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[i][v] = vf_set1(0.0f);
    }
    const uint32_t step = kv_dims_per_row(type);
    vf scales[4] = {vf_set1(0.0f), vf_set1(0.0f), vf_set1(0.0f), vf_set1(0.0f)};
    size_t to = 0; /* a row, from the first one */
    for (size_t d = 0; d < rows->head_dim; d += step, to += stride) {
        if (kv_is_quantized(type) && d % KV_BLOCK == 0) {
            to = kv_key_block_at(type, task->kv->page_size, (uint32_t)d / KV_BLOCK);
            for (int v = 0; v < vectors; v++) {
                scales[v] = vf_load_kv(KV_F16, split, low[v].scales + to, high[v].scales + to,
                                       scales[v], 0);
            }
        }
        if (to % 64 < stride) { /* a new line */
            for (int v = 0; v < vectors; v += VECTOR_LANES == 8 && vectors > 1 ? 2 : 1) {
                if (fetch)
                    __builtin_prefetch(ahead[v] + to, 0, 3);
                if (fetch_next)
                    __builtin_prefetch(next[v] + to, 0, 2);
            }
        }
#pragma GCC unroll 2
        for (uint32_t part = 0; part < step; part++) {
            vf keys[4];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                keys[v] = vf_load_kv(type, split, low[v].keys + to, high[v].keys + to, scales[v],
                                     4 * part);
            }
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                vf value = vf_set1(q[i][d + part]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    sums[i][v] = vf_fma(value, keys[v], sums[i][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        float *out = rows->scores + (size_t)(r + (uint32_t)i) * ATTENTION_TILE + at;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            vf_store(out + v * (int)VECTOR_LANES, vf_mul(sums[i][v], vf_set1(task->scale)));
    }
}

/* The eight positions from `at`, or, when nobody sees them, so that they may have no page, the
   nearest eight that somebody sees. */
INLINE uint32_t visible_eight(uint32_t at, uint32_t first, uint32_t end)
{
    return at + 8 <= first ? first / 8 * 8 : at >= end ? (end - 1) / 8 * 8 : at;
}

/* One token range of all active rows: `vectors` vectors from `at`. */
COPIED void score_rows(const enum kv_type type, const int vectors, const bool split,
                       const struct attention_rows *rows, uint32_t at, uint32_t first, uint32_t end)
{
    struct key_place low[4], high[4] = {{NULL, NULL}};
    for (int v = 0; v < vectors; v++) {
        uint32_t a = at + (uint32_t)v * VECTOR_LANES, b = a;
        if (split || VECTOR_LANES == 8) { /* else pages hold at least a vector */
            b = visible_eight(a + 8, first, end);
            a = visible_eight(a, first, end);
        }
        low[v] = keys_at(type, rows->task, rows->tile + a);
        if (split)
            high[v] = keys_at(type, rows->task, rows->tile + b);
    }
    for (uint32_t r = rows->active; r < rows->active_end;) {
        uint32_t left = rows->active_end - r;
        switch (min_u32(left, ATTENTION_ROWS)) {
#define CASE(count, ...)                                                                           \
    case count:                                                                                    \
        score_tile(type, count, vectors, split, rows, r, low, high, at);                           \
        r += count;                                                                                \
        break;
            EACH_TILE_ROWS(CASE, )
#undef CASE
        }
    }
}

/* scores [active rows][first, end) of the tile; the range is rounded to 16 positions. */
COPIED void score_all(const enum kv_type type, const struct attention_rows *rows, uint32_t first,
                      uint32_t end)
{
    bool split = VECTOR_LANES == 16 && rows->task->kv->page_size == 8;
    uint32_t at = first / 16 * 16;
    uint32_t stop = (end + 15) / 16 * 16;
    const uint32_t wide = ATTENTION_WIDE * VECTOR_LANES;
    while (at < stop) {
        if (split) {
            score_rows(type, 1, true, rows, at, first, end);
            at += VECTOR_LANES;
        } else if (stop - at >= wide && rows->active_end - rows->active <= ATTENTION_FEW) {
            score_rows(type, ATTENTION_WIDE, false, rows, at, first, end);
            at += wide;
        } else if (stop - at >= 2 * VECTOR_LANES) {
            score_rows(type, 2, false, rows, at, first, end);
            at += 2 * VECTOR_LANES;
        } else {
            score_rows(type, 1, false, rows, at, first, end);
            at += VECTOR_LANES;
        }
    }
}

INLINE vf lane_numbers(void)
{
    static const float NUMBERS[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vf_load(NUMBERS);
}

/* Row r's scores [first, end) become p; 0 outside, up to multiples of 16. Updates maximum and sum,
   returns what the row's output so far is to be multiplied with. */
static float softmax_row(const struct attention_rows *rows, uint32_t r, uint32_t first,
                         uint32_t end)
{
    float *scores = rows->scores + (size_t)r * ATTENTION_TILE;
    const float softcap = rows->task->softcap;
    const vf nothing = vf_set1(-INFINITY);
    vf largest = nothing;
    uint32_t start = first / 16 * 16;
    for (uint32_t at = start; at < end; at += VECTOR_LANES) {
        vf s = vf_load(scores + at);
        if (softcap > 0.0f)
            s = vf_mul(vf_set1(softcap), vf_tanh(vf_div(s, vf_set1(softcap))));
        if (at < first || at + VECTOR_LANES > end || softcap > 0.0f) {
            vf number = vf_add(lane_numbers(), vf_set1((float)at));
            s = vf_select_less(number, vf_set1((float)first), nothing, s);
            s = vf_select_less(number, vf_set1((float)end), s, nothing);
            vf_store(scores + at, s);
        }
        largest = vf_max(s, largest);
    }
    float before = rows->maximum[r];
    float tile = vf_largest(largest);
    float maximum = tile > before ? tile : before;
    struct lanes lanes;
    for (uint32_t j = 0; j < 16 / VECTOR_LANES; j++)
        lanes.at[j] = vf_set1(0.0f);
    for (uint32_t at = start; at < end; at += 16) {
        for (uint32_t j = 0; j < 16 / VECTOR_LANES; j++) {
            float *p = scores + at + j * VECTOR_LANES;
            if (at + j * VECTOR_LANES < end) {
                vf value = vf_exp(vf_sub(vf_load(p), vf_set1(maximum)));
                vf_store(p, value);
                lanes.at[j] = vf_add(lanes.at[j], value);
            }
        }
    }
    float change = before - maximum; /* mostly 0, and exp(0) is 1 */
    float correction = change == 0.0f ? 1.0f : vf_first(vf_exp(vf_set1(change)));
    rows->sum[r] = fmaf(rows->sum[r], correction, lanes_sum(lanes));
    rows->maximum[r] = maximum;
    return correction;
}

/* out[rows from r] += p·v of positions [first, end) of the tile, ascending, for `vectors` vectors
   of dimensions from d (`eight`: 8 dimensions of one vector). */
COPIED void value_tile(const enum kv_type type, const int count, const int vectors,
                       const bool eight, const struct attention_rows *rows, uint32_t r, uint32_t d,
                       uint32_t first, uint32_t end)
{
    const size_t head_dim = rows->head_dim, blocks = head_dim / KV_BLOCK;
    const uint32_t page_size = rows->task->kv->page_size;
    const size_t row_bytes = kv_row_bytes(type, rows->head_dim);
    /* A plane's byte with the first of these dimensions of its first token. */
    const uint32_t in_block = (uint32_t)vectors * VECTOR_LANES % KV_BLOCK == 0 ? 0 : d % KV_BLOCK;
    const size_t start =
        kv_scales_bytes(type, rows->head_dim, page_size) + kv_row_bytes(type, d - in_block);
    size_t piece[4]; /* from there to each vector */
    uint32_t shift[4];
#pragma GCC unroll 4
    for (uint32_t v = 0; v < (uint32_t)vectors; v++) {
        uint32_t dim = in_block + v * VECTOR_LANES;
        piece[v] = type == KV_Q4_0 ? dim / KV_BLOCK * (KV_BLOCK / 2) + dim % (KV_BLOCK / 2)
                                   : (size_t)dim * kv_element_bytes(type);
        shift[v] = dim % KV_BLOCK < KV_BLOCK / 2 ? 0 : 4;
    }
    const float *p = rows->scores + (size_t)r * ATTENTION_TILE;
    float *out = rows->out + r * head_dim + d;
    vf sums[ATTENTION_ROWS][4];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const float *at = out + (size_t)i * head_dim + v * (int)VECTOR_LANES;
            sums[i][v] = eight ? vf_load_8(at) : vf_load(at);
        }
    }
    for (uint32_t t = first; t < end;) {
        uint32_t offset = (rows->tile + t) % page_size;
        uint32_t run = page_size - offset < end - t ? page_size - offset : end - t;
        const uint8_t *plane = plane_at(rows->task, rows->tile + t, true);
        const uint8_t *from = plane + start + offset * row_bytes, *ahead = from, *next = from;
        const uint16_t *scales = (const uint16_t *)(const void *)plane + offset * blocks;
        scales += (d - in_block) / KV_BLOCK;
        if (is_ahead(rows, r, t + run - 1)) {
            ahead = plane_at(rows->task, rows->tile + t + ATTENTION_TILE, true);
            if (kv_is_quantized(type))
                __builtin_prefetch(ahead + 2 * offset * blocks, 0, 3);
            ahead += start + offset * row_bytes;
        }
        if (is_next(rows, r, t + run - 1))
            next = plane_at(rows->next, rows->tile + t, true) + start + offset * row_bytes;
        for (uint32_t stop = t + run; t < stop;
             t++, from += row_bytes, ahead += row_bytes, next += row_bytes) {
            vf values[4];
            for (size_t v = 0; v < kv_row_bytes(type, (uint32_t)vectors * VECTOR_LANES); v += 64) {
                __builtin_prefetch(ahead + v, 0, 3);
                __builtin_prefetch(next + v, 0, 2);
            }
#pragma GCC unroll 4
            for (uint32_t v = 0; v < (uint32_t)vectors; v++) {
                const uint16_t *at = scales + (in_block + v * VECTOR_LANES) / KV_BLOCK;
                vf scale = kv_is_quantized(type) ? vf_set1_f16(at) : vf_set1(0.0f);
                values[v] = eight ? vf_load_kv_8(type, from + piece[v])
                                  : vf_load_kv(type, false, from + piece[v], NULL, scale, shift[v]);
            }
            scales += blocks;
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                vf weight = vf_set1(p[(size_t)i * ATTENTION_TILE + t]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    sums[i][v] = vf_fma(weight, values[v], sums[i][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            float *at = out + (size_t)i * head_dim + v * (int)VECTOR_LANES;
            if (eight)
                vf_store_8(at, sums[i][v]);
            else
                vf_store(at, sums[i][v]);
        }
    }
}

COPIED void value_dimensions(const enum kv_type type, const int count,
                             const struct attention_rows *rows, uint32_t r, uint32_t first,
                             uint32_t end)
{
    const int wide = count <= (int)ATTENTION_FEW ? (int)ATTENTION_WIDE : 2;
    uint32_t d = 0;
    if (first >= end)
        return;
    for (; d + (uint32_t)wide * VECTOR_LANES <= rows->head_dim; d += (uint32_t)wide * VECTOR_LANES)
        value_tile(type, count, wide, false, rows, r, d, first, end);
    for (; d + VECTOR_LANES <= rows->head_dim; d += VECTOR_LANES)
        value_tile(type, count, 1, false, rows, r, d, first, end);
    if (!kv_is_quantized(type) && d < rows->head_dim)
        value_tile(type, count, 1, true, rows, r, d, first, end);
}

COPIED void values_of_rows(const enum kv_type type, const struct attention_rows *rows, uint32_t r,
                           uint32_t count, uint32_t first, uint32_t end)
{
    switch (count) {
#define CASE(number, ...)                                                                          \
    case number:                                                                                   \
        value_dimensions(type, number, rows, r, first, end);                                       \
        break;
        EACH_TILE_ROWS(CASE, )
#undef CASE
    }
}

#define KV_READER(type)                                                                            \
    static void score_all_##type(const struct attention_rows *rows, uint32_t first, uint32_t end)  \
    {                                                                                              \
        score_all(type, rows, first, end);                                                         \
    }                                                                                              \
    static void values_##type(const struct attention_rows *rows, uint32_t r, uint32_t count,       \
                              uint32_t first, uint32_t end)                                        \
    {                                                                                              \
        values_of_rows(type, rows, r, count, first, end);                                          \
    }
KV_READER(KV_F32)
KV_READER(KV_F16)
KV_READER(KV_BF16)
KV_READER(KV_Q8_0)
KV_READER(KV_Q4_0)

#define KV_ENTRY(type) [type] = {score_all_##type, values_##type}
static const struct kv_reader KV_READERS[KV_TYPES] = {
    KV_ENTRY(KV_F32), KV_ENTRY(KV_F16), KV_ENTRY(KV_BF16), KV_ENTRY(KV_Q8_0), KV_ENTRY(KV_Q4_0),
};

/* `count` rows: what all see together, what one sees before and after that alone. */
static void add_values(const struct attention_rows *rows, uint32_t r, uint32_t count)
{
    uint32_t first[ATTENTION_ROWS], end[ATTENTION_ROWS];
    uint32_t all_first = 0, all_end = ATTENTION_TILE;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(row_range(rows, r + i, rows->tile, ATTENTION_TILE, &first[i], &end[i]));
        all_first = first[i] > all_first ? first[i] : all_first;
        all_end = end[i] < all_end ? end[i] : all_end;
    }
    if (all_first >= all_end)
        all_end = all_first;
    for (uint32_t i = 0; i < count; i++)
        rows->reader->values(rows, r + i, 1, first[i], end[i] < all_first ? end[i] : all_first);
    rows->reader->values(rows, r, count, all_first, all_end);
    for (uint32_t i = 0; i < count; i++)
        rows->reader->values(rows, r + i, 1, first[i] > all_end ? first[i] : all_end, end[i]);
}

static void scale_row(float *out, uint32_t head_dim, float by)
{
    for (uint32_t d = 0; d < head_dim; d += 8)
        vf_store_8(out + d, vf_mul(vf_load_8(out + d), vf_set1(by)));
}

/* The next task, if this tile of it is to be fetched and has its pages. */
static const struct attention_task *next_task(const struct attention_rows *rows)
{
    const struct attention_task *next = rows->task->next;
    return next != NULL && rows->tile < NEXT_TOKENS &&
                   rows->tile >= attention_first_visible(next->first_position, next->window)
               ? next
               : NULL;
}

static void walk_tile(struct attention_rows *rows)
{
    uint32_t first = ATTENTION_TILE, end = 0;
    rows->active = rows->rows;
    rows->active_end = 0;
    for (uint32_t r = 0; r < rows->rows; r++) {
        uint32_t f, e;
        if (row_range(rows, r, rows->tile, ATTENTION_TILE, &f, &e)) {
            rows->active = r < rows->active ? r : rows->active;
            rows->active_end = r + 1;
            first = f < first ? f : first;
            end = e > end ? e : end;
        }
    }
    if (rows->active_end == 0)
        return;
    rows->next = next_task(rows);
    rows->reader->score(rows, first, end);
    for (uint32_t r = rows->active; r < rows->active_end; r++) {
        uint32_t f, e;
        CHECK(row_range(rows, r, rows->tile, ATTENTION_TILE, &f, &e));
        float correction = softmax_row(rows, r, f, e);
        if (correction != 1.0f)
            scale_row(rows->out + (size_t)r * rows->head_dim, rows->head_dim, correction);
    }
    for (uint32_t r = rows->active; r < rows->active_end;) {
        uint32_t left = rows->active_end - r;
        uint32_t count = min_u32(left, ATTENTION_ROWS);
        add_values(rows, r, count);
        r += count;
    }
}

static void merge_segment(struct attention_rows *rows, uint32_t segment)
{
    for (uint32_t r = 0; r < rows->rows; r++) {
        uint32_t first, end;
        if (!row_range(rows, r, segment, ATTENTION_SEGMENT, &first, &end))
            continue;
        float before = rows->total_maximum[r], here = rows->maximum[r];
        float maximum = here > before ? here : before;
        float a = vf_first(vf_exp(vf_set1(before - maximum)));
        float b = vf_first(vf_exp(vf_set1(here - maximum)));
        float *total = rows->total + (size_t)r * rows->head_dim;
        const float *out = rows->out + (size_t)r * rows->head_dim;
        rows->total_maximum[r] = maximum;
        rows->total_sum[r] = fmaf(rows->total_sum[r], a, rows->sum[r] * b);
        for (uint32_t d = 0; d < rows->head_dim; d += 8) {
            vf added = vf_mul(vf_load_8(out + d), vf_set1(b));
            vf_store_8(total + d, vf_fma(vf_load_8(total + d), vf_set1(a), added));
        }
    }
}

static void write_rows(const struct attention_rows *rows)
{
    const struct attention_task *task = rows->task;
    for (uint32_t r = 0; r < rows->rows; r++) {
        float *out = task->out + r / task->gqa_group * task->out_stride +
                     (size_t)(r % task->gqa_group) * rows->head_dim;
        const float *total = rows->total + (size_t)r * rows->head_dim;
        vf inverse = vf_set1(1.0f / rows->total_sum[r]);
        for (uint32_t d = 0; d < rows->head_dim; d += 8)
            vf_store_8(out + d, vf_mul(vf_load_8(total + d), inverse));
    }
}

static void rows_init(struct attention_rows *rows, const struct attention_task *task)
{
    uint32_t count = task->query_count * task->gqa_group;
    *rows = (struct attention_rows){.task = task,
                                    .reader = &KV_READERS[task->kv->type],
                                    .head_dim = task->kv->head_dim,
                                    .rows = count,
                                    .last = attention_last_key(task),
                                    .scores = task->scratch};
    rows->out = rows->scores + (size_t)count * ATTENTION_TILE;
    rows->total = rows->out + (size_t)count * rows->head_dim;
    rows->maximum = rows->total + (size_t)count * rows->head_dim;
    rows->sum = rows->maximum + count;
    rows->total_maximum = rows->sum + count;
    rows->total_sum = rows->total_maximum + count;
    memset(rows->total, 0, (size_t)count * rows->head_dim * sizeof(float));
    for (uint32_t r = 0; r < count; r++) {
        rows->total_maximum[r] = -INFINITY;
        rows->total_sum[r] = 0.0f;
    }
}

static void walk_segment(struct attention_rows *rows, uint32_t s)
{
    uint32_t segment = s * ATTENTION_SEGMENT;
    memset(rows->out, 0, (size_t)rows->rows * rows->head_dim * sizeof(float));
    for (uint32_t r = 0; r < rows->rows; r++) {
        rows->maximum[r] = -INFINITY;
        rows->sum[r] = 0.0f;
    }
    uint32_t first = attention_first_visible(rows->task->first_position, rows->task->window);
    first -= first % ATTENTION_TILE;
    uint32_t tile = segment > first ? segment : first;
    for (; tile < segment + ATTENTION_SEGMENT && tile <= rows->last; tile += ATTENTION_TILE) {
        rows->tile = tile;
        walk_tile(rows);
    }
}

static void vector_attention(const struct attention_task *task)
{
    CHECK(task->kv->head_dim % 8 == 0 && task->query_count <= KERNEL_QUERY_TILE);
    if (task->query_count == 0)
        return;
    struct attention_rows rows;
    rows_init(&rows, task);
    for (uint32_t s = attention_first_segment(task); s <= rows.last / ATTENTION_SEGMENT; s++) {
        walk_segment(&rows, s);
        merge_segment(&rows, s * ATTENTION_SEGMENT);
    }
    write_rows(&rows);
}

static void vector_attention_segment(const struct attention_task *task, uint32_t index, float *part)
{
    CHECK(task->query_count == 1 && index < attention_segments(task));
    struct attention_rows rows;
    rows_init(&rows, task);
    walk_segment(&rows, attention_first_segment(task) + index);
    for (uint32_t r = 0; r < rows.rows; r++, part += rows.head_dim + 2) {
        memcpy(part, rows.out + (size_t)r * rows.head_dim, rows.head_dim * sizeof *part);
        part[rows.head_dim] = rows.maximum[r];
        part[rows.head_dim + 1] = rows.sum[r];
    }
}

static void vector_attention_merge(const struct attention_task *task, const float *parts)
{
    CHECK(task->query_count == 1);
    struct attention_rows rows;
    rows_init(&rows, task);
    uint32_t first = attention_first_segment(task), segments = attention_segments(task);
    for (uint32_t s = 0; s < segments; s++) {
        for (uint32_t r = 0; r < rows.rows; r++, parts += rows.head_dim + 2) {
            memcpy(rows.out + (size_t)r * rows.head_dim, parts, rows.head_dim * sizeof *parts);
            rows.maximum[r] = parts[rows.head_dim];
            rows.sum[r] = parts[rows.head_dim + 1];
        }
        merge_segment(&rows, (first + s) * ATTENTION_SEGMENT);
    }
    write_rows(&rows);
}

#endif
