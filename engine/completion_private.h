/*
 * A completion from inside the engine. Only engine/ and its tests include this; api/ sees
 * completion.h. What api/ calls a choice is a sequence here.
 *
 * The engine thread writes and one reader reads: a sequence's output tokens are published by a
 * release store of output_count, its end by a release store of reason after that. The lock guards
 * nothing but the wake function and the engine's epoch, so that neither is used after its owner has
 * gone.
 */
#ifndef QUIRE_ENGINE_COMPLETION_PRIVATE_H
#define QUIRE_ENGINE_COMPLETION_PRIVATE_H

#include "engine/completion.h"

#include <pthread.h>
#include <stdatomic.h>

enum sequence_status {
    SEQUENCE_WAITING, /* for a running slot: it never ran, or it was preempted */
    SEQUENCE_RUNNING, /* it has a running slot (engine/scheduler/sequence.h) */
    SEQUENCE_FINISHED,
};

#define SWAP_NO_SLOT UINT32_MAX

/* What a preempted sequence has in the swap file (engine/scheduler/page_swap.h). */
struct swapped_pages {
    uint32_t slot_count; /* 0: nothing */
    uint32_t first_slot;
    uint32_t computed;     /* positions whose keys and values are restored from the slots … */
    uint32_t shared_count; /* … and from so many pages at the beginning, which must be cached */
};

/* One sequence of a completion, from submit to its end. */
struct completion_sequence {
    /* fixed after create */
    uint32_t *history;               /* [prompt_count + max_tokens] prompt, then output tokens */
    struct completion_token *output; /* [max_tokens] the same output tokens for the reader */
    struct top_logprob *top;         /* [max_tokens][top_logprobs], NULL: none wanted */
    uint8_t *top_counts;             /* [max_tokens], NULL: none wanted */
    /* atomics */
    atomic_uint output_count; /* readable output tokens */
    atomic_int reason;        /* enum finish_reason */
    uint32_t stop_token;      /* that ended it, set before `reason`; UINT32_MAX: none */
    atomic_bool cancelled;
    atomic_bool constraint_failed; /* set before `reason` */
    atomic_bool stopped;           /* the reader found a stop string; set before `cancelled` */
    /* engine thread only */
    enum sequence_status status;
    uint32_t preemptions;        /* for lack of pages or slots */
    uint32_t charged;            /* positions that its tenant was charged for */
    uint32_t forced_preemptions; /* by the test hook */
    uint64_t last_token_ns;
    struct grammar_matcher *matcher; /* where it is in the grammar; NULL before its first mask and
                                        after its end. While a step samples: a worker's */
    struct swapped_pages swapped;    /* while it waits, is swapped out or swapped in */
};

struct completion {
    /* fixed after create; the contents of history: engine thread after submit */
    struct budget *budget;
    uint64_t bytes;
    uint32_t prompt_count;
    uint32_t sequence_count;
    uint32_t max_tokens;
    uint32_t top_logprobs;
    struct sampling_params sampling;
    struct token_rules rules;
    bool ignore_eos;
    bool use_prefix_cache;
    bool want_logprobs;
    enum pooling pooling;
    uint32_t pooled_count;
    uint32_t second_segment;
    struct grammar *grammar; /* NULL: output is free */
    uint64_t cache_salt;
    int32_t priority;
    uint32_t tenant;
    uint64_t deadline_ns;
    /* atomics */
    atomic_uint ref_count; /* the creator, and the engine after submit */
    atomic_uint cached_count;
    atomic_uint_fast64_t admit_ns, first_token_ns;
    /* under lock */
    pthread_mutex_t lock;
    void (*wake)(void *arg);
    void *wake_arg;
    atomic_uint *cancel_epoch; /* the engine's; NULL before submit and after the end */
    /* engine thread only (the inbox's lock before that) */
    struct completion *next;        /* in the inbox, then in its tenant's waiting list */
    struct completion *previous;    /* in its tenant's waiting list */
    struct completion *next_notify; /* in the list of pending notifications */
    bool is_waiting;                /* in the waiting list */
    bool notify_pending;            /* the reader is to be notified */
    bool was_admitted;
    uint64_t arrival;     /* 1, 2, 3 …: first come, first served */
    uint32_t token_limit; /* prompt and output together end here */
    uint32_t waiting_sequences;
    uint32_t unfinished_sequences;
    float *pooled; /* [pooled_count], NULL: it generates. The reader's after the end */
    uint32_t
        pooled_positions; /* positions whose hidden states are in it: preemption changes nothing */
    uint64_t submit_ns;   /* written before it comes in */
    struct completion_sequence sequences[]; /* [sequence_count] */
};

/* Submit: the engine holds a reference, and cancelling raises *cancel_epoch from now on. */
void completion_attach(struct completion *completion, atomic_uint *cancel_epoch);
/* The engine is done with it, or takes a submit back. */
void completion_detach(struct completion *completion);

static inline bool completion_is_cancelled(const struct completion *completion, uint32_t index)
{
    return atomic_load(&completion->sequences[index].cancelled);
}

static inline uint32_t completion_output_count(const struct completion *completion, uint32_t index)
{
    return atomic_load_explicit(&completion->sequences[index].output_count, memory_order_relaxed);
}

/* Prompt and output tokens of sequence `index` so far. */
static inline uint32_t completion_token_count(const struct completion *completion, uint32_t index)
{
    return completion->prompt_count + completion_output_count(completion, index);
}

/* The priority class: the part of a priority that counts between tenants, max(priority, 0). Whoever
   may set priorities can step behind other tenants, but not ahead of them. */
static inline uint32_t completion_priority_class(const struct completion *completion)
{
    return completion->priority > 0 ? (uint32_t)completion->priority : 0;
}

/* Engine thread: one more output token of a sequence, for history and reader. */
void completion_push(struct completion *completion, uint32_t index,
                     const struct sampled_token *token);
/* Engine thread: the sequence's end; all its tokens have been pushed. */
void completion_finish(struct completion *completion, uint32_t index, enum finish_reason reason);
/* Engine thread: calls the reader's wake function, unless the reader has gone. */
void completion_wake(struct completion *completion);

#endif
