/*
 * Starting a thread that takes no signals: they are main's.
 */
#ifndef QUIRE_BASE_THREAD_H
#define QUIRE_BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* Runs main(arg) with all signals blocked and a stack of `stack_bytes`, under `name` (at most 15
   characters). 0, or the error number of what failed. The caller joins it. Any thread. */
int thread_start(pthread_t *out, const char *name, size_t stack_bytes, void *(*main)(void *),
                 void *arg);

#endif
