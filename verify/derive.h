/* Binding without a table: checkpoints of generations before V4.1, where every tensor's role comes from its dtype, its shape and
 * the scale beside it. */
#ifndef BL_VERIFY_DERIVE_H
#define BL_VERIFY_DERIVE_H

#include "verify/bind.h"

/* The bl_bind of a checkpoint with an earlier config. F32, BF16, I32 and I64 tensors are themselves; F8_E4M3 ones are weights
 * with an F32 or F8_E8M0 scale for each square block, of one edge for all of them, which their grids tell; I8 ones are packed fp4
 * with an F8_E8M0 scale per 1x32. Names may begin with "model." or not.
 *
 * Problems: tensors of no generation known here, or of V4.1; any other dtype, empty tensors, more than two dimensions; codes
 * without scale, with two, or with one of another dtype or grid; a scale without codes (each with both names); a layer outside
 * those of the config or without tensors; an expert that others have on both or one side but that is missing; a name with
 * and without "model.". */
bl_status bl_derive(const bl_checkpoint *c, bl_arena *arena, bl_problem_fn on_problem, void *arg, bl_binding *out, bl_error *err);

#endif
