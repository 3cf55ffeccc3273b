/*
 * An answer: one client request from body bytes to answer bytes. server/ moves the bytes and knows
 * no JSON; api/ knows no sockets.
 *
 *   answer_open   (preprocessing thread)  parse, validate, template, tokenize, submit to the engine
 *   answer_pump   (any one thread at a time) detokenize what the engine produced, frame it
 *   answer_cancel (any thread)   the client left
 *   answer_close  frees; cancels what is not done
 *
 * `wake` is called (by the engine thread, under a lock) when answer_pump may have news: it must be
 * short and must not call back into the answer. After answer_close returns it is not called any
 * more.
 */
#ifndef QUIRE_API_ANSWER_H
#define QUIRE_API_ANSWER_H

#include "base/budget.h"
#include "base/buffer.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template; /* api/chat_template.h */

/* What answers need to know of the server; fixed after start, borrowed by every answer. */
struct api_context {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* NULL: chat is 400 with a hint */
    const struct chat_template *tool_template; /* where there are tools; NULL: the same */
    struct budget *budget;
    const char *const *model_names; /* served names, the first is the one shown in answers */
    unsigned model_name_count;
    uint32_t max_model_len;
    /* NULL, or called by answer_open between units of a long request's work, on its thread and with
       no lock held: other answers may be opened within it. */
    void (*yield)(void *arg);
    void *yield_arg;
    uint64_t timeout_ns;    /* of requests that name none; 0: they may take as long as they take */
    int64_t created_unix_s; /* for /v1/models */
};

enum answer_kind { ANSWER_COMPLETION, ANSWER_CHAT };

struct answer;

/* Who asks. */
struct answer_caller {
    uint64_t
        cache_salt;  /* prefixes are shared only between equal ones: a hash of the API key, or 0 */
    uint32_t tenant; /* on whose account: the API key's number, 0 without keys */
    uint64_t arrival_ns; /* when (clock_now_ns): its timeout counts from here */
};

/* On error nothing is left in the engine and *out is NULL. `body` is not kept. `request_id` is the
   server's id for logs ("cmpl-…" and "chatcmpl-…" ids are made from it). `caller` is not kept. */
enum status answer_open(const struct api_context *context, enum answer_kind kind, const char *body,
                        size_t body_length, uint64_t request_id, const struct answer_caller *caller,
                        void (*wake)(void *arg), void *wake_arg, struct answer **out,
                        struct error *error);

enum answer_state {
    ANSWER_WAIT,   /* nothing now; wake will be called */
    ANSWER_DATA,   /* bytes were appended; there may be more */
    ANSWER_END,    /* the last bytes were appended (stream: "data: [DONE]") */
    ANSWER_FAILED, /* see answer_error. Stream: an error event was appended if bytes were sent
                      before */
};

bool answer_is_stream(const struct answer *answer);

/* Append what is ready to `out`: SSE events of a stream ("data: …\n\n"), or the whole JSON body
   once done. Never waits. After ANSWER_END or ANSWER_FAILED it must not be called again. Appends
   little more than LIMIT_OUTPUT_BYTES per call. */
enum answer_state answer_pump(struct answer *answer, struct buffer *out);

/* Why it failed, valid after ANSWER_FAILED. */
const struct error *answer_error(const struct answer *answer);

void answer_cancel(struct answer *answer);
void answer_close(struct answer *answer);

/* For the access log, after the end. */
struct answer_summary {
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    const char *finish; /* "stop", "length", "timeout", "cancelled", "error" of the first choice */
    uint64_t seed;      /* the seed used (drawn when the request gave none) */
};
void answer_summarize(const struct answer *answer, struct answer_summary *out);

/* Bodies that need no engine; JSON appended to `out`. */
void api_write_models(const struct api_context *context, struct buffer *out);
/* STATUS_NOT_FOUND for unknown ids. */
enum status api_write_model(const struct api_context *context, const char *id, struct buffer *out,
                            struct error *error);
/* {"error":{"message","type","param","code"}}; always valid UTF-8 JSON. */
void api_write_error(const struct error *error, struct buffer *out);
unsigned api_http_status(enum status status);

#endif
