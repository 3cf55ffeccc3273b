/*
 * quire bench: what the engine's arithmetic alone does, as the peers' own tools print it: prefill
 * of a prompt, and decoding with 1, 2, 4 … sequences side by side. No HTTP, no scheduler, no
 * sampling; the output head runs for the rows whose token would be drawn.
 *
 * Beside the wall time stands what a second of the processors did, which a busy machine blurs less.
 * With --profile also where the time of a step went, part by part.
 */
#include "cli/programs.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "cli/workbench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOGITS_ROWS 16u
#define ROUNDS 3       /* the median is printed */
#define RESULTS_MAX 12 /* prefill, and batches of 1, 2, 4 … 1024 */

struct result {
    const char *what;
    uint32_t batch, tokens;
    double seconds[ROUNDS], cpu_seconds; /* of all rounds */
    uint32_t stage_count;
    struct backend_stage stages[BACKEND_STAGES_MAX]; /* of all rounds */
};

struct bench {
    const struct options *options;
    struct workbench workbench;
    uint32_t *tokens; /* [positions] */
    float *logits;    /* [LOGITS_ROWS][vocabulary] */
    struct batch_sequence *sequences;
    uint32_t *rows, *inputs; /* [sequences] */
    struct result results[RESULTS_MAX];
    unsigned result_count;
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint32_t read_stages(const struct bench *bench, struct backend_stage *out)
{
    const struct backend *backend = bench->workbench.backend;
    if (!bench->options->settings.profile || !backend->ops->profile)
        return 0;
    return backend->ops->profile(backend, out);
}

/* ---- Measuring ---- */

typedef void work_fn(struct bench *bench, const struct result *result);

static void measure(struct bench *bench, work_fn *work, struct result *result)
{
    struct backend_stage before[BACKEND_STAGES_MAX];
    read_stages(bench, before);
    double cpu_start = cpu_now();
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t start_ns = clock_now_ns();
        work(bench, result);
        result->seconds[i] = (double)(clock_now_ns() - start_ns) * 1e-9;
    }
    result->cpu_seconds = cpu_now() - cpu_start;
    result->stage_count = read_stages(bench, result->stages);
    for (uint32_t i = 0; i < result->stage_count; i++) {
        result->stages[i].work_ns -= before[i].work_ns;
        result->stages[i].wait_ns -= before[i].wait_ns;
    }
    qsort(result->seconds, ROUNDS, sizeof result->seconds[0], compare_doubles);
}

static void prefill(struct bench *bench, const struct result *result)
{
    workbench_run(&bench->workbench, 0, bench->tokens, 0, result->tokens, bench->logits);
}

static void decode_step(struct bench *bench, uint32_t batch_size, uint32_t position)
{
    struct workbench *workbench = &bench->workbench;
    for (uint32_t i = 0; i < batch_size; i++) {
        bench->sequences[i] = workbench_sequence(workbench, i, position, 1);
        bench->sequences[i].first_row = i;
        bench->inputs[i] = bench->tokens[(position + i) % bench->options->bench.depth];
        bench->rows[i] = i;
    }
    struct batch batch = {
        .row_count = batch_size,
        .tokens = bench->inputs,
        .sequence_count = batch_size,
        .sequences = bench->sequences,
        .logits_row_count = batch_size,
        .logits_rows = bench->rows,
    };
    const struct backend_ops *ops = workbench->backend->ops;
    ops->forward(workbench->backend, &batch);
    for (uint32_t first = 0; first < batch_size; first += LOGITS_ROWS) {
        uint32_t left = batch_size - first;
        ops->logits(workbench->backend, first, min_u32(left, LOGITS_ROWS), bench->logits);
    }
}

static void decode(struct bench *bench, const struct result *result)
{
    for (uint32_t i = 0; i < result->tokens; i++)
        decode_step(bench, result->batch, bench->options->bench.depth + i);
}

/* ---- Printing ---- */

static double tokens_of(const struct result *result)
{
    return (double)result->tokens * result->batch;
}

/* The engine's calls of one round: each decodes a token for every sequence. */
static double steps_of(const struct result *result)
{
    return result->what[0] == 'd' ? (double)result->tokens : 1.0;
}

static void print_json_stages(const struct result *result)
{
    double per_step = 1e-6 / (ROUNDS * steps_of(result));
    printf(",\"profile\":[");
    for (uint32_t i = 0; i < result->stage_count; i++)
        printf("%s{\"part\":\"%s\",\"work_ms\":%.4f,\"wait_ms\":%.4f}", i ? "," : "",
               result->stages[i].name, (double)result->stages[i].work_ns * per_step,
               (double)result->stages[i].wait_ns * per_step);
    printf("]");
}

static void print_result(const struct bench *bench, const struct result *result)
{
    double tokens = tokens_of(result), median = result->seconds[ROUNDS / 2];
    double per_cpu_second = tokens * ROUNDS / result->cpu_seconds;
    if (bench->options->json) {
        printf("%s{\"what\":\"%s\",\"batch\":%u,\"tokens\":%u,\"tokens_per_second\":%.2f,"
               "\"best\":%.2f,\"worst\":%.2f,\"tokens_per_cpu_second\":%.2f",
               bench->result_count ? "," : "", result->what, result->batch, result->tokens,
               tokens / median, tokens / result->seconds[0], tokens / result->seconds[ROUNDS - 1],
               per_cpu_second);
        if (bench->options->settings.profile)
            print_json_stages(result);
        printf("}");
    } else {
        printf("| %s %u | %u | %.1f | %.2f | %.1f |\n", result->what, result->tokens, result->batch,
               tokens / median, 1e3 * median / (double)result->tokens, per_cpu_second);
    }
    fflush(stdout);
}

static void print_profile_row(const struct bench *bench, const char *name,
                              double (*part_ms)(const struct result *, uint32_t), uint32_t stage)
{
    printf("| %s |", name);
    for (unsigned i = 0; i < bench->result_count; i++) {
        const struct result *result = &bench->results[i];
        double total = 0;
        for (unsigned round = 0; round < ROUNDS; round++)
            total += result->seconds[round];
        double part = part_ms(result, stage) / steps_of(result) / ROUNDS;
        printf(" %.3f (%.0f %%) |", part, part * 100 / (1e3 * total / steps_of(result) / ROUNDS));
    }
    printf("\n");
}

static double work_ms(const struct result *result, uint32_t stage)
{
    return (double)result->stages[stage].work_ns * 1e-6;
}

static double all_wait_ms(const struct result *result, uint32_t stage)
{
    (void)stage;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < result->stage_count; i++)
        sum += result->stages[i].wait_ns;
    return (double)sum * 1e-6;
}

static void print_profile(const struct bench *bench)
{
    const struct result *first = &bench->results[0];
    if (first->stage_count == 0) {
        printf("\nThis backend does not measure its parts.\n");
        return;
    }
    printf("\nms of a step (prefill: of the prompt), one thread's, and its share\n\n| part |");
    for (unsigned i = 0; i < bench->result_count; i++)
        printf(" %s %u |", bench->results[i].what,
               i == 0 ? bench->results[i].tokens : bench->results[i].batch);
    printf("\n|---|");
    for (unsigned i = 0; i < bench->result_count; i++)
        printf("---:|");
    printf("\n");
    for (uint32_t stage = 0; stage < first->stage_count; stage++)
        print_profile_row(bench, first->stages[stage].name, work_ms, stage);
    print_profile_row(bench, "waiting for other threads", all_wait_ms, 0);
}

/* ---- The run ---- */

static void run_one(struct bench *bench, work_fn *work, const char *what, uint32_t batch,
                    uint32_t tokens)
{
    CHECK(bench->result_count < RESULTS_MAX);
    struct result *result = &bench->results[bench->result_count];
    *result = (struct result){.what = what, .batch = batch, .tokens = tokens};
    measure(bench, work, result);
    print_result(bench, result);
    bench->result_count++;
}

static void bench_decode(struct bench *bench, uint32_t *prepared, uint32_t batch)
{
    const struct options *options = bench->options;
    if (ferror(stdout))
        return; /* nobody reads what would be measured; program_main makes an exit code of it */
    for (; *prepared < batch; ++*prepared)
        workbench_run(&bench->workbench, *prepared, bench->tokens, 0, options->bench.depth, NULL);
    run_one(bench, decode, "decode", batch, options->bench.tokens);
}

static void run(struct bench *bench)
{
    const struct options *options = bench->options;
    const struct workbench *workbench = &bench->workbench;
    unsigned threads = workers_count(workbench->workers);
    if (options->json)
        printf("{\"model\":\"%s\",\"kernels\":\"%s\",\"threads\":%u,\"depth\":%u,\"results\":[",
               workbench->config.architecture, workbench->backend->kernels, threads,
               options->bench.depth);
    else
        printf("%s, %s kernels, %u threads, decoding behind %u tokens, median of %d\n\n"
               "| what | together | tokens/s | ms per step or token | tokens per processor second "
               "|\n|---|---:|---:|---:|---:|\n",
               workbench->config.name, workbench->backend->kernels, threads, options->bench.depth,
               ROUNDS);
    workbench_run(&bench->workbench, 0, bench->tokens, 0, options->bench.prompt, bench->logits);
    run_one(bench, prefill, "prefill", 1, options->bench.prompt);
    uint32_t prepared = 0;
    for (uint32_t batch = 1; batch < options->bench.batch; batch *= 2)
        bench_decode(bench, &prepared, batch);
    bench_decode(bench, &prepared, options->bench.batch);
    if (options->json)
        printf("]}\n");
    else if (options->settings.profile)
        print_profile(bench);
}

static enum status prepare(struct bench *bench, uint32_t positions, struct error *error)
{
    const struct options *options = bench->options;
    uint32_t sequences = options->bench.batch;
    struct workbench_shape shape = {
        .sequences = sequences,
        .positions = positions,
        .rows = max_u32(sequences, 512),
        .logits_rows = LOGITS_ROWS,
        .backend = options->settings.backend,
    };
    enum status status = workbench_open(&options->settings, &shape, &bench->workbench, error);
    if (status != STATUS_OK)
        return status;
    uint32_t vocabulary = bench->workbench.backend->vocabulary;
    bench->tokens = malloc(positions * sizeof *bench->tokens);
    bench->logits = malloc((size_t)LOGITS_ROWS * vocabulary * sizeof *bench->logits);
    bench->sequences = malloc(sequences * sizeof *bench->sequences);
    bench->rows = malloc(sequences * sizeof *bench->rows);
    bench->inputs = malloc(sequences * sizeof *bench->inputs);
    if (!bench->tokens || !bench->logits || !bench->sequences || !bench->rows || !bench->inputs)
        return error_out_of_memory(error);
    uint32_t state = 1;
    for (uint32_t i = 0; i < positions; i++) {
        state = state * 1664525u + 1013904223u;
        bench->tokens[i] = (state >> 8) % vocabulary;
    }
    return STATUS_OK;
}

int program_bench(const struct options *options)
{
    struct bench bench = {.options = options};
    struct error error;
    error_clear(&error);
    uint32_t decoded = options->bench.depth + options->bench.tokens;
    uint32_t positions = max_u32(options->bench.prompt, decoded);
    enum status status = prepare(&bench, positions, &error);
    if (status == STATUS_OK)
        run(&bench);
    else
        log_error("bench_failed", "%s", error.message);
    free(bench.tokens);
    free(bench.logits);
    free(bench.sequences);
    free(bench.rows);
    free(bench.inputs);
    workbench_close(&bench.workbench);
    return status == STATUS_OK ? 0 : 1;
}
