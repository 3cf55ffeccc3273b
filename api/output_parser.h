/*
 * From a choice's text to events: reasoning, content and calls of tools taken apart. Private to
 * api/. One parser for each choice; one thread at a time.
 *
 * Text that may be the mark of a call or its head is held back, and nothing longer than
 * LIMIT_CALL_HEAD_BYTES; what turns out to be no call is content, byte for byte. A call is handed
 * over once its name, which must be a tool's, and the beginning of its arguments are there;
 * from then on the arguments come as the model writes them, also where they are no JSON: up to
 * their last bracket, or else to the mark that closes the call, or to the end of the text.
 * White space around calls and reasoning, their marks, and members of a call's object beside name
 * and arguments belong to no event.
 */
#ifndef QUIRE_API_OUTPUT_PARSER_H
#define QUIRE_API_OUTPUT_PARSER_H

#include "api/call_format.h"
#include "api/output_event.h"
#include "base/buffer.h"

/* Borrowed by the parser; NULL: nothing of that kind is looked for. */
struct output_parser_spec {
    const struct call_format *calls;
    const struct output_tools *tools;
    const struct reasoning_marks *reasoning;
    bool in_reasoning; /* the prompt ended with the opening mark */
    bool one_call;     /* what follows the first call is left out */
};

enum output_state {
    OUTPUT_STATE_START, /* reasoning may begin */
    OUTPUT_STATE_REASONING,
    OUTPUT_STATE_CONTENT,
    OUTPUT_STATE_HEAD,       /* what may be a call, up to its arguments */
    OUTPUT_STATE_ARGUMENTS,  /* JSON */
    OUTPUT_STATE_PARAMETERS, /* XML */
    OUTPUT_STATE_VALUE,      /* of a parameter, a string */
    OUTPUT_STATE_RAW_VALUE,  /* of another type */
    OUTPUT_STATE_TAIL,
    OUTPUT_STATE_DONE,
};

struct output_parser {
    struct output_parser_spec spec;
    struct output_sink sink;
    enum output_state state;
    struct buffer held;    /* text that was not handed over, from `at` on */
    struct buffer scratch; /* of one event */
    size_t at, lead;       /* lead: bytes in front of the call that is being read */
    unsigned mark;
    struct call_head head;
    struct json_walk walk;
    uint32_t calls;      /* begun */
    uint32_t parameters; /* of this call */
    bool fresh;          /* no content yet, or none since the last call */
    bool drop_space;     /* white space before content belongs to the reasoning's end */
    bool reasoned, value_begun;
};

void output_parser_init(struct output_parser *parser, const struct output_parser_spec *spec,
                        struct output_sink sink);
void output_parser_deinit(struct output_parser *parser);

/* The next text, whole characters. False without memory, which the next calls say again. */
bool output_parser_push(struct output_parser *parser, const char *text, size_t length);
/* The end of the text: what was held back, and the end of a call that has none. */
bool output_parser_end(struct output_parser *parser);

/* With one_call: the call is complete, more text would be left out. */
bool output_parser_is_done(const struct output_parser *parser);
bool output_parser_in_reasoning(const struct output_parser *parser);
/* Whether a control token's text is a mark, which belongs to the text then. */
bool output_parser_wants(const struct output_parser_spec *spec, const char *text, size_t length);

#endif
