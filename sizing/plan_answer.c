/* See plan_answer.h. Sums of hypothetical sizes saturate: a question may be about any numbers. */
#include "sizing/plan_answer.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/minmax.h"
#include "base/print.h"

#include <stdio.h>
#include <string.h>

#define CONTEXT_LEAST 64u /* shorter sequences are not offered as a way out */

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return bytes_add(a, b, &sum) ? sum : UINT64_MAX;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    uint64_t product;
    return bytes_multiply(a, b, &product) ? product : UINT64_MAX;
}

/* ---- How many fit ---- */

/* Of the `max_seqs` sequences that a server is started for, how many does its pool hold? */
static uint32_t held_with(const struct plan_model *model, const struct settings *settings,
                          uint32_t max_seqs)
{
    struct settings trial = *settings;
    struct plan plan;
    trial.max_seqs = max_seqs;
    if (plan_make(model, &trial, &plan, NULL) != STATUS_OK || plan.context < plan.wanted)
        return 0;
    uint64_t held = (plan.backend.page_count - 1) / plan_pages(&plan, 1, plan.wanted);
    return (uint32_t)min_u64(held, max_seqs);
}

/* Users that fit. What a server sets aside for a sequence grows with --max-seqs, so more than that
   are searched for with the option raised. */
static uint32_t users_that_fit(const struct plan_question *question, const struct plan_kv *kv)
{
    const struct settings *settings = question->settings;
    struct plan_model model = question->model;
    model.kv = kv;
    uint32_t fit = held_with(&model, settings, settings->max_seqs);
    if (fit < settings->max_seqs || question->max_seqs_given)
        return fit;
    uint32_t above = PLAN_USERS_MOST + 1;
    while (above - fit > 1) {
        uint32_t middle = fit + (above - fit) / 2;
        if (held_with(&model, settings, middle) >= middle)
            fit = middle;
        else
            above = middle;
    }
    return fit;
}

/* ---- Other ways ---- */

static void fill_row(const struct plan_question *question, const struct plan_kv *kv,
                     uint32_t tokens, struct plan_row *row)
{
    row->kv = *kv;
    row->token_bytes = plan_kv_token_bytes(kv);
    if (!row->token_bytes)
        return;
    row->page_bytes = plan_kv_page_bytes(kv);
    row->user_bytes = multiply(plan_kv_pages(kv, tokens), row->page_bytes);
    row->users = users_that_fit(question, kv);
}

static void fill_types(const struct plan_question *question, const struct plan_kv *own,
                       struct plan_answer *answer)
{
    static const enum kv_type types[KV_TYPES] = {KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0};
    answer->type_count = KV_TYPES;
    for (unsigned i = 0; i < answer->type_count; i++) {
        struct plan_row *row = &answer->types[i];
        struct plan_kv kv = *own;
        kv.type = types[i];
        row->own = kv.type == own->type;
        snprintf(row->name, sizeof row->name, "%s", kv_type_name(kv.type));
        fill_row(question, &kv, answer->tokens, row);
    }
}

/* As many key/value heads as query heads, a quarter, an eighth, the model's own, one. */
static void fill_heads(const struct plan_question *question, const struct plan_kv *own,
                       struct plan_answer *answer)
{
    uint32_t heads = question->model.config->heads;
    for (uint32_t count = heads; count > 0; count--) {
        bool shown = count == heads || count * 4 == heads || count * 8 == heads || count == 1 ||
                     count == own->kv_heads;
        if (!shown || heads % count)
            continue;
        CHECK(answer->head_count < PLAN_ROWS_MAX);
        struct plan_row *row = &answer->heads[answer->head_count++];
        struct plan_kv kv = *own;
        kv.kv_heads = count;
        row->own = count == own->kv_heads;
        snprintf(row->name, sizeof row->name, "%s, %u head%s",
                 count == heads ? "MHA"
                 : count == 1   ? "MQA"
                                : "GQA",
                 count, count == 1 ? "" : "s");
        fill_row(question, &kv, answer->tokens, row);
    }
}

static void fill_windows(const struct plan_question *question, const struct plan_kv *own,
                         struct plan_answer *answer)
{
    if (!own->window_layers)
        return;
    for (unsigned grouped = 0; grouped < 2; grouped++) {
        struct plan_row *row = &answer->windows[answer->window_count++];
        struct plan_kv kv = *own;
        kv.grouped = grouped;
        row->own = kv.grouped == own->grouped;
        snprintf(row->name, sizeof row->name, "%s",
                 grouped ? "only the window's pages" : "every page is kept");
        fill_row(question, &kv, answer->tokens, row);
    }
}

/* ---- The answer ---- */

static const char *users_text(uint32_t users, char out[static 40])
{
    char count[32];
    snprintf(out, 40, "%s user%s", print_count(users, count), users == 1 ? "" : "s");
    return out;
}

/* A budget as --memory takes it, never less than it is. */
static const char *memory_text(uint64_t bytes, char out[static 32])
{
    if (bytes < 10 * GIB)
        snprintf(out, 32, "%lluMiB", (unsigned long long)(bytes / MIB));
    else
        snprintf(out, 32, "%.1fGiB", (double)((bytes + GIB / 10 - 1) / (GIB / 10)) / 10);
    return out;
}

static void write_ways_out(const struct plan_answer *answer, struct buffer *out)
{
    char users[40], tokens[32], memory[32];
    const char *between = "; what fits: ";
    print_count(answer->tokens, tokens);
    if (answer->users_fit > 0) {
        buffer_appendf(out, "%s%s at %s tokens", between, users_text(answer->users_fit, users),
                       tokens);
        between = ", or ";
    }
    if (answer->tokens_fit >= CONTEXT_LEAST) {
        buffer_appendf(out, "%s%s at %s tokens", between, users_text(answer->users, users),
                       print_count(answer->tokens_fit, tokens));
        between = ", or ";
    }
    if (answer->least_bytes)
        buffer_appendf(out, "%sall of it with --memory %s", between,
                       memory_text(answer->least_bytes, memory));
}

static void write_sentence(const struct plan_answer *answer, struct buffer *out)
{
    char users[40], tokens[32], need[24], weights[24], other[24], rest[24];
    uint64_t weights_bytes = answer->plan.account_bytes[BUDGET_WEIGHTS];
    users_text(answer->users, users);
    print_count(answer->tokens, tokens);
    bytes_format(answer->need_bytes, need);
    bytes_format(weights_bytes, weights);
    bytes_format(answer->other_bytes, other);
    bytes_format(answer->yes ? answer->left_bytes : answer->missing_bytes, rest);
    buffer_appendf(
        out, "%s: %s%s%s at %s tokens need%s %s of KV beside %s%s and %s of all else",
        answer->yes ? "yes" : "no", answer->yes && !answer->asked ? "up to " : "", users,
        answer->yes && !answer->asked && answer->users_fit == PLAN_USERS_MOST ? " and more" : "",
        tokens, answer->users == 1 ? "s" : "", need, weights_bytes ? weights : "weights",
        weights_bytes ? " of weights" : " that were not given", other);
    if (answer->yes)
        buffer_appendf(out, "; %s are left", rest);
    else if (answer->missing_bytes)
        buffer_appendf(out, ", %s more than there are", rest);
    if (!answer->yes)
        write_ways_out(answer, out);
}

/* What the swap file adds: room for preempted sequences, never for running ones. */
static void fill_swap(struct plan_answer *answer)
{
    if (!answer->plan.engine.backend) /* nothing was planned */
        return;
    (void)engine_swap_room(&answer->plan.engine, &answer->swap_pages, &answer->swap_memory_bytes,
                           NULL);
    answer->swap_users = answer->swap_pages / plan_pages(&answer->plan, 1, answer->tokens);
}

/* What is needed and what is left. */
static void sum_up(struct plan_answer *answer)
{
    const struct plan *plan = &answer->plan;
    uint64_t weights = plan->account_bytes[BUDGET_WEIGHTS];
    answer->other_bytes = plan_kv_page_bytes(&plan->kv); /* the null page */
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++) {
        if (i != BUDGET_WEIGHTS && i != BUDGET_KV)
            answer->other_bytes = add(answer->other_bytes, plan->account_bytes[i]);
    }
    answer->need_bytes = multiply(answer->users, answer->own.user_bytes);
    uint64_t all = add(answer->need_bytes, add(answer->other_bytes, weights));
    if (all > plan->total_bytes)
        answer->missing_bytes = all - plan->total_bytes;
    else
        answer->left_bytes = plan->total_bytes - all;
}

void plan_answer_make(const struct plan_question *question, struct plan_answer *out)
{
    struct settings settings = *question->settings;
    memset(out, 0, sizeof *out);
    (void)plan_make(&question->model, &settings, &out->plan, NULL); /* for its kv and length */
    struct plan_kv own = out->plan.kv;
    out->tokens = out->plan.wanted;
    out->own.own = true;
    snprintf(out->own.name, sizeof out->own.name, "this");
    fill_row(question, &own, out->tokens, &out->own);
    out->users_fit = (uint32_t)out->own.users;
    out->asked = question->users > 0;
    out->users = out->asked ? question->users : max_u32(out->users_fit, 1);
    out->yes = out->users <= out->users_fit;
    fill_types(question, &own, out);
    fill_heads(question, &own, out);
    fill_windows(question, &own, out);

    out->max_seqs = max_u32(settings.max_seqs, out->users);
    settings.max_seqs = out->max_seqs;
    if (plan_make(&question->model, &settings, &out->plan, NULL) == STATUS_OK) {
        uint64_t each = (out->plan.backend.page_count - 1) / out->users;
        uint64_t tokens = plan_kv_tokens(&own, each);
        out->tokens_fit = min_u64(tokens, out->plan.context);
    }
    sum_up(out);
    fill_swap(out);
    out->least_bytes = plan_least_bytes(&question->model, &settings, out->users, out->tokens);
    struct buffer sentence;
    buffer_init(&sentence, 0);
    write_sentence(out, &sentence);
    snprintf(out->sentence, sizeof out->sentence, "%s", sentence.data ? sentence.data : "");
    buffer_deinit(&sentence);
}
