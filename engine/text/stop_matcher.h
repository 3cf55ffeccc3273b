/*
 * Stop strings over a stream of text: emits what can no longer be part of a stop, holds back the
 * longest suffix that is a prefix of one, and ends at the match that is complete first (the text
 * before it only, or the stop too; of matches that end together the longest). Matching is on text, not token edges.
 * One owner, no locks.
 */
#ifndef QUIRE_ENGINE_TEXT_STOP_MATCHER_H
#define QUIRE_ENGINE_TEXT_STOP_MATCHER_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>

struct stop_matcher {
    const char *const *stops; /* borrowed; none empty */
    const size_t *lengths;
    unsigned count;
    bool keep;          /* the stop that matched is emitted too */
    struct buffer held; /* text not yet emitted */
    bool matched;
    unsigned matched_index;
};

void stop_matcher_init(struct stop_matcher *matcher, const char *const *stops,
                       const size_t *lengths, unsigned count, bool keep);
void stop_matcher_deinit(struct stop_matcher *matcher);
/* Returns true once a stop matched (and then ignores further text). */
bool stop_matcher_push(struct stop_matcher *matcher, const char *text, size_t length,
                       struct buffer *out);
/* The answer ended without a stop: emit what is held. */
void stop_matcher_finish(struct stop_matcher *matcher, struct buffer *out);

#endif
