/*
 * Masks of one step: which tokens each constrained sequence may get next. A thread computes them
 * while the step's forward pass runs; whoever samples before a mask is there computes it itself, so
 * that several are computed at a time and none waits behind another.
 *
 *     masks_begin → masks_add … → masks_start → forward pass → masks_wait for each, any thread
 *
 * All masks of a step are waited for before the next masks_begin.
 */
#ifndef QUIRE_ENGINE_CONSTRAIN_MASKS_H
#define QUIRE_ENGINE_CONSTRAIN_MASKS_H

#include "base/error.h"
#include "engine/constrain/grammar.h"

struct masks;

/* For at most `capacity` sequences a step. Starts the thread. STATUS_IO without memory or thread.
 */
enum status masks_create(uint32_t capacity, uint32_t vocabulary, struct masks **out,
                         struct error *error);
void masks_destroy(struct masks *masks); /* NULL is allowed */
/* What masks_create allocates, without the thread's stack. */
uint64_t masks_memory_bytes(uint32_t capacity, uint32_t vocabulary);

/* Engine thread. *matcher is made at its first mask. Returns the index for masks_wait. */
void masks_begin(struct masks *masks);
uint32_t masks_add(struct masks *masks, struct grammar *grammar, struct grammar_matcher **matcher);
void masks_start(struct masks *masks);

/* The mask [ceil(vocabulary / 32)], valid until the next masks_begin; NULL when the matcher failed
   or could not be made. The caller may use the matcher from now on. Any thread, once an index. */
const uint32_t *masks_wait(struct masks *masks, uint32_t index);

#endif
