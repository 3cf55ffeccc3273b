/*
 * Constrained output's grammars: the one user of textgrammar.h. See grammar.h.
 *
 * It enters what the library's allocator counted in the budget and turns its failures into ours.
 * The limits below bound one matcher's memory and the time of one mask; what they cost was measured
 * over hostile schemas and expressions (tests/engine/constrain/test_grammar.c).
 */
#include "engine/constrain/grammar.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/minmax.h"
#include "textgrammar.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define COMPILE_BYTES (4u << 20)
#define COMPILE_BYTES_PER_BYTE 256u
#define VOCABULARY_BYTES_PER_TOKEN 512u /* measured: 430 to 450 for 49,152 to 152,000 tokens */

static const struct textgrammar_limits limits = {
    .compile_fuel = 60000, /* 15 MiB and 0.3 s at most; real schemas need up to 20,000 */
    .step_fuel = 200000,
    .step_items = 50000,
    .lexer_states = 16000,
    .grammar_symbols = 100000,
};

struct grammar_vocabulary {
    struct textgrammar_vocabulary *inner;
    const struct tokenizer *tokenizer;
    struct budget *budget;
    uint64_t bytes;
    bool (*evict)(void *arg);
    void *evict_arg;
};

struct grammar {
    atomic_uint ref_count;
    const struct textgrammar *inner;
    struct grammar_vocabulary *vocabulary;
    uint64_t bytes;
};

struct grammar_matcher {
    struct textgrammar_matcher *inner;
    struct grammar *grammar;
    uint64_t bytes;
    bool has_failed;
    struct textgrammar_error error;
};

uint64_t grammar_vocabulary_memory_bytes(uint32_t token_count)
{
    return (uint64_t)token_count * VOCABULARY_BYTES_PER_TOKEN + (1u << 20);
}

void grammar_vocabulary_set_evict(struct grammar_vocabulary *vocabulary, bool (*evict)(void *arg),
                                  void *arg)
{
    vocabulary->evict = evict;
    vocabulary->evict_arg = arg;
}

static bool take_room(struct grammar_vocabulary *vocabulary, uint64_t bytes)
{
    while (!budget_take(vocabulary->budget, BUDGET_GRAMMAR, bytes)) {
        if (!vocabulary->evict || !vocabulary->evict(vocabulary->evict_arg))
            return false;
    }
    return true;
}

static int token_at(void *arg, uint32_t id, const char **bytes, size_t *length)
{
    const struct tokenizer *tokenizer = arg;
    if (tokenizer_is_control(tokenizer, id) || tokenizer_is_end(tokenizer, id)) {
        *bytes = tokenizer_text(tokenizer, id, length);
        return 1;
    }
    *bytes = tokenizer_piece(tokenizer, id, length);
    return 0;
}

static size_t tokenize(void *arg, const char *text, size_t length, uint32_t *ids, size_t capacity)
{
    uint32_t *tokens;
    size_t count;
    if (tokenizer_encode(arg, text, length, 0, 0, capacity, &tokens, &count, NULL) != STATUS_OK)
        return 0;
    for (size_t i = 0; i < count; i++)
        ids[i] = tokens[i];
    free(tokens);
    return count;
}

enum status grammar_vocabulary_create(const struct tokenizer *tokenizer, struct budget *budget,
                                      struct grammar_vocabulary **out, struct error *error)
{
    uint32_t count = tokenizer_vocabulary(tokenizer), end_count = 0;
    uint32_t ends[16];
    for (uint32_t id = 0; id < count && end_count < 16; id++)
        if (tokenizer_is_end(tokenizer, id))
            ends[end_count++] = id;
    struct grammar_vocabulary *vocabulary = calloc(1, sizeof(*vocabulary));
    if (!vocabulary)
        return error_set(error, STATUS_IO, NULL, "no memory for the grammars' vocabulary");
    *vocabulary = (struct grammar_vocabulary){
        .tokenizer = tokenizer,
        .budget = budget,
        .bytes = grammar_vocabulary_memory_bytes(count),
    };
    struct textgrammar_error failure;
    if (!budget_take(budget, BUDGET_GRAMMAR, vocabulary->bytes)) {
        free(vocabulary);
        return error_set(error, STATUS_TOO_LARGE, NULL, "no room for the grammars' vocabulary");
    }
    int status = textgrammar_vocabulary_new(count, token_at, tokenize, (void *)(uintptr_t)tokenizer,
                                            ends, end_count, &limits, &vocabulary->inner, &failure);
    if (status != TEXTGRAMMAR_OK) {
        grammar_vocabulary_destroy(vocabulary);
        return error_set(error, STATUS_INVALID, NULL, "%s", failure.message);
    }
    if (textgrammar_vocabulary_bytes(vocabulary->inner) > vocabulary->bytes) {
        grammar_vocabulary_destroy(vocabulary);
        return error_set(error, STATUS_TOO_LARGE, NULL,
                         "the grammars' vocabulary takes more memory than was reserved");
    }
    *out = vocabulary;
    return STATUS_OK;
}

void grammar_vocabulary_destroy(struct grammar_vocabulary *vocabulary)
{
    if (!vocabulary)
        return;
    textgrammar_vocabulary_free(vocabulary->inner);
    budget_give(vocabulary->budget, BUDGET_GRAMMAR, vocabulary->bytes);
    free(vocabulary);
}

static enum status compile_error(struct error *error, int status,
                                 const struct textgrammar_error *failure)
{
    const char *reason = status == TEXTGRAMMAR_PANIC ? "it cannot be read" : failure->message;
    if (failure->path[0])
        return error_set(error, STATUS_INVALID, NULL, "%s: %s", failure->path, reason);
    return error_set(error, STATUS_INVALID, NULL, "%s", reason);
}

/* What compiling takes besides: regular expressions by their fuel, the rest by the source's length
   (measured: up to 250 bytes for each), but never more than half of the room for grammars, so that
   the other half is there for what runs. */
static uint64_t compile_bytes(const struct grammar_vocabulary *vocabulary, size_t length)
{
    uint64_t room = vocabulary->budget->cap_bytes[BUDGET_GRAMMAR] - vocabulary->bytes;
    return min_u64(COMPILE_BYTES + length * COMPILE_BYTES_PER_BYTE, room / 2);
}

enum status grammar_compile(struct grammar_vocabulary *vocabulary, enum grammar_kind kind,
                            const char *source, size_t length, struct grammar **out,
                            struct error *error)
{
    static const int kinds[] = {
        [GRAMMAR_JSON_SCHEMA] = TEXTGRAMMAR_JSON_SCHEMA,
        [GRAMMAR_REGEX] = TEXTGRAMMAR_REGEX,
        [GRAMMAR_CHOICE] = TEXTGRAMMAR_CHOICE,
        [GRAMMAR_GRAMMAR] = TEXTGRAMMAR_GRAMMAR,
    };
    static const size_t limits_of[] = {
        [GRAMMAR_JSON_SCHEMA] = LIMIT_SCHEMA_BYTES,
        [GRAMMAR_REGEX] = LIMIT_REGEX_BYTES,
        [GRAMMAR_CHOICE] = LIMIT_SCHEMA_BYTES,
        [GRAMMAR_GRAMMAR] = LIMIT_GRAMMAR_BYTES,
    };
    size_t most = limits_of[kind];
    if (length > most)
        return error_set(error, STATUS_INVALID, NULL, "it has %zu bytes; at most %zu are taken",
                         length, most);
    struct grammar *grammar = calloc(1, sizeof(*grammar));
    if (!grammar)
        return error_set(error, STATUS_BUSY, NULL, "no memory for another grammar");
    uint64_t held = compile_bytes(vocabulary, length);
    if (!take_room(vocabulary, held)) {
        free(grammar);
        return error_set(error, STATUS_BUSY, NULL, "no room to compile another grammar");
    }
    struct textgrammar_error failure = {0};
    int status = textgrammar_compile(vocabulary->inner, kinds[kind], source, length,
                                     &grammar->inner, &failure);
    budget_give(vocabulary->budget, BUDGET_GRAMMAR, held);
    if (status != TEXTGRAMMAR_OK) {
        free(grammar);
        return compile_error(error, status, &failure);
    }
    atomic_init(&grammar->ref_count, 1);
    grammar->vocabulary = vocabulary;
    uint64_t bytes = textgrammar_bytes(grammar->inner);
    uint64_t room = vocabulary->budget->cap_bytes[BUDGET_GRAMMAR] - vocabulary->bytes;
    if (bytes > room) {
        textgrammar_free(grammar->inner);
        free(grammar);
        return error_set(error, STATUS_INVALID, NULL,
                         "compiled it takes more memory than this server has for grammars");
    }
    if (!take_room(vocabulary, bytes)) {
        textgrammar_free(grammar->inner);
        free(grammar);
        return error_set(error, STATUS_BUSY, NULL, "no room for another grammar");
    }
    grammar->bytes = bytes;
    *out = grammar;
    return STATUS_OK;
}

struct grammar *grammar_take(struct grammar *grammar)
{
    atomic_fetch_add(&grammar->ref_count, 1);
    return grammar;
}

void grammar_release(struct grammar *grammar)
{
    if (!grammar || atomic_fetch_sub(&grammar->ref_count, 1) != 1)
        return;
    textgrammar_free(grammar->inner);
    budget_give(grammar->vocabulary->budget, BUDGET_GRAMMAR, grammar->bytes);
    free(grammar);
}

bool grammar_is_shared(const struct grammar *grammar)
{
    return atomic_load(&grammar->ref_count) > 1;
}

uint64_t grammar_bytes(const struct grammar *grammar)
{
    return grammar->bytes;
}

/* What the matcher has grown by is entered now that it is known; false when there is no room. */
static bool enter_growth(struct grammar_matcher *matcher)
{
    uint64_t bytes = textgrammar_matcher_bytes(matcher->inner);
    if (bytes <= matcher->bytes)
        return true;
    /* By steps of 64 KiB, so that most calls change nothing. */
    uint64_t rounded = (bytes + 65535) & ~UINT64_C(65535);
    if (!take_room(matcher->grammar->vocabulary, rounded - matcher->bytes)) {
        snprintf(matcher->error.message, sizeof(matcher->error.message),
                 "no room for the constraint of this answer");
        return false;
    }
    matcher->bytes = rounded;
    return true;
}

/* Every call's end: a status of the library, then the budget. */
static bool finish_call(struct grammar_matcher *matcher, int status)
{
    matcher->has_failed = status != TEXTGRAMMAR_OK || !enter_growth(matcher);
    return !matcher->has_failed;
}

struct grammar_matcher *grammar_matcher_create(struct grammar *grammar)
{
    struct grammar_matcher *matcher = calloc(1, sizeof(*matcher));
    if (!matcher)
        return NULL;
    matcher->grammar = grammar_take(grammar);
    matcher->inner = textgrammar_matcher_new(grammar->inner, &matcher->error);
    if (!matcher->inner || !enter_growth(matcher)) {
        grammar_matcher_destroy(matcher);
        return NULL;
    }
    return matcher;
}

void grammar_matcher_destroy(struct grammar_matcher *matcher)
{
    if (!matcher)
        return;
    textgrammar_matcher_free(matcher->inner);
    budget_give(matcher->grammar->vocabulary->budget, BUDGET_GRAMMAR, matcher->bytes);
    grammar_release(matcher->grammar);
    free(matcher);
}

bool grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *allowed, size_t words)
{
    if (matcher->has_failed)
        return false;
    return finish_call(matcher,
                       textgrammar_matcher_mask(matcher->inner, allowed, words, &matcher->error));
}

uint32_t grammar_matcher_forced(struct grammar_matcher *matcher, uint32_t *tokens,
                                uint32_t capacity)
{
    size_t count = 0;
    if (matcher->has_failed || capacity == 0)
        return 0;
    if (!finish_call(matcher, textgrammar_matcher_forced(matcher->inner, tokens, capacity, &count,
                                                         &matcher->error)))
        return 0;
    return (uint32_t)count;
}

bool grammar_matcher_accept(struct grammar_matcher *matcher, const uint32_t *tokens, uint32_t count,
                            bool *ended)
{
    int end = 0;
    *ended = false;
    if (matcher->has_failed)
        return false;
    bool ok = finish_call(
        matcher, textgrammar_matcher_accept(matcher->inner, tokens, count, &end, &matcher->error));
    *ended = ok && end;
    return ok;
}

const char *grammar_matcher_error(const struct grammar_matcher *matcher)
{
    return matcher->has_failed ? matcher->error.message : "";
}
