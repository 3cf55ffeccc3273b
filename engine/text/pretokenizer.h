/*
 * Pre-tokenizers: how a text is cut into pieces that merges never cross, by the name that the model
 * file gives (tokenizer.ggml.pre).
 *
 * A pre-tokenizer is a list of steps, each one regular expression (PCRE2). A step cuts every piece
 * of the step before at its matches: a match is a piece, and so is what lies between two matches.
 * Private to engine/text/. Immutable once created; each encode brings its own scratch.
 */
#ifndef QUIRE_ENGINE_TEXT_PRETOKENIZER_H
#define QUIRE_ENGINE_TEXT_PRETOKENIZER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pretokenizer;
struct pretokenizer_scratch;

/* STATUS_UNSUPPORTED, with the name, for one that we do not know. */
enum status pretokenizer_create(const char *name, size_t name_length, struct pretokenizer **out,
                                struct error *error);
void pretokenizer_destroy(struct pretokenizer *pretokenizer);
uint64_t pretokenizer_memory_bytes(const struct pretokenizer *pretokenizer);

/* A piece that is a token as it stands is not merged up from bytes. */
bool pretokenizer_ignores_merges(const struct pretokenizer *pretokenizer);
/* Whether a beginning token is added when the file does not say (add_bos_token). */
bool pretokenizer_adds_bos(const struct pretokenizer *pretokenizer);

/* NULL when there is no memory. One thread at a time per scratch. */
struct pretokenizer_scratch *pretokenizer_scratch_create(void);
void pretokenizer_scratch_destroy(struct pretokenizer_scratch *scratch);

/* Call `piece` for the pieces of `text`, in order; together they are the text. The text need not be
   UTF-8: each run of bytes that is not is a piece of its own. Stops at the first `piece` that does
   not return STATUS_OK, and returns that. */
enum status pretokenizer_split(const struct pretokenizer *pretokenizer,
                               struct pretokenizer_scratch *scratch, const char *text,
                               size_t length,
                               enum status (*piece)(void *arg, const char *bytes, size_t length,
                                                    struct error *error),
                               void *arg, struct error *error);

/* The i-th name that is known; NULL past the end. */
const char *pretokenizer_name(uint32_t index);

#endif
