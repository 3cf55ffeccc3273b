/*
 * Log lines on standard error: one line per event, text or JSON, written with one write().
 * User text never goes into a log line unescaped: values are escaped here.
 *
 * Logging never waits. A line is put into a ring of LIMIT_LOG_BYTES (log_ring.h), and one thread
 * writes it: whoever reads standard error, and however slowly, no request waits for it. Lines that
 * find no room, or that cannot be written, are counted; the next line that can be written says how
 * many are missing. While that thread does not run (before log_start, after log_stop) a line is
 * written at once if standard error takes it, else it is counted too.
 *
 * Any thread may log.
 */
#ifndef QUIRE_BASE_LOG_H
#define QUIRE_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };

/* Before other threads start. */
void log_init(enum log_format format, enum log_level least);
/* Start the writer. Without a thread to be had, lines are written as before log_start. */
void log_start(void);
/* Wait until all lines are written, LIMIT_LOG_END_MS at most, and end the writer. From then on
   lines are written as before log_start. For the process' end; a second call does nothing. */
void log_stop(void);

bool log_enabled(enum log_level level);

/* `event` is a fixed short name, e.g. "server_ready"; the rest is a printf message. */
void log_write(enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A named value of a line. */
struct log_field {
    const char *key;
    enum { LOG_VALUE_TEXT, LOG_VALUE_COUNT, LOG_VALUE_MS, LOG_VALUE_FLAG } kind;
    union {
        const char *text; /* NULL: the field is left out */
        uint64_t count;
        double ms;
        bool flag;
    };
};

/* A line that programs read: behind the message a member for each field in JSON, key=value in text,
   in quotes where the value has blanks. */
void log_write_fields(enum log_level level, const char *event, const char *message,
                      const struct log_field *fields, unsigned count);

/* Several lines as they are, for people: only where the format is LOG_TEXT. */
void log_write_block(enum log_level level, const char *text);

/* One line as it is, and at most LIMIT_LOG_END_MS for it to be written: the process is about to
   die. Safe with whatever lock the caller holds. */
void log_last_words(const char *line);

/* Lines that were lost since the start. */
uint64_t log_lost_lines(void);

#define log_debug(event, ...)                                                                      \
    (log_enabled(LOG_DEBUG) ? log_write(LOG_DEBUG, event, __VA_ARGS__) : (void)0)
#define log_info(event, ...) log_write(LOG_INFO, event, __VA_ARGS__)
#define log_warn(event, ...) log_write(LOG_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_write(LOG_ERROR, event, __VA_ARGS__)

#endif
