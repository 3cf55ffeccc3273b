/*
 * Merging: from the characters of a piece up to tokens, lowest key first and, of equal keys,
 * leftmost first. Byte-level BPE (keys are the merges' ranks) and SentencePiece BPE (keys order the
 * scores) differ only in how a pair is looked up.
 *
 * Time O(n log n), memory O(n) in the piece. Private to engine/text/.
 */
#ifndef QUIRE_ENGINE_TEXT_MERGE_H
#define QUIRE_ENGINE_TEXT_MERGE_H

#include "base/error.h"
#include "engine/text/vocabulary.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longer pieces are cut (at a character): bounds memory to 28 bytes for each of these. Nothing that
   people write has a word of 256 KiB. */
#define MERGE_PIECE_MAX ((size_t)256 << 10)

#define MERGE_NONE UINT32_MAX /* a key: these two do not merge */

/* ---- Byte-level BPE: pairs of tokens. ---- */

struct merge_table {
    uint64_t *keys;   /* rank << 40 | left << 20 | right, or all ones; mask + 1 of them */
    uint32_t *merged; /* the token that the pair becomes */
    uint32_t mask;
};

/* From tokenizer.ggml.merges ("left right" each). Errors name the key and the merge: it is missing,
   not of strings, or names a token that is not there. */
enum status merge_table_load(const struct gguf *gguf, const struct vocabulary *vocabulary,
                             const struct token_index *texts, struct merge_table *out,
                             struct error *error);
void merge_table_deinit(struct merge_table *table);
uint64_t merge_table_memory_bytes(const struct merge_table *table);
/* The pair's rank and token; MERGE_NONE when it does not merge. */
uint32_t merge_table_find(const struct merge_table *table, uint32_t left, uint32_t right,
                          uint32_t *merged);

/* ---- Both kinds. ---- */

/* One symbol: the bytes from its own index up to `next`. */
struct merge_symbol {
    uint32_t token; /* or TOKEN_NONE */
    uint32_t next;  /* index of the next symbol; the piece's length after the last */
    uint32_t prev;  /* TOKEN_NONE before the first */
};

struct merger {
    /* The key of symbols `left` and `right` = symbols[left].next of `piece`, and their token. */
    uint32_t (*find)(const void *arg, const struct merge_symbol *symbols, const char *piece,
                     uint32_t left, uint32_t right, uint32_t *merged);
    const void *arg;
    /* scratch, kept between pieces */
    struct merge_symbol *symbols; /* indexed by the symbol's first byte */
    uint64_t *heap;               /* key << 32 | left */
    size_t capacity;              /* bytes of a piece that fit */
};

void merger_init(struct merger *merger,
                 uint32_t (*find)(const void *arg, const struct merge_symbol *symbols,
                                  const char *piece, uint32_t left, uint32_t right,
                                  uint32_t *merged),
                 const void *arg);
void merger_deinit(struct merger *merger);
/* Room for a piece of `length` <= MERGE_PIECE_MAX bytes; false: no memory. */
bool merger_reserve(struct merger *merger, size_t length);
/* Merge what stands in merger->symbols: a list from `first` on whose `next` after the last symbol
   is `length`. Afterwards the list holds the result. */
void merger_run(struct merger *merger, const char *piece, uint32_t first, uint32_t length);

#endif
