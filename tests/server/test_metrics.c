/* Metrics while loading: every family has HELP and TYPE before its samples, counts land in their
   cells. The whole page of a running server is parsed strictly in tests/e2e. */
#include "server/metrics.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static struct http_metrics http;

static void render(const struct metrics_view *view, struct buffer *out)
{
    buffer_init(out, 0);
    metrics_render(view, out);
    ck_assert(!out->failed);
    ck_assert_int_eq(out->data[out->length - 1], '\n');
}

START_TEST(test_loading_page)
{
    struct buffer out;
    memset(&http, 0, sizeof http);
    http_metrics_count(&http, "chat", 200);
    http_metrics_count(&http, "chat", 200);
    http_metrics_count(&http, "health", 503);
    http_metrics_count(&http, NULL, 404);
    http_metrics_count(&http, "no such route", 418);
    render(&(struct metrics_view){.http = &http, .connections = 3, .start_unix_s = 1700000000},
           &out);
    ck_assert_ptr_nonnull(
        strstr(out.data, "quire_http_requests_total{route=\"chat\",code=\"200\"} 2\n"));
    ck_assert_ptr_nonnull(
        strstr(out.data, "quire_http_requests_total{route=\"health\",code=\"503\"} 1\n"));
    ck_assert_ptr_nonnull(
        strstr(out.data, "quire_http_requests_total{route=\"other\",code=\"404\"} 1\n"));
    ck_assert_ptr_nonnull(
        strstr(out.data, "quire_http_requests_total{route=\"other\",code=\"0\"} 1\n"));
    ck_assert_ptr_nonnull(strstr(out.data, "\nquire_http_connections 3\n"));
    ck_assert_ptr_nonnull(strstr(out.data, "\nquire_ready 0\n"));
    ck_assert_ptr_nonnull(strstr(out.data, "process_start_time_seconds 1700000000\n"));
    ck_assert_ptr_null(strstr(out.data, "vllm:"));
    buffer_deinit(&out);
}
END_TEST

START_TEST(test_every_family_is_introduced)
{
    struct buffer out;
    char family[128] = "";
    unsigned samples = 0;
    memset(&http, 0, sizeof http);
    render(&(struct metrics_view){.http = &http}, &out);
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n")) {
        char name[128];
        if (sscanf(line, "# HELP %127s", name) == 1) {
            char *type = strtok(NULL, "\n");
            char type_name[128], kind[16];
            ck_assert_ptr_nonnull(type);
            ck_assert_int_eq(sscanf(type, "# TYPE %127s %15s", type_name, kind), 2);
            ck_assert_str_eq(name, type_name);
            strcpy(family, name);
            continue;
        }
        ck_assert_msg(!strncmp(line, family, strlen(family)), "%s is not of %s", line, family);
        samples++;
    }
    ck_assert_uint_gt(samples, 5);
    buffer_deinit(&out);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *tests = tcase_create("metrics");
    tcase_add_test(tests, test_loading_page);
    tcase_add_test(tests, test_every_family_is_introduced);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
