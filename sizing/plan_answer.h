/*
 * What `quire plan` says: do so many users fit, what would, what each of them holds, and how long
 * they would wait. Made from plan_make alone, then written as text, JSON or a drawing
 * (plan_write.c).
 */
#ifndef QUIRE_SIZING_PLAN_ANSWER_H
#define QUIRE_SIZING_PLAN_ANSWER_H

#include "base/buffer.h"
#include "sizing/plan.h"
#include "sizing/speed.h"

#define PLAN_USERS_MOST 4096u /* as --max-seqs */
#define PLAN_ROWS_MAX 6u
#define PLAN_FORMATS_MAX 8u

struct plan_question {
    struct plan_model model; /* .kv is what is asked about, or NULL: as served */
    const struct settings *settings;
    uint32_t users;      /* 0: how many fit? */
    bool max_seqs_given; /* else it may be raised to the users */
};

/* One way to keep keys and values. */
struct plan_row {
    char name[48];
    bool own;          /* the way asked about */
    struct plan_kv kv; /* token bytes 0: this cannot be */
    uint64_t users;    /* that fit, at most PLAN_USERS_MOST */
    uint64_t page_bytes;
    uint64_t token_bytes; /* in all layers */
    uint64_t user_bytes;  /* of one sequence of the asked length, in whole pages */
};

/* Weights in one format, for the times. */
struct plan_format {
    enum tensor_format format;
    uint64_t layer_values; /* of the layers' matrices: every token passes them */
    uint64_t head_values;  /* of the output head: every token that is drawn */
};

struct plan_times {
    bool measured;
    double read_bytes_s; /* bytes per second */
    double token_s;      /* one token of one user, half of whose sequence is there */
    double step_s;       /* one token for each of the users */
    double short_prompt_s, prompt_s;
    uint32_t short_prompt; /* tokens of the short one; the other has the whole length */
};

struct plan_answer {
    bool yes;
    bool asked;      /* --users was given; else `users` is what fits, 1 if nothing does */
    uint32_t tokens; /* of each user */
    uint32_t users;
    uint32_t users_fit;                 /* at most PLAN_USERS_MOST */
    uint64_t tokens_fit;                /* each, for `users` users */
    uint64_t least_bytes;               /* budget that holds them, whole MiB; 0: none does */
    uint32_t max_seqs;                  /* to start the server with */
    uint64_t need_bytes;                /* KV of the users */
    uint64_t other_bytes;               /* all but weights and KV of the users */
    uint64_t left_bytes, missing_bytes; /* one of them is 0 */
    uint32_t swap_pages;                /* of preempted sequences, in --swap-dir; 0: none */
    uint64_t swap_users;                /* whole sequences of the asked length in those */
    uint64_t swap_memory_bytes;         /* of the scratch account, for them */
    struct plan plan;                   /* with max_seqs */
    struct plan_row own;
    struct plan_row types[PLAN_ROWS_MAX], heads[PLAN_ROWS_MAX], windows[PLAN_ROWS_MAX];
    unsigned type_count, head_count, window_count;
    struct plan_times times;
    char sentence[512];
};

/* Everything but the times. Holds a pointer into itself: do not copy. */
void plan_answer_make(const struct plan_question *question, struct plan_answer *out);

/* The matrices of a model file by format, most values first; at most PLAN_FORMATS_MAX. Returns how
   many. */
unsigned plan_formats(const struct gguf *gguf, const struct model_config *config,
                      struct plan_format *out);

/* Measures for about two seconds. Not measured when there are no weights or no memory. */
void plan_times_make(const struct speed_meter *meter, const struct model_config *config,
                     const struct plan_format *formats, unsigned count, struct plan_answer *answer);

/* How the answer is to be written: what the model is called and how a server of it is started. */
struct plan_words {
    const char *name;
    const char *start; /* "quire serve -m … --memory …", or NULL */
    const struct plan_model *model;
    const struct settings *settings;
};

void plan_write_text(const struct plan_words *words, const struct plan_answer *answer,
                     struct buffer *out);
void plan_write_json(const struct plan_words *words, const struct plan_answer *answer,
                     struct buffer *out);
void plan_write_svg(const struct plan_words *words, const struct plan_answer *answer,
                    struct buffer *out);

#endif
