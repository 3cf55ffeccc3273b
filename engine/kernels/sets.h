/*
 * The kernel sets that this build has. Private to engine/kernels: kernels.c chooses among them, and
 * each set's own file defines one.
 */
#ifndef QUIRE_ENGINE_KERNELS_SETS_H
#define QUIRE_ENGINE_KERNELS_SETS_H

#include "engine/kernels/kernel_set.h"

extern const struct kernels SCALAR_KERNELS; /* the specification */
#ifdef QUIRE_KERNELS_X86
extern const struct kernels AVX2_KERNELS;
extern const struct kernels AVXVNNI_KERNELS;
extern const struct kernels AVX512_KERNELS;
#endif
#ifdef QUIRE_KERNELS_ARM
extern const struct kernels NEON_KERNELS;
extern const struct kernels DOTPROD_KERNELS;
#endif

#endif
