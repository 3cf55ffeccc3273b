/*
 * What this machine can do, measured: the limits that kernels and whole models are held against.
 *
 * Three kinds: bytes read from memory per second; operations per second of the arithmetic units on
 * registers alone; and, per weight format, what its own inner loop reaches when everything it
 * touches stays in the first-level cache. All are the best of several samples, since anything that
 * disturbs only makes them worse. Also what the programs here share: time, made-up weights, memory.
 */
#ifndef QUIRE_BENCH_MACHINE_H
#define QUIRE_BENCH_MACHINE_H

#include "base/workers.h"
#include "engine/kernels/kernels.h"

#include <stdint.h>

/* Nanoseconds of the wall clock, or with machine_use_cpu_time of the calling thread. */
uint64_t machine_time_ns(void);
void machine_use_cpu_time(void);

uint32_t machine_random(void); /* the same sequence in each run; not for threads */

/* 64-byte aligned, large ones on huge pages as a model's weights are; free() them. */
void *machine_allocate(uint64_t bytes);

/* Finite weights in the file's layout: random bits with scales of about 0.01. */
void machine_fill_rows(uint8_t *rows, enum tensor_format format, uint64_t bytes);

/* Bytes per second that the threads read together, from a block much larger than the caches. */
double machine_read_rate(struct workers *workers, unsigned samples);

/* Operations per second of one kind of instruction, all threads together; 0: this CPU has none. */
struct machine_unit {
    const char *name; /* "fma256", … */
    double rate;
};
#define MACHINE_UNITS 4u
void machine_unit_rates(struct workers *workers, unsigned samples,
                        struct machine_unit out[static MACHINE_UNITS]);

/* Operations per second (two per weight and row) of this format's matmul, all threads together, on
   a few row groups that stay in the first-level cache; the best over some numbers of rows, which
   goes into *rows. 0: the kernels do not compute this format. */
double machine_format_rate(const struct kernels *kernels, enum tensor_format format,
                           struct workers *workers, unsigned samples, uint32_t *rows);

#endif
