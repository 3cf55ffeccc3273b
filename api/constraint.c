/*
 * The fields that constrain an answer, of four APIs, in one form. See constraint.h.
 *
 * A schema is taken as the client spelled it, from the body's text: order of properties and digits
 * of numbers stay. Nothing is compiled here, and nothing that restricts is passed over: a field
 * or an option that is not done is refused by name.
 */
#include "api/constraint.h"

#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

/* What a field's value is. */
enum source_form {
    FORM_SCHEMA,     /* an object, true, or one of them in a string */
    FORM_TEXT,       /* a string */
    FORM_LIST,       /* a list of strings */
    FORM_ANY_OBJECT, /* a boolean: true asks for some JSON object */
};

struct field {
    const char *name;
    enum source_form form;
    enum grammar_kind kind;
};

static const struct field top_fields[] = {
    {"guided_json", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA}, /* vLLM until 0.11 */
    {"guided_regex", FORM_TEXT, GRAMMAR_REGEX},
    {"guided_choice", FORM_LIST, GRAMMAR_CHOICE},
    {"guided_grammar", FORM_TEXT, GRAMMAR_GRAMMAR},
    {"json_schema", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA}, /* llama.cpp, SGLang */
    {"grammar", FORM_TEXT, GRAMMAR_GRAMMAR},           /* llama.cpp */
    {"regex", FORM_TEXT, GRAMMAR_REGEX},               /* SGLang */
    {"ebnf", FORM_TEXT, GRAMMAR_GRAMMAR},
};

static const struct field structured_fields[] = {
    {"json", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA},
    {"regex", FORM_TEXT, GRAMMAR_REGEX},
    {"choice", FORM_LIST, GRAMMAR_CHOICE},
    {"grammar", FORM_TEXT, GRAMMAR_GRAMMAR},
    {"json_object", FORM_ANY_OBJECT, GRAMMAR_JSON_SCHEMA},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* One constraint for a request. A client that knows several versions of a server says the same in the
   fields of each. */
enum status constraint_set(struct constraint *out, const char *param, enum grammar_kind kind,
                           const char *source, size_t length, struct error *error)
{
    if (out->source && out->kind == kind && out->length == length &&
        memcmp(out->source, source, length) == 0)
        return STATUS_OK;
    if (out->source)
        return error_set(error, STATUS_INVALID, param,
                         "%s and %s both constrain the answer; send one of them.", out->param,
                         param);
    out->source = malloc(length + 1);
    if (!out->source)
        return error_set(error, STATUS_BUSY, NULL, "Out of memory.");
    memcpy(out->source, source, length);
    out->source[length] = '\0';
    out->length = length;
    out->kind = kind;
    out->param = param;
    return STATUS_OK;
}

static enum status set_decoded(struct constraint *out, const char *param, enum grammar_kind kind,
                               struct json_slice string, struct error *error)
{
    struct buffer text;
    buffer_init(&text, 0);
    json_decode_string(string, &text);
    enum status status = text.failed ? error_set(error, STATUS_BUSY, NULL, "Out of memory.")
                                     : constraint_set(out, param, kind, text.data ? text.data : "",
                                                      text.length, error);
    buffer_deinit(&text);
    return status;
}

static bool is_schema(const struct cJSON *value)
{
    bool flag;
    return json_is_object(value) || (json_is_bool(value, &flag) && flag);
}

static bool is_list_of_strings(const struct cJSON *value)
{
    if (!json_is_array(value) || !json_first(value))
        return false;
    for (const struct cJSON *entry = json_first(value); entry; entry = json_after(entry))
        if (!json_is_string(entry) || json_string(entry)[0] == '\0')
            return false;
    return true;
}

/* Read field->name of `object`, whose text is `slice`. `shown` is its name in errors. */
static enum status read_field(const struct cJSON *object, struct json_slice slice,
                              const struct field *field, const char *param, const char *shown,
                              struct constraint *out, struct error *error)
{
    const struct cJSON *value = json_get(object, field->name);
    if (!value)
        return STATUS_OK;
    struct json_slice text = json_find(slice, field->name);
    bool flag = false;
    switch (field->form) {
    case FORM_SCHEMA:
        if (is_schema(value))
            return constraint_set(out, param, field->kind, text.text, text.length, error);
        if (json_is_string(value) && json_string(value)[0])
            return set_decoded(out, param, field->kind, text, error);
        return error_set(error, STATUS_INVALID, param,
                         "%s must be a JSON schema: an object, or one in a string.", shown);
    case FORM_TEXT:
        if (!json_is_string(value))
            return error_set(error, STATUS_INVALID, param, "%s must be a string.", shown);
        /* llama.cpp's clients send an empty grammar for none. */
        if (json_string(value)[0] == '\0')
            return STATUS_OK;
        return set_decoded(out, param, field->kind, text, error);
    case FORM_LIST:
        if (!is_list_of_strings(value))
            return error_set(error, STATUS_INVALID, param,
                             "%s must be a list of strings, none of them empty.", shown);
        return constraint_set(out, param, field->kind, text.text, text.length, error);
    case FORM_ANY_OBJECT:
        if (!json_is_bool(value, &flag))
            return error_set(error, STATUS_INVALID, param, "%s must be a boolean.", shown);
        return flag ? constraint_set(out, param, field->kind, "{\"type\":\"object\"}", 17, error)
                    : STATUS_OK;
    }
    return STATUS_OK;
}

/* disable_fallback asks for what is always so. */
static enum status check_names(const struct cJSON *object, const char *const *refused,
                               struct error *error)
{
    for (const struct cJSON *value = json_first(object); value; value = json_after(value)) {
        const char *name = json_key(value);
        bool known = !strcmp(name, "disable_fallback");
        for (size_t i = 0; i < COUNT(structured_fields); i++)
            known |= !strcmp(name, structured_fields[i].name);
        for (size_t i = 0; refused[i]; i++)
            known |= !strcmp(name, refused[i]);
        if (!known)
            return error_set_code(
                error, STATUS_UNSUPPORTED, "unsupported_parameter", "structured_outputs",
                "structured_outputs.%.40s is not supported by this server.", name);
    }
    return STATUS_OK;
}

static enum status read_structured_outputs(const struct json_document *document,
                                           struct constraint *out, struct error *error)
{
    static const char param[] = "structured_outputs";
    static const char *const refused[] = {"structural_tag", "whitespace_pattern",
                                          "disable_any_whitespace", "disable_additional_properties",
                                          NULL};
    static const char *const shown[] = {"structured_outputs.json", "structured_outputs.regex",
                                        "structured_outputs.choice", "structured_outputs.grammar",
                                        "structured_outputs.json_object"};
    const struct cJSON *object = json_get(document->root, param);
    if (!object)
        return STATUS_OK;
    if (!json_is_object(object))
        return error_set(error, STATUS_INVALID, param, "structured_outputs must be an object.");
    for (size_t i = 0; refused[i]; i++) {
        bool flag = true;
        const struct cJSON *value = json_get(object, refused[i]);
        if (value && !(json_is_bool(value, &flag) && !flag))
            return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", param,
                                  "structured_outputs.%s is not supported by this server.",
                                  refused[i]);
    }
    TRY(check_names(object, refused, error));
    struct json_slice slice = json_find(document->text, param);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < COUNT(structured_fields) && status == STATUS_OK; i++)
        status = read_field(object, slice, &structured_fields[i], param, shown[i], out, error);
    return status;
}

/* {"type": "json_schema", "json_schema": {"name", "schema", "strict"}} of OpenAI; llama.cpp has the
   schema beside the type. Text Generation Inference, whose form huggingface_hub sends, has it in
   `value` beside the types "json_object" and "json", and an expression beside "regex". */
static enum status read_response_format(const struct json_document *document,
                                        struct constraint *out, struct error *error)
{
    static const char param[] = "response_format";
    static const struct field schema = {"schema", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA};
    static const struct field value = {"value", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA};
    static const struct field regex = {"value", FORM_TEXT, GRAMMAR_REGEX};
    const struct cJSON *format = json_get(document->root, param);
    if (!format)
        return STATUS_OK;
    const struct cJSON *type = json_get(format, "type");
    if (!json_is_object(format) || !json_is_string(type))
        return error_set(error, STATUS_INVALID, param,
                         "response_format must be an object with a type.");
    const char *name = json_string(type);
    if (!strcmp(name, "text"))
        return STATUS_OK;
    struct json_slice slice = json_find(document->text, param);
    const char *shown = "response_format.schema";
    if (!strcmp(name, "json_schema")) {
        const struct cJSON *inner = json_get(format, "json_schema");
        if (inner && !json_is_object(inner))
            return error_set(error, STATUS_INVALID, param,
                             "response_format.json_schema must be an object with a schema.");
        if (inner) {
            format = inner;
            slice = json_find(slice, "json_schema");
            shown = "response_format.json_schema.schema";
        }
        bool strict = false;
        enum status status = json_read_bool(format, "strict", &strict, error);
        if (status != STATUS_OK)
            return status;
        if (!json_get(format, "schema"))
            return error_set(error, STATUS_INVALID, param, "%s is missing.", shown);
    } else if (!strcmp(name, "regex") && json_get(format, "value")) {
        return read_field(format, slice, &regex, param, "response_format.value", out, error);
    } else if (json_get(format, "value") &&
               (!strcmp(name, "json") || !strcmp(name, "json_object"))) {
        return read_field(format, slice, &value, param, "response_format.value", out, error);
    } else if (strcmp(name, "json_object") != 0) {
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_parameter", param,
                              "response_format of type \"%.40s\" is not supported by this server; "
                              "text, json_object and json_schema are.",
                              name);
    }
    if (json_get(format, "schema"))
        return read_field(format, slice, &schema, param, shown, out, error);
    return constraint_set(out, param, GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}", 17, error);
}

enum status constraint_read(const struct json_document *document, struct constraint *out,
                            struct error *error)
{
    enum status status = read_response_format(document, out, error);
    if (status == STATUS_OK)
        status = read_structured_outputs(document, out, error);
    for (size_t i = 0; i < COUNT(top_fields) && status == STATUS_OK; i++)
        status = read_field(document->root, document->text, &top_fields[i], top_fields[i].name,
                            top_fields[i].name, out, error);
    return status;
}

void constraint_deinit(struct constraint *constraint)
{
    free(constraint->source);
    *constraint = (struct constraint){0};
}
