/*
 * What the process may use: see machine.h.
 *
 * A cgroup is found in two steps. /proc/self/cgroup names the process's group in each hierarchy, as
 * seen from the root of its cgroup namespace. /proc/self/mountinfo says where each hierarchy is
 * mounted, and which group is the mount's root. In a container that root is often the container's
 * own group, and the groups above it cannot be seen. So the walk starts at the group's folder below
 * the mount, and ends at the mount. A group that is not below the mount's root is taken to be that
 * root: this is what a container sees of itself.
 */
#include "base/machine.h"

#include "base/bytes.h"
#include "base/minmax.h"

#include <dirent.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define LINE_BYTES (4 * PATH_BYTES)
#define RESERVE_SHARE 16
#define RESERVE_LEAST ((uint64_t)64 * MIB)
#define NONE UINT64_MAX

/* ---- Files ---- */

static FILE *open_below(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return NULL;
    return fopen(path, "re");
}

/* The first line of a file without its newline; false: there is none. */
static bool read_line(const char *folder, const char *name, char *out, size_t size)
{
    FILE *file = open_below(folder, name);
    if (!file)
        return false;
    bool got = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (got)
        out[strcspn(out, "\n")] = '\0';
    return got;
}

/* The number that a file begins with; NONE: no such file, or "max", or "-1". */
static uint64_t read_number(const char *folder, const char *name)
{
    char line[64];
    if (!read_line(folder, name, line, sizeof line) || line[0] < '0' || line[0] > '9')
        return NONE;
    return strtoull(line, NULL, 10);
}

/* The number behind `key` in a file of lines "key value" or "Key:   value kB"; NONE: no such line.
 */
static uint64_t read_field(const char *folder, const char *name, const char *key)
{
    FILE *file = open_below(folder, name);
    if (!file)
        return NONE;
    char line[256];
    uint64_t value = NONE;
    size_t length = strlen(key);
    while (value == NONE && fgets(line, sizeof line, file)) {
        const char *at = line + length;
        if (strncmp(line, key, length) != 0 || !*at || !strchr(": \t", *at))
            continue;
        char *end;
        value = strtoull(at + strspn(at, ": \t"), &end, 10);
        if (!strncmp(end, " kB", 3))
            value *= KIB;
    }
    fclose(file);
    return value;
}

static uint64_t or_zero(uint64_t value)
{
    return value == NONE ? 0 : value;
}

static uint64_t less(uint64_t value, uint64_t taken)
{
    return value > taken ? value - taken : 0;
}

/* ---- The process's group in a hierarchy ---- */

/* A folder of a hierarchy; folder_up moves it to the group that contains it. */
struct group {
    char folder[PATH_BYTES];
    size_t mount_length; /* the walk ends there */
};

static bool group_up(struct group *group)
{
    char *slash = strrchr(group->folder, '/');
    if (strlen(group->folder) <= group->mount_length || !slash)
        return false;
    *slash = '\0';
    return strlen(group->folder) >= group->mount_length;
}

/* Whether `word` is one of a list that commas separate. */
static bool lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        bool begins = at == list || at[-1] == ',';
        if (begins && (!at[length] || strchr(", \n", at[length])))
            return true;
    }
    return false;
}

/* The group's path of a line "7:memory,hugetlb:/group" (v1) or "0::/group" (v2, `controller` NULL).
 */
static bool read_group_path(const char *proc, const char *controller, char *out, size_t size)
{
    FILE *file = open_below(proc, "self/cgroup");
    if (!file)
        return false;
    char line[PATH_BYTES];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(++controllers, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        found = controller ? lists(controllers, controller) : !*controllers;
        if (found)
            snprintf(out, size, "%s", strcmp(path, "/") ? path : "");
    }
    fclose(file);
    return found;
}

/* mountinfo writes blanks and backslashes in paths as \040. */
static void unescape(char *path)
{
    char *out = path;
    for (const char *at = path; *at; at++, out++) {
        if (at[0] == '\\' && at[1] && at[2] && at[3]) {
            *out = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 3;
        } else {
            *out = *at;
        }
    }
    *out = '\0';
}

struct mount {
    char *root, *point, *type, *options;
};

/* "36 35 0:32 /root /point rw,… optional fields - type source options" */
static bool parse_mount(char *line, struct mount *out)
{
    char *middle = strstr(line, " - "), *rest = NULL;
    if (!middle)
        return false;
    *middle = '\0';
    char *type = strtok_r(middle + 3, " \n", &rest), *source = strtok_r(NULL, " \n", &rest);
    char *options = source ? strtok_r(NULL, " \n", &rest) : NULL;
    char *fields[5];
    char *at = line;
    for (unsigned i = 0; i < 5; i++, at = NULL) {
        fields[i] = strtok_r(at, " ", &rest);
        if (!fields[i])
            return false;
    }
    *out = (struct mount){fields[3], fields[4], type, options ? options : ""};
    unescape(out->root);
    unescape(out->point);
    return type != NULL;
}

/* What of `path` lies below the mount's root; NULL: it is not below it. */
static const char *below_root(const char *path, const char *root)
{
    size_t length = strcmp(root, "/") ? strlen(root) : 0;
    if (strncmp(path, root, length) != 0 || (path[length] && path[length] != '/'))
        return NULL;
    return strncmp(path + length, "/..", 3) ? path + length : NULL;
}

/* The process's group in the hierarchy of `controller`, of v1 or v2. Of several mounts the one that
   shows most of the groups above. */
static bool find_group(const char *root, const char *controller, bool v2, struct group *out)
{
    char proc[PATH_BYTES], path[PATH_BYTES], line[LINE_BYTES];
    if ((size_t)snprintf(proc, sizeof proc, "%s/proc", root) >= sizeof proc ||
        !read_group_path(proc, v2 ? NULL : controller, path, sizeof path))
        return false;
    FILE *file = open_below(proc, "self/mountinfo");
    if (!file)
        return false;
    size_t best = 0; /* 1: a mount of another group; more: how much of the path it shows */
    struct mount mount;
    while (fgets(line, sizeof line, file)) {
        if (!parse_mount(line, &mount) || strcmp(mount.type, v2 ? "cgroup2" : "cgroup") != 0 ||
            (!v2 && !lists(mount.options, controller)))
            continue;
        const char *below = below_root(path, mount.root);
        size_t shown = below ? 2 + strlen(below) : 1;
        if (shown <= best)
            continue;
        size_t length =
            (size_t)snprintf(out->folder, sizeof out->folder, "%s%s", root, mount.point);
        if (length + strlen(below ? below : "") >= sizeof out->folder)
            continue;
        strcpy(out->folder + length, below ? below : "");
        out->mount_length = length;
        best = shown;
    }
    fclose(file);
    return best > 0;
}

/* ---- Memory ---- */

/* No other process and no group is in it. */
static bool is_alone(const char *folder, long process)
{
    FILE *file = open_below(folder, "cgroup.procs");
    if (!file)
        return false;
    long number;
    bool alone =
        fscanf(file, "%ld", &number) == 1 && number == process && fscanf(file, "%ld", &number) != 1;
    fclose(file);
    DIR *entries = opendir(folder);
    for (struct dirent *entry; alone && entries && (entry = readdir(entries));)
        alone = entry->d_type != DT_DIR || entry->d_name[0] == '.';
    if (entries)
        closedir(entries);
    return alone;
}

/* What a group is charged for and the kernel could not take back. NONE: the group does not say. */
static uint64_t held_bytes(const char *folder, bool v2)
{
    uint64_t usage = read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (usage == NONE)
        return NONE;
    const char *stat = "memory.stat";
    uint64_t cache =
        or_zero(read_field(folder, stat, v2 ? "inactive_file" : "total_inactive_file")) +
        or_zero(read_field(folder, stat, v2 ? "active_file" : "total_active_file")) +
        (v2 ? or_zero(read_field(folder, stat, "slab_reclaimable")) : 0);
    return less(usage, cache);
}

static uint64_t limit_bytes(const char *folder, bool v2)
{
    /* Over memory.high nobody is killed, but everybody in the group stands still. */
    return v2 ? min_u64(read_number(folder, "memory.max"), read_number(folder, "memory.high"))
              : read_number(folder, "memory.limit_in_bytes");
}

/* v1 without use_hierarchy: what is below is not charged to this group. */
static bool contains_those_below(const char *folder, bool v2)
{
    return v2 || read_number(folder, "memory.use_hierarchy") != 0;
}

struct memory_source {
    uint64_t limit_bytes, others_bytes, reserve_bytes;
    const char *name;
};

static void consider(struct machine *machine, const struct memory_source *source)
{
    uint64_t may = less(source->limit_bytes, source->others_bytes + source->reserve_bytes);
    if (source->limit_bytes < machine->memory_limit_bytes) {
        machine->memory_limit_bytes = source->limit_bytes;
        snprintf(machine->memory_limit_by, sizeof machine->memory_limit_by, "%.*s",
                 MACHINE_TEXT_BYTES - 1, source->name);
    }
    if (may >= machine->memory_bytes)
        return;
    char limit[24], others[24], reserve[24];
    machine->memory_bytes = may;
    snprintf(machine->memory_by, sizeof machine->memory_by,
             "%.*s: %s, of which others hold %s and %s are a reserve", MACHINE_TEXT_BYTES - 100,
             source->name, bytes_format(source->limit_bytes, limit),
             bytes_format(source->others_bytes, others),
             bytes_format(source->reserve_bytes, reserve));
}

/* The groups from the process's own to the mount. `own_bytes` are the process's. */
static void consider_groups(const char *root, bool v2, long process, uint64_t own_bytes,
                            uint64_t physical_bytes, struct machine *machine)
{
    struct group group;
    if (!find_group(root, "memory", v2, &group))
        return;
    uint64_t others = 0, before = NONE; /* held in the group below */
    do {
        uint64_t held = held_bytes(group.folder, v2);
        bool first = before == NONE;
        if (!first && !contains_those_below(group.folder, v2))
            return;
        if (held != NONE && first && is_alone(group.folder, process))
            others = or_zero(read_field(group.folder, "memory.stat", v2 ? "shmem" : "total_shmem"));
        else if (held != NONE)
            others += less(held, first ? own_bytes : before);
        before = held != NONE ? held : before;
        uint64_t limit = limit_bytes(group.folder, v2);
        struct memory_source source = {limit, others, min_u64(limit / RESERVE_SHARE, others),
                                       group.folder + strlen(root)};
        if (limit < physical_bytes) /* else the machine ends first */
            consider(machine, &source);
    } while (group_up(&group));
}

static void inspect_memory(const char *root, const struct machine_kernel *kernel,
                           struct machine *out)
{
    char proc[PATH_BYTES];
    snprintf(proc, sizeof proc, "%s/proc", root);
    uint64_t own = read_field(proc, "self/status", "RssAnon");
    own = or_zero(own == NONE ? read_field(proc, "self/status", "VmRSS") : own);
    uint64_t total = min_u64(kernel->physical_bytes, read_field(proc, "meminfo", "MemTotal"));
    uint64_t available = read_field(proc, "meminfo", "MemAvailable");
    struct memory_source machine = {
        .limit_bytes = total,
        .others_bytes = available == NONE ? 0 : less(total, available + own),
        .reserve_bytes = max_u64(total / RESERVE_SHARE, RESERVE_LEAST),
        .name = "the machine",
    };
    out->memory_limit_bytes = out->memory_bytes = NONE;
    consider(out, &machine);
    consider_groups(root, false, kernel->process, own, total, out);
    consider_groups(root, true, kernel->process, own, total, out);
}

/* ---- Cores ---- */

/* How many numbers stand in a list such as "0-3,7". */
static unsigned count_list(const char *at)
{
    unsigned count = 0;
    while (*at >= '0' && *at <= '9') {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        count += last >= first ? (unsigned)(last - first + 1) : 0;
        at = *end == ',' ? end + 1 : end;
    }
    return count;
}

static void consider_cpuset(const char *root, bool v2, struct machine *machine)
{
    struct group group;
    char line[PATH_BYTES];
    if (!find_group(root, "cpuset", v2, &group))
        return;
    do {
        unsigned cores = 0;
        if (read_line(group.folder, v2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus", line,
                      sizeof line) ||
            (!v2 && read_line(group.folder, "cpuset.cpus", line, sizeof line)))
            cores = count_list(line);
        if (cores > 0 && cores < machine->cores) {
            machine->cores = cores;
            snprintf(machine->cores_by, sizeof machine->cores_by, "the cpuset of %.*s",
                     MACHINE_TEXT_BYTES - 50, group.folder + strlen(root));
        }
        if (cores > 0)
            return; /* a cpuset lies within those that contain it */
    } while (group_up(&group));
}

/* CPU time for each time that passes, in thousandths of a core; NONE: no quota. */
static uint64_t quota_millicores(const char *folder, bool v2)
{
    char line[64];
    unsigned long long quota = 0, period = 0;
    if (v2) {
        if (!read_line(folder, "cpu.max", line, sizeof line) ||
            sscanf(line, "%llu %llu", &quota, &period) != 2)
            return NONE;
    } else {
        quota = read_number(folder, "cpu.cfs_quota_us");
        period = read_number(folder, "cpu.cfs_period_us");
    }
    if (quota == NONE || period == NONE || period == 0 || quota > NONE / 1000)
        return NONE;
    return quota * 1000 / period;
}

static void consider_quota(const char *root, bool v2, struct machine *machine)
{
    struct group group;
    if (!find_group(root, "cpu", v2, &group))
        return;
    do {
        uint64_t quota = quota_millicores(group.folder, v2);
        uint64_t cores = max_u64(quota / 1000, 1);
        if (quota == NONE || cores >= machine->cores)
            continue;
        machine->cores = (unsigned)cores;
        snprintf(machine->cores_by, sizeof machine->cores_by, "the CPU quota of %.*s: %.2f cores",
                 MACHINE_TEXT_BYTES - 60, group.folder + strlen(root), (double)quota / 1000);
    } while (group_up(&group));
}

/* ---- Both ---- */

void machine_ask_kernel(struct machine_kernel *out)
{
    cpu_set_t set;
    long cores =
        sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    *out = (struct machine_kernel){
        .physical_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
        .cores = cores > 0 ? (unsigned)cores : 1,
        .process = getpid(),
    };
}

void machine_inspect(const char *root, const struct machine_kernel *kernel, struct machine *out)
{
    *out = (struct machine){.cores = kernel->cores, .cores_by = "the affinity"};
    inspect_memory(root, kernel, out);
    for (int v2 = 0; v2 < 2; v2++) {
        consider_cpuset(root, v2, out);
        consider_quota(root, v2, out);
    }
}

void machine_inspect_own(struct machine *out)
{
    struct machine_kernel kernel;
    machine_ask_kernel(&kernel);
    machine_inspect("", &kernel, out);
}
