/*
 * Endpoints between text and tokens, which need no engine: POST /tokenize and /detokenize in vLLM's
 * and llama.cpp's shapes. The preprocessing thread: texts may be long, and templates need its stack.
 */
#ifndef QUIRE_API_TEXT_ENDPOINTS_H
#define QUIRE_API_TEXT_ENDPOINTS_H

#include "api/api.h"
#include "base/buffer.h"

enum text_endpoint {
    TEXT_NONE,
    TEXT_TOKENIZE,   /* prompt (vLLM), content (llama.cpp) or messages to ids */
    TEXT_DETOKENIZE, /* tokens to text, control tokens as their texts */
};

/* Append the whole JSON body to *out. What it takes meanwhile is entered in BUDGET_REQUESTS; `body` is
   not kept. Errors as answer_open's, with nothing appended. */
enum status text_endpoint_answer(const struct api_context *context, enum text_endpoint endpoint,
                                 const char *body, size_t length,
                                 const struct answer_caller *caller, struct buffer *out,
                                 struct error *error);

#endif
