/*
 * An answer: one client request from body bytes to answer bytes. server/ moves the bytes and knows
 * no JSON; api/ knows no sockets.
 *
 *   answer_open   (preprocessing thread)  parse, validate, template, tokenize, submit to the engine
 *   answer_compile (grammar thread)  the same end, for a grammar that was not seen before
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

#include "api/api.h"
#include "base/buffer.h"

struct answer;

/* On error nothing is left in the engine and *out is NULL. `body` is not kept. `request_id` is the
   server's id for logs ("cmpl-…" and "chatcmpl-…" ids are made from it). `caller` is not kept. */
enum status answer_open(const struct api_context *context, enum answer_kind kind, const char *body,
                        size_t body_length, uint64_t request_id, const struct answer_caller *caller,
                        void (*wake)(void *arg), void *wake_arg, struct answer **out,
                        struct error *error);

/* Does the answer wait for its grammar to be compiled? Then it is not submitted yet, and
   answer_compile is next. */
bool answer_awaits_grammar(const struct answer *answer);
/* Compiles the grammar and submits. The thread of context->grammars, with its stack. On error
   nothing is left in the engine; the answer is still to be closed. */
enum status answer_compile(struct answer *answer, struct error *error);

bool answer_is_stream(const struct answer *answer);

/* Append what is ready to `out`: SSE events of a stream ("data: …\n\n"), or the whole JSON body
   once done. Never waits. After ANSWER_END or ANSWER_FAILED it must not be called again. Appends
   little more than LIMIT_OUTPUT_BYTES per call. */
enum answer_state answer_pump(struct answer *answer, struct buffer *out);

/* Of a stream that has begun and is cut off: what is ready, what was held back for a stop string, and
   an error event. In place of the pump; after it the pump must not be called again. */
void answer_end_stream(struct answer *answer, const struct error *why, struct buffer *out);

/* Why it failed, valid after ANSWER_FAILED. */
const struct error *answer_error(const struct answer *answer);

void answer_cancel(struct answer *answer);
void answer_close(struct answer *answer);

/* For the access log, after the end. */
struct answer_summary {
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    const char *finish; /* "stop", "length", "timeout", "cancelled", "error" of the first choice */
    uint64_t submit_ns, admit_ns, first_token_ns; /* of the first prompt; 0: not come to that */
    uint64_t seed; /* the seed used (drawn when the request gave none) */
};
void answer_summarize(const struct answer *answer, struct answer_summary *out);

#endif
