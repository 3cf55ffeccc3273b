/*
 * bench/kernels: how fast each kernel is against what this machine can do.
 *
 *   kernels [--kernels NAME] [--format NAME] [--threads N] [--samples N] [--quick] [--limits]
 *           [--cpu-time] [--json]
 *
 * First the limits (machine.h): read bandwidth, what the arithmetic units do on registers alone,
 * and what each format's inner loop does in the first-level cache; --limits stops there. Then, per
 * format, shape, number of rows M and threads, a product with weights that come from memory (copies
 * of the matrix that exceed the caches are used in turn, as a model's layers are): the best of the
 * samples as GFLOP/s (two operations per weight and row, whatever the format) and GB/s of packed
 * weights. Threads meet at a barrier after every product. Run with nothing else on the machine;
 * on a busy one, --cpu-time with one thread counts only the time that the thread was given.
 * --json prints one object per line instead.
 */
#include "base/check.h"
#include "bench/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_BYTES (128u * 1024u * 1024u) /* of copies: more than a third-level cache */
#define ROWS_MAX 512u

struct shape {
    uint32_t n, k;
};

static const struct shape SHAPES[] = {
    {576, 576}, {576, 1536}, {1536, 576}, {49152, 576}, {1536, 8960}};
static const uint32_t ROWS[] = {1, 2, 4, 8, 32, 128};

struct options {
    const struct kernels *kernels;
    const char *format;
    unsigned threads; /* 0: 1 and 2 */
    unsigned samples;
    bool quick, limits, json;
};

/* Matrices alike, in turn. */
struct job {
    const struct kernels *kernels;
    struct repacked_matrix *matrices;
    uint32_t matrix_count, first, steps;
    struct activations activations;
    uint32_t rows;
    float *y;
    struct workers *workers;
};

static void run_products(void *arg, unsigned thread)
{
    struct job *job = arg;
    unsigned threads = workers_count(job->workers);
    uint32_t n = job->matrices[0].n;
    uint32_t groups = (n + KERNEL_ROW_BLOCK - 1) / KERNEL_ROW_BLOCK;
    uint32_t first = groups * thread / threads, last = groups * (thread + 1) / threads;
    for (uint32_t step = 0; step < job->steps; step++) {
        const struct repacked_matrix *matrix =
            &job->matrices[(job->first + step) % job->matrix_count];
        job->kernels->matmul(matrix, &job->activations, 0, job->rows, first, last - first, false,
                             job->y, n);
        workers_barrier(job->workers, NULL);
    }
}

/* Best seconds per product; a sample is at least a millisecond. */
static double measure(struct job *job, unsigned samples)
{
    double best = 1e9;
    job->steps = 1;
    job->first = 0;
    for (unsigned sample = 0; sample < samples + 1; sample++) {
        uint64_t start = machine_time_ns();
        workers_run(job->workers, run_products, job);
        double seconds = (double)(machine_time_ns() - start) * 1e-9;
        job->first = (job->first + job->steps) % job->matrix_count;
        if (sample > 0 && seconds / job->steps < best)
            best = seconds / job->steps;
        if (sample == 0 && seconds < 1e-3)
            job->steps = (uint32_t)(1e-3 / (seconds + 1e-7)) + 1;
    }
    return best;
}

/* All numbers of rows with one shape. */
static void bench_rows_of(const struct options *options, struct job *job, uint64_t repacked_bytes)
{
    const struct repacked_matrix *matrix = &job->matrices[0];
    const char *format = format_info(matrix->format)->name;
    unsigned threads = workers_count(job->workers);
    if (!options->json)
        printf("%-8s %-7s %5u×%-5u %u thr ", job->kernels->name, format, matrix->n, matrix->k,
               threads);
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        job->rows = ROWS[i];
        double seconds = measure(job, options->samples);
        double gflop_s = 2.0 * matrix->n * matrix->k * job->rows / seconds * 1e-9;
        double gb_s = (double)repacked_bytes / seconds * 1e-9;
        if (options->json)
            printf("{\"what\":\"product\",\"kernels\":\"%s\",\"threads\":%u,\"format\":\"%s\","
                   "\"n\":%u,\"k\":%u,\"rows\":%u,\"gflop_s\":%.2f,\"gb_s\":%.3f}\n",
                   job->kernels->name, threads, format, matrix->n, matrix->k, job->rows, gflop_s,
                   gb_s);
        else
            printf(" %4.0f/%5.1f", gflop_s, gb_s);
        fflush(stdout);
    }
    if (!options->json)
        printf("\n");
}

static void bench_shape(const struct options *options, enum tensor_format format,
                        struct shape shape, struct workers *workers)
{
    const struct kernels *kernels = options->kernels;
    uint64_t packed = kernels->repacked_bytes(format, shape.n, shape.k);
    if (packed == 0)
        return;
    uint64_t file = shape.n * format_row_bytes(format, shape.k);
    uint8_t *rows = machine_allocate(file);
    machine_fill_rows(rows, format, file);
    struct job job = {.kernels = kernels, .workers = workers};
    job.matrix_count = (uint32_t)(WEIGHT_BYTES / packed) + 1;
    job.matrices = calloc(job.matrix_count, sizeof *job.matrices);
    CHECK(job.matrices);
    uint64_t apart = (packed + 63) / 64 * 64;
    uint8_t *copies = machine_allocate(apart * job.matrix_count); /* together, as a model's are */
    for (uint32_t i = 0; i < job.matrix_count; i++) {
        struct repacked_matrix matrix = {format, shape.n, shape.k, copies + i * apart};
        job.matrices[i] = matrix;
        if (i == 0)
            kernels->repack(&job.matrices[0], 0, shape.n, rows);
        else
            memcpy(matrix.data, job.matrices[0].data, packed);
    }
    float *x = machine_allocate((uint64_t)ROWS_MAX * shape.k * sizeof *x);
    for (uint64_t i = 0; i < (uint64_t)ROWS_MAX * shape.k; i++)
        x[i] = (float)machine_random() * 0x1p-31f - 1.0f;
    job.activations = (struct activations){
        ROWS_MAX, shape.k, x, machine_allocate(ROWS_MAX * kernels->quantized_row_bytes(shape.k))};
    kernels->quantize(&job.activations, 0, ROWS_MAX);
    job.y = machine_allocate((uint64_t)ROWS_MAX * shape.n * sizeof *job.y);
    bench_rows_of(options, &job, packed);
    free(copies);
    free(job.matrices);
    free((void *)(uintptr_t)job.activations.x);
    free(job.activations.quantized);
    free(job.y);
    free(rows);
}

/* One KV head of `context` positions in pages of 16, attended to by the last queries of it. */
static void bench_attention_task(const struct options *options, enum kv_type type,
                                 uint32_t head_dim, uint32_t group, uint32_t context,
                                 uint32_t queries)
{
    const uint32_t page_size = 16, heads = 8, pages = context / page_size;
    struct kv_layout kv = kv_layout_of(type, 1, heads, head_dim, page_size);
    kv.pool = machine_allocate(kv.page_bytes * pages);
    float *row = machine_allocate(sizeof(float) * queries * group * head_dim);
    float *out = machine_allocate(sizeof(float) * queries * group * head_dim);
    uint32_t *table = machine_allocate(pages * sizeof *table);
    for (uint32_t i = 0; i < queries * group * head_dim; i++)
        row[i] = (float)machine_random() * 0x1p-31f - 1.0f;
    for (uint32_t i = 0; i < pages; i++)
        table[i] = i * 7 % pages; /* not in order */
    for (uint32_t slot = 0; slot < context; slot++)
        for (uint32_t h = 0; h < heads; h++)
            options->kernels->kv_store(&kv, 0, h, slot, row, row);
    struct attention_task task = {.kv = &kv,
                                  .pages = table,
                                  .first_position = context - queries,
                                  .query_count = queries,
                                  .gqa_group = group,
                                  .q = row,
                                  .q_stride = (size_t)group * head_dim,
                                  .scale = 0.125f,
                                  .out = out,
                                  .out_stride = (size_t)group * head_dim};
    task.scratch = machine_allocate(options->kernels->attention_scratch_bytes(head_dim, group));
    double best = 1e9;
    for (unsigned i = 0; i < options->samples; i++) {
        uint64_t start = machine_time_ns();
        for (task.kv_head = 0; task.kv_head < heads; task.kv_head++)
            options->kernels->attention(&task);
        double seconds = (double)(machine_time_ns() - start) * 1e-9 / heads;
        best = seconds < best ? seconds : best;
    }
    double keys = 0;
    for (uint32_t i = 0; i < queries; i++)
        keys += task.first_position + i + 1;
    double gflop_s = 4.0 * keys * group * head_dim / best * 1e-9;
    double gb_s = (double)(2 * kv.plane_bytes * pages) / best * 1e-9;
    const char *kv_type = kv_type_name(type);
    if (options->json)
        printf("{\"what\":\"attention\",\"kernels\":\"%s\",\"kv_type\":\"%s\",\"head_dim\":%u,"
               "\"group\":%u,\"context\":%u,\"queries\":%u,\"us\":%.2f,\"gflop_s\":%.2f,"
               "\"gb_s\":%.3f}\n",
               options->kernels->name, kv_type, head_dim, group, context, queries, best * 1e6,
               gflop_s, gb_s);
    else
        printf("%-8s attention %-4s head_dim %3u group %u context %5u queries %2u: %8.1f us, "
               "%5.1f GFLOP/s, %4.1f GB/s\n",
               options->kernels->name, kv_type, head_dim, group, context, queries, best * 1e6,
               gflop_s, gb_s);
    free(kv.pool);
    free(row);
    free(out);
    free(table);
    free(task.scratch);
}

static void bench_attention(const struct options *options)
{
    static const uint32_t SHAPES_OF_HEADS[][2] = {{64, 3}, {128, 6}, {256, 4}};
    static const uint32_t CONTEXTS[] = {256, 1024, 8192};
    for (unsigned type = 0; type < KV_TYPES; type++) {
        for (int s = 0; s < 3; s++) {
            for (int c = 0; c < 3; c++) {
                uint32_t head_dim = SHAPES_OF_HEADS[s][0], group = SHAPES_OF_HEADS[s][1];
                bench_attention_task(options, type, head_dim, group, CONTEXTS[c], 1);
                bench_attention_task(options, type, head_dim, group, CONTEXTS[c], 16);
            }
        }
    }
}

/* What works along a row, per value, in the first-level cache. */
static void bench_rows(const struct options *options)
{
    enum { COUNT = 1536, REPEATS = 64, FUNCTIONS = 6 };
    static const char *const NAMES[FUNCTIONS] = {"quantize", "rms_norm", "silu",
                                                 "gelu",     "add",      "rope"};
    const struct kernels *kernels = options->kernels;
    float *x = machine_allocate(COUNT * 4), *y = machine_allocate(COUNT * 4),
          *z = machine_allocate(COUNT * 4);
    struct activations activations = {1, COUNT, x,
                                      machine_allocate(kernels->quantized_row_bytes(COUNT))};
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)machine_random() * 0x1p-31f - 1.0f;
        y[i] = 0.001f;
    }
    if (!options->json)
        printf("%-8s nanoseconds per value:", kernels->name);
    for (int f = 0; f < FUNCTIONS; f++) {
        double best = 1e9;
        for (unsigned sample = 0; sample < options->samples; sample++) {
            uint64_t start = machine_time_ns();
            for (int i = 0; i < REPEATS; i++) {
                switch (f) {
                case 0:
                    kernels->quantize(&activations, 0, 1);
                    break;
                case 1:
                    kernels->rms_norm(x, y, 1e-5f, COUNT, z);
                    break;
                case 2:
                    kernels->silu_multiply(z, y, COUNT);
                    break;
                case 3:
                    kernels->gelu_multiply(z, y, COUNT);
                    break;
                case 4:
                    kernels->add(z, y, COUNT);
                    break;
                default:
                    for (int head = 0; head < COUNT; head += 64)
                        kernels->rope(z + head, y, y, 64, true);
                    break;
                }
            }
            double seconds = (double)(machine_time_ns() - start) * 1e-9 / REPEATS / COUNT;
            best = seconds < best ? seconds : best;
        }
        if (options->json)
            printf("{\"what\":\"row\",\"kernels\":\"%s\",\"function\":\"%s\",\"ns\":%.4f}\n",
                   kernels->name, NAMES[f], best * 1e9);
        else
            printf(" %s %.3f", NAMES[f], best * 1e9);
    }
    if (!options->json)
        printf("\n");
    free(x);
    free(y);
    free(z);
    free(activations.quantized);
}

/* ---- The machine's limits ---- */

static void bench_formats(const struct options *options, struct workers *workers)
{
    unsigned threads = workers_count(workers);
    if (!options->json)
        printf("limits, formats in the first-level cache, GFLOP/s (rows):");
    for (uint32_t format = 0; format < FORMAT_LIMIT; format++) {
        const char *name = format_info(format)->name;
        if (!name || (options->format && strcmp(options->format, name) != 0))
            continue;
        uint32_t rows = 0;
        double rate =
            machine_format_rate(options->kernels, (enum tensor_format)format, workers, 5, &rows);
        if (rate == 0)
            continue;
        if (options->json)
            printf("{\"what\":\"format\",\"kernels\":\"%s\",\"threads\":%u,\"format\":\"%s\","
                   "\"gflop_s\":%.2f,\"rows\":%u}\n",
                   options->kernels->name, threads, name, rate * 1e-9, rows);
        else
            printf(" %s %.0f (%u)", name, rate * 1e-9, rows);
        fflush(stdout);
    }
    if (!options->json)
        printf("\n");
}

static void bench_limits(const struct options *options, struct workers *workers)
{
    unsigned threads = workers_count(workers);
    struct machine_unit units[MACHINE_UNITS];
    double read = machine_read_rate(workers, options->samples / 3 + 1) * 1e-9;
    machine_unit_rates(workers, options->samples, units);
    if (options->json)
        printf("{\"what\":\"read\",\"threads\":%u,\"gb_s\":%.2f}\n", threads, read);
    else
        printf("limits, %u thread(s): read %.1f GB/s", threads, read);
    for (unsigned i = 0; i < MACHINE_UNITS; i++) {
        if (units[i].rate == 0)
            continue;
        if (options->json)
            printf("{\"what\":\"unit\",\"threads\":%u,\"unit\":\"%s\",\"gop_s\":%.2f}\n", threads,
                   units[i].name, units[i].rate * 1e-9);
        else
            printf("; %s %.0f Gop/s", units[i].name, units[i].rate * 1e-9);
    }
    if (!options->json)
        printf("\n");
    bench_formats(options, workers);
}

static void print_head(void)
{
    printf("%-8s %-7s %11s %5s  GFLOP/s / GB/s at M =", "set", "format", "n×k", "");
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++)
        printf(" %u", ROWS[i]);
    printf("\n");
}

static void bench_set(const struct options *options, unsigned threads)
{
    struct workers *workers;
    struct error error;
    if (workers_create(threads, &workers, &error) != STATUS_OK) {
        fprintf(stderr, "kernels: %s\n", error.message);
        exit(EXIT_FAILURE);
    }
    bench_limits(options, workers);
    if (options->limits) {
        workers_destroy(workers);
        return;
    }
    if (!options->json)
        print_head();
    for (uint32_t format = 0; format < FORMAT_LIMIT; format++) {
        const char *name = format_info(format)->name;
        if (!name || (options->format && strcmp(options->format, name) != 0))
            continue;
        size_t shapes = options->quick ? 2 : sizeof SHAPES / sizeof SHAPES[0];
        for (size_t i = options->quick ? 1 : 0; i < shapes; i++)
            bench_shape(options, (enum tensor_format)format, SHAPES[i], workers);
        if (format_info(format)->block_size == 256) /* 576 is no multiple of 256 */
            bench_shape(options, (enum tensor_format)format, (struct shape){1536, 1536}, workers);
    }
    workers_destroy(workers);
}

static bool *flag_of(struct options *options, const char *name)
{
    if (strcmp(name, "--quick") == 0)
        return &options->quick;
    if (strcmp(name, "--limits") == 0)
        return &options->limits;
    return strcmp(name, "--json") == 0 ? &options->json : NULL;
}

static void parse(struct options *options, const char **kernels, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool *flag = flag_of(options, argv[i]);
        if (flag) {
            *flag = true;
            continue;
        }
        if (strcmp(argv[i], "--cpu-time") == 0) {
            machine_use_cpu_time();
            continue;
        }
        if (value && strcmp(argv[i], "--kernels") == 0) {
            *kernels = value;
        } else if (value && strcmp(argv[i], "--format") == 0) {
            options->format = value;
        } else if (value && strcmp(argv[i], "--threads") == 0 && atoi(value) > 0) {
            options->threads = (unsigned)atoi(value);
        } else if (value && strcmp(argv[i], "--samples") == 0 && atoi(value) > 0) {
            options->samples = (unsigned)atoi(value);
        } else {
            fprintf(stderr, "usage: kernels [--kernels NAME] [--format NAME] [--threads N] "
                            "[--samples N] [--quick] [--limits] [--cpu-time] [--json]\n");
            exit(EXIT_FAILURE);
        }
        i++;
    }
}

int main(int argc, char **argv)
{
    struct options options = {.samples = 30};
    const char *name = "auto";
    parse(&options, &name, argc, argv);
    struct error error;
    if (kernels_select(name, &options.kernels, &error) != STATUS_OK) {
        fprintf(stderr, "kernels: %s\n", error.message);
        return EXIT_FAILURE;
    }
    if (!options.format && !options.limits) {
        bench_rows(&options);
        bench_attention(&options);
    }
    unsigned last = options.threads ? options.threads : 2;
    for (unsigned threads = options.threads ? last : 1; threads <= last; threads++)
        bench_set(&options, threads);
    return EXIT_SUCCESS;
}
