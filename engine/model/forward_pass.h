/*
 * A step of the quantized backend: a batch through all layers, shared by the threads.
 *
 * layer.h says what is computed, this who computes which part of it. A step is one SPMD job. It is
 * cut in one of two ways, which give the same bits:
 *
 *   by outputs (few tokens): the whole batch is one tile. Threads share each matrix by row blocks,
 *     with a barrier after each. With very few tokens every thread norms and quantizes all of them
 *     for itself, which is cheaper than a barrier.
 *   by tokens (more of them): a thread takes a tile of tokens through everything between two
 *     attentions, so that its activations stay in its cache; two barriers per layer.
 *
 * In the last layer keys and values of all tokens are stored, but attention and what follows is
 * computed only for the tokens whose logits are wanted, moved together in `hidden`.
 *
 * Private to engine/model/: quantized.c owns one. Nothing is allocated here; scratch is laid out by
 * one function that also sizes it. All calls come from the engine thread.
 */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PASS_H
#define QUIRE_ENGINE_MODEL_FORWARD_PASS_H

#include "base/arena.h"
#include "base/workers.h"
#include "engine/model/layer.h"

#include <stdint.h>

/* What one thread of a step keeps for itself. */
struct thread_state {
    _Alignas(64) struct workers_ahead ahead; /* the weights that it will read next */
};

struct forward_pass {
    /* fixed after start */
    struct forward forward;
    struct workers *workers;
    unsigned threads;
    uint32_t tile_tokens_min;
    struct workspace shared; /* of threads · tokens of a tile; threads' own parts lie in it */
    uint64_t quantized_part_bytes; /* of one thread */
    uint8_t *attention_scratch;    /* [threads][attention_part_bytes] */
    uint64_t attention_part_bytes;
    float *parts;                      /* [tasks][part_segments] of attention's parts */
    uint32_t part_segments;            /* most that a sequence has */
    uint64_t part_floats;              /* of one */
    struct thread_state *states;       /* [threads] */
    struct query_tile *query_tiles[2]; /* [0] of all tokens, [1] of logits rows (last layer) */
    /* the step */
    uint32_t query_tile_count[2];
    uint32_t tile_tokens; /* by tokens: tokens of a tile; 0: by outputs */
    uint32_t logits_first, logits_count;
    float *logits_out;
    /* thread 0's: when and where its time went */
    uint64_t marked_ns, waited_ns;
    uint64_t work_ns[STAGE_COUNT], wait_ns[STAGE_COUNT];
};

/* Set the pointers into scratch, or count its bytes (base/arena.h). */
void forward_pass_lay_out(struct forward_pass *pass, const struct model_details *details,
                          const struct backend_options *options, struct arena *arena);

/* What depends on the loaded weights: once, before the first step. */
void forward_pass_init(struct forward_pass *pass);

/* The batch stays valid until the last logits call that follows. */
void forward_pass_run(struct forward_pass *pass, const struct batch *batch);
/* out [count][vocabulary]: logits of rows [first, first + count) of the last forward. */
void forward_pass_logits(struct forward_pass *pass, uint32_t first, uint32_t count, float *out);

/* The final hidden state [embedding] of logits row `row` of the last forward, and the model's
   classification head of it, [labels]. */
const float *forward_pass_hidden(const struct forward_pass *pass, uint32_t row);
void forward_pass_scores(struct forward_pass *pass, uint32_t row, float *out);

uint32_t forward_pass_profile(const struct forward_pass *pass,
                              struct backend_stage out[static BACKEND_STAGES_MAX]);

#endif
