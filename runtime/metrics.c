#include "runtime/metrics.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const double bounds[BL_HISTOGRAM_BUCKETS] = {0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128,
                                                    0.25,  0.5,   1,     2,     4,     16,    60,    300};

void bl_histogram_add(bl_histogram *h, double seconds)
{
    int i = 0;
    while (i < BL_HISTOGRAM_BUCKETS && seconds > bounds[i])
        i++;
    h->count[i]++;
    h->sum += seconds;
}

uint64_t bl_histogram_count(const bl_histogram *h)
{
    uint64_t n = 0;
    for (int i = 0; i <= BL_HISTOGRAM_BUCKETS; i++)
        n += h->count[i];
    return n;
}

/* NAME{model_name="M" and what follows in the braces. */
static void write_sample(bl_text *t, const char *name, const char *suffix, const char *model, const char *more, double value)
{
    char number[48];
    bl_text_puts(t, name);
    bl_text_puts(t, suffix);
    bl_text_puts(t, "{model_name=\"");
    for (const char *p = model; *p; p++) { /* a label value escapes these three and nothing else */
        if (*p == '\\' || *p == '"')
            bl_text_add(t, "\\", 1);
        if (*p == '\n')
            bl_text_puts(t, "\\n");
        else
            bl_text_add(t, p, 1);
    }
    bl_text_puts(t, "\"");
    bl_text_puts(t, more);
    snprintf(number, sizeof number, "} %.17g\n", value);
    bl_text_puts(t, number);
}

static void write_head(bl_text *t, const char *name, const char *type, const char *help)
{
    const char *parts[] = {"# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        bl_text_puts(t, parts[i]);
}

void bl_metric_write(bl_text *t, const char *name, const char *type, const char *help, const char *model, double value)
{
    write_head(t, name, type, help);
    write_sample(t, name, "", model, "", value);
}

void bl_histogram_write(bl_text *t, const char *name, const char *help, const char *model, const bl_histogram *h)
{
    char more[48];
    uint64_t n = 0;
    write_head(t, name, "histogram", help);
    for (int i = 0; i < BL_HISTOGRAM_BUCKETS; i++) {
        n += h->count[i];
        snprintf(more, sizeof more, ",le=\"%g\"", bounds[i]);
        write_sample(t, name, "_bucket", model, more, (double)n);
    }
    n += h->count[BL_HISTOGRAM_BUCKETS];
    write_sample(t, name, "_bucket", model, ",le=\"+Inf\"", (double)n);
    write_sample(t, name, "_sum", model, "", h->sum);
    write_sample(t, name, "_count", model, "", (double)n);
}

double bl_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
