/*
 * The layout of repacked matrices for the fast kernel sets: sixteen rows side by side.
 *
 * Private to engine/kernels. A block of 16 rows is a run of chunks of 256 columns (the last may be
 * shorter). In a chunk the file's fields stand one after the other (format_table.h, enum field),
 * each as [unit][row], a unit being 4, 2 or 1 bytes of the field. So a 64-byte line holds the same
 * four weights' bytes of 16 rows:
 *
 *   Q4_1 chunk: | q of block 0: 4 lines | q of block 1 | … | d [block][16] f16 | m [block][16] f16 |
 *   line j:     | row 0: bytes 4j…4j+3 | row 1: bytes 4j…4j+3 | … | row 15 |
 *
 * Where the high bits of weights are a field of their own, its lines stand among those of the low
 * bits (repack_line), each before the first one that needs it: so a reader of the weights in their
 * order reads memory in its order, and the hardware prefetches it in time.
 *
 * Bits are moved, never changed, and sub-scales stay packed, so a matrix is as large as in the file
 * but for rounding each chunk to 64 bytes (Q3_K 1.8 %, Q6_K 1 %, the others 0) and n to 16 rows.
 * F32, F16, BF16 are [column][16].
 */
#ifndef QUIRE_ENGINE_KERNELS_REPACK_H
#define QUIRE_ENGINE_KERNELS_REPACK_H

#include "engine/kernels/format_table.h"
#include "engine/kernels/kernel_set.h"

#include <stdint.h>

#define CHUNK_VALUES 256u

/* Where line `line` of a chunk stands that has `blocks` blocks in the file: lines are counted over
   the fields of 4-byte units, one after the other. */
static inline __attribute__((always_inline)) uint32_t repack_line(const enum tensor_format format,
                                                                  uint32_t blocks, uint32_t line)
{
    if (!format_has_high_bits(format))
        return line;
    switch (FORMAT_TABLE[format].weights) {
    case WEIGHTS_NIBBLES: /* 4 lines of a block behind its high bits */
        return line < 4 * blocks ? line / 4 * 5 + 1 + line % 4 : (line - 4 * blocks) * 5;
    case WEIGHTS_FOURS: /* 8 lines of high bits for all others, which come in eights */
        return line >= 16 ? 2 * (line - 16) : line < 8 ? 2 * line + 1 : 8 + line;
    case WEIGHTS_PAIRS:
        return line >= 32 ? 2 * (line - 32) : line < 8 ? 2 * line + 1 : 8 + line;
    default: /* WEIGHTS_SIXES: a line of high bits for two, which are 8 lines apart in the file */
        return line >= 32 ? 3 * (line - 32) : line / 16 * 24 + line % 8 * 3 + 1 + line / 8 % 2;
    }
}

uint64_t repack_row_block_bytes(enum tensor_format format, uint32_t k);
uint64_t repack_chunk_bytes(enum tensor_format format); /* of a whole chunk */

/* struct kernels members of every fast set. */
uint64_t repack_bytes(enum tensor_format format, uint32_t n, uint32_t k);
void repack_rows(struct repacked_matrix *matrix, uint32_t first, uint32_t count, const void *rows);
void repack_dequantize_row(const struct repacked_matrix *matrix, uint32_t row, float *out);

#endif
