/*
 * quire-scripted: the real server with the scripted backend of tests/engine, so that a test decides
 * every token. Everything but the forward pass is real: sockets, api/, tokenizer, engine, pager.
 *
 * QUIRE_TEST_SCRIPT names a file of lines; fields are separated by tabs, '#' begins a comment line:
 *
 *   delay_us <tab> N              slept in each step
 *   row_delay_us <tab> N          slept for each row of a step: prompts take long
 *   echo <tab> ID                 a prompt … ID a b c is answered a b c
 *   answer <tab> PROMPT <tab> PIECE <tab> PIECE …
 *
 * PROMPT is text as /v1/completions tokenizes it, or "#ID,ID…": sequences that begin with it get
 * the pieces, then the end token. A piece is "#ID", "!nan" (an engine fault), or text with \n \t
 * \\ \xHH: the token that stands for just these bytes if there is one, else one token for each
 * byte. Prompts without an answer get tokens that depend on every page they use.
 */
#include "cli/program.h"

#include "base/check.h"
#include "tests/engine/scripted_backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 4096

struct script {
    struct tokenizer *tokenizer;
    struct scripted_options options;
    struct backend *backend;
    unsigned line;
    uint32_t output[PIECES_MAX];
    uint32_t output_count;
};

_Noreturn static void fail(const struct script *script, const char *what)
{
    fprintf(stderr, "script, line %u: %s\n", script->line, what);
    exit(2);
}

/* Undo the escapes in place; returns the length. */
static size_t unescape(struct script *script, char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        unsigned value;
        if (*from != '\\') {
            *to++ = *from;
        } else if (from[1] == 'x' && sscanf(from + 2, "%2x", &value) == 1) {
            *to++ = (char)value;
            from += 3;
        } else {
            from++;
            if (*from != 'n' && *from != 't' && *from != '\\')
                fail(script, "unknown escape");
            *to++ = *from == 'n' ? '\n' : *from == 't' ? '\t' : '\\';
        }
    }
    return (size_t)(to - text);
}

/* The token whose bytes are exactly these, or UINT32_MAX. */
static uint32_t token_of(const struct script *script, const char *bytes, size_t length)
{
    for (uint32_t id = 0; id < tokenizer_vocabulary(script->tokenizer); id++) {
        size_t have;
        const char *piece = tokenizer_piece(script->tokenizer, id, &have);
        if (have == length && !memcmp(piece, bytes, length))
            return id;
    }
    return UINT32_MAX;
}

static void add_output(struct script *script, uint32_t token)
{
    if (script->output_count == PIECES_MAX)
        fail(script, "too many pieces");
    script->output[script->output_count++] = token;
}

static void add_piece(struct script *script, char *piece)
{
    if (!strcmp(piece, "!nan")) {
        add_output(script, SCRIPTED_NAN);
        return;
    }
    if (piece[0] == '#') {
        add_output(script, (uint32_t)strtoul(piece + 1, NULL, 10));
        return;
    }
    size_t length = unescape(script, piece);
    uint32_t whole = token_of(script, piece, length);
    if (whole != UINT32_MAX) {
        add_output(script, whole);
        return;
    }
    for (size_t i = 0; i < length; i++) {
        uint32_t single = token_of(script, piece + i, 1);
        if (single == UINT32_MAX)
            fail(script, "no token for a byte");
        add_output(script, single);
    }
}

static void add_answer(struct script *script, char *fields)
{
    char *prompt = strsep(&fields, "\t");
    script->output_count = 0;
    for (char *piece; (piece = strsep(&fields, "\t"));)
        add_piece(script, piece);
    uint32_t *tokens = NULL;
    size_t count = 0;
    if (prompt[0] == '#') {
        tokens = calloc(strlen(prompt), sizeof *tokens);
        CHECK(tokens);
        char *rest = prompt + 1;
        for (char *id; (id = strsep(&rest, ","));)
            tokens[count++] = (uint32_t)strtoul(id, NULL, 10);
    } else {
        size_t length = unescape(script, prompt);
        struct error error;
        if (tokenizer_encode(script->tokenizer, prompt, length, TOKENIZER_ADD_BOS, 0, 65536,
                             &tokens, &count, &error) != STATUS_OK)
            fail(script, error.message);
    }
    if (!count || !scripted_backend_add(script->backend, tokens, (uint32_t)count, script->output,
                                        script->output_count))
        fail(script, "cannot add the answer");
    free(tokens);
}

/* Options come before the backend, answers after: the file is read twice. */
static void read_script(struct script *script, bool answers)
{
    const char *path = getenv("QUIRE_TEST_SCRIPT");
    FILE *file = path ? fopen(path, "re") : NULL;
    if (path && !file)
        fail(script, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    script->line = 0;
    while (file && (length = getline(&line, &capacity, file)) > 0) {
        script->line++;
        if (line[length - 1] == '\n')
            line[--length] = '\0';
        char *fields = line;
        char *word = strsep(&fields, "\t");
        if (!*word || *word == '#')
            continue;
        if (!fields)
            fail(script, "a field is missing");
        if (!strcmp(word, "answer")) {
            if (answers)
                add_answer(script, fields);
            continue;
        }
        uint32_t value = (uint32_t)strtoul(fields, NULL, 10);
        if (!strcmp(word, "delay_us"))
            script->options.step_delay_us = value;
        else if (!strcmp(word, "row_delay_us"))
            script->options.row_delay_us = value;
        else if (!strcmp(word, "echo"))
            script->options.echo_token = value;
        else
            fail(script, "unknown word");
    }
    free(line);
    if (file)
        fclose(file);
}

static enum status make_backend(const struct gguf *gguf, const struct model_config *config,
                                const struct backend_options *options, struct backend **out,
                                struct error *error)
{
    static struct script script;
    enum status status = tokenizer_create(gguf, &script.tokenizer, error);
    if (status != STATUS_OK)
        return status;
    script.options = (struct scripted_options){
        .vocabulary = config->vocabulary,
        .page_count = options->page_count,
        .page_size = options->page_size,
        .groups = model_groups_of(config->layers, config->window_layers, config->window).groups,
        .max_batch_rows = options->max_batch_rows,
        .max_sequences = options->max_sequences,
        .logits_rows_max = options->logits_rows_max,
        .end_token = tokenizer_eos(script.tokenizer),
    };
    read_script(&script, false);
    script.backend = scripted_backend_create(&script.options);
    CHECK(script.backend);
    read_script(&script, true);
    tokenizer_destroy(script.tokenizer);
    *out = script.backend;
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    return program_main(argc, argv, make_backend);
}
