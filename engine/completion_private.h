/*
 * A completion from inside the engine. Only engine/ (and its tests) may include this; api/ sees
 * completion.h.
 *
 * The engine thread writes, one reader reads: a choice's tokens are published by a release store of
 * token_count, its end by a release store of reason after that. The lock guards nothing but the
 * wake function and the engine's epoch, so that neither is used after its owner has gone.
 */
#ifndef QUIRE_ENGINE_COMPLETION_PRIVATE_H
#define QUIRE_ENGINE_COMPLETION_PRIVATE_H

#include "engine/completion.h"

#include <pthread.h>
#include <stdatomic.h>

enum choice_state {
    CHOICE_WAITING, /* for a place: never started, or preempted */
    CHOICE_RUNNING, /* has a sequence */
    CHOICE_FINISHED,
};

#define SWAP_NONE UINT32_MAX

/* What a choice that gave way has in the swap file (engine/scheduler/page_swap.h). */
struct swap_image {
    uint32_t slot_count; /* 0: nothing */
    uint32_t first_slot;
    uint32_t computed; /* positions whose keys and values it restores … */
    uint32_t kept;     /* … together with so many pages at the beginning that are to be found */
};

struct completion_choice {
    /* fixed after create */
    uint32_t *history;               /* [prompt_count + max_tokens] prompt, then generated */
    struct completion_token *tokens; /* [max_tokens] */
    struct top_logprob *top;         /* [max_tokens][top_logprobs], NULL: none wanted */
    uint8_t *top_counts;             /* [max_tokens], NULL: none wanted */
    /* atomics */
    atomic_uint token_count; /* generated, readable */
    atomic_int reason;       /* enum finish_reason */
    atomic_bool cancelled;
    /* engine thread only */
    enum choice_state state;
    uint32_t preemptions;        /* for lack of room */
    uint32_t charged;            /* positions that its tenant was charged for */
    uint32_t forced_preemptions; /* by the test hook */
    uint64_t last_token_ns;
    struct swap_image image; /* while it waits, leaves or returns */
};

struct completion {
    /* fixed after create; history's contents: engine thread after submit */
    struct budget *budget;
    uint64_t bytes;
    uint32_t prompt_count;
    uint32_t choice_count;
    uint32_t max_tokens;
    uint32_t top_logprobs;
    struct sampling_params sampling;
    bool ignore_eos;
    bool use_prefix_cache;
    bool want_logprobs;
    uint64_t cache_salt;
    int32_t priority;
    uint32_t tenant;
    uint64_t deadline_ns;
    /* atomics */
    atomic_uint ref_count;
    atomic_uint cached_count;
    /* under lock */
    pthread_mutex_t lock;
    void (*wake)(void *arg);
    void *wake_arg;
    atomic_uint *cancel_epoch; /* the engine's; NULL before submit and after the end */
    /* engine thread only (the inbox's lock before that) */
    struct completion *next;       /* inbox, then the scheduler's waiting list */
    struct completion *previous;   /* its tenant's waiting list */
    struct completion *next_dirty; /* list of those whose reader is to be woken */
    bool is_waiting;               /* in the waiting list */
    bool is_dirty;                 /* the reader is to be woken */
    bool was_admitted;
    uint64_t arrival;     /* 1, 2, 3 …: first come first served */
    uint32_t token_limit; /* prompt and answer together end here */
    uint32_t waiting_choices;
    uint32_t unfinished_choices;
    uint64_t submit_ns, admit_ns, first_token_ns;
    struct completion_choice choices[]; /* [choice_count] */
};

/* Submit: the engine becomes a holder, and cancelling raises *cancel_epoch from now on. */
void completion_attach(struct completion *completion, atomic_uint *cancel_epoch);
/* The engine is done with it (or takes a submit back). */
void completion_detach(struct completion *completion);

static inline bool completion_choice_cancelled(const struct completion *completion, uint32_t choice)
{
    return atomic_load(&completion->choices[choice].cancelled);
}

static inline uint32_t completion_generated(const struct completion *completion, uint32_t choice)
{
    return atomic_load_explicit(&completion->choices[choice].token_count, memory_order_relaxed);
}

/* Engine thread: one more token of a choice, for history and reader. */
void completion_push(struct completion *completion, uint32_t choice,
                     const struct sampled_token *token);
/* Engine thread: the choice's end; all its tokens have been pushed. */
void completion_finish(struct completion *completion, uint32_t choice, enum finish_reason reason);
/* Engine thread: call the reader's wake function, if it still wants to be woken. */
void completion_wake(struct completion *completion);

#endif
