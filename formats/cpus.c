/* How many CPUs this process may keep busy: affinity mask and cgroup CPU quota. */
#include "formats/pool.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int affinity_cpus(void)
{
    /* Machines with more than 1024 CPUs need larger masks than cpu_set_t. */
    for (int cpus = 1024; cpus <= 1 << 18; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set) {
            break;
        }
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        int n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0) {
            return n;
        }
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < INT_MAX ? (int)n : 1;
}

/* The first line of a small file, without its newline; 0 when it cannot be read. */
static int first_line(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "re");
    int ok = f && fgets(buf, (int)cap, f);
    if (f) {
        fclose(f);
    }
    if (ok) {
        buf[strcspn(buf, "\n")] = 0;
    }
    return ok;
}

/* CPUs' worth of quota / period, rounded up, at least 1; INT_MAX without a limit. */
static int quota_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) {
        return INT_MAX;
    }
    long long n = quota / period + (quota % period != 0);
    return n < 1 ? 1 : n > INT_MAX ? INT_MAX : (int)n;
}

/* The smallest limit from the process's cgroup (version 2) up to the root: an outer group limits its
 * children. */
static int cgroup2_cpus(const char *group)
{
    char dir[PATH_MAX], path[PATH_MAX + 16], line[128];
    int least = INT_MAX;
    if ((size_t)snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", group) >= sizeof dir) {
        return least;
    }
    size_t root = strlen("/sys/fs/cgroup");
    for (;;) {
        long long quota, period;
        snprintf(path, sizeof path, "%s/cpu.max", dir);
        if (first_line(path, line, sizeof line) && sscanf(line, "%lld %lld", &quota, &period) == 2) {
            int n = quota_cpus(quota, period);
            least = n < least ? n : least;
        }
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < root) {
            return least;
        }
        *slash = 0;
    }
}

static int cgroup1_cpus(void)
{
    char quota[64], period[64];
    if (first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota) &&
        first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period)) {
        return quota_cpus(atoll(quota), atoll(period));
    }
    return INT_MAX;
}

static int cgroup_cpus(void)
{
    char line[PATH_MAX];
    int least = cgroup1_cpus();
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::", 3) == 0) {
            int n = cgroup2_cpus(line[3] == '/' && line[4] == 0 ? "" : line + 3);
            least = n < least ? n : least;
        }
    }
    if (f) {
        fclose(f);
    }
    return least;
}

int bl_cpus_available(void)
{
    int n = affinity_cpus(), quota = cgroup_cpus();
    return quota < n ? quota : n;
}
