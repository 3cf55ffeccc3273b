/*
 * The fields of /v1/chat/completions and its one prompt: messages are checked, written into the
 * template's context with every user-supplied string under the control guard, rendered, and
 * tokenized.
 *
 * What templates see is what transformers gives them, with OpenAI's looser forms made plain:
 * content parts are joined by a newline, missing content beside tool calls is "", "developer" is
 * "system", tool-call arguments are an object. The order and spelling of everything else is the
 * client's.
 */
#include "api/chat_template.h"
#include "api/control_guard.h"
#include "api/request.h"
#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct chat {
    const struct api_context *context;
    const struct json_document *document;
    const struct cJSON *messages;
    const struct cJSON *tools; /* NULL: none */
    bool add_generation_prompt, continue_final_message;
    bool noncharacter[JSON_NONCHARACTERS]; /* those that occur in the request */
    struct control_guard guard;
    struct buffer json;    /* the template's context */
    struct buffer scratch; /* a decoded string */
    bool unbreakable;      /* a text holds a control token that cannot be broken up */
};

static enum status message_error(struct error *error, uint32_t index, const char *field,
                                 const char *what)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%u]%s%s", index, *field ? "." : "", field);
    return error_set(error, STATUS_INVALID, param, "%s %s.", param, what);
}

static enum status check_content(const struct cJSON *message, uint32_t index, bool optional,
                                 struct error *error)
{
    const struct cJSON *content = json_get(message, "content");
    if (json_is_string(content) || (!content && optional))
        return STATUS_OK;
    if (!json_is_array(content) || !json_first(content))
        return message_error(error, index, "content",
                             "must be a string or a list of content parts");
    for (const struct cJSON *part = json_first(content); part; part = json_after(part)) {
        const struct cJSON *type = json_is_object(part) ? json_get(part, "type") : NULL;
        if (!json_is_string(type))
            return message_error(error, index, "content", "has a part without a type");
        if (strcmp(json_string(type), "text") != 0) {
            char what[100];
            snprintf(what, sizeof what, "has a part of type \"%.40s\"; only \"text\" is supported",
                     json_string(type));
            return message_error(error, index, "content", what);
        }
        if (!json_is_string(json_get(part, "text")))
            return message_error(error, index, "content", "has a text part without text");
    }
    return STATUS_OK;
}

/* Arguments are a JSON object, as OpenAI has it in a string. Its noncharacters count too. */
static enum status check_arguments(struct chat *chat, const struct cJSON *arguments, uint32_t index,
                                   struct error *error)
{
    if (!arguments || json_is_object(arguments))
        return STATUS_OK;
    const char *text = json_is_string(arguments) ? json_string(arguments) : NULL;
    if (text && *text == '\0')
        return STATUS_OK;
    struct json_scan scan = {0};
    const char *first = text ? text + strspn(text, " \t\r\n") : "";
    if (*first != '{' || json_scan_text(text, strlen(text), false, &scan, NULL) != STATUS_OK)
        return message_error(error, index, "tool_calls",
                             "has arguments that are not a JSON object in a string");
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
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    if (!json_is_object(message))
        return message_error(error, index, "", "must be an object");
    const struct cJSON *value = json_get(message, "role");
    const char *role = json_is_string(value) ? json_string(value) : "";
    bool known = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        known |= strcmp(role, roles[i]) == 0;
    if (!known)
        return message_error(error, index, "role",
                             "must be system, developer, user, assistant or tool");
    bool assistant = strcmp(role, "assistant") == 0;
    const struct cJSON *calls = json_get(message, "tool_calls");
    if (calls && !assistant)
        return message_error(error, index, "tool_calls", "is only for the assistant's messages");
    enum status status = check_content(message, index, assistant && json_first(calls), error);
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

static enum status check_messages(struct chat *chat, struct error *error)
{
    chat->messages = json_get(chat->document->root, "messages");
    uint32_t count = json_is_array(chat->messages) ? json_count(chat->messages) : 0;
    if (!(count >= 1 && count <= LIMIT_MESSAGES))
        return error_set(error, STATUS_INVALID, "messages",
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

static enum status check_tools(struct chat *chat, struct error *error)
{
    const struct cJSON *root = chat->document->root;
    const struct cJSON *choice = json_get(root, "tool_choice");
    const char *how = json_is_string(choice) ? json_string(choice) : choice ? "" : "auto";
    if (strcmp(how, "auto") != 0 && strcmp(how, "none") != 0)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "tool_choice",
                              "tool_choice must be \"auto\" or \"none\": calls cannot be forced "
                              "by this server.");
    const struct cJSON *tools = json_get(root, "tools");
    if (!tools)
        return STATUS_OK;
    if (!json_is_array(tools))
        return error_set(error, STATUS_INVALID, "tools", "tools must be a list.");
    for (const struct cJSON *tool = json_first(tools); tool; tool = json_after(tool)) {
        const struct cJSON *type = json_is_object(tool) ? json_get(tool, "type") : NULL;
        const struct cJSON *function = json_is_object(tool) ? json_get(tool, "function") : NULL;
        if (!json_is_string(type) || strcmp(json_string(type), "function") != 0 ||
            !json_is_object(function) || !json_is_string(json_get(function, "name")))
            return error_set(error, STATUS_INVALID, "tools",
                             "each of tools must have \"type\": \"function\" and function.name.");
    }
    if (json_first(tools) && strcmp(how, "none") != 0)
        chat->tools = tools;
    return STATUS_OK;
}

static enum status check_template_arguments(const struct cJSON *root, struct error *error)
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

static enum status check_response_format(const struct cJSON *root, struct error *error)
{
    const struct cJSON *format = json_get(root, "response_format");
    if (!format)
        return STATUS_OK;
    const struct cJSON *type = json_is_object(format) ? json_get(format, "type") : NULL;
    if (!json_is_string(type))
        return error_set(error, STATUS_INVALID, "response_format",
                         "response_format must be an object with a type.");
    if (strcmp(json_string(type), "text") == 0)
        return STATUS_OK;
    return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "response_format",
                          "response_format of type \"%.40s\" is not supported by this server; "
                          "\"text\" is.",
                          json_string(type));
}

static enum status read_lengths(const struct cJSON *root, struct request *out, struct error *error)
{
    int64_t max_tokens = UINT32_MAX, top_logprobs = 0;
    enum status status = json_read_integer(root, "max_tokens", 1, INFINITY, &max_tokens, error);
    if (status == STATUS_OK)
        status = json_read_integer(root, "max_completion_tokens", 1, INFINITY, &max_tokens, error);
    if (status == STATUS_OK)
        status = json_read_bool(root, "logprobs", &out->want_logprobs, error);
    if (status == STATUS_OK)
        status = json_read_integer(root, "top_logprobs", 0, LIMIT_LOGPROBS, &top_logprobs, error);
    if (status != STATUS_OK)
        return status;
    if (top_logprobs > 0 && !out->want_logprobs)
        return error_set(error, STATUS_INVALID, "top_logprobs",
                         "top_logprobs is only allowed together with \"logprobs\": true.");
    out->max_tokens = max_tokens < UINT32_MAX ? (uint32_t)max_tokens : UINT32_MAX;
    out->top_logprobs = (uint32_t)top_logprobs;
    return STATUS_OK;
}

static enum status check_modalities(const struct cJSON *root, struct error *error)
{
    for (const struct cJSON *entry = json_first(json_get(root, "modalities")); entry;
         entry = json_after(entry))
        if (!json_is_string(entry) || strcmp(json_string(entry), "text") != 0)
            return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "modalities",
                                  "modalities may only hold \"text\".");
    return STATUS_OK;
}

static enum status read_fields(struct chat *chat, struct request *out, struct error *error)
{
    static const char *const refused[] = {
        "functions",  "function_call", "audio", "web_search_options",
        "prediction", "documents",     "echo",  NULL};
    const struct cJSON *root = chat->document->root;
    const char *effort = NULL;
    if (json_get(root, "chat_template"))
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "chat_template",
                              "chat_template cannot be set by a request; the operator sets it.");
    enum status status = request_refuse(root, refused, error);
    if (status == STATUS_OK)
        status = read_lengths(root, out, error);
    if (status == STATUS_OK)
        status = check_messages(chat, error);
    if (status == STATUS_OK)
        status = check_tools(chat, error);
    if (status == STATUS_OK)
        status = check_template_arguments(root, error);
    if (status == STATUS_OK)
        status = check_response_format(root, error);
    if (status == STATUS_OK)
        status = check_modalities(root, error);
    if (status == STATUS_OK)
        status = json_read_string(root, "reasoning_effort", &effort, error);
    if (status == STATUS_OK)
        status =
            json_read_bool(root, "continue_final_message", &chat->continue_final_message, error);
    chat->add_generation_prompt = !chat->continue_final_message;
    if (status == STATUS_OK)
        status = json_read_bool(root, "add_generation_prompt", &chat->add_generation_prompt, error);
    if (status == STATUS_OK && chat->add_generation_prompt && chat->continue_final_message)
        status = error_set(error, STATUS_INVALID, "continue_final_message",
                           "continue_final_message and add_generation_prompt exclude each other.");
    return status;
}

static enum status guard_open(struct chat *chat, struct error *error)
{
    for (unsigned i = 0; i < JSON_NONCHARACTERS; i++)
        if (!chat->noncharacter[i])
            return control_guard_init(&chat->guard, chat->context->tokenizer, json_noncharacter(i),
                                      error);
    return error_set(error, STATUS_INVALID, "messages",
                     "The request uses every Unicode noncharacter; leave one out.");
}

static void write_guarded(struct chat *chat, const char *text, size_t length, bool alone)
{
    if (!control_guard_write(&chat->guard, text, length, alone, &chat->json))
        chat->unbreakable = true;
}

static void write_guarded_slice(struct chat *chat, struct json_slice string, bool alone)
{
    buffer_clear(&chat->scratch);
    json_decode_string(string, &chat->scratch);
    buffer_append_text(&chat->json, "\"");
    write_guarded(chat, chat->scratch.data ? chat->scratch.data : "", chat->scratch.length, alone);
    buffer_append_text(&chat->json, "\"");
}

/* Copy a value as it is spelled, its strings and keys under the guard. */
static void write_value(struct chat *chat, struct json_slice value)
{
    for (size_t at = 0; at < value.length;) {
        const char *quote = memchr(value.text + at, '"', value.length - at);
        size_t plain = quote ? (size_t)(quote - value.text) : value.length;
        buffer_append(&chat->json, value.text + at, plain - at);
        if (!quote)
            return;
        size_t end = plain + 1;
        while (value.text[end] != '"')
            end += value.text[end] == '\\' ? 2 : 1;
        write_guarded_slice(chat, (struct json_slice){value.text + plain, end + 1 - plain}, false);
        at = end + 1;
    }
}

static void write_content(struct chat *chat, const struct cJSON *content)
{
    buffer_append_text(&chat->json, "\"content\":\"");
    if (json_is_string(content)) {
        write_guarded(chat, json_string(content), strlen(json_string(content)), false);
    } else {
        bool first = true;
        /* Joined before it is guarded: a token may not come about at a seam either. */
        struct buffer joined;
        buffer_init(&joined, 0);
        for (const struct cJSON *part = json_first(content); part; part = json_after(part)) {
            buffer_append_text(&joined, first ? "" : "\n");
            buffer_append_text(&joined, json_string(json_get(part, "text")));
            first = false;
        }
        write_guarded(chat, joined.data ? joined.data : "", joined.length, false);
        chat->json.failed |= joined.failed;
        buffer_deinit(&joined);
    }
    buffer_append_text(&chat->json, "\"");
}

static void write_arguments(struct chat *chat, struct json_slice arguments)
{
    if (arguments.text[0] != '"') {
        write_value(chat, arguments);
        return;
    }
    struct buffer text;
    buffer_init(&text, 0);
    json_decode_string(arguments, &text);
    if (text.length > 0)
        write_value(chat, (struct json_slice){text.data, text.length});
    else
        buffer_append_text(&chat->json, "{}");
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
        write_guarded_slice(chat, key, false);
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

static void write_message(struct chat *chat, const struct cJSON *message, struct json_slice slice)
{
    const char *role = json_string(json_get(message, "role"));
    if (strcmp(role, "developer") == 0)
        role = "system";
    /* The role is one of a known few: it may make control tokens ("<|" role "|>"). */
    buffer_appendf(&chat->json, "{\"role\":\"%s\",", role);
    write_content(chat, json_get(message, "content"));
    struct json_slice key, value;
    for (size_t at = 0; json_next(slice, &at, &key, &value);) {
        if (json_slice_is(key, "role") || json_slice_is(key, "content") ||
            value.text[0] == 'n') /* null is absent */
            continue;
        buffer_append_text(&chat->json, ",");
        if (json_slice_is(key, "tool_calls")) {
            write_tool_calls(chat, value);
            continue;
        }
        write_guarded_slice(chat, key, false);
        buffer_append_text(&chat->json, ":");
        if (value.text[0] == '"' && json_slice_is(key, "name"))
            write_guarded_slice(chat, value, true);
        else
            write_value(chat, value);
    }
    buffer_append_text(&chat->json, "}");
}

static void write_context(struct chat *chat)
{
    struct buffer *json = &chat->json;
    struct json_slice body = chat->document->text, key, value;
    const struct cJSON *message = json_first(chat->messages);
    struct json_slice messages = json_find(body, "messages");
    buffer_append_text(json, "{\"messages\":[");
    for (size_t at = 0; json_next(messages, &at, NULL, &value); message = json_after(message)) {
        CHECK(message);
        if (message != json_first(chat->messages))
            buffer_append_text(json, ",");
        write_message(chat, message, value);
    }
    buffer_append_text(json, "],\"tools\":");
    write_value(chat, chat->tools ? json_find(body, "tools") : (struct json_slice){"null", 4});
    buffer_appendf(json, ",\"documents\":null,\"add_generation_prompt\":%s",
                   chat->add_generation_prompt ? "true" : "false");
    if (json_get(chat->document->root, "reasoning_effort")) {
        buffer_append_text(json, ",\"reasoning_effort\":");
        write_value(chat, json_find(body, "reasoning_effort"));
    }
    struct json_slice arguments = json_find(body, "chat_template_kwargs");
    for (size_t at = 0; arguments.text && json_next(arguments, &at, &key, &value);) {
        buffer_append_text(json, ",");
        write_value(chat, key);
        buffer_append_text(json, ":");
        write_value(chat, value);
    }
    buffer_append_text(json, "}");
}

static char *reversed(const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    for (size_t i = 0; copy && i < length; i++)
        copy[i] = text[length - 1 - i];
    return copy;
}

/* The last occurrence of `part`, in linear time: the first one, read backwards. */
static const char *find_last(const struct buffer *text, const char *part, size_t length)
{
    char *haystack = reversed(text->data ? text->data : "", text->length);
    char *needle = reversed(part, length);
    const char *found = NULL;
    if (haystack && needle && length > 0)
        found = memmem(haystack, text->length, needle, length);
    if (found)
        found = text->data + text->length - (size_t)(found - haystack) - length;
    free(haystack);
    free(needle);
    return found;
}

/* continue_final_message, as transformers does it: the text ends with the last message's own. */
static enum status cut_after_final(struct chat *chat, struct buffer *text, struct error *error)
{
    const struct cJSON *last = NULL;
    for (const struct cJSON *m = json_first(chat->messages); m; m = json_after(m))
        last = m;
    const struct cJSON *content = json_get(last, "content");
    if (strcmp(json_string(json_get(last, "role")), "assistant") != 0 || !json_is_string(content))
        return error_set(error, STATUS_INVALID, "continue_final_message",
                         "continue_final_message needs a last message of the assistant with "
                         "text.");
    /* As the template saw it: guarded, and without JSON's escapes. */
    buffer_clear(&chat->json);
    buffer_append_text(&chat->json, "\"");
    write_guarded(chat, json_string(content), strlen(json_string(content)), false);
    buffer_append_text(&chat->json, "\"");
    buffer_clear(&chat->scratch);
    json_decode_string((struct json_slice){chat->json.data, chat->json.length}, &chat->scratch);
    const char *start = chat->scratch.data ? chat->scratch.data : "";
    start += strspn(start, " \t\r\n");
    size_t whole = strlen(start), length = whole;
    while (length > 0 && strchr(" \t\r\n", start[length - 1]))
        length--;
    const char *found = find_last(text, start, length);
    if (!found)
        return error_set(error, STATUS_INVALID, "continue_final_message",
                         "The model's chat template does not print the last message as it is, so "
                         "it cannot be continued.");
    size_t left = (size_t)(text->data + text->length - found);
    if (left >= whole && memcmp(found, start, whole) == 0)
        length = whole; /* the template kept trailing white space */
    text->length = (size_t)(found - text->data) + length;
    text->data[text->length] = '\0';
    return STATUS_OK;
}

/* BOS is there once, whether the template prints it or the model file asks for it. */
static enum status tokenize(struct chat *chat, struct request *out, const struct buffer *text,
                            struct error *error)
{
    const struct tokenizer *tokenizer = chat->context->tokenizer;
    unsigned flags = TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_BOS;
    uint32_t bos = tokenizer_bos(tokenizer);
    if (bos != UINT32_MAX) {
        size_t length;
        const char *bos_text = tokenizer_text(tokenizer, bos, &length);
        if (length > 0 && text->length >= length && memcmp(text->data, bos_text, length) == 0)
            flags = TOKENIZER_PARSE_SPECIAL;
    }
    out->prompts = calloc(1, sizeof *out->prompts);
    if (!out->prompts)
        return error_set(error, STATUS_IO, NULL, "Out of memory.");
    out->prompt_count = 1;
    return request_tokenize(chat->context, out, text->data ? text->data : "", text->length, flags,
                            chat->guard.sentinel, "messages", out->prompts, error);
}

static enum status make_prompt(struct chat *chat, struct request *out, struct error *error)
{
    struct buffer text;
    buffer_init(&text, 0);
    write_context(chat);
    enum status status = STATUS_OK;
    if (chat->json.failed || chat->scratch.failed)
        status = error_set(error, STATUS_IO, NULL, "Out of memory.");
    else if (chat->unbreakable)
        status = error_set(error, STATUS_INVALID, "messages",
                           "A message holds a character that is a control token of the model.");
    if (status == STATUS_OK)
        status = chat_template_render(chat->context->chat_template, chat->json.data,
                                      chat->json.length, &text, error);
    if (status == STATUS_OK && chat->continue_final_message)
        status = cut_after_final(chat, &text, error);
    if (status == STATUS_OK)
        status = tokenize(chat, out, &text, error);
    if (status != STATUS_OK && error)
        control_guard_clean(&chat->guard, error->message);
    buffer_deinit(&text);
    return status;
}

enum status request_read_chat(const struct api_context *context,
                              const struct json_document *document, struct request *out,
                              struct error *error)
{
    if (!context->chat_template)
        return error_set_code(error, STATUS_UNSUPPORTED, "no_chat_template", NULL,
                              "This model file has no chat template. Use /v1/completions, or "
                              "start the server with --chat-template FILE.");
    struct chat chat = {.context = context, .document = document};
    memcpy(chat.noncharacter, document->scan.noncharacter, sizeof chat.noncharacter);
    enum status status = read_fields(&chat, out, error);
    if (status == STATUS_OK)
        status = guard_open(&chat, error);
    if (status != STATUS_OK)
        return status;
    buffer_init(&chat.json, 8 * document->text.length + (64u << 10));
    buffer_init(&chat.scratch, 0);
    /* The context, its values in the template engine, and the text: given back when all are gone.
     */
    uint64_t working = 6 * (uint64_t)document->text.length + (256u << 10);
    status = request_take(context, out, working, error);
    if (status == STATUS_OK) {
        status = make_prompt(&chat, out, error);
        out->taken_bytes -= context->budget ? working : 0;
        if (context->budget)
            budget_give(context->budget, BUDGET_REQUESTS, working);
    }
    buffer_deinit(&chat.json);
    buffer_deinit(&chat.scratch);
    control_guard_deinit(&chat.guard);
    return status;
}
