/*
 * Routes: which path means what, who may take it, and the answers that need no engine.
 *
 * A refusal is decided on the head alone. If a body follows it is read and thrown away first, so
 * that the connection can go on; not if the client waits for 100 (Continue) or announces more than
 * we would ever read: then it is answered at once, and the connection lingers (watcher_linger).
 */
#include "server/http_request.h"

#include "api/models.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "server/memory_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#define JSON_TYPE "application/json"
/* Of a client's header in an answer: the head of an answer must fit the library's pool. */
#define ECHO_BYTES_MAX 2048u

static enum MHD_Result get_health(struct request *r);
static enum MHD_Result get_ready(struct request *r);
static enum MHD_Result get_metrics(struct request *r);
static enum MHD_Result get_memory(struct request *r);
static enum MHD_Result get_version(struct request *r);
static enum MHD_Result get_root(struct request *r);
static enum MHD_Result get_models(struct request *r);
static enum MHD_Result get_model(struct request *r);
static enum MHD_Result post_cache_reset(struct request *r);

#define ALLOW_GET "GET, HEAD, OPTIONS"
#define ALLOW_POST "POST, OPTIONS"

/* /health, /ready and /metrics need no key: probes and Prometheus have none. Bind to a private
   address or keep /metrics behind a proxy where its numbers are a secret. */
static const struct route routes[] = {
    {"/v1/chat/completions", "chat", ALLOW_POST, true, true, false, false, ANSWER_CHAT, NULL},
    {"/v1/completions", "completions", ALLOW_POST, true, true, false, false, ANSWER_COMPLETION,
     NULL},
    {"/v1/embeddings", "embeddings", ALLOW_POST, true, true, false, false, ANSWER_EMBEDDING, NULL},
    {"/embeddings", "embeddings", ALLOW_POST, true, true, false, false, ANSWER_EMBEDDING, NULL},
    {"/v1/rerank", "rerank", ALLOW_POST, true, true, false, false, ANSWER_RERANK, NULL},
    {"/v2/rerank", "rerank", ALLOW_POST, true, true, false, false, ANSWER_RERANK, NULL},
    {"/rerank", "rerank", ALLOW_POST, true, true, false, false, ANSWER_RERANK, NULL},
    {"/v1/score", "score", ALLOW_POST, true, true, false, false, ANSWER_SCORE, NULL},
    {"/score", "score", ALLOW_POST, true, true, false, false, ANSWER_SCORE, NULL},
    {"/tokenize", "tokenize", ALLOW_POST, true, true, false, false, 0, NULL, TEXT_TOKENIZE},
    {"/detokenize", "detokenize", ALLOW_POST, true, true, false, false, 0, NULL, TEXT_DETOKENIZE},
    {"/v1/models", "models", ALLOW_GET, false, true, false, false, 0, get_models},
    {"/v1/models/", "model", ALLOW_GET, false, true, false, false, 0, get_model},
    {"/v1/cache/reset", "cache_reset", ALLOW_POST, true, true, false, false, 0, post_cache_reset},
    {"/health", "health", ALLOW_GET, false, false, true, true, 0, get_health},
    {"/ready", "ready", ALLOW_GET, false, false, true, true, 0, get_ready},
    {"/metrics", "metrics", ALLOW_GET, false, false, true, true, 0, get_metrics},
    {"/debug/memory", "memory", ALLOW_GET, false, true, true, false, 0, get_memory},
    {"/version", "version", ALLOW_GET, false, false, true, false, 0, get_version},
    {"/", "root", ALLOW_GET, false, false, true, false, 0, get_root},
};
#define ROUTE_COUNT (sizeof routes / sizeof routes[0])

void http_refuse(struct request *r, unsigned status, enum status kind, const char *code,
                 const char *format, ...)
{
    char message[sizeof r->error.message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    error_set_code(&r->error, kind, code, NULL, "%s", message);
    r->refusal_status = status;
}

enum status http_draining(struct error *error)
{
    return error_set_code(error, STATUS_UNAVAILABLE, "draining", NULL,
                          "the server is shutting down");
}

static void refuse_loading(struct request *r)
{
    http_refuse(r, 503, STATUS_UNAVAILABLE, "loading", "the model is still being loaded");
    r->error.retry_after_s = 1;
}

/* The path of "http://host/path"; targets in origin form are returned as they are. */
static const char *target_path(const char *target)
{
    if (strncasecmp(target, "http://", 7) != 0 && strncasecmp(target, "https://", 8) != 0)
        return target;
    const char *path = strchr(strchr(target, ':') + 3, '/');
    return path ? path : "/";
}

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        size_t length = strlen(routes[i].path);
        if (length > 1 && routes[i].path[length - 1] == '/') {
            if (!strncmp(path, routes[i].path, length) && path[length])
                return &routes[i];
        } else if (!strcmp(path, routes[i].path)) {
            return &routes[i];
        }
    }
    return NULL;
}

/* The value of a media type's parameter, quoted or not, in `out`; false when there is none or it
   does not fit. */
static bool media_parameter(const char *type, const char *name, char *out, size_t size)
{
    size_t name_length = strlen(name);
    for (const char *at = strchr(type, ';'); at; at = strchr(at, ';')) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, name, name_length) != 0 || at[name_length] != '=')
            continue;
        at += name_length + 1;
        bool quoted = *at == '"';
        size_t length = strcspn(at + quoted, quoted ? "\"" : "; \t");
        if (length >= size)
            return false;
        memcpy(out, at + quoted, length);
        out[length] = '\0';
        return true;
    }
    return false;
}

/* "application/json", any case, with or without parameters; a charset must be UTF-8 or its part.
   Without a type only clients that are no browser pages are believed: a page may send untyped
   bodies anywhere. */
static bool is_json_type(struct request *r)
{
    const char *type = http_header(r, "Content-Type");
    if (!type)
        return !http_header(r, "Origin");
    size_t length = strcspn(type, "; \t");
    if (length != strlen(JSON_TYPE) || strncasecmp(type, JSON_TYPE, length) != 0)
        return false;
    char charset[16];
    if (!media_parameter(type, "charset", charset, sizeof charset))
        return !strcasestr(type, "charset=");
    return !strcasecmp(charset, "utf-8") || !strcasecmp(charset, "utf8") ||
           !strcasecmp(charset, "us-ascii");
}

static bool is_origin_allowed(const struct request *r, const char *origin)
{
    const struct http_options *options = r->server->config.options;
    if (strlen(origin) > ECHO_BYTES_MAX)
        return false;
    for (unsigned i = 0; i < options->cors_origin_count; i++) {
        if (!strcmp(options->cors_origins[i], "*") || !strcasecmp(options->cors_origins[i], origin))
            return true;
    }
    return false;
}

static void check_post(struct request *r)
{
    struct http_server *server = r->server;
    const char *encoding = http_header(r, "Content-Encoding");
    if (atomic_load(&server->aborting)) {
        http_draining(&r->error);
        r->refusal_status = 503;
        r->closing = true;
    } else if (!atomic_load(&server->runtime)) {
        refuse_loading(r);
    } else if (!is_json_type(r)) {
        http_refuse(r, 415, STATUS_UNSUPPORTED, "unsupported_media_type",
                    "the body must be JSON in UTF-8, with Content-Type: application/json");
    } else if (encoding && strcasecmp(encoding, "identity") != 0) {
        http_refuse(r, 415, STATUS_UNSUPPORTED, "unsupported_media_type",
                    "compressed bodies are not read");
    } else if (r->head->content_length > LIMIT_BODY_BYTES) {
        http_refuse(r, 413, STATUS_TOO_LARGE, "body_too_large", "a body has at most %u bytes",
                    LIMIT_BODY_BYTES);
    }
}

/* Whose key is it? False: nobody's, but one is needed. */
static bool take_key(struct request *r)
{
    const struct http_config *config = &r->server->config;
    struct auth_key key = {0};
    if (config->auth && !auth_allows(config->auth, http_header(r, "Authorization"), &key))
        return false;
    r->from_operator = !config->auth || key.is_operator;
    r->caller.tenant = key.number;
    r->caller.cache_salt = strcmp(config->settings->cache_scope, "global") != 0 ? key.salt : 0;
    return true;
}

void http_route(struct request *r)
{
    struct http_server *server = r->server;
    const char *path = target_path(r->head->target);
    const char *expect = http_header(r, "Expect");
    bool options = !strcmp(r->head->method, "OPTIONS");
    bool get = !strcmp(r->head->method, "GET") || !strcmp(r->head->method, "HEAD");
    r->route = find_route(path);
    bool probe = r->route && r->route->probe;
    if (!probe && watcher_is_over_limit(server->watcher)) {
        http_refuse(r, 503, STATUS_UNAVAILABLE, "too_many_connections",
                    "too many connections are open");
        r->error.retry_after_s = 1;
        r->closing = true;
    } else if (!probe && !http_host_allowed(server, http_header(r, "Host"))) {
        http_refuse(r, 403, STATUS_INVALID, "host_not_allowed",
                    "this server does not go by the name in Host; see --allowed-host");
    } else if (options && (r->route || !strcmp(r->head->target, "*"))) {
        return;
    } else if (!r->route) {
        http_refuse(r, 404, STATUS_NOT_FOUND, "not_found", "there is nothing at this path");
    } else if (r->route->post ? strcmp(r->head->method, "POST") != 0 : !get) {
        http_refuse(r, 405, STATUS_INVALID, "method_not_allowed",
                    "this path does not take this method; it takes %s", r->route->allow);
    } else if (expect && strcasecmp(expect, "100-continue") != 0) {
        http_refuse(r, 417, STATUS_INVALID, "expectation_failed",
                    "the only expectation known here is 100-continue");
    } else if (r->route->needs_key && !take_key(r)) {
        http_refuse(r, 401, STATUS_UNAUTHORIZED, "invalid_api_key",
                    "this server needs a key: Authorization: Bearer KEY");
    } else if (r->route->post) {
        check_post(r);
    }
}

/* A page of an allowed origin may send whatever headers its client library wants to. */
static void add_preflight(struct request *r, struct MHD_Response *response)
{
    const char *headers = http_header(r, "Access-Control-Request-Headers");
    if (!headers || strlen(headers) > ECHO_BYTES_MAX)
        headers = "Authorization, Content-Type, X-Request-Id";
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, HEAD, POST");
    MHD_add_response_header(response, "Access-Control-Allow-Headers", headers);
    MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
    if (http_header(r, "Access-Control-Request-Private-Network"))
        MHD_add_response_header(response, "Access-Control-Allow-Private-Network", "true");
}

static void add_cors(struct request *r, struct MHD_Response *response)
{
    if (!r->server->config.options->cors_origin_count)
        return;
    const char *origin = http_header(r, "Origin");
    MHD_add_response_header(response, "Vary", "Origin");
    if (!origin || !is_origin_allowed(r, origin))
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (!strcmp(r->head->method, "OPTIONS"))
        add_preflight(r, response);
}

/* The client's own id, or ours. */
static const char *shown_id(const struct request *r)
{
    return r->client_id[0] ? r->client_id : r->id;
}

void http_add_common_headers(struct request *r, struct MHD_Response *response)
{
    MHD_add_response_header(response, "X-Request-Id", shown_id(r));
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    add_cors(r, response);
    if (r->closing || atomic_load(&r->server->closing))
        MHD_add_response_header(response, "Connection", "close");
}

static void add_error_headers(struct request *r, struct MHD_Response *response, unsigned status,
                              const struct error *error)
{
    if (status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"quire\"");
    if (status == 405)
        MHD_add_response_header(response, "Allow", r->route ? r->route->allow : ALLOW_GET);
    if (error->retry_after_s || status == 429 || status == 503) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", error->retry_after_s ? error->retry_after_s : 1);
        MHD_add_response_header(response, "Retry-After", seconds);
    }
}

/* Queue and let go. A slow client has 30 s, and a second more for each 4 KiB. */
static enum MHD_Result queue(struct request *r, unsigned status, struct MHD_Response *response,
                             size_t length)
{
    if (!response)
        return MHD_NO;
    unsigned seconds = LIMIT_STALL_SECONDS + (unsigned)(length / 4096);
    pthread_mutex_lock(&r->lock);
    bool attached = r->attached;
    r->reply_deadline_ns = clock_now_ns() + (uint64_t)seconds * 1000000000u;
    pthread_mutex_unlock(&r->lock);
    if (!attached && !watcher_phase(r->server->watcher, r->watch_id, WATCH_REPLY, seconds)) {
        MHD_destroy_response(response);
        return MHD_NO; /* its time was over */
    }
    r->state = REQUEST_REPLIED;
    r->status_sent = status;
    enum MHD_Result result = MHD_queue_response(r->connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static struct MHD_Response *response_of(struct request *r, const char *type, struct buffer *body)
{
    struct MHD_Response *response = NULL;
    if (body->failed)
        log_error("out_of_memory", "id=%s an answer could not be built", r->id);
    else if (body->data)
        response = MHD_create_response_from_buffer(body->length, body->data, MHD_RESPMEM_MUST_FREE);
    else
        response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        buffer_deinit(body);
        return NULL;
    }
    buffer_init(body, 0); /* the response's now */
    if (type)
        MHD_add_response_header(response, "Content-Type", type);
    http_add_common_headers(r, response);
    return response;
}

enum MHD_Result http_reply(struct request *r, unsigned status, const char *type,
                           struct buffer *body)
{
    size_t length = body->length;
    return queue(r, status, response_of(r, type, body), length);
}

enum MHD_Result http_reply_error(struct request *r, unsigned status, const struct error *error)
{
    struct buffer body;
    buffer_init(&body, 0);
    api_write_error(error, &body);
    size_t length = body.length;
    struct MHD_Response *response = response_of(r, JSON_TYPE, &body);
    if (response)
        add_error_headers(r, response, status, error);
    if (error != &r->error) /* the access log tells it */
        r->error = *error;
    return queue(r, status, response, length);
}

/* On the watcher's thread: a head or a body did not come in time. The library waits for it and
   sends nothing, so the answer is written past it; the connection is closed behind it. */
void http_connection_expired(void *connection, bool in_body)
{
    struct connection *owner = connection;
    struct http_server *server = owner->server;
    struct error error;
    struct buffer body, head;
    char date[64] = "", id[20];
    time_t now = (time_t)clock_unix_s();
    struct tm utc;
    atomic_store(&owner->expired, true);
    snprintf(id, sizeof id, "%016llx",
             (unsigned long long)(server->id_base + atomic_fetch_add(&server->next_request, 1)));
    error_set_code(&error, STATUS_INVALID, "request_timeout", NULL, "the %s did not come in time",
                   in_body ? "body" : "head");
    buffer_init(&body, 0);
    api_write_error(&error, &body);
    if (gmtime_r(&now, &utc))
        strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    buffer_init(&head, 0);
    buffer_appendf(&head, "HTTP/1.1 408 Request Timeout\r\nDate: %s\r\nConnection: close\r\n",
                   date);
    buffer_appendf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.length);
    buffer_appendf(&head, "X-Request-Id: %s\r\n", in_body ? shown_id(owner->request) : id);
    buffer_append_text(&head, "\r\n");
    buffer_append(&head, body.data, body.length);
    if (!head.failed && !body.failed)
        send(owner->framing.fd, head.data, head.length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (!in_body)
        http_metrics_count(&server->metrics, NULL, 408); /* a request of its own has none */
    buffer_deinit(&head);
    buffer_deinit(&body);
}

enum MHD_Result http_reply_plain(struct request *r)
{
    if (r->refusal_status)
        return http_reply_error(r, r->refusal_status, &r->error);
    if (!strcmp(r->head->method, "OPTIONS")) {
        struct buffer none;
        buffer_init(&none, 0);
        struct MHD_Response *response = response_of(r, NULL, &none);
        if (response)
            MHD_add_response_header(response, "Allow", r->route ? r->route->allow : ALLOW_GET);
        return queue(r, 204, response, 0);
    }
    return r->route->reply(r);
}

static enum MHD_Result reply_text(struct request *r, unsigned status, const char *type,
                                  const char *text)
{
    struct buffer body;
    buffer_init(&body, 0);
    buffer_append_text(&body, text);
    return http_reply(r, status, type, &body);
}

static enum MHD_Result get_health(struct request *r)
{
    return reply_text(r, 200, JSON_TYPE, "{\"status\":\"ok\"}\n");
}

static enum MHD_Result reply_stalled(struct request *r)
{
    const struct runtime *runtime = atomic_load(&r->server->runtime);
    struct buffer body;
    buffer_init(&body, 0);
    buffer_append_text(&body, "{\"status\":\"stalled\",\"reason\":\"");
    watchdog_describe(&r->server->watchdog, engine_metrics(runtime->engine), clock_now_ns(), &body);
    buffer_append_text(&body, "\"}\n");
    return http_reply(r, 503, JSON_TYPE, &body);
}

static enum MHD_Result get_ready(struct request *r)
{
    struct http_server *server = r->server;
    if (atomic_load(&server->draining))
        return reply_text(r, 503, JSON_TYPE, "{\"status\":\"draining\"}\n");
    if (!atomic_load(&server->runtime))
        return reply_text(r, 503, JSON_TYPE, "{\"status\":\"loading\"}\n");
    if (watchdog_is_stalled(&server->watchdog))
        return reply_stalled(r);
    return reply_text(r, 200, JSON_TYPE, "{\"status\":\"ready\"}\n");
}

static enum MHD_Result get_metrics(struct request *r)
{
    struct http_server *server = r->server;
    struct metrics_view view = {
        .runtime = atomic_load(&server->runtime),
        .http = &server->metrics,
        .connections = watcher_connections(server->watcher),
        .dropped_connections = watcher_dropped(server->watcher),
        .requests_in_flight = atomic_load(&server->in_flight),
        .text_waiting = preprocessing_thread_waiting(server->config.text),
        .draining = atomic_load(&server->draining),
        .stalled = watchdog_is_stalled(&server->watchdog),
        .stalls = atomic_load(&server->watchdog.stalls),
        .key_count = server->config.auth ? auth_last_number(server->config.auth) : 0,
        .start_unix_s = server->start_unix_s,
    };
    struct buffer body;
    buffer_init(&body, 0);
    metrics_render(&view, &body);
    return http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static enum MHD_Result get_version(struct request *r)
{
    return reply_text(r, 200, JSON_TYPE, "{\"version\":\"" QUIRE_VERSION "\"}\n");
}

static enum MHD_Result get_root(struct request *r)
{
    return reply_text(
        r, 200, "text/plain; charset=utf-8",
        "Quire " QUIRE_VERSION "\n\n"
        "POST /v1/chat/completions   POST /v1/completions   GET /v1/models\n"
        "POST /v1/embeddings   POST /v1/rerank   POST /v1/score\n"
        "POST /tokenize   POST /detokenize   POST /v1/cache/reset\n"
        "GET /health   GET /ready   GET /metrics   GET /debug/memory   GET /version\n");
}

/* Takes effect before any request that is sent after the answer: nothing has to be waited for. */
static enum MHD_Result post_cache_reset(struct request *r)
{
    struct runtime *runtime = atomic_load(&r->server->runtime);
    if (!r->from_operator) {
        http_refuse(
            r, 403, STATUS_INVALID, "operator_only",
            "the cache is that of all keys: this takes an operator's key, one with the word "
            "operator behind it in --api-key-file");
        return http_reply_error(r, 403, &r->error);
    }
    engine_reset_cache(runtime->engine);
    return reply_text(r, 200, JSON_TYPE, "{\"status\":\"ok\"}\n");
}

static enum MHD_Result reply_loading(struct request *r)
{
    refuse_loading(r);
    return http_reply_error(r, 503, &r->error);
}

static enum MHD_Result get_memory(struct request *r)
{
    const struct runtime *runtime = atomic_load(&r->server->runtime);
    if (!runtime)
        return reply_loading(r);
    struct buffer body;
    buffer_init(&body, 0);
    memory_report(runtime, &body);
    return http_reply(r, 200, JSON_TYPE, &body);
}

static enum MHD_Result get_models(struct request *r)
{
    const struct runtime *runtime = atomic_load(&r->server->runtime);
    if (!runtime)
        return reply_loading(r);
    struct buffer body;
    buffer_init(&body, 0);
    api_write_models(&runtime->api, &body);
    return http_reply(r, 200, JSON_TYPE, &body);
}

/* The id behind the path's last fixed slash, %XX decoded. False for malformed escapes, NUL, and
   what is longer than a name can be. */
static bool decode_segment(const char *text, char *out, size_t size)
{
    size_t length = 0;
    for (; *text; text++) {
        unsigned value = (unsigned char)*text;
        if (*text == '%') {
            char digits[3] = {text[1], text[1] ? text[2] : '\0', '\0'};
            if (strspn(digits, "0123456789abcdefABCDEF") != 2)
                return false;
            value = (unsigned)strtoul(digits, NULL, 16);
            text += 2;
        }
        if (!value || length + 1 >= size)
            return false;
        out[length++] = (char)value;
    }
    out[length] = '\0';
    return true;
}

static enum MHD_Result get_model(struct request *r)
{
    const struct runtime *runtime = atomic_load(&r->server->runtime);
    if (!runtime)
        return reply_loading(r);
    char id[256];
    struct error error;
    struct buffer body;
    buffer_init(&body, 0);
    error_clear(&error);
    if (!decode_segment(target_path(r->head->target) + strlen(r->route->path), id, sizeof id)) {
        error_set_code(&error, STATUS_NOT_FOUND, "model_not_found", "model",
                       "there is no such model");
        return http_reply_error(r, 404, &error);
    }
    enum status status = api_write_model(&runtime->api, id, &body, &error);
    if (status == STATUS_OK)
        return http_reply(r, 200, JSON_TYPE, &body);
    buffer_deinit(&body);
    return http_reply_error(r, api_http_status(status), &error);
}
