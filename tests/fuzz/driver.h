/*
 * Fuzzing: a harness is one file that defines the two functions below. Linked with driver.c it is a
 * program that mutates the harness' seeds with a fixed-seed generator, for so many inputs or
 * seconds, or runs the files it is given (an input that once failed). Linked with libFuzzer instead
 * (clang -fsanitize=fuzzer,address,undefined) it is guided by coverage.
 */
#ifndef QUIRE_TESTS_FUZZ_DRIVER_H
#define QUIRE_TESTS_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* Try one input; a fault is a crash, a failed CHECK or a sanitizer's report. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The i-th seed, malloc'd, or NULL past the end. */
uint8_t *fuzz_seed(unsigned index, size_t *size);

#endif
