/*
 * The thread of the masks, and the hand-over to those who sample. See masks.h.
 *
 * A job is claimed under the lock by the thread or by a sampler, computed without it, and marked as
 * done under it again. The lock is held for a few instructions, once or twice a mask.
 */
#include "engine/constrain/masks.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES (1 * MIB) /* textgrammar.h asks for 256 KiB */

struct job {
    struct grammar *grammar;
    struct grammar_matcher **matcher;
    uint32_t *allowed; /* [words] */
    bool is_claimed, is_done, is_good;
};

struct masks {
    /* fixed after start */
    pthread_t thread;
    uint32_t capacity;
    size_t words;
    /* between masks_begin and masks_start: engine thread only; then under lock */
    struct job *jobs; /* [capacity] */
    uint32_t count;
    uint32_t next; /* the thread's */
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t started, done;
    bool stop;
};

static struct masks *lay_out(struct arena *arena, uint32_t capacity, uint32_t vocabulary)
{
    size_t words = (vocabulary + 31u) / 32u;
    struct masks *masks = arena_take(arena, 1, sizeof *masks);
    struct job *jobs = arena_take(arena, capacity, sizeof *jobs);
    uint32_t *allowed = arena_take(arena, (uint64_t)capacity * words, sizeof *allowed);
    if (!arena->memory)
        return NULL;
    memset(masks, 0, sizeof *masks);
    memset(jobs, 0, capacity * sizeof *jobs);
    masks->jobs = jobs;
    masks->capacity = capacity;
    masks->words = words;
    for (uint32_t i = 0; i < capacity; i++)
        jobs[i].allowed = allowed + i * words;
    return masks;
}

uint64_t masks_memory_bytes(uint32_t capacity, uint32_t vocabulary)
{
    struct arena arena = {0};
    lay_out(&arena, capacity, vocabulary);
    return arena.used_bytes;
}

/* Without the lock; the job is claimed. */
static bool compute(const struct masks *masks, const struct job *job)
{
    if (!*job->matcher)
        *job->matcher = grammar_matcher_create(job->grammar);
    return *job->matcher && grammar_matcher_mask(*job->matcher, job->allowed, masks->words);
}

static void run(struct masks *masks, struct job *job)
{
    job->is_claimed = true;
    pthread_mutex_unlock(&masks->lock);
    bool good = compute(masks, job);
    pthread_mutex_lock(&masks->lock);
    job->is_good = good;
    job->is_done = true;
    pthread_cond_broadcast(&masks->done);
}

static void *masks_main(void *arg)
{
    struct masks *masks = arg;
    pthread_mutex_lock(&masks->lock);
    while (!masks->stop) {
        if (masks->next == masks->count) {
            pthread_cond_wait(&masks->started, &masks->lock);
            continue;
        }
        struct job *job = &masks->jobs[masks->next++];
        if (!job->is_claimed)
            run(masks, job);
    }
    pthread_mutex_unlock(&masks->lock);
    return NULL;
}

enum status masks_create(uint32_t capacity, uint32_t vocabulary, struct masks **out,
                         struct error *error)
{
    struct arena arena = {.memory = aligned_alloc(64, masks_memory_bytes(capacity, vocabulary))};
    if (!arena.memory)
        return error_set(error, STATUS_IO, NULL, "out of memory");
    struct masks *masks = lay_out(&arena, capacity, vocabulary);
    pthread_mutex_init(&masks->lock, NULL);
    pthread_cond_init(&masks->started, NULL);
    pthread_cond_init(&masks->done, NULL);
    int failed = thread_start(&masks->thread, "quire-masks", STACK_BYTES, masks_main, masks);
    if (failed) {
        free(masks);
        return error_set(error, STATUS_IO, NULL, "cannot start the thread of the masks: %s",
                         strerror(failed));
    }
    *out = masks;
    return STATUS_OK;
}

void masks_destroy(struct masks *masks)
{
    if (!masks)
        return;
    pthread_mutex_lock(&masks->lock);
    masks->stop = true;
    pthread_cond_signal(&masks->started);
    pthread_mutex_unlock(&masks->lock);
    pthread_join(masks->thread, NULL);
    pthread_cond_destroy(&masks->started);
    pthread_cond_destroy(&masks->done);
    pthread_mutex_destroy(&masks->lock);
    free(masks);
}

void masks_begin(struct masks *masks)
{
    pthread_mutex_lock(&masks->lock);
    for (uint32_t i = 0; i < masks->count; i++)
        CHECK(masks->jobs[i].is_done);
    masks->count = masks->next = 0;
    pthread_mutex_unlock(&masks->lock);
}

uint32_t masks_add(struct masks *masks, struct grammar *grammar, struct grammar_matcher **matcher)
{
    pthread_mutex_lock(&masks->lock);
    CHECK(masks->count < masks->capacity);
    struct job *job = &masks->jobs[masks->count];
    job->grammar = grammar;
    job->matcher = matcher;
    job->is_claimed = job->is_done = job->is_good = false;
    uint32_t index = masks->count++;
    pthread_mutex_unlock(&masks->lock);
    return index;
}

void masks_start(struct masks *masks)
{
    pthread_mutex_lock(&masks->lock);
    if (masks->count)
        pthread_cond_signal(&masks->started);
    pthread_mutex_unlock(&masks->lock);
}

const uint32_t *masks_wait(struct masks *masks, uint32_t index)
{
    pthread_mutex_lock(&masks->lock);
    CHECK(index < masks->count);
    struct job *job = &masks->jobs[index];
    if (!job->is_claimed)
        run(masks, job);
    while (!job->is_done)
        pthread_cond_wait(&masks->done, &masks->lock);
    bool good = job->is_good;
    pthread_mutex_unlock(&masks->lock);
    return good ? job->allowed : NULL;
}
