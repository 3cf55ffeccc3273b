/*
 * Admitting waiting sequences. The need of a sequence is counted in pages: what it starts with,
 * minus what the prefix cache has in use already, plus what the running sequences take next. If
 * that fits, it takes a slot and its pages at once.
 *
 * The need is counted with the page tables of the first free slot as scratch: pager_find writes the
 * pages it found there, and the sequence that takes the slot finds them in its tables.
 */
#include "engine/scheduler/admission.h"

#include "base/check.h"
#include "base/minmax.h"

#include <string.h>

bool admission_uses_cache(const struct admission *a, const struct completion *completion)
{
    return a->prefix_cache && completion->use_prefix_cache;
}

static uint32_t first_waiting(const struct completion *completion)
{
    uint32_t index = 0;
    while (completion->sequences[index].status != SEQUENCE_WAITING)
        CHECK(++index < completion->sequence_count);
    return index;
}

/* Is a running prompt about to compute and publish page `page` of the same tokens? Then waiting for
   it is cheaper than computing the page again, and costs no time: prompts are computed one after
   the other. */
static bool is_prefix_being_computed(const struct admission *a, const struct completion *completion,
                                     const uint32_t *tokens, uint32_t token_count, uint32_t page)
{
    uint32_t length = (page + 1) * a->slots->page_size;
    if (length >= token_count)
        return false; /* the last token is computed in any case */
    for (uint32_t i = 0; i < a->slots->count; i++) {
        const struct sequence *other = a->slots->order[i];
        if (other->state == SEQUENCE_PREFILL && admission_uses_cache(a, other->completion) &&
            other->completion->cache_salt == completion->cache_salt && other->computed < length &&
            length <= other->token_count &&
            memcmp(other->record->history, tokens, length * sizeof *tokens) == 0)
            return true;
    }
    return false;
}

/* What admitting a waiting sequence takes. */
struct need {
    struct sequence_origin origin;
    uint64_t initial_pages;
    uint64_t missing_pages; /* not free, of those it takes and those that must be left over */
};

static bool needs_worst_case(const struct admission *a, const struct completion_sequence *record)
{
    return preemption_limit_reached(record) || preemption_any_limit_reached(a->preemption);
}

static void count_pages(const struct admission *a, const struct completion *completion,
                        uint32_t index, uint32_t token_count, struct need *need)
{
    const struct slots *slots = a->slots;
    const struct pager *pager = slots->pager;
    uint32_t chunk = slots->max_batch_tokens;
    bool worst_case = needs_worst_case(a, &completion->sequences[index]);
    need->initial_pages = sequence_initial_pages(pager, token_count, chunk, &need->origin);
    uint64_t pages = need->initial_pages - need->origin.match.referenced_count;
    if (worst_case)
        pages = sequence_worst_case_pages(pager, completion->token_limit, chunk, &need->origin);
    for (uint32_t i = 0; i < slots->count; i++)
        pages += worst_case ? sequence_worst_case_growth(slots->order[i], pager, chunk)
                            : sequence_next_growth(slots->order[i], pager);
    uint64_t free_count = pager_free_count(pager);
    need->missing_pages = max_u64(pages, free_count) - free_count;
}

/* What the first waiting sequence of the completion needs. false: it waits for a prefix that is
   being computed. */
static bool find_need(struct admission *a, struct completion *completion, struct need *need)
{
    struct slots *slots = a->slots;
    uint32_t index = first_waiting(completion);
    const uint32_t *tokens = completion->sequences[index].history;
    uint32_t token_count = completion_token_count(completion, index);
    bool looks_up = slots->free_first && admission_uses_cache(a, completion);
    *need = (struct need){0};
    if (looks_up)
        pager_find(slots->pager, tokens, token_count, completion->cache_salt,
                   slots->free_first->tables[0].pages, slots->table_capacity, &need->origin.match);
    need->origin.computed = need->origin.match.page_count * slots->page_size;
    swap_extend_origin(a->swap, completion, index, &need->origin);
    if (looks_up && is_prefix_being_computed(a, completion, tokens, token_count,
                                             need->origin.computed / slots->page_size))
        return false;
    count_pages(a, completion, index, token_count, need);
    return true;
}

/* The sequences of the parent's completion that have no output yet become its pending forks. */
static void take_fork_slots(struct admission *a, struct sequence *parent)
{
    struct completion *completion = parent->completion;
    for (uint32_t i = parent->index + 1; i < completion->sequence_count && a->slots->free_first;
         i++) {
        struct completion_sequence *record = &completion->sequences[i];
        if (record->status != SEQUENCE_WAITING || completion_output_count(completion, i))
            continue;
        if (needs_worst_case(a, record)) {
            struct need need = {0};
            count_pages(a, completion, i, completion->prompt_count, &need);
            if (need.missing_pages > 0)
                return;
        }
        swap_drop(a->swap, completion, i); /* of its own prompt: it gets the parent's pages now */
        struct sequence *fork = slots_take(a->slots, completion, i);
        fair_queue_end_prefill(a->slots->queue, completion);
        fork->state = SEQUENCE_PENDING_FORK;
        fork->parent = parent;
    }
}

static void count_first_admission(struct admission *a, struct completion *completion,
                                  const struct pager_match *match, uint64_t now_ns)
{
    if (completion->was_admitted)
        return;
    uint32_t cached_tokens = match->page_count * a->slots->page_size;
    fair_queue_count_dequeued(a->slots->queue, completion);
    completion->admit_ns = now_ns;
    atomic_store_explicit(&completion->cached_count, cached_tokens, memory_order_release);
    if (admission_uses_cache(a, completion)) {
        metric_add(&a->metrics->prefix_queries, completion->prompt_count);
        metric_add(&a->metrics->prefix_hits, cached_tokens);
        metric_add(&a->metrics->cache_dir_hit_tokens,
                   (uint64_t)match->restored_count * a->slots->page_size);
    }
}

/* A slot for the first waiting sequence of the completion, with the pages it needs. */
static struct sequence *admit(struct admission *a, struct completion *completion,
                              const struct need *need, uint64_t now_ns)
{
    struct slots *slots = a->slots;
    struct sequence *sequence = slots_take(slots, completion, first_waiting(completion));
    sequence_start(sequence, slots->pager, slots->max_batch_tokens, &need->origin);
    if (sequence->state == SEQUENCE_SWAPPING_IN)
        swap_start_in(a->swap, sequence);
    count_first_admission(a, completion, &need->origin.match, now_ns);
    if (sequence->token_count == completion->prompt_count)
        take_fork_slots(a, sequence);
    return sequence;
}

struct sequence *admission_next_prompt(struct admission *a, uint32_t *token_limit, uint64_t now_ns)
{
    struct slots *slots = a->slots;
    struct fair_queue_turn turn;
    while (fair_queue_next(slots->queue, slots->order, slots->count, &turn)) {
        *token_limit = turn.token_limit;
        if (turn.prompt)
            return turn.prompt;
        struct need need;
        if (a->whole_prompts && turn.waiting->prompt_count > a->token_room) {
            slots->queue->is_blocked = true;
        } else if (!find_need(a, turn.waiting, &need)) {
            turn.tenant->is_blocked = true;
        } else if (!slots->free_first || need.missing_pages > 0) {
            slots->queue->is_blocked = true;
        } else {
            struct sequence *sequence = admit(a, turn.waiting, &need, now_ns);
            if (sequence->state == SEQUENCE_PREFILL)
                return sequence; /* else it is swapped in first: the next turn */
        }
    }
    return NULL;
}

void admission_reclaim(struct admission *a)
{
    const struct slots *slots = a->slots;
    struct fair_queue_turn turn;
    struct need need;
    if (swap_is_writing(a->swap))
        return; /* pages will soon be free */
    if (!slots->queue->was_blocked ||
        !fair_queue_next(slots->queue, slots->order, slots->count, &turn) || !turn.waiting ||
        !preemption_could_serve(a->preemption, turn.waiting) || !find_need(a, turn.waiting, &need))
        return;
    if (!slots->free_first || need.missing_pages > 0)
        preemption_reclaim(a->preemption, turn.waiting, need.missing_pages, need.initial_pages);
}
