/*
 * Command line and environment (QUIRE_…): parsed once, validated, never changed. An unknown or
 * contradictory option is an error with a hint. What a program has is a struct of its own; what
 * several have is in `settings`.
 */
#ifndef QUIRE_CLI_OPTIONS_H
#define QUIRE_CLI_OPTIONS_H

#include "base/error.h"
#include "base/log.h"
#include "server/http_config.h"
#include "sizing/settings.h"

#include <stdbool.h>
#include <stdint.h>

enum command {
    COMMAND_HELP,
    COMMAND_VERSION,
    COMMAND_SERVE,
    COMMAND_RUN,
    COMMAND_INSPECT,
    COMMAND_PROVE,
    COMMAND_PERPLEXITY,
    COMMAND_BENCH,
    COMMAND_PLAN,
    COMMAND_HEALTHCHECK
};

struct serve_options {
    struct http_options http;
    unsigned drain_delay_seconds; /* 0: none */
    unsigned drain_seconds;
};

/* On the command line itself: where nothing is given there, the server is looked for. */
struct healthcheck_options {
    bool host_given, port_given;
};

struct run_options {
    const char *prompt;
    uint32_t max_tokens;
    float temperature;
    uint64_t seed;
    bool chat; /* the prompt is a user message */
};

struct prove_options {
    uint32_t tokens, batch;
    const char *plot_file; /* NULL: no drawing */
};

struct perplexity_options {
    const char *text_file;
    uint32_t window;
    uint32_t windows; /* 0: the whole text */
    bool kl, kl_kv;
};

struct bench_options {
    uint32_t prompt, tokens, depth, batch;
};

/* A model without a file; layers 0 says there is a file. */
struct shape_options {
    uint32_t layers, heads, kv_heads, head_dim;
    uint32_t vocabulary, window, window_layers;
    uint64_t weights_bytes;
    const char *weight_type;
};

struct plan_options {
    uint32_t users; /* 0: how many fit? */
    bool max_seqs_given;
    bool measure;
    const char *svg_file; /* NULL: no drawing */
    struct shape_options shape;
};

struct options {
    enum command command;
    enum command help_about; /* COMMAND_HELP: which command's page */
    enum log_level log_level;
    bool json; /* of inspect, prove, perplexity, bench and plan */
    struct settings settings;
    struct serve_options serve; /* healthcheck asks its host and port */
    struct healthcheck_options healthcheck;
    struct run_options run;
    struct prove_options prove;
    struct perplexity_options perplexity;
    struct bench_options bench;
    struct plan_options plan;
};

/* STATUS_INVALID with a message and hint. Strings point into argv, environ or static storage. The
   command line wins over the environment. */
enum status options_parse(int argc, char **argv, struct options *out, struct error *error);
void options_print_help(const struct options *options); /* to stdout */

/* The default of an option of `quire serve` that has a number. */
uint64_t options_default(const char *name);

/* The name of a variable that would be an option's, but that an orchestrator has set to describe a
   Service (tcp://…): it has no effect. NULL: none. */
const char *options_service_link(void);

/* A QUIRE_… variable that looks like a misspelled option ("QUIRE_MEMROY"), or NULL: for a warning.
   Call with *position 0 at first. */
const char *options_misspelled_variable(unsigned *position);

#endif
