/* See gguf_writer.h. */
#include "tests/engine/model/gguf_writer.h"

#include "base/bytes.h"
#include "base/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void gguf_writer_init(struct gguf_writer *writer)
{
    *writer = (struct gguf_writer){.version = 3, .alignment = 32};
    buffer_init(&writer->keys, 0);
    buffer_init(&writer->tensors, 0);
    buffer_init(&writer->data, 0);
}

void gguf_writer_deinit(struct gguf_writer *writer)
{
    buffer_deinit(&writer->keys);
    buffer_deinit(&writer->tensors);
    buffer_deinit(&writer->data);
}

void put_u32(struct buffer *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        buffer_append(out, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}

void put_u64(struct buffer *out, uint64_t value)
{
    put_u32(out, (uint32_t)value);
    put_u32(out, (uint32_t)(value >> 32));
}

void put_bytes(struct buffer *out, const char *bytes, uint64_t length)
{
    put_u64(out, length);
    buffer_append(out, bytes, length);
}

void put_string(struct buffer *out, const char *text)
{
    put_bytes(out, text, strlen(text));
}

void add_key(struct gguf_writer *writer, const char *key, uint32_t type)
{
    writer->key_count++;
    put_string(&writer->keys, key);
    put_u32(&writer->keys, type);
}

void add_u32(struct gguf_writer *writer, const char *key, uint32_t value)
{
    add_key(writer, key, GGUF_UINT32);
    put_u32(&writer->keys, value);
}

static void put_f32(struct buffer *out, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u32(out, bits);
}

void add_f32(struct gguf_writer *writer, const char *key, float value)
{
    add_key(writer, key, GGUF_FLOAT32);
    put_f32(&writer->keys, value);
}

void add_bool(struct gguf_writer *writer, const char *key, uint8_t value)
{
    add_key(writer, key, GGUF_BOOL);
    buffer_append(&writer->keys, &value, 1);
}

void add_string(struct gguf_writer *writer, const char *key, const char *value)
{
    add_key(writer, key, GGUF_STRING);
    put_string(&writer->keys, value);
}

static void add_array(struct gguf_writer *writer, const char *key, uint32_t element, uint64_t count)
{
    add_key(writer, key, GGUF_ARRAY);
    put_u32(&writer->keys, element);
    put_u64(&writer->keys, count);
}

void add_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                 uint64_t count)
{
    add_array(writer, key, GGUF_STRING, count);
    for (uint64_t i = 0; i < count; i++)
        put_string(&writer->keys, values[i]);
}

void add_i32s(struct gguf_writer *writer, const char *key, const int32_t *values, uint64_t count)
{
    add_array(writer, key, GGUF_INT32, count);
    for (uint64_t i = 0; i < count; i++)
        put_u32(&writer->keys, (uint32_t)values[i]);
}

void add_f32s(struct gguf_writer *writer, const char *key, const float *values, uint64_t count)
{
    add_array(writer, key, GGUF_FLOAT32, count);
    for (uint64_t i = 0; i < count; i++)
        put_f32(&writer->keys, values[i]);
}

void add_tensor_record(struct gguf_writer *writer, const char *name, uint32_t format,
                       uint32_t dim_count, const uint64_t *dims, uint64_t offset)
{
    writer->tensor_count++;
    put_string(&writer->tensors, name);
    put_u32(&writer->tensors, dim_count);
    for (uint32_t i = 0; i < dim_count; i++)
        put_u64(&writer->tensors, dims[i]);
    put_u32(&writer->tensors, format);
    put_u64(&writer->tensors, offset);
}

static void pad(struct buffer *out, size_t alignment)
{
    while (out->length % alignment != 0)
        buffer_append(out, "", 1);
}

void add_tensor(struct gguf_writer *writer, const char *name, uint32_t format,
                const uint64_t dims[4], uint64_t bytes)
{
    uint32_t dim_count = 0;
    while (dim_count < 4 && dims[dim_count] != 0)
        dim_count++;
    pad(&writer->data, writer->alignment);
    add_tensor_record(writer, name, format, dim_count, dims, writer->data.length);
    for (uint64_t i = 0; i < bytes; i++)
        buffer_append(&writer->data, &(uint8_t){(uint8_t)(i % 251)}, 1);
}

void gguf_writer_join(const struct gguf_writer *writer, struct buffer *out)
{
    buffer_init(out, 0);
    buffer_append_text(out, "GGUF");
    put_u32(out, writer->version);
    put_u64(out, writer->tensor_count);
    put_u64(out, writer->key_count);
    buffer_append(out, writer->keys.data, writer->keys.length);
    buffer_append(out, writer->tensors.data, writer->tensors.length);
    if (writer->data.length == 0)
        return;
    pad(out, writer->alignment);
    buffer_append(out, writer->data.data, writer->data.length);
}

void memory_file(const void *bytes, size_t length, int *fd, char path[static 64])
{
    *fd = memfd_create("model.gguf", MFD_CLOEXEC);
    CHECK(*fd >= 0);
    for (size_t done = 0; done < length;) {
        ssize_t written = write(*fd, (const char *)bytes + done, length - done);
        CHECK(written > 0);
        done += (size_t)written;
    }
    snprintf(path, 64, "/proc/self/fd/%d", *fd);
}

enum status open_bytes(const void *bytes, size_t length, struct gguf **out, struct error *error)
{
    int fd;
    char path[64];
    memory_file(bytes, length, &fd, path);
    enum status status = gguf_open(path, out, error);
    close(fd);
    return status;
}

enum status open_written(const struct gguf_writer *writer, struct gguf **out, struct error *error)
{
    struct buffer bytes;
    gguf_writer_join(writer, &bytes);
    enum status status = open_bytes(bytes.data, bytes.length, out, error);
    buffer_deinit(&bytes);
    return status;
}
