/*
 * `GET /debug/memory`: the budget as it is used now, as JSON. Reads atomics and /proc only: never
 * waits for computing. Any thread.
 */
#ifndef QUIRE_SERVER_MEMORY_REPORT_H
#define QUIRE_SERVER_MEMORY_REPORT_H

#include "server/runtime.h"

void memory_report(const struct runtime *runtime, struct buffer *out);

#endif
