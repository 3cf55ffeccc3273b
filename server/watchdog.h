/*
 * The watchdog: notices that the engine has work and makes no progress, and says what it is at.
 * Decides on numbers alone: tested without a server or a clock. One thread observes (the
 * watcher's); any may ask.
 *
 * Progress is what does not happen twice (engine_metrics.progress): a row computed for the first
 * time, a choice ended. So neither a step that hangs nor steps of which nothing comes go unnoticed;
 * nor pages that are moved to the swap file and back instead, which may happen twice.
 */
#ifndef QUIRE_SERVER_WATCHDOG_H
#define QUIRE_SERVER_WATCHDOG_H

#include "base/buffer.h"
#include "engine/engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct watchdog {
    /* fixed after start */
    uint64_t patience_ns; /* 0: never fires */
    uint64_t progress;    /* the observer's */
    /* atomics */
    atomic_uint_fast64_t since_ns; /* of the last progress; 0: none seen yet */
    atomic_uint_fast64_t steps;    /* made until then */
    atomic_uint_fast64_t stalls;   /* how often so far */
    atomic_bool stalled;
};

enum watchdog_news { WATCHDOG_NOTHING, WATCHDOG_STALLED, WATCHDOG_RECOVERED };

/* Call a few times a second. `in_flight`: completions in the engine. */
enum watchdog_news watchdog_observe(struct watchdog *watchdog, const struct engine_metrics *metrics,
                                    uint32_t in_flight, uint64_t now_ns);

static inline bool watchdog_is_stalled(const struct watchdog *watchdog)
{
    return atomic_load(&watchdog->stalled);
}

/* One sentence in plain ASCII without quotes: for how long, and what the engine is at. */
void watchdog_describe(const struct watchdog *watchdog, const struct engine_metrics *metrics,
                       uint64_t now_ns, struct buffer *out);

#endif
