/*
 * Metrics as Prometheus text (format 0.0.4): vLLM's names and types for what vLLM names, quire_ for
 * ours. Reads atomics only: never waits for computing.
 */
#ifndef QUIRE_SERVER_METRICS_H
#define QUIRE_SERVER_METRICS_H

#include "base/buffer.h"
#include "base/metric.h"
#include "server/runtime.h"

#include <stdbool.h>
#include <stdint.h>

#define HTTP_METRIC_ROUTES 24
#define HTTP_METRIC_CODES 24

/* Answers by route and status, counted when they end. */
struct http_metrics {
    metric_counter requests[HTTP_METRIC_ROUTES][HTTP_METRIC_CODES];
};

/* `route` is one of the names of http_routes.c, NULL for requests without one. */
void http_metrics_count(struct http_metrics *metrics, const char *route, unsigned status);

struct metrics_view {
    const struct runtime *runtime; /* NULL while loading */
    const struct http_metrics *http;
    unsigned connections, requests_in_flight, text_waiting;
    uint64_t dropped_connections;
    bool draining, stalled;
    uint64_t stalls;
    unsigned key_count; /* API keys */
    int64_t start_unix_s;
};

void metrics_render(const struct metrics_view *view, struct buffer *out);

#endif
