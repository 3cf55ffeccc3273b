/*
 * The HTTP server: sockets, heads, bodies, streams. With http_head.c, http_routes.c and
 * http_answer.c the only user of libmicrohttpd. It knows routes and bytes; what they mean is
 * api/'s.
 *
 * Life: http_start listens at once and answers /health 200, /ready 503 and everything that needs
 * the model 503, until http_set_runtime. Then http_drain, wait for http_in_flight to be 0 or the
 * deadline, http_abort, http_stop. All calls from the main thread, http_set_runtime from any.
 */
#ifndef QUIRE_SERVER_HTTP_H
#define QUIRE_SERVER_HTTP_H

#include "server/http_config.h"

struct http_server;

/* STATUS_INVALID or STATUS_IO naming the address when it cannot listen there. */
enum status http_start(const struct http_config *config, struct http_server **out,
                       struct error *error);
uint16_t http_port(const struct http_server *server); /* the real one */

/* The model is there: requests are served from now on. The runtime outlives http_stop. */
void http_set_runtime(struct http_server *server, struct runtime *runtime);

/* Stop accepting; new requests on open connections get 503; idle connections are closed. */
void http_drain(struct http_server *server);
/* Requests that are not answered to their end. */
unsigned http_in_flight(const struct http_server *server);
/* End what is left: streams with an error event, others with 503. */
void http_abort(struct http_server *server);
/* Close every connection, join the threads, free. */
void http_stop(struct http_server *server);

#endif
