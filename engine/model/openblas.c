/*
 * The reference backend: weights as f32, OpenBLAS's sgemm, f32 keys and values, libm.
 *
 * It validates the quantised backend and is written to be read, not to be fast: rows of the whole
 * batch go through each matrix with one sgemm, attention is the textbook's. It promises closeness,
 * not equality: sgemm gives a row other bits when the batch around it changes.
 *
 * The library is opened only when this backend is chosen; without it create fails with
 * STATUS_UNSUPPORTED and says what is missing.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/limits.h"
#include "engine/model/backends.h"
#include "engine/model/layer_groups.h"
#include "engine/model/memory.h"
#include "engine/model/weights.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* cblas.h's constants and function. */
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
typedef void sgemm_fn(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);

struct openblas {
    struct backend base;
    /* fixed after start */
    void *library;
    sgemm_fn *sgemm;
    struct model_details details;
    struct kv_place places[LIMIT_LAYERS];
    struct weights weights;
    struct workers *workers;
    double frequencies[2][MODEL_HEAD_DIM_MAX / 2]; /* [1]: layers with a window, own base */
    float magnitude[2];
    /* keys and values: page, layer of its group, KV head, then keys [page_size][head_dim], values
     * the same */
    float *pool;
    uint64_t pool_bytes;
    uint64_t page_floats;
    /* scratch, rows of a batch */
    float *scratch;
    uint64_t scratch_bytes;
    float *x, *normed, *q, *k, *v, *attended, *gate, *up, *projected, *hidden;
    float *scores; /* [threads][context] */
    uint32_t context;
    /* the step */
    const struct batch *batch;
    const struct batch_sequence *sequence; /* attention in progress */
    uint32_t layer;
};

/* ---- Memory ---- */

/* Set the scratch pointers from `base` (NULL: only count); returns the floats taken. */
static uint64_t carve(struct openblas *model, const struct model_details *details,
                      const struct backend_options *options, float *base)
{
    const struct model_config *config = &details->config;
    uint64_t rows = options->max_batch_rows;
    uint64_t queries = (uint64_t)config->heads * config->head_dim;
    uint64_t keys = (uint64_t)config->kv_heads * config->head_dim;
    struct {
        float **place;
        uint64_t floats;
    } parts[] = {
        {&model->x, rows * config->embedding},
        {&model->normed, rows * config->embedding},
        {&model->projected, rows * config->embedding},
        {&model->hidden, rows * config->embedding},
        {&model->q, rows * queries},
        {&model->attended, rows * queries},
        {&model->k, rows * keys},
        {&model->v, rows * keys},
        {&model->gate, rows * config->feed_forward},
        {&model->up, rows * config->feed_forward},
        {&model->scores, (uint64_t)workers_count(options->workers) * options->context},
    };
    uint64_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].place = base ? base + used : NULL;
        used += bytes_align(parts[i].floats, 16);
    }
    return used;
}

static uint64_t page_floats(const struct model_config *config, uint32_t page_size)
{
    return 2ull * layer_groups_of(config).layers * config->kv_heads * page_size * config->head_dim;
}

void openblas_sizes(const struct model_details *details, const struct backend_options *options,
                    struct model_sizes *out)
{
    struct openblas model = {0};
    out->scratch =
        memory_map_bytes(carve(&model, details, options, NULL) * sizeof(float)) + sizeof model;
    out->groups = layer_groups_of(&details->config).groups;
    out->page = page_floats(&details->config, options->page_size) * sizeof(float);
}

/* Where a position's key lies; its value is page_size·head_dim floats behind. */
static float *key_at(const struct openblas *model, const struct batch_sequence *sequence,
                     uint32_t layer, uint32_t head, uint32_t position)
{
    const struct model_config *config = &model->details.config;
    uint32_t size = model->base.page_size;
    uint64_t plane = (uint64_t)size * config->head_dim;
    struct kv_place place = model->places[layer];
    const uint32_t *pages = sequence->pages + (size_t)place.group * sequence->group_stride;
    return model->pool + pages[position / size] * model->page_floats +
           ((uint64_t)place.layer * config->kv_heads + head) * 2 * plane +
           (uint64_t)(position % size) * config->head_dim;
}

/* ---- Small steps ---- */

static void norm(const float *x, const float *weight, float eps, uint32_t n, float *out)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    float scale = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

/* y [rows][n] = x [rows][k] · W^T, or y += */
static void multiply(const struct openblas *model, const struct repacked_matrix *matrix,
                     const float *x, uint32_t rows, bool add, float *y)
{
    model->sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, (int)rows, (int)matrix->n, (int)matrix->k,
                 1.0f, x, (int)matrix->k, matrix->data, (int)matrix->k, add ? 1.0f : 0.0f, y,
                 (int)matrix->n);
}

static void rotate(const struct openblas *model, float *head, uint32_t position, uint32_t base)
{
    uint32_t half = model->details.config.rotary / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = position * model->frequencies[base][i];
        float c = (float)cos(angle) * model->magnitude[base];
        float s = (float)sin(angle) * model->magnitude[base];
        bool neox = model->details.architecture->neox;
        float *a = neox ? head + i : head + 2 * i, *b = neox ? a + half : a + 1;
        float x = *a, y = *b;
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}

static float activate(const struct openblas *model, float x)
{
    if (!model->details.architecture->gelu)
        return x / (1.0f + expf(-x));
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * x * (1.0f + 0.044715f * x * x)));
}

/* ---- Attention ---- */

/* Bias, norm and RoPE of one row's heads. */
static void finish_heads(const struct openblas *model, float *heads, uint32_t count,
                         const float *bias, const float *weight, uint32_t position)
{
    const struct model_config *config = &model->details.config;
    bool own = model->details.local_rope_base > 0.0f &&
               model_layer_is_local(&model->details, model->layer);
    for (uint32_t h = 0; h < count; h++) {
        float *head = heads + h * config->head_dim;
        for (uint32_t i = 0; bias && i < config->head_dim; i++)
            head[i] += bias[h * config->head_dim + i];
        if (weight)
            norm(head, weight, config->norm_eps, config->head_dim, head);
        rotate(model, head, position, own ? 1 : 0);
    }
}

static void store_row(struct openblas *model, const struct batch_sequence *sequence, uint32_t i)
{
    const struct model_config *config = &model->details.config;
    const struct layer_weights *weights = &model->weights.layers[model->layer];
    uint32_t position = sequence->first_position + i, row = sequence->first_row + i;
    size_t keys = (size_t)config->kv_heads * config->head_dim;
    float *k = model->k + row * keys, *v = model->v + row * keys;
    finish_heads(model, model->q + (size_t)row * config->heads * config->head_dim, config->heads,
                 weights->q_bias, weights->q_norm, position);
    finish_heads(model, k, config->kv_heads, weights->k_bias, weights->k_norm, position);
    for (size_t j = 0; weights->v_bias && j < keys; j++)
        v[j] += weights->v_bias[j];
    for (uint32_t head = 0; head < config->kv_heads; head++) {
        float *key = key_at(model, sequence, model->layer, head, position);
        float *value = key + (size_t)model->base.page_size * config->head_dim;
        memcpy(key, k + head * config->head_dim, config->head_dim * sizeof(float));
        memcpy(value, v + head * config->head_dim, config->head_dim * sizeof(float));
    }
}

static void attend(const struct openblas *model, uint32_t i, uint32_t head, float *scores)
{
    const struct model_config *config = &model->details.config;
    const struct batch_sequence *sequence = model->sequence;
    uint32_t dim = config->head_dim, kv_head = head / (config->heads / config->kv_heads);
    uint32_t position = sequence->first_position + i, first = 0;
    bool local = model_layer_is_local(&model->details, model->layer);
    if (local && position >= model->details.config.window)
        first = position - model->details.config.window + 1;
    size_t at = ((size_t)(sequence->first_row + i) * config->heads + head) * dim;
    const float *q = model->q + at;
    float *out = model->attended + at, most = -INFINITY;
    for (uint32_t j = first; j <= position; j++) {
        const float *key = key_at(model, sequence, model->layer, kv_head, j);
        float dot = 0.0f;
        for (uint32_t d = 0; d < dim; d++)
            dot += q[d] * key[d];
        dot *= model->details.attention_scale;
        if (model->details.score_cap > 0.0f)
            dot = model->details.score_cap * tanhf(dot / model->details.score_cap);
        scores[j] = dot;
        most = dot > most ? dot : most;
    }
    float sum = 0.0f;
    memset(out, 0, dim * sizeof(float));
    for (uint32_t j = first; j <= position; j++) {
        const float *value =
            key_at(model, sequence, model->layer, kv_head, j) + (size_t)model->base.page_size * dim;
        float weight = expf(scores[j] - most);
        sum += weight;
        for (uint32_t d = 0; d < dim; d++)
            out[d] += weight * value[d];
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] /= sum;
}

static void attend_run(void *arg, unsigned thread)
{
    const struct openblas *model = arg;
    uint32_t heads = model->details.config.heads;
    float *scores = model->scores + (size_t)thread * model->context;
    uint32_t items = model->sequence->row_count * heads;
    for (uint32_t item = thread; item < items; item = workers_next(model->workers))
        attend(model, item / heads, item % heads, scores);
}

/* ---- Layers ---- */

/* x += sub-layer's result, through the post norm when there is one. */
static void project(struct openblas *model, const struct repacked_matrix *matrix,
                    const float *input, const float *post)
{
    const struct model_config *config = &model->details.config;
    uint32_t rows = model->batch->row_count, width = config->embedding;
    if (!post) {
        multiply(model, matrix, input, rows, true, model->x);
        return;
    }
    multiply(model, matrix, input, rows, false, model->projected);
    for (uint32_t row = 0; row < rows; row++) {
        float *y = model->projected + (size_t)row * width;
        norm(y, post, config->norm_eps, width, y);
        for (uint32_t i = 0; i < width; i++)
            model->x[(size_t)row * width + i] += y[i];
    }
}

static void norm_all(struct openblas *model, const float *weight)
{
    uint32_t width = model->details.config.embedding;
    for (uint32_t row = 0; row < model->batch->row_count; row++)
        norm(model->x + (size_t)row * width, weight, model->details.config.norm_eps, width,
             model->normed + (size_t)row * width);
}

static void run_layer(struct openblas *model)
{
    const struct layer_weights *weights = &model->weights.layers[model->layer];
    uint32_t rows = model->batch->row_count;
    norm_all(model, weights->attention_norm);
    multiply(model, &weights->q, model->normed, rows, false, model->q);
    multiply(model, &weights->k, model->normed, rows, false, model->k);
    multiply(model, &weights->v, model->normed, rows, false, model->v);
    for (uint32_t s = 0; s < model->batch->sequence_count; s++) {
        model->sequence = &model->batch->sequences[s];
        for (uint32_t i = 0; i < model->sequence->row_count; i++)
            store_row(model, model->sequence, i);
        workers_run(model->workers, attend_run, model);
    }
    project(model, &weights->output, model->attended, weights->post_attention_norm);
    norm_all(model, weights->ffn_norm);
    multiply(model, &weights->gate, model->normed, rows, false, model->gate);
    multiply(model, &weights->up, model->normed, rows, false, model->up);
    uint64_t values = (uint64_t)rows * model->details.config.feed_forward;
    for (uint64_t i = 0; i < values; i++)
        model->gate[i] = activate(model, model->gate[i]) * model->up[i];
    project(model, &weights->down, model->gate, weights->post_ffn_norm);
}

/* ---- The backend's operations ---- */

static void openblas_forward(struct backend *backend, const struct batch *batch)
{
    struct openblas *model = (struct openblas *)backend;
    const struct model_config *config = &model->details.config;
    uint32_t width = config->embedding;
    CHECK(batch->row_count > 0 && batch->row_count <= backend->max_batch_rows);
    model->batch = batch;
    for (uint32_t row = 0; row < batch->row_count; row++) {
        const float *from =
            (const float *)model->weights.embedding.data + (size_t)batch->tokens[row] * width;
        for (uint32_t i = 0; i < width; i++)
            model->x[(size_t)row * width + i] = from[i] * model->details.embedding_scale;
    }
    for (model->layer = 0; model->layer < config->layers; model->layer++)
        run_layer(model);
    for (uint32_t i = 0; i < batch->logits_row_count; i++)
        norm(model->x + (size_t)batch->logits_rows[i] * width, model->weights.output_norm,
             config->norm_eps, width, model->hidden + (size_t)i * width);
}

static void openblas_logits(struct backend *backend, uint32_t first, uint32_t count, float *out)
{
    struct openblas *model = (struct openblas *)backend;
    CHECK(count <= backend->logits_rows_max && first + count <= model->batch->logits_row_count);
    multiply(model, &model->weights.head,
             model->hidden + (size_t)first * model->details.config.embedding, count, false, out);
    float cap = model->details.final_cap;
    for (uint64_t i = 0; cap > 0.0f && i < (uint64_t)count * backend->vocabulary; i++)
        out[i] = cap * tanhf(out[i] / cap);
}

static void openblas_copy_page(struct backend *backend, uint32_t from_page, uint32_t to_page)
{
    struct openblas *model = (struct openblas *)backend;
    CHECK(from_page < backend->page_count && to_page < backend->page_count && from_page != to_page);
    memcpy(model->pool + to_page * model->page_floats, model->pool + from_page * model->page_floats,
           model->page_floats * sizeof(float));
}

static void *openblas_page(struct backend *backend, uint32_t page)
{
    struct openblas *model = (struct openblas *)backend;
    CHECK(page > 0 && page < backend->page_count);
    return model->pool + page * model->page_floats;
}

/* The library stays open: its threads may still be on their way out. */
static void openblas_destroy(struct backend *backend)
{
    struct openblas *model = (struct openblas *)backend;
    weights_deinit(&model->weights);
    memory_unmap(model->pool, model->pool_bytes);
    memory_unmap(model->scratch, model->scratch_bytes);
    free(model);
}

static const struct backend_ops openblas_ops = {
    .forward = openblas_forward,
    .logits = openblas_logits,
    .copy_page = openblas_copy_page,
    .page = openblas_page,
    .destroy = openblas_destroy,
};

/* ---- Create ---- */

static enum status open_library(struct openblas *model, struct error *error)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !model->library; i++)
        model->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!model->library)
        return error_set(error, STATUS_UNSUPPORTED, "backend",
                         "--backend openblas needs libopenblas.so.0, which is not installed");
    void (*set_threads)(int);
    *(void **)&model->sgemm = dlsym(model->library, "cblas_sgemm");
    *(void **)&set_threads = dlsym(model->library, "openblas_set_num_threads");
    if (!model->sgemm || !set_threads)
        return error_set(error, STATUS_UNSUPPORTED, "backend",
                         "libopenblas lacks cblas_sgemm or openblas_set_num_threads");
    set_threads((int)workers_count(model->workers));
    return STATUS_OK;
}

static enum status map_memory(struct openblas *model, const struct backend_options *options,
                              struct error *error)
{
    void *memory;
    model->scratch_bytes = carve(model, &model->details, options, NULL) * sizeof(float);
    TRY(memory_map(model->scratch_bytes, "scratch", &memory, error));
    model->scratch = memory;
    carve(model, &model->details, options, model->scratch);
    model->page_floats = page_floats(&model->details.config, options->page_size);
    if (!bytes_multiply(options->page_count, model->page_floats * sizeof(float),
                        &model->pool_bytes))
        return error_set(error, STATUS_IO, NULL, "the page pool does not fit the address space");
    TRY(memory_map(model->pool_bytes, "page pool", &memory, error));
    model->pool = memory;
    return STATUS_OK;
}

enum status openblas_create(const struct backend_start *start, struct backend **out,
                            struct error *error)
{
    const struct backend_options *options = start->options;
    struct openblas *model = calloc(1, sizeof *model);
    if (!model)
        return error_set(error, STATUS_IO, NULL, "no memory for the backend");
    model->details = *start->details;
    layer_groups_places(start->details, model->places);
    model->workers = options->workers;
    model->context = options->context;
    struct weights_loader loader = {start->gguf,        start->details, options->kernels,
                                    options->workers,   WEIGHTS_F32,    start->progress,
                                    start->progress_arg};
    enum status status = open_library(model, error);
    for (unsigned base = 0; base < 2 && status == STATUS_OK; base++)
        status = model_rope_frequencies(start->gguf, start->details, base == 1, options->context,
                                        model->frequencies[base], &model->magnitude[base], error);
    if (status == STATUS_OK)
        status = map_memory(model, options, error);
    if (status == STATUS_OK)
        status = weights_load(&loader, &model->weights, error);
    if (status != STATUS_OK) {
        openblas_destroy(&model->base);
        return status;
    }
    model->base = (struct backend){
        .ops = &openblas_ops,
        .name = "openblas",
        .kernels = "openblas",
        .kv_type = kv_type_name(KV_F32),
        .weights_checksum = model->weights.checksum,
        .rotation =
            checksum_bytes(model->magnitude, sizeof model->magnitude,
                           checksum_bytes(model->frequencies, sizeof model->frequencies, 0)),
        .vocabulary = start->details->config.vocabulary,
        .page_count = options->page_count,
        .page_size = options->page_size,
        .page_bytes = model->page_floats * sizeof(float),
        .groups = layer_groups_of(&start->details->config).groups,
        .max_batch_rows = options->max_batch_rows,
        .max_sequences = options->max_sequences,
        .logits_rows_max = options->logits_rows_max,
    };
    *out = &model->base;
    return STATUS_OK;
}
