/*
 * quire prove: that keys and values need computing only once, shown on the model itself.
 *
 * Three ways to the same tokens, in lockstep: naive (everything again for every token), cached (one
 * new row against the pages), batched (one new row of several sequences together). After every
 * token the logits of the three are compared bit by bit. No engine, no scheduler: the backend
 * alone.
 */
#include "cli/programs.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "cli/workbench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS 512u
#define START_TEXT "Once upon a time"

enum way { NAIVE, CACHED, BATCHED, WAYS };
static const char *const way_names[WAYS] = {"naive", "cached", "batched"};

struct prove {
    const struct options *options;
    struct workbench bench;
    uint32_t token_count, batch;
    uint32_t *tokens;      /* [token_count]: the start's first token, then greedy choices */
    float *logits[2];      /* [vocabulary] naive, cached */
    float *batched;        /* [batch][vocabulary] */
    double *seconds[WAYS]; /* [token_count] per token */
    double total_s[WAYS];
    uint64_t projections[WAYS]; /* tokens whose keys and values were computed, per sequence */
    float largest_difference;
    uint64_t differing_bits; /* logits whose bits are not the same */
};

static void compare(struct prove *prove, const float *ours, const float *theirs)
{
    for (uint32_t i = 0; i < prove->bench.backend->vocabulary; i++) {
        if (memcmp(&ours[i], &theirs[i], sizeof *ours) == 0)
            continue;
        prove->differing_bits++;
        float difference = fabsf(ours[i] - theirs[i]);
        if (!isfinite(difference)) /* a NaN, too, is the largest there can be, and stays it */
            difference = INFINITY;
        if (difference > prove->largest_difference)
            prove->largest_difference = difference;
    }
}

/* One step of the batch: sequence 0 is the one compared, the others are the same tokens, each
   starting somewhere else, so that the batch is not one row many times. */
static void run_batched(struct prove *prove, uint32_t position, struct batch_sequence *sequences,
                        uint32_t *tokens, uint32_t *rows)
{
    struct workbench *bench = &prove->bench;
    for (uint32_t i = 0; i < prove->batch; i++) {
        sequences[i] = workbench_sequence(bench, 2 + i, position, 1);
        sequences[i].first_row = i;
        tokens[i] = i ? (prove->tokens[position] + i * 7919) % bench->backend->vocabulary
                      : prove->tokens[position];
        rows[i] = i;
    }
    struct batch batch = {
        .row_count = prove->batch,
        .tokens = tokens,
        .sequence_count = prove->batch,
        .sequences = sequences,
        .logits_row_count = prove->batch,
        .logits_rows = rows,
    };
    bench->backend->ops->forward(bench->backend, &batch);
    bench->backend->ops->logits(bench->backend, 0, prove->batch, prove->batched);
}

static void note(struct prove *prove, enum way way, uint32_t position, uint64_t start_ns,
                 uint64_t projections)
{
    double seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    prove->seconds[way][position] = seconds;
    prove->total_s[way] += seconds;
    prove->projections[way] += projections;
}

static void run_ways(struct prove *prove, struct batch_sequence *sequences, uint32_t *scratch)
{
    struct workbench *bench = &prove->bench;
    for (uint32_t position = 0; position < prove->token_count; position++) {
        uint64_t start_ns = clock_now_ns();
        workbench_run(bench, 0, prove->tokens, 0, position + 1, prove->logits[NAIVE]);
        note(prove, NAIVE, position, start_ns, position + 1);
        start_ns = clock_now_ns();
        workbench_run(bench, 1, prove->tokens + position, position, 1, prove->logits[CACHED]);
        note(prove, CACHED, position, start_ns, 1);
        start_ns = clock_now_ns();
        run_batched(prove, position, sequences, scratch, scratch + prove->batch);
        note(prove, BATCHED, position, start_ns, 1);
        compare(prove, prove->logits[NAIVE], prove->logits[CACHED]);
        compare(prove, prove->logits[NAIVE], prove->batched);
        if (position + 1 < prove->token_count)
            prove->tokens[position + 1] =
                workbench_argmax(prove->logits[CACHED], bench->backend->vocabulary);
    }
}

static uint64_t kv_bytes(const struct prove *prove, enum way way)
{
    uint64_t each = (uint64_t)prove->bench.pages_each * prove->bench.page_bytes;
    return way == NAIVE ? 0 : way == CACHED ? each : each * prove->batch;
}

static double rate(const struct prove *prove, enum way way)
{
    uint64_t tokens = (uint64_t)prove->token_count * (way == BATCHED ? prove->batch : 1);
    return (double)tokens / prove->total_s[way];
}

static void print_table(const struct prove *prove)
{
    printf("%s, %u tokens, %s kernels, %u threads\n\n", prove->bench.config.name,
           prove->token_count, prove->bench.backend->kernels, workers_count(prove->bench.workers));
    printf("| way | key/value projections | seconds | tokens/s | KV kept |\n");
    printf("|---|---:|---:|---:|---:|\n");
    for (enum way way = 0; way < WAYS; way++) {
        char bytes[24], name[48];
        snprintf(name, sizeof name, way == BATCHED ? "%s, %u sequences" : "%s", way_names[way],
                 prove->batch);
        printf("| %s | %llu%s | %.2f | %.1f | %s |\n", name,
               (unsigned long long)prove->projections[way], way == BATCHED ? " each" : "",
               prove->total_s[way], rate(prove, way), bytes_format(kv_bytes(prove, way), bytes));
    }
    printf("\nlargest difference of any logit between the three ways: %g (%llu of %llu differ in "
           "a bit)\n",
           (double)prove->largest_difference, (unsigned long long)prove->differing_bits,
           2ull * prove->token_count * prove->bench.backend->vocabulary);
}

static void print_json(const struct prove *prove)
{
    printf("{\"tokens\":%u,\"batch\":%u,\"kernels\":\"%s\",\"threads\":%u,", prove->token_count,
           prove->batch, prove->bench.backend->kernels, workers_count(prove->bench.workers));
    if (isfinite(prove->largest_difference))
        printf("\"largest_difference\":%.9g,", (double)prove->largest_difference);
    else
        printf("\"largest_difference\":null,"); /* JSON has no infinity */
    printf("\"differing_bits\":%llu,\"ways\":[", (unsigned long long)prove->differing_bits);
    for (enum way way = 0; way < WAYS; way++) {
        printf("%s{\"way\":\"%s\",\"projections\":%llu,\"seconds\":%.6f,\"tokens_per_second\":%.3f,"
               "\"kv_bytes\":%llu,\"seconds_at\":[",
               way ? "," : "", way_names[way], (unsigned long long)prove->projections[way],
               prove->total_s[way], rate(prove, way), (unsigned long long)kv_bytes(prove, way));
        for (uint32_t i = 0; i < prove->token_count; i++)
            printf("%s%.6f", i ? "," : "", prove->seconds[way][i]);
        printf("]}");
    }
    printf("]}\n");
}

static bool ends_in(const char *path, const char *end)
{
    size_t length = strlen(path), end_length = strlen(end);
    return length > end_length && strcmp(path + length - end_length, end) == 0;
}

/* What would make plot() fail, before the work is done. */
static enum status check_plot(const char *path, struct error *error)
{
    if (!ends_in(path, ".svg") && !ends_in(path, ".png"))
        return error_set(error, STATUS_INVALID, "plot", "--plot wants a name in .svg or .png");
    if (strpbrk(path, "'\n"))
        return error_set(error, STATUS_INVALID, "plot", "--plot: a name without quotes, please");
    if (system("command -v gnuplot >/dev/null 2>&1") != 0)
        return error_set(error, STATUS_IO, "plot",
                         "--plot: gnuplot draws it and is not installed (Debian: gnuplot-nox)");
    bool is_new = access(path, F_OK) != 0;
    FILE *file = fopen(path, "ae");
    if (!file)
        return error_set(error, STATUS_IO, "plot", "--plot: cannot write %s: %s", path,
                         strerror(errno));
    fclose(file);
    if (is_new)
        unlink(path);
    return STATUS_OK;
}

/* gnuplot draws it: time per token against position, naive and cached. */
static enum status plot(const struct prove *prove, const char *path, struct error *error)
{
    bool svg = ends_in(path, ".svg");
    /* If the file cannot be written it would draw to its output, which is ours. */
    FILE *pipe = popen("gnuplot >/dev/null", "we");
    if (!pipe)
        return error_set(error, STATUS_IO, "plot", "cannot start gnuplot");
    fprintf(pipe, "set terminal %s size 800,480 %s\nset output '%s'\n", svg ? "svg" : "pngcairo",
            svg ? "background '#ffffff'" : "", path);
    fprintf(pipe, "set title \"Time of one more token\"\nset xlabel \"position\"\n"
                  "set ylabel \"milliseconds\"\nset key left top\nset grid\n"
                  "plot '-' with lines lw 2 title \"naive: everything again\", "
                  "'-' with lines lw 2 title \"cached: one row\"\n");
    for (enum way way = NAIVE; way <= CACHED; way++) {
        for (uint32_t i = 0; i < prove->token_count; i++)
            fprintf(pipe, "%u %.4f\n", i + 1, prove->seconds[way][i] * 1e3);
        fprintf(pipe, "e\n");
    }
    if (pclose(pipe) != 0)
        return error_set(error, STATUS_IO, "plot", "gnuplot failed");
    return STATUS_OK;
}

static enum status prepare(struct prove *prove, struct error *error)
{
    struct workbench_shape shape = {
        .sequences = 2 + prove->batch,
        .positions = prove->token_count,
        .rows = max_u32(ROWS, prove->batch),
        .logits_rows = prove->batch,
        .backend = prove->options->settings.backend,
    };
    enum status status = workbench_open(&prove->options->settings, &shape, &prove->bench, error);
    if (status != STATUS_OK)
        return status;
    uint32_t *start;
    size_t count;
    status = tokenizer_encode(prove->bench.tokenizer, START_TEXT, strlen(START_TEXT),
                              TOKENIZER_ADD_BOS, 0, 64, &start, &count, error);
    if (status != STATUS_OK)
        return status;
    size_t vocabulary = prove->bench.backend->vocabulary;
    prove->tokens = calloc(prove->token_count, sizeof *prove->tokens);
    prove->logits[NAIVE] = malloc(vocabulary * sizeof(float));
    prove->logits[CACHED] = malloc(vocabulary * sizeof(float));
    prove->batched = malloc(prove->batch * vocabulary * sizeof(float));
    bool ok = prove->tokens && prove->logits[NAIVE] && prove->logits[CACHED] && prove->batched &&
              count >= 1;
    for (enum way way = 0; way < WAYS; way++) {
        prove->seconds[way] = calloc(prove->token_count, sizeof(double));
        ok = ok && prove->seconds[way];
    }
    if (ok)
        prove->tokens[0] = start[0];
    free(start);
    return ok ? STATUS_OK : error_out_of_memory(error);
}

int program_prove(const struct options *options)
{
    struct prove prove = {
        .options = options,
        .token_count = options->prove.tokens,
        .batch = options->prove.batch,
    };
    struct error error;
    error_clear(&error);
    enum status status = STATUS_OK;
    if (options->prove.plot_file)
        status = check_plot(options->prove.plot_file, &error);
    if (status == STATUS_OK)
        status = prepare(&prove, &error);
    struct batch_sequence *sequences = calloc(prove.batch, sizeof *sequences);
    uint32_t *scratch = calloc(2 * (size_t)prove.batch, sizeof *scratch);
    if (status == STATUS_OK && (!sequences || !scratch))
        status = error_out_of_memory(&error);
    if (status == STATUS_OK) {
        run_ways(&prove, sequences, scratch);
        if (options->json)
            print_json(&prove);
        else
            print_table(&prove);
        if (options->prove.plot_file)
            status = plot(&prove, options->prove.plot_file, &error);
    }
    if (status != STATUS_OK)
        log_error("prove_failed", "%s", error.message);
    free(sequences);
    free(scratch);
    free(prove.tokens);
    free(prove.logits[NAIVE]);
    free(prove.logits[CACHED]);
    free(prove.batched);
    for (enum way way = 0; way < WAYS; way++)
        free(prove.seconds[way]);
    workbench_close(&prove.bench);
    if (status == STATUS_OK && prove.differing_bits)
        log_error("prove_failed", "the three ways did not give the same bits");
    return status == STATUS_OK && !prove.differing_bits ? 0 : 1;
}
