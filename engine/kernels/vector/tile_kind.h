/*
 * What a format's tile does, as constants that it is compiled for.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_TILE_KIND_H
#define QUIRE_ENGINE_KERNELS_VECTOR_TILE_KIND_H

#include "engine/kernels/vector/unpack.h"

struct tile_kind {
    enum panel_weights weights;
    bool sub_blocks; /* a scale per 16 values */
    bool has_min;    /* weights have mins and are not negative */
    int zero;        /* what tiles take off nibbles */
};

static inline struct tile_kind tile_kind_of(enum tensor_format format)
{
    const struct format_row *row = &FORMAT_TABLE[format];
    const enum panel_weights weights = panel_weights_of(format);
    return (struct tile_kind){weights, row->sub_blocks, row->has_min,
                              weights == PANEL_BYTES ? 0 : row->zero};
}

#endif
