/*
 * Who comes first, measured in steps and tokens (the rig's clock is a number): tenants share, lower
 * priorities go earlier, deadlines end what is late, and the sequence to preempt is chosen by cost. Answers
 * are compared with the oracle throughout: none of it may change a byte.
 */
#include "engine/scheduler/scheduler_private.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static uint32_t prompts[64][512];

static struct rig_request request_of(unsigned name, uint32_t token_count, uint32_t max_tokens)
{
    for (uint32_t i = 0; i < 512; i++)
        prompts[name][i] = (name * 17 + i * (name % 5 + 3) + 8) % RIG_VOCABULARY;
    prompts[name][0] = name % RIG_VOCABULARY;
    return (struct rig_request){
        .tokens = prompts[name], .token_count = token_count, .max_tokens = max_tokens};
}

static struct completion *add(struct rig *rig, const struct rig_request *request)
{
    struct completion *completion = rig_completion(request);
    rig_add(rig, completion);
    return completion;
}

#define expect(rig, limit, plan) ck_assert_str_eq(rig_step(rig, limit), plan)

static void done(struct rig *rig, struct completion *completion, const struct rig_request *request)
{
    ck_assert(completion_done(completion));
    rig_check_answers(completion, request, rig->max_length);
    completion_release(completion);
}

static uint64_t tokens_of(const struct rig *rig, uint32_t tenant)
{
    struct scheduler_tenant_counts counts;
    scheduler_tenant_counts(rig->scheduler, tenant, &counts);
    return counts.tokens;
}

/* ---- tenants ---- */

START_TEST(tenants_with_long_prompts_share_each_step)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 60,
                                                       .page_size = 8,
                                                       .max_sequences = 8,
                                                       .max_batch_tokens = 32,
                                                       .tenant_count = 3});
    struct rig_request a = request_of(0, 80, 1), b = request_of(1, 40, 1), c = request_of(2, 60, 1);
    a.tenant = b.tenant = 1;
    c.tenant = 2;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    expect(rig, 32, "A:0+16 C:0+16");
    expect(rig, 32, "A:16+16 C:16+16");
    expect(rig, 32, "A:32+16 C:32+16");
    expect(rig, 32, "A:48+20 C:48+12"); /* C's last ones; the rest is A's */
    expect(rig, 32, "A:68+12 B:0+20");
    expect(rig, 32, "B:20+20");
    expect(rig, 32, "");
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

/* Steps from the arrival of a short prompt to its first token, behind fifty long ones. */
static unsigned steps_to_first_token(uint32_t tenant, uint32_t page_count, uint32_t max_sequences,
                                     uint64_t *preemptions)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = page_count,
                                                       .page_size = 8,
                                                       .max_sequences = max_sequences,
                                                       .max_batch_tokens = 64,
                                                       .tenant_count = 3});
    struct rig_request r[51];
    struct completion *c[51];
    for (unsigned i = 0; i < 50; i++) {
        r[i] = request_of(i, 400, 20);
        r[i].tenant = 1;
        c[i] = add(rig, &r[i]);
    }
    for (unsigned i = 0; i < 20; i++)
        rig_step(rig, 64);
    r[50] = request_of(50, 12, 8);
    r[50].tenant = tenant;
    c[50] = add(rig, &r[50]);
    unsigned steps = 0;
    while (completion_output_count(c[50], 0) == 0) {
        ck_assert_str_ne(rig_step(rig, 64), "");
        steps++;
    }
    *preemptions = metric_get(&rig->metrics.preemptions);
    rig_run(rig, 20000);
    for (unsigned i = 0; i < 51; i++) {
        ck_assert_uint_le(c[i]->sequences[0].preemptions, PREEMPTIONS_MAX);
        done(rig, c[i], &r[i]);
    }
    rig_destroy(rig);
    return steps;
}

START_TEST(fifty_long_prompts_of_one_key_do_not_delay_another_keys_short_one)
{
    uint64_t preemptions;
    unsigned same = steps_to_first_token(1, 4000, 64, &preemptions);
    unsigned other = steps_to_first_token(2, 4000, 64, &preemptions);
    ck_assert_uint_eq(preemptions, 0);
    /* 20 steps computed three prompts of fifty; the short one is behind all of them … */
    ck_assert_uint_gt(same, 280);
    ck_assert_uint_le(other, 1); /* … or in the very next step */
    /* All pages or all slots are taken: one sequence is preempted, which takes a step to decide. */
    unsigned crowded = steps_to_first_token(2, 153, 64, &preemptions);
    ck_assert_uint_eq(preemptions, 1);
    unsigned seats = steps_to_first_token(2, 4000, 3, &preemptions);
    ck_assert_uint_eq(preemptions, 1);
    printf("a short prompt behind 50 long ones: %u steps as the same key, %u as another, %u in a "
           "full pool, %u with all slots taken\n",
           same, other, crowded, seats);
    ck_assert_uint_le(crowded, 3);
    ck_assert_uint_le(seats, 3);
}
END_TEST

/* Both always have work: neither is ever ahead by more than a step's tokens and a turn. */
START_TEST(tokens_are_shared_whatever_the_shape_of_the_work)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 4000,
                                                       .page_size = 8,
                                                       .max_sequences = 24,
                                                       .max_batch_tokens = 48,
                                                       .tenant_count = 3});
    struct rig_request r[60];
    struct completion *c[60];
    for (unsigned i = 0; i < 60; i++) {
        bool many_short = i % 2;
        r[i] = many_short ? request_of(i, 25, 1) : request_of(i, 300, 3);
        r[i].tenant = 1 + i % 2;
        r[i].no_cache = true;
        c[i] = add(rig, &r[i]);
    }
    const struct tenant *tenants = rig->scheduler->queue.tenants;
    unsigned shared_steps = 0;
    while (tenants[1].waiting_count > 0 && tenants[2].waiting_count > 0) {
        rig_step(rig, 48);
        uint64_t a = tokens_of(rig, 1), b = tokens_of(rig, 2);
        ck_assert_uint_le(a > b ? a - b : b - a, 48 + 16);
        shared_steps++;
    }
    ck_assert_uint_gt(shared_steps, 20);
    rig_run(rig, 20000);
    ck_assert_uint_eq(tokens_of(rig, 1), 30 * (300 + 2)); /* the last token is not computed */
    ck_assert_uint_eq(tokens_of(rig, 2), 30 * 25);
    for (unsigned i = 0; i < 60; i++)
        done(rig, c[i], &r[i]);
    rig_destroy(rig);
}
END_TEST

START_TEST(an_idle_tenant_earns_no_credit_and_one_that_ran_alone_owes_nothing)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 400,
                                                       .page_size = 8,
                                                       .max_sequences = 8,
                                                       .max_batch_tokens = 32,
                                                       .tenant_count = 3});
    /* 1 is alone and is served 490 tokens; then both come at once. */
    struct rig_request alone = request_of(0, 490, 1), a = request_of(1, 64, 1),
                       b = request_of(2, 64, 1);
    alone.tenant = a.tenant = 1;
    b.tenant = 2;
    struct completion *c = add(rig, &alone);
    rig_run(rig, 100);
    done(rig, c, &alone);
    struct completion *cb = add(rig, &b), *ca = add(rig, &a);
    expect(rig, 32, "B:0+16 C:0+16");
    expect(rig, 32, "B:16+16 C:16+16");
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    /* 2 decodes, one token a step, while 1 computes long prompts; then 2 has long ones, too. */
    struct rig_request slow = request_of(3, 8, 100), p = request_of(4, 500, 1),
                       q = request_of(5, 500, 1), z = request_of(6, 200, 1);
    slow.tenant = z.tenant = 2;
    p.tenant = q.tenant = 1;
    struct completion *cs = add(rig, &slow), *cp = add(rig, &p), *cq = add(rig, &q);
    for (unsigned i = 0; i < 18; i++)
        rig_step(rig, 32);
    struct completion *cz = add(rig, &z);
    uint64_t before = tokens_of(rig, 1);
    for (unsigned i = 0; i < 4; i++)
        rig_step(rig, 32);
    uint64_t got = tokens_of(rig, 1) - before;
    ck_assert_uint_ge(got, 4 * 32 / 2 - 20); /* half of the rows are still 1's */
    ck_assert_uint_le(got, 4 * 32 / 2 + 20);
    rig_run(rig, 1000);
    done(rig, cs, &slow);
    done(rig, cp, &p);
    done(rig, cq, &q);
    done(rig, cz, &z);
    rig_destroy(rig);
}
END_TEST

START_TEST(what_is_cached_or_computed_again_is_not_charged)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 40,
                                                       .page_size = 8,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 32,
                                                       .test_preempt_every = 5,
                                                       .tenant_count = 2});
    struct rig_request a = request_of(0, 20, 12), same = a;
    a.tenant = same.tenant = 1;
    a.no_cache = true;
    struct completion *c = add(rig, &a);
    rig_run(rig, 100);
    ck_assert_uint_ge(c->sequences[0].forced_preemptions, 2);
    ck_assert_uint_gt(metric_get(&rig->metrics.rows_computed), 20 + 11);
    ck_assert_uint_eq(tokens_of(rig, 1), 20 + 11);
    done(rig, c, &a);
    rig_destroy(rig);
    rig = rig_create(&(struct rig_options){.page_count = 40,
                                           .page_size = 8,
                                           .max_sequences = 4,
                                           .max_batch_tokens = 32,
                                           .tenant_count = 2});
    for (unsigned i = 0; i < 2; i++) {
        c = add(rig, &same);
        rig_run(rig, 100);
        done(rig, c, &same);
    }
    ck_assert_uint_eq(tokens_of(rig, 1), 20 + 11 + 4 + 11); /* two pages were there */
    rig_destroy(rig);
}
END_TEST

START_TEST(one_of_a_tenant_decodes_beside_many_of_another)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 100,
                                                       .page_size = 8,
                                                       .max_sequences = 16,
                                                       .max_batch_tokens = 4,
                                                       .tenant_count = 3});
    struct rig_request r[13];
    struct completion *c[13];
    for (unsigned i = 0; i < 12; i++) {
        r[i] = request_of(i, 2, 60);
        r[i].tenant = 1;
        c[i] = add(rig, &r[i]);
    }
    while (scheduler_decoding_count(rig->scheduler) < 12)
        rig_step(rig, 4);
    r[12] = request_of(12, 2, 10);
    r[12].tenant = 2;
    c[12] = add(rig, &r[12]);
    while (completion_output_count(c[12], 0) == 0)
        rig_step(rig, 4);
    for (unsigned i = 1; i < 10; i++) { /* four rows for thirteen: one of them is always its own */
        ck_assert_uint_eq(completion_output_count(c[12], 0), i);
        ck_assert_ptr_nonnull(strchr(rig_step(rig, 4), 'M'));
    }
    rig_run(rig, 1000);
    for (unsigned i = 0; i < 13; i++)
        done(rig, c[i], &r[i]);
    rig_destroy(rig);
}
END_TEST

START_TEST(waiting_for_a_prefix_blocks_only_the_own_tenant)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 40,
                                                       .page_size = 8,
                                                       .max_sequences = 8,
                                                       .max_batch_tokens = 80,
                                                       .tenant_count = 3});
    struct rig_request a = request_of(0, 36, 1), b = a, c = request_of(2, 20, 1),
                       d = request_of(3, 5, 1);
    a.tenant = b.tenant = d.tenant = 1;
    c.tenant = 2;
    rig->scheduler->queue.tenants[2].served = 1000; /* 1 is first */
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c),
                      *cd = add(rig, &d);
    expect(rig, 80, "A:0+36 C:0+20");
    expect(rig, 80, "B:32+4 D:0+5");
    expect(rig, 80, "");
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    done(rig, cd, &d);
    rig_destroy(rig);
}
END_TEST

/* ---- priorities ---- */

START_TEST(lower_priorities_come_first_and_then_earlier_arrivals)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 40, .page_size = 8, .max_sequences = 1, .max_batch_tokens = 32});
    static const int32_t priorities[] = {0, 3, 0, -2, 3, -7, INT32_MAX, INT32_MIN};
    static const char *const plans[] = {"A:0+5", "H:0+5", "F:0+5", "D:0+5",
                                        "C:0+5", "B:0+5", "E:0+5", "G:0+5"};
    struct rig_request r[8];
    struct completion *c[8];
    for (unsigned i = 0; i < 8; i++) {
        r[i] = request_of(i, 5, 1);
        r[i].priority = priorities[i];
        c[i] = add(rig, &r[i]);
        if (i == 0)
            expect(rig, 32, plans[0]);
    }
    for (unsigned i = 1; i < 8; i++)
        expect(rig, 32, plans[i]);
    expect(rig, 32, "");
    for (unsigned i = 0; i < 8; i++)
        done(rig, c[i], &r[i]);
    rig_destroy(rig);
}
END_TEST

START_TEST(urgent_prompts_get_their_tokens_before_those_that_run)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 40, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 16});
    struct rig_request a = request_of(0, 40, 1), b = request_of(1, 20, 1);
    b.priority = -1;
    struct completion *ca = add(rig, &a);
    expect(rig, 16, "A:0+16");
    struct completion *cb = add(rig, &b);
    expect(rig, 16, "B:0+16");
    expect(rig, 16, "B:16+4 A:16+12");
    rig_run(rig, 10);
    done(rig, ca, &a);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_tenant_steps_back_behind_others_but_not_ahead_of_them)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 40,
                                                       .page_size = 8,
                                                       .max_sequences = 1,
                                                       .max_batch_tokens = 32,
                                                       .tenant_count = 3});
    /* 1 says that all of its own is urgent; 2 says that one of its is not. */
    static const struct {
        uint32_t tenant;
        int32_t priority;
    } wants[] = {{1, 0}, {2, 5}, {2, 0}, {1, -9}, {1, -8}, {2, 0}};
    static const char *const plans[] = {"C:0+5", "D:0+5", "E:0+5", "F:0+5", "B:0+5"};
    struct rig_request r[6];
    struct completion *c[6];
    for (unsigned i = 0; i < 6; i++) {
        r[i] = request_of(i, 5, 1);
        r[i].tenant = wants[i].tenant;
        r[i].priority = wants[i].priority;
        c[i] = add(rig, &r[i]);
        if (i == 0)
            expect(rig, 32, "A:0+5");
    }
    for (unsigned i = 0; i < 5; i++)
        expect(rig, 32, plans[i]);
    expect(rig, 32, "");
    for (unsigned i = 0; i < 6; i++)
        done(rig, c[i], &r[i]);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_waiting_request_that_is_more_urgent_preempts_a_less_urgent_one)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 40, .page_size = 8, .max_sequences = 2, .max_batch_tokens = 32});
    struct rig_request a = request_of(0, 5, 9), b = request_of(1, 5, 9), c = request_of(2, 5, 2);
    a.priority = b.priority = 4;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    expect(rig, 32, "A:0+5 B:0+5");
    struct completion *cc = add(rig, &c);
    expect(rig, 32, "A:5+1 B:5+1");
    expect(rig, 32, "A:6+1 C:0+5"); /* the younger one was preempted; the first never is */
    expect(rig, 32, "C:5+1 A:7+1");
    expect(rig, 32, "A:8+1 B:0+7");
    ck_assert_uint_eq(cb->sequences[0].preemptions, 1);
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

/* ---- which sequence is preempted ---- */

START_TEST(the_sequence_that_is_cheapest_to_recompute_is_preempted)
{
    /* 9 pages: A, B and C hold 7, and all want one more in the same step. B is older than C, but
     * short.
     */
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 9,
                                                       .page_size = 8,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 64,
                                                       .no_prefix_cache = true});
    struct rig_request a = request_of(0, 22, 8), b = request_of(1, 6, 8), c = request_of(2, 22, 8);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    expect(rig, 64, "A:0+22 B:0+6 C:0+22");
    expect(rig, 64, "A:22+1 B:6+1 C:22+1");
    expect(rig, 64, "A:23+1 B:7+1 C:23+1");
    expect(rig, 64, "A:24+1 C:24+1");
    ck_assert_uint_eq(cb->sequences[0].preemptions, 1);
    ck_assert_uint_eq(cc->sequences[0].preemptions, 0);
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(pages_that_others_hold_too_cost_nothing)
{
    /* B's and C's prompts have the same beginning: preempted, C loses only its private pages. */
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 9, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 64});
    struct rig_request a = request_of(0, 6, 12), b = request_of(1, 30, 12), c = b;
    static uint32_t alike[30];
    memcpy(alike, b.tokens, sizeof alike);
    alike[29] = 1;
    c.tokens = alike;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    expect(rig, 64, "A:0+6 B:0+30");
    struct completion *cc = add(rig, &c);
    expect(rig, 64, "A:6+1 B:30+1 C:24+6");
    uint32_t cost_b = sequence_recompute_tokens(rig->scheduler->slots.order[1], rig->pager);
    uint32_t cost_c = sequence_recompute_tokens(rig->scheduler->slots.order[2], rig->pager);
    ck_assert_uint_eq(cost_b, 31 - 24);
    ck_assert_uint_eq(cost_c, 30 - 24);
    ck_assert_uint_eq(sequence_private_pages(rig->scheduler->slots.order[1], rig->pager), 1);
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(the_last_sequence_of_a_shared_page_takes_none)
{
    /* Two pages: the forks share the first, one copies it into the second. None is preempted. */
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 2, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 64});
    struct rig_request a = request_of(0, 4, 4);
    a.choice_count = 2;
    struct completion *ca = add(rig, &a);
    expect(rig, 64, "A:0+4");
    expect(rig, 64, "A:4+1 A.1:4+1 1>2");
    rig_run(rig, 10);
    ck_assert_uint_eq(metric_get(&rig->metrics.preemptions), 0);
    done(rig, ca, &a);
    rig_destroy(rig);
}
END_TEST

START_TEST(the_less_urgent_is_preempted_first_whatever_it_costs)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 9,
                                                       .page_size = 8,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 64,
                                                       .no_prefix_cache = true});
    struct rig_request a = request_of(0, 22, 8), b = request_of(1, 6, 8), c = request_of(2, 22, 8);
    c.priority = 1;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    expect(rig, 64, "A:0+22 B:0+6 C:0+22");
    expect(rig, 64, "A:22+1 B:6+1 C:22+1");
    expect(rig, 64, "A:23+1 B:7+1 C:23+1");
    expect(rig, 64, "A:24+1 B:8+1");
    ck_assert_uint_eq(cc->sequences[0].preemptions, 1);
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(the_tenant_with_most_pages_is_preempted_first)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 9,
                                                       .page_size = 8,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 64,
                                                       .tenant_count = 3,
                                                       .no_prefix_cache = true});
    struct rig_request a = request_of(0, 22, 8), b = request_of(1, 6, 8), c = request_of(2, 22, 8);
    a.tenant = c.tenant = 1;
    b.tenant = 2;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    for (unsigned i = 0; i < 6; i++)
        rig_step(rig, 64);
    ck_assert_uint_eq(cb->sequences[0].preemptions, 0);
    ck_assert_uint_eq(cc->sequences[0].preemptions, 1);
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(admission_counts_the_worst_case_while_a_twice_preempted_sequence_runs)
{
    /* 10 pages. A may come to 3, B and C to 4 each: after B, C would only fit without the worst case. */
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 10,
                                                       .page_size = 8,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 64,
                                                       .no_prefix_cache = true});
    struct rig_request a = request_of(0, 8, 16), b = request_of(1, 8, 24), c = request_of(2, 8, 24);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    cb->sequences[0].preemptions = PREEMPTIONS_MAX;
    struct completion *cc = add(rig, &c);
    expect(rig, 64, "A:0+8 B:0+8");
    for (unsigned i = 1; i < 16; i++)
        ck_assert_ptr_null(strchr(rig_step(rig, 64), 'C'));
    ck_assert(completion_done(ca));
    ck_assert_ptr_nonnull(strstr(rig_step(rig, 64), "C:0+8"));
    rig_run(rig, 100);
    ck_assert_uint_eq(metric_get(&rig->metrics.preemptions), 0);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_fork_that_was_preempted_twice_is_admitted_by_its_worst_case)
{
    /* Both choices want 4 pages and share one: 7 in all, there are 6. */
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 6, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 64});
    struct rig_request a = request_of(0, 8, 24);
    a.choice_count = 2;
    struct completion *ca = add(rig, &a);
    ca->sequences[1].preemptions = PREEMPTIONS_MAX;
    expect(rig, 64, "A:0+8");
    expect(rig, 64, "A:8+1"); /* alone: the other one waits for its end */
    rig_run(rig, 100);
    ck_assert_uint_eq(metric_get(&rig->metrics.preemptions), 0);
    done(rig, ca, &a);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_tenant_reclaims_no_more_than_its_share)
{
    /* 17 pages: 8 for each. 1 holds 9; 2 holds 5 and wants 4 more, which is one too many. */
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 17,
                                                       .page_size = 8,
                                                       .max_sequences = 8,
                                                       .max_batch_tokens = 200,
                                                       .tenant_count = 3,
                                                       .no_prefix_cache = true});
    struct rig_request a = request_of(0, 33, 7), b = request_of(1, 25, 7), c = request_of(2, 33, 7),
                       d = request_of(3, 25, 7);
    a.tenant = b.tenant = 1;
    c.tenant = d.tenant = 2;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c),
                      *cd = add(rig, &d);
    while (rig_step(rig, 200)[0] != '\0')
        ck_assert_uint_eq(metric_get(&rig->metrics.preemptions), 0);
    /* With a page less it is entitled. */
    d.token_count = 17;
    struct rig_request all[4] = {a, b, c, d};
    struct completion *again[4];
    for (unsigned i = 0; i < 4; i++)
        again[i] = add(rig, &all[i]);
    rig_run(rig, 100);
    ck_assert_uint_eq(metric_get(&rig->metrics.preemptions), 1);
    for (unsigned i = 0; i < 4; i++)
        done(rig, again[i], &all[i]);
    d.token_count = 25;
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    done(rig, cd, &d);
    rig_destroy(rig);
}
END_TEST

/* ---- deadlines ---- */

START_TEST(a_deadline_ends_a_sequence_waiting_or_running)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 3, .max_batch_tokens = 16});
    struct rig_request decoding = request_of(0, 4, 60), prompt = request_of(1, 90, 5),
                       waiting = request_of(2, 9, 5), other = request_of(3, 9, 9),
                       many = request_of(4, 20, 5);
    uint64_t at_ns = rig->now_ns + 3500000; /* after three steps of a millisecond */
    decoding.deadline_ns = prompt.deadline_ns = waiting.deadline_ns = at_ns;
    many.choice_count = 4;
    many.deadline_ns = at_ns + 6000000;
    struct completion *cd = add(rig, &decoding), *cp = add(rig, &prompt), *cm = add(rig, &many),
                      *cw = add(rig, &waiting), *co = add(rig, &other);
    ck_assert_uint_eq(scheduler_deadline_ns(rig->scheduler), at_ns);
    expect(rig, 16, "A:0+4 B:0+12");
    expect(rig, 16, "A:4+1 B:12+15");
    expect(rig, 16, "A:5+1 B:27+15");
    ck_assert(!completion_done(cd) && !completion_done(cp) && !completion_done(cw));
    expect(rig, 16, "C:0+16"); /* they are gone before the step that would be late */
    ck_assert_int_eq(completion_reason(cd, 0), FINISH_TIMEOUT);
    ck_assert_int_eq(completion_reason(cp, 0), FINISH_TIMEOUT);
    ck_assert_int_eq(completion_reason(cw, 0), FINISH_TIMEOUT);
    ck_assert_uint_eq(completion_output_count(cd, 0), 3); /* what was there stays readable */
    ck_assert_uint_eq(completion_output_count(cp, 0), 0);
    ck_assert_uint_eq(scheduler_deadline_ns(rig->scheduler), many.deadline_ns);
    rig_run(rig, 100);
    ck_assert_uint_eq(scheduler_deadline_ns(rig->scheduler), UINT64_MAX);
    rig_check_answers(co, &other, rig->max_length);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(completion_reason(cm, i), FINISH_LENGTH);
    ck_assert_int_eq(completion_reason(cm, 3), FINISH_TIMEOUT);
    ck_assert_uint_eq(metric_get(&rig->metrics.finished[FINISH_TIMEOUT]), 4);
    completion_release(cd);
    completion_release(cp);
    completion_release(cm);
    completion_release(cw);
    completion_release(co);
    rig_destroy(rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fairness");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, tenants_with_long_prompts_share_each_step);
    tcase_add_test(tcase, fifty_long_prompts_of_one_key_do_not_delay_another_keys_short_one);
    tcase_add_test(tcase, tokens_are_shared_whatever_the_shape_of_the_work);
    tcase_add_test(tcase, an_idle_tenant_earns_no_credit_and_one_that_ran_alone_owes_nothing);
    tcase_add_test(tcase, what_is_cached_or_computed_again_is_not_charged);
    tcase_add_test(tcase, one_of_a_tenant_decodes_beside_many_of_another);
    tcase_add_test(tcase, waiting_for_a_prefix_blocks_only_the_own_tenant);
    tcase_add_test(tcase, lower_priorities_come_first_and_then_earlier_arrivals);
    tcase_add_test(tcase, urgent_prompts_get_their_tokens_before_those_that_run);
    tcase_add_test(tcase, a_tenant_steps_back_behind_others_but_not_ahead_of_them);
    tcase_add_test(tcase, a_waiting_request_that_is_more_urgent_preempts_a_less_urgent_one);
    tcase_add_test(tcase, the_sequence_that_is_cheapest_to_recompute_is_preempted);
    tcase_add_test(tcase, pages_that_others_hold_too_cost_nothing);
    tcase_add_test(tcase, the_last_sequence_of_a_shared_page_takes_none);
    tcase_add_test(tcase, the_less_urgent_is_preempted_first_whatever_it_costs);
    tcase_add_test(tcase, the_tenant_with_most_pages_is_preempted_first);
    tcase_add_test(tcase, admission_counts_the_worst_case_while_a_twice_preempted_sequence_runs);
    tcase_add_test(tcase, a_fork_that_was_preempted_twice_is_admitted_by_its_worst_case);
    tcase_add_test(tcase, a_tenant_reclaims_no_more_than_its_share);
    tcase_add_test(tcase, a_deadline_ends_a_sequence_waiting_or_running);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
