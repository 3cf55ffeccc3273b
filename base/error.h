/*
 * Errors as values.
 *
 * Three kinds of trouble are never mixed: a bug is a failed CHECK (base/check.h) and ends the
 * process; lack of room is an ordinary enum result of the function that noticed it; bad input or
 * a failing system is a status plus a message in the caller's `struct error`. Only api/ turns a
 * status into an HTTP status, only main into an exit code.
 */
#ifndef QUIRE_BASE_ERROR_H
#define QUIRE_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,      /* the input is wrong; param names the field            (HTTP 400) */
    STATUS_UNAUTHORIZED, /* no or wrong key                                      (HTTP 401) */
    STATUS_NOT_FOUND,    /* no such model or route                               (HTTP 404) */
    STATUS_TOO_LARGE,    /* body or field over a limit                           (HTTP 413) */
    STATUS_UNSUPPORTED,  /* known, but not done by this server or file           (HTTP 400) */
    STATUS_BUSY,         /* no room now, retry_after_s says when to come back    (HTTP 429) */
    STATUS_UNAVAILABLE,  /* loading, draining, no memory                               (HTTP 503) */
    STATUS_IO,           /* the system failed: file, socket, memory              (HTTP 500) */
    STATUS_INTERNAL,     /* a fault of ours                                      (HTTP 500) */
};

struct error {
    enum status status;
    unsigned retry_after_s;
    char code[48];     /* machine-readable, e.g. "context_length_exceeded"; may be empty */
    char param[64];    /* the field at fault, e.g. "temperature"; may be empty */
    char message[400]; /* one sentence for a person; always valid UTF-8 */
};

/* Fill *error (which may be NULL) and return `status`. `param` may be NULL. Bytes of the message
   that are not valid UTF-8 or are control characters are replaced by '?'. Any thread. */
enum status error_set(struct error *error, enum status status, const char *param,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));

/* As error_set, with a machine-readable code. */
enum status error_set_code(struct error *error, enum status status, const char *code,
                           const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* An allocation failed while a request was worked on: STATUS_UNAVAILABLE, and to be tried again. */
enum status error_no_memory(struct error *error);

/* STATUS_IO: an allocation of a command, or while a server starts, failed. */
enum status error_out_of_memory(struct error *error);

/* Passes an error on: the calling function returns the call's status, unless that is STATUS_OK.
   Where there is something to undo first, look at the status instead. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status tried = (call);                                                                \
        if (tried != STATUS_OK)                                                                    \
            return tried;                                                                          \
    } while (0)

/* Reset to STATUS_OK with empty texts. */
void error_clear(struct error *error);

#endif
