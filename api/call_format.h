/*
 * How models write calls of tools: one row of a table and one reader for each format. Private to
 * api/.
 *
 * A reader looks at text that begins where a call may begin and says whether it is one, as far as
 * its head goes: up to where the arguments begin, which then come in pieces (output_parser.c). It
 * is asked again, from the start, when there is more text; heads are short (LIMIT_CALL_HEAD_BYTES).
 * Nothing here allocates. Any thread.
 */
#ifndef QUIRE_API_CALL_FORMAT_H
#define QUIRE_API_CALL_FORMAT_H

#include "api/json_scan.h"

/* A tool of the request. */
struct output_tool {
    const char *name;             /* terminated */
    struct json_slice parameters; /* its schema; text NULL: none */
    bool strict;
};

/* What marks a model's reasoning. */
struct reasoning_marks {
    const char *open, *close;
};

/* The marks that stand in a template's text; NULL: none that are known. */
const struct reasoning_marks *reasoning_marks_detect(const char *source, size_t length);

struct output_tools {
    const struct output_tool *tools;
    uint32_t count;
};

/* NULL: no tool has that name. */
const struct output_tool *output_tools_find(const struct output_tools *tools, const char *name,
                                            size_t length);

enum call_head_result {
    CALL_HEAD_MORE,  /* a beginning of one, as far as the text goes */
    CALL_HEAD_NONE,  /* it can be none */
    CALL_HEAD_OPEN,  /* a call, whose arguments begin at `arguments` */
    CALL_HEAD_WHOLE, /* a call, whose arguments are [arguments, arguments_end) */
};

struct call_head {
    const struct output_tool *tool;
    size_t arguments, arguments_end;
    size_t end;         /* WHOLE: behind what was read */
    uint32_t depth;     /* closing brackets that are missing behind the arguments … */
    bool list;          /* … and the bracket of a list of calls behind them */
    bool quoted;        /* WHOLE: the arguments are JSON text in a JSON string */
    const char *closer; /* text that may close the call, "" if none */
};

/* How the arguments are written. */
enum call_arguments { CALL_ARGUMENTS_JSON, CALL_ARGUMENTS_XML };

#define CALL_FORMAT_MARKS 6

struct call_format {
    const char *name; /* in docs/api.md */
    /* What opens a call, and what closes it; the list ends with NULL. */
    struct {
        const char *open, *close;
    } marks[CALL_FORMAT_MARKS];
    bool bare;   /* a call may also begin an answer without a mark, with { or [ */
    bool named;  /* the name may stand in front of the arguments, outside of JSON */
    bool fenced; /* DeepSeek's: a name, then the arguments, perhaps in a code block */
    enum call_arguments arguments;
    const char *signs[2]; /* texts in a printed call that tell this format; NULL: none */
};

/* NULL: there is none of that name. `index` walks the table, NULL past its end. */
const struct call_format *call_format_find(const char *name);
const struct call_format *call_format_at(unsigned index);
/* The format of a call of the tool quire_call as a template printed it, `source` the template's own
   text: what signs it has. NULL: none that is known. */
const struct call_format *call_format_detect(const char *printed, size_t printed_length,
                                             const char *source, size_t source_length);

/* Read the head of a call at text[0 … length); `mark` is the index in `marks` of the mark that the
   text begins with, CALL_FORMAT_MARKS: it begins with the call itself. */
enum call_head_result call_format_read(const struct call_format *format, unsigned mark,
                                       const struct output_tools *tools, const char *text,
                                       size_t length, struct call_head *out);

/* Walks a JSON object, list or string, brackets and strings only. */
struct json_walk {
    uint32_t depth;
    bool string, escape, done;
};
/* Bytes of text that belong to the value; less than `length` only when it is done. */
size_t json_walk_push(struct json_walk *walk, const char *text, size_t length);

/* Behind the arguments of a call: how much of text[0 … length) is its end. */
struct call_tail {
    size_t length; /* of what belongs to the call … */
    size_t kept;   /* … before what separates it from the next */
    bool more;     /* more text may change this */
    bool next;     /* another call follows without a mark of its own */
};
struct call_tail call_format_read_tail(const struct call_head *head, const char *text,
                                       size_t length);

/* Whether text[0 … length) is a mark of the format. */
bool call_format_is_mark(const struct call_format *format, const char *text, size_t length);

#endif
