/*
 * A server without model and sockets for api/'s tests: the real engine over a scripted backend, and
 * a tokenizer from a GGUF file made here (256 bytes as ids 0 … 255, then the tokens below).
 */
#ifndef QUIRE_TESTS_API_FIXTURE_H
#define QUIRE_TESTS_API_FIXTURE_H

#include "api/answer.h"
#include "api/chat_template.h"
#include "tests/engine/scripted_backend.h"

#include <pthread.h>

enum {
    TOKEN_BOS = 256, /* <|endoftext|>, control */
    TOKEN_IM_START,  /* <|im_start|>, control */
    TOKEN_IM_END,    /* <|im_end|>, control, end of generation */
    TOKEN_HI,        /* "hi", the only merge */
    TOKEN_SPACE_P,   /* " P" */
    TOKEN_SPACE_Q,
    TOKEN_SPACE_R,
    TOKEN_PARIS, /* " Paris" */
    TOKEN_DEF,
    TOKEN_HI_UPPER, /* "HI" */
    TOKEN_F09F,     /* bytes F0 9F */
    TOKEN_8080,     /* bytes 80 80 */
    VOCABULARY,
};

#define FIXTURE_CONTEXT 128

extern const char fixture_template[];     /* ChatML */
extern const char fixture_template_bos[]; /* the same behind {{ bos_token }} */

struct fixture_options {
    bool add_bos, add_eos;
    bool user_defined; /* <|im_start|> and <|im_end|> are user-defined tokens, not control ones */
    const char *chat_template; /* NULL: none */
    const char *tool_template; /* NULL: the same */
    uint64_t template_bytes;   /* for renderings; 0: as much as there ever is */
    uint32_t step_delay_us;
    uint64_t request_bytes; /* cap of BUDGET_REQUESTS; 0: 64 MiB */
    uint32_t context;       /* 0: FIXTURE_CONTEXT */
};

struct fixture {
    struct budget budget;
    struct workers *workers;
    struct backend *backend;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template, *tool_template;
    struct gguf *gguf;
    struct api_context context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken;
};

void fixture_init(struct fixture *fixture, const struct fixture_options *options);
/* CHECKs that all budgeted bytes came back. */
void fixture_deinit(struct fixture *fixture);

/* Answer the tokens of `prompt` (as /v1/completions makes them) with `output`. */
void fixture_script(struct fixture *fixture, const char *prompt, const uint32_t *output,
                    uint32_t count);
/* The same with the bytes of `text` as tokens. */
void fixture_script_text(struct fixture *fixture, const char *prompt, const char *text);
/* For chats: scripts that begin with the template's first token. */
void fixture_script_ids(struct fixture *fixture, const uint32_t *prompt, uint32_t prompt_count,
                        const uint32_t *output, uint32_t count);

struct reply {
    enum status open_status;
    enum answer_state state; /* END or FAILED, if opened */
    struct error error;
    struct buffer body; /* all bytes */
    uint32_t pumps_with_data;
    struct answer_summary summary;
};

/* Open and pump to the end. Waits at most 10 s for a wake. reply_deinit frees. */
void fixture_request(struct fixture *fixture, enum answer_kind kind, const char *body,
                     struct reply *out);
void reply_deinit(struct reply *reply);

/* Of a wake given to answer_open: for tests that pump themselves. */
void fixture_wake(void *fixture);
/* Wait for a wake since the last call; false after 10 s. */
bool fixture_wait(struct fixture *fixture);

#endif
