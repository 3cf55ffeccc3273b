/*
 * Log lines on standard error: see log.h.
 *
 * The writer's thread may block in write() for ever: nobody waits for it but log_stop, and that
 * with a bound. Standard error stays in blocking mode: O_NONBLOCK belongs to the open file, which
 * other processes may share (a terminal, a supervisor's pipe).
 */
#include "base/log.h"

#include "base/buffer.h"
#include "base/check.h"
#include "base/costs.h"
#include "base/json_writer.h"
#include "base/log_ring.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Fixed after log_init. */
static enum log_format chosen_format = LOG_TEXT;
static enum log_level least_level = LOG_INFO;

static atomic_uint_fast64_t lost_lines;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t news;  /* a record, or stop */
    pthread_cond_t ended; /* idle became true */
    pthread_t thread;
    /* under lock */
    struct log_ring ring;
    bool runs, stop;
    bool idle; /* everything is written, or lost */
} writer = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_init(enum log_format format, enum log_level least)
{
    chosen_format = format;
    least_level = least;
}

bool log_enabled(enum log_level level)
{
    return level >= least_level;
}

uint64_t log_lost_lines(void)
{
    return atomic_load_explicit(&lost_lines, memory_order_relaxed);
}

static void count_lost(uint64_t count)
{
    atomic_fetch_add_explicit(&lost_lines, count, memory_order_relaxed);
}

/* ---- lines ---- */

/* In a text line: what is no text or would end the line is escaped as in JSON, quotes stay. */
static void append_plain(struct buffer *line, const char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        int size = utf8_decode(text + i, length - i, &code_point);
        if (size <= 0) {
            buffer_append_text(line, "\xef\xbf\xbd");
            i++;
            continue;
        }
        if (code_point < 0x20 || code_point == 0x7f)
            buffer_appendf(line, "\\u%04x", (unsigned)code_point);
        else
            buffer_append(line, text + i, (size_t)size);
        i += (size_t)size;
    }
}

static void append_field(struct buffer *line, const struct log_field *field, bool json)
{
    if (field->kind == LOG_VALUE_TEXT && !field->text)
        return;
    buffer_appendf(line, json ? ",\"%s\":" : " %s=", field->key);
    switch (field->kind) {
    case LOG_VALUE_TEXT:
        if (json || !*field->text || strpbrk(field->text, " \"="))
            json_write_printable_text(line, field->text);
        else
            append_plain(line, field->text);
        break;
    case LOG_VALUE_COUNT:
        buffer_appendf(line, "%" PRIu64, field->count);
        break;
    case LOG_VALUE_MS:
        buffer_appendf(line, "%.1f", field->ms);
        break;
    case LOG_VALUE_FLAG:
        buffer_append_text(line, field->flag ? "true" : "false");
        break;
    }
}

static void make_line(enum log_level level, const char *event, const char *message,
                      const struct log_field *fields, unsigned count, struct buffer *line)
{
    struct timespec now;
    struct tm utc;
    char stamp[32];
    bool json = chosen_format == LOG_JSON;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    unsigned ms = (unsigned)(now.tv_nsec / 1000000);
    if (json) {
        buffer_appendf(
            line, "{\"time\":\"%s.%03uZ\",\"level\":\"%s\",\"event\":\"%s\",\"message\":", stamp,
            ms, level_names[level], event);
        json_write_printable_text(line, message);
    } else {
        buffer_appendf(line, "%s.%03uZ %-5s %s: ", stamp, ms, level_names[level], event);
        append_plain(line, message);
    }
    for (unsigned i = 0; i < count; i++)
        append_field(line, &fields[i], json);
    buffer_append_text(line, json ? "}\n" : "\n");
}

/* ---- the writer ---- */

/* What the writer's thread knows of standard error. */
struct output {
    uint64_t untold; /* lines lost since the last one that was written */
    bool failing;    /* the last write failed */
    bool torn;       /* it ended inside a line */
};

/* Blocks. False when standard error is gone or full. */
static bool write_parts(struct output *output, struct iovec *parts, int count)
{
    while (count > 0) {
        ssize_t put = writev(STDERR_FILENO, parts, count);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            /* Somebody who shares the open file made it non-blocking. */
            poll(&(struct pollfd){.fd = STDERR_FILENO, .events = POLLOUT}, 1, -1);
            continue;
        }
        if (put <= 0)
            return false;
        output->torn = true;
        while (count > 0 && (size_t)put >= parts->iov_len) {
            put -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + put;
            parts->iov_len -= (size_t)put;
        }
    }
    output->torn = false;
    return true;
}

static bool write_line(struct output *output, const char *const part[2], const size_t length[2])
{
    struct iovec parts[3];
    int count = 0;
    if (output->torn)
        parts[count++] = (struct iovec){.iov_base = "\n", .iov_len = 1};
    for (int i = 0; i < 2; i++) {
        if (length[i])
            parts[count++] = (struct iovec){.iov_base = (void *)part[i], .iov_len = length[i]};
    }
    output->failing = !write_parts(output, parts, count);
    return !output->failing;
}

/* Say how many lines are missing here. */
static void tell_lost(struct output *output)
{
    char message[96];
    snprintf(message, sizeof message, "%llu lines were dropped: standard error did not take them",
             (unsigned long long)output->untold);
    struct buffer line;
    buffer_init(&line, 0);
    struct log_field count = {"lines", LOG_VALUE_COUNT, .count = output->untold};
    make_line(LOG_WARN, "log", message, &count, 1, &line);
    const char *part[2] = {line.data, NULL};
    size_t length[2] = {line.length, 0};
    if (!line.failed && write_line(output, part, length))
        output->untold = 0;
    buffer_deinit(&line);
}

static void write_record(struct output *output, const struct log_record *record)
{
    output->untold += record->lost;
    if (output->untold)
        tell_lost(output);
    if (!record->length[0] || write_line(output, record->part, record->length))
        return;
    output->untold++;
    count_lost(1);
}

static void *write_records(void *arg)
{
    (void)arg;
    struct output output = {0};
    pthread_mutex_lock(&writer.lock);
    for (;;) {
        struct log_record record = {0};
        bool found = log_ring_peek(&writer.ring, &record);
        if (!found && !output.failing)
            record.lost = log_ring_take_lost(&writer.ring);
        if (!found && !record.lost) {
            writer.idle = true;
            pthread_cond_broadcast(&writer.ended);
            if (writer.stop)
                break;
            pthread_cond_wait(&writer.news, &writer.lock);
            writer.idle = false;
            continue;
        }
        pthread_mutex_unlock(&writer.lock);
        write_record(&output, &record);
        pthread_mutex_lock(&writer.lock);
        if (found)
            log_ring_pop(&writer.ring);
    }
    pthread_mutex_unlock(&writer.lock);
    return NULL;
}

void log_start(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&writer.news, NULL);
    pthread_cond_init(&writer.ended, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_lock(&writer.lock);
    writer.stop = false;
    writer.runs =
        !thread_start(&writer.thread, "quire-log", COST_LOG_STACK_BYTES, write_records, NULL);
    pthread_mutex_unlock(&writer.lock);
    check_set_say(log_last_words);
}

static struct timespec end_time(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_sec += LIMIT_LOG_END_MS / 1000;
    time.tv_nsec += LIMIT_LOG_END_MS % 1000 * 1000000;
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    return time;
}

/* Under lock: until everything is written, for a bounded time. */
static bool wait_idle(void)
{
    struct timespec until = end_time(CLOCK_MONOTONIC);
    int failed = 0;
    while (!writer.idle && !failed)
        failed = pthread_cond_timedwait(&writer.ended, &writer.lock, &until);
    return writer.idle;
}

void log_stop(void)
{
    pthread_mutex_lock(&writer.lock);
    if (!writer.runs) {
        pthread_mutex_unlock(&writer.lock);
        return;
    }
    writer.stop = true;
    writer.idle = false;
    pthread_cond_signal(&writer.news);
    bool written = wait_idle();
    writer.runs = false;
    pthread_mutex_unlock(&writer.lock);
    if (written)
        pthread_join(writer.thread, NULL);
    else
        pthread_detach(writer.thread); /* it blocks: the process ends without it */
}

/* ---- the way in ---- */

/* Without the writer's thread: at once, or not at all. */
static void write_now(const char *line, size_t length)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    /* A pipe that says POLLOUT takes PIPE_BUF bytes without blocking. */
    bool takes = poll(&out, 1, 0) == 1 && (out.revents & POLLOUT);
    if (!takes || write(STDERR_FILENO, line, min_u64(length, PIPE_BUF)) < 0)
        count_lost(1);
}

/* Under lock. */
static void push(const char *line, size_t length)
{
    if (!log_ring_push(&writer.ring, line, length))
        count_lost(1);
    writer.idle = false;
    pthread_cond_signal(&writer.news);
}

static void put_line(const char *line, size_t length)
{
    pthread_mutex_lock(&writer.lock);
    bool runs = writer.runs;
    if (runs)
        push(line, length);
    pthread_mutex_unlock(&writer.lock);
    if (!runs)
        write_now(line, length);
}

static void put_buffer(struct buffer *line)
{
    if (line->failed)
        count_lost(1);
    else
        put_line(line->data, line->length);
    buffer_deinit(line);
}

void log_write(enum log_level level, const char *event, const char *format, ...)
{
    if (level < least_level)
        return;
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    struct buffer line;
    buffer_init(&line, 0);
    make_line(level, event, message, NULL, 0, &line);
    put_buffer(&line);
}

void log_write_fields(enum log_level level, const char *event, const char *message,
                      const struct log_field *fields, unsigned count)
{
    if (level < least_level)
        return;
    struct buffer line;
    buffer_init(&line, 0);
    make_line(level, event, message, fields, count, &line);
    put_buffer(&line);
}

void log_write_block(enum log_level level, const char *text)
{
    if (level >= least_level && *text)
        put_line(text, strlen(text));
}

void log_last_words(const char *line)
{
    struct timespec until = end_time(CLOCK_REALTIME);
    bool locked = !pthread_mutex_timedlock(&writer.lock, &until);
    bool runs = locked && writer.runs;
    if (runs) {
        push(line, strlen(line));
        wait_idle();
    }
    if (locked)
        pthread_mutex_unlock(&writer.lock);
    if (!runs)
        write_now(line, strlen(line));
}
