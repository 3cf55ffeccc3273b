/*
 * The GGUF reader: what it reads, and that nothing in a file can hurt it (CASES B73, B74, B76).
 */
#include "base/clock.h"
#include "tests/engine/model/gguf_writer.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static const char *const words[] = {"alpha", "", "gamma \xe2\x82\xac", "d"};

/* A small file with one of everything. */
static void write_sample(struct gguf_writer *writer)
{
    gguf_writer_init(writer);
    add_string(writer, "general.architecture", "llama");
    add_u32(writer, "small", 7);
    add_f32(writer, "half", 0.5f);
    add_bool(writer, "yes", 1);
    add_strings(writer, "words", words, 4);
    add_i32s(writer, "ints", (const int32_t[]){-1, 0, 2147483647}, 3);
    add_f32s(writer, "floats", (const float[]){1.5f, -2}, 2);
    add_key(writer, "long", GGUF_UINT64);
    put_u64(&writer->keys, UINT64_MAX);
    add_key(writer, "negative", GGUF_INT64);
    put_u64(&writer->keys, (uint64_t)-5);
    add_key(writer, "double", GGUF_FLOAT64);
    put_u64(&writer->keys, 0x4009000000000000u); /* 3.125 */
    add_key(writer, "byte", GGUF_INT8);
    buffer_append(&writer->keys, "\xff", 1);
    add_key(writer, "empty", GGUF_ARRAY);
    put_u32(&writer->keys, GGUF_STRING);
    put_u64(&writer->keys, 0);
    add_tensor(writer, "q", FORMAT_Q4_1, (const uint64_t[]){64, 3, 0, 0}, 2 * 20 * 3);
    add_tensor(writer, "norm", FORMAT_F32, (const uint64_t[]){5, 0, 0, 0}, 20);
    add_tensor(writer, "four", FORMAT_F16, (const uint64_t[]){2, 3, 4, 5}, 240);
}

static void assert_refused(const struct gguf_writer *writer, const char *part)
{
    struct gguf *gguf = (struct gguf *)1;
    struct error error = {0};
    uint64_t start = clock_now_ns();
    enum status status = open_written(writer, &gguf, &error);
    ck_assert_msg(status != STATUS_OK, "was accepted, should have named: %s", part);
    ck_assert_ptr_null(gguf);
    ck_assert_msg(strstr(error.message, part) != NULL, "'%s' does not name '%s'", error.message,
                  part);
    if (!SANITIZED)
        ck_assert_uint_lt(clock_now_ns() - start, 50000000u);
}

START_TEST(test_reads_keys)
{
    struct gguf_writer writer;
    write_sample(&writer);
    for (writer.version = 2; writer.version <= 3; writer.version++) {
        struct gguf *gguf;
        struct error error = {0};
        ck_assert_int_eq(open_written(&writer, &gguf, &error), STATUS_OK);
        ck_assert_uint_eq(gguf_version(gguf), writer.version);
        ck_assert_uint_eq(gguf_key_count(gguf), 12);
        ck_assert_mem_eq(gguf_key(gguf, 1).text, "small", 5);
        ck_assert_uint_eq(gguf_key(gguf, 1).length, 5);
        ck_assert_int_eq(gguf_key_type(gguf, 4), GGUF_ARRAY);
        ck_assert(gguf_has(gguf, "yes") && !gguf_has(gguf, "ye") && !gguf_has(gguf, "yess"));
        uint32_t u32 = 0;
        float f32 = 0;
        bool flag = false;
        struct gguf_string text;
        ck_assert_int_eq(gguf_get_u32(gguf, "small", &u32, &error), STATUS_OK);
        ck_assert_uint_eq(u32, 7);
        ck_assert_int_eq(gguf_get_f32(gguf, "half", &f32, &error), STATUS_OK);
        ck_assert_float_eq(f32, 0.5f);
        ck_assert_int_eq(gguf_get_f32(gguf, "double", &f32, &error), STATUS_OK);
        ck_assert_float_eq(f32, 3.125f);
        ck_assert_int_eq(gguf_get_bool(gguf, "yes", &flag, &error), STATUS_OK);
        ck_assert(flag);
        ck_assert_int_eq(gguf_get_string(gguf, "general.architecture", &text, &error), STATUS_OK);
        ck_assert(text.length == 5 && memcmp(text.text, "llama", 5) == 0);
        gguf_close(gguf);
    }
    gguf_writer_deinit(&writer);
}
END_TEST

START_TEST(test_reads_arrays)
{
    struct gguf_writer writer;
    write_sample(&writer);
    add_key(&writer, "flags", GGUF_ARRAY);
    put_u32(&writer.keys, GGUF_BOOL);
    put_u64(&writer.keys, 3);
    buffer_append(&writer.keys, "\1\0\1", 3);
    struct gguf *gguf;
    struct error error = {0};
    ck_assert_int_eq(open_written(&writer, &gguf, &error), STATUS_OK);
    enum gguf_type element;
    uint64_t count, cursor = 0;
    ck_assert_int_eq(gguf_array_count(gguf, "words", &element, &count, &error), STATUS_OK);
    ck_assert_int_eq(element, GGUF_STRING);
    ck_assert_uint_eq(count, 4);
    struct gguf_string text;
    for (int i = 0; i < 4; i++) {
        ck_assert(gguf_array_next_string(gguf, "words", &cursor, &text));
        ck_assert_uint_eq(text.length, strlen(words[i]));
        ck_assert(memcmp(text.text, words[i], text.length) == 0);
    }
    ck_assert(!gguf_array_next_string(gguf, "words", &cursor, &text));
    ck_assert(!gguf_array_next_string(gguf, "words", &cursor, &text));
    cursor = 0;
    ck_assert(!gguf_array_next_string(gguf, "empty", &cursor, &text));
    ck_assert(!gguf_array_next_string(gguf, "ints", &cursor, &text));
    ck_assert(!gguf_array_next_string(gguf, "small", &cursor, &text));
    ck_assert(!gguf_array_next_string(gguf, "absent", &cursor, &text));
    int32_t ints[4];
    float floats[4];
    ck_assert_int_eq(gguf_array_get_i32(gguf, "ints", ints, 3, &error), STATUS_OK);
    ck_assert(ints[0] == -1 && ints[1] == 0 && ints[2] == 2147483647);
    ck_assert_int_eq(gguf_array_get_i32(gguf, "flags", ints, 3, &error), STATUS_OK);
    ck_assert(ints[0] == 1 && ints[1] == 0 && ints[2] == 1);
    ck_assert_int_eq(gguf_array_get_f32(gguf, "floats", floats, 2, &error), STATUS_OK);
    ck_assert(floats[0] == 1.5f && floats[1] == -2);
    ck_assert_int_eq(gguf_array_get_i32(gguf, "ints", ints, 4, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "'ints'"));
    ck_assert_int_eq(gguf_array_get_i32(gguf, "floats", ints, 2, &error), STATUS_INVALID);
    ck_assert_int_eq(gguf_array_get_f32(gguf, "ints", floats, 2, &error), STATUS_INVALID);
    ck_assert_int_eq(gguf_array_get_f32(gguf, "half", floats, 1, &error), STATUS_INVALID);
    ck_assert_int_eq(gguf_array_get_i32(gguf, "absent", ints, 0, &error), STATUS_NOT_FOUND);
    gguf_close(gguf);
    gguf_writer_deinit(&writer);
}
END_TEST

START_TEST(test_typed_errors_name_the_key)
{
    struct gguf_writer writer;
    write_sample(&writer);
    add_f32(&writer, "infinite", INFINITY);
    struct gguf *gguf;
    struct error error = {0};
    ck_assert_int_eq(open_written(&writer, &gguf, &error), STATUS_OK);
    uint32_t u32 = 99;
    float f32;
    bool flag;
    struct gguf_string text;
    static const char *const not_u32[] = {"half", "yes",      "words", "general.architecture",
                                          "long", "negative", "byte"};
    for (size_t i = 0; i < sizeof not_u32 / sizeof not_u32[0]; i++) {
        ck_assert_int_eq(gguf_get_u32(gguf, not_u32[i], &u32, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.message, not_u32[i]) != NULL, "%s", error.message);
    }
    ck_assert_uint_eq(u32, 99);
    ck_assert_int_eq(gguf_get_f32(gguf, "small", &f32, &error), STATUS_INVALID);
    ck_assert_int_eq(gguf_get_f32(gguf, "infinite", &f32, &error), STATUS_INVALID);
    ck_assert_int_eq(gguf_get_bool(gguf, "small", &flag, &error), STATUS_INVALID);
    ck_assert_int_eq(gguf_get_string(gguf, "words", &text, &error), STATUS_INVALID);
    ck_assert_int_eq(gguf_get_string(gguf, "nowhere", &text, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.message, "'nowhere'"));
    ck_assert_int_eq(gguf_get_u32(gguf, "nowhere", &u32, NULL), STATUS_NOT_FOUND);
    gguf_close(gguf);
    gguf_writer_deinit(&writer);
}
END_TEST

START_TEST(test_reads_tensors)
{
    struct gguf_writer writer;
    write_sample(&writer);
    struct buffer bytes;
    gguf_writer_join(&writer, &bytes);
    int fd;
    char path[64];
    memory_file(bytes.data, bytes.length, &fd, path);
    struct gguf *gguf;
    struct error error = {0};
    ck_assert_int_eq(gguf_open(path, &gguf, &error), STATUS_OK);
    ck_assert_uint_eq(gguf_tensor_count(gguf), 3);
    ck_assert_uint_eq(gguf_file_bytes(gguf), bytes.length);
    ck_assert_uint_lt(gguf_memory_bytes(gguf), 4096);
    const struct gguf_tensor *q = gguf_find_tensor(gguf, "q");
    ck_assert_ptr_eq(q, gguf_tensor(gguf, 0));
    ck_assert_uint_eq(q->bytes, 120);
    ck_assert_uint_eq(q->dim_count, 2);
    ck_assert(q->dims[0] == 64 && q->dims[1] == 3 && q->dims[2] == 1 && q->dims[3] == 1);
    ck_assert_uint_eq(q->offset % 32, 0);
    ck_assert_ptr_null(gguf_find_tensor(gguf, "qq"));
    ck_assert_ptr_null(gguf_find_tensor(gguf, ""));
    const struct gguf_tensor *four = gguf_find_tensor(gguf, "four");
    ck_assert_uint_eq(four->bytes, 240);
    ck_assert(four->dims[3] == 5 && four->offset + four->bytes == bytes.length);
    uint8_t data[240];
    ck_assert_int_eq(gguf_read(gguf, four, 0, data, 240, &error), STATUS_OK);
    for (int i = 0; i < 240; i++)
        ck_assert_uint_eq(data[i], (uint8_t)i);
    ck_assert_int_eq(gguf_read(gguf, q, 100, data, 20, &error), STATUS_OK);
    ck_assert_uint_eq(data[0], 100);
    gguf_forget(gguf);
    /* The file shrinks while it is open. */
    ck_assert_int_eq(ftruncate(fd, (off_t)(bytes.length - 1)), 0);
    ck_assert_int_eq(gguf_read(gguf, q, 0, data, 120, &error), STATUS_OK);
    ck_assert_int_eq(gguf_read(gguf, four, 0, data, 240, &error), STATUS_IO);
    ck_assert_msg(strstr(error.message, "'four'") != NULL, "%s", error.message);
    gguf_close(gguf);
    close(fd);
    buffer_deinit(&bytes);
    gguf_writer_deinit(&writer);
}
END_TEST

/* 0 when the file is refused. */
static uint64_t checksum_of(const char *path)
{
    struct gguf *gguf;
    struct error error;
    if (gguf_open(path, &gguf, &error) != STATUS_OK)
        return 0;
    uint64_t sum = gguf_header_checksum(gguf);
    ck_assert_uint_ne(sum, 0);
    gguf_close(gguf);
    return sum;
}

/* Every byte of the header counts, up to its padding; the data after it and the time of last change
   do not. */
START_TEST(test_header_checksum)
{
    struct gguf_writer writer;
    write_sample(&writer);
    struct buffer bytes;
    gguf_writer_join(&writer, &bytes);
    int fd;
    char path[64];
    memory_file(bytes.data, bytes.length, &fd, path);
    struct gguf *gguf;
    struct error error;
    ck_assert_int_eq(gguf_open(path, &gguf, &error), STATUS_OK);
    uint64_t own = checksum_of(path), data = UINT64_MAX;
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++)
        data = gguf_tensor(gguf, i)->offset < data ? gguf_tensor(gguf, i)->offset : data;
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    ck_assert_int_eq(futimens(fd, times), 0);
    ck_assert_uint_ne(own, 0);
    ck_assert_uint_eq(checksum_of(path), own);
    for (size_t i = 0; i < bytes.length; i++) {
        char other = (char)(bytes.data[i] ^ 0x10);
        ck_assert_int_eq(pwrite(fd, &other, 1, (off_t)i), 1);
        uint64_t sum = checksum_of(path);
        ck_assert_msg(i >= data ? sum == own : i + 32 >= data || sum != own, "byte %zu of %zu", i,
                      bytes.length);
        ck_assert_int_eq(pwrite(fd, &bytes.data[i], 1, (off_t)i), 1);
    }
    gguf_close(gguf);
    close(fd);
    buffer_deinit(&bytes);
    gguf_writer_deinit(&writer);
}
END_TEST

/* B73: cut at every byte. */
START_TEST(test_truncation_at_every_byte)
{
    struct gguf_writer writer;
    write_sample(&writer);
    struct buffer bytes;
    gguf_writer_join(&writer, &bytes);
    bool named_key = false, named_tensor = false;
    for (size_t length = 0; length < bytes.length; length++) {
        struct gguf *gguf;
        struct error error = {0};
        enum status status = open_bytes(bytes.data, length, &gguf, &error);
        ck_assert_msg(status == STATUS_INVALID, "cut at %zu: status %d", length, status);
        ck_assert_uint_gt(strlen(error.message), 10);
        named_key = named_key || strstr(error.message, "'words'") != NULL;
        named_tensor = named_tensor || strstr(error.message, "'four'") != NULL;
    }
    ck_assert(named_key && named_tensor);
    buffer_deinit(&bytes);
    gguf_writer_deinit(&writer);
}
END_TEST

/* B74: counts and lengths that no file could hold; refused at once and without memory. */
START_TEST(test_absurd_counts)
{
    static const uint64_t absurd[] = {65537,          (uint64_t)1 << 31, (uint64_t)1 << 32,
                                      UINT64_MAX / 2, (uint64_t)1 << 63, UINT64_MAX - 7,
                                      UINT64_MAX};
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    for (size_t i = 0; i < sizeof absurd / sizeof absurd[0]; i++) {
        struct gguf_writer writer;
        write_sample(&writer);
        writer.key_count = absurd[i];
        assert_refused(&writer, "keys");
        writer.key_count = 12;
        writer.tensor_count = absurd[i];
        assert_refused(&writer, "tensors");
        gguf_writer_deinit(&writer);
        gguf_writer_init(&writer);
        put_u64(&writer.keys, absurd[i]); /* a key's length */
        buffer_append_text(&writer.keys, "0123456789abcdef");
        writer.key_count = 1;
        assert_refused(&writer, "key 0");
        gguf_writer_deinit(&writer);
        for (uint32_t type = 0; type <= GGUF_FLOAT64; type++) {
            gguf_writer_init(&writer);
            add_key(&writer, "list", GGUF_ARRAY);
            put_u32(&writer.keys, type);
            put_u64(&writer.keys, absurd[i]);
            assert_refused(&writer, "'list'");
            gguf_writer_deinit(&writer);
        }
        gguf_writer_init(&writer);
        add_key(&writer, "text", GGUF_STRING);
        put_u64(&writer.keys, absurd[i]);
        assert_refused(&writer, "'text'");
        gguf_writer_deinit(&writer);
    }
    getrusage(RUSAGE_SELF, &after);
    if (!SANITIZED)
        ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 16 * 1024);
}
END_TEST

START_TEST(test_bad_keys)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    add_u32(&writer, "twice", 1);
    add_u32(&writer, "other", 1);
    add_string(&writer, "twice", "x");
    assert_refused(&writer, "'twice'");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    add_u32(&writer, "", 1);
    assert_refused(&writer, "empty name");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    add_bool(&writer, "flag", 2);
    assert_refused(&writer, "'flag'");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    add_key(&writer, "type", 13);
    buffer_append_text(&writer.keys, "????????");
    assert_refused(&writer, "'type'");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    add_key(&writer, "nested", GGUF_ARRAY);
    put_u32(&writer.keys, GGUF_ARRAY);
    put_u64(&writer.keys, 1);
    put_u32(&writer.keys, GGUF_UINT8);
    put_u64(&writer.keys, 0);
    assert_refused(&writer, "'nested'");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    add_key(&writer, "elements", GGUF_ARRAY);
    put_u32(&writer.keys, 4000000000u);
    put_u64(&writer.keys, 0);
    assert_refused(&writer, "'elements'");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    put_bytes(&writer.keys, "a\0b", 3);
    put_u32(&writer.keys, GGUF_UINT8);
    buffer_append(&writer.keys, "x", 1);
    writer.key_count = 1;
    assert_refused(&writer, "zero byte");
    gguf_writer_deinit(&writer);
    /* A name of 65535 bytes is allowed, one more is not; bytes that are no text do not get out. */
    char *name = malloc(65536);
    memset(name, 0xe9, 65536);
    for (uint64_t length = 65535; length <= 65536; length++) {
        gguf_writer_init(&writer);
        put_bytes(&writer.keys, name, length);
        put_u32(&writer.keys, length == 65535 ? GGUF_UINT8 : GGUF_FLOAT64);
        put_u64(&writer.keys, 0);
        writer.key_count = 1;
        struct gguf *gguf;
        struct error error = {0};
        enum status status = open_written(&writer, &gguf, &error);
        ck_assert_int_eq(status, length == 65535 ? STATUS_OK : STATUS_INVALID);
        if (status == STATUS_OK)
            gguf_close(gguf);
        ck_assert_ptr_null(strchr(error.message, (char)0xe9));
        gguf_writer_deinit(&writer);
    }
    free(name);
}
END_TEST

START_TEST(test_bad_tensors)
{
    static const uint64_t big = (uint64_t)1 << 62;
    static const struct {
        const char *part;
        uint32_t format, dim_count;
        uint64_t dims[5];
        uint64_t offset;
    } cases[] = {
        {"dimensions", FORMAT_F32, 0, {0}, 0},
        {"dimensions", FORMAT_F32, 5, {1, 1, 1, 1, 1}, 0},
        {"dimensions", FORMAT_F32, UINT32_MAX, {1}, 0},
        {"dimension of 0", FORMAT_F32, 2, {4, 0}, 0},
        {"unknown type", 4, 1, {32}, 0}, /* Q4_2, gone from GGML */
        {"unknown type", FORMAT_LIMIT, 1, {32}, 0},
        {"unknown type", UINT32_MAX, 1, {32}, 0},
        {"blocks of Q4_1", FORMAT_Q4_1, 1, {48}, 0},
        {"blocks of Q4_K", FORMAT_Q4_K, 2, {128, 2}, 0},
        {"larger than any", FORMAT_F32, 1, {big}, 0},
        {"larger than any", FORMAT_F32, 2, {big, 4}, 0}, /* the product wraps to 0 */
        {"larger than any", FORMAT_F32, 4, {65536, 65536, 65536, 65536}, 0},
        {"larger than any", FORMAT_Q8_0, 2, {UINT64_MAX - 31, 1}, 0},
        {"larger than any", FORMAT_Q8_0, 2, {32, UINT64_MAX}, 0},
        {"not aligned", FORMAT_F32, 1, {4}, 4},
        {"end of the file", FORMAT_F32, 1, {8}, 32},
        {"end of the file", FORMAT_F32, 1, {17}, 0},
        {"end of the file", FORMAT_F32, 1, {4}, UINT64_MAX - 31},
        {"end of the file", FORMAT_F32, 1, {4}, (uint64_t)1 << 63},
        {"end of the file", FORMAT_F32, 2, {1 << 20, 1 << 20}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        uint32_t written = cases[i].dim_count < 5 ? cases[i].dim_count : 5;
        add_tensor_record(&writer, "bad", cases[i].format, written, cases[i].dims, cases[i].offset);
        if (written != cases[i].dim_count)
            memcpy(writer.tensors.data + 8 + 3, &cases[i].dim_count, 4);
        buffer_append(&writer.data, words, 32);
        buffer_append(&writer.data, words, 31);
        assert_refused(&writer, cases[i].part);
        assert_refused(&writer, "'bad'");
        gguf_writer_deinit(&writer);
    }
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    add_tensor(&writer, "same", FORMAT_F32, (const uint64_t[]){4, 0, 0, 0}, 16);
    add_tensor(&writer, "other", FORMAT_F32, (const uint64_t[]){4, 0, 0, 0}, 16);
    add_tensor(&writer, "same", FORMAT_F32, (const uint64_t[]){4, 0, 0, 0}, 16);
    assert_refused(&writer, "'same'");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    add_tensor(&writer, "", FORMAT_F32, (const uint64_t[]){4, 0, 0, 0}, 16);
    assert_refused(&writer, "empty name");
    gguf_writer_deinit(&writer);
    gguf_writer_init(&writer);
    char name[66];
    memset(name, 'n', sizeof name);
    name[65] = '\0';
    add_tensor(&writer, name, FORMAT_F32, (const uint64_t[]){4, 0, 0, 0}, 16);
    assert_refused(&writer, "name of tensor 0");
    gguf_writer_deinit(&writer);
}
END_TEST

START_TEST(test_alignment)
{
    static const uint32_t good[] = {1, 2, 32, 64, 4096};
    static const uint32_t bad[] = {0, 3, 33, 96, 0x80000000u, UINT32_MAX};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        writer.alignment = good[i];
        add_u32(&writer, "general.alignment", good[i]);
        add_tensor(&writer, "a", FORMAT_F32, (const uint64_t[]){3, 0, 0, 0}, 12);
        add_tensor(&writer, "b", FORMAT_F32, (const uint64_t[]){3, 0, 0, 0}, 12);
        struct gguf *gguf;
        struct error error = {0};
        ck_assert_int_eq(open_written(&writer, &gguf, &error), STATUS_OK);
        uint64_t offset = gguf_find_tensor(gguf, "b")->offset;
        ck_assert_uint_eq(offset % good[i], 0);
        gguf_close(gguf);
        gguf_writer_deinit(&writer);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        add_u32(&writer, "general.alignment", bad[i]);
        add_tensor(&writer, "a", FORMAT_F32, (const uint64_t[]){3, 0, 0, 0}, 12);
        assert_refused(&writer, "general.alignment");
        gguf_writer_deinit(&writer);
    }
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    add_string(&writer, "general.alignment", "32");
    assert_refused(&writer, "general.alignment");
    gguf_writer_deinit(&writer);
}
END_TEST

START_TEST(test_other_files)
{
    struct gguf_writer writer;
    write_sample(&writer);
    static const struct {
        uint32_t version;
        const char *part;
    } versions[] = {{0, "version"},
                    {1, "version 1"},
                    {4, "version"},
                    {0x03000000, "big-endian"},
                    {0x02000000, "big-endian"}};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        writer.version = versions[i].version;
        assert_refused(&writer, versions[i].part);
    }
    gguf_writer_deinit(&writer);
    static const char *const starts[] = {"FUGG", "ggml", "GGUE", "PK\3\4", "<htm"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        char bytes[64] = {0};
        memcpy(bytes, starts[i], 4);
        struct gguf *gguf;
        struct error error = {0};
        ck_assert_int_eq(open_bytes(bytes, sizeof bytes, &gguf, &error), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(error.message, "not a GGUF file"));
    }
    struct gguf *gguf;
    struct error error = {0};
    ck_assert_int_eq(gguf_open("/nonexistent/x.gguf", &gguf, &error), STATUS_NOT_FOUND);
    ck_assert_int_eq(gguf_open("/", &gguf, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "regular"));
    ck_assert_int_eq(gguf_open("/dev/zero", &gguf, &error), STATUS_INVALID);
    char folder[] = "/tmp/quire-gguf-XXXXXX", fifo[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(gguf_open(fifo, &gguf, &error), STATUS_INVALID);
    unlink(fifo);
    rmdir(folder);
}
END_TEST

/* ---- Split files. ---- */

static void write_part(const char *folder, const char *name, struct gguf_writer *writer)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    struct buffer bytes;
    gguf_writer_join(writer, &bytes);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes.data, 1, bytes.length, file), bytes.length);
    ck_assert_int_eq(fclose(file), 0);
    buffer_deinit(&bytes);
    gguf_writer_deinit(writer);
}

static enum status open_in(const char *folder, const char *name, struct gguf **out,
                           struct error *error)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    error_clear(error);
    return gguf_open(path, out, error);
}

/* What part 2 says of itself. */
struct second_part {
    const char *name; /* general.name; the first part's is "model" */
    uint32_t number, count, tensors, alignment;
    bool no_number, no_count;
};

static void write_parts_with(const char *folder, const char *const names[3],
                             const struct second_part *second)
{
    for (uint32_t part = 0; part < 3; part++) {
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        struct second_part own = {.number = part, .count = 3, .tensors = 4};
        if (part == 1)
            own = *second;
        if (part == 0) {
            add_string(&writer, "general.architecture", "llama");
            add_string(&writer, "general.name", "model");
        }
        if (own.name)
            add_string(&writer, "general.name", own.name);
        if (own.alignment) {
            add_u32(&writer, "general.alignment", own.alignment);
            writer.alignment = own.alignment;
        }
        if (!own.no_number) {
            add_key(&writer, "split.no", GGUF_UINT16);
            buffer_append(&writer.keys, &(uint16_t){(uint16_t)own.number}, 2);
        }
        if (!own.no_count) {
            add_key(&writer, "split.count", GGUF_UINT16);
            buffer_append(&writer.keys, &(uint16_t){(uint16_t)own.count}, 2);
        }
        add_key(&writer, "split.tensors.count", GGUF_INT32);
        put_u32(&writer.keys, own.tensors);
        if (part > 0) {
            char name[8];
            snprintf(name, sizeof name, "t%u", part);
            add_tensor(&writer, name, FORMAT_F32, (const uint64_t[]){4, 0, 0, 0}, 16);
            snprintf(name, sizeof name, "u%u", part);
            add_tensor(&writer, name, FORMAT_F32, (const uint64_t[]){10 * part, 0, 0, 0},
                       40 * part);
        }
        write_part(folder, names[part], &writer);
    }
}

static void write_parts(const char *folder, const char *const names[3])
{
    write_parts_with(folder, names, &(struct second_part){.number = 1, .count = 3, .tensors = 4});
}

/* A later part is the one that its name says, of the same model, with an alignment of its own. */
START_TEST(test_later_parts_are_checked)
{
    char folder[] = "/tmp/quire-gguf-XXXXXX", path[128];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    static const char *const names[3] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                         "m-00003-of-00003.gguf"};
    static const struct {
        struct second_part second;
        const char *named; /* NULL: it is fine */
    } cases[] = {
        {{.number = 1, .count = 3, .tensors = 4, .name = "model"}, NULL},
        {{.number = 1, .count = 3, .tensors = 4, .alignment = 64}, NULL},
        {{.number = 1, .count = 3, .tensors = 4, .alignment = 8}, NULL},
        {{.number = 2, .count = 3, .tensors = 4}, "not part 2"},
        {{.number = 0, .count = 3, .tensors = 4}, "not part 2"},
        {{.no_number = true, .count = 3, .tensors = 4}, "not part 2"},
        {{.number = 1, .count = 4, .tensors = 4}, "'split.count'"},
        {{.number = 1, .no_count = true, .tensors = 4}, "'split.count'"},
        {{.number = 1, .count = 3, .tensors = 5}, "'split.tensors.count'"},
        {{.number = 1, .count = 3, .tensors = 4, .name = "models"}, "'general.name'"},
        {{.number = 1, .count = 3, .tensors = 4, .alignment = 24}, "general.alignment"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf *gguf;
        struct error error;
        write_parts_with(folder, names, &cases[i].second);
        enum status status = open_in(folder, names[0], &gguf, &error);
        ck_assert_msg((status == STATUS_OK) == !cases[i].named, "case %zu: %s", i, error.message);
        if (status != STATUS_OK) {
            ck_assert_msg(strstr(error.message, cases[i].named) != NULL, "%s", error.message);
            continue;
        }
        uint8_t data[40];
        ck_assert_int_eq(gguf_read(gguf, gguf_find_tensor(gguf, "u1"), 0, data, 40, &error),
                         STATUS_OK);
        for (unsigned k = 0; k < 40; k++) /* found where its own alignment says */
            ck_assert_uint_eq(data[k], k);
        gguf_close(gguf);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}
END_TEST

START_TEST(test_split_files)
{
    char folder[] = "/tmp/quire-gguf-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    static const char *const names[3] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                         "m-00003-of-00003.gguf"};
    write_parts(folder, names);
    struct gguf *gguf;
    struct error error;
    ck_assert_int_eq(open_in(folder, names[0], &gguf, &error), STATUS_OK);
    ck_assert_uint_eq(gguf_tensor_count(gguf), 4);
    uint8_t data[80];
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, "u2");
    ck_assert_ptr_nonnull(tensor);
    ck_assert_uint_eq(tensor->bytes, 80);
    ck_assert_int_eq(gguf_read(gguf, tensor, 0, data, 80, &error), STATUS_OK);
    ck_assert_uint_eq(data[79], 79);
    ck_assert_int_eq(gguf_read(gguf, gguf_find_tensor(gguf, "t1"), 0, data, 16, &error), STATUS_OK);
    ck_assert_uint_eq(data[15], 15);
    gguf_close(gguf);
    /* Another part, another name, a part that is missing or says something else. */
    ck_assert_int_eq(open_in(folder, names[1], &gguf, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "first part"));
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/%s", folder, names[0]);
    snprintf(to, sizeof to, "%s/m.gguf", folder);
    ck_assert_int_eq(rename(from, to), 0);
    ck_assert_int_eq(open_in(folder, "m.gguf", &gguf, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "-of-00003.gguf"));
    ck_assert_int_eq(rename(to, from), 0);
    snprintf(to, sizeof to, "%s/%s", folder, names[2]);
    ck_assert_int_eq(unlink(to), 0);
    ck_assert_int_eq(open_in(folder, names[0], &gguf, &error), STATUS_NOT_FOUND);
    ck_assert_msg(strstr(error.message, names[2]) != NULL, "%s", error.message);
    static const char *const doubled[3] = {"m-00001-of-00003.gguf", "x.gguf",
                                           "m-00003-of-00003.gguf"};
    write_parts(folder, doubled); /* part 3 is back */
    snprintf(from, sizeof from, "%s/x.gguf", folder);
    unlink(from);
    snprintf(from, sizeof from, "%s/%s", folder, names[1]);
    unlink(from);
    ck_assert_int_eq(link(to, from), 0); /* part 2 is part 3 now */
    ck_assert_int_eq(open_in(folder, names[0], &gguf, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "not part 2"));
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof from, "%s/%s", folder, names[i]);
        unlink(from);
    }
    rmdir(folder);
}
END_TEST

START_TEST(test_values_for_people)
{
    struct gguf_writer writer;
    write_sample(&writer);
    add_string(&writer, "hostile", "a\x1b[2J\nb\x80\xff\xe2\x82\xac\tq");
    struct gguf *gguf;
    struct error error = {0};
    ck_assert_int_eq(open_written(&writer, &gguf, &error), STATUS_OK);
    char text[200];
    gguf_format_value(gguf, 12, text, sizeof text);
    ck_assert_str_eq(text, "a?[2J\\nb??\xe2\x82\xac\\tq");
    gguf_format_value(gguf, 4, text, sizeof text);
    ck_assert_str_eq(text, "[4 × string] alpha, , gamma \xe2\x82\xac, d");
    gguf_format_value(gguf, 8, text, sizeof text);
    ck_assert_str_eq(text, "-5");
    for (size_t limit = 8; limit < 60; limit++) {
        for (uint32_t i = 0; i < gguf_key_count(gguf); i++) {
            memset(text, 'x', sizeof text);
            gguf_format_value(gguf, i, text, limit);
            ck_assert_uint_lt(strlen(text), limit);
            ck_assert_int_eq(text[limit], 'x');
        }
    }
    gguf_close(gguf);
    gguf_writer_deinit(&writer);
}
END_TEST

/* A header larger than what it may take is refused while it is read, with the number. */
START_TEST(test_header_within_a_budget)
{
    struct gguf_writer writer;
    struct gguf *gguf;
    struct error error;
    char text[1 << 16], path[64];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    write_sample(&writer);
    for (unsigned i = 0; i < 64; i++) { /* 4 MiB */
        snprintf(path, sizeof path, "key%u", i);
        add_string(&writer, path, text);
    }
    struct buffer bytes;
    int fd;
    gguf_writer_join(&writer, &bytes);
    memory_file(bytes.data, bytes.length, &fd, path);
    ck_assert_int_eq(gguf_open_within(path, 5 << 20, &gguf, &error), STATUS_OK);
    ck_assert_uint_le(gguf_memory_bytes(gguf), (5 << 20) + (64 << 10));
    gguf_close(gguf);
    ck_assert_int_eq(gguf_open_within(path, 3 << 20, &gguf, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "memory");
    ck_assert_ptr_nonnull(strstr(error.message, "3.0 MiB"));
    close(fd);
    buffer_deinit(&bytes);
    gguf_writer_deinit(&writer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gguf");
    TCase *tests = tcase_create("gguf");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_reads_keys);
    tcase_add_test(tests, test_reads_arrays);
    tcase_add_test(tests, test_typed_errors_name_the_key);
    tcase_add_test(tests, test_reads_tensors);
    tcase_add_test(tests, test_header_checksum);
    tcase_add_test(tests, test_truncation_at_every_byte);
    tcase_add_test(tests, test_absurd_counts);
    tcase_add_test(tests, test_bad_keys);
    tcase_add_test(tests, test_bad_tensors);
    tcase_add_test(tests, test_alignment);
    tcase_add_test(tests, test_other_files);
    tcase_add_test(tests, test_split_files);
    tcase_add_test(tests, test_later_parts_are_checked);
    tcase_add_test(tests, test_values_for_people);
    tcase_add_test(tests, test_header_within_a_budget);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
