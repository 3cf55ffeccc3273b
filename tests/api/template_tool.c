/*
 * template_tool --format TEMPLATE-FILE prints the format of its calls, or "-" where it prints no
 * tools, and its mark of reasoning.
 * template_tool TEMPLATE-FILE [BOS [EOS [TOKENS-FILE]]] < contexts: renders one chat template with
 * each context, a JSON object a line, for the comparison with Python's jinja2 in
 * tests/reference/test_templates.py. Each answer is a line "STATUS LENGTH" and LENGTH bytes and a
 * line end; STATUS 0: the text, 1: the template cannot be used (one answer for all contexts), 2:
 * the error's sentence. With TOKENS-FILE, control tokens one a line, the text is guarded: U+FDD0
 * stands in each that is not the template's own.
 */
#include "api/call_format.h"
#include "api/chat_shape.h"
#include "api/chat_template.h"
#include "api/control_guard.h"
#include "base/costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_file(const char *path, struct buffer *out)
{
    FILE *file = fopen(path, "rb");
    char bytes[4096];
    size_t count;
    buffer_init(out, 0);
    while (file && (count = fread(bytes, 1, sizeof bytes, file)) > 0)
        buffer_append(out, bytes, count);
    bool good = file && !ferror(file) && buffer_append(out, "", 0);
    if (file)
        fclose(file);
    return good;
}

static void print(int status, const char *bytes, size_t length)
{
    printf("%d %zu\n", status, length);
    fwrite(bytes, 1, length, stdout);
    putchar('\n');
}

#define SENTINEL 0xfdd0u
#define TOKENS_MAX 8192u

static enum status render(const struct chat_template *chat_template, const char *json,
                          size_t length, struct buffer *text, struct error *error)
{
    enum status status = chat_template_render(chat_template, json, length, text, error);
    uint8_t *own = calloc(chat_template_own_bytes(text), 1);
    if (status == STATUS_OK)
        status = chat_template_trace(chat_template, json, length, text, own, error);
    if (status == STATUS_OK)
        status = chat_template_guard(chat_template, text, own, SENTINEL, error);
    free(own);
    return status;
}

/* The lines of `text`, which they replace. */
static uint32_t split_lines(char *text, const char **lines)
{
    uint32_t count = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && count < TOKENS_MAX;
         line = strtok_r(NULL, "\n", &rest))
        lines[count++] = line;
    return count;
}

static void render_all(const struct chat_template *chat_template)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, stdin)) > 0) {
        struct buffer text;
        struct error error = {0};
        buffer_init(&text, 0);
        if (render(chat_template, line, (size_t)length, &text, &error) == STATUS_OK)
            print(0, text.data ? text.data : "", text.length);
        else
            print(2, error.message, strlen(error.message));
        buffer_deinit(&text);
    }
    free(line);
}

static int print_format(const char *path)
{
    struct buffer source;
    struct error error = {0};
    struct chat_template *chat_template;
    if (!read_file(path, &source) ||
        chat_template_create(source.data, source.length, "<s>", "</s>", NULL,
                             COST_TEMPLATE_BYTES_MAX, &chat_template, &error) != STATUS_OK)
        return 1;
    const struct reasoning_marks *marks = chat_template_reasoning(chat_template);
    printf("%s %s\n",
           chat_template_shape(chat_template)->tools
               ? chat_template_call_format(chat_template)->name
               : "-",
           marks ? marks->open : "-");
    chat_template_destroy(chat_template);
    buffer_deinit(&source);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--format") == 0)
        return print_format(argv[2]);
    struct buffer source, tokens;
    struct error error = {0};
    struct chat_template *chat_template;
    struct control_guard guard;
    static const char *lines[TOKENS_MAX];
    buffer_init(&tokens, 0);
    if (argc < 2 || !read_file(argv[1], &source) || (argc > 4 && !read_file(argv[4], &tokens))) {
        fprintf(stderr, "usage: template_tool TEMPLATE [BOS [EOS]] < CONTEXTS\n");
        return 64;
    }
    uint32_t count = tokens.data ? split_lines(tokens.data, lines) : 0;
    if (control_guard_init_texts(&guard, lines, count, count, &error) != STATUS_OK ||
        chat_template_create(source.data, source.length, argc > 2 ? argv[2] : "<s>",
                             argc > 3 ? argv[3] : "</s>", &guard, COST_TEMPLATE_BYTES_MAX,
                             &chat_template, &error) != STATUS_OK) {
        print(1, error.message, strlen(error.message));
    } else {
        render_all(chat_template);
        chat_template_destroy(chat_template);
    }
    buffer_deinit(&source);
    buffer_deinit(&tokens);
    return 0;
}
