/*
 * The prefix saver: writes cached pages into the prefix file while the engine has nothing else to
 * do, and at its end. The engine thread copies one page at a time into the saver's buffer and goes
 * on; the saver's own thread writes it. So the engine never waits for a disk, no page is pinned,
 * and a request that arrives waits for the copy of one page at most.
 *
 * A failure is logged once and counted; then nothing is written for a while. Private to engine/;
 * the engine thread's, except create and destroy.
 */
#ifndef QUIRE_ENGINE_PREFIX_SAVER_H
#define QUIRE_ENGINE_PREFIX_SAVER_H

#include "base/error.h"
#include "engine/batch.h"
#include "engine/engine_metrics.h"
#include "pager/pager.h"

#include <stdint.h>

struct prefix_saver;

struct prefix_saver_options {
    const char *directory;
    uint64_t cap_bytes;      /* 0: as many pages as the pool has */
    uint64_t model_identity; /* of the model's content */
    uint64_t cache_scope;    /* whose prompts may be found: another scope finds nothing */
    struct backend *backend; /* whose pages they are */
    struct pager *pager;     /* both outlive the saver */
    void (*wake)(void *arg); /* called by the saver's thread when a page was written */
    void *arg;
    struct engine_metrics *metrics;
};

/* Opens the file, loads what is in it (at most LIMIT_CACHE_LOAD_SECONDS) and starts the thread.
   NULL, with a line in the log, when the directory cannot be used: then nothing is saved. Before
   the engine thread starts. */
struct prefix_saver *prefix_saver_create(const struct prefix_saver_options *options);

/* What create allocates, the thread's stack included. */
uint64_t prefix_saver_memory_bytes(const struct prefix_saver_options *options);

/* The engine has been idle since since_ns, which names this idle time. Does a piece of work, no
   longer than copying a page takes, or at the beginning of a pass looking through the index.
   Returns in how many ns to call again if the engine is still idle then: 0: at once; UINT64_MAX:
   when woken. */
uint64_t prefix_saver_work(struct prefix_saver *saver, uint64_t since_ns, uint64_t now_ns);

/* The prefix cache was emptied: so is the file. */
void prefix_saver_forget(struct prefix_saver *saver);

/* Nothing runs any more: writes what is left, within LIMIT_CACHE_SAVE_SECONDS and the page that is
   being written; ends the thread and closes the file. NULL is fine. */
void prefix_saver_destroy(struct prefix_saver *saver);

#endif
