/*
 * Measures grammars and walks through them: grammar_tool MODEL.gguf < lines of JSON
 *   {"kind": 0 … 3, "source": "…"}
 * For each it prints one line: the error, or the compiled size, CPU times in microseconds, and the
 * text of a random walk that obeys the masks. With "texts": ["…"] it says instead which of these
 * texts are accepted as a whole. tests/reference/test_grammar.py compares with python-jsonschema.
 */
#include "base/budget.h"
#include "base/limits.h"
#include "engine/constrain/grammar.h"
#include "engine/model/gguf.h"
#include "engine/text/tokenizer.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static uint64_t state = 88172645463325252u;
static uint32_t dice(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % n;
}

/* Whether the text, tokenized, is one that the grammar lets end. */
static bool accepts(struct grammar *grammar, const struct tokenizer *tokenizer, const char *text,
                    uint32_t *mask, size_t words)
{
    uint32_t *tokens, end = 0;
    size_t count;
    if (tokenizer_encode(tokenizer, text, strlen(text), 0, 0, 1u << 20, &tokens, &count, NULL))
        return false;
    struct grammar_matcher *matcher = grammar_matcher_create(grammar);
    bool ended = false, good = matcher != NULL;
    for (size_t i = 0; good && i < count; i++)
        good = !ended && grammar_matcher_accept(matcher, tokens + i, 1, &ended);
    if (good && !ended) {
        while (!tokenizer_is_end(tokenizer, end))
            end++;
        good = grammar_matcher_mask(matcher, mask, words) && mask[end / 32] >> end % 32 & 1;
    }
    grammar_matcher_destroy(matcher);
    free(tokens);
    return good;
}

static int run(int argc, char **argv)
{
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct error error = {0};
    struct budget budget;
    if (argc < 2 || gguf_open(argv[1], &gguf, &error) || tokenizer_create(gguf, &tokenizer, &error))
        return 1;
    uint32_t max_steps = argc > 2 ? (uint32_t)atoi(argv[2]) : 200;
    budget_init(&budget, UINT64_C(4) << 30);
    budget_reserve(&budget, BUDGET_GRAMMAR, UINT64_C(4) << 30, &error);
    struct grammar_vocabulary *vocabulary;
    double t0 = cpu_us();
    if (grammar_vocabulary_create(tokenizer, &budget, &vocabulary, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    fprintf(stderr, "vocabulary %.0f ms, reserved %llu\n", (cpu_us() - t0) / 1e3,
            (unsigned long long)budget_used(&budget, BUDGET_GRAMMAR));
    uint32_t count = tokenizer_vocabulary(tokenizer);
    size_t words = (count + 31) / 32;
    uint32_t *mask = calloc(words, 4);
    long before_kib = peak_kib();
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        cJSON *json = cJSON_Parse(line);
        const char *source = cJSON_GetObjectItem(json, "source")->valuestring;
        int kind = cJSON_GetObjectItem(json, "kind")->valueint;
        struct grammar *grammar;
        cJSON *out = cJSON_CreateObject();
        double start = cpu_us();
        if (grammar_compile(vocabulary, kind, source, strlen(source), &grammar, &error)) {
            cJSON_AddStringToObject(out, "error", error.message);
            cJSON_AddNumberToObject(out, "compile_us", cpu_us() - start);
        } else if (cJSON_HasObjectItem(json, "texts")) {
            cJSON *accepted = cJSON_AddArrayToObject(out, "accepted"), *text;
            cJSON_ArrayForEach(text, cJSON_GetObjectItem(json, "texts")) cJSON_AddItemToArray(
                accepted,
                cJSON_CreateBool(accepts(grammar, tokenizer, text->valuestring, mask, words)));
            grammar_release(grammar);
        } else {
            cJSON_AddNumberToObject(out, "compile_us", cpu_us() - start);
            cJSON_AddNumberToObject(out, "bytes", (double)grammar_bytes(grammar));
            uint64_t before = budget_used(&budget, BUDGET_GRAMMAR);
            start = cpu_us();
            struct grammar_matcher *matcher = grammar_matcher_create(grammar);
            cJSON_AddNumberToObject(out, "create_us", cpu_us() - start);
            size_t text_bytes = max_steps * 64 * 16 + 64, length = 0;
            char *text = calloc(1, text_bytes);
            bool ended = false;
            double mask_max = 0, mask_sum = 0, accept_sum = 0;
            uint32_t forced = 0, steps = 0;
            for (; steps < max_steps && !ended; steps++) {
                uint32_t list[64], n;
                double t = cpu_us();
                n = grammar_matcher_forced(matcher, list, 64);
                accept_sum += cpu_us() - t;
                if (n == 0) {
                    t = cpu_us();
                    if (!grammar_matcher_mask(matcher, mask, words))
                        break;
                    t = cpu_us() - t;
                    mask_sum += t;
                    if (t > mask_max)
                        mask_max = t;
                    uint32_t allowed = 0, pick = 0, end = UINT32_MAX;
                    for (uint32_t id = 0; id < count; id++) {
                        if (!(mask[id / 32] >> id % 32 & 1))
                            continue;
                        if (tokenizer_is_end(tokenizer, id))
                            end = id;
                        if (dice(++allowed) == 0)
                            pick = id;
                    }
                    if (end != UINT32_MAX && (steps > 40 || dice(3) == 0))
                        pick = end;
                    list[0] = pick;
                    n = 1;
                } else
                    forced += n;
                for (uint32_t i = 0; i < n; i++) {
                    size_t piece_length;
                    const char *piece = tokenizer_piece(tokenizer, list[i], &piece_length);
                    if (piece_length < text_bytes - length) {
                        memcpy(text + length, piece, piece_length);
                        length += piece_length;
                    }
                }
                t = cpu_us();
                if (!grammar_matcher_accept(matcher, list, n, &ended))
                    break;
                accept_sum += cpu_us() - t;
            }
            cJSON_AddNumberToObject(out, "steps", steps);
            cJSON_AddNumberToObject(out, "forced", forced);
            cJSON_AddNumberToObject(out, "mask_mean_us", steps ? mask_sum / steps : 0);
            cJSON_AddNumberToObject(out, "mask_max_us", mask_max);
            cJSON_AddNumberToObject(out, "accept_mean_us", steps ? accept_sum / steps : 0);
            cJSON_AddNumberToObject(out, "matcher_bytes",
                                    (double)(budget_used(&budget, BUDGET_GRAMMAR) - before));
            cJSON_AddBoolToObject(out, "ended", ended);
            cJSON_AddStringToObject(out, "failure", grammar_matcher_error(matcher));
            cJSON_AddStringToObject(out, "text", text);
            free(text);
            grammar_matcher_destroy(matcher);
            grammar_release(grammar);
        }
        cJSON_AddNumberToObject(out, "peak_kib", (double)(peak_kib() - before_kib));
        char *printed = cJSON_PrintUnformatted(out);
        puts(printed);
        fflush(stdout);
        free(printed);
        cJSON_Delete(out);
        cJSON_Delete(json);
    }
    grammar_vocabulary_destroy(vocabulary);
    fprintf(stderr, "left in the account: %llu\n",
            (unsigned long long)budget_used(&budget, BUDGET_GRAMMAR));
    free(mask);
    free(line);
    tokenizer_destroy(tokenizer);
    gguf_close(gguf);
    return 0;
}

struct arguments {
    int argc;
    char **argv;
    int status;
};

static void *run_on_thread(void *arg)
{
    struct arguments *arguments = arg;
    arguments->status = run(arguments->argc, arguments->argv);
    return NULL;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {argc, argv, 1};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, LIMIT_GRAMMAR_STACK_BYTES);
    if (pthread_create(&thread, &attributes, run_on_thread, &arguments) == 0)
        pthread_join(thread, NULL);
    return arguments.status;
}
