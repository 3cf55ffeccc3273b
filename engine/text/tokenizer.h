/*
 * Tokenizers from a GGUF's tokenizer.ggml.* keys: text to ids, ids to bytes.
 *
 * Immutable after create; encode and piece may run on any number of threads at once. Unknown
 * tokenizer models and pre-tokenizers are refused by name, never guessed. Time is linear in the
 * length of the text. Byte sequences that are not UTF-8 are tokenized as bytes, never a crash; a
 * byte that a byte-level vocabulary has no token for is left out, as Hugging Face's tokenizers do.
 *
 * Beside its result an encode holds at most 10 MiB for a moment, and one copy of the text where
 * spaces or sentinels are rewritten. For that bound a single word of more than 256 KiB is cut.
 */
#ifndef QUIRE_ENGINE_TEXT_TOKENIZER_H
#define QUIRE_ENGINE_TEXT_TOKENIZER_H

#include "base/error.h"
#include "engine/model/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

enum tokenizer_flags {
    TOKENIZER_ADD_BOS = 1,       /* in front, where the model file says so (add_bos_token) */
    TOKENIZER_PARSE_SPECIAL = 2, /* texts of control tokens become their ids */
    TOKENIZER_ADD_EOS = 4,       /* behind, where the model file says so (add_eos_token) */
};

enum status tokenizer_create(const struct gguf *gguf, struct tokenizer **out, struct error *error);
void tokenizer_destroy(struct tokenizer *tokenizer);
uint64_t tokenizer_memory_bytes(const struct tokenizer *tokenizer);

/* *tokens is malloc'd (free it), also when *count is 0. More than `limit` tokens: STATUS_TOO_LARGE
   with code "context_length_exceeded" and no allocation left; *count is then limit + 1, because
   encoding ends there: a text that is far too long costs no more than one that just fits.
   `sentinel`: 0, or a code point whose occurrences break up special tokens and are then dropped:
   api/ puts it into user text so that no user can forge a control token. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                             unsigned flags, uint32_t sentinel, size_t limit, uint32_t **tokens,
                             size_t *count, struct error *error);

/* A long text is encoded in units: after each TOKENIZER_YIELD_BYTES of it (a word is never divided,
   so at most 256 KiB) `call` may do other work on this thread, encoding other texts included. */
#define TOKENIZER_YIELD_BYTES ((size_t)64 << 10)

struct tokenizer_yield {
    void (*call)(void *arg);
    void *arg;
};

/* tokenizer_encode that yields; NULL: never. */
enum status tokenizer_encode_yielding(const struct tokenizer *tokenizer, const char *text,
                                      size_t length, unsigned flags, uint32_t sentinel,
                                      size_t limit, const struct tokenizer_yield *yield,
                                      uint32_t **tokens, size_t *count, struct error *error);

uint32_t tokenizer_vocabulary(const struct tokenizer *tokenizer);
/* The bytes a token stands for; control tokens give length 0. Lives as long as the tokenizer. */
const char *tokenizer_piece(const struct tokenizer *tokenizer, uint32_t token, size_t *length);
/* The token's text as in the vocabulary, control tokens included ("<|im_end|>"). */
const char *tokenizer_text(const struct tokenizer *tokenizer, uint32_t token, size_t *length);
/* Its bytes, or a control token's text: what a token is where control tokens are shown. */
const char *tokenizer_shown_piece(const struct tokenizer *tokenizer, uint32_t token,
                                  size_t *length);
bool tokenizer_is_control(const struct tokenizer *tokenizer, uint32_t token);
/* A token of the file's type 4: its text is the token wherever it stands. */
bool tokenizer_is_user_defined(const struct tokenizer *tokenizer, uint32_t token);
/* Ends generation: eos, eot, and every token the file flags so. */
bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t token);
/* UINT32_MAX when the model has none. */
uint32_t tokenizer_bos(const struct tokenizer *tokenizer);
uint32_t tokenizer_eos(const struct tokenizer *tokenizer);
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);
/* i-th control token's id, or UINT32_MAX past the end: for api/'s sentinel. */
uint32_t tokenizer_control_token(const struct tokenizer *tokenizer, uint32_t index);

#endif
