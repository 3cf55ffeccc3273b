/*
 * The scheduler's decisions step by step, as exact plans: NAME[.choice]:first position+rows, in the
 * order of the batch, then from>to for each page copied. Answers are compared with the oracle as
 * well.
 */
#include "tests/engine/rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* Distinct prompts: no common prefix unless wanted. */
static uint32_t prompts[26][256];

static struct rig_request request_of(unsigned name, uint32_t token_count, uint32_t max_tokens)
{
    for (uint32_t i = 0; i < 256; i++)
        prompts[name][i] = (name * 17 + i * (name + 3) + 8) % RIG_VOCABULARY;
    prompts[name][0] = name;
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

START_TEST(a_prompt_is_computed_in_chunks_and_then_decoded)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 10, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 8});
    struct rig_request a = request_of(0, 20, 3);
    struct completion *completion = add(rig, &a);
    expect(rig, 8, "A:0+8");
    expect(rig, 8, "A:8+8");
    ck_assert_uint_eq(completion_output_count(completion, 0), 0);
    expect(rig, 8, "A:16+4");
    ck_assert_uint_eq(completion_output_count(completion, 0), 1);
    expect(rig, 8, "A:20+1");
    expect(rig, 8, "A:21+1");
    ck_assert_int_eq(completion_reason(completion, 0), FINISH_LENGTH);
    expect(rig, 8, "");
    done(rig, completion, &a);
    rig_destroy(rig);
}
END_TEST

/* Of an encoder: a prompt is in one step or waits for the next, and none passes it. */
START_TEST(whole_prompts_share_steps)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 8,
                                                       .page_size = 8,
                                                       .context = 16,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 16,
                                                       .no_prefix_cache = true,
                                                       .whole_prompts = true});
    static const uint32_t lengths[] = {5, 10, 4, 16, 1, 12};
    struct completion *completions[6];
    for (unsigned i = 0; i < 6; i++) {
        struct rig_request request = request_of(i, lengths[i], 0);
        request.pooling = i % 2 ? POOLING_CLS : POOLING_MEAN;
        request.no_cache = true;
        completions[i] = add(rig, &request);
    }
    expect(rig, 16, "A:0+5 B:0+10");
    ck_assert(completion_done(completions[0]) && completion_done(completions[1]));
    expect(rig, 16, "C:0+4");
    expect(rig, 16, "D:0+16");
    expect(rig, 16, "E:0+1 F:0+12");
    expect(rig, 16, "");
    for (unsigned i = 0; i < 6; i++) {
        ck_assert_int_eq(completion_reason(completions[i], 0), FINISH_STOP);
        ck_assert(completion_pooled(completions[i])[0] == (i % 2 ? 1 : (float)lengths[i]));
        completion_release(completions[i]);
    }
    rig_destroy(rig);
}
END_TEST

/* In chunks, beside a sequence that generates; what is recomputed is not pooled twice. */
START_TEST(pooled_rows_are_counted_once)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 10, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 8});
    struct rig_request a = request_of(0, 20, 0), b = request_of(1, 9, 0), c = request_of(2, 2, 2);
    a.pooling = POOLING_MEAN;
    b.pooling = POOLING_LAST;
    a.no_cache = true;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    expect(rig, 8, "A:0+8");
    rig_requeue(rig, 0);
    expect(rig, 8, "A:0+8");
    expect(rig, 8, "A:8+8");
    struct completion *cc = add(rig, &c);
    expect(rig, 8, "A:16+4 B:0+4");
    ck_assert(completion_done(ca) && !completion_done(cb));
    ck_assert(completion_pooled(ca)[0] == 20);
    expect(rig, 8, "B:4+5 C:0+2");
    ck_assert(completion_pooled(cb)[0] == 1);
    expect(rig, 8, "C:2+1");
    done(rig, cc, &c);
    completion_release(ca);
    completion_release(cb);
    rig_destroy(rig);
}
END_TEST

/* Sum and number of what a histogram saw; the rig's clock advances a millisecond per step. */
static void check_histogram(const struct metric_histogram *histogram, double sum, unsigned number)
{
    uint64_t seen = 0;
    for (unsigned i = 0; i <= histogram->bound_count; i++)
        seen += atomic_load(&histogram->buckets[i]);
    ck_assert_uint_eq(seen, number);
    ck_assert_double_eq_tol(metric_histogram_sum(histogram), sum, 1e-9);
}

START_TEST(times_are_measured_from_submit_to_end)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 10, .page_size = 8, .max_sequences = 1, .max_batch_tokens = 8});
    struct rig_request a = request_of(0, 20, 3), b = request_of(1, 2, 1), c = request_of(2, 2, 1);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    completion_cancel(cc); /* has nothing to measure */
    rig_run(rig, 10);      /* A: admitted in step 1, tokens in 3, 4 and 5; B: step 6 */
    const struct engine_metrics *m = &rig->metrics;
    check_histogram(&m->queue_time, 0.001 + 0.006, 2);
    check_histogram(&m->prefill_time, 0.002 + 0, 2);
    check_histogram(&m->time_to_first_token, 0.003 + 0.006, 2);
    check_histogram(&m->inter_token, 0.002, 2);
    check_histogram(&m->decode_time, 0.002 + 0, 2);
    check_histogram(&m->end_to_end, 0.005 + 0.006, 2);
    check_histogram(&m->request_prompt_tokens, 20 + 2, 2);
    check_histogram(&m->request_generation_tokens, 3 + 1, 3);
    check_histogram(&m->iteration_tokens, 8 + 8 + 4 + 1 + 1 + 2, 6);
    ck_assert_uint_eq(metric_get(&m->steps), 6);
    ck_assert_uint_eq(metric_get(&m->prompt_tokens), 22);
    ck_assert_uint_eq(metric_get(&m->finished[FINISH_LENGTH]), 2);
    ck_assert_uint_eq(metric_get(&m->finished[FINISH_CANCELLED]), 1);
    completion_release(cc);
    done(rig, ca, &a);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(decoding_goes_first_and_prompts_share_the_rest_in_order_of_arrival)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 10});
    struct rig_request a = request_of(0, 4, 6), b = request_of(1, 12, 2), c = request_of(2, 5, 2);
    struct completion *ca = add(rig, &a);
    expect(rig, 10, "A:0+4");
    struct completion *cb = add(rig, &b), *cc = add(rig, &c);
    expect(rig, 10, "A:4+1 B:0+9");
    expect(rig, 10, "A:5+1 B:9+3 C:0+5");
    expect(rig, 10, "A:6+1 B:12+1 C:5+1");
    expect(rig, 10, "A:7+1");
    expect(rig, 10, "A:8+1");
    expect(rig, 10, "");
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(the_prompt_token_limit_shortens_chunks_only)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 10});
    struct rig_request a = request_of(0, 4, 4), b = request_of(1, 6, 1);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    expect(rig, 3, "A:0+3");
    expect(rig, 3, "A:3+1 B:0+2");
    expect(rig, 1, "A:4+1 B:2+1");
    expect(rig, 3, "A:5+1 B:3+3");
    expect(rig, 3, "A:6+1");
    done(rig, ca, &a);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(more_decoding_sequences_than_tokens_of_a_step_take_turns)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 5, .max_batch_tokens = 2});
    struct rig_request r[3];
    struct completion *c[3];
    for (unsigned i = 0; i < 3; i++) {
        r[i] = request_of(i, 2, 4);
        c[i] = add(rig, &r[i]);
    }
    expect(rig, 2, "A:0+2");
    expect(rig, 2, "A:2+1 B:0+1");
    expect(rig, 2, "A:3+1 B:1+1");
    expect(rig, 2, "A:4+1 B:2+1"); /* as many as rows: C has to wait … */
    expect(rig, 2, "B:3+1 C:0+1");
    expect(rig, 2, "B:4+1 C:1+1");
    expect(rig, 2, "C:2+1");
    expect(rig, 2, "C:3+1");
    expect(rig, 2, "C:4+1");
    for (unsigned i = 0; i < 3; i++)
        done(rig, c[i], &r[i]);
    rig_destroy(rig);
}
END_TEST

START_TEST(turns_are_fair_and_prompts_do_not_starve)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 5, .max_batch_tokens = 3});
    struct rig_request r[3], late = request_of(3, 4, 1);
    struct completion *c[3];
    for (unsigned i = 0; i < 3; i++) {
        r[i] = request_of(i, 1, 9);
        c[i] = add(rig, &r[i]);
    }
    expect(rig, 3, "A:0+1 B:0+1 C:0+1");
    struct completion *cl = add(rig, &late);
    expect(rig, 3, "A:1+1 B:1+1 C:1+1");
    expect(rig, 3, "A:2+1 B:2+1 C:2+1");
    expect(rig, 3, "A:3+1 B:3+1 C:3+1");
    expect(rig, 3, "A:4+1 B:4+1 D:0+1"); /* every fourth step: half the rows */
    expect(rig, 3, "A:5+1 B:5+1 C:4+1");
    expect(rig, 3, "A:6+1 B:6+1 C:5+1");
    expect(rig, 3, "A:7+1 B:7+1 C:6+1");
    expect(rig, 3, "A:8+1 B:8+1 D:1+1");
    expect(rig, 3, "C:7+1 D:2+2");
    expect(rig, 3, "C:8+1");
    for (unsigned i = 0; i < 3; i++)
        done(rig, c[i], &r[i]);
    done(rig, cl, &late);
    rig_destroy(rig);
}
END_TEST

START_TEST(one_token_per_step_is_legal)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 5, .max_batch_tokens = 1});
    struct rig_request a = request_of(0, 2, 8), b = request_of(1, 2, 2);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    static const char *const plans[] = {"A:0+1", "A:1+1", "A:2+1", "A:3+1", "A:4+1", "B:0+1",
                                        "A:5+1", "A:6+1", "A:7+1", "B:1+1", "A:8+1", "B:2+1"};
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++)
        expect(rig, 1, plans[i]);
    expect(rig, 1, "");
    done(rig, ca, &a);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(nobody_passes_the_head_of_the_queue)
{
    /* 4 pages. A holds 2 and may want a third; B needs 3, C only 1: C waits behind B. */
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 4, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 32});
    struct rig_request a = request_of(0, 15, 3), b = request_of(1, 20, 1), c = request_of(2, 3, 1);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    expect(rig, 32, "A:0+15");
    expect(rig, 32, "A:15+1");
    expect(rig, 32, "A:16+1");
    expect(rig, 32, "B:0+20"); /* C would leave no page for B's next token */
    expect(rig, 32, "C:0+3");
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(the_youngest_is_preempted_and_finishes_later_with_the_same_bytes)
{
    /* 5 pages of 8. A and B grow to 3 pages each. */
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 5,
                                                       .page_size = 8,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 32,
                                                       .no_prefix_cache = true});
    struct rig_request a = request_of(0, 14, 8), b = request_of(1, 14, 8);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    static const char *const plans[] = {
        "A:0+14 B:0+14", "A:14+1 B:14+1", "A:15+1 B:15+1", "A:16+1", /* B was preempted */
        "A:17+1",        "A:18+1",        "A:19+1",        "A:20+1",
        "B:0+17", /* prompt and answer so far, computed again */
        "B:17+1",        "B:18+1",        "B:19+1",        "B:20+1",
    };
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++)
        expect(rig, 32, plans[i]);
    expect(rig, 32, "");
    ck_assert_uint_eq(metric_get(&rig->metrics.preemptions), 1);
    ck_assert_uint_eq(cb->sequences[0].preemptions, 1);
    done(rig, ca, &a);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(recomputing_is_cheap_while_the_pages_are_cached)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 5, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 32});
    struct rig_request a = request_of(0, 14, 5), b = request_of(1, 14, 8);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    static const char *const plans[] = {
        "A:0+14 B:0+14", "A:14+1 B:14+1", "A:15+1 B:15+1", "A:16+1",
        "A:17+1", /* takes the one free page */
        "B:16+1", /* both full pages are still there: only the last token is computed */
        "B:17+1",        "B:18+1",        "B:19+1",        "B:20+1",
    };
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++)
        expect(rig, 32, plans[i]);
    expect(rig, 32, "");
    ck_assert_uint_eq(metric_get(&rig->metrics.prefix_hits), 0); /* counted at first admission */
    done(rig, ca, &a);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_sequence_that_was_preempted_twice_is_admitted_only_when_its_worst_case_fits)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 7,
                                                       .page_size = 8,
                                                       .max_sequences = 4,
                                                       .max_batch_tokens = 64,
                                                       .no_prefix_cache = true});
    /* A will hold 4 pages, B 3 and C 4; there are 7. */
    struct rig_request a = request_of(0, 8, 24), b = request_of(1, 8, 13), c = request_of(2, 8, 24);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    char turns[64] = "";
    bool was_running = false;
    while (rig_step(rig, 64)[0] != '\0') {
        bool running = cc->sequences[0].status == SEQUENCE_RUNNING;
        if (running != was_running) {
            char note[8];
            snprintf(note, sizeof note, running ? "+%u" : "-%u ", completion_output_count(ca, 0));
            strcat(turns, note);
        }
        was_running = running;
    }
    /* C comes with A, goes for B's page at A's 10th token, comes back when B has ended and one page
       is over, goes again, and waits for A's end. */
    ck_assert_str_eq(turns, "+1-10 +14-22 +24-24 ");
    ck_assert_uint_eq(cc->sequences[0].preemptions, 2);
    ck_assert_uint_eq(ca->sequences[0].preemptions, 0); /* the oldest is never preempted */
    ck_assert_uint_eq(cb->sequences[0].preemptions, 0);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(full_need_counts_what_others_may_come_to_need)
{
    /* A and B may each come to 4 pages; B was preempted twice before. */
    for (unsigned page_count = 7; page_count <= 8; page_count++) {
        struct rig *rig = rig_create(&(struct rig_options){.page_count = page_count,
                                                           .page_size = 8,
                                                           .max_sequences = 4,
                                                           .max_batch_tokens = 64,
                                                           .no_prefix_cache = true});
        struct rig_request a = request_of(0, 8, 24), b = request_of(1, 8, 24);
        struct completion *ca = add(rig, &a), *cb = add(rig, &b);
        cb->sequences[0].preemptions = 2;
        if (page_count == 8) {
            expect(rig, 64, "A:0+8 B:0+8");
        } else {
            expect(rig, 64, "A:0+8");
            for (unsigned i = 1; i < 24; i++) {
                const char *plan = rig_step(rig, 64);
                ck_assert_msg(plan[0] == 'A' && strchr(plan, 'B') == NULL, "%s", plan);
            }
            expect(rig, 64, "B:0+8");
        }
        rig_run(rig, 100);
        ck_assert_uint_eq(metric_get(&rig->metrics.preemptions), 0);
        done(rig, ca, &a);
        done(rig, cb, &b);
        rig_destroy(rig);
    }
}
END_TEST

START_TEST(forks_share_the_prompts_pages_and_copy_on_the_first_write)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 32});
    struct rig_request a = request_of(0, 12, 3);
    a.choice_count = 3;
    a.temperature = 0.9f;
    a.seed = 42;
    struct completion *ca = add(rig, &a);
    expect(rig, 32, "A:0+12");
    ck_assert_uint_eq(pager_free_count(rig->pager), 18); /* two pages, three references each */
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(completion_output_count(ca, i), 1);
    /* The first two copy the page that is half full; the last one writes where it is. */
    expect(rig, 32, "A:12+1 A.1:12+1 A.2:12+1 2>3 2>4");
    ck_assert_uint_eq(pager_free_count(rig->pager), 16); /* the full page is still shared */
    expect(rig, 32, "A:13+1 A.1:13+1 A.2:13+1");
    expect(rig, 32, "");
    ck_assert_uint_eq(metric_get(&rig->metrics.prompt_tokens), 12);
    ck_assert_uint_eq(metric_get(&rig->metrics.generation_tokens), 9);
    done(rig, ca, &a);
    rig_destroy(rig);
}
END_TEST

START_TEST(forks_of_a_prompt_that_ends_with_a_page_copy_nothing)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 5});
    struct rig_request a = request_of(0, 8, 2);
    a.choice_count = 2;
    struct completion *ca = add(rig, &a);
    expect(rig, 5, "A:0+5");
    expect(rig, 5, "A:5+3");
    expect(rig, 5, "A:8+1 A.1:8+1");
    done(rig, ca, &a);
    rig_destroy(rig);
}
END_TEST

START_TEST(more_sequences_than_slots_run_one_wave_after_the_other)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 2, .max_batch_tokens = 32});
    struct rig_request a = request_of(0, 12, 2);
    a.choice_count = 3;
    a.temperature = 1;
    a.seed = 7;
    struct completion *ca = add(rig, &a);
    expect(rig, 32, "A:0+12");
    expect(rig, 32, "A:12+1 A.1:12+1 2>3");
    ck_assert_int_eq(completion_reason(ca, 1), FINISH_LENGTH);
    ck_assert_int_eq(completion_reason(ca, 2), FINISH_NONE);
    expect(rig, 32, "A.2:8+4"); /* the full page is found again */
    expect(rig, 32, "A.2:12+1");
    ck_assert_uint_eq(metric_get(&rig->metrics.prompt_tokens), 12);
    done(rig, ca, &a);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_known_prefix_is_not_computed_again)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 32});
    struct rig_request a = request_of(0, 20, 3), same = a, longer = a, salted = a, uncached = a;
    uint32_t continued[30];
    memcpy(continued, a.tokens, 20 * sizeof *continued);
    struct completion *c = add(rig, &a);
    expect(rig, 32, "A:0+20");
    expect(rig, 32, "A:20+1");
    expect(rig, 32, "A:21+1");
    ck_assert_uint_eq(completion_cached_count(c), 0);
    /* A next turn: prompt, answer and more. The third page was never full. */
    const struct completion_token *tokens;
    ck_assert_uint_eq(completion_read(c, 0, 0, &tokens), 3);
    for (unsigned i = 0; i < 10; i++)
        continued[20 + i] = i < 3 ? tokens[i].token : i;
    done(rig, c, &a);

    c = add(rig, &same);
    expect(rig, 32, "B:16+4");
    rig_run(rig, 10);
    ck_assert_uint_eq(completion_cached_count(c), 16);
    done(rig, c, &same);

    longer.tokens = continued;
    longer.token_count = 30;
    c = add(rig, &longer);
    expect(rig, 32, "C:16+14");
    rig_run(rig, 10);
    done(rig, c, &longer);
    c = add(rig, &longer); /* now the third page is known, too */
    expect(rig, 32, "D:24+6");
    rig_run(rig, 10);
    done(rig, c, &longer);

    salted.cache_salt = 1;
    c = add(rig, &salted);
    expect(rig, 32, "E:0+20");
    rig_run(rig, 10);
    done(rig, c, &salted);

    uncached.no_cache = true;
    c = add(rig, &uncached);
    expect(rig, 32, "F:0+20");
    rig_run(rig, 10);
    ck_assert_uint_eq(completion_cached_count(c), 0);
    done(rig, c, &uncached);
    ck_assert_uint_eq(metric_get(&rig->metrics.prefix_queries), 20 + 20 + 30 + 30 + 20);
    ck_assert_uint_eq(metric_get(&rig->metrics.prefix_hits), 16 + 16 + 24);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_prefix_that_is_being_computed_is_waited_for)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 40, .page_size = 8, .max_sequences = 8, .max_batch_tokens = 16});
    struct rig_request a = request_of(0, 36, 3), b, c;
    b = c = a;
    uint32_t other_end[36];
    memcpy(other_end, a.tokens, sizeof other_end);
    other_end[34] = 60;
    b.tokens = other_end;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    expect(rig, 16, "A:0+16");
    expect(rig, 16, "A:16+16");
    expect(rig, 16, "A:32+4 B:32+4 C:32+4"); /* the rest is not shared: computed by each */
    rig_run(rig, 10);
    ck_assert_uint_eq(completion_cached_count(cb), 32);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_request_that_waits_for_a_prefix_goes_on_when_its_maker_is_cancelled)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 40, .page_size = 8, .max_sequences = 8, .max_batch_tokens = 16});
    struct rig_request a = request_of(0, 36, 3), b = a;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    expect(rig, 16, "A:0+16");
    completion_cancel(ca);
    expect(rig, 16, "B:16+16"); /* what was made is kept */
    ck_assert_int_eq(completion_reason(ca, 0), FINISH_CANCELLED);
    rig_run(rig, 10);
    completion_release(ca);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(cancelled_work_is_gone_with_its_pages_before_the_next_step)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 10, .page_size = 8, .max_sequences = 2, .max_batch_tokens = 8});
    struct rig_request a = request_of(0, 6, 20), b = request_of(1, 30, 20), c = request_of(2, 6, 2),
                       d = request_of(3, 6, 2);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c),
                      *cd = add(rig, &d);
    expect(rig, 8, "A:0+6 B:0+2");
    expect(rig, 8, "A:6+1 B:2+7");
    completion_cancel(cb); /* in its prompt */
    completion_cancel(cc); /* queued */
    expect(rig, 8, "A:7+1 D:0+6");
    ck_assert_int_eq(completion_reason(cb, 0), FINISH_CANCELLED);
    ck_assert_int_eq(completion_reason(cc, 0), FINISH_CANCELLED);
    completion_cancel(ca); /* decoding */
    expect(rig, 8, "D:6+1");
    ck_assert_uint_eq(pager_free_count(rig->pager), 10);
    ck_assert_uint_eq(completion_output_count(ca, 0), 3); /* what was there stays readable */
    completion_release(ca);
    completion_release(cb);
    completion_release(cc);
    done(rig, cd, &d);
    ck_assert_uint_eq(metric_get(&rig->metrics.finished[FINISH_CANCELLED]), 3);
    rig_destroy(rig);
}
END_TEST

START_TEST(one_sequence_can_be_stopped_even_the_parent)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 20, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 8});
    struct rig_request a = request_of(0, 12, 3);
    a.choice_count = 3;
    a.temperature = 0.8f;
    struct completion *ca = add(rig, &a);
    expect(rig, 8, "A:0+8");
    completion_stop_choice(ca, 0);
    expect(rig, 8, "A.1:8+4"); /* a fork is the parent now, and finds the first page */
    completion_stop_choice(ca, 2);
    expect(rig, 8, "A.1:12+1");
    ck_assert(!completion_done(ca));
    expect(rig, 8, "A.1:13+1");
    ck_assert(completion_done(ca));
    ck_assert_int_eq(completion_reason(ca, 0), FINISH_STOP);
    ck_assert_int_eq(completion_reason(ca, 1), FINISH_LENGTH);
    ck_assert_int_eq(completion_reason(ca, 2), FINISH_STOP);
    ck_assert_uint_eq(metric_get(&rig->metrics.finished[FINISH_STOP]), 2);
    ck_assert_uint_eq(metric_get(&rig->metrics.finished[FINISH_CANCELLED]), 0);
    struct rig_answer answer;
    rig_expect(&a, 1, rig->max_length, &answer);
    const struct completion_token *tokens;
    ck_assert_uint_eq(completion_read(ca, 1, 0, &tokens), 3);
    ck_assert_mem_eq(tokens, answer.tokens, 3 * sizeof *tokens);
    completion_release(ca);
    rig_destroy(rig);
}
END_TEST

START_TEST(the_answer_ends_where_the_pool_does_and_the_queue_moves_on)
{
    /* B64: prompt 60 pages and 60 more wanted, in a pool of 100. */
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 10, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 64});
    struct rig_request a = request_of(0, 48, 48), b = request_of(1, 5, 2);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    rig_run(rig, 100);
    ck_assert_int_eq(completion_reason(ca, 0), FINISH_LENGTH);
    ck_assert_uint_eq(completion_output_count(ca, 0), 32);
    done(rig, ca, &a);
    done(rig, cb, &b);
    rig_destroy(rig);
}
END_TEST

START_TEST(the_longest_prompt_that_is_admitted_gets_one_token)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 10, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 100});
    struct rig_request a = request_of(0, 79, 5);
    struct completion *ca = add(rig, &a);
    expect(rig, 100, "A:0+79");
    expect(rig, 100, "");
    ck_assert_uint_eq(completion_output_count(ca, 0), 1);
    done(rig, ca, &a);
    rig_destroy(rig);
}
END_TEST

START_TEST(sixteen_requests_in_a_pool_for_three_all_finish_in_order)
{
    /* B67. Each may hold 4 pages; 12 there are. */
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 12,
                                                       .page_size = 8,
                                                       .max_sequences = 16,
                                                       .max_batch_tokens = 64,
                                                       .no_prefix_cache = true});
    struct rig_request r[16];
    struct completion *c[16];
    unsigned finished = 0;
    for (unsigned i = 0; i < 16; i++) {
        r[i] = request_of(i, 6, 26);
        c[i] = add(rig, &r[i]);
    }
    for (unsigned steps = 0; rig_step(rig, 64)[0] != '\0'; steps++) {
        ck_assert_uint_lt(steps, 1000);
        /* All want the same, so first come is first served: nobody ends before an older one. */
        while (finished < 16 && completion_done(c[finished]))
            finished++;
        for (unsigned i = finished; i < 16; i++)
            ck_assert(!completion_done(c[i]));
    }
    ck_assert_uint_eq(finished, 16);
    ck_assert_uint_eq(c[0]->sequences[0].preemptions, 0);
    ck_assert_uint_gt(metric_get(&rig->metrics.preemptions), 0);
    for (unsigned i = 0; i < 16; i++) {
        ck_assert_uint_le(c[i]->sequences[0].preemptions, 2);
        done(rig, c[i], &r[i]);
    }
    rig_destroy(rig);
}
END_TEST

START_TEST(preemption_at_every_step_changes_nothing_but_the_work)
{
    /* B66: with a temperature, with log-probabilities, with choices. */
    for (unsigned cache = 0; cache < 2; cache++) {
        struct rig *rig = rig_create(&(struct rig_options){.page_count = 40,
                                                           .page_size = 8,
                                                           .max_sequences = 8,
                                                           .max_batch_tokens = 24,
                                                           .test_preempt_every = 1,
                                                           .no_prefix_cache = cache == 0});
        struct rig_request a = request_of(0, 11, 64), b = request_of(1, 5, 40);
        a.temperature = b.temperature = 0.8f;
        a.seed = 42;
        a.logprobs = true;
        b.choice_count = 3;
        struct completion *ca = add(rig, &a), *cb = add(rig, &b);
        rig_run(rig, 2000);
        ck_assert_uint_ge(ca->sequences[0].forced_preemptions, 20);
        ck_assert_uint_eq(ca->sequences[0].preemptions, 0);
        done(rig, ca, &a);
        done(rig, cb, &b);
        rig_destroy(rig);
    }
}
END_TEST

START_TEST(two_hundred_secrets_stay_with_their_owners)
{
    /* B69: prompts that share a head and differ in a secret; two slots; cached counts are true. */
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 30, .page_size = 8, .max_sequences = 2, .max_batch_tokens = 40});
    static uint32_t secrets[200][37];
    static struct rig_request r[200];
    static struct completion *c[200];
    for (unsigned i = 0; i < 200; i++) {
        for (unsigned k = 0; k < 37; k++)
            secrets[i][k] = k < 18 ? k : (i * 31 + k * k) % 59;
        secrets[i][20] = i % 61;
        secrets[i][21] = i / 61;
        r[i] = (struct rig_request){.tokens = secrets[i], .token_count = 37, .max_tokens = 6};
        c[i] = add(rig, &r[i]);
    }
    rig_run(rig, 5000);
    for (unsigned i = 0; i < 200; i++) {
        ck_assert_uint_eq(completion_cached_count(c[i]), i == 0 ? 0 : 16);
        done(rig, c[i], &r[i]);
    }
    rig_destroy(rig);
}
END_TEST

START_TEST(end_tokens_end_an_answer_and_are_not_part_of_it)
{
    struct rig *rig = rig_create(&(struct rig_options){
        .page_count = 30, .page_size = 8, .max_sequences = 4, .max_batch_tokens = 40});
    unsigned stopped = 0;
    for (unsigned i = 0; i < 12; i++) {
        struct rig_request r = request_of(i, 5 + i, 100);
        r.stops = true;
        struct completion *c = add(rig, &r);
        rig_run(rig, 200);
        if (completion_reason(c, 0) == FINISH_STOP) {
            stopped++;
            const struct completion_token *tokens;
            uint32_t count = completion_read(c, 0, 0, &tokens);
            for (uint32_t k = 0; k < count; k++)
                ck_assert_uint_ne(tokens[k].token, RIG_END_TOKEN);
        }
        done(rig, c, &r);
    }
    ck_assert_uint_ge(stopped, 4);
    rig_destroy(rig);
}
END_TEST

/* ---- KV cache groups ---- */

static uint32_t pages_used(const struct rig *rig)
{
    return pager_total_count(rig->pager) - pager_free_count(rig->pager);
}

/* Gemma 3 270M's groups: 4,096 tokens hold 256 pages that grow and five times 33, not the 1,536 of
   six groups kept whole; and while the prompt is computed five times 65, for the window and a step.
 */
START_TEST(a_long_sequence_holds_its_windows_only)
{
    static uint32_t tokens[4096];
    struct rig *rig = rig_create(
        &(struct rig_options){.page_count = 1200,
                              .page_size = 16,
                              .groups = {.count = 6, .window = {0, 512, 512, 512, 512, 512}},
                              .max_sequences = 2,
                              .max_batch_tokens = 512,
                              .no_prefix_cache = true});
    for (uint32_t i = 0; i < 4096; i++)
        tokens[i] = i * 7 % RIG_VOCABULARY;
    struct rig_request a = {.tokens = tokens, .token_count = 4096, .max_tokens = 40};
    struct completion *ca = add(rig, &a);
    for (uint32_t computed = 0; computed < 4096; computed += 512) {
        ck_assert_str_ne(rig_step(rig, 512), "");
        ck_assert_uint_eq(pages_used(rig), 256 + 5 * 65 - (computed + 512 == 4096 ? 5 * 1 : 0));
    }
    for (uint32_t position = 4096; position < 4096 + 38; position++) {
        ck_assert_str_ne(rig_step(rig, 512), "");
        ck_assert_uint_eq(pages_used(rig), position / 16 + 1 + 5 * 33);
    }
    ck_assert_str_ne(rig_step(rig, 512), "");
    done(rig, ca, &a);
    ck_assert_uint_eq(pages_used(rig), 0);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_pool_holds_longer_sequences_with_windows)
{
    /* Windows of 8 and steps of 8 rows: three pages at most. 13 pages are ten tables' worth and
       three; kept whole they were six and six. */
    struct rig_options options = {.page_count = 13,
                                  .page_size = 8,
                                  .groups = {.count = 2, .window = {0, 8}},
                                  .max_sequences = 4,
                                  .max_batch_tokens = 8};
    struct rig *rig = rig_create(&options);
    ck_assert_uint_eq(rig->max_length, 80);
    struct rig_request a = request_of(0, 48, 48), b = request_of(1, 5, 2), c = request_of(2, 79, 5);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    rig_run(rig, 100);
    ck_assert_uint_eq(completion_output_count(ca, 0), 32);
    ck_assert_uint_eq(completion_output_count(cc, 0), 1);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
    options.groups = (struct kv_groups){.count = 2};
    rig = rig_create(&options);
    ck_assert_uint_eq(rig->max_length, 48);
    rig_destroy(rig);
}
END_TEST

START_TEST(a_prefix_in_the_making_is_found_behind_its_makers_window)
{
    struct rig *rig = rig_create(&(struct rig_options){.page_count = 60,
                                                       .page_size = 8,
                                                       .groups = {.count = 2, .window = {0, 10}},
                                                       .max_sequences = 8,
                                                       .max_batch_tokens = 16});
    struct rig_request a = request_of(0, 60, 3), b = a, c = a;
    uint32_t other_end[60];
    memcpy(other_end, a.tokens, sizeof other_end);
    for (unsigned i = 44; i < 60; i++)
        other_end[i] = (other_end[i] + 1) % RIG_VOCABULARY;
    b.tokens = other_end;
    b.token_count = 46;
    c.token_count = 30;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b), *cc = add(rig, &c);
    expect(rig, 16, "A:0+16");
    expect(rig, 16, "A:16+16");
    /* C needs 24 tokens of A's, and of the window what position 24 sees: 15 … 23. A's own window
       has left the page of 8 … 15 in this step: it is found all the same. B waits for 40. */
    expect(rig, 16, "A:32+16");
    expect(rig, 16, "A:48+12 B:40+4");
    expect(rig, 16, "A:60+1 B:44+2 C:24+6");
    ck_assert_uint_eq(completion_cached_count(cb), 40);
    ck_assert_uint_eq(completion_cached_count(cc), 24);
    rig_run(rig, 10);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    rig_destroy(rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheduler");
    TCase *tcase = tcase_create("core");
    tcase_set_timeout(tcase, 600); /* against hangs only */
    tcase_add_test(tcase, a_prompt_is_computed_in_chunks_and_then_decoded);
    tcase_add_test(tcase, a_long_sequence_holds_its_windows_only);
    tcase_add_test(tcase, a_pool_holds_longer_sequences_with_windows);
    tcase_add_test(tcase, a_prefix_in_the_making_is_found_behind_its_makers_window);
    tcase_add_test(tcase, whole_prompts_share_steps);
    tcase_add_test(tcase, pooled_rows_are_counted_once);
    tcase_add_test(tcase, times_are_measured_from_submit_to_end);
    tcase_add_test(tcase, decoding_goes_first_and_prompts_share_the_rest_in_order_of_arrival);
    tcase_add_test(tcase, the_prompt_token_limit_shortens_chunks_only);
    tcase_add_test(tcase, more_decoding_sequences_than_tokens_of_a_step_take_turns);
    tcase_add_test(tcase, turns_are_fair_and_prompts_do_not_starve);
    tcase_add_test(tcase, one_token_per_step_is_legal);
    tcase_add_test(tcase, nobody_passes_the_head_of_the_queue);
    tcase_add_test(tcase, the_youngest_is_preempted_and_finishes_later_with_the_same_bytes);
    tcase_add_test(tcase, recomputing_is_cheap_while_the_pages_are_cached);
    tcase_add_test(tcase,
                   a_sequence_that_was_preempted_twice_is_admitted_only_when_its_worst_case_fits);
    tcase_add_test(tcase, full_need_counts_what_others_may_come_to_need);
    tcase_add_test(tcase, forks_share_the_prompts_pages_and_copy_on_the_first_write);
    tcase_add_test(tcase, forks_of_a_prompt_that_ends_with_a_page_copy_nothing);
    tcase_add_test(tcase, more_sequences_than_slots_run_one_wave_after_the_other);
    tcase_add_test(tcase, a_known_prefix_is_not_computed_again);
    tcase_add_test(tcase, a_prefix_that_is_being_computed_is_waited_for);
    tcase_add_test(tcase, a_request_that_waits_for_a_prefix_goes_on_when_its_maker_is_cancelled);
    tcase_add_test(tcase, cancelled_work_is_gone_with_its_pages_before_the_next_step);
    tcase_add_test(tcase, one_sequence_can_be_stopped_even_the_parent);
    tcase_add_test(tcase, the_answer_ends_where_the_pool_does_and_the_queue_moves_on);
    tcase_add_test(tcase, the_longest_prompt_that_is_admitted_gets_one_token);
    tcase_add_test(tcase, sixteen_requests_in_a_pool_for_three_all_finish_in_order);
    tcase_add_test(tcase, preemption_at_every_step_changes_nothing_but_the_work);
    tcase_add_test(tcase, two_hundred_secrets_stay_with_their_owners);
    tcase_add_test(tcase, end_tokens_end_an_answer_and_are_not_part_of_it);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
