/*
 * Logits of token ids for comparing with the numpy reference, and a small benchmark.
 *
 *   logits_tool MODEL [--backend quantized|openblas] [--kernels NAME] [--threads N] [--chunk ROWS]
 *               [--page-size TOKENS] [--context TOKENS]
 *     stdin: one prompt per line, token ids; stdout: float32 [positions][vocabulary] of each.
 *   logits_tool MODEL --greedy N [as above]
 *     stdout: a line of N token ids for each prompt, always the largest logit's.
 *   logits_tool MODEL --bench [--prompt N] [--generate N] [--batch N] [--profile] [as above]
 *     stdout: tokens per second of prefill and of decoding `batch` sequences together.
 *
 * A tool, not a test: tests/reference/test_logits.py and bench/ run it.
 */
#include "base/clock.h"
#include "engine/model/backends.h"
#include "engine/model/model.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct tool {
    const char *path, *backend, *kernels;
    unsigned threads;
    uint32_t chunk, page_size, context;
    bool bench, profile;
    uint32_t prompt, generate, batch, greedy;
    struct gguf *gguf;
    struct model_config config;
    struct workers *workers;
    struct backend *model;
    uint32_t sequence_pages; /* pages of one sequence of `context` tokens */
};

static void die(const struct error *error)
{
    fprintf(stderr, "logits_tool: %s\n", error->message);
    exit(1);
}

static void parse(struct tool *tool, int argc, char **argv)
{
    static const struct option options[] = {{"backend", required_argument, NULL, 'b'},
                                            {"kernels", required_argument, NULL, 'k'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"chunk", required_argument, NULL, 'c'},
                                            {"page-size", required_argument, NULL, 'p'},
                                            {"context", required_argument, NULL, 'x'},
                                            {"bench", no_argument, NULL, 'B'},
                                            {"prompt", required_argument, NULL, 'P'},
                                            {"generate", required_argument, NULL, 'G'},
                                            {"batch", required_argument, NULL, 'N'},
                                            {"profile", no_argument, NULL, 'F'},
                                            {"greedy", required_argument, NULL, 'Y'},
                                            {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint32_t number = optarg != NULL ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        switch (option) {
        case 'b':
            tool->backend = optarg;
            break;
        case 'k':
            tool->kernels = optarg;
            break;
        case 't':
            tool->threads = number;
            break;
        case 'c':
            tool->chunk = number;
            break;
        case 'p':
            tool->page_size = number;
            break;
        case 'x':
            tool->context = number;
            break;
        case 'B':
            tool->bench = true;
            break;
        case 'P':
            tool->prompt = number;
            break;
        case 'G':
            tool->generate = number;
            break;
        case 'N':
            tool->batch = number;
            break;
        case 'Y':
            tool->greedy = number;
            break;
        case 'F':
            tool->profile = true;
            break;
        default:
            exit(2);
        }
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "usage: logits_tool MODEL [options], see the head of logits_tool.c\n");
        exit(2);
    }
    tool->path = argv[optind];
}

static void load(struct tool *tool)
{
    struct error error;
    const struct kernels *kernels;
    if (gguf_open(tool->path, &tool->gguf, &error) ||
        model_describe(tool->gguf, &tool->config, &error) ||
        kernels_select(tool->kernels, &kernels, &error) ||
        workers_create(tool->threads, &tool->workers, &error))
        die(&error);
    if (tool->context == 0)
        tool->context = tool->config.context < 4096 ? tool->config.context : 4096;
    tool->sequence_pages = (tool->context + tool->page_size - 1) / tool->page_size;
    struct backend_options options = {
        .kernels = kernels,
        .workers = tool->workers,
        .backend = tool->backend,
        .page_size = tool->page_size,
        .page_count = 1 + tool->batch * tool->sequence_pages,
        .max_batch_rows = tool->chunk > tool->batch ? tool->chunk : tool->batch,
        .max_sequences = tool->batch,
        .logits_rows_max = 64 > tool->batch ? 64 : tool->batch,
        .context = tool->context,
    };
    uint64_t start = clock_now_ns();
    if (model_backend_create(tool->gguf, &tool->config, &options, NULL, NULL, &tool->model, &error))
        die(&error);
    if (tool->bench)
        printf("load %.0f ms, backend %s, kernels %s, threads %u\n",
               (double)(clock_now_ns() - start) / 1e6, tool->model->name, tool->model->kernels,
               tool->threads);
}

static void make_pages(const struct tool *tool, uint32_t *pages, uint32_t sequence)
{
    for (uint32_t i = 0; i < tool->sequence_pages; ++i)
        pages[i] = 1 + sequence * tool->sequence_pages + i;
}

/* ---- Logits of every position ---- */

static void run_greedy(struct tool *tool, const uint32_t *tokens, uint32_t count,
                       const uint32_t *pages, float *logits)
{
    uint32_t done = 0, token = 0;
    for (uint32_t made = 0; made < tool->greedy; ++made) {
        uint32_t now = made == 0 ? count : 1, last;
        for (; now > 0; now -= last + 1, done += last + 1) {
            last = (now < tool->chunk ? now : tool->chunk) - 1;
            struct batch_sequence sequence = {0, last + 1, done, pages, tool->sequence_pages};
            struct batch batch = {last + 1, made == 0 ? tokens + done : &token, 1, &sequence, 1,
                                  &last};
            tool->model->ops->forward(tool->model, &batch);
        }
        tool->model->ops->logits(tool->model, 0, 1, logits);
        token = 0;
        for (uint32_t i = 1; i < tool->model->vocabulary; ++i)
            token = logits[i] > logits[token] ? i : token;
        printf("%u%c", token, made + 1 < tool->greedy ? ' ' : '\n');
    }
}

static void run_prompt(struct tool *tool, const uint32_t *tokens, uint32_t count,
                       const uint32_t *pages, uint32_t *rows, float *logits)
{
    const struct backend_ops *ops = tool->model->ops;
    for (uint32_t first = 0; first < count; first += tool->chunk) {
        uint32_t now = count - first < tool->chunk ? count - first : tool->chunk;
        struct batch_sequence sequence = {0, now, first, pages, tool->sequence_pages};
        for (uint32_t i = 0; i < now; ++i)
            rows[i] = i;
        struct batch batch = {now, tokens + first, 1, &sequence, now, rows};
        ops->forward(tool->model, &batch);
        for (uint32_t at = 0; at < now; at += tool->model->logits_rows_max) {
            uint32_t piece =
                now - at < tool->model->logits_rows_max ? now - at : tool->model->logits_rows_max;
            ops->logits(tool->model, at, piece, logits);
            fwrite(logits, sizeof(float) * tool->model->vocabulary, piece, stdout);
        }
    }
}

static void run_prompts(struct tool *tool)
{
    char *line = NULL;
    size_t capacity = 0;
    uint32_t *tokens = calloc(tool->context, sizeof *tokens);
    uint32_t *pages = calloc(tool->sequence_pages, sizeof *pages);
    uint32_t *rows = calloc(tool->chunk, sizeof *rows);
    float *logits =
        calloc((size_t)tool->model->logits_rows_max * tool->model->vocabulary, sizeof *logits);
    if (tokens == NULL || pages == NULL || rows == NULL || logits == NULL)
        exit(1);
    make_pages(tool, pages, 0);
    while (getline(&line, &capacity, stdin) > 0) {
        uint32_t count = 0;
        char *at = line, *end;
        for (;; at = end) {
            unsigned long token = strtoul(at, &end, 10);
            if (end == at)
                break;
            if (token >= tool->config.vocabulary || count == tool->context) {
                fprintf(stderr, "logits_tool: token %lu or the length is out of range\n", token);
                exit(1);
            }
            tokens[count++] = (uint32_t)token;
        }
        if (tool->greedy > 0)
            run_greedy(tool, tokens, count, pages, logits);
        else
            run_prompt(tool, tokens, count, pages, rows, logits);
    }
    free(line);
    free(tokens);
    free(pages);
    free(rows);
    free(logits);
}

/* ---- Benchmark ---- */

/* Processor time of all threads: what a busy machine does not blur. */
static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void print_rate(const struct tool *tool, const char *what, uint32_t tokens, double seconds,
                       double cpu)
{
    printf("%s %u × %u: %.1f tok/s, %.1f per processor second\n", what, tool->batch, tokens,
           tool->batch * tokens / seconds, tool->batch * tokens / cpu);
}

static void print_profile(const struct tool *tool, const uint64_t *before)
{
    if (!tool->profile || strcmp(tool->model->name, "quantized") != 0)
        return;
    const uint64_t *now = quantized_profile(tool->model);
    uint64_t total = 0;
    for (int stage = 0; stage < STAGE_COUNT; ++stage)
        total += now[stage] - before[stage];
    for (int stage = 0; stage < STAGE_COUNT; ++stage)
        printf("  %-10s %8.2f ms %5.1f %%\n", quantized_stage_name((enum quantized_stage)stage),
               (double)(now[stage] - before[stage]) / 1e6,
               100.0 * (double)(now[stage] - before[stage]) / (double)total);
}

static void profile_copy(const struct tool *tool, uint64_t out[STAGE_COUNT])
{
    if (strcmp(tool->model->name, "quantized") == 0)
        memcpy(out, quantized_profile(tool->model), STAGE_COUNT * sizeof out[0]);
}

static uint32_t made_up_token(const struct tool *tool, uint32_t i)
{
    return (i * 2654435761u >> 7) % tool->config.vocabulary;
}

static double bench_prefill(struct tool *tool, uint32_t *tokens, struct batch_sequence *sequences,
                            float *logits)
{
    uint64_t start = clock_now_ns();
    for (uint32_t s = 0; s < tool->batch; ++s) {
        for (uint32_t first = 0; first < tool->prompt; first += tool->chunk) {
            uint32_t now = tool->prompt - first < tool->chunk ? tool->prompt - first : tool->chunk;
            struct batch_sequence sequence = sequences[s];
            sequence.row_count = now;
            sequence.first_row = 0;
            sequence.first_position = first;
            uint32_t last = now - 1;
            for (uint32_t i = 0; i < now; ++i)
                tokens[i] = made_up_token(tool, first + i + s);
            bool end = first + now == tool->prompt;
            struct batch batch = {now, tokens, 1, &sequence, end ? 1 : 0, &last};
            tool->model->ops->forward(tool->model, &batch);
            if (end)
                tool->model->ops->logits(tool->model, 0, 1, logits);
        }
    }
    return (double)(clock_now_ns() - start) / 1e9;
}

static double bench_decode(struct tool *tool, uint32_t *tokens, struct batch_sequence *sequences,
                           uint32_t *rows, float *logits)
{
    uint64_t start = clock_now_ns();
    for (uint32_t step = 0; step < tool->generate; ++step) {
        for (uint32_t s = 0; s < tool->batch; ++s) {
            tokens[s] = made_up_token(tool, step * 31 + s);
            sequences[s].first_row = rows[s] = s;
            sequences[s].row_count = 1;
            sequences[s].first_position = tool->prompt + step;
        }
        struct batch batch = {tool->batch, tokens, tool->batch, sequences, tool->batch, rows};
        tool->model->ops->forward(tool->model, &batch);
        tool->model->ops->logits(tool->model, 0, tool->batch, logits);
    }
    return (double)(clock_now_ns() - start) / 1e9;
}

static void bench(struct tool *tool)
{
    uint32_t rows_max = tool->model->max_batch_rows;
    uint32_t *tokens = calloc(rows_max, sizeof *tokens), *rows = calloc(rows_max, sizeof *rows);
    uint32_t *pages = calloc((size_t)tool->batch * tool->sequence_pages, sizeof *pages);
    struct batch_sequence *sequences = calloc(tool->batch, sizeof *sequences);
    float *logits =
        calloc((size_t)tool->model->logits_rows_max * tool->model->vocabulary, sizeof *logits);
    if (tokens == NULL || rows == NULL || pages == NULL || sequences == NULL || logits == NULL)
        exit(1);
    for (uint32_t s = 0; s < tool->batch; ++s) {
        sequences[s].pages = pages + (size_t)s * tool->sequence_pages;
        sequences[s].page_count = tool->sequence_pages;
        make_pages(tool, pages + (size_t)s * tool->sequence_pages, s);
    }
    uint64_t before[STAGE_COUNT] = {0};
    if (tool->prompt > 0) {
        bench_prefill(tool, tokens, sequences, logits); /* warm up */
        profile_copy(tool, before);
        double cpu = cpu_seconds();
        double seconds = bench_prefill(tool, tokens, sequences, logits);
        print_rate(tool, "prefill", tool->prompt, seconds, cpu_seconds() - cpu);
        print_profile(tool, before);
    }
    if (tool->generate > 0) {
        profile_copy(tool, before);
        double cpu = cpu_seconds();
        double seconds = bench_decode(tool, tokens, sequences, rows, logits);
        print_rate(tool, "decode", tool->generate, seconds, cpu_seconds() - cpu);
        print_profile(tool, before);
    }
    free(tokens);
    free(rows);
    free(pages);
    free(sequences);
    free(logits);
}

int main(int argc, char **argv)
{
    struct tool tool = {.backend = "quantized",
                        .kernels = "auto",
                        .threads = 1,
                        .chunk = 512,
                        .page_size = 16,
                        .prompt = 512,
                        .generate = 64,
                        .batch = 1};
    parse(&tool, argc, argv);
    load(&tool);
    if (tool.bench)
        bench(&tool);
    else
        run_prompts(&tool);
    tool.model->ops->destroy(tool.model);
    workers_destroy(tool.workers);
    gguf_close(tool.gguf);
    return fflush(stdout) == 0 ? 0 : 1;
}
