/*
 * A minimal GGUF v3 writer for tests: header in one buffer, tensor data in another, both bounded by
 * the small sizes that tests ask for.
 */
#include "tests/engine/model/made_up.h"

#include "base/buffer.h"
#include "base/check.h"
#include "engine/kernels/math.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TYPE_U32 = 4, TYPE_F32 = 6, TYPE_STRING = 8 };

struct writer {
    const struct made_up *spec;
    struct buffer keys, tensors, data;
    uint64_t key_count, tensor_count;
    uint64_t random;
};

static void put(struct buffer *buffer, const void *bytes, size_t length)
{
    CHECK(buffer_append(buffer, bytes, length));
}

static void put_u32(struct buffer *buffer, uint32_t value)
{
    put(buffer, &value, sizeof value);
}

static void put_u64(struct buffer *buffer, uint64_t value)
{
    put(buffer, &value, sizeof value);
}

static void put_string(struct buffer *buffer, const char *text)
{
    put_u64(buffer, strlen(text));
    put(buffer, text, strlen(text));
}

static uint32_t next_random(struct writer *writer)
{
    writer->random = writer->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(writer->random >> 33);
}

/* About normal, spread 1. */
static float next_value(struct writer *writer)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)next_random(writer) / 2147483648.0f - 0.5f;
    return sum * 1.73f;
}

/* ---- Keys ---- */

static void add_u32(struct writer *writer, const char *key, uint32_t value)
{
    if (writer->spec->key && strcmp(key, writer->spec->key) == 0) {
        if (writer->spec->drop_key)
            return;
        value = writer->spec->value;
    }
    put_string(&writer->keys, key);
    put_u32(&writer->keys, TYPE_U32);
    put_u32(&writer->keys, value);
    ++writer->key_count;
}

static void add_family_u32(struct writer *writer, const char *key, uint32_t value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", writer->spec->family, key);
    add_u32(writer, full, value);
}

static void add_family_f32(struct writer *writer, const char *key, float value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", writer->spec->family, key);
    if (writer->spec->key && strcmp(full, writer->spec->key) == 0)
        return;
    put_string(&writer->keys, full);
    put_u32(&writer->keys, TYPE_F32);
    put(&writer->keys, &value, sizeof value);
    ++writer->key_count;
}

static void add_string(struct writer *writer, const char *key, const char *text)
{
    put_string(&writer->keys, key);
    put_u32(&writer->keys, TYPE_STRING);
    put_string(&writer->keys, text);
    ++writer->key_count;
}

static bool is_replaced(const struct made_up *spec, const char *key)
{
    return spec->text_key && strcmp(spec->text_key, key) == 0;
}

static bool is_family_key(const struct made_up *spec, const char *key)
{
    static const char *const known[] = {
        "block_count",          "embedding_length",        "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "context_length",
        "attention.key_length", "attention.value_length",  "attention.sliding_window"};
    size_t prefix = strlen(spec->family) + 1;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(key) > prefix && strcmp(key + prefix, known[i]) == 0)
            return true;
    return false;
}

static bool is_gemma(const struct made_up *spec)
{
    return strncmp(spec->family, "gemma", 5) == 0;
}

static void add_keys(struct writer *writer)
{
    const struct made_up *spec = writer->spec;
    if (!is_replaced(spec, "general.architecture"))
        add_string(writer, "general.architecture", spec->family);
    if (spec->text_key)
        add_string(writer, spec->text_key, spec->text);
    add_family_u32(writer, "block_count", spec->layers);
    add_family_u32(writer, "embedding_length", spec->width);
    add_family_u32(writer, "feed_forward_length", spec->feed_forward);
    add_family_u32(writer, "attention.head_count", spec->heads);
    add_family_u32(writer, "attention.head_count_kv", spec->kv_heads);
    add_family_u32(writer, "context_length", 1024);
    add_family_f32(writer, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (spec->heads * spec->head_dim != spec->width) {
        add_family_u32(writer, "attention.key_length", spec->head_dim);
        add_family_u32(writer, "attention.value_length", spec->head_dim);
    }
    if (spec->window > 0)
        add_family_u32(writer, "attention.sliding_window", spec->window);
    if (strcmp(spec->family, "gemma2") == 0) {
        add_family_f32(writer, "attn_logit_softcapping", 50.0f);
        add_family_f32(writer, "final_logit_softcapping", 30.0f);
    }
    if (spec->key && !spec->drop_key && !is_family_key(spec, spec->key))
        add_u32(writer, spec->key, spec->value);
}

/* ---- Tensors ---- */

static void put_half(struct buffer *buffer, float value)
{
    uint16_t half = math_f32_to_f16(value);
    put(buffer, &half, sizeof half);
}

/* `count` values of about the given spread, in a format whose blocks start with their scale. */
static void put_values(struct writer *writer, enum tensor_format format, uint64_t count, float mean,
                       float spread)
{
    struct buffer *data = &writer->data;
    for (uint64_t i = 0; format == FORMAT_F32 && i < count; i++) {
        float value = mean + spread * next_value(writer);
        put(data, &value, sizeof value);
    }
    for (uint64_t i = 0; format == FORMAT_F16 && i < count; i++)
        put_half(data, mean + spread * next_value(writer));
    for (uint64_t i = 0; format == FORMAT_BF16 && i < count; i++) {
        float value = mean + spread * next_value(writer);
        put(data, (const char *)&value + 2, 2);
    }
    if (format != FORMAT_Q8_0 && format != FORMAT_Q4_1) {
        CHECK(format == FORMAT_F32 || format == FORMAT_F16 || format == FORMAT_BF16);
        return;
    }
    CHECK(count % 32 == 0);
    for (uint64_t block = 0; block < count / 32; block++) {
        float scale = spread * (0.8f + 0.4f * (float)next_random(writer) / 2147483648.0f);
        put_half(data, format == FORMAT_Q8_0 ? scale / 74.0f : scale / 4.6f);
        if (format == FORMAT_Q4_1)
            put_half(data, -7.5f * scale / 4.6f);
        for (int i = 0; i < (format == FORMAT_Q8_0 ? 32 : 16); i++) {
            uint8_t byte = (uint8_t)next_random(writer);
            put(data, &byte, 1);
        }
    }
}

static void add_tensor(struct writer *writer, const char *name, enum tensor_format format,
                       uint32_t columns, uint32_t rows, float mean, float spread)
{
    const struct made_up *spec = writer->spec;
    if (spec->tensor && strcmp(name, spec->tensor) == 0) {
        if (spec->drop_tensor)
            return;
        if (rows > 0)
            ++rows;
        else
            columns += 8;
    }
    while (writer->data.length % 32 != 0)
        put(&writer->data, "", 1);
    put_string(&writer->tensors, name);
    put_u32(&writer->tensors, rows > 0 ? 2 : 1);
    put_u64(&writer->tensors, columns);
    if (rows > 0)
        put_u64(&writer->tensors, rows);
    put_u32(&writer->tensors, format);
    put_u64(&writer->tensors, writer->data.length);
    ++writer->tensor_count;
    put_values(writer, format, (uint64_t)columns * (rows > 0 ? rows : 1), mean, spread);
}

/* 1/sqrt(n), roughly: matrices keep their input's size. */
static float spread_of(uint32_t n)
{
    float root = 1.0f;
    while (root * root < (float)n)
        root += 0.5f;
    return 1.0f / root;
}

static void add_matrix(struct writer *writer, uint32_t layer, const char *name, uint32_t columns,
                       uint32_t rows)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%u.%s.weight", layer, name);
    add_tensor(writer, full, writer->spec->format, columns, rows, 0.0f, spread_of(columns));
}

static void add_vector(struct writer *writer, uint32_t layer, const char *name, uint32_t count,
                       float mean, float spread)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%u.%s", layer, name);
    add_tensor(writer, full, FORMAT_F32, count, 0, mean, spread);
}

static void add_layer(struct writer *writer, uint32_t layer)
{
    const struct made_up *spec = writer->spec;
    uint32_t queries = spec->heads * spec->head_dim, keys = spec->kv_heads * spec->head_dim;
    bool fused = strcmp(spec->family, "phi3") == 0;
    add_vector(writer, layer, "attn_norm.weight", spec->width, 1.0f, 0.1f);
    if (fused) {
        add_matrix(writer, layer, "attn_qkv", spec->width, queries + 2 * keys);
    } else {
        add_matrix(writer, layer, "attn_q", spec->width, queries);
        add_matrix(writer, layer, "attn_k", spec->width, keys);
        add_matrix(writer, layer, "attn_v", spec->width, keys);
    }
    if (strcmp(spec->family, "qwen2") == 0) {
        add_vector(writer, layer, "attn_q.bias", queries, 0.0f, 0.5f);
        add_vector(writer, layer, "attn_k.bias", keys, 0.0f, 0.5f);
        add_vector(writer, layer, "attn_v.bias", keys, 0.0f, 0.2f);
    }
    if (strcmp(spec->family, "qwen3") == 0 || strcmp(spec->family, "gemma3") == 0) {
        add_vector(writer, layer, "attn_q_norm.weight", spec->head_dim, 1.2f, 0.1f);
        add_vector(writer, layer, "attn_k_norm.weight", spec->head_dim, 1.2f, 0.1f);
    }
    add_matrix(writer, layer, "attn_output", queries, spec->width);
    if (is_gemma(spec)) {
        add_vector(writer, layer, "post_attention_norm.weight", spec->width, 1.0f, 0.1f);
        add_vector(writer, layer, "post_ffw_norm.weight", spec->width, 1.0f, 0.1f);
    }
    add_vector(writer, layer, "ffn_norm.weight", spec->width, 1.0f, 0.1f);
    if (!fused)
        add_matrix(writer, layer, "ffn_gate", spec->width, spec->feed_forward);
    add_matrix(writer, layer, "ffn_up", spec->width, (fused ? 2 : 1) * spec->feed_forward);
    add_matrix(writer, layer, "ffn_down", spec->feed_forward, spec->width);
}

static void add_tensors(struct writer *writer)
{
    const struct made_up *spec = writer->spec;
    add_tensor(writer, "token_embd.weight", spec->embedding_format, spec->width, spec->vocabulary,
               0.0f, 0.3f);
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        add_layer(writer, layer);
    add_tensor(writer, "output_norm.weight", FORMAT_F32, spec->width, 0, 1.0f, 0.1f);
    if (spec->separate_output)
        add_tensor(writer, "output.weight", spec->format, spec->width, spec->vocabulary, 0.0f,
                   0.3f);
    if (spec->extra_tensor)
        add_tensor(writer, spec->extra_tensor, FORMAT_F32, 8, 0, 1.5f, 0.1f);
}

struct made_up made_up_default(enum tensor_format format)
{
    return (struct made_up){.family = "llama",
                            .format = format,
                            .embedding_format = format,
                            .layers = 3,
                            .width = 64,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .feed_forward = 96,
                            .vocabulary = 203};
}

void made_up_write(const struct made_up *spec, char path[static 64])
{
    struct writer writer = {.spec = spec, .random = 12345};
    struct buffer head;
    buffer_init(&writer.keys, 0);
    buffer_init(&writer.tensors, 0);
    buffer_init(&writer.data, 0);
    buffer_init(&head, 0);
    add_keys(&writer);
    add_tensors(&writer);
    put(&head, "GGUF", 4);
    put_u32(&head, 3);
    put_u64(&head, writer.tensor_count);
    put_u64(&head, writer.key_count);
    put(&head, writer.keys.data, writer.keys.length);
    put(&head, writer.tensors.data, writer.tensors.length);
    while (head.length % 32 != 0)
        put(&head, "", 1);
    snprintf(path, 64, "/tmp/quire-made-up-XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(write(fd, head.data, head.length) == (ssize_t)head.length);
    CHECK(write(fd, writer.data.data, writer.data.length) == (ssize_t)writer.data.length);
    close(fd);
    buffer_deinit(&writer.keys);
    buffer_deinit(&writer.tensors);
    buffer_deinit(&writer.data);
    buffer_deinit(&head);
}
