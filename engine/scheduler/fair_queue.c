/*
 * The waiting lists and the virtual token counters. fair_queue.h says the order; this file says how
 * it is maintained:
 *
 * - Each tenant has one sorted, doubly linked list of completions. A preempted completion is older
 *   than those that never ran, so finding its place is short; a new one goes to the end.
 * - Whatever makes a tenant backlogged lifts its counter first; whatever may end its backlog notes
 * it afterwards. Both happen around every change of waiting_count and prefill_count, nowhere else.
 * - fair_queue_next looks at every tenant once. It also says for how many tokens the answer holds,
 * so that tenants share a step without asking again for each token.
 */
#include "engine/scheduler/fair_queue.h"

#include "base/check.h"
#include "base/minmax.h"

/* How far a tenant may get ahead of another that wants tokens, too: two tiles of the kernels. */
#define TURN_TOKENS 16

/* ---- virtual counters ---- */

static bool is_backlogged(const struct tenant *tenant)
{
    return tenant->waiting_count + tenant->prefill_count > 0;
}

/* Before the tenant's backlog grows. */
static void lift(struct fair_queue *queue, struct tenant *tenant)
{
    if (is_backlogged(tenant))
        return;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < queue->tenant_count; i++) {
        if (is_backlogged(&queue->tenants[i]))
            least = min_u64(least, queue->tenants[i].served);
    }
    if (least == UINT64_MAX)
        least = queue->last_backlogged ? queue->last_backlogged->served : 0;
    tenant->served = max_u64(tenant->served, least);
}

/* After the tenant's backlog shrank. */
static void note_shrunk(struct fair_queue *queue, struct tenant *tenant)
{
    if (!is_backlogged(tenant))
        queue->last_backlogged = tenant;
}

void fair_queue_begin_prefill(struct fair_queue *queue, const struct completion *completion)
{
    struct tenant *tenant = fair_queue_tenant(queue, completion);
    lift(queue, tenant);
    tenant->prefill_count++;
}

void fair_queue_end_prefill(struct fair_queue *queue, const struct completion *completion)
{
    struct tenant *tenant = fair_queue_tenant(queue, completion);
    CHECK(tenant->prefill_count > 0);
    tenant->prefill_count--;
    note_shrunk(queue, tenant);
}

void fair_queue_charge(struct fair_queue *queue, const struct sequence *sequence, uint32_t end)
{
    uint32_t from = max_u32(sequence->record->charged, sequence->computed);
    if (end <= from)
        return;
    struct tenant *tenant = fair_queue_tenant(queue, sequence->completion);
    tenant->served += end - from;
    tenant->tokens += end - from;
    sequence->record->charged = end;
    metric_add(&queue->metrics->progress, end - from);
}

/* ---- waiting lists ---- */

/* Within one tenant. */
static bool is_served_before(const struct completion *a, const struct completion *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

static void list_insert(struct fair_queue *queue, struct completion *completion)
{
    struct tenant *tenant = fair_queue_tenant(queue, completion);
    lift(queue, tenant);
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
    queue->waiting_count++;
}

static void list_remove(struct fair_queue *queue, struct completion *completion)
{
    CHECK(completion->is_waiting);
    struct tenant *tenant = fair_queue_tenant(queue, completion);
    *(completion->next ? &completion->next->previous : &tenant->waiting_last) =
        completion->previous;
    *(completion->previous ? &completion->previous->next : &tenant->waiting_first) =
        completion->next;
    completion->next = completion->previous = NULL;
    completion->is_waiting = false;
    tenant->waiting_count--;
    queue->waiting_count--;
    note_shrunk(queue, tenant);
}

void fair_queue_push(struct fair_queue *queue, struct completion *completion, uint32_t index)
{
    completion->sequences[index].status = SEQUENCE_WAITING;
    completion->waiting_sequences++;
    if (!completion->is_waiting)
        list_insert(queue, completion);
}

void fair_queue_remove(struct fair_queue *queue, struct completion *completion, uint32_t index,
                       enum sequence_status status)
{
    CHECK(completion->sequences[index].status == SEQUENCE_WAITING);
    CHECK(completion->waiting_sequences > 0);
    completion->sequences[index].status = status;
    if (--completion->waiting_sequences == 0)
        list_remove(queue, completion);
}

void fair_queue_add(struct fair_queue *queue, struct completion *completion)
{
    completion->arrival = ++queue->arrivals;
    completion->next = completion->previous = NULL;
    completion->waiting_sequences = 0;
    for (uint32_t i = 0; i < completion->sequence_count; i++)
        fair_queue_push(queue, completion, i);
}

void fair_queue_count_dequeued(struct fair_queue *queue, struct completion *completion)
{
    if (completion->was_admitted)
        return;
    completion->was_admitted = true;
    struct tenant *tenant = fair_queue_tenant(queue, completion);
    tenant->dequeued++;
    tenant->dequeued_tokens += completion->prompt_count;
}

/* ---- whose turn it is ---- */

void fair_queue_begin_step(struct fair_queue *queue)
{
    queue->was_blocked = queue->is_blocked;
    queue->is_blocked = false;
    for (uint32_t i = 0; i < queue->tenant_count; i++)
        queue->tenants[i].is_blocked = false;
}

/* The first of each tenant's running prompts that still has tokens to schedule. */
static void find_prompts(struct fair_queue *queue, struct sequence *const *running, uint32_t count)
{
    for (uint32_t i = 0; i < queue->tenant_count; i++)
        queue->tenants[i].prompt = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct sequence *sequence = running[i];
        if (sequence->state != SEQUENCE_PREFILL ||
            sequence->computed + sequence->scheduled_tokens == sequence->token_count)
            continue;
        struct tenant *tenant = fair_queue_tenant(queue, sequence->completion);
        if (!tenant->prompt || is_served_before(sequence->completion, tenant->prompt->completion))
            tenant->prompt = sequence;
    }
}

/* What the tenant wants to be served next, or NULL. */
static struct completion *next_of(const struct fair_queue *queue, const struct tenant *tenant)
{
    struct completion *running = tenant->prompt ? tenant->prompt->completion : NULL;
    bool blocked = queue->is_blocked || tenant->is_blocked;
    struct completion *waiting = blocked ? NULL : tenant->waiting_first;
    if (!running || !waiting)
        return running ? running : waiting;
    return is_served_before(waiting, running) ? waiting : running;
}

/* By priority class, then by tokens served, then by arrival. */
static bool is_tenant_before(const struct tenant *a_tenant, const struct completion *a,
                             const struct tenant *b_tenant, const struct completion *b)
{
    uint32_t a_class = completion_priority_class(a), b_class = completion_priority_class(b);
    if (a_class != b_class)
        return a_class < b_class;
    if (a_tenant->served != b_tenant->served)
        return a_tenant->served < b_tenant->served;
    return a->arrival < b->arrival;
}

bool fair_queue_next(struct fair_queue *queue, struct sequence *const *running,
                     uint32_t running_count, struct fair_queue_turn *out)
{
    struct completion *best = NULL;
    uint64_t rival_served = UINT64_MAX; /* of the next tenant of the same class */
    find_prompts(queue, running, running_count);
    for (uint32_t i = 0; i < queue->tenant_count; i++) {
        struct tenant *tenant = &queue->tenants[i];
        struct completion *next = next_of(queue, tenant);
        if (!next)
            continue;
        bool before = !best || is_tenant_before(tenant, next, out->tenant, best);
        if (best && completion_priority_class(next) == completion_priority_class(best))
            rival_served = min_u64(rival_served, before ? out->tenant->served : tenant->served);
        else if (before)
            rival_served = UINT64_MAX;
        if (!before)
            continue;
        best = next;
        out->tenant = tenant;
    }
    if (!best)
        return false;
    struct sequence *prompt = out->tenant->prompt;
    out->prompt = prompt && prompt->completion == best ? prompt : NULL;
    out->waiting = out->prompt ? NULL : best;
    uint64_t ahead =
        rival_served == UINT64_MAX ? UINT64_MAX : rival_served - out->tenant->served + TURN_TOKENS;
    out->token_limit = (uint32_t)min_u64(ahead, UINT32_MAX);
    return true;
}

/* ---- check ---- */

static const char *check_list(const struct tenant *tenant, uint32_t *total)
{
    uint32_t count = 0;
    for (const struct completion *c = tenant->waiting_first; c; c = c->next) {
        if (!c->is_waiting || c->waiting_sequences == 0 ||
            (c->next ? c->next->previous : tenant->waiting_last) != c ||
            (c->next && !is_served_before(c, c->next)))
            return "a waiting list is broken";
        count++;
    }
    *total += count;
    return count == tenant->waiting_count ? NULL : "a waiting list's length is wrong";
}

const char *fair_queue_check(const struct fair_queue *queue, struct sequence *const *running,
                             uint32_t running_count)
{
    uint32_t total = 0;
    for (uint32_t t = 0; t < queue->tenant_count; t++) {
        const struct tenant *tenant = &queue->tenants[t];
        const char *trouble = check_list(tenant, &total);
        if (trouble)
            return trouble;
        uint32_t prefills = 0;
        for (uint32_t i = 0; i < running_count; i++)
            prefills += fair_queue_tenant(queue, running[i]->completion) == tenant &&
                        sequence_has_prompt(running[i]);
        if (prefills != tenant->prefill_count)
            return "a tenant has lost count of its prompts";
    }
    return total == queue->waiting_count ? NULL : "the number of waiting completions is wrong";
}
