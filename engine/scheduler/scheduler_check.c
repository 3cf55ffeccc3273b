/*
 * The invariants that span objects: every running sequence has exactly the pages that its state and
 * its tokens ask for, and the pager's reference counts are the tables that exist. What concerns one
 * object alone is checked by its own function. Changes nothing but the scratch arrays.
 */
#include "engine/scheduler/scheduler_check.h"

#include "engine/scheduler/scheduler_private.h"

static const char *check_tables(const struct slots *slots, const struct sequence *sequence)
{
    const struct kv_groups *groups = pager_groups(slots->pager);
    uint32_t pages = kv_groups_pages(slots->page_size, sequence->token_count);
    for (uint32_t g = 0; g < slots->group_count; g++) {
        const struct page_table *table = &sequence->tables[g];
        uint32_t has = table->count - table->first;
        uint64_t most = kv_groups_most_pages(groups, g, slots->page_size, slots->max_batch_tokens,
                                             pages - table->first);
        if (table->count < kv_groups_pages(slots->page_size, sequence->computed))
            return "a table is too short";
        if (table->first > kv_groups_first(groups, g, slots->page_size, sequence->computed))
            return "a page was released that is still seen";
        if (has > most || (sequence_has_prompt(sequence) && has < most))
            return "a sequence has too few pages, or too many";
    }
    return NULL;
}

static bool is_sound_fork(const struct sequence *sequence)
{
    const struct sequence *parent = sequence->parent;
    return !sequence_has_pages(sequence) && parent &&
           (parent->state == SEQUENCE_PREFILL || parent->state == SEQUENCE_SWAPPING_IN);
}

static const char *check_sequence(const struct slots *slots, const struct sequence *sequence)
{
    const struct completion *completion = sequence->completion;
    if (!completion || sequence->record->status != SEQUENCE_RUNNING)
        return "a slot is taken by a sequence that does not run";
    if (sequence->token_count != completion_token_count(completion, sequence->index))
        return "a sequence has lost count of its tokens";
    if (sequence->state == SEQUENCE_PENDING_FORK)
        return is_sound_fork(sequence) ? NULL : "a pending fork has pages or no parent";
    if (sequence->computed >= sequence->token_count)
        return "a sequence has nothing to compute";
    if (sequence->state == SEQUENCE_SWAPPING_OUT)
        return sequence_has_pages(sequence) ? NULL : "a sequence was swapped out and has its slot";
    if (sequence->state == SEQUENCE_DECODE &&
        sequence->token_count - sequence->computed > 1 + LIMIT_FORCED_TOKENS)
        return "a decoding sequence is behind";
    return check_tables(slots, sequence);
}

bool scheduler_check(const struct scheduler *s, uint32_t *scratch, struct error *error)
{
    const struct slots *slots = &s->slots;
    const char *trouble = slots_check(slots);
    if (!trouble)
        trouble = fair_queue_check(&s->queue, slots->order, slots->count);
    for (uint32_t i = 0; i < slots->count && !trouble; i++) {
        for (uint32_t g = 0; g < slots->group_count; g++)
            s->tables[i * slots->group_count + g] = &slots->order[i]->tables[g];
        trouble = check_sequence(slots, slots->order[i]);
    }
    if (!trouble)
        trouble = swap_check(&s->swap);
    if (trouble) {
        error_set(error, STATUS_INTERNAL, NULL, "%s", trouble);
        return false;
    }
    return page_tables_check(s->tables, (size_t)slots->count * slots->group_count, slots->pager,
                             scratch, error);
}
