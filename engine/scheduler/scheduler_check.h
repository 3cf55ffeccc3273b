/* Verifies the scheduler after a step: for tests and engine_options.check_every_step. Private to
 * engine/. */
#ifndef QUIRE_ENGINE_SCHEDULER_SCHEDULER_CHECK_H
#define QUIRE_ENGINE_SCHEDULER_SCHEDULER_CHECK_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct scheduler;

/* page_tables_check with all tables, and the invariants of the scheduler's objects. scratch [pager
   ids]. false with what is wrong in *error. */
bool scheduler_check(const struct scheduler *scheduler, uint32_t *scratch, struct error *error);

#endif
