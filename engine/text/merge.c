/*
 * The merge table and the merging loop.
 *
 * Short pieces (most words) look for the least key by scanning a list; long ones keep a heap whose
 * entries may be stale. A stale entry is known by its key: the pair that now starts there has
 * another one. (If the keys are equal, the pair has an entry of its own with this very key and
 * place, and merging now is what that entry would do next.)
 */
#include "engine/text/merge.h"

#include "base/check.h"
#include "base/minmax.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MERGES "tokenizer.ggml.merges"
/* Some vocabularies merge runs of hundreds of spaces, two bytes each. */
#define MERGE_TEXT_MAX 4096
#define TOKEN_BITS 20 /* LIMIT_VOCABULARY is 2^20 */
#define PAIR_MASK (((uint64_t)1 << (2 * TOKEN_BITS)) - 1)
#define MERGES_MAX ((uint64_t)1 << 23) /* ranks have 24 bits, and all ones means free */
#define SLOT_FREE UINT64_MAX
#define SCAN_MAX 48 /* bytes; up to here scanning is quicker than a heap */

/* ---- The table. ---- */

static uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << TOKEN_BITS | right;
}

static uint32_t pair_hash(uint64_t pair)
{
    uint64_t hash = pair * 0x9e3779b97f4a7c15u;
    return (uint32_t)((hash ^ hash >> 29) >> 16);
}

uint32_t merge_table_find(const struct merge_table *table, uint32_t left, uint32_t right,
                          uint32_t *merged)
{
    uint64_t pair = pair_of(left, right);
    uint32_t slot = pair_hash(pair) & table->mask;
    while (table->keys[slot] != SLOT_FREE) {
        if ((table->keys[slot] & PAIR_MASK) == pair) {
            *merged = table->merged[slot];
            return (uint32_t)(table->keys[slot] >> (2 * TOKEN_BITS));
        }
        slot = (slot + 1) & table->mask;
    }
    return MERGE_NONE;
}

static void table_put(struct merge_table *table, uint64_t pair, uint64_t rank, uint32_t merged)
{
    uint32_t slot = pair_hash(pair) & table->mask;
    while (table->keys[slot] != SLOT_FREE) {
        if ((table->keys[slot] & PAIR_MASK) == pair)
            return; /* there twice: the first, stronger rank stays */
        slot = (slot + 1) & table->mask;
    }
    table->keys[slot] = rank << (2 * TOKEN_BITS) | pair;
    table->merged[slot] = merged;
}

static enum status bad_merge(uint64_t rank, struct gguf_string text, const char *why,
                             struct error *error)
{
    return error_set(error, STATUS_INVALID, NULL,
                     "key '" KEY_MERGES "': merge %" PRIu64 " ('%.*s') %s", rank,
                     (int)min_u64(text.length, 48), text.text, why);
}

/* "left right": tokens hold no spaces in byte-level coding, so there is exactly one. */
static enum status table_add(struct merge_table *table, const struct vocabulary *vocabulary,
                             const struct token_index *texts, uint64_t rank,
                             struct gguf_string text, struct error *error)
{
    char joined[MERGE_TEXT_MAX];
    const char *space = text.length > 0 ? memchr(text.text, ' ', text.length) : NULL;
    if (!space || text.length > sizeof joined)
        return bad_merge(rank, text, "is not two tokens", error);
    size_t left_length = (size_t)(space - text.text);
    size_t right_length = text.length - left_length - 1;
    memcpy(joined, text.text, left_length);
    memcpy(joined + left_length, space + 1, right_length);
    uint32_t left = token_index_find(texts, vocabulary, text.text, left_length);
    uint32_t right = token_index_find(texts, vocabulary, space + 1, right_length);
    uint32_t merged = token_index_find(texts, vocabulary, joined, left_length + right_length);
    if (left == TOKEN_NONE || right == TOKEN_NONE || merged == TOKEN_NONE)
        return bad_merge(rank, text, "names a token that is not in the vocabulary", error);
    table_put(table, pair_of(left, right), rank, merged);
    return STATUS_OK;
}

enum status merge_table_load(const struct gguf *gguf, const struct vocabulary *vocabulary,
                             const struct token_index *texts, struct merge_table *out,
                             struct error *error)
{
    *out = (struct merge_table){0};
    enum gguf_type element;
    uint64_t count;
    enum status status = gguf_array_count(gguf, KEY_MERGES, &element, &count, error);
    if (status == STATUS_NOT_FOUND)
        return error_set(error, STATUS_INVALID, NULL,
                         "the model file has no merges (key '" KEY_MERGES "')");
    if (status != STATUS_OK)
        return status;
    if (element != GGUF_STRING || count > MERGES_MAX)
        return error_set(error, STATUS_INVALID, NULL,
                         "key '" KEY_MERGES "' is not an array of at most %" PRIu64 " strings",
                         MERGES_MAX);
    uint32_t capacity = 16;
    while (capacity < count + count / 3)
        capacity *= 2;
    out->mask = capacity - 1;
    out->keys = malloc(capacity * sizeof *out->keys);
    out->merged = malloc(capacity * sizeof *out->merged);
    if (!out->keys || !out->merged) {
        merge_table_deinit(out);
        return error_set(error, STATUS_IO, NULL, "no memory for the merges");
    }
    memset(out->keys, 0xff, capacity * sizeof *out->keys);
    uint64_t cursor = 0;
    struct gguf_string text;
    for (uint64_t rank = 0; gguf_array_next_string(gguf, KEY_MERGES, &cursor, &text); rank++) {
        status = table_add(out, vocabulary, texts, rank, text, error);
        if (status != STATUS_OK) {
            merge_table_deinit(out);
            return status;
        }
    }
    return STATUS_OK;
}

void merge_table_deinit(struct merge_table *table)
{
    free(table->keys);
    free(table->merged);
    *table = (struct merge_table){0};
}

uint64_t merge_table_memory_bytes(const struct merge_table *table)
{
    return table->keys ? ((uint64_t)table->mask + 1) * (sizeof *table->keys + sizeof *table->merged)
                       : 0;
}

/* ---- The loop. ---- */

void merger_init(struct merger *merger,
                 uint32_t (*find)(const void *arg, const struct merge_symbol *symbols,
                                  const char *piece, uint32_t left, uint32_t right,
                                  uint32_t *merged),
                 const void *arg)
{
    *merger = (struct merger){.find = find, .arg = arg};
}

void merger_deinit(struct merger *merger)
{
    free(merger->symbols);
    free(merger->heap);
    merger->symbols = NULL;
    merger->heap = NULL;
    merger->capacity = 0;
}

bool merger_reserve(struct merger *merger, size_t length)
{
    CHECK(length <= MERGE_PIECE_MAX);
    if (length <= merger->capacity)
        return true;
    size_t capacity = length < 256 ? 256 : length + length / 2;
    if (capacity > MERGE_PIECE_MAX)
        capacity = MERGE_PIECE_MAX;
    /* A pair at each symbol at first, and each merge takes one entry off and puts at most two on.
     */
    merger_deinit(merger);
    merger->symbols = malloc(capacity * sizeof *merger->symbols);
    merger->heap = malloc(2 * capacity * sizeof *merger->heap);
    if (!merger->symbols || !merger->heap) {
        merger_deinit(merger);
        return false;
    }
    merger->capacity = capacity;
    return true;
}

/* Join the symbol at `left` with the one after it. */
static void join(struct merge_symbol *symbols, uint32_t left, uint32_t length, uint32_t merged)
{
    uint32_t after = symbols[symbols[left].next].next;
    symbols[left].token = merged;
    symbols[left].next = after;
    if (after < length)
        symbols[after].prev = left;
}

/* The key of the pair that starts at `left`, or MERGE_NONE. */
static uint32_t pair_key(const struct merger *merger, const char *piece, uint32_t left,
                         uint32_t length, uint32_t *merged)
{
    uint32_t right = merger->symbols[left].next;
    if (right >= length)
        return MERGE_NONE;
    return merger->find(merger->arg, merger->symbols, piece, left, right, merged);
}

/* Keys are kept in step with the list, so that each merge costs one scan and two look-ups. */
static void run_scanning(struct merger *merger, const char *piece, uint32_t first, uint32_t length)
{
    uint32_t keys[SCAN_MAX], merged[SCAN_MAX];
    struct merge_symbol *symbols = merger->symbols;
    for (uint32_t i = first; i < length; i = symbols[i].next)
        keys[i] = pair_key(merger, piece, i, length, &merged[i]);
    for (;;) {
        uint32_t best = first;
        for (uint32_t i = symbols[first].next; i < length; i = symbols[i].next)
            if (keys[i] < keys[best])
                best = i;
        if (keys[best] == MERGE_NONE)
            return;
        join(symbols, best, length, merged[best]);
        keys[best] = pair_key(merger, piece, best, length, &merged[best]);
        if (symbols[best].prev != TOKEN_NONE) {
            uint32_t before = symbols[best].prev;
            keys[before] = pair_key(merger, piece, before, length, &merged[before]);
        }
    }
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry)
{
    size_t at = (*count)++;
    while (at > 0 && heap[(at - 1) / 2] > entry) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    uint64_t top = heap[0];
    uint64_t last = heap[--*count];
    size_t at = 0;
    for (size_t child = 1; child < *count; child = 2 * at + 1) {
        if (child + 1 < *count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

static void run_heap(struct merger *merger, const char *piece, uint32_t first, uint32_t length)
{
    struct merge_symbol *symbols = merger->symbols;
    uint64_t *heap = merger->heap;
    size_t count = 0;
    uint32_t merged = TOKEN_NONE;
    for (uint32_t i = first; i < length; i = symbols[i].next) {
        uint32_t key = pair_key(merger, piece, i, length, &merged);
        if (key != MERGE_NONE)
            heap_push(heap, &count, (uint64_t)key << 32 | i);
    }
    while (count > 0) {
        uint64_t entry = heap_pop(heap, &count);
        uint32_t left = (uint32_t)entry, key = (uint32_t)(entry >> 32);
        /* A symbol that was merged into another has next 0, which no live one has. */
        if (symbols[left].next == 0 || pair_key(merger, piece, left, length, &merged) != key)
            continue;
        uint32_t right = symbols[left].next;
        join(symbols, left, length, merged);
        symbols[right].next = 0;
        CHECK(count + 2 <= 2 * merger->capacity);
        key = pair_key(merger, piece, left, length, &merged);
        if (key != MERGE_NONE)
            heap_push(heap, &count, (uint64_t)key << 32 | left);
        uint32_t before = symbols[left].prev;
        key = before != TOKEN_NONE ? pair_key(merger, piece, before, length, &merged) : MERGE_NONE;
        if (key != MERGE_NONE)
            heap_push(heap, &count, (uint64_t)key << 32 | before);
    }
}

void merger_run(struct merger *merger, const char *piece, uint32_t first, uint32_t length)
{
    CHECK(length <= merger->capacity);
    if (first >= length)
        return;
    if (length <= SCAN_MAX)
        run_scanning(merger, piece, first, length);
    else
        run_heap(merger, piece, first, length);
}
