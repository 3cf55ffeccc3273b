/*
 * Byte sizes: overflow-checked arithmetic, parsing and printing ("512MiB"), little-endian reads.
 */
#ifndef QUIRE_BASE_BYTES_H
#define QUIRE_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

/* *out = a * b (or a + b); false, and *out untouched, if that does not fit 64 bits. */
bool bytes_multiply(uint64_t a, uint64_t b, uint64_t *out);
bool bytes_add(uint64_t a, uint64_t b, uint64_t *out);

/* Round up to a multiple of `alignment` (a power of two). */
static inline size_t bytes_align(size_t value, size_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

/* Parse "1073741824", "512MiB", "1.5GiB", "200M", "2G" (K, M, G, T and KB… are powers of 1000, KiB…
   of 1024; case is ignored). False on anything else, on 0 digits, negative or overflowing values.
 */
bool bytes_parse(const char *text, uint64_t *out);

/* Write e.g. "512.0 MiB" into out; returns out. */
const char *bytes_format(uint64_t bytes, char out[static 24]);

#endif
