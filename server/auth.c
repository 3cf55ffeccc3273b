/* API keys: see auth.h. */
#include "server/auth.h"

#include "base/limits.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

struct key {
    uint8_t bytes[LIMIT_API_KEY_BYTES]; /* padded with zeros; keys hold no zero byte */
    uint64_t salt;
};

struct auth {
    unsigned count;
    struct key keys[LIMIT_API_KEYS];
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

/* 0 when equal. Reads every byte whatever it finds. */
static unsigned key_difference(const uint8_t *a, const uint8_t *b)
{
    volatile unsigned difference = 0;
    for (size_t i = 0; i < LIMIT_API_KEY_BYTES; i++)
        difference = difference | (unsigned)(a[i] ^ b[i]);
    return difference;
}

static enum status add_key(struct auth *auth, const char *text, size_t length, unsigned line,
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
    if (auth->count == LIMIT_API_KEYS)
        return error_set(error, STATUS_INVALID, "api-key-file", "%s: more than %u keys", path,
                         LIMIT_API_KEYS);
    struct key *key = &auth->keys[auth->count];
    memset(key, 0, sizeof *key);
    memcpy(key->bytes, text, length);
    key->salt = key_salt(key->bytes, length);
    for (unsigned i = 0; i < auth->count; i++) {
        if (!key_difference(auth->keys[i].bytes, key->bytes))
            return error_set(error, STATUS_INVALID, "api-key-file",
                             "%s, line %u: this key stands there twice", path, line);
    }
    auth->count++;
    return STATUS_OK;
}

static enum status read_keys(FILE *file, const char *path, struct auth *auth, struct error *error)
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
        enum status status = add_key(auth, text + start, length - start, line, path, error);
        if (status != STATUS_OK)
            return status;
    }
    explicit_bzero(text, sizeof text);
    if (ferror(file))
        return error_set(error, STATUS_IO, "api-key-file", "%s: %s", path, strerror(errno));
    if (!auth->count)
        return error_set(error, STATUS_INVALID, "api-key-file",
                         "%s holds no key; write one on a line of its own", path);
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
    enum status status = auth ? read_keys(file, path, auth, error)
                              : error_set(error, STATUS_IO, NULL, "out of memory");
    fclose(file);
    if (status == STATUS_OK)
        *out = auth;
    else
        auth_destroy(auth);
    return status;
}

void auth_destroy(struct auth *auth)
{
    if (!auth)
        return;
    explicit_bzero(auth, sizeof *auth);
    free(auth);
}

unsigned auth_key_count(const struct auth *auth)
{
    return auth->count;
}

bool auth_allows(const struct auth *auth, const char *header, struct auth_key *key)
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
    size_t kept = length < sizeof shown ? length : sizeof shown;
    memcpy(shown, text, kept);
    for (unsigned i = 0; i < auth->count; i++) {
        uint64_t mask = 0 - (uint64_t)(key_difference(shown, auth->keys[i].bytes) == 0);
        key->salt |= mask & auth->keys[i].salt;
        key->number |= (uint32_t)mask & (i + 1);
    }
    explicit_bzero(shown, sizeof shown);
    return key->salt != 0 && length > 0;
}
