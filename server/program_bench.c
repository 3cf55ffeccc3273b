/*
 * quire bench: what the engine's arithmetic alone does, as the peers' own tools print it: prefill
 * of a prompt, and decoding with 1, 2, 4 … sequences side by side. No HTTP, no scheduler, no
 * sampling; the output head runs for the rows whose token would be drawn.
 */
#include "server/program.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/workbench.h"

#include <stdio.h>
#include <stdlib.h>

#define LOGITS_ROWS 16u
#define DEPTH 128u /* tokens of prompt that each decoding sequence has */
#define ROUNDS 3   /* the median is printed */

struct bench {
    const struct options *options;
    struct workbench workbench;
    uint32_t *tokens; /* [positions] */
    float *logits;    /* [LOGITS_ROWS][vocabulary] */
    struct batch_sequence *sequences;
    uint32_t *rows, *inputs; /* [sequences] */
    bool first_line;
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_result(struct bench *bench, const char *what, uint32_t batch, uint32_t tokens,
                         double *seconds)
{
    qsort(seconds, ROUNDS, sizeof *seconds, compare_doubles);
    double median = seconds[ROUNDS / 2];
    double rate = (double)tokens * batch / median;
    if (bench->options->json)
        printf("%s{\"what\":\"%s\",\"batch\":%u,\"tokens\":%u,\"tokens_per_second\":%.2f,"
               "\"best\":%.2f,\"worst\":%.2f}",
               bench->first_line ? "" : ",", what, batch, tokens, rate,
               (double)tokens * batch / seconds[0], (double)tokens * batch / seconds[ROUNDS - 1]);
    else
        printf("| %s %u | %u | %.1f | %.2f |\n", what, tokens, batch, rate,
               1e3 * median / (double)tokens);
    bench->first_line = false;
    fflush(stdout);
}

static void bench_prefill(struct bench *bench, uint32_t count)
{
    double seconds[ROUNDS];
    workbench_run(&bench->workbench, 0, bench->tokens, 0, count, bench->logits); /* warm */
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t start_ns = clock_now_ns();
        workbench_run(&bench->workbench, 0, bench->tokens, 0, count, bench->logits);
        seconds[i] = (double)(clock_now_ns() - start_ns) * 1e-9;
    }
    print_result(bench, "prefill", 1, count, seconds);
}

static void decode_step(struct bench *bench, uint32_t batch_size, uint32_t position)
{
    struct workbench *workbench = &bench->workbench;
    for (uint32_t i = 0; i < batch_size; i++) {
        bench->sequences[i] = (struct batch_sequence){
            .first_row = i,
            .row_count = 1,
            .first_position = position,
            .pages = workbench->pages + (size_t)i * workbench->pages_each,
            .page_count = workbench->pages_each,
        };
        bench->inputs[i] = bench->tokens[(position + i) % DEPTH];
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
        ops->logits(workbench->backend, first, left < LOGITS_ROWS ? left : LOGITS_ROWS,
                    bench->logits);
    }
}

static void bench_decode(struct bench *bench, uint32_t batch_size, uint32_t count)
{
    double seconds[ROUNDS];
    for (uint32_t i = 0; i < batch_size; i++)
        workbench_run(&bench->workbench, i, bench->tokens, 0, DEPTH, NULL);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t start_ns = clock_now_ns();
        for (uint32_t i = 0; i < count; i++)
            decode_step(bench, batch_size, DEPTH + i);
        seconds[round] = (double)(clock_now_ns() - start_ns) * 1e-9;
    }
    print_result(bench, "decode", batch_size, count, seconds);
}

static enum status prepare(struct bench *bench, uint32_t positions, struct error *error)
{
    const struct options *options = bench->options;
    uint32_t sequences = options->bench_batch;
    struct workbench_shape shape = {
        .sequences = sequences,
        .positions = positions,
        .rows = sequences > 512 ? sequences : 512,
        .logits_rows = LOGITS_ROWS,
        .backend = options->backend,
    };
    enum status status = workbench_open(options, &shape, &bench->workbench, error);
    if (status != STATUS_OK)
        return status;
    uint32_t vocabulary = bench->workbench.backend->vocabulary;
    bench->tokens = malloc(positions * sizeof *bench->tokens);
    bench->logits = malloc((size_t)LOGITS_ROWS * vocabulary * sizeof *bench->logits);
    bench->sequences = malloc(sequences * sizeof *bench->sequences);
    bench->rows = malloc(sequences * sizeof *bench->rows);
    bench->inputs = malloc(sequences * sizeof *bench->inputs);
    if (!bench->tokens || !bench->logits || !bench->sequences || !bench->rows || !bench->inputs)
        return error_set(error, STATUS_IO, NULL, "out of memory");
    uint32_t state = 1;
    for (uint32_t i = 0; i < positions; i++) {
        state = state * 1664525u + 1013904223u;
        bench->tokens[i] = (state >> 8) % vocabulary;
    }
    return STATUS_OK;
}

static void run(struct bench *bench)
{
    const struct options *options = bench->options;
    const struct workbench *workbench = &bench->workbench;
    bench->first_line = true;
    if (options->json)
        printf("{\"model\":\"%s\",\"kernels\":\"%s\",\"threads\":%u,\"results\":[",
               workbench->config.architecture, workbench->backend->kernels,
               workers_count(workbench->workers));
    else
        printf("%s, %s kernels, %u threads, median of %d\n\n| what | together | tokens/s | "
               "ms per step or token |\n|---|---:|---:|---:|\n",
               workbench->config.name, workbench->backend->kernels,
               workers_count(workbench->workers), ROUNDS);
    bench_prefill(bench, options->bench_prompt);
    for (uint32_t batch = 1; batch < options->bench_batch; batch *= 2)
        bench_decode(bench, batch, options->bench_tokens);
    bench_decode(bench, options->bench_batch, options->bench_tokens);
    if (options->json)
        printf("]}\n");
}

int program_bench(const struct options *options)
{
    struct bench bench = {.options = options};
    struct error error;
    error_clear(&error);
    uint32_t decoded = DEPTH + options->bench_tokens;
    uint32_t positions = options->bench_prompt > decoded ? options->bench_prompt : decoded;
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
