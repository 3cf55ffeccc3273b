/*
 * The byte budget: a ledger of who may hold how many bytes.
 *
 * Every large or client-driven allocation is entered here BEFORE it is made; what does not fit is
 * refused, so the process never grows past `--memory`. Accounts are sized at start (reserve) or
 * taken and given back while running within an account's cap (take/give). Atomics; any thread.
 *
 * Invariant: sum of caps over all accounts <= total.
 */
#ifndef QUIRE_BASE_BUDGET_H
#define QUIRE_BASE_BUDGET_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum budget_account {
    BUDGET_PROGRAM,   /* code, libraries, stacks, allocator slack: a stated reserve */
    BUDGET_WEIGHTS,   /* packed weights */
    BUDGET_TOKENIZER, /* vocabulary, merges, regular expressions */
    BUDGET_TEMPLATE,  /* chat templates, compiled and running: the Rust text shim */
    BUDGET_GRAMMAR,   /* constrained output: vocabulary, compiled grammars, matchers */
    BUDGET_SCRATCH,   /* activations of one step, logits, sampler workspaces */
    BUDGET_HTTP,      /* connections, their pools, answer buffers */
    BUDGET_REQUESTS,  /* prompts, completion rings, queued bodies */
    BUDGET_KV,        /* the page pool: what is left */
    BUDGET_ACCOUNTS
};

struct budget {
    uint64_t total_bytes;                /* fixed after start */
    uint64_t cap_bytes[BUDGET_ACCOUNTS]; /* fixed after start */
    atomic_uint_fast64_t used_bytes[BUDGET_ACCOUNTS];
    atomic_uint_fast64_t peak_bytes[BUDGET_ACCOUNTS]; /* most that was used at a time */
};

void budget_init(struct budget *budget, uint64_t total_bytes);

/* Raise an account's cap by `bytes`. STATUS_INVALID (param "memory") with the numbers, and nothing
   changed, when total would be passed. Start-up only, one thread. */
enum status budget_reserve(struct budget *budget, enum budget_account account, uint64_t bytes,
                           struct error *error);

/* Bytes not reserved by any account. Start-up only. */
uint64_t budget_unreserved(const struct budget *budget);

/* Enter `bytes` as used; false, and nothing changed, when the account's cap would be passed. */
bool budget_take(struct budget *budget, enum budget_account account, uint64_t bytes);
void budget_give(struct budget *budget, enum budget_account account, uint64_t bytes);

/* Enter `bytes` of a request that holds `held_bytes` of BUDGET_REQUESTS already. Where it could not
   even if it were alone: STATUS_TOO_LARGE with the numbers (code "request_too_large", `param` or
   NULL); where others hold what it needs: STATUS_BUSY with a time to come back. Any thread. */
enum status budget_take_request(struct budget *budget, uint64_t held_bytes, uint64_t bytes,
                                const char *param, struct error *error);

/* What an account holds now, and the most that it held so far. Any thread. */
uint64_t budget_used(const struct budget *budget, enum budget_account account);
uint64_t budget_peak(const struct budget *budget, enum budget_account account);

const char *budget_account_name(enum budget_account account);

/* The table printed at start: a line per account and the total. */
void budget_print(const struct budget *budget, struct buffer *out);

#endif
