/*
 * The Rust text libraries behind one C ABI: chat templates (minijinja); textgrammar.h has
 * constrained output.
 *
 * A panic in Rust is caught at each entry and returned as TEXTSHIM_PANIC. A stack overflow and
 * running out of memory cannot be caught. So sources and contexts are limited by the caller, render
 * has a stack of 64 MiB when the template is not trusted (new brings its own), and what the system
 * refuses comes from textshim_reserve.
 */
#ifndef QUIRE_TEXTSHIM_H
#define QUIRE_TEXTSHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum textshim_status {
    TEXTSHIM_OK = 0,
    TEXTSHIM_INVALID, /* the source does not compile, or this context does not fit the template */
    TEXTSHIM_RAISED,  /* the template called raise_exception: the message is its argument */
    TEXTSHIM_LIMIT,   /* fuel or output limit reached */
    TEXTSHIM_PANIC,   /* a fault in the library */
};

struct textshim_template;

/* strftime of the local time now into out[capacity]; returns the length, 0 if it does not fit.
   Called during render, on its thread. */
typedef size_t (*textshim_clock)(const char *format, char *out, size_t capacity);

/* Compile `source`. Texts are UTF-8 with lengths; bos and eos become the variables bos_token and
   eos_token. On failure *out is NULL and message[message_capacity] holds a terminated UTF-8
   sentence. */
int textshim_template_new(const char *source, size_t source_length, const char *bos,
                          size_t bos_length, const char *eos, size_t eos_length,
                          textshim_clock clock, struct textshim_template **out, char *message,
                          size_t message_capacity);

/* Render with the variables of a JSON object. `sink` gets the text in pieces, at most output_limit
   bytes in all; pieces of a failed rendering are to be thrown away. Any number of threads at once.
 */
int textshim_template_render(const struct textshim_template *shim_template, const char *context,
                             size_t context_length, size_t output_limit, uint64_t fuel,
                             void (*sink)(void *arg, const char *bytes, size_t length), void *arg,
                             char *message, size_t message_capacity);

struct textshim_text {
    const char *text;
    size_t length;
};

/* Compile the template again so that its own control tokens can be told from users' text (see
   src/mark.rs): once for each way of 0 … 2 in which they are found. *ways has a bit for each that
   there is; a way that finds no more than the one before is left out. bos and eos as given to new.
 */
int textshim_template_mark(struct textshim_template *shim_template,
                           const struct textshim_text *tokens, size_t token_count, const char *bos,
                           size_t bos_length, const char *eos, size_t eos_length, uint32_t *ways,
                           char *message, size_t message_capacity);

/* Render in one way what textshim_template_render made of the same context. *same: it is the same
   text, and bit i of own (bit i % 8 of byte i / 8) is set where plain[i] belongs to a control
   token, or a piece of one, that stands in the template itself; other bits are left alone.
   Otherwise own holds nothing of use. TEXTSHIM_LIMIT: the fuel ended before that was known. Any
   number of threads at once. */
int textshim_template_trace(const struct textshim_template *shim_template, uint32_t way,
                            const char *context, size_t context_length, uint64_t fuel,
                            const char *plain, size_t plain_length, uint8_t *own, bool *same,
                            char *message, size_t message_capacity);

/* A range of mapped addresses, for allocations that the system refuses: the library cannot go on
   without memory. It is touched only then and never given back. Once in a process, from one thread,
   before any other call; begins at a page. */
void textshim_reserve(void *base, size_t bytes);

/* Bytes that this library's allocator gave: to templates, compiled and running, and to the values
   that contexts become while they are rendered. */
struct textshim_memory {
    size_t templates_used, templates_peak;
    size_t contexts_used, contexts_peak;
};
void textshim_memory_read(struct textshim_memory *out); /* any thread, no lock */
void textshim_memory_reset_peaks(void);                 /* peaks from now on */

/* NULL is allowed. */
void textshim_template_free(struct textshim_template *shim_template);

#endif
