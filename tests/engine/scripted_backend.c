/*
 * See scripted_backend.h. A slot is what a position leaves behind; the digests are sums of mixed
 * words, so they depend on every slot and its position but not on the order or grouping of the
 * work, as real attention under "One arithmetic".
 */
#include "tests/engine/scripted_backend.h"

#include "base/check.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct slot {
    uint64_t first;  /* layer 1: token and position */
    uint64_t second; /* layer 2: digest of `first` of all positions up to this one */
    uint32_t token;
    uint32_t written; /* group + 1: computed. A page's slots are never cleared: stale data must not
                         matter */
};

struct script {
    uint32_t *prompt;
    uint32_t prompt_count;
    uint32_t *output;
    uint32_t output_count;
    struct script *next;
};

/* What a logits row needs after forward. */
struct row_state {
    uint64_t digest;
    bool scripted;
    uint32_t forced; /* token id or SCRIPTED_NAN */
};

struct scripted_backend {
    struct backend backend; /* first: cast back and forth */
    struct scripted_options options;
    struct slot *slots;     /* [page_count][page_size] */
    struct row_state *rows; /* [max_batch_rows] of the last forward's logits rows */
    uint32_t *history;      /* scratch: [page_count * page_size] */
    pthread_mutex_t lock;   /* scripts, hold */
    pthread_cond_t changed;
    struct script *scripts;
    bool held;
    bool waiting;      /* a forward waits to be let go */
    uint32_t passes;   /* forwards that may go on although held */
    uint64_t arrivals; /* forwards that have begun */
    atomic_uint_fast64_t forwards, row_total, copies;
    atomic_uint rows_max, sequences_max;
};

static uint64_t mix(uint64_t value)
{
    /* The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit depends on every bit. */
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t first_layer(uint32_t token, uint32_t position)
{
    return mix(((uint64_t)position << 32) | token);
}

static uint64_t weigh(uint64_t value, uint32_t position)
{
    return mix(value ^ mix(position));
}

static void logits_of_digest(uint64_t digest, uint32_t vocabulary, float *out)
{
    for (uint32_t id = 0; id < vocabulary; id++) {
        uint64_t bits = mix(digest ^ ((uint64_t)id * 0x2545f4914f6cdd1du));
        out[id] = (float)(bits >> 40) * (8.0f / 16777216.0f) - 4.0f;
    }
}

void scripted_logits(const uint32_t *tokens, uint32_t count, uint32_t vocabulary, float *out)
{
    uint64_t below = 0, digest = 0;
    for (uint32_t position = 0; position < count; position++) {
        below += weigh(first_layer(tokens[position], position), position);
        digest += weigh(below, position);
    }
    logits_of_digest(digest, vocabulary, out);
}

static struct slot *slot_of(struct scripted_backend *self, const struct batch_sequence *sequence,
                            uint32_t group, uint32_t position)
{
    uint32_t size = self->options.page_size;
    CHECK(position / size < sequence->page_count);
    CHECK(group == 0 || sequence->group_stride >= sequence->page_count);
    uint32_t page = sequence->pages[(size_t)group * sequence->group_stride + position / size];
    CHECK(page > 0 && page < self->options.page_count);
    return &self->slots[(size_t)page * size + position % size];
}

/* The position was computed: the other groups get what the first has, and those before that its
   window reaches are still there. */
static void write_others(struct scripted_backend *self, const struct batch_sequence *sequence,
                         uint32_t position)
{
    for (uint32_t g = 1; g < self->options.groups.count; g++) {
        uint32_t window = self->options.groups.window[g];
        uint32_t first = window && position >= window ? position + 1 - window : 0;
        *slot_of(self, sequence, g, position) = *slot_of(self, sequence, 0, position);
        slot_of(self, sequence, g, position)->written = g + 1;
        for (uint32_t p = first; p <= position; p++) {
            struct slot own = *slot_of(self, sequence, g, p);
            CHECK(own.written == g + 1);
            own.written = 1;
            CHECK(memcmp(&own, slot_of(self, sequence, 0, p), sizeof own) == 0);
        }
    }
}

/* Caller holds the lock. */
static void find_script(struct scripted_backend *self, uint32_t count, struct row_state *row)
{
    const struct script *best = NULL;
    for (const struct script *script = self->scripts; script; script = script->next) {
        if (script->prompt_count <= count && (!best || script->prompt_count > best->prompt_count) &&
            memcmp(script->prompt, self->history, script->prompt_count * sizeof(uint32_t)) == 0)
            best = script;
    }
    if (best) {
        uint32_t at = count - best->prompt_count;
        row->scripted = true;
        row->forced = at < best->output_count ? best->output[at] : self->options.end_token;
        return;
    }
    if (self->options.echo_token == 0)
        return;
    /* The text between the last two echo tokens is the answer, what follows them is given already.
     */
    uint32_t marks[2], found = 0;
    for (uint32_t i = count; i-- > 0 && found < 2;) {
        if (self->history[i] == self->options.echo_token)
            marks[found++] = i;
    }
    if (found < 2)
        return;
    uint32_t given = count - 1 - marks[0];
    uint32_t length = marks[0] - marks[1] - 1;
    row->scripted = true;
    row->forced = given < length ? self->history[marks[1] + 1 + given] : self->options.end_token;
}

static void collect_row(struct scripted_backend *self, const struct batch_sequence *sequence,
                        uint32_t position, struct row_state *row)
{
    row->digest = 0;
    row->scripted = false;
    for (uint32_t i = 0; i <= position; i++) {
        const struct slot *slot = slot_of(self, sequence, 0, i);
        CHECK(slot->written == 1);
        row->digest += weigh(slot->second, i);
        self->history[i] = slot->token;
    }
    pthread_mutex_lock(&self->lock);
    find_script(self, position + 1, row);
    pthread_mutex_unlock(&self->lock);
}

static void wait_if_held(struct scripted_backend *self)
{
    pthread_mutex_lock(&self->lock);
    self->arrivals++;
    self->waiting = self->held;
    pthread_cond_broadcast(&self->changed);
    while (self->held && self->passes == 0)
        pthread_cond_wait(&self->changed, &self->lock);
    if (self->held)
        self->passes--;
    self->waiting = false;
    pthread_mutex_unlock(&self->lock);
}

static void raise_to(atomic_uint *largest, uint32_t value)
{
    if (value > atomic_load(largest))
        atomic_store(largest, value); /* one writer */
}

static void check_batch(const struct scripted_backend *self, const struct batch *batch)
{
    CHECK(batch->row_count >= 1 && batch->row_count <= self->options.max_batch_rows);
    CHECK(batch->sequence_count >= 1 && batch->sequence_count <= self->options.max_sequences);
    uint32_t row = 0;
    for (uint32_t i = 0; i < batch->sequence_count; i++) {
        const struct batch_sequence *sequence = &batch->sequences[i];
        CHECK(sequence->first_row == row && sequence->row_count >= 1);
        row += sequence->row_count;
    }
    CHECK(row == batch->row_count);
    for (uint32_t i = 0; i < batch->row_count; i++)
        CHECK(batch->tokens[i] < self->options.vocabulary);
    for (uint32_t i = 0; i < batch->logits_row_count; i++) {
        CHECK(batch->logits_rows[i] < batch->row_count);
        CHECK(i == 0 || batch->logits_rows[i] > batch->logits_rows[i - 1]);
    }
}

static void scripted_forward(struct backend *backend, const struct batch *batch)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    wait_if_held(self);
    check_batch(self, batch);
    uint64_t delay_us =
        self->options.step_delay_us + (uint64_t)self->options.row_delay_us * batch->row_count;
    if (delay_us)
        usleep((useconds_t)delay_us);
    uint32_t logits_row = 0;
    for (uint32_t i = 0; i < batch->sequence_count; i++) {
        const struct batch_sequence *sequence = &batch->sequences[i];
        uint64_t below = 0;
        for (uint32_t p = 0; p < sequence->first_position; p++) {
            const struct slot *slot = slot_of(self, sequence, 0, p);
            CHECK(slot->written == 1);
            below += weigh(slot->first, p);
        }
        for (uint32_t r = 0; r < sequence->row_count; r++) {
            uint32_t position = sequence->first_position + r;
            uint32_t row = sequence->first_row + r;
            struct slot *slot = slot_of(self, sequence, 0, position);
            slot->token = batch->tokens[row];
            slot->first = first_layer(slot->token, position);
            below += weigh(slot->first, position);
            slot->second = below;
            slot->written = 1;
            write_others(self, sequence, position);
            if (logits_row < batch->logits_row_count && batch->logits_rows[logits_row] == row)
                collect_row(self, sequence, position, &self->rows[logits_row++]);
        }
    }
    CHECK(logits_row == batch->logits_row_count);
    atomic_fetch_add(&self->forwards, 1);
    atomic_fetch_add(&self->row_total, batch->row_count);
    raise_to(&self->rows_max, batch->row_count);
    raise_to(&self->sequences_max, batch->sequence_count);
}

static void scripted_get_logits(struct backend *backend, uint32_t first, uint32_t count, float *out)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    uint32_t vocabulary = self->options.vocabulary;
    CHECK(count >= 1 && count <= self->options.logits_rows_max);
    for (uint32_t i = 0; i < count; i++) {
        const struct row_state *row = &self->rows[first + i];
        float *logits = out + (size_t)i * vocabulary;
        if (!row->scripted) {
            logits_of_digest(row->digest, vocabulary, logits);
            continue;
        }
        for (uint32_t id = 0; id < vocabulary; id++)
            logits[id] = row->forced == SCRIPTED_NAN ? NAN : 0.0f;
        if (row->forced != SCRIPTED_NAN)
            logits[row->forced] = 10000.0f; /* no penalty or temperature brings this down */
    }
}

static void scripted_copy_page(struct backend *backend, uint32_t from_page, uint32_t to_page)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    uint32_t size = self->options.page_size;
    CHECK(from_page > 0 && from_page < self->options.page_count);
    CHECK(to_page > 0 && to_page < self->options.page_count && to_page != from_page);
    memcpy(&self->slots[(size_t)to_page * size], &self->slots[(size_t)from_page * size],
           size * sizeof(struct slot));
    atomic_fetch_add(&self->copies, 1);
}

static void *scripted_page(struct backend *backend, uint32_t page)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    CHECK(page > 0 && page < self->options.page_count);
    return &self->slots[(size_t)page * self->options.page_size];
}

static void scripted_destroy(struct backend *backend)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    while (self->scripts) {
        struct script *script = self->scripts;
        self->scripts = script->next;
        free(script->prompt);
        free(script->output);
        free(script);
    }
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self->history);
    free(self->rows);
    free(self->slots);
    free(self);
}

static const struct backend_ops scripted_ops = {
    .forward = scripted_forward,
    .logits = scripted_get_logits,
    .copy_page = scripted_copy_page,
    .page = scripted_page,
    .destroy = scripted_destroy,
};

struct backend *scripted_backend_create(const struct scripted_options *options)
{
    struct scripted_backend *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    size_t slot_count = (size_t)options->page_count * options->page_size;
    self->options = *options;
    if (self->options.groups.count == 0)
        self->options.groups.count = 1;
    self->slots = calloc(slot_count, sizeof *self->slots);
    self->rows = calloc(options->max_batch_rows, sizeof *self->rows);
    self->history = calloc(slot_count, sizeof *self->history);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    self->backend = (struct backend){
        .ops = &scripted_ops,
        .name = "scripted",
        .kernels = "none",
        .kv_type = "none",
        .vocabulary = options->vocabulary,
        .page_count = options->page_count,
        .page_size = options->page_size,
        .page_bytes = options->page_size * sizeof(struct slot),
        .groups = self->options.groups,
        .max_batch_rows = options->max_batch_rows,
        .max_sequences = options->max_sequences,
        .logits_rows_max = options->logits_rows_max,
    };
    if (!self->slots || !self->rows || !self->history) {
        scripted_destroy(&self->backend);
        return NULL;
    }
    return &self->backend;
}

static uint32_t *copy_ids(const uint32_t *ids, uint32_t count)
{
    uint32_t *copy = malloc((count ? count : 1) * sizeof *copy);
    if (copy && count)
        memcpy(copy, ids, count * sizeof *copy);
    return copy;
}

bool scripted_backend_add(struct backend *backend, const uint32_t *prompt, uint32_t prompt_count,
                          const uint32_t *output, uint32_t output_count)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    struct script *script = calloc(1, sizeof *script);
    if (!script)
        return false;
    script->prompt = copy_ids(prompt, prompt_count);
    script->output = copy_ids(output, output_count);
    if (!script->prompt || !script->output) {
        free(script->prompt);
        free(script->output);
        free(script);
        return false;
    }
    script->prompt_count = prompt_count;
    script->output_count = output_count;
    pthread_mutex_lock(&self->lock);
    script->next = self->scripts;
    self->scripts = script;
    pthread_mutex_unlock(&self->lock);
    return true;
}

void scripted_backend_counts(const struct backend *backend, struct scripted_counts *out)
{
    const struct scripted_backend *self = (const struct scripted_backend *)backend;
    out->forwards = atomic_load(&self->forwards);
    out->rows = atomic_load(&self->row_total);
    out->copies = atomic_load(&self->copies);
    out->rows_max = atomic_load(&self->rows_max);
    out->sequences_max = atomic_load(&self->sequences_max);
}

void scripted_backend_hold(struct backend *backend)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    pthread_mutex_lock(&self->lock);
    self->held = true;
    pthread_mutex_unlock(&self->lock);
}

void scripted_backend_wait(struct backend *backend)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    pthread_mutex_lock(&self->lock);
    while (!self->waiting)
        pthread_cond_wait(&self->changed, &self->lock);
    pthread_mutex_unlock(&self->lock);
}

void scripted_backend_let_go(struct backend *backend)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    pthread_mutex_lock(&self->lock);
    self->held = false;
    self->passes = 0;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

void scripted_backend_pass(struct backend *backend)
{
    struct scripted_backend *self = (struct scripted_backend *)backend;
    pthread_mutex_lock(&self->lock);
    while (!self->waiting)
        pthread_cond_wait(&self->changed, &self->lock);
    uint64_t next = self->arrivals + 1;
    self->passes++;
    pthread_cond_broadcast(&self->changed);
    while (self->arrivals < next)
        pthread_cond_wait(&self->changed, &self->lock);
    pthread_mutex_unlock(&self->lock);
}
