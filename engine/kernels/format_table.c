/*
 * What other folders may ask of the table of formats.
 *
 * The rows are in format_table.h. Numbers that it does not name are unknown to us, whatever
 * GGML may call them; so is a number of blocks whose bytes do not fit 64 bits. Any thread.
 */
#include "engine/kernels/format.h"

#include "engine/kernels/format_table.h"

static const struct format_info UNKNOWN;

const struct format_info *format_info(uint32_t format)
{
    return format < FORMAT_LIMIT ? &FORMAT_TABLE[format].info : &UNKNOWN;
}

bool format_is_quantized(uint32_t format)
{
    return format < FORMAT_LIMIT && FORMAT_TABLE[format].weights != WEIGHTS_FLOAT;
}

uint64_t format_row_bytes(uint32_t format, uint64_t k)
{
    const struct format_info *info = format_info(format);
    if (!info->name || k % info->block_size)
        return 0;
    uint64_t blocks = k / info->block_size;
    return blocks > UINT64_MAX / info->block_bytes ? 0 : blocks * info->block_bytes;
}
