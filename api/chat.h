/*
 * A chat on its way from messages to a prompt. Private to api/: chat_check.c looks at what the
 * client sent, chat_context.c writes what the template sees, request_chat.c puts them together.
 */
#ifndef QUIRE_API_CHAT_H
#define QUIRE_API_CHAT_H

#include "api/chat_shape.h"
#include "api/request.h"
#include "api/tool_choice.h"

/* What a template may not print; the client's texts it does. */
enum chat_part {
    CHAT_PART_NONE,
    CHAT_PART_TOOLS,   /* the request's tools */
    CHAT_PART_CALLS,   /* tool_calls of the assistant's messages */
    CHAT_PART_RESULTS, /* contents of messages of role tool */
};

struct chat {
    const struct api_context *context;
    const struct json_document *document;
    const struct cJSON *messages;
    const struct cJSON *tools; /* NULL: none */
    struct tool_choice choice;
    const struct chat_template *chat_template; /* the model's, or its own for tools */
    const struct chat_shape *shape;
    bool add_generation_prompt, continue_final_message;
    bool tools_as_text;      /* the template does not print them: they are texts of messages */
    enum chat_part left_out; /* of what the template sees, to find out whether it prints that */
    bool noncharacter[JSON_NONCHARACTERS]; /* those that occur in the request */
    uint32_t sentinel;                     /* a noncharacter that the request does not use */
    char sentinel_bytes[5];                /* terminated */
    size_t sentinel_length;
    uint64_t lent_bytes; /* of BUDGET_REQUESTS, to the template */
    struct buffer json;  /* the template's context */
    struct buffer final; /* the text to be continued, as the template sees it */
};

/* Whether a call's arguments are a JSON object; `scan` as in json_scan_text. */
bool chat_arguments_are_object(const char *text, size_t length, struct json_scan *scan);

/* STATUS_INVALID or STATUS_UNSUPPORTED naming the field. Set messages, tools and noncharacter. */
enum status chat_check_messages(struct chat *chat, struct error *error);
enum status chat_check_tools(struct chat *chat, struct error *error);
enum status chat_check_template_arguments(const struct cJSON *root, struct error *error);
enum status chat_check_modalities(const struct cJSON *root, struct error *error);

/* Where the last message's text ends when it is to be continued, until the text is cut there: three
   sentinels and a space, which shows whether the template keeps white space at a message's end. */
#define CHAT_MARK_SENTINELS 3

/* Write the template's context into chat->json; see its `failed`. What was
   checked may be written without looking again. */
void chat_write_context(struct chat *chat);
/* Does the message hold what a tool answered? "function" is the older name of the role. */
bool chat_is_result(const struct cJSON *message);
/* Append the text of a message that was checked: its content, parts joined, or its refusal. */
void chat_join_content(const struct cJSON *message, struct buffer *out);

#endif
