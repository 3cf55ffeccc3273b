/*
 * GGUF v2/v3 files: opening, parsing the header, reading tensors. gguf_query.c answers questions.
 * The layout is ggml's docs/gguf.md:
 *
 *   "GGUF" u32 version  u64 tensors  u64 keys
 *   keys:    string key, u32 type, value        (string: u64 length, bytes)
 *                                               (array: u32 type, u64 count, values)
 *   tensors: string name, u32 dim_count, u64 dims[dim_count], u32 format, u64 offset
 *   padding to the alignment, then the tensor data that the offsets count from
 *
 * Refused: version 1, big-endian files, anything but a regular file, nested arrays, counts and
 * lengths that the bytes left cannot hold, duplicate or empty names, unknown types and formats,
 * tensors that reach past the end of the file. Sums that could wrap are never formed: a length is
 * compared with what is left.
 *
 * The header grows in memory as parsing asks for it, so a lying count costs at most one piece.
 */
#include "engine/model/gguf_private.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/limits.h"
#include "base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES ((uint64_t)256 * KIB)
#define HEADER_BYTES_MAX ((uint64_t)256 * MIB) /* 30 times what a 256k vocabulary takes */
#define PARTS_MAX 1024u                        /* of a split model */
#define TENSOR_NAME_MAX 64u                    /* GGML_MAX_NAME */
#define ALIGNMENT_MAX ((uint32_t)1 << 20)
#define KEY_RECORD_MIN 14u    /* length, one byte, type, one byte of value */
#define TENSOR_RECORD_MIN 33u /* length, one byte, dim_count, one dim, format, offset */

/* ---- The header, read as far as parsing needs it. ---- */

static enum status part_pread(const struct part *part, uint64_t offset, uint8_t *out,
                              uint64_t length, struct error *error)
{
    while (length > 0) {
        size_t want = length < PIECE_BYTES * 16 ? (size_t)length : (size_t)(PIECE_BYTES * 16);
        ssize_t got = pread(part->fd, out, want, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(error, STATUS_IO, NULL, "cannot read the model file: %s",
                             strerror(errno));
        if (got == 0)
            return error_set(error, STATUS_IO, NULL, "the model file is shorter than it was");
        out += got;
        offset += (uint64_t)got;
        length -= (uint64_t)got;
    }
    return STATUS_OK;
}

/* Make header bytes [position, position + length) present. `what` is what the message calls them.
 */
static enum status part_need(struct part *part, uint64_t length, const char *what,
                             struct error *error)
{
    if (length > part->file_bytes - part->position)
        return error_set(error, STATUS_INVALID, NULL,
                         "the model file ends within %s (at byte %" PRIu64 " of %" PRIu64 ")", what,
                         part->position, part->file_bytes);
    if (length > part->header_limit || part->position > part->header_limit - length) {
        char limit[24];
        return error_set(error, STATUS_INVALID, "memory",
                         "the model file's header is larger than the %s that the memory budget "
                         "leaves for it, at %s",
                         bytes_format(part->header_limit, limit), what);
    }
    uint64_t end = part->position + length;
    if (end <= part->header_bytes)
        return STATUS_OK;
    uint64_t target = bytes_align(end, PIECE_BYTES);
    target = max_u64(end, min_u64(target, min_u64(part->file_bytes, part->header_limit)));
    if (target > part->header_capacity) {
        uint64_t capacity = part->header_capacity + part->header_capacity / 2;
        capacity = max_u64(min_u64(capacity, part->header_limit), target);
        uint8_t *header = realloc(part->header, capacity);
        if (!header)
            return error_set(error, STATUS_IO, NULL, "no memory for the model file's header");
        part->header = header;
        part->header_capacity = capacity;
    }
    TRY(part_pread(part, part->header_bytes, part->header + part->header_bytes,
                   target - part->header_bytes, error));
    part->header_bytes = target;
    return STATUS_OK;
}

static enum status part_take_u32(struct part *part, const char *what, uint32_t *out,
                                 struct error *error)
{
    TRY(part_need(part, 4, what, error));
    *out = load_u32(part->header + part->position);
    part->position += 4;
    return STATUS_OK;
}

static enum status part_take_u64(struct part *part, const char *what, uint64_t *out,
                                 struct error *error)
{
    TRY(part_need(part, 8, what, error));
    *out = load_u64(part->header + part->position);
    part->position += 8;
    return STATUS_OK;
}

/* A string of at most `limit` bytes; *offset is where its bytes lie in the header. */
static enum status part_take_string(struct part *part, const char *what, uint64_t limit,
                                    uint64_t *offset, uint64_t *length, struct error *error)
{
    TRY(part_take_u64(part, what, length, error));
    if (*length > limit)
        return error_set(error, STATUS_INVALID, NULL,
                         "%s is %" PRIu64 " bytes long, the limit is %" PRIu64, what, *length,
                         limit);
    TRY(part_need(part, *length, what, error));
    *offset = part->position;
    part->position += *length;
    return STATUS_OK;
}

static enum status part_open(struct part *part, const char *path, struct error *error)
{
    /* O_NONBLOCK: opening a FIFO would wait for a writer. */
    part->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (part->fd < 0)
        return error_set(error, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "model",
                         "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(part->fd, &info) != 0)
        return error_set(error, STATUS_IO, "model", "cannot stat %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return error_set(error, STATUS_INVALID, "model", "%s is not a regular file", path);
    part->file_bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

/* ---- Metadata. ---- */

static bool string_equals(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && memcmp(string.text, text, string.length) == 0;
}

/* Skip `count` strings of an array. The least record is checked before, so that a count costs no
   more time than the file has bytes. */
static enum status skip_strings(struct part *part, uint64_t count, const char *what,
                                struct error *error)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t offset = 0, length = 0;
        TRY(part_take_string(part, what, UINT64_MAX, &offset, &length, error));
    }
    return STATUS_OK;
}

static enum status parse_array(struct part *part, struct entry *entry, const char *what,
                               struct error *error)
{
    uint32_t element = 0;
    TRY(part_take_u32(part, what, &element, error));
    TRY(part_take_u64(part, what, &entry->count, error));
    if (element == GGUF_ARRAY)
        return error_set(error, STATUS_UNSUPPORTED, NULL, "%s is an array of arrays", what);
    if (element > GGUF_FLOAT64)
        return error_set(error, STATUS_INVALID, NULL, "%s is an array of unknown type %" PRIu32,
                         what, element);
    entry->element = (enum gguf_type)element;
    entry->value = part->position;
    uint64_t least = element == GGUF_STRING ? 8 : TYPE_BYTES[element];
    if (entry->count > (part->file_bytes - part->position) / least)
        return error_set(error, STATUS_INVALID, NULL,
                         "%s claims %" PRIu64 " elements, more than the file can hold", what,
                         entry->count);
    if (element == GGUF_STRING)
        return skip_strings(part, entry->count, what, error);
    TRY(part_need(part, entry->count * least, what, error));
    part->position += entry->count * least;
    return STATUS_OK;
}

static enum status parse_value(struct part *part, struct entry *entry, const char *what,
                               struct error *error)
{
    uint32_t type = 0;
    TRY(part_take_u32(part, what, &type, error));
    if (type > GGUF_FLOAT64)
        return error_set(error, STATUS_INVALID, NULL, "%s has unknown type %" PRIu32, what, type);
    entry->type = (enum gguf_type)type;
    entry->value = part->position;
    if (type == GGUF_ARRAY) {
        TRY(parse_array(part, entry, what, error));
    } else if (type == GGUF_STRING) {
        uint64_t offset = 0, length = 0;
        TRY(part_take_string(part, what, UINT64_MAX, &offset, &length, error));
    } else {
        TRY(part_need(part, TYPE_BYTES[type], what, error));
        if (type == GGUF_BOOL && part->header[part->position] > 1)
            return error_set(error, STATUS_INVALID, NULL, "%s is neither true nor false", what);
        part->position += TYPE_BYTES[type];
    }
    entry->end = part->position;
    return STATUS_OK;
}

static enum status parse_entry(struct part *part, uint64_t number, struct entry *entry,
                               struct error *error)
{
    char what[SHOWN_MAX + 40];
    snprintf(what, sizeof what, "the name of key %" PRIu64, number);
    uint64_t length = 0;
    TRY(part_take_string(part, what, LIMIT_KEY_BYTES, &entry->key, &length, error));
    const char *key = (const char *)part->header + entry->key;
    if (length == 0)
        return error_set(error, STATUS_INVALID, NULL, "key %" PRIu64 " has an empty name", number);
    if (memchr(key, 0, length) != NULL)
        return error_set(error, STATUS_INVALID, NULL, "%s holds a zero byte", what);
    entry->key_length = (uint32_t)length;
    snprintf(what, sizeof what, "key '%.*s'", SHOW(length), key);
    return parse_value(part, entry, what, error);
}

static int compare_entries(const void *a, const void *b, void *arg)
{
    const struct gguf *gguf = arg;
    struct gguf_string left = entry_key(gguf, &gguf->entries[*(const uint32_t *)a]);
    struct gguf_string right = entry_key(gguf, &gguf->entries[*(const uint32_t *)b]);
    return compare_bytes(left.text, left.length, right.text, right.length);
}

static enum status sort_entries(struct gguf *gguf, struct error *error)
{
    uint32_t *sorted = malloc((gguf->entry_count + 1) * sizeof *sorted);
    if (!sorted)
        return error_set(error, STATUS_IO, NULL, "no memory for the model file's keys");
    gguf->entries_sorted = sorted;
    for (uint32_t i = 0; i < gguf->entry_count; i++)
        sorted[i] = i;
    qsort_r(sorted, gguf->entry_count, sizeof *sorted, compare_entries, gguf);
    for (uint32_t i = 1; i < gguf->entry_count; i++) {
        if (compare_entries(&sorted[i - 1], &sorted[i], gguf) == 0) {
            struct gguf_string key = entry_key(gguf, &gguf->entries[sorted[i]]);
            return error_set(error, STATUS_INVALID, NULL, "key '%.*s' is there twice",
                             SHOW(key.length), key.text);
        }
    }
    return STATUS_OK;
}

/* The keys of the first part. */
static enum status parse_entries(struct gguf *gguf, uint64_t count, struct error *error)
{
    gguf->entries = calloc(count + 1, sizeof *gguf->entries);
    if (!gguf->entries)
        return error_set(error, STATUS_IO, NULL, "no memory for the model file's keys");
    for (uint64_t i = 0; i < count; i++)
        TRY(parse_entry(&gguf->parts[0], i, &gguf->entries[i], error));
    gguf->entry_count = (uint32_t)count;
    return sort_entries(gguf, error);
}

/* ---- Tensors. ---- */

/* Bytes of a tensor; false when its shape does not fit its format or 63 bits. */
static bool tensor_size(const struct gguf_tensor *tensor, uint64_t *out)
{
    uint64_t row_bytes = format_row_bytes(tensor->format, tensor->dims[0]);
    uint64_t elements = tensor->dims[0];
    uint64_t bytes = row_bytes;
    for (int i = 1; i < 4; i++)
        if (!bytes_multiply(bytes, tensor->dims[i], &bytes) ||
            !bytes_multiply(elements, tensor->dims[i], &elements))
            return false;
    *out = bytes;
    return row_bytes != 0 && bytes <= INT64_MAX && elements <= INT64_MAX;
}

static enum status parse_shape(struct part *part, struct gguf_tensor *tensor, const char *what,
                               struct error *error)
{
    TRY(part_take_u32(part, what, &tensor->dim_count, error));
    if (tensor->dim_count < 1 || tensor->dim_count > 4)
        return error_set(error, STATUS_INVALID, NULL, "%s has %" PRIu32 " dimensions, not 1 to 4",
                         what, tensor->dim_count);
    for (uint32_t i = 0; i < 4; i++) {
        tensor->dims[i] = 1;
        if (i >= tensor->dim_count)
            continue;
        TRY(part_take_u64(part, what, &tensor->dims[i], error));
        if (tensor->dims[i] == 0)
            return error_set(error, STATUS_INVALID, NULL, "%s has a dimension of 0", what);
    }
    TRY(part_take_u32(part, what, &tensor->format, error));
    const struct format_info *info = format_info(tensor->format);
    if (!info->name)
        return error_set(error, STATUS_UNSUPPORTED, NULL, "%s is of unknown type %" PRIu32, what,
                         tensor->format);
    if (tensor->dims[0] % info->block_size != 0)
        return error_set(error, STATUS_INVALID, NULL,
                         "%s: rows of %" PRIu64 " values are not whole blocks of %s", what,
                         tensor->dims[0], info->name);
    if (!tensor_size(tensor, &tensor->bytes))
        return error_set(error, STATUS_INVALID, NULL, "%s is larger than any file", what);
    return STATUS_OK;
}

/* The name is left as an offset, in the pointer, until the header stops growing. */
static enum status parse_tensor(struct part *part, uint64_t number, struct gguf_tensor *tensor,
                                struct error *error)
{
    char what[SHOWN_MAX + 40];
    snprintf(what, sizeof what, "the name of tensor %" PRIu64, number);
    uint64_t offset = 0, length = 0;
    TRY(part_take_string(part, what, TENSOR_NAME_MAX, &offset, &length, error));
    const char *name = (const char *)part->header + offset;
    if (length == 0)
        return error_set(error, STATUS_INVALID, NULL, "tensor %" PRIu64 " has an empty name",
                         number);
    if (memchr(name, 0, length) != NULL)
        return error_set(error, STATUS_INVALID, NULL, "%s holds a zero byte", what);
    tensor->name = (struct gguf_string){(const char *)(uintptr_t)offset, length};
    snprintf(what, sizeof what, "tensor '%.*s'", SHOW(length), name);
    TRY(parse_shape(part, tensor, what, error));
    TRY(part_take_u64(part, what, &tensor->offset, error));
    if (tensor->offset % part->alignment != 0)
        return error_set(error, STATUS_INVALID, NULL, "%s is not aligned to %" PRIu32 " bytes",
                         what, part->alignment);
    return STATUS_OK;
}

/* Turn name offsets into pointers and data offsets into file offsets, now that both bases are
 * known. */
static enum status place_tensors(struct gguf *gguf, uint32_t part_index, uint32_t first,
                                 struct error *error)
{
    struct part *part = &gguf->parts[part_index];
    uint64_t header_end = part->position;
    uint8_t *header = realloc(part->header, header_end);
    if (!header)
        return error_set(error, STATUS_IO, NULL, "no memory for the model file's header");
    part->header = header;
    part->header_bytes = part->header_capacity = header_end;
    uint64_t base = bytes_align(header_end, part->alignment);
    for (uint32_t i = first; i < gguf->tensor_count; i++) {
        struct gguf_tensor *tensor = &gguf->tensors[i];
        tensor->name.text = (const char *)header + (uintptr_t)tensor->name.text;
        uint64_t available = base <= part->file_bytes ? part->file_bytes - base : 0;
        if (tensor->offset > available || tensor->bytes > available - tensor->offset)
            return error_set(error, STATUS_INVALID, NULL,
                             "tensor '%.*s' reaches past the end of the file (%" PRIu64
                             " bytes at %" PRIu64 " of %" PRIu64 "): the file is cut or corrupt",
                             SHOW(tensor->name.length), tensor->name.text, tensor->bytes,
                             tensor->offset, available);
        tensor->offset += base;
    }
    return STATUS_OK;
}

static enum status grow_tensors(struct gguf *gguf, uint32_t extra, struct error *error)
{
    uint32_t capacity = gguf->tensor_count + extra;
    struct gguf_tensor *tensors = realloc(gguf->tensors, (capacity + 1) * sizeof *tensors);
    if (tensors)
        gguf->tensors = tensors;
    uint16_t *parts = realloc(gguf->tensor_parts, (capacity + 1) * sizeof *parts);
    if (parts)
        gguf->tensor_parts = parts;
    if (!tensors || !parts)
        return error_set(error, STATUS_IO, NULL, "no memory for the model file's tensor list");
    gguf->tensor_capacity = capacity;
    return STATUS_OK;
}

static enum status parse_tensors(struct gguf *gguf, uint32_t part_index, uint64_t count,
                                 struct error *error)
{
    struct part *part = &gguf->parts[part_index];
    if (count > LIMIT_TENSORS - gguf->tensor_count)
        return error_set(error, STATUS_INVALID, NULL, "more than %d tensors", LIMIT_TENSORS);
    TRY(grow_tensors(gguf, (uint32_t)count, error));
    uint32_t first = gguf->tensor_count;
    for (uint32_t i = 0; i < count; i++) {
        gguf->tensor_parts[first + i] = (uint16_t)part_index;
        TRY(parse_tensor(part, i, &gguf->tensors[first + i], error));
    }
    gguf->tensor_count = first + (uint32_t)count;
    return place_tensors(gguf, part_index, first, error);
}

static int compare_tensors(const void *a, const void *b, void *arg)
{
    const struct gguf *gguf = arg;
    const struct gguf_string *left = &gguf->tensors[*(const uint32_t *)a].name;
    const struct gguf_string *right = &gguf->tensors[*(const uint32_t *)b].name;
    return compare_bytes(left->text, left->length, right->text, right->length);
}

static enum status sort_tensors(struct gguf *gguf, struct error *error)
{
    uint32_t *sorted = malloc((gguf->tensor_count + 1) * sizeof *sorted);
    if (!sorted)
        return error_set(error, STATUS_IO, NULL, "no memory for the model file's tensor list");
    gguf->tensors_sorted = sorted;
    for (uint32_t i = 0; i < gguf->tensor_count; i++)
        sorted[i] = i;
    qsort_r(sorted, gguf->tensor_count, sizeof *sorted, compare_tensors, gguf);
    for (uint32_t i = 1; i < gguf->tensor_count; i++) {
        if (compare_tensors(&sorted[i - 1], &sorted[i], gguf) == 0) {
            const struct gguf_string *name = &gguf->tensors[sorted[i]].name;
            return error_set(error, STATUS_INVALID, NULL, "tensor '%.*s' is there twice",
                             SHOW(name->length), name->text);
        }
    }
    return STATUS_OK;
}

/* ---- A whole file, and the parts of a split one. ---- */

static enum status parse_preamble(struct part *part, uint32_t *version, uint64_t *tensor_count,
                                  uint64_t *key_count, struct error *error)
{
    TRY(part_need(part, 4, "its first four bytes", error));
    if (memcmp(part->header, "GGUF", 4) != 0)
        return error_set(error, STATUS_INVALID, NULL, "this is not a GGUF file");
    part->position = 4;
    TRY(part_take_u32(part, "the version", version, error));
    if (*version != 0 && (*version & 0xffff) == 0)
        return error_set(error, STATUS_UNSUPPORTED, NULL, "big-endian GGUF files are not read");
    if (*version < 2 || *version > 3)
        return error_set(error, STATUS_UNSUPPORTED, NULL,
                         "GGUF version %" PRIu32 " is not read, only 2 and 3", *version);
    TRY(part_take_u64(part, "the number of tensors", tensor_count, error));
    TRY(part_take_u64(part, "the number of keys", key_count, error));
    uint64_t left = part->file_bytes - part->position;
    if (*key_count > LIMIT_METADATA || *key_count > left / KEY_RECORD_MIN)
        return error_set(error, STATUS_INVALID, NULL,
                         "the model file claims %" PRIu64 " keys, more than it can hold",
                         *key_count);
    if (*tensor_count > LIMIT_TENSORS || *tensor_count > left / TENSOR_RECORD_MIN)
        return error_set(error, STATUS_INVALID, NULL,
                         "the model file claims %" PRIu64 " tensors, more than it can hold",
                         *tensor_count);
    return STATUS_OK;
}

/* Of the first part. */
static enum status read_alignment(struct gguf *gguf, struct error *error)
{
    uint32_t *alignment = &gguf->parts[0].alignment;
    *alignment = 32;
    enum status status = gguf_get_u32(gguf, "general.alignment", alignment, error);
    if (status == STATUS_NOT_FOUND) {
        error_clear(error);
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    uint32_t value = *alignment;
    if (value == 0 || (value & (value - 1)) != 0 || value > ALIGNMENT_MAX)
        return error_set(error, STATUS_INVALID, NULL,
                         "key 'general.alignment' is %" PRIu32
                         ", not a power of two up to %" PRIu32,
                         value, ALIGNMENT_MAX);
    return STATUS_OK;
}

/* Is the value of `theirs` in another part that of the first part's `ours`? */
static bool same_value(const struct gguf *gguf, const struct entry *ours, const struct part *part,
                       const struct entry *theirs)
{
    return ours->type == theirs->type && ours->element == theirs->element &&
           ours->count == theirs->count && ours->end - ours->value == theirs->end - theirs->value &&
           memcmp(gguf->parts[0].header + ours->value, part->header + theirs->value,
                  theirs->end - theirs->value) == 0;
}

/* A later part says which one it is; what it says of the model is what the first part says. */
static enum status check_part(const struct gguf *gguf, const struct gguf *keys, uint32_t part_index,
                              const char *path, struct error *error)
{
    uint32_t number = UINT32_MAX;
    if (gguf_get_u32(keys, "split.no", &number, NULL) != STATUS_OK || number != part_index)
        return error_set(error, STATUS_INVALID, "model",
                         "%s is not part %" PRIu32 " of the model (key 'split.no')", path,
                         part_index + 1);
    for (uint32_t i = 0; i < gguf->entry_count; i++) {
        const struct entry *ours = &gguf->entries[i];
        struct gguf_string key = entry_key(gguf, ours);
        const struct entry *theirs = gguf_find_key(keys, key);
        bool own = string_equals(key, "split.no") || string_equals(key, "general.alignment");
        bool needed =
            string_equals(key, "split.count") || string_equals(key, "split.tensors.count");
        if (own || (!theirs && !needed))
            continue;
        if (!theirs || !same_value(gguf, ours, keys->parts, theirs))
            return error_set(error, STATUS_INVALID, "model",
                             "%s is a part of another model: its key '%.*s' is not the first "
                             "part's",
                             path, SHOW(key.length), key.text);
    }
    return STATUS_OK;
}

/* The keys of a later part are looked at and not kept. */
static enum status parse_other_keys(struct gguf *gguf, uint32_t part_index, uint64_t count,
                                    const char *path, struct error *error)
{
    struct gguf keys = {.parts = &gguf->parts[part_index], .part_count = 1};
    enum status status = parse_entries(&keys, count, error);
    if (status == STATUS_OK)
        status = read_alignment(&keys, error);
    if (status == STATUS_OK)
        status = check_part(gguf, &keys, part_index, path, error);
    free(keys.entries);
    free(keys.entries_sorted);
    return status;
}

static enum status parse_part(struct gguf *gguf, uint32_t part_index, const char *path,
                              struct error *error)
{
    struct part *part = &gguf->parts[part_index];
    uint64_t held = 0; /* by the parts before */
    for (uint32_t i = 0; i < part_index; i++)
        held += gguf->parts[i].header_capacity;
    enum status status = part_open(part, path, error);
    part->header_limit = gguf->header_limit - held;
    if (status != STATUS_OK)
        return status;
    uint64_t tensor_count = 0, key_count = 0;
    uint32_t version = 0;
    TRY(parse_preamble(part, &version, &tensor_count, &key_count, error));
    if (part_index == 0) {
        gguf->version = version;
        status = parse_entries(gguf, key_count, error);
        if (status == STATUS_OK)
            status = read_alignment(gguf, error);
    } else {
        status = parse_other_keys(gguf, part_index, key_count, path, error);
    }
    return status == STATUS_OK ? parse_tensors(gguf, part_index, tensor_count, error) : status;
}

/* The digits of "…-00001-of-00003.gguf" at `at`; false when there are not exactly five. */
static bool parse_five_digits(const char *at, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < 5; i++) {
        if (at[i] < '0' || at[i] > '9')
            return false;
        value = value * 10 + (uint32_t)(at[i] - '0');
    }
    *out = value;
    return true;
}

#define SPLIT_SUFFIX_LENGTH 20u /* "-00001-of-00003.gguf" */

/* The file's own keys say that it is split; the name says where the others are. */
static enum status split_count(const struct gguf *gguf, const char *path, uint32_t *count,
                               struct error *error)
{
    *count = 1;
    if (!gguf_has(gguf, "split.count"))
        return STATUS_OK;
    uint32_t split_number = 0;
    TRY(gguf_get_u32(gguf, "split.count", count, error));
    if (*count > 1)
        TRY(gguf_get_u32(gguf, "split.no", &split_number, error));
    if (*count == 0)
        *count = 1;
    if (*count == 1)
        return STATUS_OK;
    if (*count > PARTS_MAX)
        return error_set(error, STATUS_INVALID, NULL, "key 'split.count' is %" PRIu32, *count);
    if (split_number != 0)
        return error_set(error, STATUS_INVALID, "model",
                         "this is part %" PRIu32 " of %" PRIu32 ": give the first part",
                         split_number + 1, *count);
    size_t length = strlen(path);
    uint32_t first = 0, total = 0;
    const char *suffix = path + length - SPLIT_SUFFIX_LENGTH;
    if (length < SPLIT_SUFFIX_LENGTH || suffix[0] != '-' ||
        !parse_five_digits(suffix + 1, &first) || memcmp(suffix + 6, "-of-", 4) != 0 ||
        !parse_five_digits(suffix + 10, &total) || strcmp(suffix + 15, ".gguf") != 0 ||
        first != 1 || total != *count)
        return error_set(error, STATUS_INVALID, "model",
                         "the model is split in %" PRIu32
                         " files: the first must be named …-00001-of-%05" PRIu32 ".gguf",
                         *count, *count);
    return STATUS_OK;
}

static enum status parse_other_parts(struct gguf *gguf, const char *path, uint32_t count,
                                     struct error *error)
{
    size_t length = strlen(path);
    char *name = malloc(length + 1);
    struct part *parts = realloc(gguf->parts, count * sizeof *parts);
    if (parts)
        gguf->parts = parts;
    if (!name || !parts) {
        free(name);
        return error_set(error, STATUS_IO, NULL, "no memory for the model file's parts");
    }
    memcpy(name, path, length + 1);
    enum status status = STATUS_OK;
    for (uint32_t i = 1; i < count && status == STATUS_OK; i++) {
        gguf->parts[i] = (struct part){.fd = -1};
        gguf->part_count = i + 1;
        char digits[16];
        snprintf(digits, sizeof digits, "%05" PRIu32, i + 1);
        memcpy(name + length - SPLIT_SUFFIX_LENGTH + 1, digits, 5);
        status = parse_part(gguf, i, name, error);
    }
    free(name);
    return status;
}

static enum status parse_all(struct gguf *gguf, const char *path, struct error *error)
{
    enum status status = parse_part(gguf, 0, path, error);
    uint32_t count = 1;
    if (status == STATUS_OK)
        status = split_count(gguf, path, &count, error);
    if (status == STATUS_OK && count > 1)
        status = parse_other_parts(gguf, path, count, error);
    if (status == STATUS_OK)
        status = sort_tensors(gguf, error);
    if (status != STATUS_OK || !gguf_has(gguf, "split.tensors.count"))
        return status;
    uint32_t expected = 0;
    status = gguf_get_u32(gguf, "split.tensors.count", &expected, error);
    if (status == STATUS_OK && expected != gguf->tensor_count)
        return error_set(error, STATUS_INVALID, NULL,
                         "the model file has %" PRIu32 " tensors, key 'split.tensors.count' says "
                         "%" PRIu32,
                         gguf->tensor_count, expected);
    return status;
}

enum status gguf_open(const char *path, struct gguf **out, struct error *error)
{
    return gguf_open_within(path, HEADER_BYTES_MAX, out, error);
}

enum status gguf_open_within(const char *path, uint64_t header_bytes, struct gguf **out,
                             struct error *error)
{
    *out = NULL;
    struct gguf *gguf = calloc(1, sizeof *gguf);
    struct part *parts = calloc(1, sizeof *parts);
    if (!gguf || !parts) {
        free(gguf);
        free(parts);
        return error_set(error, STATUS_IO, NULL, "no memory for the model file's header");
    }
    parts->fd = -1;
    gguf->header_limit = min_u64(header_bytes, HEADER_BYTES_MAX);
    gguf->parts = parts;
    gguf->part_count = 1;
    enum status status = parse_all(gguf, path, error);
    if (status != STATUS_OK) {
        gguf_close(gguf);
        return status;
    }
    *out = gguf;
    return STATUS_OK;
}

void gguf_close(struct gguf *gguf)
{
    if (!gguf)
        return;
    for (uint32_t i = 0; i < gguf->part_count; i++) {
        if (gguf->parts[i].fd >= 0)
            close(gguf->parts[i].fd);
        free(gguf->parts[i].header);
    }
    free(gguf->parts);
    free(gguf->entries);
    free(gguf->entries_sorted);
    free(gguf->tensors);
    free(gguf->tensor_parts);
    free(gguf->tensors_sorted);
    free(gguf);
}

uint64_t gguf_memory_bytes(const struct gguf *gguf)
{
    uint64_t bytes = sizeof *gguf + gguf->part_count * sizeof *gguf->parts;
    for (uint32_t i = 0; i < gguf->part_count; i++)
        bytes += gguf->parts[i].header_capacity;
    bytes += gguf->entry_count * (sizeof *gguf->entries + sizeof *gguf->entries_sorted);
    bytes += gguf->tensor_capacity *
             (sizeof *gguf->tensors + sizeof *gguf->tensor_parts + sizeof *gguf->tensors_sorted);
    return bytes;
}

uint64_t gguf_file_bytes(const struct gguf *gguf)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < gguf->part_count; i++)
        bytes += gguf->parts[i].file_bytes;
    return bytes;
}

uint32_t gguf_version(const struct gguf *gguf)
{
    return gguf->version;
}

/* ---- Reading tensors ---- */

enum status gguf_read(const struct gguf *gguf, const struct gguf_tensor *tensor, uint64_t offset,
                      void *out, uint64_t length, struct error *error)
{
    CHECK(tensor >= gguf->tensors && tensor < gguf->tensors + gguf->tensor_count);
    CHECK(offset <= tensor->bytes && length <= tensor->bytes - offset);
    const struct part *part = &gguf->parts[gguf->tensor_parts[tensor - gguf->tensors]];
    struct error cause;
    error_clear(&cause);
    if (part_pread(part, tensor->offset + offset, out, length, &cause) != STATUS_OK)
        return error_set(error, STATUS_IO, NULL, "tensor '%.*s': %s", SHOW(tensor->name.length),
                         tensor->name.text, cause.message);
    return STATUS_OK;
}

uint64_t gguf_header_checksum(const struct gguf *gguf)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gguf->part_count; i++)
        sum = checksum_bytes(gguf->parts[i].header, gguf->parts[i].position, sum);
    return sum;
}

void gguf_forget(const struct gguf *gguf)
{
    /* Advice only: a failure changes nothing that anyone relies on. */
    for (uint32_t i = 0; i < gguf->part_count; i++)
        (void)posix_fadvise(gguf->parts[i].fd, 0, 0, POSIX_FADV_DONTNEED);
}
