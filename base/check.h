/*
 * CHECK: an invariant that is tested in release builds too. A failed CHECK is a bug of ours:
 * it prints file, line and expression to stderr and aborts. Never use it on input.
 */
#ifndef QUIRE_BASE_CHECK_H
#define QUIRE_BASE_CHECK_H

/* Who writes the last line, in bounded time: the log, once it runs. Without it the line is written
   if standard error takes it at once. */
typedef void (*check_say_fn)(const char *line);
void check_set_say(check_say_fn function);

_Noreturn void check_failed(const char *file, int line, const char *expression);

#define CHECK(expression)                                                                          \
    (__builtin_expect(!!(expression), 1) ? (void)0 : check_failed(__FILE__, __LINE__, #expression))

#endif
