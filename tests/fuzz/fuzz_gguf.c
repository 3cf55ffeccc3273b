/*
 * Any bytes as a model file: the GGUF reader, every look-up on what it accepted, the tokenizer on
 * top. Seeds are small whole files of both tokenizer kinds.
 */
#include "base/check.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/fuzz/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every getter on one key, of whatever type it is. */
static void read_key(const struct gguf *gguf, uint32_t index)
{
    char text[256];
    gguf_format_value(gguf, index, text, sizeof text);
    CHECK(memchr(text, 0, sizeof text) != NULL);
    struct gguf_string name = gguf_key(gguf, index);
    char *key = malloc(name.length + 1);
    CHECK(key != NULL && name.length > 0);
    memcpy(key, name.text, name.length);
    key[name.length] = '\0';
    CHECK(gguf_has(gguf, key));
    struct error error = {0};
    struct gguf_string value;
    uint32_t u32;
    float f32;
    bool flag;
    (void)gguf_get_u32(gguf, key, &u32, &error);
    (void)gguf_get_f32(gguf, key, &f32, &error);
    (void)gguf_get_bool(gguf, key, &flag, &error);
    if (gguf_get_string(gguf, key, &value, &error) == STATUS_OK && value.length > 0)
        CHECK((uint8_t)value.text[value.length - 1] <= 255);
    enum gguf_type element;
    uint64_t count, cursor = 0, seen = 0;
    if (gguf_array_count(gguf, key, &element, &count, &error) == STATUS_OK) {
        while (gguf_array_next_string(gguf, key, &cursor, &value))
            ++seen;
        CHECK(element != GGUF_STRING || seen == count);
        CHECK(count <= (uint64_t)1 << 24);
        int32_t *ints = calloc(count + 1, sizeof *ints);
        float *floats = calloc(count + 1, sizeof *floats);
        (void)gguf_array_get_i32(gguf, key, ints, count, &error);
        (void)gguf_array_get_f32(gguf, key, floats, count, &error);
        free(ints);
        free(floats);
    }
    free(key);
}

static void read_tensors(const struct gguf *gguf)
{
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); ++i) {
        const struct gguf_tensor *tensor = gguf_tensor(gguf, i);
        CHECK(tensor->bytes > 0 && tensor->offset <= gguf_file_bytes(gguf));
        CHECK(tensor->bytes <= gguf_file_bytes(gguf) - tensor->offset);
        uint8_t byte;
        struct error error = {0};
        CHECK(gguf_read(gguf, tensor, 0, &byte, 1, &error) == STATUS_OK);
        CHECK(gguf_read(gguf, tensor, tensor->bytes - 1, &byte, 1, &error) == STATUS_OK);
    }
}

static void try_tokenizer(const struct gguf *gguf)
{
    struct tokenizer *tokenizer;
    struct error error = {0};
    if (tokenizer_create(gguf, &tokenizer, &error) != STATUS_OK) {
        CHECK(error.message[0] != '\0');
        return;
    }
    static const char text[] = "ab abab<s>a <|im_end|>\xff\xf0\x9f\x98\x80 b!\n\n12345";
    uint32_t *tokens;
    size_t count;
    for (unsigned flags = 0; flags < 4; ++flags) {
        CHECK(tokenizer_encode(tokenizer, text, sizeof text - 1, flags, 0, 1000, &tokens, &count,
                               &error) == STATUS_OK);
        for (size_t i = 0; i < count; ++i) {
            size_t length;
            CHECK(tokens[i] < tokenizer_vocabulary(tokenizer));
            tokenizer_piece(tokenizer, tokens[i], &length);
            tokenizer_text(tokenizer, tokens[i], &length);
            (void)tokenizer_is_end(tokenizer, tokens[i]);
        }
        free(tokens);
    }
    CHECK(tokenizer_memory_bytes(tokenizer) < (uint64_t)1 << 22);
    tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *gguf;
    struct error error = {0};
    if (open_bytes(data, size, &gguf, &error) != STATUS_OK) {
        CHECK(gguf == NULL && error.message[0] != '\0');
        return 0;
    }
    CHECK(gguf_memory_bytes(gguf) < (uint64_t)1 << 24);
    for (uint32_t i = 0; i < gguf_key_count(gguf); ++i)
        read_key(gguf, i);
    read_tensors(gguf);
    try_tokenizer(gguf);
    gguf_close(gguf);
    return 0;
}

/* ---- Seeds. ---- */

static void add_tokenizer(struct gguf_writer *writer, bool sentencepiece)
{
    char texts[300][8];
    const char *pointers[300];
    int32_t types[300];
    float scores[300];
    uint32_t count = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
        if (sentencepiece)
            snprintf(texts[count], sizeof texts[0], "<0x%02X>", byte);
        else
            texts[count][byte_level_text(byte, texts[count])] = '\0';
        types[count++] = sentencepiece ? TOKEN_BYTE : TOKEN_NORMAL;
    }
    static const char *const more[] = {"ab", "abab", "<s>", "</s>", "<ud>"};
    static const int32_t more_types[] = {1, 1, 3, 3, 4};
    for (int i = 0; i < 5; ++i) {
        snprintf(texts[count], sizeof texts[0], "%s", more[i]);
        types[count++] = more_types[i];
    }
    if (sentencepiece) {
        snprintf(texts[count], sizeof texts[0], "a");
        types[count++] = TOKEN_NORMAL;
        snprintf(texts[count], sizeof texts[0], "b");
        types[count++] = TOKEN_NORMAL;
    }
    for (uint32_t i = 0; i < count; ++i) {
        pointers[i] = texts[i];
        scores[i] = -(float)i;
    }
    add_string(writer, "tokenizer.ggml.model", sentencepiece ? "llama" : "gpt2");
    add_string(writer, "tokenizer.ggml.pre", sentencepiece ? "default" : "smollm");
    add_strings(writer, "tokenizer.ggml.tokens", pointers, count);
    add_i32s(writer, "tokenizer.ggml.token_type", types, count);
    if (sentencepiece)
        add_f32s(writer, "tokenizer.ggml.scores", scores, count);
    else
        add_strings(writer, "tokenizer.ggml.merges", (const char *const[]){"a b", "ab ab"}, 2);
    add_u32(writer, "tokenizer.ggml.bos_token_id", 258);
    add_u32(writer, "tokenizer.ggml.eos_token_id", 259);
    add_bool(writer, "tokenizer.ggml.add_bos_token", 1);
}

uint8_t *fuzz_seed(unsigned index, size_t *size)
{
    if (index > 3)
        return NULL;
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    writer.version = index == 1 ? 2 : 3;
    add_string(&writer, "general.architecture", "llama");
    add_u32(&writer, "general.alignment", 32);
    add_f32(&writer, "llama.rope.freq_base", 10000);
    add_i32s(&writer, "ints", (const int32_t[]){1, -2, 3}, 3);
    if (index >= 2)
        add_tokenizer(&writer, index == 3);
    add_tensor(&writer, "token_embd.weight", FORMAT_Q8_0, (const uint64_t[]){32, 2, 0, 0}, 68);
    add_tensor(&writer, "output_norm.weight", FORMAT_F32, (const uint64_t[]){32, 0, 0, 0}, 128);
    struct buffer bytes;
    gguf_writer_join(&writer, &bytes);
    gguf_writer_deinit(&writer);
    uint8_t *seed = malloc(bytes.length);
    CHECK(seed != NULL);
    memcpy(seed, bytes.data, bytes.length);
    *size = bytes.length;
    buffer_deinit(&bytes);
    return seed;
}
