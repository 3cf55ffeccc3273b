/*
 * model_sizes is a promise to the budget: creating a backend and using every row, page and logit of
 * it must not make the process larger than the sizes say. Also what create refuses.
 */
#include "engine/model/model.h"
#include "tests/engine/model/made_up.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS 300u
#define PAGES 60u
#define SLACK_BYTES                                                                                \
    (256u << 10) /* page tables, malloc's arena, stacks touched for the first time */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEASURES false /* shadow memory is resident too */
#else
#define MEASURES true
#endif

/* Without pages of files: code that runs for the first time is the program's, not the model's. */
static uint64_t resident_bytes(void)
{
    unsigned long long size, resident = 0, of_files = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu %llu %llu", &size, &resident, &of_files), 3);
    fclose(file);
    return (resident - of_files) * (uint64_t)sysconf(_SC_PAGESIZE);
}

struct fixture {
    char path[64];
    struct gguf *gguf;
    struct model_config config;
    struct workers *workers;
    struct backend_options options;
};

static void setup(struct fixture *fixture, const struct made_up *spec, const char *backend)
{
    struct error error;
    made_up_write(spec, fixture->path);
    ck_assert(gguf_open(fixture->path, &fixture->gguf, &error) == STATUS_OK);
    ck_assert_msg(model_describe(fixture->gguf, &fixture->config, &error) == STATUS_OK, "%s",
                  error.message);
    ck_assert(workers_create(2, &fixture->workers, &error) == STATUS_OK);
    const struct kernels *kernels;
    ck_assert(kernels_select("auto", &kernels, &error) == STATUS_OK);
    fixture->options = (struct backend_options){.kernels = kernels,
                                                .workers = fixture->workers,
                                                .backend = backend,
                                                .page_size = 16,
                                                .page_count = PAGES,
                                                .max_batch_rows = ROWS,
                                                .max_sequences = 1,
                                                .logits_rows_max = 1,
                                                .context = (PAGES - 1) * 16};
}

static void teardown(struct fixture *fixture)
{
    workers_destroy(fixture->workers);
    gguf_close(fixture->gguf);
    unlink(fixture->path);
}

/* Fill the whole pool, in steps of all rows with all logits asked for. */
static void use_everything(struct backend *backend, float *logits)
{
    static uint32_t pages[PAGES - 1], tokens[ROWS], rows[ROWS];
    for (uint32_t i = 0; i < PAGES - 1; i++)
        pages[i] = i + 1;
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = tokens[i] = i;
    uint32_t each = (PAGES - 1) / backend->groups.count;
    for (uint32_t first = 0; first < each * 16; first += ROWS) {
        uint32_t left = each * 16 - first, now = left < ROWS ? left : ROWS;
        struct batch_sequence sequence = {0, now, first, pages, each, each};
        struct batch batch = {now, tokens, 1, &sequence, now, rows};
        backend->ops->forward(backend, &batch);
        backend->ops->logits(backend, now - 1, 1, logits);
    }
}

static void holds(const struct made_up *spec, const char *backend_name, enum kv_type kv_type)
{
    struct fixture fixture;
    struct model_sizes sizes;
    struct backend *backend;
    struct error error;
    static float logits[4096];
    setup(&fixture, spec, backend_name);
    fixture.options.kv_type = kv_type;
    model_sizes(fixture.gguf, &fixture.config, &fixture.options, &sizes);
    uint64_t before = resident_bytes();
    enum status status = model_backend_create(fixture.gguf, &fixture.config, &fixture.options, NULL,
                                              NULL, &backend, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.message);
    use_everything(backend, logits);
    uint64_t grown = resident_bytes() - before;
    uint64_t promised = sizes.weights + sizes.scratch + PAGES * sizes.page;
    ck_assert_msg(!MEASURES || grown <= promised + SLACK_BYTES,
                  "%s grew by %llu bytes, promised %llu", backend_name, (unsigned long long)grown,
                  (unsigned long long)promised);
    /* Nor is the promise idle: most of it was really used. */
    ck_assert_msg(grown >= promised / 2, "%s grew by %llu bytes of %llu", backend_name,
                  (unsigned long long)grown, (unsigned long long)promised);
    backend->ops->destroy(backend);
    /* The kernel counts in batches of each thread: a busy machine reads it late. */
    ck_assert(!MEASURES || resident_bytes() <= before + 3 * SLACK_BYTES);
    teardown(&fixture);
}

START_TEST(test_quantized)
{
    struct made_up spec = made_up_default(FORMAT_Q4_1);
    spec.width = 256;
    spec.head_dim = 64;
    spec.feed_forward = 1024;
    spec.vocabulary = 4000;
    holds(&spec, "quantized", KV_F16);
    holds(&spec, "quantized", KV_Q4_0);
    holds(&spec, "quantized", KV_F32);
    spec.family = "gemma3";
    spec.window = 40;
    spec.format = FORMAT_F16;
    holds(&spec, "quantized", KV_F16);
    spec.layers = 12; /* two that see all: six groups of two */
    holds(&spec, "quantized", KV_Q8_0);
}
END_TEST

/* "At most 2 % larger than the file's tensors": packing pads rows, and little else. */
START_TEST(test_packed_size)
{
    static const enum tensor_format formats[] = {FORMAT_Q4_1, FORMAT_Q8_0, FORMAT_F16, FORMAT_BF16,
                                                 FORMAT_F32};
    struct made_up spec = made_up_default(formats[_i]);
    struct fixture fixture;
    struct model_sizes sizes;
    spec.width = 256;
    spec.head_dim = 64;
    spec.feed_forward = 1024;
    spec.vocabulary = 4000;
    setup(&fixture, &spec, "quantized");
    model_sizes(fixture.gguf, &fixture.config, &fixture.options, &sizes);
    uint64_t most = fixture.config.tensor_bytes / 50 + fixture.config.tensor_bytes + 4096;
    ck_assert_msg(sizes.weights <= most, "%s: %llu bytes packed, %llu in the file",
                  format_info(formats[_i])->name, (unsigned long long)sizes.weights,
                  (unsigned long long)fixture.config.tensor_bytes);
    ck_assert_uint_ge(sizes.weights, fixture.config.tensor_bytes);
    teardown(&fixture);
}
END_TEST

START_TEST(test_refusals)
{
    struct made_up spec = made_up_default(FORMAT_F32);
    struct fixture fixture;
    struct backend *backend;
    struct error error;
    setup(&fixture, &spec, "abacus");
    ck_assert(model_backend_create(fixture.gguf, &fixture.config, &fixture.options, NULL, NULL,
                                   &backend, &error) == STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "abacus"));
    fixture.options.backend = "quantized";
    fixture.options.page_size = 12;
    ck_assert(model_backend_create(fixture.gguf, &fixture.config, &fixture.options, NULL, NULL,
                                   &backend, &error) == STATUS_INVALID);
    fixture.options.page_size = 16;
    fixture.options.page_count = 1; /* the null page alone */
    ck_assert(model_backend_create(fixture.gguf, &fixture.config, &fixture.options, NULL, NULL,
                                   &backend, &error) == STATUS_INVALID);
    ck_assert_str_eq(error.param, "memory");
    /* The file shrinks between opening and loading: an error that names the tensor, no signal. */
    fixture.options.page_count = PAGES;
    ck_assert_int_eq(truncate(fixture.path, 20000), 0);
    ck_assert(model_backend_create(fixture.gguf, &fixture.config, &fixture.options, NULL, NULL,
                                   &backend, &error) == STATUS_IO);
    ck_assert_msg(strstr(error.message, ".weight") != NULL, "%s", error.message);
    teardown(&fixture);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("sizes");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_quantized);
    tcase_add_loop_test(tcase, test_packed_size, 0, 5);
    tcase_add_test(tcase, test_refusals);
    Suite *suite = suite_create("sizes");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
