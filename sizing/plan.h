/*
 * The memory plan: how a byte budget divides into its accounts, and what that leaves for KV pages,
 * rows of a step and length of a sequence. Arithmetic on a model's header or on bare numbers;
 * allocates nothing. runtime.c starts servers by it and `quire plan` answers by it, so that the two
 * cannot differ. Any thread.
 */
#ifndef QUIRE_SIZING_PLAN_H
#define QUIRE_SIZING_PLAN_H

#include "base/budget.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "sizing/settings.h"

#include <stdbool.h>
#include <stdint.h>

/* How keys and values are kept. Sliding windows in groups: layers stand in groups of equally many,
   so that all pages have the same bytes, and a group that sees only a window keeps only the pages
   that its window touches. Not in groups: a page holds all layers, and all pages are kept. */
struct plan_kv {
    enum kv_type type;
    uint32_t layers;
    uint32_t window_layers; /* of them see only the last `window` positions */
    uint32_t window;
    uint32_t kv_heads, head_dim;
    uint32_t page_size;
    bool grouped;
};

/* What `backend` keeps keys and values in: as asked, else f16, but openblas always f32. */
enum kv_type plan_kv_type(const struct settings *settings, const char *backend);

/* As the server keeps them. */
struct plan_kv plan_kv_served(const struct model_config *config, const struct settings *settings);

/* Bytes of one token in all layers; 0 when the type cannot hold heads of that width. */
uint64_t plan_kv_token_bytes(const struct plan_kv *kv);
uint64_t plan_kv_page_bytes(const struct plan_kv *kv);
/* Pages that a sequence of `tokens` tokens holds while it is answered, and the longest sequence
   that `pages` pages hold (0 … UINT32_MAX). */
uint64_t plan_kv_pages(const struct plan_kv *kv, uint64_t tokens);
uint64_t plan_kv_tokens(const struct plan_kv *kv, uint64_t pages);

struct plan_model {
    const struct gguf *gguf;           /* NULL: only what `config` says, as in model_sizes */
    const struct model_config *config; /* outlives the plan */
    const struct plan_kv *kv;          /* NULL: as served */
    const struct kernels *kernels;
    struct workers *workers;
    uint64_t tokenizer_bytes;
};

/* What a capped plan is said to be, behind its context and its number of sequences. */
#define PLAN_CAPPED " (that many of that length use no more)"

/* Holds a pointer into itself: do not copy. */
struct plan {
    uint64_t total_bytes;
    uint64_t account_bytes[BUDGET_ACCOUNTS]; /* caps; their sum is at most the total */
    uint32_t wanted;                /* longest sequence asked for, at most what the model knows */
    uint32_t context;               /* and what it is: at most what the pool holds */
    bool capped;                    /* more pages could not be used: see PLAN_CAPPED */
    struct backend_options backend; /* page_count, max_batch_rows, context chosen */
    struct engine_options engine;   /* .backend is `shape` until there is a real one */
    struct backend shape;           /* what the engine's size depends on */
    struct model_sizes sizes;
    struct plan_kv kv;
};

/* Divide settings->memory_bytes. With settings->memory_fitted the total is no more than what can be
   used: max_seqs sequences of the context, and what loading needs. Options are resolved
   (runtime_resolve). STATUS_INVALID (param "memory") with the numbers when not even a short
   sequence fits; what the accounts would have been is in *out then too. STATUS_INVALID (param
   "kv-type") when the model's heads do not suit it. */
enum status plan_make(const struct plan_model *model, const struct settings *settings,
                      struct plan *out, struct error *error);

/* Pages that `count` sequences of `tokens` tokens hold, nothing shared. */
uint64_t plan_pages(const struct plan *plan, uint64_t count, uint64_t tokens);

/* The least budget, in whole MiB, with which `count` sequences of `tokens` tokens are held at the
   same time; 0 when none is, because they are more or longer than the options allow. */
uint64_t plan_least_bytes(const struct plan_model *model, const struct settings *settings,
                          uint64_t count, uint64_t tokens);

/* What the model file's header may take while it is read, before anything else of it is known: half
   the budget, which only a hostile file comes near to. */
uint64_t plan_header_bytes(const struct settings *settings);

/* Connections that a budget allows when --max-connections is not given. */
unsigned plan_connections(uint64_t total_bytes);

#endif
