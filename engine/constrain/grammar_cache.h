/*
 * The model's vocabulary for grammars, and compiled grammars kept for later requests.
 *
 * A grammar is found by its kind, its source, byte by byte, and a salt: tenants do not share, so
 * that nobody can find out another's schemas by timing. The least recently used goes when there are
 * LIMIT_GRAMMARS of them, or when the budget's account has no room for something new.
 */
#ifndef QUIRE_ENGINE_CONSTRAIN_GRAMMAR_CACHE_H
#define QUIRE_ENGINE_CONSTRAIN_GRAMMAR_CACHE_H

#include "engine/constrain/grammar.h"

struct grammar_cache;

/* Without a vocabulary yet. Tokenizer and budget must outlive it. STATUS_IO without memory. */
enum status grammar_cache_create(const struct tokenizer *tokenizer, struct budget *budget,
                                 struct grammar_cache **out, struct error *error);
/* After all completions with grammars. NULL is allowed. */
void grammar_cache_destroy(struct grammar_cache *cache);

/* Makes the vocabulary: 0.1 to 1 s of CPU time. Once, on the thread that will compile, before it
   compiles. Errors as grammar_vocabulary_create. */
enum status grammar_cache_load(struct grammar_cache *cache, struct error *error);

/* A reference to a grammar that was compiled before, or NULL. Any thread. */
struct grammar *grammar_cache_find(struct grammar_cache *cache, enum grammar_kind kind,
                                   const char *source, size_t length, uint64_t salt);
/* Compiles it, or finds it, and keeps it if there is room; *out has a reference for the caller.
   Errors and stack as grammar_compile; STATUS_UNSUPPORTED when load has failed. The thread that
   loaded. */
enum status grammar_cache_compile(struct grammar_cache *cache, enum grammar_kind kind,
                                  const char *source, size_t length, uint64_t salt,
                                  struct grammar **out, struct error *error);

#endif
