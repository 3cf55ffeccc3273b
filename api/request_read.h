/*
 * From a body to a request: parses it and asks the reader of its endpoint. Private to api/.
 */
#ifndef QUIRE_API_REQUEST_READ_H
#define QUIRE_API_REQUEST_READ_H

#include "api/request.h"

/* Parse `body` into *out. On failure *out needs request_deinit too. */
enum status request_read(const struct api_context *context, enum answer_kind kind, const char *body,
                         size_t length, const struct answer_caller *caller, struct request *out,
                         struct error *error);

#endif
