/*
 * What the HTTP server is started with. Fixed then.
 */
#ifndef QUIRE_SERVER_HTTP_CONFIG_H
#define QUIRE_SERVER_HTTP_CONFIG_H

#include "server/auth.h"
#include "server/preprocessing_thread.h"
#include "server/runtime.h"
#include "sizing/options.h"

struct http_config {
    const struct options *options;     /* max_connections resolved; outlives the server */
    struct auth *auth;                 /* NULL: no keys; outlives the server */
    struct preprocessing_thread *text; /* outlives the server */
};

#endif
