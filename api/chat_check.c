/*
 * What a chat may hold: messages, tools, template arguments. Each refusal names its place, such as
 * messages[3].content. Allocates nothing and changes nothing but struct chat's findings.
 */
#include "api/chat.h"

#include <stdio.h>
#include <string.h>

static enum status message_error(struct error *error, uint32_t index, const char *field,
                                 const char *what)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%u]%s%s", index, *field ? "." : "", field);
    return error_set(error, STATUS_INVALID, param, "%s %s.", param, what);
}

/* A part of type text, refusal or thinking holds a string of that name. Mistral's clients send
   thinking as a list of text parts. */
static bool part_is_whole(const struct cJSON *part, const char *type)
{
    const struct cJSON *value = json_get(part, type);
    if (json_is_string(value))
        return true;
    if (strcmp(type, "thinking") != 0 || !json_is_array(value))
        return false;
    for (const struct cJSON *inner = json_first(value); inner; inner = json_after(inner))
        if (!json_is_object(inner) || !json_is_string(json_get(inner, "text")))
            return false;
    return true;
}

/* The assistant's own answers come back with parts of type refusal and thinking. */
static enum status check_content_part(const struct cJSON *part, uint32_t index, bool assistant,
                                      struct error *error)
{
    const struct cJSON *value = json_is_object(part) ? json_get(part, "type") : NULL;
    if (!json_is_string(value))
        return message_error(error, index, "content", "has a part without a type");
    const char *type = json_string(value);
    bool own = strcmp(type, "refusal") == 0 || strcmp(type, "thinking") == 0;
    char what[100];
    if (strcmp(type, "text") != 0 && !(assistant && own)) {
        snprintf(what, sizeof what, "has a part of type \"%.40s\"; only \"text\" is supported",
                 type);
        return message_error(error, index, "content", what);
    }
    if (!part_is_whole(part, type)) {
        snprintf(what, sizeof what, "has a part of type %s without %s", type, type);
        return message_error(error, index, "content", what);
    }
    return STATUS_OK;
}

static enum status check_content(const struct cJSON *message, uint32_t index, const char *role,
                                 struct error *error)
{
    bool assistant = strcmp(role, "assistant") == 0;
    const struct cJSON *content = json_get(message, "content");
    if (json_is_string(content) || !content) /* nothing is "" */
        return STATUS_OK;
    if (!json_is_array(content))
        return message_error(error, index, "content",
                             "must be a string or a list of content parts");
    for (const struct cJSON *part = json_first(content); part; part = json_after(part)) {
        enum status status = check_content_part(part, index, assistant, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

bool chat_arguments_are_object(const char *text, size_t length, struct json_scan *scan)
{
    size_t blank = 0;
    while (blank < length && strchr(" \t\r\n", text[blank]) && text[blank] != '\0')
        blank++;
    return blank < length && text[blank] == '{' &&
           json_scan_text(text, length, false, scan, NULL) == STATUS_OK;
}

/* OpenAI has arguments as a JSON object in a string. Text that is no JSON is what a model wrote, so
   it is taken too. The noncharacters of what will be read as JSON count as the body's own. */
static enum status check_arguments(struct chat *chat, const struct cJSON *arguments, uint32_t index,
                                   struct error *error)
{
    if (!arguments || json_is_object(arguments))
        return STATUS_OK;
    if (!json_is_string(arguments))
        return message_error(error, index, "tool_calls",
                             "has arguments that are neither a string nor an object");
    struct json_scan scan = {0};
    const char *text = json_string(arguments);
    if (chat_arguments_are_object(text, strlen(text), &scan))
        for (unsigned i = 0; i < JSON_NONCHARACTERS; i++)
            chat->noncharacter[i] |= scan.noncharacter[i];
    return STATUS_OK;
}

static enum status check_tool_calls(struct chat *chat, const struct cJSON *calls, uint32_t index,
                                    struct error *error)
{
    if (!json_is_array(calls))
        return message_error(error, index, "tool_calls", "must be a list");
    for (const struct cJSON *call = json_first(calls); call; call = json_after(call)) {
        const struct cJSON *function = json_is_object(call) ? json_get(call, "function") : NULL;
        const struct cJSON *type = json_is_object(call) ? json_get(call, "type") : NULL;
        if (type && (!json_is_string(type) || strcmp(json_string(type), "function") != 0))
            return message_error(error, index, "tool_calls",
                                 "has a call whose type is not \"function\"");
        if (!json_is_object(function) || !json_is_string(json_get(function, "name")))
            return message_error(error, index, "tool_calls", "has a call without function.name");
        enum status status = check_arguments(chat, json_get(function, "arguments"), index, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status check_message(struct chat *chat, const struct cJSON *message, uint32_t index,
                                 struct error *error)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    if (!json_is_object(message))
        return message_error(error, index, "", "must be an object");
    const struct cJSON *value = json_get(message, "role");
    const char *role = json_is_string(value) ? json_string(value) : "";
    bool known = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        known |= strcmp(role, roles[i]) == 0;
    if (!known)
        return message_error(error, index, "role",
                             "must be system, developer, user, assistant, tool or function");
    bool assistant = strcmp(role, "assistant") == 0;
    const struct cJSON *calls = json_get(message, "tool_calls");
    if (calls && !assistant && !(json_is_array(calls) && !json_first(calls)))
        return message_error(error, index, "tool_calls", "is only for the assistant's messages");
    enum status status = check_content(message, index, role, error);
    if (status == STATUS_OK && calls)
        status = check_tool_calls(chat, calls, index, error);
    if (status != STATUS_OK)
        return status;
    const struct cJSON *name = json_get(message, "name");
    if (name && !json_is_string(name))
        return message_error(error, index, "name", "must be a string");
    if (strcmp(role, "tool") == 0 && !json_is_string(json_get(message, "tool_call_id")))
        return message_error(error, index, "tool_call_id", "is missing");
    return STATUS_OK;
}

bool chat_is_result(const struct cJSON *message)
{
    const char *role = json_string(json_get(message, "role"));
    return strcmp(role, "tool") == 0 || strcmp(role, "function") == 0;
}

enum status chat_check_messages(struct chat *chat, struct error *error)
{
    chat->messages = json_get(chat->document->root, "messages");
    uint32_t count = json_is_array(chat->messages) ? json_count(chat->messages) : 0;
    if (!(count >= 1 && count <= LIMIT_MESSAGES))
        return error_set_code(error, STATUS_INVALID, count ? "too_many_messages" : NULL, "messages",
                              "messages must be a list of 1 to %d messages.", LIMIT_MESSAGES);
    uint32_t index = 0;
    for (const struct cJSON *message = json_first(chat->messages); message;
         message = json_after(message)) {
        enum status status = check_message(chat, message, index++, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status chat_check_tools(struct chat *chat, struct error *error)
{
    const struct cJSON *root = chat->document->root;
    const struct cJSON *tools = json_get(root, "tools");
    enum status status = tool_choice_read(root, &chat->choice, error);
    if (status != STATUS_OK)
        return status;
    bool found = false;
    if (!tools && chat->choice.mode == TOOL_CHOICE_REQUIRED)
        return error_set(error, STATUS_INVALID, "tool_choice",
                         "tool_choice asks for a call, but there are no tools.");
    if (!tools)
        return STATUS_OK;
    if (json_is_array(tools) && json_count(tools) > LIMIT_TOOLS)
        return error_set(error, STATUS_INVALID, "tools", "tools may hold at most %d tools.",
                         LIMIT_TOOLS);
    if (!json_is_array(tools))
        return error_set(error, STATUS_INVALID, "tools", "tools must be a list.");
    for (const struct cJSON *tool = json_first(tools); tool; tool = json_after(tool)) {
        const struct cJSON *type = json_is_object(tool) ? json_get(tool, "type") : NULL;
        const struct cJSON *function = json_is_object(tool) ? json_get(tool, "function") : NULL;
        if (!json_is_string(type) || strcmp(json_string(type), "function") != 0 ||
            !json_is_object(function) || !json_is_string(json_get(function, "name")))
            return error_set(error, STATUS_INVALID, "tools",
                             "each of tools must have \"type\": \"function\" and function.name.");
        found |= tool_choice_allows(&chat->choice, json_string(json_get(function, "name")));
    }
    if (chat->choice.mode == TOOL_CHOICE_REQUIRED && !found)
        return error_set(error, STATUS_INVALID, "tool_choice",
                         "tool_choice names no tool that is in tools.");
    if (json_first(tools) && chat->choice.mode != TOOL_CHOICE_NONE)
        chat->tools = tools;
    return STATUS_OK;
}

enum status chat_check_template_arguments(const struct cJSON *root, struct error *error)
{
    static const char *const reserved[] = {"messages",
                                           "tools",
                                           "documents",
                                           "add_generation_prompt",
                                           "continue_final_message",
                                           "bos_token",
                                           "eos_token",
                                           "raise_exception",
                                           "strftime_now",
                                           "namespace",
                                           "range",
                                           "dict",
                                           "chat_template"};
    const struct cJSON *arguments = json_get(root, "chat_template_kwargs");
    if (arguments && !json_is_object(arguments))
        return error_set(error, STATUS_INVALID, "chat_template_kwargs",
                         "chat_template_kwargs must be an object.");
    for (const struct cJSON *entry = json_first(arguments); entry; entry = json_after(entry)) {
        if (json_is_array(entry) || json_is_object(entry))
            return error_set(error, STATUS_INVALID, "chat_template_kwargs",
                             "chat_template_kwargs may hold strings, numbers, true and false.");
        for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
            if (strcmp(json_key(entry), reserved[i]) == 0)
                return error_set(error, STATUS_INVALID, "chat_template_kwargs",
                                 "chat_template_kwargs may not set %s.", reserved[i]);
    }
    return STATUS_OK;
}

enum status chat_check_modalities(const struct cJSON *root, struct error *error)
{
    for (const struct cJSON *entry = json_first(json_get(root, "modalities")); entry;
         entry = json_after(entry))
        if (!json_is_string(entry) || strcmp(json_string(entry), "text") != 0)
            return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "modalities",
                                  "modalities may only hold \"text\".");
    return STATUS_OK;
}
