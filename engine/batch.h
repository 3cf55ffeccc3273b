/*
 * A step's work, the tokens of several sequences, and the backend that computes it. A batch row is
 * one token: a row of the matrices that the model multiplies.
 *
 * The scheduler fills a batch (it knows tokens and pages, no tensors); a backend runs it. Backends
 * are the quantized model (engine/model/quantized.c), the OpenBLAS reference, and scripted ones in
 * tests. All calls come from the engine thread, one at a time.
 */
#ifndef QUIRE_ENGINE_BATCH_H
#define QUIRE_ENGINE_BATCH_H

#include "pager/kv_groups.h"

#include <stdbool.h>
#include <stdint.h>

/* What becomes of the final hidden states of a sequence that is not to be continued. */
enum pooling {
    POOLING_NONE, /* they become logits: the sequence generates */
    POOLING_MEAN, /* the mean of all tokens' */
    POOLING_CLS,  /* the first token's; only of models whose tokens see what follows them */
    POOLING_LAST, /* the last token's */
    POOLING_RANK, /* the first token's, through the model's classification head */
};

struct batch_sequence {
    uint32_t first_row;      /* its rows in the batch: [first_row, first_row + row_count) */
    uint32_t row_count;      /* >= 1 */
    uint32_t first_position; /* position of first_row in the sequence = tokens computed before */
    /* Page tables: ids of group g's pages at pages + g·group_stride, covering positions 0 …
       first_position+row_count-1. In a group with a window pages that none of the rows sees may be
       0: they must not be read. */
    const uint32_t *pages;
    uint32_t page_count;     /* of each */
    uint32_t group_stride;   /* with one group of no meaning */
    uint32_t second_segment; /* tokens from this position on are of type 1; 0: all are of type 0 */
};

struct batch {
    uint32_t row_count;
    const uint32_t *tokens; /* [row_count] token ids, all < vocabulary */
    uint32_t sequence_count;
    const struct batch_sequence *sequences;
    uint32_t logits_row_count;
    const uint32_t *logits_rows; /* [logits_row_count] ascending rows whose logits are wanted */
};

/* A part of the work, and what it took of the calling thread's time. */
struct backend_stage {
    const char *name; /* static */
    uint64_t work_ns; /* computing */
    uint64_t wait_ns; /* at its barriers, for the other threads */
};
#define BACKEND_STAGES_MAX 12u

struct backend;

struct backend_ops {
    /* Compute keys and values of every row into the pages, and keep the final hidden state of the
       logits rows until the next forward. row_count <= max_batch_rows. Cannot fail. The batch and
       its arrays stay valid until the last logits call that follows. */
    void (*forward)(struct backend *backend, const struct batch *batch);
    /* logits [count][vocabulary] of logits rows first … first+count-1 of the last forward.
       count <= logits_rows_max. */
    void (*logits)(struct backend *backend, uint32_t first, uint32_t count, float *out);
    /* The final hidden state [hidden_width] of a logits row of the last forward; valid until the
       next one. NULL in backends that have none. */
    const float *(*hidden)(const struct backend *backend, uint32_t row);
    /* scores [score_count] = the classification head of that state. Only if score_count > 0. */
    void (*scores)(struct backend *backend, uint32_t row, float *out);
    /* Copy the keys and values of a whole page (copy on write). */
    void (*copy_page)(struct backend *backend, uint32_t from_page, uint32_t to_page);
    /* The keys and values of a whole page, page_bytes consecutive bytes: for the swap file and the
       cache on disk. They are the same on every machine and with all kernels if model, KV type and
       page size are. Written only while nobody computes with the page. Never during a step, but any
       thread may read a page that is not written. */
    void *(*page)(struct backend *backend, uint32_t page);
    /* Where the time went since the backend was made; returns how many parts there are. May be
       NULL. Not during a step. */
    uint32_t (*profile)(const struct backend *backend,
                        struct backend_stage out[static BACKEND_STAGES_MAX]);
    void (*destroy)(struct backend *backend);
};

struct backend {
    const struct backend_ops *ops;
    /* fixed after start */
    const char *name;          /* "quantized", "openblas", … */
    const char *kernels;       /* "scalar", "avx2" and so on */
    const char *kv_type;       /* of keys and values: "f16", … */
    uint64_t weights_checksum; /* of their bytes in the file, taken while loading; 0: none */
    uint64_t rotation;         /* checksum of what turns positions into angles: keys depend on it */
    uint32_t vocabulary;       /* logits per row */
    uint32_t hidden_width;     /* of a final hidden state; 0: it gives none */
    uint32_t score_count;      /* outputs of the classification head; 0: it has none */
    bool bidirectional;        /* tokens see what follows them: a prompt is computed in one step */
    uint32_t page_count;       /* pages of the pool, page 0 (the null page) included */
    uint32_t page_size;        /* tokens per page */
    uint64_t page_bytes;       /* of one page's keys and values */
    struct kv_groups groups;
    uint32_t max_batch_rows;
    uint32_t max_sequences;
    uint32_t logits_rows_max; /* rows per logits call: bounds the logits buffer */
};

#endif
