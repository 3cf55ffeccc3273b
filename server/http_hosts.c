/*
 * Which names this server goes by: what the Host header may say.
 *
 * DNS rebinding: a page of evil.example whose name suddenly resolves to 127.0.0.1 may talk to us
 * from a browser, but it says "Host: evil.example". A server on a loopback address is only ever
 * meant under loopback names and --host; elsewhere the operator says which names are right, or all
 * are. An address instead of a name cannot have been rebound. Probes and metrics may say any Host:
 * http_routes.c does not ask for them.
 */
#include "server/http_request.h"

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

static bool is_one_of(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcasecmp(name, names[i]))
            return true;
    }
    return false;
}

/* Names that no page of somebody else's can have: addresses, and names that no public server
   answers for (RFC 6761; what container engines call the host). */
static bool is_harmless(const char *name)
{
    static const char *const local[] = {"localhost", "host.docker.internal",
                                        "host.containers.internal"};
    unsigned char address[sizeof(struct in6_addr)];
    size_t length = strlen(name);
    char inner[64];
    if (name[0] == '[') {
        snprintf(inner, sizeof inner, "%.*s", (int)length - 2, name + 1);
        return inet_pton(AF_INET6, inner, address) == 1;
    }
    static const char under[] = ".localhost";
    size_t tail = sizeof under - 1;
    return inet_pton(AF_INET, name, address) == 1 ||
           is_one_of(name, local, sizeof local / sizeof local[0]) ||
           (length > tail && !strcasecmp(name + length - tail, under));
}

bool http_host_allowed(const struct http_server *server, const char *host)
{
    const struct http_options *options = server->config.options;
    if (!options->allowed_host_count && !server->loopback)
        return true;
    if (!host)
        return true; /* HTTP/1.0: no browser */
    char name[64];
    if (!host_name(host, name, sizeof name))
        return false;
    return is_harmless(name) ||
           is_one_of(name, (const char *const *)options->allowed_hosts,
                     options->allowed_host_count) ||
           (server->loopback && !strcasecmp(name, options->host));
}
