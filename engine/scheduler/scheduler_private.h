/*
 * The scheduler from inside: its objects, each with its own header, and what it adds to them. Only
 * scheduler.c, scheduler_check.c and tests include this. The objects point to each other downwards,
 * as scheduler_create connects them:
 *
 *     scheduler → admission → preemption → swap → slots → queue
 *               → results, step ─────────────────↗
 */
#ifndef QUIRE_ENGINE_SCHEDULER_SCHEDULER_PRIVATE_H
#define QUIRE_ENGINE_SCHEDULER_SCHEDULER_PRIVATE_H

#include "engine/scheduler/admission.h"
#include "engine/scheduler/results.h"
#include "engine/scheduler/scheduler.h"

struct scheduler {
    struct scheduler_options options; /* fixed after start */
    /* engine thread only */
    struct fair_queue queue;
    struct slots slots;
    struct swap swap;
    struct preemption preemption;
    struct admission admission;
    struct step step;
    struct results results;
    uint64_t deadline_ns;   /* the next one of all that wait and run, or one that has gone */
    uint32_t starved_steps; /* in a row, in which prompts could have run and got no token */
    const struct page_table **tables; /* [slot_count·groups] scratch of scheduler_check */
};

#endif
