/*
 * A locked list and a condition variable. inbox_take waits once at most: the engine thread calls it
 * again after it has used the time for the prefix saver, whose answer says how long to wait.
 *
 * A wake-up is remembered until the next inbox_take, so one that comes between two calls is not
 * lost.
 */
#include "engine/inbox.h"

#include "base/check.h"
#include "base/clock.h"

#include <time.h>

void inbox_init(struct inbox *inbox)
{
    pthread_mutex_init(&inbox->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&inbox->arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void inbox_deinit(struct inbox *inbox)
{
    CHECK(inbox->first == NULL);
    pthread_cond_destroy(&inbox->arrived);
    pthread_mutex_destroy(&inbox->lock);
}

enum status inbox_submit(struct inbox *inbox, struct completion *const *completions, uint32_t count,
                         uint64_t tokens, uint64_t now_ns, struct error *error)
{
    uint32_t tenant = completions[0]->tenant;
    pthread_mutex_lock(&inbox->lock);
    enum status status =
        inbox->is_draining
            ? error_set(error, STATUS_UNAVAILABLE, NULL, "the server is shutting down")
            : queue_bounds_check(&inbox->bounds, tenant, count, tokens, now_ns, error);
    for (uint32_t i = 0; !status && i < count; i++) {
        completions[i]->next = NULL;
        *(inbox->last ? &inbox->last->next : &inbox->first) = completions[i];
        inbox->last = completions[i];
    }
    if (!status) {
        queue_bounds_enter(&inbox->bounds, tenant, count, tokens);
        pthread_cond_signal(&inbox->arrived);
    }
    pthread_mutex_unlock(&inbox->lock);
    return status;
}

static void set(struct inbox *inbox, bool *flag)
{
    pthread_mutex_lock(&inbox->lock);
    *flag = true;
    pthread_cond_signal(&inbox->arrived);
    pthread_mutex_unlock(&inbox->lock);
}

void inbox_request_reset(struct inbox *inbox)
{
    set(inbox, &inbox->reset_wanted);
}

void inbox_wake(struct inbox *inbox)
{
    set(inbox, &inbox->is_woken);
}

void inbox_drain(struct inbox *inbox)
{
    set(inbox, &inbox->is_draining);
}

void inbox_stop(struct inbox *inbox)
{
    set(inbox, &inbox->is_draining);
    set(inbox, &inbox->is_stopping);
}

static void wait(struct inbox *inbox, uint64_t wait_ns)
{
    if (wait_ns == UINT64_MAX) {
        pthread_cond_wait(&inbox->arrived, &inbox->lock);
        return;
    }
    uint64_t until_ns = clock_now_ns() + wait_ns;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    pthread_cond_timedwait(&inbox->arrived, &inbox->lock, &until);
}

static bool has_content(const struct inbox *inbox)
{
    return inbox->first || inbox->reset_wanted || inbox->is_stopping;
}

bool inbox_take(struct inbox *inbox, uint64_t wait_ns, struct inbox_content *out)
{
    pthread_mutex_lock(&inbox->lock);
    if (wait_ns > 0 && !inbox->is_woken && !has_content(inbox))
        wait(inbox, wait_ns);
    bool any = has_content(inbox);
    *out = (struct inbox_content){inbox->first, inbox->reset_wanted, inbox->is_stopping};
    inbox->first = inbox->last = NULL;
    inbox->reset_wanted = inbox->is_woken = false;
    pthread_mutex_unlock(&inbox->lock);
    return any;
}
