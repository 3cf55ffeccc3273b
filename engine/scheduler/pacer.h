/*
 * The step pacer: how many prompt rows the next step may have, so that a step lasts at most
 * max(target, 1.25 × a step of the decoding rows alone). When nobody decodes nobody's next token
 * waits: then chunks do not get so short that reading the weights outweighs the work. It learns
 * from the steps that were made and decides nothing but a number, so answers cannot depend on it.
 * Private to engine/; engine thread only.
 *
 *     a step's time ≈ decode_ns[decoding rows, at least 1] + prompt rows × prompt_row_ns
 *
 * Both are moving averages. The first depends on the number of rows in a bent way (a row alone
 * costs nearly as much as four), so it is kept per power of two.
 */
#ifndef QUIRE_ENGINE_SCHEDULER_PACER_H
#define QUIRE_ENGINE_SCHEDULER_PACER_H

#include <stdint.h>

#define PACER_SIZES 16 /* 1, 2, 3–4, 5–8 … rows */

struct pacer {
    uint64_t target_ns;            /* 0: no limit; fixed after start */
    uint32_t max_rows;             /* fixed after start */
    double decode_ns[PACER_SIZES]; /* 0: not seen yet */
    double prompt_row_ns;          /* 0: not seen yet */
    uint32_t known_rows; /* twice the longest chunk seen: a row of a short one may cost less, since
                            reading the weights hides it */
};

void pacer_init(struct pacer *pacer, uint32_t target_ms, uint32_t max_rows);

/* Prompt rows allowed beside so many decoding rows: 1 … max_rows. */
uint32_t pacer_prompt_rows(const struct pacer *pacer, uint32_t decode_rows);

/* A step of so many rows took so long. */
void pacer_observe(struct pacer *pacer, uint32_t decode_rows, uint32_t prompt_rows,
                   uint64_t step_ns);

#endif
