/*
 * A 64-bit checksum of bytes: XXH3 (xxHash, format stable since 0.8.0). Finds what disks and torn
 * writes do to data; it is no defence against somebody who means to. Any thread.
 */
#ifndef QUIRE_BASE_CHECKSUM_H
#define QUIRE_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Of `length` bytes, which may be 0. Other seeds give unrelated sums: it may carry an earlier sum,
   to chain pieces, or what the bytes must belong to. */
uint64_t checksum_bytes(const void *bytes, size_t length, uint64_t seed);

#endif
