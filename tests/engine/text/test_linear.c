/*
 * Time is linear in the length of a text: counted, not measured, so that a busy machine cannot make
 * it fail nor hide a fault.
 *
 * Pre-tokenizers: PCRE2 calls back before every item of an expression that it tries (automatic
 * callouts); each call counts 1 and the bytes between where the match stands and where it stood at
 * the call before, so that scanning ahead and coming back is counted too. The file under test is
 * included here, its two calls of PCRE2 that have to do with callouts replaced.
 *
 * Merging: what is looked up, and what a heap's entry costs at most.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>

static uint64_t work;
static const unsigned char *stood;

static int count_item(pcre2_callout_block *block, void *arg)
{
    (void)arg;
    const unsigned char *stands = block->subject + block->current_position;
    work += 1 + (uint64_t)(stands > stood ? stands - stood : stood - stands);
    stood = stands;
    return 0;
}

static pcre2_code *compile_counting(PCRE2_SPTR pattern, PCRE2_SIZE length, uint32_t options,
                                    int *code, PCRE2_SIZE *offset, pcre2_compile_context *context)
{
    return pcre2_compile_8(pattern, length, options | PCRE2_AUTO_CALLOUT, code, offset, context);
}

static pcre2_match_context *context_counting(pcre2_general_context *general)
{
    pcre2_match_context *context = pcre2_match_context_create_8(general);
    pcre2_set_callout_8(context, count_item, NULL);
    return context;
}

#undef pcre2_compile
#undef pcre2_match_context_create
#define pcre2_compile compile_counting
#define pcre2_match_context_create context_counting
#include "engine/text/pretokenizer.c"

#include "engine/text/merge.h"

#include <check.h>

/* Of one thing, of two by turns, of what nearly is something; and each with another end. */
static const char *const units[] = {"a",
                                    "A",
                                    " ",
                                    "\n",
                                    "1",
                                    "!",
                                    "'",
                                    "'s",
                                    "'r",
                                    "\r",
                                    "aA",
                                    "a ",
                                    " a",
                                    " \n",
                                    "\t ",
                                    "\n ",
                                    "a1",
                                    "1 ",
                                    "!a",
                                    " !",
                                    "don't",
                                    "\xc2\xa0 ",
                                    "e\xcc\x81",
                                    "\xcc\x81",
                                    "\xe4\xbd\xa0",
                                    "\xf0\x9f\x98\x80",
                                    "\xff",
                                    "a\x80",
                                    "ab\n\n",
                                    "  x",
                                    "12345",
                                    "/*"};
static const char *const ends[] = {"", "x", "!", "\xff", " ", "\n"};

static enum status count_piece(void *arg, const char *bytes, size_t length, struct error *error)
{
    (void)bytes;
    (void)error;
    *(size_t *)arg += length;
    return STATUS_OK;
}

static uint64_t work_of_splitting(const struct pretokenizer *pretokenizer, const char *unit,
                                  const char *end, size_t length)
{
    size_t unit_length = strlen(unit), used = 0, covered = 0;
    char *text = malloc(length + 16);
    struct pretokenizer_scratch *scratch = pretokenizer_scratch_create();
    for (; used + unit_length <= length; used += unit_length)
        memcpy(text + used, unit, unit_length);
    memcpy(text + used, end, strlen(end));
    used += strlen(end);
    work = 0;
    stood = (const unsigned char *)text;
    ck_assert_int_eq(
        pretokenizer_split(pretokenizer, scratch, text, used, count_piece, &covered, NULL),
        STATUS_OK);
    ck_assert_uint_eq(covered, used);
    pretokenizer_scratch_destroy(scratch);
    free(text);
    return work;
}

/* Four times the text, at most four times the work, and a little. */
START_TEST(test_pretokenizers)
{
    for (uint32_t i = 0; pretokenizer_name(i) != NULL; i++) {
        const char *name = pretokenizer_name(i);
        struct pretokenizer *pretokenizer;
        uint64_t total = 0;
        ck_assert_int_eq(pretokenizer_create(name, strlen(name), &pretokenizer, NULL), STATUS_OK);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++)
            for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
                uint64_t one = work_of_splitting(pretokenizer, units[u], ends[e], 1000);
                uint64_t four = work_of_splitting(pretokenizer, units[u], ends[e], 4000);
                total += one;
                ck_assert_msg(four <= 4 * one + one / 5 + 500,
                              "%s, unit %zu, end %zu: %llu, then %llu", name, u, e,
                              (unsigned long long)one, (unsigned long long)four);
            }
        ck_assert_uint_gt(total, 100000);
        pretokenizer_destroy(pretokenizer);
    }
}
END_TEST

/* Every pair merges, in an order that a text of `period` different symbols gives. */
static uint32_t find_any(const void *arg, const struct merge_symbol *symbols, const char *piece,
                         uint32_t left, uint32_t right, uint32_t *merged)
{
    uint32_t period = *(const uint32_t *)arg;
    ++work;
    (void)piece;
    *merged = symbols[left].token + symbols[right].token + 1;
    return (symbols[left].token * 2654435761u ^ symbols[right].token) % period;
}

START_TEST(test_merging)
{
    static const uint32_t periods[] = {1, 2, 7, 1000003};
    for (size_t p = 0; p < sizeof periods / sizeof *periods; p++)
        for (uint32_t length = 1; length <= MERGE_PIECE_MAX; length = length * 4 + 1) {
            struct merger merger;
            merger_init(&merger, find_any, &periods[p]);
            ck_assert(merger_reserve(&merger, length));
            for (uint32_t i = 0; i < length; i++)
                merger.symbols[i] =
                    (struct merge_symbol){i % periods[p], i + 1, i > 0 ? i - 1 : TOKEN_NONE};
            work = 0;
            merger_run(&merger, "", 0, length);
            /* A pair at each symbol; a merge takes an entry off and looks up two; each look-up
               puts at most one on, which is looked up when it comes off. */
            ck_assert_msg(work <= 6 * (uint64_t)length, "%u symbols: %llu", length,
                          (unsigned long long)work);
            ck_assert_uint_eq(merger.symbols[0].next, length);
            merger_deinit(&merger);
        }
}
END_TEST

/* The count itself notices an expression that is not linear. */
START_TEST(test_count_notices)
{
    int code;
    PCRE2_SIZE offset;
    uint64_t found[2];
    for (int i = 0; i < 2; i++) {
        size_t length = i == 0 ? 1000 : 4000;
        char *text = malloc(length);
        memset(text, ' ', length);
        text[length - 1] = 'x';
        pcre2_code *pattern = compile_counting((PCRE2_SPTR) "\\s++$", PCRE2_ZERO_TERMINATED,
                                               PCRE2_UTF, &code, &offset, NULL);
        pcre2_match_data *match = pcre2_match_data_create(1, NULL);
        pcre2_match_context *context = context_counting(NULL);
        work = 0;
        stood = (const unsigned char *)text;
        ck_assert_int_eq(pcre2_match(pattern, (PCRE2_SPTR)text, length, 0, 0, match, context),
                         PCRE2_ERROR_NOMATCH);
        found[i] = work;
        pcre2_match_context_free(context);
        pcre2_match_data_free(match);
        pcre2_code_free(pattern);
        free(text);
    }
    ck_assert_uint_gt(found[1], 10 * found[0]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linear");
    TCase *tests = tcase_create("linear");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_pretokenizers);
    tcase_add_test(tests, test_merging);
    tcase_add_test(tests, test_count_notices);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
