/* Options: defaults, both spellings, the environment, and that everything wrong is refused with a
 * hint. */
#include "cli/options.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct options options;
static struct error error;

/* Parse "quire" and the words up to a NULL. */
static enum status parse(const char *first, ...)
{
    char *argv[32] = {(char *)(uintptr_t) "quire", (char *)(uintptr_t)first};
    int argc = first ? 2 : 1;
    va_list words;
    va_start(words, first);
    for (char *word; first && (word = va_arg(words, char *));)
        argv[argc++] = word;
    va_end(words);
    error_clear(&error);
    return options_parse(argc, argv, &options, &error);
}

static void clean_environment(void)
{
    extern char **environ;
    for (char **entry = environ; *entry;) {
        if (strncmp(*entry, "QUIRE_", 6) != 0) {
            entry++;
            continue;
        }
        char name[128] = {0};
        memcpy(name, *entry, strcspn(*entry, "="));
        unsetenv(name);
        entry = environ;
    }
}

#define REFUSED(part, ...)                                                                         \
    do {                                                                                           \
        ck_assert_int_eq(parse(__VA_ARGS__, NULL), STATUS_INVALID);                                \
        ck_assert_msg(strstr(error.message, part), "%s", error.message);                           \
    } while (0)

START_TEST(test_defaults)
{
    ck_assert_int_eq(parse("serve", "-m", "a.gguf", NULL), STATUS_OK);
    ck_assert_int_eq(options.command, COMMAND_SERVE);
    ck_assert_str_eq(options.settings.model_path, "a.gguf");
    ck_assert_str_eq(options.serve.http.host, "127.0.0.1");
    ck_assert_uint_eq(options.serve.http.port, 8080);
    ck_assert_uint_eq(options.settings.page_size, 16);
    ck_assert_uint_eq(options.settings.max_seqs, 128);
    ck_assert_uint_eq(options.settings.max_queue, 1024);
    ck_assert_uint_eq(options.serve.drain_seconds, 30);
    ck_assert(options.settings.prefix_cache);
    ck_assert_str_eq(options.settings.constraints, "auto");
    ck_assert_uint_eq(options.settings.memory_bytes, 0);
    ck_assert_int_eq(options.log_level, LOG_INFO);
    ck_assert_uint_eq(options.settings.swap_bytes, 0);
    ck_assert(options.settings.serves);
    ck_assert_int_eq(parse("serve", "-m", "a.gguf", "--swap-dir", "d", NULL), STATUS_OK);
    ck_assert_uint_eq(options.settings.swap_bytes, 4ull << 30);
    ck_assert_uint_eq(options_default("swap-bytes"), 4ull << 30);
    ck_assert_uint_eq(options_default("max-seqs"), 128);
}
END_TEST

/* Some names have a row, and so a default, for each command. */
START_TEST(test_defaults_of_the_others)
{
    ck_assert_int_eq(parse("perplexity", "-m", "m", "text", NULL), STATUS_OK);
    ck_assert_int_eq(options.log_level, LOG_WARN);
    ck_assert_uint_eq(options.perplexity.window, 512);
    ck_assert_uint_eq(options.plan.shape.window, 0);
    ck_assert_int_eq(parse("plan", "m", NULL), STATUS_OK);
    ck_assert_int_eq(options.log_level, LOG_WARN);
    ck_assert(options.settings.prefix_cache && options.settings.serves);
    ck_assert_uint_eq(options.settings.max_queue_tokens, 1 << 20); /* no option of this command */
    ck_assert_int_eq(parse("run", "-m", "m", "x", NULL), STATUS_OK);
    ck_assert(!options.settings.serves);
    ck_assert_uint_eq(options.run.max_tokens, 128);
    ck_assert_int_eq(parse("bench", "-m", "m", NULL), STATUS_OK);
    ck_assert_uint_eq(options.bench.prompt, 512);
    ck_assert_uint_eq(options.bench.batch, 32);
    ck_assert_int_eq(parse("prove", "-m", "m", NULL), STATUS_OK);
    ck_assert_uint_eq(options.prove.tokens, 200);
}
END_TEST

START_TEST(test_every_serve_option)
{
    ck_assert_int_eq(parse("serve", "--model=m", "--host", "0.0.0.0", "--port=0", "--threads", "3",
                           "--memory", "512MiB", "--context=2048", "--page-size", "32",
                           "--max-batch-tokens=1", "--max-seqs", "7", "--max-queue=9",
                           "--max-connections", "50", "--served-model-name", "a",
                           "--served-model-name=b", "--api-key-file", "k", "--kernels", "scalar",
                           "--kv-type=q8_0", "--swap-dir", "d", "--swap-bytes=3MiB", NULL),
                     STATUS_OK);
    ck_assert_str_eq(options.settings.kv_type, "q8_0");
    ck_assert_str_eq(options.settings.swap_dir, "d");
    ck_assert_uint_eq(options.settings.swap_bytes, 3u << 20);
    ck_assert_uint_eq(options.serve.http.port, 0);
    ck_assert_uint_eq(options.settings.threads, 3);
    ck_assert_uint_eq(options.settings.memory_bytes, 512u << 20);
    ck_assert_uint_eq(options.settings.context, 2048);
    ck_assert_uint_eq(options.settings.page_size, 32);
    ck_assert_uint_eq(options.settings.max_batch_tokens, 1);
    ck_assert_uint_eq(options.settings.max_seqs, 7);
    ck_assert_uint_eq(options.settings.max_queue, 9);
    ck_assert_uint_eq(options.settings.max_connections, 50);
    ck_assert_uint_eq(options.settings.served_model_name_count, 2);
    ck_assert_str_eq(options.settings.served_model_names[1], "b");
    ck_assert_str_eq(options.settings.kernels, "scalar");
    ck_assert_int_eq(parse("serve", "m", "--backend", "openblas", "--drain-seconds=0",
                           "--log-format=json", "--log-level", "debug", "--no-prefix-cache",
                           "--cors-origin", "https://a.example", "--allowed-host=a.example",
                           "--chat-template", "t", NULL),
                     STATUS_OK);
    ck_assert_str_eq(options.settings.model_path, "m");
    ck_assert_str_eq(options.settings.backend, "openblas");
    ck_assert_uint_eq(options.serve.drain_seconds, 0);
    ck_assert_int_eq(options.settings.log_format, LOG_JSON);
    ck_assert_int_eq(options.log_level, LOG_DEBUG);
    ck_assert(!options.settings.prefix_cache);
    ck_assert_uint_eq(options.serve.http.cors_origin_count, 1);
    ck_assert_str_eq(options.serve.http.allowed_hosts[0], "a.example");
    ck_assert_str_eq(options.settings.chat_template_file, "t");
    ck_assert_int_eq(parse("serve", "m", "--chat-template-file=u", NULL), STATUS_OK); /* the same */
    ck_assert_str_eq(options.settings.chat_template_file, "u");
    REFUSED("given twice", "serve", "-m", "m", "--chat-template", "a", "--chat-template-file", "b");
}
END_TEST

START_TEST(test_run_and_the_others)
{
    ck_assert_int_eq(parse("run", "-m", "m", "-n", "5", "--temperature", "0.5",
                           "--seed=18446744073709551615", "--chat", "hello there", NULL),
                     STATUS_OK);
    ck_assert_str_eq(options.run.prompt, "hello there");
    ck_assert_uint_eq(options.run.max_tokens, 5);
    ck_assert(options.run.temperature == 0.5f);
    ck_assert(options.run.seed == UINT64_MAX);
    ck_assert(options.run.chat);
    ck_assert_int_eq(parse("run", "-m", "m", "--", "--not-an-option", NULL), STATUS_OK);
    ck_assert_str_eq(options.run.prompt, "--not-an-option");
    ck_assert_int_eq(parse("inspect", "--json", "m", NULL), STATUS_OK);
    ck_assert(options.json);
    ck_assert_str_eq(options.settings.model_path, "m");
    ck_assert_int_eq(parse("healthcheck", "--port", "9", NULL), STATUS_OK);
    ck_assert_uint_eq(options.serve.http.port, 9);
    ck_assert_int_eq(parse("--version", NULL), STATUS_OK);
    ck_assert_int_eq(options.command, COMMAND_VERSION);
    ck_assert_int_eq(parse(NULL), STATUS_OK);
    ck_assert_int_eq(options.command, COMMAND_HELP);
    ck_assert_int_eq(parse("serve", "--nonsense", "--help", NULL), STATUS_OK);
    ck_assert_int_eq(options.command, COMMAND_HELP);
    ck_assert_int_eq(options.help_about, COMMAND_SERVE);
    ck_assert_int_eq(parse("help", "run", NULL), STATUS_OK);
    ck_assert_int_eq(options.help_about, COMMAND_RUN);
}
END_TEST

START_TEST(test_plan)
{
    ck_assert_int_eq(parse("plan", "m", "--users", "16", "--kv-type", "q8_0", NULL), STATUS_OK);
    ck_assert_str_eq(options.settings.model_path, "m");
    ck_assert_uint_eq(options.plan.users, 16);
    ck_assert_str_eq(options.settings.kv_type, "q8_0");
    ck_assert_uint_eq(options.settings.max_seqs, 128);
    ck_assert(!options.plan.max_seqs_given && options.plan.measure);
    ck_assert_int_eq(parse("plan", "-m", "m", "--users", "200", "--no-measure", NULL), STATUS_OK);
    ck_assert_uint_eq(options.settings.max_seqs, 200); /* a server for them */
    ck_assert(!options.plan.measure);
    REFUSED("contradict", "plan", "m", "--users", "200", "--max-seqs", "100");
    ck_assert_int_eq(parse("plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128",
                           "--context", "8192", "--weights", "4.5GiB", NULL),
                     STATUS_OK);
    ck_assert_ptr_null(options.settings.model_path);
    ck_assert_uint_eq(options.plan.shape.heads, 8);
    ck_assert_uint_eq(options.plan.shape.vocabulary, 131072);
    ck_assert_uint_eq(options.plan.shape.weights_bytes, 9ull << 29);
    ck_assert_str_eq(options.plan.shape.weight_type, "q4_k");
    setenv("QUIRE_MODEL", "from-environment", 1);
    ck_assert_int_eq(parse("plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128",
                           "--context", "8192", NULL),
                     STATUS_OK);
    ck_assert_ptr_null(options.settings.model_path);
    ck_assert_int_eq(parse("plan", NULL), STATUS_OK);
    ck_assert_str_eq(options.settings.model_path, "from-environment");
    unsetenv("QUIRE_MODEL");
    REFUSED("--layers", "plan", "-m", "m", "--layers", "32");
    REFUSED("--head-dim", "plan", "--layers", "32", "--kv-heads", "8");
    REFUSED("--context", "plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128");
    REFUSED("quire plan", "serve", "m", "--users", "16");
}
END_TEST

/* What Kubernetes sets for a Service named quire is nobody's option, and a bad variable harms only
   where it would be used. */
START_TEST(test_foreign_variables)
{
    ck_assert_ptr_null(options_service_link());
    setenv("QUIRE_PORT", "tcp://10.96.0.1:80", 1);
    setenv("QUIRE_PORT_8080_TCP", "tcp://10.96.0.1:80", 1);
    setenv("QUIRE_SERVICE_HOST", "10.96.0.1", 1);
    ck_assert_int_eq(parse("serve", "-m", "m", NULL), STATUS_OK);
    ck_assert_uint_eq(options.serve.http.port, 8080);
    ck_assert_int_eq(parse("serve", "-m", "m", "--port", "81", NULL), STATUS_OK);
    ck_assert_uint_eq(options.serve.http.port, 81);
    ck_assert_int_eq(parse("healthcheck", NULL), STATUS_OK);
    ck_assert_uint_eq(options.serve.http.port, 8080);
    ck_assert_str_eq(options_service_link(), "QUIRE_PORT");
    unsigned position = 0;
    ck_assert_ptr_null(options_misspelled_variable(&position));
    setenv("QUIRE_PORT", "nonsense", 1);
    ck_assert_ptr_null(options_service_link());
    REFUSED("QUIRE_PORT", "serve", "-m", "m");
    ck_assert_int_eq(parse("serve", "-m", "m", "--port", "81", NULL), STATUS_OK);
    ck_assert_uint_eq(options.serve.http.port, 81);
    unsetenv("QUIRE_PORT");
    unsetenv("QUIRE_PORT_8080_TCP");
    unsetenv("QUIRE_SERVICE_HOST");
    ck_assert_int_eq(parse("healthcheck", "--port", "9", NULL), STATUS_OK);
    ck_assert(options.healthcheck.port_given && !options.healthcheck.host_given);
    setenv("QUIRE_HOST", "[::1]", 1); /* the environment's is not the command line's */
    ck_assert_int_eq(parse("healthcheck", NULL), STATUS_OK);
    ck_assert_str_eq(options.serve.http.host, "[::1]");
    ck_assert(!options.healthcheck.host_given);
    unsetenv("QUIRE_HOST");
}
END_TEST

START_TEST(test_environment)
{
    setenv("QUIRE_MODEL", "from-environment", 1);
    setenv("QUIRE_MEMORY", "1GiB", 1);
    setenv("QUIRE_MAX_SEQS", "5", 1);
    setenv("QUIRE_NO_PREFIX_CACHE", "true", 1);
    setenv("QUIRE_SERVED_MODEL_NAME", "x,y", 1);
    setenv("QUIRE_KERNELS", "", 1); /* empty: as if absent */
    ck_assert_int_eq(parse("serve", NULL), STATUS_OK);
    ck_assert_str_eq(options.settings.model_path, "from-environment");
    ck_assert_uint_eq(options.settings.memory_bytes, 1u << 30);
    ck_assert_uint_eq(options.settings.max_seqs, 5);
    ck_assert(!options.settings.prefix_cache);
    ck_assert_uint_eq(options.settings.served_model_name_count, 2);
    ck_assert_str_eq(options.settings.kernels, "auto");
    /* the command line wins, also over lists */
    ck_assert_int_eq(parse("serve", "other", "--memory", "2GiB", "--served-model-name", "z", NULL),
                     STATUS_OK);
    ck_assert_str_eq(options.settings.model_path, "other");
    ck_assert_uint_eq(options.settings.memory_bytes, 2ull << 30);
    ck_assert_uint_eq(options.settings.served_model_name_count, 1);
    ck_assert_str_eq(options.settings.served_model_names[0], "z");
    /* variables of serve do not trouble the other commands */
    setenv("QUIRE_MAX_SEQS", "many", 1);
    ck_assert_int_eq(parse("healthcheck", NULL), STATUS_OK);
    REFUSED("QUIRE_MAX_SEQS", "serve");
    setenv("QUIRE_MAX_SEQS", "5", 1);
    setenv("QUIRE_NO_PREFIX_CACHE", "maybe", 1);
    REFUSED("QUIRE_NO_PREFIX_CACHE", "serve");
}
END_TEST

START_TEST(test_misspelled_variable)
{
    unsigned position = 0;
    setenv("QUIRE_MEMORY", "1GiB", 1);
    setenv("QUIRE_TEST_MODEL", "x", 1);
    setenv("QUIRE_BINARY", "x", 1);
    ck_assert_ptr_null(options_misspelled_variable(&position));
    setenv("QUIRE_MEMROY", "1GiB", 1);
    position = 0;
    const char *found = options_misspelled_variable(&position);
    ck_assert_ptr_nonnull(found);
    ck_assert_str_eq(found, "QUIRE_MEMROY=1GiB");
    ck_assert_ptr_null(options_misspelled_variable(&position));
}
END_TEST

START_TEST(test_hints)
{
    REFUSED("did you mean --memory", "serve", "-m", "m", "--memroy", "1GiB");
    REFUSED("use --context", "serve", "-m", "m", "--ctx-size", "5");
    REFUSED("use --context", "serve", "-m", "m", "--max-model-len=5");
    REFUSED("use --max-seqs", "serve", "-m", "m", "--parallel", "5");
    REFUSED("computes on the CPU", "serve", "-m", "m", "--n-gpu-layers", "5");
    REFUSED("option of `quire serve`", "run", "-m", "m", "--port", "5", "x");
    REFUSED("--help", "serve", "-m", "m", "--zzzzzzzzzz");
    REFUSED("did you mean `quire serve`", "server");
    REFUSED("the command comes first", "--port");
    REFUSED("-x", "serve", "-m", "m", "-x");
    REFUSED("there is no command", "frobnicate");
}
END_TEST

START_TEST(test_bad_values)
{
    REFUSED("which model", "serve");
    REFUSED("what prompt", "run", "-m", "m");
    REFUSED("needs a value", "serve", "-m");
    REFUSED("whole number from 0 to 65535", "serve", "-m", "m", "--port", "65536");
    REFUSED("--port", "serve", "-m", "m", "--port", "-1");
    REFUSED("--port", "serve", "-m", "m", "--port", "80x");
    REFUSED("--port", "serve", "-m", "m", "--port", "");
    REFUSED("512MiB", "serve", "-m", "m", "--memory", "lots");
    REFUSED("512MiB", "serve", "-m", "m", "--memory", "0");
    REFUSED("8, 16, 32, 64", "serve", "-m", "m", "--page-size", "24");
    REFUSED("--max-batch-tokens", "serve", "-m", "m", "--max-batch-tokens", "0");
    REFUSED("auto, scalar, avx2", "serve", "-m", "m", "--kernels", "mmx");
    REFUSED("one of f32, f16, bf16, q8_0, q4_0", "serve", "-m", "m", "--kv-type", "q5_1");
    REFUSED("one of f32, f16, bf16, q8_0, q4_0", "bench", "-m", "m", "--kv-type", "F16");
    REFUSED("use --kv-type", "serve", "-m", "m", "--cache-type-k", "q8_0");
    REFUSED("--swap-dir", "serve", "-m", "m", "--swap-bytes", "1GiB");
    REFUSED("use --swap-bytes", "serve", "-m", "m", "--swap-space", "4");
    REFUSED("use --kv-type", "serve", "-m", "m", "--kv-cache-dtype", "fp8");
    REFUSED("text, json", "serve", "-m", "m", "--log-format", "xml");
    REFUSED("takes no value", "serve", "-m", "m", "--no-prefix-cache=1");
    REFUSED("auto, on, off", "serve", "-m", "m", "--constraints", "yes");
    REFUSED("number from 0 to 100", "run", "-m", "m", "x", "--temperature", "nan");
    REFUSED("number from 0 to 100", "run", "-m", "m", "x", "--temperature", "-1");
    REFUSED("is empty", "serve", "-m", "");
    REFUSED("not an origin", "serve", "-m", "m", "--cors-origin", "a.example");
}
END_TEST

START_TEST(test_contradictions)
{
    REFUSED("given twice", "serve", "-m", "m", "--port", "1", "--port", "2");
    ck_assert_int_eq(parse("serve", "-m", "m", "--port", "1", "--port", "1", NULL), STATUS_OK);
    REFUSED("given twice", "serve", "-m", "m", "other");
    REFUSED("contradict", "serve", "-m", "m", "--backend", "openblas", "--kernels", "avx2");
    REFUSED("contradict", "run", "-m", "m", "x", "--backend", "openblas", "--kv-type", "f16");
    ck_assert_int_eq(
        parse("run", "-m", "m", "x", "--backend", "openblas", "--kv-type", "f32", NULL), STATUS_OK);
    REFUSED("leave --kl out", "perplexity", "-m", "m", "x", "--kl", "--kl-kv");
    REFUSED("leave --backend openblas out", "perplexity", "-m", "m", "x", "--backend", "openblas",
            "--kl-kv");
    REFUSED("quotes", "run", "-m", "m", "two", "prompts");
    REFUSED("too much", "healthcheck", "x");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");
    tcase_add_checked_fixture(tests, clean_environment, NULL);
    tcase_add_test(tests, test_defaults);
    tcase_add_test(tests, test_defaults_of_the_others);
    tcase_add_test(tests, test_every_serve_option);
    tcase_add_test(tests, test_run_and_the_others);
    tcase_add_test(tests, test_plan);
    tcase_add_test(tests, test_environment);
    tcase_add_test(tests, test_foreign_variables);
    tcase_add_test(tests, test_misspelled_variable);
    tcase_add_test(tests, test_hints);
    tcase_add_test(tests, test_bad_values);
    tcase_add_test(tests, test_contradictions);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
