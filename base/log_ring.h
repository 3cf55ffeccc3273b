/*
 * The lines that wait for the log's writer: records in a ring of bytes with a fixed size. Plain
 * data without a lock; base/log.c owns the only one, its tests have their own.
 *
 *     head                                      head + used
 *      │ length │ lost │ line … │ length │ lost │ line … │      free      │
 *
 * A record that does not fit is refused and counted, and the next one that fits carries the count:
 * so the reader learns how many lines are missing, and where. What log_ring_peek shows stays where
 * it is until log_ring_pop, whatever is pushed meanwhile: it may be written without the owner's
 * lock.
 */
#ifndef QUIRE_BASE_LOG_RING_H
#define QUIRE_BASE_LOG_RING_H

#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct log_ring {
    size_t head, used; /* bytes */
    uint32_t lost;     /* records refused since the last one that was taken */
    char bytes[LIMIT_LOG_BYTES];
};

/* The oldest record; the ring's end may cut it in two. */
struct log_record {
    const char *part[2];
    size_t length[2];
    uint32_t lost; /* records that are missing before it */
};

/* Append; false, and counted as lost, when there is no room. `length` > 0. */
bool log_ring_push(struct log_ring *ring, const char *line, size_t length);

/* False when the ring is empty. */
bool log_ring_peek(const struct log_ring *ring, struct log_record *out);
void log_ring_pop(struct log_ring *ring); /* not empty */

/* Records lost after the last one in the ring; from now on they count as told. */
uint32_t log_ring_take_lost(struct log_ring *ring);

#endif
