/* Unit tests of base/: errors, byte sizes, buffers, UTF-8, budget, metrics. */
#include "base/budget.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/metric.h"
#include "base/utf8.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(error_messages_are_clean)
{
    struct error error;
    ck_assert_int_eq(error_set(&error, STATUS_INVALID, "a\nb", "bad \xff\x01 caf\xc3\xa9 %d", 7),
                     STATUS_INVALID);
    ck_assert_str_eq(error.param, "a?b");
    ck_assert_str_eq(error.message, "bad ?? caf\xc3\xa9 7");
    ck_assert_str_eq(error.code, "");
    /* A character cut at the end of the field is cleaned too. */
    char longer[1000];
    memset(longer, 'x', sizeof longer);
    longer[398] = '\xc3';
    longer[399] = '\xa9';
    longer[999] = '\0';
    error_set_code(&error, STATUS_BUSY, "code", NULL, "%s", longer);
    ck_assert(utf8_valid(error.message, strlen(error.message)));
    ck_assert_str_eq(error.code, "code");
    ck_assert_int_eq(error_set(NULL, STATUS_IO, NULL, "nobody listens"), STATUS_IO);
}
END_TEST

START_TEST(byte_sizes_parse)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* 0: refused */
    } cases[] = {
        {"1073741824", 1073741824},
        {"512MiB", 512 * MIB},
        {"1.5GiB", 3 * GIB / 2},
        {"200M", 200000000},
        {"2gb", 2000000000},
        {"1KiB", 1024},
        {"7b", 7},
        {"", 0},
        {"MiB", 0},
        {"-5", 0},
        {"+5", 0},
        {" 5", 0},
        {"5 MiB", 0},
        {"5MiBx", 0},
        {"1.2.3", 0},
        {"nan", 0},
        {"99999999999999T", 0},
        {"0x10", 0},
        {"5XiB", 0},
        {"18446744073709551616", 0},
        {"9007199254740993", 9007199254740993},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 0;
        bool ok = bytes_parse(cases[i].text, &bytes);
        ck_assert_msg(ok == (cases[i].bytes != 0), "%s", cases[i].text);
        ck_assert_msg(bytes == cases[i].bytes, "%s: %llu", cases[i].text,
                      (unsigned long long)bytes);
    }
    char text[24];
    ck_assert_str_eq(bytes_format(1023, text), "1023 B");
    ck_assert_str_eq(bytes_format(512 * MIB, text), "512.0 MiB");
    ck_assert_str_eq(bytes_format(UINT64_MAX, text), "16777216.0 TiB");
    uint64_t out = 3;
    ck_assert(!bytes_multiply(1ull << 33, 1ull << 31, &out) && out == 3);
    ck_assert(!bytes_add(UINT64_MAX, 1, &out) && out == 3);
    ck_assert(bytes_multiply(6, 7, &out) && out == 42);
}
END_TEST

START_TEST(buffer_keeps_its_limit)
{
    struct buffer buffer;
    buffer_init(&buffer, 10);
    ck_assert(buffer_append_text(&buffer, "hello"));
    ck_assert(buffer_appendf(&buffer, "%d", 12345));
    ck_assert_str_eq(buffer.data, "hello12345");
    ck_assert(!buffer_append_text(&buffer, "x"));
    ck_assert(buffer.failed);
    ck_assert_uint_eq(buffer.length, 10);
    buffer_consume(&buffer, 5);
    ck_assert_str_eq(buffer.data, "12345");
    buffer_clear(&buffer);
    ck_assert(!buffer.failed && buffer.length == 0);
    buffer_deinit(&buffer);

    buffer_init(&buffer, 0);
    char text[3000];
    memset(text, 'a', sizeof text);
    text[2999] = '\0';
    ck_assert(buffer_appendf(&buffer, "<%s>", text));
    ck_assert_uint_eq(buffer.length, 3001);
    ck_assert_int_eq(buffer.data[3000], '>');
    buffer_deinit(&buffer);
}
END_TEST

/* Every code point round-trips, and every string of up to 4 bytes agrees with the definition:
   valid exactly when it is the encoding of scalar values. */
START_TEST(utf8_agrees_with_its_definition)
{
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        char bytes[4];
        uint32_t back = 0;
        int size = utf8_encode(c, bytes); /* libcheck notes each assertion: too slow for millions */
        bool good = utf8_decode(bytes, (size_t)size, &back) == size && back == c;
        for (int cut = 1; cut < size; cut++)
            good = good && utf8_decode(bytes, (size_t)cut, &back) == 0;
        if (!good)
            ck_abort_msg("U+%04X", c);
    }
    static const struct {
        const char *bytes;
        int result;
    } bad[] = {
        {"\x80", -1},         {"\xc0\x80", -1},
        {"\xc1\xbf", -1},     {"\xff", -1},
        {"\xe2\x28\xa1", -1}, {"\xed\xa0\x80", -1},
        {"\xe0\x80\x80", -1}, {"\xf5\x80\x80\x80", -1},
        {"\xf0\x9f\x41", -2}, {"\xf0\x9f\x98\x41", -3},
        {"\xe6\xad\x41", -2}, {"\xf4\x90\x80\x80", -1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t ignored;
        ck_assert_int_eq(utf8_decode(bad[i].bytes, strlen(bad[i].bytes), &ignored), bad[i].result);
        ck_assert(!utf8_valid(bad[i].bytes, strlen(bad[i].bytes)));
    }
    ck_assert(utf8_valid("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10));
    ck_assert(!utf8_valid("a\xc3", 2));
}
END_TEST

START_TEST(budget_is_never_passed)
{
    struct budget budget;
    struct error error;
    budget_init(&budget, 1000);
    ck_assert_int_eq(budget_reserve(&budget, BUDGET_WEIGHTS, 600, &error), STATUS_OK);
    ck_assert_int_eq(budget_reserve(&budget, BUDGET_REQUESTS, 401, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "memory");
    ck_assert_ptr_nonnull(strstr(error.message, "400 B"));
    ck_assert_ptr_nonnull(strstr(error.message, "1001 B"));
    ck_assert_int_eq(budget_reserve(&budget, BUDGET_REQUESTS, 400, &error), STATUS_OK);
    ck_assert_uint_eq(budget_unreserved(&budget), 0);
    ck_assert(budget_take(&budget, BUDGET_REQUESTS, 300));
    ck_assert(!budget_take(&budget, BUDGET_REQUESTS, 101));
    ck_assert(!budget_take(&budget, BUDGET_REQUESTS, UINT64_MAX));
    ck_assert_uint_eq(budget_peak(&budget, BUDGET_REQUESTS), 300); /* refusals do not count */
    ck_assert(budget_take(&budget, BUDGET_REQUESTS, 100));
    budget_give(&budget, BUDGET_REQUESTS, 400);
    ck_assert_uint_eq(budget_used(&budget, BUDGET_REQUESTS), 0);
    ck_assert_uint_eq(budget_peak(&budget, BUDGET_REQUESTS), 400);
    ck_assert(budget_take(&budget, BUDGET_REQUESTS, 5));
    budget_give(&budget, BUDGET_REQUESTS, 5);
    ck_assert_uint_eq(budget_peak(&budget, BUDGET_REQUESTS), 400);
    ck_assert_uint_eq(budget_peak(&budget, BUDGET_WEIGHTS), 0);
    ck_assert(budget_take(&budget, BUDGET_REQUESTS, 400));
}
END_TEST

START_TEST(histogram_counts)
{
    static const double bounds[] = {0.1, 1, 10};
    struct metric_histogram histogram;
    metric_histogram_init(&histogram, bounds, 3);
    static const double values[] = {0.05, 0.1, 0.5, 10, 11, 1e9};
    double sum = 0;
    for (size_t i = 0; i < 6; i++) {
        metric_histogram_observe(&histogram, values[i]);
        sum += values[i];
    }
    static const unsigned expected[] = {2, 1, 1, 2};
    for (size_t i = 0; i < 4; i++)
        ck_assert_uint_eq(histogram.buckets[i], expected[i]);
    ck_assert_double_eq(metric_histogram_sum(&histogram), sum);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tests = tcase_create("base");
    tcase_set_timeout(tests, 30);
    tcase_add_test(tests, error_messages_are_clean);
    tcase_add_test(tests, byte_sizes_parse);
    tcase_add_test(tests, buffer_keeps_its_limit);
    tcase_add_test(tests, utf8_agrees_with_its_definition);
    tcase_add_test(tests, budget_is_never_passed);
    tcase_add_test(tests, histogram_counts);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
