/* The state behind check.h, shared by check.c and the program. */
#ifndef BL_TESTS_CHECK_STATE_H
#define BL_TESTS_CHECK_STATE_H

#include "tests/check/check.h"

enum { CHECK_BUFFERS = 64 };

typedef struct check_region {
    uint8_t *base;       /* total bytes, then a page without access */
    size_t total, begin, bytes;
} check_region;

struct check {
    const char *family, *level;
    char label[256];
    uint64_t random;
    int64_t cases, comparisons, failures;
    check_region buffer[CHECK_BUFFERS];
    int buffers;
};

/* Looks at the guards of the current case and releases its buffers. */
void check_end_case(check *c);

#endif
