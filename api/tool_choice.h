/*
 * Which tools a chat's answer may or must call, and the schema of a call that it must make. Private
 * to api/.
 */
#ifndef QUIRE_API_TOOL_CHOICE_H
#define QUIRE_API_TOOL_CHOICE_H

#include "api/call_format.h"
#include "base/buffer.h"
#include "base/error.h"

struct cJSON;

enum tool_choice_mode { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED };

struct tool_choice {
    enum tool_choice_mode mode;
    const char *named;           /* the one tool; NULL: any that is allowed */
    const struct cJSON *allowed; /* a list of tools; NULL: all */
};

/* The field tool_choice: "auto", "none", "required", a function by name, allowed_tools. Points into
   `root`. STATUS_INVALID for anything else. */
enum status tool_choice_read(const struct cJSON *root, struct tool_choice *out,
                             struct error *error);
bool tool_choice_allows(const struct tool_choice *choice, const char *name);

/* Append the JSON schema of an object {"name":…,"arguments":…} that calls one of the tools. Their
   definitions move to its root; STATUS_INVALID where two tools have different ones of one name. */
enum status tool_choice_write_schema(const struct output_tools *tools, struct buffer *out,
                                     struct error *error);

#endif
