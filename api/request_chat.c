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
#include "api/chat.h"
#include "api/chat_template.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        status = chat_check_messages(chat, error);
    if (status == STATUS_OK)
        status = chat_check_tools(chat, error);
    if (status == STATUS_OK)
        status = chat_check_template_arguments(root, error);
    if (status == STATUS_OK)
        status = chat_check_response_format(root, error);
    if (status == STATUS_OK)
        status = chat_check_modalities(root, error);
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
    chat_write_guarded(chat, json_string(content), strlen(json_string(content)), false);
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
    chat_write_context(chat);
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
