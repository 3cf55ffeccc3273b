/*
 * Tokenizes lines, for comparison with other tokenizers (tests/reference/test_tokenizer.py).
 *
 *   tokenize_tool MODEL [special] [bos] < lines > ids
 *
 * Reads lines in which \n, \r, \\ and \xHH stand for bytes, writes one line of ids for each. With
 * --pieces it writes each token's bytes as hex instead, with --pre the known pre-tokenizers.
 */
#include "engine/model/gguf.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t unescape(char *line, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        if (line[i] != '\\' || i + 1 >= length) {
            line[count++] = line[i];
            continue;
        }
        char kind = line[++i];
        if (kind == 'x' && i + 2 < length) {
            char digits[3] = {line[i + 1], line[i + 2], 0};
            line[count++] = (char)strtol(digits, NULL, 16);
            i += 2;
        } else {
            line[count++] = kind == 'n' ? '\n' : kind == 'r' ? '\r' : kind;
        }
    }
    return count;
}

static int print_pieces(const struct tokenizer *tokenizer)
{
    for (uint32_t i = 0; i < tokenizer_vocabulary(tokenizer); i++) {
        size_t length;
        const char *piece = tokenizer_piece(tokenizer, i, &length);
        for (size_t j = 0; j < length; j++)
            printf("%02x", (unsigned char)piece[j]);
        putchar('\n');
    }
    return 0;
}

static int print_ids(const struct tokenizer *tokenizer, unsigned flags)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t read;
    while ((read = getline(&line, &capacity, stdin)) >= 0) {
        size_t length = (size_t)read;
        if (length > 0 && line[length - 1] == '\n')
            --length;
        length = unescape(line, length);
        uint32_t *tokens;
        size_t count;
        struct error error = {0};
        if (tokenizer_encode(tokenizer, line, length, flags, 0, (size_t)1 << 30, &tokens, &count,
                             &error) != STATUS_OK) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        for (size_t i = 0; i < count; i++)
            printf(i > 0 ? " %u" : "%u", tokens[i]);
        putchar('\n');
        free(tokens);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    struct error error = {0};
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    if (argc == 2 && strcmp(argv[1], "--pre") == 0) {
        for (uint32_t i = 0; pretokenizer_name(i) != NULL; i++)
            puts(pretokenizer_name(i));
        return 0;
    }
    if (argc < 2) {
        fputs("usage: tokenize_tool MODEL [special] [bos] [pieces]\n", stderr);
        return 2;
    }
    if (gguf_open(argv[1], &gguf, &error) != STATUS_OK ||
        tokenizer_create(gguf, &tokenizer, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    gguf_close(gguf); /* a tokenizer keeps nothing of it */
    unsigned flags = 0;
    bool pieces = false;
    for (int i = 2; i < argc; i++) {
        flags |= strcmp(argv[i], "special") == 0 ? TOKENIZER_PARSE_SPECIAL : 0;
        flags |= strcmp(argv[i], "bos") == 0 ? TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS : 0;
        pieces = pieces || strcmp(argv[i], "pieces") == 0;
    }
    int code = pieces ? print_pieces(tokenizer) : print_ids(tokenizer, flags);
    fprintf(stderr, "tokenizer memory: %llu bytes\n",
            (unsigned long long)tokenizer_memory_bytes(tokenizer));
    tokenizer_destroy(tokenizer);
    return code;
}
