/* The access log's line in both formats, and which traceparent headers are one. */
#include "server/access_log.h"

#include "base/log.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

START_TEST(test_trace_ids)
{
    static const struct {
        const char *header;
        bool good;
    } rows[] = {
        {"00-" TRACE "-" PARENT "-01", true},
        {"00-" TRACE "-" PARENT "-00", true},
        {"cc-" TRACE "-" PARENT "-01", true}, /* a version to come */
        {"cc-" TRACE "-" PARENT "-01-what-comes", true},
        {"cc-" TRACE "-" PARENT "-01.what-comes", false},
        {"00-" TRACE "-" PARENT "-01-more", false},
        {"ff-" TRACE "-" PARENT "-01", false},
        {"00-00000000000000000000000000000000-" PARENT "-01", false},
        {"00-" TRACE "-0000000000000000-01", false},
        {"00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01", false},
        {"00-" TRACE "-" PARENT "-0x", false},
        {"00-" TRACE "-" PARENT, false},
        {"00-" TRACE "\"-" PARENT "-01", false},
        {"", false},
        {NULL, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char id[TRACE_ID_BYTES];
        access_log_trace_id(rows[i].header, id);
        ck_assert_str_eq(id, rows[i].good ? TRACE : "");
    }
}
END_TEST

/* What stands in the line behind the time. */
static const char *line_of(const struct access_record *record, enum log_format format)
{
    static char line[2048];
    int fds[2], kept = dup(STDERR_FILENO);
    ck_assert(!pipe(fds));
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    log_init(format, LOG_INFO);
    access_log_write(record);
    dup2(kept, STDERR_FILENO);
    close(kept);
    ssize_t length = read(fds[0], line, sizeof line - 1);
    close(fds[0]);
    line[length > 0 ? length : 0] = '\0';
    return line + (format == LOG_JSON ? strlen("{'time':'2026-11-30T00:00:00.000Z',")
                                      : strlen("2026-11-30T00:00:00.000Z "));
}

START_TEST(test_lines)
{
    struct error error;
    error_set_code(&error, STATUS_INVALID, "bad \"code\"", "top_p", "a\tb");
    struct answer_summary work = {
        .prompt_tokens = 5,
        .completion_tokens = 2,
        .cached_tokens = 1,
        .finish = "stop",
        .submit_ns = 3000000,
        .admit_ns = 4500000,
        .first_token_ns = 9000000,
        .seed = UINT64_MAX,
    };
    struct access_record record = {
        .id = "00ff",
        .client_id = "",
        .client = "::1",
        .key = 3,
        .method = "POST",
        .target = "/v1/\"x\"\n",
        .route = "completions",
        .status = 200,
        .start_ns = 1000000,
        .first_data_ns = 10000000,
        .end_ns = 21000000,
        .work = &work,
        .stream = true,
    };
    ck_assert_str_eq(line_of(&record, LOG_TEXT),
                     "info  request: POST /v1/\"x\"\\u000a id=00ff client=::1 key=3 "
                     "route=completions status=200 ms=20.0 stream=true prompt_tokens=5 "
                     "cached_tokens=1 completion_tokens=2 finish=stop seed=18446744073709551615 "
                     "queue_ms=1.5 first_token_ms=8.0 first_ms=9.0\n");
    ck_assert_str_eq(line_of(&record, LOG_JSON),
                     "\"level\":\"info\",\"event\":\"request\",\"message\":"
                     "\"POST /v1/\\\"x\\\"\\u000a\",\"id\":\"00ff\",\"client\":\"::1\",\"key\":3,"
                     "\"route\":\"completions\",\"status\":200,\"ms\":20.0,\"stream\":true,"
                     "\"prompt_tokens\":5,\"cached_tokens\":1,\"completion_tokens\":2,"
                     "\"finish\":\"stop\",\"seed\":18446744073709551615,\"queue_ms\":1.5,"
                     "\"first_token_ms\":8.0,\"first_ms\":9.0}\n");
    /* Refused: why. Nothing came of it, so there is nothing to say of an answer. */
    record.work = NULL;
    record.status = 400;
    record.error = &error;
    ck_assert_str_eq(line_of(&record, LOG_TEXT),
                     "info  request: POST /v1/\"x\"\\u000a id=00ff client=::1 key=3 "
                     "route=completions status=400 ms=20.0 code=\"bad \\\"code\\\"\" param=top_p "
                     "reason=a?b\n");
    /* Never admitted, no token. */
    work = (struct answer_summary){.finish = "timeout", .submit_ns = 1};
    record.work = &work;
    record.error = NULL;
    ck_assert_ptr_null(strstr(line_of(&record, LOG_JSON), "queue_ms"));
    ck_assert_ptr_null(strstr(line_of(&record, LOG_JSON), "first_token_ms"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("access_log");
    TCase *tests = tcase_create("access_log");
    tcase_add_test(tests, test_trace_ids);
    tcase_add_test(tests, test_lines);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
