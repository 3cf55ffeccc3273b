/*
 * The table of pre-tokenizers, and the cutting.
 *
 * The expressions are facts of the models: the pre_tokenizer of each model's published
 * tokenizer.json; the names are those that llama.cpp's converter writes. Two things are rewritten:
 *
 * - \s is spelled out as Unicode's White_Space, since PCRE2's also holds U+180E.
 * - \s+$ is anchored at the start of its run, since trying it at every space of a long run takes
 *   quadratic time and can find nothing else.
 *
 * A text cannot make an expression run away: every one of them is linear in the text (each scans
 * ahead of what it then consumes a bounded number of times), and PCRE2's limits end the request if
 * that should turn out wrong.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/pretokenizer.h"

#include "base/check.h"
#include "base/minmax.h"
#include "base/utf8.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 6
#define MATCH_LIMIT 100000000u /* far above what 8 MiB of text need, about a second of time */
#define HEAP_LIMIT_KIB 8192u   /* only the interpreter uses a heap, and little of it */
#define JIT_STACK_MAX ((size_t)1 << 20)

#define SPACES                                                                                     \
    "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"   \
    "3000}"
#define SPACE "[" SPACES "]"
#define NOT_SPACE "[^" SPACES "]"
#define SPACE_RUNS SPACE "+(?!" NOT_SPACE ")|" SPACE "+"
#define LINE_ENDS SPACE "*[\\r\\n]+|"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SYMBOLS " ?[^" SPACES "\\p{L}\\p{N}]+"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" SPACE_RUNS
#define LLAMA3 CONTRACTIONS "|" WORD "\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" LINE_ENDS SPACE_RUNS
#define QWEN2 CONTRACTIONS "|" WORD "\\p{N}|" SYMBOLS "[\\r\\n]*|" LINE_ENDS SPACE_RUNS
#define MINICPM5 CONTRACTIONS "|" WORD "\\p{N}+|" SYMBOLS "[\\r\\n]*|" LINE_ENDS SPACE_RUNS
#define BAILING                                                                                    \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" SPACES                      \
    "\\p{L}\\p{N}]++[\\r\\n]*|" SPACE "*[\\r\\n]|" SPACE_RUNS
#define QWEN35                                                                                     \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACES                       \
                 "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINE_ENDS SPACE_RUNS

/* Words of capitals, then small letters, as in o200k_base and Tekken. */
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALLS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix)                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "*" SMALLS "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" CAPITALS     \
    "+" SMALLS "*" suffix "|"
#define TEKKEN CASED("") "\\p{N}|" SYMBOLS "[\\r\\n/]*|" LINE_ENDS SPACE_RUNS
#define GPT4O CASED(CONTRACTIONS "?") "\\p{N}{1,3}|" SYMBOLS "[\\r\\n/]*|" LINE_ENDS SPACE_RUNS

#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* DeepSeek's letters: \p{L} of Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee and the like,
   as its tokenizer.json lists them. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"        \
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"         \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"                 \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                  \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{"     \
    "212d}"                                                                                        \
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}"         \
    "\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"         \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"                 \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"                 \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"             \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"         \
    "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_LLM                                                                               \
    "[\\r\\n]", SPACE "?[" DEEPSEEK_LETTERS "]+",                                                  \
        SPACE                                                                                      \
        "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",  \
        "(?<!" SPACE ")" SPACE "++\\z", CJK
#define DEEPSEEK_V3                                                                                \
    "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",                 \
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"       \
        "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINE_ENDS SPACE_RUNS
#define BLOOM " ?[^(" SPACES "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define PUNCTUATION "[\\p{P}$+<=>^~|`]+"

/* Starts a step that cuts bytes, not characters; steps after it are of the same kind. */
#define BYTES "\001"

#define ADDS_BOS 1u
#define IGNORES_MERGES 2u

static const struct definition {
    const char *name;
    unsigned flags;
    const char *steps[STEPS_MAX];
} definitions[] = {
    /* llama.cpp's own fallback, which its converter names where a model's hash maps to it. */
    {"default", 0, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2", 0, {GPT2}},
    {"phi-2", 0, {GPT2}},
    {"mpt", 0, {GPT2}},
    {"olmo", 0, {GPT2}},
    {"jais", 0, {GPT2}},
    {"exaone4", 0, {GPT2}},
    {"trillion", 0, {GPT2}},
    {"mellum", 0, {GPT2}},
    {"gigachat", 0, {GPT2}},
    {"granite-docling", 0, {GPT2}},
    {"a.x-4.0", 0, {GPT2}},
    {"smollm", 0, {"\\p{N}", GPT2}},
    {"starcoder", 0, {"\\p{N}", GPT2}},
    {"refact", 0, {"\\p{N}", GPT2}},
    {"command-r", 0, {"\\p{N}", GPT2}},
    {"codeshell", 0, {"\\p{N}", GPT2}},
    {"exaone", 0, {"\\p{N}", GPT2}},
    {"minerva-7b", 0, {"\\p{N}", GPT2}},
    {"mellum2", 0, {"\\p{N}", GPT2}},
    /* Falcon's last two steps see the characters of the byte-level coding: bytes that stand for ¹,
       ², ³, ¼, ½ and ¾ there count as digits, also in the middle of a character. */
    {"falcon", 0, {PUNCTUATION, GPT2, BYTES "[0-9\\xb2\\xb3\\xb9\\xbc-\\xbe]+", BYTES "[0-9]{3}"}},
    {"llama-bpe", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"llama3", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"llama-v3", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"falcon3", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"falcon-h1", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"pixtral", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"lfm2", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"midm-2.0", ADDS_BOS | IGNORES_MERGES, {LLAMA3}},
    {"dbrx", 0, {LLAMA3}},
    {"smaug-bpe", 0, {LLAMA3}},
    {"chatglm-bpe", 0, {LLAMA3}},
    {"glm4", IGNORES_MERGES, {LLAMA3}},
    {"glm5", IGNORES_MERGES, {LLAMA3}},
    {"minicpm5", IGNORES_MERGES, {"\\p{N}{1,3}", MINICPM5}},
    {"qwen2", 0, {QWEN2}},
    {"deepseek-r1-qwen", 0, {QWEN2}},
    {"stablelm2", 0, {QWEN2}},
    {"megrez", 0, {QWEN2}},
    {"hunyuan", 0, {QWEN2}},
    {"grok-2", 0, {QWEN2}},
    {"kormo", 0, {QWEN2}},
    {"f2llmv2", 0, {QWEN2}},
    {"solar-open", 0, {QWEN2}},
    {"bailingmoe", 0, {BAILING}},
    {"bailingmoe2", 0, {BAILING}},
    {"llada-moe", 0, {BAILING}},
    {"qwen35", 0, {QWEN35}},
    {"tekken", ADDS_BOS | IGNORES_MERGES, {TEKKEN}},
    {"gpt-4o", 0, {GPT4O}},
    {"llama4", 0, {GPT4O}},
    {"kanana2", 0, {GPT4O}},
    {"minimax-m2", 0, {GPT4O}},
    {"deepseek-llm", 0, {DEEPSEEK_LLM, "\\p{N}+"}},
    {"deepseek-coder", 0, {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", CJK, "\\p{N}"}},
    {"deepseek-v3", 0, {DEEPSEEK_V3}},
    {"hunyuan-dense", 0, {DEEPSEEK_V3}},
    {"joyai-llm", 0, {DEEPSEEK_V3}},
    {"hy_v4", 0, {DEEPSEEK_V3}},
    {"bloom", 0, {BLOOM}},
    {"poro-chat", 0, {BLOOM}},
    {"gpt3-finnish", 0, {BLOOM}},
    {"viking", 0, {BLOOM, "\\p{N}"}},
    {"seed-coder",
     0,
     {CONTRACTIONS "|" WORD "\\p{N}| ?[^" SPACES "\\p{L}\\p{N}\\r\\n]+|" LINE_ENDS SPACE_RUNS}},
};

#define DEFINITION_COUNT (sizeof definitions / sizeof definitions[0])

struct pretokenizer {
    const struct definition *definition;
    unsigned step_count;
    pcre2_code *steps[STEPS_MAX];
};

struct pretokenizer_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

const char *pretokenizer_name(uint32_t index)
{
    return index < DEFINITION_COUNT ? definitions[index].name : NULL;
}

static const struct definition *find_definition(const char *name, size_t name_length)
{
    for (size_t i = 0; i < DEFINITION_COUNT; i++)
        if (strlen(definitions[i].name) == name_length &&
            memcmp(definitions[i].name, name, name_length) == 0)
            return &definitions[i];
    return NULL;
}

enum status pretokenizer_create(const char *name, size_t name_length, struct pretokenizer **out,
                                struct error *error)
{
    *out = NULL;
    const struct definition *definition = find_definition(name, name_length);
    if (!definition)
        return error_set(error, STATUS_UNSUPPORTED, NULL,
                         "the model's pre-tokenizer '%.*s' (key 'tokenizer.ggml.pre') is not one "
                         "that this server knows",
                         (int)min_u64(name_length, 48), name);
    struct pretokenizer *pretokenizer = calloc(1, sizeof *pretokenizer);
    if (!pretokenizer)
        return error_set(error, STATUS_IO, NULL, "no memory for the pre-tokenizer");
    pretokenizer->definition = definition;
    for (unsigned i = 0; i < STEPS_MAX && definition->steps[i]; i++) {
        int code = 0;
        PCRE2_SIZE offset = 0;
        const char *step = definition->steps[i];
        bool bytes = step[0] == BYTES[0];
        pretokenizer->steps[i] = pcre2_compile(
            (PCRE2_SPTR)(bytes ? step + 1 : step), PCRE2_ZERO_TERMINATED,
            bytes ? 0 : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
        if (!pretokenizer->steps[i]) {
            PCRE2_UCHAR message[128] = "";
            pcre2_get_error_message(code, message, sizeof message);
            pretokenizer_destroy(pretokenizer);
            return error_set(error, STATUS_INTERNAL, NULL, "pre-tokenizer '%s', step %u: %s",
                             definition->name, i, (const char *)message);
        }
        pretokenizer->step_count = i + 1;
        /* Where the system forbids writable code the interpreter does the same, slower. */
        (void)pcre2_jit_compile(pretokenizer->steps[i], PCRE2_JIT_COMPLETE);
    }
    *out = pretokenizer;
    return STATUS_OK;
}

void pretokenizer_destroy(struct pretokenizer *pretokenizer)
{
    if (!pretokenizer)
        return;
    for (unsigned i = 0; i < pretokenizer->step_count; i++)
        pcre2_code_free(pretokenizer->steps[i]);
    free(pretokenizer);
}

uint64_t pretokenizer_memory_bytes(const struct pretokenizer *pretokenizer)
{
    uint64_t bytes = sizeof *pretokenizer;
    for (unsigned i = 0; i < pretokenizer->step_count; i++) {
        size_t size = 0;
        if (pcre2_pattern_info(pretokenizer->steps[i], PCRE2_INFO_SIZE, &size) == 0)
            bytes += size;
        if (pcre2_pattern_info(pretokenizer->steps[i], PCRE2_INFO_JITSIZE, &size) == 0)
            bytes += size;
    }
    return bytes;
}

bool pretokenizer_ignores_merges(const struct pretokenizer *pretokenizer)
{
    return (pretokenizer->definition->flags & IGNORES_MERGES) != 0;
}

bool pretokenizer_adds_bos(const struct pretokenizer *pretokenizer)
{
    return (pretokenizer->definition->flags & ADDS_BOS) != 0;
}

struct pretokenizer_scratch *pretokenizer_scratch_create(void)
{
    struct pretokenizer_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch)
        return NULL;
    /* Only the whole match is asked for; the steps nest, but each reads its result at once. */
    scratch->match = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->stack = pcre2_jit_stack_create((size_t)32 << 10, JIT_STACK_MAX, NULL);
    if (!scratch->match || !scratch->context || !scratch->stack) {
        pretokenizer_scratch_destroy(scratch);
        return NULL;
    }
    pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    pcre2_set_match_limit(scratch->context, MATCH_LIMIT);
    pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    return scratch;
}

void pretokenizer_scratch_destroy(struct pretokenizer_scratch *scratch)
{
    if (!scratch)
        return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

/* What stays the same while the steps nest. */
struct split {
    const struct pretokenizer *pretokenizer;
    struct pretokenizer_scratch *scratch;
    enum status (*piece)(void *arg, const char *bytes, size_t length, struct error *error);
    void *arg;
    struct error *error;
};

/* Cut valid UTF-8 by step `step` and those after it. Depth is bounded by STEPS_MAX. */
static enum status split_by(const struct split *split, unsigned step, const char *text,
                            size_t length)
{
    if (length == 0)
        return STATUS_OK;
    if (step == split->pretokenizer->step_count)
        return split->piece(split->arg, text, length, split->error);
    size_t from = 0;
    while (from < length) {
        int count = pcre2_match(split->pretokenizer->steps[step], (PCRE2_SPTR)text, length, from,
                                PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, split->scratch->match,
                                split->scratch->context);
        if (count == PCRE2_ERROR_NOMATCH)
            break;
        if (count < 0)
            return error_set(split->error, STATUS_INVALID, NULL,
                             "the text cannot be cut into words (PCRE2 error %d)", count);
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(split->scratch->match);
        size_t begin = span[0], end = span[1];
        CHECK(begin >= from && end > begin && end <= length);
        TRY(split_by(split, step + 1, text + from, begin - from));
        TRY(split_by(split, step + 1, text + begin, end - begin));
        from = end;
    }
    return split_by(split, step + 1, text + from, length - from);
}

enum status pretokenizer_split(const struct pretokenizer *pretokenizer,
                               struct pretokenizer_scratch *scratch, const char *text,
                               size_t length,
                               enum status (*piece)(void *arg, const char *bytes, size_t length,
                                                    struct error *error),
                               void *arg, struct error *error)
{
    struct split split = {pretokenizer, scratch, piece, arg, error};
    if (utf8_valid(text, length))
        return split_by(&split, 0, text, length);
    /* Runs of valid and of invalid bytes by turns. */
    size_t begin = 0;
    bool valid = true;
    for (size_t i = 0; i < length;) {
        uint32_t code_point = 0;
        int taken = utf8_decode(text + i, length - i, &code_point);
        if ((taken > 0) != valid) {
            enum status status = valid ? split_by(&split, 0, text + begin, i - begin)
                                       : piece(arg, text + begin, i - begin, error);
            if (status != STATUS_OK)
                return status;
            valid = !valid;
            begin = i;
        }
        i += taken > 0 ? (size_t)taken : taken < 0 ? (size_t)-taken : length - i;
    }
    return valid ? split_by(&split, 0, text + begin, length - begin)
                 : piece(arg, text + begin, length - begin, error);
}
