/*
 * API keys: see auth.h.
 *
 * Keys stand in one table under a lock, each at a place that it keeps: its number. The file is read
 * into a table of its own first, so that trouble leaves the keys as they were. A key is compared
 * with all of them, byte by byte and without an early end, so that the time tells nothing. Messages
 * and logs name a key's line or number, never the key.
 */
#include "server/auth.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

struct key {
    uint8_t bytes[LIMIT_API_KEY_BYTES]; /* padded with zeros; keys hold no zero byte */
    uint64_t salt;                      /* 0: none stands here any more */
    bool is_operator;
};

/* A key's number is its place + 1. */
struct key_table {
    unsigned count; /* places in use, now or once */
    struct key keys[LIMIT_API_KEYS];
};

struct auth {
    pthread_rwlock_t lock;
    struct key_table table; /* under lock; main alone writes */
};

/* FNV-1a, then a finalizer (Stafford's mix 13) so that near keys have far salts. */
static uint64_t key_salt(const uint8_t *bytes, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
    return hash ? hash : 1;
}

/* "KEY operator": the length of the key without the mark, or of all of the text. */
static size_t unmarked_length(const char *text, size_t length)
{
    static const char mark[] = "operator";
    size_t key = strcspn(text, " \t"), blanks = strspn(text + key, " \t");
    bool marked = key + blanks + strlen(mark) == length && blanks > 0 &&
                  memcmp(text + key + blanks, mark, strlen(mark)) == 0;
    return marked ? key : length;
}

/* 0 when equal. Reads every byte whatever it finds. */
static unsigned key_difference(const uint8_t *a, const uint8_t *b)
{
    volatile unsigned difference = 0;
    for (size_t i = 0; i < LIMIT_API_KEY_BYTES; i++)
        difference = difference | (unsigned)(a[i] ^ b[i]);
    return difference;
}

static enum status add_key(struct key_table *table, const char *text, size_t length, unsigned line,
                           const char *path, struct error *error)
{
    if (length >= LIMIT_API_KEY_BYTES)
        return error_set(error, STATUS_INVALID, "api-key-file",
                         "%s, line %u: a key has at most %u bytes", path, line,
                         LIMIT_API_KEY_BYTES - 1);
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 0x7f)
            return error_set(error, STATUS_INVALID, "api-key-file",
                             "%s, line %u: a key consists of printable ASCII without blanks", path,
                             line);
    }
    if (table->count == LIMIT_API_KEYS)
        return error_set(error, STATUS_INVALID, "api-key-file", "%s: more than %u keys", path,
                         LIMIT_API_KEYS);
    struct key *key = &table->keys[table->count];
    memset(key, 0, sizeof *key);
    memcpy(key->bytes, text, length);
    key->salt = key_salt(key->bytes, length);
    for (unsigned i = 0; i < table->count; i++) {
        if (!key_difference(table->keys[i].bytes, key->bytes))
            return error_set(error, STATUS_INVALID, "api-key-file",
                             "%s, line %u: this key stands there twice", path, line);
    }
    table->count++;
    return STATUS_OK;
}

static enum status read_keys(FILE *file, const char *path, struct key_table *table,
                             struct error *error)
{
    char text[1024];
    unsigned line = 0;
    while (fgets(text, sizeof text, file)) {
        line++;
        size_t length = strlen(text);
        if (length == sizeof text - 1 && text[length - 1] != '\n')
            return error_set(error, STATUS_INVALID, "api-key-file",
                             "%s, line %u: a key has at most %u bytes", path, line,
                             LIMIT_API_KEY_BYTES - 1);
        while (length && strchr(" \t\r\n", text[length - 1]))
            length--;
        size_t start = strspn(text, " \t");
        if (start >= length || text[start] == '#')
            continue;
        size_t own = unmarked_length(text + start, length - start);
        enum status status = add_key(table, text + start, own, line, path, error);
        if (status != STATUS_OK)
            return status;
        table->keys[table->count - 1].is_operator = own < length - start;
    }
    explicit_bzero(text, sizeof text);
    if (ferror(file))
        return error_set(error, STATUS_IO, "api-key-file", "%s: %s", path, strerror(errno));
    if (!table->count)
        return error_set(error, STATUS_INVALID, "api-key-file",
                         "%s holds no key; write one on a line of its own", path);
    if (table->count == 1) /* there is nobody else */
        table->keys[0].is_operator = true;
    return STATUS_OK;
}

enum status auth_load(const char *path, struct auth **out, struct error *error)
{
    *out = NULL;
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set(error, STATUS_IO, "api-key-file", "cannot open %s: %s", path,
                         strerror(errno));
    struct stat about;
    if (!fstat(fileno(file), &about) && (about.st_mode & 0044))
        log_warn("api_key_file", "%s can be read by others; chmod 600 it", path);
    struct auth *auth = calloc(1, sizeof *auth);
    enum status status =
        auth ? read_keys(file, path, &auth->table, error) : error_out_of_memory(error);
    fclose(file);
    if (auth)
        pthread_rwlock_init(&auth->lock, NULL);
    if (status == STATUS_OK)
        *out = auth;
    else
        auth_destroy(auth);
    return status;
}

/* The place of a key, or the table's count. */
static unsigned find_key(const struct key_table *table, const struct key *key)
{
    unsigned i = 0;
    while (i < table->count && key_difference(table->keys[i].bytes, key->bytes))
        i++;
    return i;
}

/* The place of a new key: one that no key had, while there is one. */
static struct key *free_place(struct key_table *table)
{
    if (table->count < LIMIT_API_KEYS)
        return &table->keys[table->count++];
    for (unsigned i = 0; i < LIMIT_API_KEYS; i++) {
        if (!table->keys[i].salt)
            return &table->keys[i];
    }
    return NULL; /* cannot be: a file holds at most LIMIT_API_KEYS, and removed ones left */
}

/* Make of `table` one that holds the keys of `file`. */
static void merge_keys(struct key_table *table, const struct key_table *file,
                       struct auth_change *change)
{
    *change = (struct auth_change){0};
    for (unsigned i = 0; i < table->count; i++) {
        if (!table->keys[i].salt || find_key(file, &table->keys[i]) < file->count)
            continue;
        explicit_bzero(&table->keys[i], sizeof table->keys[i]);
        change->removed++;
    }
    for (unsigned i = 0; i < file->count; i++) {
        unsigned known = find_key(table, &file->keys[i]);
        if (known < table->count) {
            table->keys[known].is_operator = file->keys[i].is_operator;
            continue;
        }
        struct key *place = free_place(table);
        CHECK(place);
        *place = file->keys[i];
        change->added++;
    }
}

static FILE *open_regular(const char *path, struct error *error)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *file = NULL;
    if (fd < 0)
        error_set(error, STATUS_IO, "api-key-file", "cannot open %s: %s", path, strerror(errno));
    else if (fstat(fd, &about) || !S_ISREG(about.st_mode))
        error_set(error, STATUS_INVALID, "api-key-file", "%s is no regular file", path);
    else if (!(file = fdopen(fd, "r")))
        error_set(error, STATUS_IO, "api-key-file", "cannot read %s: %s", path, strerror(errno));
    if (fd >= 0 && !file)
        close(fd);
    return file;
}

enum status auth_reload(struct auth *auth, const char *path, struct auth_change *change,
                        struct error *error)
{
    error_clear(error);
    FILE *file = open_regular(path, error);
    if (!file)
        return error->status;
    struct key_table *tables = calloc(2, sizeof *tables); /* the file's, and the merged one */
    enum status status =
        tables ? read_keys(file, path, &tables[0], error) : error_out_of_memory(error);
    fclose(file);
    if (status == STATUS_OK) {
        tables[1] = auth->table;
        merge_keys(&tables[1], &tables[0], change);
        pthread_rwlock_wrlock(&auth->lock);
        auth->table = tables[1];
        pthread_rwlock_unlock(&auth->lock);
    }
    if (tables)
        explicit_bzero(tables, 2 * sizeof *tables);
    free(tables);
    return status;
}

void auth_destroy(struct auth *auth)
{
    if (!auth)
        return;
    pthread_rwlock_destroy(&auth->lock);
    explicit_bzero(auth, sizeof *auth);
    free(auth);
}

unsigned auth_key_count(struct auth *auth)
{
    unsigned count = 0;
    pthread_rwlock_rdlock(&auth->lock);
    for (unsigned i = 0; i < auth->table.count; i++)
        count += auth->table.keys[i].salt != 0;
    pthread_rwlock_unlock(&auth->lock);
    return count;
}

unsigned auth_last_number(struct auth *auth)
{
    pthread_rwlock_rdlock(&auth->lock);
    unsigned count = auth->table.count;
    pthread_rwlock_unlock(&auth->lock);
    return count;
}

bool auth_allows(struct auth *auth, const char *header, struct auth_key *key)
{
    *key = (struct auth_key){0};
    if (!header || strncasecmp(header, "Bearer ", 7) != 0)
        return false;
    const char *text = header + 7 + strspn(header + 7, " ");
    size_t length = strlen(text);
    while (length && (text[length - 1] == ' ' || text[length - 1] == '\t'))
        length--;
    /* An over-long key differs in its padding's last byte from every stored one. */
    uint8_t shown[LIMIT_API_KEY_BYTES] = {0};
    size_t kept = min_u64(length, sizeof shown);
    memcpy(shown, text, kept);
    pthread_rwlock_rdlock(&auth->lock);
    for (unsigned i = 0; i < auth->table.count; i++) {
        uint64_t mask = 0 - (uint64_t)(key_difference(shown, auth->table.keys[i].bytes) == 0);
        key->salt |= mask & auth->table.keys[i].salt;
        key->number |= (uint32_t)mask & (i + 1);
        key->is_operator |= (bool)(mask & auth->table.keys[i].is_operator);
    }
    pthread_rwlock_unlock(&auth->lock);
    explicit_bzero(shown, sizeof shown);
    return key->salt != 0 && length > 0;
}
