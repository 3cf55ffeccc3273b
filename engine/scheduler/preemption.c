/*
 * See scheduler.h: who gives way when there is no room.
 *
 * Two occasions. Somebody who runs needs a page and none is free (make_way, before a step's rows
 * are planned, so that nothing planned has to be taken back). Or somebody waits who is more urgent
 * than those who run, or whose tenant holds less than its part while another holds more (reclaim).
 *
 * The victim is the least urgent; of those one of the tenant that holds most; of those the one that
 * costs least to bring back (scheduler_swap.c says what, and how); then the youngest. Never the
 * first in rank: it always ends, so there is always progress. And never one that gave way
 * PREEMPTIONS_MAX times before.
 */
#include "engine/scheduler/scheduler_private.h"

#include "base/check.h"

#include <stdlib.h>

void scheduler_preempt(struct scheduler *s, struct sequence *victim)
{
    victim->completion->choices[victim->choice].preemptions++;
    metric_add(&s->options.metrics->preemptions, 1);
    scheduler_give_way(s, victim);
}

static bool is_spent(const struct sequence *sequence)
{
    return sequence->completion->choices[sequence->choice].preemptions >= PREEMPTIONS_MAX;
}

bool scheduler_is_careful(const struct scheduler *s)
{
    for (uint32_t i = 0; i < s->running_count; i++) {
        if (is_spent(s->order[i]))
            return true;
    }
    return false;
}

/* What each tenant holds. */
static void count_holdings(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->options.tenant_count; i++)
        s->tenants[i].places = s->tenants[i].pages = 0;
    for (uint32_t i = 0; i < s->running_count; i++) {
        struct tenant *tenant = scheduler_tenant(s, s->order[i]->completion);
        tenant->places++;
        tenant->pages += sequence_pages(s->order[i], s->options.pager);
    }
}

/* Does a give way rather than b? Holdings are counted, costs are in sequence->cost. */
static bool gives_way_before(const struct scheduler *s, const struct sequence *a,
                             const struct sequence *b)
{
    uint32_t a_level = scheduler_level(a->completion), b_level = scheduler_level(b->completion);
    if (a_level != b_level)
        return a_level > b_level;
    const struct tenant *a_tenant = scheduler_tenant(s, a->completion);
    const struct tenant *b_tenant = scheduler_tenant(s, b->completion);
    if (a_tenant->pages != b_tenant->pages)
        return a_tenant->pages > b_tenant->pages;
    if (a_tenant != b_tenant)
        return a_tenant > b_tenant;
    if (a->completion->priority != b->completion->priority)
        return a->completion->priority > b->completion->priority;
    if (a->cost != b->cost)
        return a->cost < b->cost;
    return sequence_is_older(b, a);
}

/* ---- pages for those who run ---- */

static struct sequence *find_victim(struct scheduler *s)
{
    struct sequence *victim = NULL, *spent = NULL;
    bool swapped;
    count_holdings(s);
    for (uint32_t i = 1; i < s->running_count; i++) {
        struct sequence *sequence = s->order[i];
        if (!sequence_has_pages(sequence))
            continue;
        if (is_spent(sequence)) {
            spent = sequence;
            continue;
        }
        sequence->cost = scheduler_cost(s, sequence, &swapped);
        if (!victim || gives_way_before(s, sequence, victim))
            victim = sequence;
    }
    /* While one that is spent runs there is a page for everybody (scheduler_is_careful). Were that
       ever wrong, one time more is better than a server that ends. */
    return victim ? victim : spent;
}

/* Pages that will be taken. Choices that still share the page they write take one less than there
   are holders (in every page group): the last one writes where it is. They are neighbours in order.
 */
static uint32_t pages_wanted(const struct scheduler *s)
{
    uint32_t wanted = 0, shared_page = 0, sharing = 0;
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct sequence *sequence = s->order[i];
        if (!scheduler_takes_pages(s, sequence))
            continue;
        wanted += sequence_wanted(sequence, s->options.pager, s->options.max_batch_tokens);
        uint32_t page = sequence_page_to_write(sequence, s->page_size);
        uint32_t holders = page ? pager_ref_count(s->options.pager, page) : 0;
        if (holders > 1) {
            sharing = page == shared_page ? sharing + 1 : 1;
            shared_page = page;
            wanted += sharing < holders ? s->group_count : 0;
        }
    }
    return wanted;
}

bool scheduler_make_way(struct scheduler *s)
{
    bool gave_way = false;
    while (pages_wanted(s) > pager_free_count(s->options.pager)) {
        gave_way = true;
        if (scheduler_leave_page(s)) /* more of it than a step should move: there is need */
            continue;
        struct sequence *victim = find_victim(s);
        CHECK(victim != NULL); /* alone, the first in rank always fits */
        scheduler_preempt(s, victim);
    }
    return gave_way;
}

/* ---- room for those who wait ---- */

bool scheduler_has_lesser(const struct scheduler *s, const struct completion *completion)
{
    for (uint32_t i = 1; i < s->running_count; i++) {
        const struct completion *other = s->order[i]->completion;
        if (scheduler_level(other) > scheduler_level(completion) ||
            other->tenant != completion->tenant)
            return true;
    }
    return false;
}

struct parts {
    uint32_t places, pages; /* of each tenant that has work */
};

static struct parts count_parts(const struct scheduler *s)
{
    uint32_t tenants = 0;
    for (uint32_t i = 0; i < s->options.tenant_count; i++)
        tenants += s->tenants[i].places > 0 || s->tenants[i].waiting_count > 0;
    uint32_t places = s->options.max_sequences / tenants;
    return (struct parts){places ? places : 1, pager_total_count(s->options.pager) / tenants};
}

/* Victims in the order in which they would give way; sorted, since that order is total. */
static uint32_t list_victims(struct scheduler *s, uint32_t level, bool others)
{
    uint32_t count = 0;
    bool swapped;
    for (uint32_t i = 1; i < s->running_count; i++) {
        struct sequence *sequence = s->order[i];
        bool lower = scheduler_level(sequence->completion) > level;
        bool equal = scheduler_level(sequence->completion) == level;
        if (is_spent(sequence) || !sequence_has_pages(sequence) || !(lower || (equal && others)))
            continue;
        sequence->cost = scheduler_cost(s, sequence, &swapped);
        uint32_t at = count++;
        for (; at > 0 && gives_way_before(s, sequence, s->turns[at - 1]); at--)
            s->turns[at] = s->turns[at - 1];
        s->turns[at] = sequence;
    }
    return count;
}

bool scheduler_reclaim(struct scheduler *s, const struct completion *completion, uint64_t pages,
                       uint64_t own)
{
    const struct tenant *tenant = scheduler_tenant(s, completion);
    uint32_t level = scheduler_level(completion);
    bool place = s->free_list == NULL;
    count_holdings(s);
    struct parts parts = count_parts(s);
    /* From its equals a tenant takes back only what keeps it within its own part: so the other
       cannot take it back again. */
    bool entitled = tenant->pages + own <= parts.pages && tenant->places < parts.places;
    uint32_t count = list_victims(s, level, entitled), kept = 0;
    uint64_t found = 0;
    for (uint32_t i = 0; i < count && (found < pages || (place && kept == 0)); i++) {
        struct sequence *victim = s->turns[i];
        struct tenant *holder = scheduler_tenant(s, victim->completion);
        bool lower = scheduler_level(victim->completion) > level;
        bool has_more = holder != tenant &&
                        (holder->pages > parts.pages || (place && holder->places > parts.places));
        if (!lower && !has_more)
            continue;
        holder->pages -= sequence_pages(victim, s->options.pager);
        holder->places--;
        found += sequence_own_pages(victim, s->options.pager);
        s->turns[kept++] = victim;
    }
    if (found < pages || (place && kept == 0))
        return false;
    for (uint32_t i = 0; i < kept; i++)
        scheduler_preempt(s, s->turns[i]);
    return true;
}
