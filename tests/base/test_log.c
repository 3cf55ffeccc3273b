/* The log: its ring, and that no writer waits for whoever reads standard error. */
#include "base/log.h"
#include "base/log_ring.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct log_ring ring;

/* The oldest record as a string. */
static const char *front(uint32_t *lost)
{
    static char text[LIMIT_LOG_BYTES + 1];
    struct log_record record;
    ck_assert(log_ring_peek(&ring, &record));
    memcpy(text, record.part[0], record.length[0]);
    memcpy(text + record.length[0], record.part[1], record.length[1]);
    text[record.length[0] + record.length[1]] = '\0';
    *lost = record.lost;
    return text;
}

START_TEST(test_ring_is_first_in_first_out)
{
    memset(&ring, 0, sizeof ring);
    struct log_record record;
    uint32_t lost;
    ck_assert(!log_ring_peek(&ring, &record));
    unsigned pushed = 0, popped = 0;
    char line[600];
    for (unsigned round = 0; round < 2000; round++) {
        unsigned burst = 1 + round % 7;
        for (unsigned i = 0; i < burst; i++, pushed++) {
            int length =
                snprintf(line, sizeof line, "%u %0*d\n", pushed, 1 + (int)(pushed * 37 % 500), 0);
            ck_assert(log_ring_push(&ring, line, (size_t)length));
        }
        for (unsigned i = 0; i < burst; i++, popped++) {
            snprintf(line, sizeof line, "%u %0*d\n", popped, 1 + (int)(popped * 37 % 500), 0);
            ck_assert_str_eq(front(&lost), line);
            ck_assert_uint_eq(lost, 0);
            log_ring_pop(&ring);
        }
        ck_assert_uint_eq(ring.head, 0); /* an empty ring begins anew: few pages are touched */
    }
}
END_TEST

START_TEST(test_ring_wraps)
{
    memset(&ring, 0, sizeof ring);
    char line[1000];
    uint32_t lost;
    /* One record always stays, so that the head never returns to the beginning. */
    for (unsigned i = 0; i < 5000; i++) {
        memset(line, 'a' + (int)(i % 26), sizeof line);
        ck_assert(log_ring_push(&ring, line, 1 + i * 7 % sizeof line));
        if (i == 0)
            continue;
        const char *text = front(&lost);
        size_t length = 1 + (i - 1) * 7 % sizeof line;
        ck_assert_uint_eq(strlen(text), length);
        ck_assert_uint_eq(strspn(text, (char[2]){(char)('a' + (i - 1) % 26), 0}), length);
        log_ring_pop(&ring);
    }
}
END_TEST

START_TEST(test_ring_counts_what_it_refuses)
{
    memset(&ring, 0, sizeof ring);
    char line[1000];
    uint32_t lost, held = 0;
    memset(line, 'x', sizeof line);
    while (log_ring_push(&ring, line, sizeof line))
        held++;
    ck_assert_uint_ge(held, LIMIT_LOG_BYTES / sizeof line - 4);
    ck_assert(!log_ring_push(&ring, line, sizeof line));
    front(&lost);
    ck_assert_uint_eq(lost, 0);
    log_ring_pop(&ring);
    ck_assert(log_ring_push(&ring, "after", 5)); /* carries the two */
    ck_assert(log_ring_push(&ring, "next", 4));
    while (--held) {
        front(&lost);
        ck_assert_uint_eq(lost, 0);
        log_ring_pop(&ring);
    }
    ck_assert_str_eq(front(&lost), "after");
    ck_assert_uint_eq(lost, 2);
    log_ring_pop(&ring);
    ck_assert_str_eq(front(&lost), "next");
    ck_assert_uint_eq(lost, 0);
    log_ring_pop(&ring);
    /* Lost at the end, with no record after them. */
    char *much = calloc(1, LIMIT_LOG_BYTES + 1);
    ck_assert(!log_ring_push(&ring, much, LIMIT_LOG_BYTES + 1));
    ck_assert_uint_eq(log_ring_take_lost(&ring), 1);
    ck_assert_uint_eq(log_ring_take_lost(&ring), 0);
    free(much);
}
END_TEST

/* ---- standard error is one end of something ---- */

static void log_many(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        log_info("line", "%05u %0*d", i, 200, 0);
}

#define MANY 5000u /* a megabyte: more than a pipe and the ring hold */

/* What was written until the end of file; `lines` and the sum of what was reported as dropped. */
static void read_log(int fd, unsigned *lines, unsigned *dropped)
{
    FILE *file = fdopen(fd, "r");
    char line[1024];
    *lines = *dropped = 0;
    unsigned next = 0, number;
    while (fgets(line, sizeof line, file)) {
        const char *at = strstr(line, " line: ");
        if (sscanf(line, "%*s warn log: %u lines were dropped", &number) == 1) {
            *dropped += number;
            next += number;
        } else if (at && sscanf(at, " line: %u", &number) == 1) {
            ck_assert_uint_eq(number, next); /* in order, and gaps are told where they are */
            next++;
            ++*lines;
        }
    }
    fclose(file);
}

START_TEST(test_an_unread_pipe_stops_nobody)
{
    signal(SIGPIPE, SIG_IGN);
    int fds[2];
    ck_assert(!pipe(fds));
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    log_init(LOG_TEXT, LOG_INFO);
    log_start();
    log_many(MANY);
    uint64_t lost = log_lost_lines();
    ck_assert_uint_gt(lost, 0);
    log_last_words("last words\n");
    log_stop(); /* bounded */
    log_many(3);
    ck_assert_uint_ge(log_lost_lines(), lost + 3);
    /* The reader is back: the thread that was blocked goes on. */
    FILE *file = fdopen(fds[0], "r");
    char line[1024];
    for (unsigned i = 0; i < 500; i++)
        ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    fclose(file);
}
END_TEST

/* Reads *fd to its end into a file, which *fd then is. */
static void *read_all(void *arg)
{
    int *fd = arg;
    char bytes[4096];
    FILE *file = tmpfile();
    for (ssize_t got; (got = read(*fd, bytes, sizeof bytes)) > 0;)
        fwrite(bytes, 1, (size_t)got, file);
    fflush(file);
    close(*fd);
    *fd = dup(fileno(file));
    lseek(*fd, 0, SEEK_SET);
    fclose(file);
    return NULL;
}

/* Everything is there or told, once somebody reads again. */
static void check_gaps_are_told(int fds[2])
{
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    log_init(LOG_TEXT, LOG_INFO);
    log_start();
    log_many(MANY);
    uint64_t lost = log_lost_lines();
    ck_assert_uint_gt(lost, 0);
    pthread_t reader;
    ck_assert(!pthread_create(&reader, NULL, read_all, &fds[0]));
    log_stop();
    close(STDERR_FILENO);
    pthread_join(reader, NULL);
    unsigned lines, dropped;
    read_log(fds[0], &lines, &dropped);
    ck_assert_uint_eq(lines + dropped, MANY);
    ck_assert_uint_eq(dropped, lost);
}

START_TEST(test_gaps_are_told_pipe)
{
    int fds[2];
    ck_assert(!pipe(fds));
    check_gaps_are_told(fds);
}
END_TEST

/* As journald has it. */
START_TEST(test_gaps_are_told_socket)
{
    int fds[2];
    ck_assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    check_gaps_are_told(fds);
}
END_TEST

/* Somebody who shares the pipe made it non-blocking: nothing is lost for that. */
START_TEST(test_a_non_blocking_pipe)
{
    int fds[2];
    ck_assert(!pipe(fds));
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    log_init(LOG_TEXT, LOG_INFO);
    log_start();
    log_many(1000); /* more than the pipe holds, less than pipe and ring */
    pthread_t reader;
    ck_assert(!pthread_create(&reader, NULL, read_all, &fds[0]));
    log_stop();
    close(STDERR_FILENO);
    pthread_join(reader, NULL);
    unsigned lines, dropped;
    read_log(fds[0], &lines, &dropped);
    ck_assert_uint_eq(lines, 1000);
    ck_assert_uint_eq(dropped, 0);
}
END_TEST

START_TEST(test_a_full_disk_and_a_closed_reader)
{
    signal(SIGPIPE, SIG_IGN);
    log_init(LOG_TEXT, LOG_INFO);
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(full, 0);
    dup2(full, STDERR_FILENO);
    close(full);
    log_start();
    log_many(100);
    log_stop();
    ck_assert_uint_eq(log_lost_lines(), 100);
    int fds[2];
    ck_assert(!pipe(fds));
    dup2(fds[1], STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
    log_start();
    log_many(100);
    log_stop();
    ck_assert_uint_eq(log_lost_lines(), 200);
    log_many(1);
    ck_assert_uint_eq(log_lost_lines(), 201);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("log");
    TCase *ring_case = tcase_create("ring");
    tcase_add_test(ring_case, test_ring_is_first_in_first_out);
    tcase_add_test(ring_case, test_ring_wraps);
    tcase_add_test(ring_case, test_ring_counts_what_it_refuses);
    suite_add_tcase(suite, ring_case);
    TCase *writer = tcase_create("writer");
    tcase_set_timeout(writer, 60);
    tcase_add_test(writer, test_an_unread_pipe_stops_nobody);
    tcase_add_test(writer, test_gaps_are_told_pipe);
    tcase_add_test(writer, test_gaps_are_told_socket);
    tcase_add_test(writer, test_a_non_blocking_pipe);
    tcase_add_test(writer, test_a_full_disk_and_a_closed_reader);
    suite_add_tcase(suite, writer);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(make_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
