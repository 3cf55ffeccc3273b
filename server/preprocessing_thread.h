/*
 * The preprocessing thread: one thread with a 64 MiB stack for work that could stall streams or
 * overflow a small stack: loading the model's template, chat templates, tokenizing. Jobs come from
 * a bounded queue. Jobs are intrusive: no allocation.
 *
 * Turns are counted in bytes of text, so that who asks for little does not wait for those who ask
 * for much. Each caller (API key) has a lane: the lane that was served the fewest bytes is next,
 * and an idle lane saves nothing up. Within a lane short, middle and long jobs take turns by the
 * same rule, and those of one size come in the order in which they were pushed. With more than one
 * caller a lane may hold at most as much of the queue as is free.
 *
 * A job that is not short yields between units of its work (preprocessing_thread_yield): short jobs
 * run then, on the same stack, one after another, until they were served as much as it will have
 * been. They do not yield themselves.
 */
#ifndef QUIRE_SERVER_PREPROCESSING_THREAD_H
#define QUIRE_SERVER_PREPROCESSING_THREAD_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct preprocessing_thread;

struct preprocessing_job {
    void (*run)(void *arg); /* may free the job */
    void *arg;
    uint32_t lane;
    uint64_t bytes;                 /* of text: what it costs */
    struct preprocessing_job *next; /* the queue's */
};

/* A job of at most so many bytes is short: a few milliseconds, and 4 MiB for its tokens' merging
   beside what a long one holds. */
#define PREPROCESSING_JOB_SHORT_BYTES ((uint64_t)64 << 10)
#define PREPROCESSING_JOB_MIDDLE_BYTES ((uint64_t)1 << 20)

enum status preprocessing_thread_create(unsigned queue_limit, uint32_t lane_count,
                                        struct preprocessing_thread **out, struct error *error);
/* So many callers share it now; at first as many as there are lanes for them. Any thread. */
void preprocessing_thread_share(struct preprocessing_thread *thread, unsigned callers);
/* Waits for the running job and for those in the queue. */
void preprocessing_thread_destroy(struct preprocessing_thread *thread);

/* False when the queue is full: the job will not run. Any thread. */
bool preprocessing_thread_push(struct preprocessing_thread *thread, struct preprocessing_job *job);

/* By the job that runs, between two units of its work; it must hold no lock. */
void preprocessing_thread_yield(struct preprocessing_thread *thread);

/* Jobs that wait. Any thread. */
unsigned preprocessing_thread_waiting(struct preprocessing_thread *thread);

#endif
