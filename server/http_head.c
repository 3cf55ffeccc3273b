/*
 * Heads of requests: what the library lets through and we must not.
 *
 * libmicrohttpd 0.9.75 accepts in silence: bare line feeds, folded headers, NUL bytes (which cut
 * values short), a blank before the colon (which hides a Content-Length, so that the body becomes
 * the next request), several Hosts or lengths, and lengths beside transfer codings. All are ways to
 * smuggle a request past a proxy. It parses a head in place, so the addresses of keys and values
 * tell where each byte of it is: walking them in order must meet every header and nothing else.
 */
#include "server/http_request.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* RFC 9110, section 5.6.2. */
static bool is_token(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && !(c && strchr("!#$%&'*+-.^_`|~", c)))
            return false;
    }
    return length > 0;
}

/* Visible characters, blanks, tabs and bytes above 0x7f (RFC 9110, section 5.5). */
static bool is_value(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

struct walk {
    const char *at;  /* where the next header must begin; NULL: it did not */
    const char *end; /* one past the head */
    bool in_place;   /* check addresses too */
    unsigned hosts, lengths, encodings;
    const char *encoding;
};

static bool walk_header(struct walk *walk, const char *key, size_t key_size, const char *value,
                        size_t value_size)
{
    if (!is_token(key, key_size) || !is_value(value, value_size))
        return false;
    if (!walk->in_place)
        return true;
    /* key, the colon (now NUL), blanks, value, CR and LF (now NUL) */
    if (key != walk->at || value <= key + key_size || value + value_size + 2 > walk->end)
        return false;
    for (const char *at = key + key_size + 1; at < value; at++) {
        if (*at != ' ' && *at != '\t')
            return false;
    }
    if (value[value_size] || value[value_size + 1])
        return false;
    walk->at = value + value_size + 2;
    return true;
}

static enum MHD_Result on_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                 size_t key_size, const char *value, size_t value_size)
{
    (void)kind;
    struct walk *walk = cls;
    if (!value || !walk_header(walk, key, key_size, value, value_size)) {
        walk->at = NULL;
        return MHD_NO;
    }
    if (!strcasecmp(key, "Host")) {
        walk->hosts++;
    } else if (!strcasecmp(key, "Content-Length")) {
        walk->lengths++;
    } else if (!strcasecmp(key, "Transfer-Encoding")) {
        walk->encodings++;
        walk->encoding = value;
    }
    return MHD_YES;
}

static unsigned refuse_head(struct error *error, unsigned status, const char *message)
{
    error_set_code(error, status == 501 ? STATUS_UNSUPPORTED : STATUS_INVALID, "bad_request", NULL,
                   "%s", message);
    return status;
}

/* The request line in place: "METHOD uri HTTP/1.x" with single blanks, then CRLF. */
static bool request_line_ok(const struct request *r, const char *version)
{
    const char *method = r->method, *url = r->url;
    size_t method_length = strlen(method);
    return url == method + method_length + 1 && version == url + r->uri_length + 1 &&
           version[strlen(version) + 1] == '\0';
}

unsigned http_head_check(struct request *r, const char *version, struct error *error)
{
    bool http11 = !strcmp(version, "HTTP/1.1");
    if (!http11 && strcmp(version, "HTTP/1.0") != 0)
        return refuse_head(error, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    if (r->uri_length == SIZE_MAX || !is_token(r->method, strlen(r->method)))
        return refuse_head(error, 400, "the request line is malformed");

    struct walk walk = {.in_place = r->server->walk_head, .at = ""};
    if (walk.in_place) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
        if (!info || !request_line_ok(r, version))
            return refuse_head(error, 400, "the request line is malformed");
        walk.at = version + strlen(version) + 2;
        walk.end = r->method + info->header_size;
    }
    MHD_get_connection_values_n(r->connection, MHD_HEADER_KIND, on_header, &walk);
    if (!walk.at || (walk.in_place && (walk.at + 2 != walk.end || walk.at[0] || walk.at[1])))
        return refuse_head(error, 400, "a header is malformed");

    if (walk.hosts > 1 || (http11 && walk.hosts == 0))
        return refuse_head(error, 400, "there must be one Host header");
    if (walk.lengths > 1 || walk.encodings > 1 || (walk.lengths && walk.encodings))
        return refuse_head(error, 400, "the body's length is ambiguous");
    if (walk.encodings && !http11)
        return refuse_head(error, 400, "HTTP/1.0 has no Transfer-Encoding");
    if (walk.encodings && strcasecmp(walk.encoding, "chunked") != 0)
        return refuse_head(error, 501, "the only transfer coding is chunked");
    return 0;
}

const char *http_header(struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

/* Host without its port, in `out`; false when it is not of the form name[:port]. */
static bool host_name(const char *host, char *out, size_t size)
{
    size_t length = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (length == 0 || length >= size || length > strlen(host))
        return false;
    const char *port = host + length;
    if (*port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1)))
        return false;
    memcpy(out, host, length);
    out[length] = '\0';
    if (length > 1 && out[length - 1] == '.')
        out[length - 1] = '\0'; /* the root's dot */
    return true;
}

bool http_host_allowed(const struct http_server *server, const char *host)
{
    if (!server->host_count)
        return true;
    if (!host)
        return true; /* HTTP/1.0: no browser */
    char name[64];
    if (!host_name(host, name, sizeof name))
        return false;
    for (unsigned i = 0; i < server->host_count; i++) {
        if (!strcasecmp(server->hosts[i], name))
            return true;
    }
    /* any other address of the loopback net is as good as 127.0.0.1 */
    struct in_addr address;
    return server->loopback && inet_pton(AF_INET, name, &address) == 1 &&
           (ntohl(address.s_addr) >> 24) == 127;
}

static void add_host(struct http_server *server, const char *name)
{
    CHECK(server->host_count < sizeof server->hosts / sizeof server->hosts[0]);
    snprintf(server->hosts[server->host_count++], sizeof server->hosts[0], "%s", name);
}

/*
 * DNS rebinding: a page of evil.example whose name suddenly resolves to 127.0.0.1 may talk to us
 * from a browser, but it says "Host: evil.example". A server on a loopback address is only ever
 * meant under loopback names; elsewhere the operator says which names are right, or all are.
 */
void http_hosts_init(struct http_server *server)
{
    const struct options *options = server->config.options;
    for (unsigned i = 0; i < options->allowed_host_count; i++)
        add_host(server, options->allowed_hosts[i]);
    if (!server->loopback)
        return;
    add_host(server, "localhost");
    add_host(server, "127.0.0.1");
    add_host(server, "[::1]");
    if (!strchr(options->host, ':'))
        add_host(server, options->host);
}
