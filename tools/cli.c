#include "tools/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r); /* where it fails the old limit stays */
    }
}

/* Only what is safe in a handler; nothing can go on. */
static void on_bus_error(int sig)
{
    static const char what[] = ": a mapped file was cut short while it was in use, or its disk fails\n";
    static atomic_flag told = ATOMIC_FLAG_INIT;
    (void)sig;
    while (atomic_flag_test_and_set(&told)) pause(); /* threads fail together */
    (void)!write(2, program_invocation_short_name, strlen(program_invocation_short_name));
    (void)!write(2, what, sizeof what - 1);
    _exit(4);
}

void cli_begin(void)
{
    for (int fd = 0; fd <= 2; fd++) /* open takes the lowest number that is free; each is opened for what nobody does with it */
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0) continue;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGBUS, on_bus_error);
    raise_file_limit();
}

int cli_report(const char *program, bl_status s, const bl_error *err)
{
    if (s == BL_OK) return 0;
    char line[4096];
    bl_error bare = {0};
    if (!err) {
        bl_fail(&bare, s, NULL, NULL, -1, s == BL_E_NOMEM ? "out of memory" : "failed");
        err = &bare;
    }
    fprintf(stderr, "%s: %s\n", program, bl_error_line(err, line, sizeof line));
    return bl_exit_code(s);
}

int cli_finish(const char *program, int status)
{
    const bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout)) return status;
    fprintf(stderr, "%s: standard output: %s\n", program, flushed ? "not all of it could be written" : strerror(errno));
    return status ? status : 4;
}

const char *const cli_devices[] = {[BL_DEVICE_CPU] = "cpu", [BL_DEVICE_CUDA] = "cuda", [BL_DEVICE_AUTO] = "auto", NULL};
const char *const cli_accesses[] = {[BL_ACCESS_AUTO] = "auto", [BL_ACCESS_MMAP] = "mmap", [BL_ACCESS_PREAD] = "pread", NULL};
const char *const cli_checks[] = {[BL_CHECK_NONE] = "none", [BL_CHECK_FAST] = "fast", [BL_CHECK_FULL] = "full", NULL};
const char *const cli_engram_places[] = {
    [BL_ENGRAM_AUTO] = "auto", [BL_ENGRAM_DEVICE] = "device", [BL_ENGRAM_HOST] = "host",
    [BL_ENGRAM_SHARED] = "shared", [BL_ENGRAM_MAPPED] = "mapped", NULL};

const char *cli_default_model(void)
{
#ifdef BL_DEMO_MODEL_FROM_BIN
    static char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof BL_DEMO_MODEL_FROM_BIN);
    while (n > 0 && path[n - 1] != '/') n--;
    if (n > 0) {
        strcpy(path + n, BL_DEMO_MODEL_FROM_BIN);
        if (access(path, F_OK) == 0) return path;
    }
#endif
    return BL_DEMO_MODEL;
}

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
    interrupted = 1;
    signal(sig, SIG_DFL);
}

void cli_catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

bool cli_interrupted(void)
{
    return interrupted != 0;
}
