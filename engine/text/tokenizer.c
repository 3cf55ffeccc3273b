/*
 * Tokenizers of GGUF files: "gpt2" (byte-level BPE), "llama" (SentencePiece BPE) and "bert"
 * (WordPiece).
 *
 *   text → special tokens cut out → ordinary text, sentinels dropped
 *        → gpt2:  pre-tokenizer's pieces → bytes → merges by rank
 *        → bert:  words, folded → their longest known beginnings (wordpiece.h)
 *        → llama: spaces marked, words → characters → merges by score → bytes for what is left
 *
 * As in Hugging Face's tokenizers, a byte that a byte-level vocabulary has no token for is left
 * out. What an encode needs beside its result is bounded: 8 MiB for merging, about 1 MiB for the
 * regular expressions, and one copy of the text where spaces or sentinels have to be rewritten.
 */
#include "engine/text/tokenizer.h"

#include "base/check.h"
#include "base/minmax.h"
#include "base/utf8.h"
#include "engine/text/merge.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/vocabulary.h"
#include "engine/text/wordpiece.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ENDS_MAX 32u
#define SHOW(length) ((int)((length) < 48 ? (length) : 48))

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

enum tokenizer_kind { KIND_BYTE_LEVEL, KIND_SENTENCEPIECE, KIND_WORDPIECE };

struct tokenizer {
    enum tokenizer_kind kind;
    struct vocabulary vocabulary;
    struct pretokenizer *pretokenizer; /* byte-level */
    struct merge_table merges;         /* byte-level */
    struct token_index pieces;         /* SentencePiece, and byte-level that ignores merges */
    uint32_t *score_keys;              /* SentencePiece: [count], the higher score the lower key */
    struct token_index texts;          /* WordPiece */
    struct wordpiece wordpiece;        /* WordPiece */
    bool words_apart;                  /* SentencePiece: no token has a space after a non-space */
    bool swallows_space;               /* specials take the white space after them along … */
    uint32_t leaves_space[3];          /* … but for these */
    bool adds_bos, adds_eos, adds_space_prefix;
    uint32_t bos, eos, unknown;
    uint32_t byte_tokens[256];
    /* Control, unknown and user-defined tokens in the order of their texts; those that start with
       byte b are specials[special_begin[b]] … specials[special_begin[b + 1] - 1]. */
    uint32_t *specials;
    uint32_t special_begin[257];
    uint32_t *controls; /* by id */
    uint32_t control_count;
    uint32_t ends[ENDS_MAX];
    uint32_t end_count;
};

/* ---- Loading. ---- */

/* A token id of the file: absent is TOKEN_NONE, one outside of the vocabulary an error. */
static enum status load_id(const struct gguf *gguf, const struct tokenizer *tokenizer,
                           const char *key, uint32_t *out, struct error *error)
{
    *out = TOKEN_NONE;
    if (!gguf_has(gguf, key))
        return STATUS_OK;
    uint32_t id = 0;
    TRY(gguf_get_u32(gguf, key, &id, error));
    if (id >= tokenizer->vocabulary.count)
        return error_set(error, STATUS_INVALID, NULL,
                         "key '%s' is %" PRIu32 ", the vocabulary has %" PRIu32 " tokens", key, id,
                         tokenizer->vocabulary.count);
    *out = id;
    return STATUS_OK;
}

static enum status load_bool(const struct gguf *gguf, const char *key, bool absent, bool *out,
                             struct error *error)
{
    *out = absent;
    return gguf_has(gguf, key) ? gguf_get_bool(gguf, key, out, error) : STATUS_OK;
}

static void add_end(struct tokenizer *tokenizer, uint32_t token)
{
    if (token == TOKEN_NONE || tokenizer_is_end(tokenizer, token) ||
        tokenizer->end_count == ENDS_MAX)
        return;
    tokenizer->ends[tokenizer->end_count++] = token;
}

static uint32_t find_control(const struct tokenizer *tokenizer, const char *text)
{
    size_t wanted = strlen(text);
    for (uint32_t i = 0; i < tokenizer->control_count; i++) {
        size_t length;
        const char *found =
            vocabulary_text(&tokenizer->vocabulary, tokenizer->controls[i], &length);
        if (length == wanted && memcmp(found, text, length) == 0)
            return tokenizer->controls[i];
    }
    return TOKEN_NONE;
}

/* Files name one eos; models end turns with others too. Known texts count only where the file has
   them as control tokens. */
static void find_ends(struct tokenizer *tokenizer)
{
    static const char deepseek_end[] = "<\xef\xbd\x9c"
                                       "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>";
    static const char *const texts[] = {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "<|eot|>",
        "</s>",
        "<eos>",
        "[EOS]",
        "<EOT>",
        "_<EOT>",
        "<|return|>",
        "<|call|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|endofturn|>",
        deepseek_end,
    };
    /* In harmony's format <|end|> only closes a message; <|return|> and <|call|> end the turn. */
    bool harmony = find_control(tokenizer, "<|return|>") != TOKEN_NONE &&
                   find_control(tokenizer, "<|call|>") != TOKEN_NONE;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!harmony || strcmp(texts[i], "<|end|>") != 0)
            add_end(tokenizer, find_control(tokenizer, texts[i]));
}

static enum status load_ids(const struct gguf *gguf, struct tokenizer *tokenizer,
                            struct error *error)
{
    uint32_t eot = TOKEN_NONE, eom = TOKEN_NONE, padding = TOKEN_NONE;
    const struct {
        const char *key;
        uint32_t *out;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &tokenizer->bos},
        {"tokenizer.ggml.eos_token_id", &tokenizer->eos},
        {"tokenizer.ggml.unknown_token_id", &tokenizer->unknown},
        {"tokenizer.ggml.eot_token_id", &eot},
        {"tokenizer.ggml.eom_token_id", &eom},
        {"tokenizer.ggml.padding_token_id", &padding}, /* only checked */
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        TRY(load_id(gguf, tokenizer, ids[i].key, ids[i].out, error));
    if (tokenizer->kind == KIND_WORDPIECE) { /* older files name what stands around a text so */
        if (tokenizer->bos == TOKEN_NONE)
            TRY(load_id(gguf, tokenizer, "tokenizer.ggml.cls_token_id", &tokenizer->bos, error));
        if (tokenizer->eos == TOKEN_NONE) /* misspelt there */
            TRY(load_id(gguf, tokenizer, "tokenizer.ggml.seperator_token_id", &tokenizer->eos,
                        error));
        tokenizer->wordpiece.unknown = tokenizer->unknown;
    }
    add_end(tokenizer, tokenizer->eos);
    add_end(tokenizer, eot);
    add_end(tokenizer, eom);
    find_ends(tokenizer);
    bool wordpiece = tokenizer->kind == KIND_WORDPIECE;
    bool bos_default = wordpiece || tokenizer->kind == KIND_SENTENCEPIECE ||
                       pretokenizer_adds_bos(tokenizer->pretokenizer);
    enum status status =
        load_bool(gguf, "tokenizer.ggml.add_bos_token", bos_default, &tokenizer->adds_bos, error);
    if (status == STATUS_OK)
        status =
            load_bool(gguf, "tokenizer.ggml.add_eos_token", wordpiece, &tokenizer->adds_eos, error);
    if (status == STATUS_OK)
        status =
            load_bool(gguf, "tokenizer.ggml.add_space_prefix",
                      tokenizer->kind == KIND_SENTENCEPIECE, &tokenizer->adds_space_prefix, error);
    tokenizer->adds_bos = tokenizer->adds_bos && tokenizer->bos != TOKEN_NONE;
    tokenizer->adds_eos = tokenizer->adds_eos && tokenizer->eos != TOKEN_NONE;
    return status;
}

static bool type_is_control(uint8_t type)
{
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN;
}

static int compare_specials(const void *a, const void *b, void *arg)
{
    const struct vocabulary *vocabulary = arg;
    size_t left_length, right_length;
    const char *left = vocabulary_text(vocabulary, *(const uint32_t *)a, &left_length);
    const char *right = vocabulary_text(vocabulary, *(const uint32_t *)b, &right_length);
    int order = memcmp(left, right, min_u64(left_length, right_length));
    return order != 0 ? order : (left_length > right_length) - (left_length < right_length);
}

static enum status load_specials(struct tokenizer *tokenizer, struct error *error)
{
    struct vocabulary *vocabulary = &tokenizer->vocabulary;
    uint32_t special_count = 0;
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        uint8_t type = vocabulary->types[i];
        tokenizer->control_count += type_is_control(type) ? 1 : 0;
        special_count += type_is_control(type) || type == TOKEN_USER_DEFINED ? 1 : 0;
    }
    tokenizer->controls = malloc((tokenizer->control_count + 1) * sizeof(uint32_t));
    tokenizer->specials = malloc((special_count + 1) * sizeof(uint32_t));
    if (!tokenizer->controls || !tokenizer->specials)
        return error_set(error, STATUS_IO, NULL, "no memory for the vocabulary");
    uint32_t control = 0, special = 0;
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        uint8_t type = vocabulary->types[i];
        if (type_is_control(type))
            tokenizer->controls[control++] = i;
        if ((type_is_control(type) || type == TOKEN_USER_DEFINED) &&
            vocabulary->tokens[i].text_length > 0)
            tokenizer->specials[special++] = i;
    }
    qsort_r(tokenizer->specials, special, sizeof(uint32_t), compare_specials, vocabulary);
    uint32_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        tokenizer->special_begin[byte] = at;
        while (at < special) {
            size_t length;
            const char *text = vocabulary_text(vocabulary, tokenizer->specials[at], &length);
            if ((uint8_t)text[0] != byte)
                break;
            at++;
        }
    }
    tokenizer->special_begin[256] = at;
    CHECK(at == special);
    return STATUS_OK;
}

static enum status load_byte_level(const struct gguf *gguf, struct tokenizer *tokenizer,
                                   struct error *error)
{
    struct gguf_string name;
    enum status status = gguf_get_string(gguf, "tokenizer.ggml.pre", &name, error);
    if (status == STATUS_NOT_FOUND)
        return error_set(error, STATUS_UNSUPPORTED, NULL,
                         "the model file does not name its pre-tokenizer (key "
                         "'tokenizer.ggml.pre'): convert it again");
    TRY(status);
    TRY(pretokenizer_create(name.text, name.length, &tokenizer->pretokenizer, error));
    TRY(vocabulary_load(gguf, CODING_BYTE_LEVEL, &tokenizer->vocabulary, error));
    struct token_index texts = {0};
    status = token_index_texts(&tokenizer->vocabulary, &texts, error);
    if (status == STATUS_OK)
        status = merge_table_load(gguf, &tokenizer->vocabulary, &texts, &tokenizer->merges, error);
    bool any = false;
    for (unsigned byte = 0; byte < 256 && status == STATUS_OK; byte++) {
        char text[4];
        int length = byte_level_text(byte, text);
        uint32_t token = token_index_find(&texts, &tokenizer->vocabulary, text, (size_t)length);
        if (token != TOKEN_NONE && tokenizer->vocabulary.types[token] != TOKEN_NORMAL)
            token = TOKEN_NONE;
        tokenizer->byte_tokens[byte] = token;
        any = any || token != TOKEN_NONE;
    }
    token_index_deinit(&texts);
    if (status == STATUS_OK && !any)
        return error_set(error, STATUS_INVALID, NULL,
                         "key 'tokenizer.ggml.tokens' holds no token for any byte");
    if (status == STATUS_OK && pretokenizer_ignores_merges(tokenizer->pretokenizer))
        status = token_index_pieces(&tokenizer->vocabulary, &tokenizer->pieces, error);
    return status;
}

/* A key that is lower the higher the score: the bits of a float order as integers once the negative
   ones are flipped. */
static uint32_t score_key(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 and 0 are one score */
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

static enum status load_scores(const struct gguf *gguf, struct tokenizer *tokenizer,
                               struct error *error)
{
    static const char key[] = "tokenizer.ggml.scores";
    uint32_t count = tokenizer->vocabulary.count;
    if (!gguf_has(gguf, key))
        return error_set(error, STATUS_INVALID, NULL, "the model file has no scores (key '%s')",
                         key);
    float *scores = malloc(count * sizeof *scores);
    tokenizer->score_keys = malloc(count * sizeof *tokenizer->score_keys);
    enum status status = STATUS_OK;
    if (!scores || !tokenizer->score_keys)
        status = error_set(error, STATUS_IO, NULL, "no memory for the vocabulary");
    if (status == STATUS_OK)
        status = gguf_array_get_f32(gguf, key, scores, count, error);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        if (!isfinite(scores[i]))
            status = error_set(error, STATUS_INVALID, NULL,
                               "key '%s': the score of token %" PRIu32 " is not a number", key, i);
        else
            tokenizer->score_keys[i] = score_key(scores[i]);
    free(scores);
    return status;
}

/* All 256 byte tokens, each once, or none at all. */
static enum status load_byte_tokens(struct tokenizer *tokenizer, struct error *error)
{
    const struct vocabulary *vocabulary = &tokenizer->vocabulary;
    memset(tokenizer->byte_tokens, 0xff, sizeof tokenizer->byte_tokens);
    bool any = false;
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        if (vocabulary->types[i] != TOKEN_BYTE)
            continue;
        size_t length;
        uint8_t byte = (uint8_t)vocabulary_piece(vocabulary, i, &length)[0];
        if (tokenizer->byte_tokens[byte] != TOKEN_NONE)
            return error_set(
                error, STATUS_INVALID, NULL,
                "key 'tokenizer.ggml.tokens': byte token <0x%02X> is there twice (%" PRIu32
                " and %" PRIu32 ")",
                byte, tokenizer->byte_tokens[byte], i);
        tokenizer->byte_tokens[byte] = i;
        any = true;
    }
    for (unsigned byte = 0; byte < 256 && any; byte++)
        if (tokenizer->byte_tokens[byte] == TOKEN_NONE)
            return error_set(error, STATUS_INVALID, NULL,
                             "key 'tokenizer.ggml.tokens': byte token <0x%02X> is missing", byte);
    return STATUS_OK;
}

/* Whether words can be merged one by one: true unless a token holds a space after something else.
 */
static bool vocabulary_keeps_words_apart(const struct vocabulary *vocabulary)
{
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        size_t length;
        const char *piece = vocabulary_piece(vocabulary, i, &length);
        if (vocabulary->types[i] != TOKEN_NORMAL)
            continue;
        for (size_t at = 1; at < length; at++)
            if (piece[at] == ' ' && piece[at - 1] != ' ')
                return false;
    }
    return true;
}

static enum status load_sentencepiece(const struct gguf *gguf, struct tokenizer *tokenizer,
                                      struct error *error)
{
    struct gguf_string name;
    enum status status = STATUS_OK;
    if (gguf_has(gguf, "tokenizer.ggml.pre")) {
        status = gguf_get_string(gguf, "tokenizer.ggml.pre", &name, error);
        if (status == STATUS_OK &&
            (name.length != strlen("default") || memcmp(name.text, "default", name.length) != 0))
            return error_set(error, STATUS_UNSUPPORTED, NULL,
                             "the model's pre-tokenizer '%.*s' (key 'tokenizer.ggml.pre') is not "
                             "one that this server knows for SentencePiece vocabularies",
                             SHOW(name.length), name.text);
    }
    TRY(status);
    TRY(vocabulary_load(gguf, CODING_SPACE_MARK, &tokenizer->vocabulary, error));
    struct token_index texts = {0}; /* only to refuse texts that are there twice */
    status = token_index_texts(&tokenizer->vocabulary, &texts, error);
    token_index_deinit(&texts);
    if (status == STATUS_OK)
        status = load_scores(gguf, tokenizer, error);
    if (status == STATUS_OK)
        status = load_byte_tokens(tokenizer, error);
    if (status == STATUS_OK)
        status = token_index_pieces(&tokenizer->vocabulary, &tokenizer->pieces, error);
    tokenizer->words_apart = vocabulary_keeps_words_apart(&tokenizer->vocabulary);
    return status;
}

/* Which pre-tokenizer the file names is of no meaning: all of BERT's are one. */
static enum status load_wordpiece(const struct gguf *gguf, struct tokenizer *tokenizer,
                                  struct error *error)
{
    static const char strip_key[] = "tokenizer.ggml.normalizer.strip_accents";
    bool lowers, strips;
    TRY(load_bool(gguf, "tokenizer.ggml.normalizer.lowercase", true, &lowers, error));
    TRY(load_bool(gguf, strip_key, lowers, &strips, error));
    if (lowers != strips)
        return error_set(error, STATUS_UNSUPPORTED, NULL,
                         "key '%s': accents are stripped where letters are made lower case, or "
                         "both are kept; only one of them is not supported",
                         strip_key);
    TRY(vocabulary_load(gguf, CODING_SPACE_MARK, &tokenizer->vocabulary, error));
    TRY(token_index_texts(&tokenizer->vocabulary, &tokenizer->texts, error));
    memset(tokenizer->byte_tokens, 0xff, sizeof tokenizer->byte_tokens);
    tokenizer->wordpiece = (struct wordpiece){
        .vocabulary = &tokenizer->vocabulary,
        .index = &tokenizer->texts,
        .unknown = TOKEN_NONE,
        .folds = lowers,
    };
    for (uint32_t i = 0; i < tokenizer->vocabulary.count; i++)
        tokenizer->wordpiece.longest =
            max_u32(tokenizer->wordpiece.longest, tokenizer->vocabulary.tokens[i].text_length);
    return STATUS_OK;
}

static bool string_is(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && memcmp(string.text, text, string.length) == 0;
}

/* Phi 3's tokenizer.json gives its special tokens "rstrip", which a GGUF file does not tell: they
   take white space after them along, all but three. */
static enum status load_space_rule(const struct gguf *gguf, struct tokenizer *tokenizer,
                                   struct error *error)
{
    static const char *const leaving[] = {"<unk>", "<s>", "<|endoftext|>"};
    struct gguf_string name;
    if (tokenizer->kind != KIND_SENTENCEPIECE || !gguf_has(gguf, "general.architecture"))
        return STATUS_OK;
    enum status status = gguf_get_string(gguf, "general.architecture", &name, error);
    tokenizer->swallows_space = status == STATUS_OK && string_is(name, "phi3");
    for (size_t i = 0; i < sizeof leaving / sizeof *leaving; i++)
        tokenizer->leaves_space[i] = find_control(tokenizer, leaving[i]);
    return status;
}

static enum status load_all(const struct gguf *gguf, struct tokenizer *tokenizer,
                            struct error *error)
{
    struct gguf_string model;
    enum status status = gguf_get_string(gguf, "tokenizer.ggml.model", &model, error);
    if (status == STATUS_NOT_FOUND)
        return error_set(error, STATUS_INVALID, NULL,
                         "the model file has no tokenizer (key 'tokenizer.ggml.model')");
    if (status != STATUS_OK)
        return status;
    if (string_is(model, "gpt2")) {
        tokenizer->kind = KIND_BYTE_LEVEL;
        status = load_byte_level(gguf, tokenizer, error);
    } else if (string_is(model, "llama")) {
        tokenizer->kind = KIND_SENTENCEPIECE;
        status = load_sentencepiece(gguf, tokenizer, error);
    } else if (string_is(model, "bert")) {
        tokenizer->kind = KIND_WORDPIECE;
        status = load_wordpiece(gguf, tokenizer, error);
    } else {
        return error_set(
            error, STATUS_UNSUPPORTED, NULL,
            "the model's tokenizer '%.*s' (key 'tokenizer.ggml.model') is not one that "
            "this server knows: gpt2, llama, bert",
            SHOW(model.length), model.text);
    }
    if (status == STATUS_OK)
        status = load_specials(tokenizer, error);
    if (status == STATUS_OK)
        status = load_ids(gguf, tokenizer, error);
    if (status == STATUS_OK)
        status = load_space_rule(gguf, tokenizer, error);
    return status;
}

enum status tokenizer_create(const struct gguf *gguf, struct tokenizer **out, struct error *error)
{
    *out = NULL;
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return error_set(error, STATUS_IO, NULL, "no memory for the tokenizer");
    enum status status = load_all(gguf, tokenizer, error);
    if (status != STATUS_OK) {
        tokenizer_destroy(tokenizer);
        return status;
    }
    *out = tokenizer;
    return STATUS_OK;
}

void tokenizer_destroy(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    vocabulary_deinit(&tokenizer->vocabulary);
    pretokenizer_destroy(tokenizer->pretokenizer);
    merge_table_deinit(&tokenizer->merges);
    token_index_deinit(&tokenizer->pieces);
    token_index_deinit(&tokenizer->texts);
    free(tokenizer->score_keys);
    free(tokenizer->specials);
    free(tokenizer->controls);
    free(tokenizer);
}

uint64_t tokenizer_memory_bytes(const struct tokenizer *tokenizer)
{
    uint64_t bytes = sizeof *tokenizer + vocabulary_memory_bytes(&tokenizer->vocabulary) +
                     merge_table_memory_bytes(&tokenizer->merges) +
                     token_index_memory_bytes(&tokenizer->pieces) +
                     token_index_memory_bytes(&tokenizer->texts);
    if (tokenizer->pretokenizer)
        bytes += pretokenizer_memory_bytes(tokenizer->pretokenizer);
    if (tokenizer->score_keys)
        bytes += tokenizer->vocabulary.count * sizeof *tokenizer->score_keys;
    return bytes +
           (tokenizer->special_begin[256] + 1 + tokenizer->control_count + 1) * sizeof(uint32_t);
}

/* ---- Encoding. ---- */

/* Where tokens go. The first one past the limit ends the encoding. */
struct sink {
    uint32_t *tokens;
    size_t count;
    size_t capacity;
    size_t limit;
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct sink sink;
    struct merger merger;
    struct pretokenizer_scratch *scratch; /* byte-level */
    char sentinel[4];
    size_t sentinel_length; /* 0: none */
    char *rewritten;        /* ordinary text where it had to be copied */
    size_t rewritten_capacity;
    const struct tokenizer_yield *yield;
    size_t unyielded_bytes; /* worked on since the last yield */
    struct error *error;
};

/* Let others have a turn after each TOKENIZER_YIELD_BYTES of text. */
static void note_work(struct encoder *encoder, size_t bytes)
{
    encoder->unyielded_bytes += bytes;
    if (encoder->unyielded_bytes < TOKENIZER_YIELD_BYTES)
        return;
    encoder->unyielded_bytes = 0;
    if (encoder->yield)
        encoder->yield->call(encoder->yield->arg);
}

static enum status no_memory(struct error *error)
{
    return error_no_memory(error);
}

static enum status sink_push(struct sink *sink, uint32_t token, struct error *error)
{
    if (sink->count >= sink->limit) {
        sink->count++;
        return error_set_code(error, STATUS_TOO_LARGE, "context_length_exceeded", NULL,
                              "the text has more tokens than the limit of %zu", sink->limit);
    }
    if (sink->count == sink->capacity) {
        size_t capacity = sink->capacity < 64 ? 64 : sink->capacity + sink->capacity / 2;
        if (capacity > sink->limit)
            capacity = sink->limit;
        uint32_t *tokens = realloc(sink->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return no_memory(error);
        sink->tokens = tokens;
        sink->capacity = capacity;
    }
    sink->tokens[sink->count++] = token;
    return STATUS_OK;
}

/* The largest length up to MERGE_PIECE_MAX that does not cut a UTF-8 character. */
static size_t cut_length(const char *bytes, size_t length)
{
    if (length <= MERGE_PIECE_MAX)
        return length;
    size_t cut = MERGE_PIECE_MAX;
    while (cut > MERGE_PIECE_MAX - 4 && ((uint8_t)bytes[cut] & 0xc0) == 0x80)
        --cut;
    return cut;
}

static uint32_t find_ranked(const void *arg, const struct merge_symbol *symbols, const char *piece,
                            uint32_t left, uint32_t right, uint32_t *merged)
{
    (void)piece;
    return merge_table_find(arg, symbols[left].token, symbols[right].token, merged);
}

static uint32_t find_scored(const void *arg, const struct merge_symbol *symbols, const char *piece,
                            uint32_t left, uint32_t right, uint32_t *merged)
{
    const struct tokenizer *tokenizer = arg;
    uint32_t length = symbols[right].next - left;
    if (length > tokenizer->vocabulary.longest_piece)
        return MERGE_NONE;
    *merged = token_index_find(&tokenizer->pieces, &tokenizer->vocabulary, piece + left, length);
    return *merged == TOKEN_NONE ? MERGE_NONE : tokenizer->score_keys[*merged];
}

/* One piece of at most MERGE_PIECE_MAX bytes, from bytes up. */
static enum status encode_ranked(struct encoder *encoder, const char *bytes, uint32_t length)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (!merger_reserve(&encoder->merger, length))
        return no_memory(encoder->error);
    struct merge_symbol *symbols = encoder->merger.symbols;
    uint32_t first = length, last = TOKEN_NONE;
    for (uint32_t i = 0; i < length; i++) {
        uint32_t token = tokenizer->byte_tokens[(uint8_t)bytes[i]];
        if (token == TOKEN_NONE)
            continue;
        symbols[i] = (struct merge_symbol){token, length, last};
        if (last == TOKEN_NONE)
            first = i;
        else
            symbols[last].next = i;
        last = i;
    }
    merger_run(&encoder->merger, bytes, first, length);
    for (uint32_t i = first; i < length; i = symbols[i].next)
        TRY(sink_push(&encoder->sink, symbols[i].token, encoder->error));
    return STATUS_OK;
}

static enum status encode_piece(void *arg, const char *bytes, size_t length, struct error *error)
{
    struct encoder *encoder = arg;
    const struct tokenizer *tokenizer = encoder->tokenizer;
    note_work(encoder, min_u64(length, MERGE_PIECE_MAX));
    if (tokenizer->pieces.slots && length <= tokenizer->vocabulary.longest_piece) {
        uint32_t token =
            token_index_find(&tokenizer->pieces, &tokenizer->vocabulary, bytes, length);
        if (token != TOKEN_NONE)
            return sink_push(&encoder->sink, token, error);
    }
    while (length > 0) {
        size_t part = cut_length(bytes, length);
        TRY(encode_ranked(encoder, bytes, (uint32_t)part));
        bytes += part;
        length -= part;
        note_work(encoder, min_u64(length, MERGE_PIECE_MAX));
    }
    return STATUS_OK;
}

/* What no token stands for: its bytes, or the unknown token. */
static enum status push_unknown(struct encoder *encoder, const char *bytes, uint32_t length)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (tokenizer->byte_tokens[0] == TOKEN_NONE)
        return tokenizer->unknown == TOKEN_NONE
                   ? STATUS_OK
                   : sink_push(&encoder->sink, tokenizer->unknown, encoder->error);
    for (uint32_t i = 0; i < length; i++)
        TRY(sink_push(&encoder->sink, tokenizer->byte_tokens[(uint8_t)bytes[i]], encoder->error));
    return STATUS_OK;
}

/* One word of at most MERGE_PIECE_MAX bytes, from characters up. */
static enum status encode_scored(struct encoder *encoder, const char *bytes, uint32_t length)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    note_work(encoder, length);
    if (!merger_reserve(&encoder->merger, length))
        return no_memory(encoder->error);
    struct merge_symbol *symbols = encoder->merger.symbols;
    uint32_t last = TOKEN_NONE;
    for (uint32_t i = 0; i < length;) {
        uint32_t code_point = 0;
        int taken = utf8_decode(bytes + i, length - i, &code_point);
        uint32_t size = taken > 0 ? (uint32_t)taken : 1;
        symbols[i] = (struct merge_symbol){
            token_index_find(&tokenizer->pieces, &tokenizer->vocabulary, bytes + i, size), i + size,
            last};
        last = i;
        i += size;
    }
    merger_run(&encoder->merger, bytes, 0, length);
    for (uint32_t i = 0; i < length; i = symbols[i].next) {
        enum status status = symbols[i].token != TOKEN_NONE
                                 ? sink_push(&encoder->sink, symbols[i].token, encoder->error)
                                 : push_unknown(encoder, bytes + i, symbols[i].next - i);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status encode_words(struct encoder *encoder, const char *bytes, size_t length)
{
    while (length > 0) {
        size_t part = cut_length(bytes, length);
        if (encoder->tokenizer->words_apart) {
            for (size_t i = 1; i < part; i++)
                if (bytes[i] == ' ' && bytes[i - 1] != ' ')
                    part = i;
        }
        TRY(encode_scored(encoder, bytes, (uint32_t)part));
        bytes += part;
        length -= part;
    }
    return STATUS_OK;
}

/* Copy ordinary text without its sentinels; SentencePiece's with a space for each mark, and one in
   front where the model wants it. */
static enum status rewrite(struct encoder *encoder, const char **text, size_t *length, bool marks,
                           bool space_in_front)
{
    size_t needed = *length + 1;
    if (needed > encoder->rewritten_capacity) {
        free(encoder->rewritten);
        encoder->rewritten = malloc(needed);
        encoder->rewritten_capacity = encoder->rewritten ? needed : 0;
        if (!encoder->rewritten)
            return no_memory(encoder->error);
    }
    char *out = encoder->rewritten;
    size_t count = 0;
    if (space_in_front)
        out[count++] = ' ';
    const char *from = *text, *end = from + *length;
    while (from < end) {
        size_t left = (size_t)(end - from);
        if (encoder->sentinel_length > 0 && left >= encoder->sentinel_length &&
            memcmp(from, encoder->sentinel, encoder->sentinel_length) == 0) {
            from += encoder->sentinel_length;
        } else if (marks && left >= 3 && memcmp(from, space_mark, 3) == 0) {
            out[count++] = ' ';
            from += 3;
        } else {
            out[count++] = *from++;
        }
    }
    *text = out;
    *length = count;
    return STATUS_OK;
}

static enum status push_token(void *arg, uint32_t token, struct error *error)
{
    struct encoder *encoder = arg;
    return sink_push(&encoder->sink, token, error);
}

/* Units of work end at spaces, so that no word is divided. */
static enum status encode_wordpiece(struct encoder *encoder, const char *text, size_t length)
{
    struct wordpiece_sink sink = {push_token, encoder};
    while (length > 0) {
        size_t part = min_u64(length, TOKENIZER_YIELD_BYTES);
        const char *space = part < length ? memchr(text + part, ' ', length - part) : NULL;
        part = space ? (size_t)(space - text) : length;
        TRY(wordpiece_encode(&encoder->tokenizer->wordpiece, text, part, &sink, encoder->error));
        note_work(encoder, part);
        text += part;
        length -= part;
    }
    return STATUS_OK;
}

static bool contains(const char *text, size_t length, const char *part, size_t part_length)
{
    return part_length > 0 && length >= part_length &&
           memmem(text, length, part, part_length) != NULL;
}

static enum status encode_ordinary(struct encoder *encoder, const char *text, size_t length,
                                   bool after_special)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (length == 0)
        return STATUS_OK;
    bool scored = tokenizer->kind == KIND_SENTENCEPIECE;
    bool space_in_front = scored && tokenizer->adds_space_prefix && after_special;
    bool marks = scored && contains(text, length, space_mark, 3);
    if (space_in_front || marks ||
        contains(text, length, encoder->sentinel, encoder->sentinel_length))
        TRY(rewrite(encoder, &text, &length, marks, space_in_front));
    if (tokenizer->kind == KIND_WORDPIECE)
        return encode_wordpiece(encoder, text, length);
    if (scored)
        return encode_words(encoder, text, length);
    return pretokenizer_split(tokenizer->pretokenizer, encoder->scratch, text, length, encode_piece,
                              encoder, encoder->error);
}

/* First of specials[low … high) whose byte at `depth` is at least (or, `after`, above) `byte`. All
   of them are longer than `depth` and share what comes before. */
static uint32_t special_bound(const struct tokenizer *tokenizer, uint32_t low, uint32_t high,
                              size_t depth, uint8_t byte, bool after)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        size_t length;
        const char *text =
            vocabulary_text(&tokenizer->vocabulary, tokenizer->specials[middle], &length);
        uint8_t found = (uint8_t)text[depth];
        if (found < byte || (after && found == byte))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest special token that starts the text, or TOKEN_NONE. */
static uint32_t find_special(const struct tokenizer *tokenizer, unsigned flags, const char *text,
                             size_t length, size_t *matched)
{
    uint32_t best = TOKEN_NONE;
    uint32_t low = tokenizer->special_begin[(uint8_t)text[0]];
    uint32_t high = tokenizer->special_begin[(uint8_t)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        uint32_t token = tokenizer->specials[low];
        if (tokenizer->vocabulary.tokens[token].text_length == depth) {
            if ((flags & TOKENIZER_PARSE_SPECIAL) != 0 ||
                tokenizer->vocabulary.types[token] == TOKEN_USER_DEFINED) {
                best = token;
                *matched = depth;
            }
            low++;
        }
        if (depth == length)
            break;
        uint8_t byte = (uint8_t)text[depth];
        uint32_t begin = special_bound(tokenizer, low, high, depth, byte, false);
        high = special_bound(tokenizer, begin, high, depth, byte, true);
        low = begin;
    }
    return best;
}

/* Unicode's White_Space. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* How much of the text after a special token belongs to it. */
static size_t swallowed(const struct tokenizer *tokenizer, uint32_t token, const char *text,
                        size_t length)
{
    const uint32_t *leaves = tokenizer->leaves_space;
    if (!tokenizer->swallows_space || token == leaves[0] || token == leaves[1] ||
        token == leaves[2])
        return 0;
    size_t count = 0;
    uint32_t code_point;
    for (int taken; count < length; count += (size_t)taken) {
        taken = utf8_decode(text + count, length - count, &code_point);
        if (taken <= 0 || !is_space(code_point))
            break;
    }
    return count;
}

static enum status encode_text(struct encoder *encoder, const char *text, size_t length,
                               unsigned flags)
{
    size_t begin = 0, noted = 0;
    bool after_special = true;
    for (size_t i = 0; i < length;) {
        size_t matched = 0;
        if (i - noted >= TOKENIZER_YIELD_BYTES) {
            note_work(encoder, i - noted);
            noted = i;
        }
        uint32_t token = find_special(encoder->tokenizer, flags, text + i, length - i, &matched);
        if (token == TOKEN_NONE) {
            i++;
            continue;
        }
        TRY(encode_ordinary(encoder, text + begin, i - begin, after_special));
        TRY(sink_push(&encoder->sink, token, encoder->error));
        after_special = true;
        i += matched;
        i += swallowed(encoder->tokenizer, token, text + i, length - i);
        begin = i;
    }
    return encode_ordinary(encoder, text + begin, length - begin, after_special);
}

/* Whether the text itself starts with the beginning token: it is not added again then. */
static bool starts_with_bos(const struct tokenizer *tokenizer, const char *text, size_t length,
                            unsigned flags)
{
    size_t matched;
    return tokenizer->kind != KIND_WORDPIECE && length > 0 &&
           (flags & TOKENIZER_PARSE_SPECIAL) != 0 &&
           find_special(tokenizer, flags, text, length, &matched) == tokenizer->bos;
}

static enum status encode_all(struct encoder *encoder, const char *text, size_t length,
                              unsigned flags)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    enum status status = STATUS_OK;
    if ((flags & TOKENIZER_ADD_BOS) != 0 && tokenizer->adds_bos &&
        !starts_with_bos(tokenizer, text, length, flags))
        status = sink_push(&encoder->sink, tokenizer->bos, encoder->error);
    if (status == STATUS_OK)
        status = encode_text(encoder, text, length, flags);
    const struct sink *sink = &encoder->sink;
    bool ended = tokenizer->kind != KIND_WORDPIECE && (flags & TOKENIZER_PARSE_SPECIAL) != 0 &&
                 sink->count > 0 && sink->count <= sink->limit &&
                 sink->tokens[sink->count - 1] == tokenizer->eos;
    if (status == STATUS_OK && (flags & TOKENIZER_ADD_EOS) != 0 && tokenizer->adds_eos && !ended)
        status = sink_push(&encoder->sink, tokenizer->eos, encoder->error);
    return status;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                             unsigned flags, uint32_t sentinel, size_t limit, uint32_t **tokens,
                             size_t *count, struct error *error)
{
    return tokenizer_encode_yielding(tokenizer, text, length, flags, sentinel, limit, NULL, tokens,
                                     count, error);
}

enum status tokenizer_encode_yielding(const struct tokenizer *tokenizer, const char *text,
                                      size_t length, unsigned flags, uint32_t sentinel,
                                      size_t limit, const struct tokenizer_yield *yield,
                                      uint32_t **tokens, size_t *count, struct error *error)
{
    *tokens = NULL;
    *count = 0;
    struct encoder encoder = {.tokenizer = tokenizer, .yield = yield, .error = error};
    encoder.sink.limit = limit;
    if (sentinel != 0)
        encoder.sentinel_length = (size_t)utf8_encode(sentinel, encoder.sentinel);
    bool ranked = tokenizer->kind == KIND_BYTE_LEVEL;
    if (ranked)
        merger_init(&encoder.merger, find_ranked, &tokenizer->merges);
    else
        merger_init(&encoder.merger, find_scored, tokenizer);
    encoder.scratch = ranked ? pretokenizer_scratch_create() : NULL;
    enum status status = STATUS_OK;
    if (ranked && !encoder.scratch)
        status = no_memory(error);
    if (status == STATUS_OK)
        status = encode_all(&encoder, text, length, flags);
    pretokenizer_scratch_destroy(encoder.scratch);
    merger_deinit(&encoder.merger);
    free(encoder.rewritten);
    if (status == STATUS_OK && !encoder.sink.tokens) {
        encoder.sink.tokens = malloc(sizeof *encoder.sink.tokens);
        if (!encoder.sink.tokens)
            status = no_memory(error);
    }
    *count = encoder.sink.count;
    if (status != STATUS_OK)
        free(encoder.sink.tokens);
    else
        *tokens = encoder.sink.tokens;
    return status;
}

/* ---- What is known of a token. ---- */

uint32_t tokenizer_vocabulary(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.count;
}

const char *tokenizer_piece(const struct tokenizer *tokenizer, uint32_t token, size_t *length)
{
    CHECK(token < tokenizer->vocabulary.count);
    return vocabulary_piece(&tokenizer->vocabulary, token, length);
}

const char *tokenizer_text(const struct tokenizer *tokenizer, uint32_t token, size_t *length)
{
    CHECK(token < tokenizer->vocabulary.count);
    return vocabulary_text(&tokenizer->vocabulary, token, length);
}

const char *tokenizer_shown_piece(const struct tokenizer *tokenizer, uint32_t token, size_t *length)
{
    return tokenizer_is_control(tokenizer, token) ? tokenizer_text(tokenizer, token, length)
                                                  : tokenizer_piece(tokenizer, token, length);
}

bool tokenizer_is_control(const struct tokenizer *tokenizer, uint32_t token)
{
    CHECK(token < tokenizer->vocabulary.count);
    return type_is_control(tokenizer->vocabulary.types[token]);
}

bool tokenizer_is_user_defined(const struct tokenizer *tokenizer, uint32_t token)
{
    CHECK(token < tokenizer->vocabulary.count);
    return tokenizer->vocabulary.types[token] == TOKEN_USER_DEFINED;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t token)
{
    for (uint32_t i = 0; i < tokenizer->end_count; i++)
        if (tokenizer->ends[i] == token)
            return true;
    return false;
}

uint32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->adds_bos;
}

uint32_t tokenizer_control_token(const struct tokenizer *tokenizer, uint32_t index)
{
    return index < tokenizer->control_count ? tokenizer->controls[index] : TOKEN_NONE;
}
