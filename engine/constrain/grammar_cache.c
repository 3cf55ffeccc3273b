/*
 * Compiled grammars as a list in order of use, most recent first. See grammar_cache.h.
 *
 * With at most LIMIT_GRAMMARS entries a walk over hashes takes a microsecond, so there is no table.
 * A hash only saves comparisons: sources are compared whole.
 */
#include "engine/constrain/grammar_cache.h"

#include "base/checksum.h"
#include "base/limits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *before, *after;
    struct grammar *grammar;
    uint64_t hash, salt;
    enum grammar_kind kind;
    size_t length;
    char source[]; /* [length] */
};

struct grammar_cache {
    /* fixed after start */
    const struct tokenizer *tokenizer;
    struct budget *budget;
    /* of the thread that compiles; fixed after grammar_cache_load */
    struct grammar_vocabulary *vocabulary; /* NULL: there is none */
    /* under lock */
    pthread_mutex_t lock;
    struct entry *first, *last;
    unsigned count;
};

static void unlink_entry(struct grammar_cache *cache, struct entry *entry)
{
    *(entry->before ? &entry->before->after : &cache->first) = entry->after;
    *(entry->after ? &entry->after->before : &cache->last) = entry->before;
    cache->count--;
}

static void push_front(struct grammar_cache *cache, struct entry *entry)
{
    entry->before = NULL;
    entry->after = cache->first;
    *(cache->first ? &cache->first->before : &cache->last) = entry;
    cache->first = entry;
    cache->count++;
}

/* Under lock. */
static void remove_entry(struct grammar_cache *cache, struct entry *entry)
{
    unlink_entry(cache, entry);
    grammar_release(entry->grammar);
    budget_give(cache->budget, BUDGET_GRAMMAR, sizeof(*entry) + entry->length);
    free(entry);
}

/* Under lock: the least recently used of those that no sequence uses; to give up others frees
   nothing. false: there is none. */
static bool evict_unused(struct grammar_cache *cache)
{
    struct entry *entry = cache->last;
    while (entry && grammar_is_shared(entry->grammar))
        entry = entry->before;
    if (entry)
        remove_entry(cache, entry);
    return entry != NULL;
}

/* For grammar_vocabulary_set_evict. */
static bool evict(void *arg)
{
    struct grammar_cache *cache = arg;
    pthread_mutex_lock(&cache->lock);
    bool evicted = evict_unused(cache);
    pthread_mutex_unlock(&cache->lock);
    return evicted;
}

enum status grammar_cache_create(const struct tokenizer *tokenizer, struct budget *budget,
                                 struct grammar_cache **out, struct error *error)
{
    struct grammar_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        return error_set(error, STATUS_IO, NULL, "out of memory");
    cache->tokenizer = tokenizer;
    cache->budget = budget;
    pthread_mutex_init(&cache->lock, NULL);
    *out = cache;
    return STATUS_OK;
}

enum status grammar_cache_load(struct grammar_cache *cache, struct error *error)
{
    enum status status =
        grammar_vocabulary_create(cache->tokenizer, cache->budget, &cache->vocabulary, error);
    if (status == STATUS_OK)
        grammar_vocabulary_set_evict(cache->vocabulary, evict, cache);
    return status;
}

void grammar_cache_destroy(struct grammar_cache *cache)
{
    if (!cache)
        return;
    while (cache->last)
        remove_entry(cache, cache->last);
    grammar_vocabulary_destroy(cache->vocabulary);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

struct grammar *grammar_cache_find(struct grammar_cache *cache, enum grammar_kind kind,
                                   const char *source, size_t length, uint64_t salt)
{
    uint64_t hash = checksum_bytes(source, length, salt);
    struct grammar *found = NULL;
    pthread_mutex_lock(&cache->lock);
    for (struct entry *entry = cache->first; entry && !found; entry = entry->after) {
        if (entry->hash == hash && entry->salt == salt && entry->kind == kind &&
            entry->length == length && memcmp(entry->source, source, length) == 0) {
            unlink_entry(cache, entry);
            push_front(cache, entry);
            found = grammar_take(entry->grammar);
        }
    }
    pthread_mutex_unlock(&cache->lock);
    return found;
}

/* Keeps one reference of its own, if there is room; older grammars may go for it. */
static void add(struct grammar_cache *cache, struct grammar *grammar, enum grammar_kind kind,
                const char *source, size_t length, uint64_t salt)
{
    uint64_t bytes = sizeof(struct entry) + length;
    pthread_mutex_lock(&cache->lock);
    while (cache->count >= LIMIT_GRAMMARS)
        remove_entry(cache, cache->last);
    bool room = budget_take(cache->budget, BUDGET_GRAMMAR, bytes);
    while (!room && evict_unused(cache))
        room = budget_take(cache->budget, BUDGET_GRAMMAR, bytes);
    struct entry *entry = room ? malloc(bytes) : NULL;
    if (entry) {
        *entry = (struct entry){.grammar = grammar_take(grammar),
                                .hash = checksum_bytes(source, length, salt),
                                .salt = salt,
                                .kind = kind,
                                .length = length};
        memcpy(entry->source, source, length);
        push_front(cache, entry);
    } else if (room) {
        budget_give(cache->budget, BUDGET_GRAMMAR, bytes);
    }
    pthread_mutex_unlock(&cache->lock);
}

enum status grammar_cache_compile(struct grammar_cache *cache, enum grammar_kind kind,
                                  const char *source, size_t length, uint64_t salt,
                                  struct grammar **out, struct error *error)
{
    /* Another request may have brought the same while this one waited. */
    *out = grammar_cache_find(cache, kind, source, length, salt);
    if (*out)
        return STATUS_OK;
    if (!cache->vocabulary)
        return error_set(error, STATUS_UNSUPPORTED, NULL,
                         "this server could not prepare constrained output");
    enum status status = grammar_compile(cache->vocabulary, kind, source, length, out, error);
    if (status == STATUS_OK)
        add(cache, *out, kind, source, length, salt);
    return status;
}
