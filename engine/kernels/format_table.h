/*
 * One row for each tensor format: everything that the kernels know of it. Private to
 * engine/kernels/ and its tests; a header, so that a row is a constant wherever a kernel is
 * compiled for one format.
 *
 * A block in the file is a few fields, each of so many units of 4, 2 or 1 bytes at some offset:
 *
 *   Q4_0, IQ4_NL  d:f16 q:16                 Q2_K    scales:16 q:64 d:f16 min:f16
 *   Q4_1          d:f16 min:f16 q:16         Q3_K    high:32 q:64 scales:12 d:f16
 *   Q5_0          d:f16 high:4 q:16          Q4_K    d:f16 min:f16 scales:12 q:128
 *   Q5_1          d:f16 min:f16 high:4 q:16  Q5_K    d:f16 min:f16 scales:12 high:32 q:128
 *   Q8_0          d:f16 q:32                 Q6_K    q:128 high:64 scales:16 d:f16
 *   MXFP4         d:e8m0 q:16                IQ4_XS  d:f16 high scales:2 scales:4 q:128
 *
 * How the bits of weights lie in q and high is `weights`, how scales are stored is `scales`:
 * block.c reads both, vector/unpack.h does so for 16 rows. A new format whose bits lie like
 * another's is a row here; else it is a row, and a `case` in either reader (and in repack_line).
 */
#ifndef QUIRE_ENGINE_KERNELS_FORMAT_TABLE_H
#define QUIRE_ENGINE_KERNELS_FORMAT_TABLE_H

#include "engine/kernels/format.h"

/* Where weight i of a block, or of its part of 32, has its bits. */
enum weight_layout {
    WEIGHTS_FLOAT,   /* it is a number by itself */
    WEIGHTS_BYTES,   /* q[i], signed */
    WEIGHTS_NIBBLES, /* i < 16: low nibble of q[i], else high nibble of q[i − 16]; bit i of high */
    WEIGHTS_PAIRS,   /* of two parts: nibble `part % 2` of q[i]; bit `part` of high[i] */
    WEIGHTS_FOURS,   /* of four parts: two bits of q[i]; a third one: bit `part` of high[i] */
    WEIGHTS_SIXES,   /* of four parts: a nibble of q[i] or q[i + 32], two bits of high[i] */
};

/* How a part of 32 values gets its scale, or one for each 16 of them, and its min. */
enum scale_layout {
    SCALES_NONE,
    SCALES_F16,  /* d, and min if there is one */
    SCALES_E8M0, /* 2^(d − 128): half of the power that the byte says, for values are doubled */
    SCALES_NIBBLES,     /* of 16: d·low nibble, −min·high nibble */
    SCALES_SIX_BITS,    /* of 32: 6 bits each for d and −min, packed in 12 bytes */
    SCALES_SIX_BITS_16, /* of 16: 6 bits less 32, packed in 12 bytes */
    SCALES_BYTES_16,    /* of 16: d·int8 */
    SCALES_SPLIT,       /* of 32: 4 bits, and 2 upper ones in the field behind d; less 32 */
};

/* In the order in which they stand in a chunk of a repacked matrix (repack.h). */
enum field { FIELD_Q, FIELD_HIGH, FIELD_SCALES, FIELD_D, FIELD_MIN, FIELD_COUNT };
#define FIELD_SCALES_HIGH FIELD_MIN /* of SCALES_SPLIT */

struct format_field {
    uint8_t at;    /* offset in the file's block */
    uint8_t units; /* per block; 0: the format has no such field */
    uint8_t width; /* bytes of a unit: 4, 2 or 1 */
};

struct format_row {
    struct format_info info;
    enum weight_layout weights;
    enum scale_layout scales;
    bool has_min;         /* weights have a minimum (m), and are not negative without it */
    bool sub_blocks;      /* values 0–15 and 16–31 are sub-blocks with scales of their own */
    int8_t zero;          /* what is taken off the stored integers */
    const int8_t *values; /* what the stored integers index, or NULL */
    struct format_field fields[FIELD_COUNT];
};

static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* Twice the values of E2M1: a sign, two bits of exponent, one of mantissa (OCP Microscaling). */
static const int8_t E2M1_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* clang-format off */
static const struct format_row FORMAT_TABLE[FORMAT_LIMIT] = {
    [FORMAT_F32]  = {{"F32", 1, 4}},
    [FORMAT_F16]  = {{"F16", 1, 2}},
    [FORMAT_BF16] = {{"BF16", 1, 2}},
    [FORMAT_Q4_0] = {{"Q4_0", 32, 18}, WEIGHTS_NIBBLES, SCALES_F16, .zero = 8,
        .fields = {[FIELD_Q] = {2, 4, 4}, [FIELD_D] = {0, 1, 2}}},
    [FORMAT_Q4_1] = {{"Q4_1", 32, 20}, WEIGHTS_NIBBLES, SCALES_F16, .has_min = true,
        .fields = {[FIELD_Q] = {4, 4, 4}, [FIELD_D] = {0, 1, 2}, [FIELD_MIN] = {2, 1, 2}}},
    [FORMAT_Q5_0] = {{"Q5_0", 32, 22}, WEIGHTS_NIBBLES, SCALES_F16, .zero = 16,
        .fields = {[FIELD_Q] = {6, 4, 4}, [FIELD_HIGH] = {2, 1, 4}, [FIELD_D] = {0, 1, 2}}},
    [FORMAT_Q5_1] = {{"Q5_1", 32, 24}, WEIGHTS_NIBBLES, SCALES_F16, .has_min = true,
        .fields = {[FIELD_Q] = {8, 4, 4}, [FIELD_HIGH] = {4, 1, 4}, [FIELD_D] = {0, 1, 2},
                   [FIELD_MIN] = {2, 1, 2}}},
    [FORMAT_Q8_0] = {{"Q8_0", 32, 34}, WEIGHTS_BYTES, SCALES_F16,
        .fields = {[FIELD_Q] = {2, 8, 4}, [FIELD_D] = {0, 1, 2}}},
    [FORMAT_Q2_K] = {{"Q2_K", 256, 84}, WEIGHTS_FOURS, SCALES_NIBBLES, .has_min = true,
        .sub_blocks = true,
        .fields = {[FIELD_Q] = {16, 16, 4}, [FIELD_SCALES] = {0, 16, 1}, [FIELD_D] = {80, 1, 2},
                   [FIELD_MIN] = {82, 1, 2}}},
    [FORMAT_Q3_K] = {{"Q3_K", 256, 110}, WEIGHTS_FOURS, SCALES_SIX_BITS_16, .sub_blocks = true,
        .zero = 4,
        .fields = {[FIELD_Q] = {32, 16, 4}, [FIELD_HIGH] = {0, 8, 4}, [FIELD_SCALES] = {96, 12, 1},
                   [FIELD_D] = {108, 1, 2}}},
    [FORMAT_Q4_K] = {{"Q4_K", 256, 144}, WEIGHTS_PAIRS, SCALES_SIX_BITS, .has_min = true,
        .fields = {[FIELD_Q] = {16, 32, 4}, [FIELD_SCALES] = {4, 12, 1}, [FIELD_D] = {0, 1, 2},
                   [FIELD_MIN] = {2, 1, 2}}},
    [FORMAT_Q5_K] = {{"Q5_K", 256, 176}, WEIGHTS_PAIRS, SCALES_SIX_BITS, .has_min = true,
        .fields = {[FIELD_Q] = {48, 32, 4}, [FIELD_HIGH] = {16, 8, 4}, [FIELD_SCALES] = {4, 12, 1},
                   [FIELD_D] = {0, 1, 2}, [FIELD_MIN] = {2, 1, 2}}},
    [FORMAT_Q6_K] = {{"Q6_K", 256, 210}, WEIGHTS_SIXES, SCALES_BYTES_16, .sub_blocks = true,
        .zero = 32,
        .fields = {[FIELD_Q] = {0, 32, 4}, [FIELD_HIGH] = {128, 16, 4},
                   [FIELD_SCALES] = {192, 16, 1}, [FIELD_D] = {208, 1, 2}}},
    [FORMAT_IQ4_NL] = {{"IQ4_NL", 32, 18}, WEIGHTS_NIBBLES, SCALES_F16, .values = IQ4_VALUES,
        .fields = {[FIELD_Q] = {2, 4, 4}, [FIELD_D] = {0, 1, 2}}},
    [FORMAT_IQ4_XS] = {{"IQ4_XS", 256, 136}, WEIGHTS_NIBBLES, SCALES_SPLIT, .values = IQ4_VALUES,
        .fields = {[FIELD_Q] = {8, 32, 4}, [FIELD_SCALES] = {4, 4, 1}, [FIELD_D] = {0, 1, 2},
                   [FIELD_SCALES_HIGH] = {2, 1, 2}}},
    [FORMAT_MXFP4] = {{"MXFP4", 32, 17}, WEIGHTS_NIBBLES, SCALES_E8M0, .values = E2M1_VALUES,
        .fields = {[FIELD_Q] = {1, 4, 4}, [FIELD_D] = {0, 1, 1}}},
};

/* Those that kernels are compiled for. */
#define EACH_QUANTIZED_FORMAT(OF)                                                                  \
    OF(Q4_0) OF(Q4_1) OF(Q5_0) OF(Q5_1) OF(Q8_0) OF(Q2_K) OF(Q3_K) OF(Q4_K) OF(Q5_K) OF(Q6_K)      \
    OF(IQ4_NL) OF(IQ4_XS) OF(MXFP4)
/* clang-format on */

/* Bytes of a block's fields before this one, in the order of enum field. */
static inline __attribute__((always_inline)) uint32_t
format_bytes_before(const enum tensor_format format, const enum field field)
{
    uint32_t bytes = 0;
#pragma GCC unroll 8
    for (int i = 0; i < FIELD_COUNT; i++) {
        const struct format_field *at = &FORMAT_TABLE[format].fields[i];
        bytes += i < (int)field ? (uint32_t)at->units * at->width : 0;
    }
    return bytes;
}

static inline bool format_has_high_bits(const enum tensor_format format)
{
    return FORMAT_TABLE[format].fields[FIELD_HIGH].units > 0;
}

#endif
