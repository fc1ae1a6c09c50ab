#include "tests/check/check_state.h"

#include "kernels/cast.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, SHOWN = 4 };

/* ---- buffers */

static uint8_t pattern(size_t i)
{
    return (uint8_t)(0xa5 ^ (i * 37));
}

static void *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("check_kernels: mmap");
        exit(4);
    }
    return p;
}

void *check_buffer(check *c, size_t bytes, size_t align)
{
    if (c->buffers == CHECK_BUFFERS) {
        fprintf(stderr, "check_kernels: %s: more than %d buffers\n", c->label, CHECK_BUFFERS);
        exit(2);
    }
    size_t body = (bytes + PAGE - 1) / PAGE * PAGE + PAGE; /* a page of guard before, the slack of alignment behind */
    check_region *r = &c->buffer[c->buffers++];
    r->base = reserve(body + PAGE);
    r->total = body;
    r->begin = (body - bytes) / align * align;
    r->bytes = bytes;
    if (mprotect(r->base + body, PAGE, PROT_NONE)) perror("check_kernels: mprotect");
    for (size_t i = 0; i < body; i++) r->base[i] = pattern(i);
    return r->base + r->begin;
}

void *check_copy(check *c, const void *src, size_t bytes, size_t align)
{
    void *p = check_buffer(c, bytes, align);
    if (bytes) memcpy(p, src, bytes);
    return p;
}

static void look_at_guards(check *c, const check_region *r, int index)
{
    for (size_t i = 0; i < r->total; i++) {
        if (i == r->begin && r->bytes) i += r->bytes;
        if (i >= r->total) break;
        if (r->base[i] == pattern(i)) continue;
        c->failures++;
        printf("FAIL %s/%s: %s: buffer %d (%zu bytes): byte %lld was written\n", c->family, c->level, c->label, index, r->bytes,
               (long long)i - (long long)r->begin);
        return;
    }
}

void check_end_case(check *c)
{
    for (int i = 0; i < c->buffers; i++) {
        look_at_guards(c, &c->buffer[i], i);
        munmap(c->buffer[i].base, c->buffer[i].total + PAGE);
    }
    c->buffers = 0;
}

void check_case(check *c, const char *fmt, ...)
{
    check_end_case(c);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->label, sizeof c->label, fmt, ap);
    va_end(ap);
    c->cases++;
}

/* ---- random input (splitmix64) */

uint64_t check_random(check *c)
{
    uint64_t z = c->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t check_below(check *c, int64_t n)
{
    return (int64_t)(check_random(c) % (uint64_t)n);
}

void check_random_bytes(check *c, void *p, size_t n)
{
    uint8_t *b = p;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = check_random(c);
        memcpy(b + i, &r, n - i < 8 ? n - i : 8);
    }
}

float check_normal(check *c)
{
    float s = 0;
    for (int i = 0; i < 12; i++) s += (float)(check_random(c) >> 40) * 0x1p-24f;
    s -= 6;
    return s == 0 ? 0x1p-12f : s;
}

void check_random_bf16(check *c, uint16_t *p, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) p[i] = bl_f32_to_bf16(check_normal(c) * scale);
}

/* ---- comparisons */

typedef struct element {
    size_t size;
    void (*print)(const void *p);
} element;

static void print_u8(const void *p)
{
    printf("0x%02x", *(const uint8_t *)p);
}

static void print_i32(const void *p)
{
    printf("%ld", (long)*(const int32_t *)p);
}

static void print_bf16(const void *p)
{
    uint16_t v = *(const uint16_t *)p;
    printf("0x%04x (%.5g)", v, (double)bl_bf16_to_f32(v));
}

static void print_f32(const void *p)
{
    uint32_t bits;
    memcpy(&bits, p, 4);
    printf("0x%08x (%.9g)", (unsigned)bits, (double)*(const float *)p);
}

static void report(check *c, const char *what, int64_t shown)
{
    if (!shown) c->failures++;
    printf("FAIL %s/%s: %s: %s", c->family, c->level, c->label, what);
}

static void report_rest(int64_t bad, int64_t n)
{
    if (bad > SHOWN) printf("     ... %lld of %lld differ\n", (long long)bad, (long long)n);
}

static void report_at(check *c, const char *what, int64_t bad, int64_t i, int64_t cols, const element *e, const void *got,
                      const void *want)
{
    report(c, what, bad);
    printf(" [%lld, %lld]: got ", (long long)(i / cols), (long long)(i % cols));
    e->print(got);
    printf(", want ");
    e->print(want);
    printf("\n");
}

static int compare(check *c, const char *what, const void *got, const void *want, int64_t rows, int64_t cols, const element *e)
{
    int64_t n = rows * cols, bad = 0;
    c->comparisons++;
    if (n == 0 || !memcmp(got, want, (size_t)n * e->size)) return 1;
    for (int64_t i = 0; i < n; i++) {
        const char *g = (const char *)got + (size_t)i * e->size, *w = (const char *)want + (size_t)i * e->size;
        if (!memcmp(g, w, e->size)) continue;
        if (bad < SHOWN) report_at(c, what, bad, i, cols, e, g, w);
        bad++;
    }
    report_rest(bad, n);
    return 0;
}

int check_u8(check *c, const char *what, const uint8_t *got, const uint8_t *want, int64_t rows, int64_t cols)
{
    return compare(c, what, got, want, rows, cols, &(element){1, print_u8});
}

int check_bf16(check *c, const char *what, const uint16_t *got, const uint16_t *want, int64_t rows, int64_t cols)
{
    return compare(c, what, got, want, rows, cols, &(element){2, print_bf16});
}

int check_f32(check *c, const char *what, const float *got, const float *want, int64_t rows, int64_t cols)
{
    return compare(c, what, got, want, rows, cols, &(element){4, print_f32});
}

int check_i32(check *c, const char *what, const int32_t *got, const int32_t *want, int64_t rows, int64_t cols)
{
    return compare(c, what, got, want, rows, cols, &(element){4, print_i32});
}

int check_int(check *c, const char *what, int64_t got, int64_t want)
{
    c->comparisons++;
    if (got == want) return 1;
    report(c, what, 0);
    printf(": got %lld, want %lld\n", (long long)got, (long long)want);
    return 0;
}

int check_near(check *c, const char *what, const float *got, const float *want, int64_t rows, int64_t cols, float bound)
{
    int64_t n = rows * cols, bad = 0;
    c->comparisons++;
    for (int64_t i = 0; i < n; i++) {
        float size = fabsf(want[i]) > 1 ? fabsf(want[i]) : 1;
        if (fabsf(got[i] - want[i]) <= bound * size) continue; /* false for NaN, which is a failure */
        if (bad < SHOWN) report_at(c, what, bad, i, cols, &(element){4, print_f32}, &got[i], &want[i]);
        bad++;
    }
    report_rest(bad, n);
    return bad == 0;
}
