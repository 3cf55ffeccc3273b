/* See check.h. Whoever dies here must not wait for the reader of its last line. */
#include "base/check.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Standard error takes it at once, or nobody reads it. */
static void say_now(const char *line)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT)) {
        ssize_t put = write(STDERR_FILENO, line, strlen(line));
        (void)put;
    }
}

static _Atomic(check_say_fn) say = say_now;

void check_set_say(check_say_fn function)
{
    atomic_store(&say, function);
}

_Noreturn void check_failed(const char *file, int line, const char *expression)
{
    char text[512];
    snprintf(text, sizeof text, "quire: bug at %s:%d: CHECK(%s) failed\n", file, line, expression);
    atomic_load (&say)(text);
    abort();
}
