/*
 * What the engine's tests share: completions made from a few numbers, the answers they must get
 * (from the scripted backend's oracle and the real sampler, alone and without any page), and a
 * scheduler with pager and scripted backend that is stepped by hand, without a thread.
 */
#ifndef QUIRE_TESTS_ENGINE_RIG_H
#define QUIRE_TESTS_ENGINE_RIG_H

#include "engine/sampling.h"
#include "engine/scheduler/page_swap.h"
#include "engine/scheduler/scheduler.h"
#include "tests/engine/scripted_backend.h"

#include <stdbool.h>
#include <stdint.h>

#define RIG_VOCABULARY 61u
#define RIG_END_TOKEN 7u
#define RIG_ANSWER_MAX 512u

/* Of the budget that requests and grammars of a test program take from. */
struct budget *rig_budget_of(void);

struct rig_request {
    const uint32_t *tokens;
    uint32_t token_count;
    uint32_t choice_count; /* 0 means 1 */
    uint32_t max_tokens;
    enum pooling pooling; /* then max_tokens is 0; the rig counts pooled rows in the result */
    float temperature;
    uint64_t seed;
    uint64_t cache_salt;
    bool stops; /* false: ignore_eos */
    bool no_cache;
    bool logprobs; /* with 3 alternatives */
    int32_t priority;
    uint32_t tenant;
    uint64_t deadline_ns;
    struct grammar *grammar; /* borrowed; NULL: none. It stops: tokens that end are not ignored */
    void (*wake)(void *arg);
    void *wake_arg;
};

/* Held by the caller once. The budget is the test program's own, without limit until one is set. */
struct completion *rig_completion(const struct rig_request *request);
/* The same, or NULL when the budget has no room. */
struct completion *rig_try_completion(const struct rig_request *request);
void rig_limit_requests(uint64_t bytes); /* 0: no limit */
/* Bytes of all completions that are alive. */
uint64_t rig_request_bytes(void);

struct rig_answer {
    uint32_t token_count;
    struct completion_token tokens[RIG_ANSWER_MAX];
    enum finish_reason reason;
};

/* What the choice must be answered when a sequence holds at most max_length tokens. */
void rig_expect(const struct rig_request *request, uint32_t choice, uint32_t max_length,
                struct rig_answer *out);
/* Every choice of an ended completion has exactly that answer, log-probabilities bit for bit. */
void rig_check_answers(const struct completion *completion, const struct rig_request *request,
                       uint32_t max_length);

struct rig_options {
    uint32_t page_count; /* usable ones */
    uint32_t page_size;
    struct kv_groups groups; /* count 0: one */
    uint32_t max_sequences;
    uint32_t max_batch_tokens;
    uint32_t context;            /* 0: what the pool holds */
    uint32_t logits_rows_max;    /* 0: 3 */
    uint32_t test_preempt_every; /* 0: never */
    uint32_t tenant_count;       /* 0 means 1 */
    bool no_prefix_cache;
    bool whole_prompts;
    uint32_t swap_slots; /* 0: no swap file */
    uint32_t swap_step_pages;
    bool swap_always;
    struct page_store_calls swap_calls;
};

struct rig {
    struct rig_options options;
    uint32_t max_length;
    struct backend *backend;
    struct pager *pager;
    struct page_swap *swap; /* NULL: none */
    struct scheduler *scheduler;
    struct engine_metrics metrics;
    double token_bounds[METRIC_BUCKETS_MAX];
    atomic_uint cancel_epoch;
    uint64_t now_ns;
    uint32_t *scratch;
    float *logits; /* one row */
    void *workspace;
    struct sampling sampling;           /* for sampling_draw */
    const struct completion *named[26]; /* 'A' is the first added, … */
    unsigned named_count;
    unsigned moves, moves_in_a_row; /* steps without tokens */
    char plan[2048];
};

struct rig *rig_create(const struct rig_options *options);
/* Nothing may be left; all pages must be free. */
void rig_destroy(struct rig *rig);

/* The scheduler gets a reference; the next letter is its name. */
void rig_add(struct rig *rig, struct completion *completion);

/* One pass of the engine's loop, checked before and after. Returns the schedule: per sequence
   NAME[.index]:first+tokens, then "from>to" for each page copied; RIG_MOVES when the step moved pages to
   the swap file or back and had no tokens; "" when there is nothing to do. */
#define RIG_MOVES "moves"
const char *rig_turn(struct rig *rig, uint32_t prompt_token_limit);
/* Passes until one has tokens, or there is nothing to do. */
const char *rig_step(struct rig *rig, uint32_t prompt_token_limit);
/* Requeues a running sequence, number `index` in order, as if there were no page. Between steps. Not a
   pending fork, nor one that is being swapped out. */
void rig_requeue(struct rig *rig, unsigned index);
/* Preempts it: to the swap file if that is the cheaper way. */
void rig_preempt(struct rig *rig, unsigned index);
/* Steps until nothing is left; returns how many. Fails after `most`. */
unsigned rig_run(struct rig *rig, unsigned most);

#endif
