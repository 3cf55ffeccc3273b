/* See rig.h. */
#include "tests/engine/rig.h"

#include "base/check.h"
#include "engine/engine_metrics.h"
#include "engine/scheduler/scheduler_check.h"
#include "engine/scheduler/scheduler_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct budget rig_budget = {
    .total_bytes = UINT64_MAX / 2,
    .cap_bytes = {[BUDGET_REQUESTS] = UINT64_MAX / 4, [BUDGET_GRAMMAR] = UINT64_MAX / 4},
};

static uint32_t choice_count(const struct rig_request *request)
{
    return request->choice_count ? request->choice_count : 1;
}

static struct sampling_params sampling(const struct rig_request *request)
{
    return (struct sampling_params){
        .temperature = request->temperature,
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = request->seed,
    };
}

void rig_limit_requests(uint64_t bytes)
{
    rig_budget.cap_bytes[BUDGET_REQUESTS] = bytes ? bytes : UINT64_MAX / 4;
}

struct completion *rig_try_completion(const struct rig_request *request)
{
    struct completion_spec spec = {
        .tokens = request->tokens,
        .token_count = request->token_count,
        .choice_count = choice_count(request),
        .pooling = request->pooling,
        .pooled_count = request->pooling ? 1 : 0,
        .max_tokens = request->max_tokens,
        .sampling = sampling(request),
        .ignore_eos = !request->stops,
        .use_prefix_cache = !request->no_cache,
        .cache_salt = request->cache_salt,
        .priority = request->priority,
        .tenant = request->tenant,
        .deadline_ns = request->deadline_ns,
        .want_logprobs = request->logprobs,
        .top_logprobs = 3,
        .grammar = request->grammar,
        .wake = request->wake,
        .wake_arg = request->wake_arg,
    };
    struct completion *completion;
    struct error error;
    uint64_t before = rig_request_bytes();
    enum status status = completion_create(&spec, &rig_budget, &completion, &error);
    if (status == STATUS_OK)
        return completion;
    CHECK(status == STATUS_BUSY || status == STATUS_TOO_LARGE);
    CHECK(rig_request_bytes() == before);
    return NULL;
}

struct completion *rig_completion(const struct rig_request *request)
{
    struct completion *completion = rig_try_completion(request);
    CHECK(completion);
    return completion;
}

struct budget *rig_budget_of(void)
{
    return &rig_budget;
}

uint64_t rig_request_bytes(void)
{
    return atomic_load(&rig_budget.used_bytes[BUDGET_REQUESTS]);
}

void rig_expect(const struct rig_request *request, uint32_t choice, uint32_t max_length,
                struct rig_answer *out)
{
    static const uint32_t end_token = RIG_END_TOKEN;
    struct sampling_params params = sampling(request);
    uint32_t *history = malloc((request->token_count + request->max_tokens) * sizeof *history);
    void *workspace = aligned_alloc(64, (sampler_workspace_bytes(RIG_VOCABULARY) + 63) & ~63u);
    struct grammar_matcher *matcher =
        request->grammar ? grammar_matcher_create(request->grammar) : NULL;
    bool complete = false;
    CHECK(history && workspace && (!request->grammar || (matcher && request->stops)));
    memcpy(history, request->tokens, request->token_count * sizeof *history);
    uint32_t count = request->token_count;
    out->token_count = 0;
    out->reason = FINISH_LENGTH;
    while (out->token_count < request->max_tokens && count < max_length && !complete) {
        float logits[RIG_VOCABULARY];
        uint32_t allowed[(RIG_VOCABULARY + 31) / 32];
        CHECK(!matcher || grammar_matcher_mask(matcher, allowed, (RIG_VOCABULARY + 31) / 32));
        scripted_logits(history, count, RIG_VOCABULARY, logits);
        struct sampler_row row = {
            .logits = logits,
            .vocabulary = RIG_VOCABULARY,
            .params = &params,
            .tokens = history,
            .token_count = count,
            .prompt_count = request->token_count,
            .choice = choice,
            .top_logprobs = request->logprobs ? 3 : 0,
            .want_logprob = request->logprobs,
            .banned = request->stops ? NULL : &end_token,
            .banned_count = !request->stops,
            .allowed = matcher ? allowed : NULL,
        };
        struct sampled_token token;
        CHECK(sampler_sample(&row, workspace, &token));
        if (request->stops && token.token == RIG_END_TOKEN) {
            out->reason = FINISH_STOP;
            break;
        }
        CHECK(out->token_count < RIG_ANSWER_MAX);
        out->tokens[out->token_count++] = (struct completion_token){token.token, token.logprob};
        history[count++] = token.token;
        CHECK(!matcher || grammar_matcher_accept(matcher, &token.token, 1, &complete));
    }
    if (complete)
        out->reason = FINISH_STOP;
    grammar_matcher_destroy(matcher);
    free(workspace);
    free(history);
}

void rig_check_answers(const struct completion *completion, const struct rig_request *request,
                       uint32_t max_length)
{
    static _Thread_local struct rig_answer answer;
    for (uint32_t choice = 0; choice < choice_count(request); choice++) {
        rig_expect(request, choice, max_length, &answer);
        CHECK(completion_reason(completion, choice) == answer.reason);
        const struct completion_token *tokens;
        uint32_t count = completion_read(completion, choice, 0, &tokens);
        CHECK(count == answer.token_count);
        CHECK(memcmp(tokens, answer.tokens, count * sizeof *tokens) == 0);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t top_count;
            const struct top_logprob *top = completion_top(completion, choice, i, &top_count);
            CHECK(top_count == (request->logprobs ? 3u : 0u) && (top != NULL) == request->logprobs);
        }
    }
}

struct rig *rig_create(const struct rig_options *options)
{
    static const uint32_t end_token = RIG_END_TOKEN;
    struct rig *rig = calloc(1, sizeof *rig);
    CHECK(rig);
    rig->options = *options;
    struct kv_groups groups = options->groups;
    groups.count += groups.count == 0;
    uint32_t pool =
        kv_groups_fit(&groups, options->page_size, options->max_batch_tokens, options->page_count);
    rig->max_length = options->context && options->context < pool ? options->context : pool;
    struct scripted_options scripted = {
        .vocabulary = RIG_VOCABULARY,
        .page_count = options->page_count + 1,
        .page_size = options->page_size,
        .groups = groups,
        .max_batch_rows = options->max_batch_tokens,
        .max_sequences = options->max_sequences,
        .logits_rows_max = options->logits_rows_max ? options->logits_rows_max : 3,
        .end_token = RIG_END_TOKEN,
    };
    rig->backend = scripted_backend_create(&scripted);
    struct pager_options pager = {
        .page_count = options->page_count + 1,
        .page_size = options->page_size,
        .groups = groups,
        .hash_key = {11, 13},
    };
    struct error error;
    CHECK(rig->backend && pager_create(&pager, &rig->pager, &error) == STATUS_OK);
    engine_metrics_init(&rig->metrics, rig->max_length, rig->token_bounds);
    if (options->swap_slots) {
        struct page_swap_options swap = {
            .backend = rig->backend,
            .directory = "/tmp",
            .bytes = options->swap_slots * rig->backend->page_bytes,
            .step_pages = options->swap_step_pages,
            .always = options->swap_always,
            .calls = options->swap_calls,
            .metrics = &rig->metrics,
        };
        CHECK(page_swap_create(&swap, &rig->swap, &error) == STATUS_OK);
    }
    struct scheduler_options scheduler = {
        .pager = rig->pager,
        .swap = rig->swap,
        .max_sequences = options->max_sequences,
        .max_batch_tokens = options->max_batch_tokens,
        .max_length = rig->max_length,
        .tenant_count = options->tenant_count ? options->tenant_count : 1,
        .end_tokens = &end_token,
        .end_token_count = 1,
        .prefix_cache = !options->no_prefix_cache,
        .whole_prompts = options->whole_prompts,
        .test_preempt_every = options->test_preempt_every,
        .metrics = &rig->metrics,
    };
    CHECK(scheduler_create(&scheduler, &rig->scheduler, &error) == STATUS_OK);
    rig->scratch = malloc((options->page_count + 1) * sizeof *rig->scratch);
    rig->logits = malloc(2 * RIG_VOCABULARY * sizeof *rig->logits);
    rig->sampling =
        (struct sampling){.backend = rig->backend, .end_tokens = &end_token, .end_token_count = 1};
    rig->workspace = aligned_alloc(64, (sampler_workspace_bytes(RIG_VOCABULARY) + 63) & ~63u);
    CHECK(rig->scratch && rig->logits && rig->workspace);
    rig->now_ns = 1;
    return rig;
}

void rig_destroy(struct rig *rig)
{
    CHECK(!scheduler_has_work(rig->scheduler));
    CHECK(pager_free_count(rig->pager) == pager_total_count(rig->pager));
    scheduler_destroy(rig->scheduler);
    page_swap_destroy(rig->swap); /* checks that all slots are free */
    pager_destroy(rig->pager);
    rig->backend->ops->destroy(rig->backend);
    free(rig->workspace);
    free(rig->logits);
    free(rig->scratch);
    free(rig);
}

void rig_add(struct rig *rig, struct completion *completion)
{
    completion_attach(completion, &rig->cancel_epoch);
    if (rig->named_count < 26)
        rig->named[rig->named_count++] = completion;
    scheduler_add(rig->scheduler, completion, rig->now_ns);
}

__attribute__((format(printf, 2, 3))) static void add_to_plan(struct rig *rig, const char *format,
                                                              ...)
{
    size_t length = strlen(rig->plan);
    if (length > 0 && length + 1 < sizeof rig->plan)
        rig->plan[length++] = ' ';
    va_list args;
    va_start(args, format);
    vsnprintf(rig->plan + length, sizeof rig->plan - length, format, args);
    va_end(args);
}

static char name_of(const struct rig *rig, const struct completion *completion)
{
    /* From the end: a completion may lie where an earlier one was. */
    for (unsigned i = rig->named_count; i-- > 0;) {
        if (rig->named[i] == completion)
            return (char)('A' + i);
    }
    return '?';
}

static void check(const struct rig *rig)
{
    struct error error;
    if (!scheduler_check(rig->scheduler, rig->scratch, &error)) {
        fprintf(stderr, "%s\n", error.message);
        CHECK(!"scheduler_check");
    }
}

static void sample(struct rig *rig, struct schedule_sample *sample)
{
    const struct sequence *sequence = sample->sequence;
    struct grammar *grammar = sequence->completion->grammar;
    struct grammar_matcher **matcher = &sequence->record->matcher;
    uint32_t allowed[(RIG_VOCABULARY + 31) / 32];
    rig->backend->ops->logits(rig->backend, sample->logits_index, 1, rig->logits);
    if (grammar) {
        if (!*matcher)
            *matcher = grammar_matcher_create(grammar);
        CHECK(*matcher && grammar_matcher_mask(*matcher, allowed, (RIG_VOCABULARY + 31) / 32));
    }
    sampling_draw(&rig->sampling, sample, rig->logits, grammar ? allowed : NULL, rig->workspace);
}

/* Every page that is written is in one table only and is not cached. */
static void check_writes(const struct rig *rig, const struct schedule *schedule)
{
    uint32_t size = rig->options.page_size;
    for (uint32_t i = 0; i < schedule->batch.sequence_count; i++) {
        const struct batch_sequence *rows = &schedule->batch.sequences[i];
        for (uint32_t r = 0; r < rows->row_count; r++) {
            for (uint32_t g = 0; g < pager_groups(rig->pager)->count; g++) {
                uint32_t page =
                    rows->pages[(size_t)g * rows->group_stride + (rows->first_position + r) / size];
                CHECK(pager_ref_count(rig->pager, page) == 1);
                CHECK(!pager_is_cached(rig->pager, page));
            }
        }
    }
}

static void write_plan(struct rig *rig, const struct schedule *schedule)
{
    rig->plan[0] = '\0';
    for (uint32_t i = 0; i < schedule->batch.sequence_count; i++) {
        const struct batch_sequence *rows = &schedule->batch.sequences[i];
        const struct sequence *sequence = rig->scheduler->step.sequences[i];
        char name = name_of(rig, sequence->completion);
        if (sequence->index)
            add_to_plan(rig, "%c.%u:%u+%u", name, sequence->index, rows->first_position,
                        rows->row_count);
        else
            add_to_plan(rig, "%c:%u+%u", name, rows->first_position, rows->row_count);
    }
    for (uint32_t i = 0; i < schedule->copy_count; i++)
        add_to_plan(rig, "%u>%u", schedule->copies[i].from, schedule->copies[i].to);
}

/* Everything is being swapped: such a step has no tokens, and such steps end. */
static void check_moves(struct rig *rig, const struct schedule *schedule, uint64_t moved_bytes)
{
    CHECK(schedule->batch.sequence_count == 0 && schedule->batch.logits_row_count == 0);
    CHECK(schedule->copy_count == 0 && schedule->sample_count == 0);
    CHECK(swap_is_moving(&rig->scheduler->swap));
    CHECK(moved_bytes <= page_swap_step_pages(rig->swap) * rig->backend->page_bytes);
    CHECK(++rig->moves_in_a_row <= 2 * rig->options.page_count + 2);
    rig->moves++;
}

static uint64_t moved_bytes(const struct rig *rig)
{
    return metric_get(&rig->metrics.swap_out_bytes) + metric_get(&rig->metrics.swap_in_bytes);
}

const char *rig_turn(struct rig *rig, uint32_t prompt_token_limit)
{
    rig->now_ns += 1000000;
    scheduler_sweep(rig->scheduler, rig->now_ns);
    check(rig);
    scheduler_notify(rig->scheduler);
    if (!scheduler_has_work(rig->scheduler))
        return "";
    uint64_t moved_before = moved_bytes(rig);
    const struct schedule *schedule =
        scheduler_next(rig->scheduler, prompt_token_limit, rig->now_ns);
    CHECK(schedule->batch.row_count == schedule->decode_token_count + schedule->prompt_token_count);
    CHECK(schedule->prompt_token_count <= prompt_token_limit);
    check(rig);
    if (schedule->batch.row_count == 0) {
        check_moves(rig, schedule, moved_bytes(rig) - moved_before);
        return RIG_MOVES;
    }
    rig->moves_in_a_row = 0;
    write_plan(rig, schedule);
    for (uint32_t i = 0; i < schedule->copy_count; i++)
        rig->backend->ops->copy_page(rig->backend, schedule->copies[i].from,
                                     schedule->copies[i].to);
    check_writes(rig, schedule);
    rig->backend->ops->forward(rig->backend, &schedule->batch);
    for (uint32_t i = 0; i < schedule->sample_count; i++)
        sample(rig, &schedule->samples[i]);
    for (uint32_t i = 0; i < schedule->pooling_count; i++) {
        const struct schedule_pooling *pooling = &schedule->poolings[i];
        struct completion *completion = pooling->sequence->completion;
        bool means = completion->pooling == POOLING_MEAN;
        CHECK(!means || pooling->count == 0 ||
              pooling->first_position == completion->pooled_positions);
        completion->pooled_positions += means ? pooling->count : 0;
        completion->pooled[0] += (float)pooling->count;
    }
    scheduler_commit(rig->scheduler, rig->now_ns);
    check(rig);
    scheduler_notify(rig->scheduler);
    return rig->plan;
}

const char *rig_step(struct rig *rig, uint32_t prompt_token_limit)
{
    const char *plan;
    do
        plan = rig_turn(rig, prompt_token_limit);
    while (strcmp(plan, RIG_MOVES) == 0);
    return plan;
}

void rig_requeue(struct rig *rig, unsigned index)
{
    CHECK(index < rig->scheduler->slots.count);
    struct sequence *sequence = rig->scheduler->slots.order[index];
    if (sequence->state == SEQUENCE_PENDING_FORK || sequence->state == SEQUENCE_SWAPPING_OUT)
        return;
    sequence->completion->sequences[sequence->index].forced_preemptions++;
    rig->moves_in_a_row = 0; /* what was read may have to be read again */
    slots_requeue(&rig->scheduler->slots, sequence);
    check(rig);
}

void rig_preempt(struct rig *rig, unsigned index)
{
    CHECK(index < rig->scheduler->slots.count);
    struct sequence *sequence = rig->scheduler->slots.order[index];
    if (sequence->state == SEQUENCE_PENDING_FORK || sequence->state == SEQUENCE_SWAPPING_OUT)
        return;
    sequence->completion->sequences[sequence->index].forced_preemptions++;
    rig->moves_in_a_row = 0; /* what was read may have to be read again */
    swap_preempt(&rig->scheduler->swap, sequence);
    check(rig);
}

unsigned rig_run(struct rig *rig, unsigned most)
{
    unsigned steps = 0;
    while (rig_step(rig, rig->options.max_batch_tokens)[0] != '\0')
        CHECK(++steps <= most);
    return steps;
}
