/*
 * Moving the pages of preempted sequences to the swap file and back, page by page.
 *
 * Which way a sequence goes is decided once, when it is preempted, by cost (swap_preempt). From
 * then on only failures change it: a full file, an I/O error, a wrong checksum, a shared page that
 * was evicted. Each of them drops the swapped pages and is counted as a fallback.
 *
 * One page moves at a time, and pages that are written come before pages that are read: writing
 * frees pages that others wait for.
 */
#include "engine/scheduler/swap.h"

#include "base/check.h"

/* ---- swapped pages of a sequence ---- */

void swap_drop(struct swap *swap, struct completion *completion, uint32_t index)
{
    struct swapped_pages *swapped = &completion->sequences[index].swapped;
    if (swapped->slot_count > 0)
        page_swap_drop(swap->file, swapped);
}

static void fall_back(struct swap *swap, struct completion *completion, uint32_t index)
{
    swap_drop(swap, completion, index);
    metric_add(&swap->metrics->swap_fallbacks, 1);
}

void swap_extend_origin(struct swap *swap, struct completion *completion, uint32_t index,
                        struct sequence_origin *origin)
{
    const struct swapped_pages *swapped = &completion->sequences[index].swapped;
    const struct sequence *slot = swap->slots->free_first;
    if (swapped->slot_count == 0)
        return;
    if (slot && swapped->shared_count > origin->match.page_count) {
        fall_back(swap, completion, index);
    } else if (origin->computed >= swapped->computed) { /* others have computed it meanwhile */
        swap_drop(swap, completion, index);
    } else {
        origin->computed = swapped->computed;
        if (slot)
            sequence_recount_origin(origin, swap->slots->pager, slot->tables);
    }
}

/* ---- out ---- */

uint64_t swap_preemption_cost(const struct swap *swap, const struct sequence *sequence,
                              bool *swapped)
{
    const struct pager *pager = swap->slots->pager;
    uint64_t tokens = sequence_recompute_tokens(sequence, pager);
    *swapped = false;
    if (!swap->file)
        return tokens;
    if (sequence->state == SEQUENCE_SWAPPING_IN)
        return 0; /* its pages are in the file still */
    uint32_t pages =
        sequence_pages_to_swap(sequence, pager, sequence_shared_pages(sequence, pager));
    return page_swap_cost_ns(swap->file, tokens, pages, swapped);
}

void swap_preempt(struct swap *swap, struct sequence *sequence)
{
    struct slots *slots = swap->slots;
    bool swapped;
    swap_preemption_cost(swap, sequence, &swapped);
    if (!swapped) {
        slots_requeue(slots, sequence);
        return;
    }
    uint32_t shared_count = sequence_shared_pages(sequence, slots->pager);
    if (sequence_pages_to_swap(sequence, slots->pager, shared_count) > page_swap_free(swap->file)) {
        metric_add(&swap->metrics->swap_fallbacks, 1);
        slots_requeue(slots, sequence);
        return;
    }
    slots_requeue_forks(slots, sequence);
    if (sequence->state != SEQUENCE_PREFILL)
        fair_queue_begin_prefill(slots->queue, sequence->completion); /* it has a prompt again */
    sequence_start_swap_out(sequence, slots->pager);
    CHECK(sequence->record->swapped.slot_count == 0);
    sequence->record->swapped.shared_count = shared_count;
    sequence->record->swapped.computed = sequence->computed;
}

/* Writes and releases the last page of the sequence. When none is left, or the page cannot be
   written, the sequence waits again. */
static void write_page(struct swap *swap, struct sequence *sequence)
{
    struct slots *slots = swap->slots;
    struct swapped_pages *swapped = &sequence->record->swapped;
    uint32_t group = sequence_longest_group(sequence, slots->pager);
    struct page_table *table = &sequence->tables[group];
    uint32_t index = table->count - 1;
    bool only_shared_left = index < swapped->shared_count;
    if (!only_shared_left) {
        if (!page_swap_out(swap->file, swapped, table->pages[index], group, index)) {
            fall_back(swap, sequence->completion, sequence->index);
            slots_requeue(slots, sequence);
            return;
        }
        page_table_pop(table, slots->pager);
        if (sequence_has_pages(sequence))
            return;
    }
    CHECK(swapped->slot_count > 0);
    metric_add(&swap->metrics->swap_outs, 1);
    slots_requeue(slots, sequence);
}

bool swap_is_writing(const struct swap *swap)
{
    return swap->file && slots_find(swap->slots, SEQUENCE_SWAPPING_OUT) != NULL;
}

bool swap_write_page(struct swap *swap)
{
    if (!swap_is_writing(swap))
        return false;
    write_page(swap, slots_find(swap->slots, SEQUENCE_SWAPPING_OUT));
    return true;
}

/* ---- in ---- */

void swap_start_in(struct swap *swap, struct sequence *sequence)
{
    const struct swapped_pages *swapped = &sequence->record->swapped;
    CHECK(sequence->state == SEQUENCE_SWAPPING_IN && swapped->slot_count > 0);
    CHECK(sequence->computed == swapped->computed && swap->file);
    sequence->next_slot = swapped->first_slot;
}

static void read_page(struct swap *swap, struct sequence *sequence)
{
    struct swap_entry entry = page_swap_entry(swap->file, sequence->next_slot);
    uint32_t slot = sequence->next_slot;
    sequence->next_slot = entry.next;
    /* Pages that the prefix cache had (`published` of them) need not be read. */
    if (entry.index >= sequence->published) {
        const struct page_table *table = &sequence->tables[entry.group];
        CHECK(entry.index >= table->first && entry.index < table->count);
        if (!page_swap_in(swap->file, slot, table->pages[entry.index])) {
            fall_back(swap, sequence->completion, sequence->index);
            slots_requeue(swap->slots, sequence);
            return;
        }
    }
    if (sequence->next_slot != SWAP_NO_SLOT)
        return;
    swap_drop(swap, sequence->completion, sequence->index);
    sequence->state = SEQUENCE_PREFILL;
    metric_add(&swap->metrics->swap_ins, 1);
}

/* ---- the step ---- */

bool swap_is_moving(const struct swap *swap)
{
    return swap_is_writing(swap) ||
           (swap->file && slots_find(swap->slots, SEQUENCE_SWAPPING_IN) != NULL);
}

static bool move_page(struct swap *swap)
{
    if (swap_write_page(swap))
        return true;
    struct sequence *sequence = slots_find(swap->slots, SEQUENCE_SWAPPING_IN);
    if (sequence)
        read_page(swap, sequence);
    return sequence != NULL;
}

void swap_move_pages(struct swap *swap)
{
    uint32_t left = swap->file ? page_swap_step_pages(swap->file) : 0;
    while (left > 0 && move_page(swap))
        left--;
}

/* ---- check ---- */

static const char *check_swapped(const struct swap *swap, const struct swapped_pages *swapped,
                                 uint32_t *total)
{
    const struct slots *slots = swap->slots;
    uint32_t slot = swapped->first_slot, previous = 0;
    for (uint32_t i = 0; i < swapped->slot_count; i++) {
        struct swap_entry entry = page_swap_entry(swap->file, slot);
        if (entry.index < previous || entry.index < swapped->shared_count ||
            entry.index >= kv_groups_pages(slots->page_size, swapped->computed) ||
            entry.group >= slots->group_count ||
            (entry.next == SWAP_NO_SLOT) != (i + 1 == swapped->slot_count))
            return "the swapped pages of a sequence are broken";
        previous = entry.index;
        slot = entry.next;
    }
    *total += swapped->slot_count;
    return NULL;
}

static const char *check_waiting(const struct swap *swap, uint32_t *total)
{
    const struct fair_queue *queue = swap->slots->queue;
    const char *trouble = NULL;
    for (uint32_t t = 0; t < queue->tenant_count; t++) {
        for (const struct completion *c = queue->tenants[t].waiting_first; c; c = c->next) {
            for (uint32_t i = 0; i < c->sequence_count && !trouble; i++) {
                if (c->sequences[i].status == SEQUENCE_WAITING)
                    trouble = check_swapped(swap, &c->sequences[i].swapped, total);
            }
        }
    }
    return trouble;
}

const char *swap_check(const struct swap *swap)
{
    if (!swap->file)
        return NULL;
    uint32_t total = 0;
    const char *trouble = NULL;
    for (uint32_t i = 0; i < swap->slots->count && !trouble; i++) {
        const struct sequence *sequence = swap->slots->order[i];
        bool moves =
            sequence->state == SEQUENCE_SWAPPING_OUT || sequence->state == SEQUENCE_SWAPPING_IN;
        if (!moves && sequence->record->swapped.slot_count > 0)
            return "a running sequence has swapped pages";
        trouble = check_swapped(swap, &sequence->record->swapped, &total);
    }
    if (!trouble)
        trouble = check_waiting(swap, &total);
    if (!trouble && total != page_swap_used(swap->file))
        trouble = "a slot of the swap file was lost";
    return trouble;
}
