/*
 * A sequence: one answer to one prompt while it has a running slot. Its tokens lie in the
 * completion (history); the sequence knows how many of them have keys and values, and in which
 * pages. It knows tokens and pages, no tensors. Private to engine/; the engine thread's.
 *
 *     history   [ prompt ............ | output .... ]        token_count
 *     computed  [ ...................... ]                   chases token_count
 *     pages     [ page ][ page ][ page ][ page ]             contain at least computed
 *      … with a window    [ page ][ page ]                   a table for each KV cache group
 *     published [ page ][ page ]                             full pages, in the prefix cache
 *
 * Invariants: computed <= token_count. After a step, computed < token_count for a sequence that
 * decodes: by one, or by more while tokens that a grammar forced are still to be computed. The
 * tables contain all computed positions that the next one sees. A page that is written has
 * reference count 1 and is not cached.
 *
 * States (the completion says WAITING before and after, see completion_private.h):
 *
 *     waiting ─┬─► PREFILL ───────────first token─────────► DECODE ─► end
 *              ├─► SWAPPING_IN ──its pages are read──► PREFILL
 *              └─► PENDING_FORK ──the parent's prompt is computed──► DECODE
 *
 *     any of them ──preempted──► waiting, or SWAPPING_OUT ──its pages are written──► waiting
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SEQUENCE_H
#define QUIRE_ENGINE_SCHEDULER_SEQUENCE_H

#include "engine/completion_private.h"
#include "pager/page_table.h"
#include "pager/pager.h"

#include <stdbool.h>
#include <stdint.h>

enum sequence_state {
    SEQUENCE_PREFILL, /* tokens are to be computed before the next one can be sampled; it has all
                         its pages, in groups with a window those for the next chunk */
    SEQUENCE_DECODE,  /* one token per step, or those that a grammar forced */
    SEQUENCE_PENDING_FORK, /* waits for its parent's prompt, without pages */
    SEQUENCE_SWAPPING_OUT, /* preempted: its pages are being written to the swap file */
    SEQUENCE_SWAPPING_IN,  /* as PREFILL, but pages before `computed` are still to be read back */
};

struct sequence {
    struct completion *completion;      /* NULL: the slot is free */
    uint32_t index;                     /* which of the completion's sequences */
    struct completion_sequence *record; /* the part of it that outlives the slot */
    enum sequence_state state;
    uint32_t token_count;
    uint32_t computed;
    uint32_t published;         /* pages */
    uint64_t parent_id;         /* parent page id of the next page to be published */
    struct page_table *tables;  /* [groups], the slot's */
    struct sequence *parent;    /* PENDING_FORK: which sequence computes the prompt */
    struct sequence *next_free; /* in the list of free slots */
    uint64_t last_step;         /* the last step in which it had tokens */
    uint32_t sampled_count;     /* since it got its slot */
    uint32_t
        next_slot; /* SWAPPING_IN: the slot of the swap file to be read next; SWAP_NO_SLOT: none */
    /* of the step that is being scheduled */
    uint32_t scheduled_tokens; /* of this sequence */
    bool is_selected;          /* decodes in this step */
    /* scratch */
    uint64_t preemption_cost; /* of choosing the sequence to preempt */
    uint32_t tenant_position; /* of choosing those that decode: 0 is the first of its tenant, … */
};

/* A sequence of the completion gets the slot; the tables are empty, as sequence_clear left them. */
void sequence_init(struct sequence *sequence, struct completion *completion, uint32_t index);

/* Releases its pages and leaves the slot free. */
void sequence_clear(struct sequence *sequence, struct pager *pager);

/* By arrival, then by number within the completion. */
static inline bool sequence_is_older(const struct sequence *a, const struct sequence *b)
{
    if (a->completion->arrival != b->completion->arrival)
        return a->completion->arrival < b->completion->arrival;
    return a->index < b->index;
}

/* The order in which running sequences get pages: the more urgent priority class, then the older.
   The first in this order is never preempted. */
static inline bool sequence_precedes(const struct sequence *a, const struct sequence *b)
{
    uint32_t a_class = completion_priority_class(a->completion);
    uint32_t b_class = completion_priority_class(b->completion);
    return a_class != b_class ? a_class < b_class : sequence_is_older(a, b);
}

static inline bool sequence_has_pages(const struct sequence *sequence)
{
    return sequence->tables[0].count > 0;
}

/* Does it have, or will it have, a prompt to compute? */
static inline bool sequence_has_prompt(const struct sequence *sequence)
{
    return sequence->state == SEQUENCE_PREFILL || sequence->state == SEQUENCE_SWAPPING_OUT ||
           sequence->state == SEQUENCE_SWAPPING_IN;
}

/* Does it take pages in this step: it decodes, or its prompt's window moves on? */
static inline bool sequence_takes_pages(const struct sequence *sequence)
{
    return sequence->is_selected || sequence->state == SEQUENCE_PREFILL;
}

/* ---- How many pages. `chunk` is the most tokens of a prompt that a step computes. ---- */

/* Pages of all groups in its tables … */
uint32_t sequence_page_count(const struct sequence *sequence, const struct pager *pager);

/* … and those of them with reference count 1: they are free when it is preempted. */
uint32_t sequence_private_pages(const struct sequence *sequence, const struct pager *pager);

/* Tokens to compute again if it is preempted: those in private pages. */
uint32_t sequence_recompute_tokens(const struct sequence *sequence, const struct pager *pager);

/* What a waiting sequence starts from. */
struct sequence_origin {
    struct pager_match match; /* pages that are in the prefix cache */
    uint32_t computed; /* positions: those of the match, or more if the rest was swapped out */
};

/* Pages that a sequence of token_count tokens has when it starts, those of the match included. */
uint64_t sequence_initial_pages(const struct pager *pager, uint32_t token_count, uint32_t chunk,
                                const struct sequence_origin *origin);

/* Pages that must be free for a waiting sequence to run to its end in any case: with token_limit
   tokens. */
uint64_t sequence_worst_case_pages(const struct pager *pager, uint32_t token_limit, uint32_t chunk,
                                   const struct sequence_origin *origin);

/* The most pages that a running sequence may still take, copies of shared pages included: until its
   end, … */
uint64_t sequence_worst_case_growth(const struct sequence *sequence, const struct pager *pager,
                                    uint32_t chunk);

/* … when it next comes to the end of a page, … */
uint32_t sequence_next_growth(const struct sequence *sequence, const struct pager *pager);

/* … and now, for its next positions, copies not included: for one position when it decodes, for up
   to `chunk` of a prompt. Called after sequence_slide. */
uint32_t sequence_missing_pages(const struct sequence *sequence, const struct pager *pager,
                                uint32_t chunk);

/* ---- Pages ---- */

/* An origin with swapped pages needs less of the match than pager_find counted (its pages are in
   the tables' arrays): counts again which of those pages are in use. */
void sequence_recount_origin(struct sequence_origin *origin, const struct pager *pager,
                             const struct page_table *tables);

/* Gives a sequence the pages that pager_find found (in the tables' arrays) and those that it needs
   beyond them, which are free. It becomes SWAPPING_IN if the origin has swapped pages: then those
   pages are still to be filled. */
void sequence_start(struct sequence *sequence, struct pager *pager, uint32_t chunk,
                    const struct sequence_origin *origin);

/* Releases the pages that its next positions do not see: of a prompt at each step, of a sequence
   that decodes when it comes to the end of a page. So the pages that it takes then are mostly its
   own old ones. */
void sequence_slide(struct sequence *sequence, struct pager *pager);

/* Group 0's page of position `computed`, which is written next; 0: it is still to be taken. The
   other groups' pages of that position are taken and shared together with it. */
uint32_t sequence_page_to_write(const struct sequence *sequence, uint32_t page_size);

/* Takes the pages of the next positions, which are free: sequence_missing_pages new ones, and
   copies of shared ones, which are appended to copies [groups]. */
void sequence_take_pages(struct sequence *sequence, struct pager *pager, uint32_t chunk,
                         struct page_copy *copies, uint32_t *copy_count);

/* `count` more positions have been computed. Full pages enter the prefix cache if `publish`. */
void sequence_advance(struct sequence *sequence, struct pager *pager, uint32_t count, bool publish);

/* A pending fork gets what its parent has computed: the same pages, one reference more each. */
void sequence_fork(struct sequence *sequence, struct pager *pager, const struct sequence *parent);

/* ---- Swapping out ---- */

/* Full pages at its beginning that other sequences use, too, and that are cached: they are not
   written. */
uint32_t sequence_shared_pages(const struct sequence *sequence, const struct pager *pager);

/* Pages of all groups that contain what it has computed and still sees, without the first
   `shared_count` pages. */
uint32_t sequence_pages_to_swap(const struct sequence *sequence, const struct pager *pager,
                                uint32_t shared_count);

/* Becomes SWAPPING_OUT with exactly the pages that sequence_pages_to_swap counts and the shared
   ones. */
void sequence_start_swap_out(struct sequence *sequence, struct pager *pager);

/* The group whose table is the longest, of equals the last: its last page is written next. The
   tables are not empty. */
uint32_t sequence_longest_group(const struct sequence *sequence, const struct pager *pager);

#endif
