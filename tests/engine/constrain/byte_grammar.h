/*
 * Grammars over a small vocabulary of characters, for tests of the engine that have a model without
 * text: token id is the character ' ' + id for the first 94, then two letters each.
 */
#ifndef QUIRE_TESTS_ENGINE_CONSTRAIN_BYTE_GRAMMAR_H
#define QUIRE_TESTS_ENGINE_CONSTRAIN_BYTE_GRAMMAR_H

#include "base/budget.h"
#include "engine/constrain/grammar.h"

#include <stdint.h>

/* What tokens mean: one per test program, never freed. `vocabulary` of at least 40 tokens, of which
   `end_token` ends a text. The budget's BUDGET_GRAMMAR pays. */
void byte_grammar_init(struct budget *budget, uint32_t vocabulary, uint32_t end_token);
/* CHECKs that it compiles. */
struct grammar *byte_grammar_compile(enum grammar_kind kind, const char *source);
/* The text of a token, terminated. */
const char *byte_grammar_text(uint32_t token);

#endif
