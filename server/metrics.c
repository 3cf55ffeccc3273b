/*
 * Prometheus text: see metrics.h. A family is written whole: HELP, TYPE, then its samples.
 * Histograms are read bucket by bucket while they grow; the count written is the sum of what was
 * read, so that buckets and count always agree.
 */
#include "server/metrics.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/memory_report.h"

#include <dirent.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *const route_names[HTTP_METRIC_ROUTES] = {
    "other",      "chat",    "completions", "models",   "model",      "health",
    "ready",      "metrics", "version",     "root",     "memory",     "cache_reset",
    "embeddings", "rerank",  "score",       "tokenize", "detokenize",
};
/* The first 0 ends the list and counts what is not in it. */
static const unsigned codes[HTTP_METRIC_CODES] = {200, 204, 400, 401, 403, 404, 405, 408, 413, 414,
                                                  415, 417, 429, 431, 499, 500, 501, 503, 505};

void http_metrics_count(struct http_metrics *metrics, const char *route, unsigned status)
{
    unsigned row = 0, column = 0;
    for (unsigned i = 1; route && i < HTTP_METRIC_ROUTES && route_names[i]; i++) {
        if (!strcmp(route_names[i], route))
            row = i;
    }
    while (codes[column] && codes[column] != status)
        column++;
    CHECK(column < HTTP_METRIC_CODES - 1); /* the list ends with zeros */
    metric_add(&metrics->requests[row][column], 1);
}

/* A label value: backslash, quote and line feed are escaped. */
static void append_label_value(struct buffer *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n')
            buffer_append_text(out, "\\n");
        else if (*text == '"' || *text == '\\')
            buffer_appendf(out, "\\%c", *text);
        else
            buffer_append(out, text, 1);
    }
}

struct writer {
    struct buffer *out;
    struct buffer labels; /* model_name="…",engine="0": as vLLM's */
};

static void family(struct writer *writer, const char *name, const char *type, const char *help)
{
    buffer_appendf(writer->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* One sample with the model's label. */
static void scalar(struct writer *writer, const char *name, const char *type, const char *help,
                   double value)
{
    family(writer, name, type, help);
    buffer_appendf(writer->out, "%s{%s} %.17g\n", name, writer->labels.data, value);
}

/* One sample without labels. */
static void plain(struct writer *writer, const char *name, const char *type, const char *help,
                  double value)
{
    family(writer, name, type, help);
    buffer_appendf(writer->out, "%s %.17g\n", name, value);
}

static void histogram(struct writer *writer, const char *name, const char *help,
                      const struct metric_histogram *data)
{
    family(writer, name, "histogram", help);
    uint64_t count = 0;
    for (unsigned i = 0; i <= data->bound_count; i++) {
        count += atomic_load_explicit(&data->buckets[i], memory_order_relaxed);
        char bound[32] = "+Inf";
        if (i < data->bound_count)
            snprintf(bound, sizeof bound, "%.10g", data->bounds[i]);
        buffer_appendf(writer->out, "%s_bucket{%s,le=\"%s\"} %" PRIu64 "\n", name,
                       writer->labels.data, bound, count);
    }
    buffer_appendf(writer->out, "%s_sum{%s} %.17g\n%s_count{%s} %" PRIu64 "\n", name,
                   writer->labels.data, metric_histogram_sum(data), name, writer->labels.data,
                   count);
}

/* ---- What the engine counts: a row for each ---- */

enum shape { COUNTER, GAUGE, MOST, HISTOGRAM }; /* MOST: a counter's field that is no total */

struct row {
    enum shape shape;
    const char *name;
    size_t offset; /* in struct engine_metrics */
    const char *help;
};
#define ROW(shape, name, field, help)                                                              \
    {                                                                                              \
        shape, name, offsetof(struct engine_metrics, field), help                                  \
    }

static const struct row engine_rows[] = {
    ROW(GAUGE, "vllm:num_requests_running", requests_running, "Sequences that hold pages."),
    ROW(GAUGE, "vllm:num_requests_waiting", requests_waiting, "Sequences waiting for a slot."),
    ROW(COUNTER, "vllm:prompt_tokens_total", prompt_tokens, "Prompt tokens processed."),
    ROW(COUNTER, "vllm:generation_tokens_total", generation_tokens, "Tokens generated."),
    ROW(COUNTER, "vllm:num_preemptions_total", preemptions, "Sequences that were preempted."),
    ROW(COUNTER, "vllm:prefix_cache_queries_total", prefix_queries,
        "Prompt tokens looked up in the prefix cache."),
    ROW(COUNTER, "vllm:prefix_cache_hits_total", prefix_hits,
        "Prompt tokens found in the prefix cache."),
    ROW(HISTOGRAM, "vllm:time_to_first_token_seconds", time_to_first_token,
        "From arrival to the first token."),
    ROW(HISTOGRAM, "vllm:inter_token_latency_seconds", inter_token,
        "Between two tokens of a sequence."),
    ROW(HISTOGRAM, "vllm:e2e_request_latency_seconds", end_to_end,
        "From arrival to the last token."),
    ROW(HISTOGRAM, "vllm:request_queue_time_seconds", queue_time, "Waiting for a slot."),
    ROW(HISTOGRAM, "vllm:request_prefill_time_seconds", prefill_time,
        "From the slot to the first token."),
    ROW(HISTOGRAM, "vllm:request_decode_time_seconds", decode_time,
        "From the first token to the last."),
    ROW(HISTOGRAM, "vllm:request_prompt_tokens", request_prompt_tokens,
        "Prompt tokens of a request."),
    ROW(HISTOGRAM, "vllm:request_generation_tokens", request_generation_tokens,
        "Tokens generated for a choice."),
    ROW(HISTOGRAM, "vllm:request_inference_time_seconds", inference_time,
        "From the slot to the last token."),
    ROW(HISTOGRAM, "vllm:request_time_per_output_token_seconds", time_per_output_token,
        "Mean time of a choice's tokens behind its first."),
    ROW(HISTOGRAM, "vllm:request_max_num_generation_tokens", request_max_generation_tokens,
        "Tokens generated for a request's longest choice."),
    ROW(HISTOGRAM, "vllm:request_params_n", params_n, "Choices that a request asked for."),
    ROW(HISTOGRAM, "vllm:request_params_max_tokens", params_max_tokens,
        "Tokens that a request may generate, cut to the context."),
    ROW(COUNTER, "vllm:gpu_prefix_cache_queries_total", prefix_queries,
        "Older name of vllm:prefix_cache_queries_total."),
    ROW(COUNTER, "vllm:gpu_prefix_cache_hits_total", prefix_hits,
        "Older name of vllm:prefix_cache_hits_total."),
    ROW(HISTOGRAM, "vllm:iteration_tokens_total", iteration_tokens, "Tokens of a step."),

    ROW(COUNTER, "quire_steps_total", steps, "Steps computed."),
    ROW(COUNTER, "quire_rows_computed_total", rows_computed,
        "Tokens through the model, recomputed ones included."),
    ROW(MOST, "quire_step_rows_max", step_rows_max, "Most tokens of a step so far."),
    ROW(MOST, "quire_step_sequences_max", step_sequences_max, "Most sequences of a step so far."),
    ROW(GAUGE, "quire_kv_pages", pages_total, "KV pages of the pool."),
    ROW(GAUGE, "quire_kv_pages_free", pages_free, "KV pages that no sequence holds."),
    ROW(GAUGE, "quire_kv_pages_cached", pages_cached,
        "Free pages that a later request may still find."),
    ROW(GAUGE, "quire_kv_pages_held_max", pages_held_max, "Most pages held at a time so far."),
    ROW(COUNTER, "quire_cache_resets_total", cache_resets, "Times the prefix cache was emptied."),

    ROW(GAUGE, "quire_swap_limit_bytes", swap_limit_bytes,
        "Bytes that the swap file may hold; 0: none."),
    ROW(GAUGE, "quire_swap_used_bytes", swap_used_bytes,
        "Bytes that sequences have in the swap file."),
    ROW(COUNTER, "quire_swap_out_total", swap_outs, "Sequences written to the swap file."),
    ROW(COUNTER, "quire_swap_in_total", swap_ins, "Sequences read back from the swap file."),
    ROW(COUNTER, "quire_swap_out_bytes_total", swap_out_bytes, "Bytes written to the swap file."),
    ROW(COUNTER, "quire_swap_in_bytes_total", swap_in_bytes, "Bytes read from the swap file."),
    ROW(COUNTER, "quire_swap_errors_total", swap_errors,
        "Writes and reads that failed, checksums that differed."),
    ROW(COUNTER, "quire_swap_fallbacks_total", swap_fallbacks,
        "Sequences recomputed because swapping them failed or had no room."),
};

/* Only with --cache-dir. */
static const struct row cache_dir_rows[] = {
    ROW(COUNTER, "quire_cache_dir_loads_total", cache_dir_loads,
        "KV pages brought back from --cache-dir at start."),
    ROW(COUNTER, "quire_cache_dir_hits_total", cache_dir_hit_tokens,
        "Prompt tokens found in pages that were brought back."),
    ROW(COUNTER, "quire_cache_dir_writes_total", cache_dir_writes, "KV pages written."),
    ROW(COUNTER, "quire_cache_dir_written_bytes_total", cache_dir_written_bytes, "Bytes of those."),
    ROW(COUNTER, "quire_cache_dir_errors_total", cache_dir_errors,
        "Pages that were damaged or could not be written."),
    ROW(GAUGE, "quire_cache_dir_pages", cache_dir_pages, "KV pages in the file."),
    ROW(GAUGE, "quire_cache_dir_bytes", cache_dir_bytes, "Bytes of those."),
};

static void write_rows(struct writer *writer, const struct engine_metrics *metrics,
                       const struct row *rows, size_t count)
{
    for (const struct row *row = rows; row < rows + count; row++) {
        const void *field = (const char *)metrics + row->offset;
        switch (row->shape) {
        case COUNTER:
        case MOST:
            scalar(writer, row->name, row->shape == COUNTER ? "counter" : "gauge", row->help,
                   (double)metric_get(field));
            break;
        case GAUGE:
            scalar(writer, row->name, "gauge", row->help, (double)metric_gauge_get(field));
            break;
        case HISTOGRAM:
            histogram(writer, row->name, row->help, field);
            break;
        }
    }
}

/* What has labels of its own, or is computed of several fields. */
static void write_engine(struct writer *writer, const struct engine_metrics *m)
{
    double total = (double)metric_gauge_get(&m->pages_total);
    double used = total - (double)metric_gauge_get(&m->pages_free);
    scalar(writer, "vllm:kv_cache_usage_perc", "gauge", "Share of KV pages in use, 0 to 1.",
           total > 0 ? used / total : 0);
    scalar(writer, "vllm:gpu_cache_usage_perc", "gauge", "Older name of vllm:kv_cache_usage_perc.",
           total > 0 ? used / total : 0);
    static const char *const reasons[FINISH_REASONS] = {
        [FINISH_STOP] = "stop",   [FINISH_LENGTH] = "length",   [FINISH_CANCELLED] = "abort",
        [FINISH_ERROR] = "error", [FINISH_TIMEOUT] = "timeout",
    };
    family(writer, "vllm:request_success_total", "counter", "Choices finished, by reason.");
    for (unsigned i = FINISH_NONE + 1; i < FINISH_REASONS; i++)
        buffer_appendf(writer->out,
                       "vllm:request_success_total{%s,finished_reason=\"%s\"} %" PRIu64 "\n",
                       writer->labels.data, reasons[i], metric_get(&m->finished[i]));
    static const char *const phases[ENGINE_PHASES] = {"idle", "planning", "forward", "sampling",
                                                      "committing"};
    family(writer, "quire_engine_seconds_total", "counter",
           "The engine thread's time, by what it was at.");
    for (unsigned i = 0; i < ENGINE_PHASES; i++)
        buffer_appendf(writer->out, "quire_engine_seconds_total{%s,phase=\"%s\"} %.9f\n",
                       writer->labels.data, phases[i], (double)metric_get(&m->phase_ns[i]) * 1e-9);
}

/* Routers tune themselves by it. */
static void write_cache_config(struct writer *writer, const struct runtime *runtime)
{
    const struct engine_metrics *metrics = engine_metrics(runtime->engine);
    family(writer, "vllm:cache_config_info", "gauge", "The KV pages; always 1.");
    buffer_appendf(writer->out,
                   "vllm:cache_config_info{%s,block_size=\"%u\",num_gpu_blocks=\"%.0f\"} 1\n",
                   writer->labels.data, runtime->backend->page_size,
                   (double)metric_gauge_get(&metrics->pages_total));
}

static void write_queue(struct writer *writer, const struct metrics_view *view)
{
    const struct engine *engine = view->runtime->engine;
    scalar(writer, "quire_queue_tokens", "gauge", "Prompt tokens waiting for a slot.",
           (double)engine_queued_tokens(engine));
    if (!view->key_count)
        return;
    family(writer, "quire_key_tokens_total", "counter",
           "Tokens computed for an API key (its number), each once.");
    for (unsigned i = 1; i <= view->key_count; i++)
        buffer_appendf(writer->out, "quire_key_tokens_total{%s,key=\"%u\"} %" PRIu64 "\n",
                       writer->labels.data, i, engine_tenant_tokens(engine, i));
}

/* One gauge with a sample for each account. */
static void write_accounts(struct writer *writer, const struct budget *budget, const char *name,
                           const char *help,
                           uint64_t (*value)(const struct budget *, enum budget_account))
{
    family(writer, name, "gauge", help);
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        buffer_appendf(writer->out, "%s{account=\"%s\"} %" PRIu64 "\n", name,
                       budget_account_name((enum budget_account)i),
                       value(budget, (enum budget_account)i));
}

static uint64_t account_limit(const struct budget *budget, enum budget_account account)
{
    return budget->cap_bytes[account];
}

static void write_budget(struct writer *writer, const struct budget *budget)
{
    write_accounts(writer, budget, "quire_memory_limit_bytes", "Bytes that an account may hold.",
                   account_limit);
    write_accounts(writer, budget, "quire_memory_used_bytes", "Bytes that an account holds.",
                   memory_account_used);
    write_accounts(writer, budget, "quire_memory_peak_bytes",
                   "Most bytes that an account held so far.", memory_account_peak);
    plain(writer, "quire_memory_budget_bytes", "gauge", "The whole budget, --memory.",
          (double)budget->total_bytes);
}

/* Below 0: /proc cannot be read. */
static int open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    if (!directory)
        return -1;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 3; /* ".", ".." and the directory itself */
}

static void write_process(struct writer *writer, const struct metrics_view *view)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double seconds = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
                     (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    /* What /proc does not tell is left out: 0 would be a figure. */
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    bool resident = file && fscanf(file, "%*u %llu", &pages) == 1;
    if (file)
        fclose(file);
    int descriptors = open_descriptors();
    plain(writer, "process_cpu_seconds_total", "counter", "CPU time of the process.", seconds);
    if (resident)
        plain(writer, "process_resident_memory_bytes", "gauge", "Resident memory.",
              (double)pages * (double)sysconf(_SC_PAGESIZE));
    if (descriptors >= 0)
        plain(writer, "process_open_fds", "gauge", "Open file descriptors.", descriptors);
    plain(writer, "process_start_time_seconds", "gauge", "Start, in seconds since 1970.",
          (double)view->start_unix_s);
}

static void write_http(struct writer *writer, const struct metrics_view *view)
{
    family(writer, "quire_http_requests_total", "counter",
           "Requests answered, by route and status; 499: the client left.");
    for (unsigned i = 0; i < HTTP_METRIC_ROUTES && route_names[i]; i++) {
        for (unsigned j = 0; j < HTTP_METRIC_CODES; j++) {
            uint64_t count = metric_get(&view->http->requests[i][j]);
            if (count)
                buffer_appendf(writer->out,
                               "quire_http_requests_total{route=\"%s\",code=\"%u\"} %" PRIu64 "\n",
                               route_names[i], codes[j], count);
        }
    }
    family(writer, "http_requests_total", "counter", "Requests answered, as vLLM counts them.");
    for (unsigned i = 0; i < HTTP_METRIC_ROUTES && route_names[i]; i++) {
        for (unsigned hundreds = 2; hundreds <= 5; hundreds++) {
            uint64_t count = 0;
            for (unsigned j = 0; j < HTTP_METRIC_CODES; j++)
                count += codes[j] / 100 == hundreds ? metric_get(&view->http->requests[i][j]) : 0;
            if (count)
                buffer_appendf(writer->out,
                               "http_requests_total{handler=\"%s\",status=\"%uxx\"} %" PRIu64 "\n",
                               route_names[i], hundreds, count);
        }
    }
    plain(writer, "quire_http_connections", "gauge", "Open connections.", view->connections);
    plain(writer, "quire_http_connections_dropped_total", "counter",
          "Connections closed for being idle, slow or stalled, or idle when others came.",
          (double)view->dropped_connections);
    plain(writer, "quire_http_requests_in_flight", "gauge", "Requests not yet answered to the end.",
          view->requests_in_flight);
    plain(writer, "quire_text_queue_length", "gauge",
          "Requests waiting for the preprocessing thread.", view->text_waiting);
    plain(writer, "quire_log_lines_dropped_total", "counter",
          "Log lines that standard error did not take.", (double)log_lost_lines());
    plain(writer, "quire_ready", "gauge", "1 when /ready says 200.",
          view->runtime && !view->draining && !view->stalled);
    plain(writer, "quire_watchdog_stalled", "gauge",
          "1 when the engine has work and makes no progress.", view->stalled);
    plain(writer, "quire_watchdog_stalls_total", "counter", "Times that began.",
          (double)view->stalls);
}

static void write_build_info(struct writer *writer, const struct runtime *runtime)
{
    family(writer, "quire_build_info", "gauge", "What runs; always 1.");
    buffer_appendf(writer->out, "quire_build_info{version=\"%s\"", QUIRE_VERSION);
    if (runtime)
        buffer_appendf(writer->out,
                       ",kernels=\"%s\",backend=\"%s\",kv_type=\"%s\",memory_budget=\"%" PRIu64
                       "\",max_model_len=\"%u\"",
                       runtime->backend->kernels, runtime->backend->name, runtime->backend->kv_type,
                       runtime->budget.total_bytes, runtime->api.max_model_len);
    buffer_append_text(writer->out, "} 1\n");
}

void metrics_render(const struct metrics_view *view, struct buffer *out)
{
    struct writer writer = {.out = out};
    buffer_init(&writer.labels, 0);
    write_build_info(&writer, view->runtime);
    write_http(&writer, view);
    write_process(&writer, view);
    if (view->runtime) {
        buffer_append_text(&writer.labels, "model_name=\"");
        append_label_value(&writer.labels, view->runtime->api.model_names[0]);
        buffer_append_text(&writer.labels, "\",engine=\"0\"");
        const struct engine_metrics *metrics = engine_metrics(view->runtime->engine);
        write_rows(&writer, metrics, engine_rows, sizeof engine_rows / sizeof engine_rows[0]);
        if (view->runtime->cache_dir)
            write_rows(&writer, metrics, cache_dir_rows,
                       sizeof cache_dir_rows / sizeof cache_dir_rows[0]);
        write_cache_config(&writer, view->runtime);
        write_engine(&writer, metrics);
        write_queue(&writer, view);
        write_budget(&writer, &view->runtime->budget);
    }
    buffer_deinit(&writer.labels);
}
