/*
 * mmap, with the start moved to a huge page's edge for large blocks: only there can the kernel use
 * huge pages, which save a tenth of the time that streaming weights takes. What is cut off before
 * and behind is given back at once.
 */
#include "engine/model/memory.h"

#include "base/bytes.h"
#include "base/check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES ((uint64_t)4 * KIB)
#define HUGE_BYTES ((uint64_t)2 * MIB)
#define HUGE_FROM ((uint64_t)8 * MIB)

uint64_t memory_map_bytes(uint64_t bytes)
{
    return bytes_align(bytes, PAGE_BYTES);
}

enum status memory_map(uint64_t bytes, const char *what, void **out, struct error *error)
{
    CHECK(bytes > 0);
    uint64_t size = memory_map_bytes(bytes);
    uint64_t spare = size >= HUGE_FROM ? HUGE_BYTES : 0;
    uint8_t *start = mmap(NULL, size + spare, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        char text[24];
        return error_set(error, STATUS_IO, NULL, "no memory for the %s (%s): %s", what,
                         bytes_format(size, text), strerror(errno));
    }
    if (spare > 0) {
        uint64_t before = bytes_align((uintptr_t)start, HUGE_BYTES) - (uintptr_t)start;
        if (before > 0)
            munmap(start, before);
        if (before < spare)
            munmap(start + before + size, spare - before);
        start += before;
        /* Only whole huge pages, so that the block never takes more than its size; a wish. */
        madvise(start, size & ~(HUGE_BYTES - 1), MADV_HUGEPAGE);
    }
    *out = start;
    return STATUS_OK;
}

void memory_unmap(void *memory, uint64_t bytes)
{
    if (memory)
        munmap(memory, memory_map_bytes(bytes));
}
