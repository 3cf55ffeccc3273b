/*
 * The pacer: how many prompt tokens the next step may have, so that a step lasts at most
 * max(target, 1.25 × a step of the decoding tokens alone). When no sequence decodes, no stream
 * waits for its next token: then chunks do not get so short that reading the weights outweighs the
 * work.
 *
 * It learns from the steps that were made and decides nothing but a number, so answers cannot
 * depend on it. Private to engine/; the engine thread's.
 *
 *     a step's time ≈ decode_ns[decoding tokens, at least 1] + prompt tokens × prompt_token_ns
 *
 * Both are moving averages. The first does not grow in proportion (one token alone costs nearly as
 * much as four), so it is measured for each power of two.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_PACER_H
#define QUIRE_ENGINE_SCHEDULER_PACER_H

#include <stdint.h>

#define PACER_SIZES 16 /* 1, 2, 3–4, 5–8 … tokens */

struct pacer {
    uint64_t target_ns;            /* 0: no limit; fixed after start */
    uint32_t max_tokens;           /* fixed after start */
    double decode_ns[PACER_SIZES]; /* 0: not seen yet */
    double prompt_token_ns;        /* 0: not seen yet */
    uint32_t known_tokens; /* twice the longest chunk seen: a token of a short one may cost less,
                            since reading the weights hides it */
};

void pacer_init(struct pacer *pacer, uint32_t target_ms, uint32_t max_tokens);

/* Prompt tokens allowed beside so many decoding tokens: 1 … max_tokens. */
uint32_t pacer_prompt_tokens(const struct pacer *pacer, uint32_t decode_tokens);

/* A step of so many tokens took so long. */
void pacer_observe(struct pacer *pacer, uint32_t decode_tokens, uint32_t prompt_tokens,
                   uint64_t step_ns);

#endif
