/* The bounds of the queue: numbers in, decisions out, the clock is a number. */
#include "engine/queue_bounds.h"

#include <check.h>
#include <string.h>

#define SECOND 1000000000ull

static struct queue_bounds bounds;
static struct tenant_queue tenants[4];
static struct error error;

static void start(uint32_t tenant_count, uint32_t max_queue, uint64_t max_tokens)
{
    memset(&bounds, 0, sizeof bounds);
    memset(tenants, 0, sizeof tenants);
    bounds.tenant_count = tenant_count;
    bounds.sharing = tenant_count - 1;
    bounds.max_queue = max_queue;
    bounds.max_sequences = 2;
    bounds.max_tokens = max_tokens;
    bounds.tenants = tenants;
}

static enum status enter(uint32_t tenant, uint32_t count, uint64_t tokens, uint64_t now_ns)
{
    error_clear(&error);
    enum status status = queue_bounds_check(&bounds, tenant, count, tokens, now_ns, &error);
    if (status == STATUS_OK)
        queue_bounds_enter(&bounds, tenant, count, tokens);
    return status;
}

START_TEST(the_queue_is_bounded_in_requests)
{
    start(1, 3, 0);
    atomic_store(&bounds.room, 2); /* two pass at once */
    for (unsigned i = 0; i < 5; i++)
        ck_assert_int_eq(enter(0, 1, 100, 1), STATUS_OK);
    ck_assert_int_eq(enter(0, 1, 100, 1), STATUS_BUSY);
    ck_assert_str_eq(error.code, "queue_full");
    ck_assert_ptr_nonnull(strstr(error.message, "5 requests"));
    ck_assert_uint_eq(error.retry_after_s, 1);
    ck_assert_int_eq(enter(0, 6, 600, 1), STATUS_INVALID); /* more than there is room for, ever */
    atomic_store(&bounds.room, 0);
    queue_bounds_publish(&bounds, 0, 2, 200, 200);
    ck_assert_uint_eq(queue_bounds_size(&bounds).requests, 3);
    ck_assert_int_eq(enter(0, 1, 100, 1), STATUS_BUSY);
    queue_bounds_publish(&bounds, 0, 4, 400, 400);
    ck_assert_int_eq(enter(0, 3, 100, 1), STATUS_BUSY); /* whole or not at all */
    ck_assert_int_eq(enter(0, 2, 100, 1), STATUS_OK);
    ck_assert_uint_eq(queue_bounds_size(&bounds).requests, 3);
}
END_TEST

START_TEST(the_queue_is_bounded_in_prompt_tokens)
{
    start(1, 100, 1000);
    ck_assert_int_eq(enter(0, 1, 5000, 1), STATUS_OK); /* into an empty one anything may come */
    ck_assert_int_eq(enter(0, 1, 1, 1), STATUS_BUSY);
    ck_assert_ptr_nonnull(strstr(error.message, "5000 prompt tokens"));
    queue_bounds_publish(&bounds, 0, 1, 5000, 0);
    ck_assert_int_eq(enter(0, 2, 900, 1), STATUS_OK);
    ck_assert_int_eq(enter(0, 1, 101, 1), STATUS_BUSY);
    ck_assert_int_eq(enter(0, 1, 100, 1), STATUS_OK);
    ck_assert_uint_eq(queue_bounds_size(&bounds).tokens, 1000);
}
END_TEST

START_TEST(one_key_leaves_room_for_the_others)
{
    start(4, 12, 0); /* three keys */
    unsigned taken = 0;
    while (enter(1, 1, 10, 1) == STATUS_OK)
        taken++;
    ck_assert_uint_eq(taken, 6); /* as much as it left */
    ck_assert_ptr_nonnull(strstr(error.message, "6 requests of this API key"));
    for (taken = 0; enter(2, 1, 10, 1) == STATUS_OK;)
        taken++;
    ck_assert_uint_eq(taken, 3);
    ck_assert_int_eq(enter(3, 2, 10, 1), STATUS_OK);
    ck_assert_int_eq(enter(1, 1, 10, 1), STATUS_BUSY);
    /* The same in tokens. */
    start(3, 1000, 900);
    ck_assert_int_eq(enter(1, 1, 300, 1), STATUS_OK);
    ck_assert_int_eq(enter(1, 1, 200, 1), STATUS_OK); /* 500 of 900, 600 were free before */
    ck_assert_int_eq(enter(1, 1, 1, 1), STATUS_BUSY);
    ck_assert_ptr_nonnull(strstr(error.message, "500 prompt tokens of this API key"));
    ck_assert_int_eq(enter(2, 1, 400, 1), STATUS_OK);
    /* One key alone has the whole queue. */
    start(2, 12, 0);
    for (taken = 0; enter(1, 1, 10, 1) == STATUS_OK;)
        taken++;
    ck_assert_uint_eq(taken, 12);
}
END_TEST

START_TEST(retry_after_is_the_measured_rate)
{
    start(1, 10, 2000);
    queue_bounds_resume(&bounds, 100 * SECOND);
    /* A completion each three seconds, of 200 tokens each. */
    ck_assert_int_eq(enter(0, 10, 2000, 100 * SECOND), STATUS_OK);
    for (uint64_t i = 1; i <= 5; i++) {
        queue_bounds_publish(&bounds, 0, i, i * 200, 0);
        queue_bounds_observe(&bounds, i, (100 + 3 * i) * SECOND);
    }
    uint64_t now_ns = 115 * SECOND; /* of ten, five are left */
    ck_assert_uint_eq(queue_bounds_retry_after_s(&bounds, now_ns), 15);
    ck_assert_int_eq(enter(0, 9, 10, now_ns), STATUS_BUSY);
    ck_assert_uint_eq(error.retry_after_s, 12); /* four places in the queue */
    ck_assert_int_eq(enter(0, 1, 1400, now_ns), STATUS_BUSY);
    ck_assert_uint_eq(error.retry_after_s, 6); /* 400 tokens at 66.7 a second */
    /* Nothing has ended for long: it goes slower than before. */
    now_ns += 10 * SECOND;
    ck_assert_int_eq(enter(0, 9, 10, now_ns), STATUS_BUSY);
    ck_assert_uint_eq(error.retry_after_s, 40);
    now_ns += 1000 * SECOND;
    ck_assert_int_eq(enter(0, 9, 10, now_ns), STATUS_BUSY);
    ck_assert_uint_eq(error.retry_after_s, 300); /* no promise goes further */
    /* Idle for long is not slow. */
    queue_bounds_resume(&bounds, now_ns);
    ck_assert_int_eq(enter(0, 9, 10, now_ns), STATUS_BUSY);
    ck_assert_uint_eq(error.retry_after_s, 12);
}
END_TEST

START_TEST(the_rate_follows_what_happens_now)
{
    start(1, 1000, 0);
    queue_bounds_resume(&bounds, SECOND);
    uint64_t now_ns = SECOND, ended = 0;
    for (unsigned i = 0; i < 100; i++) {
        now_ns += SECOND / 10;
        queue_bounds_observe(&bounds, ++ended, now_ns);
    }
    ck_assert_uint_eq(enter(0, 1000, 1, now_ns), STATUS_OK);
    ck_assert_uint_eq(queue_bounds_retry_after_s(&bounds, now_ns), 100);
    for (unsigned i = 0; i < 30; i++) { /* now four at once, each fifth of a second */
        now_ns += SECOND / 5;
        queue_bounds_observe(&bounds, ended += 4, now_ns);
    }
    unsigned after_s = queue_bounds_retry_after_s(&bounds, now_ns);
    ck_assert_uint_ge(after_s, 50);
    ck_assert_uint_le(after_s, 52);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("queue_bounds");
    TCase *tcase = tcase_create("core");
    tcase_add_test(tcase, the_queue_is_bounded_in_requests);
    tcase_add_test(tcase, the_queue_is_bounded_in_prompt_tokens);
    tcase_add_test(tcase, one_key_leaves_room_for_the_others);
    tcase_add_test(tcase, retry_after_is_the_measured_rate);
    tcase_add_test(tcase, the_rate_follows_what_happens_now);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
