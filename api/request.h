/*
 * A request: what a client asked for, checked and owned. Private to api/.
 *
 * request_read_* never keep the body. Whatever the reader refuses, it names the field (`param`).
 * Known fields that this server does not do are refused by name; unknown ones have no effect.
 */
#ifndef QUIRE_API_REQUEST_H
#define QUIRE_API_REQUEST_H

#include "api/api.h"
#include "api/constraint.h"
#include "api/json.h"
#include "api/output_parser.h"
#include "base/limits.h"
#include "engine/sample/sampler.h"
#include "engine/sample/token_rules.h"

struct request_prompt {
    uint32_t *tokens; /* [count], count >= 1 */
    size_t count;
    char *echo; /* text to print in front of the answer; NULL: none */
    size_t echo_length;
    uint32_t second_segment; /* of a pair: where its second text begins; 0: no pair */
};

#define ASKED_NOTHING INT64_MIN /* of the integers below, where there is a default */

struct request {
    enum answer_kind kind;
    struct sampling_params sampling;
    struct logit_bias *logit_bias; /* sampling.logit_bias, owned */
    uint64_t cache_salt;
    uint32_t tenant;
    int32_t priority;
    uint64_t deadline_ns;  /* 0: none */
    uint32_t choice_count; /* generated for each prompt: best_of, or n … */
    uint32_t shown_count;  /* … of which so many are shown: n */
    uint32_t
        max_tokens; /* as asked, UINT32_MAX: what the context leaves; 0: nothing is generated */
    bool stream, include_usage, usage_in_every_chunk, ignore_eos, use_prefix_cache;
    bool include_stop;       /* the stop string or stop token stands in the answer */
    bool skip_special;       /* texts of control tokens do not */
    bool truncate_left;      /* of a prompt that is cut to truncate_tokens: its end stays */
    int64_t truncate_tokens; /* 0: not cut; -1: to what the context holds */
    struct token_rules rules;
    void *rules_memory;
    /* as the client said it; request_shared.c makes the fields above of it */
    int64_t asked_tokens, asked_choices, asked_best_of, asked_top_k, asked_min_keep,
        asked_min_tokens, asked_priority;
    float asked_timeout_s;
    bool want_logprobs;
    uint32_t top_logprobs;
    char *stops[LIMIT_STOPS];
    size_t stop_lengths[LIMIT_STOPS]; /* none 0 */
    unsigned stop_count;
    struct constraint constraint;
    struct grammar *grammar;           /* of the constraint, compiled; a reference */
    struct output_tools tools;         /* those of a chat, owned as the two below */
    char *tools_text;                  /* where their schemas are */
    struct output_parser_spec parsing; /* of the answers' texts; both NULL: they are content */
    struct request_prompt *prompts;
    uint32_t prompt_count;
    /* of embeddings and scores */
    bool base64;           /* embeddings are spelt so */
    bool raw_scores;       /* as the head gives them; else between 0 and 1 */
    bool shows_texts;      /* of the ranked documents, kept as echo */
    uint32_t dimensions;   /* floats of an embedding that are shown */
    uint32_t top_n;        /* best documents that are shown */
    uint64_t taken_bytes;  /* of BUDGET_REQUESTS, for prompts */
    uint64_t source_bytes; /* of it too: the body and what was parsed, held by others */
};

void request_deinit(struct request *request, const struct api_context *context);

/* Tokens that prompt `index` may still generate: max_tokens cut to the context. */
uint32_t request_room(const struct request *request, const struct api_context *context,
                      uint32_t index);

/* Does anything look into the answers' texts? */
static inline bool request_parses(const struct request *request)
{
    return request->parsing.calls || request->parsing.reasoning;
}

/* request_shared.c: the fields that both endpoints have. */
enum status request_read_shared(const struct api_context *context,
                                const struct json_document *document,
                                const struct answer_caller *caller, struct request *out,
                                struct error *error);

/* request_rules.c: stop_token_ids, bad_words, allowed_token_ids and min_tokens, which was read. */
enum status request_read_rules(const struct api_context *context, const struct cJSON *root,
                               struct request *out, struct error *error);

/* request_completion.c: the fields of /v1/completions and its prompts. */
enum status request_read_completion(const struct api_context *context,
                                    const struct json_document *document, struct request *out,
                                    struct error *error);

/* request_fim.c: the prompt that asks for what stands between `text` and `suffix`. STATUS_UNSUPPORTED
   where the vocabulary has no tokens for it. */
enum status request_fill_in(const struct api_context *context, struct request *request,
                            const char *text, const char *suffix, struct request_prompt *out,
                            struct error *error);

/* request_chat.c: the fields of /v1/chat/completions, its template, its one prompt. */
enum status request_read_chat(const struct api_context *context,
                              const struct json_document *document, struct request *out,
                              struct error *error);

/* request_shared.c: the fields that every endpoint has: model, user, when it runs, and the cache. */
enum status request_read_common(const struct api_context *context, const struct cJSON *root,
                                const struct answer_caller *caller, struct request *out,
                                struct error *error);

/* request_pooling.c: /v1/embeddings, /v1/rerank and /v1/score, all fields and texts. */
enum status request_read_pooling(const struct api_context *context,
                                 const struct json_document *document,
                                 const struct answer_caller *caller, struct request *out,
                                 struct error *error);

static inline bool request_is_pooling(const struct request *request)
{
    return request->kind >= ANSWER_EMBEDDING;
}

/* max_tokens of what the client asked for; `rest` where it did not. */
uint32_t request_max_tokens(const struct request *request, uint32_t rest);

/* Shared by both: tokenize `text` into a prompt. `param` is named when it is too long or empty. */
enum status request_tokenize(const struct api_context *context, struct request *request,
                             const char *text, size_t length, unsigned flags, uint32_t sentinel,
                             const char *param, struct request_prompt *out, struct error *error);
/* All tokens of `text`, entered, however many there are. */
enum status request_encode_whole(const struct api_context *context, struct request *request,
                                 const char *text, size_t length, unsigned flags, uint32_t sentinel,
                                 struct request_prompt *out, struct error *error);
/* The tokenizer's flags of the fields parse_special and add_special_tokens. */
static inline unsigned request_text_flags(bool parse_special, bool add_special_tokens)
{
    return (parse_special ? TOKENIZER_PARSE_SPECIAL : 0u) |
           (add_special_tokens ? TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS : 0u);
}
/* 400 context_length_exceeded with the numbers, if `count` leaves no room. */
enum status request_check_length(const struct api_context *context, const struct request *request,
                                 size_t count, const char *param, struct error *error);
/* Of the constraint that was read: whether it can be done, its bytes, its grammar if it is there. */
enum status request_take_constraint(const struct api_context *context, struct request *out,
                                    struct error *error);
/* Between two units of work: others may have a turn. */
void request_yield(const struct api_context *context);

/* What is held of BUDGET_REQUESTS for it by now, completions apart. */
uint64_t request_held(const struct request *request);

/* Enter `bytes` for prompts; STATUS_BUSY without room, STATUS_TOO_LARGE if there never is. */
enum status request_take(const struct api_context *context, struct request *request, uint64_t bytes,
                         struct error *error);

#endif
