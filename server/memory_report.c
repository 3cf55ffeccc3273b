/* See memory_report.h. Pages are counted while they change hands, so that held and free may be of
   two moments; what is written adds up all the same. */
#include "server/memory_report.h"

#include "api/chat_template.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "VmRSS: 1234 kB" of /proc/self/status in bytes; null when it cannot be read. */
static void write_process_bytes(const char *name, struct buffer *out)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long long kib = 0;
    bool found = false;
    size_t length = strlen(name);
    while (file && !found && fgets(line, sizeof line, file))
        found = !strncmp(line, name, length) && sscanf(line + length, ": %llu kB", &kib) == 1;
    if (file)
        fclose(file);
    if (found)
        buffer_appendf(out, "%llu", kib * 1024);
    else
        buffer_append_text(out, "null");
}

uint64_t memory_account_used(const struct budget *budget, enum budget_account account)
{
    return account == BUDGET_TEMPLATE ? chat_template_memory_used() : budget_used(budget, account);
}

uint64_t memory_account_peak(const struct budget *budget, enum budget_account account)
{
    return account == BUDGET_TEMPLATE ? chat_template_memory_peak() : budget_peak(budget, account);
}

static void write_accounts(const struct budget *budget, struct buffer *out)
{
    uint64_t limits = 0;
    buffer_append_text(out, ",\"accounts\":{");
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++) {
        enum budget_account account = (enum budget_account)i;
        limits += budget->cap_bytes[i];
        buffer_appendf(out,
                       "%s\"%s\":{\"limit_bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64
                       ",\"peak_bytes\":%" PRIu64 "}",
                       i ? "," : "", budget_account_name(account), budget->cap_bytes[i],
                       memory_account_used(budget, account), memory_account_peak(budget, account));
    }
    buffer_appendf(out, "},\"unassigned_bytes\":%" PRIu64, budget->total_bytes - limits);
}

static void write_pages(const struct runtime *runtime, struct buffer *out)
{
    const struct engine_metrics *metrics = engine_metrics(runtime->engine);
    const struct backend *backend = runtime->backend;
    int64_t total = metric_gauge_get(&metrics->pages_total),
            free = metric_gauge_get(&metrics->pages_free);
    int64_t cached = metric_gauge_get(&metrics->pages_cached);
    cached = cached < free ? cached : free;
    buffer_appendf(
        out,
        ",\"pages\":{\"tokens\":%u,\"bytes\":%" PRIu64 ",\"total\":%" PRId64 ",\"held\":%" PRId64
        ",\"held_max\":%" PRId64 ",\"cached\":%" PRId64 ",\"free\":%" PRId64 "}",
        backend->page_size, runtime->budget.cap_bytes[BUDGET_KV] / backend->page_count, total,
        total - free, metric_gauge_get(&metrics->pages_held_max), cached, free - cached);
}

static void write_swap(const struct engine_metrics *metrics, struct buffer *out)
{
    buffer_appendf(
        out,
        ",\"swap\":{\"limit_bytes\":%" PRId64 ",\"used_bytes\":%" PRId64 ",\"out_bytes\":%" PRIu64
        ",\"in_bytes\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"fallbacks\":%" PRIu64 "}",
        metric_gauge_get(&metrics->swap_limit_bytes), metric_gauge_get(&metrics->swap_used_bytes),
        (uint64_t)metric_get(&metrics->swap_out_bytes),
        (uint64_t)metric_get(&metrics->swap_in_bytes), (uint64_t)metric_get(&metrics->swap_errors),
        (uint64_t)metric_get(&metrics->swap_fallbacks));
}

void memory_report(const struct runtime *runtime, struct buffer *out)
{
    buffer_appendf(
        out, "{\"budget_bytes\":%" PRIu64 ",\"resident_bytes\":", runtime->budget.total_bytes);
    write_process_bytes("VmRSS", out);
    buffer_append_text(out, ",\"resident_peak_bytes\":");
    write_process_bytes("VmHWM", out);
    write_accounts(&runtime->budget, out);
    write_pages(runtime, out);
    write_swap(engine_metrics(runtime->engine), out);
    buffer_append_text(out, "}\n");
}
