/*
 * Mutations without coverage: see driver.h. The same arguments try the same inputs in the same
 * order (a limit in seconds only ends the series sooner). Before each input its number is kept, and
 * printed when the process dies, so that `--first N --inputs 1` repeats it.
 */
#include "tests/fuzz/driver.h"

#include "base/clock.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEEDS_MAX 64u
#define INPUT_MAX ((size_t)64 << 10)

struct input {
    uint8_t *data;
    size_t size;
};

static volatile uint64_t input_number;

static void print_number(int signal_number)
{
    char text[64];
    int length = snprintf(text, sizeof text, "input %llu: signal %d\n",
                          (unsigned long long)input_number, signal_number);
    if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0)
        _exit(1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static uint64_t random_next(uint64_t *state)
{
    /* SplitMix64 (Steele, Lea, Flood 2014): any seed is good, so each input has its own. */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t random_below(uint64_t *state, size_t limit)
{
    return limit > 0 ? (size_t)(random_next(state) % limit) : 0;
}

/* Write an interesting number of 1, 2, 4 or 8 bytes somewhere. */
static void put_number(uint64_t *state, uint8_t *data, size_t size)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       7,
                                       8,
                                       31,
                                       32,
                                       64,
                                       127,
                                       128,
                                       255,
                                       256,
                                       1023,
                                       4096,
                                       32767,
                                       65535,
                                       65536,
                                       0x7fffffff,
                                       0x80000000u,
                                       0xffffffffu,
                                       0x100000000u,
                                       0x7fffffffffffffffu,
                                       0x8000000000000000u,
                                       0xfffffffffffffff8u,
                                       0xffffffffffffffffu};
    size_t width = (size_t)1 << random_below(state, 4);
    if (size < width)
        return;
    uint64_t number = numbers[random_below(state, sizeof numbers / sizeof numbers[0])];
    if (random_below(state, 4) == 0)
        number = size - random_below(state, 64);
    memcpy(data + random_below(state, size - width + 1), &number, width);
}

/* Move what follows `at` by inserting or removing `count` bytes. */
static void resize(struct input *input, size_t at, size_t remove, size_t insert)
{
    if (remove > input->size - at)
        remove = input->size - at;
    if (input->size - remove + insert > INPUT_MAX)
        insert = 0;
    memmove(input->data + at + insert, input->data + at + remove, input->size - at - remove);
    input->size = input->size - remove + insert;
}

static void mutate_once(uint64_t *state, struct input *input, const struct input *other)
{
    size_t at = random_below(state, input->size + 1), count = 1 + random_below(state, 16);
    switch (random_below(state, 9)) {
    case 0:
        if (at < input->size)
            input->data[at] ^= (uint8_t)(1u << random_below(state, 8));
        break;
    case 1:
        if (at < input->size)
            input->data[at] = (uint8_t)random_next(state);
        break;
    case 2:
    case 3:
        put_number(state, input->data, input->size);
        break;
    case 4:
        resize(input, at, count, 0);
        break;
    case 5: {
        size_t before = input->size;
        resize(input, at, 0, count);
        for (size_t i = 0; i < input->size - before; ++i)
            input->data[at + i] = (uint8_t)random_next(state);
        break;
    }
    case 6: /* the end is cut */
        input->size = at;
        break;
    case 7: { /* a stretch is copied over another */
        size_t from = random_below(state, input->size + 1),
               longest = input->size - (at > from ? at : from);
        count = random_below(state, longest + 1);
        memmove(input->data + at, input->data + from, count);
        break;
    }
    default: { /* a stretch of another seed */
        size_t from = random_below(state, other->size + 1);
        count = random_below(state, (other->size - from < 256 ? other->size - from : 256) + 1);
        if (at + count <= INPUT_MAX) {
            memcpy(input->data + at, other->data + from, count);
            if (at + count > input->size)
                input->size = at + count;
        }
    }
    }
}

/* Exactly as large as the input, so that sanitizers see every byte that is read past its end. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL)
        abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    static uint8_t data[(size_t)16 << 20];
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    run(data, size);
    return 0;
}

static uint64_t run_series(uint64_t first, uint64_t inputs, uint64_t seconds, uint64_t seed)
{
    static struct input seeds[SEEDS_MAX];
    unsigned seed_count = 0;
    while (seed_count < SEEDS_MAX &&
           (seeds[seed_count].data = fuzz_seed(seed_count, &seeds[seed_count].size)) != NULL) {
        run(seeds[seed_count].data, seeds[seed_count].size);
        seed_count++;
    }
    static uint8_t buffer[INPUT_MAX];
    uint64_t until = clock_now_ns() + seconds * 1000000000u, done = 0;
    for (; done < inputs && (seconds == 0 || clock_now_ns() < until); ++done) {
        input_number = first + done;
        uint64_t state = seed * 0x9e3779b97f4a7c15u + input_number;
        const struct input *from = &seeds[random_below(&state, seed_count)];
        struct input input = {buffer, from->size < INPUT_MAX ? from->size : INPUT_MAX};
        memcpy(buffer, from->data, input.size);
        for (size_t i = 1 + random_below(&state, 8); i > 0; --i)
            mutate_once(&state, &input, &seeds[random_below(&state, seed_count)]);
        run(input.data, input.size);
    }
    for (unsigned i = 0; i < seed_count; ++i)
        free(seeds[i].data);
    return done;
}

/* Seeds as files, for libFuzzer's corpus. */
static int write_seeds(const char *folder)
{
    uint8_t *data;
    size_t size;
    for (unsigned i = 0; (data = fuzz_seed(i, &size)) != NULL; ++i) {
        char path[512];
        snprintf(path, sizeof path, "%s/seed-%u", folder, i);
        FILE *file = fopen(path, "wb");
        bool written = file != NULL && fwrite(data, 1, size, file) == size;
        free(data);
        if (file == NULL || fclose(file) != 0 || !written) {
            perror(path);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write-seeds") == 0)
        return write_seeds(argv[2]);
    uint64_t inputs = 10000, seconds = 0, seed = 1, first = 0;
    bool files = false;
    for (int i = 1; i < argc; ++i) {
        uint64_t *value = strcmp(argv[i], "--inputs") == 0    ? &inputs
                          : strcmp(argv[i], "--seconds") == 0 ? &seconds
                          : strcmp(argv[i], "--seed") == 0    ? &seed
                          : strcmp(argv[i], "--first") == 0   ? &first
                                                              : NULL;
        if (value != NULL && i + 1 < argc) {
            *value = strtoull(argv[++i], NULL, 10);
        } else if (argv[i][0] == '-') {
            fprintf(stderr,
                    "usage: %s [--inputs N] [--seconds N] [--seed N] [--first N] [FILE…]\n"
                    "       %s --write-seeds FOLDER\n",
                    argv[0], argv[0]);
            return 2;
        } else {
            files = true;
            if (run_file(argv[i]) != 0)
                return 1;
        }
    }
    if (files)
        return 0;
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; ++i)
        signal(deadly[i], print_number);
    if (seconds > 0 && inputs == 10000)
        inputs = UINT64_MAX;
    uint64_t done = run_series(first, inputs, seconds, seed);
    printf("%llu inputs, no fault\n", (unsigned long long)done);
    return 0;
}
