/*
 * Choosing sequences to preempt. Both occasions use one comparison (is_preempted_before); they
 * differ in who may be chosen: for pages of running sequences anyone but the first in order; for a
 * waiting sequence only those that are less urgent, or that hold more than their tenant's share.
 *
 * A share is an equal part of the slots and pages for each tenant that has work. A tenant reclaims
 * from its equals only what keeps it within its own share, so the other tenant cannot reclaim it
 * again.
 *
 * Costs and shares are counted anew for each choice: they change with every preemption.
 */
#include "engine/scheduler/preemption.h"

#include "base/check.h"
#include "base/minmax.h"

static void preempt(struct preemption *p, struct sequence *sequence)
{
    sequence->record->preemptions++;
    metric_add(&p->metrics->preemptions, 1);
    swap_preempt(p->swap, sequence);
}

void preemption_force_one(struct preemption *p)
{
    struct sequence *victim = NULL;
    for (uint32_t i = 0; i < p->slots->count; i++) {
        struct sequence *sequence = p->slots->order[i];
        if (sequence->state == SEQUENCE_DECODE && sequence->sampled_count > 0 &&
            (!victim || sequence->record->forced_preemptions < victim->record->forced_preemptions))
            victim = sequence;
    }
    if (!victim)
        return;
    victim->record->forced_preemptions++;
    metric_add(&p->metrics->preemptions, 1);
    swap_preempt(p->swap, victim);
}

bool preemption_any_limit_reached(const struct preemption *p)
{
    for (uint32_t i = 0; i < p->slots->count; i++) {
        if (preemption_limit_reached(p->slots->order[i]->record))
            return true;
    }
    return false;
}

/* ---- the order of preemption ---- */

static struct tenant_share *share_of(const struct preemption *p, const struct sequence *sequence)
{
    return &p->shares[sequence->completion->tenant];
}

static void count_shares(struct preemption *p)
{
    for (uint32_t i = 0; i < p->slots->queue->tenant_count; i++)
        p->shares[i] = (struct tenant_share){0, 0};
    for (uint32_t i = 0; i < p->slots->count; i++) {
        const struct sequence *sequence = p->slots->order[i];
        share_of(p, sequence)->slots++;
        share_of(p, sequence)->pages += sequence_page_count(sequence, p->slots->pager);
    }
}

/* Shares are counted, costs are in sequence->preemption_cost. */
static bool is_preempted_before(const struct preemption *p, const struct sequence *a,
                                const struct sequence *b)
{
    const struct completion *ca = a->completion, *cb = b->completion;
    uint32_t a_class = completion_priority_class(ca), b_class = completion_priority_class(cb);
    if (a_class != b_class)
        return a_class > b_class;
    if (share_of(p, a)->pages != share_of(p, b)->pages)
        return share_of(p, a)->pages > share_of(p, b)->pages;
    if (ca->tenant != cb->tenant)
        return ca->tenant > cb->tenant;
    if (ca->priority != cb->priority)
        return ca->priority > cb->priority;
    if (a->preemption_cost != b->preemption_cost)
        return a->preemption_cost < b->preemption_cost;
    return sequence_is_older(b, a);
}

static void count_cost(const struct preemption *p, struct sequence *sequence)
{
    bool swapped;
    sequence->preemption_cost = swap_preemption_cost(p->swap, sequence, &swapped);
}

/* ---- pages for running sequences ---- */

static struct sequence *choose_victim(struct preemption *p)
{
    struct sequence *victim = NULL, *at_limit = NULL;
    count_shares(p);
    for (uint32_t i = 1; i < p->slots->count; i++) {
        struct sequence *sequence = p->slots->order[i];
        if (!sequence_has_pages(sequence))
            continue;
        if (preemption_limit_reached(sequence->record)) {
            at_limit = sequence;
            continue;
        }
        count_cost(p, sequence);
        if (!victim || is_preempted_before(p, sequence, victim))
            victim = sequence;
    }
    /* While a sequence at its limit runs there is a page for everyone (worst-case admission). Were
       that ever wrong, preempting it once more is better than a server that ends. */
    return victim ? victim : at_limit;
}

/* Pages that will be taken in this step. Sequences that still share the page that they write take
   one page less than its reference count (in every KV cache group): the last one writes where it
   is. They are neighbours in order. */
static uint32_t count_missing_pages(const struct preemption *p)
{
    const struct slots *slots = p->slots;
    uint32_t missing = 0, shared_page = 0, sharing = 0;
    for (uint32_t i = 0; i < slots->count; i++) {
        const struct sequence *sequence = slots->order[i];
        if (!sequence_takes_pages(sequence))
            continue;
        missing += sequence_missing_pages(sequence, slots->pager, slots->max_batch_tokens);
        uint32_t page = sequence_page_to_write(sequence, slots->page_size);
        uint32_t ref_count = page ? pager_ref_count(slots->pager, page) : 0;
        if (ref_count > 1) {
            sharing = page == shared_page ? sharing + 1 : 1;
            shared_page = page;
            missing += sharing < ref_count ? slots->group_count : 0;
        }
    }
    return missing;
}

bool preemption_secure_pages(struct preemption *p)
{
    bool preempted = false;
    while (count_missing_pages(p) > pager_free_count(p->slots->pager)) {
        preempted = true;
        if (swap_write_page(p->swap)) /* beyond what a step moves: the page is needed now */
            continue;
        struct sequence *victim = choose_victim(p);
        CHECK(victim != NULL); /* the first in order always fits alone */
        preempt(p, victim);
    }
    return preempted;
}

/* ---- pages and slots for a waiting sequence ---- */

bool preemption_could_serve(const struct preemption *p, const struct completion *completion)
{
    for (uint32_t i = 1; i < p->slots->count; i++) {
        const struct completion *other = p->slots->order[i]->completion;
        if (completion_priority_class(other) > completion_priority_class(completion) ||
            other->tenant != completion->tenant)
            return true;
    }
    return false;
}

static struct tenant_share fair_share(const struct preemption *p)
{
    const struct fair_queue *queue = p->slots->queue;
    uint32_t tenants = 0;
    for (uint32_t i = 0; i < queue->tenant_count; i++)
        tenants += p->shares[i].slots > 0 || queue->tenants[i].waiting_count > 0;
    return (struct tenant_share){max_u32(p->slots->slot_count / tenants, 1),
                                 pager_total_count(p->slots->pager) / tenants};
}

/* Those that may be preempted for a sequence of this class, in the order of preemption: the less
   urgent ones, and its equals if `equals`. */
static uint32_t list_candidates(struct preemption *p, uint32_t class, bool equals)
{
    uint32_t count = 0;
    for (uint32_t i = 1; i < p->slots->count; i++) {
        struct sequence *sequence = p->slots->order[i];
        uint32_t its_class = completion_priority_class(sequence->completion);
        if (preemption_limit_reached(sequence->record) || !sequence_has_pages(sequence) ||
            its_class < class || (its_class == class && !equals))
            continue;
        count_cost(p, sequence);
        uint32_t at = count++;
        for (; at > 0 && is_preempted_before(p, sequence, p->candidates[at - 1]); at--)
            p->candidates[at] = p->candidates[at - 1];
        p->candidates[at] = sequence;
    }
    return count;
}

void preemption_reclaim(struct preemption *p, const struct completion *completion, uint64_t pages,
                        uint64_t initial_pages)
{
    bool needs_slot = p->slots->free_first == NULL;
    uint32_t class = completion_priority_class(completion);
    count_shares(p);
    struct tenant_share fair = fair_share(p), own = p->shares[completion->tenant];
    bool within_share = own.pages + initial_pages <= fair.pages && own.slots < fair.slots;
    uint32_t count = list_candidates(p, class, within_share), chosen = 0;
    uint64_t found = 0;
    for (uint32_t i = 0; i < count && (found < pages || (needs_slot && chosen == 0)); i++) {
        struct sequence *victim = p->candidates[i];
        struct tenant_share *share = share_of(p, victim);
        bool less_urgent = completion_priority_class(victim->completion) > class;
        bool above_share = victim->completion->tenant != completion->tenant &&
                           (share->pages > fair.pages || (needs_slot && share->slots > fair.slots));
        if (!less_urgent && !above_share)
            continue;
        share->pages -= sequence_page_count(victim, p->slots->pager);
        share->slots--;
        found += sequence_private_pages(victim, p->slots->pager);
        p->candidates[chosen++] = victim;
    }
    if (found < pages || (needs_slot && chosen == 0))
        return;
    for (uint32_t i = 0; i < chosen; i++)
        preempt(p, p->candidates[i]);
}
