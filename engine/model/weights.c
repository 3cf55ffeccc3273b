/*
 * The table of tensors, and what is done with it.
 *
 * walk() goes through every tensor that a model of these details has, in a fixed order, and hands
 * an item to a visitor: weights_check looks at shapes, weights_bytes adds up, weights_load reads.
 * A matrix item names a range of rows of its tensor, since fused tensors hold several matrices.
 */
#include "engine/model/weights.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"
#include "engine/kernels/math.h"
#include "engine/model/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((uint64_t)4 * MIB)   /* read at once: large enough for the disk's full speed */
#define FORGET_BYTES ((uint64_t)64 * MIB) /* then the file's page cache is let go */
#define ALIGNMENT 64u

/* Lengths that a rule can name. */
enum extent { NOTHING, WIDTH, QUERIES, KEYS, HEAD, FEED, QUERIES_KEYS, ALL_QKV, FEED_TWICE };

struct rule {
    const char *name; /* behind "blk.N." */
    enum extent rows; /* NOTHING: a vector */
    enum extent columns;
    enum extent first_row; /* of the tensor's rows */
    enum extent all_rows;  /* rows of the tensor when it holds more than this matrix */
    unsigned with;         /* only when the family has one of these features; 0: always */
    unsigned without;      /* only when it has none of these */
    bool optional;
    size_t place; /* in struct layer_weights */
};

#define PLACE(field) .place = offsetof(struct layer_weights, field)
static const struct rule layer_rules[] = {
    {"attn_norm.weight", .columns = WIDTH, .without = FEATURE_POST_LAYER_NORM,
     PLACE(attention_norm)},
    {"attn_q.weight", QUERIES, WIDTH, .without = FEATURE_FUSED_QKV, PLACE(q)},
    {"attn_k.weight", KEYS, WIDTH, .without = FEATURE_FUSED_QKV, PLACE(k)},
    {"attn_v.weight", KEYS, WIDTH, .without = FEATURE_FUSED_QKV, PLACE(v)},
    {"attn_qkv.weight", QUERIES, WIDTH, NOTHING, ALL_QKV, FEATURE_FUSED_QKV, PLACE(q)},
    {"attn_qkv.weight", KEYS, WIDTH, QUERIES, ALL_QKV, FEATURE_FUSED_QKV, PLACE(k)},
    {"attn_qkv.weight", KEYS, WIDTH, QUERIES_KEYS, ALL_QKV, FEATURE_FUSED_QKV, PLACE(v)},
    {"attn_q.bias", .columns = QUERIES, .with = FEATURE_QKV_BIAS, PLACE(q_bias)},
    {"attn_k.bias", .columns = KEYS, .with = FEATURE_QKV_BIAS, PLACE(k_bias)},
    {"attn_v.bias", .columns = KEYS, .with = FEATURE_QKV_BIAS, PLACE(v_bias)},
    {"attn_q.bias", .columns = QUERIES, .without = FEATURE_QKV_BIAS | FEATURE_FUSED_QKV,
     .optional = true, PLACE(q_bias)},
    {"attn_k.bias", .columns = KEYS, .without = FEATURE_QKV_BIAS | FEATURE_FUSED_QKV,
     .optional = true, PLACE(k_bias)},
    {"attn_v.bias", .columns = KEYS, .without = FEATURE_QKV_BIAS | FEATURE_FUSED_QKV,
     .optional = true, PLACE(v_bias)},
    {"attn_q_norm.weight", .columns = HEAD, .with = FEATURE_QK_NORM, PLACE(q_norm)},
    {"attn_k_norm.weight", .columns = HEAD, .with = FEATURE_QK_NORM, PLACE(k_norm)},
    {"attn_output.weight", WIDTH, QUERIES, PLACE(output)},
    {"attn_output.bias", .columns = WIDTH, .with = FEATURE_POST_LAYER_NORM, .optional = true,
     PLACE(output_bias)},
    {"attn_output_norm.weight", .columns = WIDTH, .with = FEATURE_POST_LAYER_NORM,
     PLACE(post_attention_norm)},
    {"attn_output_norm.bias", .columns = WIDTH, .with = FEATURE_POST_LAYER_NORM,
     PLACE(post_attention_bias)},
    {"post_attention_norm.weight", .columns = WIDTH, .with = FEATURE_POST_NORMS,
     PLACE(post_attention_norm)},
    {"ffn_norm.weight", .columns = WIDTH, .without = FEATURE_POST_LAYER_NORM, PLACE(ffn_norm)},
    {"ffn_gate.weight", FEED, WIDTH, .without = FEATURE_FUSED_GATE_UP | FEATURE_NO_GATE,
     PLACE(gate)},
    {"ffn_up.weight", FEED, WIDTH, .without = FEATURE_FUSED_GATE_UP, PLACE(up)},
    {"ffn_up.weight", FEED, WIDTH, NOTHING, FEED_TWICE, FEATURE_FUSED_GATE_UP, PLACE(gate)},
    {"ffn_up.weight", FEED, WIDTH, FEED, FEED_TWICE, FEATURE_FUSED_GATE_UP, PLACE(up)},
    {"ffn_up.bias", .columns = FEED, .with = FEATURE_NO_GATE, .optional = true, PLACE(up_bias)},
    {"ffn_down.weight", WIDTH, FEED, PLACE(down)},
    {"ffn_down.bias", .columns = WIDTH, .with = FEATURE_POST_LAYER_NORM, .optional = true,
     PLACE(down_bias)},
    {"layer_output_norm.weight", .columns = WIDTH, .with = FEATURE_POST_LAYER_NORM,
     PLACE(post_ffn_norm)},
    {"layer_output_norm.bias", .columns = WIDTH, .with = FEATURE_POST_LAYER_NORM,
     PLACE(post_ffn_bias)},
    {"post_ffw_norm.weight", .columns = WIDTH, .with = FEATURE_POST_NORMS, PLACE(post_ffn_norm)},
};
#define RULE_COUNT (sizeof layer_rules / sizeof layer_rules[0])

static uint32_t extent_of(const struct model_config *config, enum extent extent)
{
    uint32_t queries = config->heads * config->head_dim;
    uint32_t keys = config->kv_heads * config->head_dim;
    switch (extent) {
    case NOTHING:
        return 0;
    case WIDTH:
        return config->embedding;
    case QUERIES:
        return queries;
    case KEYS:
        return keys;
    case HEAD:
        return config->head_dim;
    case FEED:
        return config->feed_forward;
    case QUERIES_KEYS:
        return queries + keys;
    case ALL_QKV:
        return queries + 2 * keys;
    case FEED_TWICE:
        return 2 * config->feed_forward;
    }
    return 0;
}

static bool rule_applies(const struct rule *rule, unsigned features)
{
    return (rule->with == 0 || (rule->with & features) != 0) && (rule->without & features) == 0;
}

/* ---- Walking ---- */

struct item {
    char name[64];
    const struct gguf_tensor *tensor; /* NULL when optional and absent, or missing */
    uint32_t rows;                    /* 0: a vector of `columns` values */
    uint32_t columns;
    uint32_t first_row;
    uint32_t all_rows; /* of the tensor */
    bool optional;
    struct repacked_matrix *matrix; /* where it goes; NULL while nothing is loaded */
    float **vector;
};

struct visitor {
    enum status (*visit)(void *arg, const struct item *item, struct error *error);
    void *arg;
    struct weights *weights; /* NULL: nothing to load into */
};

static enum status visit(const struct gguf *gguf, const struct visitor *visitor, struct item *item,
                         struct error *error)
{
    item->tensor = gguf_find_tensor(gguf, item->name);
    if (!item->tensor && item->optional)
        return STATUS_OK;
    return visitor->visit(visitor->arg, item, error);
}

static enum status walk_layer(const struct gguf *gguf, const struct model_details *details,
                              uint32_t layer, const struct visitor *visitor, struct error *error)
{
    const struct model_config *config = &details->config;
    for (size_t i = 0; i < RULE_COUNT; i++) {
        const struct rule *rule = &layer_rules[i];
        if (!rule_applies(rule, details->architecture->features))
            continue;
        struct item item = {
            .rows = extent_of(config, rule->rows),
            .columns = extent_of(config, rule->columns),
            .first_row = extent_of(config, rule->first_row),
            .all_rows = extent_of(config, rule->all_rows != NOTHING ? rule->all_rows : rule->rows),
            .optional = rule->optional,
        };
        snprintf(item.name, sizeof item.name, "blk.%u.%s", layer, rule->name);
        if (visitor->weights) {
            char *place = (char *)&visitor->weights->layers[layer] + rule->place;
            if (item.rows > 0)
                item.matrix = (struct repacked_matrix *)(void *)place;
            else
                item.vector = (float **)(void *)place;
        }
        TRY(visit(gguf, visitor, &item, error));
    }
    return STATUS_OK;
}

/* The tensors of the model that belong to no layer, in the order of reading; those of `last` stand
   behind the layers. */
static size_t list_model_items(const struct model_details *details, struct weights *weights,
                               bool last, struct item items[static 10])
{
    const struct model_config *config = &details->config;
    const uint32_t width = config->embedding;
    const bool post = details->architecture->features & FEATURE_POST_LAYER_NORM;
    size_t count = 0;
#define MATRIX(of, row_count, columns_, may_miss, ...)                                             \
    items[count++] = (struct item)                                                                 \
    {                                                                                              \
        of, .rows = row_count, .columns = columns_, .all_rows = row_count, .optional = may_miss,   \
            .matrix = weights ? &weights->__VA_ARGS__ : NULL                                       \
    }
#define VECTOR(of, columns_, may_miss, ...)                                                        \
    items[count++] = (struct item)                                                                 \
    {                                                                                              \
        of, .columns = columns_, .optional = may_miss,                                             \
            .vector = weights ? &weights->__VA_ARGS__ : NULL                                       \
    }
    if (!last) {
        MATRIX("token_embd.weight", config->vocabulary, width, false, embedding);
        if (!post)
            VECTOR("output_norm.weight", width, false, output_norm);
        if (details->architecture->learned_positions)
            MATRIX("position_embd.weight", config->context, width, false, positions);
        if (config->token_types > 0)
            MATRIX("token_types.weight", config->token_types, width, false, types);
        if (post) {
            VECTOR("token_embd_norm.weight", width, false, embedding_norm);
            VECTOR("token_embd_norm.bias", width, false, embedding_norm_bias);
        }
    } else if (details->architecture->encoder) {
        if (config->labels > 0) {
            MATRIX("cls.weight", width, width, true, dense);
            VECTOR("cls.bias", width, true, dense_bias);
            MATRIX("cls.output.weight", config->labels, width, false, labels);
            VECTOR("cls.output.bias", config->labels, true, label_bias);
        }
    } else {
        MATRIX("output.weight", config->vocabulary, width, true, head);
    }
#undef MATRIX
#undef VECTOR
    return count;
}

static enum status walk_model(const struct gguf *gguf, const struct model_details *details,
                              bool last, const struct visitor *visitor, struct error *error)
{
    struct item items[10];
    size_t count = list_model_items(details, visitor->weights, last, items);
    for (size_t i = 0; i < count; i++)
        TRY(visit(gguf, visitor, &items[i], error));
    return STATUS_OK;
}

static enum status walk(const struct gguf *gguf, const struct model_details *details,
                        const struct visitor *visitor, struct error *error)
{
    TRY(walk_model(gguf, details, false, visitor, error));
    for (uint32_t layer = 0; layer < details->config.layers; layer++)
        TRY(walk_layer(gguf, details, layer, visitor, error));
    return walk_model(gguf, details, true, visitor, error);
}

/* ---- Checking ---- */

static enum status check_item(void *arg, const struct item *item, struct error *error)
{
    struct model_config *config = arg;
    const struct gguf_tensor *tensor = item->tensor;
    if (!tensor)
        return error_set(error, STATUS_INVALID, item->name, "tensor '%s' is missing", item->name);
    uint64_t rows = item->rows > 0 ? item->all_rows : 1;
    if (tensor->dims[0] != item->columns || tensor->dims[1] != rows || tensor->dims[2] != 1 ||
        tensor->dims[3] != 1)
        return error_set(error, STATUS_INVALID, item->name,
                         "tensor '%s' has %llu × %llu values, the metadata ask for %u × %llu",
                         item->name, (unsigned long long)tensor->dims[0],
                         (unsigned long long)tensor->dims[1], item->columns,
                         (unsigned long long)rows);
    const char *format = format_info(tensor->format)->name;
    bool computed = item->rows == 0
                        ? !format_is_quantized(tensor->format)
                        : kernels_available()[0]->repacked_bytes((enum tensor_format)tensor->format,
                                                                 item->rows, item->columns) > 0;
    if (!computed)
        return error_set(error, STATUS_UNSUPPORTED, item->name,
                         "tensor '%s' is in format %s, which is not supported %s", item->name,
                         format, item->rows == 0 ? "for vectors" : "yet");
    if (item->first_row == 0) { /* a fused tensor counts once */
        config->parameter_count += tensor->dims[0] * tensor->dims[1];
        config->tensor_bytes += tensor->bytes;
    }
    return STATUS_OK;
}

/* Does a rule of this family, or walk() itself, name this tensor? */
static bool is_known(const struct model_details *details, const char *name)
{
    static const char *const others[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                         "rope_factors_short.weight"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i]) == 0)
            return true;
    struct item items[10];
    for (int last = 0; last < 2; last++) {
        size_t count = list_model_items(details, NULL, last, items);
        for (size_t i = 0; i < count; i++)
            if (strcmp(name, items[i].name) == 0)
                return true;
    }
    unsigned layer;
    int used = 0;
    if (sscanf(name, "blk.%u.%n", &layer, &used) != 1 || used == 0 ||
        layer >= details->config.layers)
        return false;
    for (size_t i = 0; i < RULE_COUNT; i++)
        if (rule_applies(&layer_rules[i], details->architecture->features) &&
            strcmp(name + used, layer_rules[i].name) == 0)
            return true;
    return false;
}

static enum status check_extra_tensors(const struct gguf *gguf, const struct model_details *details,
                                       struct error *error)
{
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        struct gguf_string text = gguf_tensor(gguf, i)->name;
        char name[128];
        size_t length = text.length < sizeof name - 1 ? text.length : sizeof name - 1;
        memcpy(name, text.text, length);
        name[length] = '\0';
        if (is_known(details, name))
            continue;
        const char *dot = strrchr(name, '.');
        if (dot && strcmp(dot, ".bias") == 0) /* leaving it out would change answers */
            return error_set(error, STATUS_UNSUPPORTED, name,
                             "tensor '%s': this bias is not supported for %s models", name,
                             details->config.architecture);
        log_info("tensor_ignored", "tensor '%s' is not part of a %s model: ignored", name,
                 details->config.architecture);
    }
    return STATUS_OK;
}

/* The vocabulary is the embedding's rows; the token list must agree with it. */
static enum status check_vocabulary(const struct gguf *gguf, struct model_config *config,
                                    struct error *error)
{
    const struct gguf_tensor *embedding = gguf_find_tensor(gguf, "token_embd.weight");
    if (!embedding)
        return error_set(error, STATUS_INVALID, "token_embd.weight",
                         "tensor 'token_embd.weight' is missing");
    if (embedding->dims[1] < 1 || embedding->dims[1] > LIMIT_VOCABULARY)
        return error_set(error, STATUS_INVALID, "token_embd.weight",
                         "tensor 'token_embd.weight' has %llu rows: must be 1 … %u",
                         (unsigned long long)embedding->dims[1], LIMIT_VOCABULARY);
    config->vocabulary = (uint32_t)embedding->dims[1];
    config->tied_output = !config->bidirectional && gguf_find_tensor(gguf, "output.weight") == NULL;
    enum gguf_type type;
    uint64_t tokens;
    if (!gguf_has(gguf, "tokenizer.ggml.tokens"))
        return STATUS_OK; /* the tokenizer will ask for it; logits alone need none */
    enum status status = gguf_array_count(gguf, "tokenizer.ggml.tokens", &type, &tokens, error);
    if (status == STATUS_OK && tokens != config->vocabulary)
        return error_set(error, STATUS_INVALID, "tokenizer.ggml.tokens",
                         "tokenizer.ggml.tokens has %llu entries, token_embd.weight %u rows",
                         (unsigned long long)tokens, config->vocabulary);
    return status;
}

enum status weights_check(const struct gguf *gguf, struct model_details *details,
                          struct error *error)
{
    details->config.parameter_count = 0;
    details->config.tensor_bytes = 0;
    TRY(check_vocabulary(gguf, &details->config, error));
    struct visitor visitor = {check_item, &details->config, NULL};
    TRY(walk(gguf, details, &visitor, error));
    return check_extra_tensors(gguf, details, error);
}

/* ---- Sizing ---- */

struct sizer {
    const struct kernels *kernels;
    enum weights_form form;
    uint64_t bytes;
};

static uint64_t item_bytes(const struct sizer *sizer, const struct item *item)
{
    uint64_t bytes;
    if (item->rows == 0)
        bytes = (uint64_t)item->columns * sizeof(float);
    else if (sizer->form == WEIGHTS_F32)
        bytes = (uint64_t)item->rows * item->columns * sizeof(float);
    else
        bytes = sizer->kernels->repacked_bytes((enum tensor_format)item->tensor->format, item->rows,
                                               item->columns);
    return bytes_align(bytes, ALIGNMENT);
}

static enum status size_item(void *arg, const struct item *item, struct error *error)
{
    (void)error;
    struct sizer *sizer = arg;
    sizer->bytes += item_bytes(sizer, item);
    return STATUS_OK;
}

static uint64_t block_bytes(const struct gguf *gguf, const struct model_details *details,
                            const struct kernels *kernels, enum weights_form form)
{
    struct sizer sizer = {kernels, form, 0};
    struct visitor visitor = {size_item, &sizer, NULL};
    sizer.bytes = bytes_align(details->config.layers * sizeof(struct layer_weights), ALIGNMENT);
    enum status status = walk(gguf, details, &visitor, NULL);
    CHECK(status == STATUS_OK);
    return sizer.bytes;
}

uint64_t weights_bytes(const struct gguf *gguf, const struct model_details *details,
                       const struct kernels *kernels, enum weights_form form)
{
    return memory_map_bytes(block_bytes(gguf, details, kernels, form));
}

/* Rows of a tensor that are read at once: whole row groups, about PIECE_BYTES. */
static uint32_t piece_rows(uint64_t row_bytes)
{
    uint64_t rows = PIECE_BYTES / row_bytes / KERNEL_ROW_BLOCK * KERNEL_ROW_BLOCK;
    return rows > 0 ? (uint32_t)rows : KERNEL_ROW_BLOCK;
}

struct transient_sizes {
    const struct kernels *kernels;
    uint64_t piece; /* bytes read at once */
    uint64_t group; /* packed bytes of one row group: where f32 rows are unpacked from */
};

static enum status size_transient(void *arg, const struct item *item, struct error *error)
{
    (void)error;
    struct transient_sizes *sizes = arg;
    uint64_t bytes = item->tensor->bytes;
    uint64_t group = 0;
    if (item->rows > 0) {
        uint64_t row_bytes = format_row_bytes(item->tensor->format, item->columns);
        uint32_t rows = piece_rows(row_bytes);
        bytes = row_bytes * min_u32(rows, item->rows);
        group = sizes->kernels->repacked_bytes((enum tensor_format)item->tensor->format,
                                               KERNEL_ROW_BLOCK, item->columns);
    }
    if (bytes > sizes->piece)
        sizes->piece = bytes;
    if (group > sizes->group)
        sizes->group = group;
    return STATUS_OK;
}

static struct transient_sizes transient_sizes(const struct gguf *gguf,
                                              const struct model_details *details,
                                              const struct kernels *kernels)
{
    struct transient_sizes sizes = {kernels, 0, 0};
    struct visitor visitor = {size_transient, &sizes, NULL};
    enum status status = walk(gguf, details, &visitor, NULL);
    CHECK(status == STATUS_OK);
    sizes.piece = bytes_align(sizes.piece, ALIGNMENT);
    sizes.group = bytes_align(sizes.group, ALIGNMENT);
    return sizes;
}

uint64_t weights_transient_bytes(const struct gguf *gguf, const struct model_details *details,
                                 const struct kernels *kernels, unsigned threads)
{
    struct transient_sizes sizes = transient_sizes(gguf, details, kernels);
    return memory_map_bytes(sizes.piece + threads * sizes.group);
}

/* ---- Loading ---- */

struct load {
    const struct weights_loader *loader;
    struct sizer sizer; /* .bytes: used so far of the block */
    uint8_t *block;
    uint8_t *piece;  /* a piece of the file */
    uint8_t *groups; /* [threads][group_bytes] */
    uint64_t group_bytes;
    uint64_t done_bytes; /* of the file's tensors */
    uint64_t forgotten_bytes;
    atomic_ullong checksum;
};

/* A sum of sums, each with its place as the seed: pieces may come in any order, from any thread, as
   long as they are cut at the same places. */
static void add_checksum(struct load *load, const uint8_t *bytes, uint64_t length, uint64_t place)
{
    atomic_fetch_add_explicit(&load->checksum, checksum_bytes(bytes, length, place),
                              memory_order_relaxed);
}

/* One piece, packed or unpacked by all threads. */
struct piece_job {
    struct load *load;
    struct repacked_matrix *matrix;
    enum tensor_format format; /* in the file */
    uint32_t first; /* row of the matrix where the piece starts; a multiple of the row group */
    uint32_t count;
};

static void unpack_group(const struct piece_job *job, unsigned thread, uint32_t first,
                         uint32_t count, const uint8_t *rows)
{
    const struct load *load = job->load;
    const struct kernels *kernels = load->loader->kernels;
    struct repacked_matrix group = {job->format, count, job->matrix->k,
                                    load->groups + thread * load->group_bytes};
    kernels->repack(&group, 0, count, rows);
    for (uint32_t i = 0; i < count; i++)
        kernels->dequantize_row(
            &group, i, (float *)job->matrix->data + (uint64_t)(first + i) * job->matrix->k);
}

static void piece_run(void *arg, unsigned thread)
{
    const struct piece_job *job = arg;
    const struct weights_loader *loader = job->load->loader;
    uint64_t row_bytes = format_row_bytes(job->format, job->matrix->k);
    for (uint32_t item = thread; item * KERNEL_ROW_BLOCK < job->count;
         item = workers_next(loader->workers)) {
        uint32_t at = item * KERNEL_ROW_BLOCK;
        uint32_t count = job->count - at < KERNEL_ROW_BLOCK ? job->count - at : KERNEL_ROW_BLOCK;
        const uint8_t *rows = job->load->piece + at * row_bytes;
        add_checksum(job->load, rows, count * row_bytes, job->load->done_bytes + at * row_bytes);
        if (loader->form == WEIGHTS_PACKED)
            loader->kernels->repack(job->matrix, job->first + at, count, rows);
        else
            unpack_group(job, thread, job->first + at, count, rows);
    }
}

static enum status load_matrix(struct load *load, const struct item *item, struct error *error)
{
    const struct weights_loader *loader = load->loader;
    enum tensor_format format = (enum tensor_format)item->tensor->format;
    bool packed = loader->form == WEIGHTS_PACKED;
    *item->matrix = (struct repacked_matrix){packed ? format : FORMAT_F32, item->rows,
                                             item->columns, load->block + load->sizer.bytes};
    uint64_t row_bytes = format_row_bytes(format, item->columns);
    uint32_t step = piece_rows(row_bytes);
    for (uint32_t first = 0; first < item->rows; first += step) {
        uint32_t count = item->rows - first < step ? item->rows - first : step;
        TRY(gguf_read(loader->gguf, item->tensor, (item->first_row + (uint64_t)first) * row_bytes,
                      load->piece, count * row_bytes, error));
        struct piece_job job = {load, item->matrix, format, first, count};
        workers_run(loader->workers, piece_run, &job);
        load->done_bytes += count * row_bytes;
        if (load->done_bytes - load->forgotten_bytes >= FORGET_BYTES) {
            gguf_forget(loader->gguf);
            load->forgotten_bytes = load->done_bytes;
        }
        if (loader->progress)
            loader->progress(loader->progress_arg, load->done_bytes,
                             loader->details->config.tensor_bytes);
    }
    return STATUS_OK;
}

static enum status load_vector(struct load *load, const struct item *item, struct error *error)
{
    const struct gguf_tensor *tensor = item->tensor;
    float *out = (float *)(void *)(load->block + load->sizer.bytes);
    TRY(gguf_read(load->loader->gguf, tensor, 0, load->piece, tensor->bytes, error));
    for (uint32_t i = 0; i < item->columns; i++) {
        uint16_t half;
        if (tensor->format == FORMAT_F32) {
            memcpy(&out[i], load->piece + i * sizeof out[0], sizeof out[0]);
            continue;
        }
        memcpy(&half, load->piece + i * sizeof half, sizeof half);
        out[i] = tensor->format == FORMAT_F16 ? math_f16_to_f32(half) : math_bf16_to_f32(half);
    }
    add_checksum(load, load->piece, tensor->bytes, load->done_bytes);
    *item->vector = out;
    load->done_bytes += tensor->bytes;
    return STATUS_OK;
}

static enum status load_item(void *arg, const struct item *item, struct error *error)
{
    struct load *load = arg;
    enum status status =
        item->rows > 0 ? load_matrix(load, item, error) : load_vector(load, item, error);
    load->sizer.bytes += item_bytes(&load->sizer, item);
    return status;
}

enum status weights_load(const struct weights_loader *loader, struct weights *out,
                         struct error *error)
{
    const struct model_config *config = &loader->details->config;
    unsigned threads = workers_count(loader->workers);
    struct weights weights = {0};
    struct transient_sizes sizes = transient_sizes(loader->gguf, loader->details, loader->kernels);
    uint64_t transient_bytes = sizes.piece + threads * sizes.group;
    void *transient = NULL;
    weights.bytes = block_bytes(loader->gguf, loader->details, loader->kernels, loader->form);
    enum status status = memory_map(weights.bytes, "weights", &weights.memory, error);
    if (status == STATUS_OK)
        status = memory_map(transient_bytes, "loading of weights", &transient, error);
    if (status != STATUS_OK)
        goto failed;
    weights.layers = weights.memory;
    struct load load = {
        .loader = loader,
        .sizer = {loader->kernels, loader->form,
                  bytes_align(config->layers * sizeof(struct layer_weights), ALIGNMENT)},
        .block = weights.memory,
        .piece = transient,
        .groups = (uint8_t *)transient + sizes.piece,
        .group_bytes = sizes.group,
    };
    struct visitor visitor = {load_item, &load, &weights};
    status = walk(loader->gguf, loader->details, &visitor, error);
    if (status != STATUS_OK)
        goto failed;
    CHECK(load.sizer.bytes == weights.bytes);
    weights.checksum = atomic_load(&load.checksum);
    if (config->tied_output)
        weights.head = weights.embedding;
    memory_unmap(transient, transient_bytes);
    gguf_forget(loader->gguf);
    *out = weights;
    return STATUS_OK;
failed:
    memory_unmap(transient, transient_bytes);
    weights_deinit(&weights);
    return status;
}

void weights_deinit(struct weights *weights)
{
    memory_unmap(weights->memory, weights->bytes);
    *weights = (struct weights){0};
}
