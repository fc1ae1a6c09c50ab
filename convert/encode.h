/* Encoding weights: codes and scales from values, a piece of rows at a time, with what was lost. Values come from BF16, where codes
 * lose something, or from codes of another kind, where nothing may be lost. */
#ifndef BL_CONVERT_ENCODE_H
#define BL_CONVERT_ENCODE_H

#include "convert/hints.h"
#include "kernels/quant.h"
#include "verify/values.h"

/* Where an encoded weight belongs, for the report. */
typedef enum bl_encode_class {
    BL_ENCODE_ATTENTION = 0,
    BL_ENCODE_EXPERTS,
    BL_ENCODE_SHARED, /* shared experts */
    BL_ENCODE_ENGRAM,
    BL_ENCODE_DRAFT,
    BL_ENCODE_CLASSES
} bl_encode_class;

const char *bl_encode_class_name(bl_encode_class c); /* "attention" ... */

/* What became of the weights of a class. */
typedef struct bl_encode_stats {
    size_t weights;
    uint64_t values, blocks;
    uint64_t kept; /* blocks under the scale that they had: every value has a code */
    uint64_t lost; /* blocks with a value that has no code under their scale */
    double error2, value2; /* sums of squares: of value - decoded code, and of value */
    float error;           /* largest |value - decoded code| */
} bl_encode_stats;

typedef struct bl_encode_options {
    bl_fp4_ties ties;
    bool canonical_zero; /* write the code of +0 for -0 */
    bl_hints *hints;     /* NULL = none; bound to the plan */
    unsigned cpu;
} bl_encode_options;

typedef struct bl_encoder bl_encoder;

/* For the weights that plan encodes from values. sums: NULL, or [plan sum_count], to which the value digests of what is encoded are
 * added, as the source has it. folder: for scales that have to wait on disk. All arguments but o are borrowed. */
bl_status bl_encoder_create(bl_encoder **out, const bl_plan *plan, bl_values *values, bl_sum *sums, const bl_encode_options *o,
                            const char *folder, bl_error *err);
void bl_encoder_destroy(bl_encoder **e);
/* Bytes of scratch that bl_encode needs, for any number of rows. */
uint64_t bl_encoder_scratch(const bl_encoder *e);

/* Rows [row, row + rows) of the codes of t, an encoded tensor, to codes; row is a multiple of 32 and of a block's rows, and so is rows unless the
 * tensor ends there. Their scale bytes wait for bl_encode_scales. Each row is encoded once. BL_E_INPUT, naming the tensor and the
 * place: a NaN or an infinity, for which there is no code; a block of codes that cannot be recast without loss. scratch: aligned to BL_IO_ALIGN. Thread-safe. */
bl_status bl_encode(bl_encoder *e, const bl_plan_tensor *t, uint64_t row, uint64_t rows, uint8_t *codes, uint8_t *scratch,
                    bl_error *err);
/* n bytes at offset of the scale tensor t; all its codes were made. In ascending order. */
bl_status bl_encode_scales(bl_encoder *e, const bl_plan_tensor *t, uint64_t offset, uint64_t n, uint8_t *dst, bl_error *err);

/* What became of the weights in a file of the plan so far; weights is 0. */
void bl_encoder_stats(bl_encoder *e, size_t file, bl_encode_stats out[BL_ENCODE_CLASSES]);

/* Weights of each class that plan encodes from BF16, added to out[].weights. */
void bl_encode_count(const bl_plan *plan, bl_encode_stats out[BL_ENCODE_CLASSES]);
/* Add the figures of more to s. */
void bl_encode_stats_add(bl_encode_stats *s, const bl_encode_stats *more);

#endif
