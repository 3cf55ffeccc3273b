/* See models.h. */
#include "api/models.h"

#include "base/json_writer.h"

#include <inttypes.h>
#include <string.h>

static void write_model(const struct api_context *context, const char *id, struct buffer *out)
{
    /* Of what only generates nothing is said. */
    const char *capabilities = context->pooling == POOLING_NONE   ? ""
                               : context->pooling == POOLING_RANK ? ",\"capabilities\":[\"rerank\"]"
                               : context->embeds_only
                                   ? ",\"capabilities\":[\"embedding\"]"
                                   : ",\"capabilities\":[\"completion\",\"embedding\"]";
    buffer_append_text(out, "{\"id\":");
    json_write_text(out, id);
    buffer_appendf(out,
                   ",\"object\":\"model\",\"created\":%" PRId64
                   ",\"owned_by\":\"quire\",\"max_model_len\":%" PRIu32 "%s}",
                   context->created_unix_s, context->max_model_len, capabilities);
}

void api_write_models(const struct api_context *context, struct buffer *out)
{
    buffer_append_text(out, "{\"object\":\"list\",\"data\":[");
    for (unsigned i = 0; i < context->model_name_count; i++) {
        buffer_append_text(out, i ? "," : "");
        write_model(context, context->model_names[i], out);
    }
    buffer_append_text(out, "]}");
}

enum status api_unknown_model(const char *name, struct error *error)
{
    return error_set_code(error, STATUS_NOT_FOUND, "model_not_found", "model",
                          "The model \"%.100s\" is not served here; GET /v1/models lists what is.",
                          name);
}

enum status api_write_model(const struct api_context *context, const char *id, struct buffer *out,
                            struct error *error)
{
    if (strcmp(id, "default") == 0) /* as requests may call it */
        id = context->model_names[0];
    for (unsigned i = 0; i < context->model_name_count; i++) {
        if (strcmp(context->model_names[i], id) == 0) {
            write_model(context, id, out);
            return STATUS_OK;
        }
    }
    return api_unknown_model(id, error);
}

static const char *error_type(enum status status)
{
    switch (status) {
    case STATUS_UNAUTHORIZED:
        return "authentication_error";
    case STATUS_BUSY:
        return "rate_limit_error";
    case STATUS_UNAVAILABLE:
        return "service_unavailable_error";
    case STATUS_IO:
    case STATUS_INTERNAL:
        return "server_error";
    default:
        return "invalid_request_error";
    }
}

static void write_text_or_null(const char *text, struct buffer *out)
{
    if (*text)
        json_write_text(out, text);
    else
        buffer_append_text(out, "null");
}

void api_write_error(const struct error *error, struct buffer *out)
{
    buffer_append_text(out, "{\"error\":{\"message\":");
    json_write_text(out, error->message);
    buffer_appendf(out, ",\"type\":\"%s\",\"param\":", error_type(error->status));
    write_text_or_null(error->param, out);
    buffer_append_text(out, ",\"code\":");
    write_text_or_null(error->code, out);
    buffer_append_text(out, "}}");
}

unsigned api_http_status(enum status status)
{
    switch (status) {
    case STATUS_OK:
        return 200;
    case STATUS_INVALID:
    case STATUS_UNSUPPORTED:
        return 400;
    case STATUS_UNAUTHORIZED:
        return 401;
    case STATUS_NOT_FOUND:
        return 404;
    case STATUS_TOO_LARGE:
        return 413;
    case STATUS_BUSY:
        return 429;
    case STATUS_UNAVAILABLE:
        return 503;
    case STATUS_IO:
    case STATUS_INTERNAL:
        break;
    }
    return 500;
}
