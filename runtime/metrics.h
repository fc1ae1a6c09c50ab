/* What the server counts, and its Prometheus text. */
#ifndef BL_RUNTIME_METRICS_H
#define BL_RUNTIME_METRICS_H

#include "runtime/text.h"

#include <stdint.h>

#define BL_HISTOGRAM_BUCKETS 16

/* Durations in seconds, in buckets from 1 ms doubling to 16 s and then to 300 s; start from {0}. Not locked: the owner does that. */
typedef struct bl_histogram {
    uint64_t count[BL_HISTOGRAM_BUCKETS + 1]; /* [i] = samples in bucket i alone; the last one is above every bound */
    double sum;
} bl_histogram;

void bl_histogram_add(bl_histogram *h, double seconds);
/* Number of samples. */
uint64_t bl_histogram_count(const bl_histogram *h);

/* One metric with its HELP and TYPE lines; name without labels, model a label value. type is "counter" or "gauge". */
void bl_metric_write(bl_text *t, const char *name, const char *type, const char *help, const char *model, double value);
void bl_histogram_write(bl_text *t, const char *name, const char *help, const char *model, const bl_histogram *h);

/* Seconds on a clock that never goes back. */
double bl_clock(void);

#endif
