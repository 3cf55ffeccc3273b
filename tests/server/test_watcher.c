/* The watcher on real loopback sockets: hang-ups are told to the right request and no other, late
   events find no one, deadlines close. */
#include "server/watcher.h"

#include "base/clock.h"
#include "base/limits.h"

#include <arpa/inet.h>
#include <check.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct seen {
    atomic_uint hangups, ticks;
    atomic_bool drop;
};

static struct watcher *watcher;
static atomic_uint every_count;
static int listener;
static struct sockaddr_in address;

static void on_expired(void *connection, bool body)
{
    int *fd = connection;
    ck_assert_int_eq(send(*fd, body ? "body" : "head", 4, MSG_NOSIGNAL), 4);
}

static void on_hangup(void *request)
{
    atomic_fetch_add(&((struct seen *)request)->hangups, 1);
}

static bool on_tick(void *request, uint64_t now_ns)
{
    ck_assert_uint_gt(now_ns, 0);
    atomic_fetch_add(&((struct seen *)request)->ticks, 1);
    return atomic_load(&((struct seen *)request)->drop);
}

static void on_every(void *arg, uint64_t now_ns)
{
    (void)now_ns;
    ck_assert_ptr_eq(arg, &every_count);
    atomic_fetch_add(&every_count, 1);
}

static void setup(void)
{
    struct error error;
    struct watcher_callbacks callbacks = {&every_count, on_expired, on_hangup, on_tick, on_every};
    ck_assert_int_eq(watcher_create(3, 4, &callbacks, &watcher, &error), STATUS_OK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(listener, 8), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &length), 0);
}

static void teardown(void)
{
    watcher_destroy(watcher);
    close(listener);
}

static void connect_pair(int *client, int *server)
{
    *client = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(*client, (struct sockaddr *)&address, sizeof address), 0);
    *server = accept(listener, NULL, NULL);
    ck_assert_int_ge(*server, 0);
}

static bool becomes(atomic_uint *value, unsigned wanted)
{
    uint64_t deadline_ns = clock_now_ns() + 3000000000u;
    while (atomic_load(value) != wanted && clock_now_ns() < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return atomic_load(value) == wanted;
}

/* Does the peer close within some seconds? */
static bool closes(int client, int timeout_ms)
{
    struct pollfd poller = {.fd = client, .events = POLLIN};
    char byte;
    return poll(&poller, 1, timeout_ms) == 1 && recv(client, &byte, 1, 0) <= 0;
}

START_TEST(test_hangup_reaches_its_request)
{
    int clients[2], servers[2];
    struct seen seen[2] = {0};
    uint64_t ids[2];
    for (int i = 0; i < 2; i++) {
        connect_pair(&clients[i], &servers[i]);
        ids[i] = watcher_add(watcher, servers[i], NULL);
        ck_assert_uint_ne(ids[i], 0);
        ck_assert(watcher_attach(watcher, ids[i], &seen[i]));
    }
    ck_assert_uint_eq(watcher_connections(watcher), 2);
    shutdown(clients[1], SHUT_WR); /* a half-closed client counts as gone */
    ck_assert(becomes(&seen[1].hangups, 1));
    ck_assert_uint_eq(atomic_load(&seen[0].hangups), 0);
    close(clients[0]);
    ck_assert(becomes(&seen[0].hangups, 1));
    for (int i = 0; i < 2; i++) {
        watcher_detach(watcher, ids[i]);
        /* it is remembered: a request that comes later learns it at once */
        ck_assert(!watcher_attach(watcher, ids[i], &seen[i]));
        watcher_remove(watcher, ids[i]);
        close(servers[i]);
    }
    close(clients[1]);
}
END_TEST

START_TEST(test_nobody_is_told_after_detach_or_remove)
{
    int client, server, other_client, other_server;
    struct seen seen = {0}, other = {0};
    connect_pair(&client, &server);
    uint64_t id = watcher_add(watcher, server, NULL);
    ck_assert(watcher_attach(watcher, id, &seen));
    watcher_detach(watcher, id);
    watcher_remove(watcher, id);
    close(client);
    close(server);
    connect_pair(&other_client, &other_server); /* most likely the same descriptor and slot */
    uint64_t other_id = watcher_add(watcher, other_server, NULL);
    ck_assert_uint_ne(other_id, id);
    ck_assert(watcher_attach(watcher, other_id, &other));
    /* the old name does nothing to the new one */
    watcher_detach(watcher, id);
    watcher_phase(watcher, id, WATCH_REPLY, 0);
    watcher_remove(watcher, id);
    ck_assert(becomes(&other.ticks, 2));
    ck_assert_uint_eq(atomic_load(&other.hangups), 0);
    ck_assert_uint_eq(atomic_load(&seen.hangups), 0);
    close(other_client);
    ck_assert(becomes(&other.hangups, 1));
    watcher_detach(watcher, other_id);
    watcher_remove(watcher, other_id);
    close(other_server);
}
END_TEST

START_TEST(test_full)
{
    int clients[5], servers[5];
    uint64_t ids[5];
    for (int i = 0; i < 5; i++) {
        connect_pair(&clients[i], &servers[i]);
        ids[i] = watcher_add(watcher, servers[i], NULL);
        ck_assert((ids[i] != 0) == (i < 4));
    }
    for (int i = 0; i < 5; i++) {
        watcher_remove(watcher, ids[i]);
        close(clients[i]);
        close(servers[i]);
    }
    ck_assert_uint_eq(watcher_connections(watcher), 0);
}
END_TEST

static void open_one(int i, int *clients, int *servers, uint64_t *ids)
{
    connect_pair(&clients[i], &servers[i]);
    ids[i] = watcher_add(watcher, servers[i], NULL);
    ck_assert_uint_ne(ids[i], 0);
}

static void close_one(int i, const int *clients, const int *servers, const uint64_t *ids)
{
    watcher_remove(watcher, ids[i]);
    close(clients[i]);
    close(servers[i]);
}

/* Over the limit of three one without a whole request is closed for the new one: the one that has
   been idle longest; if none is idle, the one whose head has been incomplete longest. A request
   that has just come and that nobody has read yet is not idle. */
START_TEST(test_room_for_new_ones)
{
    int clients[6], servers[6];
    uint64_t ids[6];
    for (int i = 0; i < 3; i++)
        open_one(i, clients, servers, ids);
    ck_assert(watcher_phase(watcher, ids[0], WATCH_BODY, 9));
    ck_assert_int_eq(send(clients[1], "GET", 3, 0), 3);
    ck_assert(!watcher_is_over_limit(watcher));
    open_one(3, clients, servers, ids);
    ck_assert(closes(clients[2], 1000));
    ck_assert(!watcher_is_over_limit(watcher)); /* though it is still there */
    ck_assert_uint_eq(watcher_connections(watcher), 4);
    ck_assert(!watcher_phase(watcher, ids[2], WATCH_REPLY, 9)); /* too late */
    close_one(2, clients, servers, ids);

    ck_assert_int_eq(send(clients[3], "GET", 3, 0), 3); /* none is idle: the first head goes */
    open_one(4, clients, servers, ids);
    ck_assert(closes(clients[1], 1000));
    ck_assert(!watcher_is_over_limit(watcher));
    close_one(1, clients, servers, ids);

    ck_assert(watcher_phase(watcher, ids[3], WATCH_BODY, 9));
    ck_assert(watcher_phase(watcher, ids[4], WATCH_REPLY, 9));
    open_one(5, clients, servers, ids);
    ck_assert(watcher_is_over_limit(watcher)); /* all are busy */
    for (int i = 0; i < 6; i++) {
        if (i == 1 || i == 2)
            continue;
        ck_assert(!closes(clients[i], 20));
        close_one(i, clients, servers, ids);
    }
    ck_assert_uint_eq(watcher_connections(watcher), 0);
    ck_assert(!watcher_is_over_limit(watcher));
}
END_TEST

/* What is told before the connection is closed. */
static void expect_told(int client, const char *expected)
{
    char told[8] = "";
    ck_assert_int_eq(recv(client, told, 4, MSG_WAITALL), (int)strlen(expected));
    ck_assert_str_eq(told, expected);
    if (*expected)
        ck_assert(closes(client, 3000));
}

START_TEST(test_expired)
{
    int client, server;
    connect_pair(&client, &server);
    uint64_t id = watcher_add(watcher, server, &server);
    ck_assert(watcher_phase(watcher, id, WATCH_BODY, 0));
    expect_told(client, "body");
    ck_assert(!watcher_phase(watcher, id, WATCH_REPLY, 9));
    ck_assert(!watcher_attach(watcher, id, &server));
    watcher_remove(watcher, id);
    close(client);
    close(server);

    connect_pair(&client, &server); /* who left is not told */
    id = watcher_add(watcher, server, &server);
    ck_assert(watcher_phase(watcher, id, WATCH_BODY, 9));
    shutdown(client, SHUT_WR);
    expect_told(client, "");
    watcher_remove(watcher, id);
    close(client);
    close(server);
}
END_TEST

START_TEST(test_deadlines_and_drops)
{
    int client, server;
    struct seen seen = {0};
    connect_pair(&client, &server);
    uint64_t id = watcher_add(watcher, server, NULL);
    ck_assert(!closes(client, 600)); /* idle is fine for long */
    watcher_phase(watcher, id, WATCH_REPLY, 0);
    ck_assert(closes(client, 2000));
    ck_assert_uint_eq(watcher_dropped(watcher), 1);
    watcher_remove(watcher, id);
    close(client);
    close(server);

    connect_pair(&client, &server);
    id = watcher_add(watcher, server, NULL);
    ck_assert(watcher_attach(watcher, id, &seen));
    ck_assert(becomes(&seen.ticks, 2));
    atomic_store(&seen.drop, true);
    ck_assert(closes(client, 2000));
    ck_assert(becomes(&seen.hangups, 1)); /* the dropped request is told, once */
    watcher_detach(watcher, id);
    watcher_remove(watcher, id);
    close(client);
    close(server);
    ck_assert_uint_gt(atomic_load(&every_count), 0);
}
END_TEST

/* Draining: an idle connection has a little time for a request that is under way. */
START_TEST(test_drain)
{
    int idle_client, idle_server, busy_client, busy_server;
    struct seen seen = {0};
    connect_pair(&idle_client, &idle_server);
    connect_pair(&busy_client, &busy_server);
    uint64_t idle = watcher_add(watcher, idle_server, NULL);
    uint64_t busy = watcher_add(watcher, busy_server, NULL);
    ck_assert(watcher_attach(watcher, busy, &seen));
    watcher_drain(watcher);
    ck_assert(!closes(idle_client, LIMIT_DRAIN_IDLE_SECONDS * 1000 - 500));
    ck_assert(
        closes(idle_client, 20000)); /* but not the time of a connection that is not draining */
    ck_assert(!closes(busy_client, 300));
    watcher_detach(watcher, busy);
    watcher_phase(watcher, busy, WATCH_IDLE, 0); /* its request is done */
    ck_assert(closes(busy_client, 20000));
    watcher_remove(watcher, idle);
    watcher_remove(watcher, busy);
    close(idle_client);
    close(idle_server);
    close(busy_client);
    close(busy_server);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("watcher");
    TCase *tests = tcase_create("watcher");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_hangup_reaches_its_request);
    tcase_add_test(tests, test_nobody_is_told_after_detach_or_remove);
    tcase_add_test(tests, test_full);
    tcase_add_test(tests, test_room_for_new_ones);
    tcase_add_test(tests, test_expired);
    tcase_add_test(tests, test_deadlines_and_drops);
    tcase_add_test(tests, test_drain);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
