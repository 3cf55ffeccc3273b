/*
 * A sequence: one choice of a completion while it runs. Its tokens lie in the completion (history);
 * a sequence knows how many of them have keys and values, in which pages. Knows tokens and pages,
 * no tensors. Private to engine/; engine thread only.
 *
 *     history   [ prompt ............ | generated ... ]      token_count
 *     computed  [ ...................... )                   chases token_count
 *     pages     [ page ][ page ][ page ][ page ]             cover at least computed
 *      … with a window    [ page ][ page ]                   a table for each page group
 *     published [ page ][ page ]                             full pages offered to the prefix index
 *
 * Invariants: computed <= token_count; after a step of a decoding sequence computed + 1 ==
 * token_count; the tables cover all computed positions that the next one sees; a page that is
 * written has this one holder and is not findable.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SEQUENCE_H
#define QUIRE_ENGINE_SCHEDULER_SEQUENCE_H

#include "engine/completion_private.h"
#include "pager/page_table.h"
#include "pager/pager.h"

#include <stdbool.h>
#include <stdint.h>

enum sequence_state {
    SEQUENCE_PROMPT,    /* tokens to compute before the next one can be sampled; has all its pages,
                           in groups with a window those for the next rows */
    SEQUENCE_DECODING,  /* one token per step */
    SEQUENCE_FOLLOWING, /* a choice that waits for its leader's prompt, without pages */
    SEQUENCE_LEAVING, /* gives way: its pages are being written to the swap file, from the tails */
    SEQUENCE_RETURNING, /* as PROMPT, but pages before `computed` are still being read from there */
};

struct sequence {
    struct completion *completion; /* NULL: the place is free */
    uint32_t choice;
    enum sequence_state state;
    uint32_t token_count;
    uint32_t computed;
    uint32_t published;         /* pages */
    uint64_t parent_id;         /* of the next page to be published */
    struct page_table *tables;  /* [groups], the place's */
    struct sequence *leader;    /* FOLLOWING: who computes the prompt */
    struct sequence *next_free; /* in the list of free places */
    uint64_t last_step;         /* when it last had rows: turns, if there are more than rows */
    uint64_t turn;              /* == the step: chosen for it */
    uint32_t sampled_count;     /* since it got its place */
    uint32_t entry;             /* of the schedule, if last_step is the step */
    uint64_t cost;              /* scratch of choosing who gives way … */
    uint32_t round;             /* … and whose turn it is */
    uint32_t next_slot;         /* RETURNING: of its image, to be read next; SWAP_NONE: all read */
};

/* A choice takes the place; its tables are empty, as sequence_clear left them. */
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

static inline bool sequence_has_pages(const struct sequence *sequence)
{
    return sequence->tables[0].count > 0;
}

/* Pages of all groups that it holds … */
uint32_t sequence_pages(const struct sequence *sequence, const struct pager *pager);

/* … and those of them that nobody else holds: what is free when it gives its pages back. */
uint32_t sequence_own_pages(const struct sequence *sequence, const struct pager *pager);

/* Rows to compute again if it gave its pages back: those in pages that nobody else holds. */
uint32_t sequence_cost(const struct sequence *sequence, const struct pager *pager);

/* ---- How many pages. `rows` is the most that a step computes of a prompt. ---- */

/* What a prompt starts from. */
struct sequence_origin {
    struct pager_match match; /* pages that are there already */
    uint32_t computed;        /* positions: those of the match, or more with an image of the rest */
};

static inline struct sequence_origin sequence_origin(const struct pager *pager,
                                                     const struct pager_match *match)
{
    return (struct sequence_origin){*match, match->page_count * pager_page_size(pager)};
}

/* Pages that a prompt of token_count tokens holds when it starts, those of the match included. */
uint64_t sequence_need(const struct pager *pager, uint32_t token_count, uint32_t rows,
                       const struct sequence_origin *origin);

/* Pages that have to be free for a choice to run to its end undisturbed: token_limit tokens, a
   prompt of which matches so far. */
uint64_t sequence_full_need(const struct pager *pager, uint32_t token_limit, uint32_t rows,
                            const struct sequence_origin *origin);

/* Most pages it may come to take beyond those it has, copies of shared ones included: until its
   end, … */
uint64_t sequence_growth(const struct sequence *sequence, const struct pager *pager, uint32_t rows);

/* … when it next comes to the end of a page, … */
uint32_t sequence_next_growth(const struct sequence *sequence, const struct pager *pager);

/* … and now, for its next positions, copies not included: one position when it decodes, up to
   `rows` of a prompt. What it need not see any more it has given back (sequence_slide). */
uint32_t sequence_wanted(const struct sequence *sequence, const struct pager *pager, uint32_t rows);

/* ---- Pages ---- */

/* An origin with an image sees less of the match than what pager_find counted (pages in the tables'
   arrays): count again which of them somebody holds. */
void sequence_narrow(struct sequence_origin *origin, const struct pager *pager,
                     const struct page_table *tables);

/* Give a prompt what pager_find found (in the tables' arrays) and the pages it needs beyond that;
   they are free. RETURNING if the origin has an image: those it brings are still to be filled. */
void sequence_start(struct sequence *sequence, struct pager *pager, uint32_t rows,
                    const struct sequence_origin *origin);

/* Give back the pages that its next positions do not see: of a prompt, and of who decodes when it
   comes to the end of a page. So the pages that it takes then are mostly its own old ones. */
void sequence_slide(struct sequence *sequence, struct pager *pager);

/* Group 0's page of position `computed`, which is written next; 0: it has to be taken first. The
   other groups' pages of that position are taken and shared together with it. */
uint32_t sequence_page_to_write(const struct sequence *sequence, uint32_t page_size);

/* Make the pages of the next positions this sequence's own, after sequence_slide: sequence_wanted
   new ones, and copies of shared ones; they are free. Appends to copies [groups]. */
void sequence_make_room(struct sequence *sequence, struct pager *pager, uint32_t rows,
                        struct page_copy *copies, uint32_t *copy_count);

/* `count` more positions have been computed; offer pages that became full to the prefix index if
   `publish`. */
void sequence_advance(struct sequence *sequence, struct pager *pager, uint32_t count, bool publish);

/* A follower takes over what its leader has computed: the same pages, one holder more each. */
void sequence_fork(struct sequence *sequence, struct pager *pager, const struct sequence *leader);

/* ---- Giving way to the swap file: sequence_kept, sequence_image_pages, sequence_leave ---- */

/* Full pages at its beginning that others hold, too, and that can be found: no need to write them.
 */
uint32_t sequence_kept(const struct sequence *sequence, const struct pager *pager);

/* Pages of all groups that hold what it has computed and still sees, the first `kept` left out. */
uint32_t sequence_image_pages(const struct sequence *sequence, const struct pager *pager,
                              uint32_t kept);

/* Becomes LEAVING with exactly the pages that sequence_image_pages counts, and those kept. */
void sequence_leave(struct sequence *sequence, struct pager *pager);

/* The group whose table is longest, of equals the last: its last page goes next. The tables are not
   empty. */
uint32_t sequence_longest(const struct sequence *sequence, const struct pager *pager);

/* Gives its pages back and leaves the place free. */
void sequence_clear(struct sequence *sequence, struct pager *pager);

#endif
