/* The scan, cJSON behind it, slices and writing: api/json.h. */
#include "api/json.h"
#include "base/limits.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static enum status open_text(const char *text, size_t length, struct json_document *document,
                             struct error *error)
{
    /* Exactly as long as the text and without a NUL, so that a sanitizer sees a read behind it. */
    static char *last;
    free(last);
    last = malloc(length ? length : 1);
    memcpy(last, text, length);
    return json_open(last, length, NULL, document, error);
}

static enum status check_text(const char *text, struct error *error)
{
    struct json_document document;
    enum status status = open_text(text, strlen(text), &document, error);
    json_close(&document);
    return status;
}

START_TEST(good_bodies)
{
    static const char *const bodies[] = {
        "{}",
        " \t\r\n{ \"a\" : [ ] } \n",
        "{\"a\":[1,-0,0.5,1e5,1E-5,-12.25e+3,true,false,null,\"x\",{},[[]]]}",
        "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\ud83d\\ude00\"}",
        "{\"\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"}",
        "{\"a\":1e999}", /* JSON; refused where a number is read */
        "{\"a\":{\"x\":1},\"b\":{\"x\":1}}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct error error = {0};
        ck_assert_msg(check_text(bodies[i], &error) == STATUS_OK, "%s: %s", bodies[i],
                      error.message);
    }
}
END_TEST

START_TEST(bad_bodies)
{
    static const struct {
        const char *body, *says;
    } cases[] = {
        {"", "empty"},
        {"  \n ", "empty"},
        {"\xef\xbb\xbf{}", "byte order mark"},
        {"[]", "must be a JSON object"},
        {"1", "must be a JSON object"},
        {"\"a\"", "must be a JSON object"},
        {"{\"a\":1}garbage", "after the end"},
        {"{\"prompt\":\"a\"}}}}", "after the end"},
        {"{\"a\":1}{\"a\":1}", "after the end"},
        {"\"a\", b", "after the end"},
        {"{\"a\":1,}", "expected a key"},
        {"{,}", "expected a key"},
        {"{\"a\" 1}", "expected ':'"},
        {"{\"a\":}", "unexpected character"},
        {"{\"a\":[1 2]}", "expected ','"},
        {"{\"a\":[1,]}", "unexpected character"},
        {"{a:1}", "expected a key"},
        {"{'a':1}", "expected a key"},
        {"{\"a\":1]", "expected ','"},
        {"{\"a\":NaN}", "unexpected character"},
        {"{\"a\":nul}", "unexpected character"},
        {"{\"a\":Infinity}", "unexpected character"},
        {"{\"a\":-Infinity}", "unexpected character"},
        {"{\"a\":+1}", "unexpected character"},
        {"{\"a\":.5}", "unexpected character"},
        {"{\"a\":1.}", "bad number"},
        {"{\"a\":1e}", "bad number"},
        {"{\"a\":1e+}", "bad number"},
        {"{\"a\":01}", "expected ','"},
        {"{\"a\":0x10}", "expected ','"},
        {"{\"a\":--1}", "unexpected character"},
        {"{\"a\":// c\n1}", "unexpected character"},
        {"{\"a\":\"\n\"}", "control character"},
        {"{\"a\":\"\x01\"}", "control character"},
        {"{\"a\":\"\\x41\"}", "bad escape"},
        {"{\"a\":\"\\u12g4\"}", "bad \\u escape"},
        {"{\"a\":\"\\u0000\"}", "NUL"},
        {"{\"a\":\"\\uD800\"}", "lone surrogate"},
        {"{\"a\":\"\\uDC00\"}", "lone surrogate"},
        {"{\"a\":\"\\uD83D\\u0041\"}", "lone surrogate"},
        {"{\"a\":\"\\uDE00\\uD83D\"}", "lone surrogate"},
        {"{\"a\":\"\\uD83Dx\"}", "lone surrogate"},
        {"{\"a\":\"\xe6\xad\"}", "invalid UTF-8"},
        {"{\"a\":\"\xc0\x80\"}", "invalid UTF-8"},
        {"{\"a\":\"\xed\xa0\x80\"}", "invalid UTF-8"},
        {"{\"a\":\"\xf5\x80\x80\x80\"}", "invalid UTF-8"},
        {"{\"a\":\"\x80\"}", "invalid UTF-8"},
        {"{\"a\":\"\xff\"}", "invalid UTF-8"},
        {"{\"\xff\":1}", "invalid UTF-8"},
        {"{\"a\":\"abc\\", "bad escape"},
        {"{\"a\":\"abc", "unterminated"},
        {"{\"a\":1,\"a\":1}", "twice"},
        {"{\"b\":[{\"a\":1,\"\\u0061\":2}]}", "twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error = {0};
        ck_assert_msg(check_text(cases[i].body, &error) == STATUS_INVALID, "%s", cases[i].body);
        ck_assert_msg(strstr(error.message, cases[i].says) != NULL, "%s: %s", cases[i].body,
                      error.message);
    }
}
END_TEST

/* A NUL byte anywhere is a fault of its place, not an end. */
START_TEST(nul_bytes)
{
    struct json_document document;
    struct error error;
    const char *body = "{\"a\":\"b\"}";
    for (size_t at = 0; at <= strlen(body); at++) {
        char text[32];
        memcpy(text, body, at);
        text[at] = '\0';
        memcpy(text + at + 1, body + at, strlen(body) - at);
        ck_assert_int_eq(open_text(text, strlen(body) + 1, &document, &error), STATUS_INVALID);
        json_close(&document);
    }
}
END_TEST

START_TEST(every_truncation)
{
    const char *body = "{\"model\":\"x\",\"prompt\":[[1,22],[333]],\"n\":-1.5e+3,\"t\":true,"
                       "\"s\":\"\\ud83d\\ude00\xf0\x9f\x98\x80\\n\",\"o\":{\"k\":[null,false]}}";
    struct json_document document;
    struct error error;
    for (size_t length = 0; length < strlen(body); length++) {
        ck_assert_int_eq(open_text(body, length, &document, &error), STATUS_INVALID);
        json_close(&document);
    }
    ck_assert_int_eq(open_text(body, strlen(body), &document, &error), STATUS_OK);
    json_close(&document);
}
END_TEST

static char *repeated(const char *before, const char *unit, size_t count, const char *after)
{
    struct buffer text;
    buffer_init(&text, 0);
    buffer_append_text(&text, before);
    for (size_t i = 0; i < count; i++)
        buffer_append_text(&text, unit);
    buffer_append_text(&text, after);
    return text.data;
}

static void *check_deep(void *arg)
{
    (void)arg;
    static const struct {
        const char *unit;
        size_t count;
    } cases[] = {{"[", 999}, {"[", 1001}, {"[", 1000000}, {"{\"a\":", 1000000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body = repeated("{\"tools\":[{\"parameters\":", cases[i].unit, cases[i].count, "");
        struct error error = {0};
        ck_assert_int_eq(check_text(body, &error), STATUS_INVALID);
        ck_assert(strstr(error.message, "nested too deeply") != NULL);
        free(body);
    }
    return NULL;
}

/* On a small stack, as an HTTP thread may have. */
START_TEST(deep_nesting)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, check_deep, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);

    struct error error = {0};
    char *close = repeated("", "]", LIMIT_JSON_DEPTH - 1, "}");
    char *body = repeated("{\"a\":", "[", LIMIT_JSON_DEPTH - 1, close);
    ck_assert_int_eq(check_text(body, &error), STATUS_OK);
    free(body);
    body = repeated("{\"a\":[", "[", LIMIT_JSON_DEPTH - 1, "]");
    ck_assert_int_eq(check_text(body, &error), STATUS_INVALID);
    free(body);
    free(close);
}
END_TEST

START_TEST(long_numbers)
{
    struct error error = {0};
    char *body = repeated("{\"a\":", "1", 1000000, "}");
    ck_assert_int_eq(check_text(body, &error), STATUS_INVALID);
    ck_assert(strstr(error.message, "too many digits") != NULL);
    free(body);
    body = repeated("{\"a\":", "1", JSON_NUMBER_BYTES_MAX, "}");
    ck_assert_int_eq(check_text(body, &error), STATUS_OK);
    free(body);
}
END_TEST

/* 8 MB of tiny values must not become half a gigabyte of nodes. */
START_TEST(many_values)
{
    struct error error = {0};
    char *body = repeated("{\"a\":[1", ",1", 4000000, "]}");
    ck_assert_int_eq(check_text(body, &error), STATUS_INVALID);
    ck_assert(strstr(error.message, "too many values") != NULL);
    free(body);
    body = repeated("{\"a\":[1", ",1", 100000, "]}");
    ck_assert_int_eq(check_text(body, &error), STATUS_OK);
    free(body);
}
END_TEST

START_TEST(id_prompts)
{
    struct json_document document;
    struct error error = {0};
    char *body = repeated("{\"n\":1,\"prompt\": [ 7", " , 49151", 2000000, "] ,\"x\":[1]}");
    ck_assert_int_eq(json_open(body, strlen(body), NULL, &document, &error), STATUS_OK);
    ck_assert_uint_eq(document.scan.id_count, 2000001);
    ck_assert_uint_eq(document.list_ends[0], 2000001);
    ck_assert_uint_eq(document.ids[0], 7);
    ck_assert_uint_eq(document.ids[2000000], 49151);
    ck_assert(document.scan.nodes < 8);
    ck_assert_ptr_null(json_get(document.root, "prompt"));
    ck_assert_ptr_nonnull(json_get(document.root, "x"));
    json_close(&document);
    free(body);

    body = "{\"prompt\":[[1,2],[4294967295],[0]],\"n\":2}";
    ck_assert_int_eq(open_text(body, strlen(body), &document, &error), STATUS_OK);
    ck_assert_uint_eq(document.scan.id_list_count, 3);
    ck_assert_uint_eq(document.list_ends[0], 2);
    ck_assert_uint_eq(document.list_ends[1], 3);
    ck_assert_uint_eq(document.list_ends[2], 4);
    ck_assert_uint_eq(document.ids[2], UINT32_MAX);
    json_close(&document);

    body = "{\"prompt\":[1.0,2e1,-0,1.5e1 , 4294967295.00,7]}";
    static const uint32_t spelled[] = {1, 20, 0, 15, UINT32_MAX, 7};
    ck_assert_int_eq(open_text(body, strlen(body), &document, &error), STATUS_OK);
    ck_assert_uint_eq(document.scan.id_count, 6);
    ck_assert_mem_eq(document.ids, spelled, sizeof spelled);
    json_close(&document);

    /* Not ids: left to cJSON. Nested "prompt" too. */
    static const char *const others[] = {
        "{\"prompt\":[]}",           "{\"prompt\":[[]]}",     "{\"prompt\":[1,\"a\"]}",
        "{\"prompt\":[1.5]}",        "{\"prompt\":[-1]}",     "{\"prompt\":[[1],2]}",
        "{\"prompt\":[4294967296]}", "{\"prompt\":[1e-1]}",   "{\"prompt\":\"a\"}",
        "{\"prompt\":[true]}",       "{\"prompt\":[[1],[]]}", "{\"o\":{\"prompt\":[1]}}",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ck_assert_int_eq(open_text(others[i], strlen(others[i]), &document, &error), STATUS_OK);
        ck_assert_msg(!document.ids, "%s", others[i]);
        json_close(&document);
    }
    ck_assert_int_eq(check_text("{\"prompt\":[1],\"prompt\":[2]}", &error), STATUS_INVALID);
    ck_assert_int_eq(check_text("{\"prompt\":[1,2", &error), STATUS_INVALID);
    ck_assert_int_eq(check_text("{\"prompt\":[01]}", &error), STATUS_INVALID);
}
END_TEST

START_TEST(memory_is_budgeted)
{
    struct budget budget;
    struct error error = {0};
    struct json_document document;
    budget_init(&budget, 1 << 20);
    ck_assert_int_eq(budget_reserve(&budget, BUDGET_REQUESTS, 100000, &error), STATUS_OK);
    char *body = repeated("{\"a\":[1", ",1", 1000, "]}");
    ck_assert_int_eq(json_open(body, strlen(body), &budget, &document, &error), STATUS_TOO_LARGE);
    json_close(&document);
    const char *small = "{\"a\":[1,2,3]}";
    ck_assert(budget_take(&budget, BUDGET_REQUESTS, 99900));
    ck_assert_int_eq(json_open(small, strlen(small), &budget, &document, &error), STATUS_BUSY);
    ck_assert_uint_ge(error.retry_after_s, 1);
    json_close(&document);
    budget_give(&budget, BUDGET_REQUESTS, 99900);
    ck_assert_int_eq(json_open(small, strlen(small), &budget, &document, &error), STATUS_OK);
    ck_assert(atomic_load(&budget.used_bytes[BUDGET_REQUESTS]) > 0);
    json_close(&document);
    ck_assert(atomic_load(&budget.used_bytes[BUDGET_REQUESTS]) == 0);
    free(body);
}
END_TEST

START_TEST(read_fields)
{
    struct json_document document;
    struct error error = {0};
    const char *body = "{\"f\":0.25,\"i\":3,\"big\":1e999,\"small\":-1e999,\"b\":true,\"s\":\"x\","
                       "\"z\":null,\"F\":9,\"h\":1.5}";
    ck_assert_int_eq(open_text(body, strlen(body), &document, &error), STATUS_OK);
    float f = 7;
    int64_t i = 7;
    bool b = false;
    const char *s = NULL;
    ck_assert_int_eq(json_read_float(document.root, "f", 0, 1, &f, &error), STATUS_OK);
    ck_assert(f == 0.25f);
    ck_assert_int_eq(json_read_float(document.root, "z", 0, 1, &f, &error), STATUS_OK);
    ck_assert_int_eq(json_read_float(document.root, "absent", 0, 1, &f, &error), STATUS_OK);
    ck_assert(f == 0.25f);
    ck_assert_int_eq(json_read_integer(document.root, "i", 0, 3, &i, &error), STATUS_OK);
    ck_assert_int_eq(i, 3);
    ck_assert_int_eq(json_read_bool(document.root, "b", &b, &error), STATUS_OK);
    ck_assert(b);
    ck_assert_int_eq(json_read_string(document.root, "s", &s, &error), STATUS_OK);
    ck_assert_str_eq(s, "x");
    static const char *const wrong[] = {"big", "small", "b", "s"};
    for (size_t k = 0; k < 4; k++) {
        ck_assert_int_eq(json_read_float(document.root, wrong[k], -1e300, 1e300, &f, &error),
                         STATUS_INVALID);
        ck_assert_str_eq(error.param, wrong[k]);
        ck_assert_int_eq(json_read_integer(document.root, wrong[k], -100, 100, &i, &error),
                         STATUS_INVALID);
    }
    ck_assert_int_eq(json_read_integer(document.root, "h", 0, 9, &i, &error), STATUS_INVALID);
    ck_assert_int_eq(json_read_bool(document.root, "i", &b, &error), STATUS_INVALID);
    ck_assert_int_eq(json_read_string(document.root, "i", &s, &error), STATUS_INVALID);
    json_close(&document);
}
END_TEST

START_TEST(slices)
{
    const char *text = "{ \"a\" : [ 1 , \"x,]\\\"\" , {\"b\":[]} , null ] , \"k\\u0065y\":1.0 }";
    struct json_scan scan = {0};
    struct error error;
    ck_assert_int_eq(json_scan_text(text, strlen(text), false, &scan, &error), STATUS_OK);
    struct json_slice all = {text, strlen(text)}, value;
    value = json_find(all, "key");
    ck_assert_int_eq((int)value.length, 3);
    ck_assert_int_eq(strncmp(value.text, "1.0", 3), 0);
    ck_assert_ptr_null(json_find(all, "b").text);
    struct json_slice list = json_find(all, "a");
    static const char *const expected[] = {"1", "\"x,]\\\"\"", "{\"b\":[]}", "null"};
    size_t at = 0;
    for (size_t i = 0; i < 4; i++) {
        ck_assert(json_next(list, &at, NULL, &value));
        ck_assert_uint_eq(value.length, strlen(expected[i]));
        ck_assert_int_eq(strncmp(value.text, expected[i], value.length), 0);
    }
    ck_assert(!json_next(list, &at, NULL, &value));
    at = 0;
    ck_assert(!json_next((struct json_slice){"[ ]", 3}, &at, NULL, &value));
    ck_assert(!json_next((struct json_slice){"{}", 2}, &at, NULL, &value));
    ck_assert(!json_next((struct json_slice){"12", 2}, &at, NULL, &value));

    struct buffer decoded;
    buffer_init(&decoded, 0);
    const char *string = "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00z\"";
    json_decode_string((struct json_slice){string, strlen(string)}, &decoded);
    ck_assert_str_eq(decoded.data, "a\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80z");
    buffer_deinit(&decoded);
}
END_TEST

START_TEST(noncharacters)
{
    struct json_scan scan = {0};
    struct error error;
    const char *text = "{\"\xef\xb7\x90\":\"\\ufdd1\\ud83f\\udffe\"}"; /* FDD0, FDD1, 1FFFE */
    ck_assert_int_eq(json_scan_text(text, strlen(text), false, &scan, &error), STATUS_OK);
    unsigned seen = 0;
    for (unsigned i = 0; i < JSON_NONCHARACTERS; i++) {
        uint32_t c = json_noncharacter(i);
        ck_assert((c >= 0xfdd0 && c <= 0xfdef) || (c & 0xfffe) == 0xfffe);
        ck_assert_int_eq(scan.noncharacter[i], c == 0xfdd0 || c == 0xfdd1 || c == 0x1fffe);
        seen += scan.noncharacter[i];
    }
    ck_assert_uint_eq(seen, 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json");
    TCase *tests = tcase_create("json");
    tcase_set_timeout(tests, 20);
    tcase_add_test(tests, good_bodies);
    tcase_add_test(tests, bad_bodies);
    tcase_add_test(tests, nul_bytes);
    tcase_add_test(tests, every_truncation);
    tcase_add_test(tests, deep_nesting);
    tcase_add_test(tests, long_numbers);
    tcase_add_test(tests, many_values);
    tcase_add_test(tests, id_prompts);
    tcase_add_test(tests, memory_is_budgeted);
    tcase_add_test(tests, read_fields);
    tcase_add_test(tests, slices);
    tcase_add_test(tests, noncharacters);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
