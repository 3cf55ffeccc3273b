/*
 * The engine thread's loop:
 *
 *     take what is in the inbox → sweep what was cancelled → schedule →
 *         copy pages → forward → sample → commit
 *
 * The thread waits in `collect` only, and only when it has nothing to do. It takes the inbox's lock
 * and a completion's lock one after the other, never both.
 *
 * What each step does is decided elsewhere: what runs by the scheduler, how long a prompt's chunk
 * may be by the pacer, whether the queue has room by queue_bounds, what is written in idle time by
 * the prefix saver. This file connects them, and starts and ends them.
 */
#include "engine/engine.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "engine/constrain/masks.h"
#include "engine/inbox.h"
#include "engine/pooling.h"
#include "engine/prefix_saver.h"
#include "engine/sampling.h"
#include "engine/scheduler/pacer.h"
#include "engine/scheduler/page_swap.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/scheduler_check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define STACK_BYTES (2 * MIB)      /* the backend's kernels run on this thread too */
#define CHUNK_TOKENS_PER_THREAD 24 /* of prompts in a step; with more the kernels are no faster */

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
    struct sampling sampling;
    uint32_t *scratch;  /* [page_count], NULL unless check_every_step */
    struct inbox inbox; /* it has its own lock */
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
    uint32_t length = min_u32(pool, options->context);
    return backend->bidirectional ? min_u32(length, options->max_batch_tokens) : length;
}

static struct scheduler_options scheduler_options_for(const struct engine_options *options)
{
    return (struct scheduler_options){
        .max_sequences = options->max_sequences,
        .max_batch_tokens = options->max_batch_tokens,
        .max_length = max_length_for(options),
        .tenant_count = options->key_count + 1,
        .end_token_count = options->end_token_count,
        .prefix_cache = options->prefix_cache && !options->backend->bidirectional,
        .whole_prompts = options->backend->bidirectional,
        .test_preempt_every = options->test_preempt_every,
    };
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
    bytes += (options->key_count + 1) * sizeof(struct tenant_queue);
    bytes += pager_memory_bytes(backend->page_count, backend->page_size);
    bytes += scheduler_memory_bytes(&scheduler, backend->page_size, backend->groups.count);
    bytes += sampling_memory_bytes(backend, options->workers);
    bytes += scratch_bytes(options);
    if (options->grammars)
        bytes += masks_memory_bytes(options->max_sequences, backend->vocabulary);
    if (options->swap_dir)
        bytes += page_swap_memory_bytes(options->swap_bytes, backend->page_bytes);
    if (saves_prefixes(options)) {
        struct prefix_saver_options saver = saver_options_for(options);
        bytes += prefix_saver_memory_bytes(&saver);
    }
    /* The allocator's own: a page and a header for each of the ten allocations above. */
    return bytes + 10 * (4096 + 64);
}

/* ---- the loop ---- */

/* Counters that other threads read. */
static void publish_counts(struct engine *engine)
{
    struct scheduler *scheduler = engine->scheduler;
    struct queue_bounds *bounds = &engine->inbox.bounds;
    uint32_t room = scheduler_waiting_count(scheduler) > 0
                        ? 0
                        : engine->options.max_sequences - scheduler_running_count(scheduler);
    atomic_store(&bounds->room, room);
    for (uint32_t i = 0; i < bounds->tenant_count; i++) {
        struct scheduler_tenant_counts counts;
        scheduler_tenant_counts(scheduler, i, &counts);
        queue_bounds_publish(bounds, i, counts.dequeued, counts.dequeued_tokens, counts.tokens);
    }
    uint64_t completed = scheduler_completed_count(scheduler);
    queue_bounds_observe(bounds, completed, clock_now_ns());
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

/* The saver's thread has written a page. */
static void wake_for_saver(void *arg)
{
    struct engine *engine = arg;
    inbox_wake(&engine->inbox);
}

/* Takes what is in the inbox. While there is nothing and nothing to compute, the prefix saver gets
   the time, and the thread waits. */
static struct inbox_content wait_for_work(struct engine *engine)
{
    struct inbox_content content;
    uint64_t idle_since_ns = 0, wait_ns = 0;
    while (!inbox_take(&engine->inbox, wait_ns, &content) &&
           !scheduler_has_work(engine->scheduler)) {
        if (idle_since_ns == 0) {
            enter_phase(engine, ENGINE_IDLE);
            idle_since_ns = engine->phase_start_ns;
        }
        wait_ns = engine->saver ? prefix_saver_work(engine->saver, idle_since_ns, clock_now_ns())
                                : UINT64_MAX;
    }
    enter_phase(engine, ENGINE_PLANNING);
    if (idle_since_ns)
        queue_bounds_resume(&engine->inbox.bounds, clock_now_ns()); /* idle is not slow */
    return content;
}

/* Hands what arrived to the scheduler, and ends what was cancelled or is late. false: stop. */
static bool collect(struct engine *engine)
{
    struct inbox_content content = wait_for_work(engine);
    uint64_t now_ns = clock_now_ns();
    if (content.reset_wanted)
        reset_cache(engine);
    uint32_t epoch = atomic_load(&engine->cancel_epoch);
    bool sweep = epoch != engine->swept_epoch;
    while (content.first) {
        struct completion *completion = content.first;
        content.first = completion->next;
        /* A cancel before the submit has raised no epoch. */
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
    return !content.is_stopping;
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
    uint32_t decoding =
        min_u32(scheduler_decoding_count(engine->scheduler), engine->options.max_batch_tokens);
    if (engine->swap)
        page_swap_set_token_ns(engine->swap, engine->pacer.prompt_token_ns);
    const struct schedule *schedule =
        scheduler_next(engine->scheduler, pacer_prompt_tokens(&engine->pacer, decoding), start_ns);
    publish_counts(engine);
    if (schedule->batch.row_count == 0) { /* the step moved pages only */
        check_step(engine);
        return;
    }
    if (engine->swap)
        start_ns = clock_now_ns(); /* moving pages says nothing of tokens */
    atomic_store(&engine->metrics.phase_rows, (int64_t)schedule->batch.row_count);
    atomic_store(&engine->metrics.phase_sequences, (int64_t)schedule->batch.sequence_count);
    enter_phase(engine, ENGINE_FORWARD);
    for (uint32_t i = 0; i < schedule->copy_count; i++)
        backend->ops->copy_page(backend, schedule->copies[i].from, schedule->copies[i].to);
    sampling_start_masks(&engine->sampling, schedule);
    backend->ops->forward(backend, &schedule->batch);
    enter_phase(engine, ENGINE_SAMPLING);
    pooling_run(backend, schedule);
    sampling_run(&engine->sampling, schedule);
    enter_phase(engine, ENGINE_COMMITTING);
    uint64_t end_ns = clock_now_ns();
    pacer_observe(&engine->pacer, schedule->decode_token_count, schedule->prompt_token_count,
                  end_ns - start_ns);
    scheduler_commit(engine->scheduler, end_ns);
    check_step(engine);
    /* Ended completions are counted before their readers learn of it: a client that is told may
       send its next request at once. */
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
    struct queue_bounds *bounds = &engine->inbox.bounds;
    engine->end_tokens = malloc(options->end_token_count * sizeof(uint32_t) + 1);
    bounds->tenants = calloc(options->key_count + 1, sizeof *bounds->tenants);
    if (options->check_every_step)
        engine->scratch = malloc(scratch_bytes(options));
    if (!engine->end_tokens || !bounds->tenants || (options->check_every_step && !engine->scratch))
        return error_set(error, STATUS_IO, NULL, "out of memory starting the engine");
    if (options->end_token_count)
        memcpy(engine->end_tokens, options->end_tokens,
               options->end_token_count * sizeof(uint32_t));
    engine->sampling.backend = options->backend;
    engine->sampling.workers = options->workers;
    engine->sampling.end_tokens = engine->end_tokens;
    engine->sampling.end_token_count = options->end_token_count;
    return sampling_init(&engine->sampling, error);
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
    if (engine->options.grammars) {
        status = masks_create(engine->options.max_sequences, engine->options.backend->vocabulary,
                              &engine->sampling.masks, error);
        if (status)
            return status;
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
    masks_destroy(engine->sampling.masks);
    scheduler_destroy(engine->scheduler);
    page_swap_destroy(engine->swap);
    pager_destroy(engine->pager);
    sampling_deinit(&engine->sampling);
    free(engine->scratch);
    free(engine->inbox.bounds.tenants);
    free(engine->end_tokens);
    inbox_deinit(&engine->inbox);
    free(engine);
}

/* The most prompt tokens of a step. Longer chunks gain nothing, and when one prompt is computed
   after the other its first token comes sooner than when all are computed together. */
static uint32_t prompt_tokens_max(const struct engine_options *options)
{
    uint32_t tokens = workers_count(options->workers) * CHUNK_TOKENS_PER_THREAD;
    bool chunks = options->step_target_ms > 0 && !options->backend->bidirectional;
    return chunks ? min_u32(tokens, options->max_batch_tokens) : options->max_batch_tokens;
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
    inbox_init(&engine->inbox);
    engine_metrics_init(&engine->metrics, engine->max_length, engine->token_bounds);
    pacer_init(&engine->pacer, options->backend->bidirectional ? 0 : options->step_target_ms,
               prompt_tokens_max(options));
    engine->inbox.bounds.tenant_count = options->key_count + 1;
    atomic_store(&engine->inbox.bounds.sharing, options->key_count);
    engine->inbox.bounds.max_queue = options->max_queue;
    engine->inbox.bounds.max_sequences = options->max_sequences;
    engine->inbox.bounds.max_tokens = options->max_queue_tokens;
    atomic_store(&engine->inbox.bounds.room, options->max_sequences);
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
    inbox_stop(&engine->inbox);
    pthread_join(engine->thread, NULL);
    CHECK(atomic_load(&engine->in_flight) == 0);
    free_parts(engine);
}

/* ---- for other threads ---- */

static enum status check_completion(const struct engine *engine,
                                    const struct completion *completion, struct error *error)
{
    if (completion->pooling && completion->prompt_count > engine->max_length)
        return error_set_code(error, STATUS_INVALID, "context_length_exceeded", "input",
                              "the text has %u tokens; this server can hold %u",
                              completion->prompt_count, engine->max_length);
    if (!completion->pooling && (uint64_t)completion->prompt_count + 1 > engine->max_length)
        return error_set_code(error, STATUS_INVALID, "context_length_exceeded", "prompt",
                              "the prompt has %u tokens; with at least one token of answer this "
                              "server can hold %u",
                              completion->prompt_count, engine->max_length);
    CHECK(!completion->grammar || engine->sampling.masks);
    CHECK(!completion->pooling || engine->options.backend->hidden_width > 0);
    CHECK(completion->pooling || !engine->options.backend->bidirectional);
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
    uint64_t now_ns = clock_now_ns(), tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(completions[i]->tenant == completions[0]->tenant);
        tokens += completions[i]->prompt_count;
        completions[i]->submit_ns = now_ns;
        completion_attach(completions[i], &engine->cancel_epoch);
    }
    atomic_fetch_add(&engine->in_flight, count);
    enum status status = inbox_submit(&engine->inbox, completions, count, tokens, now_ns, error);
    if (!status)
        return STATUS_OK;
    atomic_fetch_sub(&engine->in_flight, count);
    for (uint32_t i = 0; i < count; i++)
        completion_detach(completions[i]);
    return status;
}

void engine_drain(struct engine *engine)
{
    inbox_drain(&engine->inbox);
}

uint32_t engine_in_flight(struct engine *engine)
{
    return atomic_load(&engine->in_flight);
}

void engine_reset_cache(struct engine *engine)
{
    inbox_request_reset(&engine->inbox);
}

unsigned engine_retry_after_s(const struct engine *engine)
{
    return queue_bounds_retry_after_s(&engine->inbox.bounds, clock_now_ns());
}

uint64_t engine_queued_tokens(const struct engine *engine)
{
    return queue_bounds_size(&engine->inbox.bounds).tokens;
}

void engine_share(struct engine *engine, uint32_t keys)
{
    atomic_store(&engine->inbox.bounds.sharing, keys);
}

uint64_t engine_tenant_tokens(const struct engine *engine, uint32_t tenant)
{
    CHECK(tenant < engine->inbox.bounds.tenant_count);
    return atomic_load_explicit(&engine->inbox.bounds.tenants[tenant].served_tokens,
                                memory_order_relaxed);
}

const struct engine_metrics *engine_metrics(const struct engine *engine)
{
    return &engine->metrics;
}

uint32_t engine_max_length(const struct engine *engine)
{
    return engine->max_length;
}
