/*
 * Tensor formats as GGML numbers them (GGUF specification, enum ggml_type), their block sizes and
 * bytes. format_table.h has one row for each; what it does not name is unknown to us.
 */
#ifndef QUIRE_ENGINE_KERNELS_FORMAT_H
#define QUIRE_ENGINE_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

enum tensor_format {
    FORMAT_F32 = 0,
    FORMAT_F16 = 1,
    FORMAT_Q4_0 = 2,
    FORMAT_Q4_1 = 3,
    FORMAT_Q5_0 = 6,
    FORMAT_Q5_1 = 7,
    FORMAT_Q8_0 = 8,
    FORMAT_Q2_K = 10,
    FORMAT_Q3_K = 11,
    FORMAT_Q4_K = 12,
    FORMAT_Q5_K = 13,
    FORMAT_Q6_K = 14,
    FORMAT_IQ4_NL = 20,
    FORMAT_IQ4_XS = 23,
    FORMAT_BF16 = 30,
    FORMAT_MXFP4 = 39,
    FORMAT_LIMIT = 40
};

struct format_info {
    const char *name;     /* "Q4_1"; NULL: not a format we know */
    uint32_t block_size;  /* values per block; 1: floats */
    uint32_t block_bytes; /* bytes per block in the file */
};

/* Always non-NULL; name is NULL for unknown numbers. */
const struct format_info *format_info(uint32_t format);

/* Is this a format of integers with scales, multiplied with quantized activations? The others that
   we know are floats. */
bool format_is_quantized(uint32_t format);

/* Bytes of a row of k values; 0 when the format is unknown or k is not a multiple of the block. */
uint64_t format_row_bytes(uint32_t format, uint64_t k);

#endif
