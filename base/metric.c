/* See metric.h. */
#include "base/metric.h"

#include "base/check.h"

#include <string.h>

void metric_histogram_init(struct metric_histogram *histogram, const double *bounds,
                           unsigned bound_count)
{
    CHECK(bound_count < METRIC_BUCKETS_MAX);
    memset(histogram, 0, sizeof *histogram);
    histogram->bounds = bounds;
    histogram->bound_count = bound_count;
}

static double bits_to_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t double_to_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void metric_histogram_observe(struct metric_histogram *histogram, double value)
{
    unsigned bucket = 0;
    while (bucket < histogram->bound_count && value > histogram->bounds[bucket])
        bucket++;
    atomic_fetch_add_explicit(&histogram->buckets[bucket], 1, memory_order_relaxed);
    uint_fast64_t old = atomic_load_explicit(&histogram->sum_bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&histogram->sum_bits, &old,
                                                  double_to_bits(bits_to_double(old) + value),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

double metric_histogram_sum(const struct metric_histogram *histogram)
{
    return bits_to_double(atomic_load_explicit(&histogram->sum_bits, memory_order_relaxed));
}
