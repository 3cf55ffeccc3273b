/*
 * Pooling: from the hidden states of a step to the results of the completions that want these in
 * place of tokens. A mean is one chain of additions, ascending by position, so chunks, batches and
 * preemption leave its bits as they are.
 *
 * Private to engine/; the engine thread's. Behind backend->forward, before the commit.
 */
#ifndef QUIRE_ENGINE_POOLING_H
#define QUIRE_ENGINE_POOLING_H

#include "engine/batch.h"
#include "engine/scheduler/step.h"

void pooling_run(struct backend *backend, const struct schedule *schedule);

#endif
