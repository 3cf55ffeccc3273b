/*
 * A page store: a file of equally long slots, each for the bytes of one page, with a cap. What is
 * written is read back verified or not at all: the checksum of each slot is in memory.
 *
 *     file   [ what is the owner's ][ gap ][ slot 0 ][ gap ][ slot 1 ] … [ gap ][ slot count-1 ]
 *                            offset ^
 *
 * It knows no tokens and no models. The file grows as slots are first written. A full disk, an I/O
 * error and a damaged slot are errors as values, after which the store can be used further.
 *
 * Threads: no lock inside. One thread at a time takes and gives slots; slots may be written and
 * read by several threads at a time, each slot by one.
 */
#ifndef QUIRE_PAGER_DISK_PAGE_STORE_H
#define QUIRE_PAGER_DISK_PAGE_STORE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE_STORE_NO_SLOT UINT32_MAX

/* The system's pread and pwrite; tests put others here. */
struct page_store_calls {
    ssize_t (*read)(int fd, void *bytes, size_t length, off_t offset);
    ssize_t (*write)(int fd, const void *bytes, size_t length, off_t offset);
};

struct page_store_options {
    int fd;                /* of a file that can be read and written at offsets; not closed here */
    uint64_t offset_bytes; /* where slots begin */
    uint64_t slot_bytes;   /* >= 1 */
    uint32_t slot_count;
    struct page_store_calls calls; /* NULL: the system's */
    uint64_t gap_bytes;            /* before each slot's bytes, the owner's; 0 for most */
};

struct page_store;

/* Slots that fit `cap_bytes`, at most UINT32_MAX - 1. */
uint32_t page_store_fit(uint64_t cap_bytes, uint64_t slot_bytes);

/* Bytes that page_store_create allocates: for the budget. */
uint64_t page_store_memory_bytes(uint32_t slot_count);

/* All slots free. STATUS_IO when memory fails. */
enum status page_store_create(const struct page_store_options *options, struct page_store **out,
                              struct error *error);
void page_store_destroy(struct page_store *store); /* NULL is fine; the file stays as it is */

uint32_t page_store_free_count(const struct page_store *store);

/* A free slot becomes the caller's; PAGE_STORE_NO_SLOT when all are taken. The lowest numbers are
   taken first until one is given back, so that the file grows no longer than it has to. */
uint32_t page_store_take(struct page_store *store);
void page_store_give(struct page_store *store, uint32_t slot);

/* Writes slot_bytes bytes. STATUS_IO (no space, an I/O error, a file size limit) with the system's
   words; the slot's content is then void, its former content too. Whether the slot is taken is not
   checked. */
enum status page_store_write(struct page_store *store, uint32_t slot, const void *bytes,
                             struct error *error);

/* Reads back what was written last. STATUS_IO on an I/O error and when the checksum does not match;
   `bytes` is then void. */
enum status page_store_read(const struct page_store *store, uint32_t slot, void *bytes,
                            struct error *error);

/* The checksum of a slot, for owners that store it across a restart. It is void for a slot that was
   never written or whose writing failed. */
uint64_t page_store_sum(const struct page_store *store, uint32_t slot);
void page_store_set_sum(struct page_store *store, uint32_t slot, uint64_t sum);

/* Where in the file a slot's bytes are; its gap is before them. */
uint64_t page_store_offset(const struct page_store *store, uint32_t slot);

/* The same careful reading and writing for the owner's own part of the file: all `length` bytes,
   whatever the system does by halves or is interrupted in. STATUS_IO at the file's end, too. */
enum status page_store_read_at(const struct page_store *store, uint64_t offset, void *bytes,
                               size_t length, struct error *error);
enum status page_store_write_at(const struct page_store *store, uint64_t offset, const void *bytes,
                                size_t length, struct error *error);

/* A file without a name in `directory`, mode 0600, that is gone when *out_fd is closed, however the
   process ends. STATUS_IO with the system's words. */
enum status page_store_open_unnamed(const char *directory, int *out_fd, struct error *error);

#endif
