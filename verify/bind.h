/* Binding: which tensors of a checkpoint fill which slots of its model, in which stored form, with which scale. */
#ifndef BL_VERIFY_BIND_H
#define BL_VERIFY_BIND_H

#include "formats/checkpoint.h"
#include "verify/digest.h"
#include "verify/generation.h"
#include "verify/problem.h"
#include "verify/slots.h"

typedef enum bl_form {
    BL_FORM_F32 = 1,
    BL_FORM_BF16,
    BL_FORM_FP8,   /* e4m3 codes, a scale per block: V4.1 e8m0 [ceil(out/32), ceil(in/32)], or [out, ceil(in/32)] after a recast; earlier e8m0 or F32, square blocks */
    BL_FORM_FP4,   /* packed e2m1 [out, in/2], e8m0 scale [out, in/32] */
    BL_FORM_TABLE, /* e4m3 codes [rows, dim], e8m0 scale [rows, ceil(dim/32)] */
    BL_FORM_OTHER  /* integers: hash tables of earlier generations */
} bl_form;

#define BL_BLOCK 32 /* edge of a V4.1 block */

/* A rectangle of a slot's decoded tensor, in elements. A vector is one row. */
typedef struct bl_rect {
    uint64_t row, rows, col, cols;
} bl_rect;

/* One slot and the bytes that fill it, or a part of it: a tensor, or one expert's slice of a stacked tensor. */
typedef struct bl_weight {
    const bl_slot *slot;
    bl_form form;
    bl_rect part; /* what it holds: all of the slot, or a rank's share */
    uint64_t pad_cols;             /* columns of padding behind those of the part */
    uint8_t fine_rows, fine_cols;  /* tiles of its value digest have 32 >> fine_rows rows and 32 >> fine_cols columns */
    const bl_tensor *tensor, *scale; /* scale NULL for F32, BF16 and OTHER */
    uint32_t block_rows, block_cols; /* values that share a scale; 0 without one. block_cols is a multiple of 32 */
    uint64_t offset, nbytes;         /* in the file of tensor */
    uint64_t scale_offset, scale_nbytes;
    bool replica; /* an earlier weight of the slot, on another rank, holds the same part */
} bl_weight;

typedef struct bl_binding {
    bl_slots slots;
    bl_weight *weights; /* [count], in model order */
    size_t count;
    size_t fp8, fp4; /* weights (tables aside) in these forms */
    size_t missing;  /* slots without a usable tensor */
    bl_generation generation;
    int block; /* edge of the fp8 blocks */
} bl_binding;

/* Fill every slot of c's config; of an earlier generation, whose config calls for nothing, give every tensor its role
 * (bl_derive). Problems, each naming the tensor: a slot without tensor, a tensor without slot, a wrong dtype
 * or shape, a missing or orphan scale, a scale of the wrong grid (both names). With on_problem NULL the first one is the
 * result (BL_E_INPUT); else all are reported and the slots concerned are left out of the binding. The arrays live in arena and
 * borrow from c, which must have a config. */
bl_status bl_bind(const bl_checkpoint *c, bl_arena *arena, bl_problem_fn on_problem, void *arg, bl_binding *out, bl_error *err);

/* Hold the config's quantization_config against the forms that the weights have: there exactly when some are fp8 or fp4, with
 * expert_dtype fp4 exactly when experts are packed, and an earlier generation's weight_block_size as the grids are. Problems as with bl_bind. Nothing is concluded from weights that are
 * missing. */
bl_status bl_bind_forms(const bl_checkpoint *c, const bl_binding *b, bl_problem_fn on_problem, void *arg, bl_error *err);

/* Is a slot that no weight fills a consequence of something else: a file that could not be read, or a tensor that is there but
 * does not fit (bl_bind has said so)? */
bool bl_slot_excused(const bl_checkpoint *c, const bl_slots *slots, const bl_slot *s);

/* Is it fp8 with F32 scales? */
bool bl_weight_f32_scaled(const bl_weight *w);
/* Make w what it would be in another form as V4.1 has it: its form and blocks, with which the functions below answer. Where its
 * bytes are is left as it was. */
void bl_weight_reform(bl_weight *w, bl_form form);
/* Bytes of n elements as stored; n is even for packed codes. */
uint64_t bl_weight_stored_bytes(const bl_weight *w, uint64_t n);
/* Bytes of one row of the weight as stored, padding included. */
uint64_t bl_weight_row_bytes(const bl_weight *w);
/* Of the blocks that the part lies in, which a view may begin inside of: bytes of a row of their scales; columns; rows. */
uint64_t bl_weight_scale_row_bytes(const bl_weight *w);
uint64_t bl_weight_scale_cols(const bl_weight *w);
uint64_t bl_weight_scale_rows(const bl_weight *w);
/* Columns and rows of the part; a vector has one row. */
uint64_t bl_weight_cols(const bl_weight *w);
uint64_t bl_weight_rows(const bl_weight *w);
bl_value_class bl_weight_class(const bl_weight *w);
/* The value digest that the manifest of a packed model records for what w holds; false when there is none. */
bool bl_weight_recorded(const bl_checkpoint *c, const bl_weight *w, bl_digest *out);
/* The whole of a slot. */
bl_rect bl_slot_rect(const bl_slot *s);

#endif
