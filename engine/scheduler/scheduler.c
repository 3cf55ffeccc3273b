/*
 * See scheduler.h: who has a place, how things end.
 */
#include "engine/scheduler/scheduler_private.h"

#include "base/bytes.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

struct layout {
    uint64_t sequences, tenants, order, entries, turns, tokens, batch_sequences, logits_rows,
        copies, samples, checked, tables, pages; /* offsets */
    uint32_t table_capacity;
    uint64_t bytes;
};

static uint64_t place(uint64_t *end, uint64_t count, uint64_t size)
{
    uint64_t at = *end;
    *end = bytes_align(at + count * size, 64);
    return at;
}

static struct layout layout_for(const struct scheduler_options *options, uint32_t page_size,
                                uint32_t group_count)
{
    struct layout layout;
    uint64_t n = options->max_sequences, tables = n * group_count;
    uint64_t end = bytes_align(sizeof(struct scheduler), 64);
    layout.table_capacity = kv_groups_pages(page_size, options->max_length);
    layout.sequences = place(&end, n, sizeof(struct sequence));
    layout.tenants = place(&end, options->tenant_count, sizeof(struct tenant));
    layout.order = place(&end, n, sizeof(struct sequence *));
    layout.entries = place(&end, n, sizeof(struct schedule_entry));
    layout.turns = place(&end, n, sizeof(struct sequence *));
    layout.tokens = place(&end, options->max_batch_tokens, sizeof(uint32_t));
    layout.batch_sequences = place(&end, n, sizeof(struct batch_sequence));
    layout.logits_rows = place(&end, n, sizeof(uint32_t));
    layout.copies = place(&end, tables, sizeof(struct page_copy));
    layout.samples = place(&end, n, sizeof(struct schedule_sample));
    layout.checked = place(&end, tables, sizeof(struct page_table *));
    layout.tables = place(&end, tables, sizeof(struct page_table));
    layout.pages = place(&end, tables * layout.table_capacity, sizeof(uint32_t));
    layout.bytes = end;
    return layout;
}

uint64_t scheduler_memory_bytes(const struct scheduler_options *options, uint32_t page_size,
                                uint32_t group_count)
{
    return layout_for(options, page_size, group_count).bytes;
}

static void make_places(struct scheduler *s, struct page_table *tables, uint32_t *pages)
{
    for (uint32_t i = s->options.max_sequences; i-- > 0;) {
        struct sequence *sequence = &s->sequences[i];
        sequence->tables = tables + (size_t)i * s->group_count;
        for (uint32_t g = 0; g < s->group_count; g++) {
            size_t at = ((size_t)i * s->group_count + g) * s->table_capacity;
            sequence->tables[g] =
                (struct page_table){.pages = pages + at, .capacity = s->table_capacity};
        }
        sequence->next_free = s->free_list;
        s->free_list = sequence;
    }
}

enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *error)
{
    CHECK(options->max_sequences >= 1 && options->max_batch_tokens >= 1);
    CHECK(options->tenant_count >= 1);
    uint32_t page_size = pager_page_size(options->pager);
    const struct kv_groups *groups = pager_groups(options->pager);
    struct layout layout = layout_for(options, page_size, groups->count);
    CHECK(kv_groups_need(groups, page_size, options->max_batch_tokens, options->max_length) <=
          pager_total_count(options->pager));
    char *memory = calloc(1, layout.bytes);
    if (!memory)
        return error_set(error, STATUS_IO, NULL, "no memory for %u sequences",
                         options->max_sequences);
    struct scheduler *s = (struct scheduler *)memory;
    s->options = *options;
    s->page_size = page_size;
    s->group_count = groups->count;
    s->table_capacity = layout.table_capacity;
    s->sequences = (struct sequence *)(memory + layout.sequences);
    s->tenants = (struct tenant *)(memory + layout.tenants);
    s->deadline_ns = UINT64_MAX;
    s->order = (struct sequence **)(memory + layout.order);
    s->entries = (struct schedule_entry *)(memory + layout.entries);
    s->turns = (struct sequence **)(memory + layout.turns);
    s->tokens = (uint32_t *)(memory + layout.tokens);
    s->batch_sequences = (struct batch_sequence *)(memory + layout.batch_sequences);
    s->logits_rows = (uint32_t *)(memory + layout.logits_rows);
    s->copies = (struct page_copy *)(memory + layout.copies);
    s->schedule.samples = (struct schedule_sample *)(memory + layout.samples);
    s->schedule.copies = s->copies;
    s->schedule.batch.tokens = s->tokens;
    s->schedule.batch.sequences = s->batch_sequences;
    s->schedule.batch.logits_rows = s->logits_rows;
    s->tables = (const struct page_table **)(memory + layout.checked);
    make_places(s, (struct page_table *)(memory + layout.tables),
                (uint32_t *)(memory + layout.pages));
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

/* ---- metrics ---- */

void scheduler_update_gauges(struct scheduler *s)
{
    struct engine_metrics *metrics = s->options.metrics;
    atomic_store(&metrics->requests_running, (int64_t)s->running_count);
    atomic_store(&metrics->requests_waiting, (int64_t)s->waiting_count);
    int64_t free_count = (int64_t)pager_free_count(s->options.pager);
    int64_t held = (int64_t)pager_total_count(s->options.pager) - free_count;
    atomic_store(&metrics->pages_free, free_count);
    if (held > atomic_load(&metrics->pages_held_max))
        atomic_store(&metrics->pages_held_max, held);
    atomic_store(&metrics->pages_cached, (int64_t)pager_cached_count(s->options.pager));
}

static void observe_end(struct scheduler *s, const struct completion *completion, uint64_t now_ns)
{
    struct engine_metrics *metrics = s->options.metrics;
    if (completion->first_token_ns == 0)
        return; /* cancelled or failed before it had anything to measure */
    metric_histogram_observe(&metrics->end_to_end,
                             scheduler_seconds(completion->submit_ns, now_ns));
    metric_histogram_observe(&metrics->queue_time,
                             scheduler_seconds(completion->submit_ns, completion->admit_ns));
    metric_histogram_observe(&metrics->prefill_time,
                             scheduler_seconds(completion->admit_ns, completion->first_token_ns));
    metric_histogram_observe(&metrics->decode_time,
                             scheduler_seconds(completion->first_token_ns, now_ns));
    metric_histogram_observe(&metrics->request_prompt_tokens, completion->prompt_count);
}

/* ---- arrivals ---- */

void scheduler_add(struct scheduler *s, struct completion *completion, uint64_t now_ns)
{
    CHECK(completion->prompt_count < s->options.max_length);
    CHECK(completion->tenant < s->options.tenant_count);
    uint32_t room = s->options.max_length - completion->prompt_count;
    completion->token_limit =
        completion->prompt_count + (completion->max_tokens < room ? completion->max_tokens : room);
    completion->arrival = ++s->arrivals;
    completion->next = completion->previous = NULL;
    completion->unfinished_choices = completion->choice_count;
    completion->waiting_choices = 0;
    if (completion->submit_ns == 0)
        completion->submit_ns = now_ns;
    if (completion->deadline_ns && completion->deadline_ns < s->deadline_ns)
        s->deadline_ns = completion->deadline_ns;
    for (uint32_t i = 0; i < completion->choice_count; i++)
        scheduler_start_waiting(s, completion, i);
    scheduler_update_gauges(s);
}

/* ---- places ---- */

struct sequence *scheduler_seat(struct scheduler *s, struct completion *completion, uint32_t choice)
{
    struct sequence *sequence = s->free_list;
    CHECK(sequence != NULL);
    s->free_list = sequence->next_free;
    scheduler_enter_prompt(s, completion); /* before it leaves the list: its backlog goes on */
    scheduler_stop_waiting(s, completion, choice, CHOICE_RUNNING);
    sequence_init(sequence, completion, choice);
    uint32_t at = s->running_count++;
    for (; at > 0 && scheduler_ranks_before(sequence, s->order[at - 1]); at--)
        s->order[at] = s->order[at - 1];
    s->order[at] = sequence;
    return sequence;
}

static void unseat(struct scheduler *s, struct sequence *sequence)
{
    uint32_t at = s->running_count;
    while (s->order[--at] != sequence)
        CHECK(at > 0);
    s->running_count--;
    memmove(&s->order[at], &s->order[at + 1], (s->running_count - at) * sizeof *s->order);
    if (scheduler_has_prompt(sequence))
        scheduler_leave_prompt(s, sequence->completion);
    sequence_clear(sequence, s->options.pager);
    sequence->next_free = s->free_list;
    s->free_list = sequence;
}

void scheduler_send_followers_back(struct scheduler *s, struct sequence *leader)
{
    for (uint32_t i = s->running_count; i-- > 0;) {
        struct sequence *follower = s->order[i];
        if (follower->leader != leader)
            continue;
        scheduler_start_waiting(s, follower->completion, follower->choice);
        unseat(s, follower);
    }
}

void scheduler_send_back(struct scheduler *s, struct sequence *sequence)
{
    scheduler_send_followers_back(s, sequence);
    scheduler_start_waiting(s, sequence->completion, sequence->choice);
    unseat(s, sequence);
}

/* ---- ends ---- */

void scheduler_mark_dirty(struct scheduler *s, struct completion *completion)
{
    if (completion->is_dirty)
        return;
    completion->is_dirty = true;
    completion->next_dirty = s->dirty;
    s->dirty = completion;
}

void scheduler_leave_queue(struct scheduler *s, struct completion *completion)
{
    if (completion->was_admitted)
        return;
    completion->was_admitted = true;
    struct tenant *tenant = scheduler_tenant(s, completion);
    tenant->dequeued++;
    tenant->dequeued_tokens += completion->prompt_count;
}

static void finish_choice(struct scheduler *s, struct completion *completion, uint32_t choice,
                          enum finish_reason reason, uint64_t now_ns)
{
    struct engine_metrics *metrics = s->options.metrics;
    completion->choices[choice].state = CHOICE_FINISHED;
    scheduler_drop_image(s, completion, choice);
    completion_finish(completion, choice, reason);
    metric_add(&metrics->finished[reason], 1);
    metric_add(&metrics->progress, 1);
    metric_histogram_observe(&metrics->request_generation_tokens,
                             completion_generated(completion, choice));
    CHECK(completion->unfinished_choices > 0);
    if (--completion->unfinished_choices > 0)
        return;
    scheduler_leave_queue(s, completion);
    observe_end(s, completion, now_ns);
    s->completed++;
}

void scheduler_settle(struct scheduler *s)
{
    while (s->dirty) {
        struct completion *completion = s->dirty;
        s->dirty = completion->next_dirty;
        completion->is_dirty = false;
        completion_wake(completion);
        if (completion->unfinished_choices == 0) {
            CHECK(!completion->is_waiting);
            completion_detach(completion);
        }
    }
}

void scheduler_end(struct scheduler *s, struct sequence *sequence, enum finish_reason reason,
                   uint64_t now_ns)
{
    struct completion *completion = sequence->completion;
    uint32_t choice = sequence->choice;
    unseat(s, sequence);
    finish_choice(s, completion, choice, reason, now_ns);
    scheduler_mark_dirty(s, completion);
}

/* Why a choice has to end now, or FINISH_NONE. Notes the deadlines of those who go on. */
static enum finish_reason end_of(struct scheduler *s, const struct completion *completion,
                                 uint32_t choice, uint64_t now_ns)
{
    if (completion_choice_cancelled(completion, choice))
        return FINISH_CANCELLED;
    uint64_t deadline_ns = completion->deadline_ns ? completion->deadline_ns : UINT64_MAX;
    if (now_ns >= deadline_ns)
        return FINISH_TIMEOUT;
    if (deadline_ns < s->deadline_ns)
        s->deadline_ns = deadline_ns;
    return FINISH_NONE;
}

static void sweep_waiting(struct scheduler *s, struct completion *completion, uint64_t now_ns)
{
    for (uint32_t i = 0; i < completion->choice_count; i++) {
        if (completion->choices[i].state != CHOICE_WAITING)
            continue;
        enum finish_reason reason = end_of(s, completion, i, now_ns);
        if (reason == FINISH_NONE)
            continue;
        scheduler_stop_waiting(s, completion, i, CHOICE_FINISHED);
        finish_choice(s, completion, i, reason, now_ns);
        scheduler_mark_dirty(s, completion);
    }
}

void scheduler_sweep(struct scheduler *s, uint64_t now_ns)
{
    s->deadline_ns = UINT64_MAX;
    /* From the end: followers before their leader. */
    for (uint32_t i = s->running_count; i-- > 0;) {
        struct sequence *sequence = s->order[i];
        enum finish_reason reason = end_of(s, sequence->completion, sequence->choice, now_ns);
        if (reason == FINISH_NONE)
            continue;
        for (uint32_t f = s->running_count; f-- > i + 1;) {
            if (s->order[f]->leader == sequence) {
                /* Its leader goes but it stays: back to the list, to lead or follow again. */
                struct sequence *follower = s->order[f];
                follower->leader = NULL;
                scheduler_send_back(s, follower);
            }
        }
        scheduler_end(s, sequence, reason, now_ns);
    }
    for (uint32_t t = 0; t < s->options.tenant_count; t++) {
        struct completion *next;
        for (struct completion *c = s->tenants[t].waiting_first; c; c = next) {
            next = c->next;
            sweep_waiting(s, c, now_ns);
        }
    }
    scheduler_update_gauges(s);
}

void scheduler_cancel_all(struct scheduler *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->running_count; i++)
        atomic_store(&s->order[i]->completion->choices[s->order[i]->choice].cancelled, true);
    for (uint32_t t = 0; t < s->options.tenant_count; t++) {
        for (struct completion *c = s->tenants[t].waiting_first; c; c = c->next) {
            for (uint32_t i = 0; i < c->choice_count; i++)
                atomic_store(&c->choices[i].cancelled, true);
        }
    }
    scheduler_sweep(s, now_ns);
    scheduler_settle(s);
    CHECK(!scheduler_has_work(s));
}

/* ---- questions ---- */

bool scheduler_has_work(const struct scheduler *s)
{
    return s->running_count > 0 || s->waiting_count > 0;
}

uint32_t scheduler_running_count(const struct scheduler *s)
{
    return s->running_count;
}

uint32_t scheduler_waiting_count(const struct scheduler *s)
{
    return s->waiting_count;
}

uint32_t scheduler_decoding_count(const struct scheduler *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->running_count; i++)
        count += s->order[i]->state == SEQUENCE_DECODING;
    return count;
}

uint64_t scheduler_deadline_ns(const struct scheduler *s)
{
    return s->deadline_ns;
}

void scheduler_tenant_counts(const struct scheduler *s, uint32_t tenant,
                             struct scheduler_tenant_counts *out)
{
    CHECK(tenant < s->options.tenant_count);
    *out = (struct scheduler_tenant_counts){
        .dequeued = s->tenants[tenant].dequeued,
        .dequeued_tokens = s->tenants[tenant].dequeued_tokens,
        .tokens = s->tenants[tenant].tokens,
    };
}

uint64_t scheduler_completed_count(const struct scheduler *s)
{
    return s->completed;
}

static const char *check_tables(const struct scheduler *s, const struct sequence *sequence)
{
    const struct kv_groups *groups = pager_groups(s->options.pager);
    uint32_t pages = kv_groups_pages(s->page_size, sequence->token_count);
    for (uint32_t g = 0; g < s->group_count; g++) {
        const struct page_table *table = &sequence->tables[g];
        uint32_t held = table->count - table->first;
        uint64_t most = kv_groups_most_pages(groups, g, s->page_size, s->options.max_batch_tokens,
                                             pages - table->first);
        if (table->count < kv_groups_pages(s->page_size, sequence->computed))
            return "a table is too short";
        if (table->first > kv_groups_first(groups, g, s->page_size, sequence->computed))
            return "a page was given back that is still seen";
        if (held > most || (scheduler_has_prompt(sequence) && held < most))
            return "a sequence has not the pages it needs, or more";
    }
    return NULL;
}

static const char *check_sequence(const struct scheduler *s, const struct sequence *sequence)
{
    const struct completion *completion = sequence->completion;
    if (!completion || completion->choices[sequence->choice].state != CHOICE_RUNNING)
        return "a place is held by a choice that does not run";
    if (sequence->token_count !=
        completion->prompt_count + completion_generated(completion, sequence->choice))
        return "a sequence has lost count of its tokens";
    if (sequence->state == SEQUENCE_FOLLOWING)
        return sequence_has_pages(sequence) || !sequence->leader ||
                       (sequence->leader->state != SEQUENCE_PROMPT &&
                        sequence->leader->state != SEQUENCE_RETURNING)
                   ? "a follower has pages or no leader"
                   : NULL;
    if (sequence->computed >= sequence->token_count)
        return "a sequence has nothing to compute";
    if (sequence->state == SEQUENCE_LEAVING)
        return sequence_has_pages(sequence) ? NULL : "it left, and is still there";
    if (sequence->state == SEQUENCE_DECODING && sequence->computed + 1 != sequence->token_count)
        return "a decoding sequence is behind";
    return check_tables(s, sequence);
}

static const char *check_lists(const struct scheduler *s)
{
    for (uint32_t i = 1; i < s->running_count; i++) {
        if (!scheduler_ranks_before(s->order[i - 1], s->order[i]))
            return "the running are not in the order of rank";
    }
    uint32_t free_count = 0;
    for (const struct sequence *free_place = s->free_list; free_place;
         free_place = free_place->next_free) {
        if (free_place->completion || sequence_has_pages(free_place))
            return "a free place is not empty";
        free_count++;
    }
    if (free_count + s->running_count != s->options.max_sequences)
        return "the number of places is wrong";
    return scheduler_check_queue(s);
}

bool scheduler_check(const struct scheduler *s, uint32_t *scratch, struct error *error)
{
    const char *trouble = check_lists(s);
    for (uint32_t i = 0; i < s->running_count && !trouble; i++) {
        for (uint32_t g = 0; g < s->group_count; g++)
            s->tables[i * s->group_count + g] = &s->order[i]->tables[g];
        trouble = check_sequence(s, s->order[i]);
    }
    if (!trouble)
        trouble = scheduler_check_swap(s);
    if (trouble) {
        error_set(error, STATUS_INTERNAL, NULL, "%s", trouble);
        return false;
    }
    return page_tables_check(s->tables, (size_t)s->running_count * s->group_count, s->options.pager,
                             scratch, error);
}
