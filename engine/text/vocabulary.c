/*
 * Loading tokens out of a model file, and looking them up by their bytes.
 *
 * GPT-2's byte coding (Radford et al. 2019, encoder.py's bytes_to_unicode): bytes that are
 * printable in Latin-1 stand for themselves, the other 68 are U+0100 … U+0143 in ascending order. A
 * token whose text holds any other character stands for its own UTF-8 bytes, as in Hugging Face's
 * decoder.
 */
#include "engine/text/vocabulary.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define SHOW(length) ((int)((length) < 48 ? (length) : 48))

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

int byte_token_value(const char *text, size_t length)
{
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char digit = text[i];
        if (digit >= '0' && digit <= '9')
            value = value * 16 + (digit - '0');
        else if (digit >= 'A' && digit <= 'F')
            value = value * 16 + (digit - 'A' + 10);
        else if (digit >= 'a' && digit <= 'f')
            value = value * 16 + (digit - 'a' + 10);
        else
            return -1;
    }
    return value;
}

static bool byte_is_printable(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* map[c] is the byte that code point c < 0x144 stands for, or -1. */
static void byte_level_map(int16_t map[static 0x144])
{
    for (unsigned c = 0; c < 0x144; c++)
        map[c] = c < 0x100 && byte_is_printable(c) ? (int16_t)c : -1;
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 0x100; byte++)
        if (!byte_is_printable(byte))
            map[next++] = (int16_t)byte;
    CHECK(next == 0x144);
}

int byte_level_text(unsigned byte, char out[static 4])
{
    CHECK(byte < 0x100);
    if (byte_is_printable(byte))
        return utf8_encode(byte, out);
    uint32_t code_point = 0x100;
    for (unsigned before = 0; before < byte; before++)
        if (!byte_is_printable(before))
            code_point++;
    return utf8_encode(code_point, out);
}

/* Bytes of a byte-level text into out (which has room for `length`); false when some character is
   not of the code. */
static bool decode_byte_level(const int16_t map[static 0x144], const char *text, size_t length,
                              char *out, size_t *out_length)
{
    size_t count = 0;
    for (size_t i = 0; i < length;) {
        uint32_t code_point = 0;
        int taken = utf8_decode(text + i, length - i, &code_point);
        if (taken <= 0 || code_point >= 0x144 || map[code_point] < 0)
            return false;
        out[count++] = (char)map[code_point];
        i += (size_t)taken;
    }
    *out_length = count;
    return true;
}

/* U+2581 becomes a space; always fits `length`. */
static size_t decode_space_mark(const char *text, size_t length, char *out)
{
    size_t count = 0;
    for (size_t i = 0; i < length;) {
        if (length - i >= 3 && memcmp(text + i, space_mark, 3) == 0) {
            out[count++] = ' ';
            i += 3;
        } else {
            out[count++] = text[i++];
        }
    }
    return count;
}

/* Token texts go into the arena one after the other; a piece that differs from its text follows it.
   Twice the texts' bytes are always enough; the arena is trimmed at the end. */
static enum status load_texts(const struct gguf *gguf, struct vocabulary *vocabulary,
                              struct error *error)
{
    uint64_t cursor = 0, total = 0;
    struct gguf_string text;
    for (uint32_t token = 0; gguf_array_next_string(gguf, KEY_TOKENS, &cursor, &text); token++) {
        if (text.length > UINT16_MAX)
            return error_set(error, STATUS_INVALID, NULL,
                             "key '" KEY_TOKENS "': token %" PRIu32 " is %zu bytes long", token,
                             text.length);
        total += text.length;
    }
    if (total > UINT32_MAX / 2)
        return error_set(error, STATUS_INVALID, NULL, "key '" KEY_TOKENS "' is too large");
    vocabulary->arena = malloc(2 * total + 1);
    if (!vocabulary->arena)
        return error_set(error, STATUS_IO, NULL, "no memory for the vocabulary");
    cursor = 0;
    size_t used = 0;
    for (uint32_t token = 0; gguf_array_next_string(gguf, KEY_TOKENS, &cursor, &text); token++) {
        if (text.length > 0)
            memcpy(vocabulary->arena + used, text.text, text.length);
        struct token_text *entry = &vocabulary->tokens[token];
        entry->text = entry->piece = (uint32_t)used;
        entry->text_length = entry->piece_length = (uint16_t)text.length;
        used += text.length;
    }
    vocabulary->arena_bytes = used;
    return STATUS_OK;
}

static enum status load_types(const struct gguf *gguf, struct vocabulary *vocabulary,
                              struct error *error)
{
    memset(vocabulary->types, TOKEN_NORMAL, vocabulary->count);
    if (!gguf_has(gguf, KEY_TYPES))
        return STATUS_OK;
    int32_t *types = malloc(vocabulary->count * sizeof *types);
    if (!types)
        return error_set(error, STATUS_IO, NULL, "no memory for the vocabulary");
    enum status status = gguf_array_get_i32(gguf, KEY_TYPES, types, vocabulary->count, error);
    for (uint32_t i = 0; i < vocabulary->count && status == STATUS_OK; i++)
        if (types[i] < 0 || types[i] > TOKEN_BYTE)
            status = error_set(error, STATUS_INVALID, NULL,
                               "key '" KEY_TYPES "': token %" PRIu32 " has unknown type %" PRId32,
                               i, types[i]);
        else if (types[i] != 0) /* 0 is "undefined": ordinary text */
            vocabulary->types[i] = (uint8_t)types[i];
    free(types);
    return status;
}

static enum status decode_piece(const int16_t map[static 0x144], enum vocabulary_coding coding,
                                struct vocabulary *vocabulary, uint32_t token, struct error *error)
{
    struct token_text *entry = &vocabulary->tokens[token];
    const char *text = vocabulary->arena + entry->text;
    char *out = vocabulary->arena + vocabulary->arena_bytes;
    size_t length = entry->text_length;
    int byte;
    switch ((enum token_type)vocabulary->types[token]) {
    case TOKEN_CONTROL:
    case TOKEN_UNKNOWN:
        entry->piece_length = 0;
        return STATUS_OK;
    case TOKEN_BYTE:
        byte = byte_token_value(text, length);
        if (byte < 0)
            return error_set(error, STATUS_INVALID, NULL,
                             "key '" KEY_TOKENS "': byte token %" PRIu32
                             " is '%.*s', not <0x00> to <0xFF>",
                             token, SHOW(length), text);
        out[0] = (char)byte;
        length = 1;
        break;
    case TOKEN_USER_DEFINED:
        if (coding == CODING_BYTE_LEVEL)
            return STATUS_OK;
        length = decode_space_mark(text, length, out);
        break;
    case TOKEN_NORMAL:
    case TOKEN_UNUSED:
        if (coding == CODING_SPACE_MARK)
            length = decode_space_mark(text, length, out);
        else if (!decode_byte_level(map, text, length, out, &length))
            return STATUS_OK;
        break;
    }
    if (length == entry->text_length && memcmp(out, text, length) == 0)
        return STATUS_OK;
    entry->piece = (uint32_t)vocabulary->arena_bytes;
    entry->piece_length = (uint16_t)length;
    vocabulary->arena_bytes += length;
    return STATUS_OK;
}

static enum status decode_pieces(enum vocabulary_coding coding, struct vocabulary *vocabulary,
                                 struct error *error)
{
    int16_t map[0x144];
    byte_level_map(map);
    for (uint32_t token = 0; token < vocabulary->count; token++) {
        TRY(decode_piece(map, coding, vocabulary, token, error));
        if (vocabulary->types[token] == TOKEN_NORMAL &&
            vocabulary->tokens[token].piece_length > vocabulary->longest_piece)
            vocabulary->longest_piece = vocabulary->tokens[token].piece_length;
    }
    char *arena = realloc(vocabulary->arena, vocabulary->arena_bytes + 1);
    if (arena)
        vocabulary->arena = arena;
    return STATUS_OK;
}

enum status vocabulary_load(const struct gguf *gguf, enum vocabulary_coding coding,
                            struct vocabulary *out, struct error *error)
{
    *out = (struct vocabulary){0};
    enum gguf_type element;
    uint64_t count;
    enum status status = gguf_array_count(gguf, KEY_TOKENS, &element, &count, error);
    if (status == STATUS_NOT_FOUND)
        return error_set(error, STATUS_INVALID, NULL,
                         "the model file has no vocabulary (key '" KEY_TOKENS "')");
    if (status != STATUS_OK)
        return status;
    if (element != GGUF_STRING)
        return error_set(error, STATUS_INVALID, NULL,
                         "key '" KEY_TOKENS "' is not an array of strings");
    if (count == 0 || count > LIMIT_VOCABULARY)
        return error_set(error, STATUS_INVALID, NULL,
                         "key '" KEY_TOKENS "' has %" PRIu64 " tokens, not 1 to %u", count,
                         LIMIT_VOCABULARY);
    out->count = (uint32_t)count;
    out->tokens = calloc(count, sizeof *out->tokens);
    out->types = malloc(count);
    if (!out->tokens || !out->types)
        status = error_set(error, STATUS_IO, NULL, "no memory for the vocabulary");
    if (status == STATUS_OK)
        status = load_texts(gguf, out, error);
    if (status == STATUS_OK)
        status = load_types(gguf, out, error);
    if (status == STATUS_OK)
        status = decode_pieces(coding, out, error);
    if (status != STATUS_OK)
        vocabulary_deinit(out);
    return status;
}

void vocabulary_deinit(struct vocabulary *vocabulary)
{
    free(vocabulary->tokens);
    free(vocabulary->types);
    free(vocabulary->arena);
    *vocabulary = (struct vocabulary){0};
}

uint64_t vocabulary_memory_bytes(const struct vocabulary *vocabulary)
{
    return vocabulary->count * (sizeof *vocabulary->tokens + sizeof *vocabulary->types) +
           vocabulary->arena_bytes + 1;
}

/* ---- Look-up. ---- */

/* FNV-1a's steps on eight bytes at a time, then a mix of the high bits into the low ones. */
static uint32_t hash_bytes(const char *bytes, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u ^ length;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
        bytes += 8;
        length -= 8;
    }
    uint64_t rest = 0;
    if (length > 0)
        memcpy(&rest, bytes, length);
    hash = (hash ^ rest) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    return (uint32_t)hash;
}

static const char *index_bytes(const struct token_index *index, const struct vocabulary *vocabulary,
                               uint32_t token, size_t *length)
{
    return index->pieces ? vocabulary_piece(vocabulary, token, length)
                         : vocabulary_text(vocabulary, token, length);
}

/* The slot that holds these bytes, or the free one where they belong. */
static uint32_t index_slot(const struct token_index *index, const struct vocabulary *vocabulary,
                           const char *bytes, size_t length)
{
    uint32_t slot = hash_bytes(bytes, length) & index->mask;
    while (index->slots[slot] != TOKEN_NONE) {
        size_t found_length;
        const char *found = index_bytes(index, vocabulary, index->slots[slot], &found_length);
        if (found_length == length && memcmp(found, bytes, length) == 0)
            break;
        slot = (slot + 1) & index->mask;
    }
    return slot;
}

static enum status index_init(const struct vocabulary *vocabulary, bool pieces,
                              struct token_index *out, struct error *error)
{
    uint32_t capacity = 16;
    while (capacity < vocabulary->count + vocabulary->count / 2)
        capacity *= 2;
    out->mask = capacity - 1;
    out->pieces = pieces;
    out->slots = malloc(capacity * sizeof *out->slots);
    if (!out->slots)
        return error_set(error, STATUS_IO, NULL, "no memory for the vocabulary");
    memset(out->slots, 0xff, capacity * sizeof *out->slots);
    return STATUS_OK;
}

enum status token_index_texts(const struct vocabulary *vocabulary, struct token_index *out,
                              struct error *error)
{
    enum status status = index_init(vocabulary, false, out, error);
    for (uint32_t token = 0; token < vocabulary->count && status == STATUS_OK; token++) {
        size_t length;
        const char *text = vocabulary_text(vocabulary, token, &length);
        if (length == 0)
            continue;
        uint32_t slot = index_slot(out, vocabulary, text, length);
        if (out->slots[slot] != TOKEN_NONE) {
            status = error_set(error, STATUS_INVALID, NULL,
                               "key '" KEY_TOKENS "': tokens %" PRIu32 " and %" PRIu32
                               " are both '%.*s'",
                               out->slots[slot], token, SHOW(length), text);
            token_index_deinit(out);
            break;
        }
        out->slots[slot] = token;
    }
    return status;
}

enum status token_index_pieces(const struct vocabulary *vocabulary, struct token_index *out,
                               struct error *error)
{
    enum status status = index_init(vocabulary, true, out, error);
    for (uint32_t token = 0; token < vocabulary->count && status == STATUS_OK; token++) {
        size_t length;
        const char *piece = vocabulary_piece(vocabulary, token, &length);
        uint8_t type = vocabulary->types[token];
        if (length == 0 || type != TOKEN_NORMAL)
            continue;
        uint32_t slot = index_slot(out, vocabulary, piece, length);
        if (out->slots[slot] == TOKEN_NONE)
            out->slots[slot] = token;
    }
    return status;
}

void token_index_deinit(struct token_index *index)
{
    free(index->slots);
    *index = (struct token_index){0};
}

uint64_t token_index_memory_bytes(const struct token_index *index)
{
    return index->slots ? ((uint64_t)index->mask + 1) * sizeof *index->slots : 0;
}

uint32_t token_index_find(const struct token_index *index, const struct vocabulary *vocabulary,
                          const char *bytes, size_t length)
{
    return index->slots[index_slot(index, vocabulary, bytes, length)];
}
