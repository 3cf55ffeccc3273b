/*
 * An open GGUF file from the inside: for gguf_parse.c, which fills it, and gguf_query.c, which
 * answers from it. Both are behind gguf.h; nobody else includes this.
 *
 * What parsing keeps are offsets into the header; they become pointers only when a caller asks.
 */
#ifndef QUIRE_ENGINE_MODEL_GGUF_PRIVATE_H
#define QUIRE_ENGINE_MODEL_GGUF_PRIVATE_H

#include "base/minmax.h"
#include "engine/model/gguf.h"

#include <stdint.h>
#include <string.h>

struct entry {
    uint64_t key;        /* offset of the key's bytes in the first part's header */
    uint64_t value;      /* offset of the value; of arrays, of their first element */
    uint64_t end;        /* one past the value */
    uint64_t count;      /* elements of an array */
    uint32_t key_length; /* 1 … LIMIT_KEY_BYTES */
    enum gguf_type type;
    enum gguf_type element; /* of an array */
};

struct part {
    int fd;
    uint64_t file_bytes;
    uint8_t *header; /* file bytes [0, header_bytes) */
    uint64_t header_bytes;
    uint64_t header_capacity;
    uint64_t header_limit; /* what header_capacity may become */
    uint64_t position;     /* parsing is here */
    uint32_t alignment;
};

struct gguf {
    struct part *parts;
    uint32_t part_count;
    uint64_t header_limit; /* of all parts' headers together */
    uint32_t version;
    struct entry *entries; /* in file order, first part only */
    uint32_t entry_count;
    uint32_t *entries_sorted; /* [entry_count] by key */
    struct gguf_tensor *tensors;
    uint16_t *tensor_parts;   /* [tensor_count] */
    uint32_t *tensors_sorted; /* [tensor_count] by name */
    uint32_t tensor_count;
    uint32_t tensor_capacity;
};

/* Names in messages are cut, since a key may be 64 KiB long. error_set replaces bad bytes. */
#define SHOWN_MAX 64
#define SHOW(length) ((int)((length) < SHOWN_MAX ? (length) : SHOWN_MAX))

static const uint8_t TYPE_BYTES[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* ---- Little-endian reads from memory that is known to be there. ---- */

static inline uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

static inline uint64_t load_u64(const uint8_t *at)
{
    return (uint64_t)load_u32(at) | (uint64_t)load_u32(at + 4) << 32;
}

static inline float load_f32(const uint8_t *at)
{
    uint32_t bits = load_u32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double load_f64(const uint8_t *at)
{
    uint64_t bits = load_u64(at);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline struct gguf_string entry_key(const struct gguf *gguf, const struct entry *entry)
{
    return (struct gguf_string){(const char *)gguf->parts[0].header + entry->key,
                                entry->key_length};
}

static inline int compare_bytes(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, min_u64(a_length, b_length));
    if (order != 0)
        return order;
    return (a_length > b_length) - (a_length < b_length);
}

/* NULL: there is no such key. gguf_query.c's. */
const struct entry *gguf_find_key(const struct gguf *gguf, struct gguf_string key);

#endif
