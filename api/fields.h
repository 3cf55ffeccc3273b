/*
 * The fields of a request: one table of what the public request types of OpenAI, vLLM, llama.cpp's
 * server, SGLang and Ollama hold for completions and chats. Private to api/.
 *
 * Each row says whether the field is done here, has no effect, or is refused by name, so that no
 * client takes silence for consent. The table reads the fields whose value goes to one place as it
 * is, refuses, and is what docs/api.md and /openapi.json are made from. A field that is in no row
 * has no effect.
 */
#ifndef QUIRE_API_FIELDS_H
#define QUIRE_API_FIELDS_H

#include "api/api.h"
#include "api/json.h"

struct request;

/* FIELD_POOLING: embeddings, rerank and score, which have fields of their own besides. */
enum field_endpoint {
    FIELD_COMPLETIONS = 1,
    FIELD_CHAT = 2,
    FIELD_BOTH = 3,
    FIELD_POOLING = 4,
    FIELD_ALL = 7
};

enum field_support {
    FIELD_DONE,
    FIELD_NO_EFFECT, /* any value is taken: it only tags the request, or tunes what is off */
    FIELD_REFUSED,   /* 400 unsupported_parameter, unless the value asks for nothing */
};

enum field_type {
    FIELD_ANY,
    FIELD_NUMBER,  /* stored in a float */
    FIELD_INTEGER, /* stored in an int64_t */
    FIELD_BOOL,    /* stored in a bool */
    FIELD_STRING,
    FIELD_STRINGS, /* a string or a list of strings */
    FIELD_IDS,     /* a list of token ids */
    FIELD_LIST,
    FIELD_OBJECT,
};

/* Which values of a refused field, beside null, ask for nothing. */
enum field_neutral {
    NEUTRAL_NONE,         /* none does: {} as a schema and 0 as a count ask for something too */
    NEUTRAL_EMPTY,        /* "", [], {} and false: no text, none of them */
    NEUTRAL_FALSE,        /* it is off anyway */
    NEUTRAL_TRUE,         /* it is done anyway */
    NEUTRAL_NUMBER,       /* the number with which it does nothing */
    NEUTRAL_NOT_POSITIVE, /* 0 and below turn it off */
    NEUTRAL_TEXT,         /* the names of what is done anyway, with | between them */
};

struct field {
    const char *name;
    const char *api; /* whose it is */
    enum field_endpoint endpoint;
    enum field_support support;
    enum field_type type;
    double low, high;    /* of numbers and integers; both 0: any */
    size_t offset;       /* in struct request, where the table reads it; 0: it has a reader */
    const char *same_as; /* another name of that field, with its place; NULL: a name of its own */
    enum field_neutral neutral;
    double number;
    const char *texts; /* of NEUTRAL_TEXT; else what docs/api.md says of it */
};

/* All rows, in the order of the documents. */
const struct field *fields_table(size_t *count);

/* 400 unsupported_parameter for the first field that is refused and asks for something. */
enum status fields_check(enum answer_kind kind, const struct cJSON *root, struct error *error);

/* Read the rows that have a place into *out, which holds the defaults. STATUS_INVALID names the
   field; two names of one field with different values are STATUS_INVALID too. */
enum status fields_read(enum answer_kind kind, const struct cJSON *root, struct request *out,
                        struct error *error);

#endif
