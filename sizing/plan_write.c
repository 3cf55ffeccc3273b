/* The answer of `quire plan` for people and as JSON: see plan_answer.h. */
#include "sizing/plan_answer.h"

#include "base/bytes.h"
#include "base/json_writer.h"
#include "base/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Text ---- */

static void write_header(const struct plan_words *words, const struct plan_answer *answer,
                         struct buffer *out)
{
    const struct model_config *config = words->model->config;
    char tokens[32];
    print_name(out, words->name, strlen(words->name));
    buffer_appendf(out, ": %u layers, %u heads over %u key/value heads of %u", config->layers,
                   config->heads, config->kv_heads, config->head_dim);
    if (config->window_layers)
        buffer_appendf(out, ", %u layers see the last %s tokens only", config->window_layers,
                       print_count(config->window, tokens));
    buffer_append_text(out, "\n");
    if (!words->model->gguf)
        buffer_appendf(out,
                       "(no file: width %u, feed-forward %u and %u tokens of vocabulary are taken "
                       "for granted%s)\n",
                       config->embedding, config->feed_forward, config->vocabulary,
                       config->tensor_bytes ? "" : "; without --weights no times");
    buffer_appendf(out, "\n%s\n", answer->sentence);
    if (words->settings->context > config->context)
        buffer_appendf(out, "(longer sequences are not served: the model was trained for %s)\n",
                       print_count(config->context, tokens));
}

static void write_table(const char *title, const struct plan_row *rows, unsigned count,
                        struct buffer *out)
{
    buffer_appendf(out,
                   "\n| %s | a token | a page | a user | users that fit |\n"
                   "|---|---:|---:|---:|---:|\n",
                   title);
    for (unsigned i = 0; i < count; i++) {
        const struct plan_row *row = &rows[i];
        char token[24], page[24], user[24], users[32];
        if (!row->token_bytes) {
            buffer_appendf(out, "| %s | heads of %u are no whole blocks | | | |\n", row->name,
                           row->kv.head_dim);
            continue;
        }
        buffer_appendf(out, "| %s%s | %s | %s | %s | %s%s |\n", row->name,
                       row->own && count > 1 ? " (this)" : "",
                       bytes_format(row->token_bytes, token), bytes_format(row->page_bytes, page),
                       bytes_format(row->user_bytes, user), print_count(row->users, users),
                       row->users == PLAN_USERS_MOST ? " or more" : "");
    }
}

static void write_budget(const struct plan_answer *answer, struct buffer *out)
{
    const struct plan *plan = &answer->plan;
    char text[24];
    buffer_appendf(out, "\nmemory budget\n");
    uint64_t sum = 0;
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++) {
        buffer_appendf(out, "  %-10s %12s\n", budget_account_name((enum budget_account)i),
                       bytes_format(plan->account_bytes[i], text));
        sum += plan->account_bytes[i];
    }
    if (sum <= plan->total_bytes)
        buffer_appendf(out, "  %-10s %12s\n", "free", bytes_format(plan->total_bytes - sum, text));
    buffer_appendf(out, "  %-10s %12s\n", "total", bytes_format(plan->total_bytes, text));
    if (plan->backend.page_count > 0)
        buffer_appendf(
            out,
            "kv_pool: %u pages of %u tokens in %s, context %u, up to %u sequences%s, steps "
            "of up to %u tokens\n",
            plan->backend.page_count - 1, plan->backend.page_size, kv_type_name(plan->kv.type),
            plan->context, answer->max_seqs, plan->capped ? PLAN_CAPPED : "",
            plan->backend.max_batch_rows);
    if (answer->swap_pages > 0) {
        char users[32], tokens[32];
        buffer_appendf(
            out,
            "swap: %u pages of preempted sequences, room for %s user%s at %s tokens beside "
            "those in the pool; %s of scratch are for it\n",
            answer->swap_pages, print_count(answer->swap_users, users),
            answer->swap_users == 1 ? "" : "s", print_count(answer->tokens, tokens),
            bytes_format(answer->swap_memory_bytes, text));
    }
}

static void write_one_time(struct buffer *out, const char *what, double seconds, double tokens)
{
    char time[32];
    if (seconds < 1)
        snprintf(time, sizeof time, "%.1f ms", seconds * 1e3);
    else
        snprintf(time, sizeof time, "%.1f s", seconds);
    buffer_appendf(out, "  %-44s %12s %10.1f tokens/s\n", what, time, tokens / seconds);
}

static void write_times(const struct plan_words *words, const struct plan_answer *answer,
                        struct buffer *out)
{
    const struct plan_times *times = &answer->times;
    char what[64], count[32];
    if (!times->measured)
        return;
    buffer_appendf(out,
                   "\nOn this machine, from its products and attention alone (%s kernels, %u "
                   "thread%s; it reads memory at %.1f GB/s)\n",
                   words->model->kernels->name, words->settings->threads,
                   words->settings->threads == 1 ? "" : "s", times->read_bytes_s * 1e-9);
    write_one_time(out, "a token of one user alone", times->token_s, 1);
    if (answer->users > 1) {
        snprintf(what, sizeof what, "a token for each of %s users",
                 print_count(answer->users, count));
        write_one_time(out, what, times->step_s, answer->users);
    }
    snprintf(what, sizeof what, "a prompt of %s tokens", print_count(times->short_prompt, count));
    write_one_time(out, what, times->short_prompt_s, times->short_prompt);
    if (times->short_prompt < answer->tokens) {
        snprintf(what, sizeof what, "a prompt of %s tokens", print_count(answer->tokens, count));
        write_one_time(out, what, times->prompt_s, answer->tokens);
    }
}

void plan_write_text(const struct plan_words *words, const struct plan_answer *answer,
                     struct buffer *out)
{
    char title[64], page[24], tokens[32];
    write_header(words, answer, out);
    write_budget(answer, out);
    if (answer->type_count) {
        snprintf(title, sizeof title, "KV type, users of %s tokens",
                 print_count(answer->tokens, tokens));
        write_table(title, answer->types, answer->type_count, out);
    }
    if (answer->head_count > 1)
        write_table("key/value heads", answer->heads, answer->head_count, out);
    if (answer->window_count)
        write_table("sliding windows", answer->windows, answer->window_count, out);
    const struct plan_kv *kv = &answer->own.kv;
    buffer_appendf(out, "\nA page holds %u tokens of %llu layer%s: %s.\n", kv->page_size,
                   (unsigned long long)(answer->own.page_bytes * kv->layers /
                                        (answer->own.token_bytes * kv->page_size)),
                   kv->layers == 1 ? "" : "s", bytes_format(answer->own.page_bytes, page));
    write_times(words, answer, out);
    if (words->start)
        buffer_appendf(out, "\n    %s\n", words->start);
}

/* ---- JSON ---- */

static void json_row(const struct plan_row *row, struct buffer *out)
{
    const char *type = kv_type_name(row->kv.type);
    buffer_appendf(out, "{\"name\":\"%s\",\"this\":%s,\"kv_heads\":%u,\"type\":\"%s\"", row->name,
                   row->own ? "true" : "false", row->kv.kv_heads, type);
    if (row->token_bytes)
        buffer_appendf(out,
                       ",\"token_bytes\":%" PRIu64 ",\"page_bytes\":%" PRIu64
                       ",\"user_bytes\":%" PRIu64 ",\"users\":%" PRIu64 "}",
                       row->token_bytes, row->page_bytes, row->user_bytes, row->users);
    else
        buffer_append_text(out, ",\"token_bytes\":null,\"page_bytes\":null,\"user_bytes\":null,"
                                "\"users\":null}");
}

static void json_rows(const char *key, const struct plan_row *rows, unsigned count,
                      struct buffer *out)
{
    buffer_appendf(out, ",\"%s\":[", key);
    for (unsigned i = 0; i < count; i++) {
        buffer_append_text(out, i ? "," : "");
        json_row(&rows[i], out);
    }
    buffer_append_text(out, "]");
}

static void json_model(const struct plan_words *words, struct buffer *out)
{
    const struct model_config *config = words->model->config;
    buffer_append_text(out, ",\"model\":{\"name\":");
    json_write_printable_text(out, words->name);
    buffer_appendf(out,
                   ",\"layers\":%u,\"heads\":%u,\"kv_heads\":%u,\"head_dim\":%u,\"vocabulary\":%u,"
                   "\"context\":%u,\"window\":%u,\"window_layers\":%u}",
                   config->layers, config->heads, config->kv_heads, config->head_dim,
                   config->vocabulary, config->context, config->window, config->window_layers);
}

static void json_budget(const struct plan_answer *answer, struct buffer *out)
{
    const struct plan *plan = &answer->plan;
    buffer_appendf(out, ",\"memory_bytes\":%" PRIu64 ",\"accounts\":{", plan->total_bytes);
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        buffer_appendf(out, "%s\"%s\":%" PRIu64, i ? "," : "",
                       budget_account_name((enum budget_account)i), plan->account_bytes[i]);
    buffer_appendf(out,
                   "},\"pool\":{\"pages\":%u,\"page_tokens\":%u,\"page_bytes\":%" PRIu64
                   ",\"context\":%u,\"max_seqs\":%u,\"max_batch_tokens\":%u,"
                   "\"capped\":%s}",
                   plan->backend.page_count ? plan->backend.page_count - 1 : 0,
                   plan->backend.page_size, answer->own.page_bytes, plan->context, answer->max_seqs,
                   plan->backend.max_batch_rows, plan->capped ? "true" : "false");
}

static void json_times(const struct plan_words *words, const struct plan_answer *answer,
                       struct buffer *out)
{
    const struct plan_times *times = &answer->times;
    if (!times->measured) {
        buffer_append_text(out, ",\"times\":null");
        return;
    }
    buffer_appendf(out,
                   ",\"times\":{\"kernels\":\"%s\",\"threads\":%u,\"read_bytes_per_second\":%.6g,"
                   "\"token_seconds\":%.6g,\"step_seconds\":%.6g,\"prompts\":[{\"tokens\":%u,"
                   "\"seconds\":%.6g},{\"tokens\":%u,\"seconds\":%.6g}]}",
                   words->model->kernels->name, words->settings->threads, times->read_bytes_s,
                   times->token_s, times->step_s, times->short_prompt, times->short_prompt_s,
                   answer->tokens, times->prompt_s);
}

void plan_write_json(const struct plan_words *words, const struct plan_answer *answer,
                     struct buffer *out)
{
    buffer_appendf(out, "{\"fits\":%s,\"answer\":", answer->yes ? "true" : "false");
    json_write_printable_text(out, answer->sentence);
    json_model(words, out);
    buffer_appendf(out,
                   ",\"users\":%u,\"users_asked\":%s,\"context\":%u,\"users_fit\":%u,"
                   "\"context_fit\":%" PRIu64 ",\"least_memory_bytes\":",
                   answer->users, answer->asked ? "true" : "false", answer->tokens,
                   answer->users_fit, answer->tokens_fit);
    if (answer->least_bytes)
        buffer_appendf(out, "%" PRIu64, answer->least_bytes);
    else
        buffer_append_text(out, "null");
    buffer_appendf(out,
                   ",\"kv_bytes\":%" PRIu64 ",\"weights_bytes\":%" PRIu64
                   ",\"other_bytes\":%" PRIu64 ",\"left_bytes\":%" PRIu64
                   ",\"missing_bytes\":%" PRIu64,
                   answer->need_bytes, answer->plan.account_bytes[BUDGET_WEIGHTS],
                   answer->other_bytes, answer->left_bytes, answer->missing_bytes);
    json_budget(answer, out);
    if (answer->swap_pages)
        buffer_appendf(
            out, ",\"swap\":{\"pages\":%u,\"users\":%" PRIu64 ",\"memory_bytes\":%" PRIu64 "}",
            answer->swap_pages, answer->swap_users, answer->swap_memory_bytes);
    else
        buffer_append_text(out, ",\"swap\":null");
    buffer_append_text(out, ",\"kv\":");
    json_row(&answer->own, out);
    json_rows("kv_types", answer->types, answer->type_count, out);
    json_rows("head_counts", answer->heads, answer->head_count, out);
    json_rows("windows", answer->windows, answer->window_count, out);
    json_times(words, answer, out);
    buffer_append_text(out, ",\"start\":");
    if (words->start)
        json_write_printable_text(out, words->start);
    else
        buffer_append_text(out, "null");
    buffer_append_text(out, "}\n");
}
