/*
 * A seeded simulator: scheduler, pager and scripted backend under random arrivals, cancels, forced
 * preemptions, row limits and pool sizes, with a virtual clock. After each step (in rig_step):
 * pages balance, holders equal tables, no shared or findable page is written, somebody has a row.
 * At the end: every answer equals the one the request gets alone, cancelled ones a beginning of it,
 * nobody was preempted more than twice, all pages are free.
 *
 * QUIRE_SEEDS=N in the environment runs more (./test full).
 */
#include "tests/engine/rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 14
#define PROMPT_MAX 60

static uint64_t random_state;

static uint32_t dice(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20) % sides;
}

struct client {
    struct rig_request request;
    uint32_t tokens[PROMPT_MAX];
    struct completion *completion;
    bool cancelled;
    bool choice_cancelled[4];
};

static void make_request(struct client *client, const struct rig *rig)
{
    /* Few heads and few ends, so that prefixes meet. */
    uint32_t longest = rig->max_length - 1 < PROMPT_MAX ? rig->max_length - 1 : PROMPT_MAX;
    uint32_t count = 1 + dice(longest), head = dice(3), end = dice(4);
    uint32_t split = dice(longest + 1);
    for (uint32_t i = 0; i < count; i++)
        client->tokens[i] = ((i < split ? head : end + 5) * 7 + i) % RIG_VOCABULARY;
    client->request = (struct rig_request){
        .tokens = client->tokens,
        .token_count = count,
        .choice_count = dice(4) == 0 ? 1 + dice(4) : 1,
        .max_tokens = 1 + dice(40),
        .temperature = dice(2) ? 0.9f : 0,
        .seed = dice(1000),
        .cache_salt = dice(6) == 0,
        .stops = dice(2),
        .no_cache = dice(5) == 0,
        .logprobs = dice(4) == 0,
    };
    client->completion = rig_completion(&client->request);
}

/* As far as it came, a cancelled choice has the answer it would have had. */
static void check_beginning(const struct client *client, uint32_t choice, uint32_t max_length)
{
    static struct rig_answer answer;
    rig_expect(&client->request, choice, max_length, &answer);
    const struct completion_token *tokens;
    uint32_t count = completion_read(client->completion, choice, 0, &tokens);
    ck_assert_uint_le(count, answer.token_count);
    ck_assert(memcmp(tokens, answer.tokens, count * sizeof *tokens) == 0);
    enum finish_reason reason = completion_reason(client->completion, choice);
    if (reason != FINISH_CANCELLED) {
        ck_assert_uint_eq(count, answer.token_count);
        ck_assert_int_eq(reason, answer.reason);
    }
}

static void check_client(struct client *client, uint32_t max_length)
{
    struct completion *completion = client->completion;
    ck_assert(completion_done(completion));
    ck_assert_uint_lt(completion_cached_count(completion), client->request.token_count);
    bool any = client->cancelled;
    for (uint32_t i = 0; i < client->request.choice_count; i++) {
        ck_assert_uint_le(completion->choices[i].preemptions, 2);
        any |= client->choice_cancelled[i];
        if (!client->cancelled && !client->choice_cancelled[i])
            ck_assert_int_ne(completion_reason(completion, i), FINISH_CANCELLED);
    }
    if (any) {
        for (uint32_t i = 0; i < client->request.choice_count; i++)
            check_beginning(client, i, max_length);
    } else {
        rig_check_answers(completion, &client->request, max_length);
    }
    completion_release(completion);
    client->completion = NULL;
}

static struct rig_options random_options(void)
{
    static const uint32_t sizes[] = {8, 16, 32, 64};
    uint32_t size = sizes[dice(4)];
    return (struct rig_options){
        .page_count = 1 + dice(dice(3) == 0 ? 60 : 160 / size),
        .page_size = size,
        .max_sequences = 1 + dice(9),
        .max_batch_tokens = 1 + dice(dice(2) ? 8 : 80),
        .context = dice(3) == 0 ? 2 + dice(80) : 200,
        .logits_rows_max = 1,
        .test_preempt_every = dice(4) == 0 ? 1 + dice(6) : 0,
        .no_prefix_cache = dice(4) == 0,
    };
}

static void one_cancel(struct client *clients)
{
    struct client *client = &clients[dice(REQUESTS)];
    if (!client->completion)
        return;
    if (dice(2)) {
        client->cancelled = true;
        completion_cancel(client->completion);
    } else {
        uint32_t choice = dice(client->request.choice_count);
        client->choice_cancelled[choice] = true;
        completion_cancel_choice(client->completion, choice);
    }
}

static void simulate(uint64_t seed)
{
    random_state = (seed + 1) * 0x9e3779b97f4a7c15u;
    struct rig_options options = random_options();
    struct rig *rig = rig_create(&options);
    struct client clients[REQUESTS];
    memset(clients, 0, sizeof clients);
    unsigned arrived = 0, idle = 0;
    for (unsigned steps = 0; arrived < REQUESTS || !idle; steps++) {
        ck_assert_msg(steps < 20000, "seed %llu does not end", (unsigned long long)seed);
        while (arrived < REQUESTS && dice(3) == 0) {
            make_request(&clients[arrived], rig);
            rig_add(rig, clients[arrived++].completion);
        }
        if (dice(12) == 0)
            one_cancel(clients);
        if (steps > 0 && seed % 16 == 15 && dice(200) == 0)
            scheduler_cancel_all(rig->scheduler, rig->now_ns);
        idle = rig_step(rig, 1 + dice(options.max_batch_tokens + 3))[0] == '\0';
        for (unsigned i = 0; i < arrived; i++) {
            if (clients[i].completion && completion_done(clients[i].completion)) {
                clients[i].cancelled |= seed % 16 == 15; /* cancel_all may have hit it */
                check_client(&clients[i], rig->max_length);
            }
        }
    }
    for (unsigned i = 0; i < REQUESTS; i++)
        ck_assert(clients[i].completion == NULL);
    ck_assert_uint_eq(rig_request_bytes(), 0);
    rig_destroy(rig);
}

START_TEST(random_lives_keep_all_promises)
{
    const char *more = getenv("QUIRE_SEEDS");
    uint64_t per_loop = more ? (uint64_t)atoll(more) / 10 + 1 : 40;
    for (uint64_t i = 0; i < per_loop; i++)
        simulate((uint64_t)_i * per_loop + i);
}
END_TEST

/*
 * Every order of events for tiny pools: three requests that want the same few pages, and at each
 * point either the next one arrives, a step is made, or one of them is cancelled.
 */
struct event_rig {
    struct rig *rig;
    struct client clients[3];
    unsigned arrived;
};

static void play(const unsigned char *events, unsigned count, const struct rig_options *options)
{
    static const struct {
        uint32_t tokens, max_tokens, choices;
    } wants[3] = {{9, 9, 1}, {4, 14, 2}, {17, 5, 1}};
    struct event_rig e = {.rig = rig_create(options)};
    for (unsigned i = 0; i < count; i++) {
        if (events[i] == 0) {
            rig_step(e.rig, 1 + i % 7);
        } else if (events[i] == 1 && e.arrived < 3) {
            struct client *client = &e.clients[e.arrived];
            for (uint32_t k = 0; k < PROMPT_MAX; k++)
                client->tokens[k] = k % RIG_VOCABULARY;
            client->request = (struct rig_request){.tokens = client->tokens,
                                                   .token_count = wants[e.arrived].tokens,
                                                   .max_tokens = wants[e.arrived].max_tokens,
                                                   .choice_count = wants[e.arrived].choices,
                                                   .temperature = 1,
                                                   .seed = 3};
            client->completion = rig_completion(&client->request);
            rig_add(e.rig, client->completion);
            e.arrived++;
        } else if (events[i] >= 2 && events[i] - 2u < e.arrived) {
            e.clients[events[i] - 2].cancelled = true;
            completion_cancel(e.clients[events[i] - 2].completion);
        }
    }
    rig_run(e.rig, 400);
    for (unsigned i = 0; i < e.arrived; i++) {
        struct client *client = &e.clients[i];
        /* Cancelled after its end it is not cancelled. */
        client->cancelled &= completion_reason(client->completion, 0) == FINISH_CANCELLED ||
                             client->request.choice_count > 1;
        check_client(client, e.rig->max_length);
    }
    rig_destroy(e.rig);
}

START_TEST(every_order_of_events_in_a_tiny_pool)
{
    struct rig_options options = {
        .page_count = 3 + (uint32_t)_i % 2,
        .page_size = 8,
        .max_sequences = 2 + (uint32_t)_i / 2 % 2,
        .max_batch_tokens = 12,
        .logits_rows_max = 1,
        .no_prefix_cache = _i / 4 % 2,
    };
    enum { DEPTH = 5, EVENTS = 5 };
    unsigned total = 1;
    for (unsigned i = 0; i < DEPTH; i++)
        total *= EVENTS;
    for (unsigned number = 0; number < total; number++) {
        unsigned char events[1 + DEPTH] = {1}; /* the first arrives at once */
        for (unsigned i = 0, rest = number; i < DEPTH; i++, rest /= EVENTS)
            events[1 + i] = (unsigned char)(rest % EVENTS);
        play(events, 1 + DEPTH, &options);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulator");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 3600);
    tcase_add_loop_test(tcase, random_lives_keep_all_promises, 0, 10);
    tcase_add_loop_test(tcase, every_order_of_events_in_a_tiny_pool, 0, 8);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
