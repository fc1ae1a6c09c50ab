/* What lies behind struct bench: memory to free, the JSON document, and results on their way from measuring to printing. */
#ifndef BL_TOOLS_BENCH_STATE_H
#define BL_TOOLS_BENCH_STATE_H

#include "tools/bench.h"

#include <jansson.h>

enum { BENCH_BLOCKS = 256, BENCH_OPTIONS = 24 };

typedef struct bench_block {
    void *p;
    size_t bytes; /* 0: from malloc, else mapped */
} bench_block;

struct bench_state {
    cli_option options[BENCH_OPTIONS];
    bench_block blocks[BENCH_BLOCKS];
    int count;
    void *pass[2]; /* BENCH_PASS bytes each, shared by the memory ceilings */
    json_t *sets;
    double rates[BENCH_SUBJECTS]; /* of the newest set */
    bool begun; /* the heading is printed */
};

/* Median and 10th to 90th percentile. */
typedef struct bench_spread {
    double median, p10, p90;
} bench_spread;

typedef struct bench_result {
    int runs;           /* fewer than rounds after an interruption; without any, nothing below counts */
    bench_spread rate;  /* work per second */
    bench_spread share; /* of the floor's time, 0..1; median < 0 when there is nothing to hold it against */
    int bound;          /* the subject that bounds it in the last round, -1 */
    bench_spread beside; /* of the rate of the subject named beside; median < 0 as above */
    double cpu;         /* seconds of all CPUs for a unit of work, median */
} bench_result;

/* Prints one set, or adds it to the JSON document. */
bl_status bench_report(bench *b, const char *title, const bench_subject *s, const bench_result *r, int n, int rounds,
                       bl_error *err);

#endif
