/*
 * One arithmetic: the same tokens give the same logits, bit for bit, however they are computed.
 *
 * The answer to compare with is the plainest run: scalar kernels, one thread, one token at a time,
 * pages of 16, alone. Then chunks, threads, page sizes, kernels, neighbours in the batch and the
 * order of pages in the pool are varied, on every family, in several formats and with every type of
 * keys and values; each must be memcmp-equal.
 */
#include "base/checksum.h"
#include "engine/model/model.h"
#include "tests/engine/model/made_up.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS 90u /* more than a tile of keys and several pages */
#define ROWS_MAX 160u
#define SEQUENCES 3u
#define CONTEXT 2048u

#if defined(__SANITIZE_THREAD__)
#define SLOW 6u /* sanitizers: every third or sixth way */
#elif defined(__SANITIZE_ADDRESS__)
#define SLOW 3u
#else
#define SLOW 1u
#endif

struct way {
    const struct kernels *kernels;
    unsigned threads;
    uint32_t chunk;
    uint32_t page_size;
    bool neighbours; /* two other sequences in every step, with other lengths */
    bool last_only;  /* ask for the logits of each chunk's last row only */
};

static enum kv_type kv_type; /* of keys and values, in every run of a test */

struct runner {
    struct gguf *gguf;
    struct model_config config;
    struct workers *workers;
    struct backend *backend;
    uint32_t pages[SEQUENCES][KV_GROUPS_MAX][CONTEXT / 8];
    uint32_t page_count; /* of one sequence, in each group */
};

static void runner_start(struct runner *runner, const char *path, const struct way *way)
{
    struct error error;
    ck_assert(gguf_open(path, &runner->gguf, &error) == STATUS_OK);
    ck_assert_msg(model_describe(runner->gguf, &runner->config, &error) == STATUS_OK, "%s",
                  error.message);
    ck_assert(workers_create(way->threads, &runner->workers, &error) == STATUS_OK);
    runner->page_count = CONTEXT / way->page_size;
    struct backend_options options = {
        .kernels = way->kernels,
        .workers = runner->workers,
        .backend = "quantized",
        .kv_type = kv_type,
        .page_size = way->page_size,
        .max_batch_rows = ROWS_MAX,
        .max_sequences = SEQUENCES,
        .logits_rows_max = 7,
        .context = CONTEXT,
    };
    struct model_sizes sizes;
    model_sizes(runner->gguf, &runner->config, &options, &sizes);
    uint32_t total = SEQUENCES * sizes.groups.count * runner->page_count;
    options.page_count = 1 + total;
    ck_assert_msg(model_backend_create(runner->gguf, &runner->config, &options, NULL, NULL,
                                       &runner->backend, &error) == STATUS_OK,
                  "%s", error.message);
    uint32_t groups = runner->backend->groups.count;
    ck_assert_uint_eq(groups, sizes.groups.count);
    for (uint32_t i = 0; i < total; i++) /* scattered: 37 is prime to every total here */
        runner->pages[i % SEQUENCES][i / SEQUENCES % groups][i / SEQUENCES / groups] =
            1 + (i * 37 + way->chunk) % total;
}

static void runner_stop(struct runner *runner)
{
    runner->backend->ops->destroy(runner->backend);
    workers_destroy(runner->workers);
    gguf_close(runner->gguf);
}

static uint32_t token_at(const struct runner *runner, uint32_t sequence, uint32_t position)
{
    return (position * 61 + sequence * 101 + position * position * 7) % runner->config.vocabulary;
}

/* One step: `counts` rows of each sequence, after those that `done` says are computed. The logits
   of sequence 0's rows go to their place in `out`. */
static void step(struct runner *runner, const uint32_t *counts, uint32_t *done, bool last_only,
                 float *out)
{
    uint32_t tokens[ROWS_MAX], rows[ROWS_MAX], row = 0, wanted = 0, sequence_count = 0;
    uint32_t first_own = 0, last_row = 0;
    struct batch_sequence sequences[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        uint32_t s = SEQUENCES - 1 - i; /* ours comes last */
        if (counts[s] == 0)
            continue;
        sequences[sequence_count++] = (struct batch_sequence){
            row, counts[s], done[s], runner->pages[s][0], runner->page_count, CONTEXT / 8};
        if (s != 0) /* neighbours want one row, so that rows of `hidden` are not the batch's */
            rows[wanted++] = row + counts[s] / 2;
        for (uint32_t j = 0; j < counts[s]; ++j, ++row) {
            tokens[row] = token_at(runner, s, done[s] + j);
            if (s == 0 && (!last_only || j + 1 == counts[s])) {
                if (j == 0 || last_only)
                    first_own = wanted;
                rows[wanted++] = row;
                last_row = j;
            }
        }
    }
    struct batch batch = {row, tokens, sequence_count, sequences, wanted, rows};
    runner->backend->ops->forward(runner->backend, &batch);
    uint32_t position = last_only ? done[0] + last_row : done[0];
    for (uint32_t at = first_own; at < wanted;) {
        uint32_t most = runner->backend->logits_rows_max;
        uint32_t now = wanted - at < most ? wanted - at : most;
        runner->backend->ops->logits(runner->backend, at, now,
                                     out + (size_t)position * runner->config.vocabulary);
        at += now;
        position += now;
    }
    for (uint32_t s = 0; s < SEQUENCES; s++)
        done[s] += counts[s];
}

/* Logits [TOKENS][vocabulary]; rows that were not asked for stay 0. */
static float *run(const char *path, const struct way *way)
{
    struct runner runner;
    runner_start(&runner, path, way);
    float *out = calloc((size_t)TOKENS * runner.config.vocabulary, sizeof *out);
    ck_assert_ptr_nonnull(out);
    uint32_t done[SEQUENCES] = {0};
    while (done[0] < TOKENS) {
        uint32_t left = TOKENS - done[0];
        uint32_t counts[SEQUENCES] = {left < way->chunk ? left : way->chunk, 0, 0};
        if (way->neighbours) {
            counts[1] = done[1] < 100 ? 1 + done[1] % 5 : 1;
            counts[2] = done[2] == 0 ? 60 : 1; /* with 90 of ours: cut by rows, with 2 threads */
        }
        step(&runner, counts, done, way->last_only, out);
    }
    runner_stop(&runner);
    return out;
}

static uint32_t vocabulary; /* of the model under test */

static void same(const char *path, const float *wanted, const struct way *way, const char *label)
{
    float *got = run(path, way);
    for (uint32_t position = 0; position < TOKENS; position++) {
        bool asked = !way->last_only || position + 1 == TOKENS || (position + 1) % way->chunk == 0;
        if (!asked)
            continue;
        const size_t at = (size_t)position * vocabulary;
        ck_assert_msg(memcmp(wanted + at, got + at, vocabulary * sizeof(float)) == 0,
                      "%s: kernels %s, %u threads, chunks of %u, pages of %u%s%s: the logits of "
                      "position %u differ",
                      label, way->kernels->name, way->threads, way->chunk, way->page_size,
                      way->neighbours ? ", with neighbours" : "",
                      way->last_only ? ", last rows only" : "", position);
    }
    free(got);
}

/* Logits of the last four of LONG_TOKENS positions, which are decoded alone after a long prompt. */
#define LONG_TOKENS 1700u
#define LONG_CHUNK 141u /* 12 of them are all but 8 */
static float *run_long(const char *path, const struct way *way)
{
    struct runner runner;
    runner_start(&runner, path, way);
    float *out = calloc((size_t)LONG_TOKENS * runner.config.vocabulary, sizeof *out);
    ck_assert_ptr_nonnull(out);
    uint32_t done[SEQUENCES] = {0};
    while (done[0] < LONG_TOKENS) {
        uint32_t left = LONG_TOKENS - done[0];
        uint32_t counts[SEQUENCES] = {left > LONG_CHUNK ? LONG_CHUNK : 1, 0, 0};
        step(&runner, counts, done, true, out);
    }
    runner_stop(&runner);
    return out;
}

/* Vary one thing at a time, and then several. */
static void exact(const struct made_up *spec, const char *label)
{
    char path[64];
    made_up_write(spec, path);
    vocabulary = spec->vocabulary;
    const struct kernels *const *all = kernels_available();
    struct way plain = {all[0], 1, 1, 16, false, false};
    float *wanted = run(path, &plain);
    bool differs = false; /* the test can fail: positions have logits of their own */
    for (uint32_t i = 1; i < TOKENS; i++)
        differs |= memcmp(wanted, wanted + (size_t)i * vocabulary, 4 * vocabulary) != 0;
    ck_assert(differs);
    for (size_t k = 0; all[k]; k++) {
        const struct way ways[] = {
            {all[k], 1, 1, 16, false, false},      {all[k], 1, 7, 16, false, false},
            {all[k], 1, 64, 16, false, false},     {all[k], 1, TOKENS, 16, false, false},
            {all[k], 2, 1, 16, false, false},      {all[k], 3, 7, 16, false, false},
            {all[k], 2, TOKENS, 16, false, false}, {all[k], 3, 64, 16, false, false},
            {all[k], 1, 7, 8, false, false},       {all[k], 2, 64, 32, false, false},
            {all[k], 1, TOKENS, 64, false, false}, {all[k], 1, 1, 16, true, false},
            {all[k], 2, 7, 8, true, false},        {all[k], 3, 64, 64, true, false},
            {all[k], 2, TOKENS, 32, true, false},  {all[k], 2, 1, 64, true, true},
            {all[k], 1, 30, 16, false, true},      {all[k], 2, TOKENS, 16, true, true},
        };
        /* the scalar kernels are slow: every second way, and one under sanitizers */
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i += k == 0 ? 2 * SLOW * SLOW : SLOW)
            same(path, wanted, &ways[i], label);
    }
    free(wanted);
    unlink(path);
}

START_TEST(test_formats)
{
    static const enum tensor_format formats[] = {FORMAT_Q4_1, FORMAT_Q8_0, FORMAT_F16, FORMAT_BF16,
                                                 FORMAT_F32};
    struct made_up spec = made_up_default(formats[_i]);
    spec.embedding_format = formats[(_i + 1) % 5];
    spec.separate_output = _i % 2 == 1;
    exact(&spec, format_info(formats[_i])->name);
}
END_TEST

START_TEST(test_families)
{
    static const char *const families[] = {"qwen2", "qwen3", "gemma2", "gemma3", "phi3"};
    struct made_up spec = made_up_default(FORMAT_Q8_0);
    spec.family = families[_i];
    if (strncmp(spec.family, "gemma", 5) == 0) {
        spec.window = 20;
        spec.layers = 7;
    }
    exact(&spec, spec.family);
}
END_TEST

/* Few long sequences: threads share a sequence's attention by segments. */
START_TEST(test_long_contexts)
{
    struct made_up spec = made_up_default(FORMAT_Q4_1);
    if (_i == 1) {
        spec.family = "gemma3"; /* windows, in which nothing is shared out */
        spec.window = 20;
        spec.layers = 7;
    }
    char path[64];
    made_up_write(&spec, path);
    const struct kernels *const *all = kernels_available();
    const struct kernels *first = all[1] ? all[1] : all[0]; /* scalar would take minutes */
    struct way plain = {first, 1, LONG_CHUNK, 16, false, true};
    float *wanted = run_long(path, &plain);
    const size_t from = (size_t)(LONG_TOKENS - 4) * spec.vocabulary;
    for (size_t k = all[1] ? 1 : 0; all[k]; k++) {
        for (unsigned threads = 1; threads <= 3; threads++) {
            struct way way = {all[k], threads, LONG_CHUNK, threads == 3 ? 8 : 16, false, true};
            float *got = run_long(path, &way);
            ck_assert_msg(memcmp(wanted + from, got + from, 4 * spec.vocabulary * sizeof *got) == 0,
                          "kernels %s, %u threads", all[k]->name, threads);
            free(got);
        }
    }
    free(wanted);
    unlink(path);
}
END_TEST

/* Heads that do not fill row groups alone, and odd numbers of them. */
START_TEST(test_odd_heads)
{
    struct made_up spec = made_up_default(FORMAT_F16);
    spec.embedding_format = FORMAT_Q8_0;
    spec.heads = spec.kv_heads = 3;
    spec.head_dim = 8;
    exact(&spec, "3 heads of 8");
    spec.heads = 6;
    spec.head_dim = 24;
    exact(&spec, "6 heads of 24");
}
END_TEST

/* Types of keys and values, with heads that they suit. Each gives logits of its own. */
START_TEST(test_kv_types)
{
    static const char *const families[KV_TYPES] = {[KV_F32] = "llama",
                                                   [KV_F16] = "qwen3",
                                                   [KV_BF16] = "qwen2",
                                                   [KV_Q8_0] = "gemma3",
                                                   [KV_Q4_0] = "llama"};
    struct made_up spec = made_up_default(FORMAT_Q8_0);
    spec.family = families[_i];
    spec.head_dim = _i == KV_Q4_0 ? 64 : 32;
    if (_i == KV_Q8_0) {
        spec.window = 20;
        spec.layers = 7;
    }
    kv_type = (enum kv_type)_i;
    exact(&spec, kv_type_name(kv_type));
    char path[64];
    made_up_write(&spec, path);
    struct way way = {kernels_available()[0], 2, 20, 8, false, false};
    float *own = run(path, &way);
    kv_type = _i == KV_F16 ? KV_BF16 : KV_F16;
    float *other = run(path, &way);
    ck_assert(memcmp(own, other, (size_t)TOKENS * vocabulary * sizeof *own) != 0);
    free(own);
    free(other);
    unlink(path);
}
END_TEST

/* Pages on disk are good as long as MODEL_ARITHMETIC is the same, so no bit may change without it:
   logits of every format and type of keys and values, summed up. */
START_TEST(test_version_of_the_arithmetic)
{
    static const enum tensor_format formats[] = {FORMAT_Q4_1, FORMAT_Q8_0, FORMAT_F16, FORMAT_BF16,
                                                 FORMAT_F32};
    static const char *const families[] = {"llama", "qwen2", "qwen3", "gemma3", "phi3"};
    const uint64_t version_1 = 0x1fa052b6d8622d57;
    uint64_t sum = 0;
    for (unsigned i = 0; i < 5; i++) {
        struct made_up spec = made_up_default(formats[i]);
        struct way way = {kernels_available()[0], 2, 64, 16, false, false};
        char path[64];
        spec.family = families[i];
        spec.head_dim = 32;
        spec.window = strcmp(spec.family, "gemma3") == 0 ? 20 : 0;
        vocabulary = spec.vocabulary;
        made_up_write(&spec, path);
        kv_type = (enum kv_type)i;
        float *logits = run(path, &way);
        sum = checksum_bytes(logits, (size_t)TOKENS * vocabulary * sizeof *logits, sum);
        free(logits);
        unlink(path);
    }
    ck_assert_uint_eq(MODEL_ARITHMETIC, 1);
    ck_assert_msg(sum == version_1,
                  "the arithmetic has changed, unless these models have: raise MODEL_ARITHMETIC; "
                  "its sum is 0x%016llx",
                  (unsigned long long)sum);
}
END_TEST

/* Heads of 24 dimensions have no blocks of 32. */
START_TEST(test_kv_types_that_do_not_fit)
{
    char path[64];
    struct error error;
    struct gguf *gguf;
    struct model_config config;
    struct workers *workers;
    struct backend *backend;
    struct made_up spec = made_up_default(FORMAT_F16);
    spec.head_dim = 24;
    made_up_write(&spec, path);
    ck_assert(gguf_open(path, &gguf, &error) == STATUS_OK);
    ck_assert(model_describe(gguf, &config, &error) == STATUS_OK);
    ck_assert(workers_create(1, &workers, &error) == STATUS_OK);
    for (unsigned type = 0; type < KV_TYPES; type++) {
        bool fits = type != KV_Q8_0 && type != KV_Q4_0;
        struct backend_options options = {.kernels = kernels_available()[0],
                                          .workers = workers,
                                          .backend = "quantized",
                                          .kv_type = (enum kv_type)type,
                                          .page_size = 16,
                                          .page_count = 2,
                                          .max_batch_rows = 1,
                                          .max_sequences = 1,
                                          .logits_rows_max = 1,
                                          .context = 16};
        enum status status =
            model_backend_create(gguf, &config, &options, NULL, NULL, &backend, &error);
        ck_assert(status == (fits ? STATUS_OK : STATUS_INVALID));
        if (fits) {
            ck_assert_str_eq(backend->kv_type, kv_type_name((enum kv_type)type));
            backend->ops->destroy(backend);
        } else {
            ck_assert_str_eq(error.param, "kv-type");
            ck_assert_ptr_nonnull(strstr(error.message, "24"));
            ck_assert_ptr_nonnull(strstr(error.message, kv_type_name((enum kv_type)type)));
        }
    }
    workers_destroy(workers);
    gguf_close(gguf);
    unlink(path);
}
END_TEST

/* As swapping does, or a restart. */
static void carry_page(struct backend *backend, uint32_t from_page, uint32_t to_page)
{
    void *carried = malloc(backend->page_bytes);
    ck_assert_ptr_nonnull(carried);
    memcpy(carried, backend->ops->page(backend, from_page), backend->page_bytes);
    memcpy(backend->ops->page(backend, to_page), carried, backend->page_bytes);
    free(carried);
}

/* A page copied, or carried away and back, and written on leaves the original as it was. */
START_TEST(test_copy_page)
{
    char path[64];
    struct made_up spec = made_up_default(FORMAT_Q4_1);
    spec.head_dim = 32;
    kv_type = (enum kv_type)(_i / 2);
    struct way way = {kernels_available()[0], 2, 20, 8, false, false};
    struct runner runner;
    made_up_write(&spec, path);
    vocabulary = spec.vocabulary;
    float *wanted = run(path, &way);
    float *got = calloc((size_t)TOKENS * vocabulary, sizeof *got);
    ck_assert_ptr_nonnull(got);
    runner_start(&runner, path, &way);
    uint32_t done[SEQUENCES] = {0}, counts[SEQUENCES] = {20, 0, 0};
    step(&runner, counts, done, false, got);
    uint32_t copied = runner.pages[1][0][5]; /* a page of a sequence that is not there */
    if (_i % 2)
        carry_page(runner.backend, runner.pages[0][0][2], copied);
    else
        runner.backend->ops->copy_page(runner.backend, runner.pages[0][0][2], copied);
    uint32_t original = runner.pages[0][0][2];
    runner.pages[0][0][2] = copied; /* positions 16 … 23: four are there */
    counts[0] = 30;
    step(&runner, counts, done, false, got);
    ck_assert(memcmp(wanted, got, 50u * vocabulary * sizeof *got) == 0);
    runner.pages[0][0][2] = original; /* and the original has not changed: positions 20 … again */
    done[0] = 20;
    memset(got + 20u * vocabulary, 0, 30u * vocabulary * sizeof *got);
    step(&runner, counts, done, false, got);
    ck_assert(memcmp(wanted, got, 50u * vocabulary * sizeof *got) == 0);
    runner_stop(&runner);
    free(wanted);
    free(got);
    unlink(path);
}
END_TEST

static uint64_t weights_checksum(const char *path, const struct way *way)
{
    struct runner runner;
    runner_start(&runner, path, way);
    uint64_t sum = runner.backend->weights_checksum;
    runner_stop(&runner);
    return sum;
}

static void flip(const char *path, uint64_t offset)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 1;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

/* The checksum that loading takes is that of the content: the same for any kernels and threads,
   another one for any byte of any tensor. */
START_TEST(test_weights_checksum)
{
    char path[64];
    struct made_up spec = made_up_default(FORMAT_Q4_1);
    made_up_write(&spec, path);
    kv_type = KV_F16;
    const struct way plain = {kernels_available()[0], 1, 1, 16, false, false};
    uint64_t own = weights_checksum(path, &plain);
    ck_assert_uint_ne(own, 0);
    for (unsigned i = 0; kernels_available()[i]; i++) {
        const struct way way = {kernels_available()[i], 1 + i % 3, 1, 32, false, false};
        ck_assert_uint_eq(weights_checksum(path, &way), own);
    }
    struct gguf *gguf;
    struct error error;
    ck_assert(gguf_open(path, &gguf, &error) == STATUS_OK);
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor(gguf, i);
        const uint64_t places[] = {0, tensor->bytes * 5 / 7, tensor->bytes - 1};
        for (unsigned k = 0; k < 3; k++) {
            flip(path, tensor->offset + places[k]);
            ck_assert_msg(weights_checksum(path, &plain) != own, "tensor %u, byte %llu", i,
                          (unsigned long long)places[k]);
            flip(path, tensor->offset + places[k]);
        }
    }
    ck_assert_uint_eq(weights_checksum(path, &plain), own);
    gguf_close(gguf);
    unlink(path);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("exactness");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, test_formats, 0, 5);
    tcase_add_loop_test(tcase, test_families, 0, 5);
    tcase_add_loop_test(tcase, test_long_contexts, 0, 2);
    tcase_add_test(tcase, test_odd_heads);
    tcase_add_loop_test(tcase, test_kv_types, 0, KV_TYPES);
    tcase_add_test(tcase, test_kv_types_that_do_not_fit);
    tcase_add_loop_test(tcase, test_copy_page, 0, 2 * KV_TYPES);
    tcase_add_test(tcase, test_weights_checksum);
    Suite *suite = suite_create("exactness");
    suite_add_tcase(suite, tcase);
    TCase *version = tcase_create("version");
    tcase_set_timeout(version, 120);
    tcase_add_test(version, test_version_of_the_arithmetic);
    suite_add_tcase(suite, version);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
