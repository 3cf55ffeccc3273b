/*
 * The sub-layers, and the table of them at the end: layer.h has the drawing.
 *
 * Who writes what between two barriers is what makes sharing safe. Norms and quantizing write the
 * tile's workspace only; q, k, v write keys, values, q and the pages; attention writes `attended`;
 * output and down write x (or work.projected, with post norms); gate and up write work.gate. No
 * function here knows of threads, and none allocates or fails.
 *
 * A new kind of sub-layer is a function of this shape and a row of LAYER; what it needs of weights
 * is a rule in weights.c, what it needs of scratch a line in forward_pass.c's lay_out.
 */
#include "engine/model/layer.h"

#include "base/minmax.h"
#include "engine/kernels/math.h"

#include <string.h>

#define PREFETCHED_TOKENS 128u /* of a task ahead of time */

static uint32_t query_width(const struct forward *forward)
{
    return forward->details.config.heads * forward->details.config.head_dim;
}

static struct activations activations_of(const struct tile *tile, const float *x, uint32_t k)
{
    return (struct activations){tile->tokens, k, x, tile->work.quantized};
}

static bool reads_quantized(const struct repacked_matrix *matrix)
{
    return format_is_quantized(matrix->format);
}

/* ---- Embeddings and angles ---- */

static void rotation_row(struct forward *forward, uint32_t row, uint32_t base)
{
    uint32_t half = forward->details.config.rotary / 2;
    double position = forward->positions[row];
    float *cosine = forward->cosine[base] + (size_t)row * half;
    float *sine = forward->sine[base] + (size_t)row * half;
    for (uint32_t i = 0; i < half; i++) {
        double angle = position * forward->frequencies[base][i];
        cosine[i] = (float)math_cos(angle) * forward->magnitude[base];
        sine[i] = (float)math_sin(angle) * forward->magnitude[base];
    }
}

/* x of an encoder: what token, type and position are, added up and normed. The row of `hidden` is
   free until the last layer. */
static void embed_encoder(const struct forward *forward, uint32_t row, float *x)
{
    const struct weights *weights = &forward->weights;
    uint32_t width = forward->details.config.embedding;
    float *part = forward->hidden + (size_t)row * width;
    if (weights->types.n > 0) {
        forward->kernels->dequantize_row(&weights->types, forward->types[row], part);
        forward->kernels->add(x, part, width);
    }
    if (weights->positions.n > 0) {
        forward->kernels->dequantize_row(&weights->positions, forward->positions[row], part);
        forward->kernels->add(x, part, width);
    }
    forward->kernels->layer_norm(x, weights->embedding_norm, weights->embedding_norm_bias,
                                 forward->details.config.norm_eps, width, x);
}

void layer_embed(struct forward *forward, uint32_t first, uint32_t count)
{
    const struct model_details *details = &forward->details;
    uint32_t width = details->config.embedding;
    for (uint32_t row = first; row < first + count; row++) {
        float *x = forward->x + (size_t)row * width;
        forward->kernels->dequantize_row(&forward->weights.embedding, forward->batch->tokens[row],
                                         x);
        if (details->architecture->scaled_embedding)
            for (uint32_t i = 0; i < width; i++)
                x[i] *= details->embedding_scale;
        if (forward->weights.embedding_norm)
            embed_encoder(forward, row, x);
        for (uint32_t base = 0; base < forward->bases; base++)
            rotation_row(forward, row, base);
    }
}

/* ---- Inputs of matrices: work.normed = norm(x), and what is quantized ---- */

static void norm_tokens(const struct forward *forward, const struct tile *tile, const float *weight,
                        bool quantized, uint32_t first, uint32_t count)
{
    uint32_t width = forward->details.config.embedding;
    if (!weight) /* normed already */
        memcpy(tile->work.normed + (size_t)first * width, tile->x + (size_t)first * width,
               (size_t)count * width * sizeof(float));
    for (uint32_t i = first; weight && i < first + count; i++)
        forward->kernels->rms_norm(tile->x + (size_t)i * width, weight,
                                   forward->details.config.norm_eps, width,
                                   tile->work.normed + (size_t)i * width);
    struct activations activations = activations_of(tile, tile->work.normed, width);
    if (quantized)
        forward->kernels->quantize(&activations, first, count);
}

static void attention_norm(const struct forward *forward, uint32_t layer, const struct tile *tile,
                           uint32_t first, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    bool quantized = reads_quantized(&weights->q) || reads_quantized(&weights->k) ||
                     reads_quantized(&weights->v);
    norm_tokens(forward, tile, weights->attention_norm, quantized, first, count);
}

static void ffn_norm(const struct forward *forward, uint32_t layer, const struct tile *tile,
                     uint32_t first, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    bool quantized = reads_quantized(&weights->gate) || reads_quantized(&weights->up);
    norm_tokens(forward, tile, weights->ffn_norm, quantized, first, count);
}

static void quantize_input(const struct forward *forward, const struct repacked_matrix *matrix,
                           const struct tile *tile, const float *x, uint32_t first, uint32_t count)
{
    struct activations activations = activations_of(tile, x, matrix->k);
    if (reads_quantized(matrix))
        forward->kernels->quantize(&activations, first, count);
}

static void quantize_attended(const struct forward *forward, uint32_t layer,
                              const struct tile *tile, uint32_t first, uint32_t count)
{
    quantize_input(forward, &forward->weights.layers[layer].output, tile, tile->attended, first,
                   count);
}

static void quantize_gate(const struct forward *forward, uint32_t layer, const struct tile *tile,
                          uint32_t first, uint32_t count)
{
    quantize_input(forward, &forward->weights.layers[layer].down, tile, tile->work.gate, first,
                   count);
}

/* ---- Queries, keys, values ---- */

/* Bias, norm and rotation of one head of one row. */
static void finish_head(const struct forward *forward, uint32_t layer, uint32_t row, float *head,
                        const float *bias, const float *norm)
{
    const struct model_config *config = &forward->details.config;
    uint32_t base = forward->bases == 2 && model_layer_is_local(&forward->details, layer) ? 1 : 0;
    size_t at = (size_t)row * (config->rotary / 2);
    if (bias)
        forward->kernels->add(head, bias, config->head_dim);
    if (norm)
        forward->kernels->rms_norm(head, norm, config->norm_eps, config->head_dim, head);
    forward->kernels->rope(head, forward->cosine[base] + at, forward->sine[base] + at,
                           config->rotary, forward->details.architecture->neox);
}

static void key_value_unit(const struct forward *forward, uint32_t layer, const struct tile *tile,
                           uint32_t unit)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    const struct model_config *config = &forward->details.config;
    uint32_t dim = config->head_dim, width = config->kv_heads * dim;
    uint32_t first = unit * forward->unit_heads;
    uint32_t end = min_u32(first + forward->unit_heads, config->kv_heads);
    uint32_t block = first * dim / KERNEL_ROW_BLOCK,
             blocks = kernel_row_blocks((end - first) * dim);
    struct kv_place place = forward->places[layer];
    const uint64_t *slots = forward->slots + (size_t)place.group * forward->slot_stride;
    struct activations input = activations_of(tile, tile->work.normed, config->embedding);
    forward->kernels->matmul(&weights->k, &input, 0, tile->tokens, block, blocks, false,
                             tile->work.keys, width);
    forward->kernels->matmul(&weights->v, &input, 0, tile->tokens, block, blocks, false,
                             tile->work.values, width);
    for (uint32_t row = 0; row < tile->tokens; row++) {
        for (uint32_t head = first; head < end; head++) {
            float *key = tile->work.keys + (size_t)row * width + head * dim;
            float *value = tile->work.values + (size_t)row * width + head * dim;
            finish_head(forward, layer, tile->first + row, key,
                        weights->k_bias ? weights->k_bias + head * dim : NULL, weights->k_norm);
            if (weights->v_bias)
                forward->kernels->add(value, weights->v_bias + head * dim, dim);
            forward->kernels->kv_store(&forward->kv, place.layer, head, slots[tile->first + row],
                                       key, value);
        }
    }
}

static void query_unit(const struct forward *forward, uint32_t layer, const struct tile *tile,
                       uint32_t unit)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    const struct model_config *config = &forward->details.config;
    uint32_t dim = config->head_dim, width = config->heads * dim;
    uint32_t first = unit * forward->unit_heads;
    uint32_t end =
        first + forward->unit_heads < config->heads ? first + forward->unit_heads : config->heads;
    struct activations input = activations_of(tile, tile->work.normed, config->embedding);
    float *q = forward->q + (size_t)tile->first * width;
    forward->kernels->matmul(&weights->q, &input, 0, tile->tokens, first * dim / KERNEL_ROW_BLOCK,
                             kernel_row_blocks((end - first) * dim), false, q, width);
    for (uint32_t row = 0; row < tile->tokens; row++)
        for (uint32_t head = first; head < end; head++)
            finish_head(forward, layer, tile->first + row, q + (size_t)row * width + head * dim,
                        weights->q_bias ? weights->q_bias + head * dim : NULL, weights->q_norm);
}

/* Units 0 … kv_units - 1: keys and values of some heads, rotated and stored in their pages; then
   query_units units of queries, rotated, into forward->q. */
static void qkv(const struct forward *forward, uint32_t layer, const struct tile *tile,
                uint32_t first, uint32_t count)
{
    for (uint32_t unit = first; unit < first + count; unit++)
        if (unit < forward->kv_units)
            key_value_unit(forward, layer, tile, unit);
        else
            query_unit(forward, layer, tile, unit - forward->kv_units);
}

/* ---- Projections back to the residual stream ---- */

/* Added to x, or, when there is a post norm, into work.projected. */
static void project(const struct forward *forward, const struct tile *tile,
                    const struct repacked_matrix *matrix, const float *input, uint32_t first,
                    uint32_t count)
{
    struct activations activations = activations_of(tile, input, matrix->k);
    bool post = forward->details.architecture->features & FEATURE_POST_NORMS;
    forward->kernels->matmul(matrix, &activations, 0, tile->tokens, first, count, !post,
                             post ? tile->work.projected : tile->x, matrix->n);
}

static void output(const struct forward *forward, uint32_t layer, const struct tile *tile,
                   uint32_t first, uint32_t count)
{
    project(forward, tile, &forward->weights.layers[layer].output, tile->attended, first, count);
}

static void down(const struct forward *forward, uint32_t layer, const struct tile *tile,
                 uint32_t first, uint32_t count)
{
    project(forward, tile, &forward->weights.layers[layer].down, tile->work.gate, first, count);
}

/* ---- The feed-forward network ---- */

/* Row blocks of gate and up, and the gate's activation times up, into work.gate. */
static void gate_up(const struct forward *forward, uint32_t layer, const struct tile *tile,
                    uint32_t first, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    const struct model_config *config = &forward->details.config;
    uint32_t n = config->feed_forward;
    uint32_t from = first * KERNEL_ROW_BLOCK;
    uint32_t end = min_u32((first + count) * KERNEL_ROW_BLOCK, n);
    struct activations input = activations_of(tile, tile->work.normed, config->embedding);
    forward->kernels->matmul(&weights->gate, &input, 0, tile->tokens, first, count, false,
                             tile->work.gate, n);
    forward->kernels->matmul(&weights->up, &input, 0, tile->tokens, first, count, false,
                             tile->work.up, n);
    for (uint32_t row = 0; row < tile->tokens; row++) {
        float *gate = tile->work.gate + (size_t)row * n + from;
        const float *up = tile->work.up + (size_t)row * n + from;
        if (forward->details.architecture->gelu)
            forward->kernels->gelu_multiply(gate, up, end - from);
        else
            forward->kernels->silu_multiply(gate, up, end - from);
    }
}

/* The same without a gate: GELU of up, into work.gate. */
static void up(const struct forward *forward, uint32_t layer, const struct tile *tile,
               uint32_t first, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    uint32_t n = forward->details.config.feed_forward;
    uint32_t from = first * KERNEL_ROW_BLOCK;
    uint32_t end = min_u32((first + count) * KERNEL_ROW_BLOCK, n);
    struct activations input =
        activations_of(tile, tile->work.normed, forward->details.config.embedding);
    forward->kernels->matmul(&weights->up, &input, 0, tile->tokens, first, count, false,
                             tile->work.gate, n);
    for (uint32_t row = 0; row < tile->tokens; row++) {
        float *out = tile->work.gate + (size_t)row * n + from;
        if (weights->up_bias)
            forward->kernels->add(out, weights->up_bias + from, end - from);
        forward->kernels->gelu_erf(out, end - from);
    }
}

/* x = layer norm(x + bias); the half's result has been added to x. */
static void post_layer_norm(const struct forward *forward, const struct tile *tile,
                            const float *bias, const float *weight, const float *norm_bias,
                            uint32_t first, uint32_t count)
{
    uint32_t width = forward->details.config.embedding;
    for (uint32_t i = first; i < first + count; i++) {
        float *x = tile->x + (size_t)i * width;
        if (bias)
            forward->kernels->add(x, bias, width);
        forward->kernels->layer_norm(x, weight, norm_bias, forward->details.config.norm_eps, width,
                                     x);
    }
}

static void attention_output_norm(const struct forward *forward, uint32_t layer,
                                  const struct tile *tile, uint32_t first, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    post_layer_norm(forward, tile, weights->output_bias, weights->post_attention_norm,
                    weights->post_attention_bias, first, count);
}

static void layer_output_norm(const struct forward *forward, uint32_t layer,
                              const struct tile *tile, uint32_t first, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    post_layer_norm(forward, tile, weights->down_bias, weights->post_ffn_norm,
                    weights->post_ffn_bias, first, count);
}

/* x += post norm(work.projected) */
static void post_norm(const struct forward *forward, const struct tile *tile, const float *weight,
                      uint32_t first, uint32_t count)
{
    uint32_t width = forward->details.config.embedding;
    for (uint32_t i = first; i < first + count; i++) {
        float *y = tile->work.projected + (size_t)i * width;
        forward->kernels->rms_norm(y, weight, forward->details.config.norm_eps, width, y);
        forward->kernels->add(tile->x + (size_t)i * width, y, width);
    }
}

static void post_attention_norm(const struct forward *forward, uint32_t layer,
                                const struct tile *tile, uint32_t first, uint32_t count)
{
    post_norm(forward, tile, forward->weights.layers[layer].post_attention_norm, first, count);
}

static void post_ffn_norm(const struct forward *forward, uint32_t layer, const struct tile *tile,
                          uint32_t first, uint32_t count)
{
    post_norm(forward, tile, forward->weights.layers[layer].post_ffn_norm, first, count);
}

/* ---- The layer ---- */

#define MATRIX(field) .matrix = offsetof(struct layer_weights, field)
/* clang-format off */
const struct sublayer LAYER[LAYER_LENGTH] = {
    {attention_norm,        SHARE_INPUTS,    STAGE_ROWS},
    {qkv,                   SHARE_HEADS,     STAGE_QKV, MATRIX(k)},
    {NULL,                  SHARE_ATTENTION, STAGE_ATTENTION},
    {quantize_attended,     SHARE_INPUTS,    STAGE_ROWS},
    {output,                SHARE_OUTPUTS,   STAGE_OUTPUT, MATRIX(output)},
    {post_attention_norm,   SHARE_TOKENS,    STAGE_ROWS, .with = FEATURE_POST_NORMS},
    {attention_output_norm, SHARE_TOKENS,    STAGE_ROWS, .with = FEATURE_POST_LAYER_NORM},
    {ffn_norm,              SHARE_INPUTS,    STAGE_ROWS},
    {gate_up,               SHARE_OUTPUTS,   STAGE_FFN_UP, MATRIX(gate), .without = FEATURE_NO_GATE},
    {up,                    SHARE_OUTPUTS,   STAGE_FFN_UP, MATRIX(up), .with = FEATURE_NO_GATE},
    {quantize_gate,         SHARE_INPUTS,    STAGE_ROWS},
    {down,                  SHARE_OUTPUTS,   STAGE_FFN_DOWN, MATRIX(down)},
    {post_ffn_norm,         SHARE_TOKENS,    STAGE_ROWS, .with = FEATURE_POST_NORMS},
    {layer_output_norm,     SHARE_TOKENS,    STAGE_ROWS, .with = FEATURE_POST_LAYER_NORM},
};
/* clang-format on */

/* ---- Attention's tasks, and the end ---- */

struct attention_task layer_attention_task(const struct forward *forward, uint32_t layer,
                                           const struct query_tile *queries, uint32_t kv_head)
{
    const struct model_config *config = &forward->details.config;
    const struct batch_sequence *sequence = &forward->batch->sequences[queries->sequence];
    struct kv_place place = forward->places[layer];
    uint32_t group = config->heads / config->kv_heads;
    size_t width = query_width(forward), head = (size_t)kv_head * group * config->head_dim;
    return (struct attention_task){
        .kv = &forward->kv,
        .layer = place.layer,
        .kv_head = kv_head,
        .pages = sequence->pages + (size_t)place.group * sequence->group_stride,
        .first_position = forward->positions[queries->row],
        .key_count = config->bidirectional ? sequence->first_position + sequence->row_count : 0,
        .query_count = queries->count,
        .gqa_group = group,
        .q = forward->q + queries->row * width + head,
        .q_stride = width,
        .scale = forward->details.attention_scale,
        .softcap = forward->details.score_cap,
        .window = model_layer_is_local(&forward->details, layer) ? config->window : 0,
        .out = forward->attended + queries->out_row * width + head,
        .out_stride = width,
    };
}

void layer_prefetch_kv(const struct attention_task *task)
{
    uint32_t page_size = task->kv->page_size, first = task->first_position;
    uint32_t page =
        task->window > 0 && first >= task->window ? (first + 1 - task->window) / page_size : 0;
    uint32_t end = attention_last_key(task) / page_size + 1;
    uint32_t most = (PREFETCHED_TOKENS + page_size - 1) / page_size;
    for (end = min_u32(end, page + most); page < end; page++)
        kv_prefetch(task->kv, task->pages[page], task->layer, task->kv_head);
}

void layer_final_norm(const struct forward *forward, uint32_t first, uint32_t count)
{
    uint32_t width = forward->details.config.embedding;
    for (uint32_t row = first; forward->weights.output_norm && row < first + count; row++) {
        float *x = forward->hidden + (size_t)row * width;
        forward->kernels->rms_norm(x, forward->weights.output_norm,
                                   forward->details.config.norm_eps, width, x);
    }
}
