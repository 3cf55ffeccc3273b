/*
 * What a request says its answer must look like: the fields of OpenAI, vLLM, llama.cpp and SGLang,
 * read into one form. Private to api/.
 */
#ifndef QUIRE_API_CONSTRAINT_H
#define QUIRE_API_CONSTRAINT_H

#include "api/json.h"
#include "engine/constrain/grammar.h"

struct constraint {
    enum grammar_kind kind;
    char *source; /* [length] bytes, malloc'd; NULL: the answer is free */
    size_t length;
    const char *param; /* the field that it came from, for errors; static */
};

/* Read the field that constrains the answer; more than one is STATUS_INVALID. Fields:
   response_format (json_object, json_schema; text is none), structured_outputs, guided_json,
   guided_regex, guided_choice, guided_grammar, json_schema, grammar, regex, ebnf. On failure *out
   needs constraint_deinit too. The caller has entered the body's bytes in the budget: a source is
   at most as long as the body. */
enum status constraint_read(const struct json_document *document, struct constraint *out,
                            struct error *error);
/* Constrain the answer by `source`, which is copied; a second constraint is STATUS_INVALID. */
enum status constraint_set(struct constraint *out, const char *param, enum grammar_kind kind,
                           const char *source, size_t length, struct error *error);
void constraint_deinit(struct constraint *constraint);

#endif
