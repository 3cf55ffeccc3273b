/*
 * Chat templates: the model file's Jinja template, run by minijinja in subprojects/textshim with
 * fuel and output limits. Templates come from the model file or the operator, never from a request.
 * create and render need a big stack (64 MiB): call them on the text thread or main only.
 */
#ifndef QUIRE_API_CHAT_TEMPLATE_H
#define QUIRE_API_CHAT_TEMPLATE_H

#include "base/buffer.h"
#include "base/error.h"

#include <stddef.h>

struct chat_template;
struct chat_shape; /* api/chat_shape.h */

/* STATUS_INVALID with the compiler's message when the source is not a template we can run. bos and
   eos are the token texts the template may print. */
enum status chat_template_create(const char *source, size_t length, const char *bos_text,
                                 const char *eos_text, struct chat_template **out,
                                 struct error *error);
void chat_template_destroy(struct chat_template *chat_template);

/* In which shape it wants messages; lives as long as the template. */
const struct chat_shape *chat_template_shape(const struct chat_template *chat_template);

/* context_json: an object with messages, tools, add_generation_prompt and any template arguments.
   The template's own raise_exception: STATUS_INVALID with its message cut to 200 characters. */
enum status chat_template_render(const struct chat_template *chat_template,
                                 const char *context_json, size_t context_length,
                                 struct buffer *out, struct error *error);

#endif
