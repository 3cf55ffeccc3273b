/*
 * Compute threads: one job at a time, run by all of them and by the caller.
 *
 * A job is one function that every thread runs to its end (SPMD). Inside it threads wait at
 * barriers and share work through a counter. Waiting spins briefly and then sleeps, so an idle
 * server uses no CPU. One caller (the engine thread) at a time. No allocation after create.
 */
#ifndef QUIRE_BASE_WORKERS_H
#define QUIRE_BASE_WORKERS_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdint.h>

struct workers;

/* `thread_count` >= 1 counts the caller: thread_count - 1 threads are started. */
enum status workers_create(unsigned thread_count, struct workers **out, struct error *error);
void workers_destroy(struct workers *workers);
unsigned workers_count(const struct workers *workers);

/* Run fn(arg, thread_index) on every thread, index 0 being the caller; returns when all are back.
 */
void workers_run(struct workers *workers, void (*fn)(void *arg, unsigned thread_index), void *arg);

/* Bytes that a thread will read soon: [at, end). Waiting threads ask for them, and move `at`. */
struct workers_ahead {
    const uint8_t *at, *end;
};

/* Inside a job: returns when all threads of the job have called it. A full memory barrier. Also
   starts the items of workers_next anew. `ahead` (or NULL) is prefetched while waiting. */
void workers_barrier(struct workers *workers, struct workers_ahead *ahead);

/* Inside a job, between two barriers: the next work item's index. Item i below the number of
   threads is thread i's own, to begin with; the others are given once each, in their order:

       for (uint32_t item = thread; item < items; item = workers_next(workers)) … */
uint32_t workers_next(struct workers *workers);

#endif
