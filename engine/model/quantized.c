/*
 * The quantised backend: lifecycle, and how a step's work is cut over the threads.
 *
 * A step is one SPMD job. It is cut in one of two ways, which give the same bits:
 *
 *   by outputs (few rows): the whole batch is one tile; threads share each matrix by row groups and
 *     meet at a barrier after each. With very few rows every thread norms and quantizes all of them
 *     for itself, which is cheaper than a barrier.
 *   by rows (more rows): a thread takes a tile of rows through everything between two attentions,
 *     so its activations stay in its cache; two barriers per layer.
 *
 * In the last layer keys and values of all rows are stored, but attention and what follows is
 * computed only for the rows whose logits are wanted, moved together in `hidden`.
 *
 * Nothing is allocated after create. Scratch is carved by one function that also sizes it.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "engine/kernels/math.h"
#include "engine/model/backends.h"
#include "engine/model/forward.h"
#include "engine/model/memory.h"

#include <stdlib.h>
#include <string.h>

#define TILE_ROWS_MAX 64u /* activations of a tile stay within a core's second-level cache */
#define TILE_ROWS_AIM 56u /* unpacking weights for a tile costs 3 % more at 32 rows */
/* Fewest rows of a tile. Where a layer stays in the cache that cores share, one thread brings it
   there for all: measured on Zen 4, 4 + 4 rows of a 2 MB layer are 1.1 times faster than by
   outputs, 12 + 12 rows 1.3 times; of a 40 MB layer 8 + 8 are slower, 16 + 16 faster. */
#define TILE_ROWS_MIN 4u
#define TILE_ROWS_MIN_LARGE 12u
#define LAYER_BYTES_SHARED (8ull << 20)
#define ALONE_ROWS_MAX 8u /* up to here a thread quantizes for itself instead of sharing */
/* Attention tasks of a step are split into segments when they are so few and one has so many. */
#define SPLIT_TASKS_MAX 8u
#define SPLIT_SEGMENTS_MIN 3u
#define AHEAD_BYTES_MAX (128u * 1024u) /* fetched while waiting, into a core's own cache */

/* What one thread of a step keeps for itself. */
struct thread_state {
    _Alignas(64) struct workers_ahead ahead; /* the weights that it will read next */
};

/* Parts of a step whose time is measured. */
enum stage {
    STAGE_EMBED,
    STAGE_ROWS,
    STAGE_QKV,
    STAGE_ATTENTION,
    STAGE_OUTPUT,
    STAGE_FEED_UP,
    STAGE_FEED_DOWN,
    STAGE_HEAD,
    STAGE_COUNT
};
static const char *const stage_names[STAGE_COUNT] = {"embedding, angles",
                                                     "norms, quantizing",
                                                     "q k v, rope, store",
                                                     "attention",
                                                     "output",
                                                     "gate, up",
                                                     "down",
                                                     "output head"};

struct quantized {
    struct backend base;
    /* fixed after start */
    struct forward forward;
    struct workers *workers;
    unsigned threads;
    uint32_t tile_rows_min;
    uint64_t pool_bytes;
    void *scratch;
    uint64_t scratch_bytes;
    struct workspace shared; /* [threads · TILE_ROWS_MAX rows]; threads' own parts lie in it */
    uint64_t quantized_part_bytes; /* of one thread */
    uint8_t *attention_scratch;    /* [threads][attention_part_bytes] */
    uint64_t attention_part_bytes;
    float *parts;                      /* [SPLIT_TASKS_MAX][part_segments] of attention's parts */
    uint32_t part_segments;            /* most that a sequence has */
    uint64_t part_floats;              /* of one */
    struct thread_state *states;       /* [threads] */
    struct query_tile *query_tiles[2]; /* [0] of all rows, [1] of logits rows (last layer) */
    /* the step */
    uint32_t query_tile_count[2];
    uint32_t tile_rows; /* by rows: rows of a tile; 0: by outputs */
    uint32_t logits_first, logits_count;
    float *logits_out;
    /* thread 0's: when and where its time went */
    uint64_t marked_ns, waited_ns;
    uint64_t work_ns[STAGE_COUNT], wait_ns[STAGE_COUNT];
};

/* ---- Memory ---- */

struct carver {
    uint8_t *base; /* NULL: only count */
    uint64_t used;
};

static void *carve(struct carver *carver, uint64_t count, uint64_t size)
{
    uint64_t at = carver->used;
    carver->used += bytes_align(count * size, 64);
    return carver->base != NULL ? carver->base + at : NULL;
}

static void carve_scratch(struct quantized *model, const struct model_details *details,
                          const struct backend_options *options, struct carver *carver)
{
    const struct model_config *config = &details->config;
    const struct kernels *kernels = options->kernels;
    struct forward *forward = &model->forward;
    uint64_t threads = workers_count(options->workers), rows = options->max_batch_rows;
    uint64_t queries = (uint64_t)config->heads * config->head_dim;
    uint64_t keys = (uint64_t)config->kv_heads * config->head_dim;
    uint64_t f = sizeof(float);
    forward->x = carve(carver, rows * config->embedding, f);
    forward->q = carve(carver, rows * queries, f);
    forward->attended = carve(carver, rows * queries, f);
    forward->hidden = carve(carver, rows * config->embedding, f);
    bool two_bases = details->local_rope_base > 0.0f;
    for (uint32_t base = 0; base < (two_bases ? 2u : 1u); ++base) {
        forward->cosine[base] = carve(carver, rows * (config->rotary / 2), f);
        forward->sine[base] = carve(carver, rows * (config->rotary / 2), f);
    }
    uint32_t groups = kv_groups_of(config).groups.count;
    forward->slots = carve(carver, groups * rows, sizeof forward->slots[0]);
    forward->positions = carve(carver, rows, sizeof forward->positions[0]);
    model->part_segments = attention_segments(&(struct attention_task){
        .first_position = options->context > 0 ? options->context - 1 : 0});
    model->part_floats = (uint64_t)config->heads / config->kv_heads * (config->head_dim + 2);
    model->parts = carve(carver, SPLIT_TASKS_MAX * model->part_segments, model->part_floats * f);
    model->states = carve(carver, threads, sizeof model->states[0]);
    model->query_tiles[0] = carve(carver, rows, sizeof model->query_tiles[0][0]);
    model->query_tiles[1] = carve(carver, rows, sizeof model->query_tiles[1][0]);

    uint64_t wide = threads * TILE_ROWS_MAX;
    uint64_t row_bytes = max_u64(kernels->quantized_row_bytes(config->embedding),
                                 max_u64(kernels->quantized_row_bytes((uint32_t)queries),
                                         kernels->quantized_row_bytes(config->feed_forward)));
    model->quantized_part_bytes = bytes_align(TILE_ROWS_MAX * row_bytes, 64);
    model->shared.normed = carve(carver, wide * config->embedding, f);
    model->shared.quantized = carve(carver, threads, model->quantized_part_bytes);
    model->shared.keys = carve(carver, wide * keys, f);
    model->shared.values = carve(carver, wide * keys, f);
    model->shared.gate = carve(carver, wide * config->feed_forward, f);
    model->shared.up = carve(carver, wide * config->feed_forward, f);
    if ((details->architecture->features & FEATURE_POST_NORMS) != 0)
        model->shared.projected = carve(carver, wide * config->embedding, f);
    model->attention_part_bytes = bytes_align(
        kernels->attention_scratch_bytes(config->head_dim, config->heads / config->kv_heads), 64);
    model->attention_scratch = carve(carver, threads, model->attention_part_bytes);
}

void quantized_sizes(const struct model_details *details, const struct backend_options *options,
                     struct model_sizes *out)
{
    struct quantized model = {0};
    struct carver carver = {NULL, 0};
    carve_scratch(&model, details, options, &carver);
    out->scratch = memory_map_bytes(carver.used) + sizeof model;
    struct model_groups groups = kv_groups_of(&details->config);
    out->groups = groups.groups;
    out->page = kv_page_bytes(options->kv_type, groups.layers, details->config.kv_heads,
                              details->config.head_dim, options->page_size);
}

/* The workspace of one thread: its rows of the shared one. */
static struct workspace part_of(const struct quantized *model, unsigned thread)
{
    const struct model_config *config = &model->forward.details.config;
    const struct workspace *shared = &model->shared;
    size_t row = (size_t)thread * TILE_ROWS_MAX;
    size_t keys = (size_t)config->kv_heads * config->head_dim;
    return (struct workspace){
        .normed = shared->normed + row * config->embedding,
        .quantized = (uint8_t *)shared->quantized + thread * model->quantized_part_bytes,
        .keys = shared->keys + row * keys,
        .values = shared->values + row * keys,
        .gate = shared->gate + row * config->feed_forward,
        .up = shared->up + row * config->feed_forward,
        .projected = shared->projected != NULL ? shared->projected + row * config->embedding : NULL,
    };
}

/* ---- Planning a step: on the engine thread, before the job ---- */

static void plan_rows(struct forward *forward, const struct batch *batch)
{
    uint32_t page_size = forward->kv.page_size;
    for (uint32_t s = 0; s < batch->sequence_count; ++s) {
        const struct batch_sequence *sequence = &batch->sequences[s];
        CHECK((uint64_t)sequence->page_count * page_size >=
              (uint64_t)sequence->first_position + sequence->row_count);
        CHECK(forward->groups == 1 || sequence->group_stride >= sequence->page_count);
        for (uint32_t i = 0; i < sequence->row_count; ++i)
            forward->positions[sequence->first_row + i] = sequence->first_position + i;
        for (uint32_t g = 0; g < forward->groups; ++g) {
            const uint32_t *pages = sequence->pages + (size_t)g * sequence->group_stride;
            uint64_t *slots =
                forward->slots + (size_t)g * forward->slot_stride + sequence->first_row;
            for (uint32_t i = 0; i < sequence->row_count; ++i) {
                uint32_t position = sequence->first_position + i;
                slots[i] = (uint64_t)pages[position / page_size] * page_size + position % page_size;
            }
        }
    }
}

/* Queries of every row, the latest sequences' last ones first: prompts' tails cost most, and the
   dearest first leaves threads least uneven at the end. */
static uint32_t plan_queries(const struct batch *batch, struct query_tile *tiles)
{
    uint32_t count = 0;
    for (uint32_t s = batch->sequence_count; s-- > 0;) {
        const struct batch_sequence *sequence = &batch->sequences[s];
        uint32_t cuts = (sequence->row_count + KERNEL_QUERY_TILE - 1) / KERNEL_QUERY_TILE;
        for (uint32_t cut = cuts; cut-- > 0;) {
            uint32_t from = cut * KERNEL_QUERY_TILE;
            uint32_t left = sequence->row_count - from;
            uint32_t row = sequence->first_row + from;
            tiles[count++] = (struct query_tile){
                s, row, left < KERNEL_QUERY_TILE ? left : KERNEL_QUERY_TILE, row};
        }
    }
    return count;
}

/* Queries of the logits rows only: stretches of neighbours within a sequence. */
static uint32_t plan_last_queries(const struct batch *batch, struct query_tile *tiles)
{
    uint32_t count = 0, s = 0;
    for (uint32_t i = 0; i < batch->logits_row_count; ++i) {
        uint32_t row = batch->logits_rows[i];
        while (row >= batch->sequences[s].first_row + batch->sequences[s].row_count)
            ++s;
        CHECK(s < batch->sequence_count && row >= batch->sequences[s].first_row);
        struct query_tile *last = count > 0 ? &tiles[count - 1] : NULL;
        if (last != NULL && last->sequence == s && last->count < KERNEL_QUERY_TILE &&
            last->row + last->count == row)
            ++last->count;
        else
            tiles[count++] = (struct query_tile){s, row, 1, i};
    }
    return count;
}

/* By rows in as many equal tiles as divide evenly among the threads, unless these would be too few
   rows for unpacking weights once per thread, and for reading them so. */
static uint32_t plan_tile_rows(const struct quantized *model, uint32_t rows)
{
    uint32_t threads = model->threads;
    if (rows < threads * model->tile_rows_min)
        return 0;
    uint32_t rounds = (rows + threads * TILE_ROWS_AIM - 1) / (threads * TILE_ROWS_AIM);
    return (rows + threads * rounds - 1) / (threads * rounds);
}

static void plan(struct quantized *model, const struct batch *batch)
{
    CHECK(batch->row_count > 0 && batch->row_count <= model->base.max_batch_rows);
    CHECK(batch->logits_row_count <= batch->row_count);
    model->forward.batch = batch;
    plan_rows(&model->forward, batch);
    model->query_tile_count[0] = plan_queries(batch, model->query_tiles[0]);
    model->query_tile_count[1] = plan_last_queries(batch, model->query_tiles[1]);
    model->tile_rows = plan_tile_rows(model, batch->row_count);
    CHECK(model->tile_rows <= TILE_ROWS_MAX);
}

/* ---- Parts of the job ---- */

/* What passed since the last mark was this stage. */
static void mark(struct quantized *model, unsigned thread, enum stage stage)
{
    if (thread != 0)
        return;
    uint64_t now = clock_now_ns();
    model->work_ns[stage] += now - model->marked_ns - model->waited_ns;
    model->wait_ns[stage] += model->waited_ns;
    model->marked_ns = now;
    model->waited_ns = 0;
}

static void meet(struct quantized *model, unsigned thread)
{
    uint64_t start_ns = thread == 0 ? clock_now_ns() : 0;
    workers_barrier(model->workers, &model->states[thread].ahead);
    if (thread == 0)
        model->waited_ns += clock_now_ns() - start_ns;
}

struct group_range {
    uint32_t first, count;
};

/* The row groups of item `item` of a matrix with n outputs; false: there is no such item. Items
   shrink: half of what is left goes to all threads in equal pieces, and so on down to one group.
   Large pieces keep memory streaming, small ones let threads end together (guided self-scheduling,
   Polychronopoulos and Kuck 1987). A thread's second item, if it gets that one, lies behind its
   first, and so on: the outputs are so many lanes; what does not divide by them comes last. */
static bool item_groups(const struct quantized *model, uint32_t item, uint32_t n,
                        struct group_range *out)
{
    const uint32_t threads = model->threads, lane = item % threads;
    uint32_t left = forward_groups(n), first = 0, in_lane = left / threads;
    uint32_t round = item / threads;
    for (; left >= threads; round--) {
        uint32_t size = left / (2 * threads) > 0 ? left / (2 * threads) : 1;
        if (round == 0) {
            *out = (struct group_range){lane * in_lane + first, size};
            return true;
        }
        first += size;
        left -= size * threads;
    }
    *out = (struct group_range){threads * in_lane + lane, 1};
    return round == 0 && lane < left;
}

/* The thread's next matrix: what it waits for from now on, it spends on fetching these groups. */
static void look_at_groups(struct quantized *model, unsigned thread,
                           const struct repacked_matrix *matrix, struct group_range range)
{
    uint64_t group_bytes =
        model->forward.kernels->repacked_bytes(matrix->format, KERNEL_ROW_BLOCK, matrix->k);
    uint64_t bytes = range.count * group_bytes;
    const uint8_t *at = (const uint8_t *)matrix->data + range.first * group_bytes;
    model->states[thread].ahead =
        (struct workers_ahead){at, at + (bytes < AHEAD_BYTES_MAX ? bytes : AHEAD_BYTES_MAX)};
}

/* The same for the first of a matrix's items that the thread takes. */
static void look_at(struct quantized *model, unsigned thread, const struct repacked_matrix *matrix)
{
    struct group_range range;
    if (item_groups(model, thread, matrix->n, &range))
        look_at_groups(model, thread, matrix, range);
}

static bool is_last(const struct quantized *model, uint32_t layer)
{
    return layer + 1 == model->forward.details.config.layers;
}

static struct attention_task attention_task(const struct quantized *model, uint32_t layer,
                                            uint32_t item)
{
    unsigned last = is_last(model, layer) ? 1 : 0;
    uint32_t kv_heads = model->forward.details.config.kv_heads;
    return forward_attention(&model->forward, layer, &model->query_tiles[last][item / kv_heads],
                             item % kv_heads);
}

static void attend_task(struct quantized *model, unsigned thread, uint32_t layer, uint32_t item,
                        uint32_t tasks)
{
    struct attention_task task = attention_task(model, layer, item), next;
    task.scratch = model->attention_scratch + thread * model->attention_part_bytes;
    if (item + model->threads < tasks) { /* a guess: others may be faster or slower */
        next = attention_task(model, layer, item + model->threads);
        task.next = &next;
    }
    model->forward.kernels->attention(&task);
}

/* In the last layer the residual stream of the logits rows moves together: items behind the tasks.
 */
static uint32_t rows_moved(const struct quantized *model, uint32_t layer)
{
    return is_last(model, layer) ? model->forward.batch->logits_row_count : 0;
}

static void move_row(const struct quantized *model, uint32_t index)
{
    const struct forward *forward = &model->forward;
    uint32_t width = forward->details.config.embedding;
    memcpy(forward->hidden + (size_t)index * width,
           forward->x + (size_t)forward->batch->logits_rows[index] * width, width * sizeof(float));
}

/* Most segments of a task, if the layer's tasks are so few and so long that threads would wait for
   each other; else 0. */
static uint32_t split_segments(const struct quantized *model, uint32_t layer, uint32_t tasks)
{
    uint32_t most = 0, kv_heads = model->forward.details.config.kv_heads;
    if (model->threads == 1 || tasks == 0 || tasks > SPLIT_TASKS_MAX)
        return 0;
    for (uint32_t item = 0; item < tasks; item += kv_heads) {
        struct attention_task task = attention_task(model, layer, item);
        uint32_t segments = attention_segments(&task);
        if (task.query_count > 1)
            return 0;
        most = segments > most ? segments : most;
    }
    return most >= SPLIT_SEGMENTS_MIN ? most : 0;
}

/* Two intervals: segments of all tasks, then their sums. */
static void attend_in_segments(struct quantized *model, unsigned thread, uint32_t layer,
                               uint32_t tasks, uint32_t segments)
{
    void *scratch = model->attention_scratch + thread * model->attention_part_bytes;
    const uint64_t task_floats = model->part_segments * model->part_floats;
    for (uint32_t item = thread; item < tasks * segments; item = workers_next(model->workers)) {
        uint32_t index = item % segments;
        struct attention_task task = attention_task(model, layer, item / segments);
        task.scratch = scratch;
        if (index < attention_segments(&task))
            model->forward.kernels->attention_segment(&task, index,
                                                      model->parts + item / segments * task_floats +
                                                          index * model->part_floats);
    }
    meet(model, thread);
    uint32_t items = tasks + rows_moved(model, layer);
    for (uint32_t item = thread; item < items; item = workers_next(model->workers)) {
        if (item >= tasks) {
            move_row(model, item - tasks);
            continue;
        }
        struct attention_task task = attention_task(model, layer, item);
        task.scratch = scratch;
        model->forward.kernels->attention_merge(&task, model->parts + item * task_floats);
    }
    meet(model, thread);
}

/* Attention of a layer, given out by query tile and KV head, or also by segments. */
static void attend(struct quantized *model, unsigned thread, uint32_t layer)
{
    uint32_t tasks =
        model->query_tile_count[is_last(model, layer)] * model->forward.details.config.kv_heads;
    uint32_t segments = split_segments(model, layer, tasks);
    if (segments > 0) {
        attend_in_segments(model, thread, layer, tasks, segments);
        return;
    }
    uint32_t items = tasks + rows_moved(model, layer);
    for (uint32_t item = thread; item < items; item = workers_next(model->workers)) {
        if (item < tasks)
            attend_task(model, thread, layer, item, tasks);
        else
            move_row(model, item - tasks);
    }
    meet(model, thread);
}

typedef void stage_fn(const struct forward *forward, uint32_t layer, const struct tile *tile,
                      uint32_t first, uint32_t count);

/* Give out the row groups of n outputs. */
static void share_groups(struct quantized *model, unsigned thread, stage_fn *stage, uint32_t layer,
                         const struct tile *tile, uint32_t n)
{
    struct group_range range;
    for (uint32_t item = thread; item_groups(model, item, n, &range);
         item = workers_next(model->workers))
        stage(&model->forward, layer, tile, range.first, range.count);
    meet(model, thread);
}

/* Give out the tile's rows; on return they are all done. */
static void share_rows(struct quantized *model, unsigned thread, stage_fn *stage, uint32_t layer,
                       const struct tile *tile)
{
    for (uint32_t row = thread; row < tile->rows; row = workers_next(model->workers))
        stage(&model->forward, layer, tile, row, 1);
    meet(model, thread);
}

/* Rows that prepare a matrix's input: alone when they are few, else shared. */
static void prepare_rows(struct quantized *model, unsigned thread, stage_fn *stage, uint32_t layer,
                         const struct tile *tile, bool alone)
{
    if (alone)
        stage(&model->forward, layer, tile, 0, tile->rows);
    else
        share_rows(model, thread, stage, layer, tile);
    mark(model, thread, STAGE_ROWS);
}

static void share_embedding(struct quantized *model, unsigned thread)
{
    uint32_t rows = model->forward.batch->row_count;
    for (uint32_t row = thread; row < rows; row = workers_next(model->workers))
        forward_embed(&model->forward, row, 1);
    meet(model, thread);
}

/* ---- A step cut by outputs ---- */

/* The whole batch as one tile; norms and quantized rows in the thread's own part when alone. */
static struct tile whole_tile(const struct quantized *model, unsigned thread, bool alone, float *x,
                              uint32_t rows)
{
    struct tile tile = {0, rows, x, model->forward.attended, model->shared};
    if (alone) {
        struct workspace own = part_of(model, thread);
        tile.work.normed = own.normed;
        tile.work.quantized = own.quantized;
    }
    return tile;
}

static void qkv_by_outputs(struct quantized *model, unsigned thread, uint32_t layer,
                           const struct tile *tile)
{
    uint32_t units = model->forward.kv_units + model->forward.query_units;
    uint32_t tasks =
        model->query_tile_count[is_last(model, layer)] * model->forward.details.config.kv_heads;
    if (thread < tasks) {
        struct attention_task task = attention_task(model, layer, thread);
        forward_fetch(&task);
    }
    for (uint32_t unit = thread; unit < units; unit = workers_next(model->workers))
        forward_qkv_unit(&model->forward, layer, tile, unit);
    meet(model, thread);
}

/* What comes after a layer's last matrix: the next layer's keys (a thread's first unit), or the
   output head. */
static void look_beyond(struct quantized *model, unsigned thread, uint32_t layer)
{
    const struct forward *forward = &model->forward;
    uint32_t groups = forward_groups(forward->unit_heads * forward->details.config.head_dim);
    if (is_last(model, layer))
        look_at(model, thread, &forward->weights.head);
    else if (thread < forward->kv_units)
        look_at_groups(model, thread, &forward->weights.layers[layer + 1].k,
                       (struct group_range){thread * groups, groups});
}

static void after_attention_by_outputs(struct quantized *model, unsigned thread, uint32_t layer,
                                       const struct tile *tile, bool alone)
{
    const struct model_config *config = &model->forward.details.config;
    const struct layer_weights *weights = &model->forward.weights.layers[layer];
    bool post = forward_has_post_norms(&model->forward);
    prepare_rows(model, thread, forward_quantize_attended, layer, tile, alone);
    look_at(model, thread, &weights->gate);
    share_groups(model, thread, forward_output, layer, tile, config->embedding);
    mark(model, thread, STAGE_OUTPUT);
    if (post)
        share_rows(model, thread, forward_post_attention, layer, tile);
    prepare_rows(model, thread, forward_norm_feed, layer, tile, alone);
    look_at(model, thread, &weights->down);
    share_groups(model, thread, forward_gate_up, layer, tile, config->feed_forward);
    mark(model, thread, STAGE_FEED_UP);
    prepare_rows(model, thread, forward_quantize_gate, layer, tile, alone);
    look_beyond(model, thread, layer);
    share_groups(model, thread, forward_down, layer, tile, config->embedding);
    mark(model, thread, STAGE_FEED_DOWN);
    if (post)
        share_rows(model, thread, forward_post_feed, layer, tile);
    mark(model, thread, STAGE_ROWS);
}

static void step_by_outputs(struct quantized *model, unsigned thread)
{
    struct forward *forward = &model->forward;
    const struct batch *batch = forward->batch;
    bool alone = batch->row_count <= ALONE_ROWS_MAX;
    struct tile tile = whole_tile(model, thread, alone, forward->x, batch->row_count);
    share_embedding(model, thread);
    mark(model, thread, STAGE_EMBED);
    for (uint32_t layer = 0; layer < forward->details.config.layers; ++layer) {
        prepare_rows(model, thread, forward_norm_attention, layer, &tile, alone);
        look_at(model, thread, &forward->weights.layers[layer].output);
        qkv_by_outputs(model, thread, layer, &tile);
        mark(model, thread, STAGE_QKV);
        if (is_last(model, layer)) {
            if (batch->logits_row_count == 0)
                return;
            tile = whole_tile(model, thread, alone, forward->hidden, batch->logits_row_count);
        }
        attend(model, thread, layer);
        mark(model, thread, STAGE_ATTENTION);
        after_attention_by_outputs(model, thread, layer, &tile, alone);
    }
    for (uint32_t row = thread; row < batch->logits_row_count; row = workers_next(model->workers))
        forward_final_norm(forward, row, 1);
}

/* ---- A step cut by rows ---- */

static void after_attention_by_rows(struct quantized *model, unsigned thread, uint32_t layer,
                                    const struct tile *tile)
{
    const struct forward *forward = &model->forward;
    const struct model_config *config = &forward->details.config;
    bool post = forward_has_post_norms(forward);
    forward_quantize_attended(forward, layer, tile, 0, tile->rows);
    mark(model, thread, STAGE_ROWS);
    forward_output(forward, layer, tile, 0, forward_groups(config->embedding));
    mark(model, thread, STAGE_OUTPUT);
    if (post)
        forward_post_attention(forward, layer, tile, 0, tile->rows);
    forward_norm_feed(forward, layer, tile, 0, tile->rows);
    mark(model, thread, STAGE_ROWS);
    forward_gate_up(forward, layer, tile, 0, forward_groups(config->feed_forward));
    mark(model, thread, STAGE_FEED_UP);
    forward_quantize_gate(forward, layer, tile, 0, tile->rows);
    mark(model, thread, STAGE_ROWS);
    forward_down(forward, layer, tile, 0, forward_groups(config->embedding));
    mark(model, thread, STAGE_FEED_DOWN);
    if (post)
        forward_post_feed(forward, layer, tile, 0, tile->rows);
}

/* Everything of one tile between the attentions of layer - 1 and layer. */
static void tile_between(struct quantized *model, unsigned thread, uint32_t layer,
                         const struct tile *tile)
{
    struct forward *forward = &model->forward;
    if (layer == 0) {
        forward_embed(forward, tile->first, tile->rows);
        mark(model, thread, STAGE_EMBED);
    } else {
        after_attention_by_rows(model, thread, layer - 1, tile);
    }
    if (layer == forward->details.config.layers) {
        forward_final_norm(forward, tile->first, tile->rows);
        mark(model, thread, STAGE_ROWS);
        return;
    }
    forward_norm_attention(forward, layer, tile, 0, tile->rows);
    mark(model, thread, STAGE_ROWS);
    for (uint32_t unit = 0; unit < forward->kv_units + forward->query_units; ++unit)
        forward_qkv_unit(forward, layer, tile, unit);
    mark(model, thread, STAGE_QKV);
}

static void tiles_between(struct quantized *model, unsigned thread, uint32_t layer)
{
    struct forward *forward = &model->forward;
    const struct model_config *config = &forward->details.config;
    bool end = layer == config->layers;
    uint32_t rows = end ? forward->batch->logits_row_count : forward->batch->row_count;
    float *x = end ? forward->hidden : forward->x;
    size_t queries = (size_t)config->heads * config->head_dim;
    struct tile tile = {.work = part_of(model, thread)};
    for (uint32_t item = thread; item * model->tile_rows < rows;
         item = workers_next(model->workers)) {
        tile.first = item * model->tile_rows;
        tile.rows = rows - tile.first < model->tile_rows ? rows - tile.first : model->tile_rows;
        tile.x = x + (size_t)tile.first * config->embedding;
        tile.attended = forward->attended + tile.first * queries;
        tile_between(model, thread, layer, &tile);
    }
    meet(model, thread);
    mark(model, thread, end ? STAGE_ROWS : STAGE_QKV);
}

static void step_by_rows(struct quantized *model, unsigned thread)
{
    uint32_t layers = model->forward.details.config.layers;
    for (uint32_t layer = 0; layer < layers; ++layer) {
        const struct repacked_matrix *output = &model->forward.weights.layers[layer].output;
        look_at_groups(model, thread, output, (struct group_range){0, forward_groups(output->n)});
        tiles_between(model, thread, layer);
        if (is_last(model, layer) && model->forward.batch->logits_row_count == 0)
            return;
        attend(model, thread, layer);
        mark(model, thread, STAGE_ATTENTION);
    }
    tiles_between(model, thread, layers);
}

/* ---- The backend's operations ---- */

static void step_run(void *arg, unsigned thread)
{
    struct quantized *model = arg;
    if (model->tile_rows > 0)
        step_by_rows(model, thread);
    else
        step_by_outputs(model, thread);
}

static void quantized_forward(struct backend *backend, const struct batch *batch)
{
    struct quantized *model = (struct quantized *)backend;
    model->marked_ns = clock_now_ns();
    plan(model, batch);
    workers_run(model->workers, step_run, model);
    mark(model, 0, STAGE_ROWS);
}

static void quantize_logits(const struct forward *forward, uint32_t layer, const struct tile *tile,
                            uint32_t first, uint32_t count)
{
    (void)layer;
    if (!forward_reads_quantized(&forward->weights.head))
        return;
    struct activations input = {tile->rows, forward->details.config.embedding, tile->x,
                                tile->work.quantized};
    forward->kernels->quantize(&input, first, count);
}

static void cap_logits(const struct quantized *model, struct group_range range)
{
    uint32_t n = model->forward.weights.head.n;
    float cap = model->forward.details.final_cap;
    uint32_t end = (range.first + range.count) * KERNEL_ROW_BLOCK;
    end = end < n ? end : n;
    for (uint32_t row = 0; row < model->logits_count; ++row)
        for (uint32_t o = range.first * KERNEL_ROW_BLOCK; o < end; ++o) {
            float *y = &model->logits_out[(size_t)row * n + o];
            *y = cap * math_tanh(*y / cap);
        }
}

static void logits_run(void *arg, unsigned thread)
{
    struct quantized *model = arg;
    const struct forward *forward = &model->forward;
    const struct repacked_matrix *head = &forward->weights.head;
    uint32_t rows = model->logits_count;
    bool alone = rows <= ALONE_ROWS_MAX;
    float *x = forward->hidden + (size_t)model->logits_first * head->k;
    struct tile tile = whole_tile(model, thread, alone, x, rows);
    prepare_rows(model, thread, quantize_logits, 0, &tile, alone);
    struct activations input = {rows, head->k, x, tile.work.quantized};
    struct group_range range;
    for (uint32_t item = thread; item_groups(model, item, head->n, &range);
         item = workers_next(model->workers)) {
        forward->kernels->matmul(head, &input, 0, rows, range.first, range.count, false,
                                 model->logits_out, head->n);
        if (forward->details.final_cap != 0.0f)
            cap_logits(model, range);
    }
}

static void quantized_logits(struct backend *backend, uint32_t first, uint32_t count, float *out)
{
    struct quantized *model = (struct quantized *)backend;
    CHECK(count <= backend->logits_rows_max);
    CHECK(first + count <= model->forward.batch->logits_row_count);
    uint32_t piece = TILE_ROWS_MAX * model->threads; /* what the workspace holds */
    model->marked_ns = clock_now_ns();
    for (uint32_t at = 0; at < count; at += piece) {
        model->logits_first = first + at;
        model->logits_count = count - at < piece ? count - at : piece;
        model->logits_out = out + (size_t)at * backend->vocabulary;
        workers_run(model->workers, logits_run, model);
    }
    mark(model, 0, STAGE_HEAD);
}

static void quantized_copy_page(struct backend *backend, uint32_t from_page, uint32_t to_page)
{
    const struct kv_layout *kv = &((struct quantized *)backend)->forward.kv;
    CHECK(from_page < backend->page_count && to_page < backend->page_count && from_page != to_page);
    memcpy(kv->pool + to_page * kv->page_bytes, kv->pool + from_page * kv->page_bytes,
           kv->page_bytes);
}

static void *quantized_page(struct backend *backend, uint32_t page)
{
    const struct kv_layout *kv = &((struct quantized *)backend)->forward.kv;
    CHECK(page > 0 && page < backend->page_count);
    return kv->pool + page * kv->page_bytes;
}

static void quantized_destroy(struct backend *backend)
{
    struct quantized *model = (struct quantized *)backend;
    weights_deinit(&model->forward.weights);
    memory_unmap(model->forward.kv.pool, model->pool_bytes);
    memory_unmap(model->scratch, model->scratch_bytes);
    free(model);
}

static uint32_t quantized_profile(const struct backend *backend,
                                  struct backend_stage out[static BACKEND_STAGES_MAX])
{
    _Static_assert(STAGE_COUNT <= BACKEND_STAGES_MAX, "a caller's array holds them");
    const struct quantized *model = (const struct quantized *)backend;
    for (uint32_t i = 0; i < STAGE_COUNT; ++i)
        out[i] = (struct backend_stage){stage_names[i], model->work_ns[i], model->wait_ns[i]};
    return STAGE_COUNT;
}

static const struct backend_ops quantized_ops = {
    .forward = quantized_forward,
    .logits = quantized_logits,
    .copy_page = quantized_copy_page,
    .page = quantized_page,
    .profile = quantized_profile,
    .destroy = quantized_destroy,
};

/* ---- Create ---- */

static void set_units(struct forward *forward)
{
    const struct model_config *config = &forward->details.config;
    forward->unit_heads = 1;
    while (forward->unit_heads * config->head_dim % KERNEL_ROW_BLOCK != 0)
        ++forward->unit_heads;
    forward->kv_units = (config->kv_heads + forward->unit_heads - 1) / forward->unit_heads;
    forward->query_units = (config->heads + forward->unit_heads - 1) / forward->unit_heads;
}

static enum status set_rotation(struct forward *forward, const struct backend_start *start,
                                struct error *error)
{
    forward->bases = start->details->local_rope_base > 0.0f ? 2 : 1;
    for (uint32_t base = 0; base < forward->bases; ++base) {
        enum status status =
            model_rope_frequencies(start->gguf, start->details, base == 1, start->options->context,
                                   forward->frequencies[base], &forward->magnitude[base], error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status map_memory(struct quantized *model, const struct backend_start *start,
                              struct error *error)
{
    const struct backend_options *options = start->options;
    const struct model_config *config = &start->details->config;
    struct forward *forward = &model->forward;
    struct carver carver = {NULL, 0};
    carve_scratch(model, start->details, options, &carver);
    model->scratch_bytes = carver.used;
    enum status status = memory_map(model->scratch_bytes, "scratch", &model->scratch, error);
    if (status != STATUS_OK)
        return status;
    carver = (struct carver){model->scratch, 0};
    carve_scratch(model, start->details, options, &carver);
    struct model_groups groups = kv_groups_of(config);
    kv_groups_places(start->details, forward->places);
    forward->groups = groups.groups.count;
    forward->slot_stride = options->max_batch_rows;
    forward->kv = kv_layout_of(options->kv_type, groups.layers, config->kv_heads, config->head_dim,
                               options->page_size);
    if (!bytes_multiply(options->page_count, forward->kv.page_bytes, &model->pool_bytes))
        return error_set(error, STATUS_IO, NULL, "the page pool does not fit the address space");
    void *pool;
    status = memory_map(model->pool_bytes, "page pool", &pool, error);
    if (status == STATUS_OK)
        forward->kv.pool = pool;
    return status;
}

static uint32_t least_tile_rows(const struct forward *forward)
{
    const struct layer_weights *layer = &forward->weights.layers[0];
    const struct repacked_matrix *matrices[] = {
        &layer->q, &layer->k, &layer->v, &layer->output, &layer->gate, &layer->up, &layer->down};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; ++i)
        bytes +=
            forward->kernels->repacked_bytes(matrices[i]->format, matrices[i]->n, matrices[i]->k);
    return bytes <= LAYER_BYTES_SHARED ? TILE_ROWS_MIN : TILE_ROWS_MIN_LARGE;
}

enum status quantized_create(const struct backend_start *start, struct backend **out,
                             struct error *error)
{
    const struct backend_options *options = start->options;
    struct quantized *model = calloc(1, sizeof *model);
    if (model == NULL)
        return error_set(error, STATUS_IO, NULL, "no memory for the backend");
    struct forward *forward = &model->forward;
    forward->kernels = options->kernels;
    forward->details = *start->details;
    model->workers = options->workers;
    model->threads = workers_count(options->workers);
    set_units(forward);
    struct weights_loader loader = {start->gguf,        start->details, options->kernels,
                                    options->workers,   WEIGHTS_PACKED, start->progress,
                                    start->progress_arg};
    enum status status;
    if ((status = set_rotation(forward, start, error)) ||
        (status = map_memory(model, start, error)) ||
        (status = weights_load(&loader, &forward->weights, error))) {
        quantized_destroy(&model->base);
        return status;
    }
    model->tile_rows_min = least_tile_rows(forward);
    model->base = (struct backend){
        .ops = &quantized_ops,
        .name = "quantized",
        .kernels = options->kernels->name,
        .kv_type = kv_type_name(options->kv_type),
        .weights_checksum = forward->weights.checksum,
        .rotation =
            checksum_bytes(forward->magnitude, sizeof forward->magnitude,
                           checksum_bytes(forward->frequencies, sizeof forward->frequencies, 0)),
        .vocabulary = start->details->config.vocabulary,
        .page_count = options->page_count,
        .page_size = options->page_size,
        .page_bytes = forward->kv.page_bytes,
        .groups = kv_groups_of(&start->details->config).groups,
        .max_batch_rows = options->max_batch_rows,
        .max_sequences = options->max_sequences,
        .logits_rows_max = options->logits_rows_max,
    };
    *out = &model->base;
    return STATUS_OK;
}
