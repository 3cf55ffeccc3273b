/*
 * Any bytes as text. The first byte chooses the tokenizer and flags. What must hold: no token is
 * out of range, byte-level pieces are the text again, no control token comes out of text that was
 * not to be parsed or whose markers a sentinel breaks.
 */
#include "base/check.h"
#include "base/utf8.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/fuzz/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const pres[] = {
    "smollm",  "llama-bpe",    "qwen2",          "tekken",      "falcon",
    "default", "deepseek-llm", "deepseek-coder", "deepseek-v3", "gpt-4o",
    "bloom",   "qwen35",       "seed-coder",     "viking",      NULL};
#define KINDS 15u
#define SENTINEL 0xE000u

static struct tokenizer *make_tokenizer(const char *pre)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    static char texts[512][16];
    const char *pointers[512], *merges[512];
    static char merge_texts[512][24];
    int32_t types[512];
    float scores[512];
    uint32_t count = 0, merge_count = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
        if (pre == NULL)
            snprintf(texts[count], sizeof texts[0], "<0x%02X>", byte);
        else
            texts[count][byte_level_text(byte, texts[count])] = '\0';
        types[count++] = pre == NULL ? TOKEN_BYTE : TOKEN_NORMAL;
    }
    static const char *const controls[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 4; ++i) {
        snprintf(texts[count], sizeof texts[0], "%s", controls[i]);
        types[count++] = TOKEN_CONTROL;
    }
    static const char *const pairs[][2] = {{"a", "b"},
                                           {"ab", "ab"},
                                           {"1", "2"},
                                           {"12", "3"},
                                           {"\xc4\xa0", "\xc4\xa0"},
                                           {"\xc4\xa0", "a"},
                                           {"\xc3\xb0", "\xc5\x81"},
                                           {"e", "r"},
                                           {"!", "!"},
                                           {"\xc4\x8a", "\xc4\x8a"},
                                           {"'", "s"},
                                           {"b", "a"},
                                           {"A", "b"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        snprintf(texts[count], sizeof texts[0], "%s%s", pairs[i][0], pairs[i][1]);
        types[count++] = TOKEN_NORMAL;
        snprintf(merge_texts[merge_count], sizeof merge_texts[0], "%s %s", pairs[i][0],
                 pairs[i][1]);
        merges[merge_count] = merge_texts[merge_count];
        merge_count++;
    }
    for (uint32_t i = 0; i < count; ++i) {
        pointers[i] = texts[i];
        scores[i] = -(float)i;
    }
    add_string(&writer, "tokenizer.ggml.model", pre == NULL ? "llama" : "gpt2");
    add_string(&writer, "tokenizer.ggml.pre", pre == NULL ? "default" : pre);
    add_strings(&writer, "tokenizer.ggml.tokens", pointers, count);
    add_i32s(&writer, "tokenizer.ggml.token_type", types, count);
    add_f32s(&writer, "tokenizer.ggml.scores", scores, count);
    add_strings(&writer, "tokenizer.ggml.merges", merges, merge_count);
    add_u32(&writer, "tokenizer.ggml.bos_token_id", 256);
    add_u32(&writer, "tokenizer.ggml.eos_token_id", 257);
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct error error = {0};
    CHECK(open_written(&writer, &gguf, &error) == STATUS_OK);
    CHECK(tokenizer_create(gguf, &tokenizer, &error) == STATUS_OK);
    gguf_close(gguf);
    gguf_writer_deinit(&writer);
    return tokenizer;
}

static size_t encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     unsigned flags, uint32_t sentinel, uint32_t **tokens)
{
    size_t count;
    struct error error = {0};
    CHECK(tokenizer_encode(tokenizer, text, length, flags, sentinel, (size_t)1 << 24, tokens,
                           &count, &error) == STATUS_OK);
    CHECK(count <= length + 3);
    for (size_t i = 0; i < count; ++i)
        CHECK((*tokens)[i] < tokenizer_vocabulary(tokenizer));
    return count;
}

static void check_plain(const struct tokenizer *tokenizer, bool byte_level, const char *text,
                        size_t length)
{
    uint32_t *tokens;
    size_t count = encode(tokenizer, text, length, 0, 0, &tokens), at = 0;
    for (size_t i = 0; i < count; ++i) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, tokens[i], &size);
        CHECK(!tokenizer_is_control(tokenizer, tokens[i]));
        if (!byte_level)
            continue;
        CHECK(size <= length - at && memcmp(text + at, piece, size) == 0);
        at += size;
    }
    CHECK(!byte_level || at == length);
    free(tokens);
}

/* A sentinel after every byte that may start a marker: nothing may be parsed, and the ids are those
   of the text without parsing. */
static void check_sentinel(const struct tokenizer *tokenizer, const char *text, size_t length)
{
    char mark[4];
    size_t mark_length = (size_t)utf8_encode(SENTINEL, mark), marked_length = 0;
    if (memmem(text, length, mark, mark_length) != NULL)
        return;
    char *marked = malloc(length * 4 + 1);
    CHECK(marked != NULL);
    for (size_t i = 0; i < length; ++i) {
        marked[marked_length++] = text[i];
        if (text[i] == '<') {
            memcpy(marked + marked_length, mark, mark_length);
            marked_length += mark_length;
        }
    }
    uint32_t *plain, *guarded;
    size_t plain_count = encode(tokenizer, text, length, 0, 0, &plain);
    size_t guarded_count =
        encode(tokenizer, marked, marked_length, TOKENIZER_PARSE_SPECIAL, SENTINEL, &guarded);
    CHECK(plain_count == guarded_count);
    CHECK(plain_count == 0 || memcmp(plain, guarded, plain_count * sizeof *plain) == 0);
    free(plain);
    free(guarded);
    free(marked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *tokenizers[KINDS]; /* kept: the process ends with them */
    if (size == 0)
        return 0;
    unsigned kind = data[0] % KINDS;
    if (tokenizers[kind] == NULL)
        tokenizers[kind] = make_tokenizer(pres[kind]);
    const char *text = (const char *)data + 1;
    size_t length = size - 1;
    check_plain(tokenizers[kind], pres[kind] != NULL, text, length);
    check_sentinel(tokenizers[kind], text, length);
    uint32_t *tokens;
    encode(tokenizers[kind], text, length, TOKENIZER_ADD_BOS | TOKENIZER_PARSE_SPECIAL,
           data[0] >= 128 ? SENTINEL : 0, &tokens);
    free(tokens);
    return 0;
}

uint8_t *fuzz_seed(unsigned index, size_t *size)
{
    static const char *const texts[] = {
        "Hello, y'all! abab 12345 <|im_start|>user\nhi<|im_end|>",
        "  \t\n\n  x \r\n\r\n y   ",
        "\xe4\xbd\xa0\xef\xbc\x8c \xe3\x81\xb2\xe3\x82\xab \xec\x95\x88 \xd0\x9c\xd0\x98",
        "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9 e\xcc\x81 \xc2\xa0\xe2\x80\xa8 \xef\xbb\xbf",
        "\xff\xfe\x80<s>\xc0\x80\xed\xa0\x80</s>\xf5",
        "int main(void) { return x[0] >= 10 && !y ? -1 : 0x1F; } // it's",
    };
    if (index >= 6)
        return NULL;
    *size = strlen(texts[index]) + 1;
    uint8_t *seed = malloc(*size);
    CHECK(seed != NULL);
    seed[0] = (uint8_t)(index * 37);
    memcpy(seed + 1, texts[index], *size - 1);
    return seed;
}
