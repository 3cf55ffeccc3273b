/*
 * What the HTTP server is started with. Fixed then.
 */
#ifndef QUIRE_SERVER_HTTP_CONFIG_H
#define QUIRE_SERVER_HTTP_CONFIG_H

#include "server/auth.h"
#include "server/preprocessing_thread.h"
#include "server/runtime.h"
#include "sizing/settings.h"

#define HTTP_ORIGINS_MAX 16
#define HTTP_HOSTS_MAX 16

/* What the operator decided about HTTP: filled in by cli/options.c. Strings are borrowed. */
struct http_options {
    const char *host;
    uint16_t port; /* 0: any free one */
    const char *cors_origins[HTTP_ORIGINS_MAX];
    unsigned cors_origin_count;
    const char *allowed_hosts[HTTP_HOSTS_MAX]; /* what Host may say */
    unsigned allowed_host_count;
    uint32_t watchdog_seconds; /* 0: never */
};

struct http_config {
    const struct http_options *options;    /* outlives the server */
    const struct settings *settings;       /* max_connections resolved; outlives the server */
    struct auth *auth;                     /* NULL: no keys; outlives the server */
    struct preprocessing_thread *text;     /* outlives the server */
    struct preprocessing_thread *grammars; /* compiles grammars; outlives the server */
};

#endif
