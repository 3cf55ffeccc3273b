/* See tool_choice.h. */
#include "api/tool_choice.h"

#include "api/json.h"
#include "base/json_writer.h"

#include <string.h>

static const char *text_of(const struct cJSON *value)
{
    return json_is_string(value) ? json_string(value) : "";
}

/* The name in {"type":"function","function":{"name":…}}, or beside type; NULL: none. */
static const char *name_of(const struct cJSON *entry)
{
    if (!json_is_object(entry) || strcmp(text_of(json_get(entry, "type")), "function") != 0)
        return NULL;
    const struct cJSON *function = json_get(entry, "function");
    const struct cJSON *name = json_get(json_is_object(function) ? function : entry, "name");
    return json_is_string(name) ? json_string(name) : NULL;
}

static enum status invalid(struct error *error)
{
    return error_set(error, STATUS_INVALID, "tool_choice",
                     "tool_choice must be \"auto\", \"none\", \"required\", a function by name or "
                     "allowed_tools.");
}

static enum status read_mode(const char *mode, struct tool_choice *out, struct error *error)
{
    static const char *const modes[] = {"auto", "none", "required"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(mode, modes[i]) == 0) {
            out->mode = (enum tool_choice_mode)i;
            return STATUS_OK;
        }
    }
    return invalid(error);
}

enum status tool_choice_read(const struct cJSON *root, struct tool_choice *out, struct error *error)
{
    const struct cJSON *choice = json_get(root, "tool_choice");
    *out = (struct tool_choice){0};
    if (!choice)
        return STATUS_OK;
    if (json_is_string(choice))
        return read_mode(json_string(choice), out, error);
    if (!json_is_object(choice))
        return invalid(error);
    if (strcmp(text_of(json_get(choice, "type")), "allowed_tools") == 0) {
        const struct cJSON *inner = json_get(choice, "allowed_tools");
        inner = json_is_object(inner) ? inner : choice;
        out->allowed = json_get(inner, "tools");
        if (!json_is_array(out->allowed) || !json_first(out->allowed))
            return invalid(error);
        for (const struct cJSON *e = json_first(out->allowed); e; e = json_after(e))
            if (!name_of(e))
                return invalid(error);
        return read_mode(text_of(json_get(inner, "mode")), out, error);
    }
    out->named = name_of(choice);
    out->mode = TOOL_CHOICE_REQUIRED;
    return out->named ? STATUS_OK : invalid(error);
}

bool tool_choice_allows(const struct tool_choice *choice, const char *name)
{
    if (choice->named)
        return strcmp(choice->named, name) == 0;
    for (const struct cJSON *e = json_first(choice->allowed); e; e = json_after(e))
        if (strcmp(name_of(e), name) == 0)
            return true;
    return !choice->allowed;
}

/* ---- The schema. ---- */

static bool same(struct json_slice a, struct json_slice b)
{
    return a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}

/* Whether an earlier tool has a definition of that key; *equal: the same one. */
static bool is_defined(const struct output_tools *tools, uint32_t before, const char *group,
                       struct json_slice key, struct json_slice value, bool *equal)
{
    struct json_slice other_key, other;
    for (uint32_t i = 0; i < before; i++) {
        struct json_slice list = json_find(tools->tools[i].parameters, group);
        for (size_t at = 0; list.text && json_next(list, &at, &other_key, &other);) {
            if (same(key, other_key)) {
                *equal = same(value, other);
                return true;
            }
        }
    }
    return false;
}

/* References are from the root, so the definitions must stand there. */
static enum status write_definitions(const struct output_tools *tools, const char *group,
                                     struct buffer *out, struct error *error)
{
    const char *comma = "";
    buffer_appendf(out, "\"%s\":{", group);
    for (uint32_t i = 0; i < tools->count; i++) {
        struct json_slice key, value, list = {0};
        if (tools->tools[i].parameters.text)
            list = json_find(tools->tools[i].parameters, group);
        for (size_t at = 0; list.text && json_next(list, &at, &key, &value);) {
            bool equal = false;
            if (is_defined(tools, i, group, key, value, &equal)) {
                if (!equal)
                    return error_set(error, STATUS_INVALID, "tools",
                                     "two of tools have different definitions of one name.");
                continue;
            }
            buffer_append_text(out, comma);
            buffer_append(out, key.text, key.length);
            buffer_append_text(out, ":");
            buffer_append(out, value.text, value.length);
            comma = ",";
        }
    }
    buffer_append_text(out, "},");
    return STATUS_OK;
}

enum status tool_choice_write_schema(const struct output_tools *tools, struct buffer *out,
                                     struct error *error)
{
    buffer_append_text(out, "{");
    enum status status = write_definitions(tools, "$defs", out, error);
    if (status == STATUS_OK)
        status = write_definitions(tools, "definitions", out, error);
    if (status != STATUS_OK)
        return status;
    buffer_append_text(out, "\"anyOf\":[");
    for (uint32_t i = 0; i < tools->count; i++) {
        struct json_slice schema = tools->tools[i].parameters;
        buffer_append_text(out, i ? "," : "");
        buffer_append_text(out, "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":");
        json_write_text(out, tools->tools[i].name);
        buffer_append_text(out, "},\"arguments\":");
        if (schema.text && schema.text[0] == '{' && schema.length > 2)
            buffer_append(out, schema.text, schema.length);
        else
            buffer_append_text(out, "{\"type\":\"object\"}");
        buffer_append_text(out, "},\"required\":[\"name\",\"arguments\"],"
                                "\"additionalProperties\":false}");
    }
    buffer_append_text(out, "]}");
    return STATUS_OK;
}
