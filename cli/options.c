/*
 * Options from one table: each row names an option, its commands, its field, its default, its range
 * and its help. README.md has the rows of `quire serve`, checked by tests/structure.
 *
 * Order: defaults, then the environment, then the command line. Nothing is guessed: what is not in
 * the table, out of range or at odds with another option is an error that says what to write
 * instead. Options of other servers are recognised by name, only to say what ours is called.
 */
#include "cli/options.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/minmax.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum kind {
    KIND_TEXT,   /* const char * */
    KIND_TEXTS,  /* repeatable: const char *[most], its count at count_offset */
    KIND_COUNT,  /* uint32_t (or unsigned) in [least, most] */
    KIND_PORT,   /* uint16_t */
    KIND_BYTES,  /* uint64_t, "512MiB" */
    KIND_SEED,   /* uint64_t */
    KIND_NUMBER, /* float in [least, most] */
    KIND_ON,     /* flag: sets a bool */
    KIND_OFF,    /* flag: clears a bool */
    KIND_FORMAT, /* enum log_format */
    KIND_LEVEL,  /* enum log_level */
};

#define ON_SERVE (1u << COMMAND_SERVE)
#define ON_RUN (1u << COMMAND_RUN)
#define ON_INSPECT (1u << COMMAND_INSPECT)
#define ON_HEALTH (1u << COMMAND_HEALTHCHECK)
#define ON_PROVE (1u << COMMAND_PROVE)
#define ON_PERPLEXITY (1u << COMMAND_PERPLEXITY)
#define ON_BENCH (1u << COMMAND_BENCH)
#define ON_PLAN (1u << COMMAND_PLAN)
#define ON_ENGINE (ON_SERVE | ON_RUN)
#define ON_WORKBENCH (ON_PROVE | ON_PERPLEXITY | ON_BENCH)
#define ON_COMPUTE (ON_ENGINE | ON_WORKBENCH)

struct spec {
    const char *name; /* without the dashes */
    char letter;      /* short form, or 0 */
    const char *value_name;
    unsigned commands;
    enum kind kind;
    size_t offset;
    double least, most;
    size_t count_offset;
    const char *choices; /* "a|b|c" for KIND_TEXT, or NULL */
    const char *preset;  /* the default as it would be written, or NULL: the field stays 0 … */
    const char *absent;  /* … and this says what holds then; NULL: nothing to say */
    const char *group;
    const char *help;
    const char *also; /* another name that means the same on the command line, or NULL */
};

#define FIELD(field) offsetof(struct options, field)
#define SETTING(field) FIELD(settings.field)
#define HTTP(field) FIELD(serve.http.field)
#define SHAPE(field) FIELD(plan.shape.field)
/* The answer of the other commands is what is wanted, not their log. */
#define LOG_LEVEL_ROW(on, level)                                                                   \
    {                                                                                              \
        "log-level", 0, "LEVEL", on, KIND_LEVEL, FIELD(log_level),                                 \
            .preset = level, .help = "debug, info, warn or error"                                  \
    }

#define MAX_SEQS_ROW(on, count)                                                                    \
    {                                                                                              \
        "max-seqs", 0, "COUNT", on, KIND_COUNT, SETTING(max_seqs), 1, 4096,                        \
            .preset = count, .help = "the most sequences that run at the same time"                \
    }

static const struct spec specs[] = {
    {"model", 'm', "FILE", ON_COMPUTE | ON_INSPECT | ON_PLAN, KIND_TEXT, SETTING(model_path),
     .group = "Model", .help = "the GGUF file; for a split model, its first part"},
    {"served-model-name", 0, "NAME", ON_SERVE, KIND_TEXTS, SETTING(served_model_names),
     .most = SETTINGS_MODEL_NAMES_MAX, .count_offset = SETTING(served_model_name_count),
     .absent = "the file's",
     .help = "the model name that clients send; repeatable. The name default and no name at all "
             "always work; * lets every name work."},
    {"chat-template", 0, "FILE", ON_ENGINE, KIND_TEXT, SETTING(chat_template_file),
     .absent = "the model's", .help = "use the Jinja chat template in this file",
     .also = "chat-template-file"},

    {"memory", 0, "BYTES", ON_COMPUTE | ON_PLAN, KIND_BYTES, SETTING(memory_bytes),
     .absent = "what is available, as far as it can be used", .group = "Memory",
     .help = "the budget for everything the process holds, such as 512MiB or 2GiB"},
    {"context", 'c', "TOKENS", ON_ENGINE | ON_PLAN, KIND_COUNT, SETTING(context), 1, 1 << 24,
     .absent = "the model's",
     .help = "the context length: the most tokens of one sequence, prompt and answer together"},
    {"page-size", 0, "TOKENS", ON_COMPUTE | ON_PLAN, KIND_COUNT, SETTING(page_size), 8, 64,
     .preset = "16", .help = "tokens per KV page: 8, 16, 32 or 64"},
    {"kv-type", 0, "TYPE", ON_COMPUTE | ON_PLAN, KIND_TEXT, SETTING(kv_type),
     .choices = "f32|f16|bf16|q8_0|q4_0", .absent = "f16",
     .help = "the type of keys and values in the KV cache: f32, f16, bf16, q8_0 (half the memory "
             "of f16) or q4_0 (a quarter, less exact)"},
    {"pooling", 0, "KIND", ON_SERVE, KIND_TEXT, SETTING(pooling), .choices = "mean|last|cls|none",
     .absent = "as the model's file says",
     .help =
         "how /v1/embeddings makes one vector of a text's tokens; a chat model makes embeddings "
         "when this says mean or last"},
    {"no-prefix-cache", 0, NULL, ON_ENGINE, KIND_OFF, SETTING(prefix_cache),
     .help = "do not keep computed prompts for later prompts with the same prefix"},
    {"constraints", 0, "WHEN", ON_SERVE | ON_PLAN, KIND_TEXT, SETTING(constraints),
     .choices = "auto|on|off", .preset = "auto",
     .help = "constrained output (JSON schemas, regexes, grammars): off saves its memory, auto "
             "leaves it out where --memory has little room, on refuses to start then"},

    {"swap-dir", 0, "DIRECTORY", ON_SERVE | ON_PLAN, KIND_TEXT, SETTING(swap_dir), .absent = "none",
     .help = "write the KV pages of a preempted sequence to a file in this directory when that is "
             "cheaper than recomputing them"},
    {"swap-bytes", 0, "BYTES", ON_SERVE | ON_PLAN, KIND_BYTES, SETTING(swap_bytes),
     .preset = "4GiB", .help = "the largest size of that file"},
    {"cache-dir", 0, "DIR", ON_SERVE | ON_PLAN, KIND_TEXT, SETTING(cache_dir), .absent = "none",
     .help = "keep the prefix cache in this directory for the next start with the same model"},
    {"cache-dir-bytes", 0, "BYTES", ON_SERVE | ON_PLAN, KIND_BYTES, SETTING(cache_dir_bytes),
     .absent = "as many pages as the memory holds",
     .help = "the largest size of that cache; the least recently used pages are evicted first"},

    {"threads", 't', "COUNT", ON_COMPUTE | ON_PLAN, KIND_COUNT, SETTING(threads), 1, 1024,
     .absent = "usable cores", .group = "Computing",
     .help = "the number of compute threads; a CPU quota is rounded down"},
    MAX_SEQS_ROW(ON_SERVE | ON_PLAN, "128"),
    MAX_SEQS_ROW(ON_RUN, "1"), /* one conversation needs no pages for more */
    {"max-batch-tokens", 0, "TOKENS", ON_ENGINE | ON_PLAN, KIND_COUNT, SETTING(max_batch_tokens), 1,
     65536, .absent = "up to 512",
     .help = "the most tokens of one step; longer prompts are prefilled in chunks"},
    {"kernels", 0, "NAME", ON_COMPUTE | ON_PLAN, KIND_TEXT, SETTING(kernels),
     .choices = "auto|scalar|avx2|avxvnni|avx512|neon|dotprod", .preset = "auto",
     .help =
         "auto selects the fastest; scalar; on x86-64 avx2, avxvnni, avx512; on 64-bit ARM neon, "
         "dotprod. All produce the same bytes."},
    {"backend", 0, "NAME", ON_COMPUTE | ON_PLAN, KIND_TEXT, SETTING(backend),
     .choices = "quantized|openblas", .preset = "quantized",
     .help = "openblas selects the floating-point reference, which is slow and needs more memory"},

    {"host", 0, "ADDRESS", ON_SERVE | ON_HEALTH, KIND_TEXT, HTTP(host), .preset = "127.0.0.1",
     .group = "HTTP",
     .help = "the address to listen on; 0.0.0.0 is all addresses and the container's default"},
    {"port", 'p', "PORT", ON_SERVE | ON_HEALTH, KIND_PORT, HTTP(port), 0, 65535, .preset = "8080",
     .help = "the port; 0 takes any free port and prints it"},
    {"max-connections", 0, "COUNT", ON_SERVE | ON_PLAN, KIND_COUNT, SETTING(max_connections), 4,
     100000, .absent = "up to 1024", .help = "the most connections; further ones are answered 503"},
    {"max-queue", 0, "COUNT", ON_SERVE | ON_PLAN, KIND_COUNT, SETTING(max_queue), 1, 1 << 20,
     .preset = "1024", .help = "the most waiting requests; further ones are answered 429"},
    {"max-queue-tokens", 0, "TOKENS", ON_SERVE, KIND_COUNT, SETTING(max_queue_tokens), 1, 1 << 30,
     .preset = "1048576",
     .help = "the most prompt tokens of waiting requests; further requests are answered 429"},
    {"timeout", 0, "SECONDS", ON_SERVE, KIND_COUNT, SETTING(timeout_seconds), 0,
     LIMIT_TIMEOUT_SECONDS, .preset = "300",
     .help = "how long a request may take if it sends no timeout; 0 means no limit"},
    {"watchdog-seconds", 0, "SECONDS", ON_SERVE, KIND_COUNT, HTTP(watchdog_seconds), 0, 86400,
     .preset = "60",
     .help = "if there is work but no progress for this long, /ready answers 503 and the log says "
             "why; 0 turns the watchdog off"},
    {"drain-delay", 0, "SECONDS", ON_SERVE, KIND_COUNT, FIELD(serve.drain_delay_seconds), 0, 86400,
     .preset = "0",
     .help = "how long requests are still taken after SIGTERM, while /ready says 503"},
    {"drain-seconds", 0, "SECONDS", ON_SERVE, KIND_COUNT, FIELD(serve.drain_seconds), 0, 86400,
     .preset = "30", .help = "how long running answers may continue after SIGTERM"},

    {"api-key-file", 0, "FILE", ON_SERVE, KIND_TEXT, SETTING(api_key_file), .absent = "none",
     .group = "Access", .help = "a file with the API keys that clients must send, one per line"},
    {"cache-scope", 0, "SCOPE", ON_SERVE, KIND_TEXT, SETTING(cache_scope), .choices = "key|global",
     .preset = "key",
     .help = "whose cached prompts a request may use: those of its own API key (key) or "
             "everybody's (global)"},
    {"allowed-host", 0, "NAME", ON_SERVE, KIND_TEXTS, HTTP(allowed_hosts), .most = HTTP_HOSTS_MAX,
     .count_offset = HTTP(allowed_host_count), .absent = "on loopback: no other",
     .help = "an accepted value of the Host header, beside IP addresses and localhost; repeatable"},
    {"cors-origin", 0, "ORIGIN", ON_SERVE, KIND_TEXTS, HTTP(cors_origins), .most = HTTP_ORIGINS_MAX,
     .count_offset = HTTP(cors_origin_count), .absent = "none",
     .help = "an origin whose web pages may call the server; repeatable"},

    {"log-format", 0, "FORMAT", ON_COMPUTE | ON_PLAN, KIND_FORMAT, SETTING(log_format),
     .preset = "text", .group = "Logging", .help = "text or json"},
    LOG_LEVEL_ROW(ON_SERVE, "info"),
    LOG_LEVEL_ROW((ON_COMPUTE | ON_PLAN) & ~ON_SERVE, "warn"),

    {"max-tokens", 'n', "TOKENS", ON_RUN, KIND_COUNT, FIELD(run.max_tokens), 1, 1 << 24,
     .preset = "128", .group = "Answer", .help = "the most tokens of the answer"},
    {"temperature", 0, "NUMBER", ON_RUN, KIND_NUMBER, FIELD(run.temperature), 0, 100, .preset = "0",
     .help = "0 always takes the most probable token"},
    {"seed", 0, "NUMBER", ON_RUN, KIND_SEED, FIELD(run.seed), .preset = "0",
     .help = "the seed of the random numbers at a temperature above 0"},
    {"chat", 0, NULL, ON_RUN, KIND_ON, FIELD(run.chat),
     .help = "the prompt is a user message for the chat template"},

    {"tokens", 0, "COUNT", ON_PROVE, KIND_COUNT, FIELD(prove.tokens), 1, 1 << 20, .preset = "200",
     .group = "Proof", .help = "the number of tokens to generate"},
    {"batch", 0, "COUNT", ON_PROVE, KIND_COUNT, FIELD(prove.batch), 1, 128, .preset = "8",
     .help = "the number of sequences that run together in the batched way"},
    {"plot", 0, "FILE", ON_PROVE, KIND_TEXT, FIELD(prove.plot_file), .absent = "none",
     .help = "plot the time of each token into this .svg or .png file; needs gnuplot"},

    {"window", 0, "TOKENS", ON_PERPLEXITY, KIND_COUNT, FIELD(perplexity.window), 8, 1 << 16,
     .preset = "512", .group = "Text",
     .help = "tokens of one window; the second half of each window is scored"},
    {"windows", 0, "COUNT", ON_PERPLEXITY, KIND_COUNT, FIELD(perplexity.windows), 1, 1 << 30,
     .absent = "the whole text", .help = "stop after this many windows"},
    {"kl", 0, NULL, ON_PERPLEXITY, KIND_ON, FIELD(perplexity.kl),
     .help = "also print the KL divergence from the floating-point reference (--backend openblas)"},
    {"kl-kv", 0, NULL, ON_PERPLEXITY, KIND_ON, FIELD(perplexity.kl_kv),
     .help = "also print the KL divergence from the same model with keys and values in f32"},

    {"prompt-tokens", 0, "COUNT", ON_BENCH, KIND_COUNT, FIELD(bench.prompt), 1, 1 << 20,
     .preset = "512", .group = "Work", .help = "the length of the prompt whose prefill is timed"},
    {"answer-tokens", 0, "COUNT", ON_BENCH, KIND_COUNT, FIELD(bench.tokens), 1, 1 << 20,
     .preset = "32", .help = "the number of tokens that each sequence decodes"},
    {"depth", 0, "COUNT", ON_BENCH, KIND_COUNT, FIELD(bench.depth), 1, 1 << 20, .preset = "128",
     .help = "the number of tokens that each sequence holds before it decodes"},
    {"batch-max", 0, "COUNT", ON_BENCH, KIND_COUNT, FIELD(bench.batch), 1, 1024, .preset = "32",
     .help = "the most sequences that decode together"},

    {"users", 0, "COUNT", ON_PLAN, KIND_COUNT, FIELD(plan.users), 1, 4096,
     .absent = "find the most that fit", .group = "Question",
     .help = "the number of users with a sequence of --context tokens at the same time"},
    {"no-measure", 0, NULL, ON_PLAN, KIND_OFF, FIELD(plan.measure),
     .help = "do not measure this machine and print no times"},

    {"layers", 0, "COUNT", ON_PLAN, KIND_COUNT, SHAPE(layers), 1, LIMIT_LAYERS,
     .group = "A model without a file",
     .help = "the number of layers; with --kv-heads and --head-dim in place of --model"},
    {"kv-heads", 0, "COUNT", ON_PLAN, KIND_COUNT, SHAPE(kv_heads), 1, 4096,
     .help = "the number of KV heads of a layer"},
    {"head-dim", 0, "COUNT", ON_PLAN, KIND_COUNT, SHAPE(head_dim), 8, 512,
     .help = "the values of a head, a multiple of 8"},
    {"heads", 0, "COUNT", ON_PLAN, KIND_COUNT, SHAPE(heads), 1, 4096,
     .absent = "as many as KV heads",
     .help = "the number of query heads of a layer, a multiple of --kv-heads"},
    {"vocabulary", 0, "COUNT", ON_PLAN, KIND_COUNT, SHAPE(vocabulary), 1, LIMIT_VOCABULARY,
     .preset = "131072", .help = "the number of tokens that the model knows"},
    {"window", 0, "TOKENS", ON_PLAN, KIND_COUNT, SHAPE(window), 1, 1 << 24, .absent = "none",
     .help = "the sliding window of --window-layers"},
    {"window-layers", 0, "COUNT", ON_PLAN, KIND_COUNT, SHAPE(window_layers), 1, LIMIT_LAYERS,
     .absent = "none", .help = "the number of layers with the sliding window"},
    {"weights", 0, "BYTES", ON_PLAN, KIND_BYTES, SHAPE(weights_bytes), .absent = "0",
     .help = "the size of the weights, such as 4.6GiB"},
    {"weight-type", 0, "TYPE", ON_PLAN, KIND_TEXT, SHAPE(weight_type),
     .choices = "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q2_k|q3_k|q4_k|q5_k|q6_k|iq4_nl|iq4_xs",
     .preset = "q4_k", .help = "the format of the weights, for the times: q4_0, q4_k, q8_0, f16 …"},

    {"profile", 0, NULL, ON_SERVE | ON_BENCH, KIND_ON, SETTING(profile), .group = "Output",
     .help = "log at the end how much time each part of a step took"},
    {"svg", 0, "FILE", ON_PLAN, KIND_TEXT, FIELD(plan.svg_file), .absent = "none",
     .help = "draw the memory budget into this file"},
    {"json", 0, NULL, ON_INSPECT | ON_WORKBENCH | ON_PLAN, KIND_ON, FIELD(json),
     .help = "print JSON"},
};
#define SPEC_COUNT (sizeof specs / sizeof specs[0])

static const struct {
    const char *name;
    enum command command;
    const char *usage;
    const char *about;
} commands[] = {
    {"serve", COMMAND_SERVE, "quire serve -m MODEL [options]",
     "Serve a model over HTTP (OpenAI's API)."},
    {"run", COMMAND_RUN, "quire run -m MODEL [options] \"PROMPT\"",
     "Print the completion of a prompt, without HTTP."},
    {"inspect", COMMAND_INSPECT, "quire inspect [--json] MODEL",
     "Print a model file's metadata, tensors and what its memory costs."},
    {"prove", COMMAND_PROVE, "quire prove -m MODEL [options]",
     "Show on the model that caching keys and values changes nothing but the work."},
    {"perplexity", COMMAND_PERPLEXITY, "quire perplexity -m MODEL [options] FILE",
     "How well the model predicts a text; how far its arithmetic is from the float reference."},
    {"bench", COMMAND_BENCH, "quire bench -m MODEL [options]",
     "Time prefill and decoding without HTTP."},
    {"plan", COMMAND_PLAN, "quire plan -m MODEL | --layers N --kv-heads N --head-dim N [options]",
     "Say how a memory budget would divide, how many users it holds and how fast they would be."},
    {"healthcheck", COMMAND_HEALTHCHECK, "quire healthcheck [--host ADDRESS] [--port PORT]",
     "Ask a running server whether it is ready: exit code 0 if so, else 1."},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

/* What others call our options. NULL: there is no such thing here, with the reason in `ours`. */
static const struct {
    const char *theirs, *ours, *reason;
} foreign[] = {
    {"ctx-size", "context", NULL},
    {"max-model-len", "context", NULL},
    {"num-ctx", "context", NULL},
    {"parallel", "max-seqs", NULL},
    {"max-num-seqs", "max-seqs", NULL},
    {"max-num-batched-tokens", "max-batch-tokens", NULL},
    {"batch-size", "max-batch-tokens", NULL},
    {"ubatch-size", "max-batch-tokens", NULL},
    {"block-size", "page-size", NULL},
    {"cache-type-k", "kv-type", "keys and values have the same type"},
    {"cache-type-v", "kv-type", "keys and values have the same type"},
    {"kv-cache-dtype", "kv-type", NULL},
    {"alias", "served-model-name", NULL},
    {"api-key", "api-key-file", "keys on a command line can be seen by every user of the machine"},
    {"gpu-memory-utilization", "memory", NULL},
    {"slot-save-path", "cache-dir", "prefixes are kept and found again without being asked"},
    {"swap-space", "swap-bytes", "and where with --swap-dir"},
    {"n-predict", "max-tokens", NULL},
    {"temp", "temperature", NULL},
    {"allowed-origins", "cors-origin", NULL},
    {"n-gpu-layers", NULL, "Quire computes on the CPU"},
    {"tensor-parallel-size", NULL, "Quire computes on the CPU"},
    {"mlock", NULL, "weights are always held in memory"},
    {"no-mmap", NULL, "weights are always held in memory"},
    {"cont-batching", NULL, "batching is always on"},
    {"flash-attn", NULL, "there is one way of attention"},
};

static bool is_flag(const struct spec *spec)
{
    return spec->kind == KIND_ON || spec->kind == KIND_OFF;
}

/* "QUIRE_MAX_SEQS" of "max-seqs". */
static void variable_name(const struct spec *spec, char out[static 64])
{
    size_t length = (size_t)snprintf(out, 64, "QUIRE_%s", spec->name);
    for (size_t i = 0; i < length; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* Edits (insert, delete, change, swap neighbours) between two short names. */
static unsigned edit_distance(const char *a, const char *b)
{
    enum { MOST = 40 };
    size_t m = strlen(a), n = strlen(b);
    if (m > MOST || n > MOST)
        return MOST;
    unsigned row[3][MOST + 1];
    for (size_t j = 0; j <= n; j++)
        row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= m; i++) {
        unsigned *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[m % 3][n];
}

static const char *command_name(enum command command)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].command == command)
            return commands[i].name;
    }
    return "";
}

/* An option that this command does not have: say what might be meant. */
static enum status unknown_option(enum command command, const char *name, struct error *error)
{
    const char *on = command_name(command);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (strcmp(foreign[i].theirs, name) != 0)
            continue;
        if (!foreign[i].ours)
            return error_set(error, STATUS_INVALID, name, "there is no --%s: %s", name,
                             foreign[i].reason);
        return error_set(error, STATUS_INVALID, name, "there is no --%s: use --%s%s%s", name,
                         foreign[i].ours, foreign[i].reason ? "; " : "",
                         foreign[i].reason ? foreign[i].reason : "");
    }
    const struct spec *nearest = NULL;
    unsigned least = 4;
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        if (!strcmp(specs[i].name, name)) {
            for (size_t c = 0; c < COMMAND_COUNT; c++) {
                if (specs[i].commands & (1u << commands[c].command))
                    return error_set(error, STATUS_INVALID, name,
                                     "--%s is an option of `quire %s`, not of `quire %s`", name,
                                     commands[c].name, on);
            }
        }
        unsigned distance = edit_distance(specs[i].name, name);
        if ((specs[i].commands & (1u << command)) && distance < least) {
            least = distance;
            nearest = &specs[i];
        }
    }
    if (nearest && least < strlen(name))
        return error_set(error, STATUS_INVALID, name,
                         "there is no option --%s; did you mean --%s? `quire %s --help` lists all",
                         name, nearest->name, on);
    return error_set(error, STATUS_INVALID, name,
                     "there is no option --%s; `quire %s --help` lists all", name, on);
}

static bool parse_u64(const char *text, uint64_t *out)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* One of "a|b|c"? Returns its index or -1. */
static int choice_index(const char *choices, const char *text)
{
    size_t length = strlen(text);
    int index = 0;
    for (const char *at = choices; at; index++) {
        size_t width = strcspn(at, "|");
        if (width == length && !memcmp(at, text, length))
            return index;
        at = at[width] ? at + width + 1 : NULL;
    }
    return -1;
}

static enum status bad_value(const struct spec *spec, const char *from, const char *text,
                             const char *wanted, struct error *error)
{
    return error_set(error, STATUS_INVALID, spec->name, "%s: '%.40s' is not %s", from, text,
                     wanted);
}

static enum status set_choice(const struct spec *spec, const char *choices, const char *from,
                              const char *text, int *index, struct error *error)
{
    *index = choice_index(choices, text);
    if (*index >= 0)
        return STATUS_OK;
    char wanted[128] = "one of ";
    size_t length = strlen(wanted);
    for (const char *at = choices; *at && length + 3 < sizeof wanted; at++) {
        wanted[length++] = *at == '|' ? ',' : *at;
        if (*at == '|')
            wanted[length++] = ' ';
    }
    wanted[length] = '\0';
    return bad_value(spec, from, text, wanted, error);
}

static enum status set_number(const struct spec *spec, void *field, const char *from,
                              const char *text, struct error *error)
{
    char wanted[96];
    if (spec->kind == KIND_NUMBER) {
        char *end;
        double value = strtod(text, &end);
        if (end == text || *end || !(value >= spec->least && value <= spec->most)) {
            snprintf(wanted, sizeof wanted, "a number from %g to %g", spec->least, spec->most);
            return bad_value(spec, from, text, wanted, error);
        }
        *(float *)field = (float)value;
        return STATUS_OK;
    }
    uint64_t value;
    if (!parse_u64(text, &value) || value < (uint64_t)spec->least || value > (uint64_t)spec->most) {
        snprintf(wanted, sizeof wanted, "a whole number from %.0f to %.0f", spec->least,
                 spec->most);
        return bad_value(spec, from, text, wanted, error);
    }
    if (spec->kind == KIND_PORT)
        *(uint16_t *)field = (uint16_t)value;
    else
        *(uint32_t *)field = (uint32_t)value;
    return STATUS_OK;
}

static enum status set_text(const struct spec *spec, struct options *out, const char *from,
                            const char *text, struct error *error)
{
    void *field = (char *)out + spec->offset;
    if (!*text)
        return error_set(error, STATUS_INVALID, spec->name, "%s is empty", from);
    if (spec->kind == KIND_TEXTS) {
        unsigned *count = (unsigned *)(void *)((char *)out + spec->count_offset);
        if (*count >= (unsigned)spec->most)
            return error_set(error, STATUS_INVALID, spec->name, "%s: at most %.0f may be given",
                             from, spec->most);
        ((const char **)field)[(*count)++] = text;
        return STATUS_OK;
    }
    int index;
    if (spec->choices && set_choice(spec, spec->choices, from, text, &index, error) != STATUS_OK)
        return error ? error->status : STATUS_INVALID;
    *(const char **)field = text;
    return STATUS_OK;
}

/* `from` names the source in messages: "--port" or "QUIRE_PORT". */
static enum status set_value(const struct spec *spec, struct options *out, const char *from,
                             const char *text, struct error *error)
{
    void *field = (char *)out + spec->offset;
    int index = 0;
    enum status status = STATUS_OK;
    switch (spec->kind) {
    case KIND_TEXT:
    case KIND_TEXTS:
        return set_text(spec, out, from, text, error);
    case KIND_COUNT:
    case KIND_PORT:
    case KIND_NUMBER:
        return set_number(spec, field, from, text, error);
    case KIND_BYTES:
        if (!bytes_parse(text, field) || *(uint64_t *)field == 0)
            return bad_value(spec, from, text, "a size such as 512MiB or 2GiB", error);
        return STATUS_OK;
    case KIND_SEED:
        if (!parse_u64(text, field))
            return bad_value(spec, from, text, "a whole number from 0 to 2^64 - 1", error);
        return STATUS_OK;
    case KIND_FORMAT:
        status = set_choice(spec, "text|json", from, text, &index, error);
        if (status == STATUS_OK)
            *(enum log_format *)field = index == 1 ? LOG_JSON : LOG_TEXT;
        return status;
    case KIND_LEVEL:
        status = set_choice(spec, "debug|info|warn|error", from, text, &index, error);
        if (status == STATUS_OK)
            *(enum log_level *)field = (enum log_level)index;
        return status;
    case KIND_ON:
    case KIND_OFF:
        *(bool *)field = spec->kind == KIND_ON;
        return STATUS_OK;
    }
    return status;
}

/* A flag's variable: 1/true/yes/on sets it, 0/false/no/off leaves it. */
static enum status set_flag_variable(const struct spec *spec, struct options *out, const char *from,
                                     const char *text, struct error *error)
{
    static const char yes[] = "1|true|yes|on", no[] = "0|false|no|off";
    if (choice_index(yes, text) >= 0)
        return set_value(spec, out, from, NULL, error);
    if (choice_index(no, text) >= 0)
        return STATUS_OK;
    return bad_value(spec, from, text, "1 or 0", error);
}

/* A list in one variable is split at commas; the pieces live until the next options_parse. */
static enum status set_list_variable(const struct spec *spec, struct options *out, const char *from,
                                     const char *text, struct error *error)
{
    static char *kept[SPEC_COUNT];
    char **copy = &kept[spec - specs];
    free(*copy);
    *copy = strdup(text);
    if (!*copy)
        return error_out_of_memory(error);
    char *rest = *copy;
    enum status status = STATUS_OK;
    for (char *piece; status == STATUS_OK && (piece = strsep(&rest, ","));)
        status = set_value(spec, out, from, piece, error);
    return status;
}

/* What was given, in the environment or on the command line. */
struct given {
    bool set[SPEC_COUNT];
    const char *values[SPEC_COUNT]; /* on the command line: to notice two different ones */
};

/* Kubernetes and Docker's links describe a Service that is named quire so: QUIRE_PORT=tcp://10.0.0.1:80. */
static bool is_service_link(const char *text)
{
    return !strncmp(text, "tcp://", 6) || !strncmp(text, "udp://", 6) ||
           !strncmp(text, "sctp://", 7);
}

const char *options_service_link(void)
{
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        static char name[64];
        variable_name(&specs[i], name);
        const char *text = getenv(name);
        if (text && is_service_link(text))
            return name;
    }
    return NULL;
}

/* For what the command line did not give: a bad variable that it overrides is no error. */
static enum status apply_environment(struct options *out, struct given *given, struct error *error)
{
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const struct spec *spec = &specs[i];
        char name[64];
        variable_name(spec, name);
        const char *text = getenv(name);
        if (!text || !*text || given->set[i] || is_service_link(text) ||
            !(spec->commands & (1u << out->command)))
            continue;
        enum status status;
        if (is_flag(spec))
            status = set_flag_variable(spec, out, name, text, error);
        else if (spec->kind == KIND_TEXTS)
            status = set_list_variable(spec, out, name, text, error);
        else
            status = set_value(spec, out, name, text, error);
        if (status != STATUS_OK)
            return status;
        given->set[i] = true;
    }
    return STATUS_OK;
}

const char *options_misspelled_variable(unsigned *position)
{
    for (; environ[*position]; ++*position) {
        const char *entry = environ[*position];
        if (strncmp(entry, "QUIRE_", 6) != 0 || !strncmp(entry, "QUIRE_TEST_", 11))
            continue;
        char name[41];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
        unsigned least = UINT32_MAX;
        for (size_t i = 0; i < SPEC_COUNT; i++) {
            char known[64];
            variable_name(&specs[i], known);
            unsigned distance = edit_distance(known, name);
            least = min_u32(distance, least);
        }
        if (least >= 1 && least <= 2) {
            ++*position;
            return entry;
        }
    }
    return NULL;
}

static const struct spec *find_spec(enum command command, const char *name, size_t length)
{
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const struct spec *spec = &specs[i];
        if (!(spec->commands & (1u << command)))
            continue;
        if (strlen(spec->name) == length && !memcmp(spec->name, name, length))
            return spec;
        if (spec->also && strlen(spec->also) == length && !memcmp(spec->also, name, length))
            return spec;
    }
    return NULL;
}

static bool is_given(const struct given *given, enum command command, const char *name)
{
    const struct spec *spec = find_spec(command, name, strlen(name));
    return spec && given->set[spec - specs];
}

static const struct spec *find_letter(enum command command, char letter)
{
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        if ((specs[i].commands & (1u << command)) && specs[i].letter == letter)
            return &specs[i];
    }
    return NULL;
}

/* argv[*at] is an option; moves *at past its value. */
static enum status take_option(int argc, char **argv, int *at, struct options *out,
                               struct given *given, struct error *error)
{
    const char *argument = argv[*at];
    const struct spec *spec;
    const char *value = NULL;
    char from[64];
    if (argument[1] == '-') {
        size_t length = strcspn(argument + 2, "=");
        spec = find_spec(out->command, argument + 2, length);
        if (!spec) {
            char name[48];
            snprintf(name, sizeof name, "%.*s", (int)length, argument + 2);
            return unknown_option(out->command, name, error);
        }
        value = argument[2 + length] == '=' ? argument + 3 + length : NULL;
    } else {
        spec = find_letter(out->command, argument[1]);
        if (!spec || argument[2])
            return error_set(error, STATUS_INVALID, NULL,
                             "there is no option %.40s; `quire %s --help` lists all", argument,
                             command_name(out->command));
    }
    snprintf(from, sizeof from, "--%s", spec->name);
    if (is_flag(spec)) {
        if (value)
            return error_set(error, STATUS_INVALID, spec->name, "%s takes no value", from);
        value = "";
    } else if (!value) {
        if (*at + 1 >= argc)
            return error_set(error, STATUS_INVALID, spec->name, "%s needs a value: %s %s", from,
                             from, spec->value_name);
        value = argv[++*at];
    }
    size_t index = (size_t)(spec - specs);
    if (spec->kind != KIND_TEXTS && given->values[index] &&
        strcmp(given->values[index], value) != 0)
        return error_set(error, STATUS_INVALID, spec->name,
                         "%s is given twice: '%.40s' and '%.40s'", from, given->values[index],
                         value);
    given->values[index] = value;
    given->set[index] = true;
    return set_value(spec, out, from, value, error);
}

/* A word that is no option: the model of serve and inspect, the prompt of run. */
static enum status take_word(const char *word, struct options *out, bool *model_given,
                             struct error *error)
{
    if (out->command == COMMAND_RUN) {
        if (out->run.prompt)
            return error_set(
                error, STATUS_INVALID, "prompt",
                "more than one prompt; put it into quotes: quire run -m MODEL \"%.40s …\"",
                out->run.prompt);
        out->run.prompt = word;
        return STATUS_OK;
    }
    if ((out->command == COMMAND_SERVE || out->command == COMMAND_INSPECT ||
         out->command == COMMAND_PLAN) &&
        !*model_given) {
        out->settings.model_path = word;
        *model_given = true;
        return STATUS_OK;
    }
    if (out->command == COMMAND_PERPLEXITY && !out->perplexity.text_file) {
        out->perplexity.text_file = word;
        return STATUS_OK;
    }
    return error_set(error, STATUS_INVALID, NULL,
                     "'%.60s' is too much here; `quire %s --help` shows what goes", word,
                     command_name(out->command));
}

/* A synthetic model shape: all of it, and without a file. */
static enum status check_shape(const struct options *options, const struct given *given,
                               struct error *error)
{
    static const char *const names[] = {"layers",  "kv-heads",   "head-dim", /* these are needed */
                                        "heads",   "vocabulary", "window",   "window-layers",
                                        "weights", "weight-type"};
    const size_t needed = 3, count = sizeof names / sizeof names[0];
    const struct shape_options *shape = &options->plan.shape;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if (!is_given(given, COMMAND_PLAN, names[i]))
            continue;
        any = true;
        if (options->settings.model_path)
            return error_set(error, STATUS_INVALID, names[i],
                             "--%s describes a model without a file; leave it or --model out",
                             names[i]);
    }
    if (options->settings.model_path)
        return STATUS_OK;
    if (!any)
        return error_set(error, STATUS_INVALID, "model",
                         "which model? quire plan -m FILE.gguf, or --layers 32 --kv-heads 8 "
                         "--head-dim 128");
    for (size_t i = 0; i < needed; i++) {
        if (!is_given(given, COMMAND_PLAN, names[i]))
            return error_set(error, STATUS_INVALID, names[i],
                             "--%s is missing: a model without a file needs --layers, --kv-heads "
                             "and --head-dim",
                             names[i]);
    }
    if (!options->settings.context)
        return error_set(error, STATUS_INVALID, "context",
                         "how long are sequences? --context TOKENS; only a model's file says it");
    if (shape->head_dim % 8)
        return error_set(error, STATUS_INVALID, "head-dim", "--head-dim: %u is no multiple of 8",
                         shape->head_dim);
    if (shape->heads % shape->kv_heads)
        return error_set(error, STATUS_INVALID, "heads",
                         "--heads: %u is no multiple of the %u key/value heads", shape->heads,
                         shape->kv_heads);
    if (!shape->window != !shape->window_layers)
        return error_set(error, STATUS_INVALID, "window",
                         "--window and --window-layers belong together");
    if (shape->window_layers > shape->layers)
        return error_set(error, STATUS_INVALID, "window-layers",
                         "--window-layers: %u are more than the %u layers", shape->window_layers,
                         shape->layers);
    return STATUS_OK;
}

static enum status check_plan(const struct options *options, const struct given *given,
                              struct error *error)
{
    if (is_given(given, COMMAND_PLAN, "max-seqs") &&
        options->plan.users > options->settings.max_seqs)
        return error_set(error, STATUS_INVALID, "users",
                         "--users %u and --max-seqs %u contradict each other: a server computes "
                         "at most --max-seqs sequences together",
                         options->plan.users, options->settings.max_seqs);
    return check_shape(options, given, error);
}

static enum status check_options(const struct options *options, const struct given *given,
                                 struct error *error)
{
    const struct settings *settings = &options->settings;
    const struct http_options *http = &options->serve.http;
    enum command command = options->command;
    bool engine = (ON_COMPUTE & (1u << command)) != 0;
    if ((engine || command == COMMAND_INSPECT) && !settings->model_path)
        return error_set(error, STATUS_INVALID, "model",
                         "which model? quire %s -m FILE.gguf (or QUIRE_MODEL)",
                         command_name(command));
    if (command == COMMAND_RUN && !options->run.prompt)
        return error_set(error, STATUS_INVALID, "prompt",
                         "what prompt? quire run -m FILE.gguf \"Once upon a time\"");
    if (command == COMMAND_PERPLEXITY && !options->perplexity.text_file)
        return error_set(error, STATUS_INVALID, "file",
                         "what text? quire perplexity -m FILE.gguf TEXT.txt");
    if (command == COMMAND_PLAN && check_plan(options, given, error) != STATUS_OK)
        return error ? error->status : STATUS_INVALID;
    if (!engine && command != COMMAND_PLAN)
        return STATUS_OK;
    uint32_t page = settings->page_size;
    if (page != 8 && page != 16 && page != 32 && page != 64)
        return error_set(error, STATUS_INVALID, "page-size",
                         "--page-size: %u is not one of 8, 16, 32, 64", page);
    if (is_given(given, command, "swap-bytes") && !settings->swap_dir)
        return error_set(error, STATUS_INVALID, "swap-bytes",
                         "--swap-bytes is of a file in --swap-dir; where is that to be?");
    if (strlen(http->host) > 62)
        return error_set(error, STATUS_INVALID, "host", "--host has at most 62 characters");
    if (!strcmp(settings->backend, "openblas") && strcmp(settings->kernels, "auto") != 0)
        return error_set(error, STATUS_INVALID, "kernels",
                         "--kernels %s and --backend openblas contradict each other: OpenBLAS has "
                         "kernels of its own; leave one out",
                         settings->kernels);
    if (!strcmp(settings->backend, "openblas") && settings->kv_type &&
        strcmp(settings->kv_type, "f32"))
        return error_set(error, STATUS_INVALID, "kv-type",
                         "--kv-type %s and --backend openblas contradict each other: that backend "
                         "keeps keys and values in f32; leave one out",
                         settings->kv_type);
    if (options->perplexity.kl_kv &&
        (options->perplexity.kl || !strcmp(settings->backend, "openblas")))
        return error_set(error, STATUS_INVALID, "kl-kv",
                         "--kl-kv compares types of keys and values of the quantized backend; "
                         "leave %s out",
                         options->perplexity.kl ? "--kl" : "--backend openblas");
    if (settings->cache_dir && !settings->prefix_cache)
        return error_set(error, STATUS_INVALID, "cache-dir",
                         "--cache-dir and --no-prefix-cache contradict each other; leave one out");
    if (settings->cache_dir_bytes && !settings->cache_dir)
        return error_set(error, STATUS_INVALID, "cache-dir-bytes",
                         "--cache-dir-bytes of what? it needs --cache-dir DIR");
    for (unsigned i = 0; i < http->allowed_host_count; i++) {
        if (strlen(http->allowed_hosts[i]) > 62)
            return error_set(error, STATUS_INVALID, "allowed-host",
                             "--allowed-host: a name has at most 62 characters");
    }
    for (unsigned i = 0; i < http->cors_origin_count; i++) {
        const char *origin = http->cors_origins[i];
        const char *rest = strstr(origin, "://");
        if (strcmp(origin, "*") != 0 && (!rest || rest[3] == '\0' || strchr(rest + 3, '/')))
            return error_set(error, STATUS_INVALID, "cors-origin",
                             "--cors-origin: '%.60s' is not an origin such as https://app.example",
                             origin);
    }
    return STATUS_OK;
}

/* The defaults of all rows, then those of the command's own: a name may have a row for each. */
static void set_defaults(struct options *out, bool own)
{
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const struct spec *spec = &specs[i];
        if (own && !(spec->commands & (1u << out->command)))
            continue;
        if (spec->kind == KIND_OFF)
            *(bool *)(void *)((char *)out + spec->offset) = true;
        if (spec->preset)
            CHECK(set_value(spec, out, spec->name, spec->preset, NULL) == STATUS_OK);
    }
}

/* Defaults that depend on whether and what else was given. */
static void fill_defaults(struct options *out, const struct given *given)
{
    struct settings *settings = &out->settings;
    struct plan_options *plan = &out->plan;
    settings->serves = ((ON_SERVE | ON_PLAN) & (1u << out->command)) != 0;
    plan->max_seqs_given = is_given(given, out->command, "max-seqs");
    if (!plan->max_seqs_given && plan->users > settings->max_seqs)
        settings->max_seqs = plan->users;
    if (!settings->swap_dir)
        settings->swap_bytes = 0;
    if (!plan->shape.heads)
        plan->shape.heads = plan->shape.kv_heads;
}

/* The first word. Also sets help_about. */
static enum status take_command(int argc, char **argv, struct options *out, struct error *error)
{
    const char *word = argc > 1 ? argv[1] : "help";
    if (!strcmp(word, "--version") || !strcmp(word, "version")) {
        out->command = COMMAND_VERSION;
        return STATUS_OK;
    }
    out->command = out->help_about = COMMAND_HELP;
    if (!strcmp(word, "--help") || !strcmp(word, "-h"))
        return STATUS_OK;
    bool help = !strcmp(word, "help");
    if (help) {
        if (argc < 3)
            return STATUS_OK;
        word = argv[2];
    }
    const char *nearest = NULL;
    unsigned least = 4;
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (!strcmp(commands[i].name, word)) {
            out->command = help ? COMMAND_HELP : commands[i].command;
            out->help_about = commands[i].command;
            return STATUS_OK;
        }
        unsigned distance = edit_distance(commands[i].name, word);
        if (distance < least) {
            least = distance;
            nearest = commands[i].name;
        }
    }
    if (word[0] == '-')
        return error_set(error, STATUS_INVALID, NULL,
                         "the command comes first: quire serve %.40s …; `quire --help` lists all",
                         word);
    if (nearest)
        return error_set(error, STATUS_INVALID, NULL,
                         "there is no command '%.40s'; did you mean `quire %s`?", word, nearest);
    return error_set(error, STATUS_INVALID, NULL,
                     "there is no command '%.40s'; `quire --help` lists all", word);
}

enum status options_parse(int argc, char **argv, struct options *out, struct error *error)
{
    *out = (struct options){0};
    set_defaults(out, false);
    enum status status = take_command(argc, argv, out, error);
    if (status != STATUS_OK || out->command == COMMAND_HELP || out->command == COMMAND_VERSION)
        return status;
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            out->command = COMMAND_HELP;
            return STATUS_OK;
        }
    }
    set_defaults(out, true);
    struct given given = {0};
    bool words_only = false;
    bool model_given = false;
    for (int i = 2; i < argc && status == STATUS_OK; i++) {
        if (!words_only && !strcmp(argv[i], "--")) {
            words_only = true;
        } else if (!words_only && argv[i][0] == '-' && argv[i][1]) {
            status = take_option(argc, argv, &i, out, &given, error);
        } else {
            status = take_word(argv[i], out, &model_given, error);
        }
    }
    CHECK(specs[0].offset == SETTING(model_path)); /* given.values[0] below */
    if (status == STATUS_OK && model_given && given.values[0])
        return error_set(error, STATUS_INVALID, "model",
                         "the model is given twice: once with --model and once without");
    given.set[0] = given.set[0] || model_given;
    out->healthcheck.host_given = is_given(&given, out->command, "host");
    out->healthcheck.port_given = is_given(&given, out->command, "port");
    if (status == STATUS_OK)
        status = apply_environment(out, &given, error);
    if (out->plan.shape.layers && !model_given && !given.values[0])
        out->settings.model_path = NULL; /* the environment's: the command line wins */
    if (status == STATUS_OK)
        status = check_options(out, &given, error);
    fill_defaults(out, &given);
    return status;
}

uint64_t options_default(const char *name)
{
    const struct spec *spec = find_spec(COMMAND_SERVE, name, strlen(name));
    uint64_t value = 0;
    CHECK(spec && spec->preset && bytes_parse(spec->preset, &value));
    return value;
}

/* Print `text` in lines of at most 100 columns, all but the first indented; returns the column. */
static int print_wrapped(const char *text, int column, int indent)
{
    while (*text) {
        int width = (int)strcspn(text, " ");
        if (column > indent && column + 1 + width > 98) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' ');
            column++;
        }
        printf("%.*s", width, text);
        column += width;
        text += width + (text[width] == ' ');
    }
    return column;
}

static void print_options(enum command command)
{
    const char *group = NULL, *printed = NULL;
    for (size_t i = 0; i < SPEC_COUNT; i++) {
        const struct spec *spec = &specs[i];
        group = spec->group ? spec->group : group;
        if (!(spec->commands & (1u << command)))
            continue;
        if (group != printed)
            printf("\n%s\n", group);
        printed = group;
        char left[64];
        char letter[8] = "    ";
        if (spec->letter)
            snprintf(letter, sizeof letter, "-%c, ", spec->letter);
        snprintf(left, sizeof left, "  %s--%s %s", letter, spec->name,
                 spec->value_name ? spec->value_name : "");
        printf("%-34s", left);
        int column = print_wrapped(spec->help, 34, 34);
        const char *standard = spec->preset ? spec->preset : spec->absent;
        if (standard) {
            char bracketed[80];
            snprintf(bracketed, sizeof bracketed, "(%s)", standard);
            print_wrapped(bracketed, column, 34);
        }
        putchar('\n');
    }
}

void options_print_help(const struct options *options)
{
    if (options->help_about == COMMAND_HELP) {
        printf("Quire serves language models from one fixed pool of KV pages.\n\n");
        for (size_t i = 0; i < COMMAND_COUNT; i++)
            printf("  quire %-12s %s\n", commands[i].name, commands[i].about);
        printf("  quire %-12s %s\n", "--version", "Print the version.");
        printf("\n`quire COMMAND --help` explains a command's options.\n");
        return;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].command == options->help_about)
            printf("%s\n\n    %s\n", commands[i].about, commands[i].usage);
    }
    print_options(options->help_about);
    printf("\nEvery option may also be given in the environment: --max-seqs 64 is "
           "QUIRE_MAX_SEQS=64, a flag is\nQUIRE_NO_PREFIX_CACHE=1, a list is separated by commas. "
           "The command line wins.\nDefaults stand in brackets.\n");
}
