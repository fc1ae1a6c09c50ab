/* How the scales of quantised weights are spread: a histogram of their exponents. */
#ifndef BL_VERIFY_EXPONENTS_H
#define BL_VERIFY_EXPONENTS_H

#include "verify/bind.h"

/* Index i counts scales from 2^(i - 127) to below twice that: of an E8M0 byte its value, of an F32 its exponent field, the sign apart.
 * 255 is what is not finite; of F32, 0 is zeros and what is below 2^-126. */
typedef struct bl_exponents {
    uint64_t count[256];
    uint64_t scales; /* their sum */
    uint64_t odd;    /* F32: finite and not zero, but no power of two */
} bl_exponents;

/* Add n scales at p: bytes, or F32 at any alignment. */
void bl_exponents_add(bl_exponents *e, const uint8_t *p, uint64_t n, bool f32);
void bl_exponents_sum(bl_exponents *into, const bl_exponents *more);

/* The scales of all weights in one form. */
typedef struct bl_exponent_class {
    bl_form form;
    uint32_t block_rows, block_cols; /* values that share a scale */
    bool f32;
    size_t weights;
    bl_exponents exponents;
} bl_exponent_class;

enum { BL_EXPONENT_CLASSES = 8 };

/* "fp8 32x32", "fp4 1x32", "Engram 1x32", with ", float32 scales" behind it where they are; returns buf. */
const char *bl_exponent_class_name(const bl_exponent_class *k, char *buf, size_t cap);

typedef struct bl_exponent_options {
    int jobs;                                                            /* threads; <= 0 = the CPUs */
    bool (*cancelled)(void);                                             /* may be NULL */
    void (*progress)(void *progress_arg, uint64_t done, uint64_t total); /* bytes; any thread; may be NULL */
    void *progress_arg;
} bl_exponent_options;

/* Read the scales of b, the binding of c, and nothing else; copies on other ranks once. out [BL_EXPONENT_CLASSES] gets *count classes in
 * the order of their forms. arena: scratch. */
bl_status bl_exponents_survey(const bl_checkpoint *c, const bl_binding *b, const bl_exponent_options *o, bl_arena *arena,
                              bl_exponent_class *out, size_t *count, bl_error *err);

#endif
