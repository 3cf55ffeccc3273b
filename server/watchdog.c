/*
 * The watchdog: see watchdog.h.
 *
 * It compares two looks at the engine's counters and remembers when the progress last changed.
 * Steps that went on meanwhile tell a loop of which nothing comes from a step that hangs, which
 * the reason says. It ends nothing and restarts nothing: /ready and the log are for who can.
 */
#include "server/watchdog.h"

#include <inttypes.h>

enum watchdog_news watchdog_observe(struct watchdog *watchdog, const struct engine_metrics *metrics,
                                    uint32_t in_flight, uint64_t now_ns)
{
    uint64_t progress = metric_get(&metrics->progress);
    uint64_t since_ns = atomic_load(&watchdog->since_ns);
    if (progress != watchdog->progress || !since_ns || !in_flight || !watchdog->patience_ns) {
        watchdog->progress = progress;
        atomic_store(&watchdog->steps, metric_get(&metrics->steps));
        atomic_store(&watchdog->since_ns, now_ns);
        return atomic_exchange(&watchdog->stalled, false) ? WATCHDOG_RECOVERED : WATCHDOG_NOTHING;
    }
    if (now_ns - since_ns < watchdog->patience_ns || atomic_exchange(&watchdog->stalled, true))
        return WATCHDOG_NOTHING;
    atomic_fetch_add(&watchdog->stalls, 1);
    return WATCHDOG_STALLED;
}

void watchdog_describe(const struct watchdog *watchdog, const struct engine_metrics *metrics,
                       uint64_t now_ns, struct buffer *out)
{
    static const char *const phases[] = {
        [ENGINE_IDLE] = "waits for work", [ENGINE_PLANNING] = "plans a step",
        [ENGINE_FORWARD] = "computes",    [ENGINE_SAMPLING] = "draws tokens of",
        [ENGINE_COMMITTING] = "ends",
    };
    uint64_t since_ns = atomic_load(&watchdog->since_ns);
    double seconds = now_ns > since_ns ? (double)(now_ns - since_ns) * 1e-9 : 0;
    int phase = atomic_load(&metrics->phase);
    buffer_appendf(out, "no progress for %.1f s: the engine %s", seconds, phases[phase]);
    if (phase > ENGINE_PLANNING)
        buffer_appendf(out, " a step of %" PRIdFAST64 " rows of %" PRIdFAST64 " sequences",
                       atomic_load(&metrics->phase_rows), atomic_load(&metrics->phase_sequences));
    buffer_appendf(out,
                   "; %" PRIuFAST64 " steps were made since, %" PRIdFAST64
                   " sequences run, %" PRIdFAST64 " requests wait, %" PRIdFAST64 " of %" PRIdFAST64
                   " pages are free",
                   metric_get(&metrics->steps) - atomic_load(&watchdog->steps),
                   atomic_load(&metrics->requests_running), atomic_load(&metrics->requests_waiting),
                   atomic_load(&metrics->pages_free), atomic_load(&metrics->pages_total));
}
