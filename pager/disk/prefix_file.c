/*
 * The file itself: its header, its slots, and what is read of them when it is opened.
 *
 * A write puts the page first and then the head with its checksum, so a process that is killed in
 * between leaves a slot whose checksums do not agree, which is what all damage comes to. Nothing
 * waits for the disk (no fsync): a machine that loses power loses pages but cannot mix them up.
 *
 * Opening reads the heads only. They enter the index in the order of their ids, parents before what
 * follows them, under the ids that they had; a head whose parent is missing is dropped.
 */
#include "pager/disk/prefix_file_private.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES 4096u
/* "QUPAGES2" on a little-endian machine; a machine of another byte order reads something else. */
#define MAGIC 0x3253454741505551u

struct file_header {
    uint64_t magic;
    struct prefix_file_identity identity;
    uint64_t page_bytes;
    uint32_t page_size;
    uint32_t group_count;
    uint32_t window[KV_GROUPS_MAX];
    uint64_t nonce;
    uint64_t sum; /* of all before */
};

/* ---- sizes ---- */

static uint32_t head_bytes_of(uint32_t page_size)
{
    return (uint32_t)(offsetof(struct prefix_head, tokens) + page_size * sizeof(uint32_t));
}

static uint64_t gap_bytes_of(uint32_t page_size)
{
    return bytes_align(head_bytes_of(page_size), 64);
}

static uint32_t slot_count_of(uint64_t cap_bytes, uint64_t page_bytes, uint32_t page_count,
                              uint32_t page_size)
{
    if (cap_bytes == 0)
        return page_count > 0 ? page_count - 1 : 0;
    uint64_t room = cap_bytes > HEADER_BYTES ? cap_bytes - HEADER_BYTES : 0;
    return page_store_fit(room, gap_bytes_of(page_size) + page_bytes);
}

/* The arrays, see base/arena.h. */
static void lay_out(struct arena *arena, struct prefix_file *file, uint32_t slot_count,
                    uint32_t page_count, uint32_t page_size)
{
    uint64_t ids = (uint64_t)slot_count + 1;
    file->pool.pages = arena_take(arena, ids, sizeof(struct page));
    file->index.entries = arena_take(arena, ids, sizeof(struct prefix_entry));
    file->index.tokens = arena_take(arena, ids, (uint64_t)page_size * sizeof(uint32_t));
    file->index.buckets =
        arena_take(arena, prefix_index_bucket_count(slot_count + 1), sizeof(uint32_t));
    file->saved = arena_take(arena, page_count, sizeof(struct prefix_saved));
    file->order = arena_take(arena, page_count, sizeof(struct prefix_ordered));
    file->recent = arena_take(arena, page_count, sizeof(uint32_t));
}

static uint64_t arrays_bytes(uint32_t slot_count, uint32_t page_count, uint32_t page_size)
{
    struct arena arena = {0};
    struct prefix_file counted;
    lay_out(&arena, &counted, slot_count, page_count, page_size);
    return arena.used_bytes;
}

uint64_t prefix_file_memory_bytes(uint64_t cap_bytes, uint64_t page_bytes, uint32_t page_count,
                                  uint32_t page_size)
{
    uint32_t slots = slot_count_of(cap_bytes, page_bytes, page_count, page_size);
    /* Sorting takes as much again as it sorts. */
    return sizeof(struct prefix_file) + arrays_bytes(slots, page_count, page_size) +
           page_store_memory_bytes(slots) + (uint64_t)page_count * sizeof(struct prefix_ordered);
}

static enum status allocate(struct prefix_file *file, struct error *error)
{
    uint32_t page_count = pager_total_count(file->pager) + 1;
    struct arena arena = {
        .memory = calloc(1, arrays_bytes(file->slot_count, page_count, file->page_size))};
    if (!arena.memory)
        return error_set(error, STATUS_IO, NULL, "no memory for the tables of %u pages",
                         file->slot_count);
    file->memory = arena.memory;
    lay_out(&arena, file, file->slot_count, page_count, file->page_size);
    struct page_store_options store = {
        .fd = file->fd,
        .offset_bytes = HEADER_BYTES,
        .slot_bytes = file->options.page_bytes,
        .slot_count = file->slot_count,
        .calls = file->options.calls,
        .gap_bytes = gap_bytes_of(file->page_size),
    };
    return page_store_create(&store, &file->store, error);
}

/* All slots are empty. The key of the hashes serves this process only. */
static void init_tables(struct prefix_file *file, const uint64_t key[2], uint64_t last_id)
{
    uint32_t ids = file->slot_count + 1;
    memset(file->index.entries, 0, ids * sizeof *file->index.entries);
    memset(file->index.buckets, 0, prefix_index_bucket_count(ids) * sizeof *file->index.buckets);
    page_pool_init(&file->pool, file->pool.pages, ids);
    prefix_index_init(&file->index, ids, file->page_size, key, file->index.entries,
                      file->index.tokens, file->index.buckets);
    file->index.last_id = last_id;
}

/* ---- header ---- */

static struct file_header header_of(const struct prefix_file *file)
{
    struct file_header header;
    memset(&header, 0, sizeof header);
    header.magic = MAGIC;
    header.identity = file->options.identity;
    header.page_bytes = file->options.page_bytes;
    header.page_size = file->page_size;
    header.group_count = file->groups.count;
    memcpy(header.window, file->groups.window, file->groups.count * sizeof *header.window);
    header.nonce = file->nonce;
    header.sum = checksum_bytes(&header, offsetof(struct file_header, sum), 0);
    return header;
}

/* Why the pages of the file cannot be used, or NULL. */
static const char *foreign(const struct prefix_file *file, const struct file_header *theirs)
{
    struct file_header ours = header_of(file);
    if (theirs->magic != ours.magic ||
        theirs->sum != checksum_bytes(theirs, offsetof(struct file_header, sum), 0))
        return "it is damaged, or no such file";
    if (theirs->identity.model != ours.identity.model)
        return "its pages are another model's";
    if (theirs->identity.scope != ours.identity.scope)
        return "its pages are of another --cache-scope, or of a server with other keys";
    if (theirs->identity.arithmetic != ours.identity.arithmetic)
        return "its pages were computed by another version's arithmetic";
    if (memcmp(theirs->identity.kv_type, ours.identity.kv_type, sizeof ours.identity.kv_type))
        return "its keys and values are of another type";
    if (theirs->page_size != ours.page_size)
        return "its pages have another size";
    if (theirs->page_bytes != ours.page_bytes || theirs->group_count != ours.group_count ||
        memcmp(theirs->window, ours.window, sizeof ours.window) != 0)
        return "its pages are divided in another way";
    return NULL;
}

enum status prefix_file_reset(struct prefix_file *file, struct error *error)
{
    uint64_t drawn; /* the old one is valid until the file is empty */
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
        return error_set(error, STATUS_IO, NULL, "no random numbers from the system");
    if (ftruncate(file->fd, 0) != 0)
        return error_set(error, STATUS_IO, NULL, "emptying the file: %s", strerror(errno));
    file->nonce = drawn;
    struct file_header header = header_of(file);
    return page_store_write_at(file->store, 0, &header, sizeof header, error);
}

/* ---- slots ---- */

static uint64_t head_offset(const struct prefix_file *file, uint32_t slot)
{
    return page_store_offset(file->store, slot - 1) - gap_bytes_of(file->page_size);
}

/* The checksum of a head covers the file (its nonce) and the slot's number, too. */
static uint64_t head_sum(const struct prefix_file *file, uint32_t slot,
                         const struct prefix_head *head)
{
    size_t from = offsetof(struct prefix_head, id);
    return checksum_bytes((const char *)head + from, file->head_bytes - from, file->nonce + slot);
}

/* Reads and verifies a slot's head. STATUS_NOT_FOUND: it is damaged, or there is none. */
static enum status read_head(const struct prefix_file *file, uint32_t slot, struct prefix_head *out,
                             struct error *error)
{
    enum status status =
        page_store_read_at(file->store, head_offset(file, slot), out, file->head_bytes, error);
    if (status)
        return status;
    bool whole = out->sum == head_sum(file, slot, out) && out->id > 0 && out->parent < out->id &&
                 out->group < file->groups.count;
    return whole ? STATUS_OK : STATUS_NOT_FOUND;
}

enum status prefix_file_write(struct prefix_file *file, const struct prefix_file_job *job,
                              const void *bytes, struct error *error)
{
    enum status status = page_store_write(file->store, job->slot - 1, bytes, error);
    if (status)
        return status;
    struct prefix_head head;
    memset(&head, 0, sizeof head);
    head.stamp = job->stamp;
    head.id = job->id;
    head.parent = job->parent;
    head.salt = job->salt;
    head.page_sum = page_store_sum(file->store, job->slot - 1);
    head.group = job->group;
    memcpy(head.tokens, job->tokens, file->page_size * sizeof *head.tokens);
    head.sum = head_sum(file, job->slot, &head);
    return page_store_write_at(file->store, head_offset(file, job->slot), &head, file->head_bytes,
                               error);
}

void prefix_file_drop(struct prefix_file *file, uint32_t slot)
{
    prefix_index_remove(&file->index, slot);
    page_pool_set_cached(&file->pool, slot, false);
}

/* ---- what is in the file ---- */

struct found {
    uint64_t id, stamp;
    uint32_t slot; /* 0: not taken over */
};

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct found *)a)->id, y = ((const struct found *)b)->id;
    return (x > y) - (x < y);
}

/* Least recently used first; of equals a page before its parent. */
static int by_use(const void *a, const void *b)
{
    uint64_t x = ((const struct found *)a)->stamp, y = ((const struct found *)b)->stamp;
    return x != y ? (x > y) - (x < y) : by_id(b, a);
}

/* Is the parent in the file, and of group 0? */
static bool knows_parent(const struct prefix_file *file, const struct found *found, uint32_t count,
                         uint64_t parent)
{
    if (parent == PREFIX_ROOT)
        return true;
    struct found key = {.id = parent};
    const struct found *at = bsearch(&key, found, count, sizeof *found, by_id);
    return at && at->slot && file->index.entries[at->slot].id == parent &&
           file->index.entries[at->slot].group == 0;
}

/* Stores what a head says where it stands once its slot has entered the index. Without an id it is
   not an entry yet. */
static void keep_head(struct prefix_file *file, uint32_t slot, const struct prefix_head *head)
{
    file->index.entries[slot] =
        (struct prefix_entry){.parent = head->parent, .salt = head->salt, .group = head->group};
    memcpy(file->index.tokens + (uint64_t)slot * file->page_size, head->tokens,
           file->page_size * sizeof *head->tokens);
    page_store_set_sum(file->store, slot - 1, head->page_sum);
}

/* Slots enter the index and the pool, parents before what follows them; in the pool all are in use.
 */
static void take_over(struct prefix_file *file, struct found *found, uint32_t count)
{
    uint32_t tokens[PREFIX_FILE_PAGE_SIZE_MAX];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = found[i].slot;
        uint64_t id = found[i].id;
        struct prefix_entry kept = file->index.entries[slot];
        memcpy(tokens, prefix_index_tokens(&file->index, slot), file->page_size * sizeof *tokens);
        file->index.entries[slot] = (struct prefix_entry){0};
        found[i].slot = 0;
        if (id <= file->index.last_id || !knows_parent(file, found, i, kept.parent) ||
            prefix_index_find(&file->index, kept.group, kept.parent, tokens, kept.salt))
            continue;
        prefix_index_restore(&file->index, slot, id, kept.group, kept.parent, tokens, kept.salt);
        page_pool_add_reference(&file->pool, slot);
        page_pool_set_cached(&file->pool, slot, true);
        found[i].slot = slot;
    }
    if (count > 0 && file->index.last_id < found[count - 1].id)
        file->index.last_id = found[count - 1].id;
}

static uint64_t stride_of(const struct prefix_file *file)
{
    return gap_bytes_of(file->page_size) + file->options.page_bytes;
}

/* Cuts the file after `slots` slots. What lies behind must go: it may name ids that would be given
   again. */
static enum status cut(struct prefix_file *file, uint32_t slots, const char *to,
                       struct error *error)
{
    if (ftruncate(file->fd, (off_t)(HEADER_BYTES + slots * stride_of(file))) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, NULL, "it cannot be cut to %s: %s", to,
                     strerror(errno));
}

/* Reads the heads of slots [1, end] into found, as many as can be read in time. When the disk does
   not give a head, nothing in the file can be trusted: an id that it names might be given again. */
static enum status read_heads(struct prefix_file *file, uint32_t end, uint64_t deadline_ns,
                              struct found *found, uint32_t *count, struct error *error)
{
    struct prefix_head head;
    uint32_t slot = 1;
    for (; slot <= end && file->options.clock() < deadline_ns; slot++) {
        enum status status = read_head(file, slot, &head, error);
        if (status == STATUS_IO)
            return status;
        if (status)
            continue;
        found[(*count)++] = (struct found){head.id, head.stamp, slot};
        keep_head(file, slot, &head);
    }
    if (slot > end)
        return STATUS_OK;
    log_warn("cache_dir", "reading the file takes long: the last %u of its %u pages are given up",
             end - slot + 1, end);
    return cut(file, slot - 1, "what was read in time", error);
}

static enum status scan(struct prefix_file *file, uint32_t end, uint64_t deadline_ns,
                        struct error *error)
{
    struct found *found = malloc((end + (size_t)1) * sizeof *found);
    if (!found)
        return error_set(error, STATUS_IO, NULL, "no memory for reading %u heads", end);
    uint32_t count = 0;
    enum status status = read_heads(file, end, deadline_ns, found, &count, error);
    if (!status) {
        qsort(found, count, sizeof *found, by_id);
        take_over(file, found, count);
        qsort(found, count, sizeof *found, by_use);
        for (uint32_t i = 0; i < count; i++) {
            if (found[i].slot)
                page_pool_release(&file->pool, found[i].slot);
            if (found[i].stamp > file->last_stamp && found[i].stamp < UINT64_MAX / 2)
                file->last_stamp = found[i].stamp;
        }
    }
    free(found);
    return status;
}

/* Reads what is in the file. STATUS_INVALID with the reason when it cannot be used. */
static enum status read_file(struct prefix_file *file, uint64_t file_bytes, uint64_t deadline_ns,
                             struct error *error)
{
    struct file_header header;
    memset(&header, 0, sizeof header);
    if (file_bytes < sizeof header ||
        page_store_read_at(file->store, 0, &header, sizeof header, error) != STATUS_OK)
        header.magic = 0;
    const char *why = foreign(file, &header);
    if (why)
        return error_set(error, STATUS_INVALID, NULL, "%s", why);
    file->nonce = header.nonce;
    uint64_t stride = stride_of(file);
    if (file_bytes > HEADER_BYTES + file->slot_count * stride) {
        enum status status = cut(file, file->slot_count, "its cap", error);
        if (status)
            return status;
    }
    uint64_t there = file_bytes > HEADER_BYTES ? (file_bytes - HEADER_BYTES) / stride : 0;
    return scan(file, (uint32_t)min_u64(there, file->slot_count), deadline_ns, error);
}

/* ---- open and close ---- */

static enum status open_file(struct prefix_file *file, uint64_t *file_bytes, struct error *error)
{
    const char *directory = file->options.directory;
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/" PREFIX_FILE_NAME, directory);
    if (length >= (int)sizeof path)
        return error_set(error, STATUS_IO, NULL, "the directory's name is too long");
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        return error_set(error, STATUS_IO, NULL, "cannot make %s: %s", directory, strerror(errno));
    file->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat info;
    if (file->fd < 0 || fstat(file->fd, &info) != 0)
        return error_set(error, STATUS_IO, NULL, "cannot open %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return error_set(error, STATUS_IO, NULL, "%s is no file", path);
    if (info.st_uid != geteuid())
        return error_set(error, STATUS_IO, NULL, "%s belongs to another user", path);
    if (flock(file->fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? error_set(error, STATUS_BUSY, NULL, "another server has %s", path)
                   : error_set(error, STATUS_IO, NULL, "cannot lock %s: %s", path, strerror(errno));
    /* The length is read only now: before the lock another process may have changed it. */
    if ((info.st_mode & 077 && fchmod(file->fd, 0600) != 0) || fstat(file->fd, &info) != 0)
        return error_set(error, STATUS_IO, NULL, "cannot keep %s to ourselves: %s", path,
                         strerror(errno));
    *file_bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

static enum status start(struct prefix_file *file, uint64_t deadline_ns, struct error *error)
{
    uint64_t file_bytes = 0, key[2];
    struct error why;
    enum status status = open_file(file, &file_bytes, error);
    if (!status)
        status = allocate(file, error);
    if (status)
        return status;
    if (getrandom(key, sizeof key, 0) != sizeof key)
        return error_set(error, STATUS_IO, NULL, "no random numbers from the system");
    init_tables(file, key, 0);
    if (file_bytes > 0 && read_file(file, file_bytes, deadline_ns, &why) == STATUS_OK)
        return STATUS_OK;
    if (file_bytes > 0)
        log_warn("cache_dir", "%s/" PREFIX_FILE_NAME " is ignored and begun anew: %s",
                 file->options.directory, why.message);
    init_tables(file, key, 0);
    file->last_stamp = 0;
    return prefix_file_reset(file, error);
}

enum status prefix_file_open(const struct prefix_file_options *options, struct pager *pager,
                             uint64_t deadline_ns, struct prefix_file **out, struct error *error)
{
    uint32_t page_size = pager_page_size(pager), page_count = pager_total_count(pager) + 1;
    CHECK(page_size <= PREFIX_FILE_PAGE_SIZE_MAX && options->page_bytes > 0);
    uint32_t slots = slot_count_of(options->cap_bytes, options->page_bytes, page_count, page_size);
    if (slots == 0)
        return error_set(
            error, STATUS_INVALID, "cache-dir-bytes",
            "%llu bytes do not hold one page (%llu bytes)", (unsigned long long)options->cap_bytes,
            (unsigned long long)(HEADER_BYTES + gap_bytes_of(page_size) + options->page_bytes));
    struct prefix_file *file = calloc(1, sizeof *file);
    if (!file)
        return error_out_of_memory(error);
    file->options = *options;
    if (!file->options.clock)
        file->options.clock = clock_now_ns;
    file->pager = pager;
    file->fd = -1;
    file->page_size = page_size;
    file->slot_count = slots;
    file->head_bytes = head_bytes_of(page_size);
    file->groups = *pager_groups(pager);
    enum status status = start(file, deadline_ns, error);
    if (status) {
        prefix_file_close(file);
        return status;
    }
    *out = file;
    return STATUS_OK;
}

void prefix_file_close(struct prefix_file *file)
{
    if (!file)
        return;
    page_store_destroy(file->store);
    free(file->memory);
    if (file->fd >= 0)
        close(file->fd);
    free(file);
}

void prefix_file_clear(struct prefix_file *file)
{
    uint64_t key[2] = {file->index.key[0], file->index.key[1]};
    init_tables(file, key, file->index.last_id);
    file->recent_count = file->next = 0;
}

uint32_t prefix_file_page_count(const struct prefix_file *file)
{
    return file->index.entry_count;
}

uint32_t prefix_file_slot_count(const struct prefix_file *file)
{
    return file->slot_count;
}

uint64_t prefix_file_slot_bytes(const struct prefix_file *file)
{
    return stride_of(file);
}
