/*
 * A sequence: one choice of a completion while it runs. Its tokens lie in the completion (history);
 * a sequence knows how many of them have keys and values, in which pages. Knows tokens and pages,
 * no tensors. Private to engine/; engine thread only.
 *
 *     history   [ prompt ............ | generated ... ]      token_count
 *     computed  [ ...................... )                   chases token_count
 *     pages     [ page ][ page ][ page ][ page ]             cover at least computed
 *     published [ page ][ page ]                             full pages offered to the prefix index
 *
 * Invariants: computed <= token_count; after a step of a decoding sequence computed + 1 ==
 * token_count; the table covers all computed positions; a page that is written has this one holder
 * and is not findable.
 */
#ifndef QUIRE_ENGINE_SEQUENCE_H
#define QUIRE_ENGINE_SEQUENCE_H

#include "engine/completion_private.h"
#include "pager/pager.h"

#include <stdbool.h>
#include <stdint.h>

enum sequence_state {
    SEQUENCE_PROMPT,   /* tokens to compute before the next one can be sampled; has all its pages */
    SEQUENCE_DECODING, /* one token per step */
    SEQUENCE_FOLLOWING, /* a choice that waits for its leader's prompt, without pages */
};

struct sequence {
    struct completion *completion; /* NULL: the place is free */
    uint32_t choice;
    enum sequence_state state;
    uint32_t token_count;
    uint32_t computed;
    uint32_t published; /* pages */
    uint64_t chain;     /* where the next published page belongs */
    struct page_table table;
    struct sequence *leader;    /* FOLLOWING: who computes the prompt */
    struct sequence *next_free; /* in the list of free places */
    uint64_t last_step;         /* when it last had rows: turns, if there are more than rows */
    uint64_t turn;              /* == the step: chosen for it */
    uint32_t sampled_count;     /* since it got its place */
    uint32_t entry;             /* of the schedule, if last_step is the step */
    uint32_t cost;              /* scratch of choosing who gives way … */
    uint32_t round;             /* … and whose turn it is */
};

/* A choice takes the place; its table is empty, as sequence_clear left it. */
void sequence_init(struct sequence *sequence, struct completion *completion, uint32_t choice);

/* Older first: by arrival, then by choice. */
static inline bool sequence_is_older(const struct sequence *a, const struct sequence *b)
{
    if (a->completion->arrival != b->completion->arrival)
        return a->completion->arrival < b->completion->arrival;
    return a->choice < b->choice;
}

static inline const uint32_t *sequence_history(const struct sequence *sequence)
{
    return sequence->completion->choices[sequence->choice].history;
}

/* Most pages it may come to hold beyond those it has, a copy of a shared one included. */
uint32_t sequence_growth(const struct sequence *sequence, const struct pager *pager);

/* The page of position `computed`, which is written next; 0: it has to be taken first. */
uint32_t sequence_page_to_write(const struct sequence *sequence, uint32_t page_size);

/* Pages that nobody else holds: what is free when the sequence gives its pages back. */
uint32_t sequence_own_pages(const struct sequence *sequence, const struct pager *pager);

/* Rows to compute again if it gave its pages back: those in pages that nobody else holds. */
uint32_t sequence_cost(const struct sequence *sequence, const struct pager *pager);

enum sequence_room {
    SEQUENCE_ROOM,      /* the page is there and writable */
    SEQUENCE_ROOM_COPY, /* it is once from → to has been copied */
    SEQUENCE_NO_ROOM,   /* nothing changed */
};

/* Make the page of position `computed` this sequence's own: a new one, or a copy of a shared one.
 */
enum sequence_room sequence_make_room(struct sequence *sequence, struct pager *pager,
                                      uint32_t *from, uint32_t *to);

/* `count` more positions have been computed; offer pages that became full to the prefix index if
   `publish`. */
void sequence_advance(struct sequence *sequence, struct pager *pager, uint32_t count, bool publish);

/* A follower takes over what its leader has computed: the same pages, one holder more each. */
void sequence_fork(struct sequence *sequence, struct pager *pager, const struct sequence *leader);

/* Gives its pages back and leaves the place free. */
void sequence_clear(struct sequence *sequence, struct pager *pager);

#endif
