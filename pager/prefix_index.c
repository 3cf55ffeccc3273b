/*
 * A hash table with separate chaining: the entries of the pages are linked within their bucket, in
 * both directions. Nothing is allocated after start and removal is O(1). The hash covers parent,
 * salt, tokens and group; equal hashes are told apart by comparing all of them.
 *
 * Only the pager and the prefix file (pager/disk/) call this, from the thread that owns them.
 */
#include "pager/prefix_index.h"

#include "base/check.h"

#include <string.h>

static inline uint64_t rotate(uint64_t value, unsigned bits)
{
    return (value << bits) | (value >> (64 - bits));
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static inline void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
}

/* SipHash-1-3 of the words parent and salt, the tokens two by two (page sizes are even), and the
   four bytes of group. */
static uint64_t hash_key(const struct prefix_index *index, uint32_t group, uint64_t parent,
                         const uint32_t *tokens, uint64_t salt)
{
    uint64_t v[4] = {
        index->key[0] ^ 0x736f6d6570736575u,
        index->key[1] ^ 0x646f72616e646f6du,
        index->key[0] ^ 0x6c7967656e657261u,
        index->key[1] ^ 0x7465646279746573u,
    };
    sip_word(v, parent);
    sip_word(v, salt);
    for (uint32_t i = 0; i < index->page_size; i += 2)
        sip_word(v, tokens[i] | (uint64_t)tokens[i + 1] << 32);
    sip_word(v, group | (uint64_t)(20 + 4 * index->page_size) << 56);
    v[2] ^= 0xff;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint32_t prefix_index_bucket_count(uint32_t page_count)
{
    uint32_t count = 1;
    while (count < page_count && count < (1u << 31))
        count *= 2;
    return count;
}

void prefix_index_init(struct prefix_index *index, uint32_t page_count, uint32_t page_size,
                       const uint64_t key[2], struct prefix_entry *entries, uint32_t *tokens,
                       uint32_t *buckets)
{
    CHECK(page_size >= 2 && page_size % 2 == 0);
    *index = (struct prefix_index){
        .page_count = page_count,
        .page_size = page_size,
        .bucket_count = prefix_index_bucket_count(page_count),
        .key = {key[0], key[1]},
        .entries = entries,
        .tokens = tokens,
        .buckets = buckets,
    };
}

static uint32_t find_in_bucket(const struct prefix_index *index, uint32_t bucket, uint32_t group,
                               uint64_t parent, const uint32_t *tokens, uint64_t salt)
{
    for (uint32_t page = index->buckets[bucket]; page; page = index->entries[page].next) {
        const struct prefix_entry *entry = &index->entries[page];
        if (entry->parent == parent && entry->salt == salt && entry->group == group &&
            memcmp(prefix_index_tokens(index, page), tokens, index->page_size * sizeof *tokens) ==
                0)
            return page;
    }
    return 0;
}

static uint32_t bucket_of(const struct prefix_index *index, uint32_t group, uint64_t parent,
                          const uint32_t *tokens, uint64_t salt)
{
    return (uint32_t)hash_key(index, group, parent, tokens, salt) & (index->bucket_count - 1);
}

uint32_t prefix_index_find(const struct prefix_index *index, uint32_t group, uint64_t parent,
                           const uint32_t *tokens, uint64_t salt)
{
    uint32_t bucket = bucket_of(index, group, parent, tokens, salt);
    return find_in_bucket(index, bucket, group, parent, tokens, salt);
}

void prefix_index_restore(struct prefix_index *index, uint32_t page, uint64_t id, uint32_t group,
                          uint64_t parent, const uint32_t *tokens, uint64_t salt)
{
    CHECK(page > 0 && page < index->page_count && id > index->last_id);
    struct prefix_entry *entry = &index->entries[page];
    CHECK(entry->id == 0);
    uint32_t bucket = bucket_of(index, group, parent, tokens, salt);
    CHECK(find_in_bucket(index, bucket, group, parent, tokens, salt) == 0);
    *entry = (struct prefix_entry){
        .id = id,
        .parent = parent,
        .salt = salt,
        .bucket = bucket,
        .group = group,
        .next = index->buckets[bucket],
    };
    if (entry->next)
        index->entries[entry->next].previous = page;
    index->buckets[bucket] = page;
    memcpy(index->tokens + (uint64_t)page * index->page_size, tokens,
           index->page_size * sizeof *tokens);
    index->entry_count++;
    index->last_id = id;
}

uint64_t prefix_index_add(struct prefix_index *index, uint32_t page, uint32_t group,
                          uint64_t parent, const uint32_t *tokens, uint64_t salt)
{
    prefix_index_restore(index, page, index->last_id + 1, group, parent, tokens, salt);
    return index->last_id;
}

void prefix_index_remove(struct prefix_index *index, uint32_t page)
{
    CHECK(page > 0 && page < index->page_count);
    struct prefix_entry *entry = &index->entries[page];
    CHECK(entry->id != 0);
    if (entry->previous)
        index->entries[entry->previous].next = entry->next;
    else
        index->buckets[entry->bucket] = entry->next;
    if (entry->next)
        index->entries[entry->next].previous = entry->previous;
    *entry = (struct prefix_entry){0};
    index->entry_count--;
}

bool prefix_index_consistent(const struct prefix_index *index)
{
    uint32_t seen = 0;
    for (uint32_t bucket = 0; bucket < index->bucket_count; bucket++) {
        uint32_t previous = 0;
        for (uint32_t page = index->buckets[bucket]; page; page = index->entries[page].next) {
            const struct prefix_entry *entry = &index->entries[page];
            if (entry->id == 0 || entry->id > index->last_id || entry->parent >= entry->id ||
                entry->bucket != bucket || entry->previous != previous ||
                ++seen > index->entry_count)
                return false;
            previous = page;
        }
    }
    uint32_t with_entry = 0;
    for (uint32_t page = 0; page < index->page_count; page++)
        with_entry += index->entries[page].id != 0;
    return seen == index->entry_count && with_entry == seen && index->entries[0].id == 0;
}
