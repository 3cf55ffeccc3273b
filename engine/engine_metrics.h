/*
 * What the engine counts and measures while it runs. Plain atomics, below everything else in
 * engine/: the parts of the engine get a pointer to them and add; server/metrics.c shows them on
 * /metrics and the watchdog reads the phase.
 *
 * Threads: everything is written by the engine thread (and, before it starts, by the thread that
 * creates the engine) and read by any thread without a lock. One value may be newer than another.
 *
 * To add one: a field here, where it is counted, and a row in server/metrics.c (CONTRIBUTING.md).
 *
 * The bounds of the histograms are those of vLLM's metrics of the same meaning
 * (vllm/v1/metrics/loggers.py, commit 005a810), so that dashboards made for it fit.
 */
#ifndef QUIRE_ENGINE_ENGINE_METRICS_H
#define QUIRE_ENGINE_ENGINE_METRICS_H

#include "base/metric.h"
#include "engine/finish_reason.h"

#include <stdint.h>

/* What the engine thread is at. */
enum engine_phase {
    ENGINE_IDLE,     /* waits for work */
    ENGINE_PLANNING, /* schedules */
    ENGINE_FORWARD,  /* computes keys and values */
    ENGINE_SAMPLING, /* computes logits and draws tokens */
    ENGINE_COMMITTING,
    ENGINE_PHASES
};

struct engine_metrics {
    metric_gauge requests_running; /* sequences holding pages */
    metric_gauge requests_waiting;
    metric_gauge pages_total, pages_free, pages_cached; /* free includes cached */
    metric_gauge pages_held_max;                        /* most that were held at a time */
    metric_counter steps;
    metric_counter prompt_tokens; /* computed or taken from the cache, once per request */
    metric_counter generation_tokens;
    metric_counter rows_computed; /* rows through forward, recomputed ones included */
    metric_counter preemptions;
    metric_counter prefix_queries, prefix_hits; /* in tokens, once per admission */
    metric_counter finished[FINISH_REASONS];    /* completions' choices by enum finish_reason */
    metric_counter progress;      /* rows computed for the first time, choices ended: watchdog */
    metric_counter step_rows_max; /* largest batch seen, for tests of real batching */
    metric_counter step_sequences_max;
    struct metric_histogram time_to_first_token, inter_token, end_to_end, queue_time, prefill_time,
        decode_time;                               /* seconds */
    struct metric_histogram inference_time;        /* seconds from the slot to the last token */
    struct metric_histogram time_per_output_token; /* seconds, the mean of a choice's tokens */
    struct metric_histogram request_prompt_tokens, request_generation_tokens;
    struct metric_histogram request_max_generation_tokens; /* of a request's choices, the longest */
    struct metric_histogram params_n, params_max_tokens;   /* as asked, cut to the context */
    struct metric_histogram iteration_tokens;              /* rows per step */
    metric_counter phase_ns[ENGINE_PHASES]; /* of the engine thread; a phase counts when it ends */
    /* What the engine thread is at, for the watchdog. */
    atomic_int phase;                         /* enum engine_phase */
    metric_gauge phase_rows, phase_sequences; /* of the step */
    metric_counter cache_resets;
    metric_counter swap_outs, swap_ins;           /* choices that left and came back */
    metric_counter swap_out_bytes, swap_in_bytes; /* written and read */
    metric_counter swap_errors;                   /* failed writes and reads, wrong checksums */
    metric_counter swap_fallbacks; /* choices computed again although swapping was cheaper */
    metric_gauge swap_limit_bytes, swap_used_bytes;
    /* The prefix cache on disk. */
    metric_counter cache_dir_loads;      /* pages brought back at start */
    metric_counter cache_dir_hit_tokens; /* of prefix_hits: found in pages that were brought back */
    metric_counter cache_dir_writes, cache_dir_written_bytes; /* pages */
    metric_counter cache_dir_errors; /* pages that were damaged or could not be written, … */
    metric_gauge cache_dir_pages, cache_dir_bytes; /* in the file */
};

/* Everything 0, and the histograms' bounds. token_bounds [METRIC_BUCKETS_MAX] lives as long as
   metrics: 1, 2, 5, 10 … up to max_length. */
void engine_metrics_init(struct engine_metrics *metrics, uint32_t max_length, double *token_bounds);

#endif
