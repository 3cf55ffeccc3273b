/*
 * Putting a step together. This file decides one thing only, who decodes when there are fewer
 * tokens than decoding sequences (sort_by_turns); the rest writes down what others decided: which
 * tokens, at which positions, in which pages, and which of them are sampled from.
 */
#include "engine/scheduler/step.h"

#include "base/check.h"
#include "base/minmax.h"

#include <stdlib.h>
#include <string.h>

void step_init(struct step *step, struct slots *slots, struct schedule_sample *samples)
{
    step->slots = slots;
    step->schedule.samples = samples;
    step->schedule.copies = step->copies;
    step->schedule.batch.tokens = step->tokens;
    step->schedule.batch.sequences = step->batch_sequences;
    step->schedule.batch.logits_rows = step->logits_rows;
    step->schedule.poolings = step->poolings;
}

void step_begin(struct step *step)
{
    struct schedule *schedule = &step->schedule;
    step->number++;
    step->sequence_count = 0;
    schedule->batch.row_count = schedule->batch.sequence_count = 0;
    schedule->batch.logits_row_count = 0;
    schedule->decode_token_count = schedule->prompt_token_count = 0;
    schedule->copy_count = schedule->sample_count = schedule->pooling_count = 0;
    for (uint32_t i = 0; i < step->slots->count; i++) {
        step->slots->order[i]->scheduled_tokens = 0;
        step->slots->order[i]->is_selected = false;
    }
}

/* ---- who decodes ---- */

/* Which sequence of one tenant waited longer. */
static int compare_waits(const struct sequence *a, const struct sequence *b)
{
    if (a->last_step != b->last_step)
        return a->last_step < b->last_step ? -1 : 1;
    return sequence_is_older(a, b) ? -1 : 1;
}

static int compare_in_tenant(const void *left, const void *right)
{
    const struct sequence *a = *(struct sequence *const *)left;
    const struct sequence *b = *(struct sequence *const *)right;
    if (a->completion->tenant != b->completion->tenant)
        return a->completion->tenant < b->completion->tenant ? -1 : 1;
    return compare_waits(a, b);
}

static int compare_turns(const void *left, const void *right)
{
    const struct sequence *a = *(struct sequence *const *)left;
    const struct sequence *b = *(struct sequence *const *)right;
    uint32_t a_class = completion_priority_class(a->completion);
    uint32_t b_class = completion_priority_class(b->completion);
    if (a_class != b_class)
        return a_class < b_class ? -1 : 1;
    if (a->tenant_position != b->tenant_position)
        return a->tenant_position < b->tenant_position ? -1 : 1;
    return compare_waits(a, b);
}

static void sort_by_turns(struct sequence **sequences, uint32_t count)
{
    qsort(sequences, count, sizeof *sequences, compare_in_tenant);
    for (uint32_t i = 0; i < count; i++) {
        bool same =
            i > 0 && sequences[i]->completion->tenant == sequences[i - 1]->completion->tenant;
        sequences[i]->tenant_position = same ? sequences[i - 1]->tenant_position + 1 : 0;
    }
    qsort(sequences, count, sizeof *sequences, compare_turns);
}

void step_select_decoding(struct step *step, uint32_t limit)
{
    const struct slots *slots = step->slots;
    uint32_t count = 0;
    for (uint32_t i = 0; i < slots->count; i++) {
        if (slots->order[i]->state == SEQUENCE_DECODE)
            step->candidates[count++] = slots->order[i];
    }
    if (count > limit)
        sort_by_turns(step->candidates, count);
    for (uint32_t i = 0; i < min_u32(count, limit); i++)
        step->candidates[i]->is_selected = true;
    step->spare_tokens = limit - min_u32(count, limit);
    for (uint32_t i = 0; i < slots->count; i++) {
        if (sequence_takes_pages(slots->order[i]))
            sequence_slide(slots->order[i], slots->pager);
    }
}

/* ---- tokens ---- */

static void add_tokens(struct step *step, struct sequence *sequence, uint32_t count)
{
    CHECK(count >= 1);
    if (sequence->scheduled_tokens == 0) {
        CHECK(step->sequence_count < step->slots->slot_count);
        sequence->last_step = step->number;
        step->sequences[step->sequence_count++] = sequence;
    }
    sequence->scheduled_tokens += count;
    CHECK(sequence->computed + sequence->scheduled_tokens <= sequence->token_count);
    fair_queue_charge(step->slots->queue, sequence,
                      sequence->computed + sequence->scheduled_tokens);
    if (sequence->state == SEQUENCE_DECODE)
        step->schedule.decode_token_count += count;
    else
        step->schedule.prompt_token_count += count;
}

/* The tokens of a decoding sequence: one, and those that a grammar forced before it, up to the end
   of the page that it has. */
static uint32_t decode_tokens(struct step *step, const struct sequence *sequence)
{
    uint32_t size = step->slots->page_size;
    uint32_t pending = sequence->token_count - sequence->computed;
    uint32_t count = min_u32(pending, size - sequence->computed % size);
    uint32_t extra = min_u32(count - 1, step->spare_tokens);
    step->spare_tokens -= extra;
    return 1 + extra;
}

void step_take_pages(struct step *step)
{
    const struct slots *slots = step->slots;
    for (uint32_t i = 0; i < slots->count; i++) {
        struct sequence *sequence = slots->order[i];
        if (!sequence_takes_pages(sequence))
            continue;
        CHECK(step->schedule.copy_count + slots->group_count <=
              slots->slot_count * slots->group_count);
        sequence_take_pages(sequence, slots->pager, slots->max_batch_tokens, step->copies,
                            &step->schedule.copy_count);
        if (sequence->is_selected)
            add_tokens(step, sequence, decode_tokens(step, sequence));
    }
}

uint32_t step_add_prompt(struct step *step, struct sequence *sequence, uint32_t limit)
{
    uint32_t left = sequence->token_count - sequence->computed - sequence->scheduled_tokens;
    uint32_t count = min_u32(left, limit);
    add_tokens(step, sequence, count);
    return count;
}

/* ---- the batch ---- */

static void add_sample(struct step *step, struct sequence *sequence, uint32_t logits_index,
                       bool is_shared)
{
    CHECK(step->schedule.sample_count < step->slots->slot_count);
    struct schedule_sample *sample = &step->schedule.samples[step->schedule.sample_count++];
    sample->sequence = sequence;
    sample->logits_index = logits_index;
    sample->is_shared = is_shared;
    sample->ok = false;
    sample->is_complete = false;
    sample->forced_count = 0;
}

/* Row `row` of the batch is the sequence's last token: it and its pending forks sample from there.
 */
static void add_samples(struct step *step, struct sequence *sequence, uint32_t row)
{
    uint32_t logits_index = step->schedule.batch.logits_row_count++;
    step->logits_rows[logits_index] = row;
    uint32_t first = step->schedule.sample_count;
    add_sample(step, sequence, logits_index, false);
    if (sequence->state != SEQUENCE_PREFILL)
        return;
    for (uint32_t i = 0; i < step->slots->count; i++) {
        if (step->slots->order[i]->parent == sequence) {
            add_sample(step, step->slots->order[i], logits_index, true);
            step->schedule.samples[first].is_shared = true;
        }
    }
}

/* The rows of a sequence that are pooled: [row, row + count) are its tokens of the step. */
static void add_pooling(struct step *step, struct sequence *sequence, uint32_t row, uint32_t count)
{
    struct schedule *schedule = &step->schedule;
    const struct completion *completion = sequence->completion;
    bool is_complete = sequence->computed + count == sequence->token_count;
    uint32_t skipped = 0, end = count;
    switch (completion->pooling) {
    case POOLING_NONE:
        CHECK(false);
    case POOLING_MEAN: /* what is recomputed has been added before */
        if (completion->pooled_positions > sequence->computed)
            skipped = min_u32(completion->pooled_positions - sequence->computed, count);
        break;
    case POOLING_CLS:
    case POOLING_RANK:
        end = sequence->computed == 0 ? 1 : 0;
        break;
    case POOLING_LAST:
        skipped = is_complete ? count - 1 : count;
        break;
    }
    step->poolings[schedule->pooling_count++] = (struct schedule_pooling){
        .sequence = sequence,
        .logits_index = schedule->batch.logits_row_count,
        .count = end - min_u32(skipped, end),
        .first_position = sequence->computed + skipped,
        .is_complete = is_complete,
    };
    for (uint32_t i = skipped; i < end; i++)
        step->logits_rows[schedule->batch.logits_row_count++] = row + i;
}

void step_fill_batch(struct step *step)
{
    struct batch *batch = &step->schedule.batch;
    for (uint32_t i = 0; i < step->sequence_count; i++) {
        struct sequence *sequence = step->sequences[i];
        uint32_t count = sequence->scheduled_tokens, end = sequence->computed + count;
        step->batch_sequences[i] = (struct batch_sequence){
            .first_row = batch->row_count,
            .row_count = count,
            .first_position = sequence->computed,
            .pages = sequence->tables[0].pages,
            .page_count = kv_groups_pages(step->slots->page_size, end),
            .group_stride = step->slots->table_capacity,
            .second_segment = sequence->completion->second_segment,
        };
        memcpy(step->tokens + batch->row_count, sequence->record->history + sequence->computed,
               count * sizeof *step->tokens);
        batch->row_count += count;
        if (sequence->completion->pooling)
            add_pooling(step, sequence, batch->row_count - count, count);
        else if (end == sequence->token_count)
            add_samples(step, sequence, batch->row_count - 1);
    }
    batch->sequence_count = step->sequence_count;
    CHECK(batch->row_count <= step->slots->max_batch_tokens);
}
