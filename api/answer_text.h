/*
 * An answer from inside, and what answer.c (its life), answer_stream.c and answer_whole.c share:
 * how its tokens become text. Private to api/. One thread at a time, but for `cancelled`.
 */
#ifndef QUIRE_API_ANSWER_TEXT_H
#define QUIRE_API_ANSWER_TEXT_H

#include "api/answer_write.h"
#include "api/api.h"
#include "api/request.h"
#include "engine/text/detokenizer.h"
#include "engine/text/stop_matcher.h"

#include <stdatomic.h>

#define EVENT_TOKENS_MAX 256         /* tokens merged into one event */
#define EVENT_TEXT_BYTES (64u << 10) /* and text, before the next event begins */

/* Tokens to text: detokenizer, then stop strings. */
struct text_state {
    struct detokenizer detokenizer;
    struct stop_matcher matcher;
    uint32_t next;               /* token */
    struct output_parser parser; /* where the request parses; its sink is the reader's */
    uint32_t reasoning_tokens;
};

struct answer_choice {
    uint32_t prompt; /* index of its completion */
    uint32_t choice; /* index in it */
    struct text_state text;
    struct text_offsets offsets;
    const char *finish;   /* "stop" or "length"; NULL: going on */
    bool timed_out;       /* "length", since there was no more time */
    uint32_t token_count; /* counted in usage */
    uint32_t reasoning_tokens;
    size_t echo_sent;
    bool started; /* stream: its first event was written */
    bool ended;   /* stream: its last event was written */
};

/* A whole answer is written in these steps, choice by choice. */
enum write_step {
    STEP_HEAD,
    STEP_OPEN,
    STEP_ECHO,
    STEP_TEXT,
    STEP_LOGPROBS,
    STEP_CLOSE,
    STEP_TAIL
};

/* What one reading of a choice's text writes: all of it, or what its events are, by kind. */
enum write_part { WRITE_TEXT, WRITE_REASONING, WRITE_REASONING_2, WRITE_CONTENT, WRITE_CALLS };

struct answer {
    const struct api_context *context;
    struct request request;
    struct answer_head head;
    void (*wake)(void *arg); /* of its completions */
    void *wake_arg;
    struct completion **completions; /* [prompt_count]; NULL each when nothing is generated */
    struct answer_choice *choices;   /* [choice_count] prompt by prompt */
    uint32_t choice_count;
    uint32_t *shown; /* [shown_count] indices of choices, in the order of the answer */
    uint32_t shown_count;
    atomic_bool cancelled;
    bool sent;           /* bytes were handed out */
    struct buffer delta; /* text of the event being written */
    struct buffer piece; /* text of one token */
    struct error error;
    /* writing a whole answer */
    enum write_step step;
    uint32_t write_choice;
    enum write_part writing;
    struct buffer *writing_to;
    bool wrote_part;
    enum logprob_pass pass;
    uint32_t pass_next;
    float *scores; /* [prompt_count] of a ranking, whose order is `shown`; NULL: not there yet */
};

/* `sink`: of the parser's events, where the request parses. */
void answer_text_init(struct text_state *state, const struct request *request,
                      struct output_sink sink);
void answer_text_deinit(struct text_state *state);
/* No more tokens come: what was held back for a stop string, and by the parser. */
void answer_text_flush(struct answer *answer, struct text_state *state, struct buffer *out);
/* A sink that takes no notice. */
void answer_drop_event(void *arg, const struct output_event *event);
/* NULL: nothing is generated. */
struct completion *answer_completion(const struct answer *answer,
                                     const struct answer_choice *choice);
/* Append the text of the next token; true once a stop matched. */
bool answer_push_token(struct answer *answer, struct text_state *state, uint32_t token,
                       struct buffer *out);
/* The end of the tokens: a cut character, then what was held back. True if that completed a stop.
 */
bool answer_push_end(struct answer *answer, struct text_state *state, struct buffer *out);
/* May an answer end for this reason (or go on, FINISH_NONE)? Out of time it may if it has begun. */
bool answer_is_good(const struct answer *answer, enum finish_reason reason);
/* Set the answer's error from a reason that is not good. */
enum status answer_fault(struct answer *answer, enum finish_reason reason);
/* Why it ended, or that it goes on. */
struct answer_end answer_end_of(const struct answer *answer, const struct answer_choice *choice);
/* Take what is ready of one choice, at most an event's worth: text goes to `out`, finish is set
   when it ended. */
enum status answer_advance(struct answer *answer, struct answer_choice *choice, struct buffer *out);
/* Has the choice anything that was not taken yet? */
bool answer_is_ready(const struct answer *answer, const struct answer_choice *choice);
struct answer_usage answer_usage(const struct answer *answer);
/* Length of the next piece of text[0..length): at most `most` bytes, ending at a character. */
size_t answer_piece_length(const char *text, size_t length, size_t most);
/* Tokens first … end-1 of a choice, for answer_write_logprobs. */
struct logprob_range answer_logprob_range(struct answer *answer, struct answer_choice *choice,
                                          uint32_t first, uint32_t end);

/* answer_pump for a stream and for a whole answer: answer_stream.c, answer_whole.c. */
enum answer_state answer_pump_stream(struct answer *answer, struct buffer *out);
/* answer_end_stream. */
void answer_cut_stream(struct answer *answer, const struct error *why, struct buffer *out);
enum answer_state answer_pump_whole(struct answer *answer, struct buffer *out);
/* The same of embeddings and scores: answer_pooling.c. */
enum answer_state answer_pump_pooling(struct answer *answer, struct buffer *out);

#endif
