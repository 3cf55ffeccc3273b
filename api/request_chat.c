/*
 * The fields of /v1/chat/completions and its one prompt: messages are checked, written into the
 * template's context, rendered, guarded against control tokens of a user's making, and tokenized.
 *
 * What templates see is what transformers gives them, with OpenAI's looser forms made plain:
 * content parts are joined by a newline, missing content beside tool calls is "", "developer" is
 * "system", tool-call arguments are an object. The order and spelling of everything else is the
 * client's.
 */
#include "api/chat.h"
#include "api/chat_template.h"
#include "base/costs.h"
#include "base/minmax.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status read_lengths(const struct cJSON *root, struct request *out, struct error *error)
{
    int64_t top_logprobs = 0;
    enum status status = json_read_bool(root, "logprobs", &out->want_logprobs, error);
    if (status == STATUS_OK)
        status = json_read_integer(root, "top_logprobs", 0, LIMIT_LOGPROBS, &top_logprobs, error);
    if (status != STATUS_OK)
        return status;
    if (top_logprobs > 0 && !out->want_logprobs)
        return error_set(error, STATUS_INVALID, "top_logprobs",
                         "top_logprobs is only allowed together with \"logprobs\": true.");
    out->max_tokens = request_max_tokens(out, UINT32_MAX);
    if (out->max_tokens == 0)
        return error_set(error, STATUS_INVALID, "max_tokens",
                         "max_tokens must be an integer from 1 on, or -1 for all that fits.");
    out->top_logprobs = (uint32_t)top_logprobs;
    return STATUS_OK;
}

static enum status check_final(const struct chat *chat, struct error *error)
{
    const struct cJSON *last = NULL;
    for (const struct cJSON *m = json_first(chat->messages); m; m = json_after(m))
        last = m;
    if (strcmp(json_string(json_get(last, "role")), "assistant") != 0 || !json_get(last, "content"))
        return error_set(error, STATUS_INVALID, "continue_final_message",
                         "continue_final_message needs a last message of the assistant with "
                         "text.");
    return STATUS_OK;
}

static enum status read_fields(struct chat *chat, struct request *out, struct error *error)
{
    const struct cJSON *root = chat->document->root;
    const char *effort = NULL;
    bool thinking;
    if (json_get(root, "chat_template"))
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", "chat_template",
                              "chat_template cannot be set by a request; the operator sets it.");
    enum status status = read_lengths(root, out, error);
    if (status == STATUS_OK)
        status = chat_check_messages(chat, error);
    if (status == STATUS_OK)
        status = chat_check_tools(chat, error);
    if (status == STATUS_OK)
        status = chat_check_template_arguments(root, error);
    if (status == STATUS_OK)
        status = chat_check_modalities(root, error);
    if (status == STATUS_OK)
        status = json_read_string(root, "reasoning_effort", &effort, error);
    if (status == STATUS_OK)
        status = json_read_bool(root, "enable_thinking", &thinking, error);
    if (status == STATUS_OK)
        status =
            json_read_bool(root, "continue_final_message", &chat->continue_final_message, error);
    chat->add_generation_prompt = !chat->continue_final_message;
    if (status == STATUS_OK)
        status = json_read_bool(root, "add_generation_prompt", &chat->add_generation_prompt, error);
    if (status == STATUS_OK && chat->add_generation_prompt && chat->continue_final_message)
        status = error_set(error, STATUS_INVALID, "continue_final_message",
                           "continue_final_message and add_generation_prompt exclude each other.");
    if (status == STATUS_OK && chat->continue_final_message)
        status = check_final(chat, error);
    return status;
}

/* The noncharacter that marks places in the text: one that the request does not use. */
static enum status choose_sentinel(struct chat *chat, struct error *error)
{
    for (unsigned i = 0; i < JSON_NONCHARACTERS; i++) {
        if (chat->noncharacter[i])
            continue;
        chat->sentinel = json_noncharacter(i);
        chat->sentinel_length = (size_t)utf8_encode(chat->sentinel, chat->sentinel_bytes);
        return STATUS_OK;
    }
    return error_set(error, STATUS_INVALID, "messages",
                     "The request uses every Unicode noncharacter; leave one out.");
}

/* Move bits [from, from + count) of `own` down to `to`. */
static void move_own(uint8_t *own, size_t to, size_t from, size_t count)
{
    for (size_t i = 0; i < count && to != from; i++) {
        unsigned bit = own[(from + i) / 8] >> ((from + i) % 8) & 1;
        uint8_t mask = (uint8_t)(1u << ((to + i) % 8));
        own[(to + i) / 8] = (uint8_t)((own[(to + i) / 8] & ~mask) | (bit ? mask : 0));
    }
}

/* Take the marks behind the last message's text out of `text`, and out of `own` beside it; *last:
   where the last one stood, its end known to be `spaced`. False when the template printed none. */
static bool take_marks(const struct chat *chat, struct buffer *text, uint8_t *own, size_t *last,
                       bool *spaced)
{
    char mark[CHAT_MARK_SENTINELS * sizeof chat->sentinel_bytes + 1];
    size_t length = 0, kept = 0;
    bool found = false;
    for (int i = 0; i < CHAT_MARK_SENTINELS; i++, length += chat->sentinel_length)
        memcpy(mark + length, chat->sentinel_bytes, chat->sentinel_length);
    for (size_t from = 0; from < text->length;) {
        const char *at = memmem(text->data + from, text->length - from, mark, length);
        size_t plain = at ? (size_t)(at - text->data) - from : text->length - from;
        memmove(text->data + kept, text->data + from, plain);
        move_own(own, kept, from, plain);
        kept += plain;
        from += plain;
        if (!at)
            break;
        found = true;
        *last = kept;
        *spaced = from + length < text->length && text->data[from + length] == ' ';
        from += length + *spaced;
    }
    text->length = kept;
    return found;
}

/* A message for a person has no marks in it. */
static void clean(const struct chat *chat, char *message)
{
    size_t length = chat->sentinel_length;
    for (char *at = message; (at = strstr(at, chat->sentinel_bytes));)
        memmove(at, at + length, strlen(at + length) + 1);
}

/* Length without white space at the end, as Python's str.rstrip has it. */
static size_t stripped_length(const char *text, size_t length)
{
    static const char *const spaces[] = {
        " ",      "\t",     "\n",       "\v",     "\f",     "\r",     "\x1c",   "\x1d",
        "\x1e",   "\x1f",   "\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
        "\u2003", "\u2004", "\u2005",   "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
        "\u2028", "\u2029", "\u202f",   "\u205f", "\u3000"};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces;) {
        size_t size = strlen(spaces[i]);
        bool ends = length >= size && memcmp(text + length - size, spaces[i], size) == 0;
        length -= ends ? size : 0;
        i = ends ? 0 : i + 1;
    }
    return length;
}

/* continue_final_message, as transformers does it: the text ends with the last message's own. White
   space at its end stays where the template keeps it. */
static enum status cut_after_final(const struct chat *chat, struct buffer *text, uint8_t *own,
                                   struct error *error)
{
    size_t start = 0, kept = 0, whole = stripped_length(chat->final.data, chat->final.length);
    bool spaced = false;
    while (start < whole && strchr(" \t\r\n", chat->final.data[start]))
        start++;
    if (!take_marks(chat, text, own, &kept, &spaced) ||
        !memmem(text->data, text->length, chat->final.data + start, whole - start))
        return error_set(error, STATUS_INVALID, "continue_final_message",
                         "The model's chat template does not print the last message as it is, so "
                         "it cannot be continued.");
    text->length = spaced ? kept : stripped_length(text->data, kept);
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
        return error_no_memory(error);
    out->prompt_count = 1;
    return request_tokenize(chat->context, out, text->data ? text->data : "", text->length, flags,
                            chat->sentinel, "messages", out->prompts, error);
}

/* Adds the tokens of `text` to *total; 400 context_length_exceeded beyond what the context holds. */
static enum status check_length(const struct api_context *context, const struct buffer *text,
                                int flags, size_t *total, struct error *error)
{
    size_t limit = context->max_model_len, count = 0;
    uint32_t *tokens = NULL;
    enum status status = STATUS_OK;
    if (text->length > 0 && !text->failed)
        status = tokenizer_encode(context->tokenizer, text->data, text->length, flags, 0, limit,
                                  &tokens, &count, NULL);
    free(tokens);
    *total += count;
    if (status != STATUS_TOO_LARGE && *total <= limit)
        return STATUS_OK;
    return error_set_code(error, STATUS_INVALID, "context_length_exceeded", "messages",
                          "This model's maximum context length is %zu tokens, answer included; the "
                          "prompt is too long: it has more than %zu tokens. Shorten the prompt.",
                          limit, *total - 1);
}

/* Whether the messages' own text fits the context. */
static enum status check_texts_fit(const struct chat *chat, struct error *error)
{
    size_t total = 0;
    enum status status = STATUS_OK;
    for (const struct cJSON *m = json_first(chat->messages); m && status == STATUS_OK;
         m = json_after(m)) {
        struct buffer text;
        buffer_init(&text, 0);
        chat_join_content(m, &text);
        status = check_length(chat->context, &text, 0, &total, error);
        buffer_deinit(&text);
    }
    return status;
}

/* Three quarters of what requests leave free now, entered as theirs until the prompt is made. Only
   for a long conversation: the fuel that a template's own account stands for is for one that holds
   all that it makes, and most of a small budget would have to be set aside for it. */
static bool lend(struct chat *chat)
{
    struct budget *budget = chat->context->budget;
    if (!budget || chat->lent_bytes > 0)
        return false;
    uint64_t used = budget_used(budget, BUDGET_REQUESTS);
    uint64_t left = budget->cap_bytes[BUDGET_REQUESTS] - used;
    uint64_t bytes = min_u64(left / 4 * 3, COST_TEMPLATE_BYTES_MAX);
    if (bytes == 0 || !budget_take(budget, BUDGET_REQUESTS, bytes))
        return false;
    chat->lent_bytes = bytes;
    chat_template_lend(bytes);
    return true;
}

static void end_lending(struct chat *chat)
{
    if (chat->lent_bytes == 0)
        return;
    chat_template_lend(0);
    budget_give(chat->context->budget, BUDGET_REQUESTS, chat->lent_bytes);
    chat->lent_bytes = 0;
}

/* A conversation that is too long for the template is first of all too long, if it is; the template
   is the reason only where the text that it printed, or the messages themselves, would fit. */
static enum status refuse_too_large(const struct chat *chat, const struct buffer *printed,
                                    struct error *error)
{
    struct error length = {0};
    size_t total = 0;
    enum status status = check_texts_fit(chat, &length);
    if (status == STATUS_OK && printed)
        status = check_length(chat->context, printed, TOKENIZER_PARSE_SPECIAL, &total, &length);
    if (status != STATUS_OK && error)
        *error = length;
    else if (error)
        error->status = STATUS_INVALID;
    return STATUS_INVALID;
}

static enum status render(struct chat *chat, struct buffer *text, struct error *error)
{
    const struct chat_template *chat_template = chat->chat_template;
    enum status status =
        chat_template_render(chat_template, chat->json.data, chat->json.length, text, error);
    if (status == STATUS_TOO_LARGE && lend(chat)) {
        buffer_clear(text);
        status =
            chat_template_render(chat_template, chat->json.data, chat->json.length, text, error);
    }
    return status == STATUS_TOO_LARGE ? refuse_too_large(chat, NULL, error) : status;
}

static void give_back(const struct api_context *context, struct request *out, uint64_t bytes)
{
    if (!context->budget)
        return;
    out->taken_bytes -= bytes;
    budget_give(context->budget, BUDGET_REQUESTS, bytes);
}

/* The first message that has something of that part, or UINT32_MAX. */
static uint32_t find_part(const struct chat *chat, enum chat_part part)
{
    uint32_t index = 0;
    for (const struct cJSON *m = json_first(chat->messages); m; m = json_after(m), index++) {
        if (part == CHAT_PART_CALLS && json_first(json_get(m, "tool_calls")))
            return index;
        if (part != CHAT_PART_RESULTS || !chat_is_result(m))
            continue;
        struct buffer text;
        buffer_init(&text, 0);
        chat_join_content(m, &text);
        bool something = text.length > 0;
        buffer_deinit(&text);
        if (something)
            return index;
    }
    return UINT32_MAX;
}

/* Whether the template prints the same without that part. What it refuses to print so it reads. */
static bool is_dropped(const struct chat *chat, enum chat_part part, const struct buffer *text)
{
    struct chat without = *chat;
    struct buffer other;
    without.left_out = part;
    buffer_init(&without.json, 8 * chat->document->text.length + (64u << 10));
    buffer_init(&without.final, 0);
    buffer_init(&other, 0);
    chat_write_context(&without);
    bool same = !without.json.failed && !without.final.failed &&
                chat_template_render(chat->chat_template, without.json.data, without.json.length,
                                     &other, NULL) == STATUS_OK &&
                other.length == text->length &&
                (text->length == 0 || memcmp(other.data, text->data, text->length) == 0);
    buffer_deinit(&without.json);
    buffer_deinit(&without.final);
    buffer_deinit(&other);
    return same;
}

static enum status refuse_part(enum chat_part part, uint32_t index, struct error *error)
{
    char param[64] = "tools";
    if (part != CHAT_PART_TOOLS)
        snprintf(param, sizeof param, "messages[%u].%s", index,
                 part == CHAT_PART_CALLS ? "tool_calls" : "content");
    return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", param,
                          "%s would be lost: the model's chat template does not print %s.", param,
                          part == CHAT_PART_TOOLS   ? "tools"
                          : part == CHAT_PART_CALLS ? "tool calls"
                                                    : "the results of tools");
}

/* Names and schemas of the request's tools, for reading what the model writes. */
static enum status keep_tools(const struct chat *chat, struct request *out, struct error *error)
{
    struct json_slice list = json_find(chat->document->text, "tools"), tool;
    uint32_t count = json_count(chat->tools);
    enum status status =
        request_take(chat->context, out, 2 * list.length + count * sizeof *out->tools.tools, error);
    if (status != STATUS_OK)
        return status;
    struct output_tool *tools = calloc(count, sizeof *tools);
    out->tools.tools = tools;
    out->tools_text = strndup(list.text, list.length);
    if (!tools || !out->tools_text)
        return error_no_memory(error);
    const struct cJSON *entry = json_first(chat->tools);
    list.text = out->tools_text;
    for (size_t at = 0; json_next(list, &at, NULL, &tool); entry = json_after(entry)) {
        struct output_tool *kept = &tools[out->tools.count];
        if (!tool_choice_allows(&chat->choice,
                                json_string(json_get(json_get(entry, "function"), "name"))))
            continue;
        kept->name = strdup(json_string(json_get(json_get(entry, "function"), "name")));
        if (!kept->name)
            return error_no_memory(error);
        kept->parameters = json_find(json_find(tool, "function"), "parameters");
        out->tools.count++;
    }
    out->parsing.tools = &out->tools;
    out->parsing.calls = chat_template_call_format(chat->chat_template);
    return STATUS_OK;
}

/* tool_choice required, or a tool by name: the answer is one call, as the format "json" has it. */
static enum status require_call(const struct chat *chat, struct request *out, struct error *error)
{
    struct buffer schema;
    buffer_init(&schema, 0);
    enum status status = tool_choice_write_schema(&out->tools, &schema, error);
    if (status == STATUS_OK && schema.failed)
        status = error_no_memory(error);
    if (status == STATUS_OK)
        status = constraint_set(&out->constraint, "tool_choice", GRAMMAR_JSON_SCHEMA, schema.data,
                                schema.length, error);
    buffer_deinit(&schema);
    if (status == STATUS_OK)
        status = request_take_constraint(chat->context, out, error);
    out->parsing.calls = call_format_find("json");
    return status;
}

/* Whether what the template printed ends with the mark of reasoning, which goes on then. */
static bool opens_reasoning(const struct buffer *text, const struct reasoning_marks *marks)
{
    size_t length = stripped_length(text->data ? text->data : "", text->length);
    size_t size = strlen(marks->open);
    return length >= size && memcmp(text->data + length - size, marks->open, size) == 0;
}

/* Fields that say whether reasoning is given apart. */
static enum status read_reasoning(const struct chat *chat, struct request *out, struct error *error)
{
    const struct cJSON *root = chat->document->root;
    bool separate = true;
    const char *format = "auto";
    enum status status = json_read_bool(root, "separate_reasoning", &separate, error);
    if (status == STATUS_OK)
        status = json_read_string(root, "reasoning_format", &format, error);
    if (status != STATUS_OK)
        return status;
    static const char *const formats[] = {"auto", "none", "deepseek"};
    bool known = false;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        known |= strcmp(format, formats[i]) == 0;
    if (!known)
        return error_set(error, STATUS_INVALID, "reasoning_format",
                         "reasoning_format must be auto, deepseek or none.");
    if (separate && strcmp(format, "none") != 0)
        out->parsing.reasoning = chat_template_reasoning(chat->chat_template);
    return STATUS_OK;
}

static enum status check_printed(struct chat *chat, struct request *out, uint64_t working,
                                 struct buffer *text, struct error *error);

/* The template drops tools, calls or results: all of them become texts of messages, which it must
   print. */
static enum status write_as_text(struct chat *chat, struct request *out, uint64_t working,
                                 struct buffer *text, struct error *error)
{
    chat->tools_as_text = true;
    buffer_clear(&chat->json);
    buffer_clear(&chat->final);
    buffer_clear(text);
    chat_write_context(chat);
    if (chat->json.failed || chat->final.failed)
        return error_no_memory(error);
    if (chat->tools)
        out->parsing.calls = call_format_find("json");
    enum status status = render(chat, text, error);
    return status == STATUS_OK ? check_printed(chat, out, working, text, error) : status;
}

/* Nothing that was sent is dropped without a word. The small conversations at load have shown what
   the template prints; the others are looked for here, one rendering each. */
static enum status check_printed(struct chat *chat, struct request *out, uint64_t working,
                                 struct buffer *text, struct error *error)
{
    const struct chat_shape *shape = chat->shape;
    const struct {
        enum chat_part part;
        bool printed;
        uint32_t index;
    } parts[] = {
        {CHAT_PART_TOOLS, shape->tools, chat->tools ? 0 : UINT32_MAX},
        {CHAT_PART_CALLS, shape->calls, find_part(chat, CHAT_PART_CALLS)},
        {CHAT_PART_RESULTS, shape->results, find_part(chat, CHAT_PART_RESULTS)},
    };
    bool looked = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if ((parts[i].printed && !chat->tools_as_text) || parts[i].index == UINT32_MAX)
            continue;
        looked = true;
        enum status status = request_take(chat->context, out, working, error);
        if (status != STATUS_OK)
            return status;
        bool dropped = is_dropped(chat, parts[i].part, text);
        give_back(chat->context, out, working);
        if (dropped && chat->tools_as_text)
            return refuse_part(parts[i].part, parts[i].index, error);
        if (dropped)
            return write_as_text(chat, out, working, text, error);
    }
    if (!looked)
        return STATUS_OK;
    buffer_clear(text); /* the last rendering is the one that is traced */
    return render(chat, text, error);
}

/* What the template printed, up to where a continued message ends, its own control tokens the only
   ones. The context is given up on the way: there may be a second copy of the text. */
static enum status guard_text(struct chat *chat, struct buffer *text, struct error *error)
{
    uint8_t *own = calloc(chat_template_own_bytes(text), 1);
    if (!own)
        return error_no_memory(error);
    enum status status = chat_template_trace(chat->chat_template, chat->json.data,
                                             chat->json.length, text, own, error);
    if (status == STATUS_TOO_LARGE && lend(chat))
        status = chat_template_trace(chat->chat_template, chat->json.data, chat->json.length, text,
                                     own, error);
    if (status == STATUS_TOO_LARGE)
        status = refuse_too_large(chat, text, error);
    buffer_deinit(&chat->json);
    if (status == STATUS_OK && chat->continue_final_message)
        status = cut_after_final(chat, text, own, error);
    if (status == STATUS_OK)
        status = chat_template_guard(chat->chat_template, text, own, chat->sentinel, error);
    free(own);
    return status;
}

static enum status make_prompt(struct chat *chat, struct request *out, uint64_t working,
                               struct error *error)
{
    struct buffer text;
    buffer_init(&text, 0);
    chat_write_context(chat);
    request_yield(chat->context);
    enum status status = STATUS_OK;
    if (chat->json.failed || chat->final.failed)
        status = error_no_memory(error);
    if (status == STATUS_OK)
        status = render(chat, &text, error);
    if (status == STATUS_OK)
        status = check_printed(chat, out, working, &text, error);
    if (status == STATUS_OK)
        status = guard_text(chat, &text, error);
    if (status == STATUS_OK && out->parsing.reasoning)
        out->parsing.in_reasoning = opens_reasoning(&text, out->parsing.reasoning);
    end_lending(chat);
    if (status == STATUS_OK)
        status = tokenize(chat, out, &text, error);
    if (status != STATUS_OK && error)
        clean(chat, error->message);
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
    chat.chat_template =
        chat.tools && context->tool_template ? context->tool_template : context->chat_template;
    chat.shape = chat_template_shape(chat.chat_template);
    if (status == STATUS_OK)
        status = read_reasoning(&chat, out, error);
    if (status == STATUS_OK && chat.tools)
        status = keep_tools(&chat, out, error);
    if (status == STATUS_OK && out->parsing.calls) {
        bool parallel = true;
        status = json_read_bool(document->root, "parallel_tool_calls", &parallel, error);
        out->parsing.one_call = !parallel;
    }
    if (status == STATUS_OK && chat.tools && chat.choice.mode == TOOL_CHOICE_REQUIRED)
        status = require_call(&chat, out, error);
    if (out->constraint.source) /* which holds from the first token on */
        out->parsing.reasoning = NULL;
    if (status == STATUS_OK)
        status = choose_sentinel(&chat, error);
    if (status != STATUS_OK)
        return status;
    buffer_init(&chat.json, 8 * document->text.length + (64u << 10));
    buffer_init(&chat.final, 0);
    /* The context, its values in the template engine, and the text: given back when all are gone.
     */
    uint64_t working = 6 * (uint64_t)document->text.length + (256u << 10) +
                       chat_template_context_bytes(document->scan.nodes);
    status = request_take(context, out, working, error);
    if (status == STATUS_OK) {
        status = make_prompt(&chat, out, working, error);
        give_back(context, out, working);
    }
    buffer_deinit(&chat.json);
    buffer_deinit(&chat.final);
    return status;
}
