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
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *const route_names[HTTP_METRIC_ROUTES] = {
    "other", "chat",    "completions", "models", "model",  "health",
    "ready", "metrics", "version",     "root",   "memory", "cache_reset",
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
    struct buffer labels; /* model_name="…" */
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

static double gauge_of(const metric_gauge *gauge)
{
    return (double)atomic_load_explicit(gauge, memory_order_relaxed);
}

static void write_vllm(struct writer *writer, const struct engine_metrics *m)
{
    double total = gauge_of(&m->pages_total);
    double used = total - gauge_of(&m->pages_free);
    scalar(writer, "vllm:num_requests_running", "gauge", "Sequences that hold pages.",
           gauge_of(&m->requests_running));
    scalar(writer, "vllm:num_requests_waiting", "gauge", "Sequences waiting for a place.",
           gauge_of(&m->requests_waiting));
    scalar(writer, "vllm:kv_cache_usage_perc", "gauge", "Share of KV pages in use, 0 to 1.",
           total > 0 ? used / total : 0);
    scalar(writer, "vllm:prompt_tokens_total", "counter", "Prompt tokens processed.",
           (double)metric_get(&m->prompt_tokens));
    scalar(writer, "vllm:generation_tokens_total", "counter", "Tokens generated.",
           (double)metric_get(&m->generation_tokens));
    scalar(writer, "vllm:num_preemptions_total", "counter", "Sequences that gave up their pages.",
           (double)metric_get(&m->preemptions));
    scalar(writer, "vllm:prefix_cache_queries_total", "counter",
           "Prompt tokens looked up in the prefix cache.", (double)metric_get(&m->prefix_queries));
    scalar(writer, "vllm:prefix_cache_hits_total", "counter",
           "Prompt tokens found in the prefix cache.", (double)metric_get(&m->prefix_hits));
    static const struct {
        enum finish_reason reason;
        const char *label;
    } reasons[] = {{FINISH_STOP, "stop"},
                   {FINISH_LENGTH, "length"},
                   {FINISH_CANCELLED, "abort"},
                   {FINISH_ERROR, "error"},
                   {FINISH_TIMEOUT, "timeout"}};
    family(writer, "vllm:request_success_total", "counter", "Choices finished, by reason.");
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        buffer_appendf(writer->out,
                       "vllm:request_success_total{%s,finished_reason=\"%s\"} %" PRIu64 "\n",
                       writer->labels.data, reasons[i].label,
                       (uint64_t)metric_get(&m->finished[reasons[i].reason]));
    histogram(writer, "vllm:time_to_first_token_seconds", "From arrival to the first token.",
              &m->time_to_first_token);
    histogram(writer, "vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
              &m->inter_token);
    histogram(writer, "vllm:e2e_request_latency_seconds", "From arrival to the last token.",
              &m->end_to_end);
    histogram(writer, "vllm:request_queue_time_seconds", "Waiting for a place.", &m->queue_time);
    histogram(writer, "vllm:request_prefill_time_seconds", "From the place to the first token.",
              &m->prefill_time);
    histogram(writer, "vllm:request_decode_time_seconds", "From the first token to the last.",
              &m->decode_time);
    histogram(writer, "vllm:request_prompt_tokens", "Prompt tokens of a request.",
              &m->request_prompt_tokens);
    histogram(writer, "vllm:request_generation_tokens", "Tokens generated for a choice.",
              &m->request_generation_tokens);
    histogram(writer, "vllm:iteration_tokens_total", "Rows of a step.", &m->iteration_tokens);
}

static void write_queue(struct writer *writer, const struct metrics_view *view)
{
    const struct engine *engine = view->runtime->engine;
    scalar(writer, "quire_queue_tokens", "gauge", "Prompt tokens waiting for a place.",
           (double)engine_queued_tokens(engine));
    if (!view->key_count)
        return;
    family(writer, "quire_key_tokens_total", "counter",
           "Tokens computed for an API key (its number), each once.");
    for (unsigned i = 1; i <= view->key_count; i++)
        buffer_appendf(writer->out, "quire_key_tokens_total{%s,key=\"%u\"} %" PRIu64 "\n",
                       writer->labels.data, i, engine_tenant_tokens(engine, i));
}

static void write_swap(struct writer *writer, const struct engine_metrics *m)
{
    scalar(writer, "quire_swap_limit_bytes", "gauge", "Bytes that the swap file may hold; 0: none.",
           gauge_of(&m->swap_limit_bytes));
    scalar(writer, "quire_swap_used_bytes", "gauge", "Bytes that sequences have in the swap file.",
           gauge_of(&m->swap_used_bytes));
    scalar(writer, "quire_swap_out_total", "counter", "Sequences written to the swap file.",
           (double)metric_get(&m->swap_outs));
    scalar(writer, "quire_swap_in_total", "counter", "Sequences brought back from the swap file.",
           (double)metric_get(&m->swap_ins));
    scalar(writer, "quire_swap_out_bytes_total", "counter", "Bytes written to the swap file.",
           (double)metric_get(&m->swap_out_bytes));
    scalar(writer, "quire_swap_in_bytes_total", "counter", "Bytes read from the swap file.",
           (double)metric_get(&m->swap_in_bytes));
    scalar(writer, "quire_swap_errors_total", "counter",
           "Writes and reads that failed, checksums that differed.",
           (double)metric_get(&m->swap_errors));
    scalar(writer, "quire_swap_fallbacks_total", "counter",
           "Sequences computed again because swapping them failed or had no room.",
           (double)metric_get(&m->swap_fallbacks));
}

static void write_engine(struct writer *writer, const struct engine_metrics *m)
{
    scalar(writer, "quire_steps_total", "counter", "Steps computed.",
           (double)metric_get(&m->steps));
    scalar(writer, "quire_rows_computed_total", "counter",
           "Rows through the model, recomputed ones included.",
           (double)metric_get(&m->rows_computed));
    static const char *const phases[ENGINE_PHASES] = {"idle", "planning", "forward", "sampling",
                                                      "committing"};
    family(writer, "quire_engine_seconds_total", "counter",
           "The engine thread's time, by what it was at.");
    for (unsigned i = 0; i < ENGINE_PHASES; i++)
        buffer_appendf(writer->out, "quire_engine_seconds_total{%s,phase=\"%s\"} %.9f\n",
                       writer->labels.data, phases[i], (double)metric_get(&m->phase_ns[i]) * 1e-9);
    scalar(writer, "quire_step_rows_max", "gauge", "Most rows of a step so far.",
           (double)metric_get(&m->step_rows_max));
    scalar(writer, "quire_step_sequences_max", "gauge", "Most sequences of a step so far.",
           (double)metric_get(&m->step_sequences_max));
    scalar(writer, "quire_kv_pages", "gauge", "KV pages of the pool.", gauge_of(&m->pages_total));
    scalar(writer, "quire_kv_pages_free", "gauge", "KV pages that no sequence holds.",
           gauge_of(&m->pages_free));
    scalar(writer, "quire_kv_pages_cached", "gauge",
           "Free pages that a later request may still find.", gauge_of(&m->pages_cached));
    scalar(writer, "quire_kv_pages_held_max", "gauge", "Most pages held at a time so far.",
           gauge_of(&m->pages_held_max));
    scalar(writer, "quire_cache_resets_total", "counter", "Times the prefix cache was emptied.",
           (double)metric_get(&m->cache_resets));
}

static void write_cache_dir(struct writer *writer, const struct engine_metrics *m)
{
    scalar(writer, "quire_cache_dir_loads_total", "counter",
           "KV pages brought back from --cache-dir at start.",
           (double)metric_get(&m->cache_dir_loads));
    scalar(writer, "quire_cache_dir_hits_total", "counter",
           "Prompt tokens found in pages that were brought back.",
           (double)metric_get(&m->cache_dir_hit_tokens));
    scalar(writer, "quire_cache_dir_writes_total", "counter", "KV pages written.",
           (double)metric_get(&m->cache_dir_writes));
    scalar(writer, "quire_cache_dir_written_bytes_total", "counter", "Bytes of those.",
           (double)metric_get(&m->cache_dir_written_bytes));
    scalar(writer, "quire_cache_dir_errors_total", "counter",
           "Pages that were damaged or could not be written.",
           (double)metric_get(&m->cache_dir_errors));
    scalar(writer, "quire_cache_dir_pages", "gauge", "KV pages in the file.",
           gauge_of(&m->cache_dir_pages));
    scalar(writer, "quire_cache_dir_bytes", "gauge", "Bytes of those.",
           gauge_of(&m->cache_dir_bytes));
}

static void write_budget(struct writer *writer, const struct budget *budget)
{
    family(writer, "quire_memory_limit_bytes", "gauge", "Bytes that an account may hold.");
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        buffer_appendf(writer->out, "quire_memory_limit_bytes{account=\"%s\"} %" PRIu64 "\n",
                       budget_account_name((enum budget_account)i), budget->cap_bytes[i]);
    family(writer, "quire_memory_used_bytes", "gauge", "Bytes that an account holds.");
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        buffer_appendf(writer->out, "quire_memory_used_bytes{account=\"%s\"} %" PRIu64 "\n",
                       budget_account_name((enum budget_account)i),
                       memory_account_used(budget, (enum budget_account)i));
    family(writer, "quire_memory_peak_bytes", "gauge", "Most bytes that an account held so far.");
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        buffer_appendf(writer->out, "quire_memory_peak_bytes{account=\"%s\"} %" PRIu64 "\n",
                       budget_account_name((enum budget_account)i),
                       memory_account_peak(budget, (enum budget_account)i));
    plain(writer, "quire_memory_budget_bytes", "gauge", "The whole budget, --memory.",
          (double)budget->total_bytes);
}

static unsigned open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count > 3 ? count - 3 : 0; /* ".", ".." and the directory itself */
}

static void write_process(struct writer *writer, const struct metrics_view *view)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double seconds = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
                     (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%*u %llu", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    plain(writer, "process_cpu_seconds_total", "counter", "CPU time of the process.", seconds);
    plain(writer, "process_resident_memory_bytes", "gauge", "Resident memory.",
          (double)pages * (double)sysconf(_SC_PAGESIZE));
    plain(writer, "process_open_fds", "gauge", "Open file descriptors.", open_descriptors());
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
        buffer_append_text(&writer.labels, "\"");
        write_vllm(&writer, engine_metrics(view->runtime->engine));
        write_engine(&writer, engine_metrics(view->runtime->engine));
        write_swap(&writer, engine_metrics(view->runtime->engine));
        if (view->runtime->cache_dir)
            write_cache_dir(&writer, engine_metrics(view->runtime->engine));
        write_queue(&writer, view);
        write_budget(&writer, &view->runtime->budget);
    }
    buffer_deinit(&writer.labels);
}
