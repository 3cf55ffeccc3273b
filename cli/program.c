/* From argv to an exit code: see program.h. */
#include "cli/program.h"

#include "base/bytes.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * Resident memory must stay within the budget. By default glibc gives each thread an arena of its
 * own that is never given back, and raises the size from which blocks are mapped (and so returned
 * at once) whenever a mapped one is freed. Both make what was free once stay resident.
 */
static void tune_allocator(void)
{
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_MMAP_THRESHOLD, 64 * (int)KIB);
    mallopt(M_TRIM_THRESHOLD, 256 * (int)KIB);
    mallopt(M_TOP_PAD, 64 * (int)KIB);
}

/* One descriptor per connection and some more: as many as the system gives. */
static void fit_descriptors(struct settings *settings)
{
    /* files, the library's own, connections over the limit and those that linger */
    const unsigned others = 96 + LIMIT_LINGERING;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (!settings->serves || settings->max_connections + others <= limit.rlim_cur)
        return;
    unsigned fit = limit.rlim_cur > others + 4 ? (unsigned)limit.rlim_cur - others : 4;
    log_warn("connections", "%u are wanted, but the limit of open files (%llu) allows %u",
             settings->max_connections, (unsigned long long)limit.rlim_cur, fit);
    settings->max_connections = fit;
    settings->connections_fitted = false;
}

static int run_command(struct options *options, runtime_backend_factory factory)
{
    switch (options->command) {
    case COMMAND_HELP:
        options_print_help(options);
        return 0;
    case COMMAND_VERSION:
        printf("quire %s\n", QUIRE_VERSION);
        return 0;
    case COMMAND_SERVE:
        return program_serve(options, factory);
    case COMMAND_RUN:
        return program_run(options, factory);
    case COMMAND_INSPECT:
        return inspect_model(options);
    case COMMAND_PROVE:
        return program_prove(options);
    case COMMAND_PERPLEXITY:
        return program_perplexity(options);
    case COMMAND_BENCH:
        return program_bench(options);
    case COMMAND_PLAN:
        return program_plan(options);
    case COMMAND_HEALTHCHECK:
        return program_healthcheck(options);
    }
    return 2;
}

/*
 * A descriptor that is closed at the start would be given to the next file or socket that is
 * opened, and what is printed would go there. /dev/null takes its place, opened the other way
 * round: who reads or writes it is told, as it was before.
 */
static void fill_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); /* the lowest free: fd */
    }
}

int program_main(int argc, char **argv, runtime_backend_factory factory)
{
    fill_descriptors();
    tune_allocator();
    signal(SIGPIPE, SIG_IGN);
    struct options options;
    struct error error;
    error_clear(&error);
    if (options_parse(argc, argv, &options, &error) != STATUS_OK) {
        fprintf(stderr, "quire: %s\n", error.message);
        return 2;
    }
    log_init(options.settings.log_format, options.log_level);
    log_start();
    if (options.command != COMMAND_INSPECT && options.command != COMMAND_HEALTHCHECK &&
        options.command != COMMAND_HELP && options.command != COMMAND_VERSION) {
        const char *link = options_service_link();
        if (link)
            log_info("environment", "%s=%s describes a Service and is no option; it has no effect",
                     link, getenv(link));
        unsigned position = 0;
        for (const char *name; (name = options_misspelled_variable(&position));)
            log_warn("environment", "%.*s looks like a misspelled option; it has no effect",
                     (int)strcspn(name, "="), name);
        runtime_resolve(&options.settings, options.command != COMMAND_PLAN);
        fit_descriptors(&options.settings);
    }
    int code = run_command(&options, factory);
    if ((fflush(stdout) || ferror(stdout)) && !code)
        code = 1;
    log_stop();
    return code;
}
