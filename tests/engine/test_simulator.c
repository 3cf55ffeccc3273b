/*
 * A seeded simulator: queue, scheduler, pager and scripted backend under random arrivals of several
 * tenants, priorities, deadlines, cancels, preemptions, cache resets, budgets without room, token
 * limits, pool sizes, KV cache groups, swap files with failing disks and shutdown, with a virtual
 * clock. After each step (in rig_step): pages and slots balance, reference counts equal tables, no shared
 * or cached page is written, some sequence has a token; and here: the queue's counts are right and within
 * its bounds, the budget holds, what is late has ended, the first in order was not preempted, work
 * goes on. At the end: every answer equals the one the request gets alone, what was ended early is
 * a beginning of it, nobody was preempted more than twice, all pages and bytes are free.
 *
 * And every order of events in tiny pools. QUIRE_SEEDS=N in the environment sets the number of
 * seeds (500, with sanitizers 200); QUIRE_TEST_FULL=1 makes it 100,000 and the orders longer (sanitizers: 10,000).
 */
#include "base/log.h"
#include "engine/queue_bounds.h"
#include "engine/scheduler/scheduler_private.h"
#include "tests/engine/constrain/byte_grammar.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUESTS 14
#define PROMPT_MAX 60
#define TENANTS_MAX 4
#define STEP_NS 1000000u
#define LOOPS 10

static uint64_t random_state, seed_now;

/* As ck_assert, which writes to a file at each call; and it says where to look. */
#define SURE(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("seed %llu: %s", (unsigned long long)seed_now, #condition);               \
    } while (0)

static uint32_t dice(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20) % sides;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 10 };
#else
enum { SLOWER = 1 };
#endif

static bool is_full_run(void)
{
    const char *full = getenv("QUIRE_TEST_FULL");
    return full && *full && strcmp(full, "0") != 0;
}

struct client {
    struct rig_request request;
    uint32_t tokens[PROMPT_MAX];
    struct completion *completion;
    bool cancelled;
    bool choice_stopped[4];
};

/* ---- what must have come of a client ---- */

/* Was the choice ended before its answer was whole? */
static bool ended_early(const struct client *client, uint32_t choice)
{
    enum finish_reason reason = completion_reason(client->completion, choice);
    return reason == FINISH_CANCELLED || reason == FINISH_TIMEOUT ||
           (reason == FINISH_STOP && client->choice_stopped[choice]);
}

/* As far as it came, a choice that was ended early has the answer it would have had. */
static void check_beginning(const struct client *client, uint32_t choice, uint32_t max_length)
{
    static struct rig_answer answer;
    rig_expect(&client->request, choice, max_length, &answer);
    const struct completion_token *tokens;
    uint32_t count = completion_read(client->completion, choice, 0, &tokens);
    SURE(count <= answer.token_count);
    SURE(memcmp(tokens, answer.tokens, count * sizeof *tokens) == 0);
    if (!ended_early(client, choice)) {
        SURE(count == answer.token_count);
        SURE(completion_reason(client->completion, choice) == answer.reason);
    }
}

static void check_client(struct client *client, uint32_t max_length, uint64_t now_ns)
{
    struct completion *completion = client->completion;
    SURE(completion_done(completion));
    SURE(completion_cached_count(completion) < client->request.token_count);
    bool whole = true;
    for (uint32_t i = 0; i < client->request.choice_count; i++) {
        enum finish_reason reason = completion_reason(completion, i);
        SURE(completion->sequences[i].preemptions <= PREEMPTIONS_MAX);
        if (reason == FINISH_CANCELLED)
            SURE(client->cancelled);
        if (reason == FINISH_TIMEOUT)
            SURE(client->request.deadline_ns && client->request.deadline_ns <= now_ns);
        whole &= !ended_early(client, i);
    }
    if (whole)
        rig_check_answers(completion, &client->request, max_length);
    for (uint32_t i = 0; !whole && i < client->request.choice_count; i++)
        check_beginning(client, i, max_length);
    completion_release(completion);
    client->completion = NULL;
}

/* ---- random lives ---- */

struct simulation {
    struct rig *rig;
    struct rig_options options;
    struct queue_bounds bounds;
    struct tenant_queue tenant_queues[TENANTS_MAX];
    struct client clients[REQUESTS];
    unsigned arrived;
    uint64_t budget_bytes;
    bool cancels_all;
    uint64_t progress;
    unsigned progress_step; /* or when somebody was last made to compute again */
    uint64_t refused;
};

/* What happened, over all seeds of a loop: a simulator that never gets there shows nothing. */
static struct {
    uint64_t refused, preempted, late, cancelled, found, swapped_out, swapped_in, swap_errors,
        swap_fallbacks, ended_swapped, moves;
} seen;

/* ---- a disk that fails: one call in so many; 0: none ---- */

static uint32_t write_fault_odds, read_fault_odds;
static bool next_call_fails;

static ssize_t failing_write(int fd, const void *bytes, size_t length, off_t offset)
{
    if (next_call_fails || (write_fault_odds && dice(write_fault_odds) == 0)) {
        next_call_fails = false;
        errno = dice(2) ? ENOSPC : EIO;
        return -1;
    }
    return pwrite(fd, bytes, length, offset);
}

/* Half of the times it is not an error, but other bytes. */
static ssize_t failing_read(int fd, void *bytes, size_t length, off_t offset)
{
    ssize_t got = pread(fd, bytes, length, offset);
    if (next_call_fails || (read_fault_odds && dice(read_fault_odds) == 0)) {
        next_call_fails = false;
        if (dice(2) && got > 0) {
            ((char *)bytes)[dice((uint32_t)got)] ^= (char)(1 << dice(8));
            return got;
        }
        errno = EIO;
        return -1;
    }
    return got;
}

/* Half of the models have windows: of less than a page, of several, of more than any sequence. */
static struct kv_groups random_groups(void)
{
    struct kv_groups groups = {.count = dice(2) ? 1 : 2 + dice(4)};
    for (uint32_t g = 1; g < groups.count; g++)
        groups.window[g] = dice(4) == 0 ? 0 : 1 + dice(dice(2) ? 20 : 200);
    return groups;
}

static struct rig_options random_options(void)
{
    static const uint32_t sizes[] = {8, 16, 32, 64};
    uint32_t size = sizes[dice(4)];
    struct kv_groups groups = random_groups();
    return (struct rig_options){
        .page_count = groups.count * (1 + dice(dice(3) == 0 ? 60 : 160 / size)),
        .page_size = size,
        .groups = groups,
        .max_sequences = 1 + dice(9),
        .max_batch_tokens = 1 + dice(dice(2) ? 8 : 80),
        .context = dice(3) == 0 ? 2 + dice(80) : 200,
        .logits_rows_max = 1,
        .test_preempt_every = dice(4) == 0 ? 1 + dice(6) : 0,
        .tenant_count = dice(2) ? 1 : 1 + dice(TENANTS_MAX),
        .no_prefix_cache = dice(4) == 0,
    };
}

/* Half have a swap file: some of a few slots, some with a disk that fails, some so slow that it is
   not worth it. */
static void begin_swap(struct simulation *sim)
{
    write_fault_odds = read_fault_odds = 0;
    next_call_fails = false;
    if (dice(2))
        return;
    sim->options.swap_slots = dice(3) ? 2000 : 1 + dice(20);
    sim->options.swap_step_pages = 1 + dice(dice(2) ? 3 : 50);
    sim->options.swap_always = dice(2);
    sim->options.swap_calls = (struct page_store_calls){failing_read, failing_write};
}

static void begin(struct simulation *sim, uint64_t seed)
{
    memset(sim, 0, sizeof *sim);
    random_state = (seed + 1) * 0x9e3779b97f4a7c15u;
    sim->options = random_options();
    begin_swap(sim);
    sim->rig = rig_create(&sim->options);
    if (sim->rig->swap) {
        write_fault_odds = dice(2) ? 0 : 2 + dice(40);
        read_fault_odds = dice(2) ? 0 : 2 + dice(40);
        page_swap_set_token_ns(sim->rig->swap, dice(4) ? 1e15 : 1e-3);
    }
    sim->bounds = (struct queue_bounds){
        .tenant_count = sim->options.tenant_count,
        .sharing = sim->options.tenant_count - 1,
        .max_queue = dice(3) ? 1000 : 1 + dice(5),
        .max_sequences = sim->options.max_sequences,
        .max_tokens = dice(3) ? 0 : 1 + dice(150),
        .tenants = sim->tenant_queues,
    };
    sim->bounds.room = sim->options.max_sequences;
    sim->budget_bytes = dice(4) ? 0 : 2000 + dice(12000);
    rig_limit_requests(sim->budget_bytes);
    sim->cancels_all = seed % 16 == 15;
}

/* Texts of two to about forty tokens, with runs that leave no choice. */
static struct grammar *a_grammar(void)
{
    static struct grammar *grammars[3];
    static const char *const sources[] = {"(ab|[0-9]{2}){1,6}xyz(k[a-f]){0,8}",
                                          "hello( w[a-z]{1,3}orld){1,4}", "[a-c]{3,30}"};
    unsigned which = dice(3);
    if (!grammars[0]) {
        byte_grammar_init(rig_budget_of(), RIG_VOCABULARY, RIG_END_TOKEN);
        for (unsigned i = 0; i < 3; i++)
            grammars[i] = byte_grammar_compile(GRAMMAR_REGEX, sources[i]);
    }
    return grammars[which];
}

static struct rig_request random_request(struct simulation *sim, struct client *client)
{
    struct grammar *grammar = dice(4) ? NULL : a_grammar();
    /* Few heads and few ends, so that prefixes meet. */
    uint32_t max_length = sim->rig->max_length;
    uint32_t longest = max_length - 1 < PROMPT_MAX ? max_length - 1 : PROMPT_MAX;
    uint32_t count = 1 + dice(longest), head = dice(3), end = dice(4);
    uint32_t split = dice(longest + 1);
    for (uint32_t i = 0; i < count; i++)
        client->tokens[i] = ((i < split ? head : end + 5) * 7 + i) % RIG_VOCABULARY;
    return (struct rig_request){
        .tokens = client->tokens,
        .token_count = count,
        .choice_count = dice(4) == 0 ? 1 + dice(4) : 1,
        .max_tokens = 1 + dice(40),
        .temperature = dice(2) ? 0.9f : 0,
        .seed = dice(1000),
        .cache_salt = dice(6) == 0,
        .stops = grammar || dice(2),
        .grammar = grammar,
        .no_cache = dice(5) == 0,
        .logprobs = dice(4) == 0,
        .priority = dice(4) ? 0 : (int32_t)dice(7) - 3,
        .tenant = dice(sim->options.tenant_count),
        .deadline_ns = dice(6) ? 0 : sim->rig->now_ns + dice(80) * (uint64_t)STEP_NS,
    };
}

/* Memory, then the queue: either may have no room, and then nothing is left behind. */
static void arrive(struct simulation *sim)
{
    struct client *client = &sim->clients[sim->arrived++];
    client->request = random_request(sim, client);
    client->completion = rig_try_completion(&client->request);
    if (!client->completion) {
        SURE(sim->budget_bytes > 0);
        sim->refused++;
        return;
    }
    struct error error;
    uint32_t tenant = client->request.tenant;
    enum status status = queue_bounds_check(&sim->bounds, tenant, 1, client->request.token_count,
                                            sim->rig->now_ns, &error);
    if (status != STATUS_OK) {
        SURE(status == STATUS_BUSY);
        SURE(error.retry_after_s >= 1 && error.retry_after_s <= 300);
        sim->refused++;
        completion_release(client->completion);
        client->completion = NULL;
        return;
    }
    queue_bounds_enter(&sim->bounds, tenant, 1, client->request.token_count);
    rig_add(sim->rig, client->completion);
}

static bool is_swapped(const struct client *client)
{
    bool swapped = false;
    for (uint32_t i = 0; client->completion && i < client->request.choice_count; i++)
        swapped |= client->completion->sequences[i].swapped.slot_count > 0;
    return swapped;
}

static void one_cancel(struct simulation *sim)
{
    struct client *client = &sim->clients[dice(REQUESTS)];
    if (dice(3) == 0) { /* rather one that has something in the swap file */
        for (unsigned i = 0; i < REQUESTS && !is_swapped(client); i++)
            client = &sim->clients[i];
    }
    if (!client->completion)
        return;
    seen.ended_swapped += is_swapped(client);
    if (dice(2)) {
        client->cancelled = true;
        completion_cancel(client->completion);
    } else {
        uint32_t choice = dice(client->request.choice_count);
        client->choice_stopped[choice] = true;
        completion_stop_choice(client->completion, choice);
    }
}

static void cancel_all(struct simulation *sim)
{
    for (unsigned i = 0; i < sim->arrived; i++)
        sim->clients[i].cancelled = true;
    scheduler_cancel_all(sim->rig->scheduler, sim->rig->now_ns);
}

static void disturb(struct simulation *sim, unsigned step)
{
    struct rig *rig = sim->rig;
    if (dice(12) == 0)
        one_cancel(sim);
    if (dice(30) == 0 && rig->scheduler->slots.count > 0) {
        rig_requeue(rig, dice(rig->scheduler->slots.count));
        sim->progress_step = step;
    }
    if (rig->swap && dice(15) == 0 && rig->scheduler->slots.count > 0) {
        rig_preempt(rig, dice(rig->scheduler->slots.count));
        sim->progress_step = step;
    }
    if (dice(40) == 0)
        pager_forget(rig->pager);
    if (dice(25) == 0)
        rig->now_ns += dice(60) * (uint64_t)STEP_NS;
    if (sim->cancels_all && dice(200) == 0)
        cancel_all(sim);
}

/* As the engine does it after each step. */
static void publish(struct simulation *sim)
{
    struct scheduler *scheduler = sim->rig->scheduler;
    uint32_t running = scheduler_running_count(scheduler);
    bool waiting = scheduler_waiting_count(scheduler) > 0;
    sim->bounds.room = waiting ? 0 : sim->options.max_sequences - running;
    for (uint32_t i = 0; i < sim->options.tenant_count; i++) {
        struct scheduler_tenant_counts counts;
        scheduler_tenant_counts(scheduler, i, &counts);
        queue_bounds_publish(&sim->bounds, i, counts.dequeued, counts.dequeued_tokens,
                             counts.tokens);
    }
    queue_bounds_observe(&sim->bounds, scheduler_completed_count(scheduler), sim->rig->now_ns);
}

static void check_queue(const struct simulation *sim)
{
    uint64_t requests = 0, tokens = 0;
    for (unsigned i = 0; i < sim->arrived; i++) {
        const struct completion *completion = sim->clients[i].completion;
        if (completion && !completion->was_admitted) {
            requests++;
            tokens += completion->prompt_count;
        }
    }
    struct queue_size queued = queue_bounds_size(&sim->bounds);
    SURE(queued.requests == requests);
    SURE(queued.tokens == tokens);
    SURE(requests <= sim->bounds.max_queue + sim->options.max_sequences);
    if (sim->bounds.max_tokens && requests > 1)
        SURE(tokens <= sim->bounds.max_tokens + PROMPT_MAX);
    SURE(!sim->budget_bytes || rig_request_bytes() <= sim->budget_bytes);
}

static void check_progress(struct simulation *sim, unsigned step)
{
    uint64_t progress = metric_get(&sim->rig->metrics.progress);
    if (progress != sim->progress) {
        sim->progress = progress;
        sim->progress_step = step;
    }
    /* A sequence that is preempted again and again recomputes everything for each new token. */
    unsigned patience = sim->options.test_preempt_every ? 4000 : 400;
    SURE(step - sim->progress_step < patience);
}

/* One step with the client's side of it; true when nothing is left to do. */
static bool live(struct simulation *sim, unsigned step)
{
    struct rig *rig = sim->rig;
    const struct scheduler *scheduler = rig->scheduler;
    disturb(sim, step);
    publish(sim);
    scheduler_sweep(rig->scheduler, rig->now_ns + STEP_NS);
    const struct sequence *first = scheduler->slots.count ? scheduler->slots.order[0] : NULL;
    struct completion *completion = first ? first->completion : NULL;
    uint32_t choice = first ? first->index : 0;
    uint32_t preemptions = first ? completion->sequences[choice].preemptions : 0;
    bool idle = rig_turn(rig, 1 + dice(sim->options.max_batch_tokens + 3))[0] == '\0';
    if (first) /* its reader still holds it */
        SURE(completion->sequences[choice].preemptions == preemptions);
    publish(sim);
    for (unsigned i = 0; i < sim->arrived; i++) {
        struct client *client = &sim->clients[i];
        if (!client->completion)
            continue;
        if (client->request.deadline_ns && client->request.deadline_ns <= rig->now_ns)
            SURE(completion_done(client->completion));
        if (completion_done(client->completion))
            check_client(client, rig->max_length, rig->now_ns);
    }
    check_queue(sim);
    check_progress(sim, step);
    return idle;
}

static void simulate(uint64_t seed)
{
    static struct simulation sim;
    seed_now = seed;
    begin(&sim, seed);
    bool idle = false, shut = false;
    unsigned shutdown_step = seed % 8 == 7 ? dice(60) : UINT32_MAX;
    for (unsigned step = 0; !shut && (sim.arrived < REQUESTS || !idle); step++) {
        SURE(step < 20000);
        while (sim.arrived < REQUESTS && dice(3) == 0)
            arrive(&sim);
        idle = live(&sim, step);
        shut = step >= shutdown_step;
    }
    if (shut) {
        cancel_all(&sim);
        for (unsigned i = 0; i < sim.arrived; i++) {
            if (sim.clients[i].completion)
                check_client(&sim.clients[i], sim.rig->max_length, sim.rig->now_ns);
        }
    }
    for (unsigned i = 0; i < REQUESTS; i++)
        SURE(sim.clients[i].completion == NULL);
    SURE(rig_request_bytes() == 0);
    struct engine_metrics *metrics = &sim.rig->metrics;
    seen.refused += sim.refused;
    seen.preempted += metric_get(&metrics->preemptions);
    seen.late += metric_get(&metrics->finished[FINISH_TIMEOUT]);
    seen.cancelled += metric_get(&metrics->finished[FINISH_CANCELLED]);
    seen.found += metric_get(&metrics->prefix_hits);
    seen.swapped_out += metric_get(&metrics->swap_outs);
    seen.swapped_in += metric_get(&metrics->swap_ins);
    seen.swap_errors += metric_get(&metrics->swap_errors);
    seen.swap_fallbacks += metric_get(&metrics->swap_fallbacks);
    seen.moves += sim.rig->moves;
    rig_destroy(sim.rig);
}

START_TEST(random_lives_keep_all_promises)
{
    const char *seeds = getenv("QUIRE_SEEDS");
    uint64_t count = seeds           ? (uint64_t)atoll(seeds)
                     : is_full_run() ? 100000 / SLOWER
                     : SLOWER > 1    ? 200
                                     : 500;
    uint64_t per_loop = (count + LOOPS - 1) / LOOPS;
    for (uint64_t i = 0; i < per_loop; i++)
        simulate((uint64_t)_i * per_loop + i);
    if (per_loop >= 20) {
        SURE(seen.refused && seen.preempted && seen.late && seen.cancelled && seen.found);
        SURE(seen.swapped_out && seen.swapped_in && seen.swap_errors && seen.swap_fallbacks &&
             seen.ended_swapped && seen.moves);
    }
}
END_TEST

/*
 * Every order of events for tiny pools: three requests that want the same few pages. The first
 * arrives at once; then, at each point, whatever can happen does.
 */
enum event {
    EVENT_STEP,
    EVENT_ARRIVE,
    EVENT_CANCEL, /* + request */
    EVENT_PREEMPT_FIRST = EVENT_CANCEL + 3,
    EVENT_PREEMPT_LAST,
    EVENT_LATE,  /* the second request's deadline passes */
    EVENT_RESET, /* of the prefix cache */
    EVENT_FAULT, /* worlds with a swap file: the next write or read fails */
    EVENTS
};

#define DEPTH_MAX 8

struct world {
    struct rig_options options;
    unsigned depth;
    unsigned char events[1 + DEPTH_MAX];
    uint64_t played;
};

struct event_rig {
    struct rig *rig;
    struct client clients[3];
    unsigned arrived;
    uint64_t deadline_ns;
};

static void play_arrival(struct event_rig *e)
{
    static const struct {
        uint32_t tokens, max_tokens, choices;
        int32_t priority;
    } wants[3] = {{9, 9, 1, 0}, {4, 14, 2, 1}, {17, 5, 1, 0}};
    struct client *client = &e->clients[e->arrived];
    for (uint32_t k = 0; k < PROMPT_MAX; k++)
        client->tokens[k] = k % RIG_VOCABULARY;
    client->request = (struct rig_request){
        .tokens = client->tokens,
        .token_count = wants[e->arrived].tokens,
        .max_tokens = wants[e->arrived].max_tokens,
        .choice_count = wants[e->arrived].choices,
        .priority = wants[e->arrived].priority,
        .tenant = e->arrived % e->rig->options.tenant_count,
        .deadline_ns = e->arrived == 1 ? e->deadline_ns : 0,
        .temperature = 1,
        .seed = 3,
    };
    client->completion = rig_completion(&client->request);
    rig_add(e->rig, client->completion);
    e->arrived++;
}

static void play_event(struct event_rig *e, unsigned event, unsigned number)
{
    struct scheduler *scheduler = e->rig->scheduler;
    switch (event) {
    case EVENT_STEP:
        rig_turn(e->rig, 1 + number % 7);
        break;
    case EVENT_ARRIVE:
        play_arrival(e);
        break;
    case EVENT_PREEMPT_FIRST:
    case EVENT_PREEMPT_LAST:
        if (scheduler->slots.count > 0) /* to the swap file, if there is one */
            rig_preempt(e->rig, event == EVENT_PREEMPT_FIRST ? 0 : scheduler->slots.count - 1);
        break;
    case EVENT_LATE:
        e->rig->now_ns = e->deadline_ns;
        break;
    case EVENT_RESET:
        pager_forget(e->rig->pager);
        break;
    case EVENT_FAULT:
        next_call_fails = true;
        break;
    default:
        e->clients[event - EVENT_CANCEL].cancelled = true;
        completion_cancel(e->clients[event - EVENT_CANCEL].completion);
    }
}

static void play(struct world *world)
{
    next_call_fails = false;
    struct event_rig e = {.rig = rig_create(&world->options)};
    e.deadline_ns = e.rig->now_ns + 1000 * (uint64_t)STEP_NS;
    for (unsigned i = 0; i <= world->depth; i++)
        play_event(&e, world->events[i], i);
    rig_run(e.rig, 400);
    for (unsigned i = 0; i < e.arrived; i++)
        check_client(&e.clients[i], e.rig->max_length, e.rig->now_ns);
    rig_destroy(e.rig);
    world->played++;
}

/* Events 1 … at-1 are chosen; what could not happen, or would be nothing new, is left out. */
static void explore(struct world *world, unsigned at, unsigned arrived, unsigned cancelled,
                    bool late)
{
    if (at > world->depth) {
        play(world);
        return;
    }
    for (unsigned event = 0; event < EVENTS; event++) {
        bool is_cancel = event >= EVENT_CANCEL && event < EVENT_CANCEL + 3;
        unsigned bit = is_cancel ? 1u << (event - EVENT_CANCEL) : 0;
        if ((event == EVENT_ARRIVE && arrived == 3) || (event == EVENT_LATE && late) ||
            (event == EVENT_FAULT && !world->options.swap_slots) ||
            (is_cancel && (event - EVENT_CANCEL >= arrived || (cancelled & bit))))
            continue;
        world->events[at] = (unsigned char)event;
        explore(world, at + 1, arrived + (event == EVENT_ARRIVE), cancelled | bit,
                late || event == EVENT_LATE);
    }
}

#define WORLDS 24 /* and as many with a swap file */

START_TEST(every_order_of_events_in_a_tiny_pool)
{
    if (SLOWER > 1 && _i >= WORLDS && _i % 3 != 0)
        return; /* sanitizers: enough */
    struct world world = {
        .options =
            {
                .page_count = 3 + (uint32_t)_i % 2,
                .page_size = 8,
                .max_sequences = 2 + (uint32_t)_i / 2 % 2,
                .max_batch_tokens = 12,
                .logits_rows_max = 1,
                .no_prefix_cache = _i / 4 % 2,
                .tenant_count = 1 + (uint32_t)_i / 8 % 2,
            },
        .depth = is_full_run() && SLOWER == 1 ? 5 : 4,
        .events = {EVENT_ARRIVE},
    };
    if (_i >= WORLDS) {
        world.options.swap_slots = 3 + 2 * ((uint32_t)_i % 2);
        world.options.swap_step_pages = 1;
        world.options.swap_always = true;
        world.options.swap_calls = (struct page_store_calls){failing_read, failing_write};
    }
    if (_i % WORLDS >=
        16) { /* three pages of one group and two of the other are the least that go on */
        world.options.groups = (struct kv_groups){.count = 2, .window = {0, 5}};
        world.options.page_count += 2;
        world.options.max_batch_tokens = 4;
    }
    rig_limit_requests(0);
    explore(&world, 1, 1, 0, false);
    ck_assert_uint_gt(world.played, 1000);
}
END_TEST

int main(void)
{
    log_init(LOG_TEXT, LOG_ERROR); /* failing disks are no news */
    Suite *suite = suite_create("simulator");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 3600);
    tcase_add_loop_test(tcase, random_lives_keep_all_promises, 0, LOOPS);
    tcase_add_loop_test(tcase, every_order_of_events_in_a_tiny_pool, 0, 2 * WORLDS);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
