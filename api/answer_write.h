/*
 * How an answer is spelled: OpenAI's objects for both endpoints, whole and streamed. Private to
 * api/; only writes, decides nothing. All text in it is valid UTF-8 JSON.
 */
#ifndef QUIRE_API_ANSWER_WRITE_H
#define QUIRE_API_ANSWER_WRITE_H

#include "api/request.h"
#include "engine/completion.h"
#include "engine/text/detokenizer.h"

/* What all chunks of one answer have in common. */
struct answer_head {
    enum answer_kind kind;
    bool stream;
    bool show_usage; /* chunks carry "usage": null until the last */
    char id[40];
    int64_t created;
    const char *model; /* borrowed */
    char fingerprint[24];
};

struct answer_usage {
    uint64_t prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens;
    bool show_reasoning; /* the model marks it */
};

void answer_head_init(struct answer_head *head, const struct api_context *context,
                      const struct request *request, uint64_t request_id);

/* {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…,"choices":[ */
void answer_write_head(const struct answer_head *head, struct buffer *out);
/* Behind a chunk's one choice: ], usage if shown (NULL: null), }. */
void answer_write_chunk_tail(const struct answer_head *head, const struct answer_usage *usage,
                             struct buffer *out);
/* Why a choice ended. */
struct answer_end {
    const char *finish; /* NULL: it goes on */
    bool timed_out;
    const char *stop;    /* the stop string that ended it, or NULL */
    uint32_t stop_token; /* the stop token that did, or UINT32_MAX */
};
/* ,"finish_reason":…,"stop_reason":…}: the end of a choice; stop_reason, vLLM's, only where a stop
   string or stop token, or the end of the request's time, ended it. */
void answer_write_finish(const struct answer_end *end, struct buffer *out);
/* "reasoning_content":…,"reasoning":… with the same text. */
void answer_write_reasoning(const char *text, size_t length, struct buffer *out);
/* The id of a call: the same for the same answer, streamed or whole. */
void answer_write_call_id(const struct answer_head *head, const struct request *request,
                          uint32_t choice, uint32_t call, struct buffer *out);
/* "usage":{…} */
void answer_write_usage(const struct answer_usage *usage, struct buffer *out);

/* Log-probabilities. Their arrays are written in passes over a range of tokens, so that neither an
   event nor a whole answer needs them all in memory. */
enum logprob_pass {
    PASS_CHAT,   /* {"token","logprob","bytes","top_logprobs"} … */
    PASS_TOKENS, /* completions: the four parallel arrays */
    PASS_TOKEN_LOGPROBS,
    PASS_TOP_LOGPROBS,
    PASS_TEXT_OFFSETS,
    PASS_END
};

/* The first pass of an endpoint; the next one is pass + 1 until logprob_pass_last. */
enum logprob_pass logprob_pass_first(enum answer_kind kind);
bool logprob_pass_last(enum logprob_pass pass);
/* What stands before a pass's items and behind the last pass's. */
const char *logprob_pass_open(enum logprob_pass pass);
const char *logprob_pass_close(enum logprob_pass pass);

/* Where a token's text begins, in characters of the answer. */
struct text_offsets {
    struct detokenizer detokenizer;
    uint64_t characters;
};
void text_offsets_init(struct text_offsets *offsets);

struct logprob_range {
    const struct tokenizer *tokenizer;
    const struct completion *completion;
    uint32_t choice;
    uint32_t first, end;          /* tokens first … end-1 */
    bool comma;                   /* items stand before these already */
    struct text_offsets *offsets; /* at `first`; moved by PASS_TEXT_OFFSETS */
};
void answer_write_logprobs(const struct logprob_range *range, enum logprob_pass pass,
                           struct buffer *out);

#endif
