/*
 * What the template sees: the client's messages, tools and arguments as JSON, made plain (see
 * request_chat.c). Copied from the body's own text wherever nothing has to change, so that numbers
 * keep their spelling and keys their order. What a user wrote is not touched here, whatever it
 * looks like: control tokens are looked for in what the template makes of it.
 */
#include "api/chat.h"
#include "base/check.h"
#include "base/json_writer.h"

#include <string.h>

static void write_value(struct chat *chat, struct json_slice value)
{
    buffer_append(&chat->json, value.text, value.length);
}

/* Append the strings of a list's parts, a line end between two: those of type thinking, or all
   others. A part's text stands under its type's name. */
static void join_parts(const struct cJSON *parts, bool thinking, struct buffer *out)
{
    const char *between = "";
    for (const struct cJSON *part = json_first(parts); part; part = json_after(part)) {
        const char *type = json_string(json_get(part, "type"));
        const struct cJSON *value = json_get(part, type);
        if ((strcmp(type, "thinking") == 0) != thinking)
            continue;
        buffer_append_text(out, between);
        between = "\n";
        if (json_is_string(value))
            buffer_append_text(out, json_string(value));
        for (const struct cJSON *inner = json_first(value); inner; inner = json_after(inner))
            buffer_append_text(out, json_string(json_get(inner, "text")));
    }
}

/* An assistant that refused said its refusal. */
void chat_join_content(const struct cJSON *message, struct buffer *out)
{
    const struct cJSON *content = json_get(message, "content");
    const struct cJSON *refusal = json_get(message, "refusal");
    if (json_is_string(content))
        buffer_append_text(out, json_string(content));
    else if (content)
        join_parts(content, false, out);
    if (out->length == 0 && json_is_string(refusal))
        buffer_append_text(out, json_string(refusal));
}

/* Behind the text that starts at json.data[begin], which is kept decoded too. */
static void write_mark(struct chat *chat, size_t begin)
{
    buffer_append_text(&chat->json, "\"");
    if (!chat->json.failed) {
        json_decode_string(
            (struct json_slice){chat->json.data + begin - 1, chat->json.length - begin + 1},
            &chat->final);
        chat->json.data[--chat->json.length] = '\0';
    }
    buffer_append(&chat->final, "", 0);
    for (int i = 0; i < CHAT_MARK_SENTINELS; i++)
        buffer_append(&chat->json, chat->sentinel_bytes, chat->sentinel_length);
    buffer_append_text(&chat->json, " ");
}

/* The tools, for a template that prints none: what they are, and how a call is written. */
static void append_tools(const struct chat *chat, struct buffer *out)
{
    struct json_slice list = json_find(chat->document->text, "tools"), tool;
    buffer_append_text(out, "You can call these tools, described as JSON, one in a line:\n");
    for (size_t at = 0; json_next(list, &at, NULL, &tool);) {
        struct json_slice function = json_find(tool, "function");
        buffer_append(out, function.text, function.length);
        buffer_append_text(out, "\n");
    }
    buffer_append_text(out, "To call a tool, answer with its name and arguments as JSON:\n"
                            "<tool_call>{\"name\": \"the tool's name\", \"arguments\": "
                            "{\"an argument\": \"its value\"}}</tool_call>");
}

static void append_calls(const struct cJSON *message, struct json_slice slice, struct buffer *out)
{
    struct json_slice calls = json_find(slice, "tool_calls"), call;
    if (!json_first(json_get(message, "tool_calls")))
        return;
    for (size_t at = 0; json_next(calls, &at, NULL, &call);) {
        struct json_slice function = json_find(call, "function");
        struct json_slice name = json_find(function, "name");
        struct json_slice arguments = json_find(function, "arguments");
        buffer_append_text(out, out->length ? "\n" : "");
        buffer_append_text(out, "<tool_call>{\"name\": ");
        buffer_append(out, name.text, name.length);
        buffer_append_text(out, ", \"arguments\": ");
        if (arguments.text && arguments.text[0] == '"')
            json_decode_string(arguments, out);
        else if (arguments.text)
            buffer_append(out, arguments.text, arguments.length);
        else
            buffer_append_text(out, "{}");
        buffer_append_text(out, "}</tool_call>");
    }
}

/* Whether the tools stand in front of this message's text. */
static bool has_tools(const struct chat *chat, const struct cJSON *message)
{
    const char *role = json_string(json_get(message, "role"));
    return chat->tools_as_text && chat->tools && chat->left_out != CHAT_PART_TOOLS &&
           message == json_first(chat->messages) &&
           (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

static void join_text(const struct chat *chat, const struct cJSON *message, struct json_slice slice,
                      struct buffer *out)
{
    bool result = chat_is_result(message);
    if (has_tools(chat, message)) {
        append_tools(chat, out);
        buffer_append_text(out, "\n\n");
    }
    if (chat->left_out == CHAT_PART_RESULTS && result)
        return;
    if (chat->tools_as_text && result)
        buffer_append_text(out, "<tool_response>");
    struct buffer text;
    buffer_init(&text, 0);
    chat_join_content(message, &text);
    buffer_append(out, text.data ? text.data : "", text.length);
    out->failed |= text.failed;
    buffer_deinit(&text);
    if (chat->tools_as_text && result)
        buffer_append_text(out, "</tool_response>");
    if (chat->tools_as_text && chat->left_out != CHAT_PART_CALLS)
        append_calls(message, slice, out);
}

static void write_content(struct chat *chat, const struct cJSON *message, struct json_slice slice,
                          bool marked)
{
    struct buffer text;
    buffer_init(&text, 0);
    join_text(chat, message, slice, &text);
    buffer_append_text(&chat->json, "\"content\":");
    if (text.length == 0 && !text.failed && !marked && chat->shape->null_content &&
        json_first(json_get(message, "tool_calls"))) {
        buffer_append_text(&chat->json, "null");
    } else {
        buffer_append_text(&chat->json,
                           chat->shape->parts ? "[{\"type\":\"text\",\"text\":\"" : "\"");
        size_t begin = chat->json.length;
        json_write_escaped(&chat->json, text.data ? text.data : "", text.length);
        if (marked)
            write_mark(chat, begin);
        buffer_append_text(&chat->json, chat->shape->parts ? "\"}]" : "\"");
    }
    chat->json.failed |= text.failed;
    buffer_deinit(&text);
}

/* A call's arguments, which clients send as JSON text or as an object: as the template wants them.
   What a model wrote that is no object is handed on as text, in an object of its own where the
   template reads nothing else. */
static void write_arguments(struct chat *chat, struct json_slice arguments)
{
    struct buffer text;
    buffer_init(&text, 0);
    if (arguments.text[0] == '"')
        json_decode_string(arguments, &text);
    else if (arguments.text[0] != 'n')
        buffer_append(&text, arguments.text, arguments.length);
    if (text.length == 0)
        buffer_append_text(&text, "{}");
    struct json_scan scan = {0};
    bool object = text.data && chat_arguments_are_object(text.data, text.length, &scan);
    bool wrapped = !object && !chat->shape->text_arguments && !chat->shape->broken_arguments;
    if (text.data && object && !chat->shape->text_arguments) {
        write_value(chat, (struct json_slice){text.data, text.length});
    } else if (text.data) {
        buffer_append_text(&chat->json, wrapped ? "{\"arguments\":\"" : "\"");
        json_write_escaped(&chat->json, text.data, text.length);
        buffer_append_text(&chat->json, wrapped ? "\"}" : "\"");
    }
    chat->json.failed |= text.failed;
    buffer_deinit(&text);
}

/* An object of a tool call, `arguments` made an object. */
static void write_call_part(struct chat *chat, struct json_slice object, bool is_function)
{
    struct json_slice key, value;
    const char *comma = "";
    buffer_append_text(&chat->json, "{");
    for (size_t at = 0; json_next(object, &at, &key, &value); comma = ",") {
        buffer_append_text(&chat->json, comma);
        write_value(chat, key);
        buffer_append_text(&chat->json, ":");
        if (is_function && json_slice_is(key, "arguments"))
            write_arguments(chat, value);
        else if (!is_function && json_slice_is(key, "function"))
            write_call_part(chat, value, true);
        else
            write_value(chat, value);
    }
    buffer_append_text(&chat->json, "}");
}

static void write_tool_calls(struct chat *chat, struct json_slice calls)
{
    struct json_slice call;
    const char *comma = "";
    buffer_append_text(&chat->json, "\"tool_calls\":[");
    for (size_t at = 0; json_next(calls, &at, NULL, &call); comma = ",") {
        buffer_append_text(&chat->json, comma);
        write_call_part(chat, call, false);
    }
    buffer_append_text(&chat->json, "]");
}

/* The text of parts of type thinking, under both names that templates read. */
static void write_thinking_parts(struct chat *chat, const struct cJSON *message)
{
    static const char *const names[] = {"reasoning_content", "thinking"};
    struct buffer text;
    buffer_init(&text, 0);
    if (json_is_array(json_get(message, "content")))
        join_parts(json_get(message, "content"), true, &text);
    for (size_t i = 0; text.length > 0 && i < sizeof names / sizeof *names; i++) {
        buffer_appendf(&chat->json, ",\"%s\":\"", names[i]);
        json_write_escaped(&chat->json, text.data, text.length);
        buffer_append_text(&chat->json, "\"");
    }
    chat->json.failed |= text.failed;
    buffer_deinit(&text);
}

/* As transformers passes it: a message's reasoning under both of its names, whichever the client
   used. */
static void write_reasoning(struct chat *chat, const struct cJSON *message, struct json_slice slice)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    struct json_slice value = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names && (!value.text || *value.text == 'n'); i++)
        value = json_find(slice, names[i]);
    if (!value.text || *value.text == 'n') {
        write_thinking_parts(chat, message);
        return;
    }
    struct json_slice thinking = json_find(slice, "thinking");
    buffer_append_text(&chat->json, ",\"reasoning_content\":");
    write_value(chat, value);
    if (!thinking.text || *thinking.text == 'n') {
        buffer_append_text(&chat->json, ",\"thinking\":");
        write_value(chat, value);
    }
}

static void write_message(struct chat *chat, const struct cJSON *message, struct json_slice slice)
{
    const char *role = json_string(json_get(message, "role"));
    if (strcmp(role, "developer") == 0)
        role = "system";
    if (strcmp(role, "function") == 0)
        role = "tool";
    if (chat->tools_as_text && strcmp(role, "tool") == 0)
        role = "user";
    buffer_appendf(&chat->json, "{\"role\":\"%s\",", role);
    write_content(chat, message, slice, chat->continue_final_message && !json_after(message));
    struct json_slice key, value;
    for (size_t at = 0; json_next(slice, &at, &key, &value);) {
        if (json_slice_is(key, "role") || json_slice_is(key, "content") ||
            json_slice_is(key, "reasoning_content") || value.text[0] == 'n') /* null is absent */
            continue;
        bool calls = json_slice_is(key, "tool_calls");
        if (calls && (chat->left_out == CHAT_PART_CALLS || chat->tools_as_text ||
                      !json_first(json_get(message, "tool_calls")))) /* so is a list of none */
            continue;
        buffer_append_text(&chat->json, ",");
        if (calls) {
            write_tool_calls(chat, value);
            continue;
        }
        write_value(chat, key);
        buffer_append_text(&chat->json, ":");
        write_value(chat, value);
    }
    write_reasoning(chat, message, slice);
    buffer_append_text(&chat->json, "}");
}

void chat_write_context(struct chat *chat)
{
    struct buffer *json = &chat->json;
    struct json_slice body = chat->document->text, key, value;
    const struct cJSON *message = json_first(chat->messages);
    struct json_slice messages = json_find(body, "messages");
    buffer_append_text(json, "{\"messages\":[");
    if (chat->tools_as_text && chat->tools && chat->left_out != CHAT_PART_TOOLS &&
        !has_tools(chat, message)) {
        struct buffer text;
        buffer_init(&text, 0);
        append_tools(chat, &text);
        buffer_append_text(json, "{\"role\":\"system\",\"content\":");
        buffer_append_text(json, chat->shape->parts ? "[{\"type\":\"text\",\"text\":" : "");
        json_write_string(json, text.data ? text.data : "", text.length);
        buffer_append_text(json, chat->shape->parts ? "}]}," : "},");
        json->failed |= text.failed;
        buffer_deinit(&text);
    }
    for (size_t at = 0; json_next(messages, &at, NULL, &value); message = json_after(message)) {
        CHECK(message);
        if (message != json_first(chat->messages))
            buffer_append_text(json, ",");
        write_message(chat, message, value);
    }
    buffer_append_text(json, "],\"tools\":");
    bool tools = chat->tools && chat->left_out != CHAT_PART_TOOLS && !chat->tools_as_text;
    write_value(chat, tools ? json_find(body, "tools") : (struct json_slice){"null", 4});
    buffer_appendf(json, ",\"documents\":null,\"add_generation_prompt\":%s",
                   chat->add_generation_prompt ? "true" : "false");
    if (json_get(chat->document->root, "reasoning_effort")) {
        buffer_append_text(json, ",\"reasoning_effort\":");
        write_value(chat, json_find(body, "reasoning_effort"));
    }
    struct json_slice arguments = json_find(body, "chat_template_kwargs");
    const struct cJSON *given = json_get(chat->document->root, "chat_template_kwargs");
    if (json_get(chat->document->root, "enable_thinking") && !json_get(given, "enable_thinking")) {
        buffer_append_text(json, ",\"enable_thinking\":");
        write_value(chat, json_find(body, "enable_thinking"));
    }
    for (size_t at = 0; arguments.text && json_next(arguments, &at, &key, &value);) {
        buffer_append_text(json, ",");
        write_value(chat, key);
        buffer_append_text(json, ":");
        write_value(chat, value);
    }
    buffer_append_text(json, "}");
}
