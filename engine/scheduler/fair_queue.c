/*
 * See scheduler.h: who waits, and whose turn it is to have prompt rows.
 *
 * Between tenants the one that was served the fewest tokens comes first (the virtual token counter
 * of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). A token is charged
 * once, when its row is planned: prompt or answer, not if it came from the cache, not again when it
 * is recomputed. A tenant whose backlog begins is lifted to the least of those that are backlogged,
 * or to the one that was last: who asked for nothing has saved up nothing, and owes nothing for
 * having been alone. Within a tenant lower priority values come first, then who came first.
 *
 *     level = max(priority, 0)   over everything: urgent work of anybody first
 *     served                     between tenants of a level
 *     priority, arrival          within a tenant
 */
#include "engine/scheduler/scheduler_private.h"

#include "base/check.h"

/* Rows of one tenant in a row while others want some too: two tiles of the kernels. */
#define TURN_ROWS 16

/* ---- tenants ---- */

static bool is_backlogged(const struct tenant *tenant)
{
    return tenant->waiting_count + tenant->prompt_count > 0;
}

/* Before the tenant's backlog grows. */
static void lift(struct scheduler *s, struct tenant *tenant)
{
    if (is_backlogged(tenant))
        return;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < s->options.tenant_count; i++) {
        if (is_backlogged(&s->tenants[i]) && s->tenants[i].served < least)
            least = s->tenants[i].served;
    }
    if (least == UINT64_MAX)
        least = s->last_tenant ? s->last_tenant->served : 0;
    if (tenant->served < least)
        tenant->served = least;
}

/* After it shrank. */
static void note_shrunk(struct scheduler *s, struct tenant *tenant)
{
    if (!is_backlogged(tenant))
        s->last_tenant = tenant;
}

void scheduler_enter_prompt(struct scheduler *s, struct completion *completion)
{
    struct tenant *tenant = scheduler_tenant(s, completion);
    lift(s, tenant);
    tenant->prompt_count++;
}

void scheduler_leave_prompt(struct scheduler *s, struct completion *completion)
{
    struct tenant *tenant = scheduler_tenant(s, completion);
    CHECK(tenant->prompt_count > 0);
    tenant->prompt_count--;
    note_shrunk(s, tenant);
}

void scheduler_charge(struct scheduler *s, const struct sequence *sequence, uint32_t end)
{
    struct completion_choice *choice = &sequence->completion->choices[sequence->choice];
    uint32_t from = choice->charged > sequence->computed ? choice->charged : sequence->computed;
    if (end <= from)
        return;
    struct tenant *tenant = scheduler_tenant(s, sequence->completion);
    tenant->served += end - from;
    tenant->tokens += end - from;
    choice->charged = end;
    metric_add(&s->options.metrics->progress, end - from);
}

/* ---- the waiting lists ---- */

/* Of one tenant. */
static bool is_served_before(const struct completion *a, const struct completion *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

static void waiting_insert(struct scheduler *s, struct completion *completion)
{
    struct tenant *tenant = scheduler_tenant(s, completion);
    lift(s, tenant);
    /* Who comes back is older than who never ran, so the walk is short; who is new goes to the end.
     */
    struct completion *after = tenant->waiting_last;
    if (after && is_served_before(completion, after)) {
        after = NULL;
        for (struct completion *next = tenant->waiting_first; is_served_before(next, completion);
             next = next->next)
            after = next;
    }
    completion->previous = after;
    completion->next = after ? after->next : tenant->waiting_first;
    *(completion->next ? &completion->next->previous : &tenant->waiting_last) = completion;
    *(after ? &after->next : &tenant->waiting_first) = completion;
    completion->is_waiting = true;
    tenant->waiting_count++;
    s->waiting_count++;
}

static void waiting_remove(struct scheduler *s, struct completion *completion)
{
    CHECK(completion->is_waiting);
    struct tenant *tenant = scheduler_tenant(s, completion);
    *(completion->next ? &completion->next->previous : &tenant->waiting_last) =
        completion->previous;
    *(completion->previous ? &completion->previous->next : &tenant->waiting_first) =
        completion->next;
    completion->next = completion->previous = NULL;
    completion->is_waiting = false;
    tenant->waiting_count--;
    s->waiting_count--;
    note_shrunk(s, tenant);
}

void scheduler_start_waiting(struct scheduler *s, struct completion *completion, uint32_t choice)
{
    completion->choices[choice].state = CHOICE_WAITING;
    completion->waiting_choices++;
    if (!completion->is_waiting)
        waiting_insert(s, completion);
}

void scheduler_stop_waiting(struct scheduler *s, struct completion *completion, uint32_t choice,
                            enum choice_state state)
{
    CHECK(completion->choices[choice].state == CHOICE_WAITING && completion->waiting_choices > 0);
    completion->choices[choice].state = state;
    if (--completion->waiting_choices == 0)
        waiting_remove(s, completion);
}

/* ---- turns ---- */

uint32_t scheduler_planned_rows(const struct scheduler *s, const struct sequence *sequence)
{
    return sequence->last_step == s->step ? s->entries[sequence->entry].row_count : 0;
}

/* The first of each tenant's running prompts that still has rows to plan. */
static void find_prompts(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->options.tenant_count; i++)
        s->tenants[i].prompt = NULL;
    for (uint32_t i = 0; i < s->running_count; i++) {
        struct sequence *sequence = s->order[i];
        if (sequence->state != SEQUENCE_PROMPT ||
            sequence->computed + scheduler_planned_rows(s, sequence) == sequence->token_count)
            continue;
        struct tenant *tenant = scheduler_tenant(s, sequence->completion);
        if (!tenant->prompt || is_served_before(sequence->completion, tenant->prompt->completion))
            tenant->prompt = sequence;
    }
}

/* What the tenant wants to be served next, or NULL. */
static struct completion *next_of(const struct scheduler *s, const struct tenant *tenant)
{
    struct completion *running = tenant->prompt ? tenant->prompt->completion : NULL;
    bool blocked = s->blocked_step == s->step || tenant->blocked_step == s->step;
    struct completion *waiting = blocked ? NULL : tenant->waiting_first;
    if (!running || !waiting)
        return running ? running : waiting;
    return is_served_before(waiting, running) ? waiting : running;
}

bool scheduler_pick(struct scheduler *s, struct scheduler_turn *out)
{
    struct completion *best = NULL;
    uint64_t rival_served = UINT64_MAX; /* of the next tenant of the same level */
    find_prompts(s);
    for (uint32_t i = 0; i < s->options.tenant_count; i++) {
        struct tenant *tenant = &s->tenants[i];
        struct completion *next = next_of(s, tenant);
        if (!next)
            continue;
        if (best) {
            uint64_t best_served = out->tenant->served;
            uint32_t level = scheduler_level(next), best_level = scheduler_level(best);
            bool before = level != best_level             ? level < best_level
                          : tenant->served != best_served ? tenant->served < best_served
                                                          : next->arrival < best->arrival;
            if (level == best_level) {
                uint64_t other = before ? best_served : tenant->served;
                rival_served = other < rival_served ? other : rival_served;
            } else if (before) {
                rival_served = UINT64_MAX;
            }
            if (!before)
                continue;
        }
        best = next;
        out->tenant = tenant;
    }
    if (!best)
        return false;
    struct sequence *prompt = out->tenant->prompt;
    out->prompt = prompt && prompt->completion == best ? prompt : NULL;
    out->waiting = out->prompt ? NULL : best;
    uint64_t ahead =
        rival_served == UINT64_MAX ? UINT32_MAX : rival_served - out->tenant->served + TURN_ROWS;
    out->row_limit = ahead < UINT32_MAX ? (uint32_t)ahead : UINT32_MAX;
    return true;
}

/* ---- check ---- */

static const char *check_waiting(const struct tenant *tenant, uint32_t *total)
{
    uint32_t count = 0;
    for (const struct completion *c = tenant->waiting_first; c; c = c->next) {
        if (!c->is_waiting || c->waiting_choices == 0 ||
            (c->next ? c->next->previous : tenant->waiting_last) != c ||
            (c->next && !is_served_before(c, c->next)))
            return "a waiting list is broken";
        count++;
    }
    *total += count;
    return count == tenant->waiting_count ? NULL : "a waiting list's length is wrong";
}

const char *scheduler_check_queue(const struct scheduler *s)
{
    uint32_t total = 0;
    for (uint32_t t = 0; t < s->options.tenant_count; t++) {
        const struct tenant *tenant = &s->tenants[t];
        const char *trouble = check_waiting(tenant, &total);
        if (trouble)
            return trouble;
        uint32_t prompts = 0;
        for (uint32_t i = 0; i < s->running_count; i++)
            prompts += scheduler_tenant(s, s->order[i]->completion) == tenant &&
                       scheduler_has_prompt(s->order[i]);
        if (prompts != tenant->prompt_count)
            return "a tenant has lost count of its prompts";
    }
    return total == s->waiting_count ? NULL : "the number of those who wait is wrong";
}
