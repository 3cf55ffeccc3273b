/*
 * `GET /debug/memory`: the budget as it is used now, as JSON. Reads atomics and /proc only: never
 * waits for computing. Any thread.
 */
#ifndef QUIRE_SERVER_MEMORY_REPORT_H
#define QUIRE_SERVER_MEMORY_REPORT_H

#include "server/runtime.h"

/* What an account holds, and the most that it held. The budget's ledger has them, but of templates:
   those are the text shim's own count. */
uint64_t memory_account_used(const struct budget *budget, enum budget_account account);
uint64_t memory_account_peak(const struct budget *budget, enum budget_account account);

void memory_report(const struct runtime *runtime, struct buffer *out);

#endif
