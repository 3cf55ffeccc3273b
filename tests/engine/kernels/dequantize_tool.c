/*
 * dequantize_tool KERNELS FORMAT N K < rows > floats: packs N rows of K values of a format (by GGML
 * number) as read from stdin and writes what dequantize_row gives. For tests/reference/test_formats.py.
 * "dequantize_tool --list" prints the kernel sets of this CPU.
 */
#include "engine/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(uint64_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!data)
        abort();
    return data;
}

static int unpack(const struct kernels *kernels, enum tensor_format format, uint32_t n, uint32_t k)
{
    uint64_t bytes = n * format_row_bytes(format, k);
    uint64_t packed = kernels->repacked_bytes(format, n, k);
    if (bytes == 0 || packed == 0) {
        fprintf(stderr, "dequantize_tool: %s cannot unpack this\n", kernels->name);
        return EXIT_FAILURE;
    }
    void *rows = allocate(bytes);
    struct repacked_matrix matrix = {.format = format, .n = n, .k = k, .data = allocate(packed)};
    float *out = allocate(k * sizeof *out);
    if (fread(rows, 1, bytes, stdin) != bytes) {
        fprintf(stderr, "dequantize_tool: short input\n");
        return EXIT_FAILURE;
    }
    kernels->repack(&matrix, 0, n, rows);
    for (uint32_t row = 0; row < n; row++) {
        kernels->dequantize_row(&matrix, row, out);
        fwrite(out, sizeof *out, k, stdout);
    }
    free(rows);
    free(matrix.data);
    free(out);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct kernels *const *at = kernels_available(); *at; at++)
            puts((*at)->name);
        return EXIT_SUCCESS;
    }
    const struct kernels *kernels;
    struct error error;
    if (argc != 5) {
        fprintf(stderr, "usage: dequantize_tool KERNELS FORMAT N K\n");
        return EXIT_FAILURE;
    }
    if (kernels_select(argv[1], &kernels, &error) != STATUS_OK) {
        fprintf(stderr, "dequantize_tool: %s\n", error.message);
        return EXIT_FAILURE;
    }
    return unpack(kernels, (enum tensor_format)atoi(argv[2]), (uint32_t)atoi(argv[3]),
                  (uint32_t)atoi(argv[4]));
}
