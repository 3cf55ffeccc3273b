/* See chat_shape.h. A few renderings of two small conversations, once for each model. */
#include "api/chat_shape.h"

#include <pthread.h>
#include <string.h>

#define STACK_BYTES ((size_t)64 << 20) /* as the preprocessing thread has: see textshim.h */
#define TEXT "quire-text"              /* a user's */
#define KEY "quire_key"                /* an argument's */
#define VALUE "quire-value"

struct search {
    chat_shape_render render;
    const void *chat_template;
    struct chat_shape found;
};

/* Whether the template prints `wanted`, and `unwanted` not. Its refusals are of no interest. */
static bool prints(const struct search *search, const struct buffer *json, const char *wanted,
                   const char *unwanted)
{
    struct buffer out;
    buffer_init(&out, 0);
    bool printed =
        !json->failed && search->render(search->chat_template, json->data, json->length, &out) &&
        out.data && strstr(out.data, wanted) && !(unwanted && strstr(out.data, unwanted));
    buffer_deinit(&out);
    return printed;
}

static bool prints_user(const struct search *search, bool parts)
{
    struct buffer json;
    buffer_init(&json, 0);
    buffer_appendf(&json,
                   "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"tools\":null,"
                   "\"documents\":null,\"add_generation_prompt\":true}",
                   parts ? "[{\"type\":\"text\",\"text\":\"" TEXT "\"}]" : "\"" TEXT "\"");
    bool printed = prints(search, &json, TEXT, NULL);
    buffer_deinit(&json);
    return printed;
}

static bool prints_call(const struct search *search, struct chat_shape shape, bool broken)
{
    const char *arguments = broken                 ? "\"{\\\"" KEY "\\\": \\\"" VALUE "\""
                            : shape.text_arguments ? "\"{\\\"" KEY "\\\": \\\"" VALUE "\\\"}\""
                                                   : "{\"" KEY "\":\"" VALUE "\"}";
    struct buffer json;
    buffer_init(&json, 0);
    buffer_appendf(
        &json,
        "{\"messages\":[{\"role\":\"user\",\"content\":%s},{\"role\":\"assistant\",\"content\":%s,"
        "\"tool_calls\":[{\"id\":\"quire0001\",\"type\":\"function\",\"function\":{\"name\":"
        "\"quire_call\",\"arguments\":%s}}]},{\"role\":\"tool\",\"tool_call_id\":\"quire0001\","
        "\"name\":\"quire_call\",\"content\":\"{}\"}],\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"quire_call\",\"description\":\"d\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"description\":\"d\"}},"
        "\"required\":[]}}}],\"documents\":null,\"add_generation_prompt\":true}",
        shape.parts ? "[{\"type\":\"text\",\"text\":\"" TEXT "\"}]" : "\"" TEXT "\"",
        shape.null_content ? "null" : "\"\"", arguments);
    /* An object that is printed as Python spells one is not what a model was taught. */
    bool printed = prints(search, &json, VALUE, "'" KEY "'");
    buffer_deinit(&json);
    return printed;
}

static void *search_shape(void *arg)
{
    struct search *search = arg;
    search->found.parts = !prints_user(search, false) && prints_user(search, true);
    for (unsigned i = 0; i < 4; i++) {
        struct chat_shape shape = {search->found.parts, i & 1, i & 2};
        if (prints_call(search, shape, false)) {
            shape.broken_arguments = !shape.text_arguments && prints_call(search, shape, true);
            search->found = shape;
            break;
        }
    }
    return NULL;
}

enum status chat_shape_find(chat_shape_render render, const void *chat_template,
                            struct chat_shape *out, struct error *error)
{
    struct search search = {.render = render, .chat_template = chat_template};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int problem = pthread_create(&thread, &attributes, search_shape, &search);
    pthread_attr_destroy(&attributes);
    if (problem)
        return error_set(error, STATUS_IO, "chat_template",
                         "cannot start a thread to try the chat template: %s", strerror(problem));
    pthread_join(thread, NULL);
    *out = search.found;
    return STATUS_OK;
}
