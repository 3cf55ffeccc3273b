/*
 * The HTTP server's life and the library's callbacks: see http.h and http_request.h.
 *
 * The library may hold 32 connections more than are served, so that those over the limit (when all
 * have requests: else one is closed for them) get an honest 503 instead of waiting in the backlog.
 * Timeouts are the watcher's; the library's are off. Heads and chunks are read by http_framing.c.
 */
#include "server/http.h"

#include "api/models.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/costs.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"
#include "server/http_request.h"
#include "server/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HTTP_THREADS 2 /* more only shortens each one's list of suspended connections */
#define HTTP_STACK_BYTES (512 * KIB)
/* A body that was announced larger than this is not even read to be thrown away. */
#define DISCARD_BYTES (4ull * LIMIT_BODY_BYTES)

_Static_assert(sizeof(struct request) < COST_HTTP_REQUEST_BYTES, "see base/costs.h");

/* A client's X-Request-Id is echoed if it is a plain word; anything else is ignored. */
static void take_client_id(struct request *r)
{
    const char *id = http_header(r, "X-Request-Id");
    size_t length = id ? strlen(id) : 0;
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
    if (length && length < sizeof r->client_id && strspn(id, plain) == length)
        memcpy(r->client_id, id, length + 1);
}

static struct connection *connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static struct request *create_request(struct connection *owner, struct MHD_Connection *connection)
{
    struct http_server *server = owner->server;
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->server = server;
    r->owner = owner;
    r->connection = connection;
    r->watch_id = owner->watch_id;
    r->head = &owner->framing.head;
    r->number = server->id_base + atomic_fetch_add(&server->next_request, 1);
    snprintf(r->id, sizeof r->id, "%016llx", (unsigned long long)r->number);
    r->start_ns = r->caller.arrival_ns = clock_now_ns();
    pthread_mutex_init(&r->lock, NULL);
    buffer_init(&r->out, 0);
    CHECK(!owner->request);
    owner->request = r;
    atomic_fetch_add(&server->in_flight, 1);
    return r;
}

/* What framing refused: the connection ends after the answer, since nothing can be told from what
   follows. A refusal that was decided before stays. */
static void take_framing(struct request *r)
{
    const struct framing *framing = &r->owner->framing;
    if (!framing->status)
        return;
    r->closing = r->owner->lingers = true;
    if (r->refusal_status)
        return;
    r->refusal_status = framing->status;
    r->error = framing->error;
}

static enum MHD_Result begin_request(struct request *r)
{
    take_framing(r);
    if (r->refusal_status)
        return http_reply_plain(r);
    take_client_id(r);
    access_log_trace_id(http_header(r, "traceparent"), r->trace_id);
    watcher_phase(r->server->watcher, r->watch_id, WATCH_BODY, LIMIT_BODY_SECONDS);
    http_route(r);
    uint64_t length = r->head->content_length;
    bool body = length || r->head->chunked;
    if (r->refusal_status && body && (http_header(r, "Expect") || length > DISCARD_BYTES)) {
        r->closing = r->owner->lingers = true;
        return http_reply_plain(r);
    }
    r->discard = r->refusal_status || !r->route || r->route->reply;
    return MHD_YES;
}

/* Room for `length` more bytes and a NUL; entered in the budget before it is allocated. At most as
   many as were announced: who announces many and sends few holds few. */
static bool grow_body(struct request *r, size_t length)
{
    size_t needed = r->body_length + length + 1;
    size_t most = r->head->content_length ? r->head->content_length + 1 : LIMIT_BODY_BYTES + 1;
    if (needed <= r->body_capacity)
        return true;
    size_t capacity = max_u64(r->body_capacity * 2, 4 * KIB);
    capacity = max_u64(min_u64(capacity, most), needed);
    struct runtime *runtime = atomic_load(&r->server->runtime);
    struct error error;
    enum status status = budget_take_request(&runtime->budget, r->body_capacity,
                                             capacity - r->body_capacity, NULL, &error);
    char *body = status == STATUS_OK ? realloc(r->body, capacity) : NULL;
    if (status == STATUS_OK && !body) {
        budget_give(&runtime->budget, BUDGET_REQUESTS, capacity - r->body_capacity);
        status = error_no_memory(&error);
    }
    if (status != STATUS_OK) {
        bool busy = status == STATUS_BUSY;
        http_refuse(r, api_http_status(status), status, busy ? "out_of_memory" : error.code, "%s",
                    busy ? "there is no memory for this body now; other requests hold it"
                         : error.message);
        r->error.retry_after_s = error.retry_after_s;
        return false;
    }
    r->body = body;
    r->body_capacity = capacity;
    return true;
}

/* What was taken ahead of a body that has ended goes back, so that its length is what it costs. */
static void trim_body(struct request *r)
{
    size_t capacity = r->body_length + 1;
    char *body = capacity < r->body_capacity ? realloc(r->body, capacity) : NULL;
    if (!body)
        return;
    struct runtime *runtime = atomic_load(&r->server->runtime);
    budget_give(&runtime->budget, BUDGET_REQUESTS, r->body_capacity - capacity);
    r->body = body;
    r->body_capacity = capacity;
}

static enum MHD_Result take_upload(struct request *r, const char *data, size_t *size)
{
    size_t length = *size;
    *size = 0;
    if (!r->discard && length > LIMIT_BODY_BYTES - r->body_length) {
        http_refuse(r, 413, STATUS_TOO_LARGE, "body_too_large", "a body has at most %u bytes",
                    LIMIT_BODY_BYTES);
        r->discard = true;
    }
    if (!r->discard && !grow_body(r, length))
        r->discard = true;
    if (r->discard) {
        http_free_body(r);
        r->discarded_bytes += length;
        return r->discarded_bytes > DISCARD_BYTES ? MHD_NO : MHD_YES;
    }
    memcpy(r->body + r->body_length, data, length);
    r->body_length += length;
    r->body[r->body_length] = '\0';
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **context)
{
    (void)cls;
    (void)url;
    (void)method;
    (void)version;
    struct request *r = *context;
    if (!r) {
        struct connection *owner = connection_of(connection);
        /* A head that was not read by framing can only be a fault of this program. */
        bool framed = owner && owner->framing.head.method;
        r = framed ? create_request(owner, connection) : NULL;
        if (!r)
            return MHD_NO; /* out of memory */
        *context = r;
        return begin_request(r);
    }
    if (*upload_size)
        return take_upload(r, upload, upload_size);
    take_framing(r);
    if (r->refusal_status && r->state == REQUEST_NEW)
        return http_reply_plain(r);
    if (!r->route || r->route->reply || !strcmp(r->head->method, "OPTIONS"))
        return http_reply_plain(r);
    if (r->state == REQUEST_NEW && !r->body && !grow_body(r, 0))
        return http_reply_plain(r);
    if (r->state == REQUEST_NEW)
        trim_body(r);
    return http_answer(r);
}

/* The client's address as text, or "". */
static void write_client(const struct request *r, char *out, size_t size)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    out[0] = '\0';
    if (address && address->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, out,
                  (socklen_t)size);
    else if (address && address->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, out,
                  (socklen_t)size);
}

static void log_request(const struct request *r, const struct answer_summary *summary)
{
    char client[INET6_ADDRSTRLEN];
    write_client(r, client, sizeof client);
    struct access_record record = {
        .id = r->id,
        .client_id = r->client_id,
        .trace_id = r->trace_id,
        .client = client,
        .key = r->caller.tenant,
        .method = r->head->method,
        .target = r->head->target,
        .route = r->route ? r->route->name : NULL,
        .status = r->status_sent,
        .start_ns = r->start_ns,
        .first_data_ns = r->first_data_ns,
        .end_ns = clock_now_ns(),
        .error = r->error.status != STATUS_OK ? &r->error : NULL,
        .stream = r->stream,
        .work = summary,
        .quiet = r->route && r->route->quiet,
    };
    access_log_write(&record);
}

static void count_request(struct request *r, struct answer *answer,
                          enum MHD_RequestTerminationCode code)
{
    struct answer_summary summary;
    if (answer)
        answer_summarize(answer, &summary);
    bool left = !r->status_sent ||
                (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && r->stream_end != STREAM_ENDED);
    if (atomic_load(&r->owner->expired)) {
        r->status_sent = 408;
        error_set_code(&r->error, STATUS_INVALID, "request_timeout", NULL,
                       "the body did not come within %u s", LIMIT_BODY_SECONDS);
    } else if (left) {
        r->status_sent = 499; /* the client left, as nginx logs it */
    }
    log_request(r, answer ? &summary : NULL);
    http_metrics_count(&r->server->metrics, r->route ? r->route->name : NULL, r->status_sent);
}

static void end_request(struct request *r, enum MHD_RequestTerminationCode code)
{
    struct http_server *server = r->server;
    if (r->attached)
        watcher_detach(server->watcher, r->watch_id);
    /* The preprocessing thread may have resumed the connection and not yet let the lock go. */
    pthread_mutex_lock(&r->lock);
    struct answer *answer = r->answer;
    pthread_mutex_unlock(&r->lock);
    count_request(r, answer, code);
    if (answer)
        answer_close(answer); /* no wake after this */
    http_free_body(r);
    http_free_out(r);
    watcher_phase(server->watcher, r->watch_id, WATCH_IDLE, 0);
    r->owner->request = NULL;
    framing_next(&r->owner->framing);
    pthread_mutex_destroy(&r->lock);
    free(r);
    atomic_fetch_sub(&server->in_flight, 1);
}

/* The library's last word on a request. */
static void on_completed(void *cls, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    (void)cls;
    (void)connection;
    struct request *r = *context;
    *context = NULL;
    if (r)
        end_request(r, code);
}

static void open_connection(struct http_server *server, struct MHD_Connection *connection,
                            void **socket_context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *owner = calloc(1, sizeof *owner);
    if (owner)
        owner->server = server;
    bool framed = info && owner && framing_open(&owner->framing, info->connect_fd);
    uint64_t id = framed ? watcher_add(server->watcher, info->connect_fd, owner) : 0;
    if (!id) {
        if (framed)
            framing_close(&owner->framing);
        free(owner);
        if (info)
            shutdown(info->connect_fd, SHUT_RDWR);
        return;
    }
    owner->watch_id = id;
    *socket_context = owner;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        open_connection(server, connection, socket_context);
        return;
    }
    struct connection *owner = *socket_context;
    *socket_context = NULL;
    if (!owner)
        return;
    if (owner->request)
        end_request(owner->request, MHD_REQUEST_TERMINATED_WITH_ERROR);
    watcher_remove(server->watcher, owner->watch_id);
    int rest = owner->lingers ? fcntl(owner->framing.fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (rest >= 0)
        watcher_linger(server->watcher, rest);
    framing_close(&owner->framing);
    free(owner);
}

static void on_library_log(void *cls, const char *format, va_list arguments)
{
    (void)cls;
    char line[512];
    vsnprintf(line, sizeof line, format, arguments);
    line[strcspn(line, "\n")] = '\0';
    log_debug("libmicrohttpd", "%s", line);
}

static void on_panic(void *cls, const char *file, unsigned line, const char *reason)
{
    (void)cls;
    log_error("libmicrohttpd", "%s:%u: %s", file, line, reason ? reason : "panic");
    log_stop();
    abort();
}

/* Work in the engine and no progress for long: /ready and the log say so. */
static void watch_progress(void *arg, uint64_t now_ns)
{
    struct http_server *server = arg;
    struct runtime *runtime = atomic_load(&server->runtime);
    if (!runtime)
        return;
    const struct engine_metrics *metrics = engine_metrics(runtime->engine);
    enum watchdog_news news =
        watchdog_observe(&server->watchdog, metrics, engine_in_flight(runtime->engine), now_ns);
    if (news == WATCHDOG_RECOVERED)
        log_warn("watchdog", "the engine works again");
    if (news != WATCHDOG_STALLED)
        return;
    struct buffer why;
    buffer_init(&why, 0);
    watchdog_describe(&server->watchdog, metrics, now_ns, &why);
    log_error("watchdog", "%s", why.data ? why.data : "no progress");
    buffer_deinit(&why);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *in6 = (const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

/* A listening socket, or -1 with errno. Accepted sockets inherit its buffer size and TCP_NODELAY.
 */
static int listen_on(const struct addrinfo *info)
{
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return -1;
    int one = 1;
    int send_bytes = LIMIT_SEND_BUFFER_BYTES / 2; /* the kernel doubles it */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(fd, info->ai_addr, info->ai_addrlen) || listen(fd, 1024)) {
        int problem = errno;
        close(fd);
        errno = problem;
        return -1;
    }
    return fd;
}

static uint16_t bound_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length))
        return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

static int open_socket(struct http_server *server, struct error *error)
{
    const struct http_options *options = server->config.options;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[8], host[64];
    snprintf(port, sizeof port, "%u", options->port);
    bool bracketed = options->host[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)strcspn(options->host + bracketed, "]"),
             options->host + bracketed);
    int problem = getaddrinfo(host, port, &hints, &list);
    if (problem) {
        error_set(error, STATUS_INVALID, "host", "--host %s: %s", options->host,
                  gai_strerror(problem));
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *info = list; info && fd < 0; info = info->ai_next) {
        fd = listen_on(info);
        server->loopback = is_loopback(info->ai_addr);
    }
    if (fd < 0 && errno == EADDRINUSE)
        error_set(error, STATUS_INVALID, "port",
                  "port %s on %s is in use by another program; choose another with --port, or "
                  "--port 0 for any free one",
                  port, options->host);
    else if (fd < 0)
        error_set(error, STATUS_IO, "port", "cannot listen on %s port %s: %s", options->host, port,
                  strerror(errno));
    freeaddrinfo(list);
    if (fd >= 0)
        server->port = bound_port(fd);
    return fd;
}

static struct MHD_Daemon *start_daemon(struct http_server *server, int fd)
{
    unsigned connections =
        server->config.settings->max_connections + COST_HTTP_OVERFLOW_CONNECTIONS;
    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        on_request, server, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE, HTTP_THREADS,
        MHD_OPTION_THREAD_STACK_SIZE, HTTP_STACK_BYTES, MHD_OPTION_CONNECTION_LIMIT, connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)LIMIT_HTTP_POOL_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_END);
}

static enum status start_server(struct http_server *server, struct error *error)
{
    if (!framing_start())
        return error_out_of_memory(error);
    int fd = open_socket(server, error);
    if (fd < 0)
        return error->status;
    struct watcher_callbacks callbacks = {
        .arg = server,
        .expired = http_connection_expired,
        .hangup = http_request_hangup,
        .tick = http_request_tick,
        .every = watch_progress,
    };
    unsigned limit = server->config.settings->max_connections;
    unsigned capacity = limit + COST_HTTP_OVERFLOW_CONNECTIONS;
    enum status status = watcher_create(limit, capacity, &callbacks, &server->watcher, error);
    if (status == STATUS_OK) {
        MHD_set_panic_func(on_panic, NULL);
        server->listen_fd = fd;
        server->daemon = start_daemon(server, fd);
        if (!server->daemon)
            status = error_set(error, STATUS_IO, NULL, "the HTTP library did not start");
    }
    if (status != STATUS_OK) {
        close(fd);
        watcher_destroy(server->watcher);
    }
    return status;
}

enum status http_start(const struct http_config *config, struct http_server **out,
                       struct error *error)
{
    *out = NULL;
    struct http_server *server = calloc(1, sizeof *server);
    if (!server)
        return error_out_of_memory(error);
    server->config = *config;
    server->start_unix_s = clock_unix_s();
    server->watchdog.patience_ns = config->options->watchdog_seconds * 1000000000ull;
    if (getrandom(&server->id_base, sizeof server->id_base, 0) != sizeof server->id_base)
        server->id_base = clock_now_ns();
    enum status status = start_server(server, error);
    if (status != STATUS_OK) {
        free(server);
        return status;
    }
    *out = server;
    return STATUS_OK;
}

uint16_t http_port(const struct http_server *server)
{
    return server->port;
}

void http_set_runtime(struct http_server *server, struct runtime *runtime)
{
    unsigned all = server->config.settings->max_connections + COST_HTTP_OVERFLOW_CONNECTIONS;
    CHECK(budget_take(&runtime->budget, BUDGET_HTTP, (uint64_t)all * COST_HTTP_CONNECTION_BYTES));
    atomic_store(&server->runtime, runtime);
    http_keys_changed(server);
}

void http_keys_changed(struct http_server *server)
{
    unsigned keys = server->config.auth ? auth_key_count(server->config.auth) : 0;
    struct runtime *runtime = atomic_load(&server->runtime);
    preprocessing_thread_share(server->config.text, keys);
    preprocessing_thread_share(server->config.grammars, keys);
    if (runtime)
        engine_share(runtime->engine, keys);
}

void http_unready(struct http_server *server)
{
    atomic_store(&server->draining, true);
}

bool http_hold(struct http_server *server)
{
    http_unready(server);
    atomic_store(&server->closing, true);
    return listener_hold(server->listen_fd);
}

unsigned http_connecting(const struct http_server *server)
{
    return listener_waiting(server->listen_fd);
}

void http_drain(struct http_server *server)
{
    http_unready(server);
    if (server->listen_fd < 0)
        return;
    atomic_store(&server->closing, true);
    MHD_quiesce_daemon(server->daemon);
    close(server->listen_fd);
    server->listen_fd = -1;
    watcher_drain(server->watcher);
}

unsigned http_in_flight(const struct http_server *server)
{
    return atomic_load(&server->in_flight);
}

unsigned http_connections(const struct http_server *server)
{
    return watcher_connections(server->watcher);
}

static void abort_requests(struct http_server *server)
{
    atomic_store(&server->aborting, true);
    watcher_visit(server->watcher, http_request_abort);
}

/* Wait until nothing is in flight and no connection is open; false after `seconds`. */
static bool wait_for_none(struct http_server *server, double seconds)
{
    uint64_t deadline_ns = clock_now_ns() + (uint64_t)(seconds * 1e9);
    while (http_in_flight(server) || watcher_connections(server->watcher)) {
        if (clock_now_ns() > deadline_ns)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return true;
}

bool http_stop(struct http_server *server)
{
    if (!server)
        return true;
    http_drain(server);
    abort_requests(server);
    if (!wait_for_none(server, 1.0)) {
        watcher_drop_all(server->watcher);
        /* Only a template or a prompt that the preprocessing thread is still at should hold a
           request now. The library must not be stopped under one. */
        if (!wait_for_none(server, LIMIT_END_SECONDS)) {
            log_error("stopped", "%u requests could not be ended", http_in_flight(server));
            return false;
        }
    }
    MHD_stop_daemon(server->daemon);
    watcher_destroy(server->watcher);
    free(server);
    return true;
}
