/*
 * In which shape a chat template wants what clients send in more than one. Private to api/.
 *
 * OpenAI's clients send a call's arguments as JSON in a string, and no content beside calls; most
 * templates want an object and a string, some the arguments' text, or content that is none. The
 * template is tried with each at load and the first that prints the call is kept: guessing wrong
 * would drop calls from the prompt without a word.
 */
#ifndef QUIRE_API_CHAT_SHAPE_H
#define QUIRE_API_CHAT_SHAPE_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>

struct chat_shape {
    bool parts;            /* content is a list of parts, also where the client sent a string */
    bool null_content;     /* missing or empty content beside calls is none, else "" */
    bool text_arguments;   /* a call's arguments are JSON text, else an object */
    bool broken_arguments; /* with objects: arguments that are no JSON may be text all the same */
};

/* Renders a context as the template that is looked at does; false when it cannot. */
typedef bool (*chat_shape_render)(const void *chat_template, const char *context_json,
                                  size_t length, struct buffer *out);

/* All false where no shape prints what was put in. Renders on a thread with a stack of its own;
   STATUS_IO when there is none. */
enum status chat_shape_find(chat_shape_render render, const void *chat_template,
                            struct chat_shape *out, struct error *error);

#endif
