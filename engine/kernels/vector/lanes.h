/*
 * The lanes of the set that is being compiled, and what follows from their number.
 *
 * A lanes_*.h gives vf and vi, vectors of VECTOR_LANES floats and 32-bit integers, and the few
 * operations on them that all other headers of this folder are written in, so that their order of
 * operations is one text. Which one it is, the build says: QUIRE_AVX512 for 16 lanes; else eight,
 * AVX2's or NEON's. Every header here includes what it uses and is compiled into one set's file.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_LANES_H
#define QUIRE_ENGINE_KERNELS_VECTOR_LANES_H

#define INLINE static inline __attribute__((always_inline))

#if defined(QUIRE_AVX512)
#include "engine/kernels/vector/lanes_avx512.h"
#elif defined(__aarch64__)
#include "engine/kernels/vector/lanes_neon.h"
#else
#include "engine/kernels/vector/lanes_avx2.h"
#endif

/* Rows of activations that one tile multiplies: as many sums as there are registers for.
   Attention: few rows take 4 vectors at a time, more rows take 2. */
#define ATTENTION_WIDE 4u
#if VECTOR_LANES == 16
#define TILE_ROWS 8u
#define ATTENTION_FEW 4u
#define EACH_TILE_ROWS(OF, ...)                                                                    \
    OF(1, __VA_ARGS__)                                                                             \
    OF(2, __VA_ARGS__)                                                                             \
    OF(3, __VA_ARGS__)                                                                             \
    OF(4, __VA_ARGS__)                                                                             \
    OF(5, __VA_ARGS__)                                                                             \
    OF(6, __VA_ARGS__)                                                                             \
    OF(7, __VA_ARGS__)                                                                             \
    OF(8, __VA_ARGS__)
#else
#define TILE_ROWS 4u
#define ATTENTION_FEW 2u
#define EACH_TILE_ROWS(OF, ...)                                                                    \
    OF(1, __VA_ARGS__)                                                                             \
    OF(2, __VA_ARGS__)                                                                             \
    OF(3, __VA_ARGS__)                                                                             \
    OF(4, __VA_ARGS__)
#endif

#endif
