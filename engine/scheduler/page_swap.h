/*
 * The swap file: pages of preempted sequences, to be read back instead of computed again.
 *
 * A file without a name in --swap-dir (mode 0600; it is gone when the process ends, however it
 * ends) of at most --swap-bytes, in slots of one page (pager/disk/page_store.h: each has its
 * checksum in memory). The swapped pages of a sequence are a list of slots, each with its page's
 * group and index in the page table.
 *
 * Nothing relies on it: every failure (no free slot, disk full, I/O error, wrong checksum) is a
 * plain false, counted, and logged once of each kind; then the tokens are computed again. Whether
 * the pages of a sequence go here or not never changes its answer.
 *
 * The engine thread reads and writes within a step, at most step_pages pages
 * (LIMIT_SWAP_STEP_BYTES, or one page if that is more), and beyond that what running sequences need
 * at once. A thread of its own would need the pages to stay until they are written, or buffers as
 * long as a sequence, when what is missing is memory; and with the bound a step takes less time
 * than with a prompt's chunk.
 *
 * Costs are measured: moving averages of the time per page written and read, at first 5 ns a byte
 * (200 MB/s) each; and of a computed token, at first 1 ms.
 *
 *     time to swap      = pages × (write + read)
 *     time to recompute = tokens in private pages × token
 *
 * Private to engine/; the engine thread's.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_PAGE_SWAP_H
#define QUIRE_ENGINE_SCHEDULER_PAGE_SWAP_H

#include "base/error.h"
#include "engine/batch.h"
#include "engine/completion_private.h"
#include "engine/engine_metrics.h"
#include "pager/disk/page_store.h"

#include <stdbool.h>
#include <stdint.h>

struct page_swap;

struct page_swap_options {
    struct backend *backend;       /* its pages are carried; outlives the swap */
    const char *directory;         /* of the file */
    uint64_t bytes;                /* of all slots at most */
    uint32_t step_pages;           /* 0: LIMIT_SWAP_STEP_BYTES of them */
    bool always;                   /* tests: whatever it costs */
    struct page_store_calls calls; /* tests: the system's if NULL */
    struct engine_metrics *metrics;
};

/* Can pages be written there? Makes a file, writes a page of zeros and deletes it: for the start,
   before anything that takes long. Of the backend only page_bytes is read; metrics may be NULL.
   STATUS_INVALID (param "swap-dir" or "swap-bytes") with the system's words when the directory
   cannot be used or a page does not fit. */
enum status page_swap_check(const struct page_swap_options *options, struct error *error);

/* Pages that fit; STATUS_INVALID (param "swap-bytes") when none does. Of the backend only
   page_bytes is read. */
enum status page_swap_fit(const struct page_swap_options *options, uint32_t *out,
                          struct error *error);

/* Makes the file; writes nothing. Errors as above. */
enum status page_swap_create(const struct page_swap_options *options, struct page_swap **out,
                             struct error *error);
/* All slots must be free. NULL is fine. */
void page_swap_destroy(struct page_swap *swap);
/* What page_swap_create allocates. */
uint64_t page_swap_memory_bytes(uint64_t bytes, uint64_t page_bytes);

uint32_t page_swap_step_pages(const struct page_swap *swap);
uint32_t page_swap_used(const struct page_swap *swap); /* slots */
uint32_t page_swap_free(const struct page_swap *swap);

/* Computing a token takes so long; 0: not known. */
void page_swap_set_token_ns(struct page_swap *swap, double token_ns);

/* Nanoseconds that preempting a sequence costs, the cheaper way: computing `tokens` tokens again
   or, then *swapped, writing and reading `pages` pages. */
uint64_t page_swap_cost_ns(const struct page_swap *swap, uint64_t tokens, uint32_t pages,
                           bool *swapped);

/* Writes page `index` of a group into the next slot of the swapped pages; false: that failed, and
   the swapped pages are as before. */
bool page_swap_out(struct page_swap *swap, struct swapped_pages *swapped, uint32_t page,
                   uint32_t group, uint32_t index);

/* Which page a slot contains, and the slot after it: the last one written comes first. */
struct swap_entry {
    uint32_t next; /* SWAP_NO_SLOT: it is the last */
    uint32_t group;
    uint32_t index;
};
struct swap_entry page_swap_entry(const struct page_swap *swap, uint32_t slot);

/* Reads a slot into a page that nobody computes with; false: the page's content is void. */
bool page_swap_in(struct page_swap *swap, uint32_t slot, uint32_t page);

/* Frees all slots of the swapped pages, which are then empty. */
void page_swap_drop(struct page_swap *swap, struct swapped_pages *swapped);

#endif
