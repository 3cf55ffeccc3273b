/*
 * The table of tensor formats: names, values per block and bytes per block, as GGML lays them out
 * (ggml-common.h's block structs). Only layouts that appear in files are here; Q8_1 and Q8_K are
 * GGML's formats for activations and are refused as unknown.
 */
#include "engine/kernels/format.h"

static const struct format_info formats[FORMAT_LIMIT] = {
    [FORMAT_F32] = {"F32", 1, 4},
    [FORMAT_F16] = {"F16", 1, 2},
    [FORMAT_Q4_0] = {"Q4_0", 32, 2 + 16},
    [FORMAT_Q4_1] = {"Q4_1", 32, 2 + 2 + 16},
    [FORMAT_Q5_0] = {"Q5_0", 32, 2 + 4 + 16},
    [FORMAT_Q5_1] = {"Q5_1", 32, 2 + 2 + 4 + 16},
    [FORMAT_Q8_0] = {"Q8_0", 32, 2 + 32},
    [FORMAT_Q2_K] = {"Q2_K", 256, 16 + 64 + 2 + 2},
    [FORMAT_Q3_K] = {"Q3_K", 256, 32 + 64 + 12 + 2},
    [FORMAT_Q4_K] = {"Q4_K", 256, 2 + 2 + 12 + 128},
    [FORMAT_Q5_K] = {"Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    [FORMAT_Q6_K] = {"Q6_K", 256, 128 + 64 + 16 + 2},
    [16] = {"IQ2_XXS", 256, 2 + 64},
    [17] = {"IQ2_XS", 256, 2 + 64 + 8},
    [18] = {"IQ3_XXS", 256, 2 + 64 + 32},
    [19] = {"IQ1_S", 256, 2 + 32 + 16},
    [FORMAT_IQ4_NL] = {"IQ4_NL", 32, 2 + 16},
    [21] = {"IQ3_S", 256, 2 + 64 + 8 + 32 + 4},
    [22] = {"IQ2_S", 256, 2 + 64 + 8 + 8},
    [FORMAT_IQ4_XS] = {"IQ4_XS", 256, 2 + 2 + 4 + 128},
    [24] = {"I8", 1, 1},
    [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},
    [27] = {"I64", 1, 8},
    [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 32 + 16 + 8},
    [FORMAT_BF16] = {"BF16", 1, 2},
    [34] = {"TQ1_0", 256, 48 + 4 + 2},
    [35] = {"TQ2_0", 256, 64 + 2},
    [39] = {"MXFP4", 32, 1 + 16},
};

const struct format_info *format_info(uint32_t format)
{
    static const struct format_info unknown = {0, 0, 0};
    return format < FORMAT_LIMIT ? &formats[format] : &unknown;
}

uint64_t format_row_bytes(uint32_t format, uint64_t k)
{
    const struct format_info *info = format_info(format);
    if (info->name == 0 || k % info->block_size != 0)
        return 0;
    uint64_t blocks = k / info->block_size;
    if (blocks > UINT64_MAX / info->block_bytes)
        return 0;
    return blocks * info->block_bytes;
}
