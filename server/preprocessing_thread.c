/*
 * The preprocessing thread: see preprocessing_thread.h.
 *
 * The queue is a few linked lists of jobs, one for each lane and size, under one lock; the thread
 * takes from the list that its counts of served bytes choose. A job runs without the lock. What
 * yields calls the same choice again, limited to short jobs, so that the order is decided in one
 * place.
 */
#include "server/preprocessing_thread.h"

#include "base/bytes.h"
#include "base/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Stack overflow in a template engine cannot be caught, so there is room for every source that the
   limits let in (64 KiB of template). Only touched pages count. */
#define STACK_BYTES (64 * MIB)
#define GUARD_BYTES (64 * KIB)
#define KEPT_STACK_BYTES (512 * KIB)

/* What a job costs beside its text, so that many tiny ones count too. */
#define JOB_BYTES 4096u

enum size { SIZE_SHORT, SIZE_MIDDLE, SIZE_LONG, SIZE_COUNT };

struct queue {
    struct preprocessing_job *first, *last;
    uint64_t served_bytes; /* of jobs that are done, and what was saved up while idle */
};

struct lane {
    struct queue queues[SIZE_COUNT];
    unsigned waiting;
    uint64_t served_bytes;
    uint64_t clock; /* what the queue of the last turn had been served: idle ones start there */
    uint64_t last_turn;
};

struct preprocessing_thread {
    /* fixed after start */
    pthread_t thread;
    void *stack;
    unsigned queue_limit;
    uint32_t lane_count;
    /* preprocessing thread only */
    bool nested; /* a short job runs within another one */
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t news;
    unsigned waiting;
    unsigned callers;
    uint64_t turn;
    uint64_t clock; /* what the lane of the last turn had been served: idle ones start there */
    bool stop;
    /* the job that runs, not one within it */
    struct lane *running_lane;
    enum size running_size;
    uint64_t running_cost;
    struct lane lanes[]; /* [lane_count] */
};

/* With something for each job, so that many tiny ones count too. */
static uint64_t job_cost(const struct preprocessing_job *job)
{
    return job->bytes + JOB_BYTES;
}

static enum size job_size(const struct preprocessing_job *job)
{
    return job->bytes <= PREPROCESSING_JOB_SHORT_BYTES    ? SIZE_SHORT
           : job->bytes <= PREPROCESSING_JOB_MIDDLE_BYTES ? SIZE_MIDDLE
                                                          : SIZE_LONG;
}

/* Under lock: of a lane in which somebody waits, the size whose turn it is. */
static enum size next_size(const struct lane *lane)
{
    enum size next = SIZE_COUNT;
    for (unsigned i = 0; i < SIZE_COUNT; i++)
        if (lane->queues[i].first &&
            (next == SIZE_COUNT || lane->queues[i].served_bytes < lane->queues[next].served_bytes))
            next = (enum size)i;
    CHECK(next != SIZE_COUNT);
    return next;
}

static bool is_before(const struct lane *a, const struct lane *b)
{
    return a->served_bytes != b->served_bytes ? a->served_bytes < b->served_bytes
                                              : a->last_turn < b->last_turn;
}

/* Under lock: the lane whose turn it is. */
static struct lane *next_lane(struct preprocessing_thread *thread)
{
    struct lane *next = NULL;
    for (uint32_t i = 0; i < thread->lane_count; i++) {
        struct lane *lane = &thread->lanes[i];
        if (lane->waiting && (!next || is_before(lane, next)))
            next = lane;
    }
    CHECK(next != NULL);
    return next;
}

/* Under lock, which is let go while the job runs: it may be gone afterwards. */
static void run_job(struct preprocessing_thread *thread, struct lane *lane, enum size size)
{
    struct queue *queue = &lane->queues[size];
    struct preprocessing_job *job = queue->first;
    uint64_t cost = job_cost(job);
    queue->first = job->next;
    lane->last_turn = ++thread->turn;
    lane->waiting--;
    thread->waiting--;
    if (!thread->nested) {
        thread->clock = lane->served_bytes;
        lane->clock = queue->served_bytes;
        thread->running_lane = lane;
        thread->running_size = size;
        thread->running_cost = cost;
    }
    pthread_mutex_unlock(&thread->lock);
    job->run(job->arg);
    pthread_mutex_lock(&thread->lock);
    queue->served_bytes += cost;
    lane->served_bytes += cost;
}

/* What a deep recursion has touched goes back to the system; what jobs usually use stays. */
static void return_stack(const struct preprocessing_thread *thread)
{
    char here;
    uintptr_t low = (uintptr_t)thread->stack + GUARD_BYTES;
    uintptr_t high = ((uintptr_t)&here - KEPT_STACK_BYTES) & ~(uintptr_t)4095;
    if (high > low)
        madvise((void *)low, high - low, MADV_DONTNEED); /* a wish */
}

static void *preprocessing_thread_main(void *arg)
{
    struct preprocessing_thread *thread = arg;
    pthread_mutex_lock(&thread->lock);
    for (;;) {
        while (!thread->waiting && !thread->stop)
            pthread_cond_wait(&thread->news, &thread->lock);
        if (!thread->waiting)
            break;
        struct lane *lane = next_lane(thread);
        run_job(thread, lane, next_size(lane));
        return_stack(thread);
    }
    pthread_mutex_unlock(&thread->lock);
    return NULL;
}

/* Under lock: the lane whose first short job may run now, NULL: none. What was served within the
   running job may not pass what will have been served with it. */
static struct lane *next_nested(struct preprocessing_thread *thread)
{
    const struct lane *running = thread->running_lane;
    const struct queue *its = &running->queues[thread->running_size];
    struct lane *next = NULL;
    for (uint32_t i = 0; i < thread->lane_count; i++) {
        struct lane *lane = &thread->lanes[i];
        const struct queue *queue = &lane->queues[SIZE_SHORT];
        bool due = lane == running
                       ? queue->served_bytes < its->served_bytes + thread->running_cost
                       : lane->served_bytes < running->served_bytes + thread->running_cost;
        if (queue->first && due && (!next || is_before(lane, next)))
            next = lane;
    }
    return next;
}

void preprocessing_thread_yield(struct preprocessing_thread *thread)
{
    if (thread->nested)
        return;
    pthread_mutex_lock(&thread->lock);
    thread->nested = true;
    CHECK(thread->running_lane != NULL);
    if (thread->running_size != SIZE_SHORT)
        for (struct lane *lane; (lane = next_nested(thread)) != NULL;)
            run_job(thread, lane, SIZE_SHORT);
    thread->nested = false;
    pthread_mutex_unlock(&thread->lock);
}

/* Memory of our own, so that the kernel puts no huge pages under a stack of which little is used.
 */
static int start_thread(struct preprocessing_thread *thread)
{
    thread->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (thread->stack == MAP_FAILED)
        return errno;
    madvise(thread->stack, STACK_BYTES, MADV_NOHUGEPAGE); /* a wish */
    int failed = mprotect(thread->stack, GUARD_BYTES, PROT_NONE) ? errno : 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (!failed)
        failed = pthread_attr_setstack(&attributes, (char *)thread->stack + GUARD_BYTES,
                                       STACK_BYTES - GUARD_BYTES);
    if (!failed)
        failed = pthread_create(&thread->thread, &attributes, preprocessing_thread_main, thread);
    pthread_attr_destroy(&attributes);
    if (failed)
        munmap(thread->stack, STACK_BYTES);
    return failed;
}

enum status preprocessing_thread_create(unsigned queue_limit, uint32_t lane_count,
                                        struct preprocessing_thread **out, struct error *error)
{
    CHECK(lane_count >= 1);
    *out = NULL;
    struct preprocessing_thread *thread =
        calloc(1, sizeof *thread + lane_count * sizeof(struct lane));
    if (!thread)
        return error_out_of_memory(error);
    thread->queue_limit = queue_limit;
    thread->lane_count = lane_count;
    thread->callers = lane_count - 1; /* the first lane is for those without a key */
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->news, NULL);
    int failed = start_thread(thread);
    if (failed) {
        free(thread);
        return error_set(error, STATUS_IO, NULL, "cannot start the preprocessing thread: %s",
                         strerror(failed));
    }
    pthread_setname_np(thread->thread, "quire-text");
    *out = thread;
    return STATUS_OK;
}

void preprocessing_thread_destroy(struct preprocessing_thread *thread)
{
    if (!thread)
        return;
    pthread_mutex_lock(&thread->lock);
    thread->stop = true;
    pthread_cond_signal(&thread->news);
    pthread_mutex_unlock(&thread->lock);
    pthread_join(thread->thread, NULL);
    munmap(thread->stack, STACK_BYTES);
    pthread_cond_destroy(&thread->news);
    pthread_mutex_destroy(&thread->lock);
    free(thread);
}

void preprocessing_thread_share(struct preprocessing_thread *thread, unsigned callers)
{
    pthread_mutex_lock(&thread->lock);
    thread->callers = callers;
    pthread_mutex_unlock(&thread->lock);
}

bool preprocessing_thread_push(struct preprocessing_thread *thread, struct preprocessing_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&thread->lock);
    CHECK(job->lane < thread->lane_count);
    struct lane *lane = &thread->lanes[job->lane];
    unsigned left = thread->queue_limit - thread->waiting;
    bool room = left > 0 && !thread->stop && (thread->callers <= 1 || lane->waiting < left);
    if (room) {
        struct queue *queue = &lane->queues[job_size(job)];
        if (!lane->waiting && lane->served_bytes < thread->clock)
            lane->served_bytes = thread->clock;
        if (!queue->first && queue->served_bytes < lane->clock)
            queue->served_bytes = lane->clock;
        *(queue->first ? &queue->last->next : &queue->first) = job;
        queue->last = job;
        lane->waiting++;
        thread->waiting++;
        pthread_cond_signal(&thread->news);
    }
    pthread_mutex_unlock(&thread->lock);
    return room;
}

unsigned preprocessing_thread_waiting(struct preprocessing_thread *thread)
{
    pthread_mutex_lock(&thread->lock);
    unsigned waiting = thread->waiting;
    pthread_mutex_unlock(&thread->lock);
    return waiting;
}
