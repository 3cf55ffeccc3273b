/*
 * What becomes of a request when the system has no memory: every allocation that the request's own
 * thread makes through C is made to fail in turn, by the linker's --wrap. The answer is either
 * there or STATUS_UNAVAILABLE (503), never a fault of the client's, and nothing stays in the budget
 * (fixture_deinit looks).
 */
#include "base/bytes.h"
#include "tests/api/fixture.h"

#include "textshim.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);

static _Thread_local int until_failure = -1; /* allocations; below 0: none fails */

static bool fails(void)
{
    return until_failure >= 0 && until_failure-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *block, size_t size)
{
    return fails() ? NULL : __real_realloc(block, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

static struct fixture fixture;

static void set_up(void)
{
    fixture_init(&fixture, &(struct fixture_options){.chat_template = fixture_template,
                                                     .request_bytes = 2 * MIB});
}

static void tear_down(void)
{
    fixture_deinit(&fixture);
}

/* How many allocations it took until nothing failed. */
static int fail_each(enum answer_kind kind, const char *body)
{
    size_t length = strlen(body);
    for (int number = 0;; number++) {
        struct answer *answer = NULL;
        struct error error = {0};
        until_failure = number;
        enum status status =
            answer_open(&fixture.context, kind, body, length, 1, &(struct answer_caller){0},
                        fixture_wake, &fixture, &answer, &error);
        bool failed = until_failure < 0;
        until_failure = -1;
        if (answer)
            answer_close(answer);
        if (!failed) {
            ck_assert_msg(status == STATUS_OK, "%s", error.message);
            return number;
        }
        if (status == STATUS_OK) /* done without it */
            continue;
        ck_assert_msg(status == STATUS_UNAVAILABLE, "allocation %d: %d %s", number, status,
                      error.message);
        ck_assert_str_eq(error.code, "out_of_memory");
        ck_assert_uint_ge(error.retry_after_s, 1);
    }
}

START_TEST(every_allocation_of_a_request_may_fail)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"hi there\",\"max_tokens\":2,\"logprobs\":2,\"n\":2}",
        "{\"prompt\":[[104,105],[72]],\"echo\":true,\"max_tokens\":1,\"stop\":[\"x\",\"yy\"]}",
        "{\"prompt\":[\"a\",\"b\"],\"logit_bias\":{\"5\":1,\"6\":2},\"max_tokens\":1}",
        "{\"prompt\":\"a\",\"x\":{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,"
        "\"i\":1,\"j\":1,\"k\":1,\"l\":1,\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"q\":1},\"max_tokens\":"
        "1}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        ck_assert_int_gt(fail_each(ANSWER_COMPLETION, bodies[i]), 10);
}
END_TEST

/* What can never fit, its body and what is made of it together, is refused for good, whatever the
   part that does not fit; what others hold is refused for now. */
START_TEST(never_and_not_now)
{
    uint64_t cap = fixture.budget.cap_bytes[BUDGET_REQUESTS];
    struct buffer body;
    for (unsigned share = 20; share > 1; share--) {
        struct reply reply;
        buffer_init(&body, 0);
        buffer_append_text(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (uint64_t i = 0; i < cap / share; i++)
            buffer_append(&body, "x", 1);
        buffer_append_text(&body, "\"}]}");
        ck_assert(budget_take(&fixture.budget, BUDGET_REQUESTS, body.length + 1)); /* as http.c */
        fixture_request(&fixture, ANSWER_CHAT, body.data, &reply);
        ck_assert_msg(reply.open_status == STATUS_INVALID || reply.open_status == STATUS_TOO_LARGE,
                      "a %uth: %s", share, reply.error.message);
        ck_assert_uint_eq(reply.error.retry_after_s, 0);
        if (reply.open_status == STATUS_TOO_LARGE)
            ck_assert_ptr_nonnull(strstr(reply.error.message, "MiB"));
        budget_give(&fixture.budget, BUDGET_REQUESTS, body.length + 1);
        reply_deinit(&reply);
        buffer_deinit(&body);
    }
    struct reply reply;
    ck_assert(budget_take(&fixture.budget, BUDGET_REQUESTS, cap - 1000));
    fixture_request(&fixture, ANSWER_CHAT,
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", &reply);
    ck_assert_int_eq(reply.open_status, STATUS_BUSY);
    ck_assert_uint_ge(reply.error.retry_after_s, 1);
    budget_give(&fixture.budget, BUDGET_REQUESTS, cap - 1000);
    reply_deinit(&reply);
}
END_TEST

/* A template that gathers what it sees in lists has fuel for a thousand messages in the 4 MiB of a
   small budget: it borrows of what requests leave, and what it borrowed is back afterwards. Where
   others hold that, the conversation is refused as before. */
START_TEST(a_long_conversation_borrows_memory)
{
    static const char gathering[] =
        "{% set ns = namespace(l=[], n=0) %}{% for m in messages %}"
        "{% set ns.l = ns.l + [m.role] %}{% if ns.l|length > 3 %}{% set ns.l = [] %}{% endif %}"
        "{% for other in ['user'] %}{% if m.role == other %}"
        "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{% endfor %}{{ ns.n }}";
    struct fixture small;
    struct buffer body;
    fixture_init(&small, &(struct fixture_options){.chat_template = gathering,
                                                   .template_bytes = 4 * MIB,
                                                   .request_bytes = 16 * MIB});
    buffer_init(&body, 0);
    buffer_append_text(&body, "{\"max_tokens\":1,\"messages\":[");
    for (int i = 0; i < 1001; i++)
        buffer_appendf(&body, "%s{\"role\":\"%s\",\"content\":\"\"}", i ? "," : "",
                       i % 2 ? "assistant" : "user");
    buffer_append_text(&body, "]}");
    struct reply reply;
    fixture_request(&small, ANSWER_CHAT, body.data, &reply);
    ck_assert_msg(reply.open_status == STATUS_OK, "%s", reply.error.message);
    reply_deinit(&reply);
    /* The engine gives its own reference up a little after the reader's last news. */
    for (int i = 0; i < 10000 && budget_used(&small.budget, BUDGET_REQUESTS); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_uint_eq(budget_used(&small.budget, BUDGET_REQUESTS), 0);
    uint64_t held = 16 * MIB - 5 * MIB / 2;
    ck_assert(budget_take(&small.budget, BUDGET_REQUESTS, held));
    fixture_request(&small, ANSWER_CHAT, body.data, &reply);
    ck_assert_int_eq(reply.open_status, STATUS_INVALID);
    ck_assert_str_eq(reply.error.code, "chat_template");
    reply_deinit(&reply);
    ck_assert_uint_eq(budget_used(&small.budget, BUDGET_REQUESTS), held);
    budget_give(&small.budget, BUDGET_REQUESTS, held);
    buffer_deinit(&body);
    fixture_deinit(&small);
}
END_TEST

/* Finding a template's own control tokens takes more than printing them: where the memory for
   that ends, the length of the conversation is the reason, and nothing is said of control tokens. */
START_TEST(a_tracing_without_memory_is_a_matter_of_length)
{
    static const char joining[] = "{% for m in messages %}"
                                  "{{ bos_token + m.role + '\n' + (m.content | trim) + eos_token }}"
                                  "{% endfor %}";
    struct fixture small;
    fixture_init(&small, &(struct fixture_options){.chat_template = joining,
                                                   .template_bytes = 4 * MIB,
                                                   .request_bytes = 16 * MIB});
    struct buffer body;
    buffer_init(&body, 0);
    buffer_append_text(&body, "{\"max_tokens\":1,\"messages\":[");
    for (int i = 0; i < 1501; i++)
        buffer_appendf(&body, "%s{\"role\":\"%s\",\"content\":\"\"}", i ? "," : "",
                       i % 2 ? "assistant" : "user");
    buffer_append_text(&body, "]}");
    struct reply reply;
    fixture_request(&small, ANSWER_CHAT, body.data, &reply);
    ck_assert_int_eq(reply.open_status, STATUS_INVALID);
    ck_assert_str_eq(reply.error.code, "context_length_exceeded");
    reply_deinit(&reply);
    buffer_deinit(&body);
    ck_assert_uint_eq(budget_used(&small.budget, BUDGET_REQUESTS), 0);
    fixture_deinit(&small);
}
END_TEST

#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
static size_t no_clock(const char *format, char *out, size_t capacity)
{
    (void)format;
    (void)out;
    (void)capacity;
    return 0;
}

static void append(void *arg, const char *bytes, size_t length)
{
    buffer_append(arg, bytes, length);
}
#endif

/* The system gives no more address space (ulimit -v): a chat is 503, and the process lives. */
START_TEST(a_chat_without_memory)
{
    static const char body[] =
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"h\"}]}";
    struct rlimit before, none;
    struct reply reply;
    unsigned long pages = 0;
    fixture_request(&fixture, ANSWER_CHAT, body, &reply);
    ck_assert_int_eq(reply.open_status, STATUS_OK);
    reply_deinit(&reply);
    FILE *file = fopen("/proc/self/statm", "re");
    ck_assert(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    none = before;
    none.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) / 2; /* nothing new */
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &none), 0);
    fixture_request(&fixture, ANSWER_CHAT, body, &reply);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
    ck_assert_int_eq(reply.open_status, STATUS_UNAVAILABLE);
    ck_assert_str_eq(reply.error.code, "out_of_memory");
    reply_deinit(&reply);
    fixture_request(&fixture, ANSWER_CHAT, body, &reply);
    ck_assert_int_eq(reply.open_status, STATUS_OK);
    reply_deinit(&reply);
}
END_TEST

#ifndef __SANITIZE_THREAD__
struct block {
    struct block *next;
};

/* What the heap still has without asking the system. */
static struct block *take_everything(void)
{
    struct block *first = NULL;
    for (size_t size = 16 * MIB; size >= 32; size /= 8)
        for (struct block *block; (block = malloc(size)) != NULL; first = block)
            block->next = first;
    return first;
}

static void give_everything(struct block *first)
{
    while (first) {
        struct block *next = first->next;
        free(first);
        first = next;
    }
}

/* What the system refuses while a template runs comes from the reserve: Rust would end the process. */
START_TEST(a_rendering_that_runs_out_of_memory_goes_on)
{
    static const char source[] =
        "{% set s = 'a' * 1000000 %}{{ (s ~ s) | length }} {{ s | length }}";
    struct textshim_template *template;
    struct rlimit before, none;
    struct buffer out;
    char message[200] = "";
    unsigned long pages = 0;
    ck_assert_int_eq(textshim_template_new(source, sizeof source - 1, "", 0, "", 0, no_clock,
                                           &template, message, sizeof message),
                     TEXTSHIM_OK);
    FILE *file = fopen("/proc/self/statm", "re");
    ck_assert(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    buffer_init(&out, 1000);
    ck_assert(buffer_append(&out, "> ", 2));
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    none = before;
    none.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) / 2;
    for (int i = 0; i < 20; i++) { /* blocks of the reserve are used again */
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &none), 0);
        struct block *held = take_everything();
        int status = textshim_template_render(template, "{}", 2, 1000, 4000000, append, &out,
                                              message, sizeof message);
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
        give_everything(held);
        ck_assert_msg(status == TEXTSHIM_OK, "%d %s", status, message);
    }
    ck_assert_msg(strncmp(out.data, "> 2000000 10000002000000", 24) == 0, "%s", out.data);
    buffer_deinit(&out);
    textshim_template_free(template);
}
END_TEST
#endif
#endif

int main(void)
{
    Suite *suite = suite_create("allocation");
    TCase *tests = tcase_create("allocation");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, every_allocation_of_a_request_may_fail);
    tcase_add_test(tests, never_and_not_now);
    tcase_add_test(tests, a_long_conversation_borrows_memory);
    tcase_add_test(tests, a_tracing_without_memory_is_a_matter_of_length);
#ifndef __SANITIZE_ADDRESS__
    tcase_add_test(tests, a_chat_without_memory);
#ifndef __SANITIZE_THREAD__ /* its own allocator ends the process */
    tcase_add_test(tests, a_rendering_that_runs_out_of_memory_goes_on);
#endif
#endif
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
