/*
 * quire healthcheck: GET /ready of a server on this machine, for containers without curl. One
 * blocking socket with a timeout; no library.
 */
#include "cli/programs.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define TIMEOUT_SECONDS 3

/* A server that listens on all addresses is asked on loopback. */
static const char *host_to_ask(const char *host)
{
    if (!strcmp(host, "0.0.0.0"))
        return "127.0.0.1";
    if (!strcmp(host, "::") || !strcmp(host, "[::]"))
        return "::1";
    return host;
}

static int connect_to(const char *host, unsigned port)
{
    char text[8];
    snprintf(text, sizeof text, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    if (getaddrinfo(host, text, &hints, &list))
        return -1;
    int fd = -1;
    for (const struct addrinfo *info = list; info && fd < 0; info = info->ai_next) {
        fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
        struct timeval timeout = {.tv_sec = TIMEOUT_SECONDS};
        if (fd >= 0) {
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
            if (connect(fd, info->ai_addr, info->ai_addrlen)) {
                close(fd);
                fd = -1;
            }
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* The status code of the answer; 0: none. */
static unsigned ask(int fd)
{
    static const char request[] =
        "GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != (ssize_t)sizeof request - 1)
        return 0;
    char head[64];
    size_t length = 0;
    while (length < sizeof head - 1) {
        ssize_t got = recv(fd, head + length, sizeof head - 1 - length, 0);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    head[length] = '\0';
    unsigned status = 0;
    return sscanf(head, "HTTP/1.%*1[01] %3u ", &status) == 1 ? status : 0;
}

int program_healthcheck(const struct options *options)
{
    const char *host = host_to_ask(options->serve.http.host);
    int fd = connect_to(host, options->serve.http.port);
    if (fd < 0) {
        fprintf(stderr, "quire: no server answers on %s port %u\n", host, options->serve.http.port);
        return 1;
    }
    unsigned status = ask(fd);
    close(fd);
    if (status == 200) {
        printf("ready\n");
        return 0;
    }
    if (status)
        fprintf(stderr, "quire: not ready (status %u)\n", status);
    else
        fprintf(stderr, "quire: no answer from %s port %u\n", host, options->serve.http.port);
    return 1;
}
