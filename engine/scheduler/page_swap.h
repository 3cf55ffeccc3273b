/*
 * The swap file: pages of sequences that gave way, to be brought back instead of computed again.
 *
 * A file without a name in --swap-dir (mode 0600, gone when the process ends, however it ends) of
 * at most --swap-bytes, in slots of one page (pager/disk/page_store.h: each has its checksum in
 * memory). An *image* is what one choice has there: a list of slots, each with its page's group and
 * place.
 *
 * Refuses to be relied upon: every failure (no room, disk full, I/O error, another checksum) is a
 * plain false, counted, and logged once of each kind; the scheduler then has the tokens computed
 * again. Whether a choice's pages go here or not never changes what it is answered.
 *
 * Reading and writing is done by the engine thread within a step, at most step_pages pages of it
 * (LIMIT_SWAP_STEP_BYTES; one page if that is more), plus what those who run need at once. Not on a
 * thread of its own: the pool's pages then would have to stay until they are written, or be copied
 * to buffers as long as a sequence, when what is missing is memory; and with the bound neighbours
 * are held up less than by a prompt's chunk.
 *
 * What a page costs is measured: moving averages of seconds per page written and read, at first
 * 200 MB/s each; and of a computed row, at first 1 ms.
 *
 *     seconds to swap      = pages × (write_s + read_s)
 *     seconds to recompute = rows that nobody else holds × row_s
 *
 * Private to engine/; engine thread only.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_PAGE_SWAP_H
#define QUIRE_ENGINE_SCHEDULER_PAGE_SWAP_H

#include "base/error.h"
#include "engine/batch.h"
#include "engine/completion_private.h"
#include "pager/disk/page_store.h"

#include <stdbool.h>
#include <stdint.h>

struct engine_metrics;
struct page_swap;

struct page_swap_options {
    struct backend *backend;       /* its pages are carried; outlives the swap */
    const char *directory;         /* of the file */
    uint64_t bytes;                /* of all slots at most */
    uint32_t step_pages;           /* 0: LIMIT_SWAP_STEP_BYTES of them */
    bool always;                   /* tests: no cost is too high */
    struct page_store_calls calls; /* tests: the system's if NULL */
    struct engine_metrics *metrics;
};

/* Can a page be kept there? Makes a file, writes a page of zeros and lets it go: for the start,
   before anything that takes long. Of the backend only page_bytes is looked at; metrics may be
   NULL. STATUS_INVALID (param "swap-dir" or "swap-bytes") with the system's words when the
   directory cannot be used or a page does not fit. */
enum status page_swap_check(const struct page_swap_options *options, struct error *error);

/* Pages that fit; STATUS_INVALID (param "swap-bytes") when none does. Of the backend only
   page_bytes is looked at. */
enum status page_swap_fit(const struct page_swap_options *options, uint32_t *out,
                          struct error *error);

/* Makes the file; writes nothing. Errors as above. */
enum status page_swap_create(const struct page_swap_options *options, struct page_swap **out,
                             struct error *error);
/* All slots are free. NULL is fine. */
void page_swap_destroy(struct page_swap *swap);
/* What page_swap_create allocates. */
uint64_t page_swap_memory_bytes(uint64_t bytes, uint64_t page_bytes);

uint32_t page_swap_step_pages(const struct page_swap *swap);
uint32_t page_swap_used(const struct page_swap *swap); /* slots */
uint32_t page_swap_free(const struct page_swap *swap);

/* A computed row takes so long; 0: not known. */
void page_swap_note_row_ns(struct page_swap *swap, double row_ns);

/* Nanoseconds that a sequence's giving way will cost, the cheaper way: computing `rows` rows again
   or, then *swapped, writing and reading `pages` pages. */
uint64_t page_swap_cost_ns(const struct page_swap *swap, uint64_t rows, uint32_t pages,
                           bool *swapped);

/* Write page `index` of a group, the image's next; false: it could not be, and the image is as
   before. */
bool page_swap_out(struct page_swap *swap, struct swap_image *image, uint32_t page, uint32_t group,
                   uint32_t index);

/* What a slot of an image holds, and the slot after it: in the opposite order of writing. */
struct swap_note {
    uint32_t next; /* SWAP_NONE: the last */
    uint32_t group;
    uint32_t index;
};
struct swap_note page_swap_note(const struct page_swap *swap, uint32_t slot);

/* Read a slot into a page that nobody computes with; false: what stands there is of no use. */
bool page_swap_in(struct page_swap *swap, uint32_t slot, uint32_t page);

/* All of the image's slots are free, and it is empty. */
void page_swap_drop(struct page_swap *swap, struct swap_image *image);

/* An image is whole; one was brought back; one, or what should have become one, is to be computed
   again although that takes longer. For the metrics. */
void page_swap_count_out(struct page_swap *swap);
void page_swap_count_in(struct page_swap *swap);
void page_swap_count_fallback(struct page_swap *swap);

#endif
