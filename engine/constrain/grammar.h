/*
 * Grammars of constrained output: which token may come next, so that an answer fits a JSON schema,
 * a regular expression, a list of choices or a grammar.
 *
 * This is the only file that knows the library behind it (textgrammar.h). What a matcher answers
 * depends on its grammar and its tokens alone, so that constrained answers are as exact as others.
 *
 * Memory: the vocabulary's bytes are reserved in BUDGET_GRAMMAR at start; grammars and matchers
 * take theirs from the same account as the library's allocator counts them, after each call that
 * can add some. A matcher for which there is no room fails: that ends its own request.
 *
 * Source of the method: Earley parsing over lexemes with a trie of the vocabulary, see
 * https://github.com/guidance-ai/llguidance/blob/main/docs/optimizations.md
 */
#ifndef QUIRE_ENGINE_CONSTRAIN_GRAMMAR_H
#define QUIRE_ENGINE_CONSTRAIN_GRAMMAR_H

#include "base/budget.h"
#include "base/error.h"
#include "engine/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct grammar_vocabulary; /* one per model */
struct grammar;            /* counted */
struct grammar_matcher;    /* one per constrained sequence */

enum grammar_kind {
    GRAMMAR_JSON_SCHEMA, /* drafts 4 to 2020-12, as docs/api.md lists the keywords */
    GRAMMAR_REGEX,       /* matched as a whole */
    GRAMMAR_CHOICE,      /* a JSON list of strings */
    GRAMMAR_GRAMMAR,     /* Lark as llguidance reads it, or GBNF */
};

/* What grammar_vocabulary_create reserves in the budget, from the number of tokens alone. */
uint64_t grammar_vocabulary_memory_bytes(uint32_t token_count);

/* Takes 0.1 to 1 s of CPU time. The tokenizer and the budget must outlive it. STATUS_INVALID when
   the model has no end token; STATUS_TOO_LARGE when it takes more than was reserved. */
enum status grammar_vocabulary_create(const struct tokenizer *tokenizer, struct budget *budget,
                                      struct grammar_vocabulary **out, struct error *error);
/* After all grammars and matchers. NULL is allowed. */
void grammar_vocabulary_destroy(struct grammar_vocabulary *vocabulary);

/* Compile `source` [length] bytes of UTF-8. Up to 50 ms of CPU time for 4 KiB; the calling thread
   needs a stack of LIMIT_GRAMMAR_STACK_BYTES. STATUS_INVALID with the place in the schema in the
   message when it is wrong, not supported, too large, or matched by no text; STATUS_BUSY when the
   account has no room now. *out has one reference. Any thread. */
enum status grammar_compile(struct grammar_vocabulary *vocabulary, enum grammar_kind kind,
                            const char *source, size_t length, struct grammar **out,
                            struct error *error);
struct grammar *grammar_take(struct grammar *grammar); /* one more reference */
void grammar_release(struct grammar *grammar);         /* NULL is allowed */
bool grammar_is_shared(const struct grammar *grammar); /* has more than one reference */
uint64_t grammar_bytes(const struct grammar *grammar);

/* When the account has no room, evict(arg) is called until there is, or it says false: the cache of
   grammars gives up what nobody uses. Set once, before the first grammar is compiled. */
void grammar_vocabulary_set_evict(struct grammar_vocabulary *vocabulary, bool (*evict)(void *arg),
                                  void *arg);

/* At the grammar's beginning; takes a reference to it. NULL when the account has no room. Any
   thread; the calls below: one thread at a time for each matcher. */
struct grammar_matcher *grammar_matcher_create(struct grammar *grammar);
void grammar_matcher_destroy(struct grammar_matcher *matcher); /* NULL is allowed */

/* allowed [words]: bit id % 32 of word id / 32 is set where token id may come next; words is
   ceil(vocabulary / 32). false: the matcher has failed, for good, and its request ends. */
bool grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *allowed, size_t words);
/* The tokens that must come next, those that sampling under masks would give one after the other;
   at most `capacity`. 0 where there is a choice, or after a failure. Does not move the matcher. */
uint32_t grammar_matcher_forced(struct grammar_matcher *matcher, uint32_t *tokens,
                                uint32_t capacity);
/* Move behind tokens [count]. *ended: the text is complete and nothing but an end token may follow,
   or an end token was among them. false as above. */
bool grammar_matcher_accept(struct grammar_matcher *matcher, const uint32_t *tokens, uint32_t count,
                            bool *ended);
/* Why it failed; "" when it has not. */
const char *grammar_matcher_error(const struct grammar_matcher *matcher);

#endif
