/* Kernel checks: every variant of every family against its C reference, on each CPU level that this machine has.
 *
 * One program with no library behind it, so that it can be built with -static (meson setup -Dc_link_args=-static, then
 * ninja tests/check_kernels) and carried to a machine with other instruction sets.
 *
 * A family is a function in check_FAMILY.c, named in the table of check_kernels.c. For each level it is called with that
 * level's mask; it fills one table with mask 0 (the reference) and one with the mask, runs both on the same random legal
 * input over odd sizes, and compares. Checks of the reference itself, against an independent statement of the definition,
 * run when the mask is 0. */
#ifndef BL_TESTS_CHECK_H
#define BL_TESTS_CHECK_H

#include <stddef.h>
#include <stdint.h>

typedef struct check check;

/* Names the case that follows: "fp4_row cols=34 offset=1". Reports carry it. It also releases every buffer of the case before,
 * after looking at their guard bytes. */
void check_case(check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A buffer for the current case, its start a multiple of align (a power of two up to 4096) and, as near as that allows, its
 * end at the last byte before a page that may not be touched: with align 1 the first byte read or written beyond it is a
 * fault, reported with the case's name. The bytes around it are guards, which check_case and the end of the run look at. The
 * content starts as a pattern that no kernel writes by chance. */
void *check_buffer(check *c, size_t bytes, size_t align);
/* The same with the content copied from src. */
void *check_copy(check *c, const void *src, size_t bytes, size_t align);

/* ---- deterministic random input */
uint64_t check_random(check *c);
int64_t check_below(check *c, int64_t n); /* 0 <= result < n */
void check_random_bytes(check *c, void *p, size_t n);
float check_normal(check *c); /* about N(0, 1), never 0 */
/* n bf16 of about N(0, 1) times scale. */
void check_random_bf16(check *c, uint16_t *p, size_t n, float scale);

/* ---- comparisons; each counts, and a failure prints the case, the first coordinates [row, col] and both values. Bits are
 * compared: -0 is not +0, and a NaN equals only itself. Returns nonzero when equal. */
int check_u8(check *c, const char *what, const uint8_t *got, const uint8_t *want, int64_t rows, int64_t cols);
int check_bf16(check *c, const char *what, const uint16_t *got, const uint16_t *want, int64_t rows, int64_t cols);
int check_f32(check *c, const char *what, const float *got, const float *want, int64_t rows, int64_t cols);
int check_i32(check *c, const char *what, const int32_t *got, const int32_t *want, int64_t rows, int64_t cols);
int check_int(check *c, const char *what, int64_t got, int64_t want);
/* |got - want| <= bound * max(1, |want|) element by element, for the few operations whose bits are not fixed; say at the call
 * why the bound is what it is. */
int check_near(check *c, const char *what, const float *got, const float *want, int64_t rows, int64_t cols, float bound);

/* ---- families */
void check_cast(check *c, unsigned cpu);
void check_ops(check *c, unsigned cpu);
void check_linear(check *c, unsigned cpu);
void check_quant(check *c, unsigned cpu);

#endif
