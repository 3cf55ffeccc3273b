/* Large blocks: on a huge page's edge when they are large, and never more of the system than their
 * size. */
#include "engine/model/memory.h"

#include "base/bytes.h"

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PAGE (4 * KIB)
#define HUGE (2 * MIB)

/* A line of /proc/self/status, in bytes. */
static uint64_t status_bytes(const char *name)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(name);
        if (strncmp(line, name, length) == 0 && sscanf(line + length, ": %llu kB", &kib) == 1)
            break;
    }
    fclose(file);
    ck_assert_uint_gt(kib, 0);
    return kib * KIB;
}

static const uint64_t sizes[] = {1,       PAGE,        PAGE + 1,           8 * MIB - PAGE,
                                 8 * MIB, 8 * MIB + 1, 9 * MIB + 3 * PAGE, 31 * MIB + 4};

START_TEST(test_takes_what_it_says)
{
    uint64_t bytes = sizes[_i];
    struct error error;
    void *memory;
    status_bytes("VmSize"); /* whatever stdio takes at first */
    uint64_t size_before = status_bytes("VmSize"), resident_before = status_bytes("VmRSS");
    ck_assert_int_eq(memory_map(bytes, "test", &memory, &error), STATUS_OK);
    ck_assert_uint_eq((uintptr_t)memory % (bytes >= 8 * MIB ? HUGE : 64), 0);
    ck_assert_uint_eq(memory_map_bytes(bytes), bytes_align(bytes, PAGE));
    ck_assert_uint_eq(status_bytes("VmSize") - size_before, memory_map_bytes(bytes));
    memset(memory, 1, bytes);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they have shadows */
    uint64_t grown = status_bytes("VmRSS") - resident_before;
    ck_assert_uint_le(grown,
                      memory_map_bytes(bytes) + 256 * KIB); /* the kernel counts in batches */
    ck_assert_uint_ge(grown + 256 * KIB, bytes);
#else
    (void)resident_before;
#endif
    memory_unmap(memory, bytes);
    ck_assert_uint_eq(status_bytes("VmSize"), size_before);
}
END_TEST

START_TEST(test_refuses_what_does_not_fit)
{
    struct error error;
    error_clear(&error);
    void *memory = NULL;
    ck_assert_int_eq(memory_map((uint64_t)1 << 50, "page pool", &memory, &error), STATUS_IO);
    ck_assert_ptr_null(memory);
    ck_assert_ptr_nonnull(strstr(error.message, "page pool"));
    memory_unmap(NULL, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tests = tcase_create("blocks");
    tcase_add_loop_test(tests, test_takes_what_it_says, 0, (int)(sizeof sizes / sizeof sizes[0]));
    tcase_add_test(tests, test_refuses_what_does_not_fit);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
