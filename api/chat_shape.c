/*
 * Finds the shape in which a template prints what clients send: see chat_shape.h. Each try renders
 * a small conversation and looks for the words that were put in; the first shape that prints them
 * is taken. It knows no template, only a function that renders: chat_template.c calls it at load,
 * on a thread with a stack for templates. That a template refuses is a result here, not an error.
 */
#include "api/chat_shape.h"

#include "base/buffer.h"

#include <string.h>

#define TEXT "quire-text" /* a user's */
#define KEY "quire_key"   /* an argument's */
#define VALUE "quire-value"
#define TOOL "quire-tool" /* a tool's description */
#define RESULT "quire-result"

struct search {
    chat_shape_render render;
    void *arg;
};

/* Whether the template prints `wanted`, and `unwanted` not. Gives the buffer back. */
static bool prints(const struct search *search, struct buffer *json, const char *wanted,
                   const char *unwanted)
{
    struct buffer out;
    buffer_init(&out, 0);
    bool printed = !json->failed && search->render(search->arg, json, &out) && out.data &&
                   strstr(out.data, wanted) && !(unwanted && strstr(out.data, unwanted));
    buffer_deinit(&out);
    buffer_deinit(json);
    return printed;
}

static void write_text(struct chat_shape shape, const char *text, struct buffer *json)
{
    buffer_appendf(json, shape.parts ? "[{\"type\":\"text\",\"text\":\"%s\"}]" : "\"%s\"", text);
}

static void write_message(struct chat_shape shape, const char *role, const char *text,
                          struct buffer *json)
{
    buffer_append_text(json, json->data[json->length - 1] == '[' ? "" : ",");
    buffer_appendf(json, "{\"role\":\"%s\",\"content\":", role);
    write_text(shape, text, json);
    buffer_append_text(json, "}");
}

static void write_call(struct chat_shape shape, bool broken, struct buffer *json)
{
    const char *arguments = broken                 ? "\"{\\\"" KEY "\\\": \\\"" VALUE "\""
                            : shape.text_arguments ? "\"{\\\"" KEY "\\\": \\\"" VALUE "\\\"}\""
                                                   : "{\"" KEY "\":\"" VALUE "\"}";
    buffer_appendf(json,
                   ",{\"role\":\"assistant\",\"content\":%s,\"tool_calls\":[{\"id\":"
                   "\"quire0001\",\"type\":\"function\",\"function\":{\"name\":\"quire_call\","
                   "\"arguments\":%s}}]},{\"role\":\"tool\",\"tool_call_id\":\"quire0001\","
                   "\"name\":\"quire_call\",\"content\":\"" RESULT "\"}",
                   shape.null_content ? "null" : "\"\"", arguments);
}

static void write_end(bool tools, bool generation, struct buffer *json)
{
    buffer_append_text(json, "],\"tools\":");
    buffer_append_text(json, tools
                                 ? "[{\"type\":\"function\",\"function\":{\"name\":\"quire_call\","
                                   "\"description\":\"" TOOL
                                   "\",\"parameters\":{\"type\":\"object\",\"properties\":"
                                   "{\"a\":{\"type\":\"string\",\"description\":\"d\"}},"
                                   "\"required\":[]}}}]"
                                 : "null");
    buffer_appendf(json, ",\"documents\":null,\"add_generation_prompt\":%s}",
                   generation ? "true" : "false");
}

static void begin(struct buffer *json)
{
    buffer_init(json, 0);
    buffer_append_text(json, "{\"messages\":[");
}

static bool prints_user(const struct search *search, struct chat_shape shape, bool tools)
{
    struct buffer json;
    begin(&json);
    write_message(shape, "user", TEXT, &json);
    write_end(tools, true, &json);
    /* A list that is printed as Python spells it is not read. */
    return prints(search, &json, tools ? TOOL : TEXT, shape.parts ? "'" TEXT "'" : NULL);
}

static bool prints_call(const struct search *search, struct chat_shape shape, bool broken,
                        const char *wanted)
{
    struct buffer json;
    begin(&json);
    write_message(shape, "user", TEXT, &json);
    write_call(shape, broken, &json);
    write_end(true, true, &json);
    /* An object that is printed as Python spells one is not what a model was taught. */
    return prints(search, &json, wanted, "'" KEY "'");
}

void chat_shape_write_call(struct chat_shape shape, struct buffer *json)
{
    begin(json);
    write_message(shape, "user", TEXT, json);
    write_call(shape, false, json);
    write_end(true, false, json);
}

bool chat_shape_probe(struct chat_shape shape, unsigned index, struct buffer *json)
{
    static const struct {
        bool system, call, generation;
    } probes[] = {
        {true, false, false}, {false, false, false}, {true, false, true},
        {false, false, true}, {true, true, true},    {false, true, true},
    };
    if (index >= sizeof probes / sizeof *probes)
        return false;
    begin(json);
    if (probes[index].system)
        write_message(shape, "system", TEXT, json);
    write_message(shape, "user", TEXT, json);
    if (probes[index].call)
        write_call(shape, false, json);
    write_message(shape, "assistant", TEXT, json);
    write_message(shape, "user", TEXT, json);
    write_end(probes[index].call, probes[index].generation, json);
    return true;
}

struct chat_shape chat_shape_find(chat_shape_render render, void *arg)
{
    struct search search = {render, arg};
    struct chat_shape found = {0};
    found.parts = !prints_user(&search, found, false);
    found.parts = found.parts && prints_user(&search, found, false);
    found.tools = prints_user(&search, found, true);
    for (unsigned i = 0; i < 4 && !found.calls; i++) {
        struct chat_shape shape = found;
        shape.null_content = i & 1;
        shape.text_arguments = i & 2;
        if (!prints_call(&search, shape, false, VALUE))
            continue;
        found = shape;
        found.calls = true;
        found.broken_arguments = !shape.text_arguments && prints_call(&search, shape, true, VALUE);
    }
    found.results = prints_call(&search, found, false, RESULT);
    return found;
}
