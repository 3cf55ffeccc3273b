/*
 * quire healthcheck: GET /ready of a server on this machine, for containers without curl. One
 * blocking socket with a timeout; no library.
 *
 * Which server? The one of --host and --port. What is not given there comes from the command line
 * of process 1 if that is a `quire serve`, as in a container; else from the environment.
 */
#include "cli/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define TIMEOUT_SECONDS 3

/* A server that listens on all addresses is asked on loopback. */
static const char *host_to_ask(const char *host, char bare[static 64])
{
    if (host[0] == '[') { /* an IPv6 address as in a URL */
        snprintf(bare, 64, "%.*s", (int)strcspn(host + 1, "]"), host + 1);
        host = bare;
    }
    if (!strcmp(host, "0.0.0.0"))
        return "127.0.0.1";
    if (!strcmp(host, "::"))
        return "::1";
    return host;
}

#define ARGUMENTS_MAX 256

/* Split what /proc has of a command line, arguments that end in NUL. */
static int split_arguments(char *text, size_t length, char **out)
{
    int count = 0;
    for (char *at = text; at < text + length && count < ARGUMENTS_MAX; at += strlen(at) + 1)
        out[count++] = at;
    return count;
}

static bool is_quire(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !strcmp(slash ? slash + 1 : path, "quire");
}

/* The options of process 1 if it is a `quire serve`, also behind an init's words. `text` must live
   as long as the options. */
static bool read_first_process(char *text, size_t size, struct options *out)
{
    char *arguments[ARGUMENTS_MAX];
    int fd = open("/proc/1/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    int count = split_arguments(text, (size_t)length, arguments);
    for (int i = 0; i + 1 < count; i++) {
        if (is_quire(arguments[i]) && !strcmp(arguments[i + 1], "serve"))
            return options_parse(count - i, arguments + i, out, NULL) == STATUS_OK;
    }
    return false;
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
    static char text[65536]; /* of process 1 */
    const struct healthcheck_options *given = &options->healthcheck;
    const char *host = options->serve.http.host;
    unsigned port = options->serve.http.port;
    struct options first;
    if ((!given->host_given || !given->port_given) &&
        read_first_process(text, sizeof text, &first)) {
        host = given->host_given ? host : first.serve.http.host;
        port = given->port_given ? port : first.serve.http.port;
    }
    char bare[64];
    host = host_to_ask(host, bare);
    int fd = connect_to(host, port);
    if (fd < 0) {
        fprintf(stderr, "quire: no server answers on %s port %u\n", host, port);
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
        fprintf(stderr, "quire: no answer from %s port %u\n", host, port);
    return 1;
}
