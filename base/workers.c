/*
 * Compute threads: see workers.h.
 *
 * Everything is counted in atomics. A thread that waits never keeps a core for long that another
 * thread could use: it spins for a bounded time and then sleeps on a futex. `sleepers` tells a
 * waker whether a system call is needed.
 *
 * With more threads than cores nobody spins. There a thread first yields its core a few times,
 * which costs a third of sleeping and being woken. But where another process wants the core, a
 * yield hands it a whole time slice (2 to 3 ms, measured: a barrier took ten times as long). So
 * yields are timed, and while they are slow threads sleep at once.
 */
#include "base/workers.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/minmax.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE_BYTES 64u
#define JOB_SPINS 4000      /* 40–110 µs: longer than what lies between two jobs of one step */
#define BARRIER_SPINS 1000  /* 10–30 µs: what it costs to sleep and be woken */
#define PREFETCH_LINES 4000 /* 256 KiB: about as long again */
#define YIELDS 8
#define YIELDS_SLOW_NS 1000000u /* other processes run meanwhile */
#define YIELDS_PAUSE_MAX 65536u /* barriers without yields: some hundred steps */

struct signal { /* a counter that can be waited for; on a cache line of its own */
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

struct workers {
    /* fixed after start */
    unsigned count;
    bool crowded; /* more threads than cores */
    pthread_t *threads;
    /* of the current job; written before `start` is raised */
    void (*fn)(void *arg, unsigned thread_index);
    void *arg;
    bool quit;
    struct signal start;   /* job number */
    struct signal barrier; /* barrier generation */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint next;
    _Alignas(64) atomic_uint running; /* threads that have not left the job */
    struct signal finish;             /* number of finished jobs */
};

struct thread_start {
    struct workers *workers;
    unsigned index;
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void signal_raise(struct signal *signal)
{
    atomic_fetch_add(&signal->value, 1);
    if (atomic_load(&signal->sleepers))
        syscall(SYS_futex, &signal->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* One line a time: more would keep the end of the waiting from being seen. */
static inline void prefetch_line(struct workers_ahead *ahead)
{
    __builtin_prefetch(ahead->at, 0, 2);
    ahead->at += LINE_BYTES;
}

static inline bool has_changed(const struct signal *signal, unsigned seen)
{
    return atomic_load_explicit(&signal->value, memory_order_acquire) != seen;
}

/* These wait until the value is no longer `seen`; false: it still was after a bounded time. */

static bool spin(const struct signal *signal, unsigned seen, unsigned spins,
                 struct workers_ahead *ahead)
{
    for (unsigned i = 0; ahead && i < PREFETCH_LINES && ahead->at < ahead->end; i++) {
        if (has_changed(signal, seen))
            return true;
        prefetch_line(ahead);
    }
    for (unsigned i = 0; i < spins; i++) {
        if (has_changed(signal, seen))
            return true;
        cpu_relax();
    }
    return false;
}

/* How many barriers a thread still does without yields, and how many it will next time. */
static _Thread_local unsigned yields_pause, yields_pause_next = 64;

static bool yield(const struct signal *signal, unsigned seen)
{
    if (yields_pause > 0) {
        yields_pause--;
        return false;
    }
    uint64_t start_ns = clock_now_ns();
    bool changed = false;
    for (unsigned i = 0; i < YIELDS && !changed; i++) {
        sched_yield();
        changed = has_changed(signal, seen);
    }
    if (clock_now_ns() - start_ns < YIELDS_SLOW_NS) {
        yields_pause_next = 64;
    } else {
        yields_pause = yields_pause_next;
        yields_pause_next = min_u32(2 * yields_pause_next, YIELDS_PAUSE_MAX);
    }
    return changed;
}

static void sleep_until(struct signal *signal, unsigned seen)
{
    atomic_fetch_add(&signal->sleepers, 1);
    while (atomic_load(&signal->value) == seen)
        syscall(SYS_futex, &signal->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&signal->sleepers, 1);
}

/* For a job, or its end. */
static void wait_job(const struct workers *workers, struct signal *signal, unsigned seen)
{
    if (workers->crowded || !spin(signal, seen, JOB_SPINS, NULL))
        sleep_until(signal, seen);
}

static void leave_job(struct workers *workers)
{
    if (atomic_fetch_sub(&workers->running, 1) == 1)
        signal_raise(&workers->finish);
}

static void *worker_main(void *arg)
{
    struct thread_start start = *(struct thread_start *)arg;
    free(arg);
    struct workers *workers = start.workers;
    unsigned job = 0;
    for (;;) {
        wait_job(workers, &workers->start, job);
        job++;
        if (workers->quit)
            return NULL;
        workers->fn(workers->arg, start.index);
        leave_job(workers);
    }
}

static enum status start_thread(struct workers *workers, unsigned index, struct error *error)
{
    struct thread_start *start = malloc(sizeof *start);
    if (!start)
        return error_set(error, STATUS_IO, NULL, "out of memory starting compute threads");
    *start = (struct thread_start){workers, index};
    int failed = pthread_create(&workers->threads[index], NULL, worker_main, start);
    if (failed) {
        free(start);
        return error_set(error, STATUS_IO, "threads", "cannot start compute thread %u: %s", index,
                         strerror(failed));
    }
    pthread_setname_np(workers->threads[index], "quire-compute");
    return STATUS_OK;
}

enum status workers_create(unsigned thread_count, struct workers **out, struct error *error)
{
    CHECK(thread_count >= 1);
    struct workers *workers = aligned_alloc(64, sizeof *workers);
    pthread_t *threads = calloc(thread_count, sizeof *threads);
    if (!workers || !threads) {
        free(workers);
        free(threads);
        return error_set(error, STATUS_IO, NULL, "out of memory starting compute threads");
    }
    memset(workers, 0, sizeof *workers);
    workers->threads = threads;
    struct machine_kernel kernel;
    machine_ask_kernel(&kernel);
    workers->crowded = thread_count > kernel.cores; /* spinning would keep a core from another */
    workers->count = 1;
    for (unsigned i = 1; i < thread_count; i++) {
        enum status status = start_thread(workers, i, error);
        if (status) {
            workers_destroy(workers);
            return status;
        }
        workers->count++;
    }
    *out = workers;
    return STATUS_OK;
}

void workers_destroy(struct workers *workers)
{
    if (!workers)
        return;
    workers->quit = true;
    signal_raise(&workers->start);
    for (unsigned i = 1; i < workers->count; i++)
        pthread_join(workers->threads[i], NULL);
    free(workers->threads);
    free(workers);
}

unsigned workers_count(const struct workers *workers)
{
    return workers->count;
}

void workers_run(struct workers *workers, void (*fn)(void *arg, unsigned thread_index), void *arg)
{
    workers->fn = fn;
    workers->arg = arg;
    atomic_store(&workers->next, workers->count);
    atomic_store(&workers->running, workers->count);
    unsigned finished = atomic_load(&workers->finish.value);
    signal_raise(&workers->start);
    fn(arg, 0);
    leave_job(workers);
    wait_job(workers, &workers->finish, finished);
}

void workers_barrier(struct workers *workers, struct workers_ahead *ahead)
{
    if (workers->count == 1) {
        atomic_store_explicit(&workers->next, 1, memory_order_relaxed);
        return;
    }
    unsigned generation = atomic_load(&workers->barrier.value);
    if (atomic_fetch_add(&workers->arrived, 1) + 1 == workers->count) {
        atomic_store(&workers->arrived, 0);
        atomic_store(&workers->next, workers->count);
        signal_raise(&workers->barrier);
        return;
    }
    bool done = workers->crowded ? yield(&workers->barrier, generation)
                                 : spin(&workers->barrier, generation, BARRIER_SPINS, ahead);
    if (!done)
        sleep_until(&workers->barrier, generation);
}

uint32_t workers_next(struct workers *workers)
{
    return atomic_fetch_add_explicit(&workers->next, 1, memory_order_relaxed);
}
