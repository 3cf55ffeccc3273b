/* A file of slots: what comes back is what was written, or an error; whatever the system does. */
#include "pager/disk/page_store.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOT 1000u
#define SLOTS 5u
#define OFFSET 64u

static int fd;
static struct page_store *store;
static struct error error;
static unsigned char page[SLOT], back[SLOT];

/* ---- a system that does not do as it is told ---- */

static unsigned calls;         /* of the next operation, counted */
static unsigned most;          /* bytes that a call does at most; 0: all */
static unsigned fail_at;       /* that call fails … */
static int fail_errno;         /* … with this; 0: does nothing and returns 0 */
static unsigned interrupt_one; /* every so many calls is interrupted first; 0: none */

static bool fails(ssize_t *result)
{
    calls++;
    if (interrupt_one && calls % interrupt_one == 0) {
        errno = EINTR;
        *result = -1;
        return true;
    }
    if (fail_at && calls >= fail_at) {
        errno = fail_errno;
        *result = fail_errno ? -1 : 0;
        return true;
    }
    return false;
}

static ssize_t odd_read(int file, void *bytes, size_t length, off_t offset)
{
    ssize_t result;
    return fails(&result) ? result
                          : pread(file, bytes, most && length > most ? most : length, offset);
}

static ssize_t odd_write(int file, const void *bytes, size_t length, off_t offset)
{
    ssize_t result;
    return fails(&result) ? result
                          : pwrite(file, bytes, most && length > most ? most : length, offset);
}

static void setup(void)
{
    calls = most = fail_at = interrupt_one = 0;
    fail_errno = 0;
    ck_assert_msg(page_store_open_unnamed("/tmp", &fd, &error) == STATUS_OK, "%s", error.message);
    struct page_store_options options = {fd, OFFSET, SLOT, SLOTS, {odd_read, odd_write}};
    ck_assert(page_store_create(&options, &store, &error) == STATUS_OK);
}

static void teardown(void)
{
    page_store_destroy(store);
    close(fd);
}

static void fill(unsigned seed)
{
    for (unsigned i = 0; i < SLOT; i++)
        page[i] = (unsigned char)(seed * 31 + i * 7 + i / 256);
}

static enum status write_page(uint32_t slot, unsigned seed)
{
    fill(seed);
    return page_store_write(store, slot, page, &error);
}

static void expect_page(uint32_t slot, unsigned seed)
{
    fill(seed);
    memset(back, 0, sizeof back);
    ck_assert_msg(page_store_read(store, slot, back, &error) == STATUS_OK, "%s", error.message);
    ck_assert(memcmp(page, back, SLOT) == 0);
}

START_TEST(slots_are_taken_once_and_come_back)
{
    ck_assert_uint_eq(page_store_free_count(store), SLOTS);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        ck_assert_uint_eq(page_store_take(store), slot);
    ck_assert_uint_eq(page_store_take(store), PAGE_STORE_NO_SLOT);
    page_store_give(store, 3);
    page_store_give(store, 1);
    ck_assert_uint_eq(page_store_free_count(store), 2);
    ck_assert_uint_eq(page_store_take(store), 1);
    ck_assert_uint_eq(page_store_take(store), 3);
    ck_assert_uint_eq(page_store_take(store), PAGE_STORE_NO_SLOT);
}
END_TEST

START_TEST(no_slot_is_given_back_twice)
{
    page_store_give(store, page_store_take(store));
    page_store_give(store, 0);
}
END_TEST

START_TEST(a_cap_is_whole_slots)
{
    ck_assert_uint_eq(page_store_fit(0, SLOT), 0);
    ck_assert_uint_eq(page_store_fit(SLOT - 1, SLOT), 0);
    ck_assert_uint_eq(page_store_fit(3 * SLOT + 1, SLOT), 3);
    ck_assert_uint_lt(page_store_fit(UINT64_MAX, 1), PAGE_STORE_NO_SLOT);
    struct page_store *none;
    struct page_store_options options = {fd, 0, SLOT, 0, {NULL, NULL}};
    ck_assert(page_store_create(&options, &none, &error) == STATUS_OK);
    ck_assert_uint_eq(page_store_take(none), PAGE_STORE_NO_SLOT);
    page_store_destroy(none);
}
END_TEST

START_TEST(what_is_written_comes_back_from_its_own_slot)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        ck_assert(write_page(slot, slot) == STATUS_OK);
    ck_assert(write_page(2, 77) == STATUS_OK);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        expect_page(slot, slot == 2 ? 77 : slot);
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    ck_assert_int_eq(info.st_size, OFFSET + SLOTS * SLOT); /* the cap, and what is before it */
    ck_assert_int_eq(info.st_mode & 0777, 0600);
    ck_assert_int_eq(info.st_nlink, 0); /* gone with its descriptor */
}
END_TEST

START_TEST(half_done_calls_and_interrupts_are_gone_on_from)
{
    most = 37;
    interrupt_one = 3;
    ck_assert(write_page(1, 5) == STATUS_OK);
    ck_assert_uint_gt(calls, SLOT / 37);
    calls = 0;
    expect_page(1, 5);
    ck_assert_uint_gt(calls, SLOT / 37);
}
END_TEST

/* Every call of a write fails in its turn: the slot is then void, and other slots are not. */
START_TEST(a_write_that_fails_leaves_nothing_that_could_be_read)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT, 0};
    ck_assert(write_page(0, 9) == STATUS_OK && write_page(1, 1) == STATUS_OK);
    most = 200;
    for (fail_at = 1; fail_at <= 5; fail_at++) {
        calls = 0;
        fail_errno = errors[_i];
        ck_assert(write_page(1, 2) == STATUS_IO);
        ck_assert_ptr_nonnull(strstr(error.message, strerror(errors[_i] ? errors[_i] : ENOSPC)));
        unsigned at = fail_at;
        fail_at = 0;
        ck_assert(page_store_read(store, 1, back, &error) == STATUS_IO);
        expect_page(0, 9);
        fail_at = at;
    }
    fail_at = 0;
    ck_assert(write_page(1, 3) == STATUS_OK); /* and goes on */
    expect_page(1, 3);
}
END_TEST

START_TEST(a_read_that_fails_says_so)
{
    ck_assert(write_page(4, 1) == STATUS_OK);
    calls = 0;
    fail_at = 1;
    fail_errno = EIO;
    ck_assert(page_store_read(store, 4, back, &error) == STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.message, strerror(EIO)));
    fail_at = 0;
    expect_page(4, 1);
    ck_assert_int_eq(ftruncate(fd, OFFSET + 4 * SLOT + 10), 0);
    ck_assert(page_store_read(store, 4, back, &error) == STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.message, "ends"));
}
END_TEST

START_TEST(every_flipped_bit_is_found)
{
    ck_assert(write_page(3, 8) == STATUS_OK);
    for (unsigned bit = 0; bit < SLOT * 8; bit += 13) {
        off_t at = OFFSET + 3 * SLOT + bit / 8;
        unsigned char byte;
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        byte ^= (unsigned char)(1u << bit % 8);
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        ck_assert(page_store_read(store, 3, back, &error) == STATUS_IO);
        byte ^= (unsigned char)(1u << bit % 8);
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    expect_page(3, 8);
}
END_TEST

START_TEST(another_slots_bytes_are_found)
{
    ck_assert(write_page(0, 1) == STATUS_OK && write_page(1, 2) == STATUS_OK);
    fill(1);
    ck_assert_int_eq(pwrite(fd, page, SLOT, OFFSET + SLOT), SLOT); /* a write gone astray … */
    ck_assert(page_store_read(store, 1, back, &error) == STATUS_IO);
    page_store_set_sum(store, 1, page_store_sum(store, 0)); /* … together with its sum */
    ck_assert(page_store_read(store, 1, back, &error) == STATUS_IO);
}
END_TEST

START_TEST(sums_that_were_kept_verify_after_a_restart)
{
    ck_assert(write_page(2, 6) == STATUS_OK);
    uint64_t sum = page_store_sum(store, 2);
    page_store_destroy(store);
    struct page_store_options options = {fd, OFFSET, SLOT, SLOTS, {NULL, NULL}};
    ck_assert(page_store_create(&options, &store, &error) == STATUS_OK);
    ck_assert(page_store_read(store, 2, back, &error) == STATUS_IO);
    page_store_set_sum(store, 2, sum);
    expect_page(2, 6);
}
END_TEST

/* The system's own refusal, in the middle of a page. */
START_TEST(a_file_size_limit_is_an_error_like_others)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = OFFSET + 2 * SLOT + 100;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    enum status first = write_page(1, 1), second = write_page(2, 2);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert(first == STATUS_OK && second == STATUS_IO);
    ck_assert(page_store_read(store, 2, back, &error) == STATUS_IO);
    expect_page(1, 1);
    ck_assert(write_page(2, 2) == STATUS_OK);
    expect_page(2, 2);
}
END_TEST

START_TEST(a_directory_that_is_not_there_is_named)
{
    int none;
    ck_assert(page_store_open_unnamed("/nonexistent/dir", &none, &error) == STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.message, "/nonexistent/dir"));
    ck_assert_ptr_nonnull(strstr(error.message, strerror(ENOENT)));
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("page_store");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, slots_are_taken_once_and_come_back);
    tcase_add_test_raise_signal(tcase, no_slot_is_given_back_twice, SIGABRT);
    tcase_add_test(tcase, a_cap_is_whole_slots);
    tcase_add_test(tcase, what_is_written_comes_back_from_its_own_slot);
    tcase_add_test(tcase, half_done_calls_and_interrupts_are_gone_on_from);
    tcase_add_loop_test(tcase, a_write_that_fails_leaves_nothing_that_could_be_read, 0, 4);
    tcase_add_test(tcase, a_read_that_fails_says_so);
    tcase_add_test(tcase, every_flipped_bit_is_found);
    tcase_add_test(tcase, another_slots_bytes_are_found);
    tcase_add_test(tcase, sums_that_were_kept_verify_after_a_restart);
    tcase_add_test(tcase, a_file_size_limit_is_an_error_like_others);
    tcase_add_test(tcase, a_directory_that_is_not_there_is_named);
    Suite *suite = suite_create("page_store");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
