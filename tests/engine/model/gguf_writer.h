/*
 * Builds GGUF files byte by byte for tests, wrong ones too, and opens them from memory.
 *
 * A file is three parts that are joined at the end: keys, tensor records, data. Nothing is checked.
 */
#ifndef QUIRE_TESTS_ENGINE_MODEL_GGUF_WRITER_H
#define QUIRE_TESTS_ENGINE_MODEL_GGUF_WRITER_H

#include "base/buffer.h"
#include "base/error.h"
#include "engine/model/gguf.h"

#include <stdint.h>

struct gguf_writer {
    uint32_t version;
    uint64_t key_count, tensor_count; /* as they will be claimed; add_… count up */
    uint32_t alignment;               /* of the data's start; not written as a key */
    struct buffer keys, tensors, data;
};

void gguf_writer_init(struct gguf_writer *writer);
void gguf_writer_deinit(struct gguf_writer *writer);

/* Raw pieces. */
void put_u32(struct buffer *out, uint32_t value);
void put_u64(struct buffer *out, uint64_t value);
void put_string(struct buffer *out, const char *text);
void put_bytes(struct buffer *out, const char *bytes, uint64_t length); /* with its length */

/* A key's name and type; the value follows by hand. */
void add_key(struct gguf_writer *writer, const char *key, uint32_t type);
void add_u32(struct gguf_writer *writer, const char *key, uint32_t value);
void add_f32(struct gguf_writer *writer, const char *key, float value);
void add_bool(struct gguf_writer *writer, const char *key, uint8_t value);
void add_string(struct gguf_writer *writer, const char *key, const char *value);
void add_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                 uint64_t count);
void add_i32s(struct gguf_writer *writer, const char *key, const int32_t *values, uint64_t count);
void add_f32s(struct gguf_writer *writer, const char *key, const float *values, uint64_t count);

/* A tensor of up to four dimensions (0 ends the list), with `bytes` of data: 0, 1, 2 …, 250, 0 … */
void add_tensor(struct gguf_writer *writer, const char *name, uint32_t format,
                const uint64_t dims[4], uint64_t bytes);
/* The same with a record of its own and no data. */
void add_tensor_record(struct gguf_writer *writer, const char *name, uint32_t format,
                       uint32_t dim_count, const uint64_t *dims, uint64_t offset);

/* The whole file; `out` is initialised here. */
void gguf_writer_join(const struct gguf_writer *writer, struct buffer *out);

/* A file in memory that holds the bytes; *fd is closed by the caller, `path` opens it anew. */
void memory_file(const void *bytes, size_t length, int *fd, char path[static 64]);

/* Open these bytes as a file. */
enum status open_bytes(const void *bytes, size_t length, struct gguf **out, struct error *error);
enum status open_written(const struct gguf_writer *writer, struct gguf **out, struct error *error);

#endif
