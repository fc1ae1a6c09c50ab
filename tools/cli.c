#include "tools/cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/cpu.h"

#define MAX_OPTIONS 64

static void print_help(const cli_command *c)
{
    printf("usage: %s %s\n\n%s\n", c->program, c->usage, c->summary);
    if (c->details) printf("\n%s", c->details);
    printf("\noptions:\n");
    for (const cli_option *o = c->options; o && o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-26s %s\n", left, o->help);
    }
    printf("  %-26s %s\n", "--help", "print this text");
    printf("\nexit status: 0 success, 1 a finding, 2 wrong usage, 3 bad input, 4 I/O trouble\n");
}

int cli_usage_error(const cli_command *c, const char *fmt, ...)
{
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    for (char *p = msg; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    fprintf(stderr, "%s: %s (see %s --help)\n", c->program, msg, c->program);
    return 2;
}

int cli_parse_size(const char *s, uint64_t *out)
{
    if (!isdigit((unsigned char)*s)) return -1;
    char *end;
    errno = 0;
    unsigned long long n = strtoull(s, &end, 10);
    if (errno) return -1;
    unsigned power = 0;
    static const char units[] = "KMGTP";
    const char *u = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (u) {
        power = (unsigned)(u - units) + 1;
        end++;
    }
    uint64_t base = 1000;
    if (u && *end == 'i') {
        base = 1024;
        end++;
    }
    if (*end == 'B' || *end == 'b') end++;
    if (*end) return -1;
    uint64_t v = n;
    for (unsigned i = 0; i < power; i++)
        if (bl_mul_overflow(v, base, &v)) return -1;
    *out = v;
    return 0;
}

static int parse_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || end == s || *end || isspace((unsigned char)*s)) return -1;
    *out = v;
    return 0;
}

static int parse_real(const char *s, double *out)
{
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !isfinite(v) || isspace((unsigned char)*s)) return -1;
    *out = v;
    return 0;
}

static int set_option(const cli_command *c, const cli_option *o, const char *arg)
{
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)o->value = true;
        return 0;
    case CLI_PATH:
        if (!*arg) return cli_usage_error(c, "--%s takes a path, not ''", o->name);
        *(const char **)o->value = arg;
        return 0;
    case CLI_STRING:
        *(const char **)o->value = arg;
        return 0;
    case CLI_LIST: {
        cli_list *l = o->value;
        if (l->count == CLI_LIST_MAX) return cli_usage_error(c, "--%s may be given at most %d times", o->name, CLI_LIST_MAX);
        l->items[l->count++] = arg;
        return 0;
    }
    case CLI_INT:
        if (parse_int(arg, o->value)) return cli_usage_error(c, "--%s takes a whole number, not '%.80s'", o->name, arg);
        return 0;
    case CLI_SIZE:
        if (cli_parse_size(arg, o->value))
            return cli_usage_error(c, "--%s takes a size such as 5GB or 512MiB, not '%.80s'", o->name, arg);
        return 0;
    case CLI_REAL:
        if (parse_real(arg, o->value)) return cli_usage_error(c, "--%s takes a number, not '%.80s'", o->name, arg);
        return 0;
    }
    return 0;
}

int cli_parse(const cli_command *c, int argc, char **argv, const char **args, int *count)
{
    struct option longs[MAX_OPTIONS + 2];
    int n = 0;
    for (; c->options && c->options[n].name && n < MAX_OPTIONS; n++) {
        int takes = c->options[n].kind == CLI_FLAG ? no_argument : required_argument;
        longs[n] = (struct option){c->options[n].name, takes, NULL, 256 + n};
    }
    longs[n] = (struct option){"help", no_argument, NULL, 'h'};
    longs[n + 1] = (struct option){NULL, 0, NULL, 0};
    opterr = 0;
    optind = 1;
    int k;
    while ((k = getopt_long(argc, argv, ":", longs, NULL)) != -1) {
        if (k == 'h') {
            print_help(c);
            return cli_finish(c->program, 0);
        }
        if (k == ':') return cli_usage_error(c, "%.80s needs a value", argv[optind - 1]);
        if (k == '?') return cli_usage_error(c, "unknown or misused option %.80s", argv[optind - 1]);
        int bad = set_option(c, &c->options[k - 256], optarg);
        if (bad) return bad;
    }
    *count = argc - optind;
    if (*count < c->min_args) return cli_usage_error(c, "too few arguments: %s", c->usage);
    if (*count > c->max_args) return cli_usage_error(c, "unexpected argument '%.80s'", argv[optind + c->max_args]);
    for (int i = 0; i < *count; i++) {
        args[i] = argv[optind + i];
        if (!*args[i]) return cli_usage_error(c, "an argument is empty");
    }
    return -1;
}

int cli_report(const char *program, bl_status s, const bl_error *err)
{
    if (s == BL_OK) return 0;
    char line[4096];
    fprintf(stderr, "%s: %s\n", program, bl_error_line(err, line, sizeof line));
    return bl_exit_code(s);
}

int cli_finish(const char *program, int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "%s: standard output: %s\n", program, strerror(errno ? errno : EIO));
    return status ? status : 4;
}

int cli_cpu(const cli_command *c, const char *level, unsigned *mask)
{
    unsigned have = bl_cpu_detect(), want = have;
    if (level && bl_cpu_parse(level, &want))
        return cli_usage_error(c, "--cpu takes c, avx2, avx512, avx512bf16, neon or native, not '%.40s'", level);
    if (level && strcmp(level, "native") != 0 && (want & have) != want)
        return cli_usage_error(c, "this CPU has no %s (highest level: %s)", level, bl_cpu_name(have));
    *mask = want & have;
    return 0;
}

/* Index of word among n, -1 when it is none of them. */
static int choose(const char *word, const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(word, words[i])) return i;
    return -1;
}

int cli_device(const cli_command *c, const char *name, bl_device *device)
{
    static const char *const names[3] = {[BL_DEVICE_CPU] = "cpu", [BL_DEVICE_CUDA] = "cuda", [BL_DEVICE_AUTO] = "auto"};
    const int i = name ? choose(name, names, 3) : (int)*device;
    if (i < 0) return cli_usage_error(c, "--device takes cpu, cuda or auto, not '%.40s'", name);
    *device = (bl_device)i;
    return 0;
}

const char *const cli_engram_places[4] = {
    [BL_ENGRAM_AUTO] = "auto", [BL_ENGRAM_DEVICE] = "device", [BL_ENGRAM_HOST] = "host", [BL_ENGRAM_MAPPED] = "mapped"};

int cli_access(const cli_command *c, const char *name, bl_access *access)
{
    static const char *const names[3] = {[BL_ACCESS_AUTO] = "auto", [BL_ACCESS_MMAP] = "mmap", [BL_ACCESS_PREAD] = "pread"};
    const int i = choose(name, names, 3);
    if (i < 0) return cli_usage_error(c, "--access takes auto, mmap or pread, not '%.40s'", name);
    *access = (bl_access)i;
    return 0;
}

int cli_engram(const cli_command *c, const char *name, bl_engram_place *place)
{
    const int i = choose(name, cli_engram_places, 4);
    if (i < 0) return cli_usage_error(c, "--engram takes auto, device, host or mapped, not '%.40s'", name);
    *place = (bl_engram_place)i;
    return 0;
}

int cli_check(const cli_command *c, const char *name, bl_check *check)
{
    static const char *const names[3] = {[BL_CHECK_NONE] = "none", [BL_CHECK_FAST] = "fast", [BL_CHECK_FULL] = "full"};
    const int i = choose(name, names, 3);
    if (i < 0) return cli_usage_error(c, "--check takes none, fast or full, not '%.40s'", name);
    *check = (bl_check)i;
    return 0;
}

void cli_raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r); /* where it fails the old limit stays */
    }
}

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
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* writing beyond a limit is an error, EFBIG */
}

bool cli_interrupted(void)
{
    return interrupted != 0;
}
