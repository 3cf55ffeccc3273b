/*
 * See speed.h. Weights and pages are many copies of a small piece, used in turn, so that they come
 * from memory as a model's do. Their values do not matter: no kernel branches on them.
 */
#include "sizing/speed.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/minmax.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLE_NS 2000000u /* a sample's least length for each thread */
#define SAMPLES_NS 40000000u
#define SAMPLES_LEAST 3u
#define REPEAT_MOST (1u << 16)
#define MATRIX_ROWS 1024u
#define PAGE_TOKENS 16u
#define KEYS 1024u     /* of a sequence */
#define FILL_BYTE 0x11 /* as f16, f32 and scales: small normal numbers */

/* One job at a time; `repeat` passes over what is measured per sample. Threads do not meet between
   passes, and the time that they were given counts, not the clock's: what else the machine does now
   it will not do then. */
struct meter_job {
    const struct speed_meter *meter;
    void (*run)(struct meter_job *job, unsigned thread);
    uint32_t repeat;
    atomic_uint_fast64_t cpu_ns; /* of all threads */
    /* reading */
    const uint64_t *words;
    uint64_t word_count;
    uint64_t sums[64];
    /* products: one pass is one matrix, the next in turn */
    struct repacked_matrix *matrices;
    uint32_t matrix_count, first;
    struct activations activations;
    uint32_t rows;
    float *y;
    /* attention: one pass is all heads of one sequence */
    struct attention_task task;
    uint64_t scratch_bytes;
};

static uint64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void run_timed(void *arg, unsigned thread)
{
    struct meter_job *job = arg;
    uint64_t start_ns = thread_cpu_ns();
    job->run(job, thread);
    atomic_fetch_add(&job->cpu_ns, thread_cpu_ns() - start_ns);
}

/* Best seconds per pass. */
static double measure(struct meter_job *job, void (*run)(struct meter_job *job, unsigned thread))
{
    unsigned threads = workers_count(job->meter->workers), cores = job->meter->cores;
    unsigned together = min_u32(threads, cores);
    double best = 0;
    uint64_t begin_ns = clock_now_ns();
    job->run = run;
    job->repeat = 1;
    job->first = 0;
    for (unsigned sample = 0;
         sample < SAMPLES_LEAST + 1 || clock_now_ns() - begin_ns < SAMPLES_NS;) {
        atomic_store(&job->cpu_ns, 0);
        workers_run(job->meter->workers, run_timed, job);
        uint64_t took_ns = atomic_load(&job->cpu_ns) / together;
        if (job->matrix_count)
            job->first = (job->first + job->repeat) % job->matrix_count;
        if (took_ns < SAMPLE_NS && job->repeat < REPEAT_MOST) {
            job->repeat *= 2; /* too short to be a sample */
            continue;
        }
        double seconds = (double)took_ns * 1e-9 / job->repeat;
        if (sample++ > 0 && (best == 0 || seconds < best)) /* the first one only warms */
            best = seconds;
    }
    return best;
}

/* Filled, so that it is memory and no page is the zero page. */
static void *allocate(uint64_t bytes)
{
    void *memory = aligned_alloc(64, bytes_align(bytes, 64));
    if (memory)
        memset(memory, FILL_BYTE, bytes);
    return memory;
}

/* ---- Reading ---- */

static void run_read(struct meter_job *job, unsigned thread)
{
    uint64_t share = job->word_count / workers_count(job->meter->workers) / 8 * 8;
    const uint64_t *words = job->words + share * thread;
    uint64_t sums[8] = {0};
    for (uint32_t pass = 0; pass < job->repeat; pass++) {
        for (uint64_t i = 0; i < share; i += 8) {
            for (unsigned j = 0; j < 8; j++)
                sums[j] += words[i + j];
        }
    }
    for (unsigned j = 0; j < 8; j++)
        job->sums[thread % 64] ^= sums[j]; /* used, so that the loop stays */
}

double speed_read(const struct speed_meter *meter)
{
    struct meter_job job = {.meter = meter, .word_count = meter->memory_bytes / 8};
    uint64_t *words = allocate(job.word_count * 8);
    if (!words)
        return 0;
    job.words = words;
    double seconds = measure(&job, run_read);
    free(words);
    return seconds > 0 ? (double)job.word_count * 8 / seconds : 0;
}

/* ---- Products ---- */

static void run_products(struct meter_job *job, unsigned thread)
{
    const struct kernels *kernels = job->meter->kernels;
    unsigned threads = workers_count(job->meter->workers);
    uint32_t groups = MATRIX_ROWS / KERNEL_ROW_BLOCK;
    uint32_t from = groups * thread / threads, to = groups * (thread + 1) / threads;
    for (uint32_t pass = 0; pass < job->repeat; pass++) {
        const struct repacked_matrix *matrix =
            &job->matrices[(job->first + pass) % job->matrix_count];
        if (to > from)
            kernels->matmul(matrix, &job->activations, 0, job->rows, from, to - from, false, job->y,
                            MATRIX_ROWS);
    }
}

static bool prepare_matrices(struct meter_job *job, enum tensor_format format, uint32_t columns,
                             uint64_t packed, uint8_t *memory)
{
    const struct kernels *kernels = job->meter->kernels;
    uint8_t *file_rows = allocate(MATRIX_ROWS * format_row_bytes(format, columns));
    job->matrices = calloc(job->matrix_count, sizeof *job->matrices);
    if (!file_rows || !job->matrices) {
        free(file_rows);
        return false;
    }
    for (uint32_t i = 0; i < job->matrix_count; i++) {
        job->matrices[i] =
            (struct repacked_matrix){format, MATRIX_ROWS, columns, memory + i * packed};
        if (i == 0)
            kernels->repack(&job->matrices[0], 0, MATRIX_ROWS, file_rows);
        else
            memcpy(memory + i * packed, memory, packed);
    }
    free(file_rows);
    return true;
}

static bool prepare_rows(struct meter_job *job, uint32_t columns, uint32_t rows_max, float **x)
{
    const struct kernels *kernels = job->meter->kernels;
    *x = allocate((uint64_t)rows_max * columns * sizeof **x);
    job->activations = (struct activations){
        rows_max, columns, *x, allocate(rows_max * kernels->quantized_row_bytes(columns))};
    job->y = allocate((uint64_t)rows_max * MATRIX_ROWS * sizeof *job->y);
    if (!*x || !job->activations.quantized || !job->y)
        return false;
    kernels->quantize(&job->activations, 0, rows_max);
    return true;
}

void speed_products(const struct speed_meter *meter, enum tensor_format format, uint32_t columns,
                    const uint32_t *rows, unsigned count, double *seconds)
{
    uint32_t block = format_info(format)->block_size;
    uint32_t rows_max = 1;
    for (unsigned i = 0; i < count; i++) {
        seconds[i] = 0;
        rows_max = max_u32(rows[i], rows_max);
    }
    if (!block)
        return;
    columns = (columns + block - 1) / block * block;
    uint64_t packed = meter->kernels->repacked_bytes(format, MATRIX_ROWS, columns);
    if (!packed)
        return;
    packed = bytes_align(packed, 64);
    struct meter_job job = {.meter = meter};
    job.matrix_count = (uint32_t)(meter->memory_bytes / packed) + 1;
    float *x = NULL;
    uint8_t *memory = aligned_alloc(64, job.matrix_count * packed);
    if (memory && prepare_matrices(&job, format, columns, packed, memory) &&
        prepare_rows(&job, columns, rows_max, &x)) {
        for (unsigned i = 0; i < count; i++) {
            job.rows = rows[i];
            seconds[i] = measure(&job, run_products) / ((double)MATRIX_ROWS * columns);
        }
    }
    free(memory);
    free(job.matrices);
    free(x);
    free(job.activations.quantized);
    free(job.y);
}

/* ---- Attention ---- */

static void run_attention(struct meter_job *job, unsigned thread)
{
    struct workers *workers = job->meter->workers;
    struct attention_task task = job->task;
    task.scratch = (uint8_t *)task.scratch + thread * job->scratch_bytes;
    task.out += (size_t)thread * KERNEL_QUERY_TILE * task.out_stride;
    uint32_t heads = task.kv->kv_heads, items = heads * job->repeat;
    for (uint32_t item = thread; item < items; item = workers_next(workers)) {
        task.kv_head = item % heads;
        job->meter->kernels->attention(&task);
    }
}

double speed_attention(const struct speed_meter *meter, enum kv_type type, uint32_t head_dim,
                       uint32_t group, uint32_t queries)
{
    const uint32_t pages = KEYS / PAGE_TOKENS;
    unsigned threads = workers_count(meter->workers);
    uint64_t head_bytes = kv_page_bytes(type, 1, 1, head_dim, PAGE_TOKENS) * pages;
    uint32_t heads = (uint32_t)(meter->memory_bytes / head_bytes) + threads;
    struct kv_layout kv = kv_layout_of(type, 1, heads, head_dim, PAGE_TOKENS);
    size_t stride = (size_t)group * head_dim;
    uint32_t table[KEYS / PAGE_TOKENS];
    for (uint32_t i = 0; i < pages; i++)
        table[i] = i * 7 % pages; /* not in order */
    struct meter_job job = {.meter = meter};
    job.scratch_bytes = bytes_align(meter->kernels->attention_scratch_bytes(head_dim, group), 64);
    float *q = allocate(KERNEL_QUERY_TILE * stride * sizeof *q);
    float *out = allocate(threads * KERNEL_QUERY_TILE * stride * sizeof *out);
    void *scratch = allocate(threads * job.scratch_bytes);
    kv.pool = allocate(kv.page_bytes * pages);
    job.task = (struct attention_task){.kv = &kv,
                                       .pages = table,
                                       .first_position = KEYS - queries,
                                       .query_count = queries,
                                       .gqa_group = group,
                                       .q = q,
                                       .q_stride = stride,
                                       .scale = 0.1f,
                                       .out = out,
                                       .out_stride = stride,
                                       .scratch = scratch};
    double seconds =
        q && out && scratch && kv.pool ? measure(&job, run_attention) / ((double)heads * KEYS) : 0;
    free(q);
    free(out);
    free(scratch);
    free(kv.pool);
    return seconds;
}
