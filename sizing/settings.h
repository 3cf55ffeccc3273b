/*
 * What the operator decided about a model that is served: filled in by cli/options.c, completed by
 * runtime_resolve and read by whoever sizes or starts an engine. Strings are borrowed.
 */
#ifndef QUIRE_SIZING_SETTINGS_H
#define QUIRE_SIZING_SETTINGS_H

#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

#define SETTINGS_MODEL_NAMES_MAX 16

/* Numbers are 0 and strings NULL where the option was not given and has no fixed default. */
struct settings {
    const char *model_path;
    const char *served_model_names[SETTINGS_MODEL_NAMES_MAX];
    unsigned served_model_name_count;
    const char *chat_template_file;
    uint64_t memory_bytes;
    bool memory_fitted; /* set by runtime_resolve: no --memory was given */
    uint32_t context;
    uint32_t page_size;
    const char *kv_type;
    bool prefix_cache;
    const char *pooling;     /* mean, last, cls, none; NULL: as the model's file says */
    const char *constraints; /* auto, on, off */
    const char *swap_dir;    /* NULL: nothing is swapped */
    uint64_t swap_bytes;     /* 0 without a swap_dir */
    const char *cache_dir;
    uint64_t cache_dir_bytes; /* 0: as many pages as the pool has */
    unsigned threads;
    uint32_t max_seqs;
    uint32_t max_batch_tokens;
    const char *kernels; /* auto, or the name of a set */
    const char *backend; /* quantized, openblas */
    bool serves;         /* over HTTP: there are connections and a queue */
    uint32_t max_connections;
    bool connections_fitted; /* max_connections follows from the memory */
    uint32_t max_queue;
    uint32_t max_queue_tokens;
    uint32_t timeout_seconds; /* 0: none */
    const char *api_key_file;
    unsigned api_key_count;  /* set when the file was read: how many there may ever be */
    const char *cache_scope; /* key, global */
    enum log_format log_format;
    bool profile;
};

#endif
