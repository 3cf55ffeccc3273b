/*
 * Two rates say when there will be room: how fast completions end, and how fast prompt tokens leave
 * the queue. Each is a fading average over the time in which there was work. When the last event is
 * longer ago than usual, that time counts instead: a queue that stands still has no usual rate.
 *
 * Every refusal says how many requests or tokens wait and when to try again.
 */
#include "engine/queue_bounds.h"

#include "base/check.h"
#include "base/minmax.h"

#include <math.h>
#include <stddef.h>

#define RETRY_SECONDS_MAX 300
#define FADING 0.875 /* of what came before, at each new measurement */

/* ---- rates ---- */

static void observe(struct event_rate *rate, uint64_t total, uint64_t now_ns)
{
    uint64_t count = total - rate->seen;
    if (count == 0)
        return;
    if (rate->since_ns && now_ns > rate->since_ns) {
        rate->recent = rate->recent * FADING + (double)count;
        rate->recent_ns = rate->recent_ns * FADING + (double)(now_ns - rate->since_ns);
        atomic_store(&rate->each_ps, (uint64_t)(rate->recent_ns * 1000 / rate->recent));
    }
    rate->seen = total;
    rate->since_ns = now_ns;
    atomic_store(&rate->last_ns, now_ns);
}

static void resume(struct event_rate *rate, uint64_t now_ns)
{
    rate->since_ns = now_ns;
    atomic_store(&rate->last_ns, now_ns);
}

static double each_s(const struct event_rate *rate)
{
    return (double)atomic_load(&rate->each_ps) * 1e-12;
}

static double silent_s(const struct event_rate *rate, uint64_t now_ns)
{
    uint64_t last_ns = atomic_load(&rate->last_ns);
    return last_ns && now_ns > last_ns ? (double)(now_ns - last_ns) * 1e-9 : 0;
}

/* The time until `count` more completions have ended, or until so many tokens have left the queue
   (many leave at once). */
static double requests_s(const struct queue_bounds *bounds, uint64_t count, uint64_t now_ns)
{
    double usual = each_s(&bounds->completions), silent = silent_s(&bounds->completions, now_ns);
    return fmax(silent, usual) * (double)count;
}

static double tokens_s(const struct queue_bounds *bounds, uint64_t count, uint64_t now_ns)
{
    double usual = each_s(&bounds->tokens) * (double)count;
    double silent = silent_s(&bounds->tokens, now_ns);
    return fmax(silent, usual);
}

static unsigned whole_seconds(double seconds)
{
    if (!(seconds > 1))
        return 1;
    return seconds < RETRY_SECONDS_MAX ? (unsigned)(seconds + 0.999) : RETRY_SECONDS_MAX;
}

void queue_bounds_observe(struct queue_bounds *bounds, uint64_t completed, uint64_t now_ns)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < bounds->tenant_count; i++)
        tokens += atomic_load_explicit(&bounds->tenants[i].dequeued_tokens, memory_order_relaxed);
    observe(&bounds->completions, completed, now_ns);
    observe(&bounds->tokens, tokens, now_ns);
}

void queue_bounds_resume(struct queue_bounds *bounds, uint64_t now_ns)
{
    resume(&bounds->completions, now_ns);
    resume(&bounds->tokens, now_ns);
}

/* ---- the queue ---- */

static struct queue_size queued_of(const struct tenant_queue *tenant)
{
    return (struct queue_size){
        atomic_load(&tenant->submitted) - atomic_load(&tenant->dequeued),
        atomic_load(&tenant->submitted_tokens) - atomic_load(&tenant->dequeued_tokens),
    };
}

struct queue_size queue_bounds_size(const struct queue_bounds *bounds)
{
    struct queue_size all = {0, 0};
    for (uint32_t i = 0; i < bounds->tenant_count; i++) {
        struct queue_size one = queued_of(&bounds->tenants[i]);
        all.requests += one.requests;
        all.tokens += one.tokens;
    }
    return all;
}

unsigned queue_bounds_retry_after_s(const struct queue_bounds *bounds, uint64_t now_ns)
{
    struct queue_size all = queue_bounds_size(bounds);
    return whole_seconds(requests_s(bounds, all.requests, now_ns));
}

static enum status refuse(struct error *error, double wait_s, const char *what, uint64_t queued)
{
    enum status status = error_set_code(error, STATUS_BUSY, "queue_full", NULL,
                                        "%llu %s waiting already, try again later",
                                        (unsigned long long)queued, what);
    if (error)
        error->retry_after_s = whole_seconds(wait_s);
    return status;
}

enum status queue_bounds_check(const struct queue_bounds *bounds, uint32_t tenant, uint32_t count,
                               uint64_t tokens, uint64_t now_ns, struct error *error)
{
    CHECK(tenant < bounds->tenant_count);
    if (count > (uint64_t)bounds->max_queue + bounds->max_sequences)
        return error_set(error, STATUS_INVALID, "prompt",
                         "a list of %u prompts is longer than this server's queue", count);
    struct queue_size all = queue_bounds_size(bounds), own = queued_of(&bounds->tenants[tenant]);
    uint64_t limit = (uint64_t)bounds->max_queue + atomic_load(&bounds->room);
    uint64_t free_count = max_u64(limit, all.requests) - all.requests;
    if (count > free_count)
        return refuse(error, requests_s(bounds, count - free_count, now_ns), "requests are",
                      all.requests);
    uint64_t most = bounds->max_tokens ? bounds->max_tokens : UINT64_MAX;
    uint64_t free_tokens = max_u64(most, all.tokens) - all.tokens;
    /* A prompt that is longer than the bound may wait alone. */
    if (all.requests > 0 && tokens > free_tokens)
        return refuse(error, tokens_s(bounds, tokens - free_tokens, now_ns), "prompt tokens are",
                      all.tokens);
    if (atomic_load(&bounds->sharing) <= 1 || own.requests == 0)
        return STATUS_OK;
    if (own.requests + count > free_count)
        return refuse(error, requests_s(bounds, own.requests + count - free_count, now_ns),
                      "requests of this API key are", own.requests);
    if (own.tokens + tokens > free_tokens)
        return refuse(error, tokens_s(bounds, own.tokens + tokens - free_tokens, now_ns),
                      "prompt tokens of this API key are", own.tokens);
    return STATUS_OK;
}

void queue_bounds_enter(struct queue_bounds *bounds, uint32_t tenant, uint32_t count,
                        uint64_t tokens)
{
    atomic_fetch_add(&bounds->tenants[tenant].submitted, count);
    atomic_fetch_add(&bounds->tenants[tenant].submitted_tokens, tokens);
}

void queue_bounds_publish(struct queue_bounds *bounds, uint32_t tenant, uint64_t dequeued,
                          uint64_t dequeued_tokens, uint64_t served_tokens)
{
    struct tenant_queue *entry = &bounds->tenants[tenant];
    atomic_store(&entry->dequeued, dequeued);
    atomic_store(&entry->dequeued_tokens, dequeued_tokens);
    atomic_store_explicit(&entry->served_tokens, served_tokens, memory_order_relaxed);
}
