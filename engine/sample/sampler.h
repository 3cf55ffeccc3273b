/*
 * From logits to a token. The same logits, parameters, seed, choice and position give the same
 * token on every CPU: Philox4x32-10 (Salmon et al., SC 2011) with key seed and counter (output
 * position, draw, choice, 0), 53-bit uniforms, candidates ordered by (logit descending, id
 * ascending), sums in double.
 *
 * Order of steps: logit bias, tokens that may not be drawn (banned, by the request's rules, not
 * allowed by a grammar), repetition / presence / frequency penalties, top_n_sigma, temperature,
 * typical_p, top_k, top_p, min_p, draw. temperature < 1e-5, top_k 1 or top_p 0 is greedy: the
 * largest logit, least id.
 *
 *   top_n_sigma  keeps logits >= largest - n * s; s is the standard deviation (of the whole, not of a
 *                sample) of the finite logits (Tang et al., "Top-nsigma", 2024)
 *   typical_p    keeps the fewest tokens, those with the least |-ln p - H| first (equal ones by id),
 *                whose probabilities sum up to typical_p; H is the entropy of p (Meister et al.,
 *                "Locally Typical Sampling", 2023)
 *   min_keep     so many are left by typical_p, top_p and min_p at least, where there are so many
 */
#ifndef QUIRE_ENGINE_SAMPLE_SAMPLER_H
#define QUIRE_ENGINE_SAMPLE_SAMPLER_H

#include "base/limits.h"
#include "engine/sample/token_rules.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct logit_bias {
    uint32_t token;
    float bias;
};

struct sampling_params {
    float temperature;      /* >= 0 */
    float top_p;            /* 0 … 1; 1 is off */
    float min_p;            /* 0 … 1; 0 is off */
    uint32_t top_k;         /* 0 is off */
    float typical_p;        /* 0 … 1; 0 and 1 are off */
    float top_n_sigma;      /* 0 and below are off */
    uint32_t min_keep;      /* 0 and 1 are off */
    float presence_penalty; /* over generated tokens, as OpenAI's */
    float frequency_penalty;
    float repetition_penalty; /* over prompt and generated tokens; 1 is off; > 0 */
    uint64_t seed;
    const struct logit_bias *logit_bias; /* owned by whoever holds the struct */
    uint32_t logit_bias_count;
};

struct top_logprob {
    uint32_t token;
    float logprob;
};

struct sampled_token {
    uint32_t token;
    float logprob;                          /* from the logits before any parameter: log softmax */
    uint32_t top_count;                     /* as asked for */
    struct top_logprob top[LIMIT_LOGPROBS]; /* ordered (logprob descending, id ascending) */
};

/* Memory for one row, owned by the caller: sampler_workspace_bytes(vocabulary), 64-byte aligned.
   One per thread. */
uint64_t sampler_workspace_bytes(uint32_t vocabulary);

struct sampler_row {
    float *logits; /* [vocabulary]; overwritten */
    uint32_t vocabulary;
    const struct sampling_params *params;
    const uint32_t *tokens; /* the sequence so far: prompt, then generated */
    uint32_t token_count;
    uint32_t prompt_count;
    uint32_t choice;                 /* index among n */
    uint32_t top_logprobs;           /* how many alternatives are wanted, 0 … LIMIT_LOGPROBS */
    bool want_logprob;               /* false: logprob is not computed (0) */
    const struct token_rules *rules; /* NULL: none */
    const uint32_t
        *banned; /* ids that may not be drawn: end tokens that could not end the answer */
    uint32_t banned_count;
    const uint32_t *allowed; /* bit id % 32 of word id / 32: may be drawn; NULL: all may. Log
                                probabilities are of the whole distribution all the same */
};

/* false when the logits hold a NaN or no token is possible: the request's own fault or ours, ends
   that request only. Any thread. */
bool sampler_sample(const struct sampler_row *row, void *workspace, struct sampled_token *out);

#endif
