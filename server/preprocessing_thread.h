/*
 * The preprocessing thread: one thread with a 64 MiB stack for work that could stall streams or
 * overflow a small stack: loading the model's template, chat templates, tokenizing. Jobs run one
 * after another from a bounded queue. Jobs are intrusive: no allocation.
 *
 * Each caller has a lane. Within one, first come is first served; lanes take turns, and with more
 * than two (the first is for those without a key) one may hold at most as much of the queue as is
 * free: many long prompts of one key do not delay another's.
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
    struct preprocessing_job *next; /* the queue's */
};

enum status preprocessing_thread_create(unsigned queue_limit, uint32_t lane_count,
                                        struct preprocessing_thread **out, struct error *error);
/* Waits for the running job; queued ones must be gone. */
void preprocessing_thread_destroy(struct preprocessing_thread *thread);

/* False when the queue is full: the job will not run. Any thread. */
bool preprocessing_thread_push(struct preprocessing_thread *thread, struct preprocessing_job *job);

/* Jobs that wait. Any thread. */
unsigned preprocessing_thread_waiting(struct preprocessing_thread *thread);

#endif
