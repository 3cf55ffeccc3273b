/*
 * A completion: one prompt with n choices on its way through the engine, and the lists through
 * which their output tokens reach the reader. The lists are sized for max_tokens, so the engine
 * never waits for a client. Each choice is a sequence inside the engine.
 *
 * Two owners hold a reference: the creator (api/) and, once it is submitted, the engine; it is
 * freed when both have released it. The engine writes, one reader reads; cancel may come from any
 * thread.
 */
#ifndef QUIRE_ENGINE_COMPLETION_H
#define QUIRE_ENGINE_COMPLETION_H

#include "base/budget.h"
#include "base/error.h"
#include "engine/batch.h"
#include "engine/constrain/grammar.h"
#include "engine/finish_reason.h"
#include "engine/sample/sampler.h"
#include "engine/sample/token_rules.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct completion;

struct completion_token {
    uint32_t token;
    float logprob; /* 0 unless want_logprobs */
};

struct completion_spec {
    const uint32_t *tokens; /* the prompt, copied; count >= 1 */
    uint32_t token_count;
    uint32_t choice_count; /* n, 1 … LIMIT_CHOICES */
    uint32_t max_tokens; /* per choice, >= 1, already cut to what the context allows; 0 of pooled */
    enum pooling pooling;            /* other than NONE: nothing is generated, choice_count is 1 */
    uint32_t pooled_count;           /* floats of the result */
    uint32_t second_segment;         /* see struct batch_sequence */
    struct sampling_params sampling; /* logit_bias is copied */
    struct token_rules rules;        /* its arrays are copied */
    bool ignore_eos;       /* end tokens are banned from sampling, generation runs to max_tokens */
    bool use_prefix_cache; /* false: neither looked up … */
    uint64_t cache_salt;   /* … prefixes are shared only between equal salts */
    bool want_logprobs;
    uint32_t top_logprobs;
    struct grammar *grammar; /* every choice fits it; NULL: they are free. A reference is taken */
    /* When it runs. None of it can change what is answered. */
    int32_t priority;     /* lower is earlier; between tenants values below 0 count as 0 */
    uint32_t tenant;      /* who is charged: an API key's number, 0 without keys */
    uint64_t deadline_ns; /* clock_now_ns at which it ends as it is; 0: never */
    /* Called by the engine after it pushed or finished, under the completion's lock: must be short,
       must not call back into the completion. Never called after completion_release(reader). */
    void (*wake)(void *arg);
    void *wake_arg;
    uint64_t held_bytes; /* of BUDGET_REQUESTS, by the same request: what can never fit beside it
                            is refused for good */
};

/* Takes its bytes from BUDGET_REQUESTS; STATUS_BUSY when there is no room now, STATUS_TOO_LARGE
   when there never is, STATUS_UNAVAILABLE when the system has no memory. */
enum status completion_create(const struct completion_spec *spec, struct budget *budget,
                              struct completion **out, struct error *error);
uint64_t completion_bytes(const struct completion *completion);

/* Reader: the creator releases its reference. If the work is not done it is cancelled. After this
   returns wake is not called any more. */
void completion_release(struct completion *completion);

/* Any thread, while a reference is held. Idempotent. The engine frees its pages within one step. */
void completion_cancel(struct completion *completion);
/* As completion_cancel for one choice in which a stop string was found: it ends with FINISH_STOP,
   and the others go on. */
void completion_stop_choice(struct completion *completion, uint32_t choice);

/* Reader: choice's tokens from index `from`; returns how many are there, *tokens points into the
   list and stays valid until completion_release. */
uint32_t completion_read(const struct completion *completion, uint32_t choice, uint32_t from,
                         const struct completion_token **tokens);
/* Reader: the `top_logprobs` alternatives of token `index`, already readable; NULL if none wanted.
 */
const struct top_logprob *completion_top(const struct completion *completion, uint32_t choice,
                                         uint32_t index, uint32_t *count);
/* Reader: the stop token that ended it (FINISH_STOP); UINT32_MAX: none of the request's. */
uint32_t completion_stop_token(const struct completion *completion, uint32_t choice);
/* Reader: FINISH_NONE while going on. Read the reason BEFORE the tokens to miss none. */
enum finish_reason completion_reason(const struct completion *completion, uint32_t choice);
/* Reader: the pooled hidden state, or the scores, of a completion with a pooling that ended with
   FINISH_STOP; [pooled_count], as spelt by the model, not normalized. Until completion_release. */
const float *completion_pooled(const struct completion *completion);
/* Its constraint is why it ended with FINISH_ERROR: no room for its matcher, or too many steps. */
bool completion_constraint_failed(const struct completion *completion, uint32_t choice);
bool completion_done(const struct completion *completion); /* all choices finished */
/* When (clock_now_ns) it came into the engine, was admitted and had its first token; 0: not yet.
   Any thread that knows the completion is held. */
struct completion_times {
    uint64_t submit_ns, admit_ns, first_token_ns;
};
struct completion_times completion_times(const struct completion *completion);
/* Prompt tokens that came from the prefix cache, known once the first token is there. */
uint32_t completion_cached_count(const struct completion *completion);

#endif
