/*
 * Which kernel sets this CPU runs, and choosing one.
 *
 * An instruction set counts only when the operating system saves its registers too: XGETBV is
 * asked, because a hypervisor or a boot option may hide the state that CPUID still announces.
 */
#include "engine/kernels/kernels.h"

#include "engine/kernels/sets.h"

#include <stdio.h>
#include <string.h>

#if defined(QUIRE_KERNELS_X86)
#define TARGET "x86-64"
#elif defined(QUIRE_KERNELS_ARM)
#define TARGET "64-bit ARM"
#else
#define TARGET "other"
#endif

#ifdef QUIRE_KERNELS_X86
#include <cpuid.h>

#define STATE_YMM 0x06u /* XMM and YMM registers */
#define STATE_ZMM 0xE6u /* and opmask, upper ZMM, ZMM16–31 */

#define LEAF_7_1_AVXVNNI 0x10u /* bit 4 of EAX */

static bool state_saved(uint32_t wanted)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & wanted) == wanted;
}

/* The first instruction set that AVX2_KERNELS needs and this CPU lacks, or NULL. */
static const char *avx2_missing(void)
{
    if (!__builtin_cpu_supports("avx2"))
        return "avx2";
    if (!__builtin_cpu_supports("fma"))
        return "fma";
    uint32_t a, b, c = 0, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
        return "f16c";
    return state_saved(STATE_YMM) ? NULL : "avx2 (the operating system does not save YMM)";
}

static const char *avxvnni_missing(void)
{
    const char *missing = avx2_missing();
    uint32_t a = 0, b, c, d;
    if (missing)
        return missing;
    bool told = __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1; /* subleaves beyond 0 */
    bool found = told && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & LEAF_7_1_AVXVNNI);
    return found ? NULL : "avx_vnni";
}

static const char *avx512_missing(void)
{
    const char *missing = avx2_missing();
    if (missing)
        return missing;
    if (!__builtin_cpu_supports("avx512f"))
        return "avx512f";
    if (!__builtin_cpu_supports("avx512bw"))
        return "avx512bw";
    if (!__builtin_cpu_supports("avx512vl"))
        return "avx512vl";
    if (!__builtin_cpu_supports("avx512dq"))
        return "avx512dq";
    if (!__builtin_cpu_supports("avx512vnni"))
        return "avx512_vnni";
    return state_saved(STATE_ZMM) ? NULL : "avx512f (the operating system does not save ZMM)";
}
#endif

#ifdef QUIRE_KERNELS_ARM
#include <sys/auxv.h>

#define CAPABILITY_DOTPROD (1ul << 20) /* HWCAP_ASIMDDP */

static const char *dotprod_missing(void)
{
    return getauxval(AT_HWCAP) & CAPABILITY_DOTPROD ? NULL : "asimddp";
}
#endif

static const char *nothing_missing(void)
{
    return NULL;
}

static const struct candidate {
    const struct kernels *kernels;
    const char *(*missing)(void);
} CANDIDATES[] = {
    {&SCALAR_KERNELS, nothing_missing},
#ifdef QUIRE_KERNELS_X86
    {&AVX2_KERNELS, avx2_missing},       {&AVXVNNI_KERNELS, avxvnni_missing},
    {&AVX512_KERNELS, avx512_missing},
#endif
#ifdef QUIRE_KERNELS_ARM
    {&NEON_KERNELS, nothing_missing}, /* every 64-bit ARM that Linux runs on has it */
    {&DOTPROD_KERNELS, dotprod_missing},
#endif
};
#define CANDIDATE_COUNT (sizeof CANDIDATES / sizeof CANDIDATES[0])

const struct kernels *const *kernels_available(void)
{
    /* Threads that race here write the same values. */
    static const struct kernels *available[CANDIDATE_COUNT + 1];
    size_t count = 0;
    for (size_t i = 0; i < CANDIDATE_COUNT; i++)
        if (!CANDIDATES[i].missing())
            __atomic_store_n(&available[count++], CANDIDATES[i].kernels, __ATOMIC_RELAXED);
    return available;
}

/* "auto, scalar or avx2": what this build may be asked for. */
static void list_names(char *to, size_t size)
{
    size_t length = (size_t)snprintf(to, size, "auto");
    for (size_t i = 0; i < CANDIDATE_COUNT && length < size; i++) {
        const char *separator = i + 1 < CANDIDATE_COUNT ? ", " : " or ";
        length += (size_t)snprintf(to + length, size - length, "%s%s", separator,
                                   CANDIDATES[i].kernels->name);
    }
}

enum status kernels_select(const char *name, const struct kernels **out, struct error *error)
{
    if (strcmp(name, "auto") == 0) {
        for (const struct kernels *const *at = kernels_available(); *at; at++)
            *out = *at;
        return STATUS_OK;
    }
    for (size_t i = 0; i < CANDIDATE_COUNT; i++) {
        if (strcmp(name, CANDIDATES[i].kernels->name) == 0) {
            const char *missing = CANDIDATES[i].missing();
            if (missing) {
                return error_set(error, STATUS_INVALID, "kernels",
                                 "kernels '%s' need %s, which this CPU lacks", name, missing);
            }
            *out = CANDIDATES[i].kernels;
            return STATUS_OK;
        }
    }
    char names[80];
    list_names(names, sizeof names);
    return error_set(error, STATUS_INVALID, "kernels",
                     "kernels '%s' are not among those for " TARGET " CPUs: %s are possible", name,
                     names);
}
