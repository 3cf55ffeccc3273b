/* The preprocessing thread: see preprocessing_thread.h. */
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

struct lane {
    struct preprocessing_job *first, *last;
    unsigned waiting;
    uint64_t last_turn;
};

struct preprocessing_thread {
    /* fixed after start */
    pthread_t thread;
    void *stack;
    unsigned queue_limit;
    uint32_t lane_count;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t news;
    unsigned waiting;
    uint64_t turn;
    bool stop;
    struct lane lanes[]; /* [lane_count] */
};

/* Under lock: the first job of the lane that has waited longest for a turn. */
static struct preprocessing_job *take_job(struct preprocessing_thread *thread)
{
    struct lane *next = NULL;
    for (uint32_t i = 0; i < thread->lane_count; i++) {
        struct lane *lane = &thread->lanes[i];
        if (lane->first && (!next || lane->last_turn < next->last_turn))
            next = lane;
    }
    CHECK(next != NULL);
    struct preprocessing_job *job = next->first;
    next->first = job->next;
    next->last_turn = ++thread->turn;
    next->waiting--;
    thread->waiting--;
    return job;
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
        struct preprocessing_job *job = take_job(thread);
        pthread_mutex_unlock(&thread->lock);
        job->run(job->arg);
        pthread_mutex_lock(&thread->lock);
    }
    pthread_mutex_unlock(&thread->lock);
    return NULL;
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
        return error_set(error, STATUS_IO, NULL, "out of memory");
    thread->queue_limit = queue_limit;
    thread->lane_count = lane_count;
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
    CHECK(thread->waiting == 0);
    thread->stop = true;
    pthread_cond_signal(&thread->news);
    pthread_mutex_unlock(&thread->lock);
    pthread_join(thread->thread, NULL);
    munmap(thread->stack, STACK_BYTES);
    pthread_cond_destroy(&thread->news);
    pthread_mutex_destroy(&thread->lock);
    free(thread);
}

bool preprocessing_thread_push(struct preprocessing_thread *thread, struct preprocessing_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&thread->lock);
    CHECK(job->lane < thread->lane_count);
    struct lane *lane = &thread->lanes[job->lane];
    unsigned left = thread->queue_limit - thread->waiting;
    bool room = left > 0 && !thread->stop && (thread->lane_count <= 2 || lane->waiting < left);
    if (room) {
        *(lane->first ? &lane->last->next : &lane->first) = job;
        lane->last = job;
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
