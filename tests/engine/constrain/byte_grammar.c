/* See byte_grammar.h. The tokenizer is a SentencePiece one whose scores prefer long pieces. */
#include "tests/engine/constrain/byte_grammar.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/thread.h"
#include "tests/engine/model/gguf_writer.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define TOKENS_MAX 1024u

static struct grammar_vocabulary *the_vocabulary;
static char texts[TOKENS_MAX][16];

static void name_tokens(uint32_t vocabulary, uint32_t end_token)
{
    uint32_t next = 0;
    for (uint32_t id = 0; id < vocabulary; id++) {
        if (id == end_token) {
            snprintf(texts[id], sizeof texts[id], "</s>");
            continue;
        }
        /* Digits and letters first: tests write grammars of them. */
        static const char first[] = "0123456789abcdefghijklmnopqrstuvwxyz{}[]\":,. -";
        uint32_t count = sizeof first - 1, pair = next - count;
        if (next < count)
            snprintf(texts[id], sizeof texts[id], "%c", first[next]);
        else
            snprintf(texts[id], sizeof texts[id], "%c%c", first[pair % 36], first[pair / 36 % 36]);
        next++;
    }
}

static void write_vocabulary(struct gguf_writer *writer, uint32_t vocabulary, uint32_t end_token)
{
    const char *names[TOKENS_MAX];
    float scores[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    for (uint32_t id = 0; id < vocabulary; id++) {
        /* SentencePiece writes a space as U+2581. */
        names[id] = texts[id][0] == ' ' ? "\xe2\x96\x81" : texts[id];
        scores[id] = texts[id][1] ? 2.0f - 0.001f * (float)id : -100.0f - (float)id;
        types[id] = id == end_token ? 3 : 1;
    }
    add_string(writer, "general.architecture", "llama");
    add_string(writer, "tokenizer.ggml.model", "llama");
    add_strings(writer, "tokenizer.ggml.tokens", names, vocabulary);
    add_f32s(writer, "tokenizer.ggml.scores", scores, vocabulary);
    add_i32s(writer, "tokenizer.ggml.token_type", types, vocabulary);
    add_u32(writer, "tokenizer.ggml.eos_token_id", end_token);
    add_u32(writer, "tokenizer.ggml.unknown_token_id", 0);
    add_bool(writer, "tokenizer.ggml.add_bos_token", 0);
    add_bool(writer, "tokenizer.ggml.add_space_prefix", 0);
}

void byte_grammar_init(struct budget *budget, uint32_t vocabulary, uint32_t end_token)
{
    struct gguf_writer writer;
    struct gguf *gguf;
    static struct tokenizer *tokenizer;
    struct error error = {0};
    CHECK(vocabulary >= 40 && vocabulary <= TOKENS_MAX && end_token < vocabulary);
    name_tokens(vocabulary, end_token);
    gguf_writer_init(&writer);
    write_vocabulary(&writer, vocabulary, end_token);
    enum status status = open_written(&writer, &gguf, &error);
    if (status == STATUS_OK)
        status = tokenizer_create(gguf, &tokenizer, &error);
    if (status == STATUS_OK)
        status = grammar_vocabulary_create(tokenizer, budget, &the_vocabulary, &error);
    if (status != STATUS_OK)
        fprintf(stderr, "byte_grammar: %s\n", error.message);
    CHECK(status == STATUS_OK);
    gguf_close(gguf);
    gguf_writer_deinit(&writer);
}

struct compilation {
    enum grammar_kind kind;
    const char *source;
    struct grammar *grammar;
    struct error error;
};

static void *compile(void *arg)
{
    struct compilation *c = arg;
    grammar_compile(the_vocabulary, c->kind, c->source, strlen(c->source), &c->grammar, &c->error);
    return NULL;
}

struct grammar *byte_grammar_compile(enum grammar_kind kind, const char *source)
{
    struct compilation c = {.kind = kind, .source = source};
    pthread_t thread;
    CHECK(thread_start(&thread, "compile", LIMIT_GRAMMAR_STACK_BYTES, compile, &c) == 0);
    pthread_join(thread, NULL);
    if (!c.grammar)
        fprintf(stderr, "byte_grammar: %s: %s\n", source, c.error.message);
    CHECK(c.grammar);
    return c.grammar;
}

const char *byte_grammar_text(uint32_t token)
{
    return texts[token];
}
