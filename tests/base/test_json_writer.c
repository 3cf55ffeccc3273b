/* JSON strings: every byte is told apart, what is no text is replaced, and a terminal is safe. */
#include "base/json_writer.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define WRITES(write, text, expected)                                                              \
    do {                                                                                           \
        struct buffer out;                                                                         \
        buffer_init(&out, 0);                                                                      \
        write(&out, text, sizeof text - 1);                                                        \
        ck_assert(buffer_append(&out, "", 1)); /* terminated, also where nothing was written */    \
        ck_assert_str_eq(out.data, expected);                                                      \
        buffer_deinit(&out);                                                                       \
    } while (0)

static const char odd[] =
    "a\"b\\\b\f\n\r\t\x01\x7f\xc2\x9b\xc3\xa9\xf0\x9f\x98\x80 \xff\xe2\x82 \xf0\x9f";

START_TEST(strings)
{
    WRITES(json_write_string, odd,
           "\"a\\\"b\\\\\\b\\f\\n\\r\\t\\u0001\x7f\xc2\x9b\xc3\xa9\xf0\x9f\x98\x80 "
           "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\"");
    WRITES(json_write_string, "", "\"\"");
    WRITES(json_write_string, "a\0b", "\"a\\u0000b\"");
    WRITES(json_write_string, "a\xc2\x85\xe2\x80\xa8 \xe2\x80\xa9\xe2\x80\xaa",
           "\"a\\u0085\\u2028 \\u2029\xe2\x80\xaa\""); /* line ends of Unicode */
    WRITES(json_write_escaped, "", "");
    WRITES(json_write_escaped, "\"plain", "\\\"plain");
}
END_TEST

START_TEST(printable)
{
    WRITES(json_write_printable, odd,
           "\"a\\\"b\\\\\\u0008\\u000c\\u000a\\u000d\\u0009\\u0001\\u007f\\u009b\xc3\xa9\xf0\x9f"
           "\x98\x80 "
           "\\ufffd\\ufffd \\ufffd\"");
    WRITES(json_write_printable, "", "\"\"");
}
END_TEST

START_TEST(terminated)
{
    struct buffer out;
    buffer_init(&out, 0);
    json_write_text(&out, "x\n");
    json_write_printable_text(&out, "y\n");
    ck_assert_str_eq(out.data, "\"x\\n\"\"y\\u000a\"");
    buffer_deinit(&out);
}
END_TEST

/* Each of the control characters alone: what would leave the quotes or break a line is written as
   something else, in both ways. */
START_TEST(controls)
{
    for (unsigned c = 0; c < 0x20; c++) {
        struct buffer out;
        buffer_init(&out, 0);
        char text = (char)c, expected[16];
        json_write_printable(&out, &text, 1);
        snprintf(expected, sizeof expected, "\"\\u%04x", c);
        ck_assert(!strncmp(out.data, expected, 7) && out.length == 8);
        buffer_clear(&out);
        json_write_string(&out, &text, 1);
        ck_assert(out.data[1] == '\\' && (out.length == 4 || out.length == 8));
        buffer_deinit(&out);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_writer");
    TCase *tests = tcase_create("json_writer");
    tcase_add_test(tests, strings);
    tcase_add_test(tests, printable);
    tcase_add_test(tests, terminated);
    tcase_add_test(tests, controls);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
