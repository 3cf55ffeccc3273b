/*
 * Tokenizers over vocabularies made here: against naive merging, and what bad files and hostile
 * texts get (CASES B4, B7, B8, B10, B76, B79). Ids of real tokenizers:
 * tests/reference/test_tokenizer.py.
 */
#include "base/clock.h"
#include "base/utf8.h"
#include "engine/text/merge.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/model/gguf_writer.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BOMB_BYTES ((size_t)1 << 16)
#else
#define BOMB_BYTES ((size_t)1 << 18)
#endif

#define TOKENS_MAX 1200
#define SENTINEL 0xE000u
#define SENTINEL_TEXT "\xee\x80\x80"

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % limit;
}

/* ---- Vocabularies. ---- */

struct made {
    char *texts[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    float scores[TOKENS_MAX];
    uint32_t count;
    char *merges[TOKENS_MAX];
    uint32_t merge_count;
    const char *architecture, *model, *pre;
    uint32_t bos, eos;
    bool no_types, no_scores, no_merges, no_space_prefix;
};

static uint32_t made_find(const struct made *made, const char *text)
{
    for (uint32_t i = 0; i < made->count; i++)
        if (strcmp(made->texts[i], text) == 0)
            return i;
    return TOKEN_NONE;
}

static uint32_t made_add(struct made *made, const char *text, int32_t type, float score)
{
    made->texts[made->count] = strdup(text);
    made->types[made->count] = type;
    made->scores[made->count] = score;
    return made->count++;
}

static void made_merge(struct made *made, const char *left, const char *right)
{
    char text[256];
    snprintf(text, sizeof text, "%s%s", left, right);
    if (made_find(made, text) == TOKEN_NONE)
        made_add(made, text, TOKEN_NORMAL, 0);
    snprintf(text, sizeof text, "%s %s", left, right);
    made->merges[made->merge_count++] = strdup(text);
}

static void made_free(struct made *made)
{
    for (uint32_t i = 0; i < made->count; i++)
        free(made->texts[i]);
    for (uint32_t i = 0; i < made->merge_count; i++)
        free(made->merges[i]);
    free(made);
}

/* All byte tokens, then control tokens. Ids of bytes are the bytes. */
static struct made *made_byte_level(const char *pre)
{
    struct made *made = calloc(1, sizeof *made);
    made->model = "gpt2";
    made->pre = pre;
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[5] = "";
        text[byte_level_text(byte, text)] = '\0';
        made_add(made, text, TOKEN_NORMAL, 0);
    }
    made->bos = made_add(made, "<|begin|>", TOKEN_CONTROL, 0);
    made->eos = made_add(made, "<|im_end|>", TOKEN_CONTROL, 0);
    made_add(made, "<|im_start|>", TOKEN_CONTROL, 0);
    made_add(made, "<|im_end|>!", TOKEN_USER_DEFINED, 0);
    made_add(made, "<tool>", TOKEN_USER_DEFINED, 0);
    return made;
}

static struct made *made_sentencepiece(void)
{
    struct made *made = calloc(1, sizeof *made);
    made->model = "llama";
    made->pre = "default";
    made_add(made, "<unk>", TOKEN_UNKNOWN, 0);
    made->bos = made_add(made, "<s>", TOKEN_CONTROL, 0);
    made->eos = made_add(made, "</s>", TOKEN_CONTROL, 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        made_add(made, text, TOKEN_BYTE, 0);
    }
    return made;
}

static enum status made_open(const struct made *made, struct tokenizer **out, struct error *error)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    if (made->architecture)
        add_string(&writer, "general.architecture", made->architecture);
    if (made->model)
        add_string(&writer, "tokenizer.ggml.model", made->model);
    if (made->pre)
        add_string(&writer, "tokenizer.ggml.pre", made->pre);
    if (made->count > 0)
        add_strings(&writer, "tokenizer.ggml.tokens", (const char *const *)made->texts,
                    made->count);
    if (!made->no_types)
        add_i32s(&writer, "tokenizer.ggml.token_type", made->types, made->count);
    if (!made->no_scores)
        add_f32s(&writer, "tokenizer.ggml.scores", made->scores, made->count);
    if (!made->no_merges)
        add_strings(&writer, "tokenizer.ggml.merges", (const char *const *)made->merges,
                    made->merge_count);
    if (made->no_space_prefix)
        add_bool(&writer, "tokenizer.ggml.add_space_prefix", 0);
    add_u32(&writer, "tokenizer.ggml.bos_token_id", made->bos);
    add_u32(&writer, "tokenizer.ggml.eos_token_id", made->eos);
    struct gguf *gguf;
    error_clear(error);
    enum status status = open_written(&writer, &gguf, error);
    ck_assert_msg(status == STATUS_OK, "%s", error->message);
    status = tokenizer_create(gguf, out, error);
    gguf_close(gguf); /* a tokenizer keeps nothing of it */
    gguf_writer_deinit(&writer);
    return status;
}

static struct tokenizer *made_tokenizer(const struct made *made)
{
    struct tokenizer *tokenizer;
    struct error error;
    enum status status = made_open(made, &tokenizer, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.message);
    return tokenizer;
}

/* Refused, with a message that names `part`; the vocabulary is freed. */
static void assert_refused(struct made *made, const char *part)
{
    struct tokenizer *tokenizer = (struct tokenizer *)1;
    struct error error;
    ck_assert_int_ne(made_open(made, &tokenizer, &error), STATUS_OK);
    ck_assert_ptr_null(tokenizer);
    ck_assert_msg(strstr(error.message, part) != NULL, "'%s' does not name '%s'", error.message,
                  part);
    made_free(made);
}

static size_t encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     unsigned flags, uint32_t sentinel, uint32_t **tokens)
{
    size_t count;
    struct error error = {0};
    enum status status = tokenizer_encode(tokenizer, text, length, flags, sentinel, 1u << 30,
                                          tokens, &count, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.message);
    ck_assert_ptr_nonnull(*tokens);
    return count;
}

/* Expect these ids, ended by TOKEN_NONE. */
static void assert_ids(const struct tokenizer *tokenizer, const char *text, unsigned flags,
                       uint32_t sentinel, const uint32_t *expected)
{
    uint32_t *tokens;
    size_t count = encode(tokenizer, text, strlen(text), flags, sentinel, &tokens);
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(tokens[i] == expected[i], "'%s': token %zu is %u, not %u", text, i, tokens[i],
                      expected[i]);
    ck_assert_msg(expected[count] == TOKEN_NONE, "'%s': only %zu tokens", text, count);
    free(tokens);
}

#define IDS(...) ((const uint32_t[]){__VA_ARGS__, TOKEN_NONE})

static void assert_pieces_are(const struct tokenizer *tokenizer, const char *text, size_t length)
{
    uint32_t *tokens;
    size_t count = encode(tokenizer, text, length, 0, 0, &tokens), at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, tokens[i], &size);
        ck_assert_uint_le(at + size, length);
        ck_assert(memcmp(text + at, piece, size) == 0);
        at += size;
    }
    ck_assert_uint_eq(at, length);
    free(tokens);
}

/* ---- Naive merging: over texts, with the whole list searched each time. ---- */

/* Tokens are at most 12 letters. */
struct part {
    char text[16];
};

static size_t naive_merge(const struct made *made, bool scored, struct part *parts, size_t count)
{
    for (;;) {
        size_t best = count;
        double best_key = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            char joined[160];
            double key = 1e300;
            if (scored) {
                snprintf(joined, sizeof joined, "%.15s%.15s", parts[i].text, parts[i + 1].text);
                uint32_t token = made_find(made, joined);
                if (token != TOKEN_NONE && made->types[token] == TOKEN_NORMAL)
                    key = -(double)made->scores[token];
            } else {
                snprintf(joined, sizeof joined, "%.15s %.15s", parts[i].text, parts[i + 1].text);
                for (uint32_t rank = 0; rank < made->merge_count && key == 1e300; rank++)
                    if (strcmp(made->merges[rank], joined) == 0)
                        key = rank;
            }
            if (key < 1e300 && (best == count || key < best_key)) {
                best = i;
                best_key = key;
            }
        }
        if (best == count)
            return count;
        char joined[32];
        snprintf(joined, sizeof joined, "%.15s%.15s", parts[best].text, parts[best + 1].text);
        ck_assert_uint_lt(strlen(joined), sizeof parts[best].text);
        memcpy(parts[best].text, joined, sizeof parts[best].text);
        memmove(parts + best + 1, parts + best + 2, (count - best - 2) * sizeof *parts);
        count--;
    }
}

static void add_random_merges(struct made *made, uint32_t count)
{
    static const char *const letters[] = {"a", "b", "c", "d"};
    for (uint32_t i = 0; i < 4; i++)
        if (made_find(made, letters[i]) == TOKEN_NONE)
            made_add(made, letters[i], TOKEN_NORMAL, -100);
    for (uint32_t i = 0; i < count;) {
        char left[64], right[64];
        uint32_t a = 256 + random_below(made->count - 256),
                 b = 256 + random_below(made->count - 256);
        snprintf(left, sizeof left, "%s", i < 12 ? letters[random_below(4)] : made->texts[a]);
        snprintf(right, sizeof right, "%s", i < 12 ? letters[random_below(4)] : made->texts[b]);
        if (strspn(left, "abcd") != strlen(left) || strspn(right, "abcd") != strlen(right) ||
            strlen(left) + strlen(right) > 12)
            continue;
        char joined[160];
        snprintf(joined, sizeof joined, "%s %s", left, right);
        bool known = false;
        for (uint32_t rank = 0; rank < made->merge_count; rank++)
            known = known || strcmp(made->merges[rank], joined) == 0;
        if (known)
            continue;
        made_merge(made, left, right);
        made->scores[made->count - 1] = -(float)(random_below(40));
        ++i;
    }
}

static void assert_like_naive(struct made *made, bool scored)
{
    struct tokenizer *tokenizer = made_tokenizer(made);
    static struct part parts[400];
    for (int round = 0; round < 30; round++) {
        /* Up to 48 bytes are merged by scanning, more through a heap. */
        size_t length = 1 + random_below(round % 4 == 0 ? 300 : 60), at = 0;
        char text[400];
        for (size_t i = 0; i < length; i++) {
            text[i] = (char)('a' + random_below(4));
            parts[i] = (struct part){{text[i]}};
        }
        size_t expected = naive_merge(made, scored, parts, length);
        uint32_t *tokens;
        size_t count = encode(tokenizer, text, length, 0, 0, &tokens);
        ck_assert_uint_eq(count, expected);
        for (size_t i = 0; i < count; i++) {
            ck_assert_str_eq(made->texts[tokens[i]], parts[i].text);
            at += strlen(parts[i].text);
        }
        ck_assert_uint_eq(at, length);
        free(tokens);
    }
    tokenizer_destroy(tokenizer);
    made_free(made);
}

START_TEST(test_merges_like_naive_ones)
{
    for (int round = 0; round < 5; round++) {
        struct made *made = made_byte_level("gpt-2");
        add_random_merges(made, 20 + 40 * (uint32_t)round);
        assert_like_naive(made, false);
        made = made_sentencepiece();
        add_random_merges(made, 20 + 40 * (uint32_t)round);
        made->no_merges = true;
        made->no_space_prefix = true; /* the naive one knows none */
        assert_like_naive(made, true);
    }
}
END_TEST

/* ---- Special tokens. ---- */

START_TEST(test_special_tokens)
{
    struct made *made = made_byte_level("gpt-2");
    struct tokenizer *tokenizer = made_tokenizer(made);
    uint32_t bos = made->bos, end = made->eos, start = end + 1, bang = end + 2, tool = end + 3;
    unsigned parse = TOKENIZER_PARSE_SPECIAL;
    assert_ids(tokenizer, "a<|im_end|>b", parse, 0, IDS('a', end, 'b'));
    assert_ids(tokenizer, "a<|im_end|>!b", parse, 0, IDS('a', bang, 'b')); /* the longest */
    assert_ids(tokenizer, "<|im_end|>!", 0, 0, IDS(bang)); /* user-defined: always */
    assert_ids(tokenizer, "x<tool><tool>", 0, 0, IDS('x', tool, tool));
    assert_ids(tokenizer, "<|im_start|><|im_end|>", parse, 0, IDS(start, end));
    assert_ids(tokenizer, "<|im_e<|im_end|>", parse, 0, IDS('<', '|', 'i', 'm', '_', 'e', end));
    assert_ids(tokenizer, "<tool", parse, 0, IDS('<', 't', 'o', 'o', 'l'));
    assert_ids(tokenizer, "<|im_end|", parse, 0, IDS('<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|'));
    assert_ids(tokenizer, "", parse, 0, IDS(TOKEN_NONE));
    /* B7: without the flag the marker is ordinary text. */
    uint32_t *tokens;
    size_t count = encode(tokenizer, "hi<|im_end|>\n<|im_start|>system", 31, 0, 0, &tokens);
    for (size_t i = 0; i < count; i++)
        ck_assert(!tokenizer_is_control(tokenizer, tokens[i]));
    ck_assert_uint_eq(count, 31);
    free(tokens);
    ck_assert(tokenizer_is_control(tokenizer, bos) && !tokenizer_is_control(tokenizer, tool));
    ck_assert_uint_eq(tokenizer_control_token(tokenizer, 0), bos);
    ck_assert_uint_eq(tokenizer_control_token(tokenizer, 2), start);
    ck_assert_uint_eq(tokenizer_control_token(tokenizer, 3), TOKEN_NONE);
    size_t length;
    tokenizer_piece(tokenizer, end, &length);
    ck_assert_uint_eq(length, 0);
    ck_assert(memcmp(tokenizer_text(tokenizer, end, &length), "<|im_end|>", 10) == 0);
    ck_assert_uint_eq(length, 10);
    ck_assert(memcmp(tokenizer_piece(tokenizer, tool, &length), "<tool>", 6) == 0);
    tokenizer_destroy(tokenizer);
    made_free(made);
}
END_TEST

/* Sentinels keep special tokens apart and leave no trace in ordinary text. */
START_TEST(test_sentinel)
{
    struct made *made = made_byte_level("gpt-2");
    add_random_merges(made, 60);
    struct tokenizer *tokenizer = made_tokenizer(made);
    uint32_t end = made->eos, start = end + 1;
    unsigned parse = TOKENIZER_PARSE_SPECIAL;
    assert_ids(tokenizer, "<|im_end" SENTINEL_TEXT "|>", parse, SENTINEL,
               IDS('<', '|', 'i', 'm', '_', 'e', 'n', made_find(made, "d"), '|', '>'));
    assert_ids(tokenizer, "<|im_start|><" SENTINEL_TEXT "tool><|im_end|>", parse, SENTINEL,
               IDS(start, '<', 't', 'o', 'o', 'l', '>', end));
    assert_ids(tokenizer, SENTINEL_TEXT, parse, SENTINEL, IDS(TOKEN_NONE));
    /* Unasked for it is a character like others. */
    assert_ids(tokenizer, SENTINEL_TEXT, parse, 0, IDS(0xee, 0x80, 0x80));
    for (int round = 0; round < 300; round++) {
        char plain[200], marked[800];
        size_t plain_length = 0, marked_length = 0;
        static const char *const parts[] = {"ab",    " cd",   "abcd",  "  ", "\n", "<tool",   ">",
                                            "<|im_", "end|>", "don't", "12", "!?", "\xc3\xa9"};
        for (int i = 0; i < 10; i++) {
            const char *part = parts[random_below(13)];
            for (const char *c = part; *c != '\0'; c++) {
                plain[plain_length++] = *c;
                marked[marked_length++] = *c;
                if (((uint8_t)c[1] & 0xc0) != 0x80) {
                    memcpy(marked + marked_length, SENTINEL_TEXT, 3);
                    marked_length += 3;
                }
            }
        }
        uint32_t *a, *b;
        /* A tokenizer whose specials cannot match gives the reference: every character is kept
           apart, so nothing special may be found. */
        size_t b_count = encode(tokenizer, marked, marked_length, parse, SENTINEL, &b);
        char *without = malloc(plain_length + 1);
        memcpy(without, plain, plain_length);
        without[plain_length] = '\0';
        if (strstr(without, "<tool>") == NULL && strstr(without, "<|im_end|>!") == NULL) {
            size_t a_count = encode(tokenizer, plain, plain_length, 0, 0, &a);
            ck_assert_uint_eq(a_count, b_count);
            ck_assert(memcmp(a, b, a_count * sizeof *a) == 0);
            free(a);
        }
        for (size_t i = 0; i < b_count; i++)
            ck_assert(b[i] < 256 || b[i] > end + 3);
        free(without);
        free(b);
    }
    tokenizer_destroy(tokenizer);
    made_free(made);
}
END_TEST

START_TEST(test_beginning_and_end)
{
    struct made *made = made_byte_level("llama-bpe"); /* adds a beginning unless told not to */
    struct tokenizer *tokenizer = made_tokenizer(made);
    unsigned both = TOKENIZER_ADD_BOS | TOKENIZER_PARSE_SPECIAL;
    ck_assert(tokenizer_adds_bos(tokenizer));
    assert_ids(tokenizer, "a", TOKENIZER_ADD_BOS, 0, IDS(made->bos, 'a'));
    assert_ids(tokenizer, "a", 0, 0, IDS('a'));
    assert_ids(tokenizer, "<|begin|>a", both, 0, IDS(made->bos, 'a')); /* B8: once */
    assert_ids(tokenizer, "", both, 0, IDS(made->bos));
    ck_assert_uint_eq(tokenizer_bos(tokenizer), made->bos);
    ck_assert_uint_eq(tokenizer_eos(tokenizer), made->eos);
    ck_assert(tokenizer_is_end(tokenizer, made->eos) && !tokenizer_is_end(tokenizer, made->bos));
    tokenizer_destroy(tokenizer);
    made_free(made);
    made = made_byte_level("gpt-2");
    uint32_t eot = made_add(made, "<|eot_id|>", TOKEN_CONTROL, 0);
    uint32_t text = made_add(made, "<|endoftext|>", TOKEN_NORMAL, 0); /* only looks like one */
    tokenizer = made_tokenizer(made);
    ck_assert(!tokenizer_adds_bos(tokenizer));
    assert_ids(tokenizer, "a", both, 0, IDS('a'));
    ck_assert(tokenizer_is_end(tokenizer, eot) && !tokenizer_is_end(tokenizer, text));
    ck_assert(!tokenizer_is_end(tokenizer, UINT32_MAX));
    tokenizer_destroy(tokenizer);
    made_free(made);
}
END_TEST

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct turns {
    const struct tokenizer *tokenizer;
    unsigned count;
};

/* Another text is encoded within the first. */
static void take_turn(void *arg)
{
    struct turns *turns = arg;
    turns->count++;
    assert_ids(turns->tokenizer, "ab", 0, 0, IDS('a', 'b'));
}

static void assert_bounded(struct made *made, const char *unit)
{
    struct tokenizer *tokenizer = made_tokenizer(made);
    size_t length = (size_t)2 << 20, each = strlen(unit), count;
    char *text = malloc(length);
    for (size_t i = 0; i < length; i++)
        text[i] = unit[i % each];
    uint32_t *tokens, *undivided;
    struct error error = {0};
    uint64_t start = cpu_ns();
    size_t whole = encode(tokenizer, text, length, 0, 0, &undivided);
    uint64_t whole_ns = cpu_ns() - start;
    start = cpu_ns();
    ck_assert_int_eq(tokenizer_encode(tokenizer, text, length, 0, 0, 100, &tokens, &count, &error),
                     STATUS_TOO_LARGE);
    uint64_t cut_ns = cpu_ns() - start;
    ck_assert_uint_eq(count, 101);
    ck_assert_msg(cut_ns < whole_ns / 2, "%llu ns for 101 tokens, %llu for all",
                  (unsigned long long)cut_ns, (unsigned long long)whole_ns);
    struct turns turns = {.tokenizer = tokenizer};
    const struct tokenizer_yield yield = {take_turn, &turns};
    ck_assert_int_eq(tokenizer_encode_yielding(tokenizer, text, length, 0, 0, length, &yield,
                                               &tokens, &count, &error),
                     STATUS_OK);
    ck_assert_uint_ge(turns.count, length / MERGE_PIECE_MAX);
    ck_assert_uint_eq(count, whole);
    ck_assert_mem_eq(tokens, undivided, count * sizeof *tokens);
    free(tokens);
    free(undivided);
    free(text);
    tokenizer_destroy(tokenizer);
    made_free(made);
}

/* A text that is too long costs as much as the limit's tokens, one that fits is done in units with
   others between them; also where words are long, and where they are found whole. */
START_TEST(test_units_of_work)
{
    assert_bounded(made_byte_level("gpt-2"), "abcd 12 ");
    assert_bounded(made_byte_level("gpt-2"), "abcdabcd");
    assert_bounded(made_byte_level("llama-bpe"), "abcd 12 ");
}
END_TEST

START_TEST(test_limit)
{
    struct made *made = made_byte_level("gpt-2");
    struct tokenizer *tokenizer = made_tokenizer(made);
    uint32_t *tokens = (uint32_t *)1;
    size_t count;
    struct error error = {0};
    ck_assert_int_eq(tokenizer_encode(tokenizer, "abcdefgh", 8, 0, 0, 7, &tokens, &count, &error),
                     STATUS_TOO_LARGE);
    ck_assert_ptr_null(tokens);
    ck_assert_uint_eq(count, 8);
    ck_assert_str_eq(error.code, "context_length_exceeded");
    ck_assert_ptr_nonnull(strstr(error.message, "7"));
    ck_assert_int_eq(tokenizer_encode(tokenizer, "abcdefgh", 8, 0, 0, 8, &tokens, &count, &error),
                     STATUS_OK);
    ck_assert_uint_eq(count, 8);
    free(tokens);
    ck_assert_int_eq(tokenizer_encode(tokenizer, "", 0, 0, 0, 0, &tokens, &count, &error),
                     STATUS_OK);
    ck_assert_ptr_nonnull(tokens);
    free(tokens);
    tokenizer_destroy(tokenizer);
    made_free(made);
}
END_TEST

/* ---- Hostile texts. ---- */

/* B4: bytes that are no UTF-8 are tokens like others, and come back as they were. */
START_TEST(test_any_bytes)
{
    static const char *const pres[] = {
        "gpt-2",        "smollm", "llama-bpe",   "qwen2", "tekken", "falcon",
        "deepseek-llm", "gpt-4o", "deepseek-v3", "bloom", NULL};
    for (int kind = 0; kind < 11; kind++) {
        struct made *made = pres[kind] ? made_byte_level(pres[kind]) : made_sentencepiece();
        add_random_merges(made, 100);
        struct tokenizer *tokenizer = made_tokenizer(made);
        static const char *const fixed[] = {
            "\xe6\xad", "\xc0\x80", "\xed\xa0\x80",        "\xf5\x80\x80\x80",
            "\x80",     "\xff",     "a\x80 b\xf0\x9f\x98", "\xf0\x9f\x98\x80\xf0\x9f"};
        for (size_t i = 0; i < sizeof fixed / sizeof fixed[0] && pres[kind]; i++)
            assert_pieces_are(tokenizer, fixed[i], strlen(fixed[i]));
        for (int round = 0; round < 400; round++) {
            char text[300];
            size_t length = random_below(sizeof text);
            for (size_t i = 0; i < length; i++)
                text[i] = round % 2 == 0
                              ? (char)random_below(256)
                              : "ab cd\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \t"[random_below(17)];
            if (pres[kind]) {
                assert_pieces_are(tokenizer, text, length);
            } else { /* a space is put in front */
                uint32_t *tokens;
                encode(tokenizer, text, length, 0, 0, &tokens);
                free(tokens);
            }
        }
        tokenizer_destroy(tokenizer);
        made_free(made);
    }
}
END_TEST

/* A quarter of a megabyte (less under sanitizers) of anything takes some hundredths of a second:
   quadratic time would be minutes. The limit leaves room for a busy machine. */
START_TEST(test_no_time_bombs)
{
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        "a ",
                                        "1",
                                        "!",
                                        "'",
                                        "'s",
                                        " \xc2\xa0",
                                        "\r",
                                        "A",
                                        "aA",
                                        "\xf0\x9f\x98\x80",
                                        "\xe4\xbd\xa0",
                                        "\xcc\x81",
                                        "\xff",
                                        "a\x80",
                                        "<",
                                        "<|im_",
                                        " \n",
                                        "\t ",
                                        "\xe1\xa0\x8e",
                                        "ab"};
    static const char *const pres[] = {"smollm",      "llama-bpe", "qwen2",          "tekken",
                                       "falcon",      "default",   "deepseek-llm",   "gpt-4o",
                                       "deepseek-v3", "bloom",     "deepseek-coder", NULL};
    const size_t length = getenv("QUIRE_TEST_FULL") != NULL ? (size_t)4 << 20 : BOMB_BYTES;
    char *text = malloc(length + 1);
    for (int kind = 0; kind < 12; kind++) {
        struct made *made = pres[kind] ? made_byte_level(pres[kind]) : made_sentencepiece();
        add_random_merges(made, 100);
        made_merge(made, "\xc4\xa0", "\xc4\xa0"); /* two spaces */
        struct tokenizer *tokenizer = made_tokenizer(made);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t unit = strlen(units[u]), used = 0;
            while (used + unit <= length) {
                memcpy(text + used, units[u], unit);
                used += unit;
            }
            text[used++] = 'x'; /* what looks ahead finds it only at the end */
            uint64_t start = clock_now_ns();
            uint32_t *tokens;
            encode(tokenizer, text, used, TOKENIZER_PARSE_SPECIAL, 0, &tokens);
            free(tokens);
            double seconds = (double)(clock_now_ns() - start) / 1e9;
            ck_assert_msg(seconds < 5, "%s, unit %zu: %.2f s", pres[kind] ? pres[kind] : "llama", u,
                          seconds);
        }
        tokenizer_destroy(tokenizer);
        made_free(made);
    }
    free(text);
}
END_TEST

/* Pieces beyond 256 KiB are cut, at a character, and nothing is lost. */
START_TEST(test_very_long_pieces)
{
    struct made *made = made_byte_level("gpt-2");
    add_random_merges(made, 100);
    struct tokenizer *tokenizer = made_tokenizer(made);
    const size_t length = 300001;
    char *text = malloc(length);
    for (size_t i = 0; i < length; i++)
        text[i] = (char)('a' + random_below(4));
    assert_pieces_are(tokenizer, text, length);
    for (size_t i = 0; i + 3 <= length; i += 3)
        memcpy(text + i, "\xe4\xbd\xa0", 3);
    assert_pieces_are(tokenizer, text, length / 3 * 3);
    free(text);
    tokenizer_destroy(tokenizer);
    made_free(made);
}
END_TEST

/* ---- Threads. ---- */

static void *encode_often(void *arg)
{
    const struct tokenizer *tokenizer = arg;
    for (int i = 0; i < 200; i++) {
        uint32_t *tokens;
        size_t count;
        if (tokenizer_encode(tokenizer, "abcd <|im_end|> abcd's 12\n", 26, TOKENIZER_PARSE_SPECIAL,
                             0, 100, &tokens, &count, NULL) != STATUS_OK)
            return NULL;
        free(tokens);
    }
    return arg;
}

START_TEST(test_threads)
{
    struct made *made = made_byte_level("smollm");
    add_random_merges(made, 100);
    struct tokenizer *tokenizer = made_tokenizer(made);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, encode_often, tokenizer), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_eq(result, tokenizer);
    }
    tokenizer_destroy(tokenizer);
    made_free(made);
}
END_TEST

/* ---- SentencePiece. ---- */

#define MARK "\xe2\x96\x81"

START_TEST(test_sentencepiece)
{
    struct made *made = made_sentencepiece();
    static const char *const texts[] = {
        MARK,  "T",      "h",         "i",      "s",       "c",    "p",       ".",  "is",     "hi",
        "his", MARK "T", MARK "This", MARK "i", MARK "is", "This", MARK MARK, "Th", MARK "Th"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        made_add(made, texts[i], TOKEN_NORMAL, strlen(texts[i]) < 4 ? -50 - (float)i : -(float)i);
    made_add(made, "<ud>", TOKEN_USER_DEFINED, 0);
    made_add(made, MARK "isunused", TOKEN_UNUSED, 5);
#define T(text) made_find(made, text)
    struct tokenizer *tokenizer = made_tokenizer(made);
    unsigned bos = TOKENIZER_ADD_BOS, parse = TOKENIZER_PARSE_SPECIAL;
    /* B2: a space in front; characters without a token become bytes. */
    assert_ids(tokenizer, "This is \xf0\x9f\xa6\x99.cpp", bos, 0,
               IDS(made->bos, T(MARK "This"), T(MARK "is"), T(MARK), 3 + 0xf0, 3 + 0x9f, 3 + 0xa6,
                   3 + 0x99, T("."), T("c"), T("p"), T("p")));
    assert_ids(tokenizer, "<s>This", bos | parse, 0, IDS(made->bos, T(MARK "This")));
    assert_ids(tokenizer, "This<ud>This", 0, 0, IDS(T(MARK "This"), T("<ud>"), T(MARK "This")));
    assert_ids(tokenizer, MARK "This", 0, 0, IDS(T(MARK), T(MARK "This"))); /* a mark is a space */
    assert_ids(tokenizer, "\xff", 0, 0, IDS(T(MARK), 3 + 0xff));
    assert_ids(tokenizer, "<0x41>", 0, 0, /* no byte token, but the text */
               IDS(T(MARK), 3 + '<', 3 + '0', 3 + 'x', 3 + '4', 3 + '1', 3 + '>'));
    assert_ids(tokenizer, "", bos, 0, IDS(made->bos));
    size_t length;
    ck_assert(memcmp(tokenizer_piece(tokenizer, T(MARK "This"), &length), " This", 5) == 0);
    ck_assert_uint_eq(length, 5);
    ck_assert_uint_eq(*(const uint8_t *)tokenizer_piece(tokenizer, 3 + 0x0a, &length), 0x0a);
    ck_assert_uint_eq(length, 1);
    tokenizer_piece(tokenizer, 0, &length);
    ck_assert_uint_eq(length, 0);
    ck_assert(tokenizer_is_end(tokenizer, made->eos));
    tokenizer_destroy(tokenizer);
    made_free(made);
#undef T
}
END_TEST

/* ---- Bad files. ---- */

/* Phi 3's marks take white space after them along; its beginning, unknown and end-of-text do not.
 */
START_TEST(test_swallowed_space)
{
    for (int phi = 0; phi < 2; phi++) {
        struct made *made = made_sentencepiece();
        made->architecture = phi ? "phi3" : "llama";
        made->no_space_prefix = true;
        unsigned parse = TOKENIZER_PARSE_SPECIAL;
        uint32_t user = made_add(made, "<|user|>", TOKEN_CONTROL, 0);
        uint32_t text = made_add(made, "<|endoftext|>", TOKEN_CONTROL, 0);
        struct tokenizer *tokenizer = made_tokenizer(made);
        if (phi) {
            assert_ids(tokenizer, "<|user|>\n a", parse, 0, IDS(user, 3 + 'a'));
            assert_ids(tokenizer, "<|user|> \xc2\xa0<|user|>\t\r\n", parse, 0, IDS(user, user));
            assert_ids(tokenizer, "</s> a", parse, 0, IDS(made->eos, 3 + 'a'));
        } else {
            assert_ids(tokenizer, "<|user|>\na", parse, 0, IDS(user, 3 + '\n', 3 + 'a'));
        }
        assert_ids(tokenizer, "<|endoftext|>\na", parse, 0, IDS(text, 3 + '\n', 3 + 'a'));
        assert_ids(tokenizer, "<s>\na", parse, 0, IDS(made->bos, 3 + '\n', 3 + 'a'));
        tokenizer_destroy(tokenizer);
        made_free(made);
    }
}
END_TEST

START_TEST(test_bad_byte_tokens)
{
    /* B10 */
    static const char *const bad[] = {"<0x-1>", "<0xZZ>", "<0x100>", "<0x4>",  "<0X41>",
                                      "0x41",   "<0x41",  "<0x 1>",  "<0x+1>", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct made *made = made_sentencepiece();
        free(made->texts[3 + 0x41]);
        made->texts[3 + 0x41] = strdup(bad[i]);
        assert_refused(made, "byte token 68");
        made = made_byte_level("gpt-2");
        made_add(made, bad[i], TOKEN_BYTE, 0);
        assert_refused(made, "byte token 261");
    }
    struct made *made = made_sentencepiece();
    made_add(made, "<0x0a>", TOKEN_BYTE, 0); /* <0x0A> again */
    assert_refused(made, "<0x0A>");
    made = made_sentencepiece();
    made->types[3 + 0x7f] = TOKEN_NORMAL;
    assert_refused(made, "<0x7F> is missing");
}
END_TEST

START_TEST(test_bad_vocabularies)
{
    struct made *made = made_byte_level("gpt-2");
    made->model = NULL;
    assert_refused(made, "tokenizer.ggml.model");
    made = made_byte_level("gpt-2");
    made->model = "t5";
    assert_refused(made, "'t5'");
    made = made_byte_level("gpt-5000");
    assert_refused(made, "'gpt-5000'");
    made = made_byte_level(NULL);
    assert_refused(made, "tokenizer.ggml.pre");
    made = made_byte_level("gpt-2");
    made->no_merges = true;
    assert_refused(made, "tokenizer.ggml.merges");
    static const char *const merges[] = {"a zz", "zz a", "a b", "ab", " a", "a ", "", "a b c"};
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        made = made_byte_level("gpt-2");
        made_merge(made, "c", "d");
        made->merges[made->merge_count++] = strdup(merges[i]);
        assert_refused(made, "tokenizer.ggml.merges': merge 1");
    }
    made = made_byte_level("gpt-2");
    made_add(made, "a", TOKEN_NORMAL, 0);
    assert_refused(made, "'a'");
    made = made_byte_level("gpt-2");
    made->types[7] = 7;
    assert_refused(made, "tokenizer.ggml.token_type");
    made = made_byte_level("gpt-2");
    made->types[7] = -1;
    assert_refused(made, "tokenizer.ggml.token_type");
    made = made_byte_level("gpt-2");
    made->eos = made->count;
    assert_refused(made, "eos_token_id");
    made = made_byte_level("gpt-2");
    made->bos = UINT32_MAX;
    assert_refused(made, "bos_token_id");
    made = made_sentencepiece();
    made->no_scores = true;
    assert_refused(made, "tokenizer.ggml.scores");
    made = made_sentencepiece();
    made->scores[9] = (float)(0.0 / (double)random_below(1));
    assert_refused(made, "tokenizer.ggml.scores");
    made = made_sentencepiece();
    made->pre = "smollm";
    assert_refused(made, "'smollm'");
    made = calloc(1, sizeof *made);
    made->model = "gpt2";
    made->pre = "gpt-2";
    assert_refused(made, "tokenizer.ggml.tokens");
}
END_TEST

/* B76: arrays of the wrong type or length. */
START_TEST(test_bad_arrays)
{
    for (int kind = 0; kind < 5; kind++) {
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        add_string(&writer, "tokenizer.ggml.model", "llama");
        const char *part = "tokenizer.ggml.scores";
        static const char *const texts[] = {"<unk>", "a", "b"};
        if (kind == 3) {
            add_i32s(&writer, "tokenizer.ggml.tokens", (const int32_t[]){1, 2}, 2);
            part = "tokenizer.ggml.tokens";
        } else {
            add_strings(&writer, "tokenizer.ggml.tokens", texts, 3);
        }
        if (kind == 0) {
            add_key(&writer, "tokenizer.ggml.scores", GGUF_ARRAY);
            put_u32(&writer.keys, GGUF_UINT8);
            put_u64(&writer.keys, 3);
            buffer_append_text(&writer.keys, "abc");
        } else {
            add_f32s(&writer, "tokenizer.ggml.scores", (const float[]){0, 1, 2}, kind == 1 ? 2 : 3);
        }
        if (kind == 2 || kind == 4) {
            part = "tokenizer.ggml.token_type";
            if (kind == 2)
                add_i32s(&writer, part, (const int32_t[]){2, 1}, 2);
            else
                add_f32s(&writer, part, (const float[]){2, 1, 1}, 3);
        }
        struct gguf *gguf;
        struct error error = {0};
        struct tokenizer *tokenizer;
        ck_assert_int_eq(open_written(&writer, &gguf, &error), STATUS_OK);
        ck_assert_int_eq(tokenizer_create(gguf, &tokenizer, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.message, part) != NULL, "%s", error.message);
        gguf_close(gguf);
        gguf_writer_deinit(&writer);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tokenizer");
    TCase *tests = tcase_create("tokenizer");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, test_merges_like_naive_ones);
    tcase_add_test(tests, test_special_tokens);
    tcase_add_test(tests, test_sentinel);
    tcase_add_test(tests, test_beginning_and_end);
    tcase_add_test(tests, test_limit);
    tcase_add_test(tests, test_units_of_work);
    tcase_add_test(tests, test_any_bytes);
    tcase_add_test(tests, test_no_time_bombs);
    tcase_add_test(tests, test_very_long_pieces);
    tcase_add_test(tests, test_threads);
    tcase_add_test(tests, test_sentencepiece);
    tcase_add_test(tests, test_swallowed_space);
    tcase_add_test(tests, test_bad_byte_tokens);
    tcase_add_test(tests, test_bad_vocabularies);
    tcase_add_test(tests, test_bad_arrays);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
