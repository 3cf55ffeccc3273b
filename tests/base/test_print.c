/* Texts of files in output: what a name holds can neither move a cursor nor leave its quotes or its
   element. */
#include "base/print.h"

#include <check.h>
#include <string.h>

static struct buffer out;

static const char *printed(void (*print)(struct buffer *, const char *, size_t), const char *text,
                           size_t length)
{
    buffer_init(&out, 0);
    print(&out, text, length);
    ck_assert(buffer_append(&out, "", 1)); /* terminated */
    return out.data;
}

#define PRINTS(print, text, expected)                                                              \
    do {                                                                                           \
        ck_assert_str_eq(printed(print, text, sizeof text - 1), expected);                         \
        buffer_deinit(&out);                                                                       \
    } while (0)

START_TEST(test_names)
{
    PRINTS(print_name, "Grüße \xf0\x9f\x99\x82", "Grüße \xf0\x9f\x99\x82");
    PRINTS(print_name, "a\x1b[2Jb\n\x7f\xc2\x9b", "a?[2Jb???");
    PRINTS(print_name, "\xff\xe2\x82", "??");
    PRINTS(print_name, "a\0b", "a?b");
}
END_TEST

START_TEST(test_xml)
{
    PRINTS(print_xml, "<a b=\"c\">&amp;'", "&#60;a b=&#34;c&#34;&#62;&#38;amp;&#39;");
    PRINTS(print_xml, "ä\x01\xff\0", "ä???");
}
END_TEST

START_TEST(test_counts)
{
    char text[32];
    ck_assert_str_eq(print_count(0, text), "0");
    ck_assert_str_eq(print_count(999, text), "999");
    ck_assert_str_eq(print_count(1000, text), "1,000");
    ck_assert_str_eq(print_count(131072, text), "131,072");
    ck_assert_str_eq(print_count(UINT64_MAX, text), "18,446,744,073,709,551,615");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("print");
    TCase *tests = tcase_create("print");
    tcase_add_test(tests, test_names);
    tcase_add_test(tests, test_xml);
    tcase_add_test(tests, test_counts);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
