/*
 * template_tool TEMPLATE-FILE CONTEXT-JSON-FILE [BOS [EOS]]: renders one chat template to stdout,
 * for the comparison with Python's jinja2 in tests/reference/test_templates.py. Exit 1: a create
 * error, 2: a render error, both on stderr.
 */
#include "api/chat_template.h"

#include <stdio.h>
#include <stdlib.h>

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

int main(int argc, char **argv)
{
    struct buffer source, context, text;
    struct error error = {0};
    struct chat_template *chat_template;
    if (argc < 3 || !read_file(argv[1], &source) || !read_file(argv[2], &context)) {
        fprintf(stderr, "usage: template_tool TEMPLATE CONTEXT [BOS [EOS]]\n");
        return 64;
    }
    if (chat_template_create(source.data, source.length, argc > 3 ? argv[3] : "<s>",
                             argc > 4 ? argv[4] : "</s>", &chat_template, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    buffer_init(&text, 0);
    int result = 0;
    if (chat_template_render(chat_template, context.data, context.length, &text, &error) ==
        STATUS_OK) {
        fwrite(text.data, 1, text.length, stdout);
    } else {
        fprintf(stderr, "%s\n", error.message);
        result = 2;
    }
    chat_template_destroy(chat_template);
    buffer_deinit(&text);
    buffer_deinit(&context);
    buffer_deinit(&source);
    return result;
}
