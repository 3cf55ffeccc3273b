/*
 * The bounds of the histograms, and the state of all metrics at start: everything 0.
 *
 * Bounds of times are fixed tables. Bounds of tokens depend on the longest sequence, so the caller
 * brings the memory for them. A new histogram needs a line in engine_metrics_init and, unless one
 * of the tables fits, a table here.
 */
#include "engine/engine_metrics.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const double first_token_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                            0.25,  0.5,   0.75, 1.0,  2.5,  5.0,  7.5,  10.0,
                                            20.0,  40.0,  80.0, 160,  640,  2560};
static const double inter_token_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                            0.3,  0.4,   0.5,  0.75,  1.0, 2.5,  5.0,
                                            7.5,  10.0,  20.0, 40.0,  80.0};
static const double latency_bounds[] = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,
                                        5.0,  10.0, 15.0, 20.0, 30.0,  40.0,  50.0,
                                        60.0, 120,  240,  480,  960.0, 1920., 7680.0};
static const double iteration_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                          512, 1024, 2048, 4096, 8192, 16384};

static const double choice_bounds[] = {1, 2, 5, 10, 20};

static unsigned fill_token_bounds(double *bounds, uint32_t max_length)
{
    static const double steps[] = {1, 2, 5};
    unsigned count = 0;
    for (double scale = 1;; scale *= 10) {
        for (unsigned i = 0; i < COUNT(steps); i++) {
            if (steps[i] * scale > max_length || count == METRIC_BUCKETS_MAX - 1)
                return count;
            bounds[count++] = steps[i] * scale;
        }
    }
}

void engine_metrics_init(struct engine_metrics *metrics, uint32_t max_length, double *token_bounds)
{
    memset(metrics, 0, sizeof *metrics);
    metric_histogram_init(&metrics->time_to_first_token, first_token_bounds,
                          COUNT(first_token_bounds));
    metric_histogram_init(&metrics->inter_token, inter_token_bounds, COUNT(inter_token_bounds));
    metric_histogram_init(&metrics->end_to_end, latency_bounds, COUNT(latency_bounds));
    metric_histogram_init(&metrics->queue_time, latency_bounds, COUNT(latency_bounds));
    metric_histogram_init(&metrics->prefill_time, latency_bounds, COUNT(latency_bounds));
    metric_histogram_init(&metrics->decode_time, latency_bounds, COUNT(latency_bounds));
    metric_histogram_init(&metrics->inference_time, latency_bounds, COUNT(latency_bounds));
    metric_histogram_init(&metrics->time_per_output_token, inter_token_bounds,
                          COUNT(inter_token_bounds));
    metric_histogram_init(&metrics->params_n, choice_bounds, COUNT(choice_bounds));
    unsigned count = fill_token_bounds(token_bounds, max_length);
    metric_histogram_init(&metrics->request_prompt_tokens, token_bounds, count);
    metric_histogram_init(&metrics->request_generation_tokens, token_bounds, count);
    metric_histogram_init(&metrics->request_max_generation_tokens, token_bounds, count);
    metric_histogram_init(&metrics->params_max_tokens, token_bounds, count);
    metric_histogram_init(&metrics->iteration_tokens, iteration_bounds, COUNT(iteration_bounds));
}
