#include "tools/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/status.h"
#include "kernels/cpu.h"

#define SHOWN "%.80s" /* of a wrong value */

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
    printf("\nexit status: 0 success, 1 a finding, 2 wrong usage, 3 bad input, 4 I/O trouble, interrupted\n");
}

int cli_usage_error(const cli_command *c, const char *fmt, ...)
{
    char message[1024], shown[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s: %s (see %s --help)\n", c->program, bl_text_escape(shown, sizeof shown, message, 0), c->program);
    return 2;
}

/* ---- numbers */

/* Digits, 64K, 128Ki; with bytes also 5GB and 512MiB. False when it is none, or beyond 64 bits. */
static bool parse_count(const char *s, bool bytes, uint64_t *out)
{
    if (!isdigit((unsigned char)*s)) return false;
    char *end;
    errno = 0;
    uint64_t v = strtoull(s, &end, 10), base = 1000;
    if (errno) return false;
    unsigned power = 0;
    static const char units[] = "KMGTP";
    const char *u = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (u) {
        power = (unsigned)(u - units) + 1;
        end++;
    }
    if (u && *end == 'i') {
        base = 1024;
        end++;
    }
    if (bytes && (*end == 'B' || *end == 'b')) end++;
    if (*end) return false;
    for (unsigned i = 0; i < power; i++)
        if (bl_mul_overflow(v, base, &v)) return false;
    *out = v;
    return true;
}

static bool parse_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end || !isdigit((unsigned char)s[*s == '-'])) return false;
    *out = v;
    return true;
}

static bool parse_real(const char *s, double *out)
{
    char *end;
    double v = strtod(s, &end);
    if (end == s || s[strspn(s, "0123456789.eE+-")] || *s == '+' || *end || !isfinite(v)) return false;
    *out = v;
    return true;
}

/* "4KiB" where it is whole, else "1000 bytes". */
static const char *show_size(int64_t n, char *buf, size_t cap)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = -1;
    while (n && n % 1024 == 0 && u < 4) {
        n /= 1024;
        u++;
    }
    snprintf(buf, cap, u < 0 ? "%lld %s" : "%lld%s", (long long)n, u >= 0 ? units[u] : n == 1 ? "byte" : "bytes");
    return buf;
}

/* ---- values */

static int set_int(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    const cli_takes *t = &o->takes;
    int64_t v = 0;
    uint64_t n = 0;
    bool ok = t->kind == CLI_IS_INT ? parse_int(arg, &v) : parse_count(arg, false, &n) && n <= INT64_MAX;
    v = t->kind == CLI_IS_INT ? v : (int64_t)n;
    if (!ok || v < t->least || v > t->most)
        return t->most == INT64_MAX ? cli_usage_error(c, "%s takes %lld or more, not '" SHOWN "'", label, (long long)t->least, arg)
                                    : cli_usage_error(c, "%s takes %lld to %lld, not '" SHOWN "'", label, (long long)t->least,
                                                      (long long)t->most, arg);
    *(int64_t *)o->value = v;
    return -1;
}

static int set_size(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    char least[32], most[32];
    uint64_t v;
    if (!parse_count(arg, true, &v) || v < (uint64_t)o->takes.least || v > (uint64_t)o->takes.most)
        return cli_usage_error(c, "%s takes a size such as 5GB or 512MiB, from %s to %s, not '" SHOWN "'", label,
                               show_size(o->takes.least, least, sizeof least), show_size(o->takes.most, most, sizeof most), arg);
    *(uint64_t *)o->value = v;
    return -1;
}

static int set_real(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    const cli_takes *t = &o->takes;
    double v;
    if (!parse_real(arg, &v) || v < t->low || v > t->high || (t->open && v == t->low))
        return cli_usage_error(c, "%s takes %s%.9g to %.9g, not '" SHOWN "'", label, t->open ? "above " : "", t->low, t->high, arg);
    *(double *)o->value = v;
    return -1;
}

/* Place of the n bytes at word in words, -1 when they are none of them. */
static int find_word(const char *const *words, const char *word, size_t n)
{
    for (int i = 0; words[i]; i++)
        if (strlen(words[i]) == n && !strncmp(words[i], word, n)) return i;
    return -1;
}

/* "a, b or c" */
static const char *list_words(const char *const *words, const char *last, char *buf, size_t cap)
{
    size_t n = 0;
    for (int i = 0; words[i] && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%s", !i ? "" : words[i + 1] ? ", " : last, words[i]);
    return buf;
}

static int set_word(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    char list[200];
    int i = find_word(o->takes.words, arg, strlen(arg));
    if (i < 0) return cli_usage_error(c, "%s takes %s, not '" SHOWN "'", label, list_words(o->takes.words, " or ", list, sizeof list), arg);
    *(int *)o->value = i;
    return -1;
}

static int set_words(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    char list[200];
    unsigned bits = 0;
    for (const char *p = arg;; p++) {
        size_t n = strcspn(p, ",");
        int i = find_word(o->takes.words, p, n);
        if (i < 0 || (bits >> i & 1))
            return cli_usage_error(c, "%s takes %s, each at most once, between commas, not '" SHOWN "'", label,
                                   list_words(o->takes.words, " and ", list, sizeof list), arg);
        bits |= 1u << i;
        p += n;
        if (!*p) break;
    }
    *(unsigned *)o->value = bits;
    return -1;
}

static int set_string(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    cli_list *l = o->value;
    if (!*arg && o->takes.kind != CLI_IS_TEXT) return cli_usage_error(c, "%s takes %s, not ''", label, o->arg);
    if (o->takes.kind != CLI_IS_LIST) {
        *(const char **)o->value = arg;
        return -1;
    }
    if (l->count == CLI_LIST_MAX) return cli_usage_error(c, "%s may be given at most %d times", label, CLI_LIST_MAX);
    l->items[l->count++] = arg;
    return -1;
}

static int set_cpu(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    unsigned have = bl_cpu_detect(), want;
    if (bl_cpu_parse(arg, &want))
        return cli_usage_error(c, "%s takes c, avx2, avx512, avx512bf16, neon or native, not '" SHOWN "'", label, arg);
    if (strcmp(arg, "native") && (want & have) != want)
        return cli_usage_error(c, "%s %s: this CPU does not have it (highest level: %s)", label, arg, bl_cpu_name(have));
    *(unsigned *)o->value = want & have;
    return -1;
}

/* label: what the line calls the option. -1, or exit status 2. */
static int set_value(const cli_command *c, const char *label, const cli_option *o, const char *arg)
{
    switch (o->takes.kind) {
    case CLI_IS_FLAG: *(bool *)o->value = true; return -1;
    case CLI_IS_STRING:
    case CLI_IS_TEXT:
    case CLI_IS_LIST: return set_string(c, label, o, arg);
    case CLI_IS_WORD: return set_word(c, label, o, arg);
    case CLI_IS_WORDS: return set_words(c, label, o, arg);
    case CLI_IS_INT:
    case CLI_IS_COUNT: return set_int(c, label, o, arg);
    case CLI_IS_SIZE: return set_size(c, label, o, arg);
    case CLI_IS_REAL: return set_real(c, label, o, arg);
    case CLI_IS_CPU: return set_cpu(c, label, o, arg);
    }
    return -1;
}

/* ---- the command line */

static const cli_option *find_option(const cli_option *o, const char *name, size_t n)
{
    for (; o && o->name; o++)
        if (strlen(o->name) == n && !strncmp(o->name, name, n)) return o;
    return NULL;
}

static bool is_option(const cli_command *c, const char *arg)
{
    return !strncmp(arg, "--", 2) && (!strcmp(arg, "--help") || find_option(c->options, arg + 2, strcspn(arg + 2, "=")));
}

/* The option at argv[*i], which moves to its last word. given: by place in the table. */
static int read_option(const cli_command *c, char **argv, int *i, bool *given)
{
    char label[80];
    const char *text = argv[*i], *name = text + 2, *value = strchr(text, '=');
    const cli_option *o = strncmp(text, "--", 2) ? NULL : find_option(c->options, name, strcspn(name, "="));
    if (!o) return cli_usage_error(c, "unknown option " SHOWN, text);
    snprintf(label, sizeof label, "--%s", o->name);
    if (o->takes.kind != CLI_IS_LIST && given[o - c->options]) return cli_usage_error(c, "%s given twice", label);
    given[o - c->options] = true;
    if (o->takes.kind == CLI_IS_FLAG) return value ? cli_usage_error(c, "%s takes no value", label) : set_value(c, label, o, NULL);
    if (value) return set_value(c, label, o, value + 1);
    value = argv[++*i];
    if (!value) return cli_usage_error(c, "%s needs a value", label);
    if (is_option(c, value)) return cli_usage_error(c, "%s needs a value, not the option " SHOWN, label, value);
    return set_value(c, label, o, value);
}

int cli_parse(const cli_command *c, int argc, char **argv, const char **args, int *count)
{
    bool given[CLI_OPTIONS_MAX] = {false}, ended = false;
    const char *surplus = NULL;
    *count = 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (ended || a[0] != '-' || !a[1]) {
            if (!*a) return cli_usage_error(c, "an argument is empty");
            if (*count < c->max_args) args[(*count)++] = a;
            else surplus = surplus ? surplus : a;
        } else if (!a[2] && a[1] == '-') {
            ended = true;
        } else if (!strcmp(a, "--help")) {
            print_help(c);
            return 0;
        } else {
            int rc = read_option(c, argv, &i, given);
            if (rc >= 0) return rc;
        }
    }
    if (surplus) return cli_usage_error(c, "unexpected argument '" SHOWN "'", surplus);
    if (*count < c->min_args) return cli_usage_error(c, "too few arguments: %s", c->usage);
    return -1;
}

int cli_parse_keys(const cli_command *c, const char *option, char *text, const cli_option *keys)
{
    bool given[CLI_OPTIONS_MAX] = {false};
    for (char *next = text; next;) {
        char label[80], *key = strsep(&next, ","), *value = strchr(key, '=');
        if (value) *value++ = 0;
        const cli_option *o = find_option(keys, key, strlen(key));
        if (!o) {
            char list[200] = "";
            for (o = keys; o->name; o++)
                snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s=%s", o == keys ? "" : ", ", o->name, o->arg);
            return cli_usage_error(c, "--%s has no key '" SHOWN "'; it takes %s", option, key, list);
        }
        snprintf(label, sizeof label, "--%s: %s", option, o->name);
        if (given[o - keys]) return cli_usage_error(c, "%s given twice", label);
        given[o - keys] = true;
        if (!value) return cli_usage_error(c, "%s needs a value, %s=%s", label, o->name, o->arg);
        int rc = set_value(c, label, o, value);
        if (rc >= 0) return rc;
    }
    return -1;
}
