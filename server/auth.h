/*
 * Who may ask: the keys of --api-key-file.
 *
 * Keys are compared in constant time: all of them, padded to one length, whatever matched first. A
 * key's salt separates the prefix caches of different keys; it is a hash of the key, so that it
 * stays the same over restarts. Any thread asks; one, main, reads the file again.
 */
#ifndef QUIRE_SERVER_AUTH_H
#define QUIRE_SERVER_AUTH_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct auth;

/* One key a line, with the word "operator" behind those that may do what concerns all keys; of one
   key alone it is true anyway. Empty lines and lines that begin with '#' are skipped, blanks around
   a key are not part of it. STATUS_INVALID for an empty file, a key that is too long, has blanks or
   control characters, or stands there twice; the message names the line, never the key. */
enum status auth_load(const char *path, struct auth **out, struct error *error);
void auth_destroy(struct auth *auth);

struct auth_change {
    unsigned added, removed;
};

/* Take over what the file says now: requests whose key is looked up from then on are judged by it.
   Keys that stay keep their number. Any trouble, also that the file is no regular one (reading it
   could block), leaves the keys as they were. */
enum status auth_reload(struct auth *auth, const char *path, struct auth_change *change,
                        struct error *error);

unsigned auth_key_count(struct auth *auth);

/* The highest number that a key ever had. */
unsigned auth_last_number(struct auth *auth);

struct auth_key {
    uint64_t salt;   /* never 0 */
    uint32_t number; /* 1 … LIMIT_API_KEYS, in the order in which keys were first read; that of a
                        removed key is given to another one only when all are used up */
    bool is_operator;
};

/* `header` is the value of Authorization, or NULL. True when it is "Bearer KEY" (the scheme in any
   case) with a known key; *key is then that one, else zeros. */
bool auth_allows(struct auth *auth, const char *header, struct auth_key *key);

#endif
