/*
 * Private to engine/kernels: addressing the planes of a page (kv.h), and putting encoded values
 * there. All kernel sets store through kv_store_with; they differ in how 32 values are encoded.
 */
#ifndef QUIRE_ENGINE_KERNELS_KV_PAGE_H
#define QUIRE_ENGINE_KERNELS_KV_PAGE_H

#include "engine/kernels/kv.h"

#include <stddef.h>
#include <string.h>

#define KV_BLOCK 32u

/* Up to 32 consecutive dimensions of one key or value, as stored. */
struct kv_block {
    union {
        float f32[KV_BLOCK];
        uint16_t half[KV_BLOCK];
        uint8_t code[KV_BLOCK]; /* q8_0: q as int8; q4_0: q + 8 */
    };
    uint16_t d; /* f16 */
};

static inline bool kv_is_quantized(enum kv_type type)
{
    return type == KV_Q8_0 || type == KV_Q4_0;
}

/* Bytes of one token in a row of keys. */
static inline uint32_t kv_element_bytes(enum kv_type type)
{
    return type == KV_F32 ? 4 : kv_is_quantized(type) ? 1 : 2;
}

/* Dimensions of one row of keys, which is also how many share an element. */
static inline uint32_t kv_dims_per_row(enum kv_type type)
{
    return type == KV_Q4_0 ? 2 : 1;
}

/* Bytes of one token in the rows of values, its scales aside. */
static inline uint64_t kv_row_bytes(enum kv_type type, uint32_t head_dim)
{
    return (uint64_t)head_dim / kv_dims_per_row(type) * kv_element_bytes(type);
}

/* Bytes before the rows in a plane of values: the scales. */
static inline uint64_t kv_scales_bytes(enum kv_type type, uint32_t head_dim, uint32_t page_size)
{
    return kv_is_quantized(type) ? 2ull * page_size * (head_dim / KV_BLOCK) : 0;
}

/* The keys of a page, or its values. */
static inline uint8_t *kv_plane(const struct kv_layout *kv, uint32_t page, uint32_t layer,
                                uint32_t kv_head, bool values)
{
    uint64_t index = ((uint64_t)layer * kv->kv_heads + kv_head) * 2 + values;
    return kv->pool + page * kv->page_bytes + index * kv->plane_bytes;
}

/* Where block `block` of 32 dimensions of a plane of keys starts: with its scales, if it has any.
 */
static inline uint64_t kv_key_block_at(enum kv_type type, uint32_t page_size, uint32_t block)
{
    uint64_t rows = KV_BLOCK / kv_dims_per_row(type);
    uint64_t scales = kv_is_quantized(type) ? 2 : 0;
    return block * page_size * (rows * kv_element_bytes(type) + scales);
}

static inline void kv_put_key(const struct kv_layout *kv, uint8_t *plane, uint32_t offset,
                              uint32_t block, uint32_t count, const struct kv_block *from)
{
    const size_t page_size = kv->page_size;
    uint8_t *at = plane + kv_key_block_at(kv->type, kv->page_size, block);
    uint8_t *bytes = at + 2 * page_size + offset;
    switch (kv->type) {
    case KV_F32:
        for (size_t i = 0; i < count; i++)
            ((float *)(void *)at)[i * page_size + offset] = from->f32[i];
        break;
    case KV_Q8_0:
        ((uint16_t *)(void *)at)[offset] = from->d;
        for (size_t i = 0; i < KV_BLOCK; i++)
            bytes[i * page_size] = from->code[i];
        break;
    case KV_Q4_0:
        ((uint16_t *)(void *)at)[offset] = from->d;
        for (size_t i = 0; i < KV_BLOCK / 2; i++)
            bytes[i * page_size] = (uint8_t)(from->code[2 * i] | from->code[2 * i + 1] << 4);
        break;
    default:
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)(void *)at)[i * page_size + offset] = from->half[i];
    }
}

static inline void kv_put_value(const struct kv_layout *kv, uint8_t *plane, uint32_t offset,
                                uint32_t block, uint32_t count, const struct kv_block *from)
{
    const enum kv_type type = kv->type;
    uint8_t *row = plane + kv_scales_bytes(type, kv->head_dim, kv->page_size) +
                   offset * kv_row_bytes(type, kv->head_dim) + kv_row_bytes(type, block * KV_BLOCK);
    if (!kv_is_quantized(type)) {
        memcpy(row, from->f32, count * kv_element_bytes(type));
        return;
    }
    ((uint16_t *)(void *)plane)[offset * (kv->head_dim / KV_BLOCK) + block] = from->d;
    if (type == KV_Q8_0) {
        memcpy(row, from->code, KV_BLOCK);
        return;
    }
    for (size_t i = 0; i < KV_BLOCK / 2; i++)
        row[i] = (uint8_t)(from->code[i] | from->code[i + KV_BLOCK / 2] << 4);
}

/* Encode 32 values. */
typedef void kv_encode_fn(enum kv_type type, const float x[static KV_BLOCK], struct kv_block *out);

static inline void kv_store_with(kv_encode_fn *encode, const struct kv_layout *kv, uint32_t layer,
                                 uint32_t kv_head, uint64_t slot, const float *key,
                                 const float *value)
{
    uint32_t page = (uint32_t)(slot / kv->page_size), offset = (uint32_t)(slot % kv->page_size);
    uint8_t *keys = kv_plane(kv, page, layer, kv_head, false);
    uint8_t *values = kv_plane(kv, page, layer, kv_head, true);
    for (uint32_t block = 0; block * KV_BLOCK < kv->head_dim; block++) {
        uint32_t from = block * KV_BLOCK, left = kv->head_dim - from;
        uint32_t count = left < KV_BLOCK ? left : KV_BLOCK;
        float padded[2][KV_BLOCK];
        const float *x = key + from, *y = value + from;
        if (count < KV_BLOCK) {
            memset(padded, 0, sizeof padded);
            x = memcpy(padded[0], x, count * sizeof *x);
            y = memcpy(padded[1], y, count * sizeof *y);
        }
        struct kv_block encoded;
        encode(kv->type, x, &encoded);
        kv_put_key(kv, keys, offset, block, count, &encoded);
        encode(kv->type, y, &encoded);
        kv_put_value(kv, values, offset, block, count, &encoded);
    }
}

/* kv_page.c: the specification. */
void scalar_kv_encode(enum kv_type type, const float x[static KV_BLOCK], struct kv_block *out);
/* out [head_dim] = the key or value of one token, read back. */
void scalar_kv_read_key(const struct kv_layout *kv, const uint8_t *plane, uint32_t offset,
                        float *out);
void scalar_kv_read_value(const struct kv_layout *kv, const uint8_t *plane, uint32_t offset,
                          float *out);

#endif
