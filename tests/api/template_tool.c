/*
 * template_tool TEMPLATE-FILE [BOS [EOS]] < contexts: renders one chat template with each context,
 * a JSON object a line, for the comparison with Python's jinja2 in
 * tests/reference/test_templates.py. Each answer is a line "STATUS LENGTH" and LENGTH bytes and a
 * line end; STATUS 0: the text, 1: the template cannot be used (one answer for all contexts), 2:
 * the error's sentence.
 */
#include "api/chat_template.h"
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

static void render_all(const struct chat_template *chat_template)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, stdin)) > 0) {
        struct buffer text;
        struct error error = {0};
        buffer_init(&text, 0);
        if (chat_template_render(chat_template, line, (size_t)length, &text, &error) == STATUS_OK)
            print(0, text.data ? text.data : "", text.length);
        else
            print(2, error.message, strlen(error.message));
        buffer_deinit(&text);
    }
    free(line);
}

int main(int argc, char **argv)
{
    struct buffer source;
    struct error error = {0};
    struct chat_template *chat_template;
    if (argc < 2 || !read_file(argv[1], &source)) {
        fprintf(stderr, "usage: template_tool TEMPLATE [BOS [EOS]] < CONTEXTS\n");
        return 64;
    }
    if (chat_template_create(source.data, source.length, argc > 2 ? argv[2] : "<s>",
                             argc > 3 ? argv[3] : "</s>", COST_TEMPLATE_BYTES_MAX, &chat_template,
                             &error) != STATUS_OK) {
        print(1, error.message, strlen(error.message));
    } else {
        render_all(chat_template);
        chat_template_destroy(chat_template);
    }
    buffer_deinit(&source);
    return 0;
}
