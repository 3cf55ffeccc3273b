/*
 * The swap file, exactly: what is written and read, how much of it in a step, what
 * is computed again, which way costs less, and what comes of full files, failing disks, hang-ups
 * and pages that were to be found. Answers are compared with the oracle throughout.
 */
#include "base/limits.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/scheduler/scheduler_private.h"
#include "tests/engine/rig.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 8u

/* ---- a disk that is watched, and can fail ---- */

static unsigned writes, reads, fail_write_after, fail_read_after;

static ssize_t watched_write(int fd, const void *bytes, size_t length, off_t offset)
{
    if (++writes > fail_write_after) {
        errno = ENOSPC;
        return -1;
    }
    return pwrite(fd, bytes, length, offset);
}

static ssize_t watched_read(int fd, void *bytes, size_t length, off_t offset)
{
    if (++reads > fail_read_after) {
        errno = EIO;
        return -1;
    }
    return pread(fd, bytes, length, offset);
}

static const struct rig_options usual = {
    .page_count = 40,
    .page_size = SIZE,
    .max_sequences = 6,
    .max_batch_tokens = 64,
    .swap_slots = 100,
    .swap_step_pages = 2,
    .swap_always = true,
    .swap_calls = {watched_read, watched_write},
};

static struct rig *rig_with(struct rig_options options)
{
    fail_write_after = fail_read_after = UINT32_MAX;
    struct rig *rig = rig_create(&options);
    writes = reads = 0;
    return rig;
}

static uint32_t prompts[8][256];

static struct rig_request request_of(unsigned name, uint32_t token_count, uint32_t max_tokens)
{
    for (uint32_t i = 0; i < 256; i++)
        prompts[name][i] = (name * 17 + i * (name % 5 + 3) + 8) % RIG_VOCABULARY;
    return (struct rig_request){
        .tokens = prompts[name], .token_count = token_count, .max_tokens = max_tokens};
}

static struct completion *add(struct rig *rig, const struct rig_request *request)
{
    struct completion *completion = rig_completion(request);
    rig_add(rig, completion);
    return completion;
}

#define expect(rig, limit, plan) ck_assert_str_eq(rig_step(rig, limit), plan)
#define count(rig, name) ((unsigned)metric_get(&(rig)->metrics.name))

static void done(struct rig *rig, struct completion *completion, const struct rig_request *request)
{
    ck_assert(completion_done(completion));
    rig_check_answers(completion, request, rig->max_length);
    completion_release(completion);
}

static void end(struct rig *rig)
{
    ck_assert_int_eq(atomic_load(&rig->metrics.swap_used_bytes), 0);
    rig_destroy(rig);
}

/* ---- there and back ---- */

START_TEST(nothing_is_computed_again)
{
    struct rig *rig = rig_with(usual);
    struct rig_request a = request_of(0, 20, 6);
    a.no_cache = true;
    struct completion *ca = add(rig, &a);
    expect(rig, 64, "A:0+20");
    expect(rig, 64, "A:20+1");
    rig_preempt(rig, 0);
    ck_assert_uint_eq(writes, 0); /* not before the next step */
    expect(rig, 64, "A:21+1");
    ck_assert_uint_eq(writes, 3); /* 21 positions: three pages of 8, the last one begun */
    ck_assert_uint_eq(reads, 3);
    ck_assert_uint_eq(count(rig, swap_outs), 1);
    ck_assert_uint_eq(count(rig, swap_ins), 1);
    ck_assert_uint_eq(count(rig, swap_out_bytes), 3 * rig->backend->page_bytes);
    ck_assert_uint_eq(count(rig, swap_in_bytes), 3 * rig->backend->page_bytes);
    rig_run(rig, 10);
    ck_assert_uint_eq(count(rig, rows_computed), 20 + 5);
    ck_assert_uint_eq(count(rig, swap_errors) + count(rig, swap_fallbacks), 0);
    done(rig, ca, &a);
    end(rig);
}
END_TEST

START_TEST(neighbours_wait_for_two_pages_a_step)
{
    struct rig *rig = rig_with(usual);
    struct rig_request a = request_of(0, 10, 40), b = request_of(1, 58, 10);
    a.no_cache = b.no_cache = true;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    expect(rig, 64, "A:0+10 B:0+54");
    expect(rig, 64, "A:10+1 B:54+4");
    expect(rig, 64, "A:11+1 B:58+1");
    uint32_t free_count = pager_free_count(rig->pager);
    rig_preempt(rig, 1);
    for (uint32_t step = 0; step < 4; step++) { /* 59 positions, eight pages, from the last */
        char plan[16];
        snprintf(plan, sizeof plan, "A:%u+1", 12 + step);
        expect(rig, 64, plan);
        ck_assert_uint_eq(writes, 2 * (step + 1));
        uint32_t freed = step < 3 ? 2 * (step + 1) : 0; /* A's row filled its second page … */
        if (step < 3)
            ck_assert_uint_eq(pager_free_count(rig->pager), free_count + freed);
    }
    /* … and B has a slot again: its pages are read in as many steps. */
    for (uint32_t step = 0; step < 3; step++) {
        char plan[16];
        snprintf(plan, sizeof plan, "A:%u+1", 16 + step);
        expect(rig, 64, plan);
        ck_assert_uint_eq(reads, 2 * (step + 1));
    }
    expect(rig, 64, "A:19+1 B:59+1");
    ck_assert_uint_eq(reads, 8);
    ck_assert_uint_eq(count(rig, swap_ins), 1);
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    end(rig);
}
END_TEST

START_TEST(lack_of_pages_swaps)
{
    /* Two that grow to 8 pages each, in 10. */
    struct rig_options options = usual;
    options.page_count = 10;
    struct rig *rig = rig_with(options);
    struct rig_request a = request_of(0, 30, 33), b = request_of(1, 30, 33);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    rig_run(rig, 200);
    ck_assert_uint_ge(count(rig, swap_outs), 1);
    ck_assert_uint_eq(count(rig, swap_outs), count(rig, preemptions));
    ck_assert_uint_eq(count(rig, rows_computed), 2 * (30 + 32));
    done(rig, ca, &a);
    done(rig, cb, &b);
    end(rig);
}
END_TEST

START_TEST(a_half_computed_prompt_goes_on_where_it_was)
{
    struct rig *rig = rig_with(usual);
    struct rig_request a = request_of(0, 50, 3);
    a.choice_count = _i ? 3 : 1;
    struct completion *ca = add(rig, &a);
    expect(rig, 20, "A:0+20");
    rig_preempt(rig, 0);
    ck_assert_uint_eq(rig->scheduler->slots.count, 1); /* its pending fork waits again */
    ck_assert_int_eq(rig->scheduler->slots.order[0]->state, SEQUENCE_SWAPPING_OUT);
    /* Another sequence is the parent now, from what is cached; or, alone, the first goes on at 20. */
    expect(rig, 64, _i ? "A.1:16+34" : "A:20+30");
    rig_run(rig, 50);
    ck_assert_uint_eq(writes, 3); /* of seven pages those with something in them */
    if (_i == 0)
        ck_assert_uint_eq(count(rig, rows_computed), 50 + 2);
    done(rig, ca, &a);
    end(rig);
}
END_TEST

START_TEST(windows_go_as_far_as_they_see)
{
    struct rig_options options = usual;
    options.groups = (struct kv_groups){.count = 3, .window = {0, 10, 17}};
    options.page_count = 60;
    struct rig *rig = rig_with(options);
    struct rig_request a = request_of(0, 64, 12);
    struct completion *ca = add(rig, &a);
    expect(rig, 64, "A:0+64");
    expect(rig, 64, "A:64+1");
    rig_preempt(rig, 0);
    if (_i == 1) /* a page that only an earlier beginning of a window needs */
        pager_forget(rig->pager);
    expect(rig, 64, "A:65+1");
    /* The row at 65 sees all nine pages, from position 56 (page 7), and from 49 (page 6). */
    ck_assert_uint_eq(writes, 9 + 2 + 3);
    /* What is still to be found is not read; but a beginning of which a window lacks a page is not
       found at all. */
    ck_assert_uint_eq(reads, _i == 0 ? 3 : 14);
    rig_run(rig, 50);
    ck_assert_uint_eq(count(rig, rows_computed), 64 + 11);
    done(rig, ca, &a);
    end(rig);
}
END_TEST

/* ---- nobody else has anything to compute ---- */

/* A's 59 positions, eight pages, alone and on their way to the file, two in each step. */
static struct completion *leave_alone(struct rig *rig, struct rig_request *a)
{
    *a = request_of(0, 58, 10);
    a->no_cache = true;
    struct completion *completion = add(rig, a);
    expect(rig, 64, "A:0+58");
    expect(rig, 64, "A:58+1");
    rig_preempt(rig, 0);
    return completion;
}

START_TEST(alone_it_moves_two_pages_a_step)
{
    struct rig *rig = rig_with(usual);
    struct rig_request a;
    struct completion *ca = leave_alone(rig, &a);
    unsigned steps = count(rig, steps), moved = 0;
    while (strcmp(rig_turn(rig, 64), RIG_MOVES) == 0) {
        moved += 2;
        ck_assert_uint_eq(writes, moved < 8 ? moved : 8);
        ck_assert_uint_eq(reads, moved < 8 ? 0 : moved - 8);
        ck_assert_uint_eq(count(rig, steps), steps);
    }
    /* The step that writes the last two admits it again; the one that reads the last two has tokens.
     */
    ck_assert_uint_eq(moved, 14);
    ck_assert_uint_eq(reads, 8);
    ck_assert_str_eq(rig->plan, "A:59+1");
    ck_assert_uint_eq(count(rig, steps), steps + 1);
    ck_assert_uint_eq(rig->moves, 7);
    rig_run(rig, 20);
    ck_assert_uint_eq(count(rig, rows_computed), 58 + 9);
    done(rig, ca, &a);
    end(rig);
}
END_TEST

START_TEST(an_arrival_does_not_wait_for_the_swapping_of_others)
{
    /* After _i turns of seven, on the way there or back. */
    struct rig *rig = rig_with(usual);
    struct rig_request a, b = request_of(1, 12, 30);
    struct completion *ca = leave_alone(rig, &a);
    for (int turn = 0; turn < _i; turn++)
        ck_assert_str_eq(rig_turn(rig, 64), RIG_MOVES);
    struct completion *cb = add(rig, &b);
    ck_assert_str_eq(rig_turn(rig, 64), "B:0+12");
    ck_assert_uint_eq(writes + reads, 2 * ((unsigned)_i + 1));
    ck_assert_uint_eq(rig->moves, _i); /* from now on there is something to compute */
    rig_run(rig, 60);
    ck_assert_uint_eq(rig->moves, _i);
    ck_assert_uint_eq(writes + reads, 16);
    done(rig, ca, &a);
    done(rig, cb, &b);
    end(rig);
}
END_TEST

START_TEST(a_cancel_during_swapping_takes_effect_at_once)
{
    /* After each number of turns; by its reader, by its deadline, with all others at the end. */
    struct rig *rig = rig_with(usual);
    struct rig_request a;
    struct completion *ca = leave_alone(rig, &a);
    int turns = _i / 3;
    for (int turn = 0; turn < turns; turn++)
        ck_assert_str_eq(rig_turn(rig, 64), RIG_MOVES);
    ck_assert_uint_lt(pager_free_count(rig->pager), pager_total_count(rig->pager));
    if (_i % 3 == 2)
        scheduler_cancel_all(rig->scheduler, rig->now_ns);
    else if (_i % 3 == 1)
        ca->deadline_ns = rig->now_ns;
    else
        completion_cancel(ca);
    ck_assert_str_eq(rig_turn(rig, 64), ""); /* nothing was moved for it, nothing is left */
    ck_assert_uint_eq(writes + reads, 2 * (unsigned)turns);
    ck_assert(completion_done(ca));
    ck_assert_int_eq(completion_reason(ca, 0), _i % 3 == 1 ? FINISH_TIMEOUT : FINISH_CANCELLED);
    ck_assert_uint_eq(pager_free_count(rig->pager), pager_total_count(rig->pager));
    completion_release(ca);
    end(rig);
}
END_TEST

START_TEST(a_cancel_makes_room_at_once)
{
    /* B, which needs more than is free, waits while A is written; A's reader leaves. */
    struct rig_options options = usual;
    options.page_count = 9;
    options.swap_step_pages = 1;
    struct rig *rig = rig_with(options);
    struct rig_request a, b = request_of(1, 60, 4);
    struct completion *ca = leave_alone(rig, &a);
    b.priority = -1;
    struct completion *cb = add(rig, &b);
    for (unsigned turn = 1; turn <= 3; turn++) {
        ck_assert_str_eq(rig_turn(rig, 64), RIG_MOVES);
        ck_assert_uint_eq(writes, turn);
    }
    completion_cancel(ca);
    ck_assert_str_eq(rig_turn(rig, 64), "B:0+60");
    ck_assert_uint_eq(writes, 3);
    completion_release(ca);
    rig_run(rig, 20);
    done(rig, cb, &b);
    end(rig);
}
END_TEST

START_TEST(a_step_moves_8_mib)
{
    struct rig *rig = rig_with(usual);
    uint64_t page_bytes = rig->backend->page_bytes;
    struct page_swap_options options = {
        .backend = rig->backend, .directory = "/tmp", .metrics = &rig->metrics};
    options.bytes = 100 * page_bytes;
    struct page_swap *swap;
    struct error error;
    ck_assert_int_eq(page_swap_create(&options, &swap, &error), STATUS_OK);
    ck_assert_uint_eq(page_swap_step_pages(swap), LIMIT_SWAP_STEP_BYTES / page_bytes);
    page_swap_destroy(swap);
    rig_destroy(rig);
}
END_TEST

/* ---- what others hold, too ---- */

START_TEST(shared_beginnings_are_not_written)
{
    struct rig *rig = rig_with(usual);
    struct rig_request a = request_of(0, 41, 30), b = a;
    static uint32_t alike[41];
    memcpy(alike, a.tokens, sizeof alike);
    alike[34] = (alike[34] + 1) % RIG_VOCABULARY; /* four pages begin alike */
    b.tokens = alike;
    struct completion *ca = add(rig, &a);
    expect(rig, 64, "A:0+41");
    struct completion *cb = add(rig, &b);
    expect(rig, 64, "A:41+1 B:32+9");
    rig_preempt(rig, 1);
    ck_assert_uint_eq(cb->sequences[0].swapped.shared_count, 4);
    expect(rig, 64, "A:42+1");
    ck_assert_uint_eq(writes, 2);
    expect(rig, 64, "A:43+1");
    ck_assert_uint_eq(count(rig, swap_outs), 1);
    expect(rig, 64, "A:44+1 B:41+1");
    ck_assert_uint_eq(count(rig, swap_ins), 1);
    rig_run(rig, 50);
    ck_assert_uint_eq(count(rig, rows_computed), 41 + 9 + 2 * 29);
    done(rig, ca, &a);
    done(rig, cb, &b);
    end(rig);
}
END_TEST

START_TEST(a_shared_beginning_that_is_gone_is_computed_again)
{
    /* B waits for a slot while A, which has the shared pages, ends and its pages are evicted.
     */
    struct rig_options options = usual;
    options.max_sequences = 2;
    struct rig *rig = rig_with(options);
    struct rig_request a = request_of(0, 33, 6), b = a, c = request_of(2, 9, 20);
    b.max_tokens = 20;
    c.priority = -1;
    struct completion *ca = add(rig, &a);
    expect(rig, 64, "A:0+33");
    struct completion *cb = add(rig, &b);
    expect(rig, 64, "A:33+1 B:32+1");
    rig_preempt(rig, 1);
    struct completion *cc = add(rig, &c); /* goes first */
    expect(rig, 64, "A:34+1 C:0+9");
    ck_assert_uint_eq(cb->sequences[0].swapped.shared_count, 4);
    while (!completion_done(ca))
        rig_step(rig, 64);
    ck_assert_uint_eq(cb->sequences[0].swapped.slot_count, 1);
    pager_forget(rig->pager);
    expect(rig, 64, "C:12+1 B:0+34");
    ck_assert_uint_eq(count(rig, swap_fallbacks), 1);
    ck_assert_uint_eq(count(rig, swap_errors), 0);
    ck_assert_int_eq(atomic_load(&rig->metrics.swap_used_bytes), 0);
    rig_run(rig, 100);
    done(rig, ca, &a);
    done(rig, cb, &b);
    done(rig, cc, &c);
    end(rig);
}
END_TEST

/* ---- which way ---- */

START_TEST(the_cheaper_way_is_taken)
{
    struct rig_options options = usual;
    options.swap_always = false;
    struct rig *rig = rig_with(options);
    /* At first 200 MB/s, twice; a row 1 ms. */
    bool swapped;
    uint64_t bytes = rig->backend->page_bytes;
    uint64_t cost = page_swap_cost_ns(rig->swap, 100, 3, &swapped);
    ck_assert(swapped);
    ck_assert_uint_le(cost, 3 * 2 * bytes * 5 + 1); /* 5 ns a byte */
    ck_assert_uint_ge(cost + 1, 3 * 2 * bytes * 5);
    page_swap_set_token_ns(rig->swap, 10);
    ck_assert_uint_eq(page_swap_cost_ns(rig->swap, 100, 3, &swapped), 1000);
    ck_assert(!swapped);
    page_swap_set_token_ns(rig->swap, 0); /* not known: as before */
    ck_assert_uint_eq(page_swap_cost_ns(rig->swap, 1, 3, &swapped), 10);
    /* Nothing to write: nothing to swap. */
    ck_assert_uint_eq(page_swap_cost_ns(rig->swap, 0, 0, &swapped), 0);
    ck_assert(!swapped);

    struct rig_request a = request_of(0, 40, 8);
    struct completion *ca = add(rig, &a);
    expect(rig, 64, "A:0+40");
    page_swap_set_token_ns(rig->swap, 1e-3);
    rig_preempt(rig, 0);
    ck_assert_uint_eq(rig->scheduler->slots.count, 0);
    rig_step(rig, 64);
    ck_assert_uint_eq(writes, 0);
    page_swap_set_token_ns(rig->swap, 1e12);
    rig_preempt(rig, 0);
    ck_assert_uint_eq(rig->scheduler->slots.count, 1);
    rig_run(rig, 50);
    ck_assert_uint_eq(count(rig, swap_outs), 1);
    ck_assert_uint_eq(count(rig, swap_fallbacks), 0);
    done(rig, ca, &a);
    end(rig);
}
END_TEST

/* ---- when it cannot be ---- */

START_TEST(a_full_file_means_recomputing)
{
    struct rig_options options = usual;
    options.swap_slots = 4;
    struct rig *rig = rig_with(options);
    struct rig_request a = request_of(0, 40, 8), b = request_of(1, 20, 8);
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    expect(rig, 64, "A:0+40 B:0+20");
    rig_preempt(rig, 0); /* five pages */
    ck_assert_uint_eq(writes, 0);
    ck_assert_uint_eq(count(rig, swap_fallbacks), 1);
    expect(rig, 64, "B:20+1 A:40+1"); /* what is in the prefix cache is not computed again */
    rig_preempt(rig, 1);              /* three */
    rig_run(rig, 50);
    ck_assert_uint_eq(count(rig, swap_outs), 1);
    ck_assert_uint_eq(count(rig, swap_fallbacks), 1);
    done(rig, ca, &a);
    done(rig, cb, &b);
    end(rig);
}
END_TEST

START_TEST(a_disk_that_fails_is_no_harm)
{
    struct rig *rig = rig_with(usual);
    struct rig_request a = request_of(0, 40, 30);
    a.no_cache = true;
    struct completion *ca = add(rig, &a);
    expect(rig, 64, "A:0+40");
    fail_write_after = 3; /* in the midst of five pages */
    rig_preempt(rig, 0);
    expect(rig, 64, "A:0+41");
    ck_assert_uint_eq(count(rig, swap_errors), 1);
    ck_assert_uint_eq(count(rig, swap_fallbacks), 1);
    ck_assert_int_eq(atomic_load(&rig->metrics.swap_used_bytes), 0);
    fail_write_after = UINT32_MAX;
    fail_read_after = 4;
    rig_preempt(rig, 0);
    expect(rig, 64, "A:0+42");
    ck_assert_uint_eq(count(rig, swap_outs), 1);
    ck_assert_uint_eq(count(rig, swap_ins), 0);
    ck_assert_uint_eq(count(rig, swap_errors), 2);
    ck_assert_uint_eq(count(rig, swap_fallbacks), 2);
    fail_read_after = UINT32_MAX;
    rig_preempt(rig, 0);
    expect(rig, 64, "A:42+1"); /* it goes on being tried */
    rig_run(rig, 50);
    done(rig, ca, &a);
    end(rig);
}
END_TEST

START_TEST(an_end_in_any_state_frees_the_slots_of_the_file)
{
    /* Cancelled, or late: being swapped out, waiting, being swapped in. */
    for (unsigned steps = 0; steps < 8; steps++) {
        struct rig *rig = rig_with(usual);
        struct rig_request a = request_of(0, 10, 60), b = request_of(1, 60, 10);
        if (steps % 2)
            b.deadline_ns = rig->now_ns + (3 + steps) * 1000000;
        struct completion *ca = add(rig, &a), *cb = add(rig, &b);
        rig_step(rig, 64);
        rig_step(rig, 64);
        rig_preempt(rig, 1);
        for (unsigned i = 0; i < steps; i++)
            rig_step(rig, 64);
        if (steps % 2 == 0)
            completion_cancel(cb);
        rig_step(rig, 64);
        ck_assert(completion_done(cb));
        ck_assert_int_eq(atomic_load(&rig->metrics.swap_used_bytes), 0);
        completion_release(cb);
        rig_run(rig, 100);
        done(rig, ca, &a);
        end(rig);
    }
}
END_TEST

START_TEST(preempted_while_swapped_in_it_has_nothing_to_write)
{
    struct rig *rig = rig_with(usual);
    struct rig_request a = request_of(0, 10, 60), b = request_of(1, 60, 10);
    b.no_cache = true;
    struct completion *ca = add(rig, &a), *cb = add(rig, &b);
    rig_step(rig, 64);
    rig_step(rig, 64);
    rig_preempt(rig, 1);
    while (reads == 0)
        rig_step(rig, 64);
    unsigned written = writes;
    ck_assert_uint_eq(written, 8);
    ck_assert_int_eq(rig->scheduler->slots.order[1]->state, SEQUENCE_SWAPPING_IN);
    rig_preempt(rig, 1);
    ck_assert_uint_eq(cb->sequences[0].swapped.slot_count, 8);
    rig_run(rig, 100);
    ck_assert_uint_eq(writes, written);
    ck_assert_uint_eq(count(rig, rows_computed), 10 + 59 + 60 + 9);
    done(rig, ca, &a);
    done(rig, cb, &b);
    end(rig);
}
END_TEST

/* ---- the file ---- */

START_TEST(the_file_has_no_name_and_a_cap)
{
    char folder[] = "/tmp/quire-swap-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    struct rig *rig = rig_with(usual);
    struct page_swap_options options = {
        .backend = rig->backend,
        .directory = folder,
        .bytes = 5 * rig->backend->page_bytes - 1,
        .metrics = &rig->metrics,
    };
    struct page_swap *swap;
    struct error error;
    ck_assert_int_eq(page_swap_create(&options, &swap, &error), STATUS_OK);
    ck_assert_uint_eq(page_swap_free(swap), 4);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing in it */
    struct swapped_pages swapped = {0};
    for (uint32_t i = 0; i < 4; i++)
        ck_assert(page_swap_out(swap, &swapped, 1, 0, 3 - i));
    ck_assert(!page_swap_out(swap, &swapped, 1, 0, 0));
    ck_assert_uint_eq(swapped.slot_count, 4);
    ck_assert_uint_eq(page_swap_used(swap), 4);
    page_swap_drop(swap, &swapped);
    page_swap_destroy(swap);

    ck_assert_int_eq(page_swap_create(&options, &swap, &error), STATUS_INVALID); /* it has gone */
    ck_assert_str_eq(error.param, "swap-dir");
    ck_assert_ptr_nonnull(strstr(error.message, folder));
    options.directory = "/tmp";
    options.bytes = rig->backend->page_bytes - 1;
    ck_assert_int_eq(page_swap_create(&options, &swap, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "swap-bytes");
    options.bytes++;
    ck_assert_int_eq(page_swap_create(&options, &swap, &error), STATUS_OK);
    page_swap_destroy(swap);
    rig_destroy(rig);
}
END_TEST

/* Before there are weights: all that is known of the backend is how long a page is. */
START_TEST(a_directory_is_tried_before_there_are_pages)
{
    char folder[] = "/tmp/quire-swap-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    struct backend shape = {.page_bytes = 5000};
    struct engine_options engine = {.backend = &shape, .swap_dir = folder, .swap_bytes = 5000};
    struct error error;
    ck_assert_int_eq(engine_check(&engine, &error), STATUS_OK);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing was left */
    ck_assert_int_eq(engine_check(&engine, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "swap-dir");
    ck_assert_ptr_nonnull(strstr(error.message, folder));
    ck_assert_ptr_nonnull(strstr(error.message, strerror(ENOENT)));
    engine.swap_dir = "/tmp";
    engine.swap_bytes--;
    ck_assert_int_eq(engine_check(&engine, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "swap-bytes");
    engine.swap_dir = NULL;
    ck_assert_int_eq(engine_check(&engine, &error), STATUS_OK);

    struct page_swap_options options = {
        .backend = &shape,
        .directory = "/tmp",
        .bytes = 5000,
        .calls = {watched_read, watched_write},
    };
    writes = 0;
    fail_write_after = 0; /* a disk without room for a page */
    ck_assert_int_eq(page_swap_check(&options, &error), STATUS_INVALID);
    ck_assert_str_eq(error.param, "swap-dir");
    ck_assert_ptr_nonnull(strstr(error.message, strerror(ENOSPC)));
    fail_write_after = UINT32_MAX;
    ck_assert_int_eq(page_swap_check(&options, &error), STATUS_OK);
    ck_assert_uint_eq(writes, 2);
}
END_TEST

int main(void)
{
    log_init(LOG_TEXT, LOG_ERROR); /* failing disks are no news */
    TCase *tcase = tcase_create("swap");
    tcase_set_timeout(tcase, 600); /* against hangs only */
    tcase_add_test(tcase, nothing_is_computed_again);
    tcase_add_test(tcase, neighbours_wait_for_two_pages_a_step);
    tcase_add_test(tcase, lack_of_pages_swaps);
    tcase_add_loop_test(tcase, a_half_computed_prompt_goes_on_where_it_was, 0, 2);
    tcase_add_loop_test(tcase, windows_go_as_far_as_they_see, 0, 2);
    tcase_add_test(tcase, alone_it_moves_two_pages_a_step);
    tcase_add_loop_test(tcase, an_arrival_does_not_wait_for_the_swapping_of_others, 0, 7);
    tcase_add_loop_test(tcase, a_cancel_during_swapping_takes_effect_at_once, 0, 3 * 8);
    tcase_add_test(tcase, a_cancel_makes_room_at_once);
    tcase_add_test(tcase, a_step_moves_8_mib);
    tcase_add_test(tcase, shared_beginnings_are_not_written);
    tcase_add_test(tcase, a_shared_beginning_that_is_gone_is_computed_again);
    tcase_add_test(tcase, the_cheaper_way_is_taken);
    tcase_add_test(tcase, a_full_file_means_recomputing);
    tcase_add_test(tcase, a_disk_that_fails_is_no_harm);
    tcase_add_test(tcase, an_end_in_any_state_frees_the_slots_of_the_file);
    tcase_add_test(tcase, preempted_while_swapped_in_it_has_nothing_to_write);
    tcase_add_test(tcase, the_file_has_no_name_and_a_cap);
    tcase_add_test(tcase, a_directory_is_tried_before_there_are_pages);
    Suite *suite = suite_create("swap");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
