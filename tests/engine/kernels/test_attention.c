/*
 * Attention of every kernel set against the scalar specification, bit for bit; the specification
 * itself against plain softmax in double; and that page size, chunking and grouping cannot show.
 */
#include "engine/kernels/kernels.h"
#include "engine/kernels/math.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    uint32_t length, head_dim, kv_heads, group;
    float *keys; /* [length][kv_heads][head_dim] */
    float *values;
    float *queries; /* [length][kv_heads·group][head_dim] */
};

static struct sequence sequence_make(uint32_t length, uint32_t head_dim, uint32_t group)
{
    struct sequence s = {length, head_dim, 2, group, NULL, NULL, NULL};
    size_t kv = (size_t)length * s.kv_heads * head_dim;
    s.keys = allocate(kv * sizeof(float));
    s.values = allocate(kv * sizeof(float));
    s.queries = allocate(kv * group * sizeof(float));
    for (size_t i = 0; i < kv; i++) {
        s.keys[i] = random_float();
        s.values[i] = i % 1000 == 999 ? -0.0f : random_float();
    }
    for (size_t i = 0; i < kv * group; i++) {
        s.queries[i] = random_float();
    }
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
   table is allocated to the byte, so that a sanitizer sees a look beyond it. */
static struct paged paged_make(const struct kernels *kernels, const struct sequence *s,
                               uint32_t page_size)
{
    uint32_t layers = 2, count = (s->length + page_size - 1) / page_size;
    struct paged paged;
    uint64_t page_bytes = kv_page_bytes(layers, s->kv_heads, s->head_dim, page_size);
    paged.kv = (struct kv_layout){NULL, page_bytes, page_size, layers, s->kv_heads, s->head_dim};
    paged.kv.pool = allocate(page_bytes * (count + 1));
    paged.pages = malloc(count * sizeof *paged.pages);
    for (uint32_t i = 0; i < count; i++) {
        paged.pages[i] = i + 1;
    }
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
};

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
                .query_count = count - i < tile ? count - i : tile,
                .group = s->group,
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
        }
    }
    free(scratch);
    return out;
}

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

/* All kernel sets and page sizes, queries [first, first + count) in tiles, against scalar with
   pages of 16 and one query at a time. */
static void check_all(const struct sequence *s, struct options options, uint32_t first,
                      uint32_t count, const uint32_t *tiles, size_t tile_count)
{
    struct paged reference = paged_make(scalar, s, 16);
    float *expected = attend(scalar, s, &reference, options, first, count, 1);
    size_t values = (size_t)count * s->kv_heads * s->group * s->head_dim;
    for (size_t i = 0; i < values; i++) {
        ck_assert(isfinite(expected[i]));
    }
    for (const struct kernels *const *at = kernels_available(); *at; at++) {
        bool slow = *at == scalar; /* which ignores how queries are tiled */
        for (uint32_t page_size = 8; page_size <= 64; page_size *= slow ? 8 : 2) {
            struct paged paged = paged_make(*at, s, page_size);
            for (size_t t = 0; t < (slow ? 1 : tile_count); t++) {
                char what[160];
                snprintf(what, sizeof what,
                         "%s page=%u tile=%u dim=%u group=%u first=%u count=%u window=%u",
                         (*at)->name, page_size, tiles[t], s->head_dim, s->group, first, count,
                         options.window);
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

START_TEST(head_sizes_equal_the_specification)
{
    static const uint32_t DIMS[] = {8, 24, 64, 72, 80, 96, 128, 256};
    static const uint32_t GROUPS[] = {1, 3, 4, 8};
    for (int g = 0; g < 4; g++) {
        struct sequence s = sequence_make(83, DIMS[_i], GROUPS[g]);
        check_all(&s, (struct options){0, 0}, 0, 83, (const uint32_t[]){16, 7}, 2);
        check_all(&s, (struct options){21, 0}, 50, 33, (const uint32_t[]){16, 1}, 2);
        sequence_free(&s);
    }
}
END_TEST

START_TEST(every_tile_of_queries_gives_the_same)
{
    struct sequence s = sequence_make(150, 64, 3);
    check_all(&s, (struct options){0, 0}, 0, 150, ALL_TILES, 8);
    check_all(&s, (struct options){0, 0}, 57, 31, ALL_TILES, 8);
    sequence_free(&s);
}
END_TEST

START_TEST(segments_are_merged_alike)
{
    static const uint32_t POSITIONS[] = {511, 512, 513, 1030};
    struct sequence s = sequence_make(1031, 64, 3);
    for (int i = 0; i < 4; i++) {
        check_all(&s, (struct options){0, 0}, POSITIONS[i], 1, (const uint32_t[]){1}, 1);
    }
    check_all(&s, (struct options){0, 0}, 505, 16, ALL_TILES, 8);
    check_all(&s, (struct options){0, 0}, 1015, 16, (const uint32_t[]){16}, 1);
    sequence_free(&s);
}
END_TEST

START_TEST(windows_and_soft_caps_equal_the_specification)
{
    struct sequence s = sequence_make(700, 64, 4);
    static const uint32_t WINDOWS[] = {1, 2, 8, 16, 17, 63, 64, 100, 512, 600};
    for (int i = 0; i < 10; i++) {
        check_all(&s, (struct options){WINDOWS[i], i % 2 ? 30.0f : 0}, 505, 16,
                  (const uint32_t[]){16, 5}, 2);
        check_all(&s, (struct options){WINDOWS[i], 0}, 0, 32, (const uint32_t[]){16}, 1);
    }
    check_all(&s, (struct options){0, 0.5f}, 660, 40, ALL_TILES, 8);
    sequence_free(&s);
}
END_TEST

/* Large scores, where exp underflows, and scores that are not finite. */
START_TEST(extreme_scores_equal_the_specification)
{
    struct sequence s = sequence_make(140, 64, 3);
    size_t queries = (size_t)s.length * s.kv_heads * s.group * s.head_dim;
    for (size_t i = 0; i < queries; i++) {
        s.queries[i] *= 200.0f;
    }
    check_all(&s, (struct options){0, 0}, 100, 40, (const uint32_t[]){16, 3}, 2);
    s.keys[64 * 2 * 50] = 1e9f; /* stored as 65504 */
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
    struct sequence s = sequence_make(301, 64, 3);
    size_t row = (size_t)s.kv_heads * s.group * s.head_dim;
    for (const struct kernels *const *at = kernels_available(); *at; at++) {
        for (uint32_t page_size = 8; page_size <= 64; page_size *= 2) {
            struct paged paged = paged_make(*at, &s, page_size);
            struct options options = {40, 0};
            float *expected = attend(*at, &s, &paged, options, 290, 11, 4);
            for (uint32_t page = 0; page < (290 + 1 - 40) / page_size; page++) {
                paged.pages[page] = 0xFFFFFFF0u; /* far outside the pool */
            }
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

/* The specification itself: softmax in double over the stored keys and values. */
START_TEST(the_specification_is_softmax)
{
    struct sequence s = sequence_make(600, 64, 3);
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
                for (int d = 0; d < 64; d++) {
                    scores[t] += (double)q[d] * math_f16_to_f32(math_f32_to_f16(k[d]));
                }
                scores[t] /= 8;
                largest = fmax(largest, scores[t]);
            }
            for (uint32_t t = 0; t <= position; t++) {
                const float *v = s.values + ((size_t)t * s.kv_heads + head / s.group) * 64;
                double p = exp(scores[t] - largest);
                sum += p;
                for (int d = 0; d < 64; d++) {
                    exact[d] += p * math_f16_to_f32(math_f32_to_f16(v[d]));
                }
            }
            for (int d = 0; d < 64; d++) {
                ck_assert_double_eq_tol(got[head * 64 + d], exact[d] / sum, 2e-6);
            }
        }
        free(got);
    }
    paged_free(&paged);
    sequence_free(&s);
}
END_TEST

START_TEST(stores_round_and_saturate_alike)
{
    static const float ODD[] = {65519.0f, 65520.0f, 1e30f,    -1e30f,  INFINITY, -INFINITY,
                                NAN,      1e-8f,    3e-8f,    -2e-45f, -0.0f,    1.0f + 0x1p-11f,
                                2049.0f,  2051.0f,  65504.0f, 5.9e-8f};
    for (uint32_t head_dim = 8; head_dim <= 136; head_dim += 8) {
        float key[136], value[136];
        for (uint32_t i = 0; i < head_dim; i++) {
            key[i] = i % 3 ? ODD[(i * 7 + head_dim) % 16] : random_float();
            value[i] = i % 3 ? random_float() : ODD[(i * 5 + head_dim) % 16];
        }
        uint64_t bytes = kv_page_bytes(3, 2, head_dim, 16);
        struct kv_layout kv = {allocate(bytes * 3), bytes, 16, 3, 2, head_dim};
        uint8_t *expected = allocate(bytes * 3);
        memset(kv.pool, 0, bytes * 3);
        scalar->kv_store(&kv, 2, 1, 16 + 5, key, value);
        memcpy(expected, kv.pool, bytes * 3);
        for (const struct kernels *const *at = kernels_available(); *at; at++) {
            memset(kv.pool, 0, bytes * 3);
            (*at)->kv_store(&kv, 2, 1, 16 + 5, key, value);
            ck_assert_mem_eq(expected, kv.pool, bytes * 3);
        }
        const uint16_t *keys = (const uint16_t *)(const void *)(kv.pool + bytes);
        keys += (2 * 2 + 1) * 2 * 16 * head_dim;
        ck_assert_uint_eq(keys[3 * 16 + 5], math_f32_to_f16(key[3]));
        ck_assert_uint_eq(keys[16 * head_dim + 5 * head_dim + 3], math_f32_to_f16(value[3]));
        free(kv.pool);
        free(expected);
    }
}
END_TEST

int main(void)
{
    kernels_select("scalar", &scalar, NULL);
    Suite *suite = suite_create("attention");
    TCase *tcase = tcase_create("attention");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, head_sizes_equal_the_specification, 0, 8);
    tcase_add_test(tcase, every_tile_of_queries_gives_the_same);
    tcase_add_test(tcase, segments_are_merged_alike);
    tcase_add_test(tcase, windows_and_soft_caps_equal_the_specification);
    tcase_add_test(tcase, extreme_scores_equal_the_specification);
    tcase_add_test(tcase, what_is_not_visible_is_not_read);
    tcase_add_test(tcase, the_specification_is_softmax);
    tcase_add_test(tcase, stores_round_and_saturate_alike);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
