/*
 * Types of keys and values in the page pool, and where in a page each lies.
 *
 * The pool is pages of page_bytes. In a page, layer after layer and KV head after head, are two
 * planes of plane_bytes each: the keys, whose rows are tokens wide (lanes are tokens), and the
 * values, whose rows are dimensions wide. P = page_size, D = head_dim:
 *
 *   f32, f16, bf16   keys [D][P]                          values [P][D]
 *   q8_0             keys [D/32]: f16 d [P]               values f16 d [P][D/32]
 *                                 int8 q [32][P]                 int8 q [P][D]
 *   q4_0             keys [D/32]: f16 d [P]               values f16 d [P][D/32]
 *                                 bytes [16][P]                  bytes [P][D/32][16]
 *
 * A byte of q4_0 holds two dimensions of one token, each as q + 8: of keys 2i in the low and 2i + 1
 * in the high half, of values i and i + 16. So no two tokens share a byte, and threads may store
 * neighbours at the same time. q8_0 and q4_0 are GGML's blocks of 32 (ggml-common.h) taken apart:
 * their value is d·q. What is stored for a number is kv_page.c's to say. Any thread, no allocation.
 */
#ifndef QUIRE_ENGINE_KERNELS_KV_H
#define QUIRE_ENGINE_KERNELS_KV_H

#include <stdbool.h>
#include <stdint.h>

enum kv_type { KV_F16, KV_F32, KV_BF16, KV_Q8_0, KV_Q4_0, KV_TYPES };

#define KV_TYPE_NAMES "f32, f16, bf16, q8_0 or q4_0"

struct kv_layout {
    uint8_t *pool; /* 64-byte aligned */
    uint64_t page_bytes;
    uint64_t plane_bytes;
    enum kv_type type;
    uint32_t page_size; /* 8, 16, 32 or 64 tokens */
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim; /* a multiple of 8, and of kv_type_block */
};

/* Asks for the keys and values of one page, layer and head, into a core's own cache. */
void kv_prefetch(const struct kv_layout *kv, uint32_t page, uint32_t layer, uint32_t kv_head);

const char *kv_type_name(enum kv_type type);
/* false: no such name. */
bool kv_type_parse(const char *name, enum kv_type *out);
/* Dimensions that share a scale: 32 for the quantised types, else 1. */
uint32_t kv_type_block(enum kv_type type);

/* Bytes of one page. head_dim is a multiple of kv_type_block. */
uint64_t kv_page_bytes(enum kv_type type, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                       uint32_t page_size);

/* All but the pool, which is the caller's. */
struct kv_layout kv_layout_of(enum kv_type type, uint32_t layers, uint32_t kv_heads,
                              uint32_t head_dim, uint32_t page_size);

#endif
