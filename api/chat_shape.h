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

#include <stdbool.h>

struct chat_template;

struct chat_shape {
    bool parts;            /* content is a list of parts, also where the client sent a string */
    bool null_content;     /* missing or empty content beside calls is none, else "" */
    bool text_arguments;   /* a call's arguments are JSON text, else an object */
    bool broken_arguments; /* with objects: arguments that are no JSON may be text all the same */
};

/* All false where no shape prints what was put in. On a thread with a stack of its own. */
struct chat_shape chat_shape_find(const struct chat_template *chat_template);

#endif
