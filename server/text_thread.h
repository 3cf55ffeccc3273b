/*
 * The text thread: one thread with a 64 MiB stack for work that could stall streams or overflow a
 * small stack: loading the model's template, chat templates, tokenizing. Jobs run one after
 * another, first come first served, from a bounded queue. Jobs are intrusive: no allocation.
 */
#ifndef QUIRE_SERVER_TEXT_THREAD_H
#define QUIRE_SERVER_TEXT_THREAD_H

#include "base/error.h"

#include <stdbool.h>

struct text_thread;

struct text_job {
    void (*run)(void *arg); /* may free the job */
    void *arg;
    struct text_job *next; /* the queue's */
};

enum status text_thread_create(unsigned queue_limit, struct text_thread **out, struct error *error);
/* Waits for the running job; queued ones must be gone. */
void text_thread_destroy(struct text_thread *thread);

/* False when the queue is full: the job will not run. Any thread. */
bool text_thread_push(struct text_thread *thread, struct text_job *job);

/* Jobs that wait. Any thread. */
unsigned text_thread_waiting(struct text_thread *thread);

#endif
