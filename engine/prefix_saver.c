/*
 * Two threads and one buffer, which belongs to whichever has the job. One page moves at a time:
 *
 *     engine thread   next page, copy → posted ─┐             ┌→ done → next page, copy → …
 *     saver's thread                            └→ write → ok ┘
 *
 * A pass begins when the engine has been idle for IDLE_NS and pages were published since the last
 * pass. It ends when all are written, or when something runs again: then the pager changes. After
 * an error nothing is written for REST_NS.
 */
#include "engine/prefix_saver.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "engine/model/model.h"
#include "pager/disk/prefix_file.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES (256 * KIB)
#define IDLE_NS 100000000u           /* before a pass: a shorter break is not idle time */
#define REST_NS (60 * 1000000000ull) /* after an error */
#define LOAD_NS (LIMIT_CACHE_LOAD_SECONDS * 1000000000ull)

struct prefix_saver {
    /* fixed after start */
    struct prefix_saver_options options;
    struct prefix_file *file;
    pthread_t thread;
    void *buffer; /* [page_bytes] of the thread that has the job */
    /* engine thread only */
    struct prefix_file_job job;
    bool passing;       /* a pass is under way, … */
    uint64_t since_ns;  /* … in the idle time that began then */
    uint64_t published; /* pages of the pager when the last pass ended */
    uint64_t resume_ns; /* no writing before */
    bool warned;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool page_posted;  /* job and buffer are to be written … */
    bool reset_posted; /* … then the file is to be emptied */
    bool ending;
    bool page_done;     /* the result is there, and not collected yet */
    enum status status; /* that outcome */
    struct error error; /* of what failed last */
    bool reset_failed;
};

/* ---- the saver's thread ---- */

/* With the lock, which is released while it writes. */
static void do_post(struct prefix_saver *saver)
{
    bool page = saver->page_posted;
    struct error error;
    error_clear(&error);
    pthread_mutex_unlock(&saver->lock);
    enum status status = page ? prefix_file_write(saver->file, &saver->job, saver->buffer, &error)
                              : prefix_file_reset(saver->file, &error);
    pthread_mutex_lock(&saver->lock);
    if (status)
        saver->error = error;
    if (page) {
        saver->status = status;
        saver->page_posted = false;
        saver->page_done = true;
    } else {
        saver->reset_failed |= status != STATUS_OK;
        saver->reset_posted = false;
    }
    pthread_cond_broadcast(&saver->changed);
}

static void *saver_main(void *arg)
{
    struct prefix_saver *saver = arg;
    pthread_mutex_lock(&saver->lock);
    for (;;) {
        while (!saver->page_posted && !saver->reset_posted && !saver->ending)
            pthread_cond_wait(&saver->changed, &saver->lock);
        if (!saver->page_posted && !saver->reset_posted)
            break;
        do_post(saver);
        pthread_mutex_unlock(&saver->lock);
        saver->options.wake(saver->options.arg);
        pthread_mutex_lock(&saver->lock);
    }
    pthread_mutex_unlock(&saver->lock);
    return NULL;
}

/* ---- the engine thread ---- */

static void update_gauges(struct prefix_saver *saver)
{
    uint64_t pages = prefix_file_page_count(saver->file);
    atomic_store(&saver->options.metrics->cache_dir_pages, (int64_t)pages);
    atomic_store(&saver->options.metrics->cache_dir_bytes,
                 (int64_t)(pages * prefix_file_slot_bytes(saver->file)));
}

static void note_failure(struct prefix_saver *saver, const struct error *error)
{
    metric_add(&saver->options.metrics->cache_dir_errors, 1);
    saver->resume_ns = clock_now_ns() + REST_NS;
    saver->passing = false;
    if (!saver->warned)
        log_warn("cache_dir", "%s: %s; the server goes on, and tries again now and then",
                 saver->options.directory, error->message);
    saver->warned = true;
}

/* Takes the result of what was written. false: it is still being written. */
static bool collect_result(struct prefix_saver *saver)
{
    pthread_mutex_lock(&saver->lock);
    bool busy = saver->page_posted || saver->reset_posted;
    bool done = saver->page_done, failed = saver->reset_failed;
    bool written = saver->status == STATUS_OK;
    struct error error = saver->error;
    saver->page_done = saver->reset_failed = false;
    pthread_mutex_unlock(&saver->lock);
    if (done) {
        prefix_file_done(saver->file, &saver->job, written);
        failed |= !written;
    }
    if (done && written) {
        metric_add(&saver->options.metrics->cache_dir_writes, 1);
        metric_add(&saver->options.metrics->cache_dir_written_bytes,
                   prefix_file_slot_bytes(saver->file));
    }
    if (failed)
        note_failure(saver, &error);
    if (done)
        update_gauges(saver);
    return !busy;
}

/* Posts the next page of the pass; false: there is none. */
static bool post_page(struct prefix_saver *saver)
{
    struct backend *backend = saver->options.backend;
    if (!prefix_file_next(saver->file, &saver->job))
        return false;
    memcpy(saver->buffer, backend->ops->page(backend, saver->job.page), backend->page_bytes);
    pthread_mutex_lock(&saver->lock);
    saver->page_posted = true;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
    return true;
}

uint64_t prefix_saver_work(struct prefix_saver *saver, uint64_t since_ns, uint64_t now_ns)
{
    if (!collect_result(saver))
        return UINT64_MAX;
    if (saver->since_ns != since_ns)
        saver->passing = false; /* something ran: the pager has changed */
    saver->since_ns = since_ns;
    uint64_t published = pager_published(saver->options.pager);
    uint64_t start_ns = max_u64(since_ns + IDLE_NS, saver->resume_ns);
    if (saver->published == published)
        return UINT64_MAX;
    if (now_ns < start_ns)
        return start_ns - now_ns;
    if (!saver->passing) {
        prefix_file_begin_pass(saver->file);
        saver->passing = true;
        return 0;
    }
    if (post_page(saver))
        return UINT64_MAX;
    saver->passing = false;
    saver->published = published;
    return UINT64_MAX;
}

void prefix_saver_forget(struct prefix_saver *saver)
{
    prefix_file_clear(saver->file);
    saver->passing = false;
    update_gauges(saver);
    pthread_mutex_lock(&saver->lock);
    saver->reset_posted = true;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
}

/* ---- start and end ---- */

static struct prefix_file_options file_options(const struct prefix_saver_options *options)
{
    const struct backend *backend = options->backend;
    struct prefix_file_options file = {
        .directory = options->directory,
        .cap_bytes = options->cap_bytes,
        .page_bytes = backend->page_bytes,
        /* RoPE may depend on the context too. */
        .identity = {.model = options->model_identity ^ backend->rotation,
                     .scope = options->cache_scope,
                     .arithmetic = MODEL_ARITHMETIC},
    };
    snprintf(file.identity.kv_type, sizeof file.identity.kv_type, "%s %s", backend->kv_type,
             backend->name);
    return file;
}

uint64_t prefix_saver_memory_bytes(const struct prefix_saver_options *options)
{
    const struct backend *backend = options->backend;
    return sizeof(struct prefix_saver) + backend->page_bytes + STACK_BYTES +
           prefix_file_memory_bytes(options->cap_bytes, backend->page_bytes, backend->page_count,
                                    backend->page_size) +
           4 * (4096 + 64); /* the allocator's own */
}

static void *page_of(void *arg, uint32_t page)
{
    struct backend *backend = arg;
    return backend->ops->page(backend, page);
}

static void load(struct prefix_saver *saver, uint64_t start_ns)
{
    struct engine_metrics *metrics = saver->options.metrics;
    uint32_t damaged, count = prefix_file_load(saver->file, page_of, saver->options.backend,
                                               start_ns + LOAD_NS, &damaged);
    metric_add(&metrics->cache_dir_loads, count);
    metric_add(&metrics->cache_dir_errors, damaged);
    saver->published = pager_published(saver->options.pager);
    update_gauges(saver);
    char cap[24];
    bytes_format(prefix_file_slot_count(saver->file) * prefix_file_slot_bytes(saver->file), cap);
    log_info("cache_dir", "%s: %u pages are back in %.2f s, room for %u (%s)",
             saver->options.directory, count, (double)(clock_now_ns() - start_ns) * 1e-9,
             prefix_file_slot_count(saver->file), cap);
}

static void free_saver(struct prefix_saver *saver)
{
    prefix_file_close(saver->file);
    pthread_cond_destroy(&saver->changed);
    pthread_mutex_destroy(&saver->lock);
    free(saver->buffer);
    free(saver);
}

static enum status start_thread(struct prefix_saver *saver, struct error *error)
{
    int failed = thread_start(&saver->thread, "cache", STACK_BYTES, saver_main, saver);
    if (failed)
        return error_set(error, STATUS_IO, NULL, "cannot start a thread: %s", strerror(failed));
    return STATUS_OK;
}

struct prefix_saver *prefix_saver_create(const struct prefix_saver_options *options)
{
    struct prefix_saver *saver = calloc(1, sizeof *saver);
    if (!saver) {
        log_warn("cache_dir", "%s is not used: out of memory", options->directory);
        metric_add(&options->metrics->cache_dir_errors, 1);
        return NULL;
    }
    uint64_t start_ns = clock_now_ns();
    saver->options = *options;
    pthread_mutex_init(&saver->lock, NULL);
    pthread_cond_init(&saver->changed, NULL);
    saver->buffer = malloc(options->backend->page_bytes);
    struct prefix_file_options file = file_options(options);
    struct error error;
    enum status status =
        saver->buffer
            ? prefix_file_open(&file, options->pager, start_ns + LOAD_NS / 2, &saver->file, &error)
            : error_out_of_memory(&error);
    if (!status)
        status = start_thread(saver, &error);
    if (status) {
        log_warn("cache_dir", "%s is not used: %s", options->directory, error.message);
        metric_add(&options->metrics->cache_dir_errors, 1);
        free_saver(saver);
        return NULL;
    }
    load(saver, start_ns);
    return saver;
}

/* Waits until nothing is being written. */
static void wait_for_result(struct prefix_saver *saver)
{
    pthread_mutex_lock(&saver->lock);
    while (saver->page_posted || saver->reset_posted)
        pthread_cond_wait(&saver->changed, &saver->lock);
    pthread_mutex_unlock(&saver->lock);
    CHECK(collect_result(saver));
}

static void save_rest(struct prefix_saver *saver)
{
    uint64_t deadline_ns = clock_now_ns() + LIMIT_CACHE_SAVE_SECONDS * 1000000000ull;
    uint32_t left = prefix_file_begin_pass(saver->file), written = 0;
    while (saver->resume_ns == 0 && clock_now_ns() < deadline_ns && post_page(saver)) {
        wait_for_result(saver);
        written += saver->resume_ns == 0;
    }
    struct error error;
    if (saver->resume_ns == 0 &&
        prefix_file_save_order(saver->file, deadline_ns, &error) != STATUS_OK)
        note_failure(saver, &error);
    char bytes[24];
    bytes_format(prefix_file_page_count(saver->file) * prefix_file_slot_bytes(saver->file), bytes);
    log_info("cache_dir", "%s: %u pages (%s) are kept; %u of %u were written now",
             saver->options.directory, prefix_file_page_count(saver->file), bytes, written, left);
}

void prefix_saver_destroy(struct prefix_saver *saver)
{
    if (!saver)
        return;
    wait_for_result(saver);
    if (clock_now_ns() >= saver->resume_ns)
        saver->resume_ns = 0; /* the rest is over: try again */
    save_rest(saver);
    pthread_mutex_lock(&saver->lock);
    saver->ending = true;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
    pthread_join(saver->thread, NULL);
    free_saver(saver);
}
