/* Log lines on stderr, one write() each: see log.h. */
#include "base/log.h"

#include "base/buffer.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Fixed after log_init. */
static enum log_format chosen_format = LOG_TEXT;
static enum log_level least_level = LOG_INFO;

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

/* As the inside of a JSON string; in a text line likewise, except that quotes stay. */
static void append_escaped(struct buffer *line, const char *text, bool json)
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
        else if (json && (code_point == '"' || code_point == '\\'))
            buffer_appendf(line, "\\%c", (char)code_point);
        else
            buffer_append(line, text + i, (size_t)size);
        i += (size_t)size;
    }
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

    struct timespec now;
    struct tm utc;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    unsigned ms = (unsigned)(now.tv_nsec / 1000000);

    struct buffer line;
    buffer_init(&line, 0);
    if (chosen_format == LOG_JSON) {
        buffer_appendf(&line,
                       "{\"time\":\"%s.%03uZ\",\"level\":\"%s\",\"event\":\"%s\",\"message\":\"",
                       stamp, ms, level_names[level], event);
        append_escaped(&line, message, true);
        buffer_append_text(&line, "\"}\n");
    } else {
        buffer_appendf(&line, "%s.%03uZ %-5s %s: ", stamp, ms, level_names[level], event);
        append_escaped(&line, message, false);
        buffer_append_text(&line, "\n");
    }
    if (!line.failed) {
        ssize_t written = write(STDERR_FILENO, line.data, line.length);
        (void)written; /* nowhere to complain to */
    }
    buffer_deinit(&line);
}
