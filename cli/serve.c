/*
 * quire serve: start order, signals, drain order.
 *
 * The HTTP server listens first and says 503 until the model is there; the preprocessing thread
 * loads it (it has the stack for templates) and tells main through an eventfd. Main does nothing
 * but wait for signals and for that. On the first SIGTERM or SIGINT: stop accepting, let running
 * answers end within
 * --drain-seconds, end the rest with an error, exit 0. On the second: exit at once.
 */
#include "cli/programs.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "server/http.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct service {
    struct options *options;
    runtime_backend_factory factory;
    struct auth *auth;
    struct preprocessing_thread *text;
    struct http_server *http;
    int signal_fd, loaded_fd;
    struct preprocessing_job load;
    /* the preprocessing thread's until loaded_fd is written */
    struct runtime runtime;
    enum status load_status;
    struct error load_error;
};

static void yield_preprocessing(void *arg)
{
    preprocessing_thread_yield(arg);
}

static void load_model(void *arg)
{
    struct service *service = arg;
    service->load_status = runtime_create(&service->options->settings, service->factory,
                                          &service->runtime, &service->load_error);
    service->runtime.api.yield = yield_preprocessing;
    service->runtime.api.yield_arg = service->text;
    uint64_t one = 1;
    ssize_t put = write(service->loaded_fd, &one, sizeof one);
    CHECK(put == sizeof one);
}

/* Wait for a signal or the model. Returns the signal's number, 0 for the model, -1 for neither. */
static int wait_event(struct service *service, bool for_model, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = service->signal_fd, .events = POLLIN},
                            {.fd = for_model ? service->loaded_fd : -1, .events = POLLIN}};
    int count = poll(fds, 2, timeout_ms);
    CHECK(count >= 0 || errno == EINTR);
    if (count <= 0)
        return -1;
    struct signalfd_siginfo info;
    if ((fds[0].revents & POLLIN) &&
        read(service->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        return (int)info.ssi_signo;
    uint64_t count_read;
    if ((fds[1].revents & POLLIN) &&
        read(service->loaded_fd, &count_read, sizeof count_read) == (ssize_t)sizeof count_read)
        return 0;
    return -1;
}

/* Let what runs end, within the time given. */
static void drain(struct service *service, int signal_number)
{
    unsigned seconds = service->options->serve.drain_seconds;
    http_drain(service->http);
    log_info("draining", "%s: %u requests are running; up to %u s for them",
             signal_number == SIGINT ? "SIGINT" : "SIGTERM", http_in_flight(service->http),
             seconds);
    uint64_t deadline_ns = clock_now_ns() + (uint64_t)seconds * 1000000000u;
    while (http_in_flight(service->http) && clock_now_ns() < deadline_ns) {
        int event = wait_event(service, false, 10);
        if (event > 0)
            _exit(128 + event); /* the second: not even a line of the log is waited for */
    }
    unsigned left = http_in_flight(service->http);
    if (left)
        log_warn("draining", "ending %u requests that did not finish in time", left);
}

static void announce(const struct service *service)
{
    const struct runtime *runtime = &service->runtime;
    const struct http_options *http = &service->options->serve.http;
    bool brackets = strchr(http->host, ':') && http->host[0] != '[';
    log_info("ready", "%s on http://%s%s%s:%u, context %u, up to %u connections",
             runtime->api.model_names[0], brackets ? "[" : "", http->host, brackets ? "]" : "",
             http_port(service->http), runtime->api.max_model_len,
             service->options->settings.max_connections);
}

/* Returns the exit code. */
static int serve(struct service *service)
{
    service->load = (struct preprocessing_job){.run = load_model, .arg = service};
    CHECK(preprocessing_thread_push(service->text, &service->load));
    int event;
    do
        event = wait_event(service, true, -1);
    while (event < 0);
    if (event > 0) {
        /* Nothing is served yet, and nothing of a half-loaded model needs an end. */
        log_info("stopped", "while loading");
        log_stop();
        _exit(0);
    }
    if (service->load_status != STATUS_OK) {
        log_error("load_failed", "%s", service->load_error.message);
        return 1;
    }
    malloc_trim(0);
    http_set_runtime(service->http, &service->runtime);
    announce(service);
    do
        event = wait_event(service, false, -1);
    while (event <= 0);
    drain(service, event);
    return 0;
}

static enum status open_descriptors(struct service *service, struct error *error)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write, as others */
    /* Before any thread starts: all inherit the mask. */
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    service->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    service->loaded_fd = eventfd(0, EFD_CLOEXEC);
    if (service->signal_fd < 0 || service->loaded_fd < 0)
        return error_set(error, STATUS_IO, NULL, "cannot wait for signals: %s", strerror(errno));
    return STATUS_OK;
}

static enum status start(struct service *service, struct error *error)
{
    const struct http_options *http = &service->options->serve.http;
    struct settings *settings = &service->options->settings;
    enum status status = open_descriptors(service, error);
    if (status == STATUS_OK && settings->api_key_file)
        status = auth_load(settings->api_key_file, &service->auth, error);
    settings->api_key_count = service->auth ? auth_key_count(service->auth) : 0;
    if (status == STATUS_OK)
        status = preprocessing_thread_create(LIMIT_PREPROCESSING_QUEUE, settings->api_key_count + 1,
                                             &service->text, error);
    struct http_config config = {http, settings, service->auth, service->text};
    if (status == STATUS_OK)
        status = http_start(&config, &service->http, error);
    if (status != STATUS_OK)
        return status;
    log_info("listening", "%s port %u, pid %d", http->host, http_port(service->http),
             (int)getpid());
    if (!http->port) { /* whoever started us must learn it, whatever the log level */
        printf("listening on %s:%u\n", http->host, http_port(service->http));
        fflush(stdout);
    }
    if (service->auth)
        log_info("auth", "%u keys", auth_key_count(service->auth));
    return STATUS_OK;
}

int program_serve(struct options *options, runtime_backend_factory factory)
{
    struct service *service = calloc(1, sizeof *service);
    if (!service)
        return 1;
    service->options = options;
    service->factory = factory;
    struct error error;
    error_clear(&error);
    int code = 1;
    if (start(service, &error) == STATUS_OK)
        code = serve(service);
    else
        log_error("start_failed", "%s", error.message);
    /* What is left takes a second at most; a signal now has its usual effect. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    http_stop(service->http);
    preprocessing_thread_destroy(service->text);
    runtime_destroy(&service->runtime);
    auth_destroy(service->auth);
    close(service->signal_fd);
    close(service->loaded_fd);
    free(service);
    if (code == 0)
        log_info("stopped", "all requests are done");
    return code;
}
