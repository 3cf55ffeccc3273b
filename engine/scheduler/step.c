/*
 * See scheduler.h: what the next step does, and what becomes of its tokens.
 *
 *     scheduler_next    pages to the swap file and back → whose turn it is to decode → pages for
 *                       them (others give way) → their rows
 *                       → rows for prompts, whoever is next: those who wait are admitted
 *     scheduler_commit  computed counts and published pages → followers take over → tokens and ends
 */
#include "engine/scheduler/scheduler_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* A prompt gets rows beside more decoding sequences than rows at least every so many steps. */
#define STARVED_STEPS_MAX 3

/* ---- pages ---- */

/* Tests: somebody who decodes goes back, least often sent back first, then oldest. */
static void preempt_for_test(struct scheduler *s)
{
    struct sequence *victim = NULL;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < s->running_count; i++) {
        struct sequence *sequence = s->order[i];
        uint32_t forced = sequence->completion->choices[sequence->choice].forced_preemptions;
        if (sequence->state == SEQUENCE_DECODING && sequence->sampled_count > 0 && forced < least) {
            victim = sequence;
            least = forced;
        }
    }
    if (!victim)
        return;
    victim->completion->choices[victim->choice].forced_preemptions++;
    metric_add(&s->options.metrics->preemptions, 1);
    scheduler_give_way(s, victim);
}

/* ---- admission ---- */

static bool uses_cache(const struct scheduler *s, const struct completion *completion)
{
    return s->options.prefix_cache && completion->use_prefix_cache;
}

static uint32_t first_waiting_choice(const struct completion *completion)
{
    uint32_t choice = 0;
    while (completion->choices[choice].state != CHOICE_WAITING)
        CHECK(++choice < completion->choice_count);
    return choice;
}

/* Is a running prompt about to compute and publish page `page` of the same tokens? Then waiting for
   it is cheaper than computing it again, and costs no time: prompts are computed one after the
   other. */
static bool prefix_is_coming(const struct scheduler *s, const struct completion *completion,
                             const uint32_t *tokens, uint32_t token_count, uint32_t page)
{
    uint32_t length = (page + 1) * s->page_size;
    if (length >= token_count)
        return false; /* the last token is computed anyway */
    for (uint32_t i = 0; i < s->running_count; i++) {
        const struct sequence *other = s->order[i];
        if (other->state == SEQUENCE_PROMPT && uses_cache(s, other->completion) &&
            other->completion->cache_salt == completion->cache_salt && other->computed < length &&
            length <= other->token_count &&
            memcmp(sequence_history(other), tokens, length * sizeof *tokens) == 0)
            return true;
    }
    return false;
}

/* What admitting a waiting choice takes. */
struct need {
    struct sequence_origin origin;
    uint64_t own;     /* pages that it will hold at first */
    uint64_t missing; /* pages that are not free, of those it takes and those to be left */
};

/* A choice is admitted with all pages for the tokens it has. Those that each that runs takes next
   have to be left; or, if one of them or itself must not give way again, all that any of them may
   come to need. */
static uint64_t pages_missing(const struct scheduler *s, const struct completion *completion,
                              uint32_t choice, uint32_t token_count, struct need *need)
{
    const struct pager *pager = s->options.pager;
    uint32_t rows = s->options.max_batch_tokens;
    bool careful =
        completion->choices[choice].preemptions >= PREEMPTIONS_MAX || scheduler_is_careful(s);
    need->own = sequence_need(pager, token_count, rows, &need->origin);
    uint64_t wanted = careful
                          ? sequence_full_need(pager, completion->token_limit, rows, &need->origin)
                          : need->own - need->origin.match.referenced_count;
    for (uint32_t i = 0; i < s->running_count; i++)
        wanted += careful ? sequence_growth(s->order[i], pager, rows)
                          : sequence_next_growth(s->order[i], pager);
    uint64_t free_count = pager_free_count(pager);
    return wanted > free_count ? wanted - free_count : 0;
}

/* What the first waiting choice of the completion needs. False: it waits for a prefix that is being
   computed. Pages that match are in the free place's table, if there is one. */
static bool find_need(struct scheduler *s, struct completion *completion, struct need *need)
{
    uint32_t choice = first_waiting_choice(completion);
    const uint32_t *tokens = completion->choices[choice].history;
    uint32_t token_count = completion->prompt_count + completion_generated(completion, choice);
    struct pager_match match = {0};
    if (s->free_list && uses_cache(s, completion))
        pager_find(s->options.pager, tokens, token_count, completion->cache_salt,
                   s->free_list->tables[0].pages, s->table_capacity, &match);
    *need = (struct need){.origin = sequence_origin(s->options.pager, &match)};
    scheduler_use_image(s, completion, choice, &need->origin);
    if (s->free_list && uses_cache(s, completion) &&
        prefix_is_coming(s, completion, tokens, token_count, need->origin.computed / s->page_size))
        return false;
    need->missing = pages_missing(s, completion, choice, token_count, need);
    return true;
}

/* Every choice of the completion that has no token yet follows the leader, as far as places go (and
   pages, while nobody is admitted on credit). */
static void seat_followers(struct scheduler *s, struct sequence *leader)
{
    struct completion *completion = leader->completion;
    for (uint32_t i = leader->choice + 1; i < completion->choice_count && s->free_list; i++) {
        if (completion->choices[i].state != CHOICE_WAITING || completion_generated(completion, i))
            continue;
        struct need need = {.own = 0};
        bool careful =
            completion->choices[i].preemptions >= PREEMPTIONS_MAX || scheduler_is_careful(s);
        if (careful && pages_missing(s, completion, i, completion->prompt_count, &need) > 0)
            return;
        scheduler_drop_image(s, completion,
                             i); /* of a prompt of its own: it has the leader's now */
        struct sequence *follower = scheduler_seat(s, completion, i);
        scheduler_leave_prompt(s, completion);
        follower->state = SEQUENCE_FOLLOWING;
        follower->leader = leader;
    }
}

static void note_admission(struct scheduler *s, struct completion *completion,
                           const struct pager_match *match, uint64_t now_ns)
{
    if (completion->was_admitted)
        return;
    uint32_t cached_tokens = match->page_count * s->page_size;
    scheduler_leave_queue(s, completion);
    completion->admit_ns = now_ns;
    atomic_store_explicit(&completion->cached_count, cached_tokens, memory_order_release);
    if (uses_cache(s, completion)) {
        metric_add(&s->options.metrics->prefix_queries, completion->prompt_count);
        metric_add(&s->options.metrics->prefix_hits, cached_tokens);
        metric_add(&s->options.metrics->cache_dir_hit_tokens,
                   (uint64_t)match->restored_count * s->page_size);
    }
}

/* A place for the first waiting choice of the completion, with the pages it needs. */
static struct sequence *admit(struct scheduler *s, struct completion *completion,
                              const struct need *need, uint64_t now_ns)
{
    uint32_t choice = first_waiting_choice(completion);
    struct sequence *sequence = scheduler_seat(s, completion, choice);
    sequence_start(sequence, s->options.pager, s->options.max_batch_tokens, &need->origin);
    if (sequence->state == SEQUENCE_RETURNING)
        scheduler_return(s, sequence);
    note_admission(s, completion, &need->origin.match, now_ns);
    if (sequence->token_count == completion->prompt_count)
        seat_followers(s, sequence);
    return sequence;
}

/* Who gets the next prompt rows, at most *row_limit of them; NULL: nobody. Whoever waits and is
   first is admitted, or blocks those who wait behind it: everybody if it lacks room, only its own
   tenant's if it waits for a prefix. */
static struct sequence *next_prompt(struct scheduler *s, uint32_t *row_limit, uint64_t now_ns)
{
    struct scheduler_turn turn;
    while (scheduler_pick(s, &turn)) {
        *row_limit = turn.row_limit;
        if (turn.prompt)
            return turn.prompt;
        struct need need;
        if (!find_need(s, turn.waiting, &need))
            turn.tenant->blocked_step = s->step;
        else if (!s->free_list || need.missing > 0)
            s->blocked_step = s->step;
        else {
            struct sequence *sequence = admit(s, turn.waiting, &need, now_ns);
            if (sequence->state == SEQUENCE_PROMPT)
                return sequence; /* else it has no rows yet: whoever is next */
        }
    }
    return NULL;
}

/* If last step somebody lacked room: those who hold more than their part may have to give way.
   Before anything is planned, since they may be anyone. */
static void reclaim_room(struct scheduler *s)
{
    struct scheduler_turn turn;
    struct need need;
    if (scheduler_is_leaving(s))
        return; /* there may be room soon */
    if (s->blocked_step + 1 != s->step || !scheduler_pick(s, &turn) || !turn.waiting ||
        !scheduler_has_lesser(s, turn.waiting) || !find_need(s, turn.waiting, &need))
        return;
    if (!s->free_list || need.missing > 0)
        scheduler_reclaim(s, turn.waiting, need.missing, need.own);
}

/* ---- the step ---- */

/* Who of one tenant waited longest. */
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
    uint32_t a_level = scheduler_level(a->completion), b_level = scheduler_level(b->completion);
    if (a_level != b_level)
        return a_level < b_level ? -1 : 1;
    if (a->round != b->round)
        return a->round < b->round ? -1 : 1;
    return compare_waits(a, b);
}

/* More want to decode than there are rows: one of each tenant, then a second of each, … so that a
   tenant with many takes no rows from one with few. */
static void sort_turns(struct scheduler *s, uint32_t count)
{
    qsort(s->turns, count, sizeof *s->turns, compare_in_tenant);
    for (uint32_t i = 0; i < count; i++) {
        bool same = i > 0 && s->turns[i]->completion->tenant == s->turns[i - 1]->completion->tenant;
        s->turns[i]->round = same ? s->turns[i - 1]->round + 1 : 0;
    }
    qsort(s->turns, count, sizeof *s->turns, compare_turns);
}

/* Mark the decoding sequences that run in this step: at most `quota`. */
static void choose_turns(struct scheduler *s, uint32_t quota)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->running_count; i++) {
        if (s->order[i]->state == SEQUENCE_DECODING)
            s->turns[count++] = s->order[i];
    }
    if (count > quota) {
        sort_turns(s, count);
        count = quota;
    }
    for (uint32_t i = 0; i < count; i++)
        s->turns[i]->turn = s->step;
}

static bool has_running_prompt(const struct scheduler *s)
{
    for (uint32_t i = 0; i < s->running_count; i++) {
        if (s->order[i]->state == SEQUENCE_PROMPT)
            return true;
    }
    return false;
}

/* Rows that decoding sequences may take. */
static uint32_t decode_quota(struct scheduler *s, uint64_t now_ns)
{
    uint32_t rows = s->options.max_batch_tokens;
    if (scheduler_decoding_count(s) < rows) {
        s->starved_steps = 0;
        return rows;
    }
    if (s->waiting_count == 0 && !has_running_prompt(s))
        return rows;
    if (s->starved_steps < STARVED_STEPS_MAX) {
        s->starved_steps++;
        return rows;
    }
    uint32_t row_limit;
    if (!next_prompt(s, &row_limit, now_ns))
        return rows;
    s->starved_steps = 0;
    return rows - (rows > 1 ? rows / 2 : 1);
}

static void plan_rows(struct scheduler *s, struct sequence *sequence, uint32_t count)
{
    CHECK(count >= 1 && sequence->computed + scheduler_planned_rows(s, sequence) + count <=
                            sequence->token_count);
    if (sequence->last_step != s->step) {
        CHECK(s->entry_count < s->options.max_sequences);
        sequence->last_step = s->step;
        sequence->entry = s->entry_count;
        s->entries[s->entry_count++] = (struct schedule_entry){.sequence = sequence};
    }
    struct schedule_entry *entry = &s->entries[sequence->entry];
    entry->row_count += count;
    scheduler_charge(s, sequence, sequence->computed + entry->row_count);
    if (sequence->state == SEQUENCE_DECODING)
        s->schedule.decode_row_count += count;
    else
        s->schedule.prompt_row_count += count;
}

/* Pages to write for the sequence's next positions; they are there. */
static void own_pages(struct scheduler *s, struct sequence *sequence)
{
    CHECK(s->schedule.copy_count + s->group_count <= s->options.max_sequences * s->group_count);
    sequence_make_room(sequence, s->options.pager, s->options.max_batch_tokens, s->copies,
                       &s->schedule.copy_count);
}

static void plan_decoding(struct scheduler *s, uint32_t quota)
{
    choose_turns(s, quota);
    for (uint32_t i = 0; i < s->running_count; i++) {
        if (scheduler_takes_pages(s, s->order[i]))
            sequence_slide(s->order[i], s->options.pager);
    }
    if (scheduler_make_way(s))
        s->blocked_step = s->step; /* what little room there is now is for those who run */
    for (uint32_t i = 0; i < s->running_count; i++) {
        if (scheduler_takes_pages(s, s->order[i]))
            own_pages(s, s->order[i]);
        if (s->order[i]->turn == s->step)
            plan_rows(s, s->order[i], 1);
    }
}

static uint32_t plan_prompt(struct scheduler *s, struct sequence *sequence, uint32_t rows)
{
    uint32_t left = sequence->token_count - sequence->computed;
    left -= scheduler_planned_rows(s, sequence);
    uint32_t count = left < rows ? left : rows;
    plan_rows(s, sequence, count);
    return count;
}

static void plan_prompts(struct scheduler *s, uint32_t rows, uint64_t now_ns)
{
    while (rows > 0) {
        uint32_t row_limit;
        struct sequence *sequence = next_prompt(s, &row_limit, now_ns);
        if (!sequence)
            return;
        rows -= plan_prompt(s, sequence, rows < row_limit ? rows : row_limit);
    }
}

static void add_sample(struct scheduler *s, struct sequence *sequence, uint32_t logits_index,
                       bool is_shared)
{
    CHECK(s->schedule.sample_count < s->options.max_sequences);
    struct schedule_sample *sample = &s->schedule.samples[s->schedule.sample_count++];
    sample->sequence = sequence;
    sample->logits_index = logits_index;
    sample->is_shared = is_shared;
    sample->ok = false;
}

/* The entry's last row is its sequence's last token: its logits are wanted, by followers too. */
static void plan_samples(struct scheduler *s, struct sequence *sequence, uint32_t row)
{
    uint32_t logits_index = s->schedule.batch.logits_row_count++;
    s->logits_rows[logits_index] = row;
    uint32_t first = s->schedule.sample_count;
    add_sample(s, sequence, logits_index, false);
    if (sequence->state != SEQUENCE_PROMPT)
        return;
    for (uint32_t i = 0; i < s->running_count; i++) {
        if (s->order[i]->leader == sequence) {
            add_sample(s, s->order[i], logits_index, true);
            s->schedule.samples[first].is_shared = true;
        }
    }
}

static void fill_batch(struct scheduler *s)
{
    struct batch *batch = &s->schedule.batch;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        struct sequence *sequence = s->entries[i].sequence;
        uint32_t count = s->entries[i].row_count;
        s->batch_sequences[i] = (struct batch_sequence){
            .first_row = batch->row_count,
            .row_count = count,
            .first_position = sequence->computed,
            .pages = sequence->tables[0].pages,
            .page_count = kv_groups_pages(s->page_size, sequence->computed + count),
            .group_stride = s->table_capacity,
        };
        memcpy(s->tokens + batch->row_count, sequence_history(sequence) + sequence->computed,
               count * sizeof *s->tokens);
        batch->row_count += count;
        if (sequence->computed + count == sequence->token_count)
            plan_samples(s, sequence, batch->row_count - 1);
    }
    batch->sequence_count = s->entry_count;
    CHECK(batch->row_count <= s->options.max_batch_tokens);
}

static void plan(struct scheduler *s, uint32_t prompt_row_limit, uint64_t now_ns)
{
    plan_decoding(s, decode_quota(s, now_ns));
    /* Whose turn it was may all have given way; then it is somebody else's turn. */
    while (s->entry_count == 0 && scheduler_decoding_count(s) > 0 && !has_running_prompt(s))
        plan_decoding(s, s->options.max_batch_tokens);
    uint32_t rows = s->options.max_batch_tokens - s->schedule.decode_row_count;
    plan_prompts(s, rows < prompt_row_limit ? rows : prompt_row_limit, now_ns);
}

const struct schedule *scheduler_next(struct scheduler *s, uint32_t prompt_row_limit,
                                      uint64_t now_ns)
{
    CHECK(prompt_row_limit >= 1);
    struct schedule *schedule = &s->schedule;
    s->step++;
    s->entry_count = 0;
    schedule->batch.row_count = schedule->batch.sequence_count = 0;
    schedule->batch.logits_row_count = 0;
    schedule->decode_row_count = schedule->prompt_row_count = 0;
    schedule->copy_count = schedule->sample_count = 0;
    scheduler_move_pages(s);
    if (s->options.test_preempt_every && s->step % s->options.test_preempt_every == 0)
        preempt_for_test(s);
    reclaim_room(s);
    plan(s, prompt_row_limit, now_ns);
    /* Whoever could go on does, or there are pages that the next call moves. */
    CHECK(s->entry_count > 0 || (schedule->copy_count == 0 && scheduler_is_moving(s)));
    fill_batch(s);
    scheduler_update_gauges(s);
    return schedule;
}

/* ---- commit ---- */

static bool is_end_token(const struct scheduler *s, uint32_t token)
{
    for (uint32_t i = 0; i < s->options.end_token_count; i++) {
        if (s->options.end_tokens[i] == token)
            return true;
    }
    return false;
}

static void observe_token(struct scheduler *s, struct sequence *sequence, uint64_t now_ns)
{
    struct completion *completion = sequence->completion;
    struct completion_choice *choice = &completion->choices[sequence->choice];
    struct engine_metrics *metrics = s->options.metrics;
    if (completion->first_token_ns == 0) {
        completion->first_token_ns = now_ns;
        metric_add(&metrics->prompt_tokens, completion->prompt_count);
        metric_histogram_observe(&metrics->time_to_first_token,
                                 scheduler_seconds(completion->submit_ns, now_ns));
    } else if (choice->last_token_ns) {
        metric_histogram_observe(&metrics->inter_token,
                                 scheduler_seconds(choice->last_token_ns, now_ns));
    }
    choice->last_token_ns = now_ns;
}

static void apply_sample(struct scheduler *s, const struct schedule_sample *sample, uint64_t now_ns)
{
    struct sequence *sequence = sample->sequence;
    struct completion *completion = sequence->completion;
    CHECK(sequence->computed == sequence->token_count);
    if (!sample->ok) {
        scheduler_end(s, sequence, FINISH_ERROR, now_ns);
        return;
    }
    observe_token(s, sequence, now_ns);
    if (!completion->ignore_eos && is_end_token(s, sample->token.token)) {
        scheduler_end(s, sequence, FINISH_STOP, now_ns);
        return;
    }
    completion_push(completion, sequence->choice, &sample->token);
    metric_add(&s->options.metrics->generation_tokens, 1);
    sequence->token_count++;
    sequence->sampled_count++;
    if (sequence->state == SEQUENCE_PROMPT)
        scheduler_leave_prompt(s, completion);
    sequence->state = SEQUENCE_DECODING;
    if (sequence->token_count == completion->token_limit)
        scheduler_end(s, sequence, FINISH_LENGTH, now_ns);
    else
        scheduler_mark_dirty(s, completion);
}

void scheduler_commit(struct scheduler *s, uint64_t now_ns)
{
    const struct schedule *schedule = &s->schedule;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        struct sequence *sequence = s->entries[i].sequence;
        sequence_advance(sequence, s->options.pager, s->entries[i].row_count,
                         uses_cache(s, sequence->completion));
    }
    /* All take over before any ends: a leader's pages must still be there. */
    for (uint32_t i = 0; i < schedule->sample_count; i++) {
        struct sequence *sequence = schedule->samples[i].sequence;
        if (sequence->state == SEQUENCE_FOLLOWING)
            sequence_fork(sequence, s->options.pager, sequence->leader);
    }
    for (uint32_t i = 0; i < schedule->sample_count; i++)
        apply_sample(s, &schedule->samples[i], now_ns);
    struct engine_metrics *metrics = s->options.metrics;
    metric_add(&metrics->steps, 1);
    metric_add(&metrics->rows_computed, schedule->batch.row_count);
    metric_histogram_observe(&metrics->iteration_tokens, schedule->batch.row_count);
    if (schedule->batch.row_count > metric_get(&metrics->step_rows_max))
        atomic_store(&metrics->step_rows_max, schedule->batch.row_count);
    if (schedule->batch.sequence_count > metric_get(&metrics->step_sequences_max))
        atomic_store(&metrics->step_sequences_max, schedule->batch.sequence_count);
    s->entry_count = 0;
    scheduler_update_gauges(s);
}
