/*
 * The workbench: a model and its backend without engine or HTTP, for the commands that look at the
 * computing itself (prove, perplexity, bench). They drive the backend directly, one call at a time,
 * from one thread.
 */
#ifndef QUIRE_CLI_WORKBENCH_H
#define QUIRE_CLI_WORKBENCH_H

#include "base/budget.h"
#include "base/workers.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "sizing/settings.h"

struct workbench_shape {
    uint32_t sequences; /* page tables that hold pages at the same time */
    uint32_t positions; /* tokens of the longest of them */
    uint32_t rows;      /* rows per forward */
    uint32_t logits_rows;
    const char *backend; /* "quantized" or "openblas" */
};

struct workbench {
    struct budget budget;
    const struct kernels *kernels;
    struct workers *workers;
    struct gguf *gguf;
    struct model_config config;
    struct tokenizer *tokenizer;
    struct backend *backend;
    uint32_t page_size;
    uint32_t table_pages; /* of one KV cache group */
    uint32_t pages_each;  /* pages per sequence, of all groups; windows are kept whole */
    uint64_t page_bytes;
    uint32_t *pages; /* [sequences][groups][table_pages]: page tables, all different */
};

/* Errors as runtime_create's; STATUS_INVALID (param "memory") when it would not fit the budget. On
   failure nothing is left. Options are resolved (runtime_resolve). */
enum status workbench_open(const struct settings *settings, const struct workbench_shape *shape,
                           struct workbench *out, struct error *error);
void workbench_close(struct workbench *bench);

/* Rows of one sequence for a batch; first_row is the caller's. */
struct batch_sequence workbench_sequence(const struct workbench *bench, uint32_t sequence,
                                         uint32_t first_position, uint32_t row_count);

/* Run `count` tokens of one sequence at positions first … first+count-1, in pieces of at most the
   shape's rows. With `logits` the row of the last token is written there, [vocabulary]. */
void workbench_run(struct workbench *bench, uint32_t sequence, const uint32_t *tokens,
                   uint32_t first, uint32_t count, float *logits);

/* The greedy choice: the largest logit, the least id among equals. */
uint32_t workbench_argmax(const float *logits, uint32_t vocabulary);

#endif
