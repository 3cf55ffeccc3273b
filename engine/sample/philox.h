/*
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011): a random function of (key, counter) with no state, so a draw depends on nothing but its
 * place.
 */
#ifndef QUIRE_ENGINE_SAMPLE_PHILOX_H
#define QUIRE_ENGINE_SAMPLE_PHILOX_H

#include <stdint.h>

static inline void philox_4x32_10(const uint32_t counter[static 4], const uint32_t key[static 2],
                                  uint32_t out[static 4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
        uint64_t a = (uint64_t)0xD2511F53u * c0;
        uint64_t b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The uniform number in [0, 1), 53 bits, of one draw: key `seed`, counter (position, draw, choice,
   0). */
static inline double philox_uniform(uint64_t seed, uint32_t choice, uint32_t position,
                                    uint32_t draw)
{
    uint32_t counter[4] = {position, draw, choice, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    philox_4x32_10(counter, key, out);
    uint64_t bits = (uint64_t)out[1] << 32 | out[0];
    return (double)(bits >> 11) * 0x1p-53;
}

#endif
