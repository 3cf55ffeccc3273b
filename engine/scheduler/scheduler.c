/*
 * The scheduler's step in the order of its decisions: scheduler_next and scheduler_commit. How each
 * decision is made is its object's; this file says which comes before which, and shares the tokens
 * of a step between decoding and prompts.
 *
 * Pages move to and from the swap file first, and sequences are preempted before anything is
 * scheduled, so nothing that is scheduled has to be taken back. Decoding sequences get their pages
 * before prompts are admitted: what little room there is belongs to those that run.
 */
#include "engine/scheduler/scheduler_private.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/minmax.h"

#include <stdlib.h>

/* While more sequences decode than a step has tokens, prompts get tokens at least every so many
   steps and one. */
#define STARVED_STEPS_MAX 3

/* ---- memory ---- */

struct layout {
    struct schedule_sample *samples;
    struct page_table *tables;
    uint32_t *pages;
};

/* The arrays, behind the struct: see base/arena.h. options and slots' sizes are set. */
static struct layout lay_out(struct arena *arena, struct scheduler *s)
{
    struct slots *slots = &s->slots;
    struct step *step = &s->step;
    uint64_t n = slots->slot_count, tenants = s->options.tenant_count;
    uint64_t tables = n * slots->group_count;
    struct layout layout;
    arena_take(arena, 1, sizeof *s);
    slots->sequences = arena_take(arena, n, sizeof *slots->sequences);
    slots->order = arena_take(arena, n, sizeof *slots->order);
    s->queue.tenants = arena_take(arena, tenants, sizeof *s->queue.tenants);
    s->preemption.shares = arena_take(arena, tenants, sizeof *s->preemption.shares);
    s->preemption.candidates = arena_take(arena, n, sizeof *s->preemption.candidates);
    step->sequences = arena_take(arena, n, sizeof *step->sequences);
    step->candidates = arena_take(arena, n, sizeof *step->candidates);
    step->tokens = arena_take(arena, s->options.max_batch_tokens, sizeof *step->tokens);
    step->batch_sequences = arena_take(arena, n, sizeof *step->batch_sequences);
    step->logits_rows = arena_take(arena, s->options.max_batch_tokens, sizeof *step->logits_rows);
    step->poolings = arena_take(arena, n, sizeof *step->poolings);
    step->copies = arena_take(arena, tables, sizeof *step->copies);
    layout.samples = arena_take(arena, n, sizeof *layout.samples);
    s->tables = arena_take(arena, tables, sizeof *s->tables);
    layout.tables = arena_take(arena, tables, sizeof *layout.tables);
    layout.pages = arena_take(arena, tables * slots->table_capacity, sizeof *layout.pages);
    return layout;
}

static void set_sizes(struct scheduler *s, const struct scheduler_options *options,
                      uint32_t page_size, uint32_t group_count)
{
    s->options = *options;
    s->slots.slot_count = options->max_sequences;
    s->slots.page_size = page_size;
    s->slots.group_count = group_count;
    s->slots.table_capacity = kv_groups_pages(page_size, options->max_length);
    s->slots.max_batch_tokens = options->max_batch_tokens;
}

uint64_t scheduler_memory_bytes(const struct scheduler_options *options, uint32_t page_size,
                                uint32_t group_count)
{
    struct arena arena = {0};
    struct scheduler counted;
    set_sizes(&counted, options, page_size, group_count);
    lay_out(&arena, &counted);
    return arena.used_bytes;
}

static void connect(struct scheduler *s)
{
    const struct scheduler_options *options = &s->options;
    s->queue.tenant_count = options->tenant_count;
    s->queue.metrics = options->metrics;
    s->slots.pager = options->pager;
    s->slots.queue = &s->queue;
    s->swap.file = options->swap;
    s->swap.slots = &s->slots;
    s->swap.metrics = options->metrics;
    s->preemption.slots = &s->slots;
    s->preemption.swap = &s->swap;
    s->preemption.metrics = options->metrics;
    s->admission = (struct admission){
        &s->slots,
        &s->swap,
        &s->preemption,
        options->metrics,
        options->prefix_cache,
        options->whole_prompts,
        0,
    };
    s->results = (struct results){
        .slots = &s->slots,
        .swap = &s->swap,
        .metrics = options->metrics,
        .end_tokens = options->end_tokens,
        .end_token_count = options->end_token_count,
    };
}

enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *error)
{
    CHECK(options->max_sequences >= 1 && options->max_batch_tokens >= 1);
    CHECK(options->tenant_count >= 1);
    CHECK(!options->whole_prompts || options->max_length <= options->max_batch_tokens);
    uint32_t page_size = pager_page_size(options->pager);
    const struct kv_groups *groups = pager_groups(options->pager);
    CHECK(kv_groups_need(groups, page_size, options->max_batch_tokens, options->max_length) <=
          pager_total_count(options->pager));
    struct scheduler *s = calloc(1, scheduler_memory_bytes(options, page_size, groups->count));
    if (!s)
        return error_set(error, STATUS_IO, NULL, "no memory for %u sequences",
                         options->max_sequences);
    struct arena arena = {.memory = (char *)s};
    set_sizes(s, options, page_size, groups->count);
    struct layout layout = lay_out(&arena, s);
    connect(s);
    slots_init(&s->slots, layout.tables, layout.pages);
    step_init(&s->step, &s->slots, layout.samples);
    s->deadline_ns = UINT64_MAX;
    *out = s;
    return STATUS_OK;
}

void scheduler_destroy(struct scheduler *s)
{
    if (!s)
        return;
    CHECK(!scheduler_has_work(s));
    free(s);
}

static void update_gauges(struct scheduler *s)
{
    struct engine_metrics *metrics = s->options.metrics;
    atomic_store(&metrics->requests_running, (int64_t)s->slots.count);
    atomic_store(&metrics->requests_waiting, (int64_t)s->queue.waiting_count);
    int64_t free_count = (int64_t)pager_free_count(s->options.pager);
    int64_t used = (int64_t)pager_total_count(s->options.pager) - free_count;
    atomic_store(&metrics->pages_free, free_count);
    if (used > atomic_load(&metrics->pages_held_max))
        atomic_store(&metrics->pages_held_max, used);
    atomic_store(&metrics->pages_cached, (int64_t)pager_cached_count(s->options.pager));
}

/* ---- arrivals, cancels, deadlines ---- */

void scheduler_add(struct scheduler *s, struct completion *completion, uint64_t now_ns)
{
    CHECK(completion->prompt_count + !completion->pooling <= s->options.max_length);
    CHECK(completion->tenant < s->options.tenant_count);
    uint32_t room = s->options.max_length - completion->prompt_count;
    completion->token_limit = completion->prompt_count + min_u32(completion->max_tokens, room);
    completion->unfinished_sequences = completion->sequence_count;
    if (completion->submit_ns == 0)
        completion->submit_ns = now_ns;
    if (completion->deadline_ns)
        s->deadline_ns = min_u64(s->deadline_ns, completion->deadline_ns);
    fair_queue_add(&s->queue, completion);
    update_gauges(s);
}

/* Why a sequence has to end now, or FINISH_NONE. Notes the deadlines of those that go on. */
static enum finish_reason reason_to_end(struct scheduler *s, const struct completion *completion,
                                        uint32_t index, uint64_t now_ns)
{
    if (completion_is_cancelled(completion, index))
        return atomic_load(&completion->sequences[index].stopped) ? FINISH_STOP : FINISH_CANCELLED;
    uint64_t deadline_ns = completion->deadline_ns ? completion->deadline_ns : UINT64_MAX;
    if (now_ns >= deadline_ns)
        return FINISH_TIMEOUT;
    s->deadline_ns = min_u64(s->deadline_ns, deadline_ns);
    return FINISH_NONE;
}

static void sweep_waiting(struct scheduler *s, struct completion *completion, uint64_t now_ns)
{
    for (uint32_t i = 0; i < completion->sequence_count; i++) {
        if (completion->sequences[i].status != SEQUENCE_WAITING)
            continue;
        enum finish_reason reason = reason_to_end(s, completion, i, now_ns);
        if (reason != FINISH_NONE)
            results_end_waiting(&s->results, completion, i, reason, now_ns);
    }
}

void scheduler_sweep(struct scheduler *s, uint64_t now_ns)
{
    s->deadline_ns = UINT64_MAX;
    /* From the end, so that forks come before their parent: those that stay when it ends wait
     * again. */
    for (uint32_t i = s->slots.count; i-- > 0;) {
        struct sequence *sequence = s->slots.order[i];
        enum finish_reason reason = reason_to_end(s, sequence->completion, sequence->index, now_ns);
        if (reason == FINISH_NONE)
            continue;
        slots_requeue_forks(&s->slots, sequence);
        results_end_running(&s->results, sequence, reason, now_ns);
    }
    for (uint32_t t = 0; t < s->queue.tenant_count; t++) {
        struct completion *next;
        for (struct completion *c = s->queue.tenants[t].waiting_first; c; c = next) {
            next = c->next;
            sweep_waiting(s, c, now_ns);
        }
    }
    update_gauges(s);
}

void scheduler_cancel_all(struct scheduler *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->slots.count; i++)
        atomic_store(&s->slots.order[i]->record->cancelled, true);
    for (uint32_t t = 0; t < s->queue.tenant_count; t++) {
        for (struct completion *c = s->queue.tenants[t].waiting_first; c; c = c->next) {
            for (uint32_t i = 0; i < c->sequence_count; i++)
                atomic_store(&c->sequences[i].cancelled, true);
        }
    }
    scheduler_sweep(s, now_ns);
    scheduler_notify(s);
    CHECK(!scheduler_has_work(s));
}

/* ---- the step ---- */

/* How many sequences may decode in this step. If they could fill it alone, prompts get half of it
   after STARVED_STEPS_MAX steps without a token; whoever waits is admitted for that. */
static uint32_t decoding_limit(struct scheduler *s, uint64_t now_ns)
{
    uint32_t all = s->options.max_batch_tokens, token_limit;
    if (slots_decoding_count(&s->slots) < all) {
        s->starved_steps = 0;
        return all;
    }
    if (s->queue.waiting_count == 0 && !slots_find(&s->slots, SEQUENCE_PREFILL))
        return all;
    if (s->starved_steps < STARVED_STEPS_MAX) {
        s->starved_steps++;
        return all;
    }
    if (!admission_next_prompt(&s->admission, &token_limit, now_ns))
        return all;
    s->starved_steps = 0;
    return all - max_u32(all / 2, 1);
}

static void schedule_decoding(struct scheduler *s, uint32_t limit)
{
    step_select_decoding(&s->step, limit);
    /* Forced tokens leave half of the rest to prompts. */
    if (s->queue.waiting_count > 0 || slots_find(&s->slots, SEQUENCE_PREFILL))
        s->step.spare_tokens /= 2;
    if (preemption_secure_pages(&s->preemption))
        s->queue.is_blocked = true;
    step_take_pages(&s->step);
}

static void schedule_prompts(struct scheduler *s, uint32_t tokens, uint64_t now_ns)
{
    uint32_t token_limit;
    while (tokens > 0) {
        s->admission.token_room = tokens;
        struct sequence *prompt = admission_next_prompt(&s->admission, &token_limit, now_ns);
        if (!prompt)
            return;
        if (s->options.whole_prompts) /* which has room: admission has looked */
            token_limit = prompt->token_count;
        tokens -= step_add_prompt(&s->step, prompt, min_u32(tokens, token_limit));
    }
}

const struct schedule *scheduler_next(struct scheduler *s, uint32_t prompt_token_limit,
                                      uint64_t now_ns)
{
    CHECK(prompt_token_limit >= 1);
    struct step *step = &s->step;
    step_begin(step);
    fair_queue_begin_step(&s->queue);
    /* 1. Pages go to the swap file and come back. */
    swap_move_pages(&s->swap);
    if (s->options.test_preempt_every && step->number % s->options.test_preempt_every == 0)
        preemption_force_one(&s->preemption);
    /* 2. The first in the queue, if it was blocked in the last step, may have others preempted. */
    admission_reclaim(&s->admission);
    /* 3. Decoding sequences get their pages, others are preempted for them, and their tokens. If
       all that were selected were preempted, others are selected. */
    schedule_decoding(s, decoding_limit(s, now_ns));
    while (step->sequence_count == 0 && slots_decoding_count(&s->slots) > 0 &&
           !slots_find(&s->slots, SEQUENCE_PREFILL))
        schedule_decoding(s, s->options.max_batch_tokens);
    /* 4. Prompts get the rest, running ones and those that are admitted now. */
    uint32_t rest = s->options.max_batch_tokens - step->schedule.decode_token_count;
    schedule_prompts(s, min_u32(rest, prompt_token_limit), now_ns);
    /* 5. The batch, the page copies and the samples. Without tokens, the next call moves more
     * pages. */
    CHECK(step->sequence_count > 0 || (step->schedule.copy_count == 0 && swap_is_moving(&s->swap)));
    step_fill_batch(step);
    update_gauges(s);
    return &step->schedule;
}

static void count_step(struct engine_metrics *metrics, const struct batch *batch)
{
    metric_add(&metrics->steps, 1);
    metric_add(&metrics->rows_computed, batch->row_count);
    metric_histogram_observe(&metrics->iteration_tokens, batch->row_count);
    if (batch->row_count > metric_get(&metrics->step_rows_max))
        atomic_store(&metrics->step_rows_max, batch->row_count);
    if (batch->sequence_count > metric_get(&metrics->step_sequences_max))
        atomic_store(&metrics->step_sequences_max, batch->sequence_count);
}

void scheduler_commit(struct scheduler *s, uint64_t now_ns)
{
    struct step *step = &s->step;
    const struct schedule *schedule = &step->schedule;
    for (uint32_t i = 0; i < step->sequence_count; i++) {
        struct sequence *sequence = step->sequences[i];
        sequence_advance(sequence, s->options.pager, sequence->scheduled_tokens,
                         admission_uses_cache(&s->admission, sequence->completion));
    }
    /* All forks get their parent's pages before any sequence ends: the parent's may end, too. */
    for (uint32_t i = 0; i < schedule->sample_count; i++) {
        struct sequence *sequence = schedule->samples[i].sequence;
        if (sequence->state == SEQUENCE_PENDING_FORK)
            sequence_fork(sequence, s->options.pager, sequence->parent);
    }
    for (uint32_t i = 0; i < schedule->pooling_count; i++)
        results_apply_pooling(&s->results, &schedule->poolings[i], now_ns);
    for (uint32_t i = 0; i < schedule->sample_count; i++)
        results_apply_sample(&s->results, &schedule->samples[i], now_ns);
    count_step(s->options.metrics, &schedule->batch);
    step->sequence_count = 0;
    update_gauges(s);
}

void scheduler_notify(struct scheduler *s)
{
    results_notify(&s->results);
}

/* ---- questions ---- */

bool scheduler_has_work(const struct scheduler *s)
{
    return s->slots.count > 0 || s->queue.waiting_count > 0;
}

uint32_t scheduler_running_count(const struct scheduler *s)
{
    return s->slots.count;
}

uint32_t scheduler_waiting_count(const struct scheduler *s)
{
    return s->queue.waiting_count;
}

uint32_t scheduler_decoding_count(const struct scheduler *s)
{
    return slots_decoding_count(&s->slots);
}

uint64_t scheduler_deadline_ns(const struct scheduler *s)
{
    return s->deadline_ns;
}

void scheduler_tenant_counts(const struct scheduler *s, uint32_t tenant,
                             struct scheduler_tenant_counts *out)
{
    CHECK(tenant < s->options.tenant_count);
    const struct tenant *counts = &s->queue.tenants[tenant];
    *out = (struct scheduler_tenant_counts){
        .dequeued = counts->dequeued,
        .dequeued_tokens = counts->dequeued_tokens,
        .tokens = counts->tokens,
    };
}

uint64_t scheduler_completed_count(const struct scheduler *s)
{
    return s->results.completed;
}
