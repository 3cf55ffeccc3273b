/*
 * What the kernels' tests compute with: numbers from a generator of integers, so that they are the
 * same on every CPU, with zeros, subnormals, huge scales, infinities and NaN among them.
 */
#ifndef QUIRE_TESTS_ENGINE_KERNELS_INPUTS_H
#define QUIRE_TESTS_ENGINE_KERNELS_INPUTS_H

#include "base/check.h"
#include "engine/kernels/block.h"
#include "engine/kernels/format_table.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/math.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum tensor_format FORMATS[] = {
    FORMAT_F32,  FORMAT_F16,    FORMAT_BF16,   FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q5_0,
    FORMAT_Q5_1, FORMAT_Q8_0,   FORMAT_Q2_K,   FORMAT_Q3_K, FORMAT_Q4_K, FORMAT_Q5_K,
    FORMAT_Q6_K, FORMAT_IQ4_NL, FORMAT_IQ4_XS, FORMAT_MXFP4};
#define FORMAT_COUNT (sizeof FORMATS / sizeof FORMATS[0])

static uint64_t random_state = 1;

static inline uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t mixed = random_state ^ random_state >> 29;
    return (uint32_t)(mixed * 0x9E3779B97F4A7C15u >> 32);
}

static inline float random_float(void) /* about normal, within ±3.5 */
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)random_u32() * 0x1p-32f;
    return (sum - 6) * 0.6f;
}

static inline void *allocate(uint64_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 127) / 64 * 64);
    CHECK(data);
    memset(data, 0xA5, (bytes + 127) / 64 * 64);
    return data;
}

/* How inputs are spoiled. */
enum spice { PLAIN, WILD, BROKEN, SPICE_COUNT };

static inline void fill_floats(float *x, size_t count, enum spice spice)
{
    float scale = 1.0f;
    for (size_t i = 0; i < count; i++) {
        if (spice != PLAIN && i % 32 == 0) {
            static const float SCALES[] = {1, 1, 1e-3f, 1e4f, 1e-38f, 1e-44f, 0, 3e-37f, 4e-37f};
            scale = SCALES[random_u32() % (sizeof SCALES / sizeof SCALES[0])];
        }
        x[i] = random_float() * scale;
        if (spice == WILD && random_u32() % 50 == 0)
            x[i] = 0.0f;
        if (spice == BROKEN && random_u32() % 97 == 0) {
            static const float ODD[] = {INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 1e-45f, -0.0f};
            x[i] = ODD[random_u32() % (sizeof ODD / sizeof ODD[0])];
        }
    }
}

static inline uint16_t random_f16(enum spice spice)
{
    if (spice == PLAIN)
        return math_f32_to_f16(random_float() * 0.02f);
    uint16_t bits = (uint16_t)random_u32();
    return spice == WILD && (bits & 0x7C00) == 0x7C00 ? (uint16_t)(bits & 0xBFFF) : bits;
}

/* Random bits, with the f16 fields of blocks as `spice` says. */
static inline void fill_weights(uint8_t *rows, enum tensor_format format, uint32_t n, uint32_t k,
                                enum spice spice)
{
    uint64_t bytes = n * format_row_bytes(format, k);
    if (format == FORMAT_F32) {
        fill_floats((float *)(void *)rows, (size_t)n * k, spice);
        return;
    }
    for (uint64_t i = 0; i < bytes; i++)
        rows[i] = (uint8_t)random_u32();
    uint32_t block_bytes = format_info(format)->block_bytes;
    for (uint64_t at = 0; at < bytes; at += block_bytes) {
        if (!format_is_quantized(format)) {
            float value = random_float();
            uint32_t bits;
            memcpy(&bits, &value, 4);
            uint16_t half = format == FORMAT_F16 ? random_f16(spice)
                            : spice == PLAIN     ? (uint16_t)(bits >> 16)
                                                 : (uint16_t)random_u32();
            memcpy(rows + at, &half, 2);
            continue;
        }
        const struct format_field *fields = FORMAT_TABLE[format].fields;
        for (int f = FIELD_D; f <= (FORMAT_TABLE[format].has_min ? FIELD_MIN : FIELD_D); f++) {
            uint16_t half = random_f16(spice);
            if (fields[f].width == 1) { /* E8M0 */
                rows[at + fields[f].at] = (uint8_t)(spice == PLAIN ? 118 + half % 8 : half);
                continue;
            }
            memcpy(rows + at + fields[f].at, &half, 2);
        }
    }
}

#endif
