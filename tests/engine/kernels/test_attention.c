/*
 * Attention of every kernel set against the scalar specification, bit for bit; the specification
 * itself against plain softmax in double; and that page size, chunking and grouping cannot show.
 * All of it for every type of keys and values; most for f16, the default.
 */
#include "engine/kernels/block.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/math.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sanitizer looks at reads, writes and overflows, and the release build shows that the bits are the
   specification's. So there the fast sets are compared with each other, and the specification, which
   takes most of the time, runs where it is tested itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static const struct kernels *scalar;

static uint64_t random_state = 7;

static uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t mixed = random_state ^ random_state >> 29;
    return (uint32_t)(mixed * 0x9E3779B97F4A7C15u >> 32);
}

static float random_float(void)
{
    return ((float)random_u32() * 0x1p-32f - 0.5f) * 4.0f;
}

static void *allocate(uint64_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 127) / 64 * 64);
    ck_assert_ptr_nonnull(data);
    memset(data, 0xFF, (bytes + 127) / 64 * 64); /* NaN in f16 and f32 */
    return data;
}

/* A sequence: its floats, and pages of any size filled from them. */
struct sequence {
    enum kv_type type;
    uint32_t length, head_dim, kv_heads, group;
    float *keys; /* [length][kv_heads][head_dim] */
    float *values;
    float *queries; /* [length][kv_heads·group][head_dim] */
};

static struct sequence sequence_make(enum kv_type type, uint32_t length, uint32_t head_dim,
                                     uint32_t group)
{
    struct sequence s = {type, length, head_dim, 2, group, NULL, NULL, NULL};
    size_t kv = (size_t)length * s.kv_heads * head_dim;
    s.keys = allocate(kv * sizeof(float));
    s.values = allocate(kv * sizeof(float));
    s.queries = allocate(kv * group * sizeof(float));
    for (size_t i = 0; i < kv; i++) {
        s.keys[i] = random_float();
        s.values[i] = i % 1000 == 999 ? -0.0f : random_float();
    }
    for (size_t i = 0; i < kv * group; i++)
        s.queries[i] = random_float();
    return s;
}

static void sequence_free(struct sequence *s)
{
    free(s->keys);
    free(s->values);
    free(s->queries);
}

struct paged {
    struct kv_layout kv;
    uint32_t *pages;
};

/* Exactly the pages that are needed, in a shuffled order, in a pool whose rest is NaN. The page
   table is allocated to the byte, so that a sanitizer sees a read behind it. */
static struct paged paged_make(const struct kernels *kernels, const struct sequence *s,
                               uint32_t page_size)
{
    uint32_t layers = 2, count = (s->length + page_size - 1) / page_size;
    struct paged paged;
    paged.kv = kv_layout_of(s->type, layers, s->kv_heads, s->head_dim, page_size);
    paged.kv.pool = allocate(paged.kv.page_bytes * (count + 1));
    paged.pages = malloc(count * sizeof *paged.pages);
    for (uint32_t i = 0; i < count; i++)
        paged.pages[i] = i + 1;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = random_u32() % i, page = paged.pages[i - 1];
        paged.pages[i - 1] = paged.pages[j];
        paged.pages[j] = page;
    }
    for (uint32_t t = 0; t < s->length; t++) {
        uint64_t slot = (uint64_t)paged.pages[t / page_size] * page_size + t % page_size;
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            size_t at = ((size_t)t * s->kv_heads + h) * s->head_dim;
            kernels->kv_store(&paged.kv, 1, h, slot, s->keys + at, s->values + at);
        }
    }
    return paged;
}

static void paged_free(struct paged *paged)
{
    free(paged->kv.pool);
    free(paged->pages);
}

struct options {
    uint32_t window;
    float softcap;
    uint32_t key_count; /* 0: causal */
};

static void assert_same(const float *expected, const float *got, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t a, b;
        memcpy(&a, &expected[i], 4);
        memcpy(&b, &got[i], 4);
        if (a != b && !(isnan(expected[i]) && isnan(got[i]))) {
            ck_abort_msg("%s: at %zu expected %.9g (%08x), got %.9g (%08x)", what, i,
                         (double)expected[i], a, (double)got[i], b);
        }
    }
}

/* Segment by segment, the last one first, and then together: the same bits as at once. */
static void check_segments(const struct kernels *kernels, struct attention_task task)
{
    size_t head_dim = task.kv->head_dim, floats = task.gqa_group * (head_dim + 2);
    const float *expected = task.out;
    uint32_t segments = attention_segments(&task);
    float *parts = allocate(segments * floats * sizeof(float));
    task.out = allocate(task.gqa_group * head_dim * sizeof(float));
    for (uint32_t s = segments; s-- > 0;)
        kernels->attention_segment(&task, s, parts + s * floats);
    kernels->attention_merge(&task, parts);
    assert_same(expected, task.out, task.gqa_group * head_dim, "segments");
    free(task.out);
    free(parts);
}

/* out [count][heads][head_dim] of queries first … first + count − 1, at most `tile` at a time. */
static float *attend(const struct kernels *kernels, const struct sequence *s,
                     const struct paged *paged, struct options options, uint32_t first,
                     uint32_t count, uint32_t tile)
{
    size_t stride = (size_t)s->kv_heads * s->group * s->head_dim;
    float *out = allocate(count * stride * sizeof(float));
    void *scratch = allocate(kernels->attention_scratch_bytes(s->head_dim, s->group));
    for (uint32_t i = 0; i < count; i += tile) {
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            size_t head = (size_t)h * s->group * s->head_dim;
            struct attention_task task = {
                .kv = &paged->kv,
                .layer = 1,
                .kv_head = h,
                .pages = paged->pages,
                .first_position = first + i,
                .key_count = options.key_count,
                .query_count = count - i < tile ? count - i : tile,
                .gqa_group = s->group,
                .q = s->queries + (first + i) * stride + head,
                .q_stride = stride,
                .scale = 1.0f / sqrtf((float)s->head_dim),
                .softcap = options.softcap,
                .window = options.window,
                .out = out + i * stride + head,
                .out_stride = stride,
                .scratch = scratch,
            };
            kernels->attention(&task);
            if (task.query_count == 1 && (attention_segments(&task) > 1 || i % 16 == 0))
                check_segments(kernels, task);
        }
    }
    free(scratch);
    return out;
}

/* What all sets must equal. */
static const struct kernels *specification(void)
{
    const struct kernels *const *sets = kernels_available();
    for (; SANITIZED && *sets; sets++)
        if (*sets != scalar)
            return *sets;
    return scalar;
}

/* All kernel sets and page sizes, queries [first, first + count) in tiles, against the specification
   with pages of 16 and one query at a time. */
static void check_all(const struct sequence *s, struct options options, uint32_t first,
                      uint32_t count, const uint32_t *tiles, size_t tile_count)
{
    struct paged reference = paged_make(specification(), s, 16);
    float *expected = attend(specification(), s, &reference, options, first, count, 1);
    size_t values = (size_t)count * s->kv_heads * s->group * s->head_dim;
    for (size_t i = 0; i < values; i++)
        ck_assert(isfinite(expected[i]));
    for (const struct kernels *const *at = kernels_available(); *at; at++) {
        bool slow = *at == scalar; /* which ignores how queries are tiled */
        if (slow && specification() != scalar)
            continue;
        for (uint32_t page_size = 8; page_size <= 64; page_size *= slow || SANITIZED ? 8 : 2) {
            struct paged paged = paged_make(*at, s, page_size);
            for (size_t t = 0; t < (slow ? 1 : tile_count); t++) {
                char what[160];
                snprintf(what, sizeof what,
                         "%s %s page=%u tile=%u dim=%u group=%u first=%u count=%u window=%u",
                         (*at)->name, kv_type_name(s->type), page_size, tiles[t], s->head_dim,
                         s->group, first, count, options.window);
                float *got = attend(*at, s, &paged, options, first, count, tiles[t]);
                assert_same(expected, got, values, what);
                free(got);
            }
            paged_free(&paged);
        }
    }
    free(expected);
    paged_free(&reference);
}

static const uint32_t ALL_TILES[] = {1, 2, 3, 5, 7, 8, 11, 16};

/* Loops over 8 head sizes of every type. */
START_TEST(head_sizes_equal_the_specification)
{
    static const uint32_t DIMS[] = {8, 24, 64, 72, 80, 96, 128, 256};
    static const uint32_t GROUPS[] = {1, 3, 4, 8};
    enum kv_type type = (enum kv_type)(_i / 8);
    uint32_t head_dim = DIMS[_i % 8];
    if (head_dim % kv_type_block(type))
        return;
    for (int g = 0; g < (type == KV_F16 ? 4 : 2); g++) {
        struct sequence s = sequence_make(type, 83, head_dim, GROUPS[g]);
        check_all(&s, (struct options){0, 0}, 0, 83, (const uint32_t[]){16, 7}, 2);
        check_all(&s, (struct options){21, 0}, 50, 33, (const uint32_t[]){16, 1}, 2);
        sequence_free(&s);
    }
}
END_TEST

/* Queries that see what follows them, too: up to a tile's and a segment's end, and beyond. */
START_TEST(all_keys_equal_the_specification)
{
    static const uint32_t COUNTS[] = {1, 8, 17, 63, 64, 65, 200, 512, 530};
    for (int i = 0; i < 9; i++) {
        struct sequence s = sequence_make((enum kv_type)_i, COUNTS[i], 64, 1 + i % 2);
        uint32_t count = COUNTS[i] > 40 ? 40 : COUNTS[i];
        check_all(&s, (struct options){.key_count = COUNTS[i]}, 0, count,
                  (const uint32_t[]){16, 1, 5}, COUNTS[i] > 100 ? 1 : 3);
        sequence_free(&s);
    }
}
END_TEST

/* A query with key_count n is the last one of n causal ones. */
START_TEST(the_last_of_causal_queries_sees_all)
{
    struct sequence s = sequence_make(KV_F16, 77, 64, 1);
    struct paged paged = paged_make(scalar, &s, 16);
    float *causal = attend(scalar, &s, &paged, (struct options){0}, 76, 1, 1);
    float *all = attend(scalar, &s, &paged, (struct options){.key_count = 77}, 76, 1, 1);
    float *first = attend(scalar, &s, &paged, (struct options){.key_count = 77}, 0, 1, 1);
    assert_same(causal, all, (size_t)s.kv_heads * 64, "last query");
    for (uint32_t d = 0; d < 64; d++) /* softmax with another query, over the same values */
        ck_assert(fabsf(first[d]) < 2.0f && first[d] != s.values[d]);
    free(causal);
    free(all);
    free(first);
    paged_free(&paged);
    sequence_free(&s);
}
END_TEST

/* Quantised types have other code for 32 dimensions more or less. */
START_TEST(head_sizes_of_whole_blocks_equal_the_specification)
{
    struct sequence s = sequence_make((enum kv_type)_i, 70, 32, 3);
    check_all(&s, (struct options){0, 0}, 40, 30, ALL_TILES, 8);
    sequence_free(&s);
    s = sequence_make((enum kv_type)_i, 70, 160, 2);
    check_all(&s, (struct options){0, 0}, 40, 30, (const uint32_t[]){1, 16}, 2);
    sequence_free(&s);
}
END_TEST

START_TEST(every_tile_of_queries_gives_the_same)
{
    struct sequence s = sequence_make((enum kv_type)_i, 150, 64, 3);
    if (_i == KV_F16)
        check_all(&s, (struct options){0, 0}, 0, 150, ALL_TILES, 8);
    check_all(&s, (struct options){0, 0}, 57, 31, ALL_TILES, 8);
    sequence_free(&s);
}
END_TEST

START_TEST(segments_are_merged_alike)
{
    static const uint32_t POSITIONS[] = {511, 512, 513, 1030};
    struct sequence s = sequence_make((enum kv_type)_i, 1031, 64, 3);
    for (int i = _i == KV_F16 ? 0 : 2; i < 4; i++)
        check_all(&s, (struct options){0, 0}, POSITIONS[i], 1, (const uint32_t[]){1}, 1);
    if (_i == KV_F16) {
        check_all(&s, (struct options){0, 0}, 505, 16, ALL_TILES, 8);
        check_all(&s, (struct options){0, 0}, 1015, 16, (const uint32_t[]){16}, 1);
    }
    sequence_free(&s);
}
END_TEST

START_TEST(windows_and_soft_caps_equal_the_specification)
{
    struct sequence s = sequence_make((enum kv_type)_i, 700, 64, 4);
    static const uint32_t WINDOWS[] = {1, 2, 8, 16, 17, 63, 64, 100, 512, 600};
    for (int i = _i == KV_F16 ? 0 : 4; i < (_i == KV_F16 ? 10 : 6); i++) {
        check_all(&s, (struct options){WINDOWS[i], i % 2 ? 30.0f : 0}, 505, 16,
                  (const uint32_t[]){16, 5}, 2);
        check_all(&s, (struct options){WINDOWS[i], 0}, 0, 32, (const uint32_t[]){16}, 1);
    }
    if (_i == KV_F16)
        check_all(&s, (struct options){0, 0.5f}, 660, 40, ALL_TILES, 8);
    sequence_free(&s);
}
END_TEST

/* Large scores, where exp underflows, and scores that are not finite. */
START_TEST(extreme_scores_equal_the_specification)
{
    struct sequence s = sequence_make((enum kv_type)_i, 140, 64, 3);
    size_t queries = (size_t)s.length * s.kv_heads * s.group * s.head_dim;
    for (size_t i = 0; i < queries; i++)
        s.queries[i] *= 200.0f;
    check_all(&s, (struct options){0, 0}, 100, 40, (const uint32_t[]){16, 3}, 2);
    s.keys[64 * 2 * 50] = 1e9f; /* f16 stores 65504 */
    check_all(&s, (struct options){0, 0}, 100, 40, (const uint32_t[]){16}, 1);
    s.queries[(size_t)120 * s.kv_heads * s.group * s.head_dim] = NAN;
    s.queries[(size_t)121 * s.kv_heads * s.group * s.head_dim] = INFINITY;
    struct paged a = paged_make(scalar, &s, 16);
    float *expected = attend(scalar, &s, &a, (struct options){0, 0}, 110, 30, 1);
    size_t row = (size_t)s.kv_heads * s.group * s.head_dim;
    ck_assert(isnan(expected[10 * row]) && isfinite(expected[9 * row]));
    for (const struct kernels *const *at = kernels_available(); *at; at++) {
        float *got = attend(*at, &s, &a, (struct options){0, 0}, 110, 30, 16);
        assert_same(expected, got, 30 * row, (*at)->name);
        free(got);
    }
    free(expected);
    paged_free(&a);
    sequence_free(&s);
}
END_TEST

/* Pages that a window has left may be given back, and pages after the last position do not exist:
   no kernel may follow their table entries. */
START_TEST(what_is_not_visible_is_not_read)
{
    struct sequence s = sequence_make((enum kv_type)_i, 301, 64, 3);
    size_t row = (size_t)s.kv_heads * s.group * s.head_dim;
    for (const struct kernels *const *at = kernels_available(); *at; at++) {
        for (uint32_t page_size = 8; page_size <= 64; page_size *= 2) {
            struct paged paged = paged_make(*at, &s, page_size);
            struct options options = {40, 0};
            float *expected = attend(*at, &s, &paged, options, 290, 11, 4);
            for (uint32_t page = 0; page < (290 + 1 - 40) / page_size; page++)
                paged.pages[page] = 0xFFFFFFF0u; /* far outside the pool */
            float *got = attend(*at, &s, &paged, options, 290, 11, 4);
            assert_same(expected, got, 11 * row, (*at)->name);
            free(expected);
            free(got);
            paged_free(&paged);
        }
    }
    sequence_free(&s);
}
END_TEST

/* What is stored for x[i], one of 32, by the definition of the type. */
static double stored(enum kv_type type, const float *x, uint32_t i)
{
    float m = 0;
    switch (type) {
    case KV_F32:
        return (double)x[i];
    case KV_F16:
        return (double)math_f16_to_f32(math_f32_to_f16(x[i]));
    case KV_BF16:
        return (double)math_bf16_to_f32(math_f32_to_bf16(x[i]));
    default:
        for (int j = 0; j < 32; j++)
            m = fabsf(x[j]) > fabsf(m) || (x[j] < 0 && -x[j] == m) ? x[j] : m;
        float d = math_f16_to_f32(math_f32_to_f16(type == KV_Q8_0 ? fabsf(m) / 127 : m / -8));
        double q = d != 0 ? rint((double)(x[i] / d)) : 0;
        return (double)d * (type == KV_Q8_0 ? fmin(fmax(q, -127), 127) : fmin(fmax(q, -8), 7));
    }
}

/* The specification itself: softmax in double over the stored keys and values. */
START_TEST(the_specification_is_softmax)
{
    struct sequence s = sequence_make((enum kv_type)_i, 600, 64, 3);
    struct paged paged = paged_make(scalar, &s, 16);
    static const uint32_t POSITIONS[] = {0, 1, 63, 64, 300, 511, 512, 599};
    size_t row = (size_t)s.kv_heads * s.group * s.head_dim;
    for (int i = 0; i < 8; i++) {
        uint32_t position = POSITIONS[i];
        float *got = attend(scalar, &s, &paged, (struct options){0, 0}, position, 1, 1);
        for (uint32_t head = 0; head < s.kv_heads * s.group; head++) {
            double scores[600], sum = 0, largest = -1e300, exact[64] = {0};
            const float *q = s.queries + position * row + (size_t)head * 64;
            for (uint32_t t = 0; t <= position; t++) {
                const float *k = s.keys + ((size_t)t * s.kv_heads + head / s.group) * 64;
                scores[t] = 0;
                for (uint32_t d = 0; d < 64; d++)
                    scores[t] += (double)q[d] * stored(s.type, k + d / 32 * 32, d % 32);
                scores[t] /= 8;
                largest = fmax(largest, scores[t]);
            }
            for (uint32_t t = 0; t <= position; t++) {
                const float *v = s.values + ((size_t)t * s.kv_heads + head / s.group) * 64;
                double p = exp(scores[t] - largest);
                sum += p;
                for (uint32_t d = 0; d < 64; d++)
                    exact[d] += p * stored(s.type, v + d / 32 * 32, d % 32);
            }
            for (int d = 0; d < 64; d++)
                ck_assert_double_eq_tol(got[head * 64 + d], exact[d] / sum, 2e-6);
        }
        free(got);
    }
    paged_free(&paged);
    sequence_free(&s);
}
END_TEST

static const float ODD[] = {65519.0f, 65520.0f, 1e30f,    -1e30f,  INFINITY, -INFINITY,
                            NAN,      1e-8f,    3e-8f,    -2e-45f, -0.0f,    1.0f + 0x1p-11f,
                            2049.0f,  2051.0f,  65504.0f, 5.9e-8f};

/* Where values that are stored alone lie. */
static void assert_places(const struct kv_layout *kv, const float *key, const float *value)
{
    const uint8_t *keys = kv->pool + kv->page_bytes +
                          (2 * 2 + 1) * 2ull * 16 * kv->head_dim * (kv->type == KV_F32 ? 4 : 2);
    for (uint32_t d = 0; d < kv->head_dim && kv_type_block(kv->type) == 1; d++) {
        uint32_t at[2] = {d * 16 + 5, 16 * kv->head_dim + 5 * kv->head_dim + d};
        const float x[2] = {key[d], value[d]};
        for (int i = 0; i < 2; i++) {
            uint16_t half;
            memcpy(&half, keys + 2 * at[i], 2);
            if (kv->type == KV_F32) {
                ck_assert_mem_eq(keys + 4 * at[i], &x[i], 4);
            } else {
                ck_assert_uint_eq(half, kv->type == KV_F16 ? math_f32_to_f16(x[i])
                                                           : math_f32_to_bf16(x[i]));
            }
        }
    }
}

START_TEST(stores_round_and_saturate_alike)
{
    const enum kv_type type = (enum kv_type)_i;
    for (uint32_t head_dim = kv_type_block(type) < 8 ? 8 : 32; head_dim <= 160;
         head_dim += kv_type_block(type) < 8 ? 8 : 32) {
        float key[160], value[160];
        for (uint32_t i = 0; i < head_dim; i++) {
            key[i] = i % 3 ? ODD[(i * 7 + head_dim) % 16] : random_float();
            value[i] = i % 3 ? random_float() : ODD[(i * 5 + head_dim) % 16];
        }
        struct kv_layout kv = kv_layout_of(type, 3, 2, head_dim, 16);
        uint64_t bytes = kv.page_bytes * 3;
        kv.pool = allocate(bytes);
        uint8_t *expected = allocate(bytes);
        memset(kv.pool, 0, bytes);
        scalar->kv_store(&kv, 2, 1, 16 + 5, key, value);
        memcpy(expected, kv.pool, bytes);
        for (const struct kernels *const *at = kernels_available(); *at; at++) {
            memset(kv.pool, 0, bytes);
            (*at)->kv_store(&kv, 2, 1, 16 + 5, key, value);
            ck_assert_mem_eq(expected, kv.pool, bytes);
        }
        assert_places(&kv, key, value);
        free(kv.pool);
        free(expected);
    }
}
END_TEST

/* A token alone attends to itself with weight 1, so what comes out is its value as stored. */
static void read_back(enum kv_type type, const float x[32], float out[32])
{
    struct kv_layout kv = kv_layout_of(type, 1, 1, 32, 8);
    kv.pool = allocate(kv.page_bytes);
    float zero[32] = {0};
    scalar->kv_store(&kv, 0, 0, 0, zero, x);
    struct attention_task task = {.kv = &kv,
                                  .pages = (const uint32_t[]){0},
                                  .query_count = 1,
                                  .gqa_group = 1,
                                  .q = zero,
                                  .q_stride = 32,
                                  .scale = 1,
                                  .out = out,
                                  .out_stride = 32,
                                  .scratch = allocate(scalar->attention_scratch_bytes(32, 1))};
    scalar->attention(&task);
    free(task.scratch);
    free(kv.pool);
}

/* Blocks of 32 that have their definition's answer, not just the same from all kernels. */
START_TEST(blocks_of_quantised_types_are_stored_as_defined)
{
    static const struct {
        float x[3]; /* the first values; the others are 0 */
        enum kv_type type;
        float expected[3];
    } CASES[] = {
        {{127, -126.5f, 0.5f}, KV_Q8_0, {127, -126, 0}}, /* d = 1; ties to even */
        {{-254, 1, 3}, KV_Q8_0, {-254, 0, 4}},
        {{0, -0.0f, 0}, KV_Q8_0, {0, 0, 0}},
        {{0x1p-149f, 0, 0}, KV_Q8_0, {0, 0, 0}},
        {{0x1p-24f * 127, 0x1p-24f, 0}, KV_Q8_0, {0x1p-24f * 127, 0x1p-24f, 0}},
        {{0x1.7p-24f * 127, 0x1p-24f, 0}, KV_Q8_0, {0x1p-24f * 127, 0x1p-24f, 0}}, /* clamped */
        {{127 * 0x1p-26f, 0, 0}, KV_Q8_0, {0, 0, 0}},
        {{INFINITY, -1e6f, 1}, KV_Q8_0, {127 * 65504.0f, -15 * 65504.0f, 0}},
        {{1e30f, -1e30f, 1e6f}, KV_Q8_0, {127 * 65504.0f, -127 * 65504.0f, 15 * 65504.0f}},
        {{8, -8, 2.5f}, KV_Q4_0, {7, -8, 2}}, /* d = 1: of two as large the negative one */
        {{8, -7, 2.5f}, KV_Q4_0, {8, -7, 2}}, /* d = -1 */
        {{-8, 7.6f, 3.5f}, KV_Q4_0, {-8, 7, 4}},
        {{0, -0.0f, 0}, KV_Q4_0, {0, 0, 0}},
        {{-0x1p-149f, 0, 0}, KV_Q4_0, {0, 0, 0}},
        {{-0x1p-21f, 0x1p-23f, 0}, KV_Q4_0, {-0x1p-21f, 0x1p-23f, 0}},
        {{INFINITY, -INFINITY, 70000}, KV_Q4_0, {7 * 65504.0f, -8 * 65504.0f, 65504.0f}},
        {{INFINITY, -INFINITY, NAN}, KV_Q4_0, {NAN, NAN, NAN}},
        {{0, 0, NAN}, KV_Q8_0, {NAN, NAN, NAN}},
        {{1, 1e30f, -INFINITY}, KV_F32, {1, 1e30f, -INFINITY}},
        {{INFINITY, -INFINITY, 0x1.01p0f}, KV_BF16, {0x1.FEp127f, -0x1.FEp127f, 0x1p0f}},
        {{0x1.03p0f, -0x1.FFp127f, 0x1p-133f}, KV_BF16, {0x1.04p0f, -0x1.FEp127f, 0x1p-133f}},
        {{0x1.8p-133f, 0x1p-134f, NAN}, KV_BF16, {0x1p-132f, 0, NAN}},
        {{INFINITY, -65520, 0x1p-25f}, KV_F16, {65504, -65504, 0}},
    };
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
        float x[32] = {0}, got[32];
        memcpy(x, CASES[c].x, sizeof CASES[c].x);
        read_back(CASES[c].type, x, got);
        for (int i = 0; i < 3; i++) {
            float expected = CASES[c].expected[i];
            ck_assert_msg(got[i] == expected || (isnan(got[i]) && isnan(expected)),
                          "case %zu, value %d: %.9g instead of %.9g", c, i, (double)got[i],
                          (double)expected);
        }
        bool all_nan = kv_type_block(CASES[c].type) > 1 && isnan(CASES[c].expected[0]);
        ck_assert(all_nan ? isnan(got[31]) : got[31] == 0);
    }
}
END_TEST

/* The types are GGML's: a value's scale and q, put into a block of its kind, is dequantised by the
   code for weights to what attention reads. */
START_TEST(blocks_are_those_of_ggml)
{
    for (int type = KV_Q8_0; type <= KV_Q4_0; type++) {
        for (int round = 0; round < 50; round++) {
            struct kv_layout kv = kv_layout_of((enum kv_type)type, 1, 1, 32, 8);
            uint8_t pool[2 * 34 * 8] __attribute__((aligned(64))), block[34];
            float x[32], expected[32], got[32];
            for (int i = 0; i < 32; i++)
                x[i] = random_float();
            kv.pool = pool;
            scalar->kv_store(&kv, 0, 0, 3, x, x);
            const uint8_t *values = pool + kv.plane_bytes;
            uint32_t size = type == KV_Q8_0 ? 32 : 16;
            memcpy(block, values + 2 * 3, 2);
            memcpy(block + 2, values + 2 * 8 + 3 * size, size);
            block_dequantize(type == KV_Q8_0 ? FORMAT_Q8_0 : FORMAT_Q4_0, block, 32, expected);
            read_back((enum kv_type)type, x, got);
            for (int i = 0; i < 32; i++) /* 0 + −0 is 0 */
                ck_assert_float_eq(expected[i], got[i]);
            ck_assert_mem_eq(pool + 2 * 3, block, 2); /* the key's scale */
        }
    }
}
END_TEST

START_TEST(types_have_names_and_sizes)
{
    static const uint32_t BITS[KV_TYPES] = {[KV_F32] = 32 * 32,
                                            [KV_F16] = 32 * 16,
                                            [KV_BF16] = 32 * 16,
                                            [KV_Q8_0] = 34 * 8,
                                            [KV_Q4_0] = 18 * 8};
    for (unsigned i = 0; i < KV_TYPES; i++) {
        enum kv_type type;
        ck_assert(kv_type_parse(kv_type_name((enum kv_type)i), &type) && type == i);
        ck_assert_uint_eq(kv_page_bytes(type, 3, 5, 64, 16),
                          2ull * 3 * 5 * 64 * 16 * BITS[i] / 256);
        ck_assert_ptr_nonnull(strstr(KV_TYPE_NAMES, kv_type_name(type)));
    }
    enum kv_type type;
    ck_assert(!kv_type_parse("q5_1", &type) && !kv_type_parse("", &type) &&
              !kv_type_parse("F16", &type));
}
END_TEST

int main(void)
{
    kernels_select("scalar", &scalar, NULL);
    Suite *suite = suite_create("attention");
    TCase *tcase = tcase_create("attention");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, head_sizes_equal_the_specification, 0, 8 * KV_TYPES);
    tcase_add_loop_test(tcase, head_sizes_of_whole_blocks_equal_the_specification, 0, KV_TYPES);
    tcase_add_loop_test(tcase, every_tile_of_queries_gives_the_same, 0, KV_TYPES);
    tcase_add_loop_test(tcase, all_keys_equal_the_specification, 0, KV_TYPES);
    tcase_add_test(tcase, the_last_of_causal_queries_sees_all);
    tcase_add_loop_test(tcase, segments_are_merged_alike, 0, KV_TYPES);
    tcase_add_loop_test(tcase, windows_and_soft_caps_equal_the_specification, 0, KV_TYPES);
    tcase_add_loop_test(tcase, extreme_scores_equal_the_specification, 0, KV_TYPES);
    tcase_add_loop_test(tcase, what_is_not_visible_is_not_read, 0, KV_TYPES);
    tcase_add_loop_test(tcase, the_specification_is_softmax, 0, KV_TYPES);
    tcase_add_loop_test(tcase, stores_round_and_saturate_alike, 0, KV_TYPES);
    tcase_add_test(tcase, blocks_of_quantised_types_are_stored_as_defined);
    tcase_add_test(tcase, blocks_are_those_of_ggml);
    tcase_add_test(tcase, types_have_names_and_sizes);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
