/*
 * The swap file and its costs. The entries of the slots lie behind the struct, in one allocation;
 * the page store has its own.
 *
 * Each failure is logged the first time only: on a full or broken disk every preemption fails, and
 * the counter says how often. Averages are updated by successful calls only.
 */
#include "engine/scheduler/page_swap.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"

#include <stdlib.h>
#include <unistd.h>

#define FIRST_BYTES_PER_NS 0.2 /* 200 MB/s: a network disk, or a SATA disk under load */
#define FIRST_TOKEN_NS 1e6
#define WEIGHT 0.2 /* of a new measurement in the moving averages */

struct page_swap {
    /* fixed after start */
    struct page_swap_options options;
    int fd;
    struct page_store *store;
    uint32_t slot_count;
    uint32_t step_pages;
    /* engine thread only */
    double write_ns, read_ns, token_ns; /* of a page, a page, a token */
    bool write_logged, read_logged, full_logged;
    struct swap_entry entries[]; /* [slot_count] */
};

static uint64_t own_bytes(uint32_t slot_count)
{
    return sizeof(struct page_swap) + (uint64_t)slot_count * sizeof(struct swap_entry);
}

uint64_t page_swap_memory_bytes(uint64_t bytes, uint64_t page_bytes)
{
    uint32_t slots = page_store_fit(bytes, page_bytes);
    /* The allocator's own: a page and a header for each of the two allocations. */
    return own_bytes(slots) + page_store_memory_bytes(slots) + 2 * (4096 + 64);
}

static enum status unusable(const struct page_swap_options *options, const struct error *cause,
                            struct error *error)
{
    return error_set(error, STATUS_INVALID, "swap-dir", "--swap-dir %s cannot be used: %s",
                     options->directory, cause->message);
}

/* Opens the file and the store of its slots. On failure the caller closes whichever exists. */
static enum status open_store(const struct page_swap_options *options, uint32_t slot_count,
                              int *out_fd, struct page_store **out, struct error *error)
{
    struct error cause;
    if (page_store_open_unnamed(options->directory, out_fd, &cause))
        return unusable(options, &cause, error);
    struct page_store_options store = {
        .fd = *out_fd,
        .slot_bytes = options->backend->page_bytes,
        .slot_count = slot_count,
        .calls = options->calls,
    };
    return page_store_create(&store, out, error);
}

static void close_store(int fd, struct page_store *store)
{
    page_store_destroy(store);
    if (fd >= 0)
        close(fd);
}

enum status page_swap_fit(const struct page_swap_options *options, uint32_t *out,
                          struct error *error)
{
    uint64_t page_bytes = options->backend->page_bytes;
    char page[24];
    *out = page_store_fit(options->bytes, page_bytes);
    if (*out > 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "swap-bytes",
                     "--swap-bytes is less than one page of keys and values, %s",
                     bytes_format(page_bytes, page));
}

enum status page_swap_check(const struct page_swap_options *options, struct error *error)
{
    uint32_t slots;
    enum status status = page_swap_fit(options, &slots, error);
    if (status)
        return status;
    struct page_store *store = NULL;
    struct error cause;
    int fd = -1;
    void *zeros = calloc(1, options->backend->page_bytes);
    status = zeros ? open_store(options, 1, &fd, &store, error)
                   : error_set(error, STATUS_IO, NULL, "no memory for a page");
    if (!status && page_store_write(store, 0, zeros, &cause))
        status = unusable(options, &cause, error);
    close_store(fd, store);
    free(zeros);
    return status;
}

enum status page_swap_create(const struct page_swap_options *options, struct page_swap **out,
                             struct error *error)
{
    uint64_t page_bytes = options->backend->page_bytes;
    uint32_t slots;
    enum status status = page_swap_fit(options, &slots, error);
    if (status)
        return status;
    struct page_swap *swap = calloc(1, own_bytes(slots));
    if (!swap)
        return error_set(error, STATUS_IO, NULL, "no memory for the entries of %u swapped pages",
                         slots);
    swap->options = *options;
    swap->slot_count = slots;
    swap->fd = -1;
    swap->step_pages = options->step_pages
                           ? options->step_pages
                           : (uint32_t)max_u64(LIMIT_SWAP_STEP_BYTES / page_bytes, 1);
    swap->write_ns = swap->read_ns = (double)page_bytes / FIRST_BYTES_PER_NS;
    swap->token_ns = FIRST_TOKEN_NS;
    status = open_store(options, slots, &swap->fd, &swap->store, error);
    if (status) {
        page_swap_destroy(swap);
        return status;
    }
    atomic_store(&options->metrics->swap_limit_bytes, (int64_t)(slots * page_bytes));
    *out = swap;
    return STATUS_OK;
}

void page_swap_destroy(struct page_swap *swap)
{
    if (!swap)
        return;
    CHECK(!swap->store || page_swap_used(swap) == 0);
    close_store(swap->fd, swap->store);
    free(swap);
}

uint32_t page_swap_step_pages(const struct page_swap *swap)
{
    return swap->step_pages;
}

uint32_t page_swap_used(const struct page_swap *swap)
{
    return swap->slot_count - page_swap_free(swap);
}

uint32_t page_swap_free(const struct page_swap *swap)
{
    return page_store_free_count(swap->store);
}

void page_swap_set_token_ns(struct page_swap *swap, double token_ns)
{
    if (token_ns > 0)
        swap->token_ns = token_ns;
}

uint64_t page_swap_cost_ns(const struct page_swap *swap, uint64_t tokens, uint32_t pages,
                           bool *swapped)
{
    double recompute_ns = (double)tokens * swap->token_ns;
    double swap_ns = pages * (swap->write_ns + swap->read_ns);
    bool cheaper = swap->options.always || swap_ns < recompute_ns;
    *swapped = cheaper && pages > 0;
    return (uint64_t)(*swapped && !swap->options.always ? swap_ns : recompute_ns);
}

static void average(double *value, uint64_t since_ns)
{
    *value += WEIGHT * ((double)(clock_now_ns() - since_ns) - *value);
}

static void update_used(const struct page_swap *swap)
{
    atomic_store(&swap->options.metrics->swap_used_bytes,
                 (int64_t)(page_swap_used(swap) * swap->options.backend->page_bytes));
}

static void count_error(struct page_swap *swap, bool *logged, const char *what,
                        const struct error *error)
{
    metric_add(&swap->options.metrics->swap_errors, 1);
    if (!*logged)
        log_warn("swap", "%s: %s; computed again instead, further ones are only counted", what,
                 error->message);
    *logged = true;
}

bool page_swap_out(struct page_swap *swap, struct swapped_pages *swapped, uint32_t page,
                   uint32_t group, uint32_t index)
{
    struct backend *backend = swap->options.backend;
    struct error error;
    uint64_t start_ns = clock_now_ns();
    uint32_t slot = page_store_take(swap->store);
    if (slot == PAGE_STORE_NO_SLOT) {
        if (!swap->full_logged)
            log_info("swap", "the swap file is full: computed again instead");
        swap->full_logged = true;
        return false;
    }
    if (page_store_write(swap->store, slot, backend->ops->page(backend, page), &error)) {
        page_store_give(swap->store, slot);
        count_error(swap, &swap->write_logged, "a page cannot be swapped out", &error);
        return false;
    }
    average(&swap->write_ns, start_ns);
    swap->entries[slot] = (struct swap_entry){
        .next = swapped->slot_count ? swapped->first_slot : SWAP_NO_SLOT,
        .group = group,
        .index = index,
    };
    swapped->first_slot = slot;
    swapped->slot_count++;
    metric_add(&swap->options.metrics->swap_out_bytes, backend->page_bytes);
    update_used(swap);
    return true;
}

struct swap_entry page_swap_entry(const struct page_swap *swap, uint32_t slot)
{
    CHECK(slot < swap->slot_count);
    return swap->entries[slot];
}

bool page_swap_in(struct page_swap *swap, uint32_t slot, uint32_t page)
{
    struct backend *backend = swap->options.backend;
    struct error error;
    uint64_t start_ns = clock_now_ns();
    if (page_store_read(swap->store, slot, backend->ops->page(backend, page), &error)) {
        count_error(swap, &swap->read_logged, "a page cannot be swapped in", &error);
        return false;
    }
    average(&swap->read_ns, start_ns);
    metric_add(&swap->options.metrics->swap_in_bytes, backend->page_bytes);
    return true;
}

void page_swap_drop(struct page_swap *swap, struct swapped_pages *swapped)
{
    uint32_t slot = swapped->first_slot;
    for (; swapped->slot_count > 0; swapped->slot_count--) {
        uint32_t next = page_swap_entry(swap, slot).next;
        page_store_give(swap->store, slot);
        slot = next;
    }
    update_used(swap);
}
