/*
 * Log lines on stderr: one line per event, text or JSON, written with one write().
 * User text never goes into a log line unescaped: values are escaped here. Any thread.
 */
#ifndef QUIRE_BASE_LOG_H
#define QUIRE_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };

/* Before other threads start. */
void log_init(enum log_format format, enum log_level least);
bool log_enabled(enum log_level level);

/* `event` is a fixed short name, e.g. "server_ready"; the rest is a printf message. */
void log_write(enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_debug(event, ...)                                                                      \
    (log_enabled(LOG_DEBUG) ? log_write(LOG_DEBUG, event, __VA_ARGS__) : (void)0)
#define log_info(event, ...) log_write(LOG_INFO, event, __VA_ARGS__)
#define log_warn(event, ...) log_write(LOG_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_write(LOG_ERROR, event, __VA_ARGS__)

#endif
