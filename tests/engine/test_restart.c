/*
 * Lives of an engine with a cache on disk: requests that share beginnings, in small pools with
 * preemption and swapping, idle times, resets; then an end, or a kill (the file as it was at some
 * moment, writes on their way), or damage; and another engine on the same directory. Every page of
 * the scripted backend has a digest of what it must hold, so an answer that used a wrong page
 * differs: all must be the oracle's.
 */
#include "base/log.h"
#include "engine/completion_private.h"
#include "engine/engine.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGES 60u
#define SIZE 8u
#define PROMPT_MAX 80u
#define TOGETHER 6u
#define LIVES 6u

static char directory[64], path[96], copy_path[96];
static const uint32_t end_token = RIG_END_TOKEN;
static uint64_t random_state;
static struct backend *backend;
static struct workers *workers;
static struct engine *engine;

static uint32_t dice(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % sides;
}

static void copy_file(const char *from, const char *to)
{
    static char bytes[1 << 20];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert(in >= 0 && out >= 0);
    ssize_t length = read(in, bytes, sizeof bytes);
    ck_assert(length >= 0 && length < (ssize_t)sizeof bytes);
    ck_assert_int_eq(write(out, bytes, (size_t)length), length);
    close(in);
    close(out);
}

static void damage(void)
{
    struct stat info;
    int fd = open(path, O_RDWR);
    ck_assert(fd >= 0 && fstat(fd, &info) == 0);
    off_t at = 1 + dice((uint32_t)info.st_size - 1);
    unsigned char byte;
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= (unsigned char)(1 + dice(255));
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void start(const struct kv_groups *groups)
{
    static const uint64_t caps[] = {0, 12000, 100000};
    struct error error;
    backend = scripted_backend_create(&(struct scripted_options){
        .vocabulary = RIG_VOCABULARY,
        .page_count = PAGES,
        .page_size = SIZE,
        .groups = *groups,
        .max_batch_rows = 32,
        .max_sequences = 4,
        .logits_rows_max = 3,
        .end_token = RIG_END_TOKEN,
    });
    ck_assert_ptr_nonnull(backend);
    struct engine_options options = {
        .backend = backend,
        .workers = workers,
        .context = 120,
        .max_batch_tokens = 32,
        .max_sequences = 4,
        .max_queue = 40,
        .end_tokens = &end_token,
        .end_token_count = 1,
        .prefix_cache = true,
        .cache_dir = directory,
        .cache_dir_bytes = caps[dice(3)],
        .swap_dir = dice(2) ? "/tmp" : NULL,
        .swap_bytes = 1 << 20,
        .check_every_step = true,
        .test_preempt_every = dice(2) * 7,
        .test_swap = true,
    };
    ck_assert_msg(engine_create(&options, &engine, &error) == STATUS_OK, "%s", error.message);
}

/* Some requests at the same time; each must get its answer. */
static void ask(void)
{
    static uint32_t tokens[TOGETHER][PROMPT_MAX];
    struct rig_request requests[TOGETHER];
    struct completion *completions[TOGETHER];
    uint32_t count = 1 + dice(TOGETHER);
    struct error error;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < PROMPT_MAX; k++) /* at every third page two ways to go on */
            tokens[i][k] = k % (3 * SIZE) ? k % 50 + 8 : 8 + dice(2);
        requests[i] = (struct rig_request){.tokens = tokens[i],
                                           .token_count = 1 + dice(PROMPT_MAX),
                                           .choice_count = 1 + dice(2),
                                           .max_tokens = 1 + dice(20),
                                           .cache_salt = dice(2),
                                           .logprobs = true};
        completions[i] = rig_completion(&requests[i]);
        ck_assert(engine_submit(engine, &completions[i], 1, &error) == STATUS_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        while (!completion_done(completions[i]))
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        rig_check_answers(completions[i], &requests[i], engine_max_length(engine));
        completion_release(completions[i]);
    }
}

/* Returns the tokens that were found in pages of earlier lives. */
static uint64_t live(const struct kv_groups *groups)
{
    start(groups);
    bool killed = dice(3) == 0;
    uint32_t rounds = 4 + dice(8);
    for (uint32_t round = 0; round < rounds; round++) {
        ask();
        if (dice(10) == 0)
            engine_reset_cache(engine);
        if (dice(5) == 0 || round + 1 == rounds)
            nanosleep(&(struct timespec){.tv_nsec = 98000000 + (long)dice(8) * 1000000}, NULL);
    }
    if (killed)
        copy_file(path, copy_path);
    uint64_t hits = metric_get(&engine_metrics(engine)->cache_dir_hit_tokens);
    engine_destroy(engine);
    backend->ops->destroy(backend);
    if (killed)
        copy_file(copy_path, path);
    if (dice(3) == 0)
        damage();
    return hits;
}

START_TEST(answers_are_right_in_every_life)
{
    static const struct kv_groups groups[] = {{.count = 1}, {.count = 3, .window = {0, 20, 12}}};
    struct error error;
    uint64_t hits = 0;
    random_state = 88172645463325252u ^ (uint64_t)(_i + 1) * 0x9e3779b97f4a7c15u;
    strcpy(directory, "/tmp/quire-restart-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/quire.pages", directory);
    snprintf(copy_path, sizeof copy_path, "%s/copy", directory);
    ck_assert(workers_create(2, &workers, &error) == STATUS_OK);
    for (uint32_t life = 0; life < LIVES; life++)
        hits += live(&groups[_i % 2]);
    workers_destroy(workers);
    ck_assert_uint_gt(hits, 0);
    ck_assert_uint_eq(rig_request_bytes(), 0);
    unlink(path);
    unlink(copy_path);
    rmdir(directory);
}
END_TEST

int main(void)
{
    log_init(LOG_TEXT, LOG_ERROR);
    const char *full = getenv("QUIRE_TEST_FULL");
    Suite *suite = suite_create("restart");
    TCase *tcase = tcase_create("lives");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, answers_are_right_in_every_life, 0,
                        full && *full && strcmp(full, "0") ? 60 : 4);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
