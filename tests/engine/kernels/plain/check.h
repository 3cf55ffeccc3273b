/*
 * The part of libcheck that the kernels' tests use, for builds where libcheck is not: for another
 * CPU. Found instead of the library's header of that name.
 *
 * Tests run one after the other in this process; the first assertion that fails ends its test. A
 * crash ends the program, whose exit status then tells. Reports as libcheck does.
 */
#ifndef QUIRE_TESTS_ENGINE_KERNELS_PLAIN_CHECK_H
#define QUIRE_TESTS_ENGINE_KERNELS_PLAIN_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { CK_NORMAL, PLAIN_TESTS_MAX = 64 };

typedef struct {
    const char *name;
    struct {
        const char *name;
        void (*run)(int);
        int first, end;
    } tests[PLAIN_TESTS_MAX];
    int count, checks, failures;
    jmp_buf next;
} Suite;
typedef Suite TCase; /* a program has one of each */
typedef Suite SRunner;

static Suite plain_suite;

#define START_TEST(name) static void name(int _i __attribute__((unused)))
#define END_TEST

static inline Suite *suite_create(const char *name)
{
    plain_suite.name = name;
    return &plain_suite;
}

static inline TCase *tcase_create(const char *name)
{
    (void)name;
    return &plain_suite;
}

static inline SRunner *srunner_create(Suite *suite)
{
    return suite;
}

static inline void plain_add(TCase *tcase, const char *name, void (*run)(int), int first, int end)
{
    if (tcase->count == PLAIN_TESTS_MAX) {
        fprintf(stderr, "more tests than PLAIN_TESTS_MAX\n");
        __builtin_trap();
    }
    tcase->tests[tcase->count].name = name;
    tcase->tests[tcase->count].run = run;
    tcase->tests[tcase->count].first = first;
    tcase->tests[tcase->count++].end = end;
}

#define tcase_add_test(tcase, test) plain_add(tcase, #test, test, 0, 1)
#define tcase_add_loop_test(tcase, test, first, end) plain_add(tcase, #test, test, first, end)
#define tcase_set_timeout(tcase, seconds) ((void)(tcase)) /* the runner of programs has one */
#define suite_add_tcase(suite, tcase) ((void)(suite), (void)(tcase))
#define srunner_free(runner) ((void)(runner))
#define srunner_ntests_failed(runner) ((runner)->failures)

static inline bool plain_passes(Suite *suite, void (*run)(int), int i)
{
    if (setjmp(suite->next)) {
        return false;
    }
    run(i);
    return true;
}

static inline void srunner_run_all(SRunner *runner, int mode)
{
    (void)mode;
    printf("Running suite(s): %s\n", runner->name);
    for (int t = 0; t < runner->count; t++) {
        for (int i = runner->tests[t].first; i < runner->tests[t].end; i++) {
            runner->checks++;
            if (!plain_passes(runner, runner->tests[t].run, i)) {
                printf("in %s:%d\n", runner->tests[t].name, i);
                runner->failures++;
            }
        }
    }
    int passed = runner->checks - runner->failures;
    printf("%d%%: Checks: %d, Failures: %d, Errors: 0\n",
           runner->checks ? passed * 100 / runner->checks : 0, runner->checks, runner->failures);
}

#define ck_abort_msg(...)                                                                          \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        longjmp(plain_suite.next, 1);                                                              \
    } while (0)
#define ck_assert_msg(condition, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ck_abort_msg(__VA_ARGS__);                                                             \
        }                                                                                          \
    } while (0)
#define ck_assert(condition) ck_assert_msg(condition, "not so: %s", #condition)

#define PLAIN_COMPARE(type, format, a, operation, b)                                               \
    do {                                                                                           \
        type plain_a = (a), plain_b = (b);                                                         \
        ck_assert_msg(plain_a operation plain_b, "%s " #operation " %s: " format ", " format, #a,  \
                      #b, plain_a, plain_b);                                                       \
    } while (0)
#define ck_assert_int_eq(a, b) PLAIN_COMPARE(intmax_t, "%jd", a, ==, b)
#define ck_assert_uint_eq(a, b) PLAIN_COMPARE(uintmax_t, "%ju", a, ==, b)
#define ck_assert_uint_gt(a, b) PLAIN_COMPARE(uintmax_t, "%ju", a, >, b)
#define ck_assert_uint_le(a, b) PLAIN_COMPARE(uintmax_t, "%ju", a, <=, b)
#define ck_assert_float_eq(a, b) PLAIN_COMPARE(double, "%.9g", (double)(a), ==, (double)(b))
#define ck_assert_double_le(a, b) PLAIN_COMPARE(double, "%.17g", a, <=, b)
#define ck_assert_double_eq_tol(a, b, t) ck_assert_double_le(fabs((double)(a) - (double)(b)), t)
#define ck_assert_ptr_eq(a, b) ck_assert((const void *)(a) == (const void *)(b))
#define ck_assert_ptr_null(a) ck_assert((a) == NULL)
#define ck_assert_ptr_nonnull(a) ck_assert((a) != NULL)
#define ck_assert_str_eq(a, b) ck_assert(strcmp(a, b) == 0)
#define ck_assert_mem_eq(a, b, size) ck_assert(memcmp(a, b, size) == 0)

#endif
