/*
 * What an answer says, apart from how an API spells it. Private to api/.
 *
 *   tokens → text → output parser → events → writer of one API's shape → bytes
 *
 * A choice's text, stop strings applied, is taken apart into reasoning, content and tool calls. The
 * events of a choice come in the order of its text; those of one call are consecutive. Pieces may be
 * cut anywhere between characters: joined, the pieces of a stream are the texts of the whole answer.
 */
#ifndef QUIRE_API_OUTPUT_EVENT_H
#define QUIRE_API_OUTPUT_EVENT_H

#include <stddef.h>
#include <stdint.h>

enum output_event_kind {
    OUTPUT_REASONING, /* text: what the model thinks, its marks left out */
    OUTPUT_CONTENT,   /* text: what it says */
    OUTPUT_CALL,      /* text: the name of the tool; call `call` begins */
    OUTPUT_ARGUMENTS, /* text: a piece of call `call`'s arguments, in all what the model wrote: a
                         JSON object, unless the call is broken */
    OUTPUT_CALL_END,  /* call `call` is complete */
};

struct output_event {
    enum output_event_kind kind;
    uint32_t call;    /* counted from 0 in its choice */
    const char *text; /* [length] bytes of UTF-8, whole characters; valid until `take` returns */
    size_t length;
};

/* Takes the events of one choice, in order. */
struct output_sink {
    void (*take)(void *arg, const struct output_event *event);
    void *arg;
};

#endif
