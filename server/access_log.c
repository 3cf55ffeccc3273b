/* The access log: see access_log.h. One table of fields is written as text and as JSON. */
#include "server/access_log.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define FIELDS_MAX 24

struct line {
    struct log_field fields[FIELDS_MAX];
    unsigned count;
};

static void add_text(struct line *line, const char *key, const char *text)
{
    if (text && *text)
        line->fields[line->count++] =
            (struct log_field){.key = key, .kind = LOG_VALUE_TEXT, .text = text};
}

static void add_count(struct line *line, const char *key, uint64_t count)
{
    line->fields[line->count++] =
        (struct log_field){.key = key, .kind = LOG_VALUE_COUNT, .count = count};
}

/* From one time to another, if there were both. */
static void add_ms(struct line *line, const char *key, uint64_t from_ns, uint64_t to_ns)
{
    if (from_ns && to_ns >= from_ns)
        line->fields[line->count++] = (struct log_field){
            .key = key, .kind = LOG_VALUE_MS, .ms = (double)(to_ns - from_ns) / 1e6};
}

static void add_work(struct line *line, const struct access_record *record)
{
    const struct answer_summary *work = record->work;
    line->fields[line->count++] =
        (struct log_field){.key = "stream", .kind = LOG_VALUE_FLAG, .flag = record->stream};
    add_count(line, "prompt_tokens", work->prompt_tokens);
    add_count(line, "cached_tokens", work->cached_tokens);
    add_count(line, "completion_tokens", work->completion_tokens);
    add_text(line, "finish", work->finish ? work->finish : "none");
    add_count(line, "seed", work->seed);
    add_ms(line, "queue_ms", work->submit_ns, work->admit_ns);
    add_ms(line, "first_token_ms", record->start_ns, work->first_token_ns);
    add_ms(line, "first_ms", record->start_ns, record->first_data_ns);
}

void access_log_write(const struct access_record *record)
{
    enum log_level level = record->quiet ? LOG_DEBUG : LOG_INFO;
    if (!log_enabled(level))
        return;
    char message[160];
    snprintf(message, sizeof message, "%.16s %.120s", record->method, record->target);
    struct line line = {.count = 0};
    add_text(&line, "id", record->id);
    add_text(&line, "client_id", record->client_id);
    add_text(&line, "trace_id", record->trace_id);
    add_text(&line, "client", record->client);
    if (record->key)
        add_count(&line, "key", record->key);
    add_text(&line, "route", record->route);
    add_count(&line, "status", record->status);
    add_ms(&line, "ms", record->start_ns, record->end_ns);
    if (record->error) {
        add_text(&line, "code", record->error->code);
        add_text(&line, "param", record->error->param);
        add_text(&line, "reason", record->error->message);
    }
    if (record->work)
        add_work(&line, record);
    log_write_fields(level, "request", message, line.fields, line.count);
}

/* `length` lower-case hexadecimal digits, not all of them zero unless they may be. */
static bool is_hex(const char *text, size_t length, bool may_be_zero)
{
    return strspn(text, "0123456789abcdef") >= length &&
           (may_be_zero || strspn(text, "0") < length);
}

void access_log_trace_id(const char *traceparent, char out[static TRACE_ID_BYTES])
{
    enum { VERSION = 0, TRACE = 3, PARENT = 36, FLAGS = 53, END = 55 };
    out[0] = '\0';
    if (!traceparent || strlen(traceparent) < END)
        return;
    const char *t = traceparent;
    bool later = strncmp(t, "00", 2) != 0; /* versions to come may be longer */
    if (!is_hex(t + VERSION, 2, true) || !strncmp(t, "ff", 2) || t[TRACE - 1] != '-' ||
        !is_hex(t + TRACE, 32, false) || t[PARENT - 1] != '-' || !is_hex(t + PARENT, 16, false) ||
        t[FLAGS - 1] != '-' || !is_hex(t + FLAGS, 2, true) || (t[END] && !(later && t[END] == '-')))
        return;
    memcpy(out, t + TRACE, TRACE_ID_BYTES - 1);
    out[TRACE_ID_BYTES - 1] = '\0';
}
