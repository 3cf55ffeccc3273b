/*
 * Slots with checksums in a file. A checksum is seeded with its slot's number, so a slot that a
 * lost write or a wrong offset filled with another slot's bytes is noticed, too.
 *
 * Free slots form a list through `next`, the last given back first. Reads and writes go on after
 * EINTR and after a part; whatever else fails is an error with the system's words. The slot whose
 * write failed gets a checksum that no content has.
 */
#include "pager/disk/page_store.h"

#include "base/check.h"
#include "base/checksum.h"
#include "base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAKEN (PAGE_STORE_NO_SLOT - 1) /* in `next` of a slot that is not free */

struct page_store {
    /* fixed after start */
    struct page_store_options options;
    /* the thread that takes and gives slots */
    uint32_t free_first; /* PAGE_STORE_NO_SLOT: none */
    uint32_t free_count;
    uint32_t *next; /* [slot_count] in the list of free slots, or TAKEN */
    /* the thread that has the slot */
    uint64_t *sums; /* [slot_count] */
};

uint32_t page_store_fit(uint64_t cap_bytes, uint64_t slot_bytes)
{
    CHECK(slot_bytes >= 1);
    return (uint32_t)min_u64(cap_bytes / slot_bytes, TAKEN - 1);
}

uint64_t page_store_memory_bytes(uint32_t slot_count)
{
    return sizeof(struct page_store) + slot_count * (sizeof(uint64_t) + sizeof(uint32_t));
}

enum status page_store_create(const struct page_store_options *options, struct page_store **out,
                              struct error *error)
{
    CHECK(options->slot_bytes >= 1 && options->slot_count < TAKEN);
    uint32_t count = options->slot_count;
    struct page_store *store = calloc(1, page_store_memory_bytes(count));
    if (!store)
        return error_set(error, STATUS_IO, NULL, "no memory for the table of %u slots", count);
    store->options = *options;
    if (!store->options.calls.read)
        store->options.calls.read = pread;
    if (!store->options.calls.write)
        store->options.calls.write = pwrite;
    store->sums = (uint64_t *)(store + 1);
    store->next = (uint32_t *)(store->sums + count);
    store->free_count = count;
    store->free_first = count > 0 ? 0 : PAGE_STORE_NO_SLOT;
    for (uint32_t slot = 0; slot < count; slot++)
        store->next[slot] = slot + 1 < count ? slot + 1 : PAGE_STORE_NO_SLOT;
    *out = store;
    return STATUS_OK;
}

void page_store_destroy(struct page_store *store)
{
    free(store);
}

uint32_t page_store_free_count(const struct page_store *store)
{
    return store->free_count;
}

uint32_t page_store_take(struct page_store *store)
{
    uint32_t slot = store->free_first;
    if (slot == PAGE_STORE_NO_SLOT)
        return slot;
    store->free_first = store->next[slot];
    store->next[slot] = TAKEN;
    store->free_count--;
    return slot;
}

void page_store_give(struct page_store *store, uint32_t slot)
{
    CHECK(slot < store->options.slot_count && store->next[slot] == TAKEN);
    store->next[slot] = store->free_first;
    store->free_first = slot;
    store->free_count++;
}

enum status page_store_read_at(const struct page_store *store, uint64_t offset, void *bytes,
                               size_t length, struct error *error)
{
    char *at = bytes;
    while (length > 0) {
        ssize_t got = store->options.calls.read(store->options.fd, at, length, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(error, STATUS_IO, NULL, "reading a page: %s", strerror(errno));
        if (got == 0)
            return error_set(error, STATUS_IO, NULL, "reading a page: the file ends before it");
        CHECK((size_t)got <= length);
        at += got;
        offset += (size_t)got;
        length -= (size_t)got;
    }
    return STATUS_OK;
}

enum status page_store_write_at(const struct page_store *store, uint64_t offset, const void *bytes,
                                size_t length, struct error *error)
{
    const char *at = bytes;
    while (length > 0) {
        ssize_t put = store->options.calls.write(store->options.fd, at, length, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) /* 0: it takes no more, and would not on a second asking */
            return error_set(error, STATUS_IO, NULL, "writing a page: %s",
                             strerror(put < 0 ? errno : ENOSPC));
        CHECK((size_t)put <= length);
        at += put;
        offset += (size_t)put;
        length -= (size_t)put;
    }
    return STATUS_OK;
}

uint64_t page_store_offset(const struct page_store *store, uint32_t slot)
{
    const struct page_store_options *options = &store->options;
    CHECK(slot < options->slot_count);
    return options->offset_bytes + slot * (options->gap_bytes + options->slot_bytes) +
           options->gap_bytes;
}

enum status page_store_write(struct page_store *store, uint32_t slot, const void *bytes,
                             struct error *error)
{
    uint64_t offset = page_store_offset(store, slot);
    size_t length = store->options.slot_bytes;
    enum status status = page_store_write_at(store, offset, bytes, length, error);
    uint64_t sum = checksum_bytes(bytes, length, slot);
    /* No read of a page that is half written may succeed. */
    store->sums[slot] = status == STATUS_OK ? sum : ~sum;
    return status;
}

enum status page_store_read(const struct page_store *store, uint32_t slot, void *bytes,
                            struct error *error)
{
    uint64_t offset = page_store_offset(store, slot);
    size_t length = store->options.slot_bytes;
    enum status status = page_store_read_at(store, offset, bytes, length, error);
    if (status)
        return status;
    if (checksum_bytes(bytes, length, slot) != store->sums[slot])
        return error_set(error, STATUS_IO, NULL, "the page in slot %u is damaged", slot);
    return STATUS_OK;
}

uint64_t page_store_sum(const struct page_store *store, uint32_t slot)
{
    CHECK(slot < store->options.slot_count);
    return store->sums[slot];
}

void page_store_set_sum(struct page_store *store, uint32_t slot, uint64_t sum)
{
    CHECK(slot < store->options.slot_count);
    store->sums[slot] = sum;
}

enum status page_store_open_unnamed(const char *directory, int *out_fd, struct error *error)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        /* A file system that knows no unnamed files (NFS, old overlays): named for a moment. */
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/quire-pages-XXXXXX", directory);
        errno = ENAMETOOLONG;
        fd = length < (int)sizeof path ? mkostemp(path, O_CLOEXEC) : -1;
        if (fd >= 0)
            unlink(path);
    }
    if (fd < 0)
        return error_set(error, STATUS_IO, NULL, "no file in %s: %s", directory, strerror(errno));
    *out_fd = fd;
    return STATUS_OK;
}
