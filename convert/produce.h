/* Making the bytes of planned output files: read, check, cast, digest. One tile at a time, on any thread. */
#ifndef BL_CONVERT_PRODUCE_H
#define BL_CONVERT_PRODUCE_H

#include "convert/encode.h"
#include "convert/plan.h"
#include "kernels/cast_device.h"
#include "verify/stream.h"
#include "verify/values.h"

/* Where a part of an output file comes from; a part's tag is its index. */
typedef struct bl_piece {
    const bl_plan_tensor *tensor; /* NULL: the file's header, or what else a linked file holds */
    uint64_t at;                  /* of that: where in the file */
    size_t member;
    _Atomic uint64_t made; /* bytes of it so far, where somebody counts */
} bl_piece;

typedef struct bl_producer {
    const bl_plan *plan;
    bl_values values;
    bl_sum *sums; /* [plan sum_count] value digests */
    bl_lane *lanes; /* [plan files] */
    bl_piece *pieces;
    bool digest; /* compute value digests */
    bl_encoder *encoder; /* NULL: nothing is encoded */
    bl_cast_device *caster; /* borrowed; NULL: the processor casts */
    uint64_t scratch, scratch_ratio; /* what bl_stream needs for bl_produce */
} bl_producer;

/* Set up; arrays live in arena. Always followed by bl_producer_close, also after a failure. cpu: capability mask. A plan that
 * encodes needs bl_producer_encode next. */
bl_status bl_producer_open(bl_producer *p, const bl_checkpoint *source, const bl_binding *binding, const bl_plan *plan,
                           bool digest, unsigned cpu, bl_arena *arena, bl_error *err);
void bl_producer_close(bl_producer *p);
/* After the last tile: hear of damage that the source's archive knows of. Files that lie in it as they are, and are wanted for at least half, are
 * read to the end for that. BL_E_INPUT, naming the file. */
bl_status bl_producer_prove(bl_producer *p, bl_error *err);

/* Take over e for the plan's encoded tensors; bl_producer_close destroys it. */
void bl_producer_encode(bl_producer *p, bl_encoder *e);

/* Fill t->data, but for scales that are made with codes: bl_produce_late fills these. Errors as bl_values_scale, bl_values_read and
 * bl_encode. */
bl_status bl_produce(bl_producer *p, const bl_tile *t, bl_error *err);
/* Has t such scales? */
bool bl_produce_waits(const bl_producer *p, const bl_tile *t);
/* Fill them in, when all earlier tiles of the lane and t itself were produced. */
bl_status bl_produce_late(bl_producer *p, const bl_tile *t, bl_error *err);
/* Add t->data, bytes of an output file that bl_produce made earlier, to the value digests. */
bl_status bl_produce_digest(bl_producer *p, const bl_tile *t, bl_error *err);

#endif
