/*
 * The two drivers of a step, what a step is cut into, and attention's sharing: forward_pass.h explains.
 *
 * Invariants: every thread of a job goes through the same barriers in the same order; what is
 * written before one is read after it only. Thread 0 is the engine thread, whose time is measured.
 * A thread that waits at a barrier prefetches the weights that it will read next, which can be a
 * wrong guess but never a wrong result.
 */
#include "engine/model/forward_pass.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "engine/kernels/math.h"

#include <string.h>

#define TILE_TOKENS_MAX 64u /* activations of a tile stay within a core's second-level cache */
#define TILE_TOKENS_AIM 56u /* unpacking weights for a tile costs 3 % more at 32 rows */
/* Fewest rows of a tile. Where a layer stays in the cache that cores share, one thread brings it
   there for all: measured on Zen 4, 4 + 4 rows of a 2 MB layer are 1.1 times faster than by
   outputs, 12 + 12 rows 1.3 times; of a 40 MB layer 8 + 8 are slower, 16 + 16 faster. */
#define TILE_TOKENS_MIN 4u
#define TILE_TOKENS_MIN_LARGE 12u
#define LAYER_BYTES_SHARED (8ull << 20)
#define ALONE_TOKENS_MAX 8u /* up to here a thread quantizes for itself instead of sharing */
/* Attention tasks of a step are split into segments when they are so few and one has so many. */
#define SPLIT_TASKS_MAX 8u
#define SPLIT_SEGMENTS_MIN 3u
#define PREFETCH_BYTES_MAX (128u * 1024u) /* fetched while waiting, into a core's own cache */

static const char *const STAGE_NAMES[STAGE_COUNT] = {"embedding, angles",
                                                     "norms, quantizing",
                                                     "q k v, rope, store",
                                                     "attention",
                                                     "output",
                                                     "gate, up",
                                                     "down",
                                                     "output head"};

/* ---- Memory ---- */

void forward_pass_lay_out(struct forward_pass *pass, const struct model_details *details,
                          const struct backend_options *options, struct arena *arena)
{
    const struct model_config *config = &details->config;
    const struct kernels *kernels = options->kernels;
    struct forward *forward = &pass->forward;
    uint64_t threads = workers_count(options->workers), rows = options->max_batch_rows;
    uint64_t queries = (uint64_t)config->heads * config->head_dim;
    uint64_t keys = (uint64_t)config->kv_heads * config->head_dim;
    uint64_t f = sizeof(float);
    forward->x = arena_take(arena, rows * config->embedding, f);
    forward->q = arena_take(arena, rows * queries, f);
    forward->attended = arena_take(arena, rows * queries, f);
    forward->hidden = arena_take(arena, rows * config->embedding, f);
    bool two_bases = details->local_rope_base > 0.0f;
    for (uint32_t base = 0; base < (two_bases ? 2u : 1u); base++) {
        forward->cosine[base] = arena_take(arena, rows * (config->rotary / 2), f);
        forward->sine[base] = arena_take(arena, rows * (config->rotary / 2), f);
    }
    uint32_t groups = layer_groups_of(config).groups.count;
    forward->slots = arena_take(arena, groups * rows, sizeof forward->slots[0]);
    forward->positions = arena_take(arena, rows, sizeof forward->positions[0]);
    forward->types = arena_take(arena, rows, sizeof forward->types[0]);
    pass->part_segments = attention_segments(&(struct attention_task){
        .first_position = options->context > 0 ? options->context - 1 : 0});
    pass->part_floats = (uint64_t)config->heads / config->kv_heads * (config->head_dim + 2);
    pass->parts = arena_take(arena, SPLIT_TASKS_MAX * pass->part_segments, pass->part_floats * f);
    pass->states = arena_take(arena, threads, sizeof pass->states[0]);
    pass->query_tiles[0] = arena_take(arena, rows, sizeof pass->query_tiles[0][0]);
    pass->query_tiles[1] = arena_take(arena, rows, sizeof pass->query_tiles[1][0]);

    uint64_t wide = threads * TILE_TOKENS_MAX;
    uint64_t row_bytes = max_u64(kernels->quantized_row_bytes(config->embedding),
                                 max_u64(kernels->quantized_row_bytes((uint32_t)queries),
                                         kernels->quantized_row_bytes(config->feed_forward)));
    pass->quantized_part_bytes = bytes_align(TILE_TOKENS_MAX * row_bytes, 64);
    pass->shared.normed = arena_take(arena, wide * config->embedding, f);
    pass->shared.quantized = arena_take(arena, threads, pass->quantized_part_bytes);
    pass->shared.keys = arena_take(arena, wide * keys, f);
    pass->shared.values = arena_take(arena, wide * keys, f);
    pass->shared.gate = arena_take(arena, wide * config->feed_forward, f);
    pass->shared.up = arena_take(arena, wide * config->feed_forward, f);
    if ((details->architecture->features & FEATURE_POST_NORMS) != 0)
        pass->shared.projected = arena_take(arena, wide * config->embedding, f);
    pass->attention_part_bytes = bytes_align(
        kernels->attention_scratch_bytes(config->head_dim, config->heads / config->kv_heads), 64);
    pass->attention_scratch = arena_take(arena, threads, pass->attention_part_bytes);
}

/* The workspace of one thread: its rows of the shared one. */
static struct workspace part_of(const struct forward_pass *pass, unsigned thread)
{
    const struct model_config *config = &pass->forward.details.config;
    const struct workspace *shared = &pass->shared;
    size_t row = (size_t)thread * TILE_TOKENS_MAX;
    size_t keys = (size_t)config->kv_heads * config->head_dim;
    return (struct workspace){
        .normed = shared->normed + row * config->embedding,
        .quantized = (uint8_t *)shared->quantized + thread * pass->quantized_part_bytes,
        .keys = shared->keys + row * keys,
        .values = shared->values + row * keys,
        .gate = shared->gate + row * config->feed_forward,
        .up = shared->up + row * config->feed_forward,
        .projected = shared->projected ? shared->projected + row * config->embedding : NULL,
    };
}

/* ---- What a step is cut into: on the engine thread, before the job ---- */

static void set_slots(struct forward *forward, const struct batch *batch)
{
    uint32_t page_size = forward->kv.page_size;
    for (uint32_t s = 0; s < batch->sequence_count; s++) {
        const struct batch_sequence *sequence = &batch->sequences[s];
        CHECK((uint64_t)sequence->page_count * page_size >=
              (uint64_t)sequence->first_position + sequence->row_count);
        CHECK(forward->groups == 1 || sequence->group_stride >= sequence->page_count);
        for (uint32_t i = 0; i < sequence->row_count; i++)
            forward->positions[sequence->first_row + i] = sequence->first_position + i;
        CHECK(sequence->first_position == 0 || !forward->details.config.bidirectional);
        for (uint32_t i = 0; i < sequence->row_count; i++)
            forward->types[sequence->first_row + i] = sequence->second_segment > 0 &&
                                                      i >= sequence->second_segment &&
                                                      forward->details.config.token_types > 1;
        for (uint32_t g = 0; g < forward->groups; g++) {
            const uint32_t *pages = sequence->pages + (size_t)g * sequence->group_stride;
            uint64_t *slots =
                forward->slots + (size_t)g * forward->slot_stride + sequence->first_row;
            for (uint32_t i = 0; i < sequence->row_count; i++) {
                uint32_t position = sequence->first_position + i;
                slots[i] = (uint64_t)pages[position / page_size] * page_size + position % page_size;
            }
        }
    }
}

/* Queries of every row, the latest sequences' last ones first: prompts' tails cost most, and the
   dearest first leaves threads least uneven at the end. */
static uint32_t cut_queries(const struct batch *batch, struct query_tile *tiles)
{
    uint32_t count = 0;
    for (uint32_t s = batch->sequence_count; s-- > 0;) {
        const struct batch_sequence *sequence = &batch->sequences[s];
        uint32_t cuts = (sequence->row_count + KERNEL_QUERY_TILE - 1) / KERNEL_QUERY_TILE;
        for (uint32_t cut = cuts; cut-- > 0;) {
            uint32_t from = cut * KERNEL_QUERY_TILE;
            uint32_t left = sequence->row_count - from;
            uint32_t row = sequence->first_row + from;
            tiles[count++] = (struct query_tile){s, row, min_u32(left, KERNEL_QUERY_TILE), row};
        }
    }
    return count;
}

/* Queries of the logits rows only: stretches of neighbours within a sequence. */
static uint32_t cut_last_queries(const struct batch *batch, struct query_tile *tiles)
{
    uint32_t count = 0, s = 0;
    for (uint32_t i = 0; i < batch->logits_row_count; i++) {
        uint32_t row = batch->logits_rows[i];
        while (row >= batch->sequences[s].first_row + batch->sequences[s].row_count)
            s++;
        CHECK(s < batch->sequence_count && row >= batch->sequences[s].first_row);
        struct query_tile *last = count > 0 ? &tiles[count - 1] : NULL;
        if (last && last->sequence == s && last->count < KERNEL_QUERY_TILE &&
            last->row + last->count == row)
            last->count++;
        else
            tiles[count++] = (struct query_tile){s, row, 1, i};
    }
    return count;
}

/* By rows in as many equal tiles as divide evenly among the threads, unless these would be too few
   rows for unpacking weights once per thread, and for reading them so. */
static uint32_t choose_tile_tokens(const struct forward_pass *pass, uint32_t rows)
{
    uint32_t threads = pass->threads;
    if (rows < threads * pass->tile_tokens_min)
        return 0;
    uint32_t rounds = (rows + threads * TILE_TOKENS_AIM - 1) / (threads * TILE_TOKENS_AIM);
    return (rows + threads * rounds - 1) / (threads * rounds);
}

static void cut_step(struct forward_pass *pass, const struct batch *batch)
{
    CHECK(batch->row_count > 0 && batch->row_count <= pass->forward.slot_stride);
    CHECK(batch->logits_row_count <= batch->row_count);
    pass->forward.batch = batch;
    set_slots(&pass->forward, batch);
    pass->query_tile_count[0] = cut_queries(batch, pass->query_tiles[0]);
    pass->query_tile_count[1] = cut_last_queries(batch, pass->query_tiles[1]);
    pass->tile_tokens = choose_tile_tokens(pass, batch->row_count);
    CHECK(pass->tile_tokens <= TILE_TOKENS_MAX);
}

/* ---- Parts of the job ---- */

/* What passed since the last mark was this stage. */
static void mark(struct forward_pass *pass, unsigned thread, enum stage stage)
{
    if (thread != 0)
        return;
    uint64_t now = clock_now_ns();
    pass->work_ns[stage] += now - pass->marked_ns - pass->waited_ns;
    pass->wait_ns[stage] += pass->waited_ns;
    pass->marked_ns = now;
    pass->waited_ns = 0;
}

static void barrier(struct forward_pass *pass, unsigned thread)
{
    uint64_t start_ns = thread == 0 ? clock_now_ns() : 0;
    workers_barrier(pass->workers, &pass->states[thread].ahead);
    if (thread == 0)
        pass->waited_ns += clock_now_ns() - start_ns;
}

struct block_range {
    uint32_t first, count;
};

/* The row blocks of item `item` of a matrix with n outputs; false: there is no such item. Items
   shrink: half of what is left goes to all threads in equal pieces, and so on down to one row block.
   Large pieces keep memory streaming, small ones let threads end together (guided self-scheduling,
   Polychronopoulos and Kuck 1987). A thread's second item, if it gets that one, lies behind its
   first, and so on: the outputs are so many lanes; what does not divide by them comes last. */
static bool item_blocks(const struct forward_pass *pass, uint32_t item, uint32_t n,
                        struct block_range *out)
{
    const uint32_t threads = pass->threads, lane = item % threads;
    uint32_t left = kernel_row_blocks(n), first = 0, in_lane = left / threads;
    uint32_t round = item / threads;
    for (; left >= threads; round--) {
        uint32_t size = left / (2 * threads) > 0 ? left / (2 * threads) : 1;
        if (round == 0) {
            *out = (struct block_range){lane * in_lane + first, size};
            return true;
        }
        first += size;
        left -= size * threads;
    }
    *out = (struct block_range){threads * in_lane + lane, 1};
    return round == 0 && lane < left;
}

/* What the thread waits for from now on, it spends on prefetching these row blocks. */
static void prefetch(struct forward_pass *pass, unsigned thread,
                     const struct repacked_matrix *matrix, struct block_range range)
{
    uint64_t block_bytes =
        pass->forward.kernels->repacked_bytes(matrix->format, KERNEL_ROW_BLOCK, matrix->k);
    const uint8_t *at = (const uint8_t *)matrix->data + range.first * block_bytes;
    pass->states[thread].ahead =
        (struct workers_ahead){at, at + min_u64(range.count * block_bytes, PREFETCH_BYTES_MAX)};
}

static bool is_last(const struct forward_pass *pass, uint32_t layer)
{
    return layer + 1 == pass->forward.details.config.layers;
}

/* A place in the step: sub-layer `index` of a layer; behind the last one, layer is their number. */
struct place {
    uint32_t layer, index;
};

static struct place place_after(struct place at)
{
    return at.index + 1 < LAYER_LENGTH ? (struct place){at.layer, at.index + 1}
                                       : (struct place){at.layer + 1, 0};
}

/* The thread's first share of the first matrix behind `at`, or of the output head. */
static void prefetch_after(struct forward_pass *pass, unsigned thread, struct place at)
{
    const struct forward *forward = &pass->forward;
    const struct repacked_matrix *matrix = &forward->weights.head;
    struct block_range range;
    do {
        at = place_after(at);
    } while (
        at.layer < forward->details.config.layers &&
        (!sublayer_has_matrix(&LAYER[at.index]) || !sublayer_applies(forward, &LAYER[at.index])));
    if (at.layer < forward->details.config.layers) {
        matrix = sublayer_matrix(forward, &LAYER[at.index], at.layer);
        if (LAYER[at.index].share == SHARE_HEADS) {
            uint32_t blocks =
                kernel_row_blocks(forward->unit_heads * forward->details.config.head_dim);
            if (thread < forward->kv_units)
                prefetch(pass, thread, matrix, (struct block_range){thread * blocks, blocks});
            return;
        }
    }
    if (item_blocks(pass, thread, matrix->n, &range))
        prefetch(pass, thread, matrix, range);
}

static struct attention_task attention_task(const struct forward_pass *pass, uint32_t layer,
                                            uint32_t item)
{
    unsigned last = is_last(pass, layer) ? 1 : 0;
    uint32_t kv_heads = pass->forward.details.config.kv_heads;
    return layer_attention_task(&pass->forward, layer, &pass->query_tiles[last][item / kv_heads],
                                item % kv_heads);
}

static uint32_t attention_tasks(const struct forward_pass *pass, uint32_t layer)
{
    return pass->query_tile_count[is_last(pass, layer)] * pass->forward.details.config.kv_heads;
}

static void attend_task(struct forward_pass *pass, unsigned thread, uint32_t layer, uint32_t item,
                        uint32_t tasks)
{
    struct attention_task task = attention_task(pass, layer, item), next;
    task.scratch = pass->attention_scratch + thread * pass->attention_part_bytes;
    if (item + pass->threads < tasks) { /* a guess: others may be faster or slower */
        next = attention_task(pass, layer, item + pass->threads);
        task.next = &next;
    }
    pass->forward.kernels->attention(&task);
}

/* In the last layer the residual stream of the logits rows moves together: items behind the tasks.
 */
static uint32_t rows_moved(const struct forward_pass *pass, uint32_t layer)
{
    return is_last(pass, layer) ? pass->forward.batch->logits_row_count : 0;
}

static void move_row(const struct forward_pass *pass, uint32_t index)
{
    const struct forward *forward = &pass->forward;
    uint32_t width = forward->details.config.embedding;
    memcpy(forward->hidden + (size_t)index * width,
           forward->x + (size_t)forward->batch->logits_rows[index] * width, width * sizeof(float));
}

/* Most segments of a task, if the layer's tasks are so few and so long that threads would wait for
   each other; else 0. */
static uint32_t split_segments(const struct forward_pass *pass, uint32_t layer, uint32_t tasks)
{
    uint32_t most = 0, kv_heads = pass->forward.details.config.kv_heads;
    if (pass->threads == 1 || tasks == 0 || tasks > SPLIT_TASKS_MAX)
        return 0;
    for (uint32_t item = 0; item < tasks; item += kv_heads) {
        struct attention_task task = attention_task(pass, layer, item);
        uint32_t segments = attention_segments(&task);
        if (task.query_count > 1)
            return 0;
        most = max_u32(segments, most);
    }
    return most >= SPLIT_SEGMENTS_MIN ? most : 0;
}

/* Two intervals: segments of all tasks, then their sums. */
static void attend_in_segments(struct forward_pass *pass, unsigned thread, uint32_t layer,
                               uint32_t tasks, uint32_t segments)
{
    void *scratch = pass->attention_scratch + thread * pass->attention_part_bytes;
    const uint64_t task_floats = pass->part_segments * pass->part_floats;
    for (uint32_t item = thread; item < tasks * segments; item = workers_next(pass->workers)) {
        uint32_t index = item % segments;
        struct attention_task task = attention_task(pass, layer, item / segments);
        task.scratch = scratch;
        if (index < attention_segments(&task))
            pass->forward.kernels->attention_segment(&task, index,
                                                     pass->parts + item / segments * task_floats +
                                                         index * pass->part_floats);
    }
    barrier(pass, thread);
    uint32_t items = tasks + rows_moved(pass, layer);
    for (uint32_t item = thread; item < items; item = workers_next(pass->workers)) {
        if (item >= tasks) {
            move_row(pass, item - tasks);
            continue;
        }
        struct attention_task task = attention_task(pass, layer, item);
        task.scratch = scratch;
        pass->forward.kernels->attention_merge(&task, pass->parts + item * task_floats);
    }
    barrier(pass, thread);
}

/* What the thread will attend to first is on its way while keys and values are computed. */
static void prefetch_first_task(const struct forward_pass *pass, unsigned thread, uint32_t layer)
{
    if (thread < attention_tasks(pass, layer)) {
        struct attention_task task = attention_task(pass, layer, thread);
        layer_prefetch_kv(&task);
    }
}

/* Attention of a layer, given out by query tile and KV head, or also by segments. */
static void attend(struct forward_pass *pass, unsigned thread, uint32_t layer)
{
    uint32_t tasks = attention_tasks(pass, layer);
    uint32_t segments = split_segments(pass, layer, tasks);
    if (segments > 0) {
        attend_in_segments(pass, thread, layer, tasks, segments);
        return;
    }
    uint32_t items = tasks + rows_moved(pass, layer);
    for (uint32_t item = thread; item < items; item = workers_next(pass->workers))
        if (item < tasks)
            attend_task(pass, thread, layer, item, tasks);
        else
            move_row(pass, item - tasks);
    barrier(pass, thread);
}

/* ---- A step cut by outputs: the sub-layers in their order, each shared by all threads ---- */

/* The whole batch as one tile; norms and quantized rows in the thread's own part when alone. */
static struct tile whole_tile(const struct forward_pass *pass, unsigned thread, float *x,
                              uint32_t tokens)
{
    struct tile tile = {0, tokens, x, pass->forward.attended, pass->shared};
    if (tokens <= ALONE_TOKENS_MAX) {
        struct workspace own = part_of(pass, thread);
        tile.work.normed = own.normed;
        tile.work.quantized = own.quantized;
    }
    return tile;
}

static void share_sublayer(struct forward_pass *pass, unsigned thread, struct place at,
                           const struct tile *tile)
{
    const struct forward *forward = &pass->forward;
    const struct sublayer *sublayer = &LAYER[at.index];
    struct block_range range;
    uint32_t items = tile->tokens;
    switch (sublayer->share) {
    case SHARE_ATTENTION:
        attend(pass, thread, at.layer);
        return;
    case SHARE_OUTPUTS:
        prefetch_after(pass, thread, at);
        for (uint32_t item = thread;
             item_blocks(pass, item, sublayer_matrix(forward, sublayer, at.layer)->n, &range);
             item = workers_next(pass->workers))
            sublayer->run(forward, at.layer, tile, range.first, range.count);
        barrier(pass, thread);
        return;
    case SHARE_INPUTS:
        if (tile->tokens <= ALONE_TOKENS_MAX) {
            sublayer->run(forward, at.layer, tile, 0, tile->tokens);
            return;
        }
        break;
    case SHARE_HEADS:
        items = forward->kv_units + forward->query_units;
        prefetch_after(pass, thread, at);
        prefetch_first_task(pass, thread, at.layer);
        break;
    case SHARE_TOKENS:
        break;
    }
    for (uint32_t item = thread; item < items; item = workers_next(pass->workers))
        sublayer->run(forward, at.layer, tile, item, 1);
    barrier(pass, thread);
}

static void step_by_outputs(struct forward_pass *pass, unsigned thread)
{
    struct forward *forward = &pass->forward;
    const struct batch *batch = forward->batch;
    struct tile tile = whole_tile(pass, thread, forward->x, batch->row_count);
    for (uint32_t row = thread; row < batch->row_count; row = workers_next(pass->workers))
        layer_embed(forward, row, 1);
    barrier(pass, thread);
    mark(pass, thread, STAGE_EMBED);
    for (struct place at = {0}; at.layer < forward->details.config.layers; at = place_after(at)) {
        const struct sublayer *sublayer = &LAYER[at.index];
        if (!sublayer_applies(forward, sublayer))
            continue;
        if (sublayer->share == SHARE_ATTENTION && is_last(pass, at.layer)) {
            if (batch->logits_row_count == 0)
                return;
            tile = whole_tile(pass, thread, forward->hidden, batch->logits_row_count);
        }
        share_sublayer(pass, thread, at, &tile);
        mark(pass, thread, sublayer->stage);
    }
    for (uint32_t row = thread; row < batch->logits_row_count; row = workers_next(pass->workers))
        layer_final_norm(forward, row, 1);
}

/* ---- A step cut by tokens: all sub-layers between two attentions, tile by tile ---- */

static struct place next_attention(const struct forward_pass *pass, struct place at)
{
    while (at.layer < pass->forward.details.config.layers &&
           LAYER[at.index].share != SHARE_ATTENTION)
        at = place_after(at);
    return at;
}

/* Everything of one tile from `at` to `end`. */
static void run_tile(struct forward_pass *pass, unsigned thread, struct place at, struct place end,
                     const struct tile *tile)
{
    struct forward *forward = &pass->forward;
    if (at.layer == 0 && at.index == 0) {
        layer_embed(forward, tile->first, tile->tokens);
        mark(pass, thread, STAGE_EMBED);
    }
    for (; at.layer != end.layer || at.index != end.index; at = place_after(at)) {
        const struct sublayer *sublayer = &LAYER[at.index];
        if (!sublayer_applies(forward, sublayer))
            continue;
        uint32_t count = tile->tokens;
        if (sublayer->share == SHARE_HEADS)
            count = forward->kv_units + forward->query_units;
        if (sublayer->share == SHARE_OUTPUTS)
            count = kernel_row_blocks(sublayer_matrix(forward, sublayer, at.layer)->n);
        sublayer->run(forward, at.layer, tile, 0, count);
        mark(pass, thread, sublayer->stage);
    }
    if (end.layer == forward->details.config.layers)
        layer_final_norm(forward, tile->first, tile->tokens);
}

static void run_tiles(struct forward_pass *pass, unsigned thread, struct place at, struct place end)
{
    struct forward *forward = &pass->forward;
    const struct model_config *config = &forward->details.config;
    bool last = end.layer == config->layers;
    uint32_t tokens = last ? forward->batch->logits_row_count : forward->batch->row_count;
    float *x = last ? forward->hidden : forward->x;
    size_t queries = (size_t)config->heads * config->head_dim;
    struct tile tile = {.work = part_of(pass, thread)};
    for (uint32_t item = thread; item * pass->tile_tokens < tokens;
         item = workers_next(pass->workers)) {
        tile.first = item * pass->tile_tokens;
        tile.tokens = min_u32(tokens - tile.first, pass->tile_tokens);
        tile.x = x + (size_t)tile.first * config->embedding;
        tile.attended = forward->attended + tile.first * queries;
        run_tile(pass, thread, at, end, &tile);
    }
    barrier(pass, thread);
    mark(pass, thread, last ? STAGE_ROWS : STAGE_QKV);
}

static void step_by_tokens(struct forward_pass *pass, unsigned thread)
{
    const struct forward *forward = &pass->forward;
    for (struct place at = {0}, end;; at = place_after(end)) {
        end = next_attention(pass, at);
        if (end.layer < forward->details.config.layers) { /* each thread reads the whole of it */
            const struct repacked_matrix *output = &forward->weights.layers[end.layer].output;
            prefetch(pass, thread, output, (struct block_range){0, kernel_row_blocks(output->n)});
        }
        run_tiles(pass, thread, at, end);
        if (end.layer == forward->details.config.layers ||
            (is_last(pass, end.layer) && forward->batch->logits_row_count == 0))
            return;
        attend(pass, thread, end.layer);
        mark(pass, thread, STAGE_ATTENTION);
    }
}

static void step_run(void *arg, unsigned thread)
{
    struct forward_pass *pass = arg;
    if (pass->tile_tokens > 0)
        step_by_tokens(pass, thread);
    else
        step_by_outputs(pass, thread);
}

void forward_pass_run(struct forward_pass *pass, const struct batch *batch)
{
    pass->marked_ns = clock_now_ns();
    cut_step(pass, batch);
    workers_run(pass->workers, step_run, pass);
    mark(pass, 0, STAGE_ROWS);
}

/* ---- Logits ---- */

static void cap_logits(const struct forward_pass *pass, struct block_range range)
{
    uint32_t n = pass->forward.weights.head.n;
    float cap = pass->forward.details.final_cap;
    uint32_t end = min_u32((range.first + range.count) * KERNEL_ROW_BLOCK, n);
    for (uint32_t row = 0; row < pass->logits_count; row++)
        for (uint32_t o = range.first * KERNEL_ROW_BLOCK; o < end; o++) {
            float *y = &pass->logits_out[(size_t)row * n + o];
            *y = cap * math_tanh(*y / cap);
        }
}

static void logits_run(void *arg, unsigned thread)
{
    struct forward_pass *pass = arg;
    const struct forward *forward = &pass->forward;
    const struct repacked_matrix *head = &forward->weights.head;
    uint32_t rows = pass->logits_count;
    float *x = forward->hidden + (size_t)pass->logits_first * head->k;
    struct tile tile = whole_tile(pass, thread, x, rows);
    struct activations input = {rows, head->k, x, tile.work.quantized};
    if (rows <= ALONE_TOKENS_MAX) {
        if (format_is_quantized(head->format))
            forward->kernels->quantize(&input, 0, rows);
    } else {
        for (uint32_t row = thread; row < rows; row = workers_next(pass->workers))
            if (format_is_quantized(head->format))
                forward->kernels->quantize(&input, row, 1);
        barrier(pass, thread);
    }
    mark(pass, thread, STAGE_ROWS);
    struct block_range range;
    for (uint32_t item = thread; item_blocks(pass, item, head->n, &range);
         item = workers_next(pass->workers)) {
        forward->kernels->matmul(head, &input, 0, rows, range.first, range.count, false,
                                 pass->logits_out, head->n);
        if (forward->details.final_cap != 0.0f)
            cap_logits(pass, range);
    }
}

void forward_pass_logits(struct forward_pass *pass, uint32_t first, uint32_t count, float *out)
{
    CHECK(first + count <= pass->forward.batch->logits_row_count);
    uint32_t piece = TILE_TOKENS_MAX * pass->threads; /* what the workspace holds */
    pass->marked_ns = clock_now_ns();
    for (uint32_t at = 0; at < count; at += piece) {
        pass->logits_first = first + at;
        pass->logits_count = min_u32(count - at, piece);
        pass->logits_out = out + (size_t)at * pass->forward.weights.head.n;
        workers_run(pass->workers, logits_run, pass);
    }
    mark(pass, 0, STAGE_HEAD);
}

const float *forward_pass_hidden(const struct forward_pass *pass, uint32_t row)
{
    CHECK(row < pass->forward.batch->logits_row_count);
    return pass->forward.hidden + (size_t)row * pass->forward.details.config.embedding;
}

/* out [matrix->n] = matrix·x + bias, on the calling thread. */
static void apply_head(const struct forward_pass *pass, const struct repacked_matrix *matrix,
                       const float *bias, const float *x, float *out)
{
    const struct kernels *kernels = pass->forward.kernels;
    struct activations input = {1, matrix->k, x, pass->shared.quantized};
    if (format_is_quantized(matrix->format))
        kernels->quantize(&input, 0, 1);
    kernels->matmul(matrix, &input, 0, 1, 0, kernel_row_blocks(matrix->n), false, out, matrix->n);
    if (bias)
        kernels->add(out, bias, matrix->n);
}

void forward_pass_scores(struct forward_pass *pass, uint32_t row, float *out)
{
    const struct weights *weights = &pass->forward.weights;
    const float *x = forward_pass_hidden(pass, row);
    if (weights->dense.n > 0) {
        float *dense = pass->shared.normed;
        apply_head(pass, &weights->dense, weights->dense_bias, x, dense);
        for (uint32_t i = 0; i < weights->dense.n; i++)
            dense[i] = math_tanh(dense[i]);
        x = dense;
    }
    apply_head(pass, &weights->labels, weights->label_bias, x, out);
}

uint32_t forward_pass_profile(const struct forward_pass *pass,
                              struct backend_stage out[static BACKEND_STAGES_MAX])
{
    _Static_assert(STAGE_COUNT <= BACKEND_STAGES_MAX, "a caller's array holds them");
    for (uint32_t i = 0; i < STAGE_COUNT; i++)
        out[i] = (struct backend_stage){STAGE_NAMES[i], pass->work_ns[i], pass->wait_ns[i]};
    return STAGE_COUNT;
}

void forward_pass_init(struct forward_pass *pass)
{
    const struct forward *forward = &pass->forward;
    uint64_t bytes = 0; /* of a layer's matrices */
    const struct layer_weights *layer = &forward->weights.layers[0];
    const struct repacked_matrix *matrices[] = {
        &layer->q, &layer->k, &layer->v, &layer->output, &layer->gate, &layer->up, &layer->down};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        bytes +=
            forward->kernels->repacked_bytes(matrices[i]->format, matrices[i]->n, matrices[i]->k);
    pass->tile_tokens_min = bytes <= LAYER_BYTES_SHARED ? TILE_TOKENS_MIN : TILE_TOKENS_MIN_LARGE;
}
