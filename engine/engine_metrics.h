/*
 * The engine's metrics at start: histogram bounds. Private to engine/; read engine.h for the
 * fields.
 *
 * The bounds are those of vLLM's metrics of the same meaning (vllm/v1/metrics/loggers.py, commit
 * 005a810), so that dashboards made for it fit.
 */
#ifndef QUIRE_ENGINE_ENGINE_METRICS_H
#define QUIRE_ENGINE_ENGINE_METRICS_H

#include "engine/engine.h"

/* token_bounds [METRIC_BUCKETS_MAX] lives as long as metrics: 1, 2, 5, 10 … up to max_length. */
void engine_metrics_init(struct engine_metrics *metrics, uint32_t max_length, double *token_bounds);

#endif
