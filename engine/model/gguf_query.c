/*
 * Asking an open GGUF file: its keys, by name and type, its tensors, and values for a person.
 *
 * Everything was checked while parsing, so nothing here can read outside of the header. A key that
 * is absent, of another type or out of range is an error that names the key; nothing is guessed,
 * converted from text or cut to fit. Look-ups are binary searches; nothing is allocated. Any thread.
 */
#include "engine/model/gguf_private.h"

#include "base/check.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *const TYPE_NAMES[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};

static bool type_is_integer(enum gguf_type type)
{
    return type <= GGUF_INT32 || type == GGUF_UINT64 || type == GGUF_INT64;
}

/* ---- Look-ups ---- */

const struct entry *gguf_find_key(const struct gguf *gguf, struct gguf_string key)
{
    uint32_t low = 0, high = gguf->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct entry *entry = &gguf->entries[gguf->entries_sorted[middle]];
        struct gguf_string name = entry_key(gguf, entry);
        int order = compare_bytes(name.text, name.length, key.text, key.length);
        if (order == 0)
            return entry;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static const struct entry *find_entry(const struct gguf *gguf, const char *key)
{
    return gguf_find_key(gguf, (struct gguf_string){key, strlen(key)});
}

uint32_t gguf_key_count(const struct gguf *gguf)
{
    return gguf->entry_count;
}

struct gguf_string gguf_key(const struct gguf *gguf, uint32_t index)
{
    CHECK(index < gguf->entry_count);
    return entry_key(gguf, &gguf->entries[index]);
}

enum gguf_type gguf_key_type(const struct gguf *gguf, uint32_t index)
{
    CHECK(index < gguf->entry_count);
    return gguf->entries[index].type;
}

bool gguf_has(const struct gguf *gguf, const char *key)
{
    return find_entry(gguf, key) != NULL;
}

static enum status get_entry(const struct gguf *gguf, const char *key, const struct entry **out,
                             struct error *error)
{
    *out = find_entry(gguf, key);
    if (!*out)
        return error_set(error, STATUS_NOT_FOUND, NULL, "the model file has no key '%s'", key);
    return STATUS_OK;
}

static enum status wrong_type(const char *key, enum gguf_type type, const char *wanted,
                              struct error *error)
{
    return error_set(error, STATUS_INVALID, NULL, "key '%s' is of type %s, not %s", key,
                     TYPE_NAMES[type], wanted);
}

/* An integer as sign and magnitude, so that every u64 and i64 is held. */
static void load_integer(const uint8_t *at, enum gguf_type type, bool *negative,
                         uint64_t *magnitude)
{
    int64_t value = 0;
    switch (type) {
    case GGUF_UINT8:
        value = at[0];
        break;
    case GGUF_INT8:
        value = (int8_t)at[0];
        break;
    case GGUF_UINT16:
        value = load_u16(at);
        break;
    case GGUF_INT16:
        value = (int16_t)load_u16(at);
        break;
    case GGUF_UINT32:
        value = load_u32(at);
        break;
    case GGUF_INT32:
        value = (int32_t)load_u32(at);
        break;
    case GGUF_UINT64:
        *negative = false;
        *magnitude = load_u64(at);
        return;
    case GGUF_INT64:
        value = (int64_t)load_u64(at);
        break;
    default:
        CHECK(false);
    }
    *negative = value < 0;
    *magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

enum status gguf_get_u32(const struct gguf *gguf, const char *key, uint32_t *out,
                         struct error *error)
{
    const struct entry *entry;
    TRY(get_entry(gguf, key, &entry, error));
    if (!type_is_integer(entry->type))
        return wrong_type(key, entry->type, "an integer", error);
    bool negative = false;
    uint64_t magnitude = 0;
    load_integer(gguf->parts[0].header + entry->value, entry->type, &negative, &magnitude);
    if (negative || magnitude > UINT32_MAX)
        return error_set(error, STATUS_INVALID, NULL, "key '%s' is out of range: %s%" PRIu64, key,
                         negative ? "-" : "", magnitude);
    *out = (uint32_t)magnitude;
    return STATUS_OK;
}

enum status gguf_get_f32(const struct gguf *gguf, const char *key, float *out, struct error *error)
{
    const struct entry *entry;
    TRY(get_entry(gguf, key, &entry, error));
    const uint8_t *at = gguf->parts[0].header + entry->value;
    float value;
    if (entry->type == GGUF_FLOAT32)
        value = load_f32(at);
    else if (entry->type == GGUF_FLOAT64)
        value = (float)load_f64(at);
    else
        return wrong_type(key, entry->type, "a float", error);
    if (!isfinite(value))
        return error_set(error, STATUS_INVALID, NULL, "key '%s' is not a finite number", key);
    *out = value;
    return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *error)
{
    const struct entry *entry;
    TRY(get_entry(gguf, key, &entry, error));
    if (entry->type != GGUF_BOOL)
        return wrong_type(key, entry->type, "a bool", error);
    *out = gguf->parts[0].header[entry->value] != 0;
    return STATUS_OK;
}

/* The string whose length field lies at `offset` of the first part's header. */
static struct gguf_string string_at(const struct gguf *gguf, uint64_t offset)
{
    const uint8_t *at = gguf->parts[0].header + offset;
    return (struct gguf_string){(const char *)at + 8, load_u64(at)};
}

enum status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *out,
                            struct error *error)
{
    const struct entry *entry;
    TRY(get_entry(gguf, key, &entry, error));
    if (entry->type != GGUF_STRING)
        return wrong_type(key, entry->type, "a string", error);
    *out = string_at(gguf, entry->value);
    return STATUS_OK;
}

enum status gguf_array_count(const struct gguf *gguf, const char *key, enum gguf_type *element_type,
                             uint64_t *count, struct error *error)
{
    const struct entry *entry;
    TRY(get_entry(gguf, key, &entry, error));
    if (entry->type != GGUF_ARRAY)
        return wrong_type(key, entry->type, "an array", error);
    *element_type = entry->element;
    *count = entry->count;
    return STATUS_OK;
}

bool gguf_array_next_string(const struct gguf *gguf, const char *key, uint64_t *cursor,
                            struct gguf_string *out)
{
    const struct entry *entry = find_entry(gguf, key);
    if (!entry || entry->type != GGUF_ARRAY || entry->element != GGUF_STRING)
        return false;
    /* The cursor counts from the array's first byte, so that 0 is the start. */
    if (*cursor >= entry->end - entry->value)
        return false;
    *out = string_at(gguf, entry->value + *cursor);
    *cursor += 8 + out->length;
    return true;
}

static enum status get_elements(const struct gguf *gguf, const char *key, uint64_t count,
                                const struct entry **out, struct error *error)
{
    TRY(get_entry(gguf, key, out, error));
    if ((*out)->type != GGUF_ARRAY)
        return wrong_type(key, (*out)->type, "an array", error);
    if ((*out)->count < count)
        return error_set(error, STATUS_INVALID, NULL,
                         "key '%s' has %" PRIu64 " elements, %" PRIu64 " are needed", key,
                         (*out)->count, count);
    return STATUS_OK;
}

enum status gguf_array_get_i32(const struct gguf *gguf, const char *key, int32_t *out,
                               uint64_t count, struct error *error)
{
    const struct entry *entry;
    TRY(get_elements(gguf, key, count, &entry, error));
    if (!type_is_integer(entry->element) && entry->element != GGUF_BOOL)
        return error_set(error, STATUS_INVALID, NULL, "key '%s' is an array of %s, not of integers",
                         key, TYPE_NAMES[entry->element]);
    const uint8_t *at = gguf->parts[0].header + entry->value;
    for (uint64_t i = 0; i < count; i++, at += TYPE_BYTES[entry->element]) {
        if (entry->element == GGUF_BOOL) {
            out[i] = at[0] != 0;
            continue;
        }
        bool negative = false;
        uint64_t magnitude = 0;
        load_integer(at, entry->element, &negative, &magnitude);
        if (magnitude > (uint64_t)INT32_MAX + (negative ? 1 : 0))
            return error_set(error, STATUS_INVALID, NULL,
                             "key '%s': element %" PRIu64 " is out of range: %s%" PRIu64, key, i,
                             negative ? "-" : "", magnitude);
        out[i] = negative ? (int32_t) - (int64_t)magnitude : (int32_t)magnitude;
    }
    return STATUS_OK;
}

enum status gguf_array_get_f32(const struct gguf *gguf, const char *key, float *out, uint64_t count,
                               struct error *error)
{
    const struct entry *entry;
    TRY(get_elements(gguf, key, count, &entry, error));
    if (entry->element != GGUF_FLOAT32 && entry->element != GGUF_FLOAT64)
        return error_set(error, STATUS_INVALID, NULL, "key '%s' is an array of %s, not of floats",
                         key, TYPE_NAMES[entry->element]);
    const uint8_t *at = gguf->parts[0].header + entry->value;
    for (uint64_t i = 0; i < count; i++, at += TYPE_BYTES[entry->element])
        out[i] = entry->element == GGUF_FLOAT32 ? load_f32(at) : (float)load_f64(at);
    return STATUS_OK;
}

uint32_t gguf_tensor_count(const struct gguf *gguf)
{
    return gguf->tensor_count;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *gguf, uint32_t index)
{
    CHECK(index < gguf->tensor_count);
    return &gguf->tensors[index];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name)
{
    size_t length = strlen(name);
    uint32_t low = 0, high = gguf->tensor_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct gguf_tensor *tensor = &gguf->tensors[gguf->tensors_sorted[middle]];
        int order = compare_bytes(tensor->name.text, tensor->name.length, name, length);
        if (order == 0)
            return tensor;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- Values for a person. ---- */

struct writer {
    char *out;
    size_t limit; /* bytes of text, without the terminator */
    size_t length;
    bool full;
};

/* Append whole or not at all. */
static void writer_put(struct writer *writer, const char *text, size_t length)
{
    if (writer->full || length > writer->limit - writer->length) {
        writer->full = true;
        return;
    }
    memcpy(writer->out + writer->length, text, length);
    writer->length += length;
    writer->out[writer->length] = '\0';
}

/* Valid UTF-8 as it is, line ends and tabs as escapes, everything else that is no text as '?'. */
static void writer_put_text(struct writer *writer, const char *text, size_t length)
{
    for (size_t i = 0; i < length && !writer->full;) {
        uint32_t code_point = 0;
        int taken = utf8_decode(text + i, length - i, &code_point);
        if (taken <= 0) {
            writer_put(writer, "?", 1);
            i += taken < 0 ? (size_t)-taken : length - i;
        } else {
            if (code_point == '\n')
                writer_put(writer, "\\n", 2);
            else if (code_point == '\t')
                writer_put(writer, "\\t", 2);
            else if (code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0))
                writer_put(writer, "?", 1);
            else
                writer_put(writer, text + i, (size_t)taken);
            i += (size_t)taken;
        }
    }
}

static void writer_put_scalar(struct writer *writer, const uint8_t *at, enum gguf_type type)
{
    char text[40];
    if (type == GGUF_STRING) {
        writer_put_text(writer, (const char *)at + 8, load_u64(at));
        return;
    }
    if (type == GGUF_BOOL) {
        snprintf(text, sizeof text, "%s", at[0] != 0 ? "true" : "false");
    } else if (type == GGUF_FLOAT32) {
        snprintf(text, sizeof text, "%.9g", (double)load_f32(at));
    } else if (type == GGUF_FLOAT64) {
        snprintf(text, sizeof text, "%.17g", load_f64(at));
    } else {
        bool negative = false;
        uint64_t magnitude = 0;
        load_integer(at, type, &negative, &magnitude);
        snprintf(text, sizeof text, "%s%" PRIu64, negative ? "-" : "", magnitude);
    }
    writer_put(writer, text, strlen(text));
}

void gguf_format_value(const struct gguf *gguf, uint32_t index, char *out, size_t limit)
{
    CHECK(index < gguf->entry_count && limit >= 8);
    const struct entry *entry = &gguf->entries[index];
    const uint8_t *at = gguf->parts[0].header + entry->value;
    static const char more[] = "…";
    struct writer writer = {.out = out, .limit = limit - sizeof more};
    out[0] = '\0';
    if (entry->type != GGUF_ARRAY) {
        writer_put_scalar(&writer, at, entry->type);
    } else {
        char head[64];
        int length = snprintf(head, sizeof head, "[%" PRIu64 " × %s] ", entry->count,
                              TYPE_NAMES[entry->element]);
        writer_put(&writer, head, (size_t)length);
        for (uint64_t i = 0; i < entry->count && !writer.full; i++) {
            if (i > 0)
                writer_put(&writer, ", ", 2);
            if (i == 8) {
                writer.full = true;
                break;
            }
            writer_put_scalar(&writer, at, entry->element);
            at += entry->element == GGUF_STRING ? 8 + load_u64(at) : TYPE_BYTES[entry->element];
        }
    }
    if (writer.full)
        memcpy(out + writer.length, more, sizeof more);
}
