/*
 * What a request says of single tokens: which may be sampled, and which end its answer. Plain data,
 * owned by whoever holds it; its arrays are borrowed. Any thread may read it.
 */
#ifndef QUIRE_ENGINE_SAMPLE_TOKEN_RULES_H
#define QUIRE_ENGINE_SAMPLE_TOKEN_RULES_H

#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>

struct token_rules {
    uint32_t min_tokens; /* so many are generated before an end or stop token can be sampled */
    bool keep_stop;      /* the stop token that ends the answer is its last output token */
    const uint32_t *stop_tokens; /* [stop_count] each ends the answer */
    uint32_t stop_count;
    /* Sequences of tokens that the answer must not contain, one behind the other: the last token of
       each cannot be sampled where those before it were just generated. */
    const uint32_t *bad_tokens; /* [bad_ends[bad_count - 1]] */
    const uint32_t *bad_ends;   /* [bad_count] */
    uint32_t bad_count;
    const uint32_t *allowed; /* bit id % 32 of word id / 32: may be sampled; NULL: all may */
    uint32_t allowed_words;  /* [allowed_words] */
};

static inline bool token_is_among(const uint32_t *tokens, uint32_t count, uint32_t token)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token)
            return true;
    return false;
}

static inline bool token_rules_stop(const struct token_rules *rules, uint32_t token)
{
    return token_is_among(rules->stop_tokens, rules->stop_count, token);
}

/* The same with arrays of the arena for as much: `bad_tokens` tokens of bad sequences. */
static inline struct token_rules
token_rules_take(struct arena *arena, const struct token_rules *sizes, uint32_t bad_tokens)
{
    struct token_rules rules = *sizes;
    rules.stop_tokens = (const uint32_t *)arena_take(arena, rules.stop_count, sizeof(uint32_t));
    rules.bad_tokens = (const uint32_t *)arena_take(arena, bad_tokens, sizeof(uint32_t));
    rules.bad_ends = (const uint32_t *)arena_take(arena, rules.bad_count, sizeof(uint32_t));
    rules.allowed = (const uint32_t *)arena_take(arena, rules.allowed_words, sizeof(uint32_t));
    if (rules.allowed_words == 0)
        rules.allowed = NULL;
    return rules;
}

#endif
