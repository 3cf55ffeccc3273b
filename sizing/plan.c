/*
 * See plan.h. What the other accounts leave becomes the page pool, at most what max_seqs sequences
 * of full length could fill. Accounts depend on each other (rows of a step on what the weights
 * leave, the pager's tables on the number of pages), so the order in plan_make matters.
 */
#include "sizing/plan.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/costs.h"
#include "base/minmax.h"

#include <string.h>

/* Code, libraries, stacks, allocator slack, measured with a margin; plus this per thread. */
#define PROGRAM_BYTES (20 * MIB)
#define THREAD_BYTES (256 * KIB)
#define GRAMMAR_PART 5 /* of what the weights leave */
#define LOGITS_ROWS 16u
#define STEP_TARGET_MS 100u
#define BATCH_TOKENS_DEFAULT 512u
#define BATCH_TOKENS_ENCODER 8192u
#define BATCH_TOKENS_LEAST 32u
#define CONTEXT_LEAST 64u               /* a pool that holds less is refused */
#define MEMORY_MOST ((uint64_t)1 << 60) /* where looking for a budget ends */
#define CONNECTIONS_DEFAULT 1024u
#define CONNECTIONS_LEAST 64u
#define HEADER_LEAST_BYTES (32 * MIB) /* with a budget too small for any model: it is told so */

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return max_u64(least, min_u64(value, most));
}

uint64_t plan_header_bytes(const struct settings *settings)
{
    return max_u64(settings->memory_bytes / 2, HEADER_LEAST_BYTES);
}

/* A tenth of the memory at most goes to connections that may never ask anything. */
unsigned plan_connections(uint64_t total_bytes)
{
    uint64_t each = cost_http_bytes(1001) - cost_http_bytes(1000);
    return (unsigned)clamp(total_bytes / 10 / each, CONNECTIONS_LEAST, CONNECTIONS_DEFAULT);
}

/* ---- Keys and values ---- */

enum kv_type plan_kv_type(const struct settings *settings, const char *backend)
{
    enum kv_type type = KV_F16;
    if (!strcmp(backend, "openblas"))
        type = KV_F32;
    else if (settings->kv_type)
        CHECK(kv_type_parse(settings->kv_type, &type)); /* options_parse knows the same names */
    return type;
}

struct plan_kv plan_kv_served(const struct model_config *config, const struct settings *settings)
{
    return (struct plan_kv){
        .type = plan_kv_type(settings, settings->backend),
        .layers = config->layers,
        .window_layers = config->window_layers,
        .window = config->window,
        .kv_heads = config->kv_heads,
        .head_dim = config->head_dim,
        .page_size = settings->page_size,
        .grouped = true,
    };
}

/* `tokens` tokens' keys and values of `layers` layers. */
static uint64_t layers_bytes(const struct plan_kv *kv, uint32_t layers, uint32_t tokens)
{
    bool fits = kv->head_dim % kv_type_block(kv->type) == 0;
    return fits ? kv_page_bytes(kv->type, layers, kv->kv_heads, kv->head_dim, tokens) : 0;
}

uint64_t plan_kv_token_bytes(const struct plan_kv *kv)
{
    return layers_bytes(kv, kv->layers, 1);
}

static struct model_groups groups_of(const struct plan_kv *kv)
{
    return model_groups_of(kv->layers, kv->grouped ? kv->window_layers : 0, kv->window);
}

uint64_t plan_kv_page_bytes(const struct plan_kv *kv)
{
    return layers_bytes(kv, groups_of(kv).layers, kv->page_size);
}

uint64_t plan_kv_pages(const struct plan_kv *kv, uint64_t tokens)
{
    struct model_groups model = groups_of(kv);
    return kv_groups_need(&model.groups, kv->page_size, 1, tokens);
}

uint64_t plan_kv_tokens(const struct plan_kv *kv, uint64_t pages)
{
    struct model_groups model = groups_of(kv);
    return kv_groups_fit(&model.groups, kv->page_size, 1, pages);
}

/* ---- The budget ---- */

uint64_t plan_pages(const struct plan *plan, uint64_t count, uint64_t tokens)
{
    uint64_t pages;
    return bytes_multiply(count, plan_kv_pages(&plan->kv, tokens), &pages) ? pages : UINT64_MAX;
}

/* Pages of the pool that holds one sequence of `tokens` tokens from its prompt on: with windows it
   holds most while it is computed in long steps. And the null page. */
static uint64_t pool_pages(const struct plan *plan, uint64_t tokens)
{
    struct kv_groups groups = groups_of(&plan->kv).groups;
    return kv_groups_need(&groups, plan->kv.page_size, plan->backend.max_batch_rows, tokens) + 1;
}

/* Tokens of one sequence that has the whole pool. */
static uint64_t page_tokens(const struct plan *plan, uint64_t page_count)
{
    struct kv_groups groups = groups_of(&plan->kv).groups;
    return page_count > 1 ? kv_groups_fit(&groups, plan->kv.page_size, plan->backend.max_batch_rows,
                                          page_count - 1)
                          : 0;
}

/* The sizes that depend on the rows of a step and the number of pages. */
static void size_engine(const struct plan_model *model, struct plan *plan, uint32_t rows,
                        uint64_t page_count)
{
    plan->backend.max_batch_rows = rows;
    plan->backend.page_count = 0;
    model_sizes(model->gguf, model->config, &plan->backend, &plan->sizes);
    uint64_t page_bytes = plan_kv_page_bytes(&plan->kv);
    CHECK(model->kv || plan->sizes.page == page_bytes); /* the two speak of the same pages */
    plan->sizes.page = page_bytes;
    plan->engine.max_batch_tokens = rows;
    plan->shape = (struct backend){
        .vocabulary = model->config->vocabulary,
        .page_count = (uint32_t)page_count,
        .page_size = plan->backend.page_size,
        .page_bytes = page_bytes,
        .groups = groups_of(&plan->kv).groups,
        .max_batch_rows = rows,
        .max_sequences = plan->backend.max_sequences,
        .logits_rows_max = LOGITS_ROWS,
        .bidirectional = model->config->bidirectional,
    };
    plan->engine.backend = &plan->shape;
    plan->account_bytes[BUDGET_WEIGHTS] = plan->sizes.weights;
    plan->account_bytes[BUDGET_SCRATCH] = plan->sizes.scratch + engine_memory_bytes(&plan->engine);
}

/* All accounts but the pool. */
static uint64_t fixed_bytes(const struct plan *plan)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        sum += i == BUDGET_KV ? 0 : plan->account_bytes[i];
    return sum;
}

/* Rows per step: as asked, or 512 halved until its scratch is a quarter of what the weights leave.
 */
static void choose_rows(const struct plan_model *model, struct plan *plan,
                        const struct settings *settings)
{
    const uint64_t *accounts = plan->account_bytes;
    uint32_t most = BATCH_TOKENS_DEFAULT;
    if (model->config->bidirectional) /* a whole text is a step */
        most = (uint32_t)clamp(plan->wanted, BATCH_TOKENS_DEFAULT, BATCH_TOKENS_ENCODER);
    uint32_t rows = settings->max_batch_tokens ? settings->max_batch_tokens : most;
    uint64_t some_pages = plan_pages(plan, 1, CONTEXT_LEAST) + 1;
    size_engine(model, plan, rows, some_pages);
    while (!settings->max_batch_tokens && rows > BATCH_TOKENS_LEAST) {
        uint64_t held = accounts[BUDGET_WEIGHTS] + accounts[BUDGET_PROGRAM] +
                        accounts[BUDGET_TEMPLATE] + accounts[BUDGET_GRAMMAR] +
                        accounts[BUDGET_HTTP] + accounts[BUDGET_REQUESTS];
        uint64_t left = plan->total_bytes > held ? plan->total_bytes - held : 0;
        if (accounts[BUDGET_SCRATCH] <= left / 4)
            break;
        rows /= 2;
        size_engine(model, plan, rows, some_pages);
    }
}

/* Constrained output: the vocabulary, and a share for compiled grammars and matchers (0.1 to 0.3 MB
   each, some MB for long patterns). */
static uint64_t grammar_account_bytes(uint32_t vocabulary, uint64_t total)
{
    return grammar_vocabulary_memory_bytes(vocabulary) + clamp(total / 32, 4 * MIB, 256 * MIB);
}

/* It is there if it takes at most a fifth of what the weights leave. */
static bool grammars_fit(const struct plan *plan)
{
    uint64_t total = plan->total_bytes, weights = plan->account_bytes[BUDGET_WEIGHTS];
    return total > weights &&
           grammar_account_bytes(plan->shape.vocabulary, total) <= (total - weights) / GRAMMAR_PART;
}

/* The accounts that are a share of the whole. */
static void size_shares(struct plan *plan, const struct settings *settings, uint64_t total)
{
    unsigned connections =
        settings->connections_fitted ? plan_connections(total) : settings->max_connections;
    plan->account_bytes[BUDGET_TEMPLATE] = clamp(total / 64, 4 * MIB, COST_TEMPLATE_BYTES_MAX);
    plan->account_bytes[BUDGET_GRAMMAR] =
        plan->engine.grammars ? grammar_account_bytes(plan->shape.vocabulary, total) : 0;
    plan->account_bytes[BUDGET_HTTP] = settings->serves ? cost_http_bytes(connections) : 0;
    plan->account_bytes[BUDGET_REQUESTS] =
        settings->serves ? clamp(total / 12, 12 * MIB, 512 * MIB) : 8 * MIB;
}

/* `held`: beside the fixed accounts, pages or what loading needs. Says what would do: shares grow
   with the whole, so the least budget is found by trying. */
static enum status refuse_memory(struct plan *plan, const struct settings *settings, uint64_t held,
                                 struct error *error)
{
    uint64_t needed = plan->total_bytes;
    for (int i = 0; i < 40; i++) {
        size_shares(plan, settings, needed);
        needed = fixed_bytes(plan) + held;
    }
    char total[24], need[24], weights[24], rest[24], page[24];
    bytes_format(plan->total_bytes, total);
    bytes_format(needed + MIB / 10, need); /* printed with one digit: never less than needed */
    bytes_format(plan->sizes.weights, weights);
    bytes_format(fixed_bytes(plan) - plan->sizes.weights, rest);
    bytes_format(held, page);
    size_shares(plan, settings, plan->total_bytes);
    return error_set(error, STATUS_INVALID, "memory",
                     "a memory budget of %s is too small: this model needs at least %s (weights "
                     "%s, program, connections and scratch %s, and %s to load or for KV pages)",
                     total, need, weights, rest, page);
}

/* Number of pages and effective context. */
static enum status choose_pages(const struct plan_model *model, struct plan *plan,
                                const struct settings *settings, struct error *error)
{
    uint64_t total = plan->total_bytes;
    uint64_t least_tokens = min_u64(plan->wanted, CONTEXT_LEAST);
    uint64_t held = pool_pages(plan, least_tokens) * plan->sizes.page;
    /* While loading, the header and the read buffers are held as well, in place of the pages. */
    uint64_t loading =
        plan->sizes.load_transient + (model->gguf ? gguf_memory_bytes(model->gguf) : 0);
    held = max_u64(loading, held);
    if (total < fixed_bytes(plan) + held)
        return refuse_memory(plan, settings, held, error);

    /* One prompt is computed at a time, more or less. */
    uint64_t most =
        plan_pages(plan, settings->max_seqs - 1, plan->wanted) + pool_pages(plan, plan->wanted);
    if (model->config->bidirectional) /* pages of one step: none is kept beyond it */
        most = plan_pages(plan, 1, plan->backend.max_batch_rows) + settings->max_seqs + 1;
    uint64_t pages = (total - fixed_bytes(plan)) / plan->sizes.page;
    pages = min_u64(pages, min_u64(most, UINT32_MAX));
    /* The pager's own tables grow with the pages. */
    size_engine(model, plan, plan->backend.max_batch_rows, pages);
    uint64_t fixed = fixed_bytes(plan);
    uint64_t fit = total > fixed ? (total - fixed) / plan->sizes.page : 0;
    pages = min_u64(pages, fit);
    if (page_tokens(plan, pages) < least_tokens)
        return refuse_memory(plan, settings, held, error);
    uint64_t tokens = page_tokens(plan, pages);
    plan->context = (uint32_t)min_u64(tokens, plan->wanted);
    if (model->config->bidirectional)
        plan->context = min_u32(plan->context, plan->backend.max_batch_rows);
    plan->account_bytes[BUDGET_KV] = pages * plan->sizes.page;
    plan->capped = pages == most;
    if (plan->capped && settings->memory_fitted)
        plan->total_bytes =
            min_u64(total, fixed + max_u64(plan->account_bytes[BUDGET_KV], loading));
    plan->backend.page_count = (uint32_t)pages;
    plan->backend.context = plan->engine.context = plan->context;
    return STATUS_OK;
}

/* What depends on whether there is constrained output. */
static enum status size_rest(const struct plan_model *model, struct plan *plan,
                             const struct settings *settings, bool grammars, struct error *error)
{
    plan->engine.grammars = grammars;
    size_shares(plan, settings, plan->total_bytes);
    choose_rows(model, plan, settings);
    return choose_pages(model, plan, settings, error);
}

enum status plan_make(const struct plan_model *model, const struct settings *settings,
                      struct plan *out, struct error *error)
{
    uint32_t trained = model->config->context;
    uint32_t wanted = settings->context ? min_u32(settings->context, trained) : trained;
    if (model->config->bidirectional && settings->max_batch_tokens)
        wanted = min_u32(wanted, settings->max_batch_tokens);
    *out = (struct plan){
        .total_bytes = settings->memory_bytes,
        .wanted = wanted,
        .kv = model->kv ? *model->kv : plan_kv_served(model->config, settings),
        .backend = {.kernels = model->kernels,
                    .workers = model->workers,
                    .backend = settings->backend,
                    .page_size = settings->page_size,
                    .max_sequences = settings->max_seqs,
                    .logits_rows_max = LOGITS_ROWS,
                    .context = wanted},
        .engine = {.workers = model->workers,
                   .context = wanted,
                   .max_sequences = settings->max_seqs,
                   .max_queue = settings->max_queue,
                   .max_queue_tokens = settings->max_queue_tokens,
                   .key_count = settings->api_key_count,
                   .step_target_ms = STEP_TARGET_MS,
                   .prefix_cache = settings->prefix_cache,
                   .swap_dir = settings->swap_dir,
                   .swap_bytes = settings->swap_bytes,
                   .cache_dir = settings->cache_dir,
                   .cache_dir_bytes = settings->cache_dir_bytes},
    };
    out->backend.kv_type = out->kv.type;
    enum status status = model_check_kv_type(model->config, out->kv.type, error);
    if (status != STATUS_OK)
        return status;
    out->account_bytes[BUDGET_PROGRAM] =
        PROGRAM_BYTES + COST_LOG_BYTES + settings->threads * THREAD_BYTES;
    out->account_bytes[BUDGET_TOKENIZER] = model->tokenizer_bytes;
    size_engine(model, out, 1, 1); /* the weights */
    if (settings->serves && !model->config->bidirectional && !strcmp(settings->constraints, "on"))
        return size_rest(model, out, settings, true, error);
    /* Pages for at least something come before constrained output. */
    if (settings->serves && !strcmp(settings->constraints, "auto") &&
        !model->config->bidirectional && grammars_fit(out) &&
        size_rest(model, out, settings, true, NULL) == STATUS_OK)
        return STATUS_OK;
    return size_rest(model, out, settings, false, error);
}

static bool holds(const struct plan_model *model, struct settings *settings, uint64_t total,
                  uint64_t count, uint64_t tokens)
{
    struct plan plan;
    settings->memory_bytes = total;
    return plan_make(model, settings, &plan, NULL) == STATUS_OK && plan.context >= tokens &&
           plan.backend.page_count - 1 >= plan_pages(&plan, count, tokens);
}

uint64_t plan_least_bytes(const struct plan_model *model, const struct settings *settings,
                          uint64_t count, uint64_t tokens)
{
    struct settings trial = *settings;
    uint64_t below = 0, enough = 64; /* MiB */
    while (!holds(model, &trial, enough * MIB, count, tokens)) {
        below = enough;
        enough *= 2;
        if (enough > MEMORY_MOST / MIB)
            return 0;
    }
    while (enough - below > 1) {
        uint64_t middle = below + (enough - below) / 2;
        if (holds(model, &trial, middle * MIB, count, tokens))
            enough = middle;
        else
            below = middle;
    }
    return enough * MIB;
}
