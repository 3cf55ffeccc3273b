/*
 * The table of tensor formats: names, values per block and bytes per block, as GGML's file layout
 * fixes them (gguf specification; the block structures are drawn in block.c).
 *
 * Numbers that are absent here are unknown to us, whatever GGML may call them.
 */
#include "engine/kernels/format.h"

static const struct format_info FORMATS[FORMAT_LIMIT] = {
    [FORMAT_F32] = {"F32", 1, 4},         [FORMAT_F16] = {"F16", 1, 2},
    [FORMAT_Q4_0] = {"Q4_0", 32, 18},     [FORMAT_Q4_1] = {"Q4_1", 32, 20},
    [FORMAT_Q5_0] = {"Q5_0", 32, 22},     [FORMAT_Q5_1] = {"Q5_1", 32, 24},
    [FORMAT_Q8_0] = {"Q8_0", 32, 34},     [FORMAT_Q2_K] = {"Q2_K", 256, 84},
    [FORMAT_Q3_K] = {"Q3_K", 256, 110},   [FORMAT_Q4_K] = {"Q4_K", 256, 144},
    [FORMAT_Q5_K] = {"Q5_K", 256, 176},   [FORMAT_Q6_K] = {"Q6_K", 256, 210},
    [FORMAT_IQ4_NL] = {"IQ4_NL", 32, 18}, [FORMAT_IQ4_XS] = {"IQ4_XS", 256, 136},
    [FORMAT_BF16] = {"BF16", 1, 2},
};

static const struct format_info UNKNOWN;

const struct format_info *format_info(uint32_t format)
{
    return format < FORMAT_LIMIT ? &FORMATS[format] : &UNKNOWN;
}

uint64_t format_row_bytes(uint32_t format, uint64_t k)
{
    const struct format_info *info = format_info(format);
    if (!info->name || k % info->block_size) {
        return 0;
    }
    uint64_t blocks = k / info->block_size;
    return blocks > UINT64_MAX / info->block_bytes ? 0 : blocks * info->block_bytes;
}
