/*
 * See scheduler.h: who waits, who has a place, how things end. What a step does is
 * scheduler_step.c's.
 */
#include "engine/scheduler_private.h"

#include "base/bytes.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

struct layout {
    uint64_t sequences, order, entries, turns, tokens, batch_sequences, logits_rows, copies,
        samples, tables, pages; /* offsets */
    uint32_t table_capacity;
    uint64_t bytes;
};

static uint64_t place(uint64_t *end, uint64_t count, uint64_t size)
{
    uint64_t at = *end;
    *end = bytes_align(at + count * size, 64);
    return at;
}

static struct layout layout_for(const struct scheduler_options *options, uint32_t page_size)
{
    struct layout layout;
    uint64_t n = options->max_sequences;
    uint64_t end = bytes_align(sizeof(struct scheduler), 64);
    layout.table_capacity = pager_pages_for(page_size, options->max_length);
    layout.sequences = place(&end, n, sizeof(struct sequence));
    layout.order = place(&end, n, sizeof(struct sequence *));
    layout.entries = place(&end, n, sizeof(struct schedule_entry));
    layout.turns = place(&end, n, sizeof(struct sequence *));
    layout.tokens = place(&end, options->max_batch_tokens, sizeof(uint32_t));
    layout.batch_sequences = place(&end, n, sizeof(struct batch_sequence));
    layout.logits_rows = place(&end, n, sizeof(uint32_t));
    layout.copies = place(&end, n, sizeof(struct schedule_copy));
    layout.samples = place(&end, n, sizeof(struct schedule_sample));
    layout.tables = place(&end, n, sizeof(struct page_table *));
    layout.pages = place(&end, n * layout.table_capacity, sizeof(uint32_t));
    layout.bytes = end;
    return layout;
}

uint64_t scheduler_memory_bytes(const struct scheduler_options *options, uint32_t page_size)
{
    return layout_for(options, page_size).bytes;
}

enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *error)
{
    CHECK(options->max_sequences >= 1 && options->max_batch_tokens >= 1);
    uint32_t page_size = pager_page_size(options->pager);
    struct layout layout = layout_for(options, page_size);
    CHECK(layout.table_capacity <= pager_total_count(options->pager));
    char *memory = calloc(1, layout.bytes);
    if (!memory)
        return error_set(error, STATUS_IO, NULL, "no memory for %u sequences",
                         options->max_sequences);
    struct scheduler *s = (struct scheduler *)memory;
    s->options = *options;
    s->page_size = page_size;
    s->sequences = (struct sequence *)(memory + layout.sequences);
    s->order = (struct sequence **)(memory + layout.order);
    s->entries = (struct schedule_entry *)(memory + layout.entries);
    s->turns = (struct sequence **)(memory + layout.turns);
    s->tokens = (uint32_t *)(memory + layout.tokens);
    s->batch_sequences = (struct batch_sequence *)(memory + layout.batch_sequences);
    s->logits_rows = (uint32_t *)(memory + layout.logits_rows);
    s->copies = (struct schedule_copy *)(memory + layout.copies);
    s->schedule.samples = (struct schedule_sample *)(memory + layout.samples);
    s->schedule.copies = s->copies;
    s->schedule.batch.tokens = s->tokens;
    s->schedule.batch.sequences = s->batch_sequences;
    s->schedule.batch.logits_rows = s->logits_rows;
    s->tables = (const struct page_table **)(memory + layout.tables);
    uint32_t *pages = (uint32_t *)(memory + layout.pages);
    for (uint32_t i = options->max_sequences; i-- > 0;) {
        struct sequence *sequence = &s->sequences[i];
        sequence->table.pages = pages + (size_t)i * layout.table_capacity;
        sequence->table.capacity = layout.table_capacity;
        sequence->next_free = s->free_list;
        s->free_list = sequence;
    }
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
    atomic_store(&metrics->pages_free, (int64_t)pager_free_count(s->options.pager));
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

/* ---- the waiting list ---- */

static void waiting_insert(struct scheduler *s, struct completion *completion)
{
    /* Who comes back is older than who never ran, so the walk is short; who is new goes to the end.
     */
    struct completion *after = s->waiting_last;
    if (after && after->arrival > completion->arrival) {
        after = NULL;
        for (struct completion *next = s->waiting_first; next->arrival < completion->arrival;
             next = next->next)
            after = next;
    }
    completion->previous = after;
    completion->next = after ? after->next : s->waiting_first;
    *(completion->next ? &completion->next->previous : &s->waiting_last) = completion;
    *(after ? &after->next : &s->waiting_first) = completion;
    completion->is_waiting = true;
    s->waiting_count++;
}

static void waiting_remove(struct scheduler *s, struct completion *completion)
{
    CHECK(completion->is_waiting);
    *(completion->next ? &completion->next->previous : &s->waiting_last) = completion->previous;
    *(completion->previous ? &completion->previous->next : &s->waiting_first) = completion->next;
    completion->next = completion->previous = NULL;
    completion->is_waiting = false;
    s->waiting_count--;
}

static void choice_starts_waiting(struct scheduler *s, struct completion *completion,
                                  uint32_t choice)
{
    completion->choices[choice].state = CHOICE_WAITING;
    completion->waiting_choices++;
    if (!completion->is_waiting)
        waiting_insert(s, completion);
}

static void choice_stops_waiting(struct scheduler *s, struct completion *completion,
                                 uint32_t choice, enum choice_state state)
{
    CHECK(completion->choices[choice].state == CHOICE_WAITING && completion->waiting_choices > 0);
    completion->choices[choice].state = state;
    if (--completion->waiting_choices == 0)
        waiting_remove(s, completion);
}

void scheduler_add(struct scheduler *s, struct completion *completion, uint64_t now_ns)
{
    CHECK(completion->prompt_count < s->options.max_length);
    uint32_t room = s->options.max_length - completion->prompt_count;
    completion->token_limit =
        completion->prompt_count + (completion->max_tokens < room ? completion->max_tokens : room);
    completion->arrival = ++s->arrivals;
    completion->next = completion->previous = NULL;
    completion->unfinished_choices = completion->choice_count;
    completion->waiting_choices = 0;
    if (completion->submit_ns == 0)
        completion->submit_ns = now_ns;
    for (uint32_t i = 0; i < completion->choice_count; i++)
        choice_starts_waiting(s, completion, i);
    scheduler_update_gauges(s);
}

/* ---- places ---- */

struct sequence *scheduler_seat(struct scheduler *s, struct completion *completion, uint32_t choice)
{
    struct sequence *sequence = s->free_list;
    CHECK(sequence != NULL);
    s->free_list = sequence->next_free;
    choice_stops_waiting(s, completion, choice, CHOICE_RUNNING);
    sequence_init(sequence, completion, choice);
    uint32_t at = s->running_count++;
    for (; at > 0 && sequence_is_older(sequence, s->order[at - 1]); at--)
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
    sequence_clear(sequence, s->options.pager);
    sequence->next_free = s->free_list;
    s->free_list = sequence;
}

/* From its place back to the waiting list; who follows it goes along. */
void scheduler_send_back(struct scheduler *s, struct sequence *sequence)
{
    for (uint32_t i = s->running_count; i-- > 0;) {
        struct sequence *follower = s->order[i];
        if (follower->leader != sequence)
            continue;
        struct completion *completion = follower->completion;
        uint32_t choice = follower->choice;
        unseat(s, follower);
        choice_starts_waiting(s, completion, choice);
    }
    struct completion *completion = sequence->completion;
    uint32_t choice = sequence->choice;
    unseat(s, sequence);
    choice_starts_waiting(s, completion, choice);
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
    if (!completion->was_admitted)
        s->dequeued++;
    completion->was_admitted = true;
}

static void finish_choice(struct scheduler *s, struct completion *completion, uint32_t choice,
                          enum finish_reason reason, uint64_t now_ns)
{
    struct engine_metrics *metrics = s->options.metrics;
    completion->choices[choice].state = CHOICE_FINISHED;
    completion_finish(completion, choice, reason);
    metric_add(&metrics->finished[reason], 1);
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

static void sweep_waiting(struct scheduler *s, struct completion *completion, uint64_t now_ns)
{
    for (uint32_t i = 0; i < completion->choice_count; i++) {
        if (completion->choices[i].state != CHOICE_WAITING ||
            !completion_choice_cancelled(completion, i))
            continue;
        choice_stops_waiting(s, completion, i, CHOICE_FINISHED);
        finish_choice(s, completion, i, FINISH_CANCELLED, now_ns);
        scheduler_mark_dirty(s, completion);
    }
}

void scheduler_sweep(struct scheduler *s, uint64_t now_ns)
{
    /* Youngest first: followers before their leader. */
    for (uint32_t i = s->running_count; i-- > 0;) {
        struct sequence *sequence = s->order[i];
        if (!completion_choice_cancelled(sequence->completion, sequence->choice))
            continue;
        for (uint32_t f = s->running_count; f-- > i + 1;) {
            if (s->order[f]->leader == sequence) {
                /* Its leader goes but it stays: back to the list, to lead or follow again. */
                struct sequence *follower = s->order[f];
                follower->leader = NULL;
                scheduler_send_back(s, follower);
            }
        }
        scheduler_end(s, sequence, FINISH_CANCELLED, now_ns);
    }
    for (struct completion *completion = s->waiting_first, *next; completion; completion = next) {
        next = completion->next;
        sweep_waiting(s, completion, now_ns);
    }
    scheduler_update_gauges(s);
}

void scheduler_cancel_all(struct scheduler *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->running_count; i++)
        atomic_store(&s->order[i]->completion->choices[s->order[i]->choice].cancelled, true);
    for (struct completion *completion = s->waiting_first; completion;
         completion = completion->next) {
        for (uint32_t i = 0; i < completion->choice_count; i++)
            atomic_store(&completion->choices[i].cancelled, true);
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

uint64_t scheduler_dequeued_count(const struct scheduler *s)
{
    return s->dequeued;
}

uint64_t scheduler_completed_count(const struct scheduler *s)
{
    return s->completed;
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
        return sequence->table.count || !sequence->leader ||
                       sequence->leader->state != SEQUENCE_PROMPT
                   ? "a follower has pages or no leader"
                   : NULL;
    if (sequence->computed >= sequence->token_count)
        return "a sequence has nothing to compute";
    if (sequence->state == SEQUENCE_DECODING && sequence->computed + 1 != sequence->token_count)
        return "a decoding sequence is behind";
    if (sequence->table.count < pager_pages_for(s->page_size, sequence->computed))
        return "a table is too short";
    if (sequence->state == SEQUENCE_PROMPT &&
        sequence->table.count != pager_pages_for(s->page_size, sequence->token_count))
        return "a prompt has not the pages it needs";
    return NULL;
}

static const char *check_lists(const struct scheduler *s)
{
    for (uint32_t i = 1; i < s->running_count; i++) {
        if (!sequence_is_older(s->order[i - 1], s->order[i]))
            return "the running are not in the order of age";
    }
    uint32_t count = 0, free_count = 0;
    uint64_t arrival = 0;
    for (const struct completion *c = s->waiting_first; c; c = c->next) {
        if (c->arrival <= arrival || !c->is_waiting || c->waiting_choices == 0 ||
            (c->next ? c->next->previous : s->waiting_last) != c)
            return "the waiting list is broken";
        arrival = c->arrival;
        count++;
    }
    for (const struct sequence *free_place = s->free_list; free_place;
         free_place = free_place->next_free) {
        if (free_place->completion || free_place->table.count)
            return "a free place is not empty";
        free_count++;
    }
    if (count != s->waiting_count || free_count + s->running_count != s->options.max_sequences)
        return "a list's length is wrong";
    return NULL;
}

bool scheduler_check(const struct scheduler *s, uint32_t *scratch, struct error *error)
{
    const char *trouble = check_lists(s);
    for (uint32_t i = 0; i < s->running_count && !trouble; i++) {
        s->tables[i] = &s->order[i]->table;
        trouble = check_sequence(s, s->order[i]);
    }
    if (trouble) {
        error_set(error, STATUS_INTERNAL, NULL, "%s", trouble);
        return false;
    }
    return pager_check(s->options.pager, s->tables, s->running_count, scratch, error);
}
