/*
 * GGUF v2/v3 files (ggml's docs/gguf.md), read through a bounds-checked parser.
 *
 * The header (metadata and tensor list) is read into memory once; tensor data is read in pieces
 * with gguf_read, never mapped. Nothing is allocated from a count in the file before that count has
 * been checked against the bytes that are left. All errors name the key or tensor. One thread at
 * a time per struct gguf.
 */
#ifndef QUIRE_ENGINE_MODEL_GGUF_H
#define QUIRE_ENGINE_MODEL_GGUF_H

#include "base/error.h"
#include "engine/kernels/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;

enum gguf_type {
    GGUF_UINT8,
    GGUF_INT8,
    GGUF_UINT16,
    GGUF_INT16,
    GGUF_UINT32,
    GGUF_INT32,
    GGUF_FLOAT32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_UINT64,
    GGUF_INT64,
    GGUF_FLOAT64
};

struct gguf_string {
    const char *text; /* not terminated; lives as long as the gguf */
    size_t length;
};

struct gguf_tensor {
    struct gguf_string name;
    uint32_t format;    /* enum tensor_format number; known, else the file was refused */
    uint32_t dim_count; /* 1 … 4 */
    uint64_t dims[4];   /* dims[0] is the row length k, the others are 1 when absent */
    uint64_t offset;    /* from the start of the file; offset + bytes <= file size */
    uint64_t bytes;
};

/* Split files: if the file is the first of `…-00001-of-0000N.gguf`, the others are opened too. */
enum status gguf_open(const char *path, struct gguf **out, struct error *error);
/* As gguf_open; the headers of all parts together take at most `header_bytes` of memory, else
   STATUS_INVALID (param "memory"). */
enum status gguf_open_within(const char *path, uint64_t header_bytes, struct gguf **out,
                             struct error *error);
void gguf_close(struct gguf *gguf);

/* Bytes of memory the header holds (for the budget), and the file's size. */
uint64_t gguf_memory_bytes(const struct gguf *gguf);
uint64_t gguf_file_bytes(const struct gguf *gguf);
uint32_t gguf_version(const struct gguf *gguf);

/* Of all keys and the list of tensors, of each part. With the checksum of the weights that were
   loaded (struct backend) it is the content that a model is known by, whatever its file is called
   and whenever it was written. */
uint64_t gguf_header_checksum(const struct gguf *gguf);

/* Iterate: metadata keys in file order. */
uint32_t gguf_key_count(const struct gguf *gguf);
struct gguf_string gguf_key(const struct gguf *gguf, uint32_t index);
enum gguf_type gguf_key_type(const struct gguf *gguf, uint32_t index);
/* Print a value for a person, at most `limit` - 1 bytes and a terminator (limit >= 8), arrays
   shortened. Valid UTF-8 without control characters, whatever the file holds. */
void gguf_format_value(const struct gguf *gguf, uint32_t index, char *out, size_t limit);

bool gguf_has(const struct gguf *gguf, const char *key);

/* Typed look-ups. A key that is absent: STATUS_NOT_FOUND; of the wrong type or out of range:
   STATUS_INVALID; both with an error that names the key. Integers of any width and sign are
   accepted where the value fits; floats from FLOAT32/64. */
enum status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *out,
                         struct error *error);
enum status gguf_get_f32(const struct gguf *gguf, const char *key, float *out, struct error *error);
enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *error);
enum status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *out,
                            struct error *error);

/* Arrays. element type must match (STRING), or be any integer type or bool (ints: 0 or 1), or float
   (floats). */
enum status gguf_array_count(const struct gguf *gguf, const char *key, enum gguf_type *element_type,
                             uint64_t *count, struct error *error);
/* Walk a string array in O(1) per element: *cursor is 0 at the start. false at the end. */
bool gguf_array_next_string(const struct gguf *gguf, const char *key, uint64_t *cursor,
                            struct gguf_string *out);
enum status gguf_array_get_i32(const struct gguf *gguf, const char *key, int32_t *out,
                               uint64_t count, struct error *error);
enum status gguf_array_get_f32(const struct gguf *gguf, const char *key, float *out, uint64_t count,
                               struct error *error);

uint32_t gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor(const struct gguf *gguf, uint32_t index);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name); /* or NULL */

/* Read `length` bytes of a tensor from `offset` within it. STATUS_IO names the tensor (the file may
   have shrunk). gguf_forget tells the kernel to drop the file's page cache. */
enum status gguf_read(const struct gguf *gguf, const struct gguf_tensor *tensor, uint64_t offset,
                      void *out, uint64_t length, struct error *error);
void gguf_forget(const struct gguf *gguf);

#endif
