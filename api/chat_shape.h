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

struct buffer;

struct chat_shape {
    bool parts;            /* content is a list of parts, also where the client sent a string */
    bool null_content;     /* missing or empty content beside calls is none, else "" */
    bool text_arguments;   /* a call's arguments are JSON text, else an object */
    bool broken_arguments; /* where it is an object: what is no JSON may be text all the same */
    bool tools;            /* it prints tools … */
    bool calls;            /* … an assistant's calls … */
    bool results;          /* … and what tools answer, as far as the small conversations show */
};

/* Render `json` with the template that `arg` is; false when the template refuses. */
typedef bool (*chat_shape_render)(void *arg, const struct buffer *json, struct buffer *out);

/* All false where no shape prints what was put in. Rendering needs a big stack. */
struct chat_shape chat_shape_find(chat_shape_render render, void *arg);

/* Write small conversations in that shape, one for each index; false past the last. The first
   CHAT_SHAPE_TURNS have neither tools nor the beginning of an answer. No text of theirs could be
   taken for a control token. */
#define CHAT_SHAPE_TURNS 2
bool chat_shape_probe(struct chat_shape shape, unsigned index, struct buffer *json);
/* One with a call of the tool quire_call and its result. `json` is empty. */
void chat_shape_write_call(struct chat_shape shape, struct buffer *json);

#endif
