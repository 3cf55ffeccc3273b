/*
 * One arithmetic, through the engine: an answer is the same however it was served.
 *
 * The answer to compare with needs no engine: for every token everything is computed again, alone,
 * with the scalar kernels, one thread, pages of 16, in one chunk. Then requests go through the real
 * engine over the quantized backend in combinations of: how many others run beside them, rows per
 * step, page size, threads, where the prompt's pages come from, preemption, kernels and sampling.
 * Tokens, log-probabilities and top log-probabilities must have the same bits, those of the
 * neighbours too. Each combination also proves that it happened (metrics, copies of pages).
 *
 * Always: a covering array in which every pair of values meets, on three made-up models, and a part
 * of it with every other type of keys and values (each has an answer of its own, computed as above)
 * and on K-quants when QUIRE_TEST_MODELS has them. QUIRE_TEST_FULL=1: every combination (but of
 * files, see product_levels) on the llama model, all pairs on the K-quants, and a sample on the
 * model of QUIRE_TEST_MODEL. Sanitizers: a part of the covering array, with QUIRE_TEST_FULL=1 all
 * of it.
 */
#include "base/bytes.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "tests/engine/constrain/byte_grammar.h"
#include "tests/engine/model/made_up.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Sanitizers run every n-th combination of the covering array, each model others. */
#if defined(__SANITIZE_THREAD__)
#define SANITIZED true
#define EVERY 12u
#define FAMILIES 1 /* the slowest by far */
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#define EVERY 4u
#define FAMILIES 3
#else
#define SANITIZED false
#define EVERY 1u
#define FAMILIES 3
#endif

#define PROMPT 75u /* more than a tile of keys and a page of 64; ends inside a page of any size */
#define ANSWER 10u
#define CONTEXT 96u /* a multiple of nothing larger than 32: tables end inside a page of 64 */
#define OTHERS 31u
#define CHOICES 3u
#define TOP 5u
#define VOCABULARY_MAX 1024u /* of byte_grammar.h */
#define WORDS (VOCABULARY_MAX / 32)
#define WARM_ANSWER 12u /* tokens of the request before: see preempt_every */

enum start { FRESH, PREFIX_HIT, SHARED, RESTART, STARTS };
enum preempted { NEVER, ONCE, ALWAYS, SWAPPED_ONCE, SWAPPED_ALWAYS, PREEMPTIONS };
static const char *const start_names[STARTS] = {"fresh", "prefix hit", "3 choices",
                                                "prefix hit after a restart"};
static const char *const preempted_names[PREEMPTIONS] = {"never preempted", "once preempted",
                                                         "at every step preempted", "once swapped",
                                                         "at every step swapped"};

/* Free, or with a grammar: every token sampled under a mask, with log-probabilities; or without
   them, so that tokens which must follow are appended at once. */
enum constraint { FREE, MASKED, FORCED, CONSTRAINTS };
static const char *const constraint_names[CONSTRAINTS] = {"free", "masked", "forced"};
#define GRAMMAR_SOURCE "[a-z](a0b0c1[0-9]d2){20}"

enum dimension {
    WITH,
    CHUNK,
    PAGE,
    THREADS,
    START,
    PREEMPT,
    KERNELS,
    SAMPLING,
    CONSTRAINT,
    DIMENSIONS
};
#define LEVELS_MAX 5u
static const uint32_t values[][LEVELS_MAX] = {
    [WITH] = {0, 1, 7, OTHERS},
    [CHUNK] = {1, 7, 64, 512},
    [PAGE] = {8, 16, 32, 64},
    [THREADS] = {1, 2, 3},
};

static struct budget budget = {
    .total_bytes = UINT64_MAX / 2,
    .cap_bytes = {[BUDGET_REQUESTS] = UINT64_MAX / 4, [BUDGET_GRAMMAR] = UINT64_MAX / 4},
};

struct combination {
    uint32_t at[DIMENSIONS];
};

struct request {
    uint32_t prompt[PROMPT], prompt_count, choice_count, answer_count;
    float temperature;
    uint64_t seed;
    bool use_cache;
    enum constraint constraint;
    struct sampled_token wanted[CHOICES][ANSWER];
};

/* What is compared: one model and what it answers. */
static struct {
    char path[256];
    enum kv_type kv_type;
    const struct kernels *const *kernels; /* NULL-terminated, those that are tried */
    uint32_t levels[DIMENSIONS];
    uint32_t vocabulary;
    uint32_t groups;           /* of pages */
    struct request ours[2][2]; /* greedy, at a temperature; free, with a grammar */
    struct grammar *grammar;   /* NULL: the vocabulary is too large for the tests' one */
    struct request others[OTHERS];
} model;

static bool is_full(void)
{
    const char *full = getenv("QUIRE_TEST_FULL");
    return full && *full && strcmp(full, "0") != 0;
}

/* ---- a backend, with its pages' copies counted ---- */

struct served {
    struct gguf *gguf;
    struct model_config config;
    struct workers *workers;
    struct backend *backend;
    const struct backend_ops *ops; /* the backend's own */
};

static const struct backend_ops *counted_ops;
static uint32_t copies;

static void count_copy(struct backend *backend, uint32_t from_page, uint32_t to_page)
{
    copies++;
    counted_ops->copy_page(backend, from_page, to_page);
}

static void serve(struct served *served, const struct kernels *kernels, unsigned threads,
                  uint32_t page_size, uint32_t page_count)
{
    static struct backend_ops ops;
    struct error error;
    ck_assert_msg(gguf_open(model.path, &served->gguf, &error) == STATUS_OK, "%s", error.message);
    ck_assert_msg(model_describe(served->gguf, &served->config, &error) == STATUS_OK, "%s",
                  error.message);
    ck_assert(workers_create(threads, &served->workers, &error) == STATUS_OK);
    struct backend_options options = {
        .kernels = kernels,
        .workers = served->workers,
        .backend = "quantized",
        .kv_type = model.kv_type,
        .page_size = page_size,
        .page_count = page_count,
        .max_batch_rows = 512,
        .max_sequences = OTHERS + CHOICES,
        .logits_rows_max = 5,
        .context = CONTEXT,
    };
    ck_assert_msg(model_backend_create(served->gguf, &served->config, &options, NULL, NULL,
                                       &served->backend, &error) == STATUS_OK,
                  "%s", error.message);
    counted_ops = served->backend->ops;
    ops = *counted_ops;
    ops.copy_page = count_copy;
    served->backend->ops = &ops;
    copies = 0;
}

static void serve_end(struct served *served)
{
    served->backend->ops->destroy(served->backend);
    workers_destroy(served->workers);
    gguf_close(served->gguf);
}

/* ---- the answers, computed without engine, pager or batch ---- */

static struct sampling_params params_of(const struct request *request)
{
    return (struct sampling_params){
        .temperature = request->temperature,
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = request->seed,
    };
}

static void answer_naively(struct backend *backend, struct request *request, uint32_t choice)
{
    uint32_t tokens[CONTEXT], pages[KV_GROUPS_MAX * CONTEXT / 16];
    struct sampling_params params = params_of(request);
    uint64_t bytes = (sampler_workspace_bytes(backend->vocabulary) + 63) & ~(uint64_t)63;
    void *workspace = aligned_alloc(64, bytes);
    float *logits = malloc(backend->vocabulary * sizeof *logits);
    uint32_t allowed[WORDS];
    struct grammar_matcher *matcher =
        request->constraint == FREE ? NULL : grammar_matcher_create(model.grammar);
    ck_assert(workspace && logits && (matcher != NULL) == (request->constraint != FREE));
    memcpy(tokens, request->prompt, request->prompt_count * sizeof *tokens);
    for (uint32_t i = 0; i < KV_GROUPS_MAX * CONTEXT / 16; i++)
        pages[i] = 1 + i;
    for (uint32_t i = 0; i < request->answer_count; i++) {
        uint32_t count = request->prompt_count + i, last = count - 1;
        struct batch_sequence all = {0, count, 0, pages, CONTEXT / 16, CONTEXT / 16};
        struct batch batch = {count, tokens, 1, &all, 1, &last};
        backend->ops->forward(backend, &batch);
        backend->ops->logits(backend, 0, 1, logits);
        struct sampler_row row = {
            .logits = logits,
            .vocabulary = backend->vocabulary,
            .params = &params,
            .tokens = tokens,
            .token_count = count,
            .prompt_count = request->prompt_count,
            .choice = choice,
            .top_logprobs = TOP,
            .want_logprob = true,
            .allowed = matcher ? allowed : NULL,
        };
        ck_assert(!matcher || grammar_matcher_mask(matcher, allowed, WORDS));
        struct sampled_token *out = &request->wanted[choice][i];
        bool ended = false;
        ck_assert(sampler_sample(&row, workspace, out));
        ck_assert(!matcher || grammar_matcher_accept(matcher, &out->token, 1, &ended));
        ck_assert(!ended);
        tokens[count] = out->token;
    }
    grammar_matcher_destroy(matcher);
    free(workspace);
    free(logits);
}

static void make_request(struct request *request, uint32_t number, uint32_t prompt_count,
                         uint32_t answer_count, float temperature)
{
    *request = (struct request){
        .prompt_count = prompt_count,
        .choice_count = 1,
        .answer_count = answer_count,
        .temperature = temperature,
        .seed = 1000 + number,
        .use_cache = number % 2 == 1,
    };
    for (uint32_t i = 0; i < prompt_count; i++)
        request->prompt[i] = (i * 61 + number * 101 + i * i * 7) % model.vocabulary;
}

static void make_grammar(void)
{
    model.grammar = NULL;
    if (model.vocabulary > VOCABULARY_MAX)
        return;
    byte_grammar_init(&budget, model.vocabulary, model.vocabulary - 1);
    model.grammar = byte_grammar_compile(GRAMMAR_REGEX, GRAMMAR_SOURCE);
    model.levels[CONSTRAINT] = CONSTRAINTS;
}

/* The model's own answers. The first of `kernels` computes them. */
static void expect(const struct kernels *const *kernels)
{
    struct served served;
    uint32_t kernel_count = 0;
    while (kernels[kernel_count])
        kernel_count++;
    ck_assert(kernel_count >= 1 && kernel_count <= LEVELS_MAX);
    model.kernels = kernels;
    const uint32_t levels[DIMENSIONS] = {
        [WITH] = 4,
        [CHUNK] = 4,
        [PAGE] = 4,
        [THREADS] = 3,
        [START] = STARTS,
        [PREEMPT] = PREEMPTIONS,
        [KERNELS] = kernel_count,
        [SAMPLING] = 2,
        [CONSTRAINT] = 1,
    };
    memcpy(model.levels, levels, sizeof levels);
    serve(&served, kernels[0], 1, 16, 1 + KV_GROUPS_MAX * CONTEXT / 16);
    model.vocabulary = served.backend->vocabulary;
    model.groups = served.backend->groups.count;
    make_grammar();
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t g = 0; g < (model.grammar ? 2u : 1u); g++) {
            struct request *ours = &model.ours[i][g];
            make_request(ours, 100, PROMPT, ANSWER, i ? 0.8f : 0);
            ours->constraint = g ? MASKED : FREE;
            for (uint32_t choice = 0; choice < CHOICES; choice++)
                answer_naively(served.backend, ours, choice);
        }
    }
    for (uint32_t i = 0; i < OTHERS; i++) {
        make_request(&model.others[i], i, 1 + i * 5 % 17, 2 + i * 3 % 7, i % 3 ? 0.8f : 0);
        answer_naively(served.backend, &model.others[i], 0);
    }
    serve_end(&served);
    /* The test can fail: choices and temperatures do not all say the same. */
    ck_assert_uint_eq(model.ours[0][0].wanted[0][ANSWER - 1].token,
                      model.ours[0][0].wanted[2][ANSWER - 1].token);
    uint32_t different = 0;
    for (uint32_t i = 0; i < ANSWER; i++) {
        different += model.ours[1][0].wanted[0][i].token != model.ours[1][0].wanted[1][i].token;
        different += model.ours[1][0].wanted[0][i].token != model.ours[0][0].wanted[0][i].token;
    }
    ck_assert_uint_ge(different, 2);
}

/* ---- one combination ---- */

static uint32_t value(const struct combination *c, enum dimension dimension)
{
    return values[dimension][c->at[dimension]];
}

static bool is_once(const struct combination *c)
{
    return c->at[PREEMPT] == ONCE || c->at[PREEMPT] == SWAPPED_ONCE;
}

static bool is_swapped(const struct combination *c)
{
    return c->at[PREEMPT] == SWAPPED_ONCE || c->at[PREEMPT] == SWAPPED_ALWAYS;
}

static const char *describe(const struct combination *c)
{
    static char text[512];
    snprintf(text, sizeof text,
             "%s, %s: with %u others, %u rows a step, pages of %u, %u threads, %s, %s, %s "
             "kernels, %s, %s",
             model.path, kv_type_name(model.kv_type), value(c, WITH), value(c, CHUNK),
             value(c, PAGE), value(c, THREADS), start_names[c->at[START]],
             preempted_names[c->at[PREEMPT]], model.kernels[c->at[KERNELS]]->name,
             c->at[SAMPLING] ? "temperature 0.8" : "greedy", constraint_names[c->at[CONSTRAINT]]);
    return text;
}

static struct completion *completion_for(const struct request *request)
{
    struct completion_spec spec = {
        .tokens = request->prompt,
        .token_count = request->prompt_count,
        .choice_count = request->choice_count,
        .max_tokens = request->answer_count,
        .sampling = params_of(request),
        .ignore_eos = true,
        .use_prefix_cache = request->use_cache,
        .want_logprobs = request->constraint != FORCED,
        .top_logprobs = TOP,
        .grammar = request->constraint == FREE ? NULL : model.grammar,
    };
    struct completion *completion;
    struct error error;
    ck_assert(completion_create(&spec, &budget, &completion, &error) == STATUS_OK);
    return completion;
}

static void finish(struct completion *completion, const struct request *request,
                   const struct combination *c, const char *who)
{
    while (!completion_done(completion))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    for (uint32_t choice = 0; choice < request->choice_count; choice++) {
        const struct completion_token *tokens;
        ck_assert(completion_reason(completion, choice) == FINISH_LENGTH);
        ck_assert_uint_eq(completion_read(completion, choice, 0, &tokens), request->answer_count);
        for (uint32_t i = 0; i < request->answer_count; i++) {
            const struct sampled_token *wanted = &request->wanted[choice][i];
            uint32_t top_count;
            const struct top_logprob *top = completion_top(completion, choice, i, &top_count);
            ck_assert_msg(tokens[i].token == wanted->token,
                          "%s\n%s, choice %u, token %u: %u, not %u", describe(c), who, choice, i,
                          tokens[i].token, wanted->token);
            if (request->constraint == FORCED)
                continue;
            ck_assert_msg(memcmp(&tokens[i].logprob, &wanted->logprob, sizeof(float)) == 0,
                          "%s\n%s, choice %u, token %u: log-probability %a, not %a", describe(c),
                          who, choice, i, (double)tokens[i].logprob, (double)wanted->logprob);
            ck_assert_uint_eq(top_count, TOP);
            ck_assert_msg(memcmp(top, wanted->top, TOP * sizeof *top) == 0,
                          "%s\n%s, choice %u, token %u: other top log-probabilities", describe(c),
                          who, choice, i);
        }
    }
    completion_release(completion);
}

static uint32_t steps_for(uint32_t rows, const struct combination *c)
{
    return (rows + value(c, CHUNK) - 1) / value(c, CHUNK);
}

static bool finds_prefix(const struct combination *c)
{
    return c->at[START] == PREFIX_HIT || c->at[START] == RESTART;
}

static uint32_t cached_tokens(const struct combination *c)
{
    return finds_prefix(c) ? (PROMPT - 1) / value(c, PAGE) * value(c, PAGE) : 0;
}

/* The hook preempts whoever was so least often, then the oldest. For once it must strike while
   ours, then the oldest, is in the midst of its answer; and not again before its end: the request
   that ran before has made more steps than computing the answer's tokens again takes. */
static uint32_t preempt_every(const struct combination *c)
{
    if (!is_once(c))
        return c->at[PREEMPT] != NEVER;
    uint32_t before = steps_for(PROMPT, c) + WARM_ANSWER - 1;
    /* With tokens that are appended at once the answer has a few steps only. */
    uint32_t steps = c->at[CONSTRAINT] == FORCED ? 1 : ANSWER / 2;
    return before + steps_for(PROMPT - cached_tokens(c), c) + steps;
}

static void check_happened(const struct combination *c, const struct engine_metrics *metrics)
{
    const char *text = describe(c);
    uint64_t preemptions = metric_get(&metrics->preemptions);
    uint64_t together = metric_get(&metrics->step_sequences_max);
    uint64_t rows = metric_get(&metrics->step_rows_max);
    bool alone = value(c, WITH) == 0 && c->at[START] != SHARED;
    if (c->at[PREEMPT] == NEVER)
        ck_assert_msg(preemptions == 0, "%s", text);
    else if (is_once(c))
        ck_assert_msg(alone ? preemptions == 1 : preemptions >= 1, "%s: %u", text,
                      (unsigned)preemptions);
    else
        ck_assert_msg(preemptions >= (c->at[CONSTRAINT] == FORCED ? 2u : ANSWER - 1), "%s: %u",
                      text, (unsigned)preemptions);
    /* Never lost; brought back unless all of it is in the prefix cache still, at a page's end. */
    uint64_t outs = metric_get(&metrics->swap_outs), ins = metric_get(&metrics->swap_ins);
    ck_assert_msg(outs == (is_swapped(c) ? preemptions : 0), "%s: %u left", text, (unsigned)outs);
    ck_assert_msg(ins <= outs && 2 * ins + 1 >= outs, "%s: %u came back", text, (unsigned)ins);
    ck_assert_msg(metrics->swap_used_bytes == 0, "%s: slots were lost", text);
    ck_assert_msg(rows <= value(c, CHUNK), "%s: %u rows", text, (unsigned)rows);
    ck_assert_msg(rows == value(c, CHUNK) || value(c, CHUNK) == 512, "%s: %u rows", text,
                  (unsigned)rows);
    if (alone || value(c, CHUNK) == 1)
        ck_assert_msg(together == 1, "%s: %u together", text, (unsigned)together);
    else
        ck_assert_msg(together >= 2, "%s: %u together", text, (unsigned)together);
    ck_assert_msg(c->at[START] != SHARED || copies >= 1, "%s: no page was split", text);
    ck_assert_msg(c->at[START] == SHARED || copies == 0, "%s: %u pages were split", text, copies);
    ck_assert_msg(metrics->pages_free == metrics->pages_total, "%s: pages were lost", text);
}

static void submit(struct engine *engine, struct completion **completions, uint32_t count)
{
    struct error error;
    ck_assert_msg(engine_submit(engine, completions, count, &error) == STATUS_OK, "%s",
                  error.message);
}

/* A request before: the same prompt for a prefix hit, or another one. */
static void warm(struct engine *engine, bool same)
{
    struct request before = model.ours[0][0];
    before.use_cache = true;
    before.answer_count = WARM_ANSWER;
    for (uint32_t i = 0; !same && i < PROMPT; i++)
        before.prompt[i] = (before.prompt[i] + 1) % model.vocabulary;
    struct completion *completion = completion_for(&before);
    submit(engine, &completion, 1);
    while (!completion_done(completion) || engine_in_flight(engine) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    completion_release(completion);
}

static void run_requests(struct engine *engine, const struct combination *c)
{
    static struct request ours;
    struct completion *completions[OTHERS + 1];
    const struct request *requests[OTHERS + 1];
    uint32_t count = value(c, WITH) + 1;
    uint32_t place = is_once(c) ? 0 : value(c, WITH) / 2;
    ours = model.ours[c->at[SAMPLING]][c->at[CONSTRAINT] != FREE];
    ours.constraint = c->at[CONSTRAINT];
    ours.choice_count = c->at[START] == SHARED ? CHOICES : 1;
    ours.use_cache = finds_prefix(c);
    for (uint32_t i = 0; i < count; i++) {
        requests[i] = i == place ? &ours : &model.others[i < place ? i : i - 1];
        completions[i] = completion_for(requests[i]);
    }
    submit(engine, completions, count);
    for (uint32_t i = 0; i < count; i++) {
        char who[24];
        snprintf(who, sizeof who, i == place ? "ours" : "neighbour %u", i);
        while (!completion_done(completions[i]))
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        if (i == place)
            ck_assert_msg(completion_cached_count(completions[i]) == cached_tokens(c),
                          "%s: %u tokens from the cache", describe(c),
                          completion_cached_count(completions[i]));
        finish(completions[i], requests[i], c, who);
    }
}

/* `directory`: where prefixes survive, or NULL. */
static struct engine *start_engine(struct served *served, const struct combination *c,
                                   const struct kernels *kernels, unsigned threads,
                                   uint32_t preempt, const char *directory)
{
    struct engine *engine;
    struct error error;
    uint32_t each = (CONTEXT + value(c, PAGE) - 1) / value(c, PAGE);
    serve(served, kernels, threads, value(c, PAGE),
          1 + (each * (CHOICES + OTHERS + 2) + OTHERS) * model.groups);
    struct engine_options options = {
        .backend = served->backend,
        .workers = served->workers,
        .context = CONTEXT,
        .max_batch_tokens = value(c, CHUNK),
        .max_sequences = OTHERS + CHOICES,
        .max_queue = OTHERS + 1,
        .grammars = true,
        .prefix_cache = true,
        .check_every_step = true,
        .test_preempt_every = preempt,
        .test_swap = true,
        .swap_dir = is_swapped(c) ? "/tmp" : NULL,
        .swap_bytes = MIB * 64,
        .cache_dir = directory,
    };
    ck_assert_msg(engine_create(&options, &engine, &error) == STATUS_OK, "%s", error.message);
    return engine;
}

/* An earlier process, with other kernels and threads, computed our prompt. */
static void run_before(const struct combination *c, const char *directory)
{
    struct served served;
    uint32_t kernels = (c->at[KERNELS] + 1) % model.levels[KERNELS];
    unsigned threads = value(c, THREADS) % 3 + 1;
    struct engine *engine = start_engine(&served, c, model.kernels[kernels], threads, 0, directory);
    warm(engine, true);
    engine_destroy(engine);
    serve_end(&served);
}

static void run(const struct combination *c)
{
    struct served served;
    char directory[] = "/tmp/quire-matrix-XXXXXX", path[64];
    bool restart = c->at[START] == RESTART;
    if (restart) {
        ck_assert_ptr_nonnull(mkdtemp(directory));
        run_before(c, directory);
    }
    struct engine *engine =
        start_engine(&served, c, model.kernels[c->at[KERNELS]], value(c, THREADS), preempt_every(c),
                     restart ? directory : NULL);
    warm(engine, c->at[START] == PREFIX_HIT);
    run_requests(engine, c);
    while (engine_in_flight(engine) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    check_happened(c, engine_metrics(engine));
    engine_destroy(engine);
    serve_end(&served);
    if (restart) {
        snprintf(path, sizeof path, "%s/quire.pages", directory);
        unlink(path);
        rmdir(directory);
    }
    ck_assert_uint_eq(atomic_load(&budget.used_bytes[BUDGET_REQUESTS]), 0);
}

/* ---- which combinations ---- */

struct cover {
    bool met[DIMENSIONS][LEVELS_MAX][DIMENSIONS][LEVELS_MAX];
    uint32_t missing;
    uint32_t random;
};

static uint32_t below(struct cover *cover, uint32_t limit)
{
    cover->random = cover->random * 1664525u + 1013904223u;
    return (cover->random >> 8) % limit;
}

/* Pairs that the combination would add; `known` are the dimensions that have a value. */
static uint32_t gain(const struct cover *cover, const struct combination *c, unsigned known)
{
    uint32_t sum = 0;
    for (uint32_t a = 0; a < DIMENSIONS; a++)
        for (uint32_t b = a + 1; b < DIMENSIONS; b++)
            if ((known >> a & 1) && (known >> b & 1))
                sum += !cover->met[a][c->at[a]][b][c->at[b]];
    return sum;
}

/* Dimensions in random order, each taking the value that meets most; ties at random. */
static struct combination propose(struct cover *cover)
{
    struct combination c = {{0}};
    unsigned known = 0;
    while (known != (1u << DIMENSIONS) - 1) {
        uint32_t d = below(cover, DIMENSIONS);
        if (known >> d & 1)
            continue;
        known |= 1u << d;
        uint32_t best = 0, best_gain = 0, offset = below(cover, model.levels[d]);
        for (uint32_t i = 0; i < model.levels[d]; i++) {
            c.at[d] = (i + offset) % model.levels[d];
            uint32_t now = gain(cover, &c, known);
            if (i == 0 || now > best_gain) {
                best = c.at[d];
                best_gain = now;
            }
        }
        c.at[d] = best;
    }
    return c;
}

static void take(struct cover *cover, const struct combination *c)
{
    cover->missing -= gain(cover, c, (1u << DIMENSIONS) - 1);
    for (uint32_t a = 0; a < DIMENSIONS; a++)
        for (uint32_t b = a + 1; b < DIMENSIONS; b++)
            cover->met[a][c->at[a]][b][c->at[b]] = true;
}

#define COVERING_MAX 64u

/* Every pair of values in at least one combination; returns how many combinations. */
static uint32_t covering_array(struct combination *out)
{
    static struct cover cover;
    memset(&cover, 0, sizeof cover);
    cover.random = 20;
    for (uint32_t a = 0; a < DIMENSIONS; a++)
        for (uint32_t b = a + 1; b < DIMENSIONS; b++)
            cover.missing += model.levels[a] * model.levels[b];
    uint32_t count = 0;
    while (cover.missing > 0) {
        struct combination best = propose(&cover);
        for (uint32_t i = 0; i < 50; i++) {
            struct combination other = propose(&cover);
            if (gain(&cover, &other, (1u << DIMENSIONS) - 1) >
                gain(&cover, &best, (1u << DIMENSIONS) - 1))
                best = other;
        }
        take(&cover, &best);
        ck_assert_uint_lt(count, COVERING_MAX);
        out[count++] = best;
    }
    return count;
}

/* Every pair is really there: counted another way than it was made. */
static void check_covers(const struct combination *all, uint32_t count)
{
    for (uint32_t a = 0; a < DIMENSIONS; a++)
        for (uint32_t b = a + 1; b < DIMENSIONS; b++)
            for (uint32_t pair = 0; pair < model.levels[a] * model.levels[b]; pair++) {
                bool found = false;
                for (uint32_t i = 0; i < count; i++)
                    found |= all[i].at[a] + all[i].at[b] * model.levels[a] == pair;
                ck_assert_msg(found, "dimensions %u and %u: pair %u is in no combination", a, b,
                              pair);
            }
}

static void run_pairs(uint32_t first, uint32_t stride)
{
    struct combination all[COVERING_MAX];
    uint32_t count = covering_array(all);
    check_covers(all, count);
    for (uint32_t i = first; i < count; i += stride)
        run(&all[i]);
}

/* ---- tests ---- */

static void use_made_up(const char *family, enum kv_type kv_type)
{
    struct made_up spec = made_up_default(strcmp(family, "llama") ? FORMAT_Q8_0 : FORMAT_Q4_1);
    spec.family = family;
    spec.embedding_format = FORMAT_Q8_0;
    model.kv_type = kv_type;
    /* Some would only repeat a token if the embeddings were their output. */
    spec.separate_output = strcmp(family, "gemma3") == 0 || kv_type != KV_F16;
    if (kv_type_block(kv_type) > spec.head_dim)
        spec.head_dim = kv_type_block(kv_type);
    if (strcmp(family, "gemma3") == 0) { /* six layers with a window, one that sees all */
        spec.window = 20;
        spec.layers = 7;
    }
    char path[64];
    made_up_write(&spec, path);
    snprintf(model.path, sizeof model.path, "%s", path);
    expect(kernels_available());
}

START_TEST(every_pair_gives_the_same_bits)
{
    static const char *const families[] = {"llama", "qwen2", "gemma3"};
    use_made_up(families[_i], KV_F16);
    if (!is_full())
        run_pairs((uint32_t)_i * 3 % EVERY, EVERY);
    else
        run_pairs(0, 1);
    unlink(model.path);
}
END_TEST

/* Of the covering array each type runs another part. */
START_TEST(every_kv_type_gives_the_same_bits)
{
    static const struct {
        enum kv_type type;
        const char *family;
    } cases[] = {{KV_Q8_0, "llama"}, {KV_Q4_0, "gemma3"}, {KV_F32, "qwen2"}, {KV_BF16, "llama"}};
    use_made_up(cases[_i].family, cases[_i].type);
    if (!is_full())
        run_pairs((uint32_t)_i, 4 * EVERY);
    else
        run_pairs(0, 1);
    unlink(model.path);
}
END_TEST

/* Levels in the whole product. Pages that come from a file, and grammars, meet everything else in
   pairs: with them it would take an hour. */
static uint32_t product_levels(enum dimension d)
{
    return d == START        ? RESTART
           : d == PREEMPT    ? SWAPPED_ONCE
           : d == CONSTRAINT ? 1
                             : model.levels[d];
}

/* One kernel set and page size; all the rest of the product. */
START_TEST(the_whole_product_gives_the_same_bits)
{
    use_made_up("llama", KV_F16);
    struct combination c = {{0}};
    uint32_t kernels = (uint32_t)_i / model.levels[PAGE], ran = 0, total = 1;
    if (kernels < model.levels[KERNELS]) { /* else this CPU lacks them */
        for (uint32_t d = 0; d < DIMENSIONS; d++)
            total *= d == KERNELS || d == PAGE ? 1 : product_levels(d);
        for (uint32_t number = 0; number < total; number++, ran++) {
            uint32_t rest = number;
            for (uint32_t d = 0; d < DIMENSIONS; d++) {
                if (d == KERNELS || d == PAGE)
                    continue;
                c.at[d] = rest % product_levels(d);
                rest /= product_levels(d);
            }
            c.at[KERNELS] = kernels;
            c.at[PAGE] = (uint32_t)_i % model.levels[PAGE];
            run(&c);
        }
        ck_assert_uint_eq(ran, 4 * 4 * 3 * RESTART * SWAPPED_ONCE * 2);
    }
    unlink(model.path);
}
END_TEST

/* K-quants, from the models that tests/reference/make_models.py wrote. */
START_TEST(k_quants_give_the_same_bits)
{
    static const char *const names[] = {"llama-q4_k", "llama-q6_k"};
    snprintf(model.path, sizeof model.path, "%s/%s.gguf", getenv("QUIRE_TEST_MODELS"), names[_i]);
    expect(kernels_available());
    run_pairs(is_full() ? 0 : (uint32_t)_i, is_full() ? 1 : 3);
}
END_TEST

/* A sample of the covering array on a real model, without the scalar kernels: they take minutes. */
START_TEST(a_real_model_gives_the_same_bits)
{
    const struct kernels *const *kernels = kernels_available();
    snprintf(model.path, sizeof model.path, "%s", getenv("QUIRE_TEST_MODEL"));
    expect(kernels[1] ? kernels + 1 : kernels);
    run_pairs(0, 3);
}
END_TEST

int main(void)
{
    log_init(LOG_TEXT, LOG_WARN);
    TCase *tcase = tcase_create("matrix");
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, every_pair_gives_the_same_bits, 0, FAMILIES);
    tcase_add_loop_test(tcase, every_kv_type_gives_the_same_bits, 0, KV_TYPES - 1);
    if (getenv("QUIRE_TEST_MODELS") && (is_full() || !SANITIZED))
        tcase_add_loop_test(tcase, k_quants_give_the_same_bits, 0, 2);
    if (is_full() && !SANITIZED) {
        tcase_add_loop_test(tcase, the_whole_product_gives_the_same_bits, 0, 4 * 4);
        if (getenv("QUIRE_TEST_MODEL"))
            tcase_add_test(tcase, a_real_model_gives_the_same_bits);
    }
    Suite *suite = suite_create("matrix");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
