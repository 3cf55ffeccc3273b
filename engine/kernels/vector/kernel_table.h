/*
 * The table of functions that a fast kernel set takes from this folder's headers: all but name and
 * matmul.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_KERNEL_TABLE_H
#define QUIRE_ENGINE_KERNELS_VECTOR_KERNEL_TABLE_H

#include "engine/kernels/vector/attention.h"
#include "engine/kernels/vector/elementwise.h"
#include "engine/kernels/vector/matmul.h"

#define VECTOR_KERNELS                                                                             \
    .repacked_bytes = repack_bytes, .repack = repack_rows,                                         \
    .dequantize_row = repack_dequantize_row, .quantized_row_bytes = vector_quantized_row_bytes,    \
    .quantize = vector_quantize, .rms_norm = vector_rms_norm, .layer_norm = vector_layer_norm,     \
    .rope = vector_rope, .silu_multiply = vector_silu_multiply,                                    \
    .gelu_multiply = vector_gelu_multiply, .gelu_erf = vector_gelu_erf, .add = vector_add,         \
    .kv_store = vector_kv_store, .attention_scratch_bytes = vector_attention_scratch_bytes,        \
    .attention = vector_attention, .attention_segment = vector_attention_segment,                  \
    .attention_merge = vector_attention_merge

#endif
