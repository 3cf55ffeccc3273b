/*
 * What this process may use of the machine: how much memory and how many cores, and who decides.
 *
 * Memory: the machine's own (the smaller of what the kernel and /proc/meminfo say, which differ in
 * LXC), and the limits of the process's memory cgroups, v1 and v2, its own and all that contain it.
 * Of each, what is available now is the limit minus what others hold, where page cache counts as
 * available, because the kernel takes it back before it kills. What this process holds itself is
 * available to it. A reserve is left for what others may still take:
 *
 *     the machine    a 16th of its memory, at least 64 MiB
 *     a cgroup       a 16th of its limit, at most what others hold in it: nothing when there are
 * none
 *
 * Cores: affinity, cpuset, and the CPU quotas of the process's cgroups, rounded down, at least one.
 *
 * Where a file is missing (no /proc, no cgroups) the other sources decide. Reads files, changes
 * nothing, any thread. Swap is never counted on.
 */
#ifndef QUIRE_BASE_MACHINE_H
#define QUIRE_BASE_MACHINE_H

#include <stdint.h>

#define MACHINE_TEXT_BYTES 256

/* What system calls say; made up in tests. */
struct machine_kernel {
    uint64_t physical_bytes;
    unsigned cores; /* by affinity */
    long process;   /* its number */
};

struct machine {
    uint64_t memory_limit_bytes;              /* the most that the process may ever hold */
    char memory_limit_by[MACHINE_TEXT_BYTES]; /* "the machine", or a cgroup's folder */
    uint64_t memory_bytes;                    /* what it may take now: available, less reserve */
    char memory_by[MACHINE_TEXT_BYTES];       /* who decided that, with the numbers */
    unsigned cores;                           /* at least 1 */
    char cores_by[MACHINE_TEXT_BYTES];
};

void machine_ask_kernel(struct machine_kernel *out);

/* `root` stands before every path that is read: "" but in tests. */
void machine_inspect(const char *root, const struct machine_kernel *kernel, struct machine *out);

/* The machine that this process runs on. */
void machine_inspect_own(struct machine *out);

#endif
