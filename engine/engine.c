/*
 * See engine.h. The door (inbox, under its lock) and the engine thread's loop:
 *
 *     collect the inbox → sweep cancelled → schedule → copy pages → forward → sample → commit
 *
 * The engine thread waits only in collect, and only when it has nothing to do. It takes the inbox's
 * lock and a completion's lock one after the other, never both.
 *
 * How full the queue is, and when there is room again, is inbox.h's.
 */
#include "engine/engine.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/engine_metrics.h"
#include "engine/inbox.h"
#include "engine/prefix_saver.h"
#include "engine/scheduler/pacer.h"
#include "engine/scheduler/page_swap.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define STACK_BYTES (2 * MIB)    /* the backend's kernels run on this thread too */
#define CHUNK_ROWS_PER_THREAD 24 /* of prompts in a step; kernels are as fast as with more */

struct engine {
    /* fixed after start */
    struct engine_options options;
    uint32_t max_length;
    uint32_t *end_tokens; /* our copy of options.end_tokens */
    pthread_t thread;
    /* engine thread only */
    struct pager *pager;
    struct page_swap *swap; /* NULL: none */
    struct scheduler *scheduler;
    struct prefix_saver *saver; /* NULL: the cache does not survive a restart */
    struct pacer pacer;
    uint32_t swept_epoch;
    uint64_t completed_seen;
    uint64_t phase_start_ns;
    float *logits;    /* [logits_rows_max][vocabulary] */
    char *workspaces; /* [threads][workspace_bytes]: sampler's, then one row of logits */
    size_t workspace_bytes;
    uint32_t *scratch; /* [page_count], NULL unless check_every_step */
    /* sampling job, read by the workers */
    const struct schedule *schedule;
    uint32_t group_first, group_count; /* logits rows in `logits` */
    uint32_t sample_first, sample_end; /* samples of the group */
    atomic_uint next_sample;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct completion *inbox_first, *inbox_last;
    bool reset_wanted; /* forget prefixes before the next completions */
    bool saver_woke;   /* it has something to tell */
    bool draining;
    bool stopping;
    struct inbox inbox; /* its own comments say which parts */
    /* atomics */
    atomic_uint cancel_epoch;
    atomic_uint in_flight;
    struct engine_metrics metrics;
    double token_bounds[METRIC_BUCKETS_MAX];
};

/* ---- sizes ---- */

static uint32_t max_length_for(const struct engine_options *options)
{
    const struct backend *backend = options->backend;
    uint32_t pool = kv_groups_fit(&backend->groups, backend->page_size, options->max_batch_tokens,
                                  backend->page_count - 1);
    return pool < options->context ? pool : options->context;
}

static struct scheduler_options scheduler_options_for(const struct engine_options *options)
{
    return (struct scheduler_options){
        .max_sequences = options->max_sequences,
        .max_batch_tokens = options->max_batch_tokens,
        .max_length = max_length_for(options),
        .tenant_count = options->key_count + 1,
        .end_token_count = options->end_token_count,
        .prefix_cache = options->prefix_cache,
        .test_preempt_every = options->test_preempt_every,
    };
}

static uint64_t logits_bytes(const struct engine_options *options, uint64_t rows)
{
    return bytes_align(rows * options->backend->vocabulary * sizeof(float), 64);
}

static uint64_t workspace_bytes_for(const struct engine_options *options)
{
    return bytes_align(sampler_workspace_bytes(options->backend->vocabulary), 64) +
           logits_bytes(options, 1);
}

static uint64_t scratch_bytes(const struct engine_options *options)
{
    return options->check_every_step ? (uint64_t)options->backend->page_count * sizeof(uint32_t)
                                     : 0;
}

static bool saves_prefixes(const struct engine_options *options)
{
    return options->cache_dir && options->prefix_cache;
}

/* What it costs, and where it writes. */
static struct prefix_saver_options saver_options_for(const struct engine_options *options)
{
    return (struct prefix_saver_options){
        .directory = options->cache_dir,
        .cap_bytes = options->cache_dir_bytes,
        .model_identity = options->model_identity,
        .cache_scope = options->cache_scope,
        .backend = options->backend,
    };
}

static struct page_swap_options swap_options_for(const struct engine_options *options)
{
    return (struct page_swap_options){
        .backend = options->backend,
        .directory = options->swap_dir,
        .bytes = options->swap_bytes,
        .always = options->test_swap,
    };
}

enum status engine_check(const struct engine_options *options, struct error *error)
{
    struct page_swap_options swap = swap_options_for(options);
    return options->swap_dir ? page_swap_check(&swap, error) : STATUS_OK;
}

enum status engine_swap_room(const struct engine_options *options, uint32_t *pages,
                             uint64_t *memory_bytes, struct error *error)
{
    *pages = 0;
    *memory_bytes = 0;
    if (!options->swap_dir)
        return STATUS_OK;
    struct page_swap_options swap = swap_options_for(options);
    *memory_bytes = page_swap_memory_bytes(swap.bytes, swap.backend->page_bytes);
    return page_swap_fit(&swap, pages, error);
}

uint64_t engine_memory_bytes(const struct engine_options *options)
{
    const struct backend *backend = options->backend;
    struct scheduler_options scheduler = scheduler_options_for(options);
    uint64_t bytes = sizeof(struct engine) + options->end_token_count * sizeof(uint32_t);
    bytes += (options->key_count + 1) * sizeof(struct inbox_tenant);
    bytes += pager_memory_bytes(backend->page_count, backend->page_size);
    bytes += scheduler_memory_bytes(&scheduler, backend->page_size, backend->groups.count);
    bytes += logits_bytes(options, backend->logits_rows_max);
    bytes += workspace_bytes_for(options) * workers_count(options->workers);
    bytes += scratch_bytes(options);
    if (options->swap_dir)
        bytes += page_swap_memory_bytes(options->swap_bytes, backend->page_bytes);
    if (saves_prefixes(options)) {
        struct prefix_saver_options saver = saver_options_for(options);
        bytes += prefix_saver_memory_bytes(&saver);
    }
    /* The allocator's own: a page and a header for each of the nine allocations above. */
    return bytes + 9 * (4096 + 64);
}

/* ---- sampling ---- */

static void draw(struct engine *engine, struct schedule_sample *sample, char *workspace)
{
    const struct sequence *sequence = sample->sequence;
    const struct completion *completion = sequence->completion;
    uint32_t vocabulary = engine->options.backend->vocabulary;
    float *logits =
        engine->logits + (size_t)(sample->logits_index - engine->group_first) * vocabulary;
    if (sample->is_shared) { /* the sampler overwrites them: each choice gets its own copy */
        float *copy =
            (float *)(workspace + engine->workspace_bytes - logits_bytes(&engine->options, 1));
        memcpy(copy, logits, vocabulary * sizeof *copy);
        logits = copy;
    }
    struct sampler_row row = {
        .logits = logits,
        .vocabulary = vocabulary,
        .params = &completion->sampling,
        .tokens = sequence->record->history,
        .token_count = sequence->token_count,
        .prompt_count = completion->prompt_count,
        .choice = sequence->index,
        .top_logprobs = completion->top_logprobs,
        .want_logprob = completion->want_logprobs,
        .banned = completion->ignore_eos ? engine->end_tokens : NULL,
        .banned_count = completion->ignore_eos ? engine->options.end_token_count : 0,
    };
    sample->ok = sampler_sample(&row, workspace, &sample->token);
}

static void sample_job(void *arg, unsigned thread_index)
{
    struct engine *engine = arg;
    char *workspace = engine->workspaces + thread_index * engine->workspace_bytes;
    for (;;) {
        uint32_t i = atomic_fetch_add_explicit(&engine->next_sample, 1, memory_order_relaxed);
        if (i >= engine->sample_end)
            return;
        draw(engine, &engine->schedule->samples[i], workspace);
    }
}

/* Logits come in groups of as many rows as the buffer holds, so memory does not grow with the
 * batch. */
static void sample_step(struct engine *engine, const struct schedule *schedule)
{
    struct backend *backend = engine->options.backend;
    uint32_t row_count = schedule->batch.logits_row_count;
    engine->schedule = schedule;
    engine->sample_end = 0;
    for (uint32_t first = 0; first < row_count; first += engine->group_count) {
        uint32_t left = row_count - first;
        engine->group_first = first;
        engine->group_count = left < backend->logits_rows_max ? left : backend->logits_rows_max;
        backend->ops->logits(backend, first, engine->group_count, engine->logits);
        engine->sample_first = engine->sample_end;
        while (engine->sample_end < schedule->sample_count &&
               schedule->samples[engine->sample_end].logits_index < first + engine->group_count)
            engine->sample_end++;
        atomic_store(&engine->next_sample, engine->sample_first);
        if (engine->sample_end - engine->sample_first == 1)
            sample_job(engine, 0); /* not worth waking anybody */
        else
            workers_run(engine->options.workers, sample_job, engine);
    }
    CHECK(engine->sample_end == schedule->sample_count || row_count == 0);
}

/* ---- the loop ---- */

/* Counters that others read. */
static void publish_counts(struct engine *engine)
{
    struct scheduler *scheduler = engine->scheduler;
    struct inbox *inbox = &engine->inbox;
    uint32_t room = scheduler_waiting_count(scheduler) > 0
                        ? 0
                        : engine->options.max_sequences - scheduler_running_count(scheduler);
    atomic_store(&inbox->room, room);
    for (uint32_t i = 0; i < inbox->tenant_count; i++) {
        struct scheduler_tenant_counts counts;
        scheduler_tenant_counts(scheduler, i, &counts);
        inbox_publish(inbox, i, counts.dequeued, counts.dequeued_tokens, counts.tokens);
    }
    uint64_t completed = scheduler_completed_count(scheduler);
    inbox_observe(inbox, completed, clock_now_ns());
    atomic_fetch_sub(&engine->in_flight, (unsigned)(completed - engine->completed_seen));
    engine->completed_seen = completed;
}

static void enter_phase(struct engine *engine, enum engine_phase phase)
{
    uint64_t now_ns = clock_now_ns();
    int before = atomic_load_explicit(&engine->metrics.phase, memory_order_relaxed);
    metric_add(&engine->metrics.phase_ns[before], now_ns - engine->phase_start_ns);
    engine->phase_start_ns = now_ns;
    atomic_store_explicit(&engine->metrics.phase, phase, memory_order_relaxed);
}

static void reset_cache(struct engine *engine)
{
    uint32_t count = pager_forget(engine->pager);
    if (engine->saver)
        prefix_saver_forget(engine->saver);
    metric_add(&engine->metrics.cache_resets, 1);
    atomic_store(&engine->metrics.pages_cached, (int64_t)pager_cached_count(engine->pager));
    log_info("cache_reset", "%u pages forgotten, %u held by running requests are kept", count,
             pager_total_count(engine->pager) - pager_free_count(engine->pager));
}

/* The saver's thread has something to tell. */
static void wake_for_saver(void *arg)
{
    struct engine *engine = arg;
    pthread_mutex_lock(&engine->lock);
    engine->saver_woke = true;
    pthread_cond_signal(&engine->arrived);
    pthread_mutex_unlock(&engine->lock);
}

static bool has_nothing_to_do(const struct engine *engine)
{
    return !engine->stopping && !engine->inbox_first && !engine->reset_wanted &&
           !scheduler_has_work(engine->scheduler);
}

/* With the lock. Idle since since_ns: until something arrives or the saver is to be asked again. */
static void wait_idle(struct engine *engine, uint64_t since_ns)
{
    uint64_t wait_ns = UINT64_MAX;
    if (engine->saver) {
        engine->saver_woke = false;
        pthread_mutex_unlock(&engine->lock);
        wait_ns = prefix_saver_work(engine->saver, since_ns, clock_now_ns());
        pthread_mutex_lock(&engine->lock);
    }
    if (wait_ns == 0 || engine->saver_woke || !has_nothing_to_do(engine))
        return;
    if (wait_ns == UINT64_MAX) {
        pthread_cond_wait(&engine->arrived, &engine->lock);
        return;
    }
    uint64_t until_ns = clock_now_ns() + wait_ns;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    pthread_cond_timedwait(&engine->arrived, &engine->lock, &until);
}

/* Hand what arrived to the scheduler; waits while there is nothing to do. false: stop. */
static bool collect(struct engine *engine)
{
    bool waited = false;
    uint64_t since_ns = 0;
    pthread_mutex_lock(&engine->lock);
    while (has_nothing_to_do(engine)) {
        if (!waited) {
            enter_phase(engine, ENGINE_IDLE);
            since_ns = engine->phase_start_ns;
        }
        waited = true;
        wait_idle(engine, since_ns);
    }
    struct completion *first = engine->inbox_first;
    bool stopping = engine->stopping;
    bool reset = engine->reset_wanted;
    engine->inbox_first = engine->inbox_last = NULL;
    engine->reset_wanted = false;
    pthread_mutex_unlock(&engine->lock);
    enter_phase(engine, ENGINE_PLANNING);
    uint64_t now_ns = clock_now_ns();
    if (waited)
        inbox_resume(&engine->inbox, now_ns); /* idle is not slow */
    if (reset)
        reset_cache(engine);
    uint32_t epoch = atomic_load(&engine->cancel_epoch);
    bool sweep = epoch != engine->swept_epoch;
    while (first) {
        struct completion *completion = first;
        first = completion->next;
        /* Cancelled before it was submitted, it has raised no epoch. */
        for (uint32_t i = 0; i < completion->sequence_count; i++)
            sweep |= completion_is_cancelled(completion, i);
        scheduler_add(engine->scheduler, completion, now_ns);
    }
    if (sweep || now_ns >= scheduler_deadline_ns(engine->scheduler)) {
        engine->swept_epoch = epoch;
        scheduler_sweep(engine->scheduler, now_ns);
        publish_counts(engine);
        scheduler_notify(engine->scheduler);
    }
    return !stopping;
}

static void check_step(struct engine *engine)
{
    if (!engine->scratch)
        return;
    struct error error;
    bool sound = scheduler_check(engine->scheduler, engine->scratch, &error);
    if (!sound)
        log_error("pager_check", "%s", error.message);
    CHECK(sound);
}

static void step(struct engine *engine)
{
    struct backend *backend = engine->options.backend;
    uint64_t start_ns = clock_now_ns();
    uint32_t decoding = scheduler_decoding_count(engine->scheduler);
    if (decoding > engine->options.max_batch_tokens)
        decoding = engine->options.max_batch_tokens;
    if (engine->swap)
        page_swap_set_token_ns(engine->swap, engine->pacer.prompt_row_ns);
    const struct schedule *schedule =
        scheduler_next(engine->scheduler, pacer_prompt_rows(&engine->pacer, decoding), start_ns);
    publish_counts(engine);
    if (schedule->batch.row_count == 0) { /* pages were moved, more are to be */
        check_step(engine);
        return;
    }
    if (engine->swap)
        start_ns = clock_now_ns(); /* moving pages says nothing of rows */
    atomic_store(&engine->metrics.phase_rows, (int64_t)schedule->batch.row_count);
    atomic_store(&engine->metrics.phase_sequences, (int64_t)schedule->batch.sequence_count);
    enter_phase(engine, ENGINE_FORWARD);
    for (uint32_t i = 0; i < schedule->copy_count; i++)
        backend->ops->copy_page(backend, schedule->copies[i].from, schedule->copies[i].to);
    backend->ops->forward(backend, &schedule->batch);
    enter_phase(engine, ENGINE_SAMPLING);
    sample_step(engine, schedule);
    enter_phase(engine, ENGINE_COMMITTING);
    uint64_t end_ns = clock_now_ns();
    pacer_observe(&engine->pacer, schedule->decode_token_count, schedule->prompt_token_count,
                  end_ns - start_ns);
    scheduler_commit(engine->scheduler, end_ns);
    check_step(engine);
    /* Counted as gone before their readers learn of the end: who is told may ask again at once. */
    publish_counts(engine);
    scheduler_notify(engine->scheduler);
}

static void *engine_main(void *arg)
{
    struct engine *engine = arg;
    engine->phase_start_ns = clock_now_ns();
    while (collect(engine)) {
        if (scheduler_has_work(engine->scheduler))
            step(engine);
    }
    scheduler_cancel_all(engine->scheduler, clock_now_ns());
    publish_counts(engine);
    return NULL;
}

/* ---- start and end ---- */

static enum status validate(const struct engine_options *options, struct error *error)
{
    const struct backend *backend = options->backend;
    if (options->max_batch_tokens < 1 || options->max_batch_tokens > backend->max_batch_rows)
        return error_set(error, STATUS_INVALID, "max-batch-tokens",
                         "max-batch-tokens must be between 1 and %u, not %u",
                         backend->max_batch_rows, options->max_batch_tokens);
    if (options->max_sequences < 1 || options->max_sequences > backend->max_sequences)
        return error_set(error, STATUS_INVALID, "max-seqs",
                         "max-seqs must be between 1 and %u, not %u", backend->max_sequences,
                         options->max_sequences);
    if (backend->page_count < 2 || max_length_for(options) < 2)
        return error_set(error, STATUS_INVALID, "context",
                         "a prompt and its answer need at least 2 tokens; context is %u, the pool "
                         "holds %u pages of %u tokens",
                         options->context, backend->page_count ? backend->page_count - 1 : 0,
                         backend->page_size);
    if (backend->logits_rows_max < 1)
        return error_set(error, STATUS_INVALID, NULL, "the backend gives no logits");
    return STATUS_OK;
}

static enum status allocate(struct engine *engine, struct error *error)
{
    const struct engine_options *options = &engine->options;
    const struct backend *backend = options->backend;
    engine->workspace_bytes = workspace_bytes_for(options);
    engine->logits = aligned_alloc(64, logits_bytes(options, backend->logits_rows_max));
    engine->workspaces =
        aligned_alloc(64, engine->workspace_bytes * workers_count(options->workers));
    engine->end_tokens = malloc(options->end_token_count * sizeof(uint32_t) + 1);
    engine->inbox.tenants = calloc(options->key_count + 1, sizeof *engine->inbox.tenants);
    if (options->check_every_step)
        engine->scratch = malloc(scratch_bytes(options));
    if (!engine->logits || !engine->workspaces || !engine->end_tokens || !engine->inbox.tenants ||
        (options->check_every_step && !engine->scratch))
        return error_set(error, STATUS_IO, NULL, "out of memory starting the engine");
    if (options->end_token_count)
        memcpy(engine->end_tokens, options->end_tokens,
               options->end_token_count * sizeof(uint32_t));
    return STATUS_OK;
}

static enum status create_parts(struct engine *engine, struct error *error)
{
    const struct backend *backend = engine->options.backend;
    struct pager_options pager = {
        .page_count = backend->page_count,
        .page_size = backend->page_size,
        .groups = backend->groups,
    };
    if (getrandom(pager.hash_key, sizeof pager.hash_key, 0) != sizeof pager.hash_key)
        return error_set(error, STATUS_IO, NULL, "no random numbers from the system");
    enum status status = pager_create(&pager, &engine->pager, error);
    if (status)
        return status;
    struct scheduler_options scheduler = scheduler_options_for(&engine->options);
    if (engine->options.swap_dir) {
        struct page_swap_options swap = swap_options_for(&engine->options);
        swap.metrics = &engine->metrics;
        status = page_swap_create(&swap, &engine->swap, error);
        if (status)
            return status;
    }
    scheduler.pager = engine->pager;
    scheduler.swap = engine->swap;
    scheduler.end_tokens = engine->end_tokens;
    scheduler.metrics = &engine->metrics;
    status = scheduler_create(&scheduler, &engine->scheduler, error);
    if (status)
        return status;
    if (saves_prefixes(&engine->options)) {
        struct prefix_saver_options saver = saver_options_for(&engine->options);
        saver.pager = engine->pager;
        saver.wake = wake_for_saver;
        saver.arg = engine;
        saver.metrics = &engine->metrics;
        engine->saver = prefix_saver_create(&saver);
    }
    atomic_store(&engine->metrics.pages_cached, (int64_t)pager_cached_count(engine->pager));
    atomic_store(&engine->metrics.pages_total, (int64_t)pager_total_count(engine->pager));
    atomic_store(&engine->metrics.pages_free, (int64_t)pager_free_count(engine->pager));
    return STATUS_OK;
}

static enum status start_thread(struct engine *engine, struct error *error)
{
    int failed = thread_start(&engine->thread, "engine", STACK_BYTES, engine_main, engine);
    if (failed)
        return error_set(error, STATUS_IO, NULL, "cannot start the engine thread: %s",
                         strerror(failed));
    return STATUS_OK;
}

static void free_parts(struct engine *engine)
{
    prefix_saver_destroy(engine->saver);
    scheduler_destroy(engine->scheduler);
    page_swap_destroy(engine->swap);
    pager_destroy(engine->pager);
    free(engine->scratch);
    free(engine->inbox.tenants);
    free(engine->end_tokens);
    free(engine->workspaces);
    free(engine->logits);
    pthread_cond_destroy(&engine->arrived);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

/* Longer chunks gain nothing, and one prompt after the other has its first token sooner than all of
   them together. */
static uint32_t prompt_rows_max(const struct engine_options *options)
{
    uint32_t rows = workers_count(options->workers) * CHUNK_ROWS_PER_THREAD;
    bool limited = options->step_target_ms > 0 && rows < options->max_batch_tokens;
    return limited ? rows : options->max_batch_tokens;
}

enum status engine_create(const struct engine_options *options, struct engine **out,
                          struct error *error)
{
    enum status status = validate(options, error);
    if (status)
        return status;
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return error_set(error, STATUS_IO, NULL, "out of memory starting the engine");
    engine->options = *options;
    engine->max_length = max_length_for(options);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
    engine_metrics_init(&engine->metrics, engine->max_length, engine->token_bounds);
    pacer_init(&engine->pacer, options->step_target_ms, prompt_rows_max(options));
    engine->inbox.tenant_count = options->key_count + 1;
    atomic_store(&engine->inbox.sharing, options->key_count);
    engine->inbox.max_queue = options->max_queue;
    engine->inbox.max_sequences = options->max_sequences;
    engine->inbox.max_tokens = options->max_queue_tokens;
    atomic_store(&engine->inbox.room, options->max_sequences);
    status = allocate(engine, error);
    if (!status)
        status = create_parts(engine, error);
    if (!status)
        status = start_thread(engine, error);
    if (status) {
        free_parts(engine);
        return status;
    }
    *out = engine;
    return STATUS_OK;
}

void engine_destroy(struct engine *engine)
{
    if (!engine)
        return;
    pthread_mutex_lock(&engine->lock);
    engine->draining = true;
    engine->stopping = true;
    pthread_cond_signal(&engine->arrived);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    CHECK(engine->inbox_first == NULL && atomic_load(&engine->in_flight) == 0);
    free_parts(engine);
}

/* ---- the door ---- */

static enum status check_completion(const struct engine *engine,
                                    const struct completion *completion, struct error *error)
{
    if ((uint64_t)completion->prompt_count + 1 > engine->max_length)
        return error_set_code(error, STATUS_INVALID, "context_length_exceeded", "prompt",
                              "the prompt has %u tokens; with at least one token of answer this "
                              "server can hold %u",
                              completion->prompt_count, engine->max_length);
    const uint32_t *tokens = completion->sequences[0].history;
    for (uint32_t i = 0; i < completion->prompt_count; i++) {
        if (tokens[i] >= engine->options.backend->vocabulary)
            return error_set(error, STATUS_INVALID, "prompt", "there is no token %u", tokens[i]);
    }
    return STATUS_OK;
}

enum status engine_submit(struct engine *engine, struct completion *const *completions,
                          uint32_t count, struct error *error)
{
    CHECK(count >= 1);
    for (uint32_t i = 0; i < count; i++) {
        enum status status = check_completion(engine, completions[i], error);
        if (status)
            return status;
    }
    /* Before the inbox's lock, since attaching takes the completion's. Taken back if there is no
     * room. */
    uint64_t now_ns = clock_now_ns(), tokens = 0;
    uint32_t tenant = completions[0]->tenant;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(completions[i]->tenant == tenant);
        tokens += completions[i]->prompt_count;
        completions[i]->submit_ns = now_ns;
        completion_attach(completions[i], &engine->cancel_epoch);
    }
    pthread_mutex_lock(&engine->lock);
    enum status status =
        engine->draining ? error_set(error, STATUS_UNAVAILABLE, NULL, "the server is shutting down")
                         : inbox_check(&engine->inbox, tenant, count, tokens, now_ns, error);
    if (!status) {
        for (uint32_t i = 0; i < count; i++) {
            completions[i]->next = NULL;
            *(engine->inbox_last ? &engine->inbox_last->next : &engine->inbox_first) =
                completions[i];
            engine->inbox_last = completions[i];
        }
        inbox_enter(&engine->inbox, tenant, count, tokens);
        atomic_fetch_add(&engine->in_flight, count);
        pthread_cond_signal(&engine->arrived);
    }
    pthread_mutex_unlock(&engine->lock);
    for (uint32_t i = 0; status && i < count; i++)
        completion_detach(completions[i]);
    return status;
}

void engine_drain(struct engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->draining = true;
    pthread_mutex_unlock(&engine->lock);
}

uint32_t engine_in_flight(struct engine *engine)
{
    return atomic_load(&engine->in_flight);
}

void engine_reset_cache(struct engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->reset_wanted = true;
    pthread_cond_signal(&engine->arrived);
    pthread_mutex_unlock(&engine->lock);
}

unsigned engine_retry_after_s(const struct engine *engine)
{
    return inbox_retry_after_s(&engine->inbox, clock_now_ns());
}

uint64_t engine_queued_tokens(const struct engine *engine)
{
    return inbox_queued(&engine->inbox).tokens;
}

void engine_share(struct engine *engine, uint32_t keys)
{
    atomic_store(&engine->inbox.sharing, keys);
}

uint64_t engine_tenant_tokens(const struct engine *engine, uint32_t tenant)
{
    CHECK(tenant < engine->inbox.tenant_count);
    return atomic_load_explicit(&engine->inbox.tenants[tenant].served_tokens, memory_order_relaxed);
}

const struct engine_metrics *engine_metrics(const struct engine *engine)
{
    return &engine->metrics;
}

uint32_t engine_max_length(const struct engine *engine)
{
    return engine->max_length;
}
