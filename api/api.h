/*
 * What api/ and its callers share: the server as answers see it, who asks, and what comes of it.
 * Plain data; every header of api/ may include it.
 */
#ifndef QUIRE_API_API_H
#define QUIRE_API_API_H

#include "base/budget.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template; /* api/chat_template.h */
struct grammar_cache; /* engine/constrain/grammar_cache.h */

/* What answers need to know of the server; fixed after start, borrowed by every answer. */
struct api_context {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* NULL: chat is 400 with a hint */
    const struct chat_template *tool_template; /* where there are tools; NULL: the same */
    struct grammar_cache *grammars;            /* NULL: constrained output is refused by name */
    struct budget *budget;
    const char *const *model_names; /* served names, the first is the one shown in answers */
    unsigned model_name_count;
    bool any_model_name; /* requests may call the model what they like */
    uint32_t max_model_len;
    enum pooling pooling;    /* what embeddings are made by; NONE: there are none */
    uint32_t pooled_count;   /* floats of an embedding, or scores of POOLING_RANK */
    bool embeds_only;        /* an encoder: it generates no text */
    const char *pooling_why; /* NONE: what to do about it */
    uint32_t max_choices;    /* of a prompt; 0: LIMIT_CHOICES */
    /* NULL, or called by answer_open between units of a long request's work, on its thread and with
       no lock held: other answers may be opened within it. */
    void (*yield)(void *arg);
    void *yield_arg;
    uint64_t timeout_ns;    /* of requests that name none; 0: they may take as long as they take */
    int64_t created_unix_s; /* for /v1/models */
    uint64_t fingerprint;   /* of what makes the answers: system_fingerprint shows 48 bits of it */
};

enum answer_kind {
    ANSWER_COMPLETION,
    ANSWER_CHAT,
    ANSWER_EMBEDDING, /* from here on nothing is generated: hidden states are pooled */
    ANSWER_RERANK,
    ANSWER_SCORE
};

/* Who asks. */
struct answer_caller {
    uint64_t
        cache_salt;  /* prefixes are shared only between equal ones: a hash of the API key, or 0 */
    uint32_t tenant; /* on whose account: the API key's number, 0 without keys */
    uint64_t arrival_ns; /* when (clock_now_ns): its timeout counts from here */
};

enum answer_state {
    ANSWER_WAIT,   /* nothing now; wake will be called */
    ANSWER_DATA,   /* bytes were appended; there may be more */
    ANSWER_END,    /* the last bytes were appended (stream: "data: [DONE]") */
    ANSWER_FAILED, /* see answer_error. Stream: an error event was appended if bytes were sent
                      before */
};

#endif
