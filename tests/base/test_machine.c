/* What a process may use, in made-up trees: containers, cgroups v1 and v2, LXC, Kubernetes. */
#include "base/bytes.h"
#include "base/machine.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROCESS 77
#define HOST_BYTES (16 * GIB)
#define MEM "/sys/fs/cgroup/memory"
#define CPU "/sys/fs/cgroup/cpu,cpuacct"

static char root[64];

/* Written to `path` below the root; folders on the way are made. */
static void put(const char *path, const char *format, ...)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0755);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fclose(file);
}

static void put_bytes(const char *folder, const char *name, uint64_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    put(path, "%llu\n", (unsigned long long)bytes);
}

/* /proc of a host: 16 GiB, of which `available` are, and a process that holds 8 MiB. */
static void put_proc(uint64_t total, uint64_t available, const char *groups, const char *mounts)
{
    put("/proc/meminfo", "MemTotal:       %llu kB\nMemFree:   1 kB\nMemAvailable:   %llu kB\n",
        (unsigned long long)(total / KIB), (unsigned long long)(available / KIB));
    put("/proc/self/status", "Name:\tquire\nVmRSS:\t  20000 kB\nRssAnon:\t    8192 kB\n");
    put("/proc/self/cgroup", "%s", groups);
    put("/proc/self/mountinfo",
        "22 27 0:21 / /proc rw,nosuid - proc proc rw\n"
        "30 27 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n%s",
        mounts);
}

/* A memory group of v1. `held`: of its usage, what is no page cache. */
static void put_v1(const char *folder, uint64_t limit, uint64_t usage, uint64_t cache)
{
    put_bytes(folder, "memory.limit_in_bytes", limit);
    put_bytes(folder, "memory.usage_in_bytes", usage);
    char path[256];
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    put(path,
        "inactive_file 0\nactive_file 0\ntotal_shmem 0\ntotal_inactive_file %llu\n"
        "total_active_file %llu\n",
        (unsigned long long)(cache / 2), (unsigned long long)(cache - cache / 2));
}

static void put_v2(const char *folder, const char *max, uint64_t usage, uint64_t cache)
{
    char path[256];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    put(path, "%s\n", max);
    put_bytes(folder, "memory.current", usage);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    put(path, "anon 1\nfile 1\nshmem 0\ninactive_file %llu\nactive_file 0\nslab_reclaimable 0\n",
        (unsigned long long)cache);
}

static void put_procs(const char *folder, const char *processes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/cgroup.procs", folder);
    put(path, "%s", processes);
}

static struct machine inspect_with(unsigned cores)
{
    struct machine machine;
    struct machine_kernel kernel = {HOST_BYTES, cores, PROCESS};
    machine_inspect(root, &kernel, &machine);
    return machine;
}

static struct machine inspect(void)
{
    return inspect_with(8);
}

static void setup(void)
{
    snprintf(root, sizeof root, "/tmp/quire-machine-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
}

/* Nothing limits: what is available, less a 16th of all. What the process holds is its own. */
START_TEST(bare_machine)
{
    put_proc(HOST_BYTES, 10 * GIB, "0::/user.slice\n",
             "31 27 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put_v2("/sys/fs/cgroup/user.slice", "max", 6 * GIB, 0);
    put("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, HOST_BYTES);
    ck_assert_uint_eq(machine.memory_bytes, 10 * GIB + 8 * MIB - HOST_BYTES / 16);
    ck_assert_uint_eq(machine.cores, 8);
    ck_assert_str_eq(machine.cores_by, "the affinity");
    ck_assert_ptr_nonnull(strstr(machine.memory_by, "the machine: 16.0 GiB, of which others hold"));
}
END_TEST

/* Docker on v1: the group's path is the host's, and the mount's root is that group. Alone in it. */
START_TEST(docker_v1)
{
    put_proc(HOST_BYTES, 10 * GIB, "9:memory:/docker/0a1b\n4:cpu,cpuacct:/docker/0a1b\n",
             "40 30 0:33 /docker/0a1b " MEM " ro - cgroup cgroup rw,memory\n"
             "41 30 0:34 /docker/0a1b " CPU " ro - cgroup cgroup rw,cpu,cpuacct\n");
    put_v1(MEM, 512 * MIB, 40 * MIB, 20 * MIB);
    put_procs(MEM, "77\n");
    put(CPU "/cpu.cfs_quota_us", "250000\n");
    put(CPU "/cpu.cfs_period_us", "100000\n");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_bytes, 512 * MIB);
    ck_assert_uint_eq(machine.memory_limit_bytes, 512 * MIB);
    ck_assert_str_eq(machine.memory_limit_by, MEM);
    ck_assert_uint_eq(machine.cores, 2); /* 2.5 */
    ck_assert_str_eq(machine.cores_by, "the CPU quota of " CPU ": 2.50 cores");
}
END_TEST

/* Docker on v2 with a cgroup namespace: the process is at "/", and so is the mount. */
START_TEST(docker_v2)
{
    put_proc(HOST_BYTES, 10 * GIB, "0::/\n",
             "40 30 0:33 / /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n");
    put_v2("/sys/fs/cgroup", "1073741824", 40 * MIB, 0);
    put_procs("/sys/fs/cgroup", "1\n77\n"); /* an init process beside it, of 2 MiB */
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, GIB);
    /* 32 MiB are others', and as much is left for them to grow. */
    ck_assert_uint_eq(machine.memory_bytes, GIB - 2 * 32 * MIB);
    ck_assert_uint_eq(machine.cores, 4);
}
END_TEST

/* v1, nested: the group above has the smaller limit, and others in it. The path has a blank. */
START_TEST(nested_v1)
{
    put_proc(HOST_BYTES, 14 * GIB, "4:memory:/outer/in ner\n",
             "36 31 0:32 / /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n");
    put_v1("/sys/fs/cgroup/mem ory/outer/in ner", 2 * GIB, 100 * MIB, 92 * MIB);
    put_procs("/sys/fs/cgroup/mem ory/outer/in ner", "77\n");
    put_v1("/sys/fs/cgroup/mem ory/outer", GIB, 700 * MIB, 100 * MIB);
    put_v1("/sys/fs/cgroup/mem ory", 9223372036854771712u, 9 * GIB, 0);
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, GIB);
    ck_assert_str_eq(machine.memory_limit_by, "/sys/fs/cgroup/mem ory/outer");
    /* 600 MiB are no page cache, of which 8 are in the inner group. */
    ck_assert_uint_eq(machine.memory_bytes, GIB - 592 * MIB - GIB / 16);
    /* Without use_hierarchy the outer group has no say. */
    put("/sys/fs/cgroup/mem ory/outer/memory.use_hierarchy", "0\n");
    ck_assert_uint_eq(inspect().memory_limit_bytes, 2 * GIB);
}
END_TEST

/* systemd: CPUQuota=150% on the service, 50 % on the slice above, MemoryHigh below MemoryMax. */
START_TEST(systemd_v2)
{
    const char *slice = "/sys/fs/cgroup/system.slice";
    put_proc(HOST_BYTES, 14 * GIB, "0::/system.slice/quire.service\n",
             "31 27 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put_v2("/sys/fs/cgroup/system.slice/quire.service", "3221225472", 9 * MIB, 0);
    put_procs("/sys/fs/cgroup/system.slice/quire.service", "77\n");
    put("/sys/fs/cgroup/system.slice/quire.service/memory.high", "2147483648\n");
    put("/sys/fs/cgroup/system.slice/quire.service/cpu.max", "150000 100000\n");
    put_v2(slice, "max", GIB, 0);
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_bytes, 2 * GIB);
    ck_assert_uint_eq(machine.cores, 1); /* one and a half */
    put("/sys/fs/cgroup/system.slice/cpu.max", "50000 100000\n");
    machine = inspect();
    ck_assert_uint_eq(machine.cores, 1); /* half a core */
    put("/sys/fs/cgroup/system.slice/quire.service/cpu.max", "900000 100000\n");
    put("/sys/fs/cgroup/system.slice/cpu.max", "300000 100000\n");
    machine = inspect();
    ck_assert_uint_eq(machine.cores, 3);
    ck_assert_ptr_nonnull(strstr(machine.cores_by, "/system.slice: 3.00 cores"));
}
END_TEST

/* LXC: /proc/meminfo says 2 GiB, the system call the host's 16. */
START_TEST(lxc)
{
    put_proc(2 * GIB, 3 * GIB / 2, "0::/\n", "");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, 2 * GIB);
    ck_assert_uint_eq(machine.memory_bytes, 3 * GIB / 2 + 8 * MIB - 2 * GIB / 16);
}
END_TEST

static void put_kubernetes(const char *max)
{
    const char *pods = "/sys/fs/cgroup/kubepods.slice";
    const char *own = "/sys/fs/cgroup/kubepods.slice/kubepods-pod7.slice/cri-1.scope";
    put_proc(HOST_BYTES, 6 * GIB, "0::/kubepods.slice/kubepods-pod7.slice/cri-1.scope\n",
             "31 27 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put_v2(own, max, 20 * MIB, 0);
    put_procs(own, "77\n");
    put_v2("/sys/fs/cgroup/kubepods.slice/kubepods-pod7.slice", max, 20 * MIB, 0);
    put_v2(pods, "16106127360", 12 * GIB, 2 * GIB); /* 15 GiB, other pods hold 10 */
}

START_TEST(kubernetes_with_limits)
{
    put_kubernetes("4294967296");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, 4 * GIB);
    ck_assert_uint_eq(machine.memory_bytes, 4 * GIB);
}
END_TEST

START_TEST(kubernetes_without_limits)
{
    put_kubernetes("max");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, 15 * GIB);
    /* 20 MiB of the 10 GiB are this pod's. */
    ck_assert_uint_eq(machine.memory_bytes, 5 * GIB + 20 * MIB - 15 * GIB / 16);
    ck_assert_ptr_nonnull(strstr(machine.memory_by, "/sys/fs/cgroup/kubepods.slice: 15.0 GiB"));
}
END_TEST

/* Half a core and one and a half, on v1, in the process's own group below the mount. */
START_TEST(quota_of_the_own_group)
{
    put_proc(HOST_BYTES, 10 * GIB, "2:cpuacct:/\n1:cpu:/jobs/mine\n",
             "36 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
             "37 31 0:33 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/jobs/mine/cpu.cfs_period_us", "100000\n");
    static const struct {
        const char *quota;
        unsigned cores;
    } cases[] = {{"50000", 1}, {"150000", 1}, {"200000", 2}, {"299999", 2}, {"-1", 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("/sys/fs/cgroup/cpu/jobs/mine/cpu.cfs_quota_us", "%s\n", cases[i].quota);
        ck_assert_uint_eq(inspect().cores, cases[i].cores);
    }
    ck_assert_uint_eq(inspect_with(3).cores, 3); /* affinity */
}
END_TEST

START_TEST(cpuset)
{
    put_proc(HOST_BYTES, 10 * GIB, "3:cpuset:/a\n",
             "36 31 0:32 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
    put("/sys/fs/cgroup/cpuset/cpuset.cpus", "0-7\n");
    put("/sys/fs/cgroup/cpuset/a/cpuset.cpus", "0,2-3,6\n");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.cores, 4);
    ck_assert_str_eq(machine.cores_by, "the cpuset of /sys/fs/cgroup/cpuset/a");
    put("/sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "6\n");
    ck_assert_uint_eq(inspect().cores, 1);
}
END_TEST

/* No /proc and no cgroups, or files that are no such files: system calls decide. */
START_TEST(no_proc)
{
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, HOST_BYTES);
    ck_assert_uint_eq(machine.memory_bytes, HOST_BYTES - HOST_BYTES / 16);
    ck_assert_uint_eq(machine.cores, 8);
    put("/proc/meminfo", "MemTotal\nMemAvailable:\n\n");
    put("/proc/self/cgroup", "\n:\n0::\n4:memory\nx");
    put("/proc/self/mountinfo", "\n - \n1 2 - cgroup2\n1 2 3 4 5 - cgroup2 x y\n");
    machine = inspect();
    ck_assert_uint_ge(machine.cores, 1);
}
END_TEST

/* A neighbour holds 260 of 500 MiB; its page cache and the process's own memory do not count. */
START_TEST(neighbour)
{
    put_proc(HOST_BYTES, 10 * GIB, "4:memory:/shared\n",
             "36 31 0:32 / " MEM " rw - cgroup cgroup rw,memory\n");
    put_v1(MEM "/shared", 500 * MIB, 468 * MIB, 200 * MIB);
    put_procs(MEM "/shared", "70\n77\n");
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, 500 * MIB);
    ck_assert_uint_eq(machine.memory_bytes, (500 - 260) * MIB - 500 * MIB / 16);
    ck_assert_str_eq(machine.memory_by, MEM "/shared: 500.0 MiB, of which others hold 260.0 MiB "
                                            "and 31.2 MiB are a reserve");
    /* Others have left: only what lies in its tmpfs is not available. */
    put_procs(MEM "/shared", "77\n");
    ck_assert_uint_eq(inspect().memory_bytes, 500 * MIB);
    put(MEM "/shared/memory.stat", "total_shmem 1048576\n");
    ck_assert_uint_eq(inspect().memory_bytes, 498 * MIB);
    /* More is held than allowed: nothing is left, and nothing wraps around. */
    put_procs(MEM "/shared", "70\n77\n");
    put_v1(MEM "/shared", 500 * MIB, 600 * MIB, 0);
    ck_assert_uint_eq(inspect().memory_bytes, 0);
}
END_TEST

/* Two mounts of one hierarchy: the one that shows the groups above decides; another group's mount
   (a monitor that looks at a container) does not. */
START_TEST(several_mounts)
{
    put_proc(HOST_BYTES, 10 * GIB, "0::/a/b\n",
             "40 30 0:33 /a/b /own rw - cgroup2 cgroup rw\n"
             "41 30 0:33 / /all rw - cgroup2 cgroup rw\n"
             "42 30 0:33 /other /other rw - cgroup2 cgroup rw\n"
             "43 30 0:33 /a/bc /similar rw - cgroup2 cgroup rw\n");
    put_v2("/own", "max", GIB, 0);
    put_v2("/all/a/b", "max", GIB, 0);
    put_v2("/all/a", "8589934592", GIB, 0);
    put_v2("/other", "1048576", 0, 0);
    put_v2("/similar", "1048576", 0, 0);
    struct machine machine = inspect();
    ck_assert_uint_eq(machine.memory_limit_bytes, 8 * GIB);
    ck_assert_str_eq(machine.memory_limit_by, "/all/a");
    /* A container that sees only a mount whose root is not above its path: that is its own. */
    put("/proc/self/cgroup", "0::/../x\n");
    put("/proc/self/mountinfo", "40 30 0:33 /a/b /own rw - cgroup2 cgroup rw\n");
    put_v2("/own", "1073741824", 0, 0);
    ck_assert_uint_eq(inspect().memory_limit_bytes, GIB);
}
END_TEST

/* Of this machine: something, and not more than it has. */
START_TEST(this_machine)
{
    struct machine_kernel kernel;
    struct machine machine;
    machine_ask_kernel(&kernel);
    machine_inspect_own(&machine);
    ck_assert_uint_gt(machine.memory_bytes, 0);
    ck_assert_uint_lt(machine.memory_bytes, machine.memory_limit_bytes + 1);
    ck_assert_uint_le(machine.memory_limit_bytes, kernel.physical_bytes);
    ck_assert(machine.cores >= 1 && machine.cores <= kernel.cores);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("machine");
    TCase *tests = tcase_create("machine");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, bare_machine);
    tcase_add_test(tests, docker_v1);
    tcase_add_test(tests, docker_v2);
    tcase_add_test(tests, nested_v1);
    tcase_add_test(tests, systemd_v2);
    tcase_add_test(tests, lxc);
    tcase_add_test(tests, kubernetes_with_limits);
    tcase_add_test(tests, kubernetes_without_limits);
    tcase_add_test(tests, quota_of_the_own_group);
    tcase_add_test(tests, cpuset);
    tcase_add_test(tests, no_proc);
    tcase_add_test(tests, neighbour);
    tcase_add_test(tests, several_mounts);
    tcase_add_test(tests, this_machine);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
