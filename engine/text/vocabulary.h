/*
 * A vocabulary: the tokens of a model file, their types, their texts and the bytes they stand for.
 *
 * Private to engine/text/. Everything lies in a few arrays and one arena of bytes; there is no
 * allocation per token. Refused: token types and byte tokens that are not what they claim, texts
 * that are there twice. Immutable once loaded; any thread may read.
 */
#ifndef QUIRE_ENGINE_TEXT_VOCABULARY_H
#define QUIRE_ENGINE_TEXT_VOCABULARY_H

#include "base/error.h"
#include "engine/model/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKEN_NONE UINT32_MAX

/* As tokenizer.ggml.token_type numbers them. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

/* How a token's text stands for bytes. */
enum vocabulary_coding {
    CODING_BYTE_LEVEL, /* GPT-2's: each byte is a printable character */
    CODING_SPACE_MARK, /* SentencePiece's: U+2581 is a space */
};

struct token_text {
    uint32_t text; /* offsets in the arena; equal when text and piece are */
    uint32_t piece;
    uint16_t text_length;
    uint16_t piece_length; /* 0 for control and unknown tokens */
};

struct vocabulary {
    uint32_t count;
    struct token_text *tokens; /* [count] */
    uint8_t *types;            /* [count], enum token_type */
    char *arena;
    size_t arena_bytes;
    uint32_t longest_piece; /* bytes, over normal tokens */
};

/* Errors name the key and, where there is one, the token. On failure nothing is left. */
enum status vocabulary_load(const struct gguf *gguf, enum vocabulary_coding coding,
                            struct vocabulary *out, struct error *error);
void vocabulary_deinit(struct vocabulary *vocabulary);
uint64_t vocabulary_memory_bytes(const struct vocabulary *vocabulary);

static inline const char *vocabulary_text(const struct vocabulary *vocabulary, uint32_t token,
                                          size_t *length)
{
    *length = vocabulary->tokens[token].text_length;
    return vocabulary->arena + vocabulary->tokens[token].text;
}

static inline const char *vocabulary_piece(const struct vocabulary *vocabulary, uint32_t token,
                                           size_t *length)
{
    *length = vocabulary->tokens[token].piece_length;
    return vocabulary->arena + vocabulary->tokens[token].piece;
}

/* From bytes to a token: open addressing over the vocabulary's own arena. */
struct token_index {
    uint32_t *slots; /* token or TOKEN_NONE; mask + 1 of them */
    uint32_t mask;
    bool pieces; /* over pieces, else over texts */
};

/* All tokens by text; a text that is there twice is STATUS_INVALID. Empty texts are left out. */
enum status token_index_texts(const struct vocabulary *vocabulary, struct token_index *out,
                              struct error *error);
/* Normal tokens by piece; of equal pieces the first. Others are never made from ordinary text. */
enum status token_index_pieces(const struct vocabulary *vocabulary, struct token_index *out,
                               struct error *error);
void token_index_deinit(struct token_index *index);
uint64_t token_index_memory_bytes(const struct token_index *index);
uint32_t token_index_find(const struct token_index *index, const struct vocabulary *vocabulary,
                          const char *bytes, size_t length);

/* The text of a byte in byte-level coding; returns its length, 1 or 2. */
int byte_level_text(unsigned byte, char out[static 4]);

/* "<0x0A>" → 10; -1 for anything but "<0x", two hex digits and ">". */
int byte_token_value(const char *text, size_t length);

#endif
