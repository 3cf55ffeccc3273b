/*
 * quire serve: start order, signals, drain order.
 *
 * The HTTP server listens first and says 503 until the model is there; the preprocessing thread
 * loads it (it has the stack for templates) and tells main through an eventfd. Main does nothing
 * but wait for signals and for that.
 *
 *     SIGTERM ──── --drain-delay ────┬──────── --drain-seconds ────────┬─ a few seconds ─┐
 *      /ready 503, serves as before  │ no new connection; answers end  │ what is left    │ exit 0
 *                                    │ the open ones                   │ ends with 503   │
 *
 * SIGINT is the same. The second one ends the process at once. SIGHUP reads the API keys again; if
 * the terminal that the server was started from is gone, it is SIGTERM. SIGUSR1 and SIGUSR2 are
 * ignored: supervisors and log rotators send them to programs that they do not know.
 */
#include "cli/programs.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/constrain/grammar_cache.h"
#include "server/http.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define GRAMMAR_NICENESS 10 /* a tenth of a core where all of them compute, all of one else */
#define HANDSHAKE_MS 100    /* for the last packet of handshakes that have begun */

struct service {
    struct options *options;
    runtime_backend_factory factory;
    struct auth *auth;
    struct preprocessing_thread *text;
    struct preprocessing_thread *grammars;
    struct preprocessing_job load_grammars;
    struct http_server *http;
    int signal_fd, loaded_fd;
    int terminal_fd; /* of the standard descriptors one that is a terminal, or -1 */
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

/* On the grammar thread, while the first requests are already served: those that bring a grammar
   wait behind it. */
static void load_grammars(void *arg)
{
    struct service *service = arg;
    struct error error;
    error_clear(&error);
    uint64_t start_ns = clock_now_ns();
    if (grammar_cache_load(service->runtime.grammars, &error) != STATUS_OK)
        log_error("structured_outputs", "off: %s", error.message);
    else
        log_info("structured_outputs", "ready after %.2f s",
                 (double)(clock_now_ns() - start_ns) * 1e-9);
    /* What compiles from now on is a client's: the threads that compute come first. */
    if (setpriority(PRIO_PROCESS, (id_t)gettid(), GRAMMAR_NICENESS))
        log_warn("structured_outputs", "cannot lower the priority of compiling: %s",
                 strerror(errno));
}

static void read_keys_again(struct service *service)
{
    const char *path = service->options->settings.api_key_file;
    struct error error;
    struct auth_change change;
    if (!service->auth)
        log_info("reload", "there is no --api-key-file to read again");
    else if (auth_reload(service->auth, path, &change, &error) == STATUS_OK)
        log_info("reload", "%u keys: %u are new, %u are gone", auth_key_count(service->auth),
                 change.added, change.removed);
    else
        log_error("reload", "the keys stay as they were: %s", error.message);
    if (service->auth)
        http_keys_changed(service->http);
}

/* What a signal asks for: SIGTERM or SIGINT to end; -1: done already. */
static int take_signal(struct service *service, int number)
{
    if (number != SIGHUP)
        return number;
    if (service->terminal_fd >= 0 && !isatty(service->terminal_fd)) {
        service->terminal_fd = -1; /* the shell may tell it too */
        return SIGTERM;
    }
    read_keys_again(service);
    return -1;
}

/* Wait for a signal or the model. Returns the number of a signal to end, 0 for the model, -1 for
   neither. */
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
        return take_signal(service, (int)info.ssi_signo);
    uint64_t count_read;
    if ((fds[1].revents & POLLIN) &&
        read(service->loaded_fd, &count_read, sizeof count_read) == (ssize_t)sizeof count_read)
        return 0;
    return -1;
}

/* A little later. A second signal ends the process here: not even a log line is waited for. */
static void wait_draining(struct service *service)
{
    int event = wait_event(service, false, 10);
    if (event > 0)
        _exit(128 + event);
}

/* Accept what the kernel has taken; if it is held, nothing comes after that. */
static void close_listener(struct service *service, bool held)
{
    uint64_t now_ns = clock_now_ns();
    uint64_t least_ns = now_ns + HANDSHAKE_MS * 1000000ull;
    uint64_t deadline_ns = now_ns + LIMIT_CLOSE_MS * 1000000ull;
    if (held) {
        do {
            wait_draining(service);
            now_ns = clock_now_ns();
        } while (now_ns < least_ns || (now_ns < deadline_ns && http_connecting(service->http)));
    }
    http_drain(service->http);
}

/* Let what runs end, within the time given. */
static void drain(struct service *service, int signal_number)
{
    const char *name = signal_number == SIGINT ? "SIGINT" : "SIGTERM";
    unsigned delay = service->options->serve.drain_delay_seconds;
    unsigned seconds = service->options->serve.drain_seconds;
    http_unready(service->http);
    if (delay)
        log_info("draining", "%s: not ready from now on, no new connections in %u s", name, delay);
    uint64_t deadline_ns = clock_now_ns() + delay * 1000000000ull;
    while (clock_now_ns() < deadline_ns)
        wait_draining(service);
    bool held = http_hold(service->http);
    log_info("draining", "%s: %u requests are running; up to %u s for them", name,
             http_in_flight(service->http), seconds);
    close_listener(service, held);
    deadline_ns = clock_now_ns() + seconds * 1000000000ull;
    while ((http_in_flight(service->http) || http_connections(service->http)) &&
           clock_now_ns() < deadline_ns)
        wait_draining(service);
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
    if (service->runtime.grammars) {
        service->load_grammars = (struct preprocessing_job){.run = load_grammars, .arg = service};
        CHECK(preprocessing_thread_push(service->grammars, &service->load_grammars));
    }
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
    sigaddset(&signals, SIGHUP);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write, as others */
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    service->terminal_fd = -1;
    for (int fd = STDERR_FILENO; fd >= STDIN_FILENO; fd--) {
        if (isatty(fd))
            service->terminal_fd = fd;
    }
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
    if (status == STATUS_OK)
        status = runtime_check_names(settings, error);
    if (status == STATUS_OK && settings->api_key_file)
        status = auth_load(settings->api_key_file, &service->auth, error);
    /* Room for the keys that a SIGHUP may bring. */
    settings->api_key_count = service->auth ? LIMIT_API_KEYS : 0;
    if (status == STATUS_OK)
        status = preprocessing_thread_create(LIMIT_PREPROCESSING_QUEUE, settings->api_key_count + 1,
                                             &service->text, error);
    if (status == STATUS_OK)
        status = preprocessing_thread_create(LIMIT_PREPROCESSING_QUEUE, settings->api_key_count + 1,
                                             &service->grammars, error);
    struct http_config config = {http, settings, service->auth, service->text, service->grammars};
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
    if (!http_stop(service->http)) {
        /* Its threads still use what would be freed now. */
        log_stop();
        _exit(1);
    }
    preprocessing_thread_destroy(service->text);
    preprocessing_thread_destroy(service->grammars);
    runtime_destroy(&service->runtime);
    auth_destroy(service->auth);
    close(service->signal_fd);
    close(service->loaded_fd);
    free(service);
    if (code == 0)
        log_info("stopped", "all requests are done");
    return code;
}
