/* Errors as values: see error.h. Messages are cleaned here so that no caller can leak raw bytes. */
#include "base/error.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* Replace control characters and invalid UTF-8 (a cut character at the end included) by '?'. */
static void clean(char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        int size = utf8_decode(text + i, length - i, &code_point);
        if (size <= 0 || code_point < 0x20 || code_point == 0x7f) {
            text[i] = '?';
            size = 1;
        }
        i += (size_t)size;
    }
}

static void copy(char *out, size_t capacity, const char *text)
{
    snprintf(out, capacity, "%s", text ? text : "");
    clean(out);
}

static enum status fill(struct error *error, enum status status, const char *code,
                        const char *param, const char *format, va_list arguments)
{
    if (error) {
        error->status = status;
        error->retry_after_s = 0;
        copy(error->code, sizeof error->code, code);
        copy(error->param, sizeof error->param, param);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        clean(error->message);
    }
    return status;
}

enum status error_set(struct error *error, enum status status, const char *param,
                      const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, NULL, param, format, arguments);
    va_end(arguments);
    return status;
}

enum status error_set_code(struct error *error, enum status status, const char *code,
                           const char *param, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, code, param, format, arguments);
    va_end(arguments);
    return status;
}

enum status error_no_memory(struct error *error)
{
    enum status status =
        error_set_code(error, STATUS_UNAVAILABLE, "out_of_memory", NULL,
                       "The system gives no memory for this request now; try again later.");
    if (error)
        error->retry_after_s = 1;
    return status;
}

void error_clear(struct error *error)
{
    memset(error, 0, sizeof *error);
}

enum status error_out_of_memory(struct error *error)
{
    return error_set(error, STATUS_IO, NULL, "out of memory");
}
