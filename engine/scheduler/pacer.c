/*
 * From two estimates (a step of decoding tokens alone, a prompt token) to the length of the next
 * chunk.
 *
 * A step without prompt tokens teaches the first, one with them the second, of what is left after
 * the first. A step that took too long is believed at once, a fast one slowly, and a short chunk
 * says little about a long one. Chunks are cut to whole tiles of the kernels.
 */
#include "engine/scheduler/pacer.h"

#include "base/check.h"
#include "base/minmax.h"

#include <math.h>

#define FIRST_TOKENS 32    /* before anything was measured: 0.2 s even at 6 ms a token */
#define STRETCH 1.25       /* how much prompts may stretch a step of decoding tokens */
#define HEADROOM 0.95      /* steps scatter around their estimate */
#define DECODE_WEIGHT 0.25 /* of a new measurement in the moving average */
#define ALONE_TOKENS 16    /* nothing decodes: so many are worth reading the weights for … */
#define ALONE_STRETCH 5.0  /* … unless they take so many times the target */
#define TILE_TOKENS 8      /* chunks are cut to multiples: kernels work in tiles of rows */

void pacer_init(struct pacer *pacer, uint32_t target_ms, uint32_t max_tokens)
{
    CHECK(max_tokens >= 1);
    *pacer = (struct pacer){
        .target_ns = (uint64_t)target_ms * 1000000,
        .max_tokens = max_tokens,
        .known_tokens = FIRST_TOKENS,
    };
}

static unsigned size_of(uint32_t tokens)
{
    unsigned size = tokens <= 1 ? 0 : 32 - (unsigned)__builtin_clz(tokens - 1);
    return size < PACER_SIZES ? size : PACER_SIZES - 1;
}

/* A step of the decoding tokens alone; 0 tokens count as one, since the weights are read in any
   case. 0 when nothing was measured. */
static double decode_estimate(const struct pacer *pacer, uint32_t tokens)
{
    unsigned size = size_of(tokens);
    for (unsigned i = size + 1; i-- > 0;) {
        if (pacer->decode_ns[i] > 0)
            return pacer->decode_ns[i]; /* rather too small than too large: chunks stay short */
    }
    for (unsigned i = size + 1; i < PACER_SIZES; i++) {
        if (pacer->decode_ns[i] > 0)
            return pacer->decode_ns[i];
    }
    return 0;
}

uint32_t pacer_prompt_tokens(const struct pacer *pacer, uint32_t decode_tokens)
{
    if (pacer->target_ns == 0)
        return pacer->max_tokens;
    uint32_t most = min_u32(pacer->max_tokens, pacer->known_tokens);
    if (pacer->prompt_token_ns <= 0)
        return min_u32(most, FIRST_TOKENS);
    double decode_ns = decode_estimate(pacer, decode_tokens);
    double limit_ns = (double)pacer->target_ns;
    if (decode_tokens > 0 && limit_ns < STRETCH * decode_ns)
        limit_ns = STRETCH * decode_ns;
    double tokens = (HEADROOM * limit_ns - decode_ns) / pacer->prompt_token_ns;
    if (decode_tokens == 0 && tokens < ALONE_TOKENS) {
        double bearable = ALONE_STRETCH * (double)pacer->target_ns / pacer->prompt_token_ns;
        tokens = fmin(bearable, ALONE_TOKENS);
    }
    if (!(tokens >= 1))
        return 1;
    if (tokens >= most)
        return most;
    uint32_t count = (uint32_t)tokens;
    return count >= 2 * TILE_TOKENS ? count - count % TILE_TOKENS : count;
}

static void average(double *value, double measured, double weight)
{
    *value = *value > 0 ? *value + weight * (measured - *value) : measured;
}

void pacer_observe(struct pacer *pacer, uint32_t decode_tokens, uint32_t prompt_tokens,
                   uint64_t step_ns)
{
    double ns = (double)step_ns;
    if (prompt_tokens == 0) {
        if (decode_tokens > 0)
            average(&pacer->decode_ns[size_of(decode_tokens)], ns, DECODE_WEIGHT);
        return;
    }
    if (prompt_tokens > pacer->known_tokens / 2)
        pacer->known_tokens = prompt_tokens < UINT32_MAX / 2 ? 2 * prompt_tokens : prompt_tokens;
    double share = ns - decode_estimate(pacer, decode_tokens);
    double least = ns * prompt_tokens / (prompt_tokens + decode_tokens) / 4;
    double token_ns = fmax(share, least) / prompt_tokens;
    /* Short chunks say little about long ones; a step that took too long says it at once. */
    double weight = 0.5 * prompt_tokens / (prompt_tokens + 32.0);
    if (token_ns > pacer->prompt_token_ns && prompt_tokens >= 2 * TILE_TOKENS)
        weight = 0.8;
    average(&pacer->prompt_token_ns, token_ns, weight);
}
