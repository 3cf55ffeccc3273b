/*
 * Constrained output behind one small C ABI: grammars that say which token may come next
 * (llguidance, https://github.com/guidance-ai/llguidance).
 *
 * A vocabulary is made once a model; a grammar is compiled from a request's schema, regular
 * expression, list or grammar; a matcher follows one sequence. What a matcher answers depends only
 * on its grammar and its tokens: not on other matchers, on threads or on time.
 *
 * A panic in Rust is caught at each entry. A stack overflow and running out of memory cannot be
 * caught: compile wants a stack of 64 MiB and sources of at most 128 KiB (schemas) or 64 KiB
 * (expressions, grammars); all other entries are content with 256 KiB.
 *
 * Every object counts the bytes that it holds. The limits bound what a matcher may come to hold
 * (1 to 2 KiB for each lexer state) and the time of a mask.
 */
#ifndef QUIRE_TEXTGRAMMAR_H
#define QUIRE_TEXTGRAMMAR_H

#include <stddef.h>
#include <stdint.h>

enum textgrammar_status {
    TEXTGRAMMAR_OK = 0,
    TEXTGRAMMAR_INVALID, /* the source is wrong, not supported, or matched by no text */
    TEXTGRAMMAR_LIMIT,   /* too large, or too many steps */
    TEXTGRAMMAR_PANIC,   /* a fault in the library */
};

enum textgrammar_kind {
    TEXTGRAMMAR_JSON_SCHEMA,
    TEXTGRAMMAR_REGEX,   /* Rust's syntax, matched as a whole */
    TEXTGRAMMAR_CHOICE,  /* a JSON list of strings */
    TEXTGRAMMAR_GRAMMAR, /* llguidance's Lark, or llama.cpp's GBNF (`root ::= …`) */
};

struct textgrammar_error {
    char path[256];    /* a JSON pointer into a schema; "" for the whole of it, or when unknown */
    char message[512]; /* a UTF-8 sentence without the client's text beyond names */
};

struct textgrammar_limits {
    uint64_t compile_fuel;    /* nodes of regular expressions while compiling; 50 a microsecond */
    uint64_t step_fuel;       /* the same for one mask; 14 a microsecond */
    uint32_t step_items;      /* parser items of one mask; 20 a microsecond */
    uint32_t lexer_states;    /* of one matcher; 1 to 2 KiB each */
    uint32_t grammar_symbols; /* of a compiled grammar */
};

struct textgrammar_vocabulary;
struct textgrammar;
struct textgrammar_matcher;

/* The bytes of token `id`, which live until vocabulary_new returns; nonzero for control tokens. */
typedef int (*textgrammar_token_at)(void *arg, uint32_t id, const char **bytes, size_t *length);
/* Writes at most `capacity` ids of a UTF-8 text, without BOS and without control tokens; returns
   how many. Called from any thread that uses a matcher, as long as the vocabulary lives. */
typedef size_t (*textgrammar_tokenize)(void *arg, const char *text, size_t length, uint32_t *ids,
                                       size_t capacity);

/* `ends`: tokens that end an answer, at least one. Takes 0.1 to 1 s and 20 to 70 MB. Free it after
   all grammars and matchers. */
int textgrammar_vocabulary_new(uint32_t count, textgrammar_token_at token_at,
                               textgrammar_tokenize tokenize, void *arg, const uint32_t *ends,
                               size_t end_count, const struct textgrammar_limits *limits,
                               struct textgrammar_vocabulary **out,
                               struct textgrammar_error *error);
size_t textgrammar_vocabulary_bytes(const struct textgrammar_vocabulary *vocabulary);
void textgrammar_vocabulary_free(struct textgrammar_vocabulary *vocabulary); /* NULL is allowed */

/* Any number of threads at once. The grammar is counted: matchers keep it alive. */
int textgrammar_compile(const struct textgrammar_vocabulary *vocabulary, int kind,
                        const char *source, size_t length, const struct textgrammar **out,
                        struct textgrammar_error *error);
size_t textgrammar_bytes(const struct textgrammar *grammar);
void textgrammar_free(const struct textgrammar *grammar); /* NULL is allowed */

/* At the grammar's beginning; NULL with an error after a panic. Any thread. */
struct textgrammar_matcher *textgrammar_matcher_new(const struct textgrammar *grammar,
                                                    struct textgrammar_error *error);
void textgrammar_matcher_free(struct textgrammar_matcher *matcher); /* NULL is allowed */
size_t textgrammar_matcher_bytes(const struct textgrammar_matcher *matcher);

/* All entries below: one thread at a time for each matcher. After a failure every later one fails.
 */

/* words [ceil(vocabulary / 32)]: bit id % 32 of word id / 32 is set where the token may come next;
   end tokens where the text may end here. */
int textgrammar_matcher_mask(struct textgrammar_matcher *matcher, uint32_t *words,
                             size_t word_count, struct textgrammar_error *error);
/* The next tokens, when the grammar leaves no choice: those that sampling under mask would give one
   after the other. At most `capacity`; 0 when there is a choice. Does not move the matcher. */
int textgrammar_matcher_forced(struct textgrammar_matcher *matcher, uint32_t *tokens,
                               size_t capacity, size_t *count, struct textgrammar_error *error);
/* Moves behind `tokens`. *ended: nothing may follow, or an end token was among them. */
int textgrammar_matcher_accept(struct textgrammar_matcher *matcher, const uint32_t *tokens,
                               size_t count, int *ended, struct textgrammar_error *error);

#endif
