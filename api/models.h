/*
 * Bodies that need no engine: models, errors; and which HTTP status a status is. Any thread.
 */
#ifndef QUIRE_API_MODELS_H
#define QUIRE_API_MODELS_H

#include "api/api.h"
#include "base/buffer.h"

/* JSON appended to `out`. */
void api_write_models(const struct api_context *context, struct buffer *out);
/* STATUS_NOT_FOUND: no model has that name here. */
enum status api_unknown_model(const char *name, struct error *error);
/* STATUS_NOT_FOUND for unknown ids. */
enum status api_write_model(const struct api_context *context, const char *id, struct buffer *out,
                            struct error *error);
/* {"error":{"message","type","param","code"}}; always valid UTF-8 JSON. */
void api_write_error(const struct error *error, struct buffer *out);
unsigned api_http_status(enum status status);

#endif
