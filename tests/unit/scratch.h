/* For unit tests: a scratch folder, files in it, and what an error must look like. */
#ifndef BL_TESTS_UNIT_SCRATCH_H
#define BL_TESTS_UNIT_SCRATCH_H

#include "formats/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch_root[256];

/* cmocka setup and teardown. */
static inline int scratch_begin(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(scratch_root, sizeof scratch_root, "%s/bl-test-XXXXXX", base ? base : "/tmp");
    return mkdtemp(scratch_root) ? 0 : -1;
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline int scratch_end(void **state)
{
    (void)state;
    return nftw(scratch_root, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a name in the scratch folder; one of 8 buffers in turn. */
__attribute__((format(printf, 1, 2))) static inline const char *scratch_path(const char *fmt, ...)
{
    static char buffers[8][1024];
    static unsigned turn;
    char *p = buffers[turn++ % 8];
    int n = snprintf(p, 1024, "%s/", scratch_root);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p + n, 1024 - (size_t)n, fmt, ap);
    va_end(ap);
    return p;
}

static inline void scratch_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void scratch_text(const char *path, const char *text)
{
    scratch_write(path, text, strlen(text));
}

/* A safetensors file: length field, header, data_bytes bytes 0, 1, 2 ... */
static inline void scratch_safetensors(const char *path, const char *header, size_t header_bytes,
                                       size_t data_bytes)
{
    unsigned char *p = malloc(8 + header_bytes + data_bytes);
    assert_non_null(p);
    for (int i = 0; i < 8; i++) {
        p[i] = (unsigned char)((uint64_t)header_bytes >> 8 * i);
    }
    memcpy(p + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        p[8 + header_bytes + i] = (unsigned char)i;
    }
    scratch_write(path, p, 8 + header_bytes + data_bytes);
    free(p);
}

/* status and e must be this failure, its line containing every fragment (separated by '|'). */
static inline void expect_failure(bl_status status, const bl_error *e, bl_status code, const char *fragments)
{
    char line[2400], want[512];
    bl_error_line(e, line, sizeof line);
    snprintf(want, sizeof want, "%s", fragments);
    if (status != code || e->code != code) {
        fail_msg("status %d, error code %d, expected %d (%s): %s", status, e->code, code, fragments, line);
    }
    for (char *part = strtok(want, "|"); part; part = strtok(NULL, "|")) {
        if (!strstr(line, part)) {
            fail_msg("no '%s' in: %s", part, line);
        }
    }
    if (strpbrk(line, "\n\r\t\x1b")) {
        fail_msg("control characters in: %s", line);
    }
}

/* Fails the test with the message of e unless status is BL_OK. */
static inline void expect_ok(bl_status status, const bl_error *e)
{
    char line[2400];
    if (status != BL_OK) {
        fail_msg("%s", bl_error_line(e, line, sizeof line));
    }
}

#endif
