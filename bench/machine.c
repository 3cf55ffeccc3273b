/*
 * Measuring the machine: machine.h says what.
 *
 * Every figure is the best of several samples, and every result is used, so that no loop is
 * optimized away. A CPU without an instruction has a rate of 0 for it. Not for the product: bench/
 * and nothing else includes this.
 */
#include "bench/machine.h"

#include "base/check.h"
#include "base/clock.h"
#include "engine/kernels/math.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_BYTES ((uint64_t)2 << 20)
#define READ_BYTES ((uint64_t)256 << 20) /* more than any third-level cache a few cores share */
#define THREADS_MAX 64u
#define SAMPLE_NS 2000000u /* a sample takes at least this long */

static bool use_cpu_time;

void machine_use_cpu_time(void)
{
    use_cpu_time = true;
}

uint64_t machine_time_ns(void)
{
    struct timespec now;
    if (!use_cpu_time)
        return clock_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint32_t machine_random(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

void *machine_allocate(uint64_t bytes)
{
    uint64_t alignment = bytes >= 4 * HUGE_BYTES ? HUGE_BYTES : 64;
    uint64_t size = (bytes + alignment - 1) / alignment * alignment;
    void *data = aligned_alloc(alignment, size);
    CHECK(data);
    if (alignment == HUGE_BYTES)
        madvise(data, size, MADV_HUGEPAGE); /* a wish */
    return data;
}

void machine_fill_rows(uint8_t *rows, enum tensor_format format, uint64_t bytes)
{
    const struct format_info *info = format_info(format);
    for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t bits = machine_random() & 0xBFFFBFFFu; /* no f16 or f32 among them is infinite */
        memcpy(rows + i, &bits, 4);
    }
    uint16_t scale = math_f32_to_f16(0.01f);
    for (uint64_t at = 0; info->block_size > 1 && at < bytes; at += info->block_bytes) {
        memcpy(rows + at, &scale, 2);
        memcpy(rows + at + info->block_bytes - 2, &scale, 2);
    }
}

/* ---- Reading ---- */

struct read_job {
    struct workers *workers;
    const uint8_t *data;
    uint64_t ahead_bytes; /* prefetched so far ahead; 0: left to the hardware */
    uint64_t sums[THREADS_MAX];
};

/* A cache line at a time: any instruction set loads faster than memory answers. */
static void read_part(void *arg, unsigned thread)
{
    struct read_job *job = arg;
    uint64_t part = READ_BYTES / workers_count(job->workers) / 256 * 256;
    const uint8_t *at = job->data + part * thread;
    uint64_t sums[4] = {0};
    for (const uint8_t *end = at + part; at < end; at += 256) {
        for (int line = 0; line < 4; line++) {
            uint64_t word;
            if (job->ahead_bytes > 0)
                __builtin_prefetch(at + job->ahead_bytes + line * 64, 0, 0);
            memcpy(&word, at + line * 64, sizeof word);
            sums[line] += word;
        }
    }
    job->sums[thread] += sums[0] + sums[1] + sums[2] + sums[3];
}

double machine_read_rate(struct workers *workers, unsigned samples)
{
    static const uint64_t AHEAD[] = {0, 1024, 4096};
    struct read_job job = {.workers = workers};
    CHECK(workers_count(workers) <= THREADS_MAX);
    uint8_t *data = machine_allocate(READ_BYTES + 8192); /* what is prefetched behind the end */
    memset(data, 1, READ_BYTES + 8192);
    job.data = data;
    double best = 0;
    for (size_t i = 0; i < samples * sizeof AHEAD / sizeof AHEAD[0]; i++) {
        job.ahead_bytes = AHEAD[i % (sizeof AHEAD / sizeof AHEAD[0])];
        uint64_t start = machine_time_ns();
        workers_run(workers, read_part, &job);
        double rate = (double)READ_BYTES / ((double)(machine_time_ns() - start) * 1e-9);
        best = rate > best ? rate : best;
    }
    CHECK(job.sums[0] != 0);
    free(data);
    return best;
}

/* ---- Units ---- */

struct unit_job {
    double (*rate)(void);
    double results[THREADS_MAX];
};

static void run_unit(void *arg, unsigned thread)
{
    struct unit_job *job = arg;
    job->results[thread] = job->rate();
}

static double unit_rate(struct workers *workers, double (*rate)(void), unsigned samples)
{
    struct unit_job job = {.rate = rate};
    double best = 0;
    for (unsigned i = 0; i < samples; i++) {
        double sum = 0;
        workers_run(workers, run_unit, &job);
        for (unsigned t = 0; t < workers_count(workers); t++)
            sum += job.results[t];
        best = sum > best ? sum : best;
    }
    return best;
}

#ifdef __x86_64__
#include <immintrin.h>

#define UNIT_STEPS 100000

/* Twelve chains keep both units busy; the result is used so that the loop stays. */
#define UNIT(name, set, type, zero, operations, step)                                              \
    __attribute__((target(set))) static double name(void)                                          \
    {                                                                                              \
        type a[12], x = zero;                                                                      \
        for (int i = 0; i < 12; i++)                                                               \
            a[i] = zero;                                                                           \
        uint64_t start = machine_time_ns();                                                        \
        for (int step_count = 0; step_count < UNIT_STEPS; step_count++) {                          \
            __asm__ volatile("" : "+v"(x));                                                        \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                                  \
            {                                                                                      \
                step;                                                                              \
            }                                                                                      \
        }                                                                                          \
        uint64_t elapsed = machine_time_ns() - start;                                              \
        for (int i = 0; i < 12; i++)                                                               \
            __asm__ volatile("" : : "v"(a[i]));                                                    \
        return 12.0 * (operations)*UNIT_STEPS / (double)elapsed * 1e9;                             \
    }

UNIT(rate_fma256, "avx2,fma", __m256, _mm256_setzero_ps(), 16, a[i] = _mm256_fmadd_ps(x, x, a[i]))
UNIT(rate_fma512, "avx512f", __m512, _mm512_setzero_ps(), 32, a[i] = _mm512_fmadd_ps(x, x, a[i]))
/* u8 × s8 pairs summed in 16 bits: 32 products and their sum. */
UNIT(rate_maddubs, "avx2", __m256i, _mm256_setzero_si256(), 64, __m256i product;
     __asm__ volatile("vpmaddubsw %1, %1, %0"
                      : "=x"(product)
                      : "x"(x));
     a[i] = _mm256_add_epi16(a[i], product))
UNIT(rate_vnni, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), 128,
     a[i] = _mm512_dpbusd_epi32(a[i], x, x))

void machine_unit_rates(struct workers *workers, unsigned samples,
                        struct machine_unit out[static MACHINE_UNITS])
{
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f"), vnni = __builtin_cpu_supports("avx512vnni");
    out[0] = (struct machine_unit){"fma256", avx2 ? unit_rate(workers, rate_fma256, samples) : 0};
    out[1] =
        (struct machine_unit){"maddubs256", avx2 ? unit_rate(workers, rate_maddubs, samples) : 0};
    out[2] = (struct machine_unit){"fma512", avx512 ? unit_rate(workers, rate_fma512, samples) : 0};
    out[3] = (struct machine_unit){"vnni512", vnni ? unit_rate(workers, rate_vnni, samples) : 0};
}
#else
void machine_unit_rates(struct workers *workers, unsigned samples,
                        struct machine_unit out[static MACHINE_UNITS])
{
    (void)workers, (void)samples, (void)run_unit, (void)unit_rate;
    memset(out, 0, MACHINE_UNITS * sizeof out[0]);
}
#endif

/* ---- Formats ---- */

/* 32 outputs of 256 inputs: weights of 4 to 8 KiB, and as much for a few rows. */
#define RESIDENT_N (2 * KERNEL_ROW_BLOCK)
#define RESIDENT_K 256u
#define RESIDENT_ROWS_MAX 64u

struct format_job {
    const struct kernels *kernels;
    struct repacked_matrix matrices[THREADS_MAX];
    struct activations activations[THREADS_MAX];
    float *y[THREADS_MAX];
    uint32_t rows, steps;
};

static void run_format(void *arg, unsigned thread)
{
    struct format_job *job = arg;
    for (uint32_t i = 0; i < job->steps; i++)
        job->kernels->matmul(&job->matrices[thread], &job->activations[thread], 0, job->rows, 0,
                             RESIDENT_N / KERNEL_ROW_BLOCK, false, job->y[thread], RESIDENT_N);
}

static double format_rate_at(struct format_job *job, struct workers *workers, unsigned samples)
{
    double best = 0;
    job->steps = 1;
    for (unsigned i = 0; i < samples;) {
        uint64_t start = machine_time_ns();
        workers_run(workers, run_format, job);
        uint64_t elapsed = machine_time_ns() - start;
        if (elapsed < SAMPLE_NS) { /* the meeting of threads must not count */
            job->steps *= 2;
            continue;
        }
        double rate = 2.0 * RESIDENT_N * RESIDENT_K * job->rows * job->steps *
                      workers_count(workers) / ((double)elapsed * 1e-9);
        best = rate > best ? rate : best;
        i++;
    }
    return best;
}

static void fill_activations(struct activations *activations, const struct kernels *kernels)
{
    float *x = machine_allocate(sizeof(float) * RESIDENT_ROWS_MAX * RESIDENT_K);
    for (uint32_t i = 0; i < RESIDENT_ROWS_MAX * RESIDENT_K; i++)
        x[i] = (float)machine_random() * 0x1p-31f - 1.0f;
    *activations = (struct activations){
        RESIDENT_ROWS_MAX, RESIDENT_K, x,
        machine_allocate(RESIDENT_ROWS_MAX * kernels->quantized_row_bytes(RESIDENT_K))};
    kernels->quantize(activations, 0, RESIDENT_ROWS_MAX);
}

double machine_format_rate(const struct kernels *kernels, enum tensor_format format,
                           struct workers *workers, unsigned samples, uint32_t *rows)
{
    static const uint32_t ROWS[] = {4, 8, 12, 16, 24, 32, 48, 64};
    uint64_t packed = kernels->repacked_bytes(format, RESIDENT_N, RESIDENT_K);
    unsigned threads = workers_count(workers);
    CHECK(threads <= THREADS_MAX);
    if (packed == 0)
        return 0;
    uint64_t bytes = RESIDENT_N * format_row_bytes(format, RESIDENT_K);
    uint8_t *file = machine_allocate(bytes);
    machine_fill_rows(file, format, bytes);
    struct format_job job = {.kernels = kernels};
    for (unsigned t = 0; t < threads; t++) {
        job.matrices[t] =
            (struct repacked_matrix){format, RESIDENT_N, RESIDENT_K, machine_allocate(packed)};
        kernels->repack(&job.matrices[t], 0, RESIDENT_N, file);
        fill_activations(&job.activations[t], kernels);
        job.y[t] = machine_allocate(sizeof(float) * RESIDENT_ROWS_MAX * RESIDENT_N);
    }
    double best = 0;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        job.rows = ROWS[i];
        double rate = format_rate_at(&job, workers, samples);
        if (rate > best) {
            best = rate;
            *rows = ROWS[i];
        }
    }
    for (unsigned t = 0; t < threads; t++) {
        free(job.matrices[t].data);
        free((void *)(uintptr_t)job.activations[t].x);
        free(job.activations[t].quantized);
        free(job.y[t]);
    }
    free(file);
    return best;
}
