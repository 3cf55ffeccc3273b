/*
 * The HTTP server: sockets, heads, bodies, streams. With http_head.c, http_routes.c and
 * http_answer.c the only user of libmicrohttpd. It knows routes and bytes; what they mean is
 * api/'s.
 *
 * Life: http_start listens at once and answers /health 200, /ready 503 and everything that needs
 * the model 503, until http_set_runtime. The end in this order, each step may be left out:
 * http_unready, http_hold, http_drain, http_stop. All calls from the main thread, http_set_runtime
 * from any.
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

/* The API keys were read again. */
void http_keys_changed(struct http_server *server);

/* /ready says 503 from now on; everything is served as before. */
void http_unready(struct http_server *server);
/* No new connection from now on, but those that the kernel has taken are still accepted. Answers
   say Connection: close. False where the kernel cannot do that. */
bool http_hold(struct http_server *server);
/* Connections that are complete and not accepted. */
unsigned http_connecting(const struct http_server *server);
/* Close the listening socket. Requests on open connections are still served, each connection's last
   one; a connection that sends none for LIMIT_DRAIN_IDLE_SECONDS is closed. */
void http_drain(struct http_server *server);
/* Requests that are not answered to their end, and open connections. */
unsigned http_in_flight(const struct http_server *server);
unsigned http_connections(const struct http_server *server);
/* End what is left: streams with an error event, others with 503. Close every connection, join the
   threads, free. False, with nothing freed, if a request does not end within LIMIT_END_SECONDS and a
   second: then the process must end without freeing what the server was given. */
bool http_stop(struct http_server *server);

#endif
