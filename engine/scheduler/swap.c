/*
 * See scheduler.h: who gives way goes to the swap file, if that is cheaper than computing it again,
 * and comes back from there. What it costs, and what the file is, is page_swap.h's.
 *
 *     runs → LEAVING → waits, with an image → RETURNING → PROMPT, computed as far as it was
 *
 * LEAVING: keeps its place while its pages are written, the last ones first, and each is free once
 * it is written. RETURNING: has its place and all its pages, and its image until all of it is read;
 * made to give way then, it has nothing to write. Pages move between steps' plans and the batch
 * before, so that none of them is computed with or about to be copied: a few of them (page_swap.h),
 * even if nobody else has anything to compute. Such a step has no rows, and the engine looks at
 * what was cancelled or has arrived before the next few.
 *
 * Full pages at the beginning that others hold, too, and that can be found are not written. If they
 * cannot be found when it is its turn again, or anything fails, the image is dropped and all is
 * computed again. An image ends with its choice (finish_choice) at the latest.
 */
#include "engine/scheduler/scheduler_private.h"

#include "base/check.h"

/* ---- images ---- */

static struct swap_image *image_of(const struct completion *completion, uint32_t choice)
{
    /* The completion is the engine thread's; only its list is const here. */
    return &((struct completion *)completion)->choices[choice].image;
}

void scheduler_drop_image(struct scheduler *s, struct completion *completion, uint32_t choice)
{
    struct swap_image *image = image_of(completion, choice);
    if (image->slot_count > 0)
        page_swap_drop(s->options.swap, image);
}

static void fall_back(struct scheduler *s, struct completion *completion, uint32_t choice)
{
    scheduler_drop_image(s, completion, choice);
    page_swap_count_fallback(s->options.swap);
}

bool scheduler_use_image(struct scheduler *s, struct completion *completion, uint32_t choice,
                         struct sequence_origin *origin)
{
    struct swap_image *image = image_of(completion, choice);
    if (image->slot_count == 0)
        return false;
    if (s->free_list && image->kept > origin->match.page_count) {
        fall_back(s, completion, choice);
        return false;
    }
    if (origin->computed >= image->computed) { /* others have computed it meanwhile */
        scheduler_drop_image(s, completion, choice);
        return false;
    }
    origin->computed = image->computed;
    if (s->free_list)
        sequence_narrow(origin, s->options.pager, s->free_list->tables);
    return true;
}

/* ---- leaving ---- */

uint64_t scheduler_cost(const struct scheduler *s, const struct sequence *sequence, bool *swapped)
{
    const struct pager *pager = s->options.pager;
    uint64_t rows = sequence_cost(sequence, pager);
    *swapped = false;
    if (!s->options.swap)
        return rows;
    if (sequence->state == SEQUENCE_RETURNING)
        return 0; /* its image is still there */
    uint32_t pages = sequence_image_pages(sequence, pager, sequence_kept(sequence, pager));
    return page_swap_cost_ns(s->options.swap, rows, pages, swapped);
}

void scheduler_give_way(struct scheduler *s, struct sequence *victim)
{
    bool swapped;
    scheduler_cost(s, victim, &swapped);
    struct completion *completion = victim->completion;
    if (!swapped) {
        scheduler_send_back(s, victim);
        return;
    }
    uint32_t kept = sequence_kept(victim, s->options.pager);
    if (sequence_image_pages(victim, s->options.pager, kept) > page_swap_free(s->options.swap)) {
        page_swap_count_fallback(s->options.swap);
        scheduler_send_back(s, victim);
        return;
    }
    scheduler_send_followers_back(s, victim);
    if (victim->state != SEQUENCE_PROMPT)
        scheduler_enter_prompt(s, completion); /* it has something to compute again */
    sequence_leave(victim, s->options.pager);
    struct swap_image *image = image_of(completion, victim->choice);
    CHECK(image->slot_count == 0);
    image->kept = kept;
    image->computed = victim->computed;
}

/* Writes and frees the last page of who leaves; when nothing is left, or it cannot be written, it
   is sent back. */
static void leave_page(struct scheduler *s, struct sequence *sequence)
{
    struct completion *completion = sequence->completion;
    struct swap_image *image = image_of(completion, sequence->choice);
    uint32_t group = sequence_longest(sequence, s->options.pager);
    struct page_table *table = &sequence->tables[group];
    uint32_t index = table->count - 1;
    bool is_whole = index < image->kept;
    if (!is_whole && !page_swap_out(s->options.swap, image, table->pages[index], group, index)) {
        fall_back(s, completion, sequence->choice);
        scheduler_send_back(s, sequence);
        return;
    }
    if (!is_whole)
        page_table_pop(table, s->options.pager);
    if (!is_whole && sequence_has_pages(sequence))
        return;
    CHECK(image->slot_count > 0);
    page_swap_count_out(s->options.swap);
    scheduler_send_back(s, sequence);
}

static struct sequence *find_state(const struct scheduler *s, enum sequence_state state)
{
    for (uint32_t i = 0; s->options.swap && i < s->running_count; i++) {
        if (s->order[i]->state == state)
            return s->order[i];
    }
    return NULL;
}

bool scheduler_is_leaving(const struct scheduler *s)
{
    return find_state(s, SEQUENCE_LEAVING) != NULL;
}

bool scheduler_leave_page(struct scheduler *s)
{
    struct sequence *sequence = find_state(s, SEQUENCE_LEAVING);
    if (sequence)
        leave_page(s, sequence);
    return sequence != NULL;
}

/* ---- returning ---- */

void scheduler_return(struct scheduler *s, struct sequence *sequence)
{
    const struct swap_image *image = image_of(sequence->completion, sequence->choice);
    CHECK(sequence->state == SEQUENCE_RETURNING && image->slot_count > 0);
    CHECK(sequence->computed == image->computed && s->options.swap);
    sequence->next_slot = image->first_slot;
}

static void return_page(struct scheduler *s, struct sequence *sequence)
{
    struct swap_note note = page_swap_note(s->options.swap, sequence->next_slot);
    uint32_t slot = sequence->next_slot;
    sequence->next_slot = note.next;
    /* What can be found by now need not be read: `published` is how much was. */
    if (note.index >= sequence->published) {
        const struct page_table *table = &sequence->tables[note.group];
        CHECK(note.index >= table->first && note.index < table->count);
        if (!page_swap_in(s->options.swap, slot, table->pages[note.index])) {
            fall_back(s, sequence->completion, sequence->choice);
            scheduler_send_back(s, sequence);
            return;
        }
    }
    if (sequence->next_slot != SWAP_NONE)
        return;
    scheduler_drop_image(s, sequence->completion, sequence->choice);
    sequence->state = SEQUENCE_PROMPT;
    page_swap_count_in(s->options.swap);
}

/* ---- the step ---- */

bool scheduler_is_moving(const struct scheduler *s)
{
    return scheduler_is_leaving(s) || find_state(s, SEQUENCE_RETURNING);
}

static bool move_page(struct scheduler *s)
{
    if (scheduler_leave_page(s))
        return true;
    struct sequence *sequence = find_state(s, SEQUENCE_RETURNING);
    if (sequence)
        return_page(s, sequence);
    return sequence != NULL;
}

void scheduler_move_pages(struct scheduler *s)
{
    if (!s->options.swap)
        return;
    for (uint32_t i = page_swap_step_pages(s->options.swap); i > 0 && move_page(s); i--)
        ;
}

/* ---- check ---- */

static const char *check_image(const struct scheduler *s, const struct completion *completion,
                               uint32_t choice, uint32_t *total)
{
    const struct swap_image *image = &completion->choices[choice].image;
    uint32_t slot = image->first_slot, previous = 0;
    for (uint32_t i = 0; i < image->slot_count; i++) {
        struct swap_note note = page_swap_note(s->options.swap, slot);
        if (note.index < previous || note.index < image->kept ||
            note.index >= kv_groups_pages(s->page_size, image->computed) ||
            note.group >= s->group_count ||
            (note.next == SWAP_NONE) != (i + 1 == image->slot_count))
            return "an image is broken";
        previous = note.index;
        slot = note.next;
    }
    *total += image->slot_count;
    return NULL;
}

const char *scheduler_check_swap(const struct scheduler *s)
{
    if (!s->options.swap)
        return NULL;
    uint32_t total = 0;
    const char *trouble = NULL;
    for (uint32_t i = 0; i < s->running_count && !trouble; i++) {
        const struct sequence *sequence = s->order[i];
        bool moves = sequence->state == SEQUENCE_LEAVING || sequence->state == SEQUENCE_RETURNING;
        if (!moves && sequence->completion->choices[sequence->choice].image.slot_count > 0)
            return "an image was kept too long";
        trouble = check_image(s, sequence->completion, sequence->choice, &total);
    }
    for (uint32_t t = 0; t < s->options.tenant_count; t++) {
        for (const struct completion *c = s->tenants[t].waiting_first; c; c = c->next) {
            for (uint32_t i = 0; i < c->choice_count && !trouble; i++) {
                if (c->choices[i].state == CHOICE_WAITING)
                    trouble = check_image(s, c, i, &total);
            }
        }
    }
    if (trouble)
        return trouble;
    return total == page_swap_used(s->options.swap) ? NULL : "a slot of the swap file was lost";
}
