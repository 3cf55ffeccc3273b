/*
 * An arena: several arrays in one allocation, each at a multiple of 64 bytes.
 *
 * One function of the owner takes its arrays one after the other. It runs twice: first with an
 * arena that has no memory, which only counts, so that the owner knows how many bytes to enter in
 * the budget and to allocate; then with that memory, which gives the same arrays their addresses.
 * So the size and the layout cannot disagree.
 *
 *     struct arena arena = {0};
 *     lay_out(&arena, …);                            arena.used_bytes is what it takes
 *     arena = (struct arena){.memory = calloc(1, arena.used_bytes)};
 *     lay_out(&arena, …);
 */
#ifndef QUIRE_BASE_ARENA_H
#define QUIRE_BASE_ARENA_H

#include "base/bytes.h"

#include <stddef.h>

struct arena {
    char *memory; /* NULL: the arena only counts. The owner allocates and frees it */
    uint64_t used_bytes;
};

/* The next count × size bytes; NULL while the arena only counts. */
static inline void *arena_take(struct arena *arena, uint64_t count, uint64_t size)
{
    uint64_t offset = arena->used_bytes;
    arena->used_bytes = bytes_align(offset + count * size, 64);
    return arena->memory ? arena->memory + offset : NULL;
}

#endif
