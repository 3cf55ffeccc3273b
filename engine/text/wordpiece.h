/*
 * WordPiece: BERT's normalizer, words, and the longest known beginning of what is left of a word.
 *
 *   text → control characters dropped, white space made spaces → folded (accents stripped, lower
 *        case), unless the model is cased → words: between spaces, each punctuation character and
 *        each CJK ideograph alone → tokens
 *
 * A word that cannot be cut into tokens, or has more than 100 characters, is the unknown token. The
 * normalizer does what Hugging Face's does (wordpiece_tables.h), with one exception: characters
 * with a combining class that are no marks (some vowel signs) are not put in canonical order.
 *
 * Private to engine/text/. Nothing is allocated, and time is linear in the text. Any thread.
 */
#ifndef QUIRE_ENGINE_TEXT_WORDPIECE_H
#define QUIRE_ENGINE_TEXT_WORDPIECE_H

#include "engine/text/vocabulary.h"

#define WORDPIECE_WORD_MAX 100u /* characters, as BERT's */

struct wordpiece {
    const struct vocabulary *vocabulary;
    /* Over texts: "▁word" begins a word, "ing" goes on. */
    const struct token_index *index;
    uint32_t unknown; /* TOKEN_NONE: such words are left out */
    uint32_t longest; /* bytes of a text */
    bool folds;
};

struct wordpiece_sink {
    enum status (*push)(void *arg, uint32_t token, struct error *error);
    void *arg;
};

enum status wordpiece_encode(const struct wordpiece *wordpiece, const char *text, size_t length,
                             const struct wordpiece_sink *sink, struct error *error);

#endif
