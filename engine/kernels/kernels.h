/*
 * Kernels: choosing a set of them at start. kernel_set.h says what a set does.
 *
 * Who may include this: engine/model/, what measures kernels before a model runs (sizing/, bench/),
 * and tests. Any thread; the sets are static.
 */
#ifndef QUIRE_ENGINE_KERNELS_KERNELS_H
#define QUIRE_ENGINE_KERNELS_KERNELS_H

#include "base/error.h"
#include "engine/kernels/kernel_set.h"

/* "auto" takes the best that this CPU has. STATUS_INVALID (param "kernels") for unknown names and
   for instruction sets that this CPU lacks. The result is static. */
enum status kernels_select(const char *name, const struct kernels **out, struct error *error);

/* NULL-terminated list of the kernel sets that run on this CPU, scalar first. */
const struct kernels *const *kernels_available(void);

#endif
