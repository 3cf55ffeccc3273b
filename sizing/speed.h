/*
 * How fast this machine does what serving a model consists of: reading memory, products with
 * weights that come from memory, attention over pages. Measured on made-up data with the kernels
 * and threads that would serve; each call takes some tens of milliseconds and gives back what it
 * allocates. What counts is the CPU time that threads were given, and the best sample: other work
 * on the machine does not count, what disturbs can only slow down.
 *
 * Calls workers_run: one caller at a time, as that says. 0 means that it could not be measured (no
 * memory, no kernel for the format).
 */
#ifndef QUIRE_SIZING_SPEED_H
#define QUIRE_SIZING_SPEED_H

#include "base/workers.h"
#include "engine/kernels/kernels.h"

#include <stdint.h>

struct speed_meter {
    const struct kernels *kernels;
    struct workers *workers;
    unsigned cores;        /* that the workers share */
    uint64_t memory_bytes; /* what a call may allocate; more than the caches, else they are timed */
};

/* Bytes per second that all threads together read. */
double speed_read(const struct speed_meter *meter);

/* seconds[i] per weight of a product with rows[i] rows of `columns` inputs, all threads sharing it;
   rows are at least 1. Columns are rounded up to what the format's blocks need. */
void speed_products(const struct speed_meter *meter, enum tensor_format format, uint32_t columns,
                    const uint32_t *rows, unsigned count, double *seconds);

/* Seconds per key and value of one KV head (in pages) that `queries` consecutive tokens (1 …
   KERNEL_QUERY_TILE) of `group` query heads attend to, all threads having tasks. head_dim suits the
   type. */
double speed_attention(const struct speed_meter *meter, enum kv_type type, uint32_t head_dim,
                       uint32_t group, uint32_t queries);

#endif
