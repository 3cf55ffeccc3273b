/* See pacer.h. */
#include "engine/scheduler/pacer.h"

#include "base/check.h"

#define FIRST_ROWS 32      /* before anything was measured: 0.2 s even at 6 ms a row */
#define STRETCH 1.25       /* how much prompts may stretch a step of decoding rows */
#define HEADROOM 0.95      /* steps scatter around their estimate */
#define DECODE_WEIGHT 0.25 /* of a new measurement in the moving average */
#define ALONE_ROWS 16      /* nobody decodes: so many rows are worth reading the weights for … */
#define ALONE_STRETCH 5.0  /* … unless they take so many times the target */
#define TILE_ROWS 8        /* chunks are cut to multiples: kernels work in tiles of rows */

void pacer_init(struct pacer *pacer, uint32_t target_ms, uint32_t max_rows)
{
    CHECK(max_rows >= 1);
    *pacer = (struct pacer){
        .target_ns = (uint64_t)target_ms * 1000000,
        .max_rows = max_rows,
        .known_rows = FIRST_ROWS,
    };
}

static unsigned size_of(uint32_t rows)
{
    unsigned size = rows <= 1 ? 0 : 32 - (unsigned)__builtin_clz(rows - 1);
    return size < PACER_SIZES ? size : PACER_SIZES - 1;
}

/* A step of the decoding rows alone, 0 rows like one: reading the weights has to be paid by
   somebody. 0 when nothing near is known. */
static double decode_estimate(const struct pacer *pacer, uint32_t rows)
{
    unsigned size = size_of(rows);
    for (unsigned i = size + 1; i-- > 0;) {
        if (pacer->decode_ns[i] > 0)
            return pacer->decode_ns[i]; /* too small rather than too large: prompts stay short */
    }
    for (unsigned i = size + 1; i < PACER_SIZES; i++) {
        if (pacer->decode_ns[i] > 0)
            return pacer->decode_ns[i];
    }
    return 0;
}

uint32_t pacer_prompt_rows(const struct pacer *pacer, uint32_t decode_rows)
{
    if (pacer->target_ns == 0)
        return pacer->max_rows;
    uint32_t most = pacer->max_rows < pacer->known_rows ? pacer->max_rows : pacer->known_rows;
    if (pacer->prompt_row_ns <= 0)
        return most < FIRST_ROWS ? most : FIRST_ROWS;
    double decode_ns = decode_estimate(pacer, decode_rows);
    double limit_ns = (double)pacer->target_ns;
    if (decode_rows > 0 && limit_ns < STRETCH * decode_ns)
        limit_ns = STRETCH * decode_ns;
    double rows = (HEADROOM * limit_ns - decode_ns) / pacer->prompt_row_ns;
    if (decode_rows == 0 && rows < ALONE_ROWS) {
        double bearable = ALONE_STRETCH * (double)pacer->target_ns / pacer->prompt_row_ns;
        rows = bearable < ALONE_ROWS ? bearable : ALONE_ROWS;
    }
    if (!(rows >= 1))
        return 1;
    if (rows >= most)
        return most;
    uint32_t count = (uint32_t)rows;
    return count >= 2 * TILE_ROWS ? count - count % TILE_ROWS : count;
}

static void average(double *value, double measured, double weight)
{
    *value = *value > 0 ? *value + weight * (measured - *value) : measured;
}

void pacer_observe(struct pacer *pacer, uint32_t decode_rows, uint32_t prompt_rows,
                   uint64_t step_ns)
{
    double ns = (double)step_ns;
    if (prompt_rows == 0) {
        if (decode_rows > 0)
            average(&pacer->decode_ns[size_of(decode_rows)], ns, DECODE_WEIGHT);
        return;
    }
    if (prompt_rows > pacer->known_rows / 2)
        pacer->known_rows = prompt_rows < UINT32_MAX / 2 ? 2 * prompt_rows : prompt_rows;
    double share = ns - decode_estimate(pacer, decode_rows);
    double least = ns * prompt_rows / (prompt_rows + decode_rows) / 4;
    double row_ns = (share > least ? share : least) / prompt_rows;
    /* Short chunks say little about long ones; a step that took too long says it at once. */
    double weight = 0.5 * prompt_rows / (prompt_rows + 32.0);
    if (row_ns > pacer->prompt_row_ns && prompt_rows >= 2 * TILE_ROWS)
        weight = 0.8;
    average(&pacer->prompt_row_ns, row_ns, weight);
}
