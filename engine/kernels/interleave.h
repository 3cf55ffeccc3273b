/*
 * The layout of packed matrices for the fast kernel sets: sixteen rows side by side.
 *
 * Private to engine/kernels. A group of 16 rows is a run of chunks of 256 columns (the last may be
 * shorter); in a chunk the file's fields stand one after the other, each as [unit][row], a unit
 * being 4, 2 or 1 bytes of the field. So a 64-byte line holds the same four weights' bytes of 16
 * rows:
 *
 *   Q4_1 chunk:  | q of block 0: 4 lines | q of block 1 | … | d [block][16] f16 | m [block][16] f16
 * | line j:      | row 0: bytes 4j…4j+3 | row 1: bytes 4j…4j+3 | … | row 15 |
 *
 * Where the upper bits of weights are a field of their own, its lines stand among those of the
 * lower bits (interleave_line), each before the first one that needs it: so a reader of the weights
 * in their order reads memory in its order, and the hardware fetches it in time.
 *
 * Bits are moved, never changed, and sub-scales stay packed, so a matrix is as large as in the file
 * but for rounding each chunk to 64 bytes (Q3_K 1.8 %, Q6_K 1 %, the others 0) and n to 16 rows.
 * F32, F16, BF16 are [column][16].
 */
#ifndef QUIRE_ENGINE_KERNELS_INTERLEAVE_H
#define QUIRE_ENGINE_KERNELS_INTERLEAVE_H

#include "engine/kernels/kernels.h"

#include <stdint.h>

#define CHUNK_VALUES 256u

/* Where line `line` of a chunk stands that has `blocks` blocks in the file: lines are counted over
   the fields of 4-byte units, one after the other. */
static inline uint32_t interleave_line(enum tensor_format format, uint32_t blocks, uint32_t line)
{
    switch (format) {
    case FORMAT_Q5_0: /* 4 lines of a block behind its fifth bits */
    case FORMAT_Q5_1:
        return line < 4 * blocks ? line / 4 * 5 + 1 + line % 4 : (line - 4 * blocks) * 5;
    case FORMAT_Q3_K: /* 8 lines of upper bits for all others, which come in eights */
        return line >= 16 ? 2 * (line - 16) : line < 8 ? 2 * line + 1 : 8 + line;
    case FORMAT_Q5_K:
        return line >= 32 ? 2 * (line - 32) : line < 8 ? 2 * line + 1 : 8 + line;
    case FORMAT_Q6_K: /* a line of upper bits for two, which are 8 lines apart in the file */
        return line >= 32 ? 3 * (line - 32) : line / 16 * 24 + line % 8 * 3 + 1 + line / 8 % 2;
    default:
        return line;
    }
}

uint64_t interleave_group_bytes(enum tensor_format format, uint32_t k);
uint64_t interleave_chunk_bytes(enum tensor_format format); /* of a whole chunk */

/* struct kernels members of every fast set. */
uint64_t interleave_packed_bytes(enum tensor_format format, uint32_t n, uint32_t k);
void interleave_pack(struct packed_matrix *matrix, uint32_t first, uint32_t count,
                     const void *rows);
void interleave_unpack_row(const struct packed_matrix *matrix, uint32_t row, float *out);

#endif
