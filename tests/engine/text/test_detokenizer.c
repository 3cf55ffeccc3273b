/*
 * Text coming out: bytes to characters, and stop strings (CASES B11, B12, B14, B18, B19, B22). What
 * comes out must not depend on how the bytes were cut into pushes.
 */
#include "base/utf8.h"
#include "engine/text/detokenizer.h"
#include "engine/text/stop_matcher.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % limit;
}

/* ---- Detokenizer. ---- */

/* Push pieces (NULL ends the list), expect this text before and after the end. */
static void assert_text(const char *const *pieces, const char *before, const char *after)
{
    struct detokenizer detokenizer;
    struct buffer out;
    detokenizer_init(&detokenizer);
    buffer_init(&out, 0);
    buffer_append_text(&out, "");
    for (; *pieces; pieces++)
        detokenizer_push(&detokenizer, *pieces, strlen(*pieces), &out);
    ck_assert_str_eq(out.data, before);
    detokenizer_finish(&detokenizer, &out);
    ck_assert_str_eq(out.data, after);
    detokenizer_finish(&detokenizer, &out); /* a second end adds nothing */
    ck_assert_str_eq(out.data, after);
    buffer_deinit(&out);
}

#define PIECES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define BAD "\xef\xbf\xbd"

START_TEST(test_characters_are_held_until_whole)
{
    assert_text(PIECES("\xf0\x9f", "\x98", "\x80"), "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80");
    assert_text(PIECES("\xe4", "\xbd", "\xa0", "x"), "\xe4\xbd\xa0x", "\xe4\xbd\xa0x");
    assert_text(PIECES("a\xe4\xbd"), "a", "a" BAD); /* B12: the end falls into a character */
    assert_text(PIECES("a\xf0\x9f\x98"), "a", "a" BAD);
    assert_text(PIECES("\xf0"), "", BAD);
    assert_text(PIECES("", "a", ""), "a", "a");
    /* A family of four in seven pieces. */
    assert_text(PIECES("\xf0\x9f\x91", "\xa8\xe2", "\x80\x8d\xf0", "\x9f\x91\xa9", "\xe2\x80",
                       "\x8d", "\xf0\x9f\x91\xa7"),
                "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7",
                "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7");
}
END_TEST

START_TEST(test_invalid_bytes_are_replaced)
{
    /* B14: one replacement per maximal invalid subpart. */
    assert_text(PIECES("\x80", "\x80", "\xe2", "\x28", "\xa1", "\xf0\x9f", "\x41"),
                BAD BAD BAD "(" BAD BAD "A", BAD BAD BAD "(" BAD BAD "A");
    assert_text(PIECES("\xc0\x80"), BAD BAD, BAD BAD);
    assert_text(PIECES("\xed\xa0\x80"), BAD BAD BAD, BAD BAD BAD);
    assert_text(PIECES("\xf5\x80\x80\x80"), BAD BAD BAD BAD, BAD BAD BAD BAD);
    assert_text(PIECES("\xf0\x80"), BAD BAD, BAD BAD);
    assert_text(PIECES("\xe4\xbd", "\xe4\xbd\xa0"), BAD "\xe4\xbd\xa0", BAD "\xe4\xbd\xa0");
    assert_text(PIECES("\xe4", "\xf0\x9f", "\xf0\x9f\x98\x80"), BAD BAD "\xf0\x9f\x98\x80",
                BAD BAD "\xf0\x9f\x98\x80");
}
END_TEST

/* Random bytes, cut in random places: always the text of one push, always valid. */
START_TEST(test_cuts_do_not_matter)
{
    static const char alphabet[] =
        "ab\x80\xbf\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xff\xf4\x90\xe0";
    for (int round = 0; round < 20000; round++) {
        char bytes[24];
        size_t length = random_below(sizeof bytes);
        for (size_t i = 0; i < length; i++)
            bytes[i] = alphabet[random_below(sizeof alphabet - 1)];
        struct buffer whole, cut;
        buffer_init(&whole, 0);
        buffer_init(&cut, 0);
        struct detokenizer detokenizer;
        detokenizer_init(&detokenizer);
        detokenizer_push(&detokenizer, bytes, length, &whole);
        detokenizer_finish(&detokenizer, &whole);
        detokenizer_init(&detokenizer);
        for (size_t at = 0; at < length;) {
            size_t size = 1 + random_below((uint32_t)(length - at < 5 ? length - at : 5));
            detokenizer_push(&detokenizer, bytes + at, size, &cut);
            ck_assert(utf8_valid(cut.data, cut.length));
            at += size;
        }
        detokenizer_finish(&detokenizer, &cut);
        ck_assert_uint_eq(whole.length, cut.length);
        ck_assert(whole.length == 0 || memcmp(whole.data, cut.data, whole.length) == 0);
        ck_assert(utf8_valid(whole.data, whole.length));
        /* The replacements are those of decoding the whole by the definition. */
        size_t expected = 0;
        for (size_t at = 0; at < length;) {
            uint32_t code_point;
            int taken = utf8_decode(bytes + at, length - at, &code_point);
            expected += taken > 0 ? (size_t)taken : 3;
            at += taken > 0 ? (size_t)taken : taken < 0 ? (size_t)-taken : length - at;
        }
        ck_assert_uint_eq(whole.length, expected);
        buffer_deinit(&whole);
        buffer_deinit(&cut);
    }
}
END_TEST

/* ---- Stop strings. ---- */

struct stops {
    const char *texts[4];
    size_t lengths[4];
    unsigned count;
};

static struct stops make_stops(const char *const *texts)
{
    struct stops stops = {0};
    for (; *texts; texts++) {
        stops.texts[stops.count] = *texts;
        stops.lengths[stops.count++] = strlen(*texts);
    }
    return stops;
}

/* Push pieces; expect what is out after each push (joined by '|'), and whether a stop matched. */
static void assert_stops(const char *const *stop_texts, const char *const *pieces,
                         const char *expected, bool matched)
{
    struct stops stops = make_stops(stop_texts);
    struct stop_matcher matcher;
    struct buffer out;
    buffer_init(&out, 0);
    buffer_append_text(&out, "");
    stop_matcher_init(&matcher, stops.texts, stops.lengths, stops.count, false);
    for (; *pieces; pieces++) {
        bool now = stop_matcher_push(&matcher, *pieces, strlen(*pieces), &out);
        ck_assert(now == matcher.matched);
        buffer_append_text(&out, "|");
    }
    stop_matcher_finish(&matcher, &out);
    ck_assert_str_eq(out.data, expected);
    ck_assert(matcher.matched == matched);
    stop_matcher_deinit(&matcher);
    buffer_deinit(&out);
}

START_TEST(test_stops)
{
    assert_stops(PIECES("O P Q"), PIECES("O", " P", " Q", " R"), "||||", true); /* B18 */
    assert_stops(PIECES("Pari"), PIECES(" Paris"), " |", true);
    assert_stops(PIECES("DEFGHIJ"), PIECES("DEF", "G", "HI", "J"), "||||", true); /* B19 */
    assert_stops(PIECES("DEFGHIJ"), PIECES("DEF", "G", "HX", "J"), "||DEFGHX|J|", false);
    assert_stops(PIECES("abc"), PIECES("ab"), "|ab", false); /* the end lets go of what is held */
    assert_stops(PIECES("aab"), PIECES("aaaa", "b"), "aa||", true);
    assert_stops(PIECES("x"), PIECES("x"), "|", true); /* B22: the first output */
    assert_stops(PIECES("x"), PIECES("abc"), "abc|", false);
    assert_stops((const char *const[]){NULL}, PIECES("a", "b"), "a|b|", false);
    assert_stops(PIECES("\n\n", "###", "END"), PIECES("a\n", "#", "# E", "N", "D!"), "a|\n|## |||",
                 true);
    /* Two that match: the one that is complete first; of those the longest. */
    assert_stops(PIECES("abcd", "bc"), PIECES("abcd"), "a|", true);
    assert_stops(PIECES("cd", "abcd"), PIECES("xabcd"), "x|", true);
    assert_stops(PIECES("a", "ab"), PIECES("ab"), "|", true);
    assert_stops(PIECES("\xe2\x82\xac"), PIECES("5 \xe2", "\x82", "\xac"), "5 |||", true);
    assert_stops(PIECES("ab"), PIECES("", "", "a", "", "b", "c"), "||||||", true);
}
END_TEST

START_TEST(test_which_stop_matched)
{
    struct stops stops = make_stops(PIECES("one", "two", "three"));
    struct stop_matcher matcher;
    struct buffer out;
    buffer_init(&out, 0);
    stop_matcher_init(&matcher, stops.texts, stops.lengths, stops.count, false);
    ck_assert(!stop_matcher_push(&matcher, "zero tw", 7, &out));
    ck_assert(stop_matcher_push(&matcher, "o one", 5, &out));
    ck_assert_uint_eq(matcher.matched_index, 1);
    ck_assert(stop_matcher_push(&matcher, "more", 4, &out));
    stop_matcher_finish(&matcher, &out);
    ck_assert_str_eq(out.data, "zero ");
    stop_matcher_deinit(&matcher);
    buffer_deinit(&out);
}
END_TEST

/* By the definition, byte by byte: the first place where some stop is complete. */
static size_t naive_stop(const struct stops *stops, const char *text, size_t length, bool *matched)
{
    for (size_t end = 1; end <= length; end++) {
        size_t longest = 0;
        for (unsigned i = 0; i < stops->count; i++)
            if (stops->lengths[i] <= end && stops->lengths[i] > longest &&
                memcmp(text + end - stops->lengths[i], stops->texts[i], stops->lengths[i]) == 0)
                longest = stops->lengths[i];
        if (longest > 0) {
            *matched = true;
            return end - longest;
        }
    }
    *matched = false;
    return length;
}

START_TEST(test_stops_like_naive_ones)
{
    for (int round = 0; round < 20000; round++) {
        char texts[4][8];
        struct stops stops = {.count = 1 + random_below(4)};
        for (unsigned i = 0; i < stops.count; i++) {
            stops.lengths[i] = 1 + random_below(6);
            for (size_t j = 0; j < stops.lengths[i]; j++)
                texts[i][j] = (char)('a' + random_below(3));
            stops.texts[i] = texts[i];
        }
        char text[40];
        size_t length = random_below(sizeof text);
        for (size_t i = 0; i < length; i++)
            text[i] = (char)('a' + random_below(random_below(4) == 0 ? 8 : 3));
        bool expected_match;
        size_t expected = naive_stop(&stops, text, length, &expected_match);
        struct stop_matcher matcher;
        struct buffer out;
        buffer_init(&out, 0);
        stop_matcher_init(&matcher, stops.texts, stops.lengths, stops.count, false);
        for (size_t at = 0; at < length;) {
            size_t size = 1 + random_below((uint32_t)(length - at < 6 ? length - at : 6));
            stop_matcher_push(&matcher, text + at, size, &out);
            at += size;
            ck_assert_uint_le(out.length, expected); /* nothing that a stop takes back */
            /* … and no more is held than could begin a stop. */
            ck_assert(matcher.matched || at - out.length < 6);
        }
        stop_matcher_finish(&matcher, &out);
        ck_assert(matcher.matched == expected_match);
        ck_assert_uint_eq(out.length, expected);
        ck_assert(expected == 0 || memcmp(out.data, text, expected) == 0);
        stop_matcher_deinit(&matcher);
        buffer_deinit(&out);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("detokenizer");
    TCase *tests = tcase_create("detokenizer");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_characters_are_held_until_whole);
    tcase_add_test(tests, test_invalid_bytes_are_replaced);
    tcase_add_test(tests, test_cuts_do_not_matter);
    tcase_add_test(tests, test_stops);
    tcase_add_test(tests, test_which_stop_matched);
    tcase_add_test(tests, test_stops_like_naive_ones);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
