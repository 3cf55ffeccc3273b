/*
 * The types of keys and values: their sizes, and the specification of storing and reading them.
 *
 * Storing rounds to nearest even. A NaN stays one; beyond the largest finite number, infinity too,
 * the largest one is stored (f32 alone keeps what it is given).
 *
 *   f32    the bits
 *   f16    math_f32_to_f16: subnormals are kept
 *   bf16   the upper 16 bits, rounded: subnormals are kept; at most 0x7F7F
 *
 * q8_0 and q4_0 take 32 dimensions of one token together; m is
 *
 *   q8_0   the largest magnitude;                  d = f16(m / 127),  q within −127 … 127
 *   q4_0   the value of the largest magnitude, of
 *          two that are as large the negative one; d = f16(m / −8),   q within −8 … 7
 *
 * f16() rounds and saturates as above; q = round(x / d), clamped. Any NaN among the 32: d is NaN,
 * and all 32 read back as NaN. d = 0 (m = 0, or below what f16's subnormals hold): q = 0. Infinity
 * gives d = ±65504 and the largest q; its finite neighbours become what is left of them beside it.
 *
 * Reading gives d·q, one product in f32, which is exact: 11 bits times at most 8.
 */
#include "engine/kernels/kv.h"

#include "base/check.h"
#include "engine/kernels/kv_page.h"
#include "engine/kernels/math.h"

#define ROUND_MAGIC 12582912.0f /* 1.5·2^23: added and subtracted, rounds to an integer */
#define HALF_NAN 0x7E00u

static const char *const NAMES[KV_TYPES] = {
    [KV_F16] = "f16", [KV_F32] = "f32", [KV_BF16] = "bf16", [KV_Q8_0] = "q8_0", [KV_Q4_0] = "q4_0"};

void kv_prefetch(const struct kv_layout *kv, uint32_t page, uint32_t layer, uint32_t kv_head)
{
    const uint8_t *plane = kv_plane(kv, page, layer, kv_head, false);
    for (uint64_t at = 0; at < 2 * kv->plane_bytes; at += 64) /* the values follow the keys */
        __builtin_prefetch(plane + at, 0, 2);
}

const char *kv_type_name(enum kv_type type)
{
    CHECK((unsigned)type < KV_TYPES);
    return NAMES[type];
}

bool kv_type_parse(const char *name, enum kv_type *out)
{
    for (unsigned i = 0; i < KV_TYPES; i++) {
        if (strcmp(NAMES[i], name) == 0) {
            *out = (enum kv_type)i;
            return true;
        }
    }
    return false;
}

uint32_t kv_type_block(enum kv_type type)
{
    return kv_is_quantized(type) ? KV_BLOCK : 1;
}

static uint64_t plane_bytes(enum kv_type type, uint32_t head_dim, uint32_t page_size)
{
    CHECK(head_dim % kv_type_block(type) == 0);
    return kv_scales_bytes(type, head_dim, page_size) + page_size * kv_row_bytes(type, head_dim);
}

uint64_t kv_page_bytes(enum kv_type type, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                       uint32_t page_size)
{
    return 2ull * layers * kv_heads * plane_bytes(type, head_dim, page_size);
}

struct kv_layout kv_layout_of(enum kv_type type, uint32_t layers, uint32_t kv_heads,
                              uint32_t head_dim, uint32_t page_size)
{
    return (struct kv_layout){
        .page_bytes = kv_page_bytes(type, layers, kv_heads, head_dim, page_size),
        .plane_bytes = plane_bytes(type, head_dim, page_size),
        .type = type,
        .page_size = page_size,
        .layers = layers,
        .kv_heads = kv_heads,
        .head_dim = head_dim,
    };
}

/* m, or NaN if there is one. */
static float block_extreme(enum kv_type type, const float *x)
{
    float high = 0.0f, low = 0.0f;
    for (uint32_t i = 0; i < KV_BLOCK; i++) {
        if (x[i] != x[i])
            return x[i];
        high = x[i] > high ? x[i] : high;
        low = x[i] < low ? x[i] : low;
    }
    if (type == KV_Q8_0)
        return high > -low ? high : -low;
    return high > -low ? high : low;
}

static void encode_quantized(enum kv_type type, const float *x, struct kv_block *out)
{
    const float least = type == KV_Q8_0 ? -127.0f : -8.0f;
    const float most = type == KV_Q8_0 ? 127.0f : 7.0f;
    const int zero = type == KV_Q8_0 ? 0 : 8;
    float m = block_extreme(type, x);
    out->d = m != m ? HALF_NAN : math_f32_to_f16(m / (type == KV_Q8_0 ? 127.0f : -8.0f));
    float d = math_f16_to_f32(out->d);
    if (!(d < 0.0f || d > 0.0f)) {
        out->d = m != m ? HALF_NAN : 0;
        memset(out->code, zero, sizeof out->code);
        return;
    }
    for (uint32_t i = 0; i < KV_BLOCK; i++) {
        float scaled = x[i] / d;
        scaled = scaled > most ? most : scaled < least ? least : scaled;
        out->code[i] = (uint8_t)((int)((scaled + ROUND_MAGIC) - ROUND_MAGIC) + zero);
    }
}

void scalar_kv_encode(enum kv_type type, const float x[static KV_BLOCK], struct kv_block *out)
{
    switch (type) {
    case KV_F32:
        memcpy(out->f32, x, sizeof out->f32);
        break;
    case KV_F16:
        for (uint32_t i = 0; i < KV_BLOCK; i++)
            out->half[i] = math_f32_to_f16(x[i]);
        break;
    case KV_BF16:
        for (uint32_t i = 0; i < KV_BLOCK; i++)
            out->half[i] = math_f32_to_bf16(x[i]);
        break;
    default:
        encode_quantized(type, x, out);
    }
}

/* A number that is stored by itself. */
static float read_plain(enum kv_type type, const uint8_t *plane, uint64_t index)
{
    const uint16_t *halves = (const uint16_t *)(const void *)plane;
    switch (type) {
    case KV_F32:
        return ((const float *)(const void *)plane)[index];
    case KV_F16:
        return math_f16_to_f32(halves[index]);
    default:
        return math_bf16_to_f32(halves[index]);
    }
}

static float read_nibble(uint8_t byte, bool high)
{
    return (float)((high ? byte >> 4 : byte & 15) - 8);
}

void scalar_kv_read_key(const struct kv_layout *kv, const uint8_t *plane, uint32_t offset,
                        float *out)
{
    const uint64_t page_size = kv->page_size;
    for (uint32_t i = 0; i < kv->head_dim; i++) {
        if (!kv_is_quantized(kv->type)) {
            out[i] = read_plain(kv->type, plane, i * page_size + offset);
            continue;
        }
        const uint8_t *block = plane + kv_key_block_at(kv->type, kv->page_size, i / KV_BLOCK);
        const uint8_t *rows = block + 2 * page_size + offset;
        float d = math_f16_to_f32(((const uint16_t *)(const void *)block)[offset]);
        uint32_t at = i % KV_BLOCK;
        out[i] = kv->type == KV_Q8_0 ? d * (float)(int8_t)rows[at * page_size]
                                     : d * read_nibble(rows[at / 2 * page_size], at % 2 == 1);
    }
}

void scalar_kv_read_value(const struct kv_layout *kv, const uint8_t *plane, uint32_t offset,
                          float *out)
{
    const uint32_t blocks = kv->head_dim / KV_BLOCK;
    const uint16_t *scales = (const uint16_t *)(const void *)plane + (uint64_t)offset * blocks;
    const uint8_t *row = plane + kv_scales_bytes(kv->type, kv->head_dim, kv->page_size) +
                         offset * kv_row_bytes(kv->type, kv->head_dim);
    for (uint32_t i = 0; i < kv->head_dim; i++) {
        uint32_t block = i / KV_BLOCK, at = i % KV_BLOCK, half = KV_BLOCK / 2;
        switch (kv->type) {
        case KV_Q8_0:
            out[i] = math_f16_to_f32(scales[block]) * (float)(int8_t)row[i];
            break;
        case KV_Q4_0:
            out[i] = math_f16_to_f32(scales[block]) *
                     read_nibble(row[block * half + at % half], at >= half);
            break;
        default:
            out[i] = read_plain(kv->type, row, i);
        }
    }
}
