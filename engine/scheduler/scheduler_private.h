/*
 * The scheduler from inside: shared by scheduler.c (who has a place, how things end),
 * scheduler_queue.c (who waits, whose turn it is), scheduler_victim.c (who gives way),
 * scheduler_swap.c (which way, and how it comes back) and scheduler_step.c (what the next step
 * does, and what comes of it). Nobody else includes this.
 *
 * `order` holds everyone that has a place, in order of rank (scheduler_ranks_before); each tenant's
 * waiting list is in the order in which it wants to be served. Places, arrays and page tables are
 * allocated at start; nothing is allocated later.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SCHEDULER_PRIVATE_H
#define QUIRE_ENGINE_SCHEDULER_SCHEDULER_PRIVATE_H

#include "engine/scheduler/page_swap.h"
#include "engine/scheduler/scheduler.h"

/* Having given way so often, a choice is not made to give way again (see scheduler.h). */
#define PREEMPTIONS_MAX 2

struct schedule_entry {
    struct sequence *sequence;
    uint32_t row_count;
};

/* Whose work it is. A tenant is backlogged while it has something waiting or a prompt to compute:
   while it could use more rows than it gets. */
struct tenant {
    struct completion *waiting_first, *waiting_last;
    uint32_t waiting_count; /* completions */
    uint32_t prompt_count;  /* sequences that scheduler_has_prompt */
    uint64_t served; /* tokens it was served, and what it was lifted: see scheduler_queue.c */
    uint64_t tokens; /* tokens it was served, ever */
    uint64_t dequeued, dequeued_tokens; /* completions that left the queue, ever; their prompts */
    uint64_t blocked_step;              /* == the step: its head waits for a prefix in the making */
    /* scratch */
    struct sequence *prompt; /* of a pick: the first of its running prompts */
    uint32_t places, pages;  /* of a reclaim: what it holds */
};

struct scheduler {
    /* fixed after start */
    struct scheduler_options options;
    uint32_t page_size;
    uint32_t group_count;
    uint32_t table_capacity; /* pages of a table; a place's tables lie one behind the other */
    /* engine thread only */
    struct sequence *sequences; /* [max_sequences] places */
    struct sequence *free_list;
    struct sequence **order; /* [max_sequences] those with a place, in order of rank */
    uint32_t running_count;
    struct tenant *tenants;     /* [tenant_count] */
    struct tenant *last_tenant; /* the one whose backlog ended last; NULL: none yet */
    uint32_t waiting_count;     /* completions, of all tenants */
    uint64_t arrivals, completed;
    uint64_t deadline_ns; /* of all that wait and run the next one, or one that has gone */
    uint64_t step;
    uint64_t blocked_step;  /* == the step: whoever is first to be admitted has no room */
    uint32_t starved_steps; /* in which prompts could have run and got no row */
    /* the step's plan */
    struct schedule schedule;
    struct schedule_entry *entries; /* [max_sequences] */
    uint32_t entry_count;
    struct sequence **turns;                /* [max_sequences] scratch */
    uint32_t *tokens;                       /* [max_batch_tokens] */
    struct batch_sequence *batch_sequences; /* [max_sequences] */
    uint32_t *logits_rows;                  /* [max_sequences] */
    struct page_copy *copies; /* [max_sequences·groups]: each sequence copies at most once */
    const struct page_table **tables; /* [max_sequences·groups] scratch of scheduler_check */
    struct completion *dirty;         /* whose readers are to be woken, linked by next_dirty */
};

static inline struct tenant *scheduler_tenant(const struct scheduler *scheduler,
                                              const struct completion *completion)
{
    return &scheduler->tenants[completion->tenant];
}

/* The part of a priority that counts between tenants: whoever may set it can step back behind
   others, but not ahead of them. */
static inline uint32_t scheduler_level(const struct completion *completion)
{
    return completion->priority > 0 ? (uint32_t)completion->priority : 0;
}

/* Who keeps its place rather than the other: the more urgent level, then the older. */
static inline bool scheduler_ranks_before(const struct sequence *a, const struct sequence *b)
{
    uint32_t a_level = scheduler_level(a->completion), b_level = scheduler_level(b->completion);
    return a_level != b_level ? a_level < b_level : sequence_is_older(a, b);
}

/* ---- scheduler.c ---- */

/* A waiting choice gets a free place, without pages; there must be one. */
struct sequence *scheduler_seat(struct scheduler *scheduler, struct completion *completion,
                                uint32_t choice);

/* From its place back to the waiting list; who follows it goes along. */
void scheduler_send_back(struct scheduler *scheduler, struct sequence *sequence);
void scheduler_send_followers_back(struct scheduler *scheduler, struct sequence *leader);

/* From its place to its end. */
void scheduler_end(struct scheduler *scheduler, struct sequence *sequence,
                   enum finish_reason reason, uint64_t now_ns);

/* The completion has no claim to a place in the queue any more: it runs for the first time or
 * ended. */
void scheduler_leave_queue(struct scheduler *scheduler, struct completion *completion);

/* The reader is to be woken by scheduler_settle. */
void scheduler_mark_dirty(struct scheduler *scheduler, struct completion *completion);

void scheduler_update_gauges(struct scheduler *scheduler);

/* Has it, or will it have, a prompt to compute? */
static inline bool scheduler_has_prompt(const struct sequence *sequence)
{
    return sequence->state == SEQUENCE_PROMPT || sequence->state == SEQUENCE_LEAVING ||
           sequence->state == SEQUENCE_RETURNING;
}

static inline double scheduler_seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

/* ---- scheduler_queue.c ---- */

void scheduler_start_waiting(struct scheduler *scheduler, struct completion *completion,
                             uint32_t choice);
void scheduler_stop_waiting(struct scheduler *scheduler, struct completion *completion,
                            uint32_t choice, enum choice_state state);

/* What has a place is, or is no longer, a prompt to compute. */
void scheduler_enter_prompt(struct scheduler *scheduler, struct completion *completion);
void scheduler_leave_prompt(struct scheduler *scheduler, struct completion *completion);

/* Positions up to `end` of a choice are being computed: new ones are charged to its tenant. */
void scheduler_charge(struct scheduler *scheduler, const struct sequence *sequence, uint32_t end);

struct scheduler_turn {
    struct sequence *prompt;    /* a running prompt with rows left, or NULL: … */
    struct completion *waiting; /* … the head of the tenant's waiting list */
    struct tenant *tenant;
    uint32_t row_limit; /* rows until it is somebody else's turn */
};

/* Whose turn it is to get prompt rows; false: nobody's. Passes over heads that are blocked. */
bool scheduler_pick(struct scheduler *scheduler, struct scheduler_turn *out);

/* Rows of the step that is being planned. */
uint32_t scheduler_planned_rows(const struct scheduler *scheduler, const struct sequence *sequence);

/* The waiting lists and counts are sound; NULL or what is wrong. */
const char *scheduler_check_queue(const struct scheduler *scheduler);

/* ---- scheduler_swap.c: see there; without options.swap nothing leaves or returns ---- */

/* What giving way would cost a sequence, the cheaper way: nanoseconds, without swap file rows. */
uint64_t scheduler_cost(const struct scheduler *scheduler, const struct sequence *sequence,
                        bool *swapped);

/* That way: it is LEAVING, or back in the waiting list. Who follows it is back in any case. */
void scheduler_give_way(struct scheduler *scheduler, struct sequence *victim);

/* Does a waiting choice come back with its image? Then that is its origin, which says what can be
   found (nothing, if there is no free place). An image that is of no use is dropped. */
bool scheduler_use_image(struct scheduler *scheduler, struct completion *completion,
                         uint32_t choice, struct sequence_origin *origin);

/* Having been started from its image (sequence_start), it has to be read. */
void scheduler_return(struct scheduler *scheduler, struct sequence *sequence);

bool scheduler_is_leaving(const struct scheduler *scheduler);
/* One page of whoever leaves is written; false: nobody leaves. */
bool scheduler_leave_page(struct scheduler *scheduler);
/* Somebody leaves or returns. */
bool scheduler_is_moving(const struct scheduler *scheduler);
/* The pages of a step are written or read: at least one if there is any, page_swap_step_pages at
   most. At its beginning, before anything is planned. */
void scheduler_move_pages(struct scheduler *scheduler);

void scheduler_drop_image(struct scheduler *scheduler, struct completion *completion,
                          uint32_t choice);

/* Images and slots agree; NULL or what is wrong. */
const char *scheduler_check_swap(const struct scheduler *scheduler);

/* ---- scheduler_victim.c ---- */

/* A sequence goes back to the waiting list for lack of room. */
void scheduler_preempt(struct scheduler *scheduler, struct sequence *victim);

/* Does it take pages in this step: its turn to decode (turn == step), or a prompt whose window
   moves on? */
static inline bool scheduler_takes_pages(const struct scheduler *scheduler,
                                         const struct sequence *sequence)
{
    return sequence->turn == scheduler->step || sequence->state == SEQUENCE_PROMPT;
}

/* Pages for everyone that takes some in this step: others give way until there are enough. True if
   somebody did. */
bool scheduler_make_way(struct scheduler *scheduler);

/* Is anyone running that must not be made to give way again? Then nobody is admitted on credit. */
bool scheduler_is_careful(const struct scheduler *scheduler);

/* Does anyone run that might give way to `completion`: less urgent, or another tenant's? */
bool scheduler_has_lesser(const struct scheduler *scheduler, const struct completion *completion);

/* `completion` is first to be admitted, but lacks `pages` more pages (to hold `own` in all) or a
   place. Takes them from those who hold more than their part, if that is enough; true if it did. */
bool scheduler_reclaim(struct scheduler *scheduler, const struct completion *completion,
                       uint64_t pages, uint64_t own);

#endif
