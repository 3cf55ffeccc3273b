/* A ring of log records: see log_ring.h. Bytes only; who may touch them when is the owner's. */
#include "base/log_ring.h"

#include "base/check.h"

#include <string.h>

struct header {
    uint32_t length, lost;
};

/* Copy `length` bytes to or from `at`, which is taken modulo the ring. */
static void put(struct log_ring *ring, size_t at, const void *from, size_t length)
{
    at %= sizeof ring->bytes;
    size_t first = sizeof ring->bytes - at < length ? sizeof ring->bytes - at : length;
    memcpy(ring->bytes + at, from, first);
    memcpy(ring->bytes, (const char *)from + first, length - first);
}

static struct header header_at(const struct log_ring *ring, size_t at)
{
    struct header header;
    size_t first =
        sizeof ring->bytes - at < sizeof header ? sizeof ring->bytes - at : sizeof header;
    memcpy(&header, ring->bytes + at, first);
    memcpy((char *)&header + first, ring->bytes, sizeof header - first);
    return header;
}

bool log_ring_push(struct log_ring *ring, const char *line, size_t length)
{
    CHECK(length > 0);
    struct header header = {.length = (uint32_t)length, .lost = ring->lost};
    size_t room = sizeof ring->bytes - ring->used;
    if (room < sizeof header || length > room - sizeof header) {
        ring->lost += ring->lost < UINT32_MAX;
        return false;
    }
    put(ring, ring->head + ring->used, &header, sizeof header);
    put(ring, ring->head + ring->used + sizeof header, line, length);
    ring->used += sizeof header + length;
    ring->lost = 0;
    return true;
}

bool log_ring_peek(const struct log_ring *ring, struct log_record *out)
{
    if (!ring->used)
        return false;
    struct header header = header_at(ring, ring->head);
    size_t at = (ring->head + sizeof header) % sizeof ring->bytes;
    size_t first =
        sizeof ring->bytes - at < header.length ? sizeof ring->bytes - at : header.length;
    *out = (struct log_record){
        .part = {ring->bytes + at, ring->bytes},
        .length = {first, header.length - first},
        .lost = header.lost,
    };
    return true;
}

void log_ring_pop(struct log_ring *ring)
{
    CHECK(ring->used > 0);
    size_t bytes = sizeof(struct header) + header_at(ring, ring->head).length;
    ring->used -= bytes;
    ring->head = (ring->head + bytes) % sizeof ring->bytes;
    if (!ring->used)
        ring->head = 0; /* so that a log with a good reader touches few of the pages */
}

uint32_t log_ring_take_lost(struct log_ring *ring)
{
    uint32_t lost = ring->lost;
    ring->lost = 0;
    return lost;
}
