/*
 * Large blocks straight from the system: zeroed, never moved, whole pages, huge ones where given.
 * For weights, KV pool and scratch, so that what the budget counts is what the process grows by.
 * Private to engine/model/. Any thread.
 */
#ifndef QUIRE_ENGINE_MODEL_MEMORY_H
#define QUIRE_ENGINE_MODEL_MEMORY_H

#include "base/error.h"

#include <stdint.h>

/* What memory_map(bytes) takes from the system: whole pages. */
uint64_t memory_map_bytes(uint64_t bytes);

/* At least 64-byte aligned. STATUS_IO naming `what` when the system refuses. bytes > 0. */
enum status memory_map(uint64_t bytes, const char *what, void **out, struct error *error);
void memory_unmap(void *memory, uint64_t bytes); /* NULL is fine; `bytes` as at memory_map */

#endif
