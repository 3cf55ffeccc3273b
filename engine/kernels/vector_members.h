/*
 * The members that a fast kernel set takes from the vector_*.h bodies: all but name and matmul.
 * Included last.
 */
#ifndef QUIRE_ENGINE_KERNELS_VECTOR_MEMBERS_H
#define QUIRE_ENGINE_KERNELS_VECTOR_MEMBERS_H

#define VECTOR_MEMBERS                                                                             \
    .packed_bytes = interleave_packed_bytes, .pack = interleave_pack,                              \
    .unpack_row = interleave_unpack_row, .quantized_row_bytes = vector_quantized_row_bytes,        \
    .quantize = vector_quantize, .rms_norm = vector_rms_norm, .rope = vector_rope,                 \
    .silu_multiply = vector_silu_multiply, .gelu_multiply = vector_gelu_multiply,                  \
    .add = vector_add, .kv_store = vector_kv_store,                                                \
    .attention_scratch_bytes = vector_attention_scratch_bytes, .attention = vector_attention,      \
    .attention_segment = vector_attention_segment, .attention_merge = vector_attention_merge

#endif
