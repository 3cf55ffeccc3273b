/*
 * quire perplexity: how well the model predicts a text, and how far the quantised arithmetic is
 * from the float reference.
 *
 * The text is cut into windows of --window tokens (512); a window begins with BOS where the model
 * wants one, in place of its first token. Only the second half of each window is scored, so that
 * every scored token has at least half a window before it: what llama.cpp's perplexity tool does,
 * so the figures compare. Perplexity is exp of the mean negative log-probability; its error is the
 * standard error of that mean, times perplexity.
 *
 * With --kl the same windows run through the OpenBLAS reference too, with --kl-kv through our own
 * arithmetic with keys and values in f32: its own perplexity, and KL(reference ‖ ours) of every
 * scored position.
 */
#include "cli/programs.h"

#include "base/check.h"
#include "base/log.h"
#include "base/minmax.h"
#include "cli/workbench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOGITS_ROWS 32u

struct mean {
    double sum, squares;
    uint64_t count;
};

struct perplexity {
    const struct options *options;
    struct workbench ours, reference; /* reference.backend NULL without --kl and --kl-kv */
    uint32_t window;
    uint32_t *tokens;
    size_t token_count, window_count; /* of the text; windows that are run */
    uint32_t *input;                  /* [window] */
    uint32_t *rows;                   /* [window] */
    float *logits[2];                 /* [LOGITS_ROWS][vocabulary] ours, reference */
    struct mean loss, reference_loss, kl;
    double *divergences; /* [scored positions]: quantiles need all of them */
    uint64_t same_best;
};

static void mean_add(struct mean *mean, double value)
{
    mean->sum += value;
    mean->squares += value * value;
    mean->count++;
}

static double mean_error(const struct mean *mean)
{
    double n = (double)mean->count, average = mean->sum / n;
    double variance = mean->squares / n - average * average;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
}

/* log Σ exp(logits) */
static double log_sum(const float *logits, uint32_t vocabulary)
{
    float most = logits[workbench_argmax(logits, vocabulary)];
    double sum = 0;
    for (uint32_t i = 0; i < vocabulary; i++)
        sum += exp((double)(logits[i] - most));
    return (double)most + log(sum);
}

static void score(struct perplexity *p, const float *ours, const float *reference, uint32_t next)
{
    uint32_t vocabulary = p->ours.backend->vocabulary;
    double our_sum = log_sum(ours, vocabulary);
    mean_add(&p->loss, our_sum - (double)ours[next]);
    if (!reference)
        return;
    double reference_sum = log_sum(reference, vocabulary), kl = 0;
    mean_add(&p->reference_loss, reference_sum - (double)reference[next]);
    for (uint32_t i = 0; i < vocabulary; i++) {
        double log_p = (double)reference[i] - reference_sum;
        kl += exp(log_p) * (log_p - ((double)ours[i] - our_sum));
    }
    p->divergences[p->kl.count] = kl;
    mean_add(&p->kl, kl);
    p->same_best += workbench_argmax(ours, vocabulary) == workbench_argmax(reference, vocabulary);
}

static uint32_t scored_per_window(const struct perplexity *p)
{
    return p->window - 1 - p->window / 2;
}

/* Forward the window, keeping the hidden states of the scored half. `batch` and `sequence` must
   stay until the logits were taken. */
static void forward(struct perplexity *p, struct workbench *bench, struct batch_sequence *sequence,
                    struct batch *batch)
{
    *sequence = workbench_sequence(bench, 0, 0, p->window);
    *batch = (struct batch){
        .row_count = p->window,
        .tokens = p->input,
        .sequence_count = 1,
        .sequences = sequence,
        .logits_row_count = scored_per_window(p),
        .logits_rows = p->rows,
    };
    bench->backend->ops->forward(bench->backend, batch);
}

static void run_window(struct perplexity *p, const uint32_t *tokens)
{
    uint32_t vocabulary = p->ours.backend->vocabulary;
    uint32_t first_scored = p->window / 2, scored = scored_per_window(p);
    memcpy(p->input, tokens, p->window * sizeof *tokens);
    if (tokenizer_adds_bos(p->ours.tokenizer))
        p->input[0] = tokenizer_bos(p->ours.tokenizer);
    for (uint32_t i = 0; i < scored; i++)
        p->rows[i] = first_scored + i;
    bool has_reference = p->reference.backend != NULL;
    struct batch_sequence sequences[2];
    struct batch batches[2];
    forward(p, &p->ours, &sequences[0], &batches[0]);
    if (has_reference)
        forward(p, &p->reference, &sequences[1], &batches[1]);
    for (uint32_t first = 0; first < scored; first += LOGITS_ROWS) {
        uint32_t count = min_u32(scored - first, LOGITS_ROWS);
        p->ours.backend->ops->logits(p->ours.backend, first, count, p->logits[0]);
        if (has_reference)
            p->reference.backend->ops->logits(p->reference.backend, first, count, p->logits[1]);
        for (uint32_t i = 0; i < count; i++)
            score(p, p->logits[0] + (size_t)i * vocabulary,
                  has_reference ? p->logits[1] + (size_t)i * vocabulary : NULL,
                  tokens[first_scored + first + i + 1]);
    }
}

static enum status read_text(const char *path, struct buffer *out, struct error *error)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set(error, STATUS_IO, "file", "cannot open %s: %s", path, strerror(errno));
    char piece[65536];
    for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;)
        buffer_append(out, piece, got);
    bool failed = ferror(file) || out->failed;
    fclose(file);
    return failed ? error_set(error, STATUS_IO, "file", "cannot read %s", path) : STATUS_OK;
}

static enum status load_text(struct perplexity *p, struct error *error)
{
    struct buffer text;
    buffer_init(&text, 0);
    enum status status = read_text(p->options->perplexity.text_file, &text, error);
    if (status == STATUS_OK)
        status =
            tokenizer_encode(p->ours.tokenizer, text.data ? text.data : "", text.length,
                             TOKENIZER_ADD_BOS, 0, UINT32_MAX, &p->tokens, &p->token_count, error);
    buffer_deinit(&text);
    if (status == STATUS_OK && p->token_count < 2 * (size_t)p->window)
        status = error_set(error, STATUS_INVALID, "file",
                           "%s has %zu tokens; at least two windows of %u are needed",
                           p->options->perplexity.text_file, p->token_count, p->window);
    p->window_count = p->token_count / p->window;
    if (p->options->perplexity.windows && p->options->perplexity.windows < p->window_count)
        p->window_count = p->options->perplexity.windows;
    return status;
}

static enum status prepare(struct perplexity *p, struct error *error)
{
    struct workbench_shape shape = {
        .sequences = 1,
        .positions = p->window,
        .rows = p->window,
        .logits_rows = LOGITS_ROWS,
        .backend = p->options->settings.backend,
    };
    enum status status = workbench_open(&p->options->settings, &shape, &p->ours, error);
    if (status == STATUS_OK && (p->options->perplexity.kl || p->options->perplexity.kl_kv)) {
        struct settings rest = p->options->settings; /* both together keep to the one budget */
        rest.memory_bytes = budget_unreserved(&p->ours.budget);
        rest.kv_type = "f32";
        shape.backend = p->options->perplexity.kl ? "openblas" : "quantized";
        status = workbench_open(&rest, &shape, &p->reference, error);
    }
    if (status == STATUS_OK)
        status = load_text(p, error);
    if (status != STATUS_OK)
        return status;
    size_t logits_bytes = (size_t)LOGITS_ROWS * p->ours.backend->vocabulary * sizeof(float);
    p->input = malloc(p->window * sizeof *p->input);
    p->rows = malloc(p->window * sizeof *p->rows);
    p->logits[0] = malloc(logits_bytes);
    p->logits[1] = malloc(logits_bytes);
    p->divergences = calloc(p->window_count * scored_per_window(p), sizeof *p->divergences);
    if (!p->input || !p->rows || !p->logits[0] || !p->logits[1] || !p->divergences)
        return error_out_of_memory(error);
    return STATUS_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Divergences are in order: the least that `share` of them do not pass. */
static double quantile(const struct perplexity *p, double share)
{
    size_t rank = (size_t)ceil(share * (double)p->kl.count);
    return p->divergences[rank > 0 ? rank - 1 : 0];
}

static double mean_perplexity(const struct mean *loss)
{
    return exp(loss->sum / (double)loss->count);
}

static void print_kl(const struct perplexity *p)
{
    double reference = mean_perplexity(&p->reference_loss);
    double kl = p->kl.sum / (double)p->kl.count, error = mean_error(&p->kl);
    double p99 = quantile(p, 0.99), largest = quantile(p, 1);
    double best = (double)p->same_best / (double)p->kl.count;
    if (p->options->json)
        printf(",\"reference_perplexity\":%.6f,\"kl_mean\":%.8f,\"kl_error\":%.8f,\"kl_p99\":%.8f,"
               "\"kl_largest\":%.8f,\"same_best\":%.6f",
               reference, kl, error, p99, largest, best);
    else
        printf("%s %.4f; KL divergence from it: mean %.6f ± %.6f nats, 99th percentile %.5f, "
               "largest %.5f; the best token is the same at %.2f %%\n",
               p->options->perplexity.kl ? "the float reference's is"
                                         : "with keys and values in f32 it is",
               reference, kl, error, p99, largest, 100 * best);
}

static void print(const struct perplexity *p)
{
    double perplexity = mean_perplexity(&p->loss), error = perplexity * mean_error(&p->loss);
    unsigned long long count = p->loss.count;
    if (p->options->json)
        printf("{\"perplexity\":%.6f,\"error\":%.6f,\"scored_tokens\":%llu,\"window\":%u",
               perplexity, error, count, p->window);
    else
        printf("perplexity %.4f ± %.4f over %llu tokens in windows of %u\n", perplexity, error,
               count, p->window);
    if (p->kl.count > 0)
        print_kl(p);
    if (p->options->json)
        printf("}\n");
}

int program_perplexity(const struct options *options)
{
    struct perplexity p = {.options = options, .window = options->perplexity.window};
    struct error error;
    error_clear(&error);
    enum status status = prepare(&p, &error);
    if (status == STATUS_OK) {
        for (size_t i = 0; i < p.window_count; i++)
            run_window(&p, p.tokens + i * p.window);
        qsort(p.divergences, p.kl.count, sizeof *p.divergences, compare_doubles);
        print(&p);
    } else {
        log_error("perplexity_failed", "%s", error.message);
    }
    free(p.tokens);
    free(p.input);
    free(p.rows);
    free(p.logits[0]);
    free(p.logits[1]);
    free(p.divergences);
    workbench_close(&p.reference);
    workbench_close(&p.ours);
    return status == STATUS_OK ? 0 : 1;
}
