/*
 * The watcher: see watcher.h.
 *
 * Slots are looked at one by one, a few times a second: a thousand of them cost less than a sorted
 * structure would cost in code. A slot is named by its index and by a generation that changes with
 * every use, so that the kernel's late events meet the right connection or none.
 */
#include "server/watcher.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS 1000000000u
#define TICK_MS 250
#define HANGUP_GRACE_NS SECOND_NS /* for the library to read what came together with the FIN */

struct watched {
    int fd;              /* -1: the slot is free */
    uint32_t generation; /* changes with every use of the slot */
    enum watch_phase phase;
    bool head_begun; /* idle, and bytes of the next request have come */
    bool hung_up;
    bool dropped;
    uint64_t deadline_ns; /* 0: none */
    uint64_t idle_bytes;  /* received when it became idle */
    void *connection;     /* the caller's */
    void *request;        /* or NULL */
    uint32_t next_free;
};

/* A socket of a connection that was answered and closed: see watcher_linger. */
struct lingering {
    int fd; /* -1: free */
    uint64_t deadline_ns;
};

struct watcher {
    /* fixed after start */
    struct watcher_callbacks callbacks;
    pthread_t thread;
    int epoll_fd;
    int event_fd;
    unsigned limit, capacity;
    /* under lock */
    pthread_mutex_t lock;
    struct watched *slots;
    uint32_t first_free; /* == capacity: none */
    unsigned connections;
    unsigned closing; /* of them: dropped, and not yet removed */
    uint64_t dropped_count;
    bool draining;
    bool stop;
    struct lingering lingering[LIMIT_LINGERING];
    unsigned lingering_count;
};

static struct watched *watched_of(struct watcher *watcher, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index >= watcher->capacity)
        return NULL;
    struct watched *slot = &watcher->slots[index];
    return slot->fd >= 0 && slot->generation == (uint32_t)(id >> 32) ? slot : NULL;
}

/* Bytes received on the socket so far; 0 where the kernel does not say. */
static uint64_t received_bytes(int fd)
{
    struct tcp_info info;
    memset(&info, 0, sizeof info);
    socklen_t length = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length))
        return 0;
    return info.tcpi_bytes_received;
}

/* Close the socket's both ways; the library then notices and cleans up. `reset` throws away what
   the client did not read. */
static void drop(struct watcher *watcher, struct watched *slot, bool reset)
{
    if (slot->dropped)
        return;
    slot->dropped = true;
    slot->deadline_ns = 0;
    watcher->closing++;
    watcher->dropped_count++;
    if (reset) {
        struct linger linger = {.l_onoff = 1, .l_linger = 0};
        setsockopt(slot->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    }
    shutdown(slot->fd, SHUT_RDWR);
    if (slot->request)
        watcher->callbacks.hangup(slot->request);
}

/* Bytes of the next request have come to an idle connection. */
static bool note_head(const struct watcher *watcher, struct watched *slot, uint64_t now_ns)
{
    if (!slot->head_begun && received_bytes(slot->fd) > slot->idle_bytes) {
        slot->head_begun = true;
        unsigned seconds = watcher->draining ? LIMIT_DRAIN_IDLE_SECONDS : LIMIT_HEAD_SECONDS;
        slot->deadline_ns = now_ns + (uint64_t)seconds * SECOND_NS;
    }
    return slot->head_begun;
}

static bool is_over_limit(const struct watcher *watcher)
{
    return watcher->connections - watcher->closing > watcher->limit;
}

/* No request has been read from it. */
static bool is_waiting(const struct watched *slot)
{
    return slot->fd >= 0 && !slot->dropped && !slot->request && slot->phase == WATCH_IDLE;
}

/* Of the waiting connections, idle or not: the one with the first deadline. The deadlines of each
   kind are in the order in which they began to wait; who hung up is first. */
static struct watched *longest_waiting(const struct watcher *watcher, const struct watched *newest,
                                       bool idle)
{
    struct watched *longest = NULL;
    for (unsigned i = 0; i < watcher->capacity; i++) {
        struct watched *slot = &watcher->slots[i];
        if (slot != newest && is_waiting(slot) && slot->head_begun != idle &&
            (!longest || slot->deadline_ns < longest->deadline_ns))
            longest = slot;
    }
    return longest;
}

/* A request that has just come to an idle connection is found by the bytes the kernel has of it. */
static void make_room(struct watcher *watcher, const struct watched *newest)
{
    uint64_t now_ns = clock_now_ns();
    struct watched *longest;
    while ((longest = longest_waiting(watcher, newest, true)) &&
           note_head(watcher, longest, now_ns))
        ;
    if (!longest)
        longest = longest_waiting(watcher, newest, false);
    if (longest)
        drop(watcher, longest, false);
}

static void note_hangup(struct watcher *watcher, struct watched *slot)
{
    slot->hung_up = true;
    if (slot->request) {
        watcher->callbacks.hangup(slot->request);
        return;
    }
    uint64_t deadline = clock_now_ns() + HANGUP_GRACE_NS;
    if (!slot->deadline_ns || slot->deadline_ns > deadline)
        slot->deadline_ns = deadline;
}

static void check_slot(struct watcher *watcher, struct watched *slot, uint64_t now_ns)
{
    if (slot->dropped)
        return;
    if (slot->request) {
        if (watcher->callbacks.tick(slot->request, now_ns))
            drop(watcher, slot, true);
        return;
    }
    if (slot->phase == WATCH_IDLE && !slot->hung_up)
        note_head(watcher, slot, now_ns);
    if (!slot->deadline_ns || now_ns < slot->deadline_ns)
        return;
    bool begun = slot->phase == WATCH_BODY || (slot->phase == WATCH_IDLE && slot->head_begun);
    if (begun && !slot->hung_up)
        watcher->callbacks.expired(slot->connection, slot->phase == WATCH_BODY);
    drop(watcher, slot, slot->phase == WATCH_REPLY);
}

static void stop_lingering(struct watcher *watcher, struct lingering *lingering)
{
    close(lingering->fd); /* which takes it out of the epoll */
    lingering->fd = -1;
    watcher->lingering_count--;
}

/* Bytes, or the end, came to a socket that lingers. */
static void read_lingering(struct watcher *watcher, struct lingering *lingering)
{
    char scratch[16384];
    ssize_t got = 1;
    for (unsigned i = 0; i < 64 && got > 0; i++)
        got = recv(lingering->fd, scratch, sizeof scratch, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        stop_lingering(watcher, lingering);
}

static void check_all(struct watcher *watcher)
{
    uint64_t now_ns = clock_now_ns();
    for (unsigned i = 0; i < LIMIT_LINGERING; i++) {
        struct lingering *lingering = &watcher->lingering[i];
        if (lingering->fd >= 0 && now_ns >= lingering->deadline_ns)
            stop_lingering(watcher, lingering);
    }
    for (unsigned i = 0; i < watcher->capacity; i++) {
        if (watcher->slots[i].fd >= 0)
            check_slot(watcher, &watcher->slots[i], now_ns);
    }
    watcher->callbacks.every(watcher->callbacks.arg, now_ns);
}

/* Of the epoll: `id` is a connection's, that of a lingering socket, or UINT64_MAX: a nudge. */
static void take_event(struct watcher *watcher, uint64_t id)
{
    struct watched *slot = watched_of(watcher, id);
    uint64_t lingering = id - watcher->capacity;
    if (id == UINT64_MAX) {
        uint64_t ignored;
        ssize_t got = read(watcher->event_fd, &ignored, sizeof ignored);
        (void)got;
    } else if (lingering < LIMIT_LINGERING) {
        if (watcher->lingering[lingering].fd >= 0)
            read_lingering(watcher, &watcher->lingering[lingering]);
    } else if (slot && !slot->dropped) {
        note_hangup(watcher, slot);
    }
}

static void *watcher_main(void *arg)
{
    struct watcher *watcher = arg;
    uint64_t next_tick_ns = 0;
    for (;;) {
        struct epoll_event events[64];
        pthread_mutex_lock(&watcher->lock);
        bool stop = watcher->stop;
        int timeout_ms = watcher->connections || watcher->lingering_count ? TICK_MS : -1;
        pthread_mutex_unlock(&watcher->lock);
        if (stop)
            return NULL;
        int count = epoll_wait(watcher->epoll_fd, events, 64, timeout_ms);
        CHECK(count >= 0 || errno == EINTR);
        pthread_mutex_lock(&watcher->lock);
        for (int i = 0; i < count; i++)
            take_event(watcher, events[i].data.u64);
        if (clock_now_ns() >= next_tick_ns) {
            check_all(watcher);
            next_tick_ns = clock_now_ns() + TICK_MS * (uint64_t)1000000;
        }
        pthread_mutex_unlock(&watcher->lock);
    }
}

static void nudge(struct watcher *watcher)
{
    uint64_t one = 1;
    ssize_t put = write(watcher->event_fd, &one, sizeof one);
    (void)put; /* a full counter wakes as well */
}

static enum status open_descriptors(struct watcher *watcher, struct error *error)
{
    watcher->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    watcher->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (watcher->epoll_fd < 0 || watcher->event_fd < 0 ||
        epoll_ctl(watcher->epoll_fd, EPOLL_CTL_ADD, watcher->event_fd, &event))
        return error_set(error, STATUS_IO, NULL, "cannot watch connections: %s", strerror(errno));
    return STATUS_OK;
}

static void free_watcher(struct watcher *watcher)
{
    for (unsigned i = 0; i < LIMIT_LINGERING; i++) {
        if (watcher->lingering[i].fd >= 0)
            close(watcher->lingering[i].fd);
    }
    if (watcher->epoll_fd >= 0)
        close(watcher->epoll_fd);
    if (watcher->event_fd >= 0)
        close(watcher->event_fd);
    pthread_mutex_destroy(&watcher->lock);
    free(watcher->slots);
    free(watcher);
}

enum status watcher_create(unsigned limit, unsigned capacity,
                           const struct watcher_callbacks *callbacks, struct watcher **out,
                           struct error *error)
{
    *out = NULL;
    struct watcher *watcher = calloc(1, sizeof *watcher);
    if (!watcher)
        return error_out_of_memory(error);
    watcher->callbacks = *callbacks;
    watcher->limit = limit;
    watcher->capacity = capacity;
    watcher->epoll_fd = watcher->event_fd = -1;
    for (unsigned i = 0; i < LIMIT_LINGERING; i++)
        watcher->lingering[i].fd = -1;
    pthread_mutex_init(&watcher->lock, NULL);
    watcher->slots = calloc(capacity, sizeof *watcher->slots);
    enum status status =
        watcher->slots ? open_descriptors(watcher, error) : error_out_of_memory(error);
    for (uint32_t i = 0; watcher->slots && i < capacity; i++) {
        watcher->slots[i].fd = -1;
        watcher->slots[i].next_free = i + 1;
    }
    if (status == STATUS_OK) {
        int failed = pthread_create(&watcher->thread, NULL, watcher_main, watcher);
        if (failed)
            status =
                error_set(error, STATUS_IO, NULL, "cannot start the watcher: %s", strerror(failed));
    }
    if (status != STATUS_OK) {
        free_watcher(watcher);
        return status;
    }
    pthread_setname_np(watcher->thread, "quire-watcher");
    *out = watcher;
    return STATUS_OK;
}

void watcher_destroy(struct watcher *watcher)
{
    if (!watcher)
        return;
    pthread_mutex_lock(&watcher->lock);
    CHECK(watcher->connections == 0);
    watcher->stop = true;
    pthread_mutex_unlock(&watcher->lock);
    nudge(watcher);
    pthread_join(watcher->thread, NULL);
    free_watcher(watcher);
}

static void become_idle(struct watcher *watcher, struct watched *slot)
{
    slot->phase = WATCH_IDLE;
    slot->head_begun = false;
    slot->idle_bytes = received_bytes(slot->fd);
    unsigned seconds = slot->hung_up       ? 1
                       : watcher->draining ? LIMIT_DRAIN_IDLE_SECONDS
                                           : LIMIT_IDLE_SECONDS;
    slot->deadline_ns = clock_now_ns() + (uint64_t)seconds * SECOND_NS;
}

uint64_t watcher_add(struct watcher *watcher, int fd, void *connection)
{
    uint64_t id = 0;
    pthread_mutex_lock(&watcher->lock);
    uint32_t index = watcher->first_free;
    if (index < watcher->capacity) {
        struct watched *slot = &watcher->slots[index];
        watcher->first_free = slot->next_free;
        uint32_t generation = slot->generation + 1 ? slot->generation + 1 : 1;
        *slot = (struct watched){.fd = fd, .generation = generation, .connection = connection};
        id = (uint64_t)generation << 32 | index;
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLONESHOT,
                                    .data.u64 = id};
        /* Out of kernel memory: the connection still has its deadlines. */
        epoll_ctl(watcher->epoll_fd, EPOLL_CTL_ADD, fd, &event);
        become_idle(watcher, slot);
        slot->idle_bytes = 0;
        if (watcher->connections++ == 0)
            nudge(watcher);
        if (is_over_limit(watcher))
            make_room(watcher, slot);
    }
    pthread_mutex_unlock(&watcher->lock);
    return id;
}

void watcher_remove(struct watcher *watcher, uint64_t id)
{
    pthread_mutex_lock(&watcher->lock);
    struct watched *slot = watched_of(watcher, id);
    if (slot) {
        CHECK(!slot->request);
        epoll_ctl(watcher->epoll_fd, EPOLL_CTL_DEL, slot->fd, NULL);
        watcher->closing -= slot->dropped;
        slot->fd = -1;
        slot->next_free = watcher->first_free;
        watcher->first_free = (uint32_t)(slot - watcher->slots);
        watcher->connections--;
    }
    pthread_mutex_unlock(&watcher->lock);
}

bool watcher_phase(struct watcher *watcher, uint64_t id, enum watch_phase phase, unsigned seconds)
{
    pthread_mutex_lock(&watcher->lock);
    struct watched *slot = watched_of(watcher, id);
    bool there = slot && !slot->dropped;
    if (there && phase == WATCH_IDLE) {
        become_idle(watcher, slot);
    } else if (there) {
        slot->phase = phase;
        if (phase == WATCH_WORK)
            slot->deadline_ns = 0;
        else if (!slot->hung_up)
            slot->deadline_ns = clock_now_ns() + (uint64_t)seconds * SECOND_NS;
    }
    pthread_mutex_unlock(&watcher->lock);
    return there;
}

bool watcher_attach(struct watcher *watcher, uint64_t id, void *request)
{
    pthread_mutex_lock(&watcher->lock);
    struct watched *slot = watched_of(watcher, id);
    bool there = slot && !slot->hung_up && !slot->dropped;
    if (there) {
        CHECK(!slot->request);
        slot->request = request;
        slot->phase = WATCH_WORK;
        slot->deadline_ns = 0;
    }
    pthread_mutex_unlock(&watcher->lock);
    return there;
}

void watcher_detach(struct watcher *watcher, uint64_t id)
{
    pthread_mutex_lock(&watcher->lock);
    struct watched *slot = watched_of(watcher, id);
    if (slot)
        slot->request = NULL;
    pthread_mutex_unlock(&watcher->lock);
}

void watcher_linger(struct watcher *watcher, int fd)
{
    bool kept = false;
    pthread_mutex_lock(&watcher->lock);
    for (unsigned i = 0; i < LIMIT_LINGERING && !kept; i++) {
        struct lingering *lingering = &watcher->lingering[i];
        if (lingering->fd >= 0)
            continue;
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = watcher->capacity + i};
        kept = !epoll_ctl(watcher->epoll_fd, EPOLL_CTL_ADD, fd, &event);
        if (!kept)
            break;
        lingering->fd = fd;
        lingering->deadline_ns = clock_now_ns() + (uint64_t)LIMIT_LINGER_SECONDS * SECOND_NS;
        if (watcher->lingering_count++ == 0)
            nudge(watcher);
    }
    pthread_mutex_unlock(&watcher->lock);
    if (!kept)
        close(fd);
}

void watcher_visit(struct watcher *watcher, void (*visit)(void *request))
{
    pthread_mutex_lock(&watcher->lock);
    for (unsigned i = 0; i < watcher->capacity; i++) {
        if (watcher->slots[i].fd >= 0 && watcher->slots[i].request)
            visit(watcher->slots[i].request);
    }
    pthread_mutex_unlock(&watcher->lock);
}

void watcher_drain(struct watcher *watcher)
{
    pthread_mutex_lock(&watcher->lock);
    watcher->draining = true;
    uint64_t deadline_ns = clock_now_ns() + (uint64_t)LIMIT_DRAIN_IDLE_SECONDS * SECOND_NS;
    for (unsigned i = 0; i < watcher->capacity; i++) {
        struct watched *slot = &watcher->slots[i];
        if (is_waiting(slot) && slot->deadline_ns > deadline_ns)
            slot->deadline_ns = deadline_ns;
    }
    pthread_mutex_unlock(&watcher->lock);
}

void watcher_drop_all(struct watcher *watcher)
{
    pthread_mutex_lock(&watcher->lock);
    for (unsigned i = 0; i < watcher->capacity; i++) {
        if (watcher->slots[i].fd >= 0)
            drop(watcher, &watcher->slots[i], true);
    }
    pthread_mutex_unlock(&watcher->lock);
}

unsigned watcher_connections(struct watcher *watcher)
{
    pthread_mutex_lock(&watcher->lock);
    unsigned count = watcher->connections;
    pthread_mutex_unlock(&watcher->lock);
    return count;
}

bool watcher_is_over_limit(struct watcher *watcher)
{
    pthread_mutex_lock(&watcher->lock);
    bool over = is_over_limit(watcher);
    pthread_mutex_unlock(&watcher->lock);
    return over;
}

uint64_t watcher_dropped(struct watcher *watcher)
{
    pthread_mutex_lock(&watcher->lock);
    uint64_t count = watcher->dropped_count;
    pthread_mutex_unlock(&watcher->lock);
    return count;
}
