/*
 * The prefix file under a pager with made-up pages: what a page must hold is a function of all
 * tokens up to it, its salt and its group, so a page that is found where it should not be, or with
 * other bytes, is seen. Restarts, kills, caps, faults of the disk and damage come at random;
 * whatever is found afterwards must be true.
 */
#include "pager/disk/prefix_file.h"
#include "pager/page_table.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE 8u
#define PAGES 64u /* null page included */
#define BYTES 200u
#define LENGTH 12u /* pages of the longest prompt */

static char directory[64], path[128];
static unsigned char bytes[PAGES][BYTES];
static struct kv_groups groups;
static struct pager *pager;
static struct prefix_file *file;
static struct error error;
static uint64_t cap_bytes;
static struct prefix_file_identity identity;
static uint64_t random_state;

static uint32_t dice(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % sides;
}

/* ---- a disk that fails on demand ---- */

static unsigned writes_left; /* before every write fails; UINT32_MAX: none does */
static int write_errno;

static ssize_t write_some(int fd, const void *data, size_t length, off_t offset)
{
    if (writes_left == 0) {
        /* Half of it arrives. */
        ssize_t put = pwrite(fd, data, length / 2, offset);
        (void)put;
        errno = write_errno;
        return -1;
    }
    if (writes_left != UINT32_MAX)
        writes_left--;
    return pwrite(fd, data, length, offset);
}

/* ---- a disk on which each read takes a tick ---- */

static uint64_t now_ticks, deadline_ticks;

static uint64_t ticks(void)
{
    return now_ticks;
}

static ssize_t read_slowly(int fd, void *data, size_t length, off_t offset)
{
    now_ticks++;
    return pread(fd, data, length, offset);
}

/* ---- the server ---- */

static void *page_bytes(void *arg, uint32_t page)
{
    (void)arg;
    ck_assert(page > 0 && page < PAGES);
    return bytes[page];
}

static void expected(const uint32_t *tokens, uint32_t page, uint64_t salt, uint32_t group,
                     unsigned char out[BYTES])
{
    uint64_t digest = 0x9e3779b97f4a7c15u ^ salt * 31 ^ group;
    for (uint32_t i = 0; i < (page + 1) * SIZE; i++)
        digest = (digest ^ tokens[i]) * 0x100000001b3u + i;
    for (uint32_t i = 0; i < BYTES; i++)
        out[i] = (unsigned char)(digest >> (i % 8 * 8)) ^ (unsigned char)i;
}

static enum status open_file(void)
{
    struct prefix_file_options options = {
        .directory = directory,
        .cap_bytes = cap_bytes,
        .page_bytes = BYTES,
        .identity = identity,
        .calls = {read_slowly, write_some},
        .clock = ticks,
    };
    now_ticks = 0;
    return prefix_file_open(&options, pager, deadline_ticks, &file, &error);
}

static void boot(void)
{
    struct pager_options options = {
        .page_count = PAGES, .page_size = SIZE, .groups = groups, .hash_key = {dice(1000), 5}};
    memset(bytes, 0xee, sizeof bytes);
    ck_assert(pager_create(&options, &pager, &error) == STATUS_OK);
}

static uint32_t start(void)
{
    uint32_t damaged;
    boot();
    ck_assert_msg(open_file() == STATUS_OK, "%s", error.message);
    return prefix_file_load(file, page_bytes, NULL, UINT64_MAX, &damaged);
}

/* As when the process is killed: nothing more is written. */
static void stop(void)
{
    prefix_file_close(file);
    pager_destroy(pager);
    file = NULL;
    pager = NULL;
}

static unsigned write_pass(unsigned most)
{
    struct prefix_file_job job;
    unsigned written = 0;
    prefix_file_begin_pass(file);
    while (written < most && prefix_file_next(file, &job)) {
        bool ok = prefix_file_write(file, &job, bytes[job.page], &error) == STATUS_OK;
        prefix_file_done(file, &job, ok);
        if (!ok)
            break;
        written++;
    }
    return written;
}

static unsigned save(void)
{
    unsigned written = write_pass(UINT32_MAX);
    ck_assert(prefix_file_save_order(file, UINT64_MAX, &error) == STATUS_OK);
    return written;
}

/* What a request does: look up, compute the rest, publish, release. Returns the pages found, whose
   bytes must be true. */
static uint32_t request(const uint32_t *tokens, uint32_t page_count, uint64_t salt)
{
    uint32_t storage[KV_GROUPS_MAX][LENGTH + 1];
    struct page_table tables[KV_GROUPS_MAX];
    struct pager_match match;
    unsigned char wanted[BYTES];
    pager_find(pager, tokens, page_count * SIZE + 1, salt, storage[0], LENGTH + 1, &match);
    for (uint32_t g = 0; g < groups.count; g++) {
        uint32_t first = kv_groups_first(&groups, g, SIZE, match.page_count * SIZE);
        for (uint32_t i = first; i < match.page_count; i++) {
            expected(tokens, i, salt, g, wanted);
            ck_assert(memcmp(wanted, bytes[storage[g][i]], BYTES) == 0);
        }
        tables[g] = (struct page_table){storage[g], 0, 0, LENGTH + 1};
        page_table_adopt(&tables[g], pager, storage[g], first, match.page_count);
    }
    uint64_t parent_id = match.parent_id;
    for (uint32_t i = match.page_count; i < page_count; i++) {
        uint64_t next = parent_id;
        for (uint32_t g = 0; g < groups.count; g++) {
            ck_assert(page_table_grow(&tables[g], pager, 1));
            expected(tokens, i, salt, g, bytes[storage[g][i]]);
            uint64_t id =
                pager_publish(pager, storage[g][i], g, parent_id, tokens + i * SIZE, salt);
            next = g == 0 ? id : next;
        }
        parent_id = next;
        for (uint32_t g = 0; g < groups.count; g++)
            page_table_slide(&tables[g], pager, kv_groups_first(&groups, g, SIZE, (i + 1) * SIZE));
    }
    page_tables_release(tables, groups.count, pager);
    return match.page_count;
}

/* Prompts that share beginnings: each page's tokens are one of a few. */
static void make_tokens(uint32_t *tokens, uint32_t kind)
{
    for (uint32_t i = 0; i < LENGTH * SIZE; i++)
        tokens[i] = kind * 1000 + i;
}

static uint32_t found(uint32_t kind, uint64_t salt, uint32_t page_count)
{
    uint32_t tokens[LENGTH * SIZE];
    make_tokens(tokens, kind);
    return request(tokens, page_count, salt);
}

static off_t file_bytes(void)
{
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_size;
}

static void flip(off_t at, unsigned char mask)
{
    int fd = open(path, O_RDWR);
    unsigned char byte;
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= mask;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void setup(void)
{
    strcpy(directory, "/tmp/quire-prefix-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    strcat(directory, "/cache");
    snprintf(path, sizeof path, "%s/" PREFIX_FILE_NAME, directory);
    groups = (struct kv_groups){.count = 1};
    cap_bytes = 0;
    writes_left = UINT32_MAX;
    deadline_ticks = UINT64_MAX;
    write_errno = ENOSPC;
    random_state = 88172645463325252u;
    identity = (struct prefix_file_identity){.model = 7, .arithmetic = 1, .kv_type = "f16"};
}

static void teardown(void)
{
    if (file)
        stop();
    unlink(path);
    rmdir(directory);
    *strrchr(directory, '/') = '\0';
    rmdir(directory);
}

/* ---- tests ---- */

START_TEST(prefixes_are_found_after_a_restart)
{
    ck_assert_uint_eq(start(), 0);
    ck_assert_uint_eq(found(1, 0, 10), 0);
    ck_assert_uint_eq(found(2, 0, 5), 0);
    ck_assert_uint_eq(save(), 15);
    ck_assert_uint_eq(save(), 0); /* nothing twice */
    ck_assert_uint_eq(prefix_file_page_count(file), 15);
    stop();
    ck_assert_uint_eq(start(), 15);
    uint32_t tokens[LENGTH * SIZE];
    uint32_t pages[LENGTH];
    struct pager_match match;
    make_tokens(tokens, 1);
    pager_find(pager, tokens, LENGTH * SIZE, 0, pages, LENGTH, &match);
    ck_assert_uint_eq(match.page_count, 10);
    ck_assert_uint_eq(match.restored_count, 10);
    ck_assert_uint_eq(found(1, 0, 12), 10);
    ck_assert_uint_eq(found(2, 0, 5), 5);
    ck_assert_uint_eq(found(3, 0, 2), 0);
    ck_assert_uint_eq(save(), 4); /* what is new */
    stop();
    ck_assert_uint_eq(start(), 19);
    ck_assert_uint_eq(found(1, 0, 12), 12);
}
END_TEST

START_TEST(another_salt_finds_nothing)
{
    start();
    found(1, 11, 6);
    found(1, 12, 2);
    save();
    stop();
    start();
    ck_assert_uint_eq(found(1, 0, 6), 0);
    ck_assert_uint_eq(found(1, 13, 6), 0);
    ck_assert_uint_eq(found(1, 12, 6), 2);
    ck_assert_uint_eq(found(1, 11, 6), 6);
}
END_TEST

START_TEST(windows_are_kept_as_they_are)
{
    groups = (struct kv_groups){.count = 3, .window = {0, 20, 20}};
    start();
    found(1, 0, 10);
    save();
    stop();
    ck_assert_uint_gt(start(), 10);
    ck_assert_uint_eq(found(1, 0, 12), 10);
}
END_TEST

START_TEST(files_are_private)
{
    start();
    struct stat info;
    ck_assert_int_eq(stat(directory, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    stop();
    ck_assert_int_eq(chmod(path, 0644), 0);
    start();
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
}
END_TEST

START_TEST(one_process_at_a_time)
{
    start();
    struct prefix_file *first = file;
    struct pager *own = pager;
    boot();
    ck_assert(open_file() == STATUS_BUSY);
    ck_assert_ptr_nonnull(strstr(error.message, "another server"));
    pager_destroy(pager);
    pager = own;
    file = first;
    found(1, 0, 3);
    save();
    stop();
    ck_assert_uint_eq(start(), 3);
}
END_TEST

START_TEST(a_foreign_file_is_begun_anew)
{
    start();
    found(1, 0, 6);
    save();
    stop();
    switch (_i) {
    case 0:
        identity.model++;
        break;
    case 1:
        identity.arithmetic++;
        break;
    case 2:
        strcpy(identity.kv_type, "q8_0");
        break;
    case 3:
        groups = (struct kv_groups){.count = 2, .window = {0, 16}};
        break;
    case 4:
        flip(20, 1); /* in the header */
        break;
    case 5:
        ck_assert_int_eq(truncate(path, 30), 0);
        break;
    }
    ck_assert_uint_eq(start(), 0);
    ck_assert_uint_eq(found(1, 0, 6), 0);
    save();
    stop();
    ck_assert_uint_ge(start(), 6);
    ck_assert_uint_eq(found(1, 0, 6), 6);
}
END_TEST

START_TEST(a_cap_is_held_and_those_used_last_stay)
{
    start();
    uint64_t slot = prefix_file_slot_bytes(file);
    stop();
    cap_bytes = 4096 + 10 * slot + 5;
    start();
    ck_assert_uint_eq(prefix_file_slot_count(file), 10);
    found(1, 0, 6);
    found(2, 0, 6);
    found(3, 0, 3);
    ck_assert_uint_eq(save(), 10);
    ck_assert_uint_eq(save(), 0); /* it does not go round in circles */
    ck_assert_int_le(file_bytes(), (off_t)cap_bytes);
    stop();
    ck_assert_uint_eq(start(), 10);
    found(4, 0, 2);
    ck_assert_uint_eq(found(3, 0, 3), 3);
    ck_assert_uint_eq(found(2, 0, 6), 6);
    ck_assert_uint_eq(found(1, 0, 6), 1); /* the head of what was longest unused */
    save();
    stop();
    cap_bytes = 4096 + 4 * slot; /* smaller: what is behind the cap is gone, too */
    start();
    ck_assert_int_le(file_bytes(), (off_t)cap_bytes);
    ck_assert_uint_le(prefix_file_page_count(file), 4);
    found(5, 0, 8);
    save();
    stop();
    ck_assert_uint_eq(start(), 4);
    ck_assert_uint_eq(found(5, 0, 8), 4);
    stop();
    cap_bytes = 4096 + slot - 1;
    boot();
    ck_assert(open_file() == STATUS_INVALID);
    pager_destroy(pager);
    pager = NULL;
    file = NULL;
}
END_TEST

START_TEST(use_without_writing_counts_as_use)
{
    start();
    uint64_t slot = prefix_file_slot_bytes(file);
    stop();
    cap_bytes = 4096 + 6 * slot;
    start();
    found(1, 0, 3);
    found(2, 0, 3);
    save();
    found(1, 0, 3); /* the older one is used again */
    ck_assert_uint_eq(save(), 0);
    stop();
    start();
    found(3, 0, 3);
    save();
    stop();
    start();
    ck_assert_uint_eq(found(1, 0, 3), 3);
    ck_assert_uint_eq(found(3, 0, 3), 3);
    ck_assert_uint_eq(found(2, 0, 3), 0);
}
END_TEST

START_TEST(pages_used_again_keep_their_slots_from_new_ones)
{
    start();
    uint64_t slot = prefix_file_slot_bytes(file);
    stop();
    cap_bytes = 4096 + 6 * slot;
    start();
    found(1, 0, 3);
    save();
    found(2, 0, 3);
    save();
    found(1, 0, 3); /* written first, but used since */
    found(3, 0, 3);
    ck_assert_uint_eq(save(), 3);
    stop();
    start();
    ck_assert_uint_eq(found(1, 0, 3), 3);
    ck_assert_uint_eq(found(3, 0, 3), 3);
    ck_assert_uint_eq(found(2, 0, 3), 0);
}
END_TEST

/* What a lost page was continued by must never continue the page that gets its slot. */
START_TEST(names_are_not_used_again)
{
    uint32_t other[LENGTH * SIZE], own[LENGTH * SIZE];
    start();
    uint64_t slot = prefix_file_slot_bytes(file);
    found(1, 0, 4);
    save();
    stop();
    flip((off_t)(4096 + 20), 0x40); /* the first page's head: all others hang in the air */
    ck_assert_uint_eq(start(), 0);
    make_tokens(own, 1);
    make_tokens(other, 2);
    ck_assert_uint_eq(request(other, 1, 0), 0);
    ck_assert_uint_eq(save(), 1);
    stop();
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_size, (off_t)(4096 + 4 * slot)); /* in the first page's slot */
    ck_assert_uint_eq(start(), 1);
    memcpy(other + SIZE, own + SIZE, (LENGTH - 1) * SIZE * sizeof *own);
    ck_assert_uint_eq(request(other, 4, 0), 1);
}
END_TEST

/* Slots that were in a file before it was begun anew are no slots, wherever they turn up. */
START_TEST(slots_of_an_earlier_file_are_no_slots)
{
    start();
    found(1, 0, 4);
    save();
    stop();
    char before[4096 + 4 * 400];
    int fd = open(path, O_RDWR);
    ssize_t length = pread(fd, before, sizeof before, 0);
    ck_assert_int_gt(length, 4096);
    start();
    pager_forget(pager);
    prefix_file_clear(file);
    ck_assert(prefix_file_reset(file, &error) == STATUS_OK);
    ck_assert_int_eq(pwrite(fd, before + 4096, (size_t)length - 4096, 4096), length - 4096);
    close(fd);
    stop();
    ck_assert_uint_eq(start(), 0);
}
END_TEST

START_TEST(what_was_evicted_and_computed_again_is_not_written_twice)
{
    start();
    found(1, 0, 12);
    save();
    for (uint32_t kind = 2; kind < 8; kind++)
        found(kind, 0, 12); /* more than the pager holds: 1 has gone there */
    ck_assert_uint_eq(found(1, 0, 12), 0);
    uint32_t before = prefix_file_page_count(file);
    unsigned written = save();
    ck_assert_uint_eq(prefix_file_page_count(file), 63);
    ck_assert_uint_eq(written, 63 - before);
}
END_TEST

START_TEST(reset_forgets_on_disk_too)
{
    start();
    found(1, 0, 6);
    struct prefix_file_job job;
    prefix_file_begin_pass(file);
    ck_assert(prefix_file_next(file, &job));
    /* in the middle of a page */
    pager_forget(pager);
    prefix_file_clear(file);
    ck_assert(prefix_file_write(file, &job, bytes[job.page], &error) == STATUS_OK);
    ck_assert(prefix_file_reset(file, &error) == STATUS_OK);
    prefix_file_done(file, &job, true);
    ck_assert_uint_eq(prefix_file_page_count(file), 0);
    found(2, 0, 2);
    ck_assert_uint_eq(save(), 2);
    stop();
    ck_assert_uint_eq(start(), 2);
    ck_assert_uint_eq(found(1, 0, 6), 0);
    ck_assert_uint_eq(found(2, 0, 2), 2);
}
END_TEST

START_TEST(damage_costs_what_it_hit_and_what_continues_it)
{
    start();
    found(1, 0, 8);
    save();
    uint64_t slot = prefix_file_slot_bytes(file);
    stop();
    /* The fifth page of the prefix: its slot is the fifth. In the page, or in the head. */
    flip((off_t)(4096 + 4 * slot + (_i == 0 ? slot - 10 : 20)), 0x40);
    ck_assert_uint_eq(start(), 4);
    ck_assert_uint_eq(found(1, 0, 8), 4);
    save();
    stop();
    start();
    ck_assert_uint_eq(found(1, 0, 8), 8);
}
END_TEST

/* The header and three heads are read in time, and then no more. */
START_TEST(heads_that_take_too_long_are_given_up)
{
    start();
    uint64_t slot = prefix_file_slot_bytes(file);
    found(1, 0, 2);
    save();
    found(2, 0, 6);
    save();
    stop();
    ck_assert_int_eq(file_bytes(), (off_t)(4096 + 8 * slot));
    deadline_ticks = 4;
    ck_assert_uint_eq(start(), 3);
    ck_assert_uint_eq(now_ticks, 4 + 3); /* and three pages */
    ck_assert_int_eq(file_bytes(), (off_t)(4096 + 3 * slot));
    ck_assert_uint_eq(prefix_file_page_count(file), 3);
    ck_assert_uint_eq(found(1, 0, 2), 2);
    ck_assert_uint_eq(found(2, 0, 6), 1);
    ck_assert_uint_eq(save(), 5); /* the slots are used again */
    stop();
    ck_assert_int_eq(file_bytes(), (off_t)(4096 + 8 * slot));
    deadline_ticks = UINT64_MAX;
    ck_assert_uint_eq(start(), 8);
    ck_assert_uint_eq(found(1, 0, 2), 2);
    ck_assert_uint_eq(found(2, 0, 6), 6);
    stop();
    deadline_ticks = 0; /* not one */
    ck_assert_uint_eq(start(), 0);
    ck_assert_int_eq(file_bytes(), 4096);
}
END_TEST

/* A name that only a slot has that was not read is given again: nothing of before may hang on it.
 */
START_TEST(what_was_given_up_is_not_continued)
{
    uint32_t first[LENGTH * SIZE], other[LENGTH * SIZE];
    make_tokens(first, 1);
    make_tokens(other, 2);
    start();
    request(first, 4, 0); /* slots 1 … 4, names 1 … 4 */
    save();
    stop();
    deadline_ticks = 2;
    ck_assert_uint_eq(start(), 1);
    request(other, 1, 0); /* name 2, in slot 2 */
    ck_assert_uint_eq(save(), 1);
    stop();
    deadline_ticks = UINT64_MAX;
    ck_assert_uint_eq(start(),
                      2); /* neither slot 3 nor slot 4 is there, whose parent_id has a 2 in it */
    memcpy(other + SIZE, first + 2 * SIZE, 2 * SIZE * sizeof *first);
    ck_assert_uint_eq(request(other, 3, 0), 1);
    ck_assert_uint_eq(request(first, 4, 0), 1);
}
END_TEST

START_TEST(a_full_disk_costs_what_did_not_fit)
{
    start();
    found(1, 0, 8);
    writes_left = 7; /* a page is two writes: the fourth page's head is cut */
    ck_assert_uint_eq(write_pass(UINT32_MAX), 3);
    ck_assert_uint_eq(prefix_file_page_count(file), 3);
    writes_left = 0;
    ck_assert_uint_eq(write_pass(UINT32_MAX), 0);
    if (_i == 0) { /* killed now */
        writes_left = UINT32_MAX;
        stop();
        ck_assert_uint_eq(start(), 3);
        ck_assert_uint_eq(found(1, 0, 8), 3);
        return;
    }
    writes_left = UINT32_MAX; /* there is room again */
    ck_assert_uint_eq(save(), 5);
    stop();
    ck_assert_uint_eq(start(), 8);
}
END_TEST

START_TEST(a_directory_that_cannot_be_used_is_said)
{
    boot();
    char kept[64];
    strcpy(kept, directory);
    strcpy(directory, "/proc/nothing/here");
    ck_assert(open_file() == STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.message, directory));
    strcpy(directory, kept);
    ck_assert_int_eq(mkdir(directory, 0700), 0);
    ck_assert_int_eq(symlink("/etc/passwd", path), 0); /* no file of ours */
    ck_assert(open_file() == STATUS_IO);
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert(open_file() == STATUS_IO);
    pager_destroy(pager);
    pager = NULL;
    file = NULL;
}
END_TEST

/* Everything at random; request() sees what is not true. */
static void live(unsigned steps)
{
    static const uint64_t caps[] = {0, 4096 + 5 * 300, 4096 + 20 * 300, 4096 + 200 * 300};
    uint32_t tokens[LENGTH * SIZE];
    cap_bytes = caps[dice(4)];
    for (unsigned step = 0; step < steps; step++) {
        for (uint32_t i = 0; i < LENGTH * SIZE; i++) /* beginnings are shared at all lengths */
            tokens[i] = i % SIZE ? i : dice(2) * (i / SIZE % 3 == 0);
        request(tokens, dice(LENGTH + 1), dice(3));
        switch (dice(12)) {
        case 0:
            write_pass(dice(20));
            break;
        case 1:
            writes_left = dice(30);
            write_pass(UINT32_MAX);
            writes_left = UINT32_MAX;
            break;
        case 2:
            pager_forget(pager);
            prefix_file_clear(file);
            ck_assert(prefix_file_reset(file, &error) == STATUS_OK);
            break;
        case 3: { /* killed between a page and its head */
            struct prefix_file_job job;
            prefix_file_begin_pass(file);
            if (prefix_file_next(file, &job)) {
                writes_left = dice(2);
                prefix_file_write(file, &job, bytes[job.page], &error);
                writes_left = UINT32_MAX;
                stop();
                start();
            }
            break;
        }
        default:
            break;
        }
    }
    if (dice(2))
        save();
}

START_TEST(whatever_happens_what_is_found_is_true)
{
    random_state ^= (uint64_t)(_i + 1) * 0x9e3779b97f4a7c15u;
    if (_i % 2)
        groups = (struct kv_groups){.count = 3, .window = {0, 20, 12}};
    uint32_t restored = 0;
    for (unsigned life = 0; life < 30; life++) {
        deadline_ticks = dice(3) ? UINT64_MAX : dice(30);
        restored += start();
        deadline_ticks = UINT64_MAX;
        live(20);
        stop();
        for (unsigned hits = dice(4); hits > 0; hits--)
            flip((off_t)dice((uint32_t)file_bytes()), (unsigned char)(1 + dice(255)));
        if (dice(5) == 0)
            ck_assert_int_eq(truncate(path, dice((uint32_t)file_bytes())), 0);
    }
    ck_assert_uint_gt(restored, 30);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("prefix_file");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, prefixes_are_found_after_a_restart);
    tcase_add_test(tcase, another_salt_finds_nothing);
    tcase_add_test(tcase, windows_are_kept_as_they_are);
    tcase_add_test(tcase, files_are_private);
    tcase_add_test(tcase, one_process_at_a_time);
    tcase_add_loop_test(tcase, a_foreign_file_is_begun_anew, 0, 6);
    tcase_add_test(tcase, a_cap_is_held_and_those_used_last_stay);
    tcase_add_test(tcase, use_without_writing_counts_as_use);
    tcase_add_test(tcase, pages_used_again_keep_their_slots_from_new_ones);
    tcase_add_test(tcase, names_are_not_used_again);
    tcase_add_test(tcase, slots_of_an_earlier_file_are_no_slots);
    tcase_add_test(tcase, what_was_evicted_and_computed_again_is_not_written_twice);
    tcase_add_test(tcase, reset_forgets_on_disk_too);
    tcase_add_loop_test(tcase, damage_costs_what_it_hit_and_what_continues_it, 0, 2);
    tcase_add_test(tcase, heads_that_take_too_long_are_given_up);
    tcase_add_test(tcase, what_was_given_up_is_not_continued);
    tcase_add_loop_test(tcase, a_full_disk_costs_what_did_not_fit, 0, 2);
    tcase_add_test(tcase, a_directory_that_cannot_be_used_is_said);
    tcase_add_loop_test(tcase, whatever_happens_what_is_found_is_true, 0, 8);
    Suite *suite = suite_create("prefix_file");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
