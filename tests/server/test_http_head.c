/* The head of a request, however it arrives: what is read of it, and what is refused. */
#include "server/http_head.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define GET "GET /health HTTP/1.1\r\nHost: a\r\n"
#define POST "POST /v1/completions HTTP/1.1\r\nHost: a\r\n"

static char bytes[4096];
static struct http_head head;
static struct error error;

/* The status of a head that arrives `step` bytes at a time; 1 when it has no end. */
static unsigned parse(const char *text, size_t length, size_t step)
{
    size_t end = 0, checked = 0;
    ck_assert_uint_lt(length, sizeof bytes);
    memcpy(bytes, text, length);
    for (size_t have = step; !end; have += step) {
        end = http_head_find_end(bytes, have < length ? have : length, &checked);
        if (have >= length)
            break;
    }
    if (end == SIZE_MAX)
        return 400;
    return end ? http_head_parse(bytes, end, &head, &error) : 1;
}

#define parse_text(text) parse(text, sizeof(text) - 1, 4096)

static const struct {
    const char *text;
    size_t length;
    unsigned status;
} heads[] = {
#define HEAD(text, status)                                                                         \
    {                                                                                              \
        text, sizeof(text) - 1, status                                                             \
    }
    HEAD(GET "\r\n", 0),
    HEAD(GET "\r\nGET /more", 0),
    HEAD(GET, 1),
    HEAD(GET "\r", 1),
    HEAD("GET /health HTTP/1.0\r\n\r\n", 0),
    HEAD("GET /health HTTP/1.1\r\n\r\n", 400),
    HEAD("GET /health HTTP/2.0\r\n\r\n", 505),
    HEAD("PRI * HTTP/2.0\r\n\r\n", 505),
    HEAD("GET /health HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
    HEAD("GET /health\r\nHost: a\r\n\r\n", 400),
    HEAD("GET  /health HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    HEAD(" GET /health HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    HEAD("GET\t/health HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    HEAD("GET /h\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    HEAD("G(T /health HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    HEAD("GET /health HTTQ/1.1\r\nHost: a\r\n\r\n", 400),
    HEAD("GET /health HTTP/1.1\nHost: a\r\n\r\n", 400),
    HEAD(GET "X: a\nY: b\r\n\r\n", 400),
    HEAD(GET "X: a\rY: b\r\n\r\n", 400),
    HEAD(GET "X: a\r\r\n\r\n", 400),
    HEAD(GET "X: a\0b\r\n\r\n", 400),
    HEAD(GET "X: a\x01\r\n\r\n", 400),
    HEAD(GET "X: a\x7f\r\n\r\n", 400),
    HEAD(GET "X: a\r\n folded\r\n\r\n", 400),
    HEAD(GET "X: a\r\n\tfolded\r\n\r\n", 400),
    HEAD(GET "X : a\r\n\r\n", 400),
    HEAD(GET "X\r\n\r\n", 400),
    HEAD(GET ": a\r\n\r\n", 400),
    HEAD(GET "X:\r\nY: \r\nZ:a\r\n\r\n", 0),
    HEAD(GET "host: b\r\n\r\n", 400),
    HEAD(POST "Content-Length: 45\r\n\r\n", 0),
    HEAD(POST "Content-Length: \t45 \t \r\n\r\n", 0),
    HEAD(POST "Content-Length: 0045\r\n\r\n", 0),
    HEAD(POST "Content-Length: +45\r\n\r\n", 400),
    HEAD(POST "Content-Length: -45\r\n\r\n", 400),
    HEAD(POST "Content-Length: 45,45\r\n\r\n", 400),
    HEAD(POST "Content-Length: 4 5\r\n\r\n", 400),
    HEAD(POST "Content-Length: 0x45\r\n\r\n", 400),
    HEAD(POST "Content-Length: 45\xa0\r\n\r\n", 400),
    HEAD(POST "Content-Length:\r\n\r\n", 400),
    HEAD(POST "Content-Length: \r\n\r\n", 400),
    HEAD(POST "Content-Length: 18446744073709551616\r\n\r\n", 413),
    HEAD(POST "Content-Length: 18446744073709551661\r\n\r\n", 413),
    HEAD(POST "Content-Length: 45\r\nContent-Length: 45\r\n\r\n", 400),
    HEAD(POST "Content-Length: 45\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    HEAD(POST "Transfer-Encoding: chunked \r\n\r\n", 0),
    HEAD(POST "transfer-encoding:Chunked\r\n\r\n", 0),
    HEAD(POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    HEAD(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 400),
    HEAD(POST "Transfer-Encoding:\r\n\r\n", 501),
    HEAD("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
};

START_TEST(test_status)
{
    size_t length = heads[_i].length;
    for (size_t step = 1; step <= length; step++) {
        unsigned status = parse(heads[_i].text, length, step);
        ck_assert_msg(status == heads[_i].status, "%s: %u in steps of %zu, not %u", heads[_i].text,
                      status, step, heads[_i].status);
    }
}
END_TEST

START_TEST(test_what_is_read)
{
    ck_assert_uint_eq(parse_text("POST /a?b=c&d HTTP/1.1\r\nHost: a\r\ncontent-length:\t7  \r\n"
                                 "X-Empty:\r\nX-In:  a \t b\t\r\nX-In: second\r\n"
                                 "Connection: upgrade , Close\r\n\r\nbody"),
                      0);
    ck_assert_str_eq(head.method, "POST");
    ck_assert_str_eq(head.target, "/a");
    ck_assert(head.http11 && head.close && !head.keep_alive && !head.chunked);
    ck_assert_uint_eq(head.content_length, 7);
    ck_assert_str_eq(http_head_field(&head, "CONTENT-length"), "7");
    ck_assert_str_eq(http_head_field(&head, "x-empty"), "");
    ck_assert_str_eq(http_head_field(&head, "x-in"), "a \t b");
    ck_assert_ptr_null(http_head_field(&head, "x"));
    ck_assert_ptr_null(http_head_field(&head, "body"));
    ck_assert_uint_eq(parse_text("GET / HTTP/1.0\r\nConnection: keep-alive,x-close\r\n\r\n"), 0);
    ck_assert(!head.http11 && head.keep_alive && !head.close);
    ck_assert_uint_eq(head.content_length, 0);
    ck_assert_ptr_null(http_head_field(&head, "Host"));
}
END_TEST

/* Whatever comes in: what was read lies within the bytes, and how it was cut changes nothing. */
START_TEST(test_any_bytes)
{
    static const char alphabet[] = "G1 \r\n:,\t?/\0\x7f\xff";
    uint64_t state = 47;
    for (unsigned round = 0; round < 10000; round++) {
        unsigned random[8];
        for (unsigned i = 0; i < 8; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            random[i] = (unsigned)(state >> 33);
        }
        char text[256];
        unsigned seed = random[0] % (unsigned)(sizeof heads / sizeof heads[0]);
        size_t length = heads[seed].length;
        memcpy(text, heads[seed].text, length);
        for (unsigned i = 0; i < random[1] % 4; i++)
            text[random[2 + i] % length] = alphabet[random[5 + i] % (sizeof alphabet - 1)];
        unsigned status = parse(text, length, 1 + random[7] % 9);
        ck_assert_uint_eq(parse(text, length, length), status);
        ck_assert(status == 0 || status == 1 || status == 400 || status == 413 || status == 501 ||
                  status == 505);
        if (status)
            continue;
        const char *at = head.fields;
        for (unsigned i = 0; i < 2 * head.field_count; i++)
            at += strlen(at) + 1;
        ck_assert(at >= bytes && at <= bytes + length);
        ck_assert(!head.chunked || !head.content_length);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_head");
    TCase *tcase = tcase_create("all");
    tcase_add_loop_test(tcase, test_status, 0, (int)(sizeof heads / sizeof heads[0]));
    tcase_add_test(tcase, test_what_is_read);
    tcase_add_test(tcase, test_any_bytes);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
