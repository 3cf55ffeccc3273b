/*
 * A request and the server it came to: what http.c, http_head.c, http_routes.c and http_answer.c
 * share. Nobody else includes it.
 *
 * A connection has a record from accept to close; a request's record is made in the handler's first
 * call and belongs to the connection: what the library does not complete ends with it. That first
 * call takes the head (http_framing.c) and the route (http_routes.c), the next ones collect or
 * discard the body, the last ones answer: at once (http_routes.c) or through the preprocessing
 * thread and the engine (http_answer.c), during which the connection is suspended.
 *
 * Who wakes whom: the engine (under a completion's lock), the preprocessing thread and the watcher
 * (under its lock) set `signalled` under the request's lock and resume the connection if it is
 * suspended. Lock order: completion or watcher, then request, then the library's own. The request's
 * lock is never held while the answer is pumped or cancelled.
 */
#ifndef QUIRE_SERVER_HTTP_REQUEST_H
#define QUIRE_SERVER_HTTP_REQUEST_H

#include "api/answer.h"
#include "api/text_endpoints.h"
#include "base/buffer.h"
#include "base/metric.h"
#include "server/access_log.h"
#include "server/http_config.h"
#include "server/http_framing.h"
#include "server/metrics.h"
#include "server/watchdog.h"
#include "server/watcher.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

struct http_server {
    /* fixed after start */
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct watcher *watcher;
    int listen_fd; /* main thread only; -1 once it is closed */
    uint16_t port;
    bool loopback; /* listens on a loopback address only */
    int64_t start_unix_s;
    uint64_t id_base;
    /* atomics */
    _Atomic(struct runtime *) runtime; /* NULL: loading */
    atomic_bool draining;              /* /ready says 503 */
    atomic_bool closing;               /* no new connections; answers end the others */
    atomic_bool aborting;              /* requests are ended as they are */
    atomic_uint in_flight;
    atomic_uint_fast64_t next_request;
    struct http_metrics metrics;
    struct watchdog watchdog; /* the watcher's thread observes */
};

enum request_state {
    REQUEST_NEW,       /* head and body are on their way */
    REQUEST_OPENING,   /* handed to the preprocessing thread */
    REQUEST_WAITING,   /* open; nothing was sent yet */
    REQUEST_REPLIED,   /* a whole answer is queued */
    REQUEST_STREAMING, /* headers are queued, the reader sends the rest */
};

enum stream_end { STREAM_GOING, STREAM_ENDED };

/* The library's thread only, but for what the watcher's thread is told of expired ones. */
struct connection {
    struct http_server *server;
    uint64_t watch_id;
    struct framing framing;
    struct request *request; /* or NULL: none is begun. Fixed in WATCH_BODY */
    bool lingers;            /* answered and closed before all was read */
    atomic_bool expired;     /* the watcher answered 408 */
};

struct request {
    /* fixed after begin */
    struct http_server *server;
    struct connection *owner;
    struct MHD_Connection *connection;
    uint64_t watch_id;
    uint64_t number;
    char id[20];
    char client_id[68];            /* a valid X-Request-Id, echoed; else empty */
    char trace_id[TRACE_ID_BYTES]; /* of traceparent; else empty */
    uint64_t start_ns;
    const struct route *route;
    const struct http_head *head; /* of the connection's framing, as long as the request */
    struct answer_caller caller;
    bool from_operator; /* without keys everybody is one */
    /* the library's thread only (the preprocessing thread while REQUEST_OPENING) */
    enum request_state state;
    bool closing, discard;
    unsigned refusal_status; /* 0: not refused; else `error` says why */
    struct error error;
    char *body;
    size_t body_length, body_capacity; /* capacity is entered in BUDGET_REQUESTS */
    uint64_t discarded_bytes;
    struct buffer out; /* answer bytes not yet given to the library */
    size_t out_offset;
    size_t out_charged; /* entered in BUDGET_HTTP */
    enum stream_end stream_end;
    bool broken; /* a whole answer failed after its headers: the connection must break off */
    unsigned status_sent;
    uint64_t first_data_ns;
    struct preprocessing_job job;
    struct answer *compiling; /* between the preprocessing thread and the grammar thread */
    /* under lock */
    pthread_mutex_t lock;
    bool suspended, signalled, text_done, cancelled, aborted, keepalive_due;
    bool stream, streaming, attached;
    struct answer *answer;      /* fixed once text_done */
    uint64_t last_data_ns;      /* when bytes were last given to the library */
    uint64_t last_read_ns;      /* when the library last asked for some */
    uint64_t reply_deadline_ns; /* 0: none */
};

struct route {
    const char *path; /* ends in '/': a prefix with one segment after it */
    const char *name; /* of metrics */
    const char *allow;
    bool post;
    bool needs_key;
    bool quiet;                                  /* logged at debug level */
    bool probe;                                  /* any Host, and over the limit of connections */
    enum answer_kind kind;                       /* of an answer of the engine */
    enum MHD_Result (*reply)(struct request *r); /* NULL: an answer of the engine, or of … */
    enum text_endpoint text;                     /* … the tokenizer */
};

/* The first value of a header of the request, or NULL. */
static inline const char *http_header(const struct request *r, const char *name)
{
    return http_head_field(r->head, name);
}

/* http_hosts.c */

/* May this request say this Host? */
bool http_host_allowed(const struct http_server *server, const char *host);

/* http_routes.c */

/* Choose the route, or refuse. */
void http_route(struct request *r);
/* The last handler call of a request that needs no engine, or was refused. */
enum MHD_Result http_reply_plain(struct request *r);
/* Queue a whole answer; the body's memory is taken over. */
enum MHD_Result http_reply(struct request *r, unsigned status, const char *type,
                           struct buffer *body);
enum MHD_Result http_reply_error(struct request *r, unsigned status, const struct error *error);
/* Watcher's callback. */
void http_connection_expired(void *connection, bool in_body);
void http_add_common_headers(struct request *r, struct MHD_Response *response);
/* STATUS_UNAVAILABLE: the server ends and takes nothing more. */
enum status http_draining(struct error *error);
__attribute__((format(printf, 5, 6))) void http_refuse(struct request *r, unsigned status,
                                                       enum status kind, const char *code,
                                                       const char *format, ...);

/* http_answer.c */

/* The handler's calls after the body is there. */
enum MHD_Result http_answer(struct request *r);
/* Free the body and give its bytes back. */
void http_free_body(struct request *r);
/* The same for the answer bytes. */
void http_free_out(struct request *r);
/* Watcher's callbacks. */
void http_request_hangup(void *request);
bool http_request_tick(void *request, uint64_t now_ns);
void http_request_abort(void *request);

#endif
