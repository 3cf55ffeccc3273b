/*
 * Counters, gauges and histograms as atomics: written by one or more threads, read without locks.
 * Values are doubles for histogram sums, 64-bit integers elsewhere. Rendering is
 * server/metrics.c's.
 */
#ifndef QUIRE_BASE_METRIC_H
#define QUIRE_BASE_METRIC_H

#include <stdatomic.h>
#include <stdint.h>

#define METRIC_BUCKETS_MAX 32

typedef atomic_uint_fast64_t metric_counter;
typedef atomic_int_fast64_t metric_gauge;

struct metric_histogram {
    /* fixed after start */
    const double *bounds; /* ascending upper bounds, without +Inf; static storage */
    unsigned bound_count; /* <= METRIC_BUCKETS_MAX - 1 */
    /* atomics */
    atomic_uint_fast64_t buckets[METRIC_BUCKETS_MAX]; /* not cumulative; last is +Inf */
    atomic_uint_fast64_t sum_bits;                    /* a double's bits */
};

void metric_histogram_init(struct metric_histogram *histogram, const double *bounds,
                           unsigned bound_count);
void metric_histogram_observe(struct metric_histogram *histogram, double value);
double metric_histogram_sum(const struct metric_histogram *histogram);

static inline void metric_add(metric_counter *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}
static inline uint64_t metric_get(const metric_counter *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}
static inline int64_t metric_gauge_get(const metric_gauge *gauge)
{
    return atomic_load_explicit(gauge, memory_order_relaxed);
}

#endif
