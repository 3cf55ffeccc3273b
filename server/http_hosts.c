/*
 * Which names this server goes by: what the Host header may say.
 *
 * DNS rebinding: a page of evil.example whose name suddenly resolves to 127.0.0.1 may talk to us
 * from a browser, but it says "Host: evil.example".
 */
#include "server/http_request.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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
