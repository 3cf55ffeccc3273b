/*
 * Chat templates: the model file's Jinja template, run by minijinja in subprojects/textshim with
 * fuel and output limits. Templates come from the model file or the operator, never from a request;
 * even so what a rendering makes is bounded, by fuel that its memory limit sets.
 * create and render need a big stack (64 MiB): call them on the preprocessing thread or main only.
 */
#ifndef QUIRE_API_CHAT_TEMPLATE_H
#define QUIRE_API_CHAT_TEMPLATE_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;
struct chat_shape;    /* api/chat_shape.h */
struct control_guard; /* api/control_guard.h */
struct call_format;   /* api/call_format.h */
struct reasoning_marks;

/* STATUS_INVALID with the compiler's message when the source is not a template we can run. bos and
   eos are the token texts the template may print. *guard, which may be NULL, is taken over, also on
   failure: its turn markers are found, and a template whose control tokens cannot be told from
   users' text is STATUS_INVALID too. While it renders, all templates together,
   compiled ones included, hold at most memory_bytes; one renders at a time. What the values of its
   context take comes on top, at most chat_template_context_bytes. */
enum status chat_template_create(const char *source, size_t length, const char *bos_text,
                                 const char *eos_text, struct control_guard *guard,
                                 uint64_t memory_bytes, struct chat_template **out,
                                 struct error *error);
void chat_template_destroy(struct chat_template *chat_template);

/* What `values` JSON values become while they are rendered, beside their text. */
uint64_t chat_template_context_bytes(uint64_t values);

/* Bytes that all templates hold now, and the most that they held since the last one was compiled.
   Any thread. */
uint64_t chat_template_memory_used(void);
uint64_t chat_template_memory_peak(void);

/* In which shape it wants messages; lives as long as the template. */
const struct chat_shape *chat_template_shape(const struct chat_template *chat_template);
/* Of it: content must be a list of parts, {"type":"text","text":…}; a string it would not print. */
bool chat_template_wants_parts(const struct chat_template *chat_template);

/* How it writes calls: the format that a printed call or the template's text shows, else "json". */
const struct call_format *chat_template_call_format(const struct chat_template *chat_template);
/* The marks of reasoning that are in the template; NULL: none. */
const struct reasoning_marks *chat_template_reasoning(const struct chat_template *chat_template);

/* context_json: an object with messages, tools, add_generation_prompt and any template arguments.
   The template's own raise_exception: STATUS_INVALID with its message cut to 200 characters. Out of
   fuel, memory or output: STATUS_TOO_LARGE. */
enum status chat_template_render(const struct chat_template *chat_template,
                                 const char *context_json, size_t context_length,
                                 struct buffer *out, struct error *error);

/* From now on renderings and tracings on this thread may hold `bytes` more than memory_bytes; 0 ends
   it. The caller has entered them in the budget. */
void chat_template_lend(uint64_t bytes);

/* Which bytes of `text`, rendered just before on this thread from the same context, are the
   template's own control tokens, as control_guard_apply wants to know: sets bits of own
   [chat_template_own_bytes], which are 0. STATUS_INVALID when that cannot be known of this text,
   STATUS_TOO_LARGE when the template's memory ended before it was known; it may be tried again with
   the same `own` and more memory. */
enum status chat_template_trace(const struct chat_template *chat_template, const char *context_json,
                                size_t context_length, const struct buffer *text, uint8_t *own,
                                struct error *error);
size_t chat_template_own_bytes(const struct buffer *text);

/* Put a sentinel, which must not occur in it, into every control token of `text` that is not its
   own; tokenizer_encode takes them out. */
enum status chat_template_guard(const struct chat_template *chat_template, struct buffer *text,
                                const uint8_t *own, uint32_t sentinel, struct error *error);

#endif
