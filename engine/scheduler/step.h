/*
 * The step: what the scheduler puts together for one pass of the model, and its result, the
 * schedule.
 *
 * A step is filled in this order: step_begin; step_select_decoding, which says who decodes;
 * step_take_pages, which gives them pages and schedules their tokens; step_add_prompt for the
 * prompts; step_fill_batch. Nothing that is scheduled is taken back: pages are secured before
 * tokens.
 *
 * If more sequences decode than a step has tokens, they take turns: one of each tenant, then a
 * second of each, and so on, so that a tenant with many sequences takes no tokens from one with
 * few. Within a tenant the one that waited longest comes first.
 *
 * A decoding sequence has one token per step, and more when a grammar forced some: those that fit
 * the page of the first, as long as the step has tokens to spare. So pages are secured for one
 * position.
 *
 * A sequence with a pooling asks for the hidden states that are pooled in place of logits. Where
 * tokens see what follows them (whole_prompts), all tokens of a prompt are in one step.
 *
 * Invariants: a sequence appears in the schedule at most once; its tokens are consecutive and begin
 * where it is computed; the last token of a sequence asks for logits, and its pending forks sample
 * from the same logits.
 *
 * A schedule is valid until the next step_begin. Private to engine/, the engine thread's.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_STEP_H
#define QUIRE_ENGINE_SCHEDULER_STEP_H

#include "base/limits.h"
#include "engine/batch.h"
#include "engine/scheduler/slots.h"

#include <stdbool.h>
#include <stdint.h>

/* A token to be sampled. Whoever runs the schedule sets ok and token before the commit. */
struct schedule_sample {
    struct sequence *sequence;
    uint32_t logits_index; /* of batch.logits_rows; ascending; equal for a parent and its forks */
    bool is_shared;        /* another sample uses the same logits */
    bool ok;               /* false: no token can be drawn, the sequence ends in error */
    struct sampled_token token;
    uint32_t mask_index; /* for a completion with a grammar */
    /* … whose matcher has moved behind all of these: */
    bool is_complete;      /* the grammar lets nothing follow them: the sequence ends here */
    uint32_t forced_count; /* tokens that must follow `token`, appended without sampling */
    uint32_t forced[LIMIT_FORCED_TOKENS];
};

/* Rows whose hidden states are pooled. */
struct schedule_pooling {
    struct sequence *sequence;
    uint32_t logits_index;   /* of batch.logits_rows: the first one … */
    uint32_t count;          /* … of so many, consecutive; 0: none in this step */
    uint32_t first_position; /* of that row */
    bool is_complete;        /* the prompt's last token is among those of the step */
};

struct schedule {
    struct batch batch; /* row_count 0: nothing to run or commit, pages were moved */
    uint32_t decode_token_count;
    uint32_t prompt_token_count;
    const struct page_copy *copies; /* to be made in this order before the batch runs */
    uint32_t copy_count;
    struct schedule_sample *samples;
    uint32_t sample_count;
    const struct schedule_pooling *poolings;
    uint32_t pooling_count;
};

struct step {
    /* fixed after start */
    struct slots *slots;
    /* engine thread only */
    uint64_t number; /* of this step: 1, 2, … */
    struct schedule schedule;
    struct sequence **sequences; /* [slot_count] those with tokens, in the order of the batch */
    uint32_t sequence_count;
    struct sequence **candidates;           /* [slot_count] scratch */
    uint32_t spare_tokens;                  /* that forced tokens of decoding sequences may use */
    uint32_t *tokens;                       /* [max_batch_tokens] */
    struct batch_sequence *batch_sequences; /* [slot_count] */
    uint32_t *logits_rows;                  /* [max_batch_tokens] */
    struct schedule_pooling *poolings;      /* [slot_count] */
    struct page_copy *copies; /* [slot_count·groups]: each sequence copies at most once a group */
};

/* The arrays are in place: the schedule points to them. */
void step_init(struct step *step, struct slots *slots, struct schedule_sample *samples);

/* A new step, without tokens. */
void step_begin(struct step *step);

/* Selects the sequences that decode, at most `limit`, and releases the pages that those and the
   running prompts see no longer. */
void step_select_decoding(struct step *step, uint32_t limit);

/* Gives each sequence that takes pages its pages, which are free, and each selected one its
 * tokens. */
void step_take_pages(struct step *step);

/* Up to `limit` further tokens of a running prompt; returns how many. */
uint32_t step_add_prompt(struct step *step, struct sequence *sequence, uint32_t limit);

/* The batch and the samples of what was scheduled. */
void step_fill_batch(struct step *step);

#endif
