/*
 * Taking and leaving running slots. `order` is a sorted array, moved along when a sequence enters
 * or leaves: with at most a few hundred slots that costs less than what a search through a list
 * would.
 *
 * Nobody else changes order and the free list, and nobody else moves a sequence between WAITING and
 * RUNNING. When a sequence takes a slot, its prompt is counted before it leaves the waiting list,
 * so that the backlog of its tenant does not end in between.
 */
#include "engine/scheduler/slots.h"

#include "base/check.h"

#include <string.h>

void slots_init(struct slots *slots, struct page_table *tables, uint32_t *pages)
{
    for (uint32_t i = slots->slot_count; i-- > 0;) {
        struct sequence *sequence = &slots->sequences[i];
        sequence->tables = tables + (size_t)i * slots->group_count;
        for (uint32_t g = 0; g < slots->group_count; g++) {
            size_t at = ((size_t)i * slots->group_count + g) * slots->table_capacity;
            sequence->tables[g] =
                (struct page_table){.pages = pages + at, .capacity = slots->table_capacity};
        }
        sequence->next_free = slots->free_first;
        slots->free_first = sequence;
    }
}

struct sequence *slots_take(struct slots *slots, struct completion *completion, uint32_t index)
{
    struct sequence *sequence = slots->free_first;
    CHECK(sequence != NULL);
    slots->free_first = sequence->next_free;
    fair_queue_begin_prefill(slots->queue, completion);
    fair_queue_remove(slots->queue, completion, index, SEQUENCE_RUNNING);
    sequence_init(sequence, completion, index);
    uint32_t at = slots->count++;
    for (; at > 0 && sequence_precedes(sequence, slots->order[at - 1]); at--)
        slots->order[at] = slots->order[at - 1];
    slots->order[at] = sequence;
    return sequence;
}

void slots_release(struct slots *slots, struct sequence *sequence)
{
    uint32_t at = slots->count;
    while (slots->order[--at] != sequence)
        CHECK(at > 0);
    slots->count--;
    memmove(&slots->order[at], &slots->order[at + 1], (slots->count - at) * sizeof *slots->order);
    if (sequence_has_prompt(sequence))
        fair_queue_end_prefill(slots->queue, sequence->completion);
    sequence_clear(sequence, slots->pager);
    sequence->next_free = slots->free_first;
    slots->free_first = sequence;
}

static void requeue_one(struct slots *slots, struct sequence *sequence)
{
    fair_queue_push(slots->queue, sequence->completion, sequence->index);
    slots_release(slots, sequence);
}

void slots_requeue_forks(struct slots *slots, const struct sequence *parent)
{
    for (uint32_t i = slots->count; i-- > 0;) {
        if (slots->order[i]->parent == parent)
            requeue_one(slots, slots->order[i]);
    }
}

void slots_requeue(struct slots *slots, struct sequence *sequence)
{
    slots_requeue_forks(slots, sequence);
    requeue_one(slots, sequence);
}

struct sequence *slots_find(const struct slots *slots, enum sequence_state state)
{
    for (uint32_t i = 0; i < slots->count; i++) {
        if (slots->order[i]->state == state)
            return slots->order[i];
    }
    return NULL;
}

uint32_t slots_decoding_count(const struct slots *slots)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < slots->count; i++)
        count += slots->order[i]->state == SEQUENCE_DECODE;
    return count;
}

const char *slots_check(const struct slots *slots)
{
    for (uint32_t i = 1; i < slots->count; i++) {
        if (!sequence_precedes(slots->order[i - 1], slots->order[i]))
            return "the running sequences are not in order";
    }
    uint32_t free_count = 0;
    for (const struct sequence *slot = slots->free_first; slot; slot = slot->next_free) {
        if (slot->completion || sequence_has_pages(slot))
            return "a free slot is not empty";
        free_count++;
    }
    return free_count + slots->count == slots->slot_count ? NULL : "the number of slots is wrong";
}
