/*
 * The sub-layers. See forward.h for the drawing.
 *
 * Who writes what within one interval between barriers is the caller's care: norms and quantizing
 * write the tile's workspace only, qkv writes keys, values, q and the pages, attention writes
 * `attended`, output and down write x (or work.projected), gate_up writes work.gate.
 */
#include "engine/model/forward.h"

#include "engine/kernels/math.h"

#include <string.h>

#define FETCHED_TOKENS 128u /* of a task ahead of time */

static uint32_t query_width(const struct forward *forward)
{
    return forward->details.config.heads * forward->details.config.head_dim;
}

static struct activations activations_of(const struct tile *tile, const float *x, uint32_t k)
{
    return (struct activations){tile->rows, k, x, tile->work.quantized};
}

/* ---- Rows ---- */

static void rotation_row(struct forward *forward, uint32_t row, uint32_t base)
{
    uint32_t half = forward->details.config.rotary / 2;
    double position = forward->positions[row];
    float *cosine = forward->cosine[base] + (size_t)row * half;
    float *sine = forward->sine[base] + (size_t)row * half;
    for (uint32_t i = 0; i < half; ++i) {
        double angle = position * forward->frequencies[base][i];
        cosine[i] = (float)math_cos(angle) * forward->magnitude[base];
        sine[i] = (float)math_sin(angle) * forward->magnitude[base];
    }
}

void forward_embed(struct forward *forward, uint32_t first, uint32_t count)
{
    const struct model_details *details = &forward->details;
    uint32_t width = details->config.embedding;
    for (uint32_t row = first; row < first + count; ++row) {
        float *x = forward->x + (size_t)row * width;
        forward->kernels->dequantize_row(&forward->weights.embedding, forward->batch->tokens[row],
                                         x);
        if (details->architecture->scaled_embedding)
            for (uint32_t i = 0; i < width; ++i)
                x[i] *= details->embedding_scale;
        for (uint32_t base = 0; base < forward->bases; ++base)
            rotation_row(forward, row, base);
    }
}

static void norm_rows(const struct forward *forward, const struct tile *tile, const float *weight,
                      bool quantized, uint32_t from, uint32_t count)
{
    uint32_t width = forward->details.config.embedding;
    for (uint32_t row = from; row < from + count; ++row)
        forward->kernels->rms_norm(tile->x + (size_t)row * width, weight,
                                   forward->details.config.norm_eps, width,
                                   tile->work.normed + (size_t)row * width);
    if (quantized) {
        struct activations activations = activations_of(tile, tile->work.normed, width);
        forward->kernels->quantize(&activations, from, count);
    }
}

void forward_norm_attention(const struct forward *forward, uint32_t layer, const struct tile *tile,
                            uint32_t from, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    bool quantized = forward_reads_quantized(&weights->q) || forward_reads_quantized(&weights->k) ||
                     forward_reads_quantized(&weights->v);
    norm_rows(forward, tile, weights->attention_norm, quantized, from, count);
}

void forward_norm_feed(const struct forward *forward, uint32_t layer, const struct tile *tile,
                       uint32_t from, uint32_t count)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    bool quantized =
        forward_reads_quantized(&weights->gate) || forward_reads_quantized(&weights->up);
    norm_rows(forward, tile, weights->feed_norm, quantized, from, count);
}

void forward_quantize_attended(const struct forward *forward, uint32_t layer,
                               const struct tile *tile, uint32_t from, uint32_t count)
{
    if (!forward_reads_quantized(&forward->weights.layers[layer].output))
        return;
    struct activations activations = activations_of(tile, tile->attended, query_width(forward));
    forward->kernels->quantize(&activations, from, count);
}

void forward_quantize_gate(const struct forward *forward, uint32_t layer, const struct tile *tile,
                           uint32_t from, uint32_t count)
{
    if (!forward_reads_quantized(&forward->weights.layers[layer].down))
        return;
    struct activations activations =
        activations_of(tile, tile->work.gate, forward->details.config.feed_forward);
    forward->kernels->quantize(&activations, from, count);
}

/* ---- Attention ---- */

/* Bias, norm and rotation of one head of one row. */
static void finish_head(const struct forward *forward, uint32_t layer, uint32_t row, float *head,
                        const float *bias, const float *norm)
{
    const struct model_config *config = &forward->details.config;
    uint32_t base = forward->bases == 2 && model_layer_is_local(&forward->details, layer) ? 1 : 0;
    size_t at = (size_t)row * (config->rotary / 2);
    if (bias != NULL)
        forward->kernels->add(head, bias, config->head_dim);
    if (norm != NULL)
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
    uint32_t end = first + forward->unit_heads < config->kv_heads ? first + forward->unit_heads
                                                                  : config->kv_heads;
    uint32_t group = first * dim / KERNEL_ROW_BLOCK, groups = forward_groups((end - first) * dim);
    struct kv_place place = forward->places[layer];
    const uint64_t *slots = forward->slots + (size_t)place.group * forward->slot_stride;
    struct activations input = activations_of(tile, tile->work.normed, config->embedding);
    forward->kernels->matmul(&weights->k, &input, 0, tile->rows, group, groups, false,
                             tile->work.keys, width);
    forward->kernels->matmul(&weights->v, &input, 0, tile->rows, group, groups, false,
                             tile->work.values, width);
    for (uint32_t row = 0; row < tile->rows; ++row) {
        for (uint32_t head = first; head < end; ++head) {
            float *key = tile->work.keys + (size_t)row * width + head * dim;
            float *value = tile->work.values + (size_t)row * width + head * dim;
            finish_head(forward, layer, tile->first + row, key,
                        weights->k_bias != NULL ? weights->k_bias + head * dim : NULL,
                        weights->k_norm);
            if (weights->v_bias != NULL)
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
    forward->kernels->matmul(&weights->q, &input, 0, tile->rows, first * dim / KERNEL_ROW_BLOCK,
                             forward_groups((end - first) * dim), false, q, width);
    for (uint32_t row = 0; row < tile->rows; ++row)
        for (uint32_t head = first; head < end; ++head)
            finish_head(forward, layer, tile->first + row, q + (size_t)row * width + head * dim,
                        weights->q_bias != NULL ? weights->q_bias + head * dim : NULL,
                        weights->q_norm);
}

void forward_qkv_unit(const struct forward *forward, uint32_t layer, const struct tile *tile,
                      uint32_t unit)
{
    if (unit < forward->kv_units)
        key_value_unit(forward, layer, tile, unit);
    else
        query_unit(forward, layer, tile, unit - forward->kv_units);
}

struct attention_task forward_attention(const struct forward *forward, uint32_t layer,
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

void forward_fetch(const struct attention_task *task)
{
    uint32_t page_size = task->kv->page_size, first = task->first_position;
    uint32_t page =
        task->window > 0 && first >= task->window ? (first + 1 - task->window) / page_size : 0;
    uint32_t end = (first + task->query_count - 1) / page_size + 1;
    uint32_t most = (FETCHED_TOKENS + page_size - 1) / page_size;
    for (end = end < page + most ? end : page + most; page < end; ++page)
        kv_fetch(task->kv, task->pages[page], task->layer, task->kv_head);
}

/* ---- Projections back to the residual stream ---- */

static void project(const struct forward *forward, const struct tile *tile,
                    const struct repacked_matrix *matrix, const float *input, uint32_t first,
                    uint32_t groups)
{
    uint32_t width = forward->details.config.embedding;
    struct activations activations = activations_of(tile, input, matrix->k);
    bool post = forward_has_post_norms(forward);
    forward->kernels->matmul(matrix, &activations, 0, tile->rows, first, groups, !post,
                             post ? tile->work.projected : tile->x, width);
}

void forward_output(const struct forward *forward, uint32_t layer, const struct tile *tile,
                    uint32_t first, uint32_t groups)
{
    project(forward, tile, &forward->weights.layers[layer].output, tile->attended, first, groups);
}

void forward_down(const struct forward *forward, uint32_t layer, const struct tile *tile,
                  uint32_t first, uint32_t groups)
{
    project(forward, tile, &forward->weights.layers[layer].down, tile->work.gate, first, groups);
}

void forward_gate_up(const struct forward *forward, uint32_t layer, const struct tile *tile,
                     uint32_t first, uint32_t groups)
{
    const struct layer_weights *weights = &forward->weights.layers[layer];
    const struct model_config *config = &forward->details.config;
    uint32_t n = config->feed_forward;
    uint32_t from = first * KERNEL_ROW_BLOCK, end = (first + groups) * KERNEL_ROW_BLOCK;
    if (end > n)
        end = n;
    struct activations input = activations_of(tile, tile->work.normed, config->embedding);
    forward->kernels->matmul(&weights->gate, &input, 0, tile->rows, first, groups, false,
                             tile->work.gate, n);
    forward->kernels->matmul(&weights->up, &input, 0, tile->rows, first, groups, false,
                             tile->work.up, n);
    for (uint32_t row = 0; row < tile->rows; ++row) {
        float *gate = tile->work.gate + (size_t)row * n + from;
        const float *up = tile->work.up + (size_t)row * n + from;
        if (forward->details.architecture->gelu)
            forward->kernels->gelu_multiply(gate, up, end - from);
        else
            forward->kernels->silu_multiply(gate, up, end - from);
    }
}

static void post_norm(const struct forward *forward, const struct tile *tile, const float *weight,
                      uint32_t from, uint32_t count)
{
    uint32_t width = forward->details.config.embedding;
    for (uint32_t row = from; row < from + count; ++row) {
        float *y = tile->work.projected + (size_t)row * width;
        forward->kernels->rms_norm(y, weight, forward->details.config.norm_eps, width, y);
        forward->kernels->add(tile->x + (size_t)row * width, y, width);
    }
}

void forward_post_attention(const struct forward *forward, uint32_t layer, const struct tile *tile,
                            uint32_t from, uint32_t count)
{
    post_norm(forward, tile, forward->weights.layers[layer].post_attention_norm, from, count);
}

void forward_post_feed(const struct forward *forward, uint32_t layer, const struct tile *tile,
                       uint32_t from, uint32_t count)
{
    post_norm(forward, tile, forward->weights.layers[layer].post_feed_norm, from, count);
}

void forward_final_norm(const struct forward *forward, uint32_t first, uint32_t count)
{
    uint32_t width = forward->details.config.embedding;
    for (uint32_t row = first; row < first + count; ++row) {
        float *x = forward->hidden + (size_t)row * width;
        forward->kernels->rms_norm(x, forward->weights.output_norm,
                                   forward->details.config.norm_eps, width, x);
    }
}
