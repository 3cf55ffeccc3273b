/*
 * Which kernel sets a test compares with scalar: those that this CPU runs; with TESTED_SET, which
 * is a set in a library of its own, that one alone.
 */
#ifndef QUIRE_TESTS_ENGINE_KERNELS_SETS_H
#define QUIRE_TESTS_ENGINE_KERNELS_SETS_H

#include "engine/kernels/kernels.h"

#define STATUS_SKIPPED 77 /* to meson: this program's tests cannot run here */

#ifdef TESTED_SET
extern const struct kernels TESTED_SET;
#endif

/* NULL-terminated; empty when this CPU does not run TESTED_SET. */
static inline const struct kernels *const *sets_tested(void)
{
#ifdef TESTED_SET
    static const struct kernels *sets[2];
    const struct kernels *wide; /* the CPU must have all of AVX-512 that we use */
    struct error error;
    if (kernels_select("avx512", &wide, &error) == STATUS_OK)
        sets[0] = &TESTED_SET;
    return sets;
#else
    return kernels_available();
#endif
}

#endif
