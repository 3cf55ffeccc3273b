/*
 * Results: what becomes of sequences. Output tokens, ends, the times that are measured, and the
 * notifications of readers.
 *
 * A reader is notified at most once per step, after everything that the step changed: a completion
 * is put on the list of pending notifications, and results_notify goes through the list. After it,
 * a completion all of whose sequences have ended belongs to its reader alone and may be gone.
 *
 * Invariants: a completion is on the list exactly while notify_pending is set; a sequence that ends
 * has no slot, no pages and no swapped pages any more when its reader can see the end.
 *
 * Private to engine/scheduler/; the engine thread's.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_RESULTS_H
#define QUIRE_ENGINE_SCHEDULER_RESULTS_H

#include "engine/scheduler/step.h"
#include "engine/scheduler/swap.h"

#include <stdint.h>

struct results {
    /* fixed after start */
    struct slots *slots;
    struct swap *swap;
    struct engine_metrics *metrics;
    const uint32_t *end_tokens;
    uint32_t end_token_count;
    /* engine thread only */
    struct completion *notify_first; /* pending notifications, linked by next_notify */
    uint64_t completed;              /* completions that have ended, ever */
};

/* A waiting, or a running sequence ends. */
void results_end_waiting(struct results *results, struct completion *completion, uint32_t index,
                         enum finish_reason reason, uint64_t now_ns);
void results_end_running(struct results *results, struct sequence *sequence,
                         enum finish_reason reason, uint64_t now_ns);

/* A sample's token becomes the sequence's next output token, or ends it. */
void results_apply_sample(struct results *results, const struct schedule_sample *sample,
                          uint64_t now_ns);

/* A prompt's hidden states are pooled, some or all of them: then the sequence ends. */
void results_apply_pooling(struct results *results, const struct schedule_pooling *pooling,
                           uint64_t now_ns);

/* Notifies the readers, and detaches completions that have ended. */
void results_notify(struct results *results);

#endif
