/*
 * The sampler: see sampler.h for what it promises.
 *
 * Every cut (top_k, top_p, min_p) keeps a prefix of the candidates in order (logit descending, id
 * ascending), and the draw walks that order. Sorting a vocabulary would cost more than the rest
 * together, so it is not done: candidates go into buckets by how far they lie below the largest,
 * each bucket knows its sum, and only the bucket where a cut or the draw falls is sorted. With
 * top_k a heap holds the k best instead.
 *
 * Weights are relative to the largest, exp((logit − max)/T), by a polynomial of plain float
 * multiplications and additions: no fused ones, so that the same bits come out of every compiler's
 * vectorization on every CPU (math_exp's fmaf would be a library call each on a baseline build).
 * Sums are doubles in an order that is fixed by the code, never by the machine.
 */
#include "engine/sample/sampler.h"

#include "base/check.h"
#include "engine/kernels/math.h"
#include "engine/sample/philox.h"

#include <math.h>
#include <string.h>

#define BUCKETS 2048u
#define GREEDY_BELOW 1e-5f
#define FARTHEST 40.0f /* e^-40 of the largest: what lies below shares the last bucket */
#define LANES 16u

/* One row's scratch; lies in the caller's workspace. */
struct scratch {
    double bucket_sums[BUCKETS];
    float *weights;    /* [vocabulary] */
    uint16_t *buckets; /* [vocabulary] */
    float *raw;        /* [vocabulary]: the logits as they came, for log probabilities */
    uint64_t *items;   /* [vocabulary]: candidates as item_of makes them */
};

static uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

uint64_t sampler_workspace_bytes(uint32_t vocabulary)
{
    return align64(sizeof(struct scratch)) + 2 * align64((uint64_t)vocabulary * sizeof(float)) +
           align64((uint64_t)vocabulary * sizeof(uint16_t)) +
           align64((uint64_t)vocabulary * sizeof(uint64_t));
}

static struct scratch *scratch_place(void *workspace, uint32_t vocabulary)
{
    CHECK(((uintptr_t)workspace & 63) == 0);
    struct scratch *scratch = workspace;
    char *at = (char *)workspace + align64(sizeof *scratch);
    scratch->weights = (float *)at;
    at += align64((uint64_t)vocabulary * sizeof(float));
    scratch->buckets = (uint16_t *)at;
    at += align64((uint64_t)vocabulary * sizeof(uint16_t));
    scratch->raw = (float *)at;
    at += align64((uint64_t)vocabulary * sizeof(float));
    scratch->items = (uint64_t *)at;
    return scratch;
}

/* ---- Candidates in order: the better, the smaller the number. ---- */

static uint64_t item_of(float logit, uint32_t token)
{
    uint32_t bits;
    logit += 0.0f; /* -0 and 0 are the same logit */
    memcpy(&bits, &logit, sizeof bits);
    uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)~ascending << 32 | token;
}

static uint32_t item_token(uint64_t item)
{
    return (uint32_t)item;
}

/* Max-heap: sink items[at] to its place among `count`. */
static void heap_sink(uint64_t *items, uint32_t at, uint32_t count)
{
    uint64_t item = items[at];
    for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && items[child + 1] > items[child])
            child++;
        if (items[child] <= item)
            break;
        items[at] = items[child];
        at = child;
    }
    items[at] = item;
}

/* Ascending, in place and without memory (qsort may allocate). */
static void sort_items(uint64_t *items, uint32_t count)
{
    if (count <= 24) {
        for (uint32_t i = 1; i < count; i++) {
            uint64_t item = items[i];
            uint32_t at = i;
            for (; at > 0 && items[at - 1] > item; --at)
                items[at] = items[at - 1];
            items[at] = item;
        }
        return;
    }
    for (uint32_t i = count / 2; i-- > 0;)
        heap_sink(items, i, count);
    for (uint32_t end = count - 1; end > 0; --end) {
        uint64_t item = items[end];
        items[end] = items[0];
        items[0] = item;
        heap_sink(items, 0, end);
    }
}

/* ---- Passes over the row. ---- */

/* Largest and smallest finite logit. False when one is NaN or +inf, or all are -inf. */
static bool find_range(const float *logits, uint32_t count, float *largest, float *smallest)
{
    float high[LANES], low[LANES];
    uint32_t bad[LANES] = {0};
    for (uint32_t lane = 0; lane < LANES; lane++) {
        high[lane] = -__builtin_inff();
        low[lane] = __builtin_inff();
    }
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            float x = logits[i + lane];
            bad[lane] |= !(x < __builtin_inff());
            high[lane] = x > high[lane] ? x : high[lane];
            float finite = x > -__builtin_inff() ? x : __builtin_inff();
            low[lane] = finite < low[lane] ? finite : low[lane];
        }
    }
    for (uint32_t lane = 0; i < count; i++, lane++) {
        float x = logits[i];
        bad[lane] |= !(x < __builtin_inff());
        high[lane] = x > high[lane] ? x : high[lane];
        if (x > -__builtin_inff() && x < low[lane])
            low[lane] = x;
    }
    uint32_t any_bad = 0;
    *largest = -__builtin_inff();
    *smallest = __builtin_inff();
    for (uint32_t lane = 0; lane < LANES; lane++) {
        any_bad |= bad[lane];
        *largest = high[lane] > *largest ? high[lane] : *largest;
        *smallest = low[lane] < *smallest ? low[lane] : *smallest;
    }
    return any_bad == 0 && *largest > -__builtin_inff();
}

/* e^z for z <= 0, within 2e-7; e^0 is exactly 1, below -87 it is 0. e^z = 2^n · e^r with
   |r| <= ln(2)/2 and Taylor's polynomial of degree 7 for e^r. */
static inline float weight_of(float z)
{
    float x = z > -87.0f ? z : -87.0f;
    float shifted = x * 0x1.715476p+0f + 0x1.8p23f; /* 1.5·2^23: rounds to an integer */
    float n = shifted - 0x1.8p23f;
    float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return z > -87.0f ? p * power : 0.0f;
}

static void fill_weights(const float *logits, uint32_t count, float largest, float inverse,
                         float *weights)
{
    for (uint32_t i = 0; i < count; i++)
        weights[i] = weight_of((logits[i] - largest) * inverse);
}

static double sum_weights(const float *weights, uint32_t count)
{
    double sums[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++)
            sums[lane] += (double)weights[i + lane];
    for (uint32_t lane = 0; i < count; i++, lane++)
        sums[lane] += (double)weights[i];
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

/* ---- Log probabilities, from the logits as they came. ---- */

/* The `wanted` best, in order, into out->top; `norm` is log_sum's. */
static void find_top(const float *logits, uint32_t count, uint32_t wanted, double norm,
                     struct sampled_token *out)
{
    uint64_t best[LIMIT_LOGPROBS];
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t item = item_of(logits[i], i);
        if (found == wanted && item > best[found - 1])
            continue;
        uint32_t at = found < wanted ? found++ : found - 1;
        for (; at > 0 && best[at - 1] > item; --at)
            best[at] = best[at - 1];
        best[at] = item;
    }
    for (uint32_t i = 0; i < found; i++) {
        out->top[i].token = item_token(best[i]);
        out->top[i].logprob = (float)((double)logits[item_token(best[i])] - norm);
    }
    out->top_count = found;
}

/* log Σ exp(logit). */
static bool log_sum(const struct sampler_row *row, struct scratch *scratch, double *out)
{
    float largest, smallest;
    if (!find_range(row->logits, row->vocabulary, &largest, &smallest))
        return false;
    fill_weights(row->logits, row->vocabulary, largest, 1.0f, scratch->weights);
    double sum = sum_weights(scratch->weights, row->vocabulary);
    *out = (double)largest + math_log_double(sum);
    return true;
}

/* ---- Changing logits. ---- */

static float penalized(const struct sampling_params *params, float logit, uint32_t count)
{
    if (params->repetition_penalty != 1.0f)
        logit =
            logit > 0.0f ? logit / params->repetition_penalty : logit * params->repetition_penalty;
    if (count > 0)
        logit -= params->presence_penalty + params->frequency_penalty * (float)count;
    return logit;
}

/* counts[token] is 1 + how often it was generated, 0 for tokens that are not in the sequence; each
   is used once and set to 0. */
static void apply_penalties(const struct sampler_row *row, uint32_t *counts)
{
    const struct sampling_params *params = row->params;
    if (params->repetition_penalty == 1.0f && params->presence_penalty == 0.0f &&
        params->frequency_penalty == 0.0f)
        return;
    memset(counts, 0, row->vocabulary * sizeof *counts);
    uint32_t first = params->repetition_penalty != 1.0f ? 0 : row->prompt_count;
    for (uint32_t i = first; i < row->token_count; i++) {
        uint32_t token = row->tokens[i];
        if (token >= row->vocabulary)
            continue;
        if (counts[token] == 0)
            counts[token] = 1;
        counts[token] += i >= row->prompt_count ? 1 : 0;
    }
    for (uint32_t i = first; i < row->token_count; i++) {
        uint32_t token = row->tokens[i];
        if (token >= row->vocabulary || counts[token] == 0)
            continue;
        row->logits[token] = penalized(params, row->logits[token], counts[token] - 1);
        counts[token] = 0;
    }
}

/* Not to be drawn. False when a NaN would be hidden. */
static bool ban(const struct sampler_row *row, uint32_t token)
{
    if (token >= row->vocabulary)
        return true;
    if (__builtin_isnan(row->logits[token]))
        return false;
    row->logits[token] = -__builtin_inff();
    return true;
}

/* Whether the generated tokens end with words[0..count). */
static bool ends_with(const struct sampler_row *row, const uint32_t *words, uint32_t count)
{
    return row->token_count - row->prompt_count >= count &&
           (count == 0 ||
            memcmp(row->tokens + row->token_count - count, words, count * sizeof *words) == 0);
}

static void keep_only(const struct sampler_row *row, const uint32_t *allowed, uint32_t words)
{
    for (uint32_t token = 0; token < row->vocabulary; ++token) {
        if (token / 32 >= words || !(allowed[token / 32] >> token % 32 & 1u))
            row->logits[token] = -__builtin_inff();
    }
}

/* False when a NaN would be hidden. */
static bool apply_rules(const struct sampler_row *row)
{
    const struct token_rules *rules = row->rules;
    bool good = true;
    if (!rules)
        return true;
    if (row->token_count - row->prompt_count < rules->min_tokens)
        for (uint32_t i = 0; i < rules->stop_count; i++)
            good &= ban(row, rules->stop_tokens[i]);
    for (uint32_t i = 0, first = 0; i < rules->bad_count; first = rules->bad_ends[i++]) {
        uint32_t last = rules->bad_ends[i] - 1;
        if (ends_with(row, rules->bad_tokens + first, last - first))
            good &= ban(row, rules->bad_tokens[last]);
    }
    if (rules->allowed)
        keep_only(row, rules->allowed, rules->allowed_words);
    return good;
}

/* False when a NaN would be hidden. */
static bool apply_bias_and_bans(const struct sampler_row *row)
{
    const struct sampling_params *params = row->params;
    for (uint32_t i = 0; i < params->logit_bias_count; i++) {
        uint32_t token = params->logit_bias[i].token;
        if (token < row->vocabulary)
            row->logits[token] += params->logit_bias[i].bias;
    }
    bool good = true;
    for (uint32_t i = 0; i < row->banned_count; i++)
        good &= ban(row, row->banned[i]);
    good &= apply_rules(row);
    if (row->allowed)
        keep_only(row, row->allowed, UINT32_MAX);
    return good;
}

/* top_n_sigma; *smallest is that of what is left. */
static void cut_by_sigma(const struct sampler_row *row, float largest, float *smallest)
{
    double sum = 0, squares = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < row->vocabulary; i++) {
        if (!(row->logits[i] > -__builtin_inff()))
            continue;
        double below = (double)largest - (double)row->logits[i];
        sum += below;
        squares += below * below;
        count++;
    }
    double mean = sum / count, variance = squares / count - mean * mean;
    double cut = (double)row->params->top_n_sigma * sqrt(variance > 0 ? variance : 0);
    for (uint32_t i = 0; i < row->vocabulary; i++) {
        if ((double)largest - (double)row->logits[i] > cut)
            row->logits[i] = -__builtin_inff();
    }
    *smallest = *smallest > largest - (float)cut ? *smallest : largest - (float)cut;
}

/* typical_p at the temperature that `inverse` is one over. */
static void cut_to_typical(const struct sampler_row *row, struct scratch *scratch, float largest,
                           float inverse)
{
    uint32_t count = row->vocabulary;
    fill_weights(row->logits, count, largest, inverse, scratch->weights);
    double total = sum_weights(scratch->weights, count), entropy = 0;
    double log_total = math_log_double(total); /* -ln p = ln total - z */
    for (uint32_t i = 0; i < count; i++) {
        double weight = (double)scratch->weights[i];
        if (weight > 0)
            entropy +=
                weight / total * (log_total - (double)((row->logits[i] - largest) * inverse));
    }
    for (uint32_t i = 0; i < count; i++) {
        double surprise = log_total - (double)((row->logits[i] - largest) * inverse);
        double away = surprise > entropy ? surprise - entropy : entropy - surprise;
        scratch->items[i] = item_of(-(float)away, i);
    }
    sort_items(scratch->items, count);
    double kept = 0, enough = (double)row->params->typical_p * total;
    uint32_t end = 0, least = row->params->min_keep > 1 ? row->params->min_keep : 1;
    for (; end < count && (end < least || kept < enough); end++)
        kept += (double)scratch->weights[item_token(scratch->items[end])];
    for (; end < count; end++)
        row->logits[item_token(scratch->items[end])] = -__builtin_inff();
}

/* ---- Choosing. ---- */

/* One pass: the largest logit, of equal ones the least id. */
static bool choose_greedy(const struct sampler_row *row, uint32_t *token)
{
    float best = -__builtin_inff();
    uint32_t best_token = UINT32_MAX;
    bool bad = false;
    for (uint32_t i = 0; i < row->vocabulary; i++) {
        float logit = row->logits[i];
        bad |= !(logit < __builtin_inff());
        if (logit > best) {
            best = logit;
            best_token = i;
        }
    }
    *token = best_token;
    return !bad && best_token != UINT32_MAX;
}

/* Candidates in `items` in order, weights by their place: cut by top_p and min_p, then draw. */
static uint32_t draw_in_order(const struct sampling_params *params, const uint64_t *items,
                              const float *weights, uint32_t count, double uniform)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += (double)weights[i];
    double enough = (double)params->top_p * total;
    double kept = 0;
    uint32_t end = 0;
    while (end < count &&
           (end == 0 || (weights[end] > 0.0f &&
                         (end < params->min_keep || (weights[end] >= params->min_p &&
                                                     (params->top_p >= 1.0f || kept < enough))))))
        kept += (double)weights[end++];
    double target = uniform * kept, sum = 0;
    for (uint32_t i = 0; i < end; i++) {
        sum += (double)weights[i];
        if (sum > target)
            return item_token(items[i]);
    }
    return item_token(items[end - 1]);
}

/* The k best through a heap whose top is the worst of them. */
static uint32_t choose_of_top_k(const struct sampler_row *row, struct scratch *scratch,
                                float largest, float inverse, double uniform)
{
    uint64_t *items = scratch->items;
    bool cut = row->params->top_k > 0 && row->params->top_k < row->vocabulary;
    uint32_t k = cut ? row->params->top_k : row->vocabulary;
    for (uint32_t i = 0; i < k; i++)
        items[i] = item_of(row->logits[i], i);
    for (uint32_t i = k / 2; i-- > 0;)
        heap_sink(items, i, k);
    float worst = row->logits[item_token(items[0])];
    for (uint32_t i = k; i < row->vocabulary; i++) {
        /* Of equal logits the least id is better, and that is in already. */
        if (!(row->logits[i] > worst))
            continue;
        items[0] = item_of(row->logits[i], i);
        heap_sink(items, 0, k);
        worst = row->logits[item_token(items[0])];
    }
    sort_items(items, k);
    for (uint32_t i = 0; i < k; i++)
        scratch->weights[i] = weight_of((row->logits[item_token(items[i])] - largest) * inverse);
    return draw_in_order(row->params, items, scratch->weights, k, uniform);
}

/* A place in the order of all candidates: `count` of bucket `bucket` lie before it, and `sum` is
   the weight of all before it. */
struct place {
    uint32_t bucket;
    uint32_t count;
    double sum;
};

/* Fill items with bucket b's candidates, in order; returns how many. */
static uint32_t sort_bucket(const struct sampler_row *row, struct scratch *scratch, uint32_t bucket)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < row->vocabulary; i++)
        if (scratch->buckets[i] == bucket)
            scratch->items[count++] = item_of(row->logits[i], i);
    sort_items(scratch->items, count);
    return count;
}

static void fill_buckets(const struct sampler_row *row, struct scratch *scratch, float largest,
                         float smallest, float inverse)
{
    float span = (largest - smallest) * inverse;
    if (!(span < FARTHEST))
        span = FARTHEST;
    float scale = (float)(BUCKETS - 1) / span;
    if (!(scale < 0x1p100f)) /* all but equal at this temperature: one bucket */
        scale = 0.0f;
    fill_weights(row->logits, row->vocabulary, largest, inverse, scratch->weights);
    for (uint32_t i = 0; i < row->vocabulary; i++) {
        float below = (largest - row->logits[i]) * inverse * scale;
        below = below < (float)(BUCKETS - 1) ? below : (float)(BUCKETS - 1);
        scratch->buckets[i] = (uint16_t)(int32_t)below;
    }
    memset(scratch->bucket_sums, 0, sizeof scratch->bucket_sums);
    for (uint32_t i = 0; i < row->vocabulary; i++)
        scratch->bucket_sums[scratch->buckets[i]] += (double)scratch->weights[i];
}

/* The place after the first candidate whose running sum is at least (or, `above`, more than)
   `target`; `*last` is that candidate. The end of the order when there is none. */
static struct place find_sum(const struct sampler_row *row, struct scratch *scratch, double target,
                             bool above, uint32_t *last)
{
    struct place place = {0, 0, 0};
    for (; place.bucket < BUCKETS - 1; place.bucket++) {
        double sum = place.sum + scratch->bucket_sums[place.bucket];
        if (above ? sum > target : sum >= target)
            break;
        place.sum = sum;
    }
    for (; place.bucket < BUCKETS; place.bucket++, place.count = 0) {
        uint32_t count = sort_bucket(row, scratch, place.bucket);
        while (place.count < count) {
            uint32_t token = item_token(scratch->items[place.count]);
            if (scratch->weights[token] <= 0.0f)
                return place;
            *last = token;
            place.count++;
            place.sum += (double)scratch->weights[token];
            if (above ? place.sum > target : place.sum >= target)
                return place;
        }
        /* Rounding: the bucket's sum was made in another order and said it would be reached. */
    }
    return place;
}

/* The place before the first candidate whose weight is under min_p, from a bucket on that surely
   lies before it. */
static struct place find_weight(const struct sampler_row *row, struct scratch *scratch)
{
    float min_p = row->params->min_p;
    struct place place = {0, 0, 0};
    uint32_t under = BUCKETS; /* the first bucket that holds such a candidate */
    for (uint32_t i = 0; i < row->vocabulary; i++)
        if (scratch->weights[i] < min_p && scratch->buckets[i] < under)
            under = scratch->buckets[i];
    for (; place.bucket < under && place.bucket < BUCKETS; place.bucket++)
        place.sum += scratch->bucket_sums[place.bucket];
    if (under == BUCKETS)
        return place;
    uint32_t count = sort_bucket(row, scratch, under);
    while (place.count < count) {
        float weight = scratch->weights[item_token(scratch->items[place.count])];
        if (weight < min_p)
            break;
        place.sum += (double)weight;
        place.count++;
    }
    return place;
}

/* The last candidate before a place; the order before it is not empty. */
static uint32_t last_before(const struct sampler_row *row, struct scratch *scratch,
                            struct place place)
{
    while (place.count == 0) {
        CHECK(place.bucket > 0);
        place.count = sort_bucket(row, scratch, --place.bucket);
    }
    sort_bucket(row, scratch, place.bucket);
    return item_token(scratch->items[place.count - 1]);
}

static uint32_t choose_of_all(const struct sampler_row *row, struct scratch *scratch, float largest,
                              float smallest, float inverse, double uniform)
{
    fill_buckets(row, scratch, largest, smallest, inverse);
    double total = 0;
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++)
        total += scratch->bucket_sums[bucket];
    struct place end = {BUCKETS, 0, total};
    uint32_t token = UINT32_MAX;
    if (row->params->top_p < 1.0f)
        end = find_sum(row, scratch, (double)row->params->top_p * total, false, &token);
    if (row->params->min_p > 0.0f) {
        struct place other = find_weight(row, scratch);
        if (other.bucket < end.bucket || (other.bucket == end.bucket && other.count < end.count))
            end = other;
    }
    struct place drawn = find_sum(row, scratch, uniform * end.sum, true, &token);
    /* Only rounding in the last bit can carry the draw past the end. */
    if (drawn.bucket > end.bucket || (drawn.bucket == end.bucket && drawn.count > end.count))
        token = last_before(row, scratch, end);
    return token;
}

static bool choose(const struct sampler_row *row, struct scratch *scratch, uint32_t *token)
{
    const struct sampling_params *params = row->params;
    if (params->temperature < GREEDY_BELOW || params->top_k == 1 || params->top_p <= 0.0f)
        return choose_greedy(row, token);
    float largest, smallest;
    if (!find_range(row->logits, row->vocabulary, &largest, &smallest))
        return false;
    if (params->top_n_sigma > 0)
        cut_by_sigma(row, largest, &smallest);
    float inverse = 1.0f / (params->temperature < 1e30f ? params->temperature : 1e30f);
    if (params->typical_p > 0.0f && params->typical_p < 1.0f) {
        cut_to_typical(row, scratch, largest, inverse);
        if (!find_range(row->logits, row->vocabulary, &largest, &smallest))
            return false;
    }
    double uniform =
        philox_uniform(params->seed, row->choice, row->token_count - row->prompt_count, 0);
    if ((params->top_k > 0 && params->top_k < row->vocabulary) || params->min_keep > 1)
        *token = choose_of_top_k(row, scratch, largest, inverse, uniform);
    else
        *token = choose_of_all(row, scratch, largest, smallest, inverse, uniform);
    return true;
}

bool sampler_sample(const struct sampler_row *row, void *workspace, struct sampled_token *out)
{
    CHECK(row->vocabulary > 0 && row->prompt_count <= row->token_count);
    CHECK(row->top_logprobs <= LIMIT_LOGPROBS);
    struct scratch *scratch = scratch_place(workspace, row->vocabulary);
    out->logprob = 0.0f;
    out->top_count = 0;
    bool wanted = row->want_logprob || row->top_logprobs > 0;
    double norm = 0;
    if (wanted) {
        if (!log_sum(row, scratch, &norm))
            return false;
        if (row->top_logprobs > 0)
            find_top(row->logits, row->vocabulary, row->top_logprobs, norm, out);
        memcpy(scratch->raw, row->logits, row->vocabulary * sizeof(float));
    }
    if (!apply_bias_and_bans(row))
        return false;
    apply_penalties(row, (uint32_t *)scratch->items);
    if (!choose(row, scratch, &out->token))
        return false;
    if (wanted)
        out->logprob = (float)((double)scratch->raw[out->token] - norm);
    return true;
}
