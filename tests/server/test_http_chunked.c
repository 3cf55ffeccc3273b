/* The chunked coding, cut anywhere on both sides: the same body comes out in its plainest form, and
   what is malformed ends it where a reader behind still sees whole chunks. */
#include "server/http_chunked.h"

#include "base/limits.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define BODY_LIMIT 100u

static char out[4096];
static size_t out_length, read_length;

/* `step` bytes at a time into `room` at a time; the status, or 1 when the body did not end. */
static unsigned feed(const char *in, size_t length, size_t step, size_t room)
{
    struct http_chunked chunked;
    http_chunked_init(&chunked, BODY_LIMIT);
    out_length = read_length = 0;
    for (unsigned idle = 0; !http_chunked_is_done(&chunked) && idle < 3;) {
        size_t part = length - read_length < step ? length - read_length : step;
        size_t written = 0;
        size_t read =
            http_chunked_feed(&chunked, in + read_length, part, out + out_length, room, &written);
        ck_assert_uint_le(read, part);
        ck_assert_uint_le(written, room);
        read_length += read;
        out_length += written;
        ck_assert_uint_lt(out_length + room, sizeof out);
        idle = read || written ? 0 : idle + 1;
    }
    return http_chunked_is_done(&chunked) ? chunked.status : 1;
}

static const struct {
    const char *in;
    unsigned status; /* 1: not whole */
    const char *out;
    unsigned left; /* bytes behind the body, which are not read */
} bodies[] = {
    {"5\r\nhello\r\n0\r\n\r\n", 0, "5\r\nhello\r\n0\r\n\r\n", 0},
    {"005\r\nhello\r\nA;a=\"b\";c\r\n0123456789\r\n000\r\n\r\nGET ", 0,
     "5\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\n", 4},
    {"5 \t;x\r\nhello\r\n0;y\r\nX-T: y\r\nZ:\r\n\r\n", 0, "5\r\nhello\r\n0\r\n\r\n", 0},
    {"0\r\n\r\n", 0, "0\r\n\r\n", 0},
    {"3\r\n\r\n\n\r\n0\r\n\r\n", 0, "3\r\n\r\n\n\r\n0\r\n\r\n", 0},
    {"5\r\nhel", 1, "5\r\nhel", 0},
    {"5\r\nhello\r\n0\r\n", 1, "5\r\nhello\r\n", 0},
    {"5\nhello\r\n0\r\n\r\n", 400, "0\r\n\r\n", 12},
    {"5;a\nhello\r\n0\r\n\r\n", 400, "0\r\n\r\n", 12},
    {"5;\n\r\nhello\r\n0\r\n\r\n", 400, "0\r\n\r\n", 14},
    {"5\r\rhello", 400, "0\r\n\r\n", 5},
    {"5 \r\nhello", 400, "0\r\n\r\n", 6},
    {"5\r\nhello\n0\r\n\r\n", 400, "5\r\nhello\r\n0\r\n\r\n", 5},
    {"5\r\nhello\r0\r\n\r\n", 400, "5\r\nhello\r\n0\r\n\r\n", 4},
    {"5\r\nhelloo\r\n0\r\n\r\n", 400, "5\r\nhello\r\n0\r\n\r\n", 7},
    {"5\r\nhello\r\n0\r\n\n", 400, "5\r\nhello\r\n0\r\n\r\n", 0},
    {"5\r\nhello\r\n0\r\nX: a\nY: b\r\n\r\n", 400, "5\r\nhello\r\n0\r\n\r\n", 8},
    {"5\r\nhello\r\n0\r\n X: a\r\n\r\n", 400, "5\r\nhello\r\n0\r\n\r\n", 8},
    {"5\r\nhello\r\n0\r\nX\r\n\r\n", 400, "5\r\nhello\r\n0\r\n\r\n", 3},
    {"5\r\nhello\r\n0\r\n: a\r\n\r\n", 400, "5\r\nhello\r\n0\r\n\r\n", 6},
    {"\r\n", 400, "0\r\n\r\n", 1},
    {"-5\r\n", 400, "0\r\n\r\n", 3},
    {"+5\r\n", 400, "0\r\n\r\n", 3},
    {" 5\r\n", 400, "0\r\n\r\n", 3},
    {"0x5\r\nhello", 400, "0\r\n\r\n", 8},
    {"5,5\r\n", 400, "0\r\n\r\n", 3},
    {"65\r\n", 413, "0\r\n\r\n", 0}, /* 101 */
    {"5\r\nhello\r\n60\r\n", 413, "5\r\nhello\r\n0\r\n\r\n", 0},
    {"8000000000000000\r\n", 413, "0\r\n\r\n", 0},
    {"ffffffffffffffff\r\n", 413, "0\r\n\r\n", 0},
    {"10000000000000005\r\nhello", 400, "0\r\n\r\n", 7},
};

START_TEST(test_bodies)
{
    size_t length = strlen(bodies[_i].in);
    for (size_t step = 1; step <= length; step++) {
        for (size_t room = 1; room <= length; room++) {
            unsigned status = feed(bodies[_i].in, length, step, room);
            ck_assert_msg(status == bodies[_i].status, "%s: %u, not %u", bodies[_i].in, status,
                          bodies[_i].status);
            ck_assert_uint_eq(out_length, strlen(bodies[_i].out));
            ck_assert_mem_eq(out, bodies[_i].out, out_length);
            ck_assert_uint_eq(length - read_length, bodies[_i].left);
        }
    }
}
END_TEST

START_TEST(test_extensions_and_trailers_have_an_end)
{
    static char in[2 * LIMIT_HEAD_BYTES];
    memset(in, 'x', sizeof in);
    memcpy(in, "5;", 2);
    ck_assert_uint_eq(feed(in, sizeof in, 4096, 64), 400);
    ck_assert_uint_le(read_length, LIMIT_HEAD_BYTES + 8);
    memcpy(in, "0\r\nX:", 5);
    ck_assert_uint_eq(feed(in, sizeof in, 4096, 64), 400);
    ck_assert_uint_le(read_length, LIMIT_HEAD_BYTES + 8);
}
END_TEST

static uint32_t random_below(uint32_t limit)
{
    static uint64_t state = 12;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % limit;
}

/* What came out is whole chunks in their plainest form, up to where it ends. */
static void check_plain(const char *text, size_t length, bool done)
{
    size_t at = 0;
    bool ended = false;
    while (at < length && !ended) {
        char *end;
        size_t size = strtoul(text + at, &end, 16);
        ck_assert(text[at] != '0' || end == text + at + 1);
        at = (size_t)(end - text);
        if (length - at < 2 + size + 2) { /* cut in the middle */
            ck_assert(!done);
            return;
        }
        ck_assert_mem_eq(end, "\r\n", 2);
        at += 2 + size;
        ck_assert_mem_eq(text + at, "\r\n", 2);
        at += 2;
        ended = size == 0;
    }
    ck_assert_uint_eq(at, length);
    ck_assert(ended == done);
}

/* Whatever comes in: plain chunks come out, and the same ones however it was cut. */
START_TEST(test_any_bytes)
{
    static const char alphabet[] = "05aF\r\n;: \tx\0\x7f\xff";
    for (unsigned round = 0; round < 1000; round++) {
        char in[128], first[sizeof out];
        const char *seed = bodies[random_below(sizeof bodies / sizeof bodies[0])].in;
        size_t length = strlen(seed);
        memcpy(in, seed, length);
        for (uint32_t i = random_below(4); i; i--)
            in[random_below((uint32_t)length)] = alphabet[random_below(sizeof alphabet - 1)];
        unsigned status = feed(in, length, length, sizeof first / 2);
        size_t first_length = out_length, first_read = read_length;
        memcpy(first, out, first_length);
        first[first_length] = '\0';
        check_plain(first, first_length, status != 1);
        ck_assert_uint_eq(feed(in, length, 1 + random_below(5), 1 + random_below(5)), status);
        ck_assert_uint_eq(out_length, first_length);
        ck_assert_mem_eq(out, first, first_length);
        ck_assert_uint_eq(read_length, first_read);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_chunked");
    TCase *tcase = tcase_create("all");
    tcase_add_loop_test(tcase, test_bodies, 0, (int)(sizeof bodies / sizeof bodies[0]));
    tcase_add_test(tcase, test_extensions_and_trailers_have_an_end);
    tcase_add_test(tcase, test_any_bytes);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
