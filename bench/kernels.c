/*
 * bench/kernels: how fast each kernel is against what this machine can do.
 *
 *   kernels [--kernels NAME] [--format NAME] [--threads N] [--samples N] [--quick] [--cpu-time]
 *
 * First the limits: read bandwidth, and what the arithmetic units do on registers alone. Then, per
 * format, shape, number of rows M and threads, a product with weights that come from memory (copies
 * of the matrix that exceed the caches are used in turn, as a model's layers are): the best of the
 * samples as GFLOP/s (two operations per weight and row, whatever the format) and GB/s of packed
 * weights. Threads meet at a barrier after every product. Run with nothing else on the machine;
 * on a busy one, --cpu-time with one thread counts only the time that the thread was given.
 */
#include "engine/kernels/kernels.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/workers.h"
#include "engine/kernels/math.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    bool quick;
};

static bool use_cpu_time;

static uint64_t time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return use_cpu_time ? (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec
                        : clock_now_ns();
}

static uint32_t random_u32(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void *allocate(uint64_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(data != NULL);
    return data;
}

/* Matrices alike, in turn. */
struct job {
    const struct kernels *kernels;
    struct packed_matrix *matrices;
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
    uint32_t groups = (n + KERNEL_ROW_GROUP - 1) / KERNEL_ROW_GROUP;
    uint32_t first = groups * thread / threads, last = groups * (thread + 1) / threads;
    for (uint32_t step = 0; step < job->steps; step++) {
        const struct packed_matrix *matrix =
            &job->matrices[(job->first + step) % job->matrix_count];
        job->kernels->matmul(matrix, &job->activations, 0, job->rows, first, last - first, false,
                             job->y, n);
        workers_barrier(job->workers);
    }
}

/* Best seconds per product; a sample is at least a millisecond. */
static double measure(struct job *job, unsigned samples)
{
    double best = 1e9;
    job->steps = 1;
    job->first = 0;
    for (unsigned sample = 0; sample < samples + 1; sample++) {
        uint64_t start = time_ns();
        workers_run(job->workers, run_products, job);
        double seconds = (double)(time_ns() - start) * 1e-9;
        job->first = (job->first + job->steps) % job->matrix_count;
        if (sample > 0 && seconds / job->steps < best) {
            best = seconds / job->steps;
        }
        if (sample == 0 && seconds < 1e-3) {
            job->steps = (uint32_t)(1e-3 / (seconds + 1e-7)) + 1;
        }
    }
    return best;
}

/* Finite weights: random bits, f16 scales about 0.01. */
static void fill_rows(uint8_t *rows, enum tensor_format format, uint64_t bytes)
{
    const struct format_info *info = format_info(format);
    for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t bits = random_u32() & 0xBFFFBFFFu; /* no f16 or f32 among them is infinite */
        memcpy(rows + i, &bits, 4);
    }
    uint16_t scale = math_f32_to_f16(0.01f);
    for (uint64_t at = 0; info->block_size > 1 && at < bytes; at += info->block_bytes) {
        memcpy(rows + at, &scale, 2);
        memcpy(rows + at + info->block_bytes - 2, &scale, 2);
    }
}

static void bench_shape(const struct options *options, enum tensor_format format,
                        struct shape shape, struct workers *workers)
{
    const struct kernels *kernels = options->kernels;
    uint64_t packed = kernels->packed_bytes(format, shape.n, shape.k);
    if (packed == 0) {
        return;
    }
    uint64_t file = shape.n * format_row_bytes(format, shape.k);
    uint8_t *rows = allocate(file);
    fill_rows(rows, format, file);
    struct job job = {.kernels = kernels, .workers = workers};
    job.matrix_count = (uint32_t)(WEIGHT_BYTES / packed) + 1;
    job.matrices = calloc(job.matrix_count, sizeof *job.matrices);
    CHECK(job.matrices != NULL);
    for (uint32_t i = 0; i < job.matrix_count; i++) {
        struct packed_matrix matrix = {format, shape.n, shape.k, allocate(packed)};
        job.matrices[i] = matrix;
        if (i == 0) {
            kernels->pack(&job.matrices[0], 0, shape.n, rows);
        } else {
            memcpy(matrix.data, job.matrices[0].data, packed);
        }
    }
    float *x = allocate((uint64_t)ROWS_MAX * shape.k * sizeof *x);
    for (uint64_t i = 0; i < (uint64_t)ROWS_MAX * shape.k; i++) {
        x[i] = (float)random_u32() * 0x1p-31f - 1.0f;
    }
    job.activations = (struct activations){
        ROWS_MAX, shape.k, x, allocate(ROWS_MAX * kernels->quantized_row_bytes(shape.k))};
    kernels->quantize(&job.activations, 0, ROWS_MAX);
    job.y = allocate((uint64_t)ROWS_MAX * shape.n * sizeof *job.y);
    printf("%-8s %-7s %5u×%-5u %u thr ", kernels->name, format_info(format)->name, shape.n, shape.k,
           workers_count(workers));
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        job.rows = ROWS[i];
        double seconds = measure(&job, options->samples);
        double operations = 2.0 * shape.n * shape.k * job.rows;
        printf(" %4.0f/%5.1f", operations / seconds * 1e-9, (double)packed / seconds * 1e-9);
        fflush(stdout);
    }
    printf("\n");
    for (uint32_t i = 0; i < job.matrix_count; i++) {
        free(job.matrices[i].data);
    }
    free(job.matrices);
    free((void *)(uintptr_t)job.activations.x);
    free(job.activations.quantized);
    free(job.y);
    free(rows);
}

/* One KV head of `context` positions in pages of 16, attended to by the last queries of it. */
static void bench_attention_task(const struct options *options, uint32_t head_dim, uint32_t group,
                                 uint32_t context, uint32_t queries)
{
    const uint32_t page_size = 16, heads = 8, pages = context / page_size;
    struct kv_layout kv = {
        NULL, kv_page_bytes(1, heads, head_dim, page_size), page_size, 1, heads, head_dim};
    kv.pool = allocate(kv.page_bytes * pages);
    float *row = allocate(sizeof(float) * queries * group * head_dim);
    float *out = allocate(sizeof(float) * queries * group * head_dim);
    uint32_t *table = allocate(pages * sizeof *table);
    for (uint32_t i = 0; i < queries * group * head_dim; i++) {
        row[i] = (float)random_u32() * 0x1p-31f - 1.0f;
    }
    for (uint32_t i = 0; i < pages; i++) {
        table[i] = i * 7 % pages; /* not in order */
    }
    for (uint32_t slot = 0; slot < context; slot++) {
        for (uint32_t h = 0; h < heads; h++) {
            options->kernels->kv_store(&kv, 0, h, slot, row, row);
        }
    }
    struct attention_task task = {.kv = &kv,
                                  .pages = table,
                                  .first_position = context - queries,
                                  .query_count = queries,
                                  .group = group,
                                  .q = row,
                                  .q_stride = (size_t)group * head_dim,
                                  .scale = 0.125f,
                                  .out = out,
                                  .out_stride = (size_t)group * head_dim};
    task.scratch = allocate(options->kernels->attention_scratch_bytes(head_dim, group));
    double best = 1e9;
    for (unsigned i = 0; i < options->samples; i++) {
        uint64_t start = time_ns();
        for (task.kv_head = 0; task.kv_head < heads; task.kv_head++) {
            options->kernels->attention(&task);
        }
        double seconds = (double)(time_ns() - start) * 1e-9 / heads;
        best = seconds < best ? seconds : best;
    }
    double keys = 0;
    for (uint32_t i = 0; i < queries; i++) {
        keys += task.first_position + i + 1;
    }
    printf("%-8s attention head_dim %3u group %u context %5u queries %2u: %8.1f us, %5.1f GFLOP/s, "
           "%4.1f GB/s\n",
           options->kernels->name, head_dim, group, context, queries, best * 1e6,
           4.0 * keys * group * head_dim / best * 1e-9, 4.0 * context * head_dim / best * 1e-9);
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
    for (int s = 0; s < 3; s++) {
        for (int c = 0; c < 3; c++) {
            uint32_t head_dim = SHAPES_OF_HEADS[s][0], group = SHAPES_OF_HEADS[s][1];
            bench_attention_task(options, head_dim, group, CONTEXTS[c], 1);
            bench_attention_task(options, head_dim, group, CONTEXTS[c], 16);
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
    float *x = allocate(COUNT * 4), *y = allocate(COUNT * 4), *z = allocate(COUNT * 4);
    struct activations activations = {1, COUNT, x, allocate(kernels->quantized_row_bytes(COUNT))};
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)random_u32() * 0x1p-31f - 1.0f;
        y[i] = 0.001f;
    }
    printf("%-8s nanoseconds per value:", kernels->name);
    for (int f = 0; f < FUNCTIONS; f++) {
        double best = 1e9;
        for (unsigned sample = 0; sample < options->samples; sample++) {
            uint64_t start = time_ns();
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
                    for (int head = 0; head < COUNT; head += 64) {
                        kernels->rope(z + head, y, y, 64, true);
                    }
                    break;
                }
            }
            double seconds = (double)(time_ns() - start) * 1e-9 / REPEATS / COUNT;
            best = seconds < best ? seconds : best;
        }
        printf(" %s %.3f", NAMES[f], best * 1e9);
    }
    printf("\n");
    free(x);
    free(y);
    free(z);
    free(activations.quantized);
}

/* The machine's limits. */

struct limit_job {
    struct workers *workers;
    const uint64_t *data;
    uint64_t words;
    double (*peak)(void);
    double results[64];
};

static void read_all(void *arg, unsigned thread)
{
    struct limit_job *job = arg;
    unsigned threads = workers_count(job->workers);
    const uint64_t *at = job->data + job->words / threads * thread;
    uint64_t sums[8] = {0};
    for (uint64_t i = 0; i + 8 <= job->words / threads; i += 8) {
        for (int j = 0; j < 8; j++) {
            sums[j] += at[i + j];
        }
    }
    for (int j = 0; j < 8; j++) {
        job->results[thread] += (double)(sums[j] & 1);
    }
}

static void run_peak(void *arg, unsigned thread)
{
    struct limit_job *job = arg;
    job->results[thread] = job->peak();
}

#ifdef __x86_64__
#include <immintrin.h>

#define PEAK_STEPS 100000

/* Twelve chains keep both units busy; the result is used so that the loop stays. Operations per
   second of one thread. */
#define PEAK(name, set, type, zero, operations, step)                                              \
    __attribute__((target(set))) static double name(void)                                          \
    {                                                                                              \
        type a[12], x = zero;                                                                      \
        for (int i = 0; i < 12; i++) {                                                             \
            a[i] = zero;                                                                           \
        }                                                                                          \
        uint64_t start = time_ns();                                                                \
        for (int step_count = 0; step_count < PEAK_STEPS; step_count++) {                          \
            __asm__ volatile("" : "+v"(x));                                                        \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                                  \
            {                                                                                      \
                step;                                                                              \
            }                                                                                      \
        }                                                                                          \
        uint64_t elapsed = time_ns() - start;                                                      \
        for (int i = 0; i < 12; i++) {                                                             \
            __asm__ volatile("" : : "v"(a[i]));                                                    \
        }                                                                                          \
        return 12.0 * (operations)*PEAK_STEPS / (double)elapsed * 1e9;                             \
    }

PEAK(peak_fma_256, "avx2,fma", __m256, _mm256_setzero_ps(), 16, a[i] = _mm256_fmadd_ps(x, x, a[i]))
PEAK(peak_fma_512, "avx512f", __m512, _mm512_setzero_ps(), 32, a[i] = _mm512_fmadd_ps(x, x, a[i]))
/* The inner step for 4-bit weights: 32 products and their sum. */
PEAK(peak_maddubs, "avx2", __m256i, _mm256_setzero_si256(), 64, __m256i product;
     __asm__ volatile("vpmaddubsw %1, %1, %0"
                      : "=x"(product)
                      : "x"(x));
     a[i] = _mm256_add_epi16(a[i], product))
PEAK(peak_vnni, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), 128,
     a[i] = _mm512_dpbusd_epi32(a[i], x, x))
#endif

static double best_peak(struct limit_job *job, double (*peak)(void), unsigned samples)
{
    double best = 0;
    job->peak = peak;
    for (unsigned i = 0; i < samples; i++) {
        double sum = 0;
        workers_run(job->workers, run_peak, job);
        for (unsigned t = 0; t < workers_count(job->workers); t++) {
            sum += job->results[t];
        }
        best = sum > best ? sum : best;
    }
    return best;
}

static void bench_limits(const struct options *options, struct workers *workers)
{
    struct limit_job job = {.workers = workers, .words = WEIGHT_BYTES / 8};
    uint64_t *data = allocate(WEIGHT_BYTES);
    for (uint64_t i = 0; i < job.words; i++) {
        data[i] = i;
    }
    job.data = data;
    double best = 1e9;
    for (unsigned i = 0; i < options->samples; i++) {
        uint64_t start = time_ns();
        workers_run(workers, read_all, &job);
        double seconds = (double)(time_ns() - start) * 1e-9;
        best = seconds < best ? seconds : best;
    }
    free(data);
    printf("limits, %u thread(s): read %.1f GB/s", workers_count(workers),
           (double)WEIGHT_BYTES / best * 1e-9);
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        printf("; f32 fma 256 %.0f GFLOP/s, u8×s8 maddubs+add %.0f",
               best_peak(&job, peak_fma_256, options->samples) * 1e-9,
               best_peak(&job, peak_maddubs, options->samples) * 1e-9);
    }
    if (__builtin_cpu_supports("avx512vnni")) {
        printf("; fma 512 %.0f, vnni %.0f", best_peak(&job, peak_fma_512, options->samples) * 1e-9,
               best_peak(&job, peak_vnni, options->samples) * 1e-9);
    }
#endif
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
    printf("%-8s %-7s %11s %5s  GFLOP/s / GB/s at M =", "set", "format", "n×k", "");
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        printf(" %u", ROWS[i]);
    }
    printf("\n");
    for (uint32_t format = 0; format < FORMAT_LIMIT; format++) {
        const char *name = format_info(format)->name;
        if (!name || (options->format && strcmp(options->format, name) != 0)) {
            continue;
        }
        size_t shapes = options->quick ? 2 : sizeof SHAPES / sizeof SHAPES[0];
        for (size_t i = options->quick ? 1 : 0; i < shapes; i++) {
            bench_shape(options, (enum tensor_format)format, SHAPES[i], workers);
        }
        if (format_info(format)->block_size == 256) { /* 576 is no multiple of 256 */
            bench_shape(options, (enum tensor_format)format, (struct shape){1536, 1536}, workers);
        }
    }
    workers_destroy(workers);
}

int main(int argc, char **argv)
{
    struct options options = {.samples = 30};
    const char *name = "auto";
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--quick") == 0) {
            options.quick = true;
            continue;
        }
        if (strcmp(argv[i], "--cpu-time") == 0) {
            use_cpu_time = true;
            continue;
        }
        if (value && strcmp(argv[i], "--kernels") == 0) {
            name = value;
        } else if (value && strcmp(argv[i], "--format") == 0) {
            options.format = value;
        } else if (value && strcmp(argv[i], "--threads") == 0 && atoi(value) > 0) {
            options.threads = (unsigned)atoi(value);
        } else if (value && strcmp(argv[i], "--samples") == 0 && atoi(value) > 0) {
            options.samples = (unsigned)atoi(value);
        } else {
            fprintf(stderr, "usage: kernels [--kernels NAME] [--format NAME] [--threads N] "
                            "[--samples N] [--quick] [--cpu-time]\n");
            return EXIT_FAILURE;
        }
        i++;
    }
    struct error error;
    if (kernels_select(name, &options.kernels, &error) != STATUS_OK) {
        fprintf(stderr, "kernels: %s\n", error.message);
        return EXIT_FAILURE;
    }
    if (!options.format) {
        bench_rows(&options);
        bench_attention(&options);
    }
    for (unsigned threads = 1; threads <= 2; threads++) {
        if (options.threads == 0 || options.threads == threads) {
            bench_set(&options, threads);
        }
    }
    return EXIT_SUCCESS;
}
