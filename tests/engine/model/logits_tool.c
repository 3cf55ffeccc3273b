/*
 * Logits of token ids for comparing with the numpy reference.
 *
 *   logits_tool MODEL [--backend quantized|openblas] [--kernels NAME] [--threads N] [--chunk ROWS]
 *               [--page-size TOKENS] [--context TOKENS] [--last N]
 *     stdin: one prompt per line, token ids; stdout: float32 [positions][vocabulary] of each, or of
 *     its N last positions.
 *   logits_tool MODEL --greedy N [as above]
 *     stdout: a line of N token ids for each prompt, always the largest logit's.
 *
 *   logits_tool MODEL --hidden [as above]
 *     stdout: float32 [positions][width], the final hidden states; of an encoder, whose prompt is one
 *     chunk, with --scores its classification head's of the first token.
 *   --second N: tokens from position N on are of type 1.
 *
 * A tool, not a test: tests/reference/test_logits.py and others run it.
 */
#include "engine/model/model.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tool {
    const char *path, *backend, *kernels;
    unsigned threads;
    uint32_t chunk, page_size, context;
    uint32_t greedy, last; /* last: 0 for all */
    uint32_t second;
    bool hidden, scores;
    struct gguf *gguf;
    struct model_config config;
    struct workers *workers;
    struct backend *model;
    uint32_t sequence_pages; /* pages of one sequence of `context` tokens, in each group */
    uint32_t groups;
};

static void die(const struct error *error)
{
    fprintf(stderr, "logits_tool: %s\n", error->message);
    exit(1);
}

static void parse(struct tool *tool, int argc, char **argv)
{
    static const struct option options[] = {
        {"backend", required_argument, NULL, 'b'},   {"kernels", required_argument, NULL, 'k'},
        {"threads", required_argument, NULL, 't'},   {"chunk", required_argument, NULL, 'c'},
        {"page-size", required_argument, NULL, 'p'}, {"context", required_argument, NULL, 'x'},
        {"greedy", required_argument, NULL, 'Y'},    {"last", required_argument, NULL, 'l'},
        {"hidden", no_argument, NULL, 'h'},          {"scores", no_argument, NULL, 's'},
        {"second", required_argument, NULL, '2'},    {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint32_t number = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
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
        case 'Y':
            tool->greedy = number;
            break;
        case 'l':
            tool->last = number;
            break;
        case 'h':
            tool->hidden = true;
            break;
        case 's':
            tool->scores = true;
            break;
        case '2':
            tool->second = number;
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
        .max_batch_rows = tool->chunk,
        .max_sequences = 1,
        .logits_rows_max = 64,
        .context = tool->context,
    };
    struct model_sizes sizes;
    model_sizes(tool->gguf, &tool->config, &options, &sizes);
    tool->groups = sizes.groups.count;
    options.page_count = 1 + tool->groups * tool->sequence_pages;
    if (model_backend_create(tool->gguf, &tool->config, &options, NULL, NULL, &tool->model, &error))
        die(&error);
}

/* [groups][sequence_pages] */
static void make_pages(const struct tool *tool, uint32_t *pages)
{
    for (uint32_t i = 0; i < tool->groups * tool->sequence_pages; i++)
        pages[i] = 1 + i;
}

/* ---- Logits of every position ---- */

static void run_greedy(struct tool *tool, const uint32_t *tokens, uint32_t count,
                       const uint32_t *pages, float *logits)
{
    uint32_t done = 0, token = 0;
    for (uint32_t made = 0; made < tool->greedy; made++) {
        uint32_t now = made == 0 ? count : 1, last;
        for (; now > 0; now -= last + 1, done += last + 1) {
            last = (now < tool->chunk ? now : tool->chunk) - 1;
            struct batch_sequence sequence = {
                0, last + 1, done, pages, tool->sequence_pages, tool->sequence_pages};
            struct batch batch = {last + 1, made == 0 ? tokens + done : &token, 1, &sequence, 1,
                                  &last};
            tool->model->ops->forward(tool->model, &batch);
        }
        tool->model->ops->logits(tool->model, 0, 1, logits);
        token = 0;
        for (uint32_t i = 1; i < tool->model->vocabulary; i++)
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
        struct batch_sequence sequence = {
            0, now, first, pages, tool->sequence_pages, tool->sequence_pages};
        uint32_t skipped =
            tool->last > 0 && count - first > tool->last ? count - first - tool->last : 0;
        uint32_t wanted = skipped < now ? now - skipped : 0;
        for (uint32_t i = 0; i < wanted; i++)
            rows[i] = skipped + i;
        sequence.second_segment = tool->second;
        struct batch batch = {now, tokens + first, 1, &sequence, wanted, rows};
        ops->forward(tool->model, &batch);
        for (uint32_t i = 0; tool->hidden && i < wanted; i++)
            fwrite(ops->hidden(tool->model, i), sizeof(float), tool->model->hidden_width, stdout);
        if (tool->scores) {
            ops->scores(tool->model, 0, logits);
            fwrite(logits, sizeof(float), tool->model->score_count, stdout);
        }
        for (uint32_t at = 0; !tool->hidden && !tool->scores && at < wanted;
             at += tool->model->logits_rows_max) {
            uint32_t piece = wanted - at < tool->model->logits_rows_max
                                 ? wanted - at
                                 : tool->model->logits_rows_max;
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
    uint32_t *pages = calloc((size_t)tool->groups * tool->sequence_pages, sizeof *pages);
    uint32_t *rows = calloc(tool->chunk, sizeof *rows);
    float *logits =
        calloc((size_t)tool->model->logits_rows_max * tool->model->vocabulary, sizeof *logits);
    if (!tokens || !pages || !rows || !logits)
        exit(1);
    make_pages(tool, pages);
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

int main(int argc, char **argv)
{
    struct tool tool = {
        .backend = "quantized", .kernels = "auto", .threads = 1, .chunk = 512, .page_size = 16};
    parse(&tool, argc, argv);
    load(&tool);
    run_prompts(&tool);
    tool.model->ops->destroy(tool.model);
    workers_destroy(tool.workers);
    gguf_close(tool.gguf);
    return fflush(stdout) == 0 ? 0 : 1;
}
