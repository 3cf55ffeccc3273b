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
 * With --kl the same windows run through the OpenBLAS reference too, and KL(reference ‖ ours) of
 * every scored position is averaged.
 */
#include "server/program.h"

#include "base/check.h"
#include "base/log.h"
#include "server/workbench.h"

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
    struct workbench ours, reference; /* reference.backend NULL without --kl */
    uint32_t window;
    uint32_t *tokens;
    size_t token_count;
    uint32_t *input;  /* [window] */
    uint32_t *rows;   /* [window] */
    float *logits[2]; /* [LOGITS_ROWS][vocabulary] ours, reference */
    struct mean loss, kl;
    double kl_largest;
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
    double reference_sum = log_sum(reference, vocabulary);
    double kl = 0;
    for (uint32_t i = 0; i < vocabulary; i++) {
        double log_p = (double)reference[i] - reference_sum;
        kl += exp(log_p) * (log_p - ((double)ours[i] - our_sum));
    }
    mean_add(&p->kl, kl);
    if (kl > p->kl_largest)
        p->kl_largest = kl;
    p->same_best += workbench_argmax(ours, vocabulary) == workbench_argmax(reference, vocabulary);
}

/* Forward the window, keeping the hidden states of the scored half. `batch` and `sequence` must
   stay until the logits were taken. */
static void forward(struct perplexity *p, struct workbench *bench, uint32_t first_scored,
                    struct batch_sequence *sequence, struct batch *batch)
{
    *sequence = workbench_sequence(bench, 0, 0, p->window);
    *batch = (struct batch){
        .row_count = p->window,
        .tokens = p->input,
        .sequence_count = 1,
        .sequences = sequence,
        .logits_row_count = p->window - 1 - first_scored,
        .logits_rows = p->rows,
    };
    bench->backend->ops->forward(bench->backend, batch);
}

static void run_window(struct perplexity *p, const uint32_t *tokens)
{
    uint32_t vocabulary = p->ours.backend->vocabulary;
    uint32_t first_scored = p->window / 2;
    uint32_t scored = p->window - 1 - first_scored;
    memcpy(p->input, tokens, p->window * sizeof *tokens);
    if (tokenizer_adds_bos(p->ours.tokenizer))
        p->input[0] = tokenizer_bos(p->ours.tokenizer);
    for (uint32_t i = 0; i < scored; i++)
        p->rows[i] = first_scored + i;
    bool has_reference = p->reference.backend != NULL;
    struct batch_sequence sequences[2];
    struct batch batches[2];
    forward(p, &p->ours, first_scored, &sequences[0], &batches[0]);
    if (has_reference)
        forward(p, &p->reference, first_scored, &sequences[1], &batches[1]);
    for (uint32_t first = 0; first < scored; first += LOGITS_ROWS) {
        uint32_t count = scored - first < LOGITS_ROWS ? scored - first : LOGITS_ROWS;
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
    enum status status = read_text(p->options->text_file, &text, error);
    if (status == STATUS_OK)
        status =
            tokenizer_encode(p->ours.tokenizer, text.data ? text.data : "", text.length,
                             TOKENIZER_ADD_BOS, 0, UINT32_MAX, &p->tokens, &p->token_count, error);
    buffer_deinit(&text);
    if (status == STATUS_OK && p->token_count < 2 * (size_t)p->window)
        status = error_set(error, STATUS_INVALID, "file",
                           "%s has %zu tokens; at least two windows of %u are needed",
                           p->options->text_file, p->token_count, p->window);
    return status;
}

static enum status prepare(struct perplexity *p, struct error *error)
{
    struct workbench_shape shape = {
        .sequences = 1,
        .positions = p->window,
        .rows = p->window,
        .logits_rows = LOGITS_ROWS,
        .backend = p->options->backend,
    };
    enum status status = workbench_open(p->options, &shape, &p->ours, error);
    if (status == STATUS_OK && p->options->perplexity_kl) {
        struct options rest = *p->options; /* both together keep to the one budget */
        rest.memory_bytes = budget_unreserved(&p->ours.budget);
        shape.backend = "openblas";
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
    if (!p->input || !p->rows || !p->logits[0] || !p->logits[1])
        return error_set(error, STATUS_IO, NULL, "out of memory");
    return STATUS_OK;
}

static void print(const struct perplexity *p)
{
    double loss = p->loss.sum / (double)p->loss.count;
    double perplexity = exp(loss), error = perplexity * mean_error(&p->loss);
    bool has_kl = p->kl.count > 0;
    double kl = has_kl ? p->kl.sum / (double)p->kl.count : 0;
    double best = has_kl ? (double)p->same_best / (double)p->kl.count : 0;
    if (p->options->json) {
        printf("{\"perplexity\":%.6f,\"error\":%.6f,\"scored_tokens\":%llu,\"window\":%u",
               perplexity, error, (unsigned long long)p->loss.count, p->window);
        if (has_kl)
            printf(",\"kl_mean\":%.8f,\"kl_error\":%.8f,\"kl_largest\":%.6f,\"same_best\":%.6f", kl,
                   mean_error(&p->kl), p->kl_largest, best);
        printf("}\n");
        return;
    }
    printf("perplexity %.4f ± %.4f over %llu tokens in windows of %u\n", perplexity, error,
           (unsigned long long)p->loss.count, p->window);
    if (has_kl)
        printf("KL divergence from the float reference: mean %.6f ± %.6f nats, largest %.4f; the "
               "best token is the same at %.2f %%\n",
               kl, mean_error(&p->kl), p->kl_largest, 100 * best);
}

int program_perplexity(const struct options *options)
{
    struct perplexity p = {.options = options, .window = options->perplexity_window};
    struct error error;
    error_clear(&error);
    enum status status = prepare(&p, &error);
    if (status == STATUS_OK) {
        size_t windows = p.token_count / p.window;
        if (options->perplexity_windows && options->perplexity_windows < windows)
            windows = options->perplexity_windows;
        for (size_t i = 0; i < windows; i++)
            run_window(&p, p.tokens + i * p.window);
        print(&p);
    } else {
        log_error("perplexity_failed", "%s", error.message);
    }
    free(p.tokens);
    free(p.input);
    free(p.rows);
    free(p.logits[0]);
    free(p.logits[1]);
    workbench_close(&p.reference);
    workbench_close(&p.ours);
    return status == STATUS_OK ? 0 : 1;
}
