/*
 * The sampler against a naive one in double (sort everything, sum everything), against the
 * published vectors of Philox, and against the distributions it promises. All seeds are fixed.
 */
#include "base/clock.h"
#include "engine/sample/philox.h"
#include "engine/sample/sampler.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define V_MAX 4096u

static uint64_t random_state;

static void random_seed(uint64_t seed)
{
    random_state = seed * 2 + 1;
}

static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static double random_unit(void)
{
    return (double)random_u32() / 4294967296.0;
}

/* Roughly normal, as logits are. */
static float random_logit(double spread)
{
    double sum = 0;
    for (int i = 0; i < 6; i++)
        sum += random_unit() - 0.5;
    return (float)(sum * 1.41 * spread);
}

static const struct sampling_params neutral = {
    .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 42};

static void *new_workspace(uint32_t vocabulary)
{
    uint64_t bytes = sampler_workspace_bytes(vocabulary);
    void *workspace = aligned_alloc(64, bytes);
    memset(workspace, 0xa5, bytes);
    return workspace;
}

/* Sample a copy of the logits. */
static bool sample(const float *logits, uint32_t vocabulary, const struct sampling_params *params,
                   uint32_t position, struct sampled_token *out)
{
    static float copy[V_MAX];
    static uint32_t tokens[V_MAX];
    memcpy(copy, logits, vocabulary * sizeof *copy);
    void *workspace = new_workspace(vocabulary);
    struct sampler_row row = {.logits = copy,
                              .vocabulary = vocabulary,
                              .params = params,
                              .tokens = tokens,
                              .token_count = position + 1,
                              .prompt_count = 1};
    bool ok = sampler_sample(&row, workspace, out);
    free(workspace);
    return ok;
}

/* ---- The naive sampler. ---- */

struct naive {
    uint32_t order[V_MAX];
    double weight[V_MAX]; /* in order */
    uint32_t kept;
    double sum;    /* of what is kept */
    double margin; /* distance of the nearest cut to a tie, relative */
};

static const float *naive_logits;

static int naive_compare(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    if (naive_logits[left] != naive_logits[right])
        return naive_logits[left] > naive_logits[right] ? -1 : 1;
    return left < right ? -1 : 1;
}

static double naive_away[V_MAX];

static int naive_compare_away(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    if (naive_away[left] != naive_away[right])
        return naive_away[left] < naive_away[right] ? -1 : 1;
    return left < right ? -1 : 1;
}

/* What top_n_sigma and typical_p leave of the logits; the rest is -inf. By their definitions. */
static void naive_reduce(const float *logits, uint32_t vocabulary,
                         const struct sampling_params *params, float *left, double *margin)
{
    double largest = -INFINITY, mean = 0, variance = 0, total = 0, entropy = 0;
    memcpy(left, logits, vocabulary * sizeof *left);
    for (uint32_t i = 0; i < vocabulary; i++) {
        largest = fmax(largest, (double)logits[i]);
        mean += (double)logits[i] / vocabulary;
    }
    for (uint32_t i = 0; i < vocabulary; i++)
        variance += ((double)logits[i] - mean) * ((double)logits[i] - mean) / vocabulary;
    double cut = largest - (double)params->top_n_sigma * sqrt(variance);
    for (uint32_t i = 0; i < vocabulary && params->top_n_sigma > 0; i++) {
        *margin = fmin(*margin, fabs((double)logits[i] - cut));
        left[i] = (double)logits[i] >= cut ? logits[i] : -INFINITY;
    }
    if (params->typical_p >= 1)
        return;
    static double p[V_MAX];
    static uint32_t order[V_MAX];
    for (uint32_t i = 0; i < vocabulary; i++)
        total += p[i] = exp(((double)left[i] - largest) / (double)params->temperature);
    for (uint32_t i = 0; i < vocabulary; i++)
        entropy -= (p[i] /= total) > 0 ? p[i] * log(p[i]) : 0;
    for (uint32_t i = 0; i < vocabulary; i++) {
        order[i] = i;
        naive_away[i] = fabs(-log(p[i]) - entropy);
    }
    qsort(order, vocabulary, sizeof *order, naive_compare_away);
    double sum = 0;
    uint32_t kept = 0, least = params->min_keep > 1 ? params->min_keep : 1;
    for (; kept < vocabulary && (kept < least || sum < (double)params->typical_p); kept++) {
        sum += p[order[kept]];
        *margin = fmin(*margin, fabs(sum - (double)params->typical_p));
    }
    if (kept < vocabulary && naive_away[order[kept]] < INFINITY)
        *margin = fmin(*margin, naive_away[order[kept]] - naive_away[order[kept - 1]]);
    for (; kept < vocabulary; kept++)
        left[order[kept]] = -INFINITY;
}

static void naive_cut(const float *all, uint32_t vocabulary, const struct sampling_params *params,
                      struct naive *out)
{
    static float logits[V_MAX];
    double margin = 1;
    naive_reduce(all, vocabulary, params, logits, &margin);
    for (uint32_t i = 0; i < vocabulary; i++)
        out->order[i] = i;
    naive_logits = logits;
    qsort(out->order, vocabulary, sizeof *out->order, naive_compare);
    uint32_t count = vocabulary;
    if (params->top_k > 0 && params->top_k < count)
        count = params->top_k;
    double total = 0;
    for (uint32_t i = 0; i < count; i++) {
        double z = ((double)logits[out->order[i]] - (double)logits[out->order[0]]) /
                   (double)params->temperature;
        out->weight[i] = exp(z);
        total += out->weight[i];
    }
    out->kept = 0;
    out->sum = 0;
    out->margin = margin;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 && out->weight[i] <= 0)
            break;
        if (i > 0 && i < params->min_keep) {
            out->sum += out->weight[i];
            out->kept = i + 1;
            continue;
        }
        if (params->top_p < 1) {
            double distance = fabs(out->sum / total - (double)params->top_p);
            out->margin = fmin(out->margin, i > 0 ? distance : 1);
            if (i > 0 && out->sum >= (double)params->top_p * total)
                break;
        }
        if (params->min_p > 0 && i > 0) {
            out->margin = fmin(out->margin, fabs(out->weight[i] - (double)params->min_p));
            if (out->weight[i] < (double)params->min_p)
                break;
        }
        out->sum += out->weight[i];
        out->kept = i + 1;
    }
}

/* The drawn token must own the interval in which the uniform number falls, give or take what float
   weights may be off. */
static void assert_draw(const struct naive *naive, double uniform, uint32_t token, int round)
{
    double target = uniform * naive->sum, sum = 0;
    for (uint32_t i = 0; i < naive->kept; i++) {
        double after = sum + naive->weight[i];
        if (naive->order[i] == token) {
            ck_assert_msg(target >= sum - 2e-6 * naive->sum && target <= after + 2e-6 * naive->sum,
                          "round %d: token %u owns %g … %g, drawn at %g", round, token, sum, after,
                          target);
            return;
        }
        sum = after;
    }
    ck_abort_msg("round %d: token %u was cut away", round, token);
}

static void random_params(struct sampling_params *params)
{
    static const float temperatures[] = {0.05f, 0.3f, 0.8f, 1, 1.5f, 2, 50, 1e30f};
    static const uint32_t top_ks[] = {0, 0, 0, 2, 5, 40, 500, 5000, 1000000000};
    static const float top_ps[] = {1, 1, 1, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 1e-9f};
    static const float min_ps[] = {0, 0, 0, 0.001f, 0.05f, 0.5f, 1};
    *params = neutral;
    params->temperature = temperatures[random_u32() % 8];
    params->top_k = top_ks[random_u32() % 9];
    params->top_p = top_ps[random_u32() % 9];
    params->min_p = min_ps[random_u32() % 7];
    static const float typical_ps[] = {1, 1, 1, 0.2f, 0.9f};
    static const float sigmas[] = {0, 0, -1, 0.5f, 2};
    static const uint32_t min_keeps[] = {0, 0, 1, 3, 300};
    params->typical_p = typical_ps[random_u32() % 5];
    params->top_n_sigma = sigmas[random_u32() % 5];
    params->min_keep = min_keeps[random_u32() % 5];
    params->seed = (uint64_t)random_u32() << 32 | random_u32();
}

START_TEST(test_against_naive)
{
    static float logits[V_MAX];
    static struct naive naive;
    random_seed(1);
    int compared = 0;
    for (int round = 0; round < 4000; round++) {
        uint32_t vocabulary = 1 + random_u32() % (round % 10 == 0 ? V_MAX : 200);
        double spread = random_u32() % 4 == 0 ? 20 : 3;
        for (uint32_t i = 0; i < vocabulary; i++)
            logits[i] = random_logit(spread);
        if (round % 3 == 0) /* ties */
            for (uint32_t i = 0; i < vocabulary; i++)
                logits[i] = (float)(int)logits[i];
        struct sampling_params params;
        random_params(&params);
        struct sampled_token out;
        uint32_t position = random_u32() % 1000;
        ck_assert(sample(logits, vocabulary, &params, position, &out));
        ck_assert_uint_lt(out.token, vocabulary);
        naive_cut(logits, vocabulary, &params, &naive);
        if (naive.margin < 1e-5)
            continue;
        compared++;
        assert_draw(&naive, philox_uniform(params.seed, 0, position, 0), out.token, round);
    }
    ck_assert_int_gt(compared, 3000);
}
END_TEST

/* Bits 0 … 7 of the counter-based generator itself. Vectors: Random123's kat_vectors. */
START_TEST(test_philox_vectors)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint32_t out[4];
        philox_4x32_10(vectors[i].counter, vectors[i].key, out);
        ck_assert_mem_eq(out, vectors[i].out, sizeof out);
    }
    double sum = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        double u = philox_uniform(7, 1, i, 0);
        ck_assert(u >= 0 && u < 1);
        sum += u;
    }
    ck_assert_double_eq_tol(sum / 10000, 0.5, 0.01);
    ck_assert(philox_uniform(1, 0, 0, 0) != philox_uniform(1, 1, 0, 0));
    ck_assert(philox_uniform(1, 0, 0, 0) != philox_uniform(1, 0, 0, 1));
    ck_assert(philox_uniform(1, 0, 0, 0) != philox_uniform(1ull << 32, 0, 0, 0));
}
END_TEST

/* Chi-square of 20000 draws against probabilities; 8 classes, limit at p = 1e-4. */
static void assert_distribution(const float *logits, const struct sampling_params *params,
                                const double expected[static 8])
{
    enum { DRAWS = 20000 };
    uint32_t seen[8] = {0};
    void *workspace = new_workspace(8);
    static uint32_t tokens[DRAWS + 1];
    for (uint32_t position = 0; position < DRAWS; position++) {
        float copy[8];
        memcpy(copy, logits, sizeof copy);
        struct sampler_row row = {.logits = copy,
                                  .vocabulary = 8,
                                  .params = params,
                                  .tokens = tokens,
                                  .token_count = position + 1,
                                  .prompt_count = 1};
        struct sampled_token out;
        ck_assert(sampler_sample(&row, workspace, &out));
        seen[out.token]++;
    }
    free(workspace);
    double chi = 0;
    for (int i = 0; i < 8; i++) {
        double wanted = expected[i] * DRAWS;
        if (expected[i] == 0)
            ck_assert_uint_eq(seen[i], 0);
        else
            chi += ((double)seen[i] - wanted) * ((double)seen[i] - wanted) / wanted;
    }
    ck_assert_msg(chi < 29.9, "chi-square %g", chi);
}

static void softmax8(const float *logits, double temperature, const bool kept[static 8],
                     double out[static 8])
{
    double sum = 0;
    for (int i = 0; i < 8; i++)
        sum += out[i] = kept[i] ? exp((double)logits[i] / temperature) : 0;
    for (int i = 0; i < 8; i++)
        out[i] /= sum;
}

START_TEST(test_distributions)
{
    const float logits[8] = {0.5f, -1, 2, 1.5f, -3, 0, 1, 0.25f};
    const bool all[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const bool best3[8] = {0, 0, 1, 1, 0, 0, 1, 0};
    double expected[8];
    struct sampling_params params = neutral;
    softmax8(logits, 1, all, expected);
    assert_distribution(logits, &params, expected);
    params.temperature = 2;
    softmax8(logits, 2, all, expected);
    assert_distribution(logits, &params, expected);
    params.temperature = 0.7f;
    params.seed = 1;
    softmax8(logits, 0.7, all, expected);
    assert_distribution(logits, &params, expected);
    params = neutral;
    params.top_k = 3;
    softmax8(logits, 1, best3, expected);
    assert_distribution(logits, &params, expected);
    params = neutral;
    params.top_p = 0.7f; /* 0.402, 0.646, 0.794 are the running sums */
    assert_distribution(logits, &params, expected);
    params = neutral;
    params.min_p = 0.3f; /* e^-1 = 0.37 and e^-1.5 = 0.22 of the largest */
    assert_distribution(logits, &params, expected);
    params = neutral;
    params.seed = UINT64_MAX;
    const struct logit_bias bias[] = {{4, 3.0f}, {2, -100.0f}, {100, 5.0f}};
    params.logit_bias = bias;
    params.logit_bias_count = 3;
    const float biased[8] = {0.5f, -1, -98, 1.5f, 0, 0, 1, 0.25f};
    softmax8(biased, 1, all, expected);
    expected[2] = 0;
    assert_distribution(logits, &params, expected);
}
END_TEST

START_TEST(test_greedy)
{
    static float logits[1000];
    random_seed(2);
    static const float temperatures[] = {0.0f, -0.0f, 1e-45f, 1e-6f, 9e-6f, 1, 1, 1};
    static const uint32_t top_ks[] = {0, 0, 0, 40, 0, 1, 0, 1};
    static const float top_ps[] = {1, 0.5f, 1, 1, 1, 1, 0, 0.1f};
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < 1000; i++)
            logits[i] = (float)(random_u32() % 500); /* many ties */
        uint32_t best = 0;
        for (uint32_t i = 1; i < 1000; i++)
            if (logits[i] > logits[best])
                best = i;
        struct sampling_params params = neutral;
        params.temperature = temperatures[round % 8];
        params.top_k = top_ks[round % 8];
        params.top_p = top_ps[round % 8];
        params.seed = random_u32();
        struct sampled_token out;
        ck_assert(sample(logits, 1000, &params, 3, &out));
        ck_assert_uint_eq(out.token, best);
        /* A tiny top_p, a large min_p and a small temperature come to the same. */
        logits[best] += 1;
        params = neutral;
        params.seed = random_u32();
        params.top_p = round % 3 == 0 ? 1e-9f : 1;
        params.min_p = round % 3 == 1 ? 1 : 0;
        params.temperature = round % 3 == 2 ? 1e-4f : 1;
        ck_assert(sample(logits, 1000, &params, 3, &out));
        ck_assert_uint_eq(out.token, best);
    }
}
END_TEST

START_TEST(test_bad_logits)
{
    static float logits[500];
    struct sampled_token out;
    static const float bad[] = {NAN, -NAN, INFINITY};
    for (int kind = 0; kind < 3; kind++) {
        for (uint32_t at = 0; at < 500; at += 83) {
            for (int mode = 0; mode < 4; mode++) {
                random_seed(at + 1);
                for (int i = 0; i < 500; i++)
                    logits[i] = random_logit(3);
                logits[at] = bad[kind];
                struct sampling_params params = neutral;
                params.temperature = mode == 0 ? 0 : 1;
                params.top_k = mode == 2 ? 5 : 0;
                params.top_p = mode == 3 ? 0.5f : 1;
                ck_assert(!sample(logits, 500, &params, 0, &out));
            }
        }
    }
    for (int i = 0; i < 500; i++)
        logits[i] = -INFINITY;
    struct sampling_params params = neutral;
    ck_assert(!sample(logits, 500, &params, 0, &out));
    params.temperature = 0;
    ck_assert(!sample(logits, 500, &params, 0, &out));
    /* One possible token is always the one. */
    logits[77] = -1e30f;
    for (int mode = 0; mode < 4; mode++) {
        params = neutral;
        params.temperature = mode == 0 ? 0 : mode == 1 ? 1e30f : 1;
        params.top_k = mode == 2 ? 5 : 0;
        params.top_p = mode == 3 ? 0.5f : 1;
        ck_assert(sample(logits, 500, &params, 0, &out));
        ck_assert_uint_eq(out.token, 77);
    }
}
END_TEST

START_TEST(test_bans_and_extreme_bias)
{
    float logits[6];
    const uint32_t banned[] = {5, 4, 900};
    const struct logit_bias bias[] = {{3, -INFINITY}, {0, -1e38f}};
    struct sampling_params params = neutral;
    params.logit_bias = bias;
    params.logit_bias_count = 2;
    void *workspace = new_workspace(6);
    uint32_t seen[6] = {0};
    for (uint32_t position = 0; position < 2000; position++) {
        params.temperature = position % 4 == 0 ? 0 : 1;
        params.top_k = position % 4 == 2 ? 3 : 0;
        params.top_p = position % 4 == 3 ? 0.9f : 1;
        for (int i = 0; i < 6; i++)
            logits[i] = (float)i * 0.1f;
        uint32_t tokens[1] = {0};
        struct sampler_row row = {.logits = logits,
                                  .vocabulary = 6,
                                  .params = &params,
                                  .tokens = tokens,
                                  .token_count = 1,
                                  .prompt_count = 1,
                                  .choice = position,
                                  .banned = banned,
                                  .banned_count = 3};
        struct sampled_token out;
        ck_assert(sampler_sample(&row, workspace, &out));
        seen[out.token]++;
    }
    ck_assert_uint_gt(seen[1], 300);
    ck_assert_uint_gt(seen[2], 800);
    ck_assert_uint_eq(seen[1] + seen[2], 2000);
    /* Nothing left. */
    const uint32_t everything[] = {0, 1, 2, 3, 4, 5};
    for (int i = 0; i < 6; i++)
        logits[i] = 1;
    uint32_t tokens[1] = {0};
    struct sampler_row row = {.logits = logits,
                              .vocabulary = 6,
                              .params = &params,
                              .tokens = tokens,
                              .token_count = 1,
                              .prompt_count = 1,
                              .banned = everything,
                              .banned_count = 6};
    struct sampled_token out;
    ck_assert(!sampler_sample(&row, workspace, &out));
    /* A ban does not hide a NaN. */
    for (int i = 0; i < 6; i++)
        logits[i] = 1;
    logits[5] = NAN;
    row.banned = banned;
    row.banned_count = 3;
    ck_assert(!sampler_sample(&row, workspace, &out));
    free(workspace);
}
END_TEST

/* B31: every combination of extreme values gives a token. */
/* Stop tokens before min_tokens, ends of bad words, what is not allowed: never drawn. */
START_TEST(test_token_rules)
{
    enum { V = 64 };
    static const uint32_t stops[] = {60, 3}, bad[] = {7, 1, 2, 9, 2}, ends[] = {1, 3, 5},
                          allowed[] = {0x0000ffffu, 0x80000000u};
    const struct token_rules rules = {.min_tokens = 3,
                                      .stop_tokens = stops,
                                      .stop_count = 2,
                                      .bad_tokens = bad,
                                      .bad_ends = ends,
                                      .bad_count = 3,
                                      .allowed = allowed,
                                      .allowed_words = 2};
    struct sampling_params params = neutral;
    void *workspace = new_workspace(V);
    for (int round = 0; round < 4000; round++) {
        float logits[V];
        uint32_t tokens[6], generated = random_u32() % 5;
        bool seen[V] = {false};
        for (uint32_t i = 0; i < V; i++)
            logits[i] = random_logit(3);
        for (uint32_t i = 0; i < 6; i++)
            tokens[i] = random_u32() % 3 == 0 ? 9 : 1;
        struct sampler_row row = {.logits = logits,
                                  .vocabulary = V,
                                  .params = &params,
                                  .tokens = tokens,
                                  .token_count = 1 + generated,
                                  .prompt_count = 1,
                                  .rules = &rules};
        struct sampled_token out;
        params.seed = (uint64_t)round;
        ck_assert(sampler_sample(&row, workspace, &out));
        uint32_t last = generated ? tokens[generated] : 0;
        for (uint32_t i = 0; i < V; i++)
            seen[i] = i < 16 || i == 63;
        seen[7] = false;
        seen[3] = generated >= 3;
        seen[2] = last != 1 && last != 9;
        ck_assert_msg(seen[out.token], "%u behind %u, %u generated", out.token, last, generated);
    }
    free(workspace);
}
END_TEST

START_TEST(test_extreme_parameters)
{
    static float logits[300];
    random_seed(3);
    for (int i = 0; i < 300; i++)
        logits[i] = random_logit(4);
    static const float temperatures[] = {0, -0.0f, 1e-4f, 1e-6f, 1e-45f, 2, 1e30f, 3e38f};
    static const float top_ps[] = {0, 1e-9f, 1e-45f, 0.5f, 0.9999999f, 1};
    static const uint32_t top_ks[] = {0, 1, 2, 299, 300, 1000000000, UINT32_MAX};
    static const float min_ps[] = {0, 1e-45f, 1e-9f, 0.5f, 1};
    const struct logit_bias bias = {7, -100};
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < 6; b++)
            for (int c = 0; c < 7; c++)
                for (int d = 0; d < 5; d++) {
                    struct sampling_params params = neutral;
                    params.temperature = temperatures[a];
                    params.top_p = top_ps[b];
                    params.top_k = top_ks[c];
                    params.min_p = min_ps[d];
                    params.logit_bias = &bias;
                    params.logit_bias_count = 1;
                    struct sampled_token out;
                    ck_assert(sample(logits, 300, &params, (uint32_t)(a * b * c * d), &out));
                    ck_assert_uint_lt(out.token, 300);
                }
}
END_TEST

START_TEST(test_penalties)
{
    enum { V = 64 };
    float logits[V], expected[V];
    void *workspace = new_workspace(V);
    random_seed(4);
    for (int round = 0; round < 500; round++) {
        uint32_t tokens[40], prompt = 1 + random_u32() % 20, count = prompt + random_u32() % 20;
        struct sampling_params params = neutral;
        params.temperature = 0;
        params.repetition_penalty = round % 3 == 0 ? 1 : 0.5f + (float)random_unit();
        params.presence_penalty = round % 4 == 0 ? 0 : (float)(random_unit() * 4 - 2);
        params.frequency_penalty = round % 5 == 0 ? 0 : (float)(random_unit() * 4 - 2);
        for (int i = 0; i < V; i++)
            expected[i] = logits[i] = random_logit(1);
        for (uint32_t i = 0; i < count; i++)
            tokens[i] = random_u32() % V;
        tokens[0] = V + 5; /* an id without a logit is no harm */
        for (uint32_t token = 0; token < V; token++) {
            uint32_t any = 0, generated = 0;
            for (uint32_t i = 0; i < count; i++) {
                any += tokens[i] == token;
                generated += tokens[i] == token && i >= prompt;
            }
            if (any > 0)
                expected[token] = expected[token] > 0 ? expected[token] / params.repetition_penalty
                                                      : expected[token] * params.repetition_penalty;
            if (generated > 0)
                expected[token] -=
                    params.presence_penalty + params.frequency_penalty * (float)generated;
        }
        struct sampler_row row = {.logits = logits,
                                  .vocabulary = V,
                                  .params = &params,
                                  .tokens = tokens,
                                  .token_count = count,
                                  .prompt_count = prompt};
        struct sampled_token out;
        ck_assert(sampler_sample(&row, workspace, &out));
        for (int i = 0; i < V; i++)
            ck_assert_float_eq(logits[i], expected[i]);
    }
    free(workspace);
}
END_TEST

START_TEST(test_logprobs)
{
    enum { V = 1003 };
    static float logits[V], copy[V];
    void *workspace = new_workspace(V);
    random_seed(5);
    for (int round = 0; round < 100; round++) {
        double sum = 0, largest = -1e300;
        for (int i = 0; i < V; i++) {
            logits[i] = round % 2 == 0 ? random_logit(5) : (float)(random_u32() % 7);
            largest = fmax(largest, (double)logits[i]);
        }
        for (int i = 0; i < V; i++)
            sum += exp((double)logits[i] - largest);
        double norm = largest + log(sum);
        /* Parameters must not show in the log probabilities. */
        struct sampling_params params = neutral;
        const struct logit_bias bias = {3, 50};
        params.temperature = 0.5f;
        params.top_k = round % 3 == 0 ? 2 : 0;
        params.seed = (uint64_t)round;
        params.logit_bias = &bias;
        params.logit_bias_count = round % 4 == 0 ? 1 : 0;
        memcpy(copy, logits, sizeof copy);
        uint32_t tokens[1] = {3};
        struct sampler_row row = {.logits = copy,
                                  .vocabulary = V,
                                  .params = &params,
                                  .tokens = tokens,
                                  .token_count = 1,
                                  .prompt_count = 1,
                                  .top_logprobs = (uint32_t)round % (LIMIT_LOGPROBS + 1),
                                  .want_logprob = true};
        struct sampled_token out;
        ck_assert(sampler_sample(&row, workspace, &out));
        ck_assert_double_eq_tol((double)out.logprob, (double)logits[out.token] - norm, 2e-6 * 30);
        ck_assert_uint_eq(out.top_count, row.top_logprobs);
        static struct naive naive;
        naive_cut(logits, V, &neutral, &naive);
        for (uint32_t i = 0; i < out.top_count; i++) {
            ck_assert_uint_eq(out.top[i].token, naive.order[i]);
            ck_assert_double_eq_tol((double)out.top[i].logprob,
                                    (double)logits[naive.order[i]] - norm, 2e-6 * 30);
        }
    }
    free(workspace);
}
END_TEST

/* The same row gives the same answer whatever lay in the workspace, and other places other ones. */
START_TEST(test_places)
{
    static float logits[V_MAX];
    random_seed(6);
    for (uint32_t i = 0; i < V_MAX; i++)
        logits[i] = random_logit(2);
    struct sampling_params params = neutral;
    struct sampled_token a, b;
    int differs = 0;
    for (uint32_t position = 0; position < 50; position++) {
        ck_assert(sample(logits, V_MAX, &params, position, &a));
        ck_assert(sample(logits, V_MAX, &params, position, &b));
        ck_assert_uint_eq(a.token, b.token);
        params.top_k = V_MAX + position; /* too large to cut: not a different draw */
        ck_assert(sample(logits, V_MAX, &params, position, &b));
        ck_assert_uint_eq(a.token, b.token);
        params.top_k = 0;
        ck_assert(sample(logits, V_MAX, &params, position + 1, &b));
        differs += a.token != b.token;
    }
    ck_assert_int_gt(differs, 40);
}
END_TEST

START_TEST(test_speed)
{
    enum { V = 151936 };
    float *logits = malloc(V * sizeof *logits), *copy = malloc(V * sizeof *copy);
    void *workspace = new_workspace(V);
    random_seed(7);
    for (int i = 0; i < V; i++)
        logits[i] = random_logit(3);
    static const struct {
        const char *name;
        float temperature, top_p, min_p;
        uint32_t top_k;
        bool logprob;
    } cases[] = {{"greedy", 0, 1, 0, 0, false},         {"temperature", 1, 1, 0, 0, false},
                 {"top_p 0.95", 1, 0.95f, 0, 0, false}, {"top_k 40", 1, 1, 0, 40, false},
                 {"min_p 0.05", 1, 1, 0.05f, 0, false}, {"hot", 50, 0.9f, 0, 0, false},
                 {"logprobs", 0, 1, 0, 0, true}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sampling_params params = neutral;
        params.temperature = cases[c].temperature;
        params.top_p = cases[c].top_p;
        params.min_p = cases[c].min_p;
        params.top_k = cases[c].top_k;
        uint64_t best_ns = UINT64_MAX;
        for (uint32_t i = 0; i < 10; i++) {
            memcpy(copy, logits, V * sizeof *copy);
            uint32_t tokens[1] = {0};
            struct sampler_row row = {.logits = copy,
                                      .vocabulary = V,
                                      .params = &params,
                                      .tokens = tokens,
                                      .token_count = 1,
                                      .prompt_count = 1,
                                      .choice = i,
                                      .top_logprobs = cases[c].logprob ? 20 : 0,
                                      .want_logprob = cases[c].logprob};
            struct sampled_token out;
            uint64_t start = clock_now_ns();
            ck_assert(sampler_sample(&row, workspace, &out));
            uint64_t ns = clock_now_ns() - start;
            best_ns = ns < best_ns ? ns : best_ns;
        }
        printf("%u logits, %s: %.3f ms\n", V, cases[c].name, (double)best_ns / 1e6);
        /* Sanitizers and a busy machine cost several times; a full sort costs more than that. */
        ck_assert_uint_lt(best_ns, 60000000u);
    }
    free(workspace);
    free(logits);
    free(copy);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampler");
    TCase *tests = tcase_create("sampler");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_philox_vectors);
    tcase_add_test(tests, test_against_naive);
    tcase_add_test(tests, test_distributions);
    tcase_add_test(tests, test_greedy);
    tcase_add_test(tests, test_bad_logits);
    tcase_add_test(tests, test_bans_and_extreme_bias);
    tcase_add_test(tests, test_token_rules);
    tcase_add_test(tests, test_extreme_parameters);
    tcase_add_test(tests, test_penalties);
    tcase_add_test(tests, test_logprobs);
    tcase_add_test(tests, test_places);
    tcase_add_test(tests, test_speed);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
