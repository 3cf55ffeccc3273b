/*
 * What the operator decided: filled in by cli/options.c and read by everybody above the engine.
 */
#ifndef QUIRE_SIZING_OPTIONS_H
#define QUIRE_SIZING_OPTIONS_H

#include "base/log.h"

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

#define OPTIONS_MODEL_NAMES_MAX 16
#define OPTIONS_ORIGINS_MAX 16
#define OPTIONS_HOSTS_MAX 16
#define OPTIONS_MAX_SEQS 128u
#define OPTIONS_PAGE_SIZE 16u
#define OPTIONS_SWAP_BYTES (4ull << 30)

struct options {
    enum command command;
    enum command help_about;   /* COMMAND_HELP: which command's page */
    const char *model_path;    /* -m, --model */
    const char *host;          /* --host 127.0.0.1 */
    uint16_t port;             /* --port 8080; 0: any free one, printed */
    unsigned threads;          /* --threads; 0: the cores this process may use */
    uint64_t memory_bytes;     /* --memory; 0: what is available (base/machine.h) */
    bool memory_fitted;        /* set by runtime_resolve: no --memory was given */
    const char *swap_dir;      /* --swap-dir; NULL: nobody is swapped */
    uint64_t swap_bytes;       /* --swap-bytes; 4 GiB, if there is a swap_dir */
    uint32_t context;          /* --context; 0: the model's */
    uint32_t page_size;        /* --page-size 16 */
    const char *kv_type;       /* --kv-type; NULL: f16, or what the backend has */
    uint32_t max_batch_tokens; /* --max-batch-tokens; 0: default rule */
    uint32_t max_seqs;         /* --max-seqs 128 */
    bool max_seqs_given;       /* else max_seqs may be raised to the users that are planned for */
    uint32_t max_queue;        /* --max-queue 1024 */
    uint32_t max_queue_tokens; /* --max-queue-tokens 1048576 */
    uint32_t timeout_seconds;  /* --timeout 300; 0: none */
    uint32_t watchdog_seconds; /* --watchdog-seconds 60; 0: never */
    uint32_t max_connections;  /* --max-connections; 0: up to 1024, as the memory allows */
    bool connections_fitted;   /* set by runtime_resolve: max_connections follows from the memory */
    const char *served_model_names[OPTIONS_MODEL_NAMES_MAX];
    unsigned served_model_name_count;
    const char *api_key_file;
    unsigned api_key_count;   /* set when the file was read: how many there may ever be */
    const char *cache_dir;    /* NULL: none */
    uint64_t cache_dir_bytes; /* 0: as many pages as the pool has */
    const char *cache_scope;  /* key, global */
    const char *chat_template_file;
    const char *cors_origins[OPTIONS_ORIGINS_MAX]; /* --cors-origin, repeatable; none: no CORS */
    unsigned cors_origin_count;
    const char
        *allowed_hosts[OPTIONS_HOSTS_MAX]; /* --allowed-host, repeatable: what Host may say */
    unsigned allowed_host_count;
    const char *kernels;          /* auto, or the name of a set */
    const char *backend;          /* quantized, openblas */
    unsigned drain_seconds;       /* --drain-seconds 30 */
    unsigned drain_delay_seconds; /* --drain-delay 0 */
    enum log_format log_format;
    enum log_level log_level;
    bool prefix_cache; /* --no-prefix-cache turns it off */
    bool profile;      /* --profile, of serve and bench */
    /* run */
    const char *prompt;
    uint32_t run_max_tokens;
    float run_temperature;
    uint64_t run_seed;
    bool run_chat; /* --chat: the prompt is a user message */
    /* inspect, prove, perplexity, bench, plan */
    bool json;
    uint32_t prove_tokens; /* --tokens */
    uint32_t prove_batch;  /* --batch */
    const char *plot_file; /* --plot, NULL: no drawing */
    const char *text_file; /* perplexity's text */
    uint32_t perplexity_window;
    uint32_t perplexity_windows;          /* --windows, 0: the whole text */
    bool perplexity_kl, perplexity_kl_kv; /* --kl, --kl-kv */
    uint32_t bench_prompt, bench_tokens, bench_depth, bench_batch;
    /* plan */
    uint32_t plan_users;  /* --users; 0: how many fit? */
    bool plan_measure;    /* --no-measure turns it off */
    const char *svg_file; /* --svg, NULL: no drawing */
    /* plan without a file: a model of numbers; layers 0 says there is a file */
    uint32_t shape_layers, shape_heads, shape_kv_heads, shape_head_dim;
    uint32_t shape_vocabulary, shape_window, shape_window_layers;
    uint64_t shape_weights_bytes;
    const char *shape_weight_type;
};

#endif
