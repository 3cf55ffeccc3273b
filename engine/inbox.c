/* See inbox.h. */
#include "engine/inbox.h"

#include "base/check.h"

#include <stddef.h>

#define RETRY_SECONDS_MAX 300
#define FADING 0.875 /* of what came before, at each new measurement */

/* ---- rates ---- */

static void observe(struct inbox_rate *rate, uint64_t total, uint64_t now_ns)
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

static void resume(struct inbox_rate *rate, uint64_t now_ns)
{
    rate->since_ns = now_ns;
    atomic_store(&rate->last_ns, now_ns);
}

static double each_s(const struct inbox_rate *rate)
{
    return (double)atomic_load(&rate->each_ps) * 1e-12;
}

static double silent_s(const struct inbox_rate *rate, uint64_t now_ns)
{
    uint64_t last_ns = atomic_load(&rate->last_ns);
    return last_ns && now_ns > last_ns ? (double)(now_ns - last_ns) * 1e-9 : 0;
}

/* How long it will be until `count` more completions have ended, or so many tokens have left the
   queue (many at once). If it has been longer than usual, it takes longer than usual. */
static double requests_s(const struct inbox *inbox, uint64_t count, uint64_t now_ns)
{
    double usual = each_s(&inbox->completions), silent = silent_s(&inbox->completions, now_ns);
    return (silent > usual ? silent : usual) * (double)count;
}

static double tokens_s(const struct inbox *inbox, uint64_t count, uint64_t now_ns)
{
    double usual = each_s(&inbox->tokens) * (double)count;
    double silent = silent_s(&inbox->tokens, now_ns);
    return silent > usual ? silent : usual;
}

static unsigned whole_seconds(double seconds)
{
    if (!(seconds > 1))
        return 1;
    return seconds < RETRY_SECONDS_MAX ? (unsigned)(seconds + 0.999) : RETRY_SECONDS_MAX;
}

void inbox_observe(struct inbox *inbox, uint64_t completed, uint64_t now_ns)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < inbox->tenant_count; i++)
        tokens += atomic_load_explicit(&inbox->tenants[i].dequeued_tokens, memory_order_relaxed);
    observe(&inbox->completions, completed, now_ns);
    observe(&inbox->tokens, tokens, now_ns);
}

void inbox_resume(struct inbox *inbox, uint64_t now_ns)
{
    resume(&inbox->completions, now_ns);
    resume(&inbox->tokens, now_ns);
}

/* ---- the queue ---- */

static struct inbox_queued queued_of(const struct inbox_tenant *tenant)
{
    return (struct inbox_queued){
        atomic_load(&tenant->submitted) - atomic_load(&tenant->dequeued),
        atomic_load(&tenant->submitted_tokens) - atomic_load(&tenant->dequeued_tokens),
    };
}

struct inbox_queued inbox_queued(const struct inbox *inbox)
{
    struct inbox_queued all = {0, 0};
    for (uint32_t i = 0; i < inbox->tenant_count; i++) {
        struct inbox_queued one = queued_of(&inbox->tenants[i]);
        all.requests += one.requests;
        all.tokens += one.tokens;
    }
    return all;
}

unsigned inbox_retry_after_s(const struct inbox *inbox, uint64_t now_ns)
{
    struct inbox_queued all = inbox_queued(inbox);
    return whole_seconds(requests_s(inbox, all.requests, now_ns));
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

enum status inbox_check(const struct inbox *inbox, uint32_t tenant, uint32_t count, uint64_t tokens,
                        uint64_t now_ns, struct error *error)
{
    CHECK(tenant < inbox->tenant_count);
    if (count > (uint64_t)inbox->max_queue + inbox->max_sequences)
        return error_set(error, STATUS_INVALID, "prompt",
                         "a list of %u prompts is longer than this server's queue", count);
    struct inbox_queued all = inbox_queued(inbox), own = queued_of(&inbox->tenants[tenant]);
    uint64_t limit = (uint64_t)inbox->max_queue + atomic_load(&inbox->room);
    uint64_t free_count = limit > all.requests ? limit - all.requests : 0;
    if (count > free_count)
        return refuse(error, requests_s(inbox, count - free_count, now_ns), "requests are",
                      all.requests);
    uint64_t most = inbox->max_tokens ? inbox->max_tokens : UINT64_MAX;
    uint64_t free_tokens = most > all.tokens ? most - all.tokens : 0;
    /* What is longer than the queue may still come into an empty one. */
    if (all.requests > 0 && tokens > free_tokens)
        return refuse(error, tokens_s(inbox, tokens - free_tokens, now_ns), "prompt tokens are",
                      all.tokens);
    if (atomic_load(&inbox->sharing) <= 1 || own.requests == 0)
        return STATUS_OK;
    if (own.requests + count > free_count)
        return refuse(error, requests_s(inbox, own.requests + count - free_count, now_ns),
                      "requests of this API key are", own.requests);
    if (own.tokens + tokens > free_tokens)
        return refuse(error, tokens_s(inbox, own.tokens + tokens - free_tokens, now_ns),
                      "prompt tokens of this API key are", own.tokens);
    return STATUS_OK;
}

void inbox_enter(struct inbox *inbox, uint32_t tenant, uint32_t count, uint64_t tokens)
{
    atomic_fetch_add(&inbox->tenants[tenant].submitted, count);
    atomic_fetch_add(&inbox->tenants[tenant].submitted_tokens, tokens);
}

void inbox_publish(struct inbox *inbox, uint32_t tenant, uint64_t dequeued,
                   uint64_t dequeued_tokens, uint64_t served_tokens)
{
    struct inbox_tenant *entry = &inbox->tenants[tenant];
    atomic_store(&entry->dequeued, dequeued);
    atomic_store(&entry->dequeued_tokens, dequeued_tokens);
    atomic_store_explicit(&entry->served_tokens, served_tokens, memory_order_relaxed);
}
