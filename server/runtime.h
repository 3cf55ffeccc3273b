/*
 * The runtime: everything between an option list and a running engine, in start order: kernels,
 * GGUF header, sizes, budget, tokenizer, template, weights, engine. Used by `quire serve` and
 * `quire run`.
 */
#ifndef QUIRE_SERVER_RUNTIME_H
#define QUIRE_SERVER_RUNTIME_H

#include "api/api.h"
#include "base/budget.h"
#include "base/workers.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "sizing/settings.h"

#define MODEL_NAME_BYTES 256u /* of a served name, its end included */

struct runtime {
    struct budget budget;
    const struct kernels *kernels;
    struct workers *workers;
    struct gguf *gguf; /* NULL once everything is loaded */
    struct model_config config;
    struct tokenizer *tokenizer;
    struct grammar_cache *grammars;      /* NULL: there is no room for constrained output */
    struct chat_template *chat_template; /* NULL: the file has none */
    struct chat_template *tool_template; /* for requests with tools; NULL: the same */
    struct backend *backend;
    bool profile; /* runtime_destroy logs where the backend's time went */
    struct engine *engine;
    bool cache_dir;   /* one was given */
    uint32_t context; /* effective: the smallest of option, model and pool */
    struct api_context api;
    /* what api and engine borrow */
    char model_name[MODEL_NAME_BYTES];
    const char *model_names[SETTINGS_MODEL_NAMES_MAX];
    uint32_t *end_tokens;
};

/* Makes the backend once the sizes are known; tests put a scripted one here. NULL in
   runtime_create means model_backend_create. */
typedef enum status (*runtime_backend_factory)(const struct gguf *gguf,
                                               const struct model_config *config,
                                               const struct backend_options *options,
                                               struct backend **out, struct error *error);

/* Can the model be served by the names that were given, or by its file's? Any client must be able
   to read them and to send them back. */
enum status runtime_check_names(const struct settings *settings, struct error *error);

/* Fill in what the settings left to the machine: memory_bytes, threads, max_connections. Logs who
   decided (base/machine.h), and, where the engine runs here, warns of a given budget that is larger
   than what there is. */
void runtime_resolve(struct settings *settings, bool runs_here);

/* On failure everything is undone and *error says what and what would fit. Options are resolved.
   Needs a big stack (the chat template): the main or the preprocessing thread. */
enum status runtime_create(const struct settings *settings, runtime_backend_factory factory,
                           struct runtime *out, struct error *error);
void runtime_destroy(struct runtime *runtime);

#endif
