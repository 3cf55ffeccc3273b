/*
 * The inbox: what other threads leave for the engine thread. New completions, in the order in which
 * they were submitted; the wish to reset the prefix cache; the words drain and stop; and a wake-up
 * by the prefix saver.
 *
 * One lock, inside. The engine thread is the only one that takes things out and the only one that
 * waits. Nobody takes a completion's lock while holding this one, or the other way round.
 *
 * Whether the queue has room for a completion is decided under the same lock, by queue_bounds.h.
 *
 * Private to engine/. Any thread, unless a function says otherwise.
 */
#ifndef QUIRE_ENGINE_INBOX_H
#define QUIRE_ENGINE_INBOX_H

#include "engine/completion_private.h"
#include "engine/queue_bounds.h"

#include <pthread.h>
#include <stdbool.h>

struct inbox {
    struct queue_bounds bounds; /* its own comments say which thread writes what */
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct completion *first, *last; /* linked by next */
    bool reset_wanted;
    bool is_woken;
    bool is_draining; /* no new completions */
    bool is_stopping;
};

/* bounds are set by the caller, before and after. */
void inbox_init(struct inbox *inbox);
/* The inbox must be empty. */
void inbox_deinit(struct inbox *inbox);

/* Leaves all `count` attached completions of one tenant with so many prompt tokens in all, or none:
   STATUS_UNAVAILABLE after inbox_drain, else as queue_bounds_check. */
enum status inbox_submit(struct inbox *inbox, struct completion *const *completions, uint32_t count,
                         uint64_t tokens, uint64_t now_ns, struct error *error);

void inbox_request_reset(struct inbox *inbox);
void inbox_wake(struct inbox *inbox);
void inbox_drain(struct inbox *inbox);
void inbox_stop(struct inbox *inbox);

struct inbox_content {
    struct completion *first; /* linked by next; NULL: none */
    bool reset_wanted;
    bool is_stopping;
};

/* Engine thread: takes everything out. If there is nothing, waits until something arrives, until
   inbox_wake (also one since the last call) or for wait_ns (UINT64_MAX: for ever; 0: not at all).
   false: there is nothing. */
bool inbox_take(struct inbox *inbox, uint64_t wait_ns, struct inbox_content *out);

#endif
